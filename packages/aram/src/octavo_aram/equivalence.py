"""When an optimal policy of the augmented MDP is optimal for the constrained one: the bound on the penalty.

An infeasible action is optimal at a state exactly if no feasible one is worth more than looping for ever,
``-preference_c kappa / (1 - gamma)``. Rewards bounded below by ``r_min`` make every feasible policy worth at least
``preference_r r_min / (1 - gamma)``; hence ``preference_c kappa > -preference_r r_min`` suffices.
"""

from __future__ import annotations

import math
import warnings
from numbers import Real
from typing import Any

import numpy as np
from octavo_core.errors import InvalidValueError

from octavo_aram.constraints._user import checked_number

__all__ = ["EquivalenceWarning", "checked_preference", "equivalence_holds", "required_kappa", "warn_unless_equivalent"]


class EquivalenceWarning(UserWarning):
    """The penalty may be too small: looping on an infeasible action could be optimal."""


def checked_preference(preference: Any) -> np.ndarray:
    """Check that a preference lies on the simplex.

    Args:
        preference: Two weights, of the reward and of the constraint.

    Returns:
        The preference as float64.

    Raises:
        InvalidValueError: If it is not two numbers >= 0 that sum to 1 (within 1e-6).
    """
    try:
        weights = np.asarray(preference, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"preference {preference!r} is no pair of numbers; give for example (0.5, 0.5)"
        ) from error
    if weights.shape != (2,) or not np.isfinite(weights).all() or (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
        raise InvalidValueError(
            f"preference {preference!r} is off the simplex; give two weights >= 0 that sum to 1: (reward, constraint)"
        )
    return weights / weights.sum()


def required_kappa(reward_min: float | int | Any, preference: Any) -> float:
    """Give the penalty above which the augmented MDP is equivalent to the constrained one.

    Args:
        reward_min: Lower bound of the learned reward (after scale and offset).
        preference: Two weights, of reward and constraint, on the simplex.

    Returns:
        The bound: any kappa strictly above it will do. 0 if rewards are never negative, ``inf`` if the constraint has
        no weight.

    Raises:
        InvalidValueError: If ``reward_min`` is NaN or the preference is off the simplex.
        InvalidTypeError: If ``reward_min`` is no number.

    Source:
        Proposition 1 and the condition that its proof needs (see the module docstring).
    """
    weight_reward, weight_constraint = checked_preference(preference)
    reward_min = _real(reward_min, "reward_min")
    if math.isnan(reward_min):
        raise InvalidValueError("reward_min is NaN; give a lower bound of the learned reward")
    if reward_min >= 0 or weight_reward == 0:
        return 0.0
    return float(-weight_reward * reward_min / weight_constraint) if weight_constraint > 0 else math.inf


def equivalence_holds(kappa: float | int | Any, reward_min: float | int | Any, preference: Any) -> bool:
    """Tell whether the sufficient condition for equivalence holds.

    Args:
        kappa: Penalty >= 0.
        reward_min: Lower bound of the learned reward.
        preference: Weights of reward and constraint.

    Returns:
        Whether it does. With rewards >= 0 any kappa will do; at kappa = 0 an infeasible action may then tie with a
        feasible one whose value is 0, but never beat it.

    Raises:
        InvalidValueError: If kappa is negative or the preference is off the simplex.
        InvalidTypeError: If kappa or ``reward_min`` is no number.

    Source:
        Proposition 1, with its condition.
    """
    kappa = _real(kappa, "kappa")
    if not kappa >= 0:
        raise InvalidValueError(f"kappa={kappa} would reward violations; give kappa >= 0")
    bound = required_kappa(reward_min, preference)
    return bound == 0 or kappa > bound


def _real(value: Any, name: str) -> float:
    """A real number, infinite ones included."""
    return float(value) if isinstance(value, Real) else checked_number(value, name)


def warn_unless_equivalent(
    kappa: float | int, reward_min: float | int, preference: Any, *, stacklevel: int = 2
) -> bool:
    """Warn, naming the penalty needed, if the condition does not hold.

    Args:
        kappa: Penalty >= 0.
        reward_min: Lower bound of the learned reward.
        preference: Weights of reward and constraint.
        stacklevel: Which caller the warning points at.

    Returns:
        Whether the condition holds.
    """
    holds = equivalence_holds(kappa, reward_min, preference)
    if not holds:
        bound = required_kappa(reward_min, preference)
        remedy = f"give kappa > {bound:.4g}" if math.isfinite(bound) else "give the constraint a weight above 0"
        weights = ", ".join(f"{weight:.3g}" for weight in preference)
        warnings.warn(
            f"learned rewards go down to {reward_min:.4g}: with kappa={kappa:g} and preference ({weights}) staying on "
            f"an infeasible action for ever can be optimal; {remedy}, or add a reward_offset that makes rewards >= 0",
            EquivalenceWarning,
            stacklevel=stacklevel + 1,
        )
    return holds
