"""What M-ConFIG remembers of each loss besides its moments: refresh counts, last value, dot products of the moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

__all__ = ["LossHistory"]


class LossHistory:
    """Bookkeeping of m losses.

    Args:
        num_losses: Number of losses, m.

    Attributes:
        steps: How often each loss was refreshed, t_i.
        values: Last value of each loss, NaN before the first.
        gramian: Dot products of the first moments, without bias correction.
        excluded: Losses without which updates are made until they are first refreshed.
    """

    def __init__(self, num_losses: int) -> None:
        self.steps = [0] * num_losses
        self.values = np.full(num_losses, math.nan)
        self.gramian = np.zeros((num_losses, num_losses))
        self.excluded: set[int] = set()

    def append(self, *, excluded: bool) -> None:
        """Add a loss with a zero moment."""
        if excluded:
            self.excluded.add(len(self.steps))
        self.steps.append(0)
        self.values = np.append(self.values, math.nan)
        self.gramian = np.pad(self.gramian, (0, 1))

    def record(self, loss: int, value: float) -> None:
        """Count a refresh of a loss."""
        self.steps[loss] += 1
        self.values[loss] = value
        self.excluded.discard(loss)

    def set_products(self, losses: Sequence[int], rows: Float64[np.ndarray, "chosen losses"]) -> None:
        """Replace the rows and columns of the Gramian that belong to the given losses."""
        self.gramian[losses] = rows
        self.gramian[:, losses] = rows.T

    def ready(self) -> bool:
        """Whether every loss was refreshed, apart from excluded ones."""
        return all(steps > 0 or loss in self.excluded for loss, steps in enumerate(self.steps))

    def active(self) -> list[int]:
        """Losses that take part in updates."""
        return [loss for loss in range(len(self.steps)) if loss not in self.excluded]

    def corrections(self, betas: tuple[float, float]) -> Float64[np.ndarray, "2 losses"]:
        """Bias corrections ``1 - beta1^t_i`` and ``1 - beta2^t_i``; those of t_i = 0 stand for 1 refresh."""
        return np.array([[1.0 - beta ** max(steps, 1) for steps in self.steps] for beta in betas])

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors and lists of numbers."""
        return {
            "steps": list(self.steps),
            "values": torch.from_numpy(self.values.copy()),
            "gramian": torch.from_numpy(self.gramian.copy()),
            "excluded": sorted(self.excluded),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.steps = list(state["steps"])
        self.values = state["values"].numpy(force=True).copy()
        self.gramian = state["gramian"].numpy(force=True).copy()
        self.excluded = set(state["excluded"])
