"""Stable-Baselines3 agents under constraints: feasible inference, and the valid action rate during training.

Train any agent on ``AutoMDPWrapper`` and deploy it through :func:`wrap_predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError

from octavo_aram.abilities import can_project, naming_the_state
from octavo_aram.action_range import ActionRange, ExecutedViolationError
from octavo_aram.arm import arm_sample
from octavo_aram.constraints import Constraint
from octavo_aram.constraints._user import checked_count, checked_number, numbers
from octavo_aram.observation_reader import ObservationReader, refuse_changed_observations

if TYPE_CHECKING:
    from stable_baselines3.common.callbacks import BaseCallback

__all__ = ["FeasiblePredictor", "PredictCounts", "valid_rate_callback", "wrap_predict"]

_EXPLORATION_NOISE = 0.1
_FALLBACKS = ("project", "interior", "hit_and_run", "raise")
_CANDIDATES_AT_ONCE = 256


@dataclass
class PredictCounts:
    """What a predictor did so far.

    Args:
        states: Observations answered.
        candidates: Candidates tested.
        first_feasible: Observations whose first candidate was feasible.
        projections: Actions that were projected.
        violations: Actions refused because no feasible one near them fits the dtype of the action space.
    """

    states: int = 0
    candidates: int = 0
    first_feasible: int = 0
    projections: int = 0
    violations: int = 0

    @property
    def valid_rate(self) -> float:
        """Share of the agent's own actions that were feasible before any correction; NaN before the first call."""
        return self.first_feasible / self.states if self.states else float("nan")


class FeasiblePredictor:
    """An agent whose ``predict`` returns feasible actions only; see :func:`wrap_predict`.

    Args:
        model: A trained agent with ``policy``, ``predict``, ``action_space`` and ``observation_space``.
        constraint: The constraint, on normalised actions and raw observations.
        action_space: Space of the returned actions; default that of the agent.
        max_tries: Cap on the candidates of a state.
        batch: Candidates of the first block; default 16, and fewer for more than 16 observations at once (256 in all,
            but at least 2 each).
        fallback: As for ``arm_sample``.
        noise: Standard deviation, in normalised units, of Gaussian noise on candidates; default 0.1 for agents with a
            deterministic policy (TD3, DDPG), whose candidates would all be the same, otherwise 0.
        seed: Seed of that noise. Stochastic policies draw from torch's generator.
        constraint_obs: Extracts what the constraint reads from the agent's observation; see :func:`wrap_predict`.

    Attributes:
        counts: A :class:`PredictCounts`.

    Raises:
        InvalidTypeError: If the agent's actions or observations are no vectors of real numbers, or its policy is
            recurrent, or the constraint has no projection and the fallback is ``"project"``.
        InvalidValueError: If the constraint does not fit the spaces, an argument is out of range, or the constraint
            reads observations that the agent sees changed and ``constraint_obs`` is missing.
    """

    def __init__(
        self,
        model: Any,
        constraint: Constraint | Any,
        *,
        action_space: Any = None,
        max_tries: int = 100,
        batch: int | None = None,
        fallback: str = "project",
        noise: float | int | None = None,
        seed: int | Any = 0,
        constraint_obs: Callable[[Any], Any] | Any = None,
    ) -> None:
        if not isinstance(constraint, Constraint):
            raise InvalidTypeError(
                f"constraint={constraint!r} is a {type(constraint).__name__}; give a Constraint, for a name that which "
                "make_constraint(name, env) returns"
            )
        self._own = ActionRange.of(model, constraint, checked_obs=constraint_obs is None)
        self._target = self._own if action_space is None else ActionRange.of(_Space(action_space), None)
        if self._target.low.shape != self._own.low.shape:
            raise InvalidValueError(
                f"the agent has {self._own.low.size} action components but action_space {self._target.low.size}; give "
                "the space of the environment that the agent was trained for"
            )
        if len(getattr(model.observation_space, "shape", None) or ()) != 1:
            raise InvalidTypeError(
                f"observations in {model.observation_space} are no vectors; flatten them with "
                "gymnasium.wrappers.FlattenObservation before training"
            )
        if hasattr(model.policy, "lstm_actor"):
            raise InvalidTypeError(
                "recurrent policies draw along a hidden state, so that candidates are not independent"
            )
        self._deterministic_policy = hasattr(model, "target_policy_noise")
        noise = _EXPLORATION_NOISE * self._deterministic_policy if noise is None else noise
        self.noise = checked_number(noise, "noise", least=0.0)
        max_tries = checked_count(max_tries, "max_tries", least=1)
        batch = None if batch is None else checked_count(batch, "batch", least=1)
        if fallback not in _FALLBACKS:
            raise InvalidValueError(f"fallback={fallback!r} is not known; accepted: {', '.join(_FALLBACKS)}")
        self._projects = can_project(constraint)
        if fallback == "project" and not self._projects:
            raise InvalidTypeError(
                f"{constraint!r} has no projection, which fallback='project' needs; give one with Oracle(fn, "
                "project=...), or set fallback='interior' with Oracle(fn, interior=...), or fallback='raise'"
            )
        self.model, self.constraint, self.counts = model, constraint, PredictCounts()
        self.max_tries, self.batch, self.fallback = max_tries, batch, fallback
        self._generator = np.random.default_rng(checked_count(seed, "seed"))
        self._reader = ObservationReader(constraint_obs, model.observation_space)
        if constraint_obs is None:
            refuse_changed_observations(model, constraint)
        normalizer = self._normalizer()
        if normalizer is not None and normalizer.observation_space.shape != model.observation_space.shape:
            raise InvalidValueError(
                f"VecNormalize sees observations of shape {normalizer.observation_space.shape} but the agent "
                f"{model.observation_space.shape}; put VecNormalize outermost, around layers such as VecFrameStack"
            )

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, None]:
        """Choose feasible actions.

        Args:
            observation: Raw observations [obs] or [batch, obs]. An agent trained within ``VecNormalize`` sees them
                normalised as long as the model has that environment: give it to ``load(path, env=...)``, because a
                model without one takes observations as they are. The constraint always sees them as they are.
            state: Not used; taken as by Stable-Baselines3.
            episode_start: Not used.
            deterministic: Take the agent's deterministic action instead of acceptance-rejection, projected if needed;
                sets that know no projection give an interior point then.

        Returns:
            Actions in ``action_space``, [d] or [batch, d], and no state, so that a predictor stands in for the model
            in ``evaluate_policy``.

        Raises:
            InvalidTypeError: If a hidden state is given.
            InvalidValueError: If observations have another length than the agent's, or are not finite.
            InvalidStateError: If ``constraint_obs`` fails.
            ExecutedViolationError: If an action leaves the set when rounded and no feasible one is near.
        """
        if state is not None:
            raise InvalidTypeError(
                "recurrent policies draw along a hidden state, which acceptance-rejection does not keep"
            )
        raw = np.asarray(observation)
        numbers(raw, "the observation")
        width = self.model.observation_space.shape[0]
        if raw.ndim not in (1, 2) or raw.shape[-1] != width:
            raise InvalidValueError(
                f"observation of shape {raw.shape} does not fit the agent; give ({width},) or a batch"
            )
        rows = raw if raw.ndim == 2 else raw[None]
        where = self._read(rows)
        with naming_the_state(self.constraint, rows if where is None else where, "in predict"):
            native = self._feasible(rows, where, deterministic=deterministic)
        return (native if raw.ndim == 2 else native[0]), None

    def _feasible(self, rows: np.ndarray, where: np.ndarray | None, *, deterministic: bool) -> np.ndarray:
        """Feasible actions in the units of the target, at what the constraint reads of the observations."""
        seen = self._as_the_agent_sees(rows)
        if deterministic:
            actions = self._own.from_env(self.model.policy.predict(seen, deterministic=True)[0])
            feasible = np.asarray(self.constraint.contains(where, actions))
            outside = np.flatnonzero(~feasible)
            if outside.size:
                there = None if where is None else where[outside]
                if self._projects:
                    actions[outside] = self.constraint.project(there, actions[outside])
                else:
                    actions[outside] = self.constraint.interior(there)
            self._count(len(rows), len(rows), int(feasible.sum()), len(outside) if self._projects else 0)
        else:
            first_block = max(2, min(16, _CANDIDATES_AT_ONCE // max(len(rows), 1)))
            actions, info = arm_sample(
                self._draw,
                seen,
                self.constraint,
                max_tries=self.max_tries,
                batch=first_block if self.batch is None else self.batch,
                fallback=self.fallback,
                constraint_obs=where,
            )
            first = int((info.accepted & (info.tries == 1)).sum())
            self._count(len(rows), int(info.tries.sum()), first, info.n_projections)
        try:
            # Rounding to the environment's units must not leave the set.
            return self._target.to_env(self._target.settled(self.constraint, where, actions))
        except ExecutedViolationError:
            self.counts.violations += 1
            raise

    def _read(self, rows: np.ndarray) -> np.ndarray | None:
        if not self.constraint.needs_obs or self._reader.extract is None:
            return rows if self.constraint.needs_obs else None
        if not len(rows):
            return np.zeros((0, self.constraint.min_obs_dim))
        read = numbers([self._reader.read(row) for row in rows], "what constraint_obs returned")
        if read.ndim != 2:
            raise InvalidValueError(f"constraint_obs returned shape {read.shape[1:]} for an observation; give a vector")
        return read

    def _normalizer(self) -> Any:
        find = getattr(self.model, "get_vec_normalize_env", None)
        return find() if find is not None else None

    def _as_the_agent_sees(self, rows: np.ndarray) -> np.ndarray:
        normalizer = self._normalizer()
        return rows if normalizer is None else normalizer.normalize_obs(rows)

    def _draw(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Candidates for each observation, in one pass of the network."""
        if self._deterministic_policy:
            drawn = np.repeat(self._own.from_env(self.model.policy.predict(rows, deterministic=True)[0]), count, axis=0)
        else:
            drawn = self._own.from_env(self.model.policy.predict(np.repeat(rows, count, axis=0))[0])
        if self.noise > 0.0:
            drawn = (drawn + self.noise * self._generator.standard_normal(drawn.shape)).clip(-1.0, 1.0)
        return drawn.reshape(len(rows), count, -1)

    def _count(self, states: int, candidates: int, first_feasible: int, projections: int) -> None:
        self.counts.states += states
        self.counts.candidates += candidates
        self.counts.first_feasible += first_feasible
        self.counts.projections += projections


@dataclass(frozen=True)
class _Space:
    """What ``ActionRange`` reads of an environment."""

    action_space: Any


def wrap_predict(
    model: Any,
    constraint: Constraint | Any,
    *,
    action_space: Any = None,
    max_tries: int = 100,
    batch: int | None = None,
    fallback: str = "project",
    noise: float | int | None = None,
    seed: int | Any = 0,
    constraint_obs: Callable[[Any], Any] | Any = None,
) -> FeasiblePredictor:
    """Make the actions of a trained Stable-Baselines3 agent feasible.

    Stochastic actions follow the policy's law restricted to the feasible set (acceptance-rejection), deterministic ones
    are projected where needed. Several observations are answered with one pass of the network per block of candidates.

    Args:
        model: The agent (SAC, TQC, PPO, TD3...), with a vector of actions.
        constraint: The constraint, on normalised actions and raw observations.
        action_space: Space of the environment to act in, where it differs from that of the agent: agents trained on
            this package's wrappers act in [-1, 1]; give ``env.action_space`` of the plain environment to deploy there.
        max_tries: Cap on the candidates of a state, at least 1.
        batch: Candidates of the first block, at least 1; default 16, and fewer for more than 16 observations at once
            (256 in all, but at least 2 each).
        fallback: What happens when tries run out, as for ``arm_sample``.
        noise: Exploration noise in normalised units; default 0.1 for deterministic policies (TD3, DDPG), otherwise 0.
        seed: Seed of that noise.
        constraint_obs: Extracts what the constraint reads, raw and current, from one observation of the agent; needed
            where the agent sees it stacked, rescaled or otherwise changed, e.g. ``lambda obs: obs[-4:]`` for the newest
            of stacked frames, or a function that undoes a normalisation. ``VecNormalize`` needs none. A model without
            its environment cannot tell whether one is needed.

    Returns:
        A predictor with ``predict`` as the model's, and ``counts``.

    Raises:
        InvalidTypeError: If actions or observations are no vectors of real numbers, or the policy is recurrent.
        InvalidValueError: If the constraint does not fit the spaces, or ``constraint_obs`` is missing.

    Source:
        Section 4.1 (ARM at deployment), beyond the paper for agents that are not its own.
    """
    return FeasiblePredictor(
        model,
        constraint,
        action_space=action_space,
        max_tries=max_tries,
        batch=batch,
        fallback=fallback,
        noise=noise,
        seed=seed,
        constraint_obs=constraint_obs,
    )


def valid_rate_callback(window: int | Any = 1000) -> BaseCallback:
    """Report how many of the agent's actions are feasible while it trains on this package's wrappers.

    Args:
        window: Latest actions to average over, at least 1.

    Returns:
        A callback for ``model.learn``: it records ``constraint/valid_rate`` and ``constraint/projections`` in the
        agent's logger, and keeps ``valid_rate`` and ``projections`` as attributes.

    Raises:
        MissingDependencyError: If Stable-Baselines3 is not installed.
        InvalidValueError: If ``window`` is below 1.
        InvalidTypeError: If ``window`` is not whole.
    """
    window = checked_count(window, "window", least=1)
    try:
        from stable_baselines3.common.callbacks import BaseCallback
    except ImportError as error:
        raise MissingDependencyError.for_extra("stable-baselines3", "octavo-aram", "sb3") from error
    from collections import deque

    class ValidRateCallback(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.recent: deque[bool] = deque(maxlen=window)
            self.projections = 0

        @property
        def valid_rate(self) -> float:
            return sum(self.recent) / len(self.recent) if self.recent else float("nan")

        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "feasible" in info:
                    self.recent.append(bool(info["feasible"]))
                    self.projections += int(info.get("n_qp", 0))
            if self.recent:
                self.logger.record("constraint/valid_rate", self.valid_rate)
                self.logger.record("constraint/projections", self.projections)
            return True

    return ValidRateCallback()
