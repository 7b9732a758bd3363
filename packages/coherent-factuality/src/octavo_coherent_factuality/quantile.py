"""The conformal quantile and what it promises, in exact arithmetic."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError
from scipy.stats import beta

from octavo_coherent_factuality._checks import check_whole, floats_of

__all__ = [
    "AlphaLike",
    "CoverageLaw",
    "conformal_threshold",
    "coverage_law",
    "exact_alpha",
    "pac_rank",
    "quantile_rank",
]

AlphaLike = float | int | str | Fraction | Decimal
"""An error level in (0, 1). A float stands for the decimal fraction it prints as; give a Fraction for 1/3 or 1/48."""


def exact_alpha(alpha: AlphaLike, name: str = "alpha") -> Fraction:
    """Read an error level as the fraction that its decimal notation means.

    Args:
        alpha: The level, e.g. ``0.1``, ``"0.1"`` or ``Fraction(1, 48)``.
        name: What error messages call it.

    Returns:
        The exact fraction.

    Raises:
        InvalidValueError: If it is not strictly between 0 and 1.
        InvalidTypeError: If it is not a number.
    """
    if isinstance(alpha, np.floating):
        alpha = str(alpha)  # np.float32(0.7) means 0.7, not the nearest double to it
    elif isinstance(alpha, np.generic):
        alpha = alpha.item()
    if isinstance(alpha, bool) or not isinstance(alpha, float | int | str | Fraction | Decimal):
        raise InvalidTypeError(f"{name}={alpha!r} is not a number; give an error level such as 0.1")
    if isinstance(alpha, str | Decimal) and _is_extreme(str(alpha)):
        raise InvalidValueError(f"{name}={str(alpha)[:40]} has too many digits; give an error level such as 0.1")
    try:
        value = Fraction(alpha) if isinstance(alpha, Fraction | Decimal) else Fraction(str(alpha))
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise InvalidValueError(f"{name}={alpha!r} is not a number; give an error level such as 0.1") from error
    if not 0 < value < 1:
        raise InvalidValueError(f"{name}={alpha} is out of range; give an error level strictly between 0 and 1")
    return value


def _is_extreme(text: str) -> bool:
    """Whether the exact fraction of a decimal notation would have thousands of digits."""
    exponent = re.search(r"[eE][-+]?0*(\d+)", text)
    return len(text) > 1000 or (exponent is not None and (len(exponent[1]) > 4 or int(exponent[1]) > 1000))


def quantile_rank(n: int, alpha: AlphaLike) -> int:
    """Rank ``k = ceil((n + 1)(1 - alpha))`` of the threshold among n scores, from the largest.

    Computed as ``n + 1 - floor((n + 1) alpha)`` on fractions: in floating point the formula is off by one, e.g. 59
    instead of 58 for n = 99 and alpha = 0.42.

    Args:
        n: Number of calibration scores, at least 0.
        alpha: Error level.

    Returns:
        The rank, from 1 to n + 1; n + 1 says that n scores are too few and nothing can be kept.

    Raises:
        InvalidValueError: If n is negative.
        InvalidTypeError: If n is not a whole number.
    """
    check_whole(n, "n", 0)
    return n + 1 - math.floor((n + 1) * exact_alpha(alpha))


def conformal_threshold(scores: Any, alpha: AlphaLike) -> float:
    """The k-th largest calibration score, minus infinity where there are too few.

    Args:
        scores: Non-conformity scores, (traces,): a list, an array or a tensor; may be infinite.
        alpha: Error level.

    Returns:
        The threshold.

    Raises:
        InvalidValueError: If a score is NaN, or they are not one list.
        InvalidTypeError: If they are no numbers.
    """
    values = floats_of(scores, "scores")
    if values.ndim != 1:
        raise InvalidValueError(f"scores have shape {values.shape}; give one number per calibration trace")
    if np.isnan(values).any():
        raise InvalidValueError("a calibration score is NaN; scores must be numbers or infinite")
    rank = quantile_rank(len(values), alpha)
    return -math.inf if rank > len(values) else float(np.sort(values)[len(values) - rank])


@dataclass(frozen=True)
class CoverageLaw:
    """What a calibration set of n traces promises when its scores have no ties, or ties are broken at random.

    Given the calibration set, coverage is Beta(k, n + 1 - k) distributed; on average over calibration sets it is
    k / (n + 1), which is at least 1 - alpha and at most 1 - alpha + 1 / (n + 1). Where whole answers are often right,
    coverage is only higher.

    Args:
        n: Number of calibration traces.
        rank: The rank k of the threshold; 0 keeps everything, which promises nothing.
    """

    n: int
    rank: int

    @property
    def mean(self) -> float:
        """Expected coverage."""
        return self.rank / (self.n + 1)

    def quantile(self, probability: float) -> float:
        """Coverage that is exceeded with probability ``1 - probability`` over calibration sets.

        Args:
            probability: Probability, in [0, 1].
        """
        if not 0 < self.rank <= self.n:
            return float(self.rank > 0)
        return float(beta.ppf(probability, self.rank, self.n + 1 - self.rank))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Central interval of the coverage over calibration sets.

        Args:
            confidence: Probability of the interval.
        """
        tail = (1.0 - confidence) / 2.0
        return self.quantile(tail), self.quantile(1.0 - tail)

    def probability_below(self, coverage: float) -> float:
        """Probability that a calibration set gives less than some coverage.

        Args:
            coverage: The coverage.
        """
        if not 0 < self.rank <= self.n:
            return float(self.rank == 0 and coverage > 0)
        return float(beta.cdf(coverage, self.rank, self.n + 1 - self.rank))


def coverage_law(n: int, alpha: AlphaLike) -> CoverageLaw:
    """Return the law of the coverage for n calibration traces.

    Args:
        n: Number of calibration traces.
        alpha: Error level.

    Returns:
        The law.
    """
    return CoverageLaw(n, quantile_rank(n, alpha))


def pac_rank(n: int, alpha: AlphaLike, delta: AlphaLike) -> int:
    """Smallest rank whose coverage is at least 1 - alpha for a share 1 - delta of the calibration sets.

    Args:
        n: Number of calibration traces.
        alpha: Error level.
        delta: Share of calibration sets that may fail.

    Returns:
        The rank k, n + 1 if n is too small. The error level that has this rank is ``1 - k / (n + 1)``.
    """
    target, limit = float(1 - exact_alpha(alpha)), float(exact_alpha(delta, "delta"))
    ranks = np.arange(quantile_rank(n, alpha), n + 1)
    enough = np.flatnonzero(beta.cdf(target, ranks, n + 1 - ranks) <= limit)
    return int(ranks[enough[0]]) if enough.size else n + 1
