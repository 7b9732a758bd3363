"""Exact attention of one query token, and the merging of partial attentions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from octavo_magicpig.kernels import resolve
from octavo_magicpig.validation import check_decode_inputs, check_decode_mask, check_scale

__all__ = ["dense_decode_attention", "merge_states"]


def merge_states(
    out1: Float[Tensor, "*batch dim"],
    lse1: Float[Tensor, "*batch"],
    out2: Float[Tensor, "*batch dim"],
    lse2: Float[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch"]]:
    """Combine attentions over two disjoint sets of keys into the attention over both.

    Args:
        out1: Output over the first set.
        lse1: Its log-sum-exp (natural logarithm); ``-inf`` for an empty set.
        out2: Output over the second set.
        lse2: Its log-sum-exp.

    Returns:
        Output and log-sum-exp over the union; 0 and ``-inf`` if both sets are empty.

    Source:
        Section 4.3: partial results are merged by their log-sum-exp.
    """
    lse = torch.logaddexp(lse1, lse2)
    base = torch.where(lse == -torch.inf, 0.0, lse)
    first, second = torch.exp(lse1 - base)[..., None], torch.exp(lse2 - base)[..., None]
    # A set of weight zero may come with an undefined output.
    return torch.where(first > 0, first * out1, 0.0) + torch.where(second > 0, second * out2, 0.0), lse


def dense_decode_attention(
    query: Float[Tensor, "batch heads dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    mask: Bool[Tensor, "batch tokens"] | Any = None,
    *,
    scale: float | Any = None,
    first: Int[Tensor, " batch"] | Any = None,
    kernel: str = "auto",
) -> tuple[Float[Tensor, "batch heads dim"], Float[Tensor, "batch heads"]]:
    """Exact attention of one query token over a key-value cache.

    The query heads of a group are handled together, so that each key and value is read once. On the CPU this is the
    package's own compiled kernel, which is what runs below ``min_context``.

    Args:
        query: One query a head; ``heads`` is a multiple of ``kv_heads``.
        keys: Keys, float32, bfloat16 or float16.
        values: Values, of the dtype of the keys.
        mask: True for keys that take part.
        scale: Factor of the scores; ``1 / sqrt(dim)`` by default.
        first: Keys before it are left out, for each row, 0 to ``tokens``; all take part by default.
        kernel: See :class:`octavo_magicpig.LSHConfig`.

    Returns:
        Output in the dtype of the query, and float32 log-sum-exp; 0 and ``-inf`` where no key takes part, NaN where a
        score or value is not finite.

    Raises:
        InvalidValueError: If shapes do not fit, ``heads`` is no multiple of ``kv_heads``, devices are mixed, ``first``
            lies outside the keys, or the scale is not finite.
        InvalidTypeError: If dtypes are mixed or not supported.
    """
    check_decode_inputs(query, keys, values)
    check_decode_mask(keys, mask, first)
    batch, _, dim = query.shape
    implementation = resolve(kernel, keys.device)
    begin = torch.zeros(batch, dtype=torch.int64, device=keys.device) if first is None else first.long().contiguous()
    keys, values = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (keys, values))
    out, lse = implementation.dense(
        query.float().contiguous(),
        keys,
        values,
        begin,
        None if mask is None else mask.contiguous(),
        check_scale(scale, dim),
    )
    return out.to(query.dtype), lse
