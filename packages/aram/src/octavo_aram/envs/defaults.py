"""Scale and offset of the reward that a learner sees, per environment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo_core.errors import InvalidValueError

__all__ = ["RewardMap", "env_defaults"]


@dataclass(frozen=True)
class RewardMap:
    """Affine map from an environment's reward to the learner's: ``r / scale + offset``.

    The equivalence of the augmented MDP needs rewards that are not too negative, which is what offsets are for.

    Args:
        scale: Divisor, positive.
        offset: Added after the division.

    Raises:
        InvalidValueError: If the scale is not positive or a number is not finite.
    """

    scale: float | int = 1.0
    offset: float | int = 0.0

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.offset)):
            raise InvalidValueError(
                f"scale={self.scale} must be positive and finite, and offset={self.offset} must be finite"
            )

    def __call__(self, reward: float) -> float:
        """Map a reward.

        Args:
            reward: Reward of the environment.

        Returns:
            Reward of the learner.
        """
        return reward / self.scale + self.offset


_MAPS = {
    "Reacher": RewardMap(offset=1.0),
    "BSS3z": RewardMap(scale=20.0, offset=1.0),
    "BSS5z": RewardMap(scale=100.0, offset=2.0),
    "NSFnetV2": RewardMap(scale=10.0),
    "NSFnetV3": RewardMap(scale=10.0),
    "NSFnetV2Fluid": RewardMap(scale=10.0),
    "NSFnetV3Fluid": RewardMap(scale=10.0),
}


def env_defaults(env_id: str) -> RewardMap:
    """Reward map of an environment.

    Args:
        env_id: Gymnasium id, with or without namespace and version.

    Returns:
        The benchmark's map, or the identity for other environments.

    Source:
        Scales and offsets of the reference implementation.
    """
    name = env_id.rpartition("/")[2].rpartition("-v")
    return _MAPS.get(name[0] or name[2], RewardMap())
