"""Actions chosen at a batch of states, and what choosing them took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo_aram.counters import PhaseCounters

__all__ = ["Choice"]


@dataclass
class Choice:
    """Actions chosen at a batch of states, and what choosing them took.

    Args:
        executed: Feasible actions, (rows, actions), normalised.
        stored: What the replay buffer is to hold as the action.
        first_valid: Whether the first proposal of each row was feasible.
        tries: Proposals tested for each row.
        accepted: Whether a row's action is a proposal that needed no correction.
        projections: Rows that were projected.
        rejected: Infeasible proposals, (rejections, actions).
        rejected_row: The row each was drawn for.
    """

    executed: np.ndarray
    stored: np.ndarray
    first_valid: np.ndarray
    tries: np.ndarray
    accepted: np.ndarray
    projections: int
    rejected: np.ndarray
    rejected_row: np.ndarray

    def settle(self, executed: np.ndarray) -> None:
        """Take over actions that were moved by a few units in the last place to survive rounding.

        Args:
            executed: What is executed, (rows, actions).
        """
        if self.stored is self.executed:
            self.stored = executed
        self.executed = executed

    def count(self, counters: PhaseCounters) -> None:
        """Add to the counts of a phase.

        Args:
            counters: The counts.
        """
        counters.steps += len(self.executed)
        counters.first_valid += int(self.first_valid.sum())
        counters.tries += int(self.tries.sum())
        accepted = int(self.accepted.sum())
        counters.accepted += accepted
        counters.projections += self.projections
        counters.fallbacks += len(self.executed) - accepted
