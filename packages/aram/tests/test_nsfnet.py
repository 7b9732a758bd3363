"""NSFnet: capacities from the routes, the packet simulation against recorded rewards, its fluid form, input errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.envs.fluid import FluidNetwork
from octavo_aram.envs.nsfnet import NSFnetEnv, interval_reward
from octavo_aram.envs.packets import PacketNetwork, send_schedule
from octavo_aram.envs.topology import (
    NSFNET_LINKS,
    NSFNET_V2,
    NSFNET_V3,
    Routing,
    link_constraints,
    nsfnet_constraint_matrix,
)
from octavo_core.errors import InvalidStateError, InvalidValueError

# Mean reward of 40 intervals of the reference simulator at constant actions.
REFERENCE_REWARDS = [
    (np.full(9, -0.85), 12.55),
    (np.full(9, -0.75), 9.36),
    (np.array([-1, -1, -0.5, -1, -0.9, -0.9, -0.6, -0.2, -0.7]), 12.41),
]
V2_LIMITS = {
    ((0, 1, 3, 4), -3),
    ((2, 5), -1),
    ((0, 1, 3), -2),
    ((2, 4, 5), -2),
    ((1, 3, 6, 8), -3),
    ((0, 7), -1),
    ((1, 3, 8), -2),
    ((1, 2, 8), -2),
}


def as_limits(matrix: np.ndarray, bounds: np.ndarray) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(np.flatnonzero(row).tolist()), round(bound)) for row, bound in zip(matrix, bounds, strict=True)}


def mean_reward(simulator: str, action: np.ndarray, seed: int, version: str = "V2") -> float:
    env = NSFnetEnv(version, simulator=simulator)
    env.reset(seed=seed)
    return float(np.mean([env.step(action)[1] for _ in range(40)]))


def test_v2_limits_are_those_of_the_task() -> None:
    limits = as_limits(*nsfnet_constraint_matrix("V2"))
    # Links 18, 20 and 26 carry one path each, which the limits of its other links imply.
    assert limits == V2_LIMITS | {((4,), 0), ((6,), 0)}
    reduced = as_limits(*nsfnet_constraint_matrix("V2", drop_implied=True))
    assert reduced < limits


@pytest.mark.parametrize("routes", [NSFNET_V2, NSFNET_V3])
def test_dropped_limits_are_implied_by_the_others(routes: Routing) -> None:
    matrix, bounds = link_constraints(routes)
    reduced, reduced_bounds = link_constraints(routes, drop_implied=True)
    actions = np.random.default_rng(0).uniform(-1, 1, (20_000, len(routes.paths))) * 0.7 - 0.3
    actions = np.concatenate([actions, 2 * np.eye(len(routes.paths)) - 1])
    every = (actions @ matrix.T <= bounds).all(axis=1)
    np.testing.assert_array_equal(every, (actions @ reduced.T <= reduced_bounds).all(axis=1))
    assert every.any()


def test_v3_limits_follow_the_paths_on_links_19_and_29() -> None:
    incidence = dict(zip(NSFNET_V3.links, NSFNET_V3.incidence(), strict=True))
    assert np.flatnonzero(incidence[19]).tolist() == [0, 3, 6, 15]
    assert np.flatnonzero(incidence[29]).tolist() == [7, 8, 13]
    assert ((0, 3, 6, 15), -2) in as_limits(*nsfnet_constraint_matrix("V3"))


@pytest.mark.parametrize("routes", [NSFNET_V2, NSFNET_V3])
def test_paths_are_connected(routes: Routing) -> None:
    for path in routes.paths:
        here = set(NSFNET_LINKS[path[0]])
        for link, following in itertools.pairwise(path):
            shared = here & set(NSFNET_LINKS[following])
            assert len(shared) == 1, (path, link)
            here = set(NSFNET_LINKS[following]) - shared


@pytest.mark.claim
@pytest.mark.parametrize(("action", "reference"), REFERENCE_REWARDS)
def test_rewards_at_constant_actions_agree_with_the_reference(action: np.ndarray, reference: float) -> None:
    assert np.mean([mean_reward("packets", action, seed) for seed in range(8)]) == pytest.approx(reference, rel=0.15)


@pytest.mark.claim
@pytest.mark.parametrize(("action", "reference"), REFERENCE_REWARDS)
def test_the_fluid_comes_near_the_packets(action: np.ndarray, reference: float) -> None:
    packets = np.mean([mean_reward("packets", action, seed) for seed in range(4)])
    assert mean_reward("fluid", action, 0) == pytest.approx(packets, rel=0.15)


def test_the_fluid_does_not_depend_on_the_seed() -> None:
    action = np.full(9, -0.6)
    assert mean_reward("fluid", action, 0) == mean_reward("fluid", action, 1)
    assert mean_reward("packets", action, 0) != mean_reward("packets", action, 1)
    assert mean_reward("packets", action, 0) == mean_reward("packets", action, 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([NSFNET_V2, NSFNET_V3]), st.sampled_from([PacketNetwork, FluidNetwork]))
def test_packets_are_conserved(seed: int, routes: Routing, kind: type[PacketNetwork] | type[FluidNetwork]) -> None:
    rng = np.random.default_rng(seed)
    network = kind(routes, queue=20)
    network.reset(rng)
    sent = acked = dropped = 0.0
    for _ in range(6):
        budgets = rng.uniform(0, 30, len(routes.paths)) * rng.integers(0, 2, len(routes.paths))
        seen = network.run(1.0, budgets)
        sent, acked, dropped = sent + seen.sent.sum(), acked + seen.acked.sum(), dropped + seen.dropped.sum()
        assert (seen.round_trips >= 0.15 * seen.acked - 1e-9).all()
    assert sent == pytest.approx(acked + dropped + network.in_flight, abs=1e-6)


@pytest.mark.parametrize("simulator", ["packets", "fluid"])
@pytest.mark.parametrize("version", ["V2", "V3"])
def test_overloaded_queues_drop_packets_and_the_episode_goes_on(simulator: str, version: str) -> None:
    env = NSFnetEnv(version, simulator=simulator, queue=30)
    env.reset(seed=0)
    action = np.ones(env.action_space.shape or ())
    for _ in range(12):
        observation, reward, terminated, truncated, info = env.step(action)
        assert np.isfinite(reward)
        assert np.isfinite(observation).all()
        assert not terminated
        assert not truncated
    assert info["drops"].sum() > 0
    loss = observation.reshape(len(env.routes.flows), 10, 4)[:, -1, 3]
    assert (loss <= 1).all()
    assert loss.max() > 0


def test_silence_costs_the_least_throughput() -> None:
    env = NSFnetEnv("V2")
    env.reset(seed=0)
    _, reward, *_, info = env.step(np.full(9, -1.0))
    assert info["in_flight"] == 0
    assert reward == pytest.approx(3 * (-17.5 + 7.5))
    assert interval_reward(np.array([10.0]), np.array([0.5]), np.array([4.0])) == pytest.approx(
        np.log(10) - 1.5 * np.log(0.5) - 0.5 * np.log(4)
    )


def test_the_observation_holds_the_last_ten_intervals_of_every_flow() -> None:
    env = NSFnetEnv("V2")
    env.reset(seed=0)
    for step in range(12):
        observation, _, _, _, info = env.step(np.full(9, -0.9 if step % 2 else -0.8))
    history = observation.reshape(3, 10, 4)
    np.testing.assert_array_equal(history[:, :, 0], [[30.0, 15.0] * 5] * 3)
    np.testing.assert_array_equal(history[:, -1, 1], info["throughput"])
    np.testing.assert_array_equal(history[:, -1, 2], info["latency"])
    assert observation.shape == env.observation_scale.shape


def test_the_schedule_starts_with_a_burst_that_shares_in_proportion() -> None:
    times, paths = send_schedule(np.array([10.0, 0.0, 20.0]), 1.0, np.random.default_rng(0))
    assert np.bincount(paths, minlength=3).tolist() == [10, 0, 20]
    assert (np.diff(times) > 0).all()
    assert times[-1] < 0.1
    # Every third packet is path 0's.
    assert np.bincount(paths[:15], minlength=3).tolist() == [5, 0, 10]
    times, paths = send_schedule(np.full(20, 50.0), 1.0, np.random.default_rng(0))
    assert 450 < len(times) < 550
    assert times[-1] < 1.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'V2'"):
        NSFnetEnv("V4")
    with pytest.raises(InvalidValueError, match="'packets' or 'fluid'"):
        NSFnetEnv("V2", simulator="exact")
    with pytest.raises(InvalidValueError, match="positive"):
        NSFnetEnv("V2", delay=0.0)
    with pytest.raises(InvalidValueError, match="exactly once"):
        Routing(paths=((16,), (17,)), flows=((0,),))
    with pytest.raises(InvalidValueError, match="each of them once"):
        Routing(paths=((16, 16),), flows=((0,),))
    with pytest.raises(InvalidValueError, match="must be positive"):
        Routing(paths=((16,),), flows=((0,),), capacity=0.0)
    env = NSFnetEnv("V2")
    with pytest.raises(InvalidStateError, match="reset"):
        env.step(np.zeros(9))
    env.reset(seed=0)
    for action in (np.full(9, 10.0), np.full(9, np.nan)):
        with pytest.raises(InvalidValueError, match="leaves"):
            env.step(action)
    with pytest.raises(InvalidValueError, match="one number per path"):
        env.step(np.zeros(3))
