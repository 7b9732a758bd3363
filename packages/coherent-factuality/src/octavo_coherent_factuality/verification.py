"""What a human would have to check: the cheapest set of claims whose verification lets the rest be kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx
import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from octavo_coherent_factuality._checks import floats_of, mask_of, number_of
from octavo_coherent_factuality.annotators import Independent
from octavo_coherent_factuality.filter import ConformalFilter, SplitConformalFilter
from octavo_coherent_factuality.groups import GroupConformalFilter, WeightedConformalFilter
from octavo_coherent_factuality.scorers import claim_risks
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["VerificationPlan", "cheapest_verification", "plan_verification"]

# Beyond these a plan for a share of the claims is a heuristic. A limit on nodes, not on time: the same plan each time.
_MAX_EXACT_CLAIMS, _MAX_NODES = 1000, 2000


@dataclass(frozen=True)
class VerificationPlan:
    """Which claims to check, and what may be kept if they hold.

    Args:
        verify: Claims to check by hand, rising.
        kept: Claims that are kept then, the checked ones among them.
        cost: Sum of the costs of checking.
        certified: Whether the level of the filter covers the claims that are kept unchecked.
        exact: Whether no plan is cheaper; otherwise the plan is a good one.
    """

    verify: tuple[int, ...]
    kept: tuple[int, ...]
    cost: float
    certified: bool
    exact: bool = True


def plan_verification(
    trace: ReasoningTrace,
    fitted: ConformalFilter,
    *,
    targets: Sequence[Any] | None = None,
    keep_fraction: float | int | None = None,
    costs: Sequence[float | int] | np.ndarray | None = None,
) -> VerificationPlan:
    """Plan checks for one answer, with a calibrated filter saying which claims need none.

    A checked claim stands by itself, so its premises need not be checked for its sake. All unchecked claims that are
    kept have a risk of their own below the threshold. A threshold of the *independent* family covers exactly those:
    with probability 1 - alpha all of them are factual together. Give a split, group or weighted filter fitted with
    ``family="independent"`` or ``"posthoc"``; for another one the plan is marked as not certified. (A
    :class:`RiskControlFilter` bounds an expected share, not the probability that a claim is wrong.)

    Args:
        trace: The answer.
        fitted: The calibrated filter.
        targets: Claims that must be kept, e.g. the conclusion.
        keep_fraction: Instead, the share of all claims to keep, in (0, 1].
        costs: Positive cost of checking each claim; 1 each if left out.

    Returns:
        The plan; see :func:`cheapest_verification` for when it is exact.
    """
    threshold = fitted.predict([trace])[0].threshold
    risks = claim_risks(fitted.method.scorer, trace)
    # Below, not at, the threshold: valid whatever the rule for ties.
    plan = cheapest_verification(trace, risks < threshold, targets=targets, keep_fraction=keep_fraction, costs=costs)
    covered = (
        isinstance(fitted, SplitConformalFilter | GroupConformalFilter | WeightedConformalFilter)
        and fitted.family in ("independent", "posthoc")
        and isinstance(fitted.method.calibration_annotator, Independent)
    )
    if not covered:
        warnings.warn(
            f"the {type(fitted).__name__} was not calibrated on independent factuality, so its level does not cover "
            "claims whose premises are checked instead of kept; fit a SplitConformalFilter with family='independent' "
            "for a certified plan",
            stacklevel=2,
        )
    return replace(plan, certified=covered)


def cheapest_verification(
    trace: ReasoningTrace,
    safe: np.ndarray,
    *,
    targets: Sequence[Any] | None = None,
    keep_fraction: float | int | None = None,
    costs: Sequence[float | int] | np.ndarray | None = None,
) -> VerificationPlan:
    """Find the cheapest set of claims to check so that targets, or a share of all claims, can be kept.

    A claim can be kept if it is checked, or if it is safe and all its premises are kept. For targets the optimum is one
    minimum cut of the graph. For a share it is an integer program, solved exactly for answers of up to 1,000 claims
    (unless the solver gives up after 2,000 nodes). Beyond that the plan is a heuristic and says so (``exact`` is
    false): minimum cuts over prices per kept claim give two plans around the share, and the better one is taken of the
    larger one trimmed and the smaller one extended.

    Args:
        trace: The answer.
        safe: Mask of the claims that need no check if their premises are kept.
        targets: Claims that must be kept.
        keep_fraction: Instead, the share of claims to keep, in (0, 1].
        costs: Positive cost of checking each claim; 1 each if left out.

    Returns:
        The plan; ``certified`` is false, since nothing is known about where ``safe`` comes from.

    Raises:
        InvalidValueError: Unless exactly one goal is given, or if it, the mask or the costs are out of range.
        InvalidTypeError: If a target is not an index, the mask holds other than truth values, or a cost or the share is
            not a number.

    Source:
        Beyond the paper: a project-selection cut on its deducibility graph.
    """
    size = trace.num_claims
    safe = mask_of(safe, size, "safe")
    prices = np.ones(size) if costs is None else floats_of(costs, "costs")
    if prices.shape != (size,) or not (np.isfinite(prices) & (prices > 0)).all():
        raise InvalidValueError(f"costs {prices.tolist()} for {size} claims; give one positive number per claim")
    if (targets is None) == (keep_fraction is None):
        raise InvalidValueError("give either targets or keep_fraction")
    if targets is not None:
        if isinstance(targets, str) or not isinstance(targets, Iterable):
            raise InvalidTypeError(f"targets={targets!r} is no list; give a list of indices such as [{size - 1}]")
        targets = list(targets)
        for target in targets:
            if isinstance(target, bool) or not isinstance(target, int | np.integer):
                raise InvalidTypeError(f"target {target!r} is not an index; give integers from 0 to {size - 1}")
            if not 0 <= target < size:
                raise InvalidValueError(f"target {target} is out of range; there are {size} claims, from 0")
        return _plan(trace, safe, prices, np.where(np.isin(np.arange(size), targets), math.inf, 0.0))
    share = number_of(keep_fraction, "keep_fraction")
    if not 0 < share <= 1:
        raise InvalidValueError(f"keep_fraction={keep_fraction} is out of range; give a share in (0, 1]")
    needed = math.ceil(share * size - 1e-9)
    free = _finished(trace, safe, prices, np.zeros(size, bool))
    if len(free.kept) >= needed:
        return free
    if size <= _MAX_EXACT_CLAIMS:
        plan = _exact(trace, safe, prices, needed)
        if plan is not None:
            return plan
    return replace(_heuristic(trace, safe, prices, needed, free), exact=False)


def _exact(trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, needed: int) -> VerificationPlan | None:
    """Integer program over "kept" and "stands without a check"; ``None`` if the solver gives up."""
    size, edges = trace.num_claims, trace.graph.num_edges
    claims, premises = trace.graph.edge_claims, trace.graph.indices
    # stands(v) <= kept(v) and stands(v) <= kept(u) for each premise u; both by rows of +1 and -1. Last row: the share.
    rows = np.arange(size + edges)
    stands, kept = np.r_[np.arange(size), claims] + size, np.r_[np.arange(size), premises]
    entries = np.r_[np.ones(size + edges), -np.ones(size + edges), np.ones(size)]
    places = np.r_[rows, rows, np.full(size, size + edges)], np.r_[stands, kept, np.arange(size)]
    matrix = coo_array((entries, places), shape=(size + edges + 1, 2 * size)).tocsr()
    bounds = np.r_[np.zeros(size + edges), np.inf]
    # In units of the smallest cost, since the solver's tolerances are absolute.
    scaled = costs / costs.min()
    result = milp(
        np.r_[scaled, -scaled],
        constraints=LinearConstraint(matrix, np.r_[np.full(size + edges, -np.inf), needed], bounds),
        integrality=np.ones(2 * size),
        bounds=Bounds(0, np.r_[np.ones(size), safe]),
        options={"node_limit": _MAX_NODES, "mip_rel_gap": 0.0},
    )
    if result.status != 0 or result.x is None:
        return None
    chosen = np.round(result.x).astype(bool)
    plan = _finished(trace, safe, costs, chosen[:size] & ~chosen[size:])
    return plan if len(plan.kept) >= needed else None


def _heuristic(
    trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, needed: int, low: VerificationPlan
) -> VerificationPlan:
    """The better of two: the smallest corner of the hull with enough claims, trimmed, or the one before, extended."""
    size = trace.num_claims
    scale = float(costs.mean())
    high = _finished(trace, safe, costs, ~safe)
    while True:
        # The price at which both cost the same; a plan below the line between them is a better corner.
        price = (high.cost - low.cost) / (len(high.kept) - len(low.kept))
        middle = _plan(trace, safe, costs / scale, np.full(size, price / scale))
        middle = _finished(trace, safe, costs, np.isin(np.arange(size), middle.verify))
        value = middle.cost - price * len(middle.kept)
        if value >= high.cost - price * len(high.kept) - 1e-9 * scale * size:
            break
        if len(middle.kept) >= needed:
            high = middle
        else:
            low = middle
    extras = sorted(set(high.verify) - set(low.verify), key=lambda claim: costs[claim])
    start, stop = 0, len(extras)
    while start < stop:
        # What is kept grows with what is checked.
        middle_index = (start + stop) // 2
        chosen = np.isin(np.arange(size), [*low.verify, *extras[:middle_index]])
        if len(_finished(trace, safe, costs, chosen).kept) >= needed:
            stop = middle_index
        else:
            start = middle_index + 1
    extended = np.isin(np.arange(size), [*low.verify, *extras[:start]])
    trimmed = np.isin(np.arange(size), high.verify)
    plans = [_trimmed(trace, safe, costs, chosen, needed) for chosen in (trimmed, extended)]
    return min((plan for plan in plans if len(plan.kept) >= needed), key=lambda plan: plan.cost)


def _trimmed(
    trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, chosen: np.ndarray, needed: int
) -> VerificationPlan:
    """Drop checks that are not needed, the dearest first."""
    plan = _finished(trace, safe, costs, chosen)
    for claim in sorted(plan.verify, key=lambda claim: -costs[claim]):
        chosen = chosen.copy()
        chosen[claim] = False
        smaller = _finished(trace, safe, costs, chosen)
        if len(smaller.kept) >= needed:
            plan = smaller
        else:
            chosen[claim] = True
    return plan


def _finished(trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, chosen: np.ndarray) -> VerificationPlan:
    """The plan that checks some claims; all that follows from them and is safe comes for free."""
    kept = np.zeros(trace.num_claims, bool)
    for claim in trace.graph.topological_order.tolist():
        kept[claim] = chosen[claim] or (safe[claim] and all(kept[premise] for premise in trace.graph.parents(claim)))
    verify = tuple(np.flatnonzero(chosen).tolist())
    return VerificationPlan(verify, tuple(np.flatnonzero(kept).tolist()), float(costs[chosen].sum()), False)


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
    checked = [("kept", v) in source_side and ("stands", v) not in source_side for v in range(trace.num_claims)]
    return _finished(trace, safe, costs, np.array(checked, bool))
