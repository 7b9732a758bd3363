"""Which weights of reward and penalty hold: fixed, drawn from the simplex for each episode, or following a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_aram.config import ARAMConfig

__all__ = ["Preferences"]


class Preferences:
    """Weights of every environment's episode, and the sets of weights of the updates.

    Args:
        config: Settings.
        objectives: Length of the reward vector; with 1 there is nothing to weigh.
        count: Number of environments.
        rng: Draws weights.

    Source: section 4 of the paper; Dirichlet(1, 1) is uniform on the simplex. Schedules are beyond the paper.
    """

    def __init__(self, config: ARAMConfig, objectives: int, count: int, rng: np.random.Generator) -> None:
        self._rng, self._objectives = rng, objectives
        self._random = config.preference == "dirichlet" and objectives > 1
        self._extra = config.num_preferences - 1 if objectives > 1 else 0
        self._fixed = np.array((0.5, 0.5) if isinstance(config.preference, str) else config.preference, np.float64)
        self._schedule = [(float(step), np.array(weights, np.float64)) for step, weights in config.preference_schedule]
        self._episode = self._draw(count) if self._random else np.tile(self._fixed, (count, 1))
        self._cached: Tensor | None = None

    def _draw(self, count: int) -> np.ndarray:
        return self._rng.dirichlet(np.ones(self._objectives), count)

    def default(self, step: int) -> np.ndarray:
        """Return the weights to predict with where the user gives none.

        Args:
            step: Environment steps so far.

        Returns:
            The configured weights; the middle of the simplex where they are drawn.
        """
        if not self._schedule:
            return self._fixed
        steps = [entry[0] for entry in self._schedule]
        return np.array([np.interp(step, steps, [entry[1][i] for entry in self._schedule]) for i in range(2)])

    @property
    def drawn(self) -> bool:
        """Whether weights are drawn from the simplex."""
        return self._random

    def extreme(self) -> np.ndarray:
        """Return the weights of a run under which the penalty counts least.

        Returns:
            The configured ones, those of the schedule with the largest weight of the reward, or (1, 0) where weights
            are drawn.
        """
        if self._random:
            return np.array([1.0, 0.0])
        return max((entry[1] for entry in self._schedule), key=lambda weights: weights[0], default=self._fixed)

    def current(self, step: int) -> np.ndarray | None:
        """Return the weights of the running episodes.

        Args:
            step: Environment steps so far.

        Returns:
            One row an environment; None with one objective.
        """
        if self._objectives == 1:
            return None
        if self._schedule and not self._random:
            self._episode[:] = self.default(step)
        return self._episode

    def redraw(self, ended: np.ndarray) -> None:
        """Draw weights for the episodes that begin.

        Args:
            ended: Environments whose episode has ended, as flags.
        """
        if self._random:
            self._episode[ended] = self._draw(int(ended.sum()))

    def for_update(self, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the set W of an update; its first row is the current preference.

        Args:
            step: Environment steps so far.
            dtype: Precision.
            device: Device.

        Returns:
            Weights, (sets, objectives).
        """
        if self._cached is not None:
            return self._cached
        if self._objectives == 1:
            rows = np.ones((1, 1))
        else:
            first = self._draw(1) if self._random else self.default(step)[None]
            rows = np.concatenate([first, self._draw(self._extra)]) if self._extra else first
        weights = torch.as_tensor(rows, dtype=dtype, device=device)
        if not (self._random or self._extra or self._schedule) or self._objectives == 1:
            self._cached = weights
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            The weights of the running episodes.
        """
        return {"episode": self._episode.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved weights.
        """
        self._episode = state["episode"].copy()
