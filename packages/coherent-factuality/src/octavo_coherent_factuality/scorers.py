"""Scorers: how risky each claim is. Lower is safer; any function from a trace to one number per claim will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError, OctavoError
from scipy.stats import rankdata

from octavo_coherent_factuality._checks import array_of, check_whole, plain_scalar
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = [
    "Combined",
    "DescendantWeighted",
    "FrequencyScorer",
    "LogProb",
    "Ordinal",
    "Ranked",
    "ScoreColumn",
    "Scorer",
    "SelfConfidence",
    "check_scorer",
    "claim_risks",
    "lowest_risk",
]

Scorer = Callable[[ReasoningTrace], np.ndarray]
"""Function from a trace to the risk of each of its claims."""


@dataclass(frozen=True)
class FrequencyScorer:
    """Risk ``num_samples + 1 - frequency``, in [1, 2 num_samples + 1].

    The frequency of a claim is the number of sampled alternative answers that support it, less those that contradict
    it.

    Args:
        num_samples: Number of alternative answers.
        name: Name of the score in the claims.

    Raises:
        InvalidValueError: If the number of samples is below 1.
        InvalidTypeError: If it is not a whole number.
    """

    num_samples: int = 5
    name: str = "frequency"

    def __post_init__(self) -> None:
        check_whole(self.num_samples, "num_samples", 1)
        object.__setattr__(self, "num_samples", int(self.num_samples))

    @property
    def lowest(self) -> float:
        """The lowest risk that a claim can have."""
        return 1.0

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return self.num_samples + 1 - trace.score(self.name)


@dataclass(frozen=True)
class SelfConfidence:
    """Risk ``1 - confidence`` for the confidence in [0, 1] that a model states for each of its claims.

    Args:
        name: Name of the score in the claims.
    """

    name: str = "self_confidence"

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return 1.0 - trace.score(self.name)


@dataclass(frozen=True)
class LogProb:
    """Risk ``-log p`` for the log-probability that a model gives each of its claims.

    Args:
        name: Name of the score in the claims.
    """

    name: str = "logprob"

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return -trace.score(self.name)


@dataclass(frozen=True)
class ScoreColumn:
    """Any stored score as a risk.

    Args:
        name: Name of the score in the claims.
        higher_is_safer: Whether a higher score means a safer claim; the risk is then ``-score``.
    """

    name: str = "score"
    higher_is_safer: bool = True

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return -trace.score(self.name) if self.higher_is_safer else trace.score(self.name)


@dataclass(frozen=True)
class Ordinal:
    """Risk that grows along the answer: 0, 1, 2, ...; the baseline that knows nothing but the order."""

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return np.arange(trace.num_claims, dtype=np.float64)


@dataclass(frozen=True)
class Ranked:
    """Risk by rank within the answer: 0 for its safest claim; equal risks share their mean rank.

    Args:
        base: Scorer that ranks.

    Raises:
        InvalidTypeError: If the base is no scorer.
    """

    base: Scorer = field(default_factory=FrequencyScorer)

    def __post_init__(self) -> None:
        check_scorer(self.base)

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return rankdata(claim_risks(self.base, trace)) - 1.0


@dataclass(frozen=True)
class Combined:
    """Weighted sum of the risks of several scorers.

    Args:
        scorers: The scorers.
        weights: One weight each, not negative; ones if left out.

    Raises:
        InvalidValueError: If there is no scorer, or the weights do not fit.
        InvalidTypeError: If something else is among the scorers or the weights.
    """

    scorers: tuple[Scorer, ...]
    weights: tuple[float | int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scorers, tuple) or not isinstance(self.weights, tuple | None):
            raise InvalidTypeError("scorers and weights must be tuples, e.g. Combined((FrequencyScorer(), LogProb()))")
        for scorer in self.scorers:
            check_scorer(scorer)
        for weight in self.weights or ():
            if isinstance(weight, bool) or not isinstance(weight, int | float | np.number):
                raise InvalidTypeError(f"weight {weight!r} is not a number")
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(map(plain_scalar, self.weights)))
        weights = (1.0,) * len(self.scorers) if self.weights is None else self.weights
        if not self.scorers or len(weights) != len(self.scorers) or any(not weight >= 0 for weight in weights):
            raise InvalidValueError(
                f"{len(self.scorers)} scorers with weights {weights}; give at least one scorer and one weight >= 0 each"
            )

    @property
    def lowest(self) -> float:
        """The lowest risk that a claim can have."""
        return sum(weight * lowest_risk(scorer) for scorer, weight in self._pairs())

    def _pairs(self) -> list[tuple[Scorer, float | int]]:
        return list(zip(self.scorers, self.weights or (1.0,) * len(self.scorers), strict=True))

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        return np.sum([weight * claim_risks(scorer, trace) for scorer, weight in self._pairs()], axis=0)


@dataclass(frozen=True)
class DescendantWeighted:
    """Mix a claim's risk with the median risk of what follows from it.

    ``r(v) = (1 - beta) r0(v) + beta median{r0(w)}``, with the upper median over the direct children (or all
    descendants) w; claims without any keep r0. A claim whose consequences look right is more credible itself.

    Args:
        base: Scorer that gives r0.
        beta: Weight of the descendants, in [0, 1]; 0 is plain subgraph filtering, 0.5 descendant weight boosting.
        scope: ``"children"`` as in the reference implementation, or ``"descendants"`` as the paper words it.

    Raises:
        InvalidValueError: If beta or scope is out of range.
        InvalidTypeError: If the base is no scorer, or beta no number.

    Source:
        The paper's descendant weight boosting. ``"descendants"`` takes time and memory O(claims^2).
    """

    base: Scorer = field(default_factory=FrequencyScorer)
    beta: float | int = 0.5
    scope: Literal["children", "descendants"] = "children"

    def __post_init__(self) -> None:
        check_scorer(self.base)
        if isinstance(self.beta, bool) or not isinstance(self.beta, int | float | np.number):
            raise InvalidTypeError(f"beta={self.beta!r} is not a number; give a weight from 0 to 1")
        object.__setattr__(self, "beta", plain_scalar(self.beta))
        if not 0 <= self.beta <= 1:
            raise InvalidValueError(f"beta={self.beta} is out of range; give a weight from 0 to 1")
        if self.scope not in ("children", "descendants"):
            raise InvalidValueError(f"scope={self.scope!r} is unknown; give 'children' or 'descendants'")

    @property
    def lowest(self) -> float:
        """The lowest risk that a claim can have."""
        return lowest_risk(self.base)

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        base = claim_risks(self.base, trace)
        graph = trace.graph
        if self.beta == 0 or not graph.num_edges:
            return base
        if self.scope == "children":
            indptr, claims = graph.child_lists
        else:
            rows = [sorted(graph.descendants(claim)) for claim in range(graph.num_claims)]
            indptr = np.r_[0, np.cumsum([len(row) for row in rows])]
            claims = np.array([claim for row in rows for claim in row], np.int64)
        counts = np.diff(indptr)
        owners = np.repeat(np.arange(graph.num_claims), counts)
        values = base[claims][np.lexsort((base[claims], owners))]
        has = counts > 0
        median = values[(indptr[:-1] + counts // 2)[has]]
        risks = base.copy()
        risks[has] = (1 - self.beta) * base[has] + self.beta * median
        return risks


def check_scorer(scorer: object) -> None:
    """Check that something can score claims.

    Args:
        scorer: The scorer.

    Raises:
        InvalidTypeError: If it is no function, or an annotator.
    """
    if not callable(scorer) or isinstance(scorer, type) or hasattr(scorer, "event"):
        raise InvalidTypeError(
            f"scorer={scorer!r} is no scorer; give one such as FrequencyScorer(), or a function from a trace to one "
            "number per claim"
        )


def claim_risks(scorer: Scorer, trace: ReasoningTrace) -> Float64[np.ndarray, " claims"]:
    """Score a trace and check what comes back.

    Args:
        scorer: Any function from a trace to one number per claim.
        trace: The trace.

    Returns:
        The risks, in float64.

    Raises:
        InvalidValueError: If the scorer returns another number of risks, or one that is not finite.
        InvalidTypeError: If it fails on the trace, or returns no numbers.
    """
    try:
        risks = np.asarray(array_of(scorer(trace)), np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, OctavoError):
            raise
        raise InvalidTypeError(f"the scorer failed on {trace.name}: {error}; return one number per claim") from error
    if risks.shape != (trace.num_claims,):
        raise InvalidValueError(
            f"the scorer returned shape {risks.shape} for the {trace.num_claims} claims of {trace.name}; "
            "return one number per claim"
        )
    if not np.isfinite(risks).all():
        worst = int(np.flatnonzero(~np.isfinite(risks))[0])
        raise InvalidValueError(f"the risk of claim {worst} of {trace.name} is {risks[worst]}; risks must be finite")
    return risks


def lowest_risk(scorer: Scorer) -> float:
    """Return the lowest risk that a scorer can give: its attribute ``lowest``, else 0.

    Args:
        scorer: The scorer.

    Returns:
        The risk.
    """
    return float(getattr(scorer, "lowest", 0.0))
