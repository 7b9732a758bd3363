"""Modules and functions of the user's: found by name, and their errors told as the user's, with file and line."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError, OctavoError

__all__ = ["USER_MODULE", "import_place", "run_file", "user_errors"]

USER_MODULE = "_octavo_aram_user_"
"""What the names of modules start with that are made from a user's file; its stem and a mark of its path follow."""

_HERE = str(Path(__file__).resolve().parent)
# Machinery that stands between our call and the user's code: imports, and checks of annotations.
_MACHINERY = ("<frozen ", "<@beartype", "<jaxtyping")


@contextlib.contextmanager
def user_errors(what: str) -> Generator[None]:
    """Tell an exception of the user's code in one sentence with its file and line.

    Args:
        what: What was being done, for the message, e.g. ``"the constraint 'mine.py:Limit'"``.

    Yields:
        Nothing; the block runs the user's code.

    Raises:
        InvalidStateError: If the code within the block raises anything but an error of this project.
    """
    try:
        yield
    except OctavoError:
        raise
    except Exception as error:
        message = " ".join(str(error).split()) or "no message"
        raise InvalidStateError(f"{what} failed{_place(error)}: {type(error).__name__}: {message}") from error


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" in {error.filename!r}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_HERE, *_MACHINERY))
        and "beartype" not in frame.filename
        and "importlib" not in frame.filename
    ]
    if not frames:
        return ""
    # The user's code comes first; what it calls, such as NumPy, is deeper.
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f" in {last.filename!r}, line {last.lineno}"


def import_place(place: str) -> Any:
    """Import a module of the user's.

    Args:
        place: An importable module, sought in the working folder too, or the path of a ``.py`` file.

    Returns:
        The module.

    Raises:
        MissingFileError: If the file does not exist.
        InvalidValueError: If there is no such module.
        InvalidStateError: If its code fails.
    """
    if place.endswith(".py"):
        return run_file(Path(place))
    if not all(part.isidentifier() for part in place.split(".")):
        raise InvalidValueError(f"{place!r} names no module; give module:name, or path/file.py:name")
    folder = str(Path.cwd())
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        with user_errors(f"importing {place!r}"):
            try:
                return importlib.import_module(place)
            except ModuleNotFoundError as error:
                # A module that the user's own imports in vain is an error of that one.
                if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                    raise
                raise InvalidValueError(
                    f"no module {place!r} in the working folder or on PYTHONPATH; give a module that can be imported, "
                    "as module:name, or a file, as path/file.py:name"
                ) from error
    finally:
        if added:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


def run_file(file: Path) -> Any:
    """Run a Python file of the user's as a module, once for each version of its content.

    Its folder becomes the first on ``sys.path``, as for a script, and stays there, because the file's functions may
    import its neighbours later. As everywhere in Python, of two neighbours of one name the first imported one serves.

    Args:
        file: The file.

    Returns:
        The module, registered under a name of its own, so that dataclasses and pickling find it.

    Raises:
        MissingFileError: If the file does not exist.
        InvalidValueError: If it is no Python file.
        InvalidStateError: If its code fails.
    """
    if not file.is_file():
        raise MissingFileError(f"no file {str(file)!r}; give the path of an existing Python file, as file.py:name")
    path = file.resolve()
    mark = hashlib.sha256(str(path).encode("utf-8", "surrogatepass") + path.read_bytes()).hexdigest()[:12]
    name = f"{USER_MODULE}{path.stem}_{mark}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidValueError(f"{str(file)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if sys.path[:1] != [str(path.parent)]:
        sys.path.insert(0, str(path.parent))
    try:
        with user_errors(f"running {str(file)!r}"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    # Other processes, such as those of vector environments, cannot import the module by its name. Gymnasium brings
    # cloudpickle, whose releases before 2.0 lack the function.
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("cloudpickle").register_pickle_by_value(module)
    return module
