"""Checks of arguments that several functions share."""

from __future__ import annotations

from numbers import Integral

from octavo_core.errors import InvalidTypeError

__all__ = ["check_integer", "check_type"]


def check_type(name: str, value: object, accepted: type | tuple[type, ...], advice: str) -> None:
    """Refuse a value of another type.

    Args:
        name: Name of the argument.
        value: What a user gave for it.
        accepted: Its types.
        advice: What to give instead, for the message.

    Raises:
        InvalidTypeError: If it has another type.
    """
    if not isinstance(value, accepted):
        raise InvalidTypeError(f"{name}={repr(value)[:60]} is a {type(value).__name__}; give {advice}")


def check_integer(name: str, value: object) -> int:
    """Accept whole numbers of Python and NumPy.

    Args:
        name: Name of the argument.
        value: What a user gave for it.

    Returns:
        The number as Python's, which does not overflow.

    Raises:
        InvalidTypeError: If it is not a whole number.
    """
    if isinstance(value, Integral):
        return int(value)
    raise InvalidTypeError(f"{name}={repr(value)[:60]} is a {type(value).__name__}; give a whole number")
