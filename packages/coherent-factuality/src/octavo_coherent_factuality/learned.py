"""Learned scorers: a small network for the risk of a claim, trained so that the filter keeps more, calibrated apart.

Import this module by its name; it loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from octavo_core.device import resolve_device
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_core.progress import ProgressCallback, no_progress
from sklearn.base import BaseEstimator
from torch import Tensor

from octavo_coherent_factuality._checks import check_whole
from octavo_coherent_factuality.annotators import Annotator
from octavo_coherent_factuality.filter import (
    FilteredOutput,
    FilterMetrics,
    SplitConformalFilter,
    TieRule,
    mean_retained,
    metrics_of,
)
from octavo_coherent_factuality.outcomes import check_traces, has_identity, jitter
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["CrossFittedFilter", "LearnedScorer", "claim_features", "soft_entry_risk", "train_scorer"]


@dataclass(frozen=True, eq=False)
class LearnedScorer:
    """Risk of a claim by a network with one hidden layer on its scores and those around it in the graph.

    Args:
        scores: Names of the scores used.
        mean: Mean of each feature in training.
        scale: Standard deviation of each feature in training.
        weights: Weights and biases of both layers.
    """

    scores: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        """Return the risk of each claim."""
        features = (claim_features(trace, self.scores) - self.mean) / self.scale
        first, first_bias, second, second_bias = self.weights
        return (np.tanh(features @ first.T + first_bias) @ second.T + second_bias)[:, 0]


def claim_features(trace: ReasoningTrace, scores: Sequence[str]) -> Float64[np.ndarray, "claims features"]:
    """Describe each claim by its scores, those around it, and its place in the graph.

    Per score: its own, the smallest among its ancestors and itself, the mean and the smallest of its children (its own
    without children), and the mean over the answer. Besides: depth, number of premises and of children, claims in the
    answer. Nothing depends on the order of the claims.

    Args:
        trace: The trace.
        scores: Names of the scores.

    Returns:
        One row per claim.
    """
    graph = trace.graph
    indptr, children = graph.child_lists
    counts = np.diff(indptr)
    has = counts > 0
    columns = []
    for name in scores:
        own = trace.score(name)
        mean, least = own.copy(), own.copy()
        if has.any():
            starts = indptr[:-1][has]
            mean[has] = np.add.reduceat(own[children], starts) / counts[has]
            least[has] = np.minimum.reduceat(own[children], starts)
        columns += [own, -graph.running_max(-own), mean, least, np.full(len(own), own.mean())]
    depth = graph.depth().astype(np.float64)
    columns += [depth, np.diff(graph.indptr), np.log1p(counts), np.full(len(depth), math.log(len(depth)))]
    return np.stack(columns, axis=1).astype(np.float64)


def soft_entry_risk(
    risks: Float[Tensor, " claims"],
    levels: Sequence[tuple[Tensor, Tensor, Tensor]],
    temperature: float | int,
) -> Float[Tensor, " claims"]:
    """Smooth maximum of the risks of a claim and its ancestors; differentiable.

    Args:
        risks: Risk of each claim.
        levels: For each depth from 1: its claims, and its edges as positions in that list and premises.
        temperature: Width of the smoothing; 0 in the limit is the entry risk itself.

    Returns:
        The soft entry risks, at least the exact ones.

    Source:
        Differentiable relaxation of subgraph filtering, in the manner of arXiv 2604.20098; beyond the paper.
    """
    entry = risks / temperature
    for claims, owners, premises in levels:
        own, above = entry[claims], entry[premises]
        peak = own.detach().scatter_reduce(0, owners, above.detach(), "amax")
        total = torch.exp(own - peak).scatter_add(0, owners, torch.exp(above - peak[owners]))
        entry = entry.index_copy(0, claims, peak + torch.log(total))
    return entry * temperature


def train_scorer(
    traces: Sequence[ReasoningTrace],
    *,
    alpha: AlphaLike = 0.05,
    scores: Sequence[str] = ("frequency", "self_confidence"),
    hidden: int = 16,
    steps: int = 400,
    learning_rate: float = 0.02,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: ProgressCallback = no_progress,
) -> LearnedScorer:
    """Train a scorer on annotated traces that are not used for calibration.

    First the network learns which claims are false (cross-entropy); then it maximises the share of claims below a soft
    threshold, the soft conformal quantile of the smooth non-conformity scores on the same batch.

    Args:
        traces: Annotated traces.
        alpha: Error level to train for.
        scores: Names of the scores to use.
        hidden: Hidden units.
        steps: Steps of the optimiser, half of them on cross-entropy.
        learning_rate: Of Adam.
        seed: Seed of the initialisation.
        device: Where to train.
        progress: Called with what is done.

    Returns:
        The scorer.

    Raises:
        InvalidValueError: If all claims are factual or none is, a setting is out of range, or training diverges.
        InvalidTypeError: If a setting is not a whole number, or the names of scores are no list.
        InvalidStateError: If this machine has no such device.
    """
    check_traces(traces)
    place = resolve_device(device)
    if isinstance(scores, str):
        raise InvalidTypeError(f"scores={scores!r} is one text; give a list of names such as [{scores!r}]")
    for name, value in (("hidden", hidden), ("steps", steps), ("seed", seed)):
        check_whole(value, name)
    if hidden < 1 or steps < 2 or not 0 < learning_rate < math.inf:
        raise InvalidValueError(
            f"hidden={hidden}, steps={steps}, learning_rate={learning_rate} must be positive and finite, and steps 2 "
            "or more"
        )
    level = float(exact_alpha(alpha))
    raw = np.concatenate([claim_features(trace, scores) for trace in traces])
    factual = np.concatenate([trace.factual for trace in traces])
    if factual.all() or not factual.any():
        raise InvalidValueError("the training traces have no false claim, or only false ones: nothing can be learned")
    mean, scale = raw.mean(0), raw.std(0)
    scale[scale < 1e-9] = 1.0
    batch = _Batch.build(traces, place)
    features = torch.tensor((raw - mean) / scale, dtype=torch.float32, device=place)
    wrong = torch.tensor(~factual, device=place)
    generator = torch.Generator().manual_seed(seed)
    # Layers that do not initialise themselves: that would draw from the global generator.
    skip_init = torch.nn.utils.skip_init
    first, second = skip_init(torch.nn.Linear, features.shape[1], hidden), skip_init(torch.nn.Linear, hidden, 1)
    network = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    with torch.no_grad():
        for parameter in network.parameters():
            width = 1.0 / math.sqrt(parameter.shape[-1])
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * width)
    network.to(place)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, weight_decay=1e-4)
    for step in range(steps):
        risks = network(features)[:, 0]
        if step < steps // 2:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(risks, wrong.float())
        else:
            loss = -batch.soft_retained(risks, wrong, level)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        progress("training the scorer", (step + 1) / steps)
    layers = (first.weight, first.bias, second.weight, second.bias)
    w1, b1, w2, b2 = (layer.detach().cpu().numpy().astype(np.float64) for layer in layers)
    if not all(np.isfinite(layer).all() for layer in (w1, b1, w2, b2)):
        raise InvalidValueError(f"training diverged with learning_rate={learning_rate}; give a smaller one")
    return LearnedScorer(tuple(scores), mean, scale, (w1, b1, w2, b2))


@dataclass(frozen=True)
class _Batch:
    """The graphs of many traces as one, level by level."""

    owner: Int64[Tensor, " claims"]
    levels: tuple[tuple[Tensor, Tensor, Tensor], ...]
    sizes: Tensor

    @classmethod
    def build(cls, traces: Sequence[ReasoningTrace], device: torch.device) -> _Batch:
        offsets = np.r_[0, np.cumsum([trace.num_claims for trace in traces])]
        claims = np.concatenate([t.graph.edge_claims + o for t, o in zip(traces, offsets, strict=False)])
        premises = np.concatenate([t.graph.indices + o for t, o in zip(traces, offsets, strict=False)])
        depth = np.concatenate([trace.graph.depth() for trace in traces])
        position = np.empty(len(depth), np.int64)
        levels = []
        for value in range(1, int(depth.max(initial=0)) + 1):
            members = np.flatnonzero(depth == value)
            position[members] = np.arange(len(members))
            edges = depth[claims] == value
            arrays = (members, position[claims[edges]], premises[edges])
            first, second, third = (torch.tensor(array, device=device) for array in arrays)
            levels.append((first, second, third))
        owner = np.repeat(np.arange(len(traces)), np.diff(offsets))
        return cls(
            torch.tensor(owner, device=device),
            tuple(levels),
            torch.tensor(np.diff(offsets), dtype=torch.float32, device=device),
        )

    def soft_retained(self, risks: Tensor, wrong: Tensor, alpha: float) -> Tensor:
        """Mean share of claims below the soft conformal threshold, in units of the spread of the entry risks."""
        scale = risks.detach().std() + 1e-6
        temperature = 0.1 * scale
        entry = soft_entry_risk(risks, self.levels, float(temperature) * 0.5)
        count = len(self.sizes)
        # Soft minimum over false claims; traces without any stay at a ceiling above all.
        ceiling = entry.detach().max() + scale
        false, owner = -entry[wrong] / temperature, self.owner[wrong]
        peak = torch.full((count,), -torch.inf, device=risks.device).scatter_reduce(0, owner, false.detach(), "amax")
        has_false = peak.isfinite()
        peak = torch.where(has_false, peak, 0.0)
        # Shifted by the largest exponent: an outlier among the risks would overflow single precision.
        total = torch.zeros(count, device=risks.device).scatter_add(0, owner, torch.exp(false - peak[owner]))
        scores = torch.where(has_false, -temperature * (peak + torch.log(torch.where(has_false, total, 1.0))), ceiling)
        # A bell of weights over the ranks around the quantile.
        ordered = scores.sort(descending=True).values
        ranks = torch.arange(1, count + 1, device=risks.device)
        target, width = (1 - alpha) * (count + 1), max(1.0, 0.02 * count)
        bell = torch.exp(-0.5 * ((ranks - target) / width) ** 2)
        threshold = (bell * ordered).sum() / bell.sum()
        kept = torch.sigmoid((threshold - entry) / temperature)
        share = torch.zeros(count, device=risks.device).scatter_add(0, self.owner, kept) / self.sizes
        return share.mean()


class CrossFittedFilter(BaseEstimator):
    """A learned scorer and its calibration on the same traces, by folds.

    For each fold a scorer is trained on the other folds and calibrated on this one.

    - ``combine="random"``: a new trace is filtered by the scorer and threshold of one fold, drawn at random. Each fold
      is an exact split-conformal filter, so the guarantee 1 - alpha is exact; each threshold rests on n / folds traces.
    - ``combine="pooled"``: the scores of all folds are pooled, after each scorer's risks are put on a common scale by
      their ranks, and a new trace is scored by the mean over scorers. The threshold rests on all n traces; the
      guarantee is approximate.

    Args:
        alpha: Error level.
        folds: Number of folds, at least 2.
        combine: ``"random"`` or ``"pooled"``.
        scores: Names of the scores to learn from.
        annotator: What counts as right in calibration.
        ties: Rule for ties, see :class:`SplitConformalFilter`.
        steps: Steps of training.
        hidden: Hidden units.
        seed: Seed of folds, training and ties.

    Source:
        Beyond the paper.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        folds: int = 4,
        combine: Literal["random", "pooled"] = "random",
        scores: Sequence[str] = ("frequency", "self_confidence"),
        annotator: Annotator | None = None,
        ties: TieRule = "jitter",
        steps: int = 400,
        hidden: int = 16,
        seed: int = 0,
    ) -> None:
        self.alpha = alpha
        self.folds = folds
        self.combine = combine
        self.scores = scores
        self.annotator = annotator
        self.ties = ties
        self.steps = steps
        self.hidden = hidden
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> CrossFittedFilter:
        """Train and calibrate.

        Args:
            X: Annotated traces.
            y: Ignored.

        Returns:
            The filter itself.

        Raises:
            InvalidValueError: If a setting is out of range, or there are fewer traces than folds.
            InvalidTypeError: If the folds or the seed are not whole numbers, or the names of scores are no list.
        """
        check_traces(X)
        traces = list(X)
        check_whole(self.folds, "folds")
        check_whole(self.seed, "seed", 0)
        if self.combine not in ("random", "pooled") or not 2 <= self.folds <= len(traces):
            raise InvalidValueError(
                f"combine={self.combine!r} with {self.folds} folds of {len(traces)} traces; give 'random' or "
                "'pooled', and "
                "from 2 folds to one per trace"
            )
        order = np.random.default_rng(self.seed).permutation(len(traces))
        self.filters_: list[SplitConformalFilter] = []
        parts = np.array_split(order, self.folds)
        scorers = []
        for part in parts:
            held_out = set(part.tolist())
            scorers.append(
                train_scorer(
                    [trace for row, trace in enumerate(traces) if row not in held_out],
                    alpha=self.alpha,
                    scores=self.scores,
                    hidden=self.hidden,
                    steps=self.steps,
                    seed=self.seed,
                )
            )
        if self.combine == "random":
            for part, scorer in zip(parts, scorers, strict=True):
                self.filters_.append(self._split(scorer).fit([traces[row] for row in part.tolist()]))
            return self
        references = [np.sort(np.concatenate([scorer(trace) for trace in traces])) for scorer in scorers]
        scaled = [_RankScaled(scorer, reference) for scorer, reference in zip(scorers, references, strict=True)]
        out_of_fold = [
            traces[row].with_score("learned", scorer(traces[row]))
            for part, scorer in zip(parts, scaled, strict=True)
            for row in part.tolist()
        ]
        pooled = self._split(_Stored()).fit(out_of_fold)
        pooled.scorer = _Mean(tuple(scaled))
        self.filters_.append(pooled)
        return self

    def predict(self, X: Any) -> list[FilteredOutput]:
        """Keep what is safe of each answer.

        Args:
            X: Traces.

        Returns:
            One output each.

        Raises:
            InvalidStateError: If the filter is not calibrated.
        """
        if not hasattr(self, "filters_"):
            raise InvalidStateError("this CrossFittedFilter is not calibrated; call fit with annotated traces")
        if isinstance(X, Sequence | np.ndarray) and not isinstance(X, str | bytes) and not len(X):
            return []
        check_traces(X)
        traces = list(X)
        chosen = (jitter(traces, self.seed, "fold") * len(self.filters_)).astype(int)
        # A fold drawn from the contents would not be drawn at random; always the same one is a filter like any other.
        chosen[[not has_identity(trace) for trace in traces]] = 0
        outputs: list[FilteredOutput | None] = [None] * len(traces)
        for index, fitted in enumerate(self.filters_):
            rows = np.flatnonzero(chosen == index).tolist()
            for row, output in zip(rows, fitted.predict([traces[row] for row in rows]), strict=True):
                outputs[row] = output
        return [output for output in outputs if output is not None]

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
        outputs = self.predict(X)
        return metrics_of(outputs, annotator or self.filters_[0].method.calibration_annotator)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean share of claims kept.

        Args:
            X: List of traces.
            y: Ignored.

        Returns:
            The share.

        Raises:
            InvalidValueError: If there are no traces.
        """
        return mean_retained(self.predict(X))

    def _split(self, scorer: Any) -> SplitConformalFilter:
        return SplitConformalFilter(self.alpha, scorer=scorer, annotator=self.annotator, ties=self.ties, seed=self.seed)


@dataclass(frozen=True, eq=False)
class _RankScaled:
    """A scorer whose risks are the share of reference risks below, so that scorers become comparable."""

    scorer: LearnedScorer
    reference: np.ndarray

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        grid = np.linspace(0.0, 1.0, len(self.reference))
        return np.interp(self.scorer(trace), self.reference, grid)


@dataclass(frozen=True)
class _Stored:
    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        return trace.score("learned")


@dataclass(frozen=True, eq=False)
class _Mean:
    scorers: tuple[_RankScaled, ...]

    def __call__(self, trace: ReasoningTrace) -> np.ndarray:
        return np.mean([scorer(trace) for scorer in self.scorers], axis=0)
