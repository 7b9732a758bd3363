"""The error of a set that holds no action, apart from other bad values: a union goes on with its other parts."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from octavo_core.errors import InvalidValueError

__all__ = ["EmptySetError", "renumbered"]


class EmptySetError(InvalidValueError):
    """No action of the box is feasible at a state.

    Args:
        reason: What is empty, and why.
        row: Number of the state in its batch; None if it is not known.
        remedy: How to mend it.

    Source:
        Beyond the paper.
    """

    def __init__(self, reason: str, row: int | None = None, remedy: str = "") -> None:
        where = "" if row is None else f" (row {row})"
        super().__init__(f"{reason}{where}{remedy and '; '}{remedy}")
        self.reason, self.row, self.remedy = reason, row, remedy


@contextlib.contextmanager
def renumbered(rows: Any) -> Generator[None]:
    """Name an empty state by its number in the whole batch.

    Args:
        rows: Numbers in the whole batch of the states that the block works on.

    Yields:
        Nothing; the block projects these states alone.

    Raises:
        EmptySetError: If the block raised it.
    """
    try:
        yield
    except EmptySetError as error:
        if error.row is None:
            raise
        raise EmptySetError(error.reason, int(rows[error.row]), error.remedy) from error
