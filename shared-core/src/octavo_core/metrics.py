"""Statistics that several methods report; standard scores come from torchmetrics and scikit-learn instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats

from octavo_core.errors import InvalidValueError

__all__ = [
    "AccuracyMatrix",
    "Interval",
    "PairedComparison",
    "beta_interval",
    "binomial_interval",
    "bootstrap_interval",
    "compare_paired",
]

Vector = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Interval:
    """An estimate with the two ends of its interval.

    Args:
        estimate: Point estimate.
        low: Lower end.
        high: Upper end.
        confidence: Level, in (0, 1).
    """

    estimate: float
    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return bool(self.low <= value <= self.high)


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[..., np.floating | np.ndarray] = np.mean,
    *,
    confidence: float = 0.95,
    resamples: int = 9_999,
    seed: int = 0,
) -> Interval:
    """Bootstrap a confidence interval of a statistic: bias-corrected and accelerated, percentile where undefined.

    Args:
        values: Two or more finite numbers.
        statistic: Function of an array and ``axis``, e.g. ``np.mean`` or ``np.median``.
        confidence: Level, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        The interval.

    Raises:
        InvalidValueError: If there are fewer than two values, one is not finite, or the level is out of range.
    """
    sample = _finite_vector(values, "values", 2)
    _check_confidence(confidence)
    estimate = float(statistic(sample, axis=-1))
    if np.ptp(sample) == 0:
        return Interval(estimate, estimate, estimate, confidence)

    def bootstrap(method: Literal["BCa", "percentile"]) -> tuple[float, float]:
        result = stats.bootstrap(
            (sample,),
            statistic,
            confidence_level=confidence,
            n_resamples=resamples,
            method=method,
            vectorized=True,
            rng=np.random.default_rng(seed),
        )
        return float(result.confidence_interval.low), float(result.confidence_interval.high)

    # An undefined acceleration shows as NaN below, so its warnings would only repeat that.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        low, high = bootstrap("BCa")
    if not np.isfinite([low, high]).all():
        low, high = bootstrap("percentile")
    return Interval(estimate, low, high, confidence)


def binomial_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Exact (Clopper-Pearson) interval of a success probability.

    Args:
        successes: Number of successes, from 0 to ``trials``.
        trials: Number of trials, at least 1.
        confidence: Level, in (0, 1).

    Returns:
        The interval.

    Raises:
        InvalidValueError: If the counts or the level are out of range.
    """
    _check_confidence(confidence)
    if trials < 1 or not 0 <= successes <= trials:
        raise InvalidValueError(
            f"{successes} successes of {trials} trials cannot be; give trials >= 1 and 0 <= successes <= trials"
        )
    bounds = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return Interval(successes / trials, float(bounds.low), float(bounds.high), confidence)


def beta_interval(alpha: float, beta: float, *, confidence: float = 0.95) -> Interval:
    """Central interval of a Beta distribution, e.g. of a conformal predictor's coverage given its calibration set.

    Args:
        alpha: First shape parameter, positive.
        beta: Second shape parameter, positive.
        confidence: Level, in (0, 1).

    Returns:
        The interval around the mean.

    Raises:
        InvalidValueError: If a parameter or the level is out of range.
    """
    _check_confidence(confidence)
    if not (alpha > 0 and beta > 0):
        raise InvalidValueError(f"Beta({alpha}, {beta}) does not exist; both shape parameters must be positive")
    low, high = stats.beta.interval(confidence, alpha, beta)
    return Interval(alpha / (alpha + beta), float(low), float(high), confidence)


@dataclass(frozen=True)
class PairedComparison:
    """Outcome of two methods on the same seeds.

    Args:
        wins: Seeds on which the first method is better.
        losses: Seeds on which it is worse; ties count for neither.
        p_value: Two-sided sign test of no difference.
        ratio: Geometric mean of first over second; ``None`` unless all values are positive.
        difference: Mean of first minus second, with a bootstrap interval.
    """

    wins: int
    losses: int
    p_value: float
    ratio: float | None
    difference: Interval


def compare_paired(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    better: Literal["lower", "higher"] = "lower",
    seed: int = 0,
) -> PairedComparison:
    """Compare two methods seed by seed, with a sign test.

    Args:
        first: One number a seed, two seeds or more.
        second: The other method's, in the same order.
        better: Whether a lower or a higher number is better.
        seed: Seed of the bootstrap.

    Returns:
        The comparison.

    Raises:
        InvalidValueError: If the lengths differ, there are fewer than two seeds, or a value is not finite.
    """
    ours, theirs = _finite_vector(first, "first", 2), _finite_vector(second, "second", 2)
    if len(ours) != len(theirs):
        raise InvalidValueError(f"{len(ours)} and {len(theirs)} values cannot be paired; give one of each per seed")
    sign = -1.0 if better == "lower" else 1.0
    wins, losses = int((sign * (ours - theirs) > 0).sum()), int((sign * (ours - theirs) < 0).sum())
    p_value = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    positive = bool((ours > 0).all() and (theirs > 0).all())
    ratio = float(np.exp(np.mean(np.log(ours) - np.log(theirs)))) if positive else None
    return PairedComparison(wins, losses, p_value, ratio, bootstrap_interval(ours - theirs, seed=seed))


@dataclass(frozen=True)
class AccuracyMatrix:
    """Accuracies of a continual learner: row i after training task i, column j on task j.

    Args:
        values: (tasks, tasks) accuracies in [0, 1]; the part above the diagonal may be NaN.

    Raises:
        InvalidValueError: If the matrix is not square or lacks values on or below the diagonal.
    """

    values: Float[np.ndarray, ...]

    def __post_init__(self) -> None:
        shape = self.values.shape
        if self.values.ndim != 2 or shape[0] != shape[1] or not len(self.values):
            raise InvalidValueError(f"accuracy matrix has shape {shape}; give one row and one column per task")
        if not np.isfinite(self.values[np.tril_indices(len(self.values))]).all():
            raise InvalidValueError("accuracy matrix lacks values on or below the diagonal; evaluate every task seen")

    @property
    def average(self) -> float:
        """Mean accuracy over all tasks after the last."""
        return float(self.values[-1].mean())

    @property
    def average_incremental(self) -> float:
        """Mean over stages of the mean accuracy on the tasks seen so far."""
        return float(np.mean([self.values[i, : i + 1].mean() for i in range(len(self.values))]))

    @property
    def forgetting(self) -> float:
        """Mean drop from a task's best earlier accuracy to its last, over all tasks but the last; 0 for one task."""
        if len(self.values) == 1:
            return 0.0
        best = [self.values[j:-1, j].max() for j in range(len(self.values) - 1)]
        return float(np.mean(best - self.values[-1, :-1]))

    @property
    def backward_transfer(self) -> float:
        """Mean change of a task's accuracy from just after its training to the end; 0 for one task."""
        if len(self.values) == 1:
            return 0.0
        return float(np.mean(self.values[-1, :-1] - np.diag(self.values)[:-1]))


def _finite_vector(values: Sequence[float] | np.ndarray, name: str, least: int) -> Vector:
    vector = np.asarray(values, dtype=float)
    if vector.ndim != 1 or len(vector) < least or not np.isfinite(vector).all():
        given = f"shape {vector.shape}: {values!r:.80}"
        raise InvalidValueError(f"{name} must be {least} or more finite numbers in one dimension, got {given}")
    return vector


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidValueError(f"confidence {confidence} is out of range; give a level between 0 and 1, e.g. 0.95")
