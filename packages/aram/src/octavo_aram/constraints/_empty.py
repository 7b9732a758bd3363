"""The error of a set that holds no action, apart from other bad values: a union goes on with its other parts."""

from __future__ import annotations

from octavo_core.errors import InvalidValueError

__all__ = ["EmptySetError"]


class EmptySetError(InvalidValueError):
    """No action of the box is feasible at a state.

    Source:
        Beyond the paper.
    """
