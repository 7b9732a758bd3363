"""What a human would have to check: the cheapest set of claims whose verification lets the rest be kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import networkx
import numpy as np
from octavo_core.errors import InvalidValueError

from octavo_coherent_factuality.annotators import Independent
from octavo_coherent_factuality.filter import ConformalFilter
from octavo_coherent_factuality.scorers import claim_risks
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["VerificationPlan", "cheapest_verification", "plan_verification"]


@dataclass(frozen=True)
class VerificationPlan:
    """Which claims to check, and what may be kept if they hold.

    Args:
        verify: Claims to check by hand, rising.
        kept: Claims that are kept then, the checked ones among them.
        cost: Sum of the costs of checking.
        certified: Whether the level of the filter covers the claims that are kept unchecked.
    """

    verify: tuple[int, ...]
    kept: tuple[int, ...]
    cost: float
    certified: bool


def plan_verification(
    trace: ReasoningTrace,
    fitted: ConformalFilter,
    *,
    targets: Sequence[int] | None = None,
    keep_fraction: float | int | None = None,
    costs: Sequence[float | int] | np.ndarray | None = None,
) -> VerificationPlan:
    """Plan checks for one answer, with a calibrated filter saying which claims need none.

    A checked claim stands by itself, so its premises need not be checked for its sake. All unchecked claims that are
    kept have a risk of their own below the threshold. A threshold of the *independent* family covers exactly those:
    with probability 1 - alpha all of them are factual together. Give a filter fitted with ``family="independent"`` or
    ``"posthoc"``; for another one the plan is marked as not certified.

    Args:
        trace: The answer.
        fitted: The calibrated filter.
        targets: Claims that must be kept, e.g. the conclusion.
        keep_fraction: Instead, the share of all claims to keep, in (0, 1].
        costs: Positive cost of checking each claim; 1 each if left out.

    Returns:
        The plan.
    """
    threshold = fitted.predict([trace])[0].threshold
    risks = claim_risks(fitted.method.scorer, trace)
    # Below, not at, the threshold: valid whatever the rule for ties.
    plan = cheapest_verification(trace, risks < threshold, targets=targets, keep_fraction=keep_fraction, costs=costs)
    covered = fitted.family in ("independent", "posthoc") and isinstance(
        fitted.method.calibration_annotator, Independent
    )
    if not covered:
        warnings.warn(
            "the filter was not calibrated on independent factuality, so its level does not cover claims whose "
            "premises are checked instead of kept; fit one with family='independent' for a certified plan",
            stacklevel=2,
        )
    return VerificationPlan(plan.verify, plan.kept, plan.cost, covered)


def cheapest_verification(
    trace: ReasoningTrace,
    safe: np.ndarray,
    *,
    targets: Sequence[int] | None = None,
    keep_fraction: float | int | None = None,
    costs: Sequence[float | int] | np.ndarray | None = None,
) -> VerificationPlan:
    """Find the cheapest set of claims to check so that targets, or a share of all claims, can be kept.

    A claim can be kept if it is checked, or if it is safe and all its premises are kept. For targets the optimum is one
    minimum cut of the graph. For a share, minimum cuts are taken over prices per kept claim: the result is the cheapest
    plan that keeps as many claims as it does, and the smallest such plan with at least the share.

    Args:
        trace: The answer.
        safe: Mask of the claims that need no check if their premises are kept.
        targets: Claims that must be kept.
        keep_fraction: Instead, the share of claims to keep, in (0, 1].
        costs: Positive cost of checking each claim; 1 each if left out.

    Returns:
        The plan; ``certified`` is false, since nothing is known about where ``safe`` comes from.

    Raises:
        InvalidValueError: Unless exactly one goal is given, or if it or the costs are out of range.

    Source:
        Beyond the paper: a project-selection cut on its deducibility graph.
    """
    size = trace.num_claims
    prices = np.ones(size) if costs is None else np.asarray(costs, np.float64)
    if prices.shape != (size,) or not (np.isfinite(prices) & (prices > 0)).all():
        raise InvalidValueError(f"costs {prices.tolist()} for {size} claims; give one positive number per claim")
    if (targets is None) == (keep_fraction is None):
        raise InvalidValueError("give either targets or keep_fraction")
    if targets is not None:
        wrong = [target for target in targets if not 0 <= target < size]
        if wrong:
            raise InvalidValueError(f"target {wrong[0]} is out of range; there are {size} claims, from 0")
        return _plan(trace, safe, prices, np.where(np.isin(np.arange(size), list(targets)), math.inf, 0.0))
    share = float(keep_fraction or 0.0)
    if not 0 < share <= 1:
        raise InvalidValueError(f"keep_fraction={keep_fraction} is out of range; give a share in (0, 1]")
    needed = math.ceil(share * size - 1e-9)
    low, high = _plan(trace, safe, prices, np.full(size, 1e-9)), _plan(trace, safe, prices, np.full(size, math.inf))
    if len(low.kept) >= needed:
        return low
    while True:
        # The price at which both cost the same; a plan below the line between them is a better corner.
        price = (high.cost - low.cost) / (len(high.kept) - len(low.kept))
        middle = _plan(trace, safe, prices, np.full(size, price))
        value = middle.cost - price * len(middle.kept)
        if value >= high.cost - price * len(high.kept) - 1e-9:
            return high
        if len(middle.kept) >= needed:
            high = middle
        else:
            low = middle


def _plan(trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, rewards: np.ndarray) -> VerificationPlan:
    """Keep set of largest reward less cost: a minimum cut.

    Node ("kept", v) on the source side says v is kept, node ("stands", v) that it stands without a check. Kept without
    standing costs a check; standing needs all premises kept, and is impossible for a claim that is not safe.
    """
    graph = networkx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    for claim in range(trace.num_claims):
        if rewards[claim] == math.inf:
            graph.add_edge("source", ("kept", claim))
        elif rewards[claim] > 0:
            graph.add_edge("source", ("kept", claim), capacity=float(rewards[claim]))
        graph.add_edge(("kept", claim), ("stands", claim), capacity=float(costs[claim]))
        if not safe[claim]:
            graph.add_edge(("stands", claim), "sink")
        for premise in trace.graph.parents(claim):
            graph.add_edge(("stands", claim), ("kept", premise))
    _, (source_side, _) = networkx.minimum_cut(graph, "source", "sink")
    verify = tuple(
        v for v in range(trace.num_claims) if ("kept", v) in source_side and ("stands", v) not in source_side
    )
    chosen = np.zeros(trace.num_claims, bool)
    chosen[list(verify)] = True
    # All that follows from what is checked and safe comes for free.
    kept = np.zeros(trace.num_claims, bool)
    for claim in trace.graph.topological_order.tolist():
        kept[claim] = chosen[claim] or (safe[claim] and all(kept[premise] for premise in trace.graph.parents(claim)))
    return VerificationPlan(verify, tuple(np.flatnonzero(kept).tolist()), float(costs[chosen].sum()), False)
