"""How this package behaves inside ``torch.compile``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["outside_graphs"]

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function eagerly when a compiled one calls it.

    The m x m problem is solved by NumPy and LAPACK, which the compiler would replay on fake tensors, and which losses
    take part depends on values. ``torch.compiler.disable`` is called only then, since it imports the compiler.

    Args:
        function: The function.

    Returns:
        The same function, at a break of the graph where there is one.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call
