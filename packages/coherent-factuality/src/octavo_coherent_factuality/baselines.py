"""Yardsticks: no filtering, a fixed threshold, and the oracle that knows which claims are false."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64
from octavo_core.errors import InvalidValueError

from octavo_coherent_factuality._checks import number_of
from octavo_coherent_factuality.method import METHODS, FilteringMethod
from octavo_coherent_factuality.outcomes import OutcomeTable
from octavo_coherent_factuality.quantile import conformal_threshold
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["METHODS", "fixed_threshold", "no_filtering", "oracle_retained", "oracle_subset", "recomputed_curve"]


def no_filtering(traces: Sequence[ReasoningTrace], method: FilteringMethod | None = None) -> tuple[float, float]:
    """Keep everything.

    Args:
        traces: Annotated traces.
        method: Whose annotator judges; the silver rule if left out.

    Returns:
        Share of right answers, and the share of claims kept, which is 1.
    """
    return fixed_threshold(traces, np.inf, method)


def fixed_threshold(
    traces: Sequence[ReasoningTrace], tau: float | int, method: FilteringMethod | None = None
) -> tuple[float, float]:
    """Cut every answer at the same risk, chosen by hand.

    Args:
        traces: Annotated traces.
        tau: Claims enter up to this risk.
        method: The method; subgraph filtering on frequency scores if left out.

    Returns:
        Share of right outputs, and the mean share of claims kept.

    Raises:
        InvalidValueError: If the risk is NaN.
        InvalidTypeError: If it is not a number, or the method is none.
    """
    tau = number_of(tau, "tau")
    table = OutcomeTable.build(traces, FilteringMethod() if method is None else method)
    members = table.chosen(tau, True)
    return float(table.right(members).mean()), float(table.retained(members).mean())


def oracle_subset(trace: ReasoningTrace) -> Bool[np.ndarray, " claims"]:
    """Largest coherent output of a trace: the claims that are factual and rest on factual claims only.

    Args:
        trace: Annotated trace.

    Returns:
        Mask of the kept claims; every ancestor-closed set of factual claims is part of it.
    """
    return trace.graph.largest_closed_subset(trace.factual)


def oracle_retained(
    traces: Sequence[ReasoningTrace], budgets: Sequence[float | int] | np.ndarray
) -> Float64[np.ndarray, " budgets"]:
    """Largest mean share of claims that any coherent filter can keep if a share of outputs may be wrong.

    An output that may be wrong keeps everything, so the budget goes to the traces that gain most from it.

    Args:
        traces: Annotated traces.
        budgets: Shares of outputs that may be wrong, in [0, 1].

    Returns:
        One share for each budget.

    Raises:
        InvalidValueError: If a budget is out of range.
    """
    shares = np.asarray(budgets, np.float64)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InvalidValueError(f"budgets {shares.tolist()} must lie in [0, 1]")
    coherent = np.array([oracle_subset(trace).mean() for trace in traces])
    gains = np.r_[0.0, np.cumsum(np.sort(1.0 - coherent)[::-1])]
    allowed = np.floor(shares * len(traces) + 1e-9).astype(int)
    return coherent.mean() + gains[allowed] / len(traces)


def recomputed_curve(
    traces: Sequence[ReasoningTrace], alphas: Sequence[float] | np.ndarray
) -> list[tuple[float, float]]:
    """Leave-one-out curve of subgraph filtering that works everything out anew for each level and left-out trace.

    The way the official study loops, with the strict rule for ties; the yardstick of the benchmark.

    Args:
        traces: Annotated traces with frequency scores.
        alphas: Error levels.

    Returns:
        Realised coherence and mean share of claims kept at each level.
    """
    points = []
    for alpha in alphas:
        right, kept = [], []
        for left_out, trace in enumerate(traces):
            scores = [_recomputed_score(other) for row, other in enumerate(traces) if row != left_out]
            threshold = conformal_threshold(scores, float(alpha))
            chosen: set[int] = set()
            for tau, member in _recomputed_family(trace):
                if tau < threshold:
                    chosen = member
            right.append(_is_coherent(trace, chosen))
            kept.append(len(chosen) / trace.num_claims)
        points.append((float(np.mean(right)), float(np.mean(kept))))
    return points


def _recomputed_family(trace: ReasoningTrace) -> list[tuple[float, set[int]]]:
    risks = [6 - claim.scores["frequency"] for claim in trace.claims]
    parents = trace.graph.to_parents()
    order = trace.graph.topological_order.tolist()
    family = []
    for tau in sorted(set(risks)):
        member: set[int] = set()
        for claim in order:
            if risks[claim] <= tau and all(parent in member for parent in parents[claim]):
                member.add(claim)
        family.append((tau, member))
    return family


def _recomputed_score(trace: ReasoningTrace) -> float:
    return next((tau for tau, member in _recomputed_family(trace) if not _is_coherent(trace, member)), np.inf)


def _is_coherent(trace: ReasoningTrace, kept: set[int]) -> bool:
    closed = all(parent in kept for claim in kept for parent in trace.graph.parents(claim))
    return closed and all(bool(trace.claims[claim].factual) for claim in kept)
