"""The affine map between normalised actions and the range of an environment, and checks of what can be wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.constraints.base import Constraint

__all__ = ["ActionRange", "refuse_normalized_observations"]

_REWRITING = {"NormalizeObservation", "RescaleObservation", "VecNormalize"}


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
                f"the action range {low.tolist()} to {high.tolist()} cannot be normalised; give finite bounds with low "
                "< high, for example with gymnasium.wrappers.RescaleAction or ClipAction"
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

    def to_env(self, action: Any) -> np.ndarray:
        """Map normalised actions to the environment's range, clipped to it.

        Args:
            action: Normalised actions [..., d].

        Returns:
            Actions of the environment's dtype.
        """
        values = np.asarray(action, dtype=np.float64).clip(-1, 1)
        if not self.identity:
            values = (self.low + self.high) / 2 + (self.high - self.low) / 2 * values
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
        return values if self.identity else (values - (self.low + self.high) / 2) / ((self.high - self.low) / 2)

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
            The environment's action and its normalised value.
        """
        native, seen = self.executed(action)
        if constraint.contains(obs, seen, tol) or not constraint.convex:
            return native, seen
        inner = np.asarray(constraint.interior(obs), dtype=np.float64)
        for power in range(1, 6):
            share = np.finfo(self.dtype).eps * 4.0**power
            native, seen = self.executed(action + share * (inner - action))
            if constraint.contains(obs, seen, tol):
                break
        return native, seen


def refuse_normalized_observations(env: Any, constraint: Constraint) -> None:
    """Refuse an environment whose observations were rescaled before the constraint can read them.

    Args:
        env: A Gymnasium environment or a Stable-Baselines3 vector environment.
        constraint: The constraint; one that reads no observation is always accepted.

    Raises:
        InvalidValueError: If a layer of the environment rescales observations.
    """
    layer = env
    while constraint.needs_obs and layer is not None:
        kind = type(layer).__name__
        rewrites = any(base.__name__ in _REWRITING for base in type(layer).__mro__)
        if rewrites and getattr(layer, "norm_obs", True):
            raise InvalidValueError(
                f"{kind} changes the observations that {constraint!r} reads raw; put the constraint wrapper inside it "
                "(next to the environment), or normalise outside"
            )
        layer = getattr(layer, "env", None) or getattr(layer, "venv", None)
