"""What all methods share: the loop over environment steps, the audit of actions, prediction and checkpoints."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.device import num_threads, resolve_device, torch_generator
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

from octavo_aram.abilities import naming_the_state, repair_for
from octavo_aram.acting import Acting
from octavo_aram.action_layers import refuse_changed_actions
from octavo_aram.action_range import refuse_normalized_observations, refuse_wrapped_actions
from octavo_aram.agent_state import agent_state, restore_agent
from octavo_aram.buffers import Batch, DualReplayBuffer
from octavo_aram.choice import Choice
from octavo_aram.config import ARAMConfig
from octavo_aram.constraints import Constraint
from octavo_aram.counters import Counters
from octavo_aram.entropy import EntropyTarget, target_or_dimension, volume_is_seen
from octavo_aram.environment import EnvGroup, observation_scale, reward_map
from octavo_aram.networks import ActionScaling
from octavo_aram.preferences import Preferences
from octavo_aram.references import as_constraint
from octavo_aram.setting_checks import plain_value

__all__ = ["Agent", "Core", "as_constraint"]

Core = Any
"""Networks and updates of a method: :class:`~octavo_aram.soft.SoftActorCritic` or its TD3 counterpart."""

# A column that hardly varies in the warm-up is amplified at most this often.
_LARGEST_AMPLIFICATION = 20.0
# What torch's generators take.
_LARGEST_SEED = 2**63 - 1


class Agent(Acting):
    """A method that learns in one or several environments under a constraint on the actions.

    Args:
        env: A Gymnasium environment with a finite Box of actions, several of one kind, or a ``SyncVectorEnv``. The
            agent steps and resets it from now on; nobody else should.
        constraint: The feasible set in normalised actions, or the name of a known one, e.g. ``"Re+L2"``.
        config: Settings; the defaults if None.

    Raises:
        InvalidValueError: If the constraint does not fit the environment, or has no feasible action at its start.
        InvalidTypeError: If the environment or the constraint is of a kind that is not accepted, or the constraint
            lacks the projection or interior point that the method needs.
    """

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
        self._action_shift = np.zeros(self.envs.action_dim)
        self._action_scale = np.ones(self.envs.action_dim)
        scale = observation_scale(self.envs.envs[0]) if config.observation_scaling == "auto" else None
        if scale is not None:
            self._scale = 1 / scale
        self._rescales_from_warmup = config.observation_scaling != "none" and scale is None
        self._set_rescaling()
        self._entropy_told = False
        if self._wants_volume and not volume_is_seen(self.constraint, self.envs.obs, seed=config.seed):
            # Tells now what would come to light after the warm-up.
            self._set_target_entropy(self.envs.obs)
        self.predict_only = False
        """Whether the agent was loaded to predict and has no part of a run that could go on."""
        self.envs.training = True

    @property
    def _wants_volume(self) -> bool:
        return not self.core.deterministic and self.core.automatic and self.config.target_entropy == "volume"

    @property
    def _keeps_rejected(self) -> bool:
        return False

    @property
    def _reads_raw(self) -> bool:
        """Whether updates need raw observations."""
        return False

    @abstractmethod
    def _make_core(self) -> Core: ...

    def _store(self, choice: Choice, obs: np.ndarray, rewards: np.ndarray, after: np.ndarray, over: np.ndarray) -> None:
        self.buffer.add(obs, choice.stored, rewards[:, None], after, over)

    def learn(self, steps: int | Any, callback: Callable[[Agent], bool | None] | Any = None) -> Agent:
        """Learn for a number of further environment steps, counted over all environments.

        Args:
            steps: Environment steps.
            callback: Called after every step of the environments; False, also NumPy's or torch's, stops.

        Returns:
            The agent.

        Raises:
            InvalidValueError: If the number of steps is negative or no integer, or no action is feasible at a state;
                the message shows it.
            InvalidTypeError: If the callback is no function.
            InvalidStateError: If an environment fails, the agent was loaded to predict only, or another agent was
                given the environment since. After an exception within a step all environments are reset, with a
                warning, before the next one.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
            raise InvalidValueError(f"steps={steps!r}; give how many environment steps to learn for, an integer >= 0")
        if callback is not None and not callable(callback):
            raise InvalidTypeError(f"callback={callback!r} cannot be called; give a function of the agent")
        end = self.num_steps + steps
        with self.suitable_threads():
            while self.num_steps < end:
                self.step()
                if callback is not None and plain_value(callback(self)) is False:
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
        if self.predict_only:
            raise InvalidStateError("this agent was loaded with predict_only=True; load it without to learn further")
        if self.envs.recover():
            self.preferences.redraw(np.ones(len(self.envs), bool))
        warm = self.num_steps < self.config.start_steps
        counts = self.counters.warmup if warm else self.counters.training
        obs = self.envs.obs
        when = f"after {self.num_steps} training steps"
        with self.counters.timed("sample"), naming_the_state(self.constraint, obs, when):
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
            # A Ctrl-C that falls into torch's no_grad leaves gradients off; this puts them back on.
            with self.counters.timed("update"), torch.enable_grad():
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
        """Fix what the warm-up tells: scale of observations and actions, and the target entropy."""
        obs = self.buffer.observations()
        if self._rescales_from_warmup:
            self._shift, self._scale = _standardisation(obs)
        if self.config.action_scaling == "warmup":
            self._action_shift, self._action_scale = _standardisation(self._usual_actions())
        self._set_rescaling()
        self._set_target_entropy(obs)
        self._prepared = True

    def _usual_actions(self) -> np.ndarray:
        """Stored actions whose mean and deviation the critics' input is standardised by."""
        return self.buffer.actions()

    def _set_target_entropy(self, obs: np.ndarray) -> None:
        if self.core.deterministic or not self.core.automatic:
            return
        wanted = self.config.target_entropy
        if wanted == "dimension":
            self.core.target_entropy = -float(self.envs.action_dim)
        elif wanted == "volume":
            tell, self._entropy_told = not self._entropy_told, True
            self.entropy_target = target_or_dimension(self.constraint, obs, seed=self.config.seed, tell=tell)
            self.core.target_entropy = self.entropy_target.value
        else:
            self.core.target_entropy = float(wanted)

    def _set_rescaling(self) -> None:
        """Fill the affine map of whole rows of the buffer: observations and actions are rescaled, all else stays."""
        shift, scale = np.zeros(self.buffer.width), np.ones(self.buffer.width)
        for columns in self.buffer.observation_columns:
            shift[columns], scale[columns] = self._shift, self._scale
        columns = self.buffer.action_columns
        shift[columns], scale[columns] = self._action_shift, self._action_scale
        self._row_shift = torch.as_tensor(shift, dtype=self.dtype, device=self.device)
        self._row_scale = torch.as_tensor(scale, dtype=self.dtype, device=self.device)
        self.core.scaling = ActionScaling(self._row_shift[columns], self._row_scale[columns])

    def _watch_reward(self, lowest: float) -> None:
        self.lowest_reward = min(self.lowest_reward, lowest)

    def _check_constraint(self) -> None:
        for env in self.envs.envs:
            refuse_normalized_observations(env, self.constraint)
            refuse_wrapped_actions(env)
            refuse_changed_actions(env, self.constraint)
        if self.constraint.action_dim != self.envs.action_dim:
            raise InvalidValueError(
                f"the constraint is on {self.constraint.action_dim} actions, the environment has "
                f"{self.envs.action_dim}; give a constraint for this environment"
            )
        where = self._constraint_obs(self.envs.obs[:1])
        # Raises where the set is empty at the start, or reads beyond the observation.
        self.constraint.contains(where, np.zeros((1, self.envs.action_dim)))
        self.repair = self._repair(where)

    def _repair(self, obs: np.ndarray | None) -> str:
        """Check that the constraint can do what the method needs."""
        return repair_for(self.constraint, obs, self.config.fallback)

    def state_dict(self, *, buffers: bool = True) -> dict[str, Any]:
        """Return all that a resumed run needs to be the uninterrupted one to the last bit.

        Args:
            buffers: Include the replay buffer; without it the state serves prediction only.

        Returns:
            A state that :func:`octavo_core.checkpoint.save_checkpoint` takes.
        """
        return agent_state(self, buffers=buffers)

    def load_state_dict(
        self, state: Mapping[str, Any], *, predict_only: bool = False, global_random: bool = False
    ) -> None:
        """Put back what :meth:`state_dict` returned; running episodes are replayed.

        Args:
            state: The saved state.
            predict_only: Leave out buffers and running episodes; the agent then predicts, and learns no further.
            global_random: Also put back the states of Python's, NumPy's and torch's global generators, which an
                environment may draw from.

        Raises:
            InvalidStateError: If it belongs to another method, environment, constraint or other settings, or, unless
                it is to predict only, to another number of environments.
        """
        restore_agent(self, state, predict_only=predict_only, global_random=global_random)

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
        cls,
        path: str | os.PathLike[str],
        env: Any,
        constraint: Constraint | str | Any,
        *,
        device: str | None = None,
        predict_only: bool = False,
    ) -> Agent:
        """Read a checkpoint.

        Args:
            path: What :meth:`save` wrote.
            env: The environment of the run, or as many of them as the run had.
            constraint: The constraint of the run.
            device: Device to continue on; that of the run if None.
            predict_only: Load the policy alone, without buffers and running episodes; one environment is enough then.

        Returns:
            An agent of the saved method that learns on, or predicts.
        """
        from octavo_aram.methods import agent_from_state

        return agent_from_state(load_checkpoint(path), env, constraint, device=device, predict_only=predict_only)


def _standardisation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shift and factor that give columns mean 0 and deviation 1; a constant column keeps its scale."""
    deviation = values.std(0, dtype=np.float64)
    floor = np.where(deviation > 1e-6, 1 / _LARGEST_AMPLIFICATION, 1.0)
    scale = 1 / np.maximum(deviation, floor)
    return -values.mean(0, dtype=np.float64) * scale, scale
