"""The vector form of the augmented MDP with the wrappers of MO-Gymnasium.

The reward is (task reward, constraint reward); any multi-objective agent can learn the trade-off, and MO-Gymnasium's
wrappers record it or turn it into a scalar.

    python mo_gymnasium_vector.py
"""

from __future__ import annotations

import gymnasium
import numpy as np
from mo_gymnasium.wrappers import LinearReward, MORecordEpisodeStatistics
from octavo_aram.registry import make_constraint
from octavo_aram.wrappers import AutoMDPWrapper


def main() -> None:
    """Record vector returns of bike sharing, and take a linear reward of them."""
    bikes = gymnasium.make("octavo_aram/BSS3z-v0")
    constraint = make_constraint("BSS3z", bikes)
    env = MORecordEpisodeStatistics(
        AutoMDPWrapper(bikes, constraint, kappa=1.0, reward_scale=20.0, reward_offset=1.0), gamma=0.99
    )
    print("reward space", env.unwrapped.reward_space)

    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    ended = False
    while not ended:
        current = (observation[3:6] - 25.0) / 15.0
        # Half of the proposals leave the bikes where they are, half are random and mostly infeasible.
        action = np.clip(current, -1, 1) if rng.random() < 0.5 else rng.uniform(-1, 1, 3)
        observation, _, terminated, truncated, info = env.step(action.astype(np.float32))
        ended = terminated or truncated
    print("return (task, constraint)", info["episode"]["r"], "in", info["episode"]["l"], "steps, self-loops included")

    scalar = LinearReward(
        AutoMDPWrapper(gymnasium.make("octavo_aram/BSS3z-v0"), constraint, kappa=1.0), weight=np.array([0.9, 0.1])
    )
    scalar.reset(seed=0)
    _, reward, *_, info = scalar.step(np.full(3, 1.0, dtype=np.float32))
    print("infeasible action: vector", info["vector_reward"], "scalar", reward)


if __name__ == "__main__":
    main()
