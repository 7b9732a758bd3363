"""One or several environments behind normalised actions, with episodes that can be replayed after a resume.

Every episode is reset with a seed of its own. A checkpoint keeps the actions since that reset, and a resumed run
replays them: this restores any environment that is a function of seed and actions, and needs no pickle.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

from octavo_aram.action_range import ActionRange
from octavo_aram.envs.defaults import RewardMap, env_defaults
from octavo_aram.observation_reader import single_reward
from octavo_aram.ownership import base_of, hold, keep_hold
from octavo_aram.user_code import user_errors

__all__ = ["EnvGroup", "StepResult", "env_id", "listed_envs", "observation_scale", "reward_map"]

StepResult = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Next observations before any reset, rewards, terminated flags, ended flags; one row an environment."""


class EnvGroup:
    """Environments that are stepped in turn with actions from [-1, 1]^d.

    Args:
        env: An environment, several of one kind, or a ``SyncVectorEnv``, whose environments are taken out.
        seed: Seed of the episodes.

    Raises:
        InvalidTypeError: If the action space is not a vector of real numbers, or observations are no vectors.
        InvalidValueError: If an action bound is infinite, or the environments differ.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self.envs = listed_envs(env)
        self.seed, self.name = seed, env_id(self.envs[0])
        action, observation = self.envs[0].action_space, self.envs[0].observation_space
        if len({id(base_of(entry)) for entry in self.envs}) < len(self.envs):
            raise InvalidValueError(
                "one environment is given twice; make each one anew, e.g. [make() for _ in range(2)]"
            )
        for other in self.envs[1:]:
            if other.action_space != action or other.observation_space != observation:
                raise InvalidValueError("the environments differ in their spaces; give several of one kind")
        self.range = ActionRange.of(self.envs[0])
        """Range and dtype of the actions."""
        if observation.shape is None or len(observation.shape) != 1:
            raise InvalidTypeError(
                f"the observation space {observation} is no vector; wrap the environment in "
                "gymnasium.wrappers.FlattenObservation"
            )
        self.action_dim = self.range.low.size
        self.observation_dim = int(observation.shape[0])
        count = len(self.envs)
        self.obs = np.zeros((count, self.observation_dim))
        """Current observations as the environments gave them, in float64."""
        self.episodes = [0] * count
        """Episodes started, by environment."""
        self.finished: list[tuple[float, int]] = []
        """Return and length of the episodes that ended since the last call of :meth:`take_finished`."""
        self.training = False
        """Whether an agent learns in these environments, which then are its own."""
        self.interrupted = False
        """Whether a step ended in an exception, so that the environments' state is not known until they are reset."""
        self._returns = [0.0] * count
        self._actions: list[list[np.ndarray]] = [[] for _ in range(count)]
        hold(self.envs, self)
        for index in range(count):
            self._reset(index)

    def __len__(self) -> int:
        """Return the number of environments."""
        return len(self.envs)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Map normalised actions to the environment's range.

        Args:
            actions: Actions in [-1, 1], (..., actions).

        Returns:
            Actions in the environment's units and dtype, clipped to its range.
        """
        return self.range.to_env(actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Map actions of the environment to [-1, 1].

        Args:
            actions: Actions in the environment's units, (..., actions).

        Returns:
            Normalised actions, float64.
        """
        return self.range.from_env(actions)

    def step(self, actions: np.ndarray) -> StepResult:
        """Step every environment once; those that end are reset, and ``obs`` holds the new episode's observation.

        Args:
            actions: Normalised actions, (environments, actions).

        Returns:
            Next observations before any reset, rewards, terminated flags, ended flags.

        Raises:
            InvalidValueError: If an environment returns a number that is not finite.
            InvalidTypeError: If a reward is not one number.
            InvalidStateError: If an environment fails; the message names its file and line. Every later step is
                refused until :meth:`recover` was called.
        """
        if self.interrupted:
            raise InvalidStateError("an earlier step ended in an exception; call recover(), which begins new episodes")
        count = len(self.envs)
        after, rewards = np.empty_like(self.obs), np.empty(count)
        terminated, ended = np.zeros(count, bool), np.zeros(count, bool)
        scaled = self.to_env(actions)
        # An exception anywhere below, an interrupt included, leaves this set: the observations may be stale then.
        self.interrupted = True
        for index, env in enumerate(self.envs):
            with user_errors(f"a step of the environment {self.name!r}"):
                obs, reward, over, truncated, _ = env.step(scaled[index])
            with user_errors(f"reading a step of the environment {self.name!r}"):
                after[index], rewards[index] = obs, single_reward(reward)
                terminated[index], ended[index] = over, over or truncated
            self._returns[index] += rewards[index]
            self._actions[index].append(actions[index].copy())
        if not (np.isfinite(after).all() and np.isfinite(rewards).all()):
            raise InvalidValueError(
                "the environment returned an observation or a reward that is not finite; mend the environment"
            )
        self.obs = after.copy()
        for index in np.flatnonzero(ended):
            self.finished.append((self._returns[index], len(self._actions[index])))
            self._reset(int(index))
        self.interrupted = False
        return after, rewards, terminated, ended

    def recover(self) -> bool:
        """Begin new episodes if an exception ended a step, or somebody else used the environments meanwhile.

        Returns:
            Whether new episodes had to be begun; it is told in a warning.

        Raises:
            InvalidStateError: If another agent holds the environments now.
        """
        if not keep_hold(self):
            self.interrupted = True
        if not self.interrupted:
            return False
        warnings.warn(
            "an exception or another use of the environments broke off their running episodes, whose state is not "
            "known any more: all were reset, and new episodes begin",
            stacklevel=3,
        )
        for index in range(len(self)):
            self._reset(index)
        self.interrupted = False
        return True

    def take_finished(self) -> list[tuple[float, int]]:
        """Return and forget the episodes that have ended.

        Returns:
            Return and length of each.
        """
        finished, self.finished = self.finished, []
        return finished

    def _reset(self, index: int) -> None:
        entropy = [self.seed, index, self.episodes[index]]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        with user_errors(f"a reset of the environment {self.name!r}"):
            obs, _ = self.envs[index].reset(seed=seed)
            self.obs[index] = obs
        if not np.isfinite(self.obs[index]).all():
            raise InvalidValueError("the environment was reset to an observation that is not finite; mend it")
        self.episodes[index] += 1
        self._returns[index] = 0.0
        self._actions[index] = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: episode numbers and the actions since each reset.

        Returns:
            The state.
        """
        return {
            "seed": self.seed,
            "episodes": list(self.episodes),
            "actions": [np.array(actions).reshape(-1, self.action_dim) for actions in self._actions],
            "obs": self.obs.copy(),
            "returns": list(self._returns),
            "interrupted": self.interrupted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the running episodes of a saved state.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidStateError: If the number of environments or their spaces differ, or an episode ends early.
        """
        if len(state["episodes"]) != len(self) or state["obs"].shape != self.obs.shape:
            raise InvalidStateError(
                f"the saved run has {len(state['episodes'])} environments with observations of "
                f"{state['obs'].shape[1]} numbers, this one {len(self)} with {self.observation_dim}; "
                "give the environments of that run, or load it with predict_only=True to predict alone"
            )
        self.seed = state["seed"]
        self.interrupted = True
        if state.get("interrupted", False):
            # Nothing to replay: the run goes on with new episodes, as the saved one would have.
            self.episodes, self.obs = list(state["episodes"]), state["obs"].copy()
            return
        for index, env in enumerate(self.envs):
            self.episodes[index] = state["episodes"][index] - 1
            self._reset(index)
            for action in state["actions"][index]:
                obs, _, over, truncated, _ = env.step(self.to_env(action))
                self.obs[index] = obs
                if over or truncated:
                    raise InvalidStateError(
                        "a replayed episode ended before the saved run's did; the environment has changed since"
                    )
            self._actions[index] = list(state["actions"][index])
        self._returns = list(state["returns"])
        self.interrupted = False
        if not np.array_equal(self.obs, state["obs"]):
            warnings.warn(
                "the replayed episodes differ from those of the saved run: the environment is no function of seed and "
                "actions, so the run goes on but is not the uninterrupted one to the last bit",
                stacklevel=2,
            )


def listed_envs(env: Any) -> list[gymnasium.Env]:
    """List the environments that a user gave.

    Args:
        env: An environment, several of one kind, or a ``SyncVectorEnv``, whose environments are taken out.

    Returns:
        The environments.

    Raises:
        InvalidTypeError: If it is none of these.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        if not isinstance(env, gymnasium.vector.SyncVectorEnv):
            raise InvalidTypeError(
                f"{type(env).__name__} hides its environments; give a SyncVectorEnv or a list of environments"
            )
        return list(env.envs)
    envs = list(env) if isinstance(env, Sequence) else [env]
    if not envs or not all(isinstance(entry, gymnasium.Env) for entry in envs):
        raise InvalidTypeError(f"{env!r} is no Gymnasium environment; give one, or a list of several of one kind")
    return envs


def env_id(env: gymnasium.Env) -> str:
    """Name of an environment.

    Args:
        env: The environment.

    Returns:
        Its Gymnasium id, or the name of its class.
    """
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def reward_map(env: gymnasium.Env, scale: float | int | None, offset: float | int | None) -> RewardMap:
    """Affine map from an environment's reward to the learner's.

    Args:
        env: The environment.
        scale: Divisor; None for what suits the environment.
        offset: Added after; None for what suits the environment.

    Returns:
        The map.
    """
    known = env_defaults(env_id(env))
    return RewardMap(known.scale if scale is None else scale, known.offset if offset is None else offset)


def observation_scale(env: gymnasium.Env) -> np.ndarray | None:
    """Typical magnitude of each observation entry, where the environment says it.

    Args:
        env: The environment.

    Returns:
        Positive magnitudes, or None.
    """
    scale = getattr(env.unwrapped, "observation_scale", None)
    return None if scale is None else np.asarray(scale, np.float64)
