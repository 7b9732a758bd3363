"""Gymnasium wrappers: constrained actions, the augmented MDP, and the audit of what is executed.

Wrapped environments take actions in the normalised box [-1, 1]^d; the wrapper maps them to the range of the
environment. Feasibility is judged on what the environment receives after rounding to its dtype, so the audit sees
the same numbers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

from octavo_aram.abilities import can_project, naming_the_state
from octavo_aram.action_layers import refuse_changed_actions, refuse_vector_env
from octavo_aram.action_range import ActionRange, refuse_normalized_observations
from octavo_aram.audit import ExecutedActionAudit, ExecutedViolationError
from octavo_aram.constraints._user import checked_count, checked_number, checked_tolerance, numbers
from octavo_aram.constraints.base import Constraint
from octavo_aram.equivalence import EquivalenceWarning, checked_preference, warn_unless_equivalent
from octavo_aram.observation_reader import ObservationReader, no_reward, numeric_reward, single_reward
from octavo_aram.references import as_constraint

__all__ = ["ActionConstraintWrapper", "AutoMDPWrapper", "ExecutedActionAudit", "ExecutedViolationError"]


class _Constrained(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Normalised actions, the last raw observation, and the execution of a feasible action."""

    def __init__(
        self,
        env: gym.Env | Any,
        constraint: Constraint | str | Any,
        tol: float | int | Any,
        max_self_loops: int | Any,
        constraint_obs: Callable[[Any], Any] | Any,
    ) -> None:
        refuse_vector_env(env, type(self).__name__)
        constraint = as_constraint(constraint, env)
        self.range = ActionRange.of(env, constraint, checked_obs=constraint_obs is None)
        refuse_normalized_observations(env, constraint, extracted=constraint_obs is not None)
        refuse_changed_actions(env, constraint)
        max_self_loops, tol = checked_count(max_self_loops, "max_self_loops", least=1), checked_tolerance(tol)
        gym.Wrapper.__init__(self, env)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (constraint.action_dim,), np.float32)
        self.constraint, self.tol, self.max_self_loops = constraint, tol, max_self_loops
        self._reader = ObservationReader(constraint_obs, env.observation_space)
        self._obs: Any = None
        self._needs_reset = True
        self._loops = 0
        self.violations = 0
        """Actions refused at the last moment: their rounded value was infeasible and nothing near it was feasible."""

    def _seen(self) -> Any:
        return self._reader.read(self._obs) if self.constraint.needs_obs else None

    def _judge(self, action: Any) -> tuple[np.ndarray, np.ndarray, bool, float]:
        """Native action, its normalised value, whether it is feasible, and its violation."""
        if self._needs_reset:
            raise InvalidStateError(
                "the episode has ended, has not begun, or was broken off by an exception; call reset() before step()"
            )
        proposed = numbers(action, "the action")
        if proposed.shape != (self.constraint.action_dim,):
            raise InvalidValueError(
                f"action of shape {proposed.shape}; give [{self.constraint.action_dim}] in normalised units"
            )
        native, seen = self.range.executed(proposed)
        inside = bool((np.abs(proposed) <= 1 + self.tol).all())
        judged = seen if inside else proposed
        feasible = self.constraint.contains(self._seen(), judged, self.tol)
        violation = 0.0 if feasible else float(self.constraint.violation(self._seen(), judged))
        return native, seen, feasible, violation

    def _projected(self, action: Any) -> tuple[np.ndarray, np.ndarray, int]:
        """Native and normalised value of the projection, and how many projections that took."""
        with naming_the_state(self.constraint, np.atleast_2d(self._seen()), "in a step"):
            point = self.constraint.project(self._seen(), numbers(action, "the action"))
        try:
            native, seen = self.range.settle(self.constraint, self._seen(), point, self.tol)
        except ExecutedViolationError:
            self.violations += 1
            raise
        return native, seen, 1

    def _execute(self, native: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # An exception in the step leaves an observation that may be stale.
        self._needs_reset = True
        obs, reward, terminated, truncated, info = self.env.step(native)
        self._reader.check(obs)
        if not np.isfinite(numeric_reward(reward)).all():
            raise InvalidValueError(f"the environment returned the reward {reward!r}, which is not finite; mend it")
        # A copy: the caller may overwrite what it is given.
        self._obs, self._needs_reset, self._loops = copy.deepcopy(obs), bool(terminated or truncated), 0
        return obs, reward, bool(terminated), bool(truncated), dict(info)

    def _restarted(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._needs_reset = True
        obs, info = self.env.reset(seed=seed, options=options)
        self._reader.check(obs)
        self._obs, self._loops = copy.deepcopy(obs), 0
        # A constraint_obs that fails is told now, before anything is judged.
        self._seen()
        self._needs_reset = False
        return obs, info


class ActionConstraintWrapper(_Constrained):
    """Guarantee that only feasible actions reach the environment.

    ``info`` gains ``feasible`` (of the proposed action), ``violation``, ``n_qp`` (projections), ``self_loop``,
    ``fallback`` and ``executed_action`` (normalised).

    Args:
        env: An environment with a bounded vector of actions.
        constraint: The constraint, on normalised actions and raw observations; or the name of a known one, e.g.
            ``"Re+L2"``, a YAML file or ``module:Class``.
        mode: ``"error"``: an infeasible action raises; ``"project"``: its projection is executed; ``"reject"``: nothing
            is executed, the same observation comes back with reward 0 (zeros of the ``reward_space`` where rewards are
            vectors), and after ``max_self_loops`` rejections in a row the projection is executed.
        tol: Tolerance of the membership test.
        max_self_loops: Cap on rejections in a row.
        constraint_obs: Extracts the constraint's observation from that of the environment.

    Raises:
        InvalidTypeError: If the action space is not a bounded vector.
        InvalidValueError: If the constraint does not fit, or an argument is out of range.

    Source:
        Section 5 (the projection-based peers put this layer inside the environment).
    """

    def __init__(
        self,
        env: gym.Env | Any,
        constraint: Constraint | str | Any,
        mode: str | Any = "error",
        *,
        tol: float | int | Any = 1e-6,
        max_self_loops: int | Any = 100,
        constraint_obs: Callable[[Any], Any] | Any = None,
    ) -> None:
        if mode not in ("error", "project", "reject"):
            raise InvalidValueError(f"mode={mode!r} is not known; accepted: error, project, reject")
        gym.utils.RecordConstructorArgs.__init__(
            self,
            constraint=constraint,
            mode=mode,
            tol=tol,
            max_self_loops=max_self_loops,
            constraint_obs=constraint_obs,
        )
        super().__init__(env, constraint, tol, max_self_loops, constraint_obs)
        if mode == "project" and not can_project(self.constraint):
            raise InvalidTypeError(
                f"{self.constraint!r} has no projection, which mode='project' needs; give one with Oracle(fn, "
                "project=...), or choose mode='error' or 'reject'"
            )
        self.mode = mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        return self._restarted(seed, options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute the action if it is feasible; otherwise do what the mode says."""
        native, seen, feasible, violation = self._judge(action)
        extra: dict[str, Any] = {"feasible": feasible, "violation": violation, "n_qp": 0, "self_loop": 0}
        extra["fallback"] = False
        if not feasible:
            if self.mode == "error":
                raise ExecutedViolationError(
                    f"the action violates {self.constraint!r} by {violation:.3g} and was not executed; "
                    "propose feasible actions, or choose mode='project' or 'reject'"
                )
            if self.mode == "reject" and self._loops < self.max_self_loops:
                self._loops += 1
                extra |= {"self_loop": self._loops, "executed_action": None}
                return copy.deepcopy(self._obs), no_reward(self.env), False, False, extra
            extra["fallback"] = self.mode == "reject"
            native, seen, extra["n_qp"] = self._projected(action)
        obs, reward, terminated, truncated, info = self._execute(native)
        return obs, reward, terminated, truncated, info | extra | {"executed_action": seen}


class AutoMDPWrapper(_Constrained):
    """The augmented MDP: an infeasible action is no step of the environment but a self-loop with a penalty.

    An infeasible action leaves the environment untouched, its random state and time limit included; the same
    observation comes back with the reward vector (0, -kappa), not terminated and not truncated. After
    ``max_self_loops`` in a row the projection is executed with reward (r, -kappa) and ``info["fallback"]``.
    A feasible action gives (r / reward_scale + reward_offset, 0). ``info`` gains ``feasible``, ``violation``,
    ``self_loop`` (how many in a row), ``fallback``, ``n_qp``, ``executed_action`` (normalised, ``None`` in a loop),
    ``reward_vector`` and, if there is one, ``preference``.

    With a preference the reward is the scalar ``preference . vector``, for any agent; without, the vector, for
    multi-objective agents (``reward_space`` is set on the wrapper and on the unwrapped environment, where
    MO-Gymnasium looks for it). Several with vector rewards go into MO-Gymnasium's ``MOSyncVectorEnv`` or Gymnasium's
    ``AsyncVectorEnv``; its ``SyncVectorEnv`` takes scalar rewards alone.

    Args:
        env: An environment with a bounded vector of actions.
        constraint: The constraint, on normalised actions and raw observations; or the name of a known one, e.g.
            ``"Re+L2"``, a YAML file or ``module:Class``.
        kappa: Penalty >= 0.
        preference: Weights (reward, constraint) on the simplex; ``"dirichlet"`` draws them afresh at each reset;
            ``None`` for vector rewards.
        reward_scale: Divisor of the environment's reward, > 0.
        reward_offset: Added after that; make rewards >= 0 with it if you can.
        reward_min: Lower bound of the environment's reward, if known: the equivalence is checked at once. In any
            case the smallest reward met is watched.
        max_self_loops: Cap on self-loops in a row.
        append_preference: Append the preference to the observation: a vector then, of floats also where the
            environment's holds integers.
        vector: Force vector (``True``) or scalar (``False``) rewards.
        tol: Tolerance of the membership test.
        constraint_obs: Extracts the constraint's observation from that of the environment.

    Raises:
        InvalidTypeError: If the action space is not a bounded vector, or a vector environment is given.
        InvalidValueError: If kappa < 0, the preference is off the simplex, or the constraint does not fit.

    Source:
        Section 4.2 (AUTO-MDP).
    """

    def __init__(
        self,
        env: gym.Env | Any,
        constraint: Constraint | str | Any,
        kappa: float | int | Any = 1.0,
        preference: Sequence[Any] | np.ndarray | Literal["dirichlet"] | str | None = None,
        reward_scale: float | int | Any = 1.0,
        reward_offset: float | int | Any = 0.0,
        max_self_loops: int | Any = 100,
        *,
        reward_min: float | int | Any = None,
        append_preference: bool | Any = False,
        vector: bool | Any = None,
        tol: float | int | Any = 1e-6,
        constraint_obs: Callable[[Any], Any] | Any = None,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            constraint=constraint,
            kappa=kappa,
            preference=preference,
            reward_scale=reward_scale,
            reward_offset=reward_offset,
            max_self_loops=max_self_loops,
            reward_min=reward_min,
            append_preference=append_preference,
            vector=vector,
            tol=tol,
            constraint_obs=constraint_obs,
        )
        super().__init__(env, constraint, tol, max_self_loops, constraint_obs)
        kappa = checked_number(kappa, "kappa", least=0.0, hint="would reward violations")
        reward_scale = checked_number(reward_scale, "reward_scale", least=np.finfo(float).tiny)
        reward_offset = checked_number(reward_offset, "reward_offset")
        reward_min = None if reward_min is None else checked_number(reward_min, "reward_min")
        self._redraw = isinstance(preference, str)
        if self._redraw and preference != "dirichlet":
            raise InvalidValueError(f"preference={preference!r} is not known; give two weights, 'dirichlet' or None")
        fixed = None if preference is None or self._redraw else checked_preference(preference)
        for name, value in (("vector", vector), ("append_preference", append_preference)):
            if value is not None and not isinstance(value, bool | np.bool_):
                raise InvalidTypeError(f"{name}={value!r} is no truth value; give True or False")
        self.vector = preference is None if vector is None else bool(vector)
        if preference is None and (append_preference or not self.vector):
            raise InvalidValueError("a scalar reward and append_preference need a preference; give two weights")
        self.kappa, self.reward_scale, self.reward_offset = kappa, reward_scale, reward_offset
        self.preference: np.ndarray | None = fixed
        self._next_preference: np.ndarray | None = None
        self._rng = np.random.default_rng()
        self.append_preference = append_preference
        if append_preference:
            self.observation_space = _with_preference(env.observation_space)
        if self.vector:
            low, high = np.array([-np.inf, -self.kappa]), np.array([np.inf, 0.0])
            self.reward_space = gym.spaces.Box(low, high, dtype=np.float64)
            # MO-Gymnasium's wrappers read it there.
            cast("Any", env.unwrapped).reward_space = self.reward_space
        self._lowest = np.inf
        self._warned = False
        if reward_min is not None:
            self._watch(reward_min / self.reward_scale + self.reward_offset, stacklevel=3)

    def set_preference(self, preference: Sequence[Any] | np.ndarray) -> None:
        """Set the preference from the next reset on.

        Args:
            preference: Weights (reward, constraint) on the simplex.
        """
        self._next_preference = checked_preference(preference)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | Any | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; ``options={"preference": ...}`` sets the preference of this episode."""
        if options is not None and not isinstance(options, Mapping):
            raise InvalidTypeError(f'options={options!r} is no mapping; give one such as {{"preference": [0.5, 0.5]}}')
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        options = dict(options) if options else {}
        if "preference" in options:
            self.set_preference(options.pop("preference"))
        if self._next_preference is not None:
            self.preference, self._next_preference = self._next_preference, None
        elif self._redraw:
            self.preference = self._rng.dirichlet([1.0, 1.0])
        obs, info = self._restarted(seed, options or None)
        extra = {} if self.preference is None else {"preference": self.preference.copy()}
        return self._shown(obs), dict(info) | extra

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute a feasible action; loop on an infeasible one."""
        native, seen, feasible, violation = self._judge(action)
        extra: dict[str, Any] = {"feasible": feasible, "violation": violation, "n_qp": 0, "fallback": False}
        if not feasible and self._loops < self.max_self_loops:
            self._loops += 1
            extra |= {"self_loop": self._loops, "executed_action": None}
            return self._shown(copy.deepcopy(self._obs)), *self._rewarded(0.0, -self.kappa, False, False, extra)
        penalty = 0.0
        if not feasible:
            penalty, extra["fallback"] = -self.kappa, True
            native, seen, extra["n_qp"] = self._projected(action)
        obs, reward, terminated, truncated, info = self._execute(native)
        learned = single_reward(reward) / self.reward_scale + self.reward_offset
        self._watch(learned, stacklevel=3)
        extra |= {"self_loop": 0, "executed_action": seen}
        return self._shown(obs), *self._rewarded(learned, penalty, terminated, truncated, info | extra)

    def _rewarded(
        self, reward: float, penalty: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> tuple[Any, bool, bool, dict[str, Any]]:
        values = np.array([reward, penalty])
        info["reward_vector"] = values.copy()
        if self.preference is not None:
            info["preference"] = self.preference.copy()
        scalar = None if self.vector or self.preference is None else float(self.preference @ values)
        return values if scalar is None else scalar, terminated, truncated, info

    def _shown(self, obs: Any) -> Any:
        if not self.append_preference:
            return obs
        return np.concatenate([obs, self.preference]).astype(self.observation_space.dtype)

    def _watch(self, reward: float, stacklevel: int) -> None:
        """Warn once if a reward is so low that looping for ever could be better."""
        if not reward < self._lowest:
            return
        self._lowest = reward
        if self._warned:
            return
        if self.preference is None:
            self._warned = reward < 0
            if self._warned:
                warnings.warn(
                    f"learned rewards go down to {reward:.4g}: with kappa={self.kappa:g} and a preference that weighs "
                    f"the reward {self.kappa / (self.kappa - reward):.3g} or more, staying on an infeasible action for "
                    "ever can be optimal; add a reward_offset that makes rewards >= 0",
                    EquivalenceWarning,
                    stacklevel=stacklevel,
                )
        else:
            self._warned = not warn_unless_equivalent(self.kappa, reward, self.preference, stacklevel=stacklevel)


def _with_preference(space: gym.Space) -> gym.spaces.Box:
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise InvalidTypeError(f"append_preference needs a vector observation, not {space}; flatten it first")
    # Integers cannot hold a preference.
    dtype = space.dtype if space.dtype.kind == "f" else np.result_type(space.dtype, np.float32)
    low, high = np.append(space.low, [0, 0]), np.append(space.high, [1, 1])
    return gym.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
