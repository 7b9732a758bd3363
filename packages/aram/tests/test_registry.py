from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from octavo_aram.constraints import Orthoplex, PositivePower
from octavo_aram.registry import CONSTRAINTS, constraint_ids, make_constraint

INDICES = {
    "H+M10": [8, 9, 10],
    "HC+O20": list(range(11, 17)),
    "W+M10": list(range(11, 17)),
    "W+M5": list(range(11, 17)),
    "An+O30": [25, 26, 19, 20, 21, 22, 23, 24],
    "An+O20": [25, 26, 19, 20, 21, 22, 23, 24],
    "Hum+M30": [29, 28, *range(30, 45)],
    "Hum+O30": [29, 28, *range(30, 45)],
    "R+O10": [6, 7],
}
LIMITS = {"H+M10": 10, "HC+O20": 20, "W+M5": 5, "An+O20": 20, "Hum+M30": 30, "R+O03": 0.3, "R+O10": 1, "R+O30": 3}


@pytest.mark.parametrize("name", INDICES)
def test_velocity_indices_follow_the_model(name: str) -> None:
    pytest.importorskip("mujoco")
    constraint: Any = make_constraint(name)
    assert isinstance(constraint, Orthoplex | PositivePower)
    assert constraint.w_idx is not None
    assert constraint.w_idx.tolist() == INDICES[name]
    env = gym.make(CONSTRAINTS[name].env_id)
    env.reset(seed=0)
    obs, *_ = env.step(env.action_space.sample())
    base: Any = env.unwrapped
    joints = base.model.actuator_trnid[:, 0]
    actual = base.data.qvel[base.model.jnt_dofadr[joints]]
    limit = 10 if name[0] in "HW" and name[:2] not in {"HC", "Hu"} else np.inf
    np.testing.assert_allclose(obs[constraint.w_idx], np.clip(actual, -limit, limit), atol=1e-9)


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_every_constraint_is_built_and_projects(name: str) -> None:
    entry = CONSTRAINTS[name]
    if entry.needs_env:
        pytest.importorskip("mujoco")
    constraint: Any = make_constraint(name)
    assert constraint.action_dim == entry.action_dim
    rng = np.random.default_rng(0)
    obs = rng.normal(0, 5, (6, 400))
    act = rng.normal(0, 2, (6, entry.action_dim))
    point = constraint.project(obs, act)
    assert constraint.contains(obs, point, 1e-9).all()
    assert constraint.contains(obs, constraint.interior(obs), 1e-9).all()
    np.testing.assert_allclose(constraint.project(obs, point), point, atol=1e-7)
    if name in LIMITS:
        assert constraint.limit == LIMITS[name]


def test_angles_and_tips() -> None:
    pytest.importorskip("mujoco")
    env = gym.make("HalfCheetah-v5")
    obs, _ = env.reset(seed=1)
    base: Any = env.unwrapped
    angle, velocity = base.data.qpos[3:], base.data.qvel[3:]
    act = np.random.default_rng(0).uniform(-1, 1, 6)
    value = velocity[0] * act[0] * np.sin(angle[:3].sum()) + velocity[3] * act[3] * np.sin(angle[3:].sum())
    legs: Any = make_constraint("HC+MA", env)
    assert legs.violation(obs * 1.0, act) == max(value - 5, 0)
    matrix, bound = legs.matrix(obs[None]), legs.bound
    assert (matrix[0, 0] @ act, bound.tolist()) == (pytest.approx(value), [5.0])
    reacher = gym.make("Reacher-v5")
    obs, _ = reacher.reset(seed=1)
    theta = float(reacher.unwrapped.data.qpos[1])  # ty: ignore[unresolved-attribute]
    act = np.array([0.4, -0.9])
    total = act.sum()
    value = act[0] ** 2 + 2 * act[0] * total * np.cos(theta) + total**2
    assert make_constraint("R+T", reacher).violation(obs, act) == pytest.approx(max(value - 0.05, 0), abs=1e-12)
    hopper = gym.make("Hopper-v5")
    obs, _ = hopper.reset(seed=1)
    sines: Any = make_constraint("H+O+S", hopper)
    diagonal = sines.parts[1].matrix(obs[None])[0]
    np.testing.assert_allclose(diagonal, np.sin(hopper.unwrapped.data.qpos[3:]) ** 2, atol=1e-12)  # ty: ignore[unresolved-attribute]


def test_official_names_and_mistakes() -> None:
    assert make_constraint("Re+L2_005").action_dim == 2
    assert make_constraint("BSS5z+S+D40").action_dim == 5
    assert constraint_ids() == sorted(CONSTRAINTS)
    with pytest.raises(ValueError, match=r"did you mean 'H\+M10'"):
        make_constraint("H+M1")
    with pytest.raises(ValueError, match="known:"):
        make_constraint("zzz")


def test_environments_that_do_not_fit_are_refused() -> None:
    pendulum = gym.make("Pendulum-v1")
    with pytest.raises(ValueError, match="3 action components"):
        make_constraint("H+M10", pendulum)
    mountain = gym.make("MountainCarContinuous-v0")
    mountain.action_space = gym.spaces.Box(-1, 1, (3,))
    with pytest.raises(TypeError, match="no MuJoCo"):
        make_constraint("H+M10", mountain)


def test_shown_positions_move_the_velocities() -> None:
    pytest.importorskip("mujoco")
    env = gym.make("Hopper-v5", exclude_current_positions_from_observation=False)
    constraint: Any = make_constraint("H+M10", env)
    assert constraint.w_idx.tolist() == [9, 10, 11]


@pytest.mark.parametrize("name", ["R+T", "NSFnetV2", "Re+S", "HC+MA", "H+O+S", "W+O+S"])
def test_named_constraints_can_be_pickled(name: str) -> None:
    if CONSTRAINTS[name].needs_env:
        pytest.importorskip("mujoco")
    made = make_constraint(name)
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert again.fingerprint() == made.fingerprint()
    obs, act = np.linspace(-1, 1, 20), np.full(made.action_dim, 0.9)
    assert again.violation(obs, act) == made.violation(obs, act)
