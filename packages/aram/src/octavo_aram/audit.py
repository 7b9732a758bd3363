"""The audit of executed actions: counts them and refuses infeasible ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from octavo_core.errors import InvalidStateError

from octavo_aram.action_layers import refuse_changed_actions, refuse_vector_env
from octavo_aram.action_range import (
    ActionRange,
    ExecutedViolationError,
    constraining_layer,
    refuse_normalized_observations,
)
from octavo_aram.constraints._user import checked_tolerance
from octavo_aram.constraints.base import Constraint
from octavo_aram.observation_reader import ObservationReader
from octavo_aram.references import as_constraint

__all__ = ["ExecutedActionAudit", "ExecutedViolationError"]


class ExecutedActionAudit(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Count what reaches the environment and refuse infeasible actions; put it next to the environment.

    Actions are in the environment's own range.

    Args:
        env: The environment.
        constraint: The constraint, on normalised actions and raw observations.
        tol: Tolerance of the membership test.
        raise_on_violation: Raise at a violation; otherwise only count.
        constraint_obs: Extracts the constraint's observation from that of the environment.

    Attributes:
        executed: Actions executed.
        violations: Infeasible actions seen.
        worst: Largest violation seen among feasible and infeasible actions.

    Raises:
        InvalidTypeError: If the action space is not a bounded vector, or a vector environment is given.
        InvalidValueError: If the constraint does not fit the spaces, observations are normalised, or a layer below
            repeats actions.

    Source:
        Section 5: no executed action may violate; beyond the paper, it is checked.
    """

    def __init__(
        self,
        env: gym.Env | Any,
        constraint: Constraint | str | Any,
        *,
        tol: float | int | Any = 1e-6,
        raise_on_violation: bool = True,
        constraint_obs: Callable[[Any], Any] | Any = None,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            constraint=constraint,
            tol=tol,
            raise_on_violation=raise_on_violation,
            constraint_obs=constraint_obs,
        )
        refuse_vector_env(env, "ExecutedActionAudit")
        constraint = as_constraint(constraint, env)
        self.range = ActionRange.of(env, constraint, checked_obs=constraint_obs is None)
        refuse_normalized_observations(env, constraint, extracted=constraint_obs is not None)
        refuse_changed_actions(env, constraint)
        gym.Wrapper.__init__(self, env)
        self.constraint, self.tol, self.raise_on_violation = constraint, checked_tolerance(tol), raise_on_violation
        self._reader = ObservationReader(constraint_obs, env.observation_space)
        self._obs: Any = None
        self._broken = False
        self.executed = 0
        self.violations = 0
        self.worst = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the counts go on."""
        self._broken = True
        obs, info = self.env.reset(seed=seed, options=options)
        self._see(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Check the action, then execute it."""
        if self._broken:
            raise InvalidStateError("an earlier step or reset ended in an exception; call reset() before step()")
        seen = self.range.from_env(action)
        if not self.constraint.contains(self._obs, seen, self.tol):
            self.violations += 1
            violation = float(self.constraint.violation(self._obs, seen))
            self.worst = max(self.worst, violation)
            if self.raise_on_violation:
                inner = constraining_layer(self.env)
                remedy = (
                    "wrap the environment in ActionConstraintWrapper or AutoMDPWrapper"
                    if inner is None
                    else f"the audit saw a proposal that {inner} within it has yet to handle: put the audit inside, "
                    f"next to the environment, {inner}(ExecutedActionAudit(env, constraint), constraint)"
                )
                raise ExecutedViolationError(
                    f"the action {np.array2string(seen, precision=4)} violates {self.constraint!r} by {violation:.3g} "
                    f"and was not executed; {remedy}"
                )
        self.executed += 1
        # An exception in the step leaves an observation that may be stale.
        self._broken = True
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._see(obs)
        return obs, reward, bool(terminated), bool(truncated), info

    def _see(self, obs: Any) -> None:
        self._reader.check(obs)
        self._obs = self._reader.read(obs).copy() if self.constraint.needs_obs else None
        self._broken = False
