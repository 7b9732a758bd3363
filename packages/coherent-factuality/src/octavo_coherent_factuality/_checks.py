"""Reading what callers give: arrays of any library, masks, whole numbers. Shared by the modules of this package."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["array_of", "check_whole", "entries_of", "floats_of", "mask_of", "number_of", "plain_scalar"]


def array_of(values: Any) -> np.ndarray:
    """Convert to an array; NumPy itself takes no tensor that requires gradients, and no bfloat16.

    Args:
        values: A list, an array or a tensor.

    Returns:
        The array; floating-point tensors in float64.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def floats_of(values: Any, name: str) -> np.ndarray:
    """Read numbers in float64; texts and complex numbers are none, though NumPy would convert them.

    Args:
        values: A list, an array or a tensor.
        name: What error messages call them.

    Returns:
        The numbers, in the shape given.

    Raises:
        InvalidTypeError: If they are no numbers.
    """
    try:
        array = array_of(values)
        if array.dtype.kind == "O" and not any(isinstance(value, str | bytes) for value in array.flat):
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTypeError(f"{name} cannot be read ({error}); give a list or an array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise InvalidTypeError(f"{name} holds values of the type {array.dtype}; give a list or an array of numbers")
    return array.astype(np.float64, copy=False)


def entries_of(values: Any, name: str) -> list[Any]:
    """List the entries of a column by position, whatever its index.

    Args:
        values: A list, an array, a tensor or a pandas column.
        name: What error messages call it.

    Returns:
        The entries.

    Raises:
        InvalidTypeError: If it is one text, or no column at all.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidTypeError(f"{name} is {values!r}; give a list with one entry per claim")
    return array_of(values).tolist() if hasattr(values, "detach") else list(values)


def mask_of(kept: Any, size: int, name: str = "the mask") -> np.ndarray:
    """Read a mask of claims; 0 and 1 as integers would index instead.

    Args:
        kept: The mask.
        size: Number of claims.
        name: What error messages call it.

    Returns:
        The mask, (claims,).

    Raises:
        InvalidValueError: If it has another shape.
        InvalidTypeError: If it holds other than truth values.
    """
    mask = array_of(kept)
    if mask.shape != (size,):
        raise InvalidValueError(f"{name} has shape {mask.shape} for {size} claims; give one truth value per claim")
    if mask.dtype != bool:
        raise InvalidTypeError(f"{name} holds {mask.dtype} values; give a mask of truth values")
    return mask


def check_whole(value: object, name: str, least: int | None = None) -> None:
    """Refuse all but whole numbers.

    Args:
        value: The number.
        name: What error messages call it.
        least: The smallest that is accepted, if there is one.

    Raises:
        InvalidTypeError: If it is not a whole number.
        InvalidValueError: If it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name}={value!r} is not a whole number; give one such as {least or 0}")
    if least is not None and value < least:
        raise InvalidValueError(f"{name}={value} is out of range; give a whole number from {least} on")


def number_of(value: Any, name: str) -> float:
    """Read a number that is not NaN.

    Args:
        value: The number; may be infinite.
        name: What error messages call it.

    Returns:
        The number.

    Raises:
        InvalidTypeError: If it is none.
        InvalidValueError: If it is NaN.
    """
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise InvalidTypeError(f"{name}={value!r} is not a number; give one such as 0.5")
    number = float(value)
    if math.isnan(number):
        raise InvalidValueError(f"{name} is NaN; give a number")
    return number


def plain_scalar(value: Any) -> Any:
    """Turn a NumPy scalar into the Python one, which can be stored as JSON.

    Args:
        value: Anything.

    Returns:
        The scalar, or what was given.
    """
    return value.item() if isinstance(value, np.generic) else value
