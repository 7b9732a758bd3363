"""Recorded actions from a table: are they feasible, by how much not, and what are the nearest feasible ones."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from octavo_core.errors import InvalidValueError, MissingFileError
from octavo_core.files import atomic_write

from octavo_aram.agent import as_constraint
from octavo_aram.env_loading import load_env
from octavo_aram.environment import EnvGroup
from octavo_aram.registry import CONSTRAINTS

__all__ = ["check_recorded", "read_actions"]

_LARGEST_FILE = 2**30


def read_actions(file: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Read actions, and observations where there are any, from a CSV file.

    Args:
        file: Columns ``a0, a1, ...`` are actions, ``o0, o1, ...`` observations; others are left alone.

    Returns:
        Actions, (rows, actions), and observations, (rows, observations), or None.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If columns are missing or stand twice, a row is too long or too short, a cell is no finite
            number, or the file is no text in UTF-8.
    """
    try:
        return _read(Path(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValueError(f"{str(file)!r} is no CSV file in UTF-8: {error}") from error


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    if not path.is_file():
        raise MissingFileError(f"no file {str(path)!r}; give a CSV file with columns a0, a1, ...")
    if path.stat().st_size > _LARGEST_FILE:
        raise InvalidValueError(f"{str(path)!r} is larger than 1 GiB; split it")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.reader(stream)
        header = [name.strip() for name in next(rows, [])]
        columns = {letter: _columns(header, letter, path) for letter in "ao"}
        if not columns["a"]:
            raise InvalidValueError(f"{str(path)!r} has the columns {header}; name those of the actions a0, a1, ...")
        wanted = columns["a"] + columns["o"]
        values = []
        for number, row in enumerate(rows, 2):
            if not any(cell.strip() for cell in row):
                continue
            try:
                if len(row) <= max(wanted) or any(cell.strip() for cell in row[len(header) :]):
                    raise ValueError(f"{len(row)} cells below {len(header)} column names")
                values.append([_number(row[column]) for column in wanted])
            except ValueError as error:
                raise InvalidValueError(f"{str(path)!r}, line {number}: {error}; give a number in each cell") from error
    if not values:
        raise InvalidValueError(f"{str(path)!r} has no rows below its header")
    table = np.array(values)
    if not np.isfinite(table).all():
        line = int(np.flatnonzero(~np.isfinite(table).all(1))[0]) + 2
        raise InvalidValueError(f"{str(path)!r} has a number that is not finite near line {line}")
    count = len(columns["a"])
    return table[:, :count], table[:, count:] if columns["o"] else None


def _number(cell: str) -> float:
    # Python reads 1_0 as 10; in a table it is a slip.
    if "_" in cell:
        raise ValueError(f"{cell!r} is no number")
    return float(cell)


def _columns(header: list[str], letter: str, path: Path) -> list[int]:
    named = [(int(match[1]), column) for column, name in enumerate(header) if (match := _NAMES[letter].fullmatch(name))]
    numbered = dict(named)
    if len(numbered) < len(named):
        names = [header[column] for _, column in named]
        raise InvalidValueError(f"{str(path)!r} has the columns {names}: one stands twice; keep one of each")
    if sorted(numbered) != list(range(len(numbered))):
        raise InvalidValueError(
            f"{str(path)!r} has columns {letter}{sorted(numbered)}; number them from 0 without gaps"
        )
    return [numbered[index] for index in range(len(numbered))]


_NAMES = {letter: re.compile(rf"{letter}(\d{{1,6}})") for letter in "ao"}


def check_recorded(
    file: str | os.PathLike[str],
    constraint: Any,
    *,
    env: str | None = None,
    native: bool = False,
    project: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Check recorded actions against a constraint.

    Args:
        file: See :func:`read_actions`.
        constraint: A constraint, or the name of one.
        env: Environment from which indices and the range of the actions are taken; that of a known constraint if None.
        native: The actions are in the environment's units instead of [-1, 1].
        project: CSV file to write the nearest feasible actions to; another one than ``file``.

    Returns:
        Counts, share and largest violation, JSON-ready.

    Raises:
        InvalidValueError: If the file does not fit the constraint, or the projections would overwrite it.
    """
    actions, obs = read_actions(file)
    if project is not None and Path(project).exists() and Path(project).samefile(file):
        raise InvalidValueError(
            f"{str(project)!r} holds the recorded actions, which the projected ones would overwrite; give another file "
            "to write to"
        )
    entry = CONSTRAINTS.get(constraint) if isinstance(constraint, str) else None
    name = env or (entry.env_id if entry is not None and (native or entry.needs_env) else None)
    if native and name is None:
        raise InvalidValueError("actions in an environment's units need --env, to know its range")
    made = None if name is None else load_env(name)
    feasible = as_constraint(constraint, made)
    if actions.shape[1] != feasible.action_dim:
        raise InvalidValueError(
            f"{str(file)!r} has {actions.shape[1]} action columns, the constraint is on {feasible.action_dim}"
        )
    if feasible.needs_obs and obs is None:
        raise InvalidValueError(f"the constraint depends on the observation; add columns o0, o1, ... to {str(file)!r}")
    group = EnvGroup(made, 0) if native and made is not None else None
    unit = actions if group is None else group.from_env(actions)
    where = obs if feasible.needs_obs else None
    inside = np.asarray(feasible.contains(where, unit), bool)
    violation = np.asarray(feasible.violation(where, unit))
    if project is not None:
        nearest = np.asarray(feasible.project(where, unit))
        _write_actions(
            project, nearest if group is None else group.to_env(group.range.settled(feasible, where, nearest))
        )
    return {
        "rows": len(actions),
        "infeasible": int((~inside).sum()),
        "feasible_share": float(inside.mean()),
        "largest_violation": float(violation.max()),
        "mean_violation": float(violation.mean()),
    }


def _write_actions(path: str | os.PathLike[str], actions: np.ndarray) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"a{index}" for index in range(actions.shape[1])])
    writer.writerows([[repr(float(value)) for value in row] for row in actions])
    atomic_write(path, text.getvalue())
