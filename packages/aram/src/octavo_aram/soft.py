"""Multi-objective soft actor-critic with Q-snapshots: the networks of ARAM and, with one objective, of the peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from octavo_aram.buffers import Batch
from octavo_aram.config import ARAMConfig
from octavo_aram.flat_adam import FlatAdam
from octavo_aram.losses import critic_loss, policy_loss, td_target
from octavo_aram.networks import ActionScaling, GaussianPolicy, StackedMLP

__all__ = ["ActorMap", "ActorPenalty", "SoftActorCritic"]

ActorMap = Callable[[Tensor, Tensor], Tensor]
"""Differentiable map (raw observations, proposals) -> executed actions, of methods whose policy ends in a layer."""

ActorPenalty = Callable[[Tensor, Tensor], Tensor]
"""Scalar penalty of (raw observations, proposals), added to the actor's loss."""


class SoftActorCritic:
    """Networks, optimisers and updates.

    Args:
        observations: Length of an observation.
        actions: Length of an action.
        objectives: Length of a reward vector; with one there is no preference input.
        config: Settings.
        device: Device of the networks.
        generator: Draws weights and actions; it lives on ``device``.
        actor_map: Layer between proposals and executed actions, if any.
        penalty: Penalty in the actor's loss, if any.

    Source: section 4 of the paper; the snapshots are those of Q-Pensieve.
    """

    deterministic = False
    """Whether the policy has no spread of its own."""

    def __init__(
        self,
        observations: int,
        actions: int,
        objectives: int,
        config: ARAMConfig,
        *,
        device: torch.device,
        generator: torch.Generator,
        actor_map: ActorMap | None = None,
        penalty: ActorPenalty | None = None,
    ) -> None:
        self.config = config
        self.device, self.generator = device, generator
        self.dtype = getattr(torch, config.dtype)
        self.objectives = objectives
        self.actor_map, self.penalty = actor_map, penalty
        preferences = objectives if objectives > 1 else 0
        # On the CPU, so that one seed gives the same networks on every device.
        weights = torch.Generator().manual_seed(config.seed)
        kind: dict[str, Any] = {"preferences": preferences, "generator": weights, "device": device, "dtype": self.dtype}
        self.policy = GaussianPolicy(observations, actions, config.hidden, **kind)
        self.critic = StackedMLP(observations + actions, config.hidden, objectives, members=2, **kind)
        self.target = self.critic.copy()
        ones = torch.ones(actions, device=device, dtype=self.dtype)
        self.scaling = ActionScaling(torch.zeros_like(ones), ones)
        self.snapshots: list[StackedMLP] = []
        start = config.initial_temperature if config.temperature == "auto" else config.temperature
        self.log_temperature = torch.tensor(math.log(max(float(start), 1e-30)), device=device, dtype=self.dtype)
        self.automatic = config.temperature == "auto"
        self.target_entropy = -float(actions)
        self.updates = 0
        self._critic_adam = FlatAdam(self.critic.flat, config.learning_rate)
        self._actor_adam = FlatAdam(self.policy.network.flat, config.learning_rate)
        self._temperature_adam = FlatAdam(self.log_temperature, config.learning_rate)

    @property
    def temperature(self) -> float:
        """Entropy weight alpha."""
        return float(self.log_temperature.exp())

    @torch.no_grad()
    def draw(
        self, obs: Float[Tensor, "rows observations"], preference: Tensor | None, count: int
    ) -> Float[Tensor, "rows {count} actions"]:
        """Draw proposals, with one network pass.

        Args:
            obs: Observations as the networks see them.
            preference: One preference for all rows, or one for each; None with one objective.
            count: Draws at each state.

        Returns:
            Proposals in [-1, 1].
        """
        mean, log_std = self.policy(obs, preference)
        shape = (len(obs), count, mean.shape[1])
        noise = torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return torch.addcmul(mean.unsqueeze(1), log_std.exp_().unsqueeze(1), noise).tanh_()

    @torch.no_grad()
    def mean_action(
        self, obs: Float[Tensor, "rows observations"], preference: Tensor | None
    ) -> Float[Tensor, "rows actions"]:
        """Return tanh of the policy's mean.

        Args:
            obs: Observations as the networks see them.
            preference: As in :meth:`draw`.

        Returns:
            Proposals in [-1, 1].
        """
        return self.policy(obs, preference)[0].tanh()

    def update(self, batch: Batch, raw: Batch, preferences: Float[Tensor, "sets objectives"]) -> None:
        """Update critics, policy, temperature and target once.

        Args:
            batch: Transitions as the networks see them.
            raw: The same with raw observations, for layers and penalties that read them.
            preferences: The set W; the first is the current preference lambda.
        """
        config, preference = self.config, preferences[0]
        conditioned = preference if self.objectives > 1 else None
        size, repeats = len(batch.obs), config.actions_per_state
        states = batch.obs if repeats == 1 else batch.obs.repeat_interleave(repeats, 0)
        # One pass for both losses: the policy changes only at the end.
        proposals, log_prob = self.policy.rsample(
            torch.cat((states, batch.next_obs)), conditioned, generator=self.generator
        )
        temperature = self.log_temperature.exp()
        with torch.no_grad():
            following = proposals[size * repeats :]
            if self.actor_map is not None:
                following = self.actor_map(raw.next_obs, following)
            targets = td_target(
                batch.rewards,
                batch.continues,
                self.target(self.scaling.join(batch.next_obs, following), conditioned),
                -log_prob[size * repeats :],
                preference,
                discount=config.discount,
                temperature=temperature,
            )
        loss = critic_loss(self.critic(batch.state_action, conditioned), targets, preference).sum()
        self._critic_adam.step(*torch.autograd.grad(loss, self.critic.flat))

        proposals, entropy = proposals[: size * repeats], -log_prob[: size * repeats]
        raw_states = raw.obs if repeats == 1 else raw.obs.repeat_interleave(repeats, 0)
        executed = proposals if self.actor_map is None else self.actor_map(raw_states, proposals)
        values = self._policy_values(self.scaling.join(states, executed), preferences)
        loss = policy_loss(values, entropy, preference, temperature=temperature)
        if self.penalty is not None:
            loss = loss + self.penalty(raw_states, proposals)
        self._actor_adam.step(*torch.autograd.grad(loss, self.policy.network.flat))
        if self.automatic:
            # Gradient of log_temperature * (entropy - target): the temperature rises while entropy is short.
            self._temperature_adam.step(entropy.detach().mean() - self.target_entropy)
        self.target.flat.lerp_(self.critic.flat.detach(), config.polyak)
        self.updates += 1
        self._take_snapshot()

    def _policy_values(self, inputs: Tensor, preferences: Tensor) -> Tensor:
        """Values by critic generation, preference, twin and draw."""
        if len(preferences) == 1 and not self.snapshots:
            conditioned = preferences[0] if self.objectives > 1 else None
            return self.critic(inputs, conditioned, frozen=True).unsqueeze(0).unsqueeze(0)
        return torch.stack([network.forward_each(inputs, preferences) for network in (self.critic, *self.snapshots)])

    def _take_snapshot(self) -> None:
        config = self.config
        due = self.updates >= config.snapshot_start and self.updates % config.snapshot_every == 0
        if config.num_snapshots and due:
            self.snapshots = [*self.snapshots, self.critic.copy()][-config.num_snapshots :]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            Networks, optimisers, temperature and counters.
        """
        return {
            "policy": self.policy.network.flat.detach(),
            "critic": self.critic.flat.detach(),
            "target": self.target.flat.detach(),
            "snapshots": [network.flat.detach() for network in self.snapshots],
            "log_temperature": self.log_temperature,
            "target_entropy": self.target_entropy,
            "updates": self.updates,
            "critic_adam": self._critic_adam.state_dict(),
            "actor_adam": self._actor_adam.state_dict(),
            "temperature_adam": self._temperature_adam.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved state.
        """
        self.policy.network.flat.copy_(state["policy"])
        self.critic.flat.copy_(state["critic"])
        self.target.flat.copy_(state["target"])
        self.snapshots = []
        for flat in state["snapshots"]:
            network = self.critic.copy()
            network.flat.copy_(flat)
            self.snapshots.append(network)
        self.log_temperature.copy_(state["log_temperature"])
        self.target_entropy = float(state["target_entropy"])
        self.updates = int(state["updates"])
        self._critic_adam.load_state_dict(state["critic_adam"])
        self._actor_adam.load_state_dict(state["actor_adam"])
        self._temperature_adam.load_state_dict(state["temperature_adam"])

    def preference_tensor(self, preference: np.ndarray | None) -> Tensor | None:
        """Move preferences to the device of the networks.

        Args:
            preference: One preference, or one a row; None for none.

        Returns:
            The same as a tensor; None with one objective.
        """
        if preference is None or self.objectives == 1:
            return None
        return torch.as_tensor(preference, dtype=self.dtype, device=self.device)
