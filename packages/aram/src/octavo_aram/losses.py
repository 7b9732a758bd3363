"""Targets and losses of multi-objective soft actor-critic, as functions of the critics' values."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["critic_loss", "policy_loss", "td_target"]


def td_target(
    rewards: Float[Tensor, "batch objectives"],
    continues: Float[Tensor, "batch 1"],
    next_values: Float[Tensor, "critics batch objectives"],
    next_entropy: Float[Tensor, "batch 1"],
    preference: Float[Tensor, " objectives"],
    *,
    discount: float | int,
    temperature: float | int | Float[Tensor, ""],
) -> Float[Tensor, "batch objectives"]:
    """Bootstrap target of the critics: per state the whole vector of the critic with the smaller scalarised value.

    Args:
        rewards: Reward vectors.
        continues: 1 where the episode goes on, 0 where it terminated.
        next_values: Values of the target critics at the next state and a drawn action.
        next_entropy: Minus the log-density of that action.
        preference: Weights on the simplex.
        discount: Discount factor.
        temperature: Entropy weight; the entropy is added to every component, so it counts once after scalarising.

    Returns:
        The targets.

    Source: section 4 of the paper (equation of the soft Bellman target), reference code ``calc_target_q``.
    """
    scalar = next_values @ preference
    value = next_values[0]
    for index in range(1, len(next_values)):
        smaller = scalar[index] < scalar[:index].amin(0)
        value = torch.where(smaller.unsqueeze(1), next_values[index], value)
    return rewards + discount * continues * (value + temperature * next_entropy)


def critic_loss(
    values: Float[Tensor, "critics batch objectives"],
    targets: Float[Tensor, "batch objectives"],
    preference: Float[Tensor, " objectives"],
) -> Float[Tensor, " critics"]:
    """Preference-weighted mean square error of each critic.

    Args:
        values: Values at the stored state and action.
        targets: Targets, without gradient.
        preference: Weights on the simplex.

    Returns:
        One loss a critic.

    Source: section 4, reference code ``calc_critic_loss``.
    """
    error = values - targets
    return ((error * error) @ preference).mean(1)


def policy_loss(
    values: Float[Tensor, "snapshots sets critics draws objectives"],
    entropy: Float[Tensor, "draws 1"],
    preference: Float[Tensor, " objectives"],
    *,
    temperature: float | int | Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Policy loss that improves toward the best of the stored critics.

    Args:
        values: Values of the current critics and their snapshots, conditioned on each preference of the set, at drawn
            actions; the twin critics are the third axis.
        entropy: Minus the log-density of the draws.
        preference: Weights on the simplex that all values are scalarised with.
        temperature: Entropy weight.

    Returns:
        Mean over the draws of the smallest loss over snapshots and preferences.

    Source: section 4 (Q-snapshots), reference code ``calc_policy_loss``.
    """
    best = (values @ preference).amin(2).amax((0, 1))
    return -(best + temperature * entropy[:, 0]).mean()
