"""What all methods share: the loop over environment steps, the audit of actions, prediction and checkpoints."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.device import num_threads, resolve_device, torch_generator
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.action_range import (
    ExecutedViolationError,
    refuse_normalized_observations,
    refuse_wrapped_actions,
)
from octavo_aram.agent_state import agent_state, restore_agent
from octavo_aram.buffers import Batch, DualReplayBuffer
from octavo_aram.choice import Choice
from octavo_aram.config import ARAMConfig, check_preference
from octavo_aram.constraints import Constraint
from octavo_aram.counters import Counters, PhaseCounters
from octavo_aram.entropy import EntropyTarget, feasible_entropy
from octavo_aram.environment import EnvGroup, observation_scale, reward_map
from octavo_aram.preferences import Preferences
from octavo_aram.references import as_constraint

__all__ = ["Agent", "Core", "as_constraint"]

Core = Any
"""Networks and updates of a method: :class:`~octavo_aram.soft.SoftActorCritic` or its TD3 counterpart."""

# A column that hardly varies in the warm-up is amplified at most this often.
_LARGEST_AMPLIFICATION = 20.0
# What torch's generators take.
_LARGEST_SEED = 2**63 - 1


class Agent(ABC):
    """A method that learns in one or several environments under a constraint on the actions.

    Args:
        env: A Gymnasium environment with a finite Box of actions, several of one kind, or a ``SyncVectorEnv``.
        constraint: The feasible set in normalised actions, or the name of a known one, e.g. ``"Re+L2"``.
        config: Settings; the defaults if None.

    Raises:
        InvalidValueError: If the constraint does not fit the environment, or has no feasible action at its start.
        InvalidTypeError: If the environment or the constraint is of a kind that is not accepted.
    """

    method: str = ""
    """Name of the method."""
    objectives: ClassVar[int] = 1
    """Length of the learner's reward vector."""

    def __init__(self, env: Any, constraint: Constraint | str | Any, config: ARAMConfig | Any = None) -> None:
        self.config = config = ARAMConfig() if config is None else config
        if not isinstance(config, ARAMConfig):
            raise InvalidTypeError(f"config is a {type(config).__name__}; give ARAMConfig(name=value, ...)")
        if config.batch_size > config.buffer_capacity:
            raise InvalidValueError(
                f"batch_size={config.batch_size} exceeds buffer_capacity={config.buffer_capacity}, so that no "
                "update would ever be made; give a larger buffer or a smaller batch"
            )
        if config.seed > _LARGEST_SEED:
            raise InvalidValueError(f"seed={config.seed} is too large; give a seed of at most {_LARGEST_SEED}")
        self.device = resolve_device(config.device)
        self.dtype = getattr(torch, config.dtype)
        self.envs = EnvGroup(env, config.seed)
        self.constraint = as_constraint(constraint, self.envs.envs[0])
        # Taken before it is used: a constraint of the user may keep what it has computed.
        self.constraint_fingerprint = self.constraint.fingerprint()
        self._check_constraint()
        self.rewards = reward_map(self.envs.envs[0], config.reward_scale, config.reward_offset)
        self.generator = torch_generator(config.seed, self.device)
        self.walk = torch_generator(config.seed)
        self.rng = np.random.default_rng([config.seed, 1])
        self.preferences = Preferences(config, self.objectives, len(self.envs), self.rng)
        self.counters = Counters()
        self.num_steps = 0
        """Environment steps taken."""
        self.num_updates = 0
        """Updates made."""
        self.lowest_reward = float("inf")
        """Lowest reward that the learner has seen, after scale and offset."""
        self.entropy_target: EntropyTarget | None = None
        """Where the target entropy comes from, once learning has begun."""
        augmented = config.augmented_capacity or config.buffer_capacity
        self.buffer = DualReplayBuffer(
            config.buffer_capacity,
            augmented if self._keeps_rejected else 0,
            observations=self.envs.observation_dim,
            actions=self.envs.action_dim,
            objectives=self.objectives,
            dtype=self.dtype,
        )
        self.core: Core = self._make_core()
        self._prepared = False
        self._shift = np.zeros(self.envs.observation_dim)
        self._scale = np.ones(self.envs.observation_dim)
        scale = observation_scale(self.envs.envs[0]) if config.observation_scaling == "auto" else None
        if scale is not None:
            self._scale = 1 / scale
        self._rescales_from_warmup = config.observation_scaling != "none" and scale is None
        self._set_rescaling()

    @property
    def _keeps_rejected(self) -> bool:
        return False

    @property
    def _reads_raw(self) -> bool:
        """Whether updates need raw observations."""
        return False

    @abstractmethod
    def _make_core(self) -> Core: ...

    @abstractmethod
    def _choose(self, obs: np.ndarray, preference: np.ndarray | None, *, uniform: bool) -> Choice:
        """Choose stochastic actions; ``uniform`` draws proposals from the box instead of the policy."""

    def _store(self, choice: Choice, obs: np.ndarray, rewards: np.ndarray, after: np.ndarray, over: np.ndarray) -> None:
        self.buffer.add(obs, choice.stored, rewards[:, None], after, over)

    def learn(self, steps: int | Any, callback: Callable[[Agent], bool | None] | None = None) -> Agent:
        """Learn for a number of further environment steps, counted over all environments.

        Args:
            steps: Environment steps.
            callback: Called after every step of the environments; False stops.

        Returns:
            The agent.

        Raises:
            InvalidValueError: If the number of steps is negative or no integer.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
            raise InvalidValueError(f"steps={steps!r}; give how many environment steps to learn for, an integer >= 0")
        end = self.num_steps + steps
        with self.suitable_threads():
            while self.num_steps < end:
                self.step()
                if callback is not None and callback(self) is False:
                    break
        return self

    def suitable_threads(self) -> contextlib.AbstractContextManager[None]:
        """Set the number of threads that learning takes: one on the CPU.

        On products of this size a second thread costs more than it gives, and far more on a busy machine.

        Returns:
            A context within which to call :meth:`step`; the number returns when it ends.
        """
        return num_threads(1) if self.device.type == "cpu" else contextlib.nullcontext()

    def step(self) -> None:
        """Step every environment once and make the updates that are due."""
        warm = self.num_steps < self.config.start_steps
        counts = self.counters.warmup if warm else self.counters.training
        obs = self.envs.obs
        with self.counters.timed("sample"):
            weights = self.preferences.current(self.num_steps)
            choice = self._choose(obs, weights, uniform=warm)
        choice.count(counts)
        choice.settle(self.audit(obs, choice.executed, counts))
        with self.counters.timed("env"):
            after, rewards, terminated, ended = self.envs.step(choice.executed)
        learned = rewards / self.rewards.scale + self.rewards.offset
        self._watch_reward(float(learned.min()))
        self._store(choice, obs, learned, after, terminated)
        if ended.any():
            self.preferences.redraw(ended)
        self.num_steps += len(self.envs)
        if self.num_steps >= self.config.start_steps and len(self.buffer) >= self.config.batch_size:
            with self.counters.timed("update"):
                self._updates(len(self.envs) * self.config.updates_per_step)

    def _updates(self, count: int) -> None:
        if not self._prepared:
            self._prepare()
        config = self.config
        share = config.augmented_share * config.augmented_decay ** (self.num_steps // config.augmented_decay_every)
        for _ in range(count):
            rows = self.buffer.rows(self.buffer.indices(config.batch_size, share, self.rng)).to(self.device)
            batch = self.buffer.split(torch.addcmul(self._row_shift, rows, self._row_scale))
            raw = self.buffer.split(rows) if self._reads_raw else batch
            self._update(batch, raw)
            self.num_updates += 1

    def _update(self, batch: Batch, raw: Batch) -> None:
        self.core.update(batch, raw, self.preferences.for_update(self.num_steps, self.dtype, self.device))

    def _prepare(self) -> None:
        """Fix what the warm-up tells: scale of the observations, and the target entropy."""
        obs = self.buffer.observations()
        if self._rescales_from_warmup:
            deviation = obs.std(0, dtype=np.float64)
            # A constant column stays as it is.
            floor = np.where(deviation > 1e-6, 1 / _LARGEST_AMPLIFICATION, 1.0)
            self._shift, self._scale = obs.mean(0, dtype=np.float64), 1 / np.maximum(deviation, floor)
            self._shift = -self._shift * self._scale
            self._set_rescaling()
        self._set_target_entropy(obs)
        self._prepared = True

    def _set_target_entropy(self, obs: np.ndarray) -> None:
        if self.core.deterministic or not self.core.automatic:
            return
        wanted = self.config.target_entropy
        if wanted == "dimension":
            self.core.target_entropy = -float(self.envs.action_dim)
        elif wanted == "volume":
            self.entropy_target = feasible_entropy(self.constraint, obs, seed=self.config.seed)
            self.core.target_entropy = self.entropy_target.value
        else:
            self.core.target_entropy = float(wanted)

    def _set_rescaling(self) -> None:
        """Fill the affine map of whole rows of the buffer: observations are rescaled, all else stays."""
        shift, scale = np.zeros(self.buffer.width), np.ones(self.buffer.width)
        for columns in self.buffer.observation_columns:
            shift[columns], scale[columns] = self._shift, self._scale
        self._row_shift = torch.as_tensor(shift, dtype=self.dtype, device=self.device)
        self._row_scale = torch.as_tensor(scale, dtype=self.dtype, device=self.device)

    def _to_network(self, obs: np.ndarray) -> Tensor:
        return torch.as_tensor(obs * self._scale + self._shift, dtype=self.dtype, device=self.device)

    def _watch_reward(self, lowest: float) -> None:
        self.lowest_reward = min(self.lowest_reward, lowest)

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
        """Project the rows that are not inside."""
        if inside.all():
            return actions
        with self.counters.timed("project"):
            outside = ~inside
            where = obs[outside] if self.constraint.needs_obs else None
            executed = actions.copy()
            executed[outside] = np.asarray(self.constraint.project(where, actions[outside]), np.float64)
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
            deterministic: Take the policy's mean, projected where it is infeasible, instead of drawing.

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
        return self._corrected(obs, mean)

    def _corrected(self, obs: np.ndarray, proposals: np.ndarray) -> Choice:
        """Correct one proposal a row: here by projection."""
        inside = np.asarray(self.constraint.contains(self._constraint_obs(obs), proposals), bool)
        executed = self._project(obs, proposals, inside)
        count = len(obs)
        outside = np.flatnonzero(~inside)
        return Choice(
            executed, executed, inside, np.ones(count, int), inside, len(outside), proposals[outside], outside
        )

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
            InvalidValueError: If the observation has the wrong length or is not finite, or the preference is off the
                simplex.
        """
        array = np.asarray(obs, np.float64)
        if array.ndim not in (1, 2) or array.shape[-1] != self.envs.observation_dim:
            raise InvalidValueError(
                f"observation of shape {array.shape} does not fit; give ({self.envs.observation_dim},) or a batch"
            )
        if not np.isfinite(array).all():
            raise InvalidValueError("the observation is not finite; a feasible action cannot be told from it")
        weights = None if preference is None else np.array(check_preference(preference))
        choice = self.choose(np.atleast_2d(array), weights, deterministic=deterministic)
        executed = self.envs.range.settled(self.constraint, self._constraint_obs(np.atleast_2d(array)), choice.executed)
        actions = executed if normalized else self.envs.to_env(executed)
        return actions[0] if array.ndim == 1 else actions

    def _check_constraint(self) -> None:
        for env in self.envs.envs:
            refuse_normalized_observations(env, self.constraint)
            refuse_wrapped_actions(env)
        if self.constraint.action_dim != self.envs.action_dim:
            raise InvalidValueError(
                f"the constraint is on {self.constraint.action_dim} actions, the environment has "
                f"{self.envs.action_dim}; give a constraint for this environment"
            )
        where = self._constraint_obs(self.envs.obs[:1])
        # Raises where the set is empty at the start, or reads beyond the observation.
        self.constraint.contains(where, np.zeros((1, self.envs.action_dim)))
        self.constraint.interior(where)

    def state_dict(self, *, buffers: bool = True) -> dict[str, Any]:
        """Return all that a resumed run needs to be the uninterrupted one to the last bit.

        Args:
            buffers: Include the replay buffer; without it the state serves prediction only.

        Returns:
            A state that :func:`octavo_core.checkpoint.save_checkpoint` takes.
        """
        return agent_state(self, buffers=buffers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned; running episodes are replayed.

        Args:
            state: The saved state.

        Raises:
            InvalidStateError: If it belongs to another method, environment, constraint or other settings.
        """
        restore_agent(self, state)

    def save(self, path: str | os.PathLike[str], *, buffers: bool = True) -> Path:
        """Write a checkpoint atomically.

        Args:
            path: File that ends in ``.safetensors``.
            buffers: Include the replay buffer, which resuming needs.

        Returns:
            The path.
        """
        return save_checkpoint(path, self.state_dict(buffers=buffers))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], env: Any, constraint: Constraint | str | Any, *, device: str | None = None
    ) -> Agent:
        """Read a checkpoint.

        Args:
            path: What :meth:`save` wrote.
            env: The environment of the run.
            constraint: The constraint of the run.
            device: Device to continue on; that of the run if None.

        Returns:
            An agent of the saved method that learns on, or predicts.
        """
        from octavo_aram.methods import agent_from_state

        return agent_from_state(load_checkpoint(path), env, constraint, device=device)
