"""TD3: the networks of the deterministic peers (DPre, DPro, OptLayer, NFWPO)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from octavo_aram.buffers import Batch
from octavo_aram.config import ARAMConfig
from octavo_aram.flat_adam import FlatAdam
from octavo_aram.networks import ActionScaling, DeterministicPolicy, StackedMLP
from octavo_aram.soft import ActorMap, ActorPenalty

__all__ = ["ActorTarget", "TwinDelayed"]

ActorTarget = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]
"""Actions that the actor is regressed to: (raw observations, proposals, gradient of Q at given actions) -> actions."""


class TwinDelayed:
    """Twin critics, a delayed deterministic actor and target smoothing.

    Args:
        observations: Length of an observation.
        actions: Length of an action.
        config: Settings.
        device: Device of the networks.
        generator: Draws weights and noise; it lives on ``device``.
        actor_map: Layer between proposals and executed actions, if any.
        penalty: Penalty in the actor's loss, if any.
        actor_target: Makes the actor's loss a regression (NFWPO) instead of minus Q.

    Source: Fujimoto et al. 2018, as used by the paper's peers.
    """

    deterministic = True
    """Whether the policy has no spread of its own."""
    automatic = False
    """Whether a temperature is tuned."""

    def __init__(
        self,
        observations: int,
        actions: int,
        config: ARAMConfig,
        *,
        device: torch.device,
        generator: torch.Generator,
        actor_map: ActorMap | None = None,
        penalty: ActorPenalty | None = None,
        actor_target: ActorTarget | None = None,
    ) -> None:
        self.config = config
        self.device, self.generator = device, generator
        self.dtype = getattr(torch, config.dtype)
        self.actor_map, self.penalty, self.actor_target = actor_map, penalty, actor_target
        weights = torch.Generator().manual_seed(config.seed)
        kind: dict[str, Any] = {"generator": weights, "device": device, "dtype": self.dtype}
        self.policy = DeterministicPolicy(observations, actions, config.hidden, **kind)
        self.critic = StackedMLP(observations + actions, config.hidden, 1, members=2, **kind)
        self.target_policy = DeterministicPolicy(observations, actions, config.hidden, **kind)
        self.target_policy.network.flat.requires_grad_(False).copy_(self.policy.network.flat.detach())
        self.target = self.critic.copy()
        ones = torch.ones(actions, device=device, dtype=self.dtype)
        self.scaling = ActionScaling(torch.zeros_like(ones), ones)
        self.updates = 0
        self._critic_adam = FlatAdam(self.critic.flat, config.learning_rate)
        self._actor_adam = FlatAdam(self.policy.network.flat, config.learning_rate)

    @property
    def temperature(self) -> float:
        """Entropy weight; there is none."""
        return 0.0

    @torch.no_grad()
    def draw(
        self, obs: Float[Tensor, "rows observations"], preference: Tensor | None, count: int
    ) -> Float[Tensor, "rows {count} actions"]:
        """Draw proposals: the actor's action with exploration noise, clipped to the box.

        Args:
            obs: Observations as the networks see them.
            preference: Not used.
            count: Draws at each state.

        Returns:
            Proposals in [-1, 1].
        """
        action = self.policy(obs).unsqueeze(1)
        shape = (len(obs), count, action.shape[2])
        noise = torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return torch.add(action, noise, alpha=float(self.config.exploration_noise)).clamp_(-1, 1)

    @torch.no_grad()
    def mean_action(
        self, obs: Float[Tensor, "rows observations"], preference: Tensor | None
    ) -> Float[Tensor, "rows actions"]:
        """Return the actor's action.

        Args:
            obs: Observations as the networks see them.
            preference: Not used.

        Returns:
            Proposals in [-1, 1].
        """
        return self.policy(obs)

    def update(self, batch: Batch, raw: Batch, preferences: Tensor) -> None:
        """Update critics, and every ``policy_delay`` times the actor and the targets.

        Args:
            batch: Transitions as the networks see them.
            raw: The same with raw observations, for layers and penalties that read them.
            preferences: Not used.
        """
        config = self.config
        with torch.no_grad():
            noise = torch.randn(
                batch.action.shape, generator=self.generator, device=self.device, dtype=self.dtype
            ).mul_(config.target_noise)
            noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
            following = (self.target_policy(batch.next_obs) + noise).clamp_(-1, 1)
            if self.actor_map is not None:
                following = self.actor_map(raw.next_obs, following)
            value = self.target(self.scaling.join(batch.next_obs, following)).amin(0)
            targets = batch.rewards + config.discount * batch.continues * value
        error = self.critic(batch.state_action) - targets
        loss = (error * error).mean() * 2
        self._critic_adam.step(*torch.autograd.grad(loss, self.critic.flat))
        self.updates += 1
        if self.updates % config.policy_delay:
            return
        self._update_actor(batch, raw)
        self.target.flat.lerp_(self.critic.flat.detach(), config.polyak)
        self.target_policy.network.flat.lerp_(self.policy.network.flat.detach(), config.polyak)

    def _update_actor(self, batch: Batch, raw: Batch) -> None:
        proposals = self.policy(batch.obs)
        if self.actor_target is None:
            executed = proposals if self.actor_map is None else self.actor_map(raw.obs, proposals)
            loss = -self._value(batch.obs, executed).mean()
        else:
            wanted = self.actor_target(raw.obs, proposals.detach(), lambda at: self._gradient(batch.obs, at))
            error = proposals - wanted
            loss = (error * error).mean()
        if self.penalty is not None:
            loss = loss + self.penalty(raw.obs, proposals)
        self._actor_adam.step(*torch.autograd.grad(loss, self.policy.network.flat))

    def _value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.critic(self.scaling.join(obs, action), frozen=True)[0]

    def _gradient(self, obs: Tensor, action: Tensor) -> Tensor:
        at = action.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self._value(obs, at).sum(), at)
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            Networks, optimisers and counters.
        """
        return {
            "policy": self.policy.network.flat.detach(),
            "critic": self.critic.flat.detach(),
            "target": self.target.flat.detach(),
            "target_policy": self.target_policy.network.flat.detach(),
            "updates": self.updates,
            "critic_adam": self._critic_adam.state_dict(),
            "actor_adam": self._actor_adam.state_dict(),
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
        self.target_policy.network.flat.copy_(state["target_policy"])
        self.updates = int(state["updates"])
        self._critic_adam.load_state_dict(state["critic_adam"])
        self._actor_adam.load_state_dict(state["actor_adam"])

    def preference_tensor(self, preference: np.ndarray | None) -> None:
        """Return None: there is one objective.

        Args:
            preference: Not used.
        """
