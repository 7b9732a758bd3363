"""The constraints of the benchmark by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError

from octavo_aram.constraints import (
    Constraint,
    Ellipsoid,
    Intersection,
    L2Ball,
    LinearInequality,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
)
from octavo_aram.envs.topology import nsfnet_constraint_matrix
from octavo_aram.mujoco_indices import joint_indices
from octavo_aram.observed import LegPower, SquaredSines, TipQuadratic

__all__ = ["CONSTRAINTS", "ConstraintEntry", "constraint_ids", "make_constraint"]


@dataclass(frozen=True)
class ConstraintEntry:
    """One named constraint.

    Args:
        id: Its name.
        env_id: Gymnasium id of the environment that it belongs to.
        action_dim: Number of action components.
        formula: The set, besides the box.
        build: Builds it from an environment (``None`` if ``needs_env`` is false).
        needs_env: Whether indices are resolved from the environment's model.
    """

    id: str
    env_id: str
    action_dim: int
    formula: str
    build: Callable[[Any], Constraint]
    needs_env: bool = False


def _ball(radius2: float | int, dim: int) -> Callable[[Any], Constraint]:
    return lambda env: L2Ball(radius2, action_dim=dim)


def _orthoplex(limit: float | int) -> Callable[[Any], Constraint]:
    return lambda env: Orthoplex(joint_indices(env).velocity, limit)


def _power(limit: float | int) -> Callable[[Any], Constraint]:
    return lambda env: PositivePower(joint_indices(env).velocity, limit)


def _links(version: str) -> Callable[[Any], Constraint]:
    return lambda env: LinearInequality(*nsfnet_constraint_matrix(version))


def _two_discs(env: Any) -> Constraint:
    return Union([L2Ball(0.05, [-0.5, 0.0]), L2Ball(0.05, [0.5, 0.0])])


def _tip(env: Any) -> Constraint:
    return Ellipsoid(TipQuadratic(), 0.05, action_dim=2, min_obs_dim=2)


def _legs(env: Any) -> Constraint:
    indices = joint_indices(env)
    angle, velocity = _angles(indices.angle), indices.velocity
    matrix = LegPower(tuple(velocity.tolist()), tuple(angle.tolist()))
    least = int(max(velocity.max(), angle.max())) + 1
    return LinearInequality(matrix, [5.0], action_dim=6, min_obs_dim=least)


def _power_and_sines(limit: float | int) -> Callable[[Any], Constraint]:
    def build(env: Any) -> Constraint:
        indices = joint_indices(env)
        angle = _angles(indices.angle)
        diagonal = SquaredSines(tuple(angle.tolist()))
        sines = Ellipsoid(diagonal, 0.1, action_dim=len(angle), min_obs_dim=int(angle.max()) + 1)
        return Intersection([Orthoplex(indices.velocity, limit), sines])

    return build


def _angles(angle: np.ndarray | None) -> np.ndarray:
    if angle is None:
        raise InvalidValueError(
            "the observation of this environment shows no joint angles; build the constraint yourself"
        )
    return angle


_W = "sum |w_i a_i| <= {:g}"
_P = "sum max(w_i a_i, 0) <= {:g}"
_B = "sum a_i^2 <= {:g}"


def _entries() -> list[ConstraintEntry]:
    reacher, hopper, cheetah, walker = "Reacher-v5", "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"
    ant, swimmer, humanoid = "Ant-v5", "Swimmer-v5", "Humanoid-v5"
    made = [
        ConstraintEntry("Re+L2", reacher, 2, _B.format(0.05), _ball(0.05, 2)),
        ConstraintEntry("Re+S", reacher, 2, "two discs of squared radius 0.05 around (+-0.5, 0)", _two_discs),
        ConstraintEntry(
            "R+T", reacher, 2, "a1^2 + 2 a1 (a1+a2) cos(theta_2) + (a1+a2)^2 <= 0.05", _tip
        ),
        ConstraintEntry("H+M10", hopper, 3, _P.format(10), _power(10), True),
        ConstraintEntry("HC+O20", cheetah, 6, _W.format(20), _orthoplex(20), True),
        ConstraintEntry(
            "HC+MA", cheetah, 6, "w1 a1 sin(th1+th2+th3) + w4 a4 sin(th4+th5+th6) <= 5", _legs, True
        ),
        ConstraintEntry("W+M10", walker, 6, _P.format(10), _power(10), True),
        ConstraintEntry("W+M5", walker, 6, _P.format(5), _power(5), True),
        ConstraintEntry("An+L2", ant, 8, _B.format(2), _ball(2, 8)),
        ConstraintEntry("An+O30", ant, 8, _W.format(30), _orthoplex(30), True),
        ConstraintEntry("An+O20", ant, 8, _W.format(20), _orthoplex(20), True),
        ConstraintEntry("Hum+L2", humanoid, 17, _B.format(2), _ball(2, 17)),
        ConstraintEntry("Hum+M30", humanoid, 17, _P.format(30), _power(30), True),
        ConstraintEntry("Hum+O30", humanoid, 17, _W.format(30), _orthoplex(30), True),
        ConstraintEntry("NSFnetV2", "octavo_aram/NSFnetV2-v0", 9, "flows <= 50 on each link", _links("V2")),
        ConstraintEntry("NSFnetV3", "octavo_aram/NSFnetV3-v0", 20, "flows <= 50 on each link", _links("V3")),
        ConstraintEntry(
            "BSS3z", "octavo_aram/BSS3z-v0", 3, "sum of bikes = 90 (within 1.5), 10 <= n_i <= 40",
            lambda env: SumEquality(1.0, 0.1, action_dim=3),
        ),
        ConstraintEntry(
            "BSS5z", "octavo_aram/BSS5z-v0", 5, "sum of bikes = 150 (within 2), 0 <= n_i <= 40",
            lambda env: SumEquality(2.5, 0.1, action_dim=5),
        ),
    ]  # fmt: skip
    for tag, limit in (("O03", 0.3), ("O10", 1.0), ("O30", 3.0)):
        made.append(ConstraintEntry(f"R+{tag}", reacher, 2, _W.format(limit), _orthoplex(limit), True))
    for tag, radius2 in (("01", 0.1), ("05", 0.5), ("1", 1.0)):
        made.append(ConstraintEntry(f"S+L2_{tag}", swimmer, 2, _B.format(radius2), _ball(radius2, 2)))
    for tag, env_id, dim in (("H", hopper, 3), ("W", walker, 6)):
        formula = f"{_W.format(10)} and sum a_i^2 sin^2(theta_i) <= 0.1"
        made.append(ConstraintEntry(f"{tag}+O+S", env_id, dim, formula, _power_and_sines(10), True))
    return made


CONSTRAINTS: dict[str, ConstraintEntry] = {entry.id: entry for entry in _entries()}
"""All named constraints; w are the velocities of the actuated joints, theta their angles."""

# Names of the official repository, and short forms.
_ALIASES = {
    "Re+L2_005": "Re+L2",
    "H+M_10": "H+M10",
    "HC+O_20": "HC+O20",
    "W+M_10": "W+M10",
    "W+M_5": "W+M5",
    "An+L2_2": "An+L2",
    "An+O_30": "An+O30",
    "An+O_20": "An+O20",
    "Humanoid+L2_2": "Hum+L2",
    "Humanoid+M_30": "Hum+M30",
    "Humanoid+O_30": "Hum+O30",
    "NSFnetV2+S": "NSFnetV2",
    "NSFnetV3+S": "NSFnetV3",
    "BSS3z+S+D40": "BSS3z",
    "BSS5z+S+D40": "BSS5z",
    "S+L2": "S+L2_05",
    "R+L2": "Re+L2",
}


def constraint_ids() -> list[str]:
    """List the names that :func:`make_constraint` knows, without aliases.

    Returns:
        The names, sorted.
    """
    return sorted(CONSTRAINTS)


def make_constraint(id: Any, env: Any = None) -> Constraint:
    """Build a constraint of the benchmark by name.

    Args:
        id: Name such as ``"H+M10"``; the official repository's names are accepted too.
        env: The environment, whose model tells which observation entries are joint velocities. Without it, the one that
            the constraint belongs to is made for a moment where needed.

    Returns:
        The constraint.

    Raises:
        InvalidValueError: If the name is not known or the environment has another number of actions.
        InvalidTypeError: If the name is no string.
        MissingDependencyError: If MuJoCo is needed and not installed.

    Source:
        Table of constraints of the paper's benchmark; R+T, HC+MA, O+S and R+O from the omron-sinicx benchmark.
    """
    if not isinstance(id, str):
        raise InvalidTypeError(f"a {type(id).__name__} names no constraint; give one of {', '.join(constraint_ids())}")
    name = _ALIASES.get(id, id)
    entry = CONSTRAINTS.get(name)
    if entry is None:
        near = difflib.get_close_matches(id, [*CONSTRAINTS, *_ALIASES], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidValueError(f"no constraint is named {id!r}; {hint}known: {', '.join(constraint_ids())}")
    if env is not None:
        space = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
        shape = getattr(space, "shape", None)
        if shape != (entry.action_dim,):
            raise InvalidValueError(
                f"{name} is for {entry.action_dim} action components ({entry.env_id}) but the environment has {shape}"
            )
        return entry.build(env)
    if not entry.needs_env:
        return entry.build(None)
    import gymnasium as gym

    try:
        made = gym.make(entry.env_id)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise MissingDependencyError.for_extra("mujoco", "octavo-aram", "mujoco") from error
    try:
        return entry.build(made)
    finally:
        made.close()
