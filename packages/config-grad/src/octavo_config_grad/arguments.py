"""Checks of arguments that are numbers or sets of parameters."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn

__all__ = ["check_integer", "check_number", "check_seed", "parameters_by_id"]


def check_number(name: str, value: Any) -> None:
    """Refuse what is not one real number: Python's, NumPy's, or a tensor with one element.

    Args:
        name: Name of the argument.
        value: What was given.

    Raises:
        InvalidTypeError: If it is anything else, a bool included.
    """
    if isinstance(value, Tensor):
        known = value.numel() == 1 and not value.is_complex() and value.dtype != torch.bool
    else:
        known = isinstance(value, Real) and not isinstance(value, bool)
    if not known:
        raise InvalidTypeError(f"{name}={reprlib.repr(value)} is a {type(value).__name__}; give a number")


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Refuse what is not an integer in a range.

    Args:
        name: Name of the argument.
        value: What was given; an integer of any kind (Python, NumPy, 0-d integer tensor).
        low: Smallest value.
        high: Largest value, None for no limit.

    Returns:
        The value as a Python integer.

    Raises:
        InvalidTypeError: If it is not an integer.
        InvalidValueError: If it is out of range.
    """
    accepted = f"at least {low}" if high is None else f"{low} to {high}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(
            f"{name}={reprlib.repr(value)} is a {type(value).__name__}, not an integer; give {accepted}"
        ) from None
    if number < low or (high is not None and number > high):
        raise InvalidValueError(f"{name}={number} is out of range; give {accepted}")
    return number


def check_seed(seed: Any) -> int:
    """Refuse what a torch generator does not take as a seed.

    Args:
        seed: What was given.

    Returns:
        The seed.

    Raises:
        InvalidTypeError: If it is not an integer.
        InvalidValueError: If it does not fit 64 bits.
    """
    return check_integer("seed", seed, -(2**63), 2**64 - 1)


def parameters_by_id(name: str, given: Any) -> dict[int, Tensor] | None:
    """Parameters by ``id``, from a module, a tensor or an iterable of tensors.

    Args:
        name: Name of the argument.
        given: What was given; None stays None.

    Returns:
        The parameters.

    Raises:
        InvalidTypeError: If it is, or holds, anything else.
    """
    if given is None:
        return None
    if isinstance(given, Tensor):
        given = [given]
    elif isinstance(given, nn.Module):
        given = given.parameters()
    elif isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidTypeError(f"{name} is a {type(given).__name__}; give parameters, a module, or None")
    parameters = list(given)
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise InvalidTypeError(f"{name} holds a {type(parameter).__name__}; give parameters, a module, or None")
    return {id(parameter): parameter for parameter in parameters}
