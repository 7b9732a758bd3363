"""Checks of what comes in; every message names the argument and what it may be."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

__all__ = [
    "check_build_options",
    "check_count",
    "check_decode_inputs",
    "check_decode_mask",
    "check_finite",
    "check_integer",
    "check_number",
    "check_positions",
    "check_query",
    "check_rows",
    "check_scale",
    "check_storable",
    "check_tensor",
    "check_tokens",
]

_SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_count(name: str, value: Any, low: int = 1) -> int:
    """Check a whole number.

    Args:
        name: Name of the argument.
        value: What was given, of Python or NumPy.
        low: Least value that is accepted.

    Returns:
        The number, as Python's.

    Raises:
        InvalidTypeError: If it is no integer.
        InvalidValueError: If it is too small.
    """
    count = check_integer(name, value, f"{low} or more")
    if count < low:
        raise InvalidValueError(f"{name}={count} is too small; give {low} or more")
    return count


def check_integer(name: str, value: Any, accepted: str) -> int:
    """Check an integer, and make one of NumPy Python's.

    Args:
        name: Name of the argument.
        value: What was given.
        accepted: What to give instead, for the message.

    Returns:
        The integer.

    Raises:
        InvalidTypeError: If it is something else, a bool included.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidTypeError(f"{name}={value!r} is not an integer; give {accepted}")
    return operator.index(value)


def check_number(name: str, value: Any, accepted: str) -> int | float:
    """Check a number, and make one of NumPy Python's.

    Args:
        name: Name of the argument.
        value: What was given.
        accepted: What to give instead, for the message.

    Returns:
        An int for an integer, else a float.

    Raises:
        InvalidTypeError: If it is no real number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidTypeError(f"{name}={value!r} is not a number; give {accepted}")
    return operator.index(value) if isinstance(value, numbers.Integral) else float(value)


def check_scale(scale: Any, head_dim: int) -> float:
    """Check the factor of the scores.

    Args:
        scale: What was given; ``None`` for ``1 / sqrt(head_dim)``.
        head_dim: Size of a key.

    Returns:
        The factor.

    Raises:
        InvalidTypeError: If it is no number.
        InvalidValueError: If it is not finite in float32, in which scores are computed.
    """
    if scale is None:
        return 1 / math.sqrt(head_dim)
    factor = check_number("scale", scale, "a finite factor, or None for 1 / sqrt(head_dim)")
    if not abs(factor) <= _LARGEST:
        raise InvalidValueError(
            f"scale={scale} is not finite in float32; give a finite factor, or None for 1 / sqrt(head_dim)"
        )
    return float(factor)


def check_tensor(name: str, value: Any) -> Tensor:
    """Check that an argument is a tensor.

    Args:
        name: Name of the argument.
        value: What was given.

    Returns:
        The tensor.

    Raises:
        InvalidTypeError: If it is something else.
    """
    if not isinstance(value, Tensor):
        raise InvalidTypeError(f"{name} is of type {type(value).__name__}; give a tensor")
    return value


def check_decode_inputs(query: Tensor | Any, keys: Tensor | Any, values: Tensor | Any) -> None:
    """Check that a query and a cache fit together.

    Args:
        query: (batch, heads, dim).
        keys: (batch, kv_heads, tokens, dim).
        values: The same shape as ``keys``.

    Raises:
        InvalidValueError: If shapes do not fit, ``heads`` is no multiple of ``kv_heads``, or devices are mixed.
        InvalidTypeError: If dtypes are mixed or not supported.
    """
    for name, tensor in {"query": query, "keys": keys, "values": values}.items():
        check_tensor(name, tensor)
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
    if not query.device == keys.device == values.device:
        raise InvalidValueError(
            f"query is on {query.device}, keys are on {keys.device}, values on {values.device}; give one device"
        )


def check_decode_mask(keys: Tensor, mask: Any, first: Any) -> None:
    """Check what hides keys from a query: the kernels read both without looking at their sizes.

    Args:
        keys: (batch, kv_heads, tokens, dim).
        mask: Bool (batch, tokens), or ``None``.
        first: Integers (batch,), or ``None``.

    Raises:
        InvalidValueError: If a shape or device does not fit, or ``first`` lies outside the keys.
        InvalidTypeError: If a dtype is another.
    """
    batch, tokens = keys.shape[0], keys.shape[2]
    if mask is not None:
        _check_form("mask", mask, (torch.bool,), "bool, True for keys that take part", (batch, tokens), keys.device)
    if first is not None:
        check_positions("first", first, (batch,), 0, tokens, keys.device)


def check_positions(
    name: str,
    value: Any,
    shape: tuple[int | None, ...],
    low: int,
    high: int,
    device: torch.device | None = None,
) -> None:
    """Check token positions.

    Args:
        name: Name of the argument.
        value: What was given.
        shape: Shape wanted; ``None`` for any size.
        low: Least position accepted.
        high: Largest.
        device: Device wanted, or ``None`` for any.

    Raises:
        InvalidValueError: If the shape or device does not fit, or a position is out of range.
        InvalidTypeError: If they are no integers.
    """
    _check_form(name, value, _INTEGERS, "an integer dtype", shape, device)
    if value.numel() and (int(value.min()) < low or int(value.max()) > high):
        raise InvalidValueError(
            f"{name} holds positions from {int(value.min())} to {int(value.max())}; give {low} to {high}"
        )


def _check_form(
    name: str, value: Any, dtypes: tuple[torch.dtype, ...], words: str, shape: tuple[int | None, ...], device: Any
) -> None:
    if check_tensor(name, value).dtype not in dtypes:
        raise InvalidTypeError(f"{name} of {value.dtype} is not accepted; give {words}")
    if len(value.shape) != len(shape) or any(w not in (None, s) for w, s in zip(shape, value.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise InvalidValueError(f"{name} of shape {tuple(value.shape)} does not fit; give ({wanted})")
    if device is not None and value.device != device:
        raise InvalidValueError(f"{name} is on {value.device} and the keys are on {device}; give one device")


def check_finite(name: str, tensor: Tensor, verb: str = "hold") -> None:
    """Check that all numbers are finite.

    Args:
        name: Name of the argument.
        tensor: What was given.
        verb: What the message says the argument does with its numbers.

    Raises:
        InvalidValueError: If one is not.
    """
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidValueError(f"{name} {verb} NaN or infinite numbers; give finite ones")


def check_storable(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Check that no finite number becomes infinite in the dtype of a store.

    Args:
        name: Name of the argument.
        tensor: What was given.
        dtype: Dtype it is stored in.

    Raises:
        InvalidValueError: If a number is too large for it.
    """
    if tensor.dtype != dtype and bool((tensor.to(dtype).isinf() & tensor.isfinite()).any()):
        raise InvalidValueError(
            f"{name} reach {float(tensor.abs().max()):.3g}, more than {str(dtype).removeprefix('torch.')} can store "
            f"({torch.finfo(dtype).max:.3g}); give smaller ones or a wider kv_dtype"
        )


def check_tokens(
    keys: Tensor | Any,
    values: Tensor | Any,
    batch: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Check tokens that are to be added to an index.

    Args:
        keys: Keys.
        values: Values.
        batch: Batch rows of the index.
        kv_heads: Its key-value heads.
        head_dim: Its size of a key.
        dtype: Dtype that it stores.

    Raises:
        InvalidValueError: If a shape does not fit, or a key or value is not finite, as given or as stored.
        InvalidTypeError: If keys and values differ in dtype, or it is not floating-point.
    """
    tensors = {"keys": keys, "values": values}
    for name, tensor in tensors.items():
        shape = check_tensor(name, tensor).shape
        fits = len(shape) == 4 and (*shape[:2], shape[3]) == (batch, kv_heads, head_dim)
        if not fits or shape != keys.shape:
            raise InvalidValueError(
                f"{name} of shape {tuple(shape)} do not fit; give (batch, kv_heads, tokens, head_dim) = "
                f"({batch}, {kv_heads}, any, {head_dim}), the same for keys and values"
            )
    if keys.dtype != values.dtype or not keys.is_floating_point():
        raise InvalidTypeError(
            f"keys of {keys.dtype} and values of {values.dtype}; give one floating-point dtype for both"
        )
    for name, tensor in tensors.items():
        check_finite(name, tensor)
        check_storable(name, tensor, dtype)


def check_build_options(padding: Any, heavy: Any, mean: Any, tokens: int, mean_shape: tuple[int, ...]) -> None:
    """Check what a prompt is built with; ``None`` for what is not given.

    Args:
        padding: Padded tokens at the beginning of each row, integers (batch,).
        heavy: Exact positions, integers (batch, kv_heads, n), -1 for none.
        mean: What to centre by.
        tokens: Tokens of the prompt.
        mean_shape: (batch, kv_heads, head_dim).

    Raises:
        InvalidValueError: If a shape does not fit, a position is out of range, or the mean is not finite.
        InvalidTypeError: If one is no tensor of the right dtype.
    """
    batch, kv_heads, _ = mean_shape
    if padding is not None:
        check_positions("padding", padding, (batch,), 0, tokens)
    if heavy is not None:
        check_positions("heavy", heavy, (batch, kv_heads, None), -1, tokens - 1)
    if mean is not None:
        _check_form("mean", mean, (*_SUPPORTED, torch.float64), "a floating-point dtype", mean_shape, None)
        if not bool(torch.isfinite(mean.float()).all()):
            raise InvalidValueError("mean holds NaN or numbers that are infinite in float32; give finite ones")


def check_query(query: Tensor | Any, batch: int, kv_heads: int, head_dim: int) -> None:
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
    check_tensor("query", query)
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
    if not bool(torch.isfinite(query.float()).all()):
        raise InvalidValueError("query holds NaN or numbers that are infinite in float32; give finite ones")


def check_rows(index: Tensor | Any, batch: int) -> None:
    """Check rows that are to be taken from a batch.

    Args:
        index: Row numbers.
        batch: Batch rows there are.

    Raises:
        InvalidValueError: If there is none, or one does not exist.
        InvalidTypeError: If they are no integers.
    """
    if check_tensor("rows", index).dtype not in _INTEGERS:
        raise InvalidTypeError(f"rows of {index.dtype} are not accepted; give an integer dtype")
    if index.ndim != 1 or len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= batch:
        raise InvalidValueError(f"rows {index.flatten().tolist()[:8]} do not all exist; give 0 to {batch - 1}")
