"""Finished runs side by side: one row a run, and one a method over its seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError

from octavo_aram.methods import method_label
from octavo_aram.training import RunSettings

__all__ = ["RunRecord", "compare_runs", "load_records", "summarise"]


class RunRecord:
    """Settings and history of a run, read from its folder.

    Args:
        folder: The folder.

    Raises:
        MissingFileError: If it holds no run with an evaluation.
        InvalidStateError: If its files cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        settings, history = self.folder / "settings.json", self.folder / "history.json"
        for file in (settings, history):
            if not file.is_file():
                raise MissingFileError(
                    f"{str(self.folder)!r} holds no {file.name}; give folders that `octavo aram train --out` wrote"
                )
        try:
            self.settings = RunSettings.from_json(json.loads(settings.read_bytes()))
            self.history: list[dict[str, Any]] = json.loads(history.read_bytes())
            self._row = {name: self.history[-1][name] for name in _SHOWN}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InvalidStateError(f"the run in {str(self.folder)!r} cannot be read: {error}") from error

    @property
    def label(self) -> str:
        """Method for tables and legends."""
        return method_label(self.settings.method)

    def row(self) -> dict[str, Any]:
        """Return the run's last figures.

        Returns:
            JSON-ready fields.
        """
        settings = self.settings
        names = {"env": settings.env, "constraint": settings.constraint, "method": settings.method}
        return {**names, "seed": settings.config.seed, **self._row}


_SHOWN = (
    "step",
    "return",
    "valid_rate",
    "acceptance_rate",
    "projections",
    "violations",
    "microseconds_per_action",
    "seconds",
)


def load_records(folders: Sequence[str | os.PathLike[str]]) -> list[RunRecord]:
    """Read runs.

    Args:
        folders: Their folders.

    Returns:
        The runs.

    Raises:
        InvalidValueError: If none is given, or one twice.
    """
    if not folders:
        raise InvalidValueError("no run given; name the folders of one or more")
    places = [Path(folder).resolve() for folder in folders]
    if twice := sorted({str(place) for place in places if places.count(place) > 1}):
        raise InvalidValueError(f"the run {twice[0]!r} is given twice and would count as two seeds; name each once")
    return [RunRecord(folder) for folder in folders]


def compare_runs(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Lay runs side by side.

    Args:
        records: The runs.

    Returns:
        One row a run, by task and method.
    """
    rows = [record.row() for record in records]
    return sorted(rows, key=lambda row: (row["env"], row["constraint"], row["method"], row["seed"]))


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over seeds.

    Args:
        rows: What :func:`compare_runs` returned.

    Returns:
        One row for each task and method: mean and smallest or largest of each figure.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["env"], row["constraint"], row["method"]), []).append(row)
    return [
        {
            "env": env,
            "constraint": constraint,
            "method": method,
            "seeds": len(group),
            "return": float(np.mean([row["return"] for row in group])),
            "return_range": [min(row["return"] for row in group), max(row["return"] for row in group)],
            "valid_rate": float(np.mean([row["valid_rate"] for row in group])),
            "lowest_valid_rate": min(row["valid_rate"] for row in group),
            "projections": float(np.mean([row["projections"] for row in group])),
            "violations": sum(row["violations"] for row in group),
            "microseconds_per_action": float(np.median([row["microseconds_per_action"] for row in group])),
            "seconds": float(np.mean([row["seconds"] for row in group])),
        }
        for (env, constraint, method), group in groups.items()
    ]
