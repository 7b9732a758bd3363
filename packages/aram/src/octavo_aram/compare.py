"""Finished runs side by side: one row a run, and one over the seeds of each method and its settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError

from octavo_aram.config import config_to_json
from octavo_aram.methods import method_label
from octavo_aram.run_settings import read_history, read_settings

__all__ = ["RunRecord", "compare_runs", "histories_by_label", "load_records", "summarise"]


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
        self.settings = read_settings(self.folder)
        try:
            self.history = read_history(history, _SHOWN)
            if not self.history:
                raise InvalidValueError("it holds no evaluation")
        except InvalidValueError as error:
            raise InvalidStateError(
                f"{str(history)!r} cannot be read as the history of a run ({error}); mend it, or leave this run out"
            ) from error

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
        last = self.history[-1]
        return {**names, "seed": settings.config.seed, **{name: last[name] for name in _SHOWN}}

    def differences(self, other: RunRecord) -> str:
        """Tell by which settings this run is another one; its task, method, seed and device are left out.

        Args:
            other: The run to compare with.

        Returns:
            For example ``"steps=90, penalty=3"``; empty if there are none.
        """
        theirs = other._decisive()
        return ", ".join(f"{name}={value}" for name, value in self._decisive().items() if value != theirs[name])

    def _decisive(self) -> dict[str, Any]:
        """Settings whose runs may be averaged only if they agree."""
        run = self.settings
        names = ("num_envs", "evaluate_every", "episodes", "final_episodes")
        # A stopped run is as long as it came.
        length = {"steps": self.history[-1]["step"]}
        config = config_to_json(run.config)
        del config["seed"], config["device"]
        return {**length, **{name: getattr(run, name) for name in names}, **config}


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
        One row a run, by task, method and ``settings``, which names what differs from the first of the runs.
    """
    names = _constraint_names(records)
    rows = [
        {**record.row(), "constraint": name, "settings": record.differences(records[0])}
        for record, name in zip(records, names, strict=True)
    ]
    return sorted(rows, key=lambda row: (*_group(row), row["seed"]))


def histories_by_label(records: Sequence[RunRecord]) -> dict[str, list[list[dict[str, Any]]]]:
    """Gather the curves for :func:`octavo_aram.plots.plot_runs`, in the groups of :func:`summarise`.

    Args:
        records: The runs.

    Returns:
        The histories of the seeds by label: the method, what differs from the first run, and the task where there are
        several.
    """
    several_envs = len({record.settings.env for record in records}) > 1
    names = _constraint_names(records)
    several_constraints = len(set(names)) > 1
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for record, name in zip(records, names, strict=True):
        label = ", ".join(filter(None, (record.label, record.differences(records[0]))))
        label += f" in {record.settings.env}" * several_envs
        label += f" under {name}" * several_constraints
        curves.setdefault(label, []).append(record.history)
    return curves


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over seeds.

    Args:
        rows: What :func:`compare_runs` returned.

    Returns:
        One row for each task, method and its settings: number of seeds, mean and smallest or largest of each figure.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_group(row), []).append(row)
    return [
        {
            "env": env,
            "constraint": constraint,
            "method": method,
            "settings": settings,
            "seeds": len({row["seed"] for row in group}),
            "return": float(np.mean([row["return"] for row in group])),
            "return_range": [min(row["return"] for row in group), max(row["return"] for row in group)],
            "valid_rate": float(np.mean([row["valid_rate"] for row in group])),
            "lowest_valid_rate": min(row["valid_rate"] for row in group),
            "projections": float(np.mean([row["projections"] for row in group])),
            "violations": sum(row["violations"] for row in group),
            "microseconds_per_action": float(np.median([row["microseconds_per_action"] for row in group])),
            "seconds": float(np.mean([row["seconds"] for row in group])),
        }
        for (env, constraint, method, settings), group in groups.items()
    ]


def _constraint_names(records: Sequence[RunRecord]) -> list[str]:
    """Names of the runs' constraints, with a fingerprint where a file or function of that name changed between runs."""
    known: dict[tuple[str, str], set[str]] = {}
    for run in (record.settings for record in records):
        if run.constraint_fingerprint is not None:
            known.setdefault((run.env, run.constraint), set()).add(run.constraint_fingerprint)
    names = []
    for run in (record.settings for record in records):
        changed = len(known.get((run.env, run.constraint), ())) > 1
        shown = "unknown" if run.constraint_fingerprint is None else run.constraint_fingerprint[:8]
        names.append(f"{run.constraint} (fingerprint {shown})" if changed else run.constraint)
    return names


def _group(row: dict[str, Any]) -> tuple[str, ...]:
    return row["env"], row["constraint"], row["method"], row["settings"]
