"""Reading the files that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from octavo_core.errors import InvalidValueError, MissingFileError

__all__ = ["read_user_file"]

_SHOWN = 80


def read_user_file(path: str | os.PathLike[str], advice: str, max_bytes: int) -> bytes:
    """Read a whole file.

    Args:
        path: The file; its name may be anything.
        advice: What to give instead, for the messages.
        max_bytes: Largest size that is read.

    Returns:
        Its content, without a byte order mark.

    Raises:
        MissingFileError: If there is no such file, or it cannot be read.
        InvalidValueError: If it is too large.

    Source:
        Beyond the paper: a name that the file system refuses is an error of the user like a missing file.
    """
    file = Path(path)
    shown = str(file) if len(str(file)) <= _SHOWN else f"{str(file)[:_SHOWN]}..."
    try:
        size = file.stat().st_size if file.is_file() else None
        content = file.read_bytes() if size is not None and size <= max_bytes else b""
    except OSError as error:
        raise MissingFileError(f"{shown!r} cannot be read: {error.strerror or error}; {advice}") from error
    if size is None:
        problem = f"{shown!r} is a folder, not a file" if file.is_dir() else f"no file {shown!r}"
        raise MissingFileError(f"{problem}; {advice}")
    if size > max_bytes:
        raise InvalidValueError(f"{shown!r} is larger than {max_bytes:,} bytes, the most that is read")
    return content.removeprefix(b"\xef\xbb\xbf")
