"""What a constraint can do beside telling membership, found out before an agent begins and not when tries run out."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.constraints import Constraint, Oracle, Union

__all__ = ["can_project", "has_interior", "naming_the_state", "repair_for"]

_PROBES, _PROJECTED = 64, 8


def can_project(constraint: Constraint, obs: np.ndarray | None = None) -> bool:
    """Tell whether a constraint can project.

    Args:
        constraint: The constraint.
        obs: One raw observation, (1, observations), to try it at; None if there is none yet.

    Returns:
        Whether it can; True where only a state could tell and there is none.

    Raises:
        InvalidValueError: If it tries and its set is empty.
    """
    if isinstance(constraint, Oracle):
        return constraint.projection is not None
    if isinstance(constraint, Union) and not all(can_project(part, obs) for part in constraint.parts):
        return False
    kind = type(constraint)
    if kind._project is Constraint._project and kind.project is Constraint.project:
        return False
    if constraint.needs_obs and obs is None:
        return True
    rng = np.random.default_rng(0)
    probes = rng.uniform(-1, 1, (2 * _PROBES, constraint.action_dim))
    probes[_PROBES:] = np.sign(probes[_PROBES:])
    where = np.repeat(obs, len(probes), 0) if constraint.needs_obs and obs is not None else None
    outside = np.flatnonzero(~np.asarray(constraint.contains(where, probes), bool))[:_PROJECTED]
    if not len(outside):
        return True
    try:
        constraint.project(None if where is None else where[outside], probes[outside])
    except InvalidTypeError:
        return False
    return True


def has_interior(constraint: Constraint, obs: np.ndarray | None = None) -> bool:
    """Tell whether a constraint knows a feasible point.

    Args:
        constraint: The constraint.
        obs: One raw observation, (1, observations); None if the set does not depend on it.

    Returns:
        Whether it does.

    Raises:
        InvalidValueError: If the set is empty there.
    """
    try:
        constraint.interior(obs)
    except InvalidTypeError:
        return False
    return True


def repair_for(constraint: Constraint, obs: np.ndarray | None, fallback: str) -> str:
    """Choose what replaces an infeasible action where drawing again is not meant or of no use.

    Args:
        constraint: The constraint.
        obs: One raw observation, (1, observations); None if the set does not depend on it.
        fallback: What is to follow when tries run out.

    Returns:
        ``"project"``, ``"interior"`` or, for sets that know nothing but membership, ``"draw"``.

    Raises:
        InvalidTypeError: If the fallback needs what the constraint lacks.
        InvalidValueError: If the set is empty at this state.
    """
    interior, projection = has_interior(constraint, obs), can_project(constraint, obs)
    needed = {"project": projection, "interior": interior, "hit_and_run": interior or projection, "raise": True}
    if not needed[fallback]:
        lacking = {"project": "projection", "interior": "interior point"}.get(fallback, "interior point or projection")
        ways = ["give one with Oracle(fn, project=..., interior=...), or by _project and _interior of your subclass"]
        if interior:
            ways.append("set fallback='interior'")
        ways.append("set fallback='raise', which fails only if no try is feasible")
        raise InvalidTypeError(
            f"{constraint!r} has no {lacking}, which fallback={fallback!r} needs when no try is feasible; "
            + ", or ".join(ways)
        )
    return "project" if projection else "interior" if interior else "draw"


@contextlib.contextmanager
def naming_the_state(constraint: Constraint, obs: np.ndarray, when: str) -> Generator[None]:
    """Name the state at which a feasible set turns out to be empty.

    Args:
        constraint: The constraint.
        obs: Raw observations, (rows, observations), that the block chooses actions at.
        when: When that is, for the message.

    Yields:
        Nothing; the block chooses actions.

    Raises:
        InvalidValueError: If the block raised it; with the state where that state has no feasible action.
    """
    try:
        yield
    except InvalidValueError as error:
        row = _empty_row(constraint, obs)
        if row is None:
            raise
        raise InvalidValueError(
            f"{error}; {when}, at the observation {np.array2string(obs[row], precision=6, threshold=20)}: widen the "
            "constraint at such states, or let the episode end before them"
        ) from error


def _empty_row(constraint: Constraint, obs: Any) -> int | None:
    if constraint.needs_obs and np.isfinite(obs).all():
        for row in range(len(obs)):
            try:
                constraint.interior(obs[row])
            except InvalidTypeError:
                return None
            except InvalidValueError:
                return row
    return None
