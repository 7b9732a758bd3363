"""Filters for a stream of answers: calibrated anew as judgements come in, adaptive in level, watched for drift."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from octavo_core.errors import InvalidValueError
from octavo_core.metrics import Interval, binomial_interval

from octavo_coherent_factuality._checks import check_whole, number_of
from octavo_coherent_factuality.annotators import nonconformity
from octavo_coherent_factuality.filter import FilteredOutput, _cut_output
from octavo_coherent_factuality.method import FilteringMethod, check_method
from octavo_coherent_factuality.outcomes import check_traces, has_identity, jitter, tie_numbers
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha, quantile_rank
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["DriftReport", "OnlineFilter"]


@dataclass(frozen=True)
class DriftReport:
    """Whether a stream still behaves as the calibration promised.

    Args:
        n: Judged outputs so far.
        wrong: How many were wrong.
        interval: Interval of the error rate, Clopper-Pearson, 95 %.
        evidence: E-value against an error rate of at most alpha; 20 or more refutes it at 5 %, at any time.
    """

    n: int
    wrong: int
    interval: Interval
    evidence: float


class OnlineFilter:
    """Filters answers one by one and learns from those that are judged later.

    With ``step_size=0`` the threshold is the split-conformal one on the judged traces so far. With a step the working
    level moves after every judgement, ``level += step_size (alpha - wrong)``, so that the long-run error rate is alpha
    whatever the stream does (adaptive conformal inference, Gibbs and Candès, 2021; beyond the paper).

    Args:
        alpha: Error level.
        method: The method; subgraph filtering on frequency scores if left out.
        step_size: Step of the level, 0 or more.
        window: Number of judged traces that are remembered; all if left out.
        seed: Seed of the tie-breaking.

    Raises:
        InvalidValueError: If the step is negative or the window below 1.
        InvalidTypeError: If the step is not a number, the window or the seed not whole, or the method is none.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        method: FilteringMethod | None = None,
        step_size: float | int = 0.0,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        if number_of(step_size, "step_size") < 0:
            raise InvalidValueError(f"step_size={step_size} is negative; give 0 or more")
        if window is not None:
            check_whole(window, "window", 1)
        check_whole(seed, "seed")
        self.alpha = exact_alpha(alpha)
        self.level = float(self.alpha)
        self.method = FilteringMethod() if method is None else method
        check_method(self.method)
        self.step_size = step_size
        self.seed = seed
        self._memory: deque[tuple[float, float]] = deque(maxlen=window)
        self._wrong = 0
        self._judged = 0
        self._log_evidence = 0.0

    def filter(self, trace: ReasoningTrace) -> FilteredOutput:
        """Keep what is safe of the next answer.

        Args:
            trace: The answer.

        Returns:
            The output; nothing is kept before enough answers were judged.
        """
        check_traces([trace])
        threshold, limit = self._threshold()
        number = float(tie_numbers([trace], self.seed, "prediction")[0])
        return _cut_output(trace, self.method.output_family(trace), threshold, number <= limit)

    def update(self, trace: ReasoningTrace) -> bool:
        """Learn from an answer that has been judged.

        Args:
            trace: The annotated answer.

        Returns:
            Whether its filtered output was right.
        """
        output = self.filter(trace)
        annotator = self.method.calibration_annotator
        right = output.abstained or bool(annotator(trace, output.mask))
        score = nonconformity(annotator, trace, self.method.families(trace)[0])
        if self._memory:
            # Before the first calibration everything is abstained from, which says nothing about drift.
            alpha = float(self.alpha)
            self._judged += 1
            self._wrong += not right
            self._log_evidence += math.log1p(0.5 * ((not right) - alpha) / max(alpha, 1 - alpha))
            self.level += float(self.step_size) * (alpha - (not right))
        number = float(jitter([trace], self.seed, f"calibration {self._judged}")[0])
        self._memory.append((score, number if has_identity(trace) else -1.0))
        return right

    def drift(self) -> DriftReport:
        """Compare the judged outputs with what was promised."""
        interval = binomial_interval(self._wrong, self._judged) if self._judged else Interval(0.5, 0.0, 1.0, 0.95)
        return DriftReport(self._judged, self._wrong, interval, math.exp(min(self._log_evidence, 700.0)))

    def _threshold(self) -> tuple[float, float]:
        n = len(self._memory)
        level = float(self.alpha) if self.step_size == 0 else self.level
        if level <= 0:
            return -math.inf, 0.0
        if level >= 1:
            return math.inf, 1.0
        rank = quantile_rank(n, self.alpha if self.step_size == 0 else level)
        if rank > n:
            return -math.inf, 0.0
        scores, numbers = np.array(self._memory).T
        row = np.lexsort((numbers, scores))[::-1][rank - 1]
        return float(scores[row]), float(numbers[row])
