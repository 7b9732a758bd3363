"""Checks of what users pass: vectors, dimensions, and the results of their functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.user_code import user_errors

__all__ = [
    "LARGEST_INDEX",
    "checked_count",
    "checked_dim",
    "checked_indices",
    "checked_number",
    "checked_tolerance",
    "from_user",
    "numbers",
    "vector",
]


LARGEST_INDEX = 2**31 - 1
"""No observation has more entries."""


def numbers(values: Any, name: str) -> np.ndarray:
    """Read a finite float64 array of any shape.

    Args:
        values: Numbers.
        name: What they are, for the message.

    Returns:
        The array.

    Raises:
        InvalidValueError: If they are no finite numbers, or ragged.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.array(values)
        if array.dtype.kind not in "iuf":
            raise TypeError(f"its dtype is {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{name} is no array of numbers: {error}; give finite numbers") from error
    if not np.isfinite(array).all():
        raise InvalidValueError(f"{name} holds NaN or infinite entries; give finite numbers")
    return array


def vector(values: Any, name: str) -> np.ndarray:
    """Read a finite float64 vector.

    Args:
        values: Numbers.
        name: What they are, for the message.

    Returns:
        The vector.

    Raises:
        InvalidValueError: If they are no finite vector of numbers.
    """
    array = numbers(values, name)
    if array.ndim != 1:
        raise InvalidValueError(f"{name} has shape {array.shape}; give a vector")
    return array


def checked_dim(dim: Any) -> int:
    """Check a number of action components.

    Args:
        dim: The number.

    Returns:
        The number, at least 1.

    Raises:
        InvalidValueError: If it is below 1 or no integer.
    """
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise InvalidValueError(f"an action of {dim!r} components is not possible; give an integer >= 1")
    return int(dim)


def checked_count(value: Any, name: str, *, least: int | None = 0) -> int:
    """Check a whole number.

    Args:
        value: The number.
        name: What it is, for the message.
        least: Smallest value accepted; None for any.

    Returns:
        The number as an int.

    Raises:
        InvalidTypeError: If it is not whole.
        InvalidValueError: If it is below ``least``.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name}={value!r} is no whole number; give an integer")
    if least is not None and value < least:
        raise InvalidValueError(f"{name}={value} is not accepted; give an integer >= {least}")
    return int(value)


def checked_number(value: Any, name: str, *, least: float = -math.inf, hint: str = "") -> float:
    """Check a number.

    Args:
        value: The number.
        name: What it is, for the message.
        least: Smallest value accepted.
        hint: What a smaller one would mean, for the message.

    Returns:
        The number as a float.

    Raises:
        InvalidTypeError: If it is no real number.
        InvalidValueError: If it is not finite or below ``least``.
    """
    if isinstance(value, np.ndarray | np.generic | Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTypeError(f"{name}={value!r} is no number; give a finite number")
    if not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" >= {least:g}"
        reason = hint if hint and value < least else "is not accepted"
        raise InvalidValueError(f"{name}={value} {reason}; give a finite number{bound}")
    return float(value)


def checked_tolerance(tol: Any) -> float:
    """Check the slack of a membership test.

    Args:
        tol: The slack.

    Returns:
        The slack as a float.

    Raises:
        InvalidTypeError: If it is no real number.
        InvalidValueError: If it is negative or not finite.
    """
    return checked_number(tol, "tol", least=0.0)


def checked_indices(indices: Any, name: str) -> np.ndarray:
    """Check indices of observation entries.

    Args:
        indices: The indices.
        name: What they are, for the message.

    Returns:
        The indices as int64.

    Raises:
        InvalidValueError: If one is negative, too large or no integer, or there are none.
    """
    try:
        array = np.asarray(indices)
    except ValueError:
        array = np.array(None)
    # NumPy reads a list of truth values and integers as integers.
    listed = indices if isinstance(indices, list | tuple) else ()
    if any(isinstance(index, bool | np.bool_) for index in listed):
        array = np.array(None)
    whole = array.ndim == 1 and len(array) > 0 and array.dtype.kind in "iu"
    if not whole or (array < 0).any() or (array > LARGEST_INDEX).any():
        raise InvalidValueError(
            f"{name}={indices!r} is not accepted; give a list of one or more indices >= 0, at most {LARGEST_INDEX}"
        )
    return array.astype(np.int64)


def from_user(function: Callable[[np.ndarray], Any], obs: Tensor | None, like: Tensor) -> Tensor:
    """Call a user's function of observations, in NumPy, and read its result.

    Args:
        function: Maps observations [batch, obs] to an array with the same first axis.
        obs: Observations.
        like: Tensor whose dtype and device the result gets.

    Returns:
        The result.

    Raises:
        InvalidValueError: If the result is not finite or has another number of rows.
        InvalidTypeError: If it holds no real numbers.
        InvalidStateError: If the function raises.
    """
    assert obs is not None
    with user_errors(f"the function {getattr(function, '__name__', type(function).__name__)!r} of observations"):
        returned = function(obs.detach().cpu().numpy().copy())
        values = returned.detach().cpu().numpy() if isinstance(returned, Tensor) else np.asarray(returned)
    if values.dtype.kind not in "fiub":
        raise InvalidTypeError(f"the function of observations returned dtype {values.dtype}; return real numbers")
    values = values.astype(np.float64)
    if values.ndim == 0 or len(values) != len(obs) or not np.isfinite(values).all():
        raise InvalidValueError(
            f"the function of observations returned shape {values.shape} or values that are not finite for "
            f"{len(obs)} observations; return one finite entry per observation"
        )
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
