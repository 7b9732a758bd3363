"""Hardmax attention in float64 without cancellation ("deficit form"), and as written, in plain floating point.

Hardmax averages the values of all keys with the largest score, so a tie must be found as a tie and a difference of
1e-30 as a difference. Scores are therefore kept as an integer part and a small part. The small part of a cosine is
``1 - cos = (p x q)^2 / (1 + p . q)`` for unit vectors p and q, which keeps its relative precision, and is exactly 0 for
equal vectors; small parts beside equal integers are compared relatively.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from octavo_prompt_turing.blocks import ScoreShape

__all__ = ["deficit_choice", "naive_choice", "normalise_direction", "pair_norms"]

_CLIP = 2.0
# Small parts of different scores differ by 1/N relatively, those of equal scores by a few rounding errors.
_TIE = 2.0**-46
_TINY = torch.finfo(torch.float64).tiny
# The ratio of a direction is an integer up to N with a relative error of a few 2^-53.
_INTEGER = 2.0**-20


def normalise_direction(group: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
    """Divide pairs by their norms; a pair whose ratio is an integer p becomes the one float64 form of (p, 1)/norm.

    Args:
        group: Pairs of coordinates.

    Returns:
        Unit vectors, and zeros for zeros. Directions of equal integers are equal bit by bit.

    Source:
        Paper, LN of a group without mean subtraction; the common form beyond the paper, so that ties are exact.
    """
    x, y = group.unbind(-1)
    ratio = x / y
    whole = ratio.round()
    integer = (ratio - whole).abs() <= _INTEGER
    x = torch.where(integer, whole.copysign(x), x)
    y = torch.where(integer, torch.ones_like(y).copysign(y), y)
    norm = (x * x + y * y).sqrt()
    norm = torch.where(norm == 0, torch.inf, norm)
    return torch.stack([x / norm, y / norm], dim=-1)


def pair_norms(rows: Float[Tensor, "*batch width"], shape: ScoreShape) -> Float[Tensor, "*batch pairs"]:
    """Norms of the pairs of query or key rows; those within rounding of 0 or 1 are made exact.

    Args:
        rows: Query or key rows: integers, reals, pairs.
        shape: Layout of the rows.

    Returns:
        One norm for each pair.

    Source:
        Beyond the paper: a unit vector in floating point has a norm of 1 up to rounding only.
    """
    pairs = rows[..., shape.integers + shape.reals :].unflatten(-1, (shape.pairs, 2))
    norms = pairs.square().sum(-1).sqrt()
    whole = norms.round()
    return torch.where((norms - whole).abs() < 1e-12, whole, norms)


def deficit_choice(
    query: Float[Tensor, "batch heads queries width"],
    query_norms: Float[Tensor, "batch heads queries pairs"],
    key: Float[Tensor, "batch heads width keys"],
    key_norms: Float[Tensor, "batch heads pairs keys"],
    allowed: Bool[Tensor, "#batch 1 queries keys"] | None,
    shape: ScoreShape,
) -> Bool[Tensor, "batch heads queries keys"]:
    """Find the keys with the largest clipped score min(2, q . k), exactly for the scores of the construction.

    Args:
        query: Query rows, float64.
        query_norms: Norms of the queries' pairs.
        key: Key rows, one key a column.
        key_norms: Norms of the keys' pairs.
        allowed: Keys that a query may see; ``None`` for all.
        shape: Layout of the rows.

    Returns:
        Which keys are averaged; none for a query that may see no key.

    Source:
        Paper, hardmax attention; the deficit form is beyond the paper, which assumes O(log N) bits.
    """
    whole, small = _score_parts(query, query_norms, key, key_norms, shape)
    if small is None:
        scores = whole.clamp(max=_CLIP)
        if allowed is not None:
            scores = torch.where(allowed, scores, -torch.inf)
        chosen = scores == scores.amax(-1, keepdim=True)
        return chosen if allowed is None else chosen & allowed
    over = small > _CLIP - whole
    whole, small = whole.masked_fill(over, _CLIP), small.masked_fill(over, 0.0)
    if allowed is not None:
        small = torch.where(allowed, small, -torch.inf)
    leader = (whole + small).argmax(-1, keepdim=True)
    small = small + (whole - whole.gather(-1, leader))
    best = small.amax(-1, keepdim=True)
    chosen = small >= best - _TIE * best.abs()
    return chosen if allowed is None else chosen & allowed


def _score_parts(
    query: Tensor, query_norms: Tensor, key: Tensor, key_norms: Tensor, shape: ScoreShape
) -> tuple[Tensor, Tensor | None]:
    """Split the scores into parts that are integers for the construction, and small parts, if a row can give any."""
    columns, rows = query.unsqueeze(-1).unbind(-2), key.unsqueeze(-2).unbind(-3)
    whole, small = None, None
    for index in range(shape.integers):
        product = columns[index] * rows[index]
        whole = product if whole is None else whole + product
    for index in range(shape.integers, shape.integers + shape.reals):
        product = columns[index] * rows[index]
        small = product if small is None else small + product
    for pair in range(shape.pairs):
        start = shape.integers + shape.reals + 2 * pair
        q0, q1, k0, k1 = columns[start], columns[start + 1], rows[start], rows[start + 1]
        dot = q0 * k0 + q1 * k1
        cross = q0 * k1 - q1 * k0
        norm = query_norms[..., pair].unsqueeze(-1) * key_norms[:, :, pair].unsqueeze(-2)
        # |p||q| - |p . q|, with the sign of p . q.
        deficit = (cross.square() / (norm + dot.abs() + _TINY)).copysign(dot)
        norm = norm.copysign(dot)
        whole = norm if whole is None else whole + norm
        small = -deficit if small is None else small - deficit
    if whole is None:
        raise AssertionError("a head has an integer or a pair row")
    return whole, small


def naive_choice(
    query: Float[Tensor, "batch heads queries width"],
    key: Float[Tensor, "batch heads width keys"],
    allowed: Bool[Tensor, "#batch 1 queries keys"] | None,
    tie_tolerance: float,
) -> Bool[Tensor, "batch heads queries keys"]:
    """Find the keys with the largest clipped score as written; kept to show where it fails.

    Args:
        query: Query rows.
        key: Key rows, one key a column.
        allowed: Keys that a query may see; ``None`` for all.
        tie_tolerance: Scores that close to the largest count as ties.

    Returns:
        Which keys are averaged.

    Source:
        Paper, hardmax attention, in the arithmetic that a framework would use.
    """
    scores = (query @ key).clamp(max=_CLIP)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    chosen = scores >= scores.amax(-1, keepdim=True) - tie_tolerance
    return chosen if allowed is None else chosen & allowed
