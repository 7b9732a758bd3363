"""What a wrapped environment lets see: its observation, checked, and what the constraint reads of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.action_range import observation_change
from octavo_aram.constraints.base import Constraint
from octavo_aram.user_code import user_errors

__all__ = ["ObservationReader", "no_reward", "numeric_reward", "refuse_changed_observations", "single_reward"]

_READING = {"AutoMDPWrapper", "ActionConstraintWrapper", "ExecutedActionAudit"}
# Layers that vector environments in processes of their own are asked for.
_HIDDEN = (
    gymnasium.wrappers.NormalizeObservation,
    gymnasium.wrappers.RescaleObservation,
    gymnasium.wrappers.FrameStackObservation,
    gymnasium.wrappers.DelayObservation,
)


class ObservationReader:
    """Checks observations of an environment and extracts what a constraint reads.

    Args:
        extract: A function of the user's from the observation to the constraint's vector; None for the observation.
        space: The observation space.

    Raises:
        InvalidTypeError: If ``extract`` cannot be called.
    """

    def __init__(self, extract: Callable[[Any], Any] | Any, space: Any) -> None:
        if extract is not None and not callable(extract):
            raise InvalidTypeError(
                f"constraint_obs={extract!r} is a {type(extract).__name__}; give a function that maps an observation "
                "to the vector that the constraint reads"
            )
        self.extract = extract
        self.shape = space.shape if isinstance(space, gymnasium.spaces.Box) else None

    def check(self, obs: Any) -> None:
        """Check that an observation has the shape of its space.

        Args:
            obs: The observation.

        Raises:
            InvalidValueError: If it has another one.
        """
        if self.shape is not None and np.shape(obs) != self.shape:
            raise InvalidValueError(
                f"the environment returned an observation of shape {np.shape(obs)}, but its observation space has "
                f"shape {self.shape}; mend the environment"
            )

    def read(self, obs: Any) -> np.ndarray:
        """Extract what the constraint reads.

        Args:
            obs: The observation.

        Returns:
            The constraint's observation.

        Raises:
            InvalidStateError: If the user's function fails; the message names its file and line.
        """
        if self.extract is None:
            return np.asarray(obs)
        with user_errors("constraint_obs"):
            return np.asarray(self.extract(obs))


def numeric_reward(reward: Any) -> np.ndarray:
    """Read a reward as numbers, one or several.

    Args:
        reward: What an environment returned.

    Returns:
        The numbers, which may be infinite or NaN.

    Raises:
        InvalidTypeError: If it is none.
    """
    try:
        values = np.asarray(reward)
    except ValueError:
        values = np.array(None)
    if values.dtype.kind not in "biuf":
        raise InvalidTypeError(f"the environment returned the reward {reward!r}; a finite number is needed")
    return values


def no_reward(env: Any) -> Any:
    """Give the reward of a step that is not taken.

    Args:
        env: A Gymnasium environment.

    Returns:
        Zeros of the shape and dtype of its ``reward_space``, as MO-Gymnasium's environments have; without one, 0.0.
    """
    layer = env
    # A weighted sum hides the space of the vectors below it.
    while layer is not None and type(layer).__name__ != "LinearReward":
        if (space := getattr(layer, "reward_space", None)) is not None:
            return np.zeros(space.shape, space.dtype)
        layer = getattr(layer, "env", None)
    return 0.0


def single_reward(reward: Any) -> float:
    """Read a reward that must be one number; a vector of one counts.

    Args:
        reward: What an environment returned.

    Returns:
        The number, which may be infinite or NaN.

    Raises:
        InvalidTypeError: If it is none, or several.
    """
    values = numeric_reward(reward)
    if values.size != 1:
        raise InvalidTypeError(
            f"the environment returned the reward {reward!r}; one number is needed, for a vector of them through a "
            "wrapper that weighs them, such as mo_gymnasium.wrappers.LinearReward"
        )
    return float(values.item())


def refuse_changed_observations(model: Any, constraint: Constraint) -> None:
    """Refuse a Stable-Baselines3 agent that sees other observations than its constraint must read.

    ``VecNormalize`` is passed over: the agent's predictor applies it itself, after the constraint has read. Layers
    whose effect cannot be known are told in a warning.

    Args:
        model: The agent; one without its environment cannot be judged.
        constraint: The constraint; one that reads no observation is always accepted.

    Raises:
        InvalidValueError: If a layer between the agent and the constraint changes observations.
    """
    find = getattr(model, "get_env", None)
    layer = find() if constraint.needs_obs and find is not None else None
    remedy = (
        f"so that {constraint!r} cannot read the agent's observations; give constraint_obs, a function from one of "
        "them to the raw one that the constraint reads"
    )
    outer = None
    while layer is not None and type(layer).__name__ not in _READING:
        change, outer = observation_change(layer), layer
        layer = getattr(layer, "venv", None) or getattr(layer, "env", None) or _first_env(layer)
        # By the class: vector wrappers hand on the attributes of those within.
        if change is None or hasattr(type(outer), "normalize_obs"):
            continue
        if change != "unknown":
            raise InvalidValueError(
                f"the agent was trained within {type(outer).__name__}, which changes observations, {remedy}"
            )
        warnings.warn(
            f"the agent was trained within {type(outer).__name__}, which may change observations, {remedy}",
            stacklevel=4,
        )
    ask: Any = getattr(outer, "env_is_wrapped", None)
    # Processes of their own hide the environments, but answer this.
    if layer is None and ask is not None and not getattr(outer, "closed", False):
        for hidden in _HIDDEN:
            if any(ask(hidden)):
                raise InvalidValueError(
                    f"the agent was trained within {hidden.__name__}, which changes observations, {remedy}"
                )
    if layer is not None and layer._reader.extract is not None:
        raise InvalidValueError(f"the agent was trained with constraint_obs in {type(layer).__name__}, {remedy}")
    # Without a constraint wrapper the innermost environment is what a constraint reads.
    reads = outer if layer is None else layer
    # A preference that AutoMDPWrapper appends is part of its own space.
    read, seen = getattr(reads, "observation_space", None), model.observation_space
    if isinstance(read, gymnasium.spaces.Box) and len(read.shape) == 1 and read.shape != seen.shape:
        raise InvalidValueError(
            f"the agent's observations have shape {seen.shape}, those of its {type(reads).__name__} {read.shape}, "
            f"{remedy}"
        )


def _first_env(vector: Any) -> Any:
    """The first environment of a vector; None where processes of their own hide them."""
    envs = getattr(vector, "envs", None)
    return envs[0] if envs else None
