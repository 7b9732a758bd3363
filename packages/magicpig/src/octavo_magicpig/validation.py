"""Checks of what comes in; every message names the argument and what it may be."""

from __future__ import annotations

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

__all__ = ["check_decode_inputs", "check_query", "check_rows", "check_tokens"]

_SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)


def check_decode_inputs(query: Tensor, keys: Tensor, values: Tensor) -> None:
    """Check that a query and a cache fit together.

    Args:
        query: (batch, heads, dim).
        keys: (batch, kv_heads, tokens, dim).
        values: The same shape as ``keys``.

    Raises:
        InvalidValueError: If shapes do not fit or ``heads`` is no multiple of ``kv_heads``.
        InvalidTypeError: If dtypes are mixed or not supported.
    """
    if query.ndim != 3 or keys.ndim != 4 or keys.shape != values.shape:
        raise InvalidValueError(
            f"query {tuple(query.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}: give "
            "(batch, heads, dim) and twice (batch, kv_heads, tokens, dim)"
        )
    batch, heads, dim = query.shape
    if keys.shape[0] != batch or keys.shape[3] != dim or dim == 0:
        raise InvalidValueError(
            f"query {tuple(query.shape)} does not fit keys {tuple(keys.shape)}; batch and dim must agree, dim above 0"
        )
    if keys.shape[1] == 0 or heads % keys.shape[1]:
        raise InvalidValueError(f"heads={heads} is not a multiple of kv_heads={keys.shape[1]}; give whole groups")
    if keys.dtype != values.dtype or keys.dtype not in _SUPPORTED or not query.is_floating_point():
        raise InvalidTypeError(
            f"query of {query.dtype}, keys of {keys.dtype}, values of {values.dtype}: keys and values must both be "
            "float32, bfloat16 or float16, and the query floating-point"
        )


def check_tokens(keys: Tensor, values: Tensor, batch: int, kv_heads: int, head_dim: int) -> None:
    """Check tokens that are to be added to an index.

    Args:
        keys: Keys.
        values: Values.
        batch: Batch rows of the index.
        kv_heads: Its key-value heads.
        head_dim: Its size of a key.

    Raises:
        InvalidValueError: If a shape does not fit, or a key or value is not finite.
        InvalidTypeError: If keys and values differ in dtype, or it is not floating-point.
    """
    for name, tensor in {"keys": keys, "values": values}.items():
        fits = tensor.ndim == 4 and (*tensor.shape[:2], tensor.shape[3]) == (batch, kv_heads, head_dim)
        if not fits or tensor.shape != keys.shape:
            raise InvalidValueError(
                f"{name} of shape {tuple(tensor.shape)} do not fit; give (batch, kv_heads, tokens, head_dim) = "
                f"({batch}, {kv_heads}, any, {head_dim}), the same for keys and values"
            )
    if keys.dtype != values.dtype or not keys.is_floating_point():
        raise InvalidTypeError(
            f"keys of {keys.dtype} and values of {values.dtype}; give one floating-point dtype for both"
        )
    for name, tensor in {"keys": keys, "values": values}.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidValueError(f"{name} hold NaN or infinite numbers; give finite ones")


def check_query(query: Tensor, batch: int, kv_heads: int, head_dim: int) -> None:
    """Check a query of an index.

    Args:
        query: The query.
        batch: Batch rows of the index.
        kv_heads: Its key-value heads.
        head_dim: Its size of a key.

    Raises:
        InvalidValueError: If the query does not fit or is not finite.
        InvalidTypeError: If it is not floating-point.
    """
    if query.ndim != 3 or query.shape[0] != batch or query.shape[2] != head_dim:
        raise InvalidValueError(
            f"query of shape {tuple(query.shape)} does not fit; give (batch, heads, head_dim) = "
            f"({batch}, any, {head_dim})"
        )
    if query.shape[1] == 0 or query.shape[1] % kv_heads:
        raise InvalidValueError(
            f"query has {query.shape[1]} heads, not a multiple of num_kv_heads={kv_heads}; give whole groups"
        )
    if not query.is_floating_point():
        raise InvalidTypeError(f"query of {query.dtype} is not floating-point; give float32, bfloat16 or float16")
    if not bool(torch.isfinite(query).all()):
        raise InvalidValueError("query holds NaN or infinite numbers; give finite ones")


def check_rows(index: Tensor, batch: int) -> None:
    """Check rows that are to be taken from a batch.

    Args:
        index: Row numbers.
        batch: Batch rows there are.

    Raises:
        InvalidValueError: If there is none, or one does not exist.
    """
    if index.ndim != 1 or len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= batch:
        raise InvalidValueError(f"rows {index.flatten().tolist()[:8]} do not all exist; give 0 to {batch - 1}")
