"""The affine map between normalised actions and the range of an environment, and checks of what can be wrapped."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

from octavo_aram.constraints.base import Constraint
from octavo_aram.constraints.combine import Union

__all__ = [
    "ActionRange",
    "ExecutedViolationError",
    "constraining_layer",
    "observation_change",
    "refuse_normalized_observations",
    "refuse_wrapped_actions",
]

_REWRITING = {"NormalizeObservation", "RescaleObservation", "VecNormalize"}
# Older frames come first in a stack, and delayed ones are not of the state that the action meets.
_MIXING = {"FrameStackObservation", "FrameStack", "VecFrameStack", "DelayObservation"}
# Values and their order stay as they are.
_HARMLESS = {"FlattenObservation", "DtypeObservation"}
# What the layers of these packages do to observations is known.
_KNOWN = {"gymnasium", "mo_gymnasium", "octavo_aram", "sb3_contrib", "stable_baselines3"}

# Steps towards the inside, in units of the dtype's precision: 4^0, 4^1, ...; those up to this power move by less than a
# thousandth in float32.
_SMALL_POWER, _LARGEST_POWER = 6, 28
# Values around a rounded one that are tried for each component, and how many combinations of them at most.
_NEIGHBOURS, _LARGEST_GRID = 4, 4096


class ExecutedViolationError(InvalidStateError):
    """An infeasible action was about to be executed."""


@dataclass(frozen=True)
class ActionRange:
    """The range of an environment's actions.

    Args:
        low: Lower bounds [d].
        high: Upper bounds [d].
        dtype: What the environment takes.
    """

    low: np.ndarray
    high: np.ndarray
    dtype: np.dtype

    @classmethod
    def of(cls, env: Any, constraint: Constraint | None = None, *, checked_obs: bool = True) -> ActionRange:
        """Read the range of an environment and check that a constraint fits its spaces.

        Args:
            env: A Gymnasium environment; for a vector environment its single spaces count.
            constraint: The constraint, if any.
            checked_obs: Whether the constraint reads the environment's observation as it is.

        Returns:
            The range.

        Raises:
            InvalidTypeError: If the action space is not a vector of real numbers.
            InvalidValueError: If a bound is infinite, or the constraint has another dimension or reads an entry beyond
                the observation.
        """
        space = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
            raise InvalidTypeError(
                f"the action space {space} is not accepted; constraints need a vector of real numbers, Box(low, high, "
                "(d,)), not discrete or composite actions"
            )
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()) or (low >= high).any():
            raise InvalidValueError(
                f"the action range {low.tolist()} to {high.tolist()} is infinite or empty somewhere and cannot be "
                "normalised; give finite bounds with low < high: set env.action_space to such a Box, in the "
                "environment or in a gymnasium.Wrapper around it (ClipAction makes the range infinite: leave it out)"
            )
        if constraint is not None:
            if constraint.action_dim != len(low):
                raise InvalidValueError(
                    f"{constraint!r} is for {constraint.action_dim} action components, the environment has {len(low)}"
                )
            seen = getattr(env, "single_observation_space", None) or getattr(env, "observation_space", None)
            if constraint.needs_obs and checked_obs:
                if not isinstance(seen, gym.spaces.Box) or len(seen.shape) != 1:
                    raise InvalidTypeError(
                        f"{constraint!r} reads a vector observation but the environment gives {seen}; "
                        "give constraint_obs, a function that extracts the vector"
                    )
                if constraint.min_obs_dim > seen.shape[0]:
                    raise InvalidValueError(
                        f"{constraint!r} reads observation entry {constraint.min_obs_dim - 1} but the environment "
                        f"gives {seen.shape[0]} entries"
                    )
        return cls(low, high, np.dtype(space.dtype))

    @property
    def identity(self) -> bool:
        """Whether the range is the normalised box itself."""
        return bool((self.low == -1).all() and (self.high == 1).all())

    # Halves first: the sum or the difference of two huge bounds overflows.
    @property
    def _middle(self) -> np.ndarray:
        return self.low / 2 + self.high / 2

    @property
    def _half(self) -> np.ndarray:
        return self.high / 2 - self.low / 2

    def to_env(self, action: Any) -> np.ndarray:
        """Map normalised actions to the environment's range, clipped to it.

        Args:
            action: Normalised actions [..., d].

        Returns:
            Actions of the environment's dtype.
        """
        values = np.asarray(action, dtype=np.float64).clip(-1, 1)
        if not self.identity:
            values = self._middle + self._half * values
        # Rounding may pass a bound by one unit in the last place.
        return values.astype(self.dtype).clip(self.low.astype(self.dtype), self.high.astype(self.dtype))

    def from_env(self, action: Any) -> np.ndarray:
        """Map actions of the environment to normalised ones.

        Args:
            action: Actions [..., d] in the environment's range.

        Returns:
            Normalised actions in float64.
        """
        values = np.asarray(action, dtype=np.float64)
        return values if self.identity else (values - self._middle) / self._half

    def executed(self, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Give the action as the environment receives it, and its normalised value after rounding.

        Args:
            action: Normalised actions [..., d].

        Returns:
            The environment's action and its normalised value.
        """
        native = self.to_env(action)
        return native, self.from_env(native)

    def settle(self, constraint: Constraint, obs: Any, action: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
        """Like :meth:`executed`, for a feasible action that rounding must not push out of the set.

        Args:
            constraint: The constraint.
            obs: Raw observation, or ``None``.
            action: A feasible normalised action [d] in float64.
            tol: Tolerance of the membership test.

        Returns:
            The environment's action and its normalised value, which is feasible.

        Raises:
            ExecutedViolationError: If no feasible action was found that the environment's dtype can hold.
        """
        return self.executed(self.settled(constraint, obs, action, tol))

    def settled(self, constraint: Constraint, obs: Any, action: np.ndarray, tol: float | int = 1e-6) -> np.ndarray:
        """Move feasible actions so little that they are feasible as the environment receives them, after rounding.

        Args:
            constraint: The constraint.
            obs: Raw observations [o] or [rows, o]; ``None`` if the constraint reads none.
            action: Feasible normalised actions [d] or [rows, d] in float64.
            tol: Tolerance of the membership test.

        Returns:
            Normalised actions of the same shape, the given ones where rounding does no harm; :meth:`executed` gives
            feasible values for them.

        Raises:
            ExecutedViolationError: If an action is not feasible, or no feasible one near it was found that the
                environment's dtype can hold.
        """
        rows = np.atleast_2d(action)
        where = np.atleast_2d(obs) if constraint.needs_obs else None
        inside = np.asarray(constraint.contains(where, self.executed(rows)[1], tol), bool)
        if inside.all():
            return action
        rows = rows.copy()
        for row in np.flatnonzero(~inside):
            rows[row] = self._near(constraint, None if where is None else where[row], rows[row], float(tol))
        return rows.reshape(action.shape)

    def _near(self, constraint: Constraint, obs: np.ndarray | None, action: np.ndarray, tol: float) -> np.ndarray:
        """A normalised action near a feasible one whose rounded value is feasible."""
        if constraint.contains(obs, action, tol):
            for candidates in self._candidates(constraint, obs, action, tol):
                inside = np.asarray(constraint.contains(obs, self.executed(candidates)[1], tol), bool)
                if inside.any():
                    return candidates[inside.argmax()]
            why = f"no action near it that the environment's {self.dtype} can hold is feasible; use float64 actions"
        else:
            why = "the projection or the fallback of the constraint returned a point outside its set"
        seen = self.executed(action)[1]
        excess = float(constraint.violation(obs, seen))
        raise ExecutedViolationError(
            f"the infeasible action {np.array2string(seen, precision=8)} violates {constraint!r} by {excess:.3g} "
            f"and was not executed: {why}"
        )

    def _candidates(
        self, constraint: Constraint, obs: np.ndarray | None, action: np.ndarray, tol: float
    ) -> Generator[np.ndarray, None, None]:
        """Blocks of candidates [n, d], nearest first: towards interior points, other roundings, further inside."""
        precision = float(np.finfo(self.dtype).eps)
        inner = list(_interior_points(constraint, obs, action, tol))
        small = precision * 4.0 ** np.arange(_SMALL_POWER + 1)
        large = precision * 4.0 ** np.arange(_SMALL_POWER + 1, _LARGEST_POWER)
        for point in inner:
            yield action + small[:, None] * (point - action)
        yield self._roundings(action)
        for point in inner:
            yield action + np.append(large[large < 1.0], 1.0)[:, None] * (point - action)

    def _roundings(self, action: np.ndarray) -> np.ndarray:
        """Normalised values of the actions that differ by a few units in the last place."""
        native = self.to_env(action)
        steps = np.array(sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs))
        dim = len(native)
        if len(steps) ** dim <= _LARGEST_GRID:
            offsets = np.stack(np.meshgrid(*[steps] * dim, indexing="ij"), -1).reshape(-1, dim)
        else:
            offsets = np.random.default_rng(0).choice(steps, (_LARGEST_GRID, dim))
        offsets = offsets[np.argsort(np.abs(offsets).sum(1), kind="stable")]
        return self.from_env(native + (offsets * np.spacing(np.abs(native))).astype(self.dtype))


def _interior_points(
    constraint: Constraint, obs: np.ndarray | None, action: np.ndarray, tol: float
) -> Generator[np.ndarray, None, None]:
    """Interior points of the set, or of those alternatives of a union that hold the action."""
    union = constraint if isinstance(constraint, Union) else getattr(constraint, "_alternatives", None)
    if union is not None:
        for part in union.parts:
            if part.contains(obs, action, tol):
                yield from _interior_points(part, obs, action, tol)
        return
    try:
        yield np.asarray(constraint.interior(obs), np.float64)
    except (InvalidTypeError, InvalidValueError):
        # Oracles may know none; other roundings are left.
        return


def observation_change(layer: Any) -> Literal["rescaled", "mixed", "unknown"] | None:
    """Tell what a layer does to the observations below it.

    Args:
        layer: A Gymnasium wrapper or a Stable-Baselines3 vector environment.

    Returns:
        ``"rescaled"``, ``"mixed"`` (stacked or delayed), ``"unknown"``, or None for nothing.
    """
    names = {base.__name__ for base in type(layer).__mro__}
    if names & _REWRITING and getattr(layer, "norm_obs", True):
        return "rescaled"
    if names & _MIXING:
        return "mixed"
    unknown = isinstance(layer, gym.ObservationWrapper) and type(layer).__name__ not in _HARMLESS
    return "unknown" if unknown or _is_users(layer) else None


def _is_users(layer: Any) -> bool:
    """Whether a layer gives all observations through code of the user's."""
    if isinstance(layer, gym.Wrapper):
        methods = ("reset", "step")
    elif "venv" in getattr(layer, "__dict__", {}):
        methods = ("reset", "step_wait")
    else:
        return False
    return not any(getattr(type(layer), method).__module__.partition(".")[0] in _KNOWN for method in methods)


def refuse_normalized_observations(env: Any, constraint: Constraint, *, extracted: bool = False) -> None:
    """Refuse an environment whose observations were changed before the constraint can read them.

    Layers that rescale, stack or delay observations are refused. Others whose effect cannot be known, such as
    ``TransformObservation`` or a wrapper with a ``reset`` and a ``step`` of the user's, are told in a warning.

    Args:
        env: A Gymnasium environment or a Stable-Baselines3 vector environment.
        constraint: The constraint; one that reads no observation is always accepted.
        extracted: Whether a function of the user's gives the constraint its observation; layers that do not rescale
            are then the user's to judge.

    Raises:
        InvalidValueError: If a layer of the environment rescales, stacks or delays observations.
    """
    layer = env
    while constraint.needs_obs and layer is not None:
        kind, change = type(layer).__name__, observation_change(layer)
        if change == "rescaled":
            raise InvalidValueError(
                f"{kind} changes the observations that {constraint!r} reads raw; put the constraint wrapper inside it "
                "(next to the environment), or normalise outside"
            )
        if not extracted and change == "mixed":
            raise InvalidValueError(
                f"{kind} stacks or delays the observations, so that {constraint!r} would read entries of an earlier "
                "one; put the constraint wrapper inside it, or give the wrapper constraint_obs, a function that "
                "extracts the current observation"
            )
        if not extracted and change == "unknown":
            warnings.warn(
                f"{kind} may change the observations that {constraint!r} reads; put the constraint wrapper inside "
                "it, or give the wrapper constraint_obs, a function that extracts what the constraint is to read",
                stacklevel=4,
            )
        layer = getattr(layer, "env", None) or getattr(layer, "venv", None)


def constraining_layer(env: Any) -> str | None:
    """Find a wrapper of this package that handles infeasible actions.

    Args:
        env: A Gymnasium environment.

    Returns:
        The name of the outermost one; None where there is none.
    """
    layer = env
    while layer is not None:
        if type(layer).__name__ in {"AutoMDPWrapper", "ActionConstraintWrapper"}:
            return type(layer).__name__
        layer = getattr(layer, "env", None)
    return None


def refuse_wrapped_actions(env: Any) -> None:
    """Refuse an environment whose infeasible actions are already handled by a wrapper of this package.

    Args:
        env: A Gymnasium environment.

    Raises:
        InvalidTypeError: If a layer of it is an ``AutoMDPWrapper`` or an ``ActionConstraintWrapper``.
    """
    if kind := constraining_layer(env):
        raise InvalidTypeError(
            f"the environment is wrapped in {kind}, but this learner handles infeasible actions itself; give it the "
            "plain environment, env.env, and the constraint"
        )
