"""What a run's folder says of it: its settings by name, and the history of its evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from octavo_core.files import atomic_write

from octavo_aram.config import ARAMConfig, config_from_json, config_to_json, plain_value
from octavo_aram.constraints._user import checked_count
from octavo_aram.environment import env_id
from octavo_aram.json_text import json_text

__all__ = [
    "HISTORY",
    "RunSettings",
    "described",
    "read_history",
    "read_settings",
    "write_history",
    "write_settings",
]

HISTORY = "history.json"
"""Name of the file of evaluations."""

_SETTINGS = "settings.json"
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

    Raises:
        InvalidValueError: If a count is out of range.
        InvalidTypeError: If a count is no integer.
    """

    env: str = "Reacher-v5"
    constraint: str = "Re+L2"
    method: str = "aram"
    steps: int | Any = 5000
    config: ARAMConfig = field(default_factory=ARAMConfig)
    num_envs: int | Any = 1
    evaluate_every: int | Any = 1000
    episodes: int | Any = 10
    final_episodes: int | Any = None
    given: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "num_envs", "evaluate_every", "episodes", "final_episodes"):
            value = getattr(self, name)
            if value is not None or name != "final_episodes":
                object.__setattr__(self, name, checked_count(plain_value(value), name, least=1))
        object.__setattr__(self, "given", tuple(self.given))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready fields.

        Returns:
            The fields.
        """
        return vars(self) | {"config": config_to_json(self.config), "given": list(self.given)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSettings:
        """Read what :meth:`to_json` returned.

        Args:
            values: The fields.

        Returns:
            The settings.

        Raises:
            InvalidValueError: If a field is missing, or a value is out of range.
            InvalidTypeError: If a value has the wrong type.
        """
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
    except (ValueError, KeyError, TypeError) as error:
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
    except ValueError as error:
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
