"""Counting the rows that need an iterative solver."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["QPCounter", "count_qp", "note_qp"]


@dataclass
class QPCounter:
    """Number of rows that needed an iterative solver (polytopes and intersections) while a :func:`count_qp` was open.

    Args:
        solves: Rows solved so far.
    """

    solves: int = 0


_counters: contextvars.ContextVar[tuple[QPCounter, ...]] = contextvars.ContextVar("octavo_aram_qp", default=())


@contextlib.contextmanager
def count_qp() -> Generator[QPCounter]:
    """Count the quadratic programs that projections solve within the block.

    Closed forms and one-dimensional dual searches are not counted.

    Yields:
        The counter, still readable after the block.

    Source:
        Section 5 of the paper counts QP solves as the cost of projection-based methods.
    """
    counter = QPCounter()
    token = _counters.set((*_counters.get(), counter))
    try:
        yield counter
    finally:
        _counters.reset(token)


def note_qp(solves: int) -> None:
    """Tell every open counter that so many rows were solved iteratively.

    Args:
        solves: Rows.
    """
    for counter in _counters.get():
        counter.solves += solves
