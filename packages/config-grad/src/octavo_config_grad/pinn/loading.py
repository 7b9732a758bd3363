"""Finding a problem by name, or in the user's own file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError

from octavo_config_grad.pinn.burgers import Burgers
from octavo_config_grad.pinn.high_dimensional import HeatND, PoissonND
from octavo_config_grad.pinn.kuramoto import KuramotoSivashinsky
from octavo_config_grad.pinn.navier_stokes import Beltrami, Kovasznay
from octavo_config_grad.pinn.problem import Problem
from octavo_config_grad.pinn.schrodinger import Schrodinger
from octavo_config_grad.pinn.user_code import blame_user

__all__ = ["PROBLEMS", "load_problem", "source_fingerprint"]

PROBLEMS: dict[str, type[Problem]] = {
    "burgers": Burgers,
    "schrodinger": Schrodinger,
    "kovasznay": Kovasznay,
    "beltrami": Beltrami,
    "poisson": PoissonND,
    "heat": HeatND,
    "kuramoto": KuramotoSivashinsky,
}
"""Built-in problems by the name that the command line takes."""

_FINGERPRINTS: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def load_problem(name: str, **options: Any) -> Problem:
    """Make a problem.

    Args:
        name: A name in ``PROBLEMS``, or ``path/to/file.py:ClassName`` for a subclass of :class:`Problem` in a file of
            yours, which is run as any import is, with modules beside it in reach. The class name may be left out if the
            file defines one such class.
        **options: Arguments of the class.

    Returns:
        The problem.

    Raises:
        InvalidValueError: If the name is unknown, or the class is not in the file.
        InvalidTypeError: If the class is no problem, or does not take the options.
        MissingFileError: If there is no such file.
        InvalidStateError: If the file cannot be run, or making the problem fails.
    """
    if name in PROBLEMS:
        kind = PROBLEMS[name]
    elif name.endswith(".py") or ".py:" in name:
        kind = _class_in_file(name)
    else:
        raise InvalidValueError(
            f"unknown problem {name!r}; give one of {', '.join(PROBLEMS)}, or your own as file.py:ClassName"
        )
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise InvalidTypeError(f"problem {name!r}: {error}; it takes {inspect.signature(kind)}") from error
    try:
        return kind(**options)
    except (Exception, SystemExit) as error:
        blame_user(error, f"problem {name!r}", kind)
        raise


def source_fingerprint(problem: Problem) -> str | None:
    """Hash of the file that a problem was loaded from.

    Args:
        problem: The problem.

    Returns:
        A short hexadecimal text; None for a problem that :func:`load_problem` did not load from a file.
    """
    return _FINGERPRINTS.get(type(problem))


def _class_in_file(name: str) -> type[Problem]:
    # A drive letter may hold a colon, so the class is what follows the last one.
    location, _, class_name = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    file = Path(location)
    if not file.is_file():
        raise MissingFileError(f"no problem file {location!r}; give the path of a Python file, as file.py:ClassName")
    fingerprint = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    module = _run(file)
    kind = _class_in_module(module, location, class_name)
    _FINGERPRINTS[kind] = fingerprint
    return kind


def _class_in_module(module: ModuleType, location: str, class_name: str) -> type[Problem]:
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Problem) and value.__module__ == module.__name__
    }
    if not class_name:
        if len(own) != 1:
            raise InvalidValueError(
                f"{location!r} defines {len(own)} problems ({', '.join(own) or 'no subclass of pinn.Problem'}); "
                "name one, as file.py:ClassName"
            )
        return next(iter(own.values()))
    if not hasattr(module, class_name):
        raise InvalidValueError(
            f"{location!r} has no class {class_name!r}; it defines {', '.join(own) or 'no subclass of pinn.Problem'}"
        )
    kind = getattr(module, class_name)
    if not (isinstance(kind, type) and issubclass(kind, Problem)):
        raise InvalidTypeError(f"{class_name!r} in {location!r} is not a subclass of octavo_config_grad.pinn.Problem")
    return kind


def _run(file: Path) -> ModuleType:
    module_name = f"_octavo_problem_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise InvalidStateError(f"problem file {str(file)!r} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look the module up by name while its classes are made.
    sys.modules[module_name] = module
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise InvalidStateError(
            f"problem file {str(file)!r} fails with {type(error).__name__}: {error}; mend the file"
        ) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module
