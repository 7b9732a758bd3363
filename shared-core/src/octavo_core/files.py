"""Writing files so that a crash at any moment leaves the old file or the new one, never a torn one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from octavo_core.errors import InvalidStateError

__all__ = ["atomic_path", "atomic_write", "ensure_folder"]


def ensure_folder(folder: str | os.PathLike[str]) -> Path:
    """Create a folder, with its parents, and check that files can be written there.

    Args:
        folder: The folder; it may exist already.

    Returns:
        The folder as a path.

    Raises:
        InvalidStateError: If it cannot be created, is not a folder, or cannot be written to.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise InvalidStateError(f"cannot write to the folder {str(path)!r}: it is a file; give a folder") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidStateError(f"cannot write to the folder {str(path)!r}: {reason}; give a folder you own") from error
    return path


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Generator[Path, None, None]:
    """Yield a temporary path that replaces ``path`` when the block ends well.

    The temporary file has the same name, in a hidden folder beside ``path``: some writers make temporary files of their
    own, and would leave them there when they are killed. It is flushed to disk before the rename and the folder after,
    so a reader sees the old or the new content even after a power cut. If the block raises, ``path`` is left as it was.

    Args:
        path: The file to write; its folder must exist.

    Yields:
        The path to write to.

    Raises:
        InvalidStateError: If the file cannot be written there.
    """
    target = Path(path)
    with _named_failure(target):
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.stem}."))
    temporary = work / target.name
    try:
        yield temporary
        with _named_failure(target):
            with temporary.open("r+b") as written:
                os.fsync(written.fileno())
            # Some writers make private files; a result is as readable as any file the user creates.
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
            _sync_folder(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def atomic_write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a whole file atomically.

    Args:
        path: The file to write; its folder must exist.
        content: Text, written as UTF-8, or bytes.

    Returns:
        The path written.

    Raises:
        InvalidStateError: If the file cannot be written there.
    """
    with atomic_path(path) as temporary, _named_failure(Path(path)):
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextlib.contextmanager
def _named_failure(target: Path) -> Generator[None, None, None]:
    """Say which file could not be written: the system's error names the temporary one."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InvalidStateError(f"cannot write {str(target)!r}: {reason}; give a path you can write") from error


def _umask() -> int:
    # The only portable way to read it is to set it; strict for that moment, so that no other thread's file is exposed.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
