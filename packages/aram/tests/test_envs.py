"""Registered environments: Gymnasium's checker, seeds, reward maps, HopperVel."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import octavo_aram  # noqa: F401  (registers the environments)
import pytest
from gymnasium.utils.env_checker import check_env
from octavo_aram.envs import RewardMap, env_defaults
from octavo_core.errors import InvalidValueError

IDS = ["BSS3z", "BSS5z", "NSFnetV2", "NSFnetV3", "NSFnetV2Fluid", "NSFnetV3Fluid", "HopperVel"]


def make(name: str) -> gymnasium.Env:
    if name == "HopperVel":
        pytest.importorskip("mujoco")
    return gymnasium.make(f"octavo_aram/{name}-v0")


@pytest.mark.parametrize("name", IDS)
def test_the_checker_of_gymnasium_passes(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(make(name).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", IDS)
def test_a_seed_determines_the_episode(name: str) -> None:
    def rewards(seed: int) -> list[float]:
        env = make(name)
        env.action_space.seed(1)
        env.reset(seed=seed)
        return [float(env.step(env.action_space.sample())[1]) for _ in range(5)]

    assert rewards(7) == rewards(7)
    if "Fluid" not in name:
        assert rewards(7) != rewards(8)


@pytest.mark.parametrize(("name", "steps"), [("BSS3z", 100), ("NSFnetV2", 1000), ("HopperVel", 1000)])
def test_episodes_have_the_benchmark_length(name: str, steps: int) -> None:
    spec = gymnasium.spec(f"octavo_aram/{name}-v0")
    assert spec.max_episode_steps == steps


def test_registration_needs_neither_mujoco_nor_torch() -> None:
    code = (
        "import sys, octavo_aram, gymnasium; assert 'octavo_aram/HopperVel-v0' in gymnasium.registry; "
        "sys.exit(bool({'mujoco', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hopper_vel_pays_for_the_goal_velocity() -> None:
    pytest.importorskip("mujoco")
    env, plain = gymnasium.make("octavo_aram/HopperVel-v0"), gymnasium.make("Hopper-v5")
    env.action_space.seed(0)
    seen, expected = env.reset(seed=3)[0], plain.reset(seed=3)[0]
    np.testing.assert_array_equal(seen, expected)
    for _ in range(5):
        action = env.action_space.sample()
        seen, reward, terminated, _, info = env.step(action)
        expected, other, also_terminated, _, _ = plain.step(action)
        np.testing.assert_array_equal(seen, expected)
        assert terminated == also_terminated
        assert float(reward) - float(other) == pytest.approx(1 - abs(info["x_velocity"] - 3) - info["x_velocity"])


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Reacher-v5", RewardMap(1, 1)),
        ("HalfCheetah-v5", RewardMap(1, 0)),
        ("octavo_aram/BSS3z-v0", RewardMap(20, 1)),
        ("octavo_aram/BSS5z-v0", RewardMap(100, 2)),
        ("octavo_aram/NSFnetV2-v0", RewardMap(10, 0)),
        ("NSFnetV3", RewardMap(10, 0)),
        ("my/Own-v3", RewardMap(1, 0)),
    ],
)
def test_reward_maps_of_the_benchmark(env_id: str, expected: RewardMap) -> None:
    assert env_defaults(env_id) == expected
    assert expected(40.0) == pytest.approx(40.0 / expected.scale + expected.offset)


def test_reward_maps_need_a_positive_scale() -> None:
    for scale in (0, -1.0, float("nan")):
        with pytest.raises(InvalidValueError, match="positive"):
            RewardMap(scale=scale)
