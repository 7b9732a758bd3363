"""The learner: acceptance-rejection in the environment loop, dual buffers, multi-objective soft actor-critic."""

from __future__ import annotations

import time
import warnings
from typing import Any, ClassVar

import numpy as np

from octavo_aram.agent import Agent
from octavo_aram.arm import LowAcceptanceWarning, arm_sample
from octavo_aram.choice import Choice
from octavo_aram.equivalence import EquivalenceWarning, required_kappa
from octavo_aram.soft import SoftActorCritic

__all__ = ["ARAM"]

_JUDGED_AFTER = 200


class ARAM(Agent):
    """Action-constrained reinforcement learning by acceptance-rejection and augmented MDPs.

    Proposals of the policy are drawn until one is feasible, which is then executed; the rejected ones are stored as
    self-loops with the reward vector (0, -kappa), which teaches the policy to propose feasible actions. A projection is
    needed only where all tries fail.

    Args:
        env: A Gymnasium environment with a finite Box of actions, several of one kind, or a ``SyncVectorEnv``.
        constraint: The feasible set in normalised actions, or the name of a known one, e.g. ``"Re+L2"``.
        config: Settings; the defaults if None.

    Raises:
        InvalidValueError: If the constraint does not fit the environment, or has no feasible action at its start.
        InvalidTypeError: If the environment or the constraint is of a kind that is not accepted.

    Source: sections 3 and 4 of the paper.
    """

    method = "aram"
    objectives: ClassVar[int] = 2

    def __init__(self, env: Any, constraint: Any, config: Any = None) -> None:
        self._warned = self._told_acceptance = False
        super().__init__(env, constraint, config)
        if not self.constraint.has_volume:
            self._told_acceptance = True
            warnings.warn(
                f"{self.constraint!r} has no volume, so that no proposal is ever feasible: the fallback "
                f"{self.config.fallback!r} decides every action, and rejections teach nothing; set max_tries=1 to save "
                "the draws, or give the set a thickness, such as the tol of SumEquality",
                LowAcceptanceWarning,
                stacklevel=2,
            )
        self._loop_reward = np.array([0.0, -float(self.config.penalty)])

    @property
    def _keeps_rejected(self) -> bool:
        return self.config.use_automdp and self.config.dual_buffer

    def _make_core(self) -> SoftActorCritic:
        return SoftActorCritic(
            self.envs.observation_dim,
            self.envs.action_dim,
            2,
            self.config,
            device=self.device,
            generator=self.generator,
        )

    def _choose(self, obs: np.ndarray, preference: np.ndarray | None, *, uniform: bool) -> Choice:
        config, width = self.config, self.envs.observation_dim
        weights = np.broadcast_to(
            self.preferences.default(self.num_steps) if preference is None else preference, (len(obs), 2)
        )

        def draw(states: np.ndarray, count: int) -> np.ndarray:
            return self.proposals(states[:, :width], states[:, width:], count, uniform=uniform)

        start = time.perf_counter()
        # The weights travel with the observations, because later rounds are drawn for some of the rows only.
        executed, info = arm_sample(
            draw,
            np.concatenate((obs, weights), 1),
            self.constraint,
            max_tries=config.max_tries if config.use_arm else 1,
            batch=config.block,
            fallback=config.fallback,
            constraint_obs=obs,
            generator=self.walk,
            warn=False,
        )
        if info.n_projections:
            # Calls that end in a projection count as such with all they took, which overstates it.
            spent = time.perf_counter() - start
            self.counters.seconds["project"] += spent
            self.counters.seconds["sample"] -= spent
        self._watch_acceptance()
        tries, accepted = np.asarray(info.tries), np.asarray(info.accepted, bool)
        stored = executed
        if config.store_proposal and not accepted.all():
            stored = executed.copy()
            for row in np.flatnonzero(~accepted):
                stored[row] = info.rejected[info.rejected_row == row][-1]
        return Choice(
            executed,
            stored,
            accepted & (tries == 1),
            tries,
            accepted,
            info.n_projections,
            np.asarray(info.rejected),
            info.rejected_row,
        )

    def _store(self, choice: Choice, obs: np.ndarray, rewards: np.ndarray, after: np.ndarray, over: np.ndarray) -> None:
        config = self.config
        vectors = np.zeros((len(obs), 2))
        vectors[:, 0] = rewards
        if config.store_proposal:
            vectors[~choice.accepted, 1] = -config.penalty
        self.buffer.add(obs, choice.stored, vectors, after, over)
        if not config.use_automdp or not len(choice.rejected):
            return
        states = obs[choice.rejected_row]
        if config.dual_buffer:
            self.buffer.add_rejected(states, choice.rejected, self._loop_reward)
        else:
            loops = np.tile(self._loop_reward, (len(states), 1))
            self.buffer.add(states, choice.rejected, loops, states, np.zeros(len(states)))

    def _usual_actions(self) -> np.ndarray:
        actions = self.buffer.actions()
        if self.config.dual_buffer or not self.config.use_automdp:
            return actions
        # One buffer holds the rejected proposals as well, whose deviation is that of the box.
        feasible = self.constraint.contains(self._constraint_obs(self.buffer.observations()), actions)
        return actions[feasible] if feasible.any() else actions

    def _watch_acceptance(self) -> None:
        """Tell once when projections and not proposals decide the actions."""
        counts = self.counters.training
        if self._told_acceptance or counts.steps < _JUDGED_AFTER or 2 * counts.fallbacks < counts.steps:
            return
        self._told_acceptance = True
        warnings.warn(
            f"{counts.fallbacks} of {counts.steps} training steps found no feasible proposal in "
            f"{self.config.max_tries} tries, so the fallback {self.config.fallback!r} decides most actions; raise "
            "`max_tries`, or set fallback='hit_and_run', which keeps exploration random",
            LowAcceptanceWarning,
            stacklevel=4,
        )

    def _watch_reward(self, lowest: float) -> None:
        fell = lowest < self.lowest_reward
        super()._watch_reward(lowest)
        if self._warned or not fell or lowest >= 0 or not self.config.use_automdp:
            return
        weights, penalty = self.preferences.extreme(), float(self.config.penalty)
        needed = required_kappa(lowest, weights)
        if penalty > needed:
            return
        self._warned = True
        remedy = "raise `penalty`, or shift the rewards with `reward_offset`"
        if self.preferences.drawn:
            remedy = "shift the rewards with `reward_offset`"
            where = (
                f"drawn preferences near (1, 0) an infeasible action may pay, whatever kappa is (with {penalty:g}, "
                f"where the reward weighs {penalty / (penalty - lowest):.3g} or more)"
            )
        else:
            bound = f"exceeds {needed:.4g}" if np.isfinite(needed) else "counts, which weight 0 prevents,"
            where = (
                f"preference {tuple(weights.tolist())} an infeasible action may pay unless the penalty kappa {bound} "
                f"(it is {penalty:g})"
            )
        warnings.warn(
            f"a reward of {lowest:.4g} was seen: with {where}; {remedy}",
            EquivalenceWarning,
            stacklevel=4,
        )
