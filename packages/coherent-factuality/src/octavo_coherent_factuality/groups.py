"""Group-wise (Mondrian) and weighted calibration: guarantees within groups, and under covariate shift."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality.annotators import Annotator
from octavo_coherent_factuality.filter import ConformalFilter
from octavo_coherent_factuality.method import MethodFamily
from octavo_coherent_factuality.outcomes import tie_numbers
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha, quantile_rank
from octavo_coherent_factuality.scorers import Scorer
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["GroupConformalFilter", "WeightedConformalFilter"]


class GroupConformalFilter(ConformalFilter):
    """One threshold for each group of traces, so that the guarantee holds within every group.

    With ``alpha`` as a mapping each group has its own level (level-adaptive filtering).

    Args:
        alpha: Error level, or one for each group.
        group_by: Function from a trace to its group, fixed before calibration; ``trace.group`` if left out. A group is
            a name or anything else that can be a key, e.g. a tuple of subject and level.
        unseen: For a group without calibration traces: ``"abstain"``, or ``"pooled"`` to use the threshold of all
            groups together, whose guarantee is only marginal.
        scorer: See :class:`SplitConformalFilter`.
        family: See :class:`SplitConformalFilter`.
        annotator: See :class:`SplitConformalFilter`.
        seed: Seed of the tie-breaking.

    Source:
        Mondrian conformal prediction; beyond the paper.
    """

    def __init__(
        self,
        alpha: AlphaLike | Mapping[Any, AlphaLike] = 0.1,
        *,
        group_by: Callable[[ReasoningTrace], Hashable] | None = None,
        unseen: Literal["abstain", "pooled"] = "abstain",
        scorer: Scorer | None = None,
        family: MethodFamily = "subgraph",
        annotator: Annotator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(0.1, scorer=scorer, family=family, annotator=annotator, seed=seed)
        self.alpha = alpha
        self.group_by = group_by
        self.unseen = unseen

    def _check_parameters(self) -> None:
        for level in self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]:
            exact_alpha(level)
        if self.unseen not in ("abstain", "pooled"):
            raise InvalidValueError(f"unseen={self.unseen!r} is unknown; give 'abstain' or 'pooled'")
        if self.unseen == "pooled" and isinstance(self.alpha, Mapping):
            raise InvalidValueError("unseen='pooled' needs one level for all groups; give alpha as a number")

    def _group(self, trace: ReasoningTrace) -> Hashable:
        group = trace.group if self.group_by is None else self.group_by(trace)
        if not isinstance(group, Hashable):
            raise InvalidTypeError(f"the group of {trace.name} is {group!r}; give a name, a number or a tuple")
        # NaN, the empty cell of a table, equals nothing: each trace would be a group of its own.
        if group is None or group != group:
            raise InvalidValueError(f"{trace.name} has no group ({group}); set its group, or give group_by")
        return group

    def _level(self, group: Hashable) -> AlphaLike:
        if not isinstance(self.alpha, Mapping):
            return self.alpha
        if group not in self.alpha:
            raise InvalidValueError(f"no level for the group {group!r}; alpha has {', '.join(map(str, self.alpha))}")
        return self.alpha[group]

    def _calibrate(self, traces: Sequence[ReasoningTrace]) -> None:
        numbers = tie_numbers(traces, self.seed, "calibration")
        rows: dict[Hashable, list[int]] = {}
        for row, trace in enumerate(traces):
            rows.setdefault(self._group(trace), []).append(row)
        self.cuts_: dict[Hashable, tuple[float, float]] = {}
        self.counts_: dict[Hashable, int] = {}
        for group, members in rows.items():
            self.counts_[group] = len(members)
            self.cuts_[group] = _ranked(self.scores_[members], numbers[members], self._level(group))
            if self.cuts_[group][0] == -math.inf:
                warnings.warn(
                    f"the group {group!r} has {self.counts_[group]} calibration traces, too few for "
                    f"alpha={self._level(group)}: everything in it is abstained from",
                    stacklevel=3,
                )
        self.pooled_cut_ = (
            (-math.inf, 0.0) if isinstance(self.alpha, Mapping) else _ranked(self.scores_, numbers, self.alpha)
        )

    def _cut(self, trace: ReasoningTrace, number: float) -> tuple[float, bool]:
        fallback = self.pooled_cut_ if self.unseen == "pooled" else (-math.inf, 0.0)
        threshold, limit = self.cuts_.get(self._group(trace), fallback)
        return threshold, number <= limit


class WeightedConformalFilter(ConformalFilter):
    """Calibration under covariate shift: traces count by how much likelier they are among the ones to be filtered.

    Args:
        alpha: Error level.
        weight: Function from a trace to its likelihood ratio (test over calibration), positive, up to a factor; it
            must not look at annotations and must not be fitted on the calibration traces' scores.
        scorer: See :class:`SplitConformalFilter`.
        family: See :class:`SplitConformalFilter`.
        annotator: See :class:`SplitConformalFilter`.
        seed: Seed of the tie-breaking.

    Source:
        Weighted conformal prediction (Tibshirani et al., 2019); beyond the paper. With equal weights it is the plain
        filter, and the guarantee holds as far as the ratios are right.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        weight: Callable[[ReasoningTrace], float],
        scorer: Scorer | None = None,
        family: MethodFamily = "subgraph",
        annotator: Annotator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, scorer=scorer, family=family, annotator=annotator, seed=seed)
        self.weight = weight

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not callable(self.weight):
            raise InvalidTypeError(f"weight={self.weight!r} is no function; give one from a trace to its weight")

    def _weigh(self, trace: ReasoningTrace) -> Fraction:
        given = self.weight(trace)
        try:
            weight = float(given)
        except (TypeError, ValueError) as error:
            raise InvalidTypeError(f"the weight of {trace.name} is {given!r}; give a positive number") from error
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidValueError(f"the weight of {trace.name} is {weight}; weights must be positive and finite")
        return Fraction(weight)

    def _calibrate(self, traces: Sequence[ReasoningTrace]) -> None:
        numbers = tie_numbers(traces, self.seed, "calibration")
        order = np.lexsort((numbers, self.scores_))[::-1]
        self.sorted_scores_, self.sorted_jitter_ = self.scores_[order], numbers[order]
        # Exact sums: with equal weights the rank must be the one of the plain filter, to the last trace.
        self.mass_ = list(accumulate(self._weigh(traces[row]) for row in order))
        self.effective_n_ = float(self.mass_[-1] ** 2 / sum(self._weigh(trace) ** 2 for trace in traces))

    def _cut(self, trace: ReasoningTrace, number: float) -> tuple[float, bool]:
        needed = (1 - exact_alpha(self.alpha)) * (self.mass_[-1] + self._weigh(trace))
        place = bisect_left(self.mass_, needed)
        if place == self.n_:
            return -math.inf, False
        return float(self.sorted_scores_[place]), number <= float(self.sorted_jitter_[place])


def _ranked(scores: np.ndarray, numbers: np.ndarray, alpha: AlphaLike) -> tuple[float, float]:
    """The k-th largest score with its tie-breaking number."""
    rank = quantile_rank(len(scores), alpha)
    if rank > len(scores):
        return -math.inf, 0.0
    row = np.lexsort((numbers, scores))[::-1][rank - 1]
    return float(scores[row]), float(numbers[row])
