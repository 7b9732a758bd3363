"""Wrappers that change actions on their way to the environment, behind the back of whoever checks them."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.constraints.base import Constraint

__all__ = ["refuse_changed_actions", "refuse_vector_env"]

# The same action in several states: feasible where it was chosen, perhaps not in the next one.
_REPEATING = {"StickyAction", "RepeatAction", "MaxAndSkipObservation"}
# Affine between ranges: normalised actions stay as they are.
_AFFINE = {"RescaleAction"}
_CHECKED = {"ExecutedActionAudit", "ActionConstraintWrapper", "AutoMDPWrapper"}


def refuse_changed_actions(env: Any, constraint: Constraint) -> None:
    """Refuse wrappers that repeat actions, and tell of others that change them.

    Args:
        env: The environment whose actions are checked before it is stepped.
        constraint: The constraint.

    Raises:
        InvalidValueError: If a layer repeats actions in later states while the feasible set depends on the state.
    """
    layer, told = env, False
    while isinstance(layer, gymnasium.Wrapper):
        kind = type(layer)
        names = {base.__name__ for base in kind.__mro__}
        if names & _REPEATING and constraint.needs_obs:
            raise InvalidValueError(
                f"{kind.__name__} repeats an action in later states, where {constraint!r} may forbid it, and nothing "
                "above it can check that; put it outside the constraint wrapper, or train without it"
            )
        told |= kind.__name__ in _CHECKED
        # Both ways of changing an action that Gymnasium's wrappers offer.
        changes = isinstance(layer, gymnasium.ActionWrapper) or callable(getattr(kind, "action", None))
        if changes and not told and kind.__name__ not in _AFFINE and not names & _REPEATING:
            told = True
            warnings.warn(
                f"{kind.__name__} may change actions after {constraint!r} was checked, so that infeasible ones may "
                "reach the environment uncounted; put the constraint next to the environment, inside that layer, or "
                "put ExecutedActionAudit there to see what is executed",
                stacklevel=4,
            )
        layer = layer.env


def refuse_vector_env(env: Any, wrapper: str) -> None:
    """Refuse what a wrapper of one environment cannot take.

    Args:
        env: What was given as the environment.
        wrapper: Name of the wrapper, for the message.

    Raises:
        InvalidTypeError: If it is a vector environment, or none at all.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidTypeError(
            f"{wrapper} takes one environment, not a {type(env).__name__}; wrap each one of the vector: "
            f"gymnasium.make_vec(id, num_envs=n, wrappers=[lambda env: {wrapper}(env, constraint)])"
        )
    if not isinstance(env, gymnasium.Env):
        raise InvalidTypeError(f"{wrapper} takes a gymnasium.Env, not {type(env).__name__}")
