"""Split conformal filters: calibrated on annotated traces, they keep what is safe of a new one."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_core.metrics import Interval, binomial_interval
from sklearn.base import BaseEstimator

from octavo_coherent_factuality.annotators import Annotator, nonconformity
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.method import FilteringMethod, MethodFamily
from octavo_coherent_factuality.outcomes import check_traces, has_identity, jitter, tie_numbers
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha, pac_rank, quantile_rank
from octavo_coherent_factuality.scorers import FrequencyScorer, Scorer
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = [
    "ConformalFilter",
    "FilterMetrics",
    "FilteredOutput",
    "SplitConformalFilter",
    "TieRule",
    "mean_retained",
    "metrics_of",
]

Fitted = TypeVar("Fitted", bound="ConformalFilter")

TieRule = Literal["jitter", "strict", "randomized"]
"""How equal risks are told apart; see :class:`SplitConformalFilter`."""


@dataclass(frozen=True)
class FilteredOutput:
    """What is kept of one answer.

    Args:
        kept: Indices of the kept claims, rising.
        order: The same in an order in which premises come first.
        abstained: Whether nothing is kept.
        threshold: The risk at which the answer was cut.
        trace: The answer it comes from.
    """

    kept: tuple[int, ...]
    order: tuple[int, ...]
    abstained: bool
    threshold: float
    trace: ReasoningTrace = field(repr=False, compare=False)

    @property
    def retained(self) -> float:
        """Share of the claims that are kept."""
        return len(self.kept) / self.trace.num_claims

    @property
    def mask(self) -> np.ndarray:
        """Mask of the kept claims."""
        mask = np.zeros(self.trace.num_claims, bool)
        mask[list(self.kept)] = True
        return mask

    def text(self, *, abstention: str = "Abstain.") -> str:
        """Return the kept claims, premises first, one a line.

        Args:
            abstention: What to say when nothing is kept.
        """
        return "\n".join(self.trace.claims[index].text or f"[claim {index}]" for index in self.order) or abstention

    def to_json(self) -> dict[str, Any]:
        """Return the output as JSON-ready fields."""
        return {
            "id": self.trace.id,
            "question": self.trace.question,
            "kept": list(self.kept),
            "order": list(self.order),
            "abstained": self.abstained,
            "threshold": self.threshold if math.isfinite(self.threshold) else str(self.threshold),
            "text": self.text(),
        }


@dataclass(frozen=True)
class FilterMetrics:
    """How a filter did on annotated traces.

    Args:
        realised: Share of outputs that are right.
        interval: Interval of that share, Clopper-Pearson, 95 %.
        retained: Mean share of claims kept.
        abstained: Share of outputs with nothing in them.
        n: Number of traces.
        event: What counts as right.
    """

    realised: float
    interval: Interval
    retained: float
    abstained: float
    n: int
    event: str


class ConformalFilter(BaseEstimator):
    """What all filters share: scoring, the cut of an answer, checks. Use one of the subclasses.

    Args:
        alpha: Error level.
        scorer: Risk of each claim; frequency scores if left out.
        family: How the outputs grow.
        annotator: What counts as right in calibration.
        seed: Seed of the tie-breaking.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        scorer: Scorer | None = None,
        family: MethodFamily = "subgraph",
        annotator: Annotator | None = None,
        seed: int = 0,
    ) -> None:
        self.alpha = alpha
        self.scorer = scorer
        self.family = family
        self.annotator = annotator
        self.seed = seed

    @property
    def method(self) -> FilteringMethod:
        """The method, without the level."""
        return FilteringMethod(FrequencyScorer() if self.scorer is None else self.scorer, self.family, self.annotator)

    @property
    def event(self) -> str:
        """The event that the guarantee is about."""
        return self.method.calibration_annotator.event

    def fit(self: Fitted, X: Any, y: Any = None) -> Fitted:
        """Calibrate on annotated traces.

        Args:
            X: List of traces; exchangeable with those to be filtered, and not used to make the scorer.
            y: Ignored; the annotations are in the traces.

        Returns:
            The filter itself, with ``scores_``, ``n_`` and what the kind of filter adds.

        Raises:
            InvalidValueError: If there are no traces, or a trace or a setting cannot be used.
            InvalidTypeError: If it is no list of traces, or the scorer or the annotator is none.
        """
        check_traces(X)
        traces = list(X)
        self._check_parameters()
        method = self.method
        annotator = method.calibration_annotator
        questions = [trace.question for trace in traces if trace.question is not None]
        if len(set(questions)) < len(questions):
            warnings.warn(
                "some calibration traces share a question: they are not exchangeable with new questions, and the "
                "guarantee needs that; keep one trace per question",
                stacklevel=2,
            )
        self.scores_ = np.array([nonconformity(annotator, trace, method.families(trace)[0]) for trace in traces])
        self.n_ = len(traces)
        self.calibration_keys_ = frozenset(_identities(traces))
        self._calibrate(traces)
        return self

    def predict(self, X: Any) -> list[FilteredOutput]:
        """Keep what is safe of each answer. Safe to call from several threads.

        Args:
            X: List of traces; annotations are not needed.

        Returns:
            One output each.

        Raises:
            InvalidStateError: If the filter is not calibrated.
            InvalidTypeError: If it is no list of traces.
        """
        if isinstance(X, Sequence | np.ndarray) and not isinstance(X, str | bytes) and not len(X):
            return []
        check_traces(X)
        traces = list(X)
        self._check_fitted()
        self._warn_of_overlap(traces)
        method = self.method
        outputs = []
        for trace, number in zip(traces, tie_numbers(traces, self.seed, "prediction"), strict=True):
            threshold, inclusive = self._cut(trace, float(number))
            outputs.append(_cut_output(trace, method.output_family(trace), threshold, inclusive))
        return outputs

    def evaluate(self, X: Any, *, annotator: Annotator | None = None) -> FilterMetrics:
        """Filter annotated traces and tell how it went.

        Args:
            X: List of annotated traces that were not used in calibration.
            annotator: What counts as right; as in calibration if left out.

        Returns:
            The metrics.

        Raises:
            InvalidValueError: If there are no traces.
        """
        metrics = metrics_of(self.predict(X), annotator or self.method.calibration_annotator)
        if annotator is None and self.event != metrics.event:
            # Risk control: what it bounds is no share of outputs that are right.
            return replace(metrics, event=f"{metrics.event} (the filter controls another quantity: {self.event})")
        return metrics

    def score(self, X: Any, y: Any = None) -> float:
        """Mean share of claims kept: what model selection may maximise, since the level is guaranteed anyway.

        Args:
            X: Traces.
            y: Ignored.

        Returns:
            The share; see :meth:`evaluate` for the other figures.

        Raises:
            InvalidValueError: If there are no traces.
        """
        return mean_retained(self.predict(X))

    def _check_parameters(self) -> None:
        exact_alpha(self.alpha)
        _check_seed(self.seed)

    def _check_fitted(self) -> None:
        if not hasattr(self, "scores_"):
            raise InvalidStateError(f"this {type(self).__name__} is not calibrated; call fit with annotated traces")

    def _warn_of_overlap(self, traces: Sequence[ReasoningTrace]) -> None:
        shared = {name for key, name in _identities(traces).items() if key in self.calibration_keys_}
        if shared:
            warnings.warn(
                f"{len(shared)} of the traces share an id or a question with the calibration set, e.g. {min(shared)}: "
                "for them the guarantee says nothing; calibrate on other questions",
                stacklevel=3,
            )

    def _calibrate(self, traces: Sequence[ReasoningTrace]) -> None:
        raise NotImplementedError

    def _cut(self, trace: ReasoningTrace, number: float) -> tuple[float, bool]:
        """Threshold for a trace, and whether a risk equal to it is kept."""
        raise NotImplementedError


class SplitConformalFilter(ConformalFilter):
    """The paper's filter: one threshold, the k-th largest calibration score, with k = ceil((n + 1)(1 - alpha)).

    For exchangeable traces the output is right with probability at least 1 - alpha, and at most 1 - alpha + 1/(n + 1)
    where scores have no ties and whole answers are not always right. "Right" is the event of the annotator.

    Frequency scores are integers, so scores tie, and keeping every risk up to the threshold would then fail the
    guarantee. ``ties`` is one of three valid rules:

    - ``"jitter"``: ties are broken by one uniform number per trace, compared only between equal risks (an
      infinitesimally small jitter: it never reorders different risks, whatever their scale);
    - ``"strict"``: only risks below the threshold are kept; deterministic and conservative;
    - ``"randomized"``: as jitter, and the rank is drawn between k and k - 1 so that coverage is 1 - alpha exactly.

    The numbers of the last two rules come from the seed and the ids of the traces, or their questions. A trace that
    has neither, or shares its question within one call, loses all ties, which is the strict rule for it: valid, and
    less is kept. Give ids, or questions that differ, for the sharper rules.

    Args:
        alpha: Error level in (0, 1); a float means its decimal notation, exactly.
        scorer: Risk of each claim; ``FrequencyScorer()`` if left out.
        family: ``"subgraph"`` (the paper), ``"independent"``, ``"posthoc"``, ``"prefix"`` or ``"greedy"``.
        annotator: What counts as right in calibration; ``Silver()`` by default, ``Independent()`` for the families
            that calibrate without the graph.
        ties: The rule for ties.
        delta: If given, the level is tightened so that a share 1 - delta of calibration sets has coverage 1 - alpha.
        seed: Seed of the tie-breaking.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        scorer: Scorer | None = None,
        family: MethodFamily = "subgraph",
        annotator: Annotator | None = None,
        ties: TieRule = "jitter",
        delta: AlphaLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, scorer=scorer, family=family, annotator=annotator, seed=seed)
        self.ties = ties
        self.delta = delta

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.ties not in ("jitter", "strict", "randomized"):
            raise InvalidValueError(f"ties={self.ties!r} is unknown; give 'jitter', 'strict' or 'randomized'")
        if self.delta is not None:
            exact_alpha(self.delta, "delta")

    def _calibrate(self, traces: Sequence[ReasoningTrace]) -> None:
        numbers = tie_numbers(traces, self.seed, "calibration")
        order = np.lexsort((numbers, self.scores_))[::-1]
        self.rank_ = (
            quantile_rank(self.n_, self.alpha) if self.delta is None else pac_rank(self.n_, self.alpha, self.delta)
        )
        # Entry j is the (j + 1)-th largest score with its tie-breaking number; entry n stands for too few scores.
        self.sorted_scores_ = np.r_[self.scores_[order], -math.inf]
        self.sorted_jitter_ = np.r_[numbers[order], 0.0]
        self.threshold_ = float(self.sorted_scores_[self.rank_ - 1])
        if self.rank_ > self.n_ and self.ties != "randomized":
            least = math.ceil(1 / exact_alpha(self.alpha)) - 1
            warnings.warn(
                f"{self.n_} calibration traces are too few for alpha={self.alpha}"
                f"{'' if self.delta is None else f' with delta={self.delta}'}: everything is abstained from; give "
                f"{'more traces' if self.delta is not None else f'at least {least} traces'} or a larger alpha",
                stacklevel=3,
            )

    def _cut(self, trace: ReasoningTrace, number: float) -> tuple[float, bool]:
        rank = self.rank_
        if self.ties == "randomized" and self.delta is None:
            share = float((1 - exact_alpha(self.alpha)) * (self.n_ + 1) - (rank - 1))
            if has_identity(trace) and float(jitter([trace], self.seed, "rank")[0]) >= share:
                rank -= 1
        if rank == 0:
            return math.inf, True
        threshold = float(self.sorted_scores_[rank - 1])
        return threshold, self.ties != "strict" and number <= float(self.sorted_jitter_[rank - 1])


def metrics_of(outputs: Sequence[FilteredOutput], judge: Annotator) -> FilterMetrics:
    """Tell how outputs of annotated traces did.

    Args:
        outputs: The outputs.
        judge: What counts as right.

    Returns:
        The metrics.

    Raises:
        InvalidValueError: If there is no output.
    """
    if not outputs:
        raise InvalidValueError("no traces to evaluate on; give at least one")
    right = sum(output.abstained or judge(output.trace, output.mask) for output in outputs)
    return FilterMetrics(
        realised=right / len(outputs),
        interval=binomial_interval(int(right), len(outputs)),
        retained=mean_retained(outputs),
        abstained=float(np.mean([output.abstained for output in outputs])),
        n=len(outputs),
        event=judge.event,
    )


def mean_retained(outputs: Sequence[FilteredOutput]) -> float:
    """Average the share of claims that outputs keep.

    Args:
        outputs: The outputs.

    Returns:
        The mean share.

    Raises:
        InvalidValueError: If there is no output.
    """
    if not outputs:
        raise InvalidValueError("no traces to score; give at least one")
    return float(np.mean([output.retained for output in outputs]))


def _check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InvalidTypeError(f"seed={seed!r} is not a whole number; give one such as 0")


def _cut_output(trace: ReasoningTrace, family: NestedFamily, threshold: float, inclusive: bool) -> FilteredOutput:
    kept = family.at(threshold, inclusive=inclusive)
    order = trace.graph.topological_order
    return FilteredOutput(
        kept=tuple(np.flatnonzero(kept).tolist()),
        order=tuple(order[kept[order]].tolist()),
        abstained=not kept.any(),
        threshold=threshold,
        trace=trace,
    )


def _identities(traces: Sequence[ReasoningTrace]) -> dict[str, str]:
    """Names of traces by the digests of their ids and questions; those that have neither cannot be recognised."""
    found = {}
    for trace in traces:
        for kind, text in (("id", trace.id), ("question", trace.question)):
            if text is not None:
                found[hashlib.sha256(f"{kind}:{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]] = trace.name
    return found
