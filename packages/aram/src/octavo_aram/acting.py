"""What an agent does without learning: propose, correct and check actions, and predict."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram.abilities import naming_the_state
from octavo_aram.action_range import ExecutedViolationError
from octavo_aram.choice import Choice
from octavo_aram.constraints import Constraint
from octavo_aram.constraints._user import numbers
from octavo_aram.counters import Counters, PhaseCounters
from octavo_aram.environment import EnvGroup
from octavo_aram.preferences import Preferences
from octavo_aram.setting_checks import check_preference

__all__ = ["Acting"]


class Acting(ABC):
    """An agent's way from observations to feasible actions; :class:`~octavo_aram.agent.Agent` adds the learning."""

    method: str = ""
    """Name of the method."""
    objectives: ClassVar[int] = 1
    """Length of the learner's reward vector."""
    constraint: Constraint
    envs: EnvGroup
    core: Any
    counters: Counters
    preferences: Preferences
    rng: np.random.Generator
    device: torch.device
    dtype: torch.dtype
    num_steps: int
    repair: str
    """What replaces an infeasible action that is not drawn anew: ``"project"``, ``"interior"`` or ``"draw"``."""
    _shift: np.ndarray
    _scale: np.ndarray

    @abstractmethod
    def _choose(self, obs: np.ndarray, preference: np.ndarray | None, *, uniform: bool) -> Choice:
        """Choose stochastic actions; ``uniform`` draws proposals from the box instead of the policy."""

    def _to_network(self, obs: np.ndarray) -> Tensor:
        return torch.as_tensor(obs * self._scale + self._shift, dtype=self.dtype, device=self.device)

    def audit(self, obs: np.ndarray, executed: np.ndarray, counts: PhaseCounters) -> np.ndarray:
        """Check actions right before they are executed: every one, as the environment receives it after rounding.

        Args:
            obs: Raw observations, (rows, observations).
            executed: Normalised actions, (rows, actions).
            counts: Where violations are counted.

        Returns:
            The actions, moved inwards by a few units in the last place where rounding would have left the set.

        Raises:
            ExecutedViolationError: If one is infeasible; nothing was executed.
        """
        try:
            return self.envs.range.settled(self.constraint, self._constraint_obs(obs), executed)
        except ExecutedViolationError:
            counts.violations += 1
            raise

    def _constraint_obs(self, obs: np.ndarray) -> np.ndarray | None:
        return obs if self.constraint.needs_obs else None

    def _project(self, obs: np.ndarray, actions: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Project the rows that are not inside, or put an interior point there where nothing projects."""
        if inside.all():
            return actions
        with self.counters.timed("project"):
            outside = ~inside
            where = obs[outside] if self.constraint.needs_obs else None
            executed = actions.copy()
            if self.repair == "project":
                executed[outside] = np.asarray(self.constraint.project(where, actions[outside]), np.float64)
            else:
                executed[outside] = np.asarray(self.constraint.interior(where), np.float64)
        return executed

    def proposals(
        self, obs: np.ndarray, preference: np.ndarray | None, count: int, *, uniform: bool = False
    ) -> np.ndarray:
        """Draw raw proposals, before any correction.

        Args:
            obs: Raw observations, (rows, observations).
            preference: Weights of all rows, or of each; None with one objective.
            count: Draws at each state.
            uniform: Draw from the box instead of the policy.

        Returns:
            Normalised proposals, (rows, count, actions), float64.
        """
        if uniform:
            return self.rng.uniform(-1.0, 1.0, (len(obs), count, self.envs.action_dim))
        weights = self.core.preference_tensor(preference)
        return self.core.draw(self._to_network(obs), weights, count).double().numpy(force=True)

    def choose(self, obs: np.ndarray, preference: np.ndarray | None = None, *, deterministic: bool) -> Choice:
        """Choose feasible actions and say what it took.

        Args:
            obs: Raw observations, (rows, observations).
            preference: Weights of all rows, or of each; None for the configured ones.
            deterministic: Take the policy's mean, corrected where it is infeasible, instead of drawing: projected; or
                an interior point, or a feasible draw, for sets that know no projection.

        Returns:
            The choice.
        """
        weights = self.preferences.default(self.num_steps) if preference is None else np.asarray(preference, np.float64)
        if self.objectives == 1:
            weights = None
        if not deterministic:
            return self._choose(obs, weights, uniform=False)
        tensor = self.core.preference_tensor(weights)
        mean = self.core.mean_action(self._to_network(obs), tensor).double().numpy(force=True)
        return self._corrected(obs, mean, weights)

    def _corrected(self, obs: np.ndarray, proposals: np.ndarray, preference: np.ndarray | None = None) -> Choice:
        """Correct one proposal a row: here by projection."""
        inside = np.asarray(self.constraint.contains(self._constraint_obs(obs), proposals), bool)
        if self.repair == "draw" and not inside.all():
            return self._redrawn(obs, proposals, preference, inside)
        executed = self._project(obs, proposals, inside)
        count = len(obs)
        outside = np.flatnonzero(~inside)
        projections = len(outside) if self.repair == "project" else 0
        return Choice(executed, executed, inside, np.ones(count, int), inside, projections, proposals[outside], outside)

    def _redrawn(
        self, obs: np.ndarray, proposals: np.ndarray, preference: np.ndarray | None, inside: np.ndarray
    ) -> Choice:
        """Replace the proposals that are not inside by feasible draws of the policy."""
        outside = np.flatnonzero(~inside)
        weights = preference if preference is None or preference.ndim == 1 else preference[outside]
        drawn = self._choose(obs[outside], weights, uniform=False)
        executed, tries = proposals.copy(), np.ones(len(obs), int)
        executed[outside] = drawn.executed
        tries[outside] += drawn.tries
        rejected = np.concatenate((proposals[outside], drawn.rejected))
        rows = np.concatenate((outside, outside[drawn.rejected_row]))
        return Choice(executed, executed, inside, tries, inside, 0, rejected, rows)

    def predict(
        self,
        obs: Any,
        preference: Any = None,
        *,
        deterministic: bool = True,
        normalized: bool = False,
    ) -> np.ndarray:
        """Return a feasible action in the environment's units.

        Args:
            obs: Raw observation, (observations,), or a batch of them.
            preference: Weights (reward, penalty) on the simplex; None for the configured ones.
            deterministic: Take the policy's mean, projected where it is infeasible, instead of drawing.
            normalized: Return actions in [-1, 1] instead.

        Returns:
            The action, or one a row, in the dtype of the environment's actions and feasible after that rounding;
            normalised ones in float64.

        Raises:
            ExecutedViolationError: If no feasible action was found that this dtype can hold.
            InvalidValueError: If the observation holds no finite numbers or has the wrong length, or the preference is
                off the simplex.
        """
        array = numbers(obs, "the observation")
        if array.ndim not in (1, 2) or array.shape[-1] != self.envs.observation_dim:
            raise InvalidValueError(
                f"observation of shape {array.shape} does not fit; give ({self.envs.observation_dim},) or a batch"
            )
        weights = self.checked_weights(preference)
        with naming_the_state(self.constraint, np.atleast_2d(array), "in predict"):
            choice = self.choose(np.atleast_2d(array), weights, deterministic=deterministic)
        executed = self.envs.range.settled(self.constraint, self._constraint_obs(np.atleast_2d(array)), choice.executed)
        actions = executed if normalized else self.envs.to_env(executed)
        return actions[0] if array.ndim == 1 else actions

    def checked_weights(self, preference: Any) -> np.ndarray | None:
        """Check weights that a user gave to predict or evaluate with.

        Args:
            preference: Weights (reward, penalty) on the simplex, or None.

        Returns:
            The weights; None where none were given.

        Raises:
            InvalidValueError: If they are off the simplex.
        """
        if preference is None:
            return None
        weights = np.array(check_preference(preference))
        if self.objectives == 1:
            warnings.warn(
                f"the method {self.method!r} has one objective and does not read preference={preference!r}; leave it "
                "out, or train 'aram'",
                stacklevel=3,
            )
        return weights
