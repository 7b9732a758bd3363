"""Errors that come out of code of the user's: a problem's residuals, its exact solution, its constructor."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

from octavo_core.errors import InvalidStateError, OctavoError

__all__ = ["blame_user"]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def blame_user(error: BaseException, what: str, problem: type) -> None:
    """Raise an error that names the user's line, if an error came out of the user's code; return otherwise.

    Args:
        error: The error that was caught.
        what: What failed, e.g. ``"loss 'pde' of Heat"``.
        problem: Class of the problem, whose file is looked for first.

    Raises:
        InvalidStateError: If a frame of the error lies in the problem's file, or outside this package and the installed
            libraries, and the error does not speak to the user already.
    """
    if isinstance(error, OctavoError):
        return
    own = getattr(sys.modules.get(problem.__module__), "__file__", None)
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [(file, line) for file, line in lines if not file.startswith((_PACKAGE, "<@", "<frozen"))]
    of_user = [entry for entry in lines if entry[0] == own] or [
        (file, line) for file, line in lines if not file.startswith(_LIBRARIES)
    ]
    if of_user:
        file, line = of_user[-1]
        reason = " ".join(str(error).split()) or "no message"
        raise InvalidStateError(
            f"{what} fails at {file}:{line} with {type(error).__name__}: {reason}; mend that line"
        ) from error
