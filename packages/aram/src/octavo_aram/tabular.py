"""Small finite MDPs, solved exactly: what the equivalence of the augmented MDP claims can be checked on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from octavo_core.errors import InvalidValueError

from octavo_aram.equivalence import checked_preference

__all__ = ["Solution", "TabularMDP", "random_mdp", "solve_augmented", "solve_constrained"]

_MAX_SWEEPS = 100_000


@dataclass(frozen=True)
class TabularMDP:
    """A finite MDP with a feasible set of actions in each state.

    Args:
        transition: P(s' | s, a) as [states, actions, states].
        reward: r(s, a) as [states, actions].
        feasible: Whether a is in C(s), [states, actions]; each state has at least one.
        gamma: Discount in [0, 1).

    Raises:
        InvalidValueError: If shapes differ, rows of P are no distributions, a state has no feasible action or gamma is
            out of range.
    """

    transition: Float[np.ndarray, "states actions states"]
    reward: Float[np.ndarray, "states actions"]
    feasible: Bool[np.ndarray, "states actions"]
    gamma: float = 0.9

    def __post_init__(self) -> None:
        if self.reward.shape != self.feasible.shape or self.transition.shape != (
            *self.reward.shape,
            self.reward.shape[0],
        ):
            raise InvalidValueError(
                f"transition {self.transition.shape}, reward {self.reward.shape} and feasible {self.feasible.shape} "
                "do not fit; give [s, a, s], [s, a], [s, a]"
            )
        if (self.transition < 0).any() or not np.allclose(self.transition.sum(-1), 1):
            raise InvalidValueError("transition rows must be probabilities that sum to 1")
        if not self.feasible.any(1).all():
            raise InvalidValueError("a state has an empty feasible set; allow at least one action in each")
        if not 0 <= self.gamma < 1:
            raise InvalidValueError(f"gamma={self.gamma}; give a discount in [0, 1)")


@dataclass(frozen=True)
class Solution:
    """An optimal value function and greedy policy.

    Args:
        value: Optimal scalarised value of each state.
        action: Greedy action of each state; a feasible one wins a tie.
        action_value: Optimal Q values [states, actions]; ``-inf`` where an action is not allowed.
    """

    value: Float[np.ndarray, " states"]
    action: Int64[np.ndarray, " states"]
    action_value: Float[np.ndarray, "states actions"]


def random_mdp(
    states: int = 6,
    actions: int = 5,
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
    gamma: float = 0.9,
    feasible_share: float = 0.5,
    seed: int = 0,
) -> TabularMDP:
    """Draw a random MDP: transitions from Dirichlet(1), uniform rewards, each action feasible with a given chance.

    Args:
        states: Number of states.
        actions: Number of actions.
        reward_range: Range of the rewards.
        gamma: Discount.
        feasible_share: Chance that an action is feasible; each state keeps at least one.
        seed: Seed.

    Returns:
        The MDP.
    """
    rng = np.random.default_rng(seed)
    feasible = rng.random((states, actions)) < feasible_share
    feasible[np.arange(states), rng.integers(actions, size=states)] = True
    return TabularMDP(
        rng.dirichlet(np.ones(states), size=(states, actions)),
        rng.uniform(*reward_range, size=(states, actions)),
        feasible,
        gamma,
    )


def solve_constrained(mdp: TabularMDP) -> Solution:
    """Solve the constrained MDP by value iteration over feasible actions.

    Args:
        mdp: The MDP.

    Returns:
        Its solution, to about 1e-12.

    Source:
        Section 3 (action-constrained MDP).
    """
    return _value_iteration(mdp, lambda value: np.where(mdp.feasible, _backup(mdp, value, 1.0), -np.inf))


def solve_augmented(mdp: TabularMDP, kappa: float | int, preference: Any) -> Solution:
    """Solve the augmented MDP: infeasible actions loop on their state with reward (0, -kappa), scalarised.

    Args:
        mdp: The MDP.
        kappa: Penalty >= 0.
        preference: Weights of reward and constraint.

    Returns:
        Its solution; values are ``preference_r`` times those of the constrained MDP where the two are equivalent.

    Raises:
        InvalidValueError: If kappa is negative or the preference is off the simplex.

    Source:
        Section 4.2 (AUTO-MDP) and Proposition 1.
    """
    if not kappa >= 0:
        raise InvalidValueError(f"kappa={kappa} would reward violations; give kappa >= 0")
    weight_reward, weight_constraint = checked_preference(preference)

    def values(value: np.ndarray) -> np.ndarray:
        loop = -weight_constraint * kappa + mdp.gamma * value[:, None]
        return np.where(mdp.feasible, _backup(mdp, value, weight_reward), loop)

    return _value_iteration(mdp, values)


def _backup(mdp: TabularMDP, value: np.ndarray, weight: float) -> np.ndarray:
    return weight * mdp.reward + mdp.gamma * mdp.transition @ value


def _value_iteration(mdp: TabularMDP, action_values: Callable[[np.ndarray], np.ndarray]) -> Solution:
    value = np.zeros(len(mdp.reward))
    for _ in range(_MAX_SWEEPS):
        after = action_values(value).max(1)
        change = np.abs(after - value).max()
        value = after
        if change <= 1e-13 * (1 - mdp.gamma) * (1 + np.abs(value).max()):
            break
    q = action_values(value)
    tied = np.isclose(q, q.max(1, keepdims=True), rtol=1e-9, atol=1e-9)
    action = np.where((tied & mdp.feasible).any(1), (tied & mdp.feasible).argmax(1), q.argmax(1))
    return Solution(value, action.astype(np.int64), q)
