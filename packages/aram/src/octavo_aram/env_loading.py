"""Environments by name: a Gymnasium id, or a function of the user's."""

from __future__ import annotations

from typing import Any

import gymnasium
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError

from octavo_aram.user_code import import_place, user_errors

__all__ = ["load_env", "load_object"]


def load_env(name: str) -> gymnasium.Env:
    """Make an environment.

    Args:
        name: A registered Gymnasium id, or ``module:make_env`` or ``path/to/file.py:make_env`` for a function or class
            of yours that is called without arguments; its module is run as any import is, and a file can import what
            lies beside it.

    Returns:
        The environment.

    Raises:
        InvalidValueError: If the id is not registered, or the name cannot be found.
        InvalidTypeError: If what is called returns no environment.
        InvalidStateError: If the code of yours fails; the message names its file and line.
        MissingDependencyError: If the environment needs a package that is not installed.
        MissingFileError: If there is no such file.
    """
    # A namespaced id such as octavo_aram/BSS3z-v0 has no colon.
    if ":" in name:
        make = load_object(name)
        if not callable(make):
            raise InvalidTypeError(f"{name!r} is a {type(make).__name__}; name a function or class that makes one")
        with user_errors(f"making the environment {name!r}"):
            made = make()
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
        InvalidStateError: If its code fails.
        MissingFileError: If there is no such file.
    """
    # A drive letter may hold a colon, so the name is what follows the last one.
    location, _, attribute = name.rpartition(":")
    if not location or not attribute.isidentifier():
        raise InvalidValueError(f"{name!r} names nothing to load; write module:name or file.py:name")
    module = import_place(location)
    if not hasattr(module, attribute):
        raise InvalidValueError(f"{location!r} has no {attribute!r}; name a function or class that it defines")
    return getattr(module, attribute)
