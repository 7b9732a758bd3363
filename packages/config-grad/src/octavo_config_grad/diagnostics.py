"""A record of how losses conflicted during training."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_core.files import atomic_write, ensure_folder
from torch import Tensor

from octavo_config_grad.info import UpdateInfo

__all__ = ["ConflictLog"]


class ConflictLog:
    """Collects the reports of optimizer steps.

    Example::

        log = ConflictLog(["pde", "bc", "ic"])
        for step in range(steps):
            optimizer.step(losses)
            log.record(step, optimizer.last_info)
        log.write_csv("conflicts.csv")

    Args:
        names: Names of the losses, used in columns and tags; None numbers them.
        writer: Object with ``add_scalar(tag, value, step)``, such as a TensorBoard ``SummaryWriter``, that gets the
            scalars of each record; None for none.
        every: Record only steps divisible by this, at least 1: the report of a step is worked out on demand.

    Attributes:
        steps: Recorded steps.
        infos: Their reports.

    Raises:
        InvalidValueError: If ``every`` is below 1, or names are repeated.
        InvalidTypeError: If the writer has no ``add_scalar``.

    Source: Beyond the paper, whose claim of conflict-free updates this checks step by step.
    """

    def __init__(self, names: Sequence[str] | None = None, *, writer: Any = None, every: int = 1) -> None:
        if every < 1:
            raise InvalidValueError(f"every={every}; give at least 1")
        if names is not None and len(set(names)) != len(names):
            raise InvalidValueError(f"names={list(names)} repeats a name; give each loss its own")
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise InvalidTypeError(f"writer is a {type(writer).__name__} without add_scalar(tag, value, step)")
        self.names = None if names is None else tuple(names)
        self.writer = writer
        self.every = every
        self.steps: list[int] = []
        self.infos: list[UpdateInfo] = []

    def record(
        self, step: int, info: UpdateInfo | None, losses: Tensor | Sequence[Tensor | float | int] | None = None
    ) -> None:
        """Add the report of a step.

        Args:
            step: Step number.
            info: ``optimizer.last_info``; None (no update yet) is not recorded.
            losses: Loss values, for the writer only.

        Raises:
            InvalidValueError: If the number of losses differs from the names or the earlier records.
        """
        if info is None or step % self.every:
            return
        size = len(info.alpha)
        expected = len(self.names) if self.names else len(self.infos[0].alpha) if self.infos else size
        if size != expected:
            raise InvalidValueError(f"the report of step {step} has {size} losses, the log {expected}; use another log")
        self.steps.append(step)
        self.infos.append(info)
        if self.writer is not None:
            for name, value in self._scalars(info).items():
                if not math.isnan(value):
                    self.writer.add_scalar(f"config/{name}", value, step)
            for name, loss in zip(self._names(size), losses if losses is not None else [], strict=False):
                self.writer.add_scalar(f"loss/{name}", float(loss), step)

    def cosine_history(self) -> Float64[np.ndarray, "steps losses losses"]:
        """Pairwise cosines of the gradients, one matrix per record."""
        return self._stack([info.cosine_matrix for info in self.infos], 2)

    def update_cosines(self) -> Float64[np.ndarray, "steps losses"]:
        """Cosines between each gradient and the update."""
        return self._stack([info.cosines for info in self.infos], 1)

    def norms(self) -> Float64[np.ndarray, "steps losses"]:
        """Gradient norms."""
        return self._stack([info.norms for info in self.infos], 1)

    def alphas(self) -> Float64[np.ndarray, "steps losses"]:
        """Coefficients of the updates."""
        return self._stack([info.alpha for info in self.infos], 1)

    def gradient_conflict_rate(self) -> float:
        """Share of records in which two gradients opposed each other (a pairwise cosine below 0); NaN without records.

        This is what the losses do; see :meth:`update_conflict_rate` for what the method did about it.
        """
        return _share([bool((info.cosine_matrix < 0.0).any()) for info in self.infos])

    def update_conflict_rate(self) -> float:
        """Share of records whose update did not descend some loss; NaN without records."""
        return _share([info.conflict for info in self.infos])

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one line per record: step, conflict, rank, length, and per loss norm, alpha, cosine; pairwise cosines.

        Args:
            path: The file; replaced atomically, its folder created if missing.

        Raises:
            InvalidStateError: If it cannot be written.
        """
        text = io.StringIO()
        rows = [self._scalars(info) for info in self.infos]
        header = ["step", *(rows[0] if rows else [])]
        table = csv.writer(text, lineterminator="\n")
        table.writerow(header)
        for step, row in zip(self.steps, rows, strict=True):
            table.writerow([step, *(repr(value) for value in row.values())])
        ensure_folder(Path(path).parent)
        atomic_write(path, text.getvalue())

    def _scalars(self, info: UpdateInfo) -> dict[str, float]:
        names = self._names(len(info.alpha))
        columns: dict[str, float] = {
            "conflict": float(info.conflict),
            "rank": float(info.rank),
            "length": info.length,
            "min_cos": info.min_cos,
            "reliable": float(info.reliable),
            "skipped": float(info.skipped),
        }
        for kind, values in (("norm", info.norms), ("alpha", info.alpha), ("cos", info.cosines)):
            columns |= {f"{kind}/{name}": value for name, value in zip(names, values.tolist(), strict=True)}
        matrix = info.cosine_matrix.tolist()
        for i, first in enumerate(names):
            columns |= {f"cos/{first}/{names[j]}": matrix[i][j] for j in range(i + 1, len(names))}
        return columns

    def _names(self, size: int) -> tuple[str, ...]:
        return self.names or tuple(str(index) for index in range(size))

    def _stack(self, tensors: Sequence[Tensor], dims: int) -> np.ndarray:
        if not tensors:
            return np.zeros((0, *[len(self.names or ())] * dims))
        return torch.stack(list(tensors)).numpy()


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan
