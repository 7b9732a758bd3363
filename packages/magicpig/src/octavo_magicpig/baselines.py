"""Deterministic selections that the paper compares with, in the signature of :mod:`octavo_magicpig.estimators`.

Quest (arXiv 2406.10774), StreamingLLM (2309.17453), H2O (2306.14048) and SnapKV (2404.14469), and the exact TopK that
the search methods (InfLLM, RetrievalAttention, Loki) approximate.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_magicpig.estimators import Estimate, Problem
from octavo_magicpig.heavy import observed_attention
from octavo_magicpig.validation import check_count, check_tensor

__all__ = ["h2o_attention", "quest_attention", "snapkv_attention", "streaming_attention", "topk_attention"]


def topk_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    budget: float | Any,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Keep the middle keys with the highest scores and renormalise.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        budget: Keys of each head, or their share of the middle.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate; its search cost is that of reading all keys, which real systems approximate.

    Source:
        Section 3.1: its bias does not vanish unless little mass lies outside the top.
    """
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    chosen = torch.zeros_like(problem.scores, dtype=torch.bool)
    if (count := problem.count(budget)) > 0:
        best = problem.scores[..., problem.begin : problem.end].topk(count).indices + problem.begin
        chosen.scatter_(2, best, True)
    return problem.finish(chosen, search_rows=problem.tokens)


def streaming_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Keep the first and the last tokens only.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate.

    Source:
        StreamingLLM.
    """
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    return problem.finish(torch.zeros_like(problem.scores, dtype=torch.bool))


def quest_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    budget: float | Any,
    page_size: int | Any = 16,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Keep the pages of middle keys whose bound on the score is highest.

    The bound of a page is ``sum_j max(q_j min_j, q_j max_j)`` over its coordinate-wise smallest and largest key.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        budget: Keys of each head, or their share of the middle, rounded up to whole pages.
        page_size: Keys of a page, 1 or more.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate; its search reads two keys a page.

    Raises:
        InvalidValueError: If the page size is below 1.

    Source:
        Quest.
    """
    page_size = check_count("page_size", page_size)
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    chosen = torch.zeros_like(problem.scores, dtype=torch.bool)
    pages = -(-problem.middle // page_size)
    wanted = min(pages, -(-problem.count(budget) // page_size))
    if wanted == 0:
        return problem.finish(chosen)
    middle = keys[:, :, problem.begin : problem.end].float()
    # The last page is filled up with its own last key, which changes neither bound.
    filled = torch.cat([middle, middle[:, :, -1:].expand(-1, -1, pages * page_size - problem.middle, -1)], 2)
    paged = filled.unflatten(2, (pages, page_size)).repeat_interleave(problem.group, dim=1)
    q = problem.query[:, :, None]
    bound = torch.maximum(q * paged.amin(3), q * paged.amax(3)).sum(-1)
    best = bound.topk(wanted).indices
    inside = torch.zeros_like(bound, dtype=torch.bool).scatter_(2, best, True)
    chosen[..., problem.begin : problem.end] = inside.repeat_interleave(page_size, dim=2)[..., : problem.middle]
    return problem.finish(chosen, search_rows=2.0 * pages)


def snapkv_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    observed: Float[Tensor, "batch heads observed dim"] | Any,
    budget: float | Any,
    pool: int | Any = 7,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Keep the middle keys that the last prompt queries attended to, smoothed over their neighbours; evict the others.

    Args:
        query: One query token.
        keys: Keys; the last of them belongs to the last observed query.
        values: Values.
        observed: The last queries of the prompt; 32 in the paper of SnapKV.
        budget: Keys of each kv head, or their share of the middle.
        pool: Neighbours over which the votes are averaged, odd.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate.

    Raises:
        InvalidValueError: If ``pool`` is not an odd positive number, or the observed queries do not fit the query.

    Source:
        SnapKV.
    """
    if check_count("pool", pool) % 2 == 0:
        raise InvalidValueError(f"pool={pool} is even; give an odd number")
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    votes = _votes(problem, observed)
    votes = torch.nn.functional.avg_pool1d(votes, pool, stride=1, padding=pool // 2, count_include_pad=False)
    return _evicted(problem, votes, budget)


def h2o_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    observed: Float[Tensor, "batch heads observed dim"] | Any,
    budget: float | Any,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Keep the middle keys with the largest accumulated attention, the heavy hitters; evict the others.

    Args:
        query: One query token.
        keys: Keys; the last of them belongs to the last observed query.
        values: Values.
        observed: Queries whose attention is accumulated: all of the prompt in the paper of H2O.
        budget: Keys of each kv head, or their share of the middle.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate.

    Raises:
        InvalidValueError: If the observed queries do not fit the query.

    Source:
        H2O, with the scores of the whole prompt at once instead of a greedy pass.
    """
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    return _evicted(problem, _votes(problem, observed), budget)


def _votes(problem: Problem, observed: Tensor) -> Tensor:
    shape = tuple(check_tensor("observed", observed).shape)
    if len(shape) != 4 or (*shape[:2], shape[3]) != (problem.batch, problem.heads, problem.dim):
        raise InvalidValueError(
            f"observed of shape {shape} does not fit the query; give (batch, heads, observed, dim) = "
            f"({problem.batch}, {problem.heads}, any, {problem.dim})"
        )
    return observed_attention(observed, problem.keys, scale=problem.scale)


def _evicted(problem: Problem, votes: Tensor, budget: float | Any) -> Estimate:
    chosen = torch.zeros_like(votes, dtype=torch.bool)
    if (count := problem.count(budget)) > 0:
        best = votes[..., problem.begin : problem.end].topk(count).indices + problem.begin
        chosen.scatter_(2, best, True)
    return problem.finish(chosen.repeat_interleave(problem.group, dim=1))
