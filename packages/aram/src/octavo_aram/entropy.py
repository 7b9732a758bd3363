"""Target entropy from the feasible volume, so that automatic temperature and acceptance do not fight each other.

With the usual target, minus the number of actions, soft actor-critic asks for more spread than a thin feasible set can
hold: the temperature rises until most draws fall outside, and a larger penalty makes it worse. Here the target is the
entropy of the widest Gaussian whose draws stay feasible around most of the feasible volume.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from octavo_core.device import torch_generator
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.arm import hit_and_run
from octavo_aram.constraints._user import checked_count
from octavo_aram.constraints.combine import Union

if TYPE_CHECKING:
    from octavo_aram.constraints import Constraint

__all__ = ["EntropyTarget", "UnseenVolumeError", "feasible_entropy", "target_or_dimension", "volume_is_seen"]

_GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)
_POINTS = 4096
_DRAWS = 65_536
_REPEATS = 4
_ENOUGH = 128
_SMALLEST = 1e-5
_LOSS_PER_ACTION, _LEAST_LOSS, _LARGEST_LOSS = 0.025, 0.05, 0.1


class UnseenVolumeError(InvalidValueError):
    """The volume of a set cannot be told: uniform draws miss it, and it knows no point to walk from."""


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
    num_draws: int | Any = _DRAWS,
    seed: int | Any = 0,
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
        num_draws: Uniform draws that look for feasible points, at least 1.
        seed: Seed of the draws.

    Returns:
        The target.

    Raises:
        InvalidValueError: If the retention or a count is out of range, or observations are needed and missing.
        InvalidTypeError: If ``num_draws`` or ``seed`` is not whole.
        UnseenVolumeError: If uniform draws miss the set, and it has no volume or knows no interior point.

    Source: beyond the paper, which fixes the temperature. On sets of full dimension the value is close to minus the
    number of actions; on thin ones (bike sharing: 0.12 thick) it is far below. A good action often lies on the border,
    and the policy's mean then stays about two deviations inside. The more actions there are, the more of the volume
    lies near the border, so that one retention would demand ever smaller deviations: hence the default.
    """
    dim = constraint.action_dim
    num_draws, seed = checked_count(num_draws, "num_draws", least=1), checked_count(seed, "seed")
    if retention is None:
        retention = 1.0 - min(max(_LOSS_PER_ACTION * dim, _LEAST_LOSS), _LARGEST_LOSS)
    if not 0 < retention < 1:
        raise InvalidValueError(f"retention={retention} is out of range; give a share between 0 and 1")
    if constraint.needs_obs and (obs is None or not len(obs)):
        raise InvalidValueError("the feasible set depends on the observation; give observations to average over")
    rng = np.random.default_rng(seed)
    points, kept, share = _spread(constraint, obs, seed, num_draws, rng)
    log_volume = math.log(share) + dim * math.log(2) if share else -math.inf
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


def target_or_dimension(
    constraint: Constraint | Any, obs: np.ndarray | None = None, *, seed: int = 0, tell: bool = True
) -> EntropyTarget:
    """Choose the target entropy from the feasible volume, or the usual one where that volume cannot be told.

    Args:
        constraint: The feasible set.
        obs: Observations to average over, (states, observations), where the set depends on them.
        seed: Seed of the draws.
        tell: Whether to warn where the usual target, minus the number of actions, is taken.

    Returns:
        The target.

    Source: beyond the paper.
    """
    try:
        if not constraint.has_volume:
            raise UnseenVolumeError(f"{constraint!r} has no volume")
        return feasible_entropy(constraint, obs, seed=seed)
    except UnseenVolumeError as error:
        dim = constraint.action_dim
        if tell:
            warnings.warn(
                f"{error}: target_entropy='volume' becomes 'dimension', minus the number of actions ({-dim}); if few "
                "proposals are feasible, set target_entropy to a lower number, or temperature to a fixed one",
                stacklevel=5,
            )
        return EntropyTarget(float(-dim), math.nan, math.nan, math.nan)


def volume_is_seen(constraint: Constraint | Any, obs: np.ndarray | None, *, seed: int = 0) -> bool:
    """Tell at little cost whether :func:`feasible_entropy` will find a target.

    Args:
        constraint: The feasible set.
        obs: Observations, (states, observations), where the set depends on them.
        seed: Seed of the draws.

    Returns:
        Whether it will, at these states.
    """
    if constraint.convex or not constraint.has_volume:
        return bool(constraint.has_volume)
    try:
        _spread(constraint, obs, seed, _DRAWS, np.random.default_rng(seed))
    except UnseenVolumeError:
        return False
    return True


def _spread(
    constraint: Any, obs: np.ndarray | None, seed: int, num_draws: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Points spread over the feasible volume, their states, and the feasible share of uniform draws."""
    dim = constraint.action_dim

    def states(count: int) -> np.ndarray | None:
        if not constraint.needs_obs or obs is None:
            return None
        return np.asarray(obs, np.float64)[rng.integers(0, len(obs), count)]

    draws, where = rng.uniform(-1, 1, (num_draws, dim)), states(num_draws)
    inside = np.asarray(constraint.contains(where, draws), bool)
    points = draws[inside][:_POINTS]
    kept = None if where is None else where[inside][:_POINTS]
    if len(points) < _ENOUGH:
        points, kept = _inner_points(constraint, states(_POINTS), seed, dim)
    return points, kept, float(inside.mean())


def _inner_points(
    constraint: Any, where: np.ndarray | None, seed: int, dim: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Points spread over a set that uniform draws hardly ever hit: a random walk within it, from an interior point."""
    union = constraint if isinstance(constraint, Union) else getattr(constraint, "_alternatives", None)
    found: list[np.ndarray] = []
    # A walk stays in one alternative of a union; each gets its own.
    for part in (constraint,) if union is None or constraint.convex else union.parts:
        count = _POINTS if where is None else len(where)
        try:
            if not part.has_volume:
                continue
            inner = np.asarray(part.interior(where if part.needs_obs else None), np.float64)
        except InvalidTypeError:
            continue
        except InvalidValueError:
            # Empty at one of the states.
            if union is None:
                raise
            continue
        center = np.broadcast_to(inner, (count, dim)).copy()
        generator = torch_generator(seed)
        found.append(hit_and_run(part, where if part.needs_obs else None, center, generator=generator))
    if not found:
        raise UnseenVolumeError(
            f"the volume of {constraint!r} cannot be told, because uniform draws miss it and it has no volume to walk "
            "in from an interior point"
        )
    kept = None if where is None else np.concatenate([where] * len(found))
    return np.concatenate(found), kept
