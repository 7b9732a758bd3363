"""What a training run leaves behind, and tables of several runs."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from octavo_core.errors import InvalidStateError, MissingFileError
from octavo_core.files import atomic_write, ensure_folder
from torch import nn

from octavo_config_grad.pinn.config import TrainingConfig
from octavo_config_grad.pinn.reference import Errors, Reference

__all__ = ["History", "TrainingResult", "compare_runs"]

SCHEMA = "octavo-config-grad-run/1"
RESULT_FILE = "result.json"
SOLUTION_FILE = "solution.npz"
# Types of the fields of a summary that comparing reads; errors may be missing (None).
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "problem": str,
    "problem_options": dict,
    "method": str,
    "seed": int,
    "steps": int,
    "backward_passes": int,
    "seconds": (int, float),
    "final_mse": (int, float, type(None)),
    "best_mse": (int, float, type(None)),
    "conflict_rate": (int, float),
}


@dataclass(frozen=True)
class History:
    """Measurements at each evaluation. Losses and cosines are taken on the same points throughout and for every run.

    Args:
        steps: Optimizer steps so far.
        backward_passes: Single-loss backward passes so far.
        seconds: Seconds of training so far.
        mse: Mean square error against the reference; NaN without one.
        losses: Each loss.
        cosines: Cosines between the gradients of the losses.
    """

    steps: Int64[np.ndarray, " evaluations"]
    backward_passes: Int64[np.ndarray, " evaluations"]
    seconds: Float64[np.ndarray, " evaluations"]
    mse: Float64[np.ndarray, " evaluations"]
    losses: Float64[np.ndarray, "evaluations losses"]
    cosines: Float64[np.ndarray, "evaluations losses losses"]

    @property
    def smallest_cosines(self) -> Float64[np.ndarray, " evaluations"]:
        """Smallest cosine between the gradients of two losses at each evaluation; 1 with a single loss."""
        num_losses = self.cosines.shape[1]
        if num_losses < 2:
            return np.ones(len(self.cosines))
        return self.cosines[:, ~np.eye(num_losses, dtype=bool)].min(axis=1)

    @property
    def conflict_rate(self) -> float:
        """Share of evaluations at which the gradients of two losses oppose each other."""
        return float((self.smallest_cosines < 0).mean())


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a run.

    Args:
        problem: Name of the problem.
        problem_options: Its options.
        method: Name of the method.
        config: Settings of the run.
        loss_names: Names of the losses.
        history: Measurements along the way.
        steps: Optimizer steps made.
        backward_passes: Single-loss backward passes made.
        seconds: Seconds of training, without evaluation.
        cpu_seconds: Processor seconds of the same.
        final: Errors at the end; None without a reference.
        best: Errors at the evaluation with the smallest MSE; None without a reference.
        best_step: Step of that evaluation (of the smallest sum of losses without a reference).
        network: The network at the end.
        reference: The reference, if any.
        prediction: Fields of the final network at the reference's points, if any.
    """

    problem: str
    problem_options: dict[str, Any]
    method: str
    config: TrainingConfig
    loss_names: tuple[str, ...]
    history: History
    steps: int
    backward_passes: int
    seconds: float
    cpu_seconds: float
    final: Errors | None
    best: Errors | None
    best_step: int
    network: nn.Module
    reference: Reference | None
    prediction: Float64[np.ndarray, "points fields"] | None

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run.

        Returns:
            JSON-ready mapping; errors that do not exist or are not finite are None.
        """
        fields = self.reference.fields if self.reference else ()
        return {
            "problem": self.problem,
            "problem_options": self.problem_options,
            "method": self.method,
            "seed": self.config.seed,
            "steps": self.steps,
            "backward_passes": self.backward_passes,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            **_errors("final", self.final, fields),
            **_errors("best", self.best, fields),
            "best_step": self.best_step,
            "final_losses": dict(zip(self.loss_names, map(_finite, self.history.losses[-1]), strict=True)),
            "conflict_rate": self.history.conflict_rate,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``result.json`` (figures, settings, history) and, with a reference, ``solution.npz``.

        Args:
            folder: Where; created if missing.

        Returns:
            The folder.

        Raises:
            InvalidStateError: If the folder cannot be written to.
        """
        path = ensure_folder(folder)
        history = {
            name: _finite_list(getattr(self.history, name))
            for name in ("steps", "backward_passes", "seconds", "mse", "losses", "cosines")
        }
        if self.reference is not None and self.prediction is not None:
            content = io.BytesIO()
            np.savez_compressed(
                content, points=self.reference.points, reference=self.reference.values, prediction=self.prediction
            )
            atomic_write(path / SOLUTION_FILE, content.getvalue())
        record = {"schema": SCHEMA, "summary": self.summary(), "config": self.config.to_dict(), "history": history}
        atomic_write(path / RESULT_FILE, json.dumps(record, indent=1, allow_nan=False) + "\n")
        return path


def compare_runs(folders: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Read the figures of saved runs.

    Args:
        folders: Folders that :meth:`TrainingResult.save` wrote.

    Returns:
        For each folder its summary, with ``folder`` and ``config`` added, in the order of problem, method and seed.

    Raises:
        MissingFileError: If a folder has no result.
        InvalidStateError: If a result cannot be read.
    """
    rows = []
    for folder in folders:
        file = Path(folder) / RESULT_FILE
        if not file.is_file():
            raise MissingFileError(
                f"no run in {str(folder)!r}: {RESULT_FILE} is missing; give folders of finished runs"
            )
        try:
            record = json.loads(
                file.read_text(encoding="utf-8"), parse_float=_finite_number, parse_constant=_finite_number
            )
            schema = record["schema"]
            row = {**record["summary"], "folder": str(folder), "config": record.get("config")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidStateError(f"{str(file)!r} is not the result of a run; train again or leave it out") from error
        if schema != SCHEMA:
            raise InvalidStateError(f"{str(file)!r} has schema {schema!r}; this version reads {SCHEMA!r}")
        _check_row(row, file)
        rows.append(row)
    return sorted(rows, key=lambda row: (row["problem"], str(row["problem_options"]), row["method"], row["seed"]))


def _check_row(row: Mapping[str, Any], file: Path) -> None:
    for name, kinds in {**_FIELDS, "config": dict}.items():
        value = row.get(name, ...)
        wrong = value is ... or isinstance(value, bool) or not isinstance(value, kinds)
        if wrong or (isinstance(value, int | float) and name != "seed" and value < 0):
            found = "is missing" if value is ... else f"is {value!r}"
            raise InvalidStateError(
                f"{str(file)!r} is not the result of a run: {name} {found}; train again or leave it out"
            )


def _errors(prefix: str, errors: Errors | None, fields: Sequence[str]) -> dict[str, Any]:
    return {
        f"{prefix}_mse": None if errors is None else _finite(errors.mse),
        f"{prefix}_relative_l2": None
        if errors is None
        else dict(zip(fields, map(_finite, errors.relative_l2), strict=True)),
        f"{prefix}_max_error": None if errors is None else _finite(errors.max_error),
    }


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _finite_list(array: np.ndarray) -> list[Any]:
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number
