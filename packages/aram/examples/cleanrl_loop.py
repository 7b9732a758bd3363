"""A soft actor-critic in one file, in the manner of CleanRL, on the augmented MDP.

Nothing of the algorithm knows about the constraint: infeasible actions are ordinary transitions that lead nowhere and
cost kappa. At the end actions are drawn by acceptance-rejection, so that no infeasible one is executed.

    python cleanrl_loop.py [total_steps]
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import torch
from octavo_aram.arm import arm_sample
from octavo_aram.constraints import L2Ball
from octavo_aram.wrappers import AutoMDPWrapper
from torch import nn

TOTAL_STEPS, WARM_UP, BATCH, GAMMA, TAU, RATE = 6_000, 500, 128, 0.99, 0.005, 1e-3


class Actor(nn.Module):
    """Tanh-Gaussian policy."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * actions)
        )

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw an action and give its log-probability."""
        mean, log_std = self.net(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        return action, (normal.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(-1)


def critic(inputs: int) -> nn.Module:
    """Action-value network."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def main(total_steps: int) -> None:
    """Train on Reacher with a ball of torques, then act without violations."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    constraint = L2Ball(0.05, action_dim=2)
    plain = gymnasium.make("Reacher-v5")
    env = AutoMDPWrapper(plain, constraint, kappa=1.0, preference=[0.5, 0.5], reward_offset=1.0)
    num_obs, num_act = env.observation_space.shape[0], env.action_space.shape[0]

    actor = Actor(num_obs, num_act)
    critics = [critic(num_obs + num_act) for _ in range(2)]
    targets = [critic(num_obs + num_act) for _ in range(2)]
    for target, online in zip(targets, critics, strict=True):
        target.load_state_dict(online.state_dict())
    log_alpha = torch.zeros((), requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), RATE)
    critic_optimizer = torch.optim.Adam([p for q in critics for p in q.parameters()], RATE)
    alpha_optimizer = torch.optim.Adam([log_alpha], RATE)
    store = {
        name: torch.zeros(total_steps, size)
        for name, size in {"obs": num_obs, "act": num_act, "reward": 1, "next": num_obs, "done": 1}.items()
    }

    def value(networks: list[nn.Module], obs: torch.Tensor, act: torch.Tensor) -> list[torch.Tensor]:
        return [network(torch.cat([obs, act], -1)).squeeze(-1) for network in networks]

    obs, _ = env.reset(seed=0)
    feasible: list[bool] = []
    for step in range(total_steps):
        with torch.no_grad():
            seen = torch.as_tensor(obs, dtype=torch.float32)
            action = rng.uniform(-1, 1, num_act) if step < WARM_UP else actor(seen)[0].numpy()
        following, reward, terminated, truncated, info = env.step(action)
        feasible.append(info["feasible"])
        for name, content in (("obs", obs), ("act", action), ("reward", reward), ("next", following)):
            store[name][step] = torch.as_tensor(content, dtype=torch.float32)
        store["done"][step] = float(terminated)
        obs = env.reset()[0] if terminated or truncated else following
        if step < WARM_UP:
            continue

        rows = torch.as_tensor(rng.integers(0, step + 1, BATCH))
        batch = {name: content[rows] for name, content in store.items()}
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = actor(batch["next"])
            best = torch.minimum(*value(targets, batch["next"], next_action)) - alpha * next_log_prob
            goal = batch["reward"][:, 0] + GAMMA * (1 - batch["done"][:, 0]) * best
        critic_loss = sum((q - goal).square().mean() for q in value(critics, batch["obs"], batch["act"]))
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        new_action, log_prob = actor(batch["obs"])
        actor_loss = (alpha * log_prob - torch.minimum(*value(critics, batch["obs"], new_action))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = -(log_alpha * (log_prob.detach() - num_act)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        with torch.no_grad():
            for target, online in zip(targets, critics, strict=True):
                for old, new in zip(target.parameters(), online.parameters(), strict=True):
                    old.lerp_(new, TAU)
        if (step + 1) % 1000 == 0:
            print(f"step {step + 1}: {np.mean(feasible[-1000:]):.0%} of the actions were feasible")

    def draw(rows: np.ndarray, count: int) -> np.ndarray:
        with torch.no_grad():
            return actor(torch.as_tensor(rows, dtype=torch.float32)[:, None].expand(-1, count, -1))[0].numpy()

    total = 0.0
    obs, _ = plain.reset(seed=1)
    truncated = False
    while not truncated:
        action, _ = arm_sample(draw, obs, constraint)
        obs, reward, _, truncated, _ = plain.step(action)
        total += float(reward)
    print(f"return of one episode without an infeasible action: {total:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOTAL_STEPS)
