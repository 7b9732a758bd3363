"""Bike sharing: recorded traces of the reference environment, conservation, rounding, input errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.envs.bike_sharing import BikeSharingEnv
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

TRACES = Path(__file__).parent / "data" / "bss_trace.npz"
# Mean of 10 to 20 episodes of the reference environment.
REFERENCE_RETURNS = {(3, "keep"): -2746, (3, "leave"): -1403, (5, "keep"): -16213, (5, "leave"): -14027}


@pytest.mark.parametrize("zones", [3, 5])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", ["keep", "random"])
def test_recorded_traces_are_replayed_exactly(zones: int, seed: int, policy: str) -> None:
    with np.load(TRACES) as file:
        trace = {key: file[f"bss{zones}/s{seed}/{policy}/{key}"] for key in ("flows", "actions", "obs", "reward")}
        parts = {key: file[f"bss{zones}/s{seed}/{policy}/{key}"] for key in ("lost_pickup", "lost_dropoff", "revenue")}
    env = BikeSharingEnv(zones, flows=trace["flows"], horizon=30)
    observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation, trace["obs"][0], atol=1e-9)
    for step, action in enumerate(trace["actions"]):
        observation, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_allclose(observation, trace["obs"][step + 1], atol=1e-9)
        assert reward == pytest.approx(trace["reward"][step], abs=1e-9)
        assert {key: info[key] for key in parts} == pytest.approx({k: v[step] for k, v in parts.items()}, abs=1e-9)
        assert not terminated
        assert truncated == (step == 29)


def episode_return(env: BikeSharingEnv, policy: str, seed: int) -> float:
    zones, total = env.zones, 0.0
    observation, _ = env.reset(seed=seed)
    truncated = False
    while not truncated:
        action = np.full(zones, 30.0) if policy == "keep" else observation[zones : 2 * zones]
        observation, reward, _, truncated, _ = env.step(action)
        total += reward
    return total


@pytest.mark.claim
@pytest.mark.parametrize(("zones", "policy"), REFERENCE_RETURNS)
def test_returns_of_simple_policies_agree_with_the_reference(zones: int, policy: str) -> None:
    env = BikeSharingEnv(zones)
    returns = np.array([episode_return(env, policy, seed) for seed in range(15)])
    # Both means have a standard error, of about 15 episodes each.
    margin = 4.0 * returns.std() * (2 / 15) ** 0.5
    assert abs(returns.mean() - REFERENCE_RETURNS[zones, policy]) < max(margin, 0.01 * abs(returns.mean()))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([3, 5]), st.integers(0, 2**31), st.booleans())
def test_bikes_are_conserved_within_bounds(zones: int, seed: int, leave: bool) -> None:
    env = BikeSharingEnv(zones)
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(10):
        action = observation[zones : 2 * zones] if leave else rng.uniform(0, 45, zones)
        observation, reward, _, _, info = env.step(action)
        allocation, bikes = info["allocation"], observation[zones : 2 * zones]
        assert allocation.sum() == env.total_bikes
        assert env.min_bikes <= allocation.min()
        assert allocation.max() <= env.capacity
        assert bikes.max() <= env.capacity
        # At most the two bikes of an origin whose shares all round to zero are on their way.
        assert env.total_bikes - 2 * zones <= bikes.sum() <= env.total_bikes
        assert info["lost_pickup"] + info["revenue"] == observation[:zones].sum()
        assert reward == -(info["lost_pickup"] + info["lost_dropoff"] + 2 * info["moved"])
        assert observation in env.observation_space


def test_halves_are_rounded_to_even_and_the_last_trip_balances() -> None:
    # Ten bikes for 20 trips of zone 0: shares 2.5 and 7.5 become 2 and 8; rounding halves up would give 3 and 7.
    flow = np.array([[0, 5, 15], [0, 0, 0], [0, 0, 0]])
    env = BikeSharingEnv(3, flows=flow[None], horizon=1)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(np.array([10.0, 40.0, 40.0]))
    # Both others are full, so that the ten bikes are pushed back to zone 0.
    np.testing.assert_array_equal(observation[3:6], [10, 40, 40])
    assert info["lost_dropoff"] == 10
    env = BikeSharingEnv(distances=1.0 - np.eye(3), bikes_per_zone=10, capacity=40, flows=flow[None], horizon=1)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(np.array([10.0, 10.0, 10.0]))
    np.testing.assert_array_equal(observation[3:6], [0, 12, 18])
    assert info["revenue"] == 10
    # Exact halves with a demand that is no power of two: 15 bikes, 18 trips of 9 each, shares 7.5 and 7.5 -> 8 and 7.
    flow = np.array([[0, 9, 9], [0, 0, 0], [0, 0, 0]])
    env = BikeSharingEnv(distances=1.0 - np.eye(3), bikes_per_zone=10, capacity=40, flows=flow[None], horizon=1)
    env.reset(seed=0)
    observation, *_ = env.step(np.array([15.0, 10.0, 5.0]))
    np.testing.assert_array_equal(observation[3:6], [0, 18, 12])


def test_surplus_goes_to_the_nearest_zone_with_room() -> None:
    # Zone 0 receives 20 above its capacity; zone 2 is nearer (1) than zone 1 (3) but has room for five only.
    distances = np.array([[0, 3, 1], [3, 0, 2], [1, 2, 0.0]])
    flow = np.array([[0, 0, 0], [30, 0, 0], [0, 0, 0]])
    env = BikeSharingEnv(distances=distances, bikes_per_zone=30, capacity=40, flows=flow[None], horizon=1)
    env.reset(seed=0)
    observation, reward, *_, info = env.step(np.array([25.0, 30.0, 35.0]))
    np.testing.assert_array_equal(observation[3:6], [40, 10, 40])
    assert info["lost_dropoff"] == 15
    assert reward == -(15 + 2 * 5)


def test_flows_of_one_episode_can_be_given_at_reset() -> None:
    env = BikeSharingEnv(3, horizon=2)
    flows = np.full((2, 3, 3), 7) * (1 - np.eye(3, dtype=int))
    env.reset(seed=0, options={"flows": flows})
    observation, *_ = env.step(np.full(3, 30.0))
    np.testing.assert_array_equal(observation[:3], [14, 14, 14])
    with pytest.raises(InvalidValueError, match="more than 48 trips"):
        env.reset(options={"flows": flows * 10})


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="has 3 or 5"):
        BikeSharingEnv(4)
    with pytest.raises(InvalidValueError, match="square"):
        BikeSharingEnv(distances=[[0.0, 1.0]])
    with pytest.raises(InvalidValueError, match="non-negative"):
        BikeSharingEnv(distances=[[0.0, -1.0], [1.0, 0.0]])
    with pytest.raises(InvalidValueError, match="not symmetric: 1 from zone 0 to 1 and 2 back"):
        BikeSharingEnv(distances=[[0.0, 1.0], [2.0, 0.0]])
    with pytest.raises(InvalidTypeError, match="distances is no table"):
        BikeSharingEnv(distances=[[0.0, 1.0], [2.0]])
    with pytest.raises(InvalidValueError, match="between min_bikes"):
        BikeSharingEnv(3, bikes_per_zone=50)
    with pytest.raises(InvalidValueError, match="horizon=0"):
        BikeSharingEnv(3, horizon=0)
    with pytest.raises(InvalidTypeError, match="whole number"):
        BikeSharingEnv(3, capacity=40.5)
    with pytest.raises(InvalidValueError, match="at least horizon=100"):
        BikeSharingEnv(3, flows=np.zeros((30, 3, 3), int))
    with pytest.raises(InvalidValueError, match="whole numbers"):
        BikeSharingEnv(3, flows=np.full((100, 3, 3), 0.5))
    with pytest.raises(InvalidValueError, match="zero from a zone to itself"):
        BikeSharingEnv(3, flows=np.ones((100, 3, 3), int))
    env = BikeSharingEnv(3)
    with pytest.raises(InvalidStateError, match="reset"):
        env.step(np.full(3, 30.0))
    env.reset(seed=0)
    with pytest.raises(InvalidValueError, match="one number per zone"):
        env.step(np.full(2, 30.0))
    with pytest.raises(InvalidValueError, match="finite"):
        env.step(np.array([30.0, np.nan, 30.0]))
