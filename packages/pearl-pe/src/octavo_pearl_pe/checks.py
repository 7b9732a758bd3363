"""Checks of plain arguments that every part of the package shares, with one sentence for each mistake."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["GraphWarning", "positive_number", "whole_number"]


class GraphWarning(UserWarning):
    """What this package warns of: a graph or an option that is taken, though not quite as it was given."""


def whole_number(name: str, value: Any, low: int = 1, high: int = 2**31) -> int:
    """Check a count.

    Args:
        name: Name of the argument.
        value: What the caller passed; NumPy's integers are taken, booleans and 2.0 are not.
        low: Smallest value accepted.
        high: Largest value accepted.

    Returns:
        The value as a plain int.

    Raises:
        InvalidTypeError: If it is not an integer.
        InvalidValueError: If it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidTypeError(f"{name}={value!r} is a {type(value).__name__}; give an int")
    if not low <= value <= high:
        raise InvalidValueError(f"{name}={value} is out of range; give {low:,} to {high:,}")
    return int(value)


def positive_number(name: str, value: Any, *, zero: bool = False) -> float:
    """Check a finite number above 0.

    Args:
        name: Name of the argument.
        value: What the caller passed.
        zero: Accept 0 too.

    Returns:
        The value as a float.

    Raises:
        InvalidTypeError: If it is not a real number.
        InvalidValueError: If it is negative, NaN or infinite, or 0 where that is not accepted.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidTypeError(f"{name}={value!r} is a {type(value).__name__}; give a number")
    number = float(value)
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise InvalidValueError(f"{name}={number} is out of range; give a finite number {'>= 0' if zero else '> 0'}")
    return number
