"""Keys that deserve to be exact: those the last prompt queries attended to most."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int, Int32
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_magicpig.validation import check_count, check_scale

__all__ = ["distinct_positions", "heavy_positions", "observed_attention"]


def observed_attention(
    queries: Float[Tensor, "batch heads observed dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    scale: float | Any = None,
) -> Float[Tensor, "batch kv_heads tokens"]:
    """Mean attention that each key got from observed queries, the heads of a group together.

    Args:
        queries: The last queries of a prompt, which ends with the last key; a query sees the keys up to its own.
        keys: All keys.
        scale: Factor of the scores; ``1 / sqrt(dim)`` by default.

    Returns:
        Attention in [0, 1], summing to 1 over the tokens.

    Raises:
        InvalidValueError: If there are more queries than keys, the heads do not group, or the scale is not finite.
        InvalidTypeError: If the scale is no number.
    """
    batch, heads, observed, dim = queries.shape
    kv_heads, tokens = keys.shape[1], keys.shape[2]
    if observed > tokens or heads % kv_heads:
        raise InvalidValueError(
            f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}; give at most {tokens} queries and a "
            f"multiple of {kv_heads} heads"
        )
    grouped = queries.float().reshape(batch, kv_heads, heads // kv_heads * observed, dim)
    with torch.autocast(keys.device.type, enabled=False):
        scores = grouped @ keys.float().transpose(2, 3) * check_scale(scale, dim)
    own = torch.arange(tokens - observed, tokens, device=keys.device).repeat(heads // kv_heads)
    hidden = torch.arange(tokens, device=keys.device) > own[:, None]
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).mean(2)


def distinct_positions(positions: Int[Tensor, "*rows heavy"]) -> Int32[Tensor, "*rows heavy"]:
    """Order positions and keep each once: a kernel adds a key for every time that it is listed.

    Args:
        positions: Positions, -1 for none.

    Returns:
        Rising positions, with -1 for none and in place of each repetition.
    """
    ordered = positions.sort(-1).values.int()
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return ordered.masked_fill(repeated, -1).contiguous()


def heavy_positions(
    queries: Float[Tensor, "batch heads observed dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    count: Any,
    *,
    scale: float | Any = None,
    begin: int | Any = 0,
    end: int | Any = None,
) -> Int32[Tensor, "batch kv_heads heavy"]:
    """Positions of the keys that got the most attention from observed queries.

    Args:
        queries: The last queries of a prompt.
        keys: All keys of the prompt.
        count: Positions wanted for each kv head; fewer if there are fewer keys.
        scale: Factor of the scores.
        begin: First position that may be chosen.
        end: First position that may no longer be chosen; the end by default.

    Returns:
        Positions, for :meth:`octavo_magicpig.LSHIndex.build`.

    Raises:
        InvalidValueError: If the count is negative, the range lies outside the keys, there are more queries than keys,
            or the heads do not group.
        InvalidTypeError: If the count or an end of the range is no integer.

    Source:
        Beyond the paper: sampling is poor at the few keys that carry much of the attention; here they are exact and the
        tail is sampled, as in vAttention (arXiv 2510.05688), with the choice by observation of SnapKV (arXiv
        2404.14469).
    """
    count, begin, tokens = check_count("count", count, 0), check_count("begin", begin, 0), keys.shape[2]
    end = tokens if end is None else check_count("end", end, 0)
    if not begin <= end <= tokens:
        raise InvalidValueError(
            f"begin={begin} and end={end} are no range of {tokens} keys; give 0 to {tokens}, rising"
        )
    attention = observed_attention(queries, keys, scale=scale)[..., begin:end]
    chosen = attention.topk(min(count, attention.shape[-1]), dim=-1).indices
    return (chosen + begin).sort(-1).values.int()
