"""Observation layouts of environments that do not describe them themselves, without MuJoCo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from octavo_aram.mujoco_indices import joint_indices
from octavo_aram.registry import make_constraint


def fake(name: str, positions: int, joints: list[int], size: int, **more: Any) -> Any:
    """An environment with a chain of ``positions`` one-dimensional joints, as MuJoCo describes them."""
    model = SimpleNamespace(
        actuator_trnid=np.array([[joint, -1] for joint in joints]),
        actuator_trntype=np.zeros(len(joints), int),
        jnt_dofadr=np.arange(positions),
        jnt_qposadr=np.arange(positions),
        nq=positions,
        nv=positions,
    )
    env = type(name, (), {})()
    env.model = model
    env.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,))
    env.action_space = gym.spaces.Box(-1, 1, (len(joints),))
    env.unwrapped = env
    for key, value in more.items():
        setattr(env, key, value)
    return env


def test_older_environments_hide_the_usual_number_of_positions() -> None:
    hopper = fake("HopperEnv", 6, [3, 4, 5], 11)
    assert joint_indices(hopper).velocity.tolist() == [8, 9, 10]
    angle = joint_indices(hopper).angle
    assert angle is not None
    assert angle.tolist() == [2, 3, 4]
    shown = fake("HopperEnv", 6, [3, 4, 5], 12, _exclude_current_positions_from_observation=False)
    assert joint_indices(shown).velocity.tolist() == [9, 10, 11]
    swimmer = fake("SwimmerEnv", 5, [3, 4], 8)
    assert joint_indices(swimmer).velocity.tolist() == [6, 7]
    vector = SimpleNamespace(envs=[hopper], single_action_space=hopper.action_space)
    assert joint_indices(vector).velocity.tolist() == [8, 9, 10]
    constraint: Any = make_constraint("H+M10", vector)
    assert constraint.w_idx.tolist() == [8, 9, 10]


def test_a_layout_that_contradicts_the_simulator_is_refused() -> None:
    data = SimpleNamespace(qvel=np.arange(6.0))
    right = np.concatenate([np.zeros(5), data.qvel])
    assert joint_indices(fake("HopperEnv", 6, [3, 4, 5], 11, data=data, _get_obs=lambda: right)).velocity[0] == 8
    with pytest.raises(ValueError, match="does not hold joint velocities"):
        joint_indices(fake("HopperEnv", 6, [3, 4, 5], 11, data=data, _get_obs=lambda: right[::-1]))
    with pytest.raises(ValueError, match="too short"):
        joint_indices(fake("HopperEnv", 6, [3, 4, 5], 9))
    with pytest.raises(ValueError, match="Reacher observation of 12"):
        joint_indices(fake("ReacherEnv", 4, [0, 1], 12))
    assert joint_indices(fake("ReacherEnv", 4, [0, 1], 11)).velocity.tolist() == [6, 7]
    muscle = fake("HopperEnv", 6, [3, 4, 5], 11)
    muscle.model.actuator_trntype[1] = 3
    with pytest.raises(TypeError, match="drives no joint"):
        joint_indices(muscle)
