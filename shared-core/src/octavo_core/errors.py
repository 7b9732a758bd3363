"""Errors that a user can cause.

Each is a built-in exception too, so callers catch ``ValueError`` as usual, while the command line prints the message
alone and exits with status 2. A message says what was given, what is accepted, and how to mend it.
"""

from __future__ import annotations

__all__ = [
    "InvalidStateError",
    "InvalidTypeError",
    "InvalidValueError",
    "MissingDependencyError",
    "MissingFileError",
    "OctavoError",
]


class OctavoError(Exception):
    """Mix-in that marks an error as the user's to mend, not a defect of the program."""


class InvalidValueError(OctavoError, ValueError):
    """A value of the right type that is out of range, malformed or inconsistent with another."""


class InvalidTypeError(OctavoError, TypeError):
    """A value of a type that is not accepted."""


class InvalidStateError(OctavoError, RuntimeError):
    """An operation that the present state does not allow: a missing device, a torn checkpoint, a read-only folder."""


class MissingFileError(OctavoError, FileNotFoundError):
    """A file or folder that does not exist."""


class MissingDependencyError(OctavoError, ImportError):
    """An optional package that is not installed; the message holds the line that installs it."""

    @classmethod
    def for_extra(cls, module: str, distribution: str, extra: str) -> MissingDependencyError:
        """Build the error for a module that an extra of a distribution brings.

        Args:
            module: Import name that was not found.
            distribution: Distribution that declares the extra, e.g. ``"octavo-config-grad"``.
            extra: Name of the extra.

        Returns:
            The error, ready to raise.
        """
        return cls(
            f"{module} is not installed and this call needs it; install it with: pip install '{distribution}[{extra}]'"
        )
