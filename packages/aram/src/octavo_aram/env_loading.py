"""Environments by name: a Gymnasium id, or a function of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import gymnasium
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError, MissingFileError

__all__ = ["load_env", "load_object"]


def load_env(name: str) -> gymnasium.Env:
    """Make an environment.

    Args:
        name: A registered Gymnasium id, or ``module:make_env`` or ``path/to/file.py:make_env`` for a function or class
            of yours that is called without arguments; its module is run as any import is.

    Returns:
        The environment.

    Raises:
        InvalidValueError: If the id is not registered, or the name cannot be found.
        InvalidTypeError: If what is called returns no environment.
        MissingDependencyError: If the environment needs a package that is not installed.
        MissingFileError: If there is no such file.
    """
    # A namespaced id such as octavo_aram/BSS3z-v0 has no colon.
    if ":" in name:
        made = load_object(name)()
        if not isinstance(made, gymnasium.Env):
            raise InvalidTypeError(f"{name!r} returned {type(made).__name__}; return a gymnasium.Env")
        return made
    try:
        return gymnasium.make(name)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingDependencyError.for_extra("mujoco", "octavo-aram", "mujoco") from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.Error) as error:
        raise InvalidValueError(
            f"no environment {name!r}: {' '.join(str(error).split())}; give a registered id such as 'Reacher-v5' or "
            "'octavo_aram/BSS3z-v0', or module:make_env"
        ) from error


def load_object(name: str) -> Any:
    """Import a name of the user's.

    Args:
        name: ``module:name`` or ``path/to/file.py:name``.

    Returns:
        The object.

    Raises:
        InvalidValueError: If the module or the name in it cannot be found.
        MissingFileError: If there is no such file.
    """
    # A drive letter may hold a colon, so the name is what follows the last one.
    location, _, attribute = name.rpartition(":")
    if not location or not attribute.isidentifier():
        raise InvalidValueError(f"{name!r} names nothing to load; write module:name or file.py:name")
    if location.endswith(".py"):
        module = _run_file(Path(location))
    else:
        try:
            module = importlib.import_module(location)
        except ModuleNotFoundError as error:
            raise InvalidValueError(f"no module {location!r} ({error}); is its folder on PYTHONPATH?") from error
    if not hasattr(module, attribute):
        raise InvalidValueError(f"{location!r} has no {attribute!r}")
    return getattr(module, attribute)


def _run_file(file: Path) -> Any:
    if not file.is_file():
        raise MissingFileError(f"no file {str(file)!r}; give the path of a Python file, as file.py:name")
    spec = importlib.util.spec_from_file_location(f"_octavo_aram_user_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise InvalidValueError(f"{str(file)!r} is no Python file")
    if spec.name in sys.modules:
        return sys.modules[spec.name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
