"""What a run's folder says of it: its settings by name, and the history of its evaluations."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_core.files import atomic_write

from octavo_aram.config import ARAMConfig, config_from_json, config_to_json
from octavo_aram.constraints._user import checked_count
from octavo_aram.environment import env_id
from octavo_aram.json_text import json_text
from octavo_aram.methods import METHODS
from octavo_aram.setting_checks import plain_value

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "HISTORY",
    "RunSettings",
    "described",
    "read_history",
    "read_settings",
    "sole_run",
    "write_history",
    "write_settings",
]

HISTORY = "history.json"
"""Name of the file of evaluations."""

_SETTINGS = "settings.json"
_LOCK = ".lock"
# What systems answer where another process holds a lock.
_HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_LONGEST_NAME = 200


@dataclass(frozen=True)
class RunSettings:
    """A run, by names that can be written to a file.

    Args:
        env: Gymnasium id, ``module:make_env`` or ``file.py:make_env``.
        constraint: Name of the registry, a YAML file, ``module:Class`` or ``file.py:Class``.
        method: A name of :data:`octavo_aram.methods.METHODS`.
        steps: Environment steps.
        config: Settings of the method.
        num_envs: Environments stepped side by side.
        evaluate_every: Environment steps between evaluations.
        episodes: Episodes of an evaluation.
        final_episodes: Episodes of the last one; as many as of the others if None.
        given: Which of ``"env"`` and ``"constraint"`` were given as objects; their names then only describe them, and
            whoever loads the run gives them again.
        constraint_fingerprint: Fingerprint of the constraint that the run was trained under, which its file or function
            may not be any more; filled in by the run, and None in runs of earlier versions.

    Raises:
        InvalidValueError: If a count is out of range, or there is no such method.
        InvalidTypeError: If a count is no integer, or a name is no text.
    """

    env: str | Any = "Reacher-v5"
    constraint: str | Any = "Re+L2"
    method: str | Any = "aram"
    steps: int | Any = 5000
    config: ARAMConfig = field(default_factory=ARAMConfig)
    num_envs: int | Any = 1
    evaluate_every: int | Any = 1000
    episodes: int | Any = 10
    final_episodes: int | Any = None
    given: Sequence[str] | Any = ()
    constraint_fingerprint: str | Any = None

    def __post_init__(self) -> None:
        for name in ("env", "constraint", "method", "constraint_fingerprint"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name != "constraint_fingerprint"):
                raise InvalidTypeError(f"{name}={value!r} is of type {type(value).__name__}; give a text")
        if self.method not in METHODS:
            raise InvalidValueError(f"unknown method {self.method!r}; give one of {', '.join(METHODS)}")
        for name in ("steps", "num_envs", "evaluate_every", "episodes", "final_episodes"):
            value = getattr(self, name)
            if value is not None or name != "final_episodes":
                object.__setattr__(self, name, checked_count(plain_value(value), name, least=1))
        if not isinstance(self.given, Sequence) or any(name not in ("env", "constraint") for name in self.given):
            raise InvalidValueError(f"given={self.given!r} is not accepted; give a list of 'env' and 'constraint'")
        object.__setattr__(self, "given", tuple(self.given))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready fields.

        Returns:
            The fields.
        """
        return vars(self) | {"config": config_to_json(self.config), "given": list(self.given)}

    @classmethod
    def from_json(cls, values: dict[str, Any] | Any) -> RunSettings:
        """Read what :meth:`to_json` returned.

        Args:
            values: The fields.

        Returns:
            The settings.

        Raises:
            InvalidValueError: If a field is missing, or a value is out of range.
            InvalidTypeError: If a value has the wrong type, or these are no fields by name.
        """
        if not isinstance(values, dict):
            raise InvalidTypeError(f"they are of type {type(values).__name__}; give fields by name")
        # Earlier versions kept no fingerprint.
        values = {"constraint_fingerprint": None} | values
        if missing := [entry.name for entry in fields(cls) if entry.name not in values]:
            raise InvalidValueError(f"they lack {', '.join(missing)}; give the settings as the run wrote them")
        given: dict[str, Any] = values | {"config": config_from_json(values["config"])}
        return cls(**given)


def read_settings(folder: Path) -> RunSettings:
    """Read the settings of a run.

    Args:
        folder: The run's folder.

    Returns:
        The settings.

    Raises:
        MissingFileError: If there are none.
        InvalidStateError: If they cannot be read.
    """
    file = folder / _SETTINGS
    if not file.is_file():
        raise MissingFileError(f"no run in {str(folder)!r}; give a folder that `octavo aram train --out` wrote")
    try:
        return RunSettings.from_json(json.loads(file.read_bytes()))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidStateError(f"{str(file)!r} cannot be read as the settings of a run: {error}") from error


def read_history(file: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of a history.

    Args:
        file: The file that a run wrote.
        names: Figures that every row must have.

    Returns:
        The rows.

    Raises:
        InvalidValueError: If it is no list of rows with these figures.
    """
    try:
        rows = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(str(error)) from error
    if not isinstance(rows, list):
        raise InvalidValueError(f"it holds a {type(rows).__name__}, not a list of rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InvalidValueError(f"row {number} is of type {type(row).__name__}, not figures by name")
        for name in names:
            if name not in row:
                raise InvalidValueError(f"row {number} lacks {name!r}")
            # Without a proposal there is no rate of acceptance.
            if not isinstance(row[name], int | float) and not (row[name] is None and name == "acceptance_rate"):
                raise InvalidValueError(f"row {number} has {name}={row[name]!r}, which is no number")
    return rows


def described(settings: RunSettings, env: Any, constraint: Any) -> RunSettings:
    """Return the settings as they are kept: objects by a description, files of the user's by their whole path.

    Args:
        settings: The settings.
        env: An environment that was given as an object; None where it was named.
        constraint: A constraint that was given as an object; None where it was named.

    Returns:
        The settings to keep.
    """
    given = [name for name, value in (("env", env), ("constraint", constraint)) if value is not None]
    return replace(
        settings,
        env=_whole_path(settings.env) if env is None else env_id(env),
        constraint=_whole_path(settings.constraint) if constraint is None else repr(constraint)[:_LONGEST_NAME],
        given=given,
    )


def _whole_path(name: str) -> str:
    """A name whose file, if it names one, is found from any folder."""
    location, colon, attribute = name.rpartition(":")
    if colon and location.endswith(".py"):
        return f"{Path(location).resolve()}:{attribute}"
    return str(Path(name).resolve()) if name.lower().endswith((".yaml", ".yml")) else name


@contextlib.contextmanager
def sole_run(folder: Path) -> Generator[None]:
    """Keep other processes from training in a folder meanwhile.

    The system's lock on a file ends with the process that holds it, however that dies; the file stays.

    Args:
        folder: The run's folder.

    Yields:
        Nothing; the block trains.

    Raises:
        InvalidStateError: If another run trains in the folder, or the lock cannot be made there.
    """
    lock = folder / _LOCK
    try:
        opened = lock.open("ab")
    except OSError as error:
        raise InvalidStateError(f"cannot write {str(lock)!r}: {error.strerror}; give a folder you own") from error
    with opened as file:
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Any other error: this file system has no locks.
            if error.errno in _HELD:
                raise InvalidStateError(
                    f"another run is training in {str(folder)!r} now; give another folder, or wait until it ends"
                ) from error
        yield


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write the settings of a run.

    Args:
        folder: The run's folder.
        settings: The settings.
    """
    atomic_write(folder / _SETTINGS, json.dumps(settings.to_json(), indent=2) + "\n")


def write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    """Write the rows of a history; numbers that are not finite become null.

    Args:
        folder: The run's folder.
        history: The rows.
    """
    atomic_write(folder / HISTORY, json_text(history, indent=1) + "\n")
