"""HopperVel: the Hopper that is paid for running at three metres per second."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from octavo_core.errors import MissingDependencyError

try:
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
except (ImportError, DependencyNotInstalled) as error:
    raise MissingDependencyError.for_extra("mujoco", "octavo-aram", "mujoco") from error

__all__ = ["HopperVelEnv"]


class HopperVelEnv(HopperEnv):
    """Hopper-v5 with the reward ``1 - |v_x - goal| + healthy - 0.001 |a|^2``.

    Needs mujoco, the extra of that name.

    Args:
        goal_velocity: Wanted forward velocity in m/s.
        **kwargs: As for ``gymnasium.make("Hopper-v5")``.

    Source:
        The benchmark's HopperVel task, on the current Hopper.
    """

    def __init__(self, goal_velocity: float = 3.0, **kwargs: Any) -> None:
        self.goal_velocity = float(goal_velocity)
        super().__init__(**kwargs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.float64, bool, bool, dict[str, Any]]:
        """Simulate one step.

        Args:
            action: Torques in [-1, 1], (3,).

        Returns:
            Observation, reward, terminated, truncated, and Hopper's info with the new ``reward_forward``.
        """
        observation, _, terminated, truncated, info = super().step(action)
        forward = 1.0 - abs(float(info["x_velocity"]) - self.goal_velocity)
        reward = forward + float(info["reward_survive"]) + float(info["reward_ctrl"])
        return observation, np.float64(reward), terminated, truncated, {**info, "reward_forward": forward}
