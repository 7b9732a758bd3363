"""Calibration curves: realised coherence and claims kept over levels, by leave-one-out or random splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from scipy.stats import beta

from octavo_coherent_factuality._checks import check_whole
from octavo_coherent_factuality.annotators import Annotator
from octavo_coherent_factuality.filter import TieRule
from octavo_coherent_factuality.method import FilteringMethod
from octavo_coherent_factuality.outcomes import OutcomeTable, jitter
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha, quantile_rank
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["CalibrationCurve", "CurvePoint", "calibration_curve", "curve_of_table"]


@dataclass(frozen=True)
class CurvePoint:
    """One level of a curve.

    Args:
        alpha: Error level.
        target: 1 - alpha.
        realised: Share of right outputs.
        low: Lower end of its 95 % range.
        high: Upper end of its 95 % range.
        retained: Mean share of claims kept.
        abstained: Share of outputs that keep nothing.
        n: Number of calibration traces behind each output.
    """

    alpha: float
    target: float
    realised: float
    low: float
    high: float
    retained: float
    abstained: float
    n: int


@dataclass(frozen=True)
class CalibrationCurve:
    """Realised coherence and claims kept over levels.

    Args:
        points: One for each level, in the order given.
        protocol: ``"loo"`` or ``"split"``. The range of a point is a Clopper-Pearson interval for the first, and the
            central 95 % of the repeats for the second.
        event: What counted as right.
    """

    points: tuple[CurvePoint, ...]
    protocol: str
    event: str

    def __iter__(self) -> Iterator[CurvePoint]:
        return iter(self.points)

    def column(self, name: str) -> np.ndarray:
        """Return one field of all points.

        Args:
            name: Name of the field, e.g. ``"retained"``.
        """
        return np.array([getattr(point, name) for point in self.points])

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the points as dictionaries."""
        return [asdict(point) for point in self.points]

    def to_frame(self) -> Any:
        """Return a pandas data frame.

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError.for_extra("pandas", "octavo-coherent-factuality", "pandas") from error
        return pandas.DataFrame(self.to_rows())


def calibration_curve(
    traces: Sequence[ReasoningTrace],
    alphas: Sequence[AlphaLike] | np.ndarray = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3),
    *,
    method: FilteringMethod | None = None,
    evaluator: Annotator | None = None,
    protocol: Literal["loo", "split"] = "loo",
    ties: TieRule = "jitter",
    repeats: int = 100,
    calibration_size: int | None = None,
    seed: int = 0,
) -> CalibrationCurve:
    """Calibrate and test on the same traces, never on the same trace.

    Each trace is scored once; levels, left-out traces and splits are look-ups afterwards.

    Args:
        traces: Annotated traces.
        alphas: Error levels.
        method: The method; subgraph filtering on frequency scores if left out.
        evaluator: What counts as right in the test; as in calibration if left out.
        protocol: ``"loo"`` calibrates on all traces but one; ``"split"`` on random subsets, tested on the rest.
        ties: The rule for ties, see :class:`SplitConformalFilter`.
        repeats: Number of random splits.
        calibration_size: Traces in the calibration part of a split; half of them if left out.
        seed: Seed of splits and ties, 0 or more.

    Returns:
        The curve.

    Raises:
        InvalidValueError: If there are fewer than two traces, or the split leaves nothing on one side.
        InvalidTypeError: If the levels are no list, or something else stands for a number, the method or the evaluator.
    """
    method = FilteringMethod() if method is None else method
    table = OutcomeTable.build(traces, method, evaluator)
    numbers = jitter(traces, seed, "calibration")
    event = (evaluator or method.calibration_annotator).event
    return curve_of_table(
        table,
        alphas,
        numbers,
        event=event,
        protocol=protocol,
        ties=ties,
        repeats=repeats,
        calibration_size=calibration_size,
        seed=seed,
    )


def curve_of_table(
    table: OutcomeTable,
    alphas: Sequence[AlphaLike] | np.ndarray,
    numbers: np.ndarray,
    *,
    event: str = "",
    protocol: Literal["loo", "split"] = "loo",
    ties: TieRule = "jitter",
    repeats: int = 100,
    calibration_size: int | None = None,
    seed: int = 0,
) -> CalibrationCurve:
    """Draw the curve of outcomes that are worked out already.

    Args:
        table: The outcomes.
        alphas: Error levels.
        numbers: One tie-breaking number per trace.
        event: What counts as right, for the record.
        protocol: See :func:`calibration_curve`.
        ties: See :func:`calibration_curve`.
        repeats: See :func:`calibration_curve`.
        calibration_size: See :func:`calibration_curve`.
        seed: Seed of the splits.

    Returns:
        The curve.

    Raises:
        InvalidValueError: If there are fewer than two traces, an option is unknown, or a split leaves a side empty.
        InvalidTypeError: If the levels are no list, or a number is not whole.
    """
    if isinstance(alphas, str | bytes) or not isinstance(alphas, Iterable):
        raise InvalidTypeError(f"alphas={alphas!r} is no list; give a list of error levels such as [0.05, 0.1]")
    check_whole(seed, "seed", 0)
    check_whole(repeats, "repeats", 1)
    if calibration_size is not None:
        check_whole(calibration_size, "calibration_size", 1)
    total = len(table)
    size = total // 2 if calibration_size is None else calibration_size
    if total < 2 or not 0 < size < total or repeats < 1:
        raise InvalidValueError(
            f"cannot hold out traces from {total} with calibration_size={size} and repeats={repeats}; give two traces "
            "or more, a size below their number, and one repeat or more"
        )
    if protocol not in ("loo", "split") or ties not in ("jitter", "strict", "randomized"):
        raise InvalidValueError(
            f"protocol={protocol!r} with ties={ties!r} is unknown; give 'loo' or 'split', and 'jitter', 'strict' or "
            "'randomized'"
        )
    order = np.lexsort((numbers, table.scores))[::-1]
    position = np.empty(total, np.int64)
    position[order] = np.arange(total)
    generator = np.random.default_rng(seed)
    if protocol == "loo":
        coin = generator.random(total)
        points = _leave_one_out(table, alphas, order, position, numbers, ties, coin)
    else:
        splits = [generator.permutation(total) for _ in range(repeats)]
        coins = [generator.random(total - size) for _ in range(repeats)]
        points = [_splits(table, alpha, order, position, numbers, ties, splits, coins, size) for alpha in alphas]
    return CalibrationCurve(tuple(points), protocol, event)


def _ranks(n: int, alpha: AlphaLike, ties: TieRule, coin: np.ndarray) -> np.ndarray:
    """Rank of the threshold for each test trace: k, or k - 1 for some when the rank is randomised."""
    rank = quantile_rank(n, alpha)
    if ties != "randomized":
        return np.full(len(coin), rank)
    return rank - (coin >= float((1 - exact_alpha(alpha)) * (n + 1) - (rank - 1)))


def _thresholds(
    table: OutcomeTable, sources: np.ndarray, numbers: np.ndarray, own: np.ndarray, ties: TieRule
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and inclusion of the calibration traces ``sources``: -1 stands for rank 0, -2 for too few scores."""
    thresholds = np.where(sources >= 0, table.scores[sources], np.where(sources == -1, np.inf, -np.inf))
    return thresholds, (own <= numbers[sources]) & (sources >= 0) & (ties != "strict")


def _leave_one_out(
    table: OutcomeTable,
    alphas: Sequence[AlphaLike] | np.ndarray,
    order: np.ndarray,
    position: np.ndarray,
    numbers: np.ndarray,
    ties: TieRule,
    coin: np.ndarray,
) -> list[CurvePoint]:
    n = len(table) - 1
    right, kept = [], []
    for alpha in alphas:
        ranks = _ranks(n, alpha, ties, coin)
        # The k-th largest of the others is one place further down for those that stand above it themselves.
        places = ranks - 1 + (position <= ranks - 1)
        sources = np.where(ranks == 0, -1, np.where(ranks > n, -2, order[np.clip(places, 0, n)]))
        members = table.chosen(*_thresholds(table, sources, numbers, numbers, ties))
        right.append(table.right(members))
        kept.append(table.retained(members))
    successes = np.array([row.sum() for row in right])
    # Clopper-Pearson for all levels at once.
    low = np.nan_to_num(beta.ppf(0.025, successes, n + 2 - successes), nan=0.0)
    high = np.nan_to_num(beta.ppf(0.975, successes + 1, n + 1 - successes), nan=1.0)
    return [
        _point(alpha, float(row.mean()), float(low[level]), float(high[level]), kept[level], n)
        for level, (alpha, row) in enumerate(zip(alphas, right, strict=True))
    ]


def _splits(
    table: OutcomeTable,
    alpha: AlphaLike,
    order: np.ndarray,
    position: np.ndarray,
    numbers: np.ndarray,
    ties: TieRule,
    splits: Sequence[np.ndarray],
    coins: Sequence[np.ndarray],
    size: int,
) -> CurvePoint:
    realised, kept = [], []
    for split, coin in zip(splits, coins, strict=True):
        test = split[size:]
        ranks = _ranks(size, alpha, ties, coin)
        calibration = order[np.sort(position[split[:size]])]
        sources = np.where(ranks == 0, -1, np.where(ranks > size, -2, calibration[np.clip(ranks, 1, size) - 1]))
        members = table.chosen(*_thresholds(table, sources, numbers, numbers[test], ties), test)
        realised.append(table.right(members, test).mean())
        kept.append(table.retained(members, test))
    low, high = np.quantile(realised, [0.025, 0.975])
    return _point(alpha, float(np.mean(realised)), float(low), float(high), np.concatenate(kept), size)


def _point(alpha: AlphaLike, realised: float, low: float, high: float, kept: np.ndarray, n: int) -> CurvePoint:
    level = float(exact_alpha(alpha))
    return CurvePoint(level, 1 - level, realised, low, high, float(kept.mean()), float((kept == 0.0).mean()), n)
