"""Volumes of feasible sets, down to shares that uniform draws never meet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram.constraints._hit_and_run import hit_and_run_move
from octavo_aram.constraints._user import checked_count
from octavo_aram.constraints.base import Batch, VolumeEstimate

if TYPE_CHECKING:
    from octavo_aram.constraints.base import Constraint

__all__ = ["estimate_volume"]

# Fewer hits than this say little; nested level sets take over.
_FEW_HITS = 50
_LEVEL_SHARE = 0.2
_MAX_LEVELS = 60
_CHUNK = 100_000
# Numbers in a chunk of draws.
_LARGEST_CHUNK = 2**24
# Log of a share that no estimate is asked for.
_NO_VOLUME = -50.0


def estimate_volume(constraint: Constraint, obs: Any, *, n: int | Any = 100_000, seed: int | Any = 0) -> VolumeEstimate:
    """Estimate the share of the box [-1, 1]^d that is feasible.

    Scrambled Sobol points first; the standard error is that of as many independent draws, which they undercut. If they
    hit too seldom, the share is the product of shares of nested level sets of the violation, each kept populated by
    hit-and-run moves (subset simulation), unless the violation knows no levels (an oracle) or the set is too thin for
    them; then the share of the draws stays, with its error. Sets known to have no volume give exactly 0.

    Args:
        constraint: The constraint.
        obs: Raw observation [o], or [B, o] to average over states; ``None`` if not needed.
        n: Uniform draws, and points in each level.
        seed: Seed.

    Returns:
        The estimate.

    Raises:
        InvalidValueError: If ``n`` is below 1.
        InvalidTypeError: If ``n`` or ``seed`` is not whole.

    Source:
        Beyond the paper: the target entropy follows the log volume. Subset simulation: Au and Beck (2001).
    """
    n, seed = checked_count(n, "n", least=None), checked_count(seed, "seed", least=None)
    if n < 1:
        raise InvalidValueError(f"n={n} draws say nothing; give n >= 1")
    dim = constraint._checked_action_dim()
    if not constraint.has_volume:
        return VolumeEstimate(0.0, 0.0, -math.inf)
    generator = torch.Generator().manual_seed(seed)
    probe = torch.zeros(dim, dtype=torch.float64)
    states = Batch.of(constraint, obs, probe).obs if constraint.needs_obs else None
    count = 1 if states is None else len(states)
    hits, draws = 0, 0
    engine = torch.quasirandom.SobolEngine
    sobol = engine(dim, scramble=True, seed=seed) if dim <= engine.MAXDIM else None
    while draws < n:
        size = min(_CHUNK, n - draws, max(_LARGEST_CHUNK // dim, 1))
        unit = sobol.draw(size, dtype=torch.float64) if sobol is not None else None
        act = (torch.rand(size, dim, generator=generator, dtype=torch.float64) if unit is None else unit) * 2 - 1
        chosen = None if states is None else states[torch.randint(count, (size,), generator=generator)]
        hits += int(constraint._contains(chosen, act, 0.0).sum())
        draws += size
    share = hits / draws
    error = math.sqrt(max(share * (1 - share), 1 / draws**2) / draws)
    if hits < _FEW_HITS and n >= 1000:
        parts = [_level_sets(constraint, None if states is None else states[i : i + 1], n // 25, generator)
                 for i in range(min(count, 10))]  # fmt: skip
        # Levels say nothing of a violation that is 0 or 1, nor of sets too thin for them: the draws' estimate stays.
        measured = [part for part in parts if part is not None]
        if len(measured) == len(parts):
            share = sum(part[0] for part in measured) / len(measured)
            error = math.sqrt(sum(part[1] ** 2 for part in measured)) / len(measured)
    if share == 0:
        # No hit in so many draws: a share of one hit would have been possible.
        return VolumeEstimate(0.0, max(error, 1 / draws), -math.inf)
    return VolumeEstimate(share, error, math.log(share) + dim * math.log(2))


def _level_sets(
    constraint: Constraint, state: Tensor | None, size: int, generator: torch.Generator
) -> tuple[float, float] | None:
    """Share and standard error by nested level sets; ``None`` where they come to no end."""
    dim, size = constraint.action_dim, max(size, 500)
    obs = None if state is None else state.expand(size, -1)
    points = torch.rand(size, dim, generator=generator, dtype=torch.float64) * 2 - 1
    level = constraint._violation(obs, points)
    log_share, variance = 0.0, 0.0
    for _ in range(_MAX_LEVELS):
        threshold = max(float(level.quantile(_LEVEL_SHARE)), 0.0)
        inside = level <= threshold
        share = float(inside.double().mean())
        if share == 0:
            return None
        log_share += math.log(share)
        # Chains started from copies are correlated; two moves per dimension leave a factor of about two.
        variance += 2 * (1 - share) / (share * size)
        if threshold == 0:
            value = math.exp(log_share)
            return value, value * math.sqrt(variance)
        if threshold < 1e-14 or share > 0.999 or log_share < _NO_VOLUME:
            break
        survivors = inside.nonzero()[:, 0]
        copies = survivors[torch.randint(len(survivors), (size,), generator=generator)]
        points, level = points[copies], level[copies]
        for _ in range(2 * dim):
            points, level = hit_and_run_move(constraint, obs, points, level, threshold, generator)
    # The levels close in on zero without reaching it: the set has no volume, or one that they cannot tell.
    return None
