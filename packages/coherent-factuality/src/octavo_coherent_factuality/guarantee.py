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
        law: Law of the coverage given the calibration set.
        never_wrong: Share of calibration traces none of whose outputs is wrong.
        ties: How ties are broken.
        delta: Share of calibration sets that may miss the level, if that was asked for.
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

    @property
    def text(self) -> str:
        """The statement in words."""
        low, high = self.law.interval(0.95)
        lines = [
            f"Event: {self.event}. The empty output counts as right.",
            f"Calibration: {self.n} traces, error level alpha = {self.alpha:g}, threshold = {self.threshold:g} "
            f"(the {self.rank}-th largest of {self.n} scores; ties: {self.ties}).",
            f"Guarantee (marginal, over calibration and a new exchangeable trace): P(event) >= {self.lower:.4f}.",
            f"Upper side: P(event) <= {self.upper:.4f}, unless scores tie at the threshold under the strict rule or "
            "whole answers are always right there.",
            f"Given this calibration set, coverage is at least Beta({self.rank}, {self.n + 1 - self.rank}) "
            "distributed: "
            f"mean {self.law.mean:.4f}, 95 % of calibration sets between {low:.4f} and {high:.4f}."
            if self.rank <= self.n
            else "The calibration set is too small for this level: every answer is abstained from.",
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

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready fields."""
        low, high = self.law.interval(0.95)
        return {
            "event": self.event,
            "n": self.n,
            "alpha": self.alpha,
            "rank": self.rank,
            "threshold": self.threshold if abs(self.threshold) != float("inf") else str(self.threshold),
            "lower": self.lower,
            "upper": self.upper,
            "beta": [self.rank, self.n + 1 - self.rank],
            "coverage_interval_95": [low, high],
            "never_wrong": self.never_wrong,
            "ties": self.ties,
            "delta": self.delta,
        }


def guarantee_report(fitted: SplitConformalFilter) -> GuaranteeReport:
    """Say what a calibrated filter promises.

    Args:
        fitted: The filter.

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
    )
