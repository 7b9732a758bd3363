"""A small environment and small settings, so that learning is tested without MuJoCo and in seconds."""

from __future__ import annotations

import gymnasium
import numpy as np
from octavo_aram.config import ARAMConfig

SMALL = ARAMConfig(hidden=(16, 16), batch_size=32, start_steps=40, buffer_capacity=2000, learning_rate=3e-3)


class Target(gymnasium.Env):
    """A point in the plane that actions push; the reward is how near it is to the origin, in (0, 1]."""

    def __init__(self, low=-1.0, high=1.0, limit=20, shift=0.0):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(
            np.full(2, low, np.float32), np.full(2, high, np.float32), dtype=np.float32
        )
        self.limit, self.shift = limit, shift
        self.actions = []

    def _observe(self):
        return np.append(self.place, self.clock / self.limit)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.clock = self.np_random.uniform(-1, 1, 2), 0
        return self._observe(), {}

    def step(self, action):
        self.actions.append(np.array(action, float))
        self.place = self.place + 0.3 * np.asarray(action, float) + 0.01 * self.np_random.standard_normal(2)
        self.clock += 1
        reward = float(np.exp(-np.square(self.place).sum())) + self.shift
        return self._observe(), reward, bool(np.abs(self.place).max() > 3), self.clock >= self.limit, {}


def make_target():
    """Make the environment, as a command line names it."""
    return Target()
