"""The statement that a calibrated filter makes: which event, for how many traces, with which bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidTypeError

from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.quantile import CoverageLaw, exact_alpha

__all__ = ["GuaranteeReport", "guarantee_report"]


@dataclass(frozen=True)
class GuaranteeReport:
    """What a calibrated filter promises.

    Args:
        event: The event whose probability is bounded.
        n: Number of calibration traces.
        alpha: Error level.
        rank: Rank k of the threshold among the calibration scores.
        threshold: The threshold on risk.
        lower: Lower bound of the probability over calibration and test.
        upper: Upper bound, where scores have no ties or ties are broken at random, and answers are not always right.
        law: Law of the coverage given the calibration set, at rank k.
        never_wrong: Share of calibration traces none of whose outputs is wrong.
        ties: How ties are broken.
        delta: Share of calibration sets that may miss the level, if that was asked for.
        weight: Share of the answers that are cut at rank k; the others are cut at rank k - 1 (``ties="randomized"``).
    """

    event: str
    n: int
    alpha: float
    rank: int
    threshold: float
    lower: float
    upper: float
    law: CoverageLaw
    never_wrong: float
    ties: str
    delta: float | None
    weight: float = 1.0

    @property
    def laws(self) -> tuple[tuple[float, CoverageLaw], ...]:
        """The laws of the coverage at the ranks that are used, with the shares of the answers cut there."""
        lower_rank = CoverageLaw(self.n, self.rank - 1)
        return (
            ((self.weight, self.law),)
            if self.weight == 1.0
            else ((self.weight, self.law), (1 - self.weight, lower_rank))
        )

    def interval(self) -> tuple[float, float]:
        """Range that holds the coverage of 95 % of calibration sets, or of more where two ranks are used."""
        ranges = [law.interval(0.95) for _, law in self.laws]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    @property
    def text(self) -> str:
        """The statement in words."""
        nothing = self.weight == 1.0 and self.rank > self.n
        lines = [
            f"Event: {self.event}. The empty output counts as right.",
            f"Calibration: {self.n} traces, error level alpha = {self.alpha:g}, threshold = {self.threshold:g} "
            f"(the {self.rank}-th largest of {self.n} scores; ties: {self.ties}).",
            "Guarantee (marginal, over calibration and a new exchangeable trace): "
            f"P(event) >= {self.lower:.4f}{', because nothing is kept' if nothing else ''}.",
            "The calibration set is too small for this level: every answer is abstained from."
            if nothing
            else f"Upper side: P(event) <= {self.upper:.4f}, unless scores tie at the threshold under the strict rule "
            f"or whole answers are always right there.\n{self._given_calibration()}",
            f"Whole answers right in calibration: {self.never_wrong:.1%}.",
            "Not covered: other events than the one above (in particular, if the graph misses premises, coherence as a "
            "human sees it), traces from another distribution, and traces picked because of their output.",
        ]
        if self.delta is not None:
            lines.insert(
                4,
                f"Training-conditional: with probability at least {1 - self.delta:g} over calibration sets, "
                "coverage is "
                f"at least {1 - self.alpha:g}.",
            )
        return "\n".join(lines)

    def _given_calibration(self) -> str:
        low, high = self.interval()
        mean = sum(weight * law.mean for weight, law in self.laws)
        parts = []
        for weight, law in self.laws:
            share = "" if weight == 1.0 else f" with probability {weight:.4g} (rank {law.rank})"
            if law.rank > law.n:
                parts.append(f"the answer is abstained from{share}")
            elif law.rank == 0:
                parts.append(f"the whole answer is kept{share}")
            else:
                parts.append(f"coverage is at least Beta({law.rank}, {law.n + 1 - law.rank}) distributed{share}")
        return (
            f"Given this calibration set, {', and '.join(parts)}: mean {mean:.4f}, "
            f"{'95 %' if self.weight == 1.0 else 'at least 95 %'} of calibration sets between {low:.4f} and {high:.4f}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready fields."""
        low, high = self.interval()
        return {
            "event": self.event,
            "n": self.n,
            "alpha": self.alpha,
            "rank": self.rank,
            "threshold": self.threshold if abs(self.threshold) != float("inf") else str(self.threshold),
            "lower": self.lower,
            "upper": self.upper,
            "beta": [self.rank, self.n + 1 - self.rank],
            "mixture": [{"weight": weight, "beta": [law.rank, law.n + 1 - law.rank]} for weight, law in self.laws],
            "coverage_interval_95": [low, high],
            "never_wrong": self.never_wrong,
            "ties": self.ties,
            "delta": self.delta,
        }


def guarantee_report(fitted: Any) -> GuaranteeReport:
    """Say what a calibrated filter promises.

    Args:
        fitted: The filter, a :class:`SplitConformalFilter`.

    Returns:
        The report; its ``text`` is for readers.

    Raises:
        InvalidTypeError: If it is another kind of filter, whose promise is of another form.
        InvalidStateError: If it is not calibrated.
    """
    if not isinstance(fitted, SplitConformalFilter):
        raise InvalidTypeError(
            f"a {type(fitted).__name__} makes no single-threshold statement; give a SplitConformalFilter"
        )
    if not hasattr(fitted, "rank_"):
        raise InvalidStateError("the filter is not calibrated; call fit with annotated traces")
    law = CoverageLaw(fitted.n_, fitted.rank_)
    exact = 1 - exact_alpha(fitted.alpha)
    randomized = fitted.ties == "randomized" and fitted.delta is None
    return GuaranteeReport(
        event=fitted.event,
        n=fitted.n_,
        alpha=float(exact_alpha(fitted.alpha)),
        rank=fitted.rank_,
        threshold=fitted.threshold_,
        lower=float(exact) if randomized or fitted.delta is not None else float(max(exact, law.mean)),
        upper=float(exact) if randomized else law.mean,
        law=law,
        never_wrong=float((fitted.scores_ == float("inf")).mean()),
        ties=fitted.ties,
        delta=None if fitted.delta is None else float(exact_alpha(fitted.delta, "delta")),
        weight=float(exact * (fitted.n_ + 1) - (fitted.rank_ - 1)) if randomized else 1.0,
    )
