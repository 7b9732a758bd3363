"""Evaluation: return and feasibility of a policy on episodes of its own, without touching the run's random numbers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from octavo_core.device import torch_generator
from octavo_core.errors import InvalidValueError

from octavo_aram.abilities import naming_the_state
from octavo_aram.agent import Agent
from octavo_aram.constraints._user import checked_count
from octavo_aram.environment import EnvGroup, listed_envs
from octavo_aram.ownership import refuse_training_envs

__all__ = ["EVALUATION_PREFERENCES", "Evaluation", "evaluate"]

EVALUATION_PREFERENCES = ((0.9, 0.1), (0.5, 0.5), (0.1, 0.9))
"""Preferences at which the paper evaluates a multi-objective policy."""

# Episodes of evaluations are numbered apart from those of training.
_SEED_SHIFT = 1_000_003


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Args:
        preference: Weights that the policy was given; None where it takes none.
        returns: Return of each episode, in the environment's own reward.
        valid_rate: Share of stochastic draws at the visited states that were feasible before any correction.
        executed_valid: Share of the steps whose proposal was executed as it was.
        projections: Steps that were projected.
        violations: Executed actions outside the feasible set.
        seconds_per_action: Median seconds from observation to feasible action.
    """

    preference: tuple[float, ...] | None
    returns: tuple[float, ...]
    valid_rate: float
    executed_valid: float
    projections: int
    violations: int
    seconds_per_action: float

    @property
    def mean_return(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready fields.

        Returns:
            The fields, with the mean return.
        """
        fields = dataclasses.asdict(self)
        return fields | {
            "preference": None if self.preference is None else list(self.preference),
            "returns": list(self.returns),
            "mean_return": self.mean_return,
        }


def evaluate(
    agent: Agent,
    env: Any,
    *,
    episodes: int | Any = 10,
    preference: Sequence[float | int] | None = None,
    deterministic: bool = True,
    draws_per_state: int | Any = 8,
    seed: int | Any = 0,
) -> Evaluation:
    """Run episodes with the current policy.

    Every executed action is checked to be feasible. The valid rate is measured on fresh stochastic draws at all visited
    states, whatever was executed.

    Args:
        agent: The agent.
        env: An environment of the kind it was trained in; not the object that it, or another agent, trains in.
        episodes: Episodes to run.
        preference: Weights for the policy; None for the configured ones.
        deterministic: Act by the policy's mean, projected where it is infeasible, instead of drawing.
        draws_per_state: Draws at each state for the valid rate.
        seed: Seed of the episodes and of the draws.

    Returns:
        The findings.

    Raises:
        InvalidValueError: If a count is below 1, the environment is not of the agent's kind, an agent trains in it, or
            no action is feasible at a state.
        InvalidTypeError: If a count or the seed is not whole.
        InvalidStateError: If an infeasible action was about to be executed.
    """
    episodes = checked_count(episodes, "episodes", least=1)
    draws_per_state = checked_count(draws_per_state, "draws_per_state", least=1)
    seed = checked_count(seed, "seed")
    weights = agent.checked_weights(preference)
    refuse_training_envs(listed_envs(env))
    group = EnvGroup(env, seed + _SEED_SHIFT)
    if (group.observation_dim, group.action_dim) != (agent.envs.observation_dim, agent.envs.action_dim):
        raise InvalidValueError("the evaluation environment has other spaces than the one the agent was made for")
    counts = agent.counters.evaluation
    steps, tries_before = counts.steps, counts.first_valid
    projections, violations = counts.projections, counts.violations
    returns: list[float] = []
    visited: list[np.ndarray] = []
    seconds: list[float] = []
    training = agent.core.generator, agent.walk, agent.rng
    agent.core.generator, agent.walk = torch_generator(seed, agent.device), torch_generator(seed)
    agent.rng = np.random.default_rng(seed)
    try:
        while len(returns) < episodes:
            obs = group.obs
            visited.append(obs)
            start = time.perf_counter()
            with naming_the_state(agent.constraint, obs, "in an evaluation"):
                choice = agent.choose(obs, weights, deterministic=deterministic)
            seconds.append(time.perf_counter() - start)
            choice.count(counts)
            group.step(agent.audit(obs, choice.executed, counts))
            returns += [value for value, _ in group.take_finished()]
        states = np.concatenate(visited)
        shown = agent.preferences.default(agent.num_steps) if weights is None else weights
        draws = agent.proposals(states, shown if agent.objectives > 1 else None, draws_per_state)
    finally:
        agent.core.generator, agent.walk, agent.rng = training
    flat = draws.reshape(-1, draws.shape[-1])
    where = np.repeat(states, draws_per_state, 0) if agent.constraint.needs_obs else None
    done = counts.steps - steps
    return Evaluation(
        tuple(float(weight) for weight in shown) if agent.objectives > 1 else None,
        tuple(returns[:episodes]),
        float(np.asarray(agent.constraint.contains(where, flat)).mean()),
        (counts.first_valid - tries_before) / done,
        counts.projections - projections,
        counts.violations - violations,
        float(np.median(seconds)),
    )
