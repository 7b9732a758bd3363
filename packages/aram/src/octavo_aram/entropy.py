"""Target entropy from the feasible volume, so that automatic temperature and acceptance do not fight each other.

With the usual target, minus the number of actions, soft actor-critic asks for more spread than a thin feasible set can
hold: the temperature rises until most draws fall outside, and a larger penalty makes it worse. Here the target is the
entropy of the widest Gaussian whose draws stay feasible around most of the feasible volume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from octavo_core.device import torch_generator
from octavo_core.errors import InvalidValueError

from octavo_aram.arm import hit_and_run

if TYPE_CHECKING:
    from octavo_aram.constraints import Constraint

__all__ = ["EntropyTarget", "feasible_entropy"]

_GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)
_POINTS = 4096
_REPEATS = 4
_ENOUGH = 128
_SMALLEST = 1e-5
_LOSS_PER_ACTION, _LEAST_LOSS, _LARGEST_LOSS = 0.025, 0.05, 0.1


@dataclass(frozen=True)
class EntropyTarget:
    """A target entropy and what it rests on.

    Args:
        value: Target in nats.
        deviation: Deviation of the widest Gaussian, in normalised units; NaN where the box alone limits it.
        feasible_share: Share of the box that is feasible, estimated.
        log_volume: Log-volume of the feasible set; minus infinity if no draw was feasible.
    """

    value: float
    deviation: float
    feasible_share: float
    log_volume: float


def feasible_entropy(
    constraint: Constraint | Any,
    obs: np.ndarray | None = None,
    *,
    retention: float | None = None,
    num_draws: int = 65_536,
    seed: int = 0,
) -> EntropyTarget:
    """Choose the target entropy from the feasible volume.

    Points are spread over the feasible volume; the target is the entropy of the widest isotropic Gaussian that keeps
    the share ``retention`` of its draws around them inside, and at most the usual minus the number of actions. A loss
    at the faces of the box does not count, because tanh keeps actions inside it.

    Args:
        constraint: The feasible set.
        obs: Observations to average over, (states, observations), where the set depends on them.
        retention: Share of the draws to keep, in (0, 1); by default 0.95 for at most two actions, 0.925 for three and
            0.9 for more.
        num_draws: Uniform draws that look for feasible points.
        seed: Seed of the draws.

    Returns:
        The target.

    Raises:
        InvalidValueError: If the retention is out of range, observations are needed and missing, or the volume of a set
            that is not convex is too small to be seen.

    Source: beyond the paper, which fixes the temperature. On sets of full dimension the value is close to minus the
    number of actions; on thin ones (bike sharing: 0.12 thick) it is far below. A good action often lies on the border,
    and the policy's mean then stays about two deviations inside. The more actions there are, the more of the volume
    lies near the border, so that one retention would demand ever smaller deviations: hence the default.
    """
    dim = constraint.action_dim
    if retention is None:
        retention = 1.0 - min(max(_LOSS_PER_ACTION * dim, _LEAST_LOSS), _LARGEST_LOSS)
    if not 0 < retention < 1:
        raise InvalidValueError(f"retention={retention} is out of range; give a share between 0 and 1")
    if constraint.needs_obs and (obs is None or not len(obs)):
        raise InvalidValueError("the feasible set depends on the observation; give observations to average over")
    rng = np.random.default_rng(seed)

    def states(count: int) -> np.ndarray | None:
        if not constraint.needs_obs or obs is None:
            return None
        return np.asarray(obs, np.float64)[rng.integers(0, len(obs), count)]

    draws, where = rng.uniform(-1, 1, (num_draws, dim)), states(num_draws)
    inside = np.asarray(constraint.contains(where, draws), bool)
    share = float(inside.mean())
    log_volume = math.log(share) + dim * math.log(2) if share else -math.inf
    points = draws[inside][:_POINTS]
    kept = None if where is None else where[inside][:_POINTS]
    if len(points) < _ENOUGH:
        points, kept = _inner_points(constraint, states(_POINTS), seed, dim)
    points = np.tile(points, (_REPEATS, 1))
    kept = None if kept is None else np.tile(kept, (_REPEATS, 1))
    noise = rng.standard_normal(points.shape)

    def retained(deviation: float) -> float:
        moved = np.clip(points + deviation * noise, -1, 1)
        return float(np.asarray(constraint.contains(kept, moved), bool).mean())

    if retained(1.0) >= retention:
        return EntropyTarget(float(-dim), math.nan, share, log_volume)
    low, high = math.log(_SMALLEST), 0.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if retained(math.exp(middle)) >= retention else (low, middle)
    value = min(-float(dim), dim * (low + _GAUSSIAN))
    return EntropyTarget(value, math.exp(low), share, log_volume)


def _inner_points(
    constraint: Any, where: np.ndarray | None, seed: int, dim: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Points spread over a set that uniform draws hardly ever hit: a random walk within it, from an interior point."""
    count = _POINTS if where is None else len(where)
    center = np.broadcast_to(np.asarray(constraint.interior(where), np.float64), (count, dim)).copy()
    if not constraint.convex:
        raise InvalidValueError(
            "too few uniform draws are feasible to tell the volume of this set, and it is not convex; set "
            "target_entropy to a number, or temperature to a fixed one"
        )
    return hit_and_run(constraint, where, center, generator=torch_generator(seed)), where
