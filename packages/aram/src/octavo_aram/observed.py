"""Matrices that constraints compute from observations: plain callables that can be pickled and sent to workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["LegPower", "ObservedRow", "SquaredSines", "TipQuadratic"]


@dataclass(frozen=True)
class ObservedRow:
    """One row of weights that are entries of the observation.

    Args:
        indices: The entries, one per action component.

    Source:
        Beyond the paper: ``weights_from_obs`` of a linear constraint in YAML.
    """

    indices: tuple[int, ...]

    def __call__(self, obs: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch 1 d"]:
        """Compute the rows.

        Args:
            obs: Raw observations.

        Returns:
            One row for each.
        """
        return obs[:, None, list(self.indices)]


@dataclass(frozen=True)
class TipQuadratic:
    """Quadratic form of the squared torque at Reacher's tip.

    Source:
        R+T of the omron-sinicx benchmark; cos(theta_2) is the second entry of Reacher's observation.
    """

    def __call__(self, obs: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch 2 2"]:
        """Compute the matrices.

        Args:
            obs: Raw observations.

        Returns:
            One 2 x 2 matrix for each.
        """
        cosine = obs[:, 1].clip(-1.0, 1.0)
        one = np.ones_like(cosine)
        rows = [[2 + 2 * cosine, 1 + cosine], [1 + cosine, one]]
        return np.moveaxis(np.array(rows), -1, 0)


@dataclass(frozen=True)
class LegPower:
    """Row of HalfCheetah's hip velocities times the sines of the angles that each leg's joints add up to.

    Args:
        velocity: Observation entries of the six joint velocities.
        angle: Those of the six joint angles.

    Source:
        HC+MA of the omron-sinicx benchmark.
    """

    velocity: tuple[int, ...]
    angle: tuple[int, ...]

    def __call__(self, obs: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch 1 6"]:
        """Compute the rows.

        Args:
            obs: Raw observations.

        Returns:
            One row of six for each.
        """
        rows = np.zeros((len(obs), 1, 6))
        rows[:, 0, 0] = obs[:, self.velocity[0]] * np.sin(obs[:, list(self.angle[:3])].sum(1))
        rows[:, 0, 3] = obs[:, self.velocity[3]] * np.sin(obs[:, list(self.angle[3:])].sum(1))
        return rows


@dataclass(frozen=True)
class SquaredSines:
    """Diagonal of squared sines of joint angles.

    Args:
        angle: Observation entries of the angles.

    Source:
        O+S of the omron-sinicx benchmark.
    """

    angle: tuple[int, ...]

    def __call__(self, obs: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch d"]:
        """Compute the diagonals.

        Args:
            obs: Raw observations.

        Returns:
            One diagonal for each.
        """
        return np.sin(obs[:, list(self.angle)]) ** 2
