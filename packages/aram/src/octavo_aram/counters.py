"""What a run counts: draws, projections and violations, apart for warm-up, training and evaluation, and its seconds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PHASES", "Counters", "PhaseCounters"]

PHASES = ("warmup", "training", "evaluation")
"""Phases that are counted apart."""


@dataclass
class PhaseCounters:
    """Counts of one phase.

    Args:
        steps: Environment steps.
        first_valid: Steps whose first proposal was feasible before any correction.
        tries: Proposals tested, up to and with the accepted one.
        accepted: Steps whose executed action was accepted and not corrected.
        projections: Actions that had to be projected, one a row; each is a quadratic program of the reference methods.
        update_projections: Projections inside updates, which only some baselines make.
        fallbacks: Steps on which every try of the acceptance-rejection method failed.
        violations: Executed actions outside the feasible set; must be 0.
    """

    steps: int = 0
    first_valid: int = 0
    tries: int = 0
    accepted: int = 0
    projections: int = 0
    update_projections: int = 0
    fallbacks: int = 0
    violations: int = 0

    @property
    def valid_rate(self) -> float:
        """Share of first proposals that were feasible; NaN before the first step."""
        return self.first_valid / self.steps if self.steps else float("nan")

    @property
    def acceptance_rate(self) -> float:
        """Share of tested proposals that were accepted; NaN before the first step."""
        return self.accepted / self.tries if self.tries else float("nan")

    @property
    def mean_tries(self) -> float:
        """Proposals tested per step; NaN before the first step."""
        return self.tries / self.steps if self.steps else float("nan")


@dataclass
class Counters:
    """Counts by phase and wall time by activity.

    Args:
        warmup: Counts of the steps before learning starts.
        training: Counts of the steps after.
        evaluation: Counts of evaluations.
        seconds: Wall time by activity: ``env``, ``sample``, ``project``, ``update``.
    """

    warmup: PhaseCounters = field(default_factory=PhaseCounters)
    training: PhaseCounters = field(default_factory=PhaseCounters)
    evaluation: PhaseCounters = field(default_factory=PhaseCounters)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"env": 0.0, "sample": 0.0, "project": 0.0, "update": 0.0}
    )

    @property
    def projections(self) -> int:
        """Projections of warm-up and training, those inside updates included."""
        return sum(p.projections + p.update_projections for p in (self.warmup, self.training))

    @property
    def violations(self) -> int:
        """Executed violations of all phases."""
        return sum(getattr(self, name).violations for name in PHASES)

    @contextmanager
    def timed(self, activity: str) -> Generator[None, None, None]:
        """Add the seconds of a block to an activity.

        Args:
            activity: Key of ``seconds``.

        Yields:
            Nothing.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            All counts.
        """
        return dataclasses.asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved counts.
        """
        for name in PHASES:
            setattr(self, name, PhaseCounters(**state[name]))
        self.seconds = dict(state["seconds"])
