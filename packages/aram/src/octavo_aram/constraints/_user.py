"""Checks of what users pass: vectors, dimensions, and the results of their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

__all__ = ["checked_dim", "checked_indices", "from_user", "vector"]


def vector(values: Any, name: str) -> np.ndarray:
    """Read a finite float64 vector.

    Args:
        values: Numbers.
        name: What they are, for the message.

    Returns:
        The vector.

    Raises:
        InvalidTypeError: If they are not numbers.
        InvalidValueError: If they are no finite vector.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{name} is no vector of numbers: {error}") from error
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InvalidValueError(f"{name} has shape {array.shape} or entries that are not finite; give a finite vector")
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


def checked_indices(indices: Any, name: str) -> np.ndarray:
    """Check indices of observation entries.

    Args:
        indices: The indices.
        name: What they are, for the message.

    Returns:
        The indices as int64.

    Raises:
        InvalidValueError: If one is negative or no integer, or there are none.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu" or (array < 0).any():
        raise InvalidValueError(f"{name}={indices!r} is not accepted; give a list of one or more indices >= 0")
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
    """
    assert obs is not None
    values = np.asarray(function(obs.detach().cpu().numpy()), dtype=np.float64)
    if values.ndim == 0 or len(values) != len(obs) or not np.isfinite(values).all():
        raise InvalidValueError(
            f"the function of observations returned shape {values.shape} or values that are not finite for "
            f"{len(obs)} observations; return one finite entry per observation"
        )
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
