"""Nested families of outputs: from nothing kept to everything kept, as a threshold on risk rises."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int64
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality._checks import floats_of, number_of
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["FamilyKind", "NestedFamily"]

FamilyKind = Literal["subgraph", "independent", "prefix", "greedy"]
"""How outputs grow: by ancestor-closed subgraphs, claim by claim without the graph, by prefixes, or greedily."""


@dataclass(frozen=True, eq=False)
class NestedFamily:
    """The outputs ``U(t)`` of one trace for all thresholds t at once.

    Member 0 is empty; member j holds the claims of rank at most j and is chosen from threshold ``thresholds[j - 1]``
    on. The subgraph family is ``U(t) = {v : entry_risk(v) <= t}``, where the entry risk is the largest risk among a
    claim and its ancestors: one pass over the graph gives all members.

    Args:
        kind: How the outputs grow.
        thresholds: Rising thresholds of members 1, 2, ...
        rank: The first member that holds each claim, from 1.
        entry_risk: The threshold at which each claim enters.
    """

    kind: FamilyKind
    thresholds: Float64[np.ndarray, " members"]
    rank: Int64[np.ndarray, " claims"]
    entry_risk: Float64[np.ndarray, " claims"]

    @classmethod
    def build(
        cls,
        trace: ReasoningTrace | DeducibilityGraph,
        risks: Any,
        kind: FamilyKind = "subgraph",
        *,
        lowest: float | int = 0.0,
    ) -> NestedFamily:
        """Build the family of a trace.

        Args:
            trace: The trace, or its graph.
            risks: Risk of each claim, (claims,): a list, an array or a tensor; any real dtype, finite.
            kind: ``"subgraph"`` (the paper's subgraph filtering); ``"independent"``, which ignores the graph;
                ``"prefix"``, which adds claims in the order of the answer; ``"greedy"``, which adds the claim of lowest
                risk among those whose premises are all in (the first one, where several are equal). The last two
                sum the risks as they go.
            lowest: What the last two subtract from each risk before summing, so that sure claims cost nothing.

        Returns:
            The family.

        Raises:
            InvalidValueError: If the kind is unknown, or the risks do not fit the graph, are not finite, or are below
                ``lowest`` where they are summed.
            InvalidTypeError: If something else stands for the trace, or the risks are no numbers.
        """
        if kind not in get_args(FamilyKind):
            raise InvalidValueError(f"family {kind!r} is unknown; give one of {', '.join(get_args(FamilyKind))}")
        graph = trace.graph if isinstance(trace, ReasoningTrace) else trace
        if not isinstance(graph, DeducibilityGraph):
            raise InvalidTypeError(f"got a {type(graph).__name__}; give a ReasoningTrace or a DeducibilityGraph")
        risks = floats_of(risks, "risks")
        if risks.shape != (graph.num_claims,) or not np.isfinite(risks).all():
            raise InvalidValueError(
                f"risks have shape {risks.shape} for {graph.num_claims} claims"
                f"{'' if np.isfinite(risks).all() else ' and are not all finite'}; give one finite number per claim"
            )
        if kind in ("subgraph", "independent"):
            entry = graph.running_max(risks) if kind == "subgraph" else risks
            thresholds = np.unique(risks)
            return cls(kind, thresholds, np.searchsorted(thresholds, entry) + 1, entry)
        if (risks < lowest).any():
            raise InvalidValueError(
                f"the {kind} family sums risks above the lowest one, and claim {int(risks.argmin())} has risk "
                f"{risks.min():g} < {lowest:g}; give the scorer a lower attribute 'lowest'"
            )
        order = np.arange(graph.num_claims) if kind == "prefix" else _greedy_order(graph, risks)
        thresholds = np.cumsum(risks[order] - lowest)
        rank = np.empty(graph.num_claims, np.int64)
        rank[order] = np.arange(1, graph.num_claims + 1)
        return cls(kind, thresholds, rank, thresholds[rank - 1])

    @property
    def num_members(self) -> int:
        """Number of outputs, with the empty one."""
        return len(self.thresholds) + 1

    def index(self, tau: float | int, *, inclusive: bool = True) -> int:
        """Return the last member whose threshold is at most ``tau``.

        Args:
            tau: Threshold; may be infinite.
            inclusive: Whether a threshold equal to ``tau`` counts.

        Raises:
            InvalidValueError: If the threshold is NaN.
            InvalidTypeError: If it is not a number.
        """
        # A search puts NaN last: everything would be kept.
        return int(np.searchsorted(self.thresholds, number_of(tau, "tau"), side="right" if inclusive else "left"))

    def member(self, index: int) -> Bool[np.ndarray, " claims"]:
        """Return the mask of the claims that a member keeps.

        Args:
            index: Number of the member, 0 for the empty one.
        """
        return self.rank <= index

    def at(self, tau: float | int, *, inclusive: bool = True) -> Bool[np.ndarray, " claims"]:
        """Return the mask of the claims kept at a threshold.

        Args:
            tau: Threshold; may be infinite.
            inclusive: Whether a risk equal to ``tau`` is kept.

        Raises:
            InvalidValueError: If the threshold is NaN.
            InvalidTypeError: If it is not a number.
        """
        return self.member(self.index(tau, inclusive=inclusive))

    def sizes(self) -> Int64[np.ndarray, " members_and_one"]:
        """Return how many claims each member keeps."""
        return np.cumsum(np.bincount(self.rank, minlength=self.num_members))

    def members(self) -> Iterator[tuple[float, list[int]]]:
        """Iterate over the members as thresholds (minus infinity for the empty one) and kept claims."""
        yield -np.inf, []
        for index, threshold in enumerate(self.thresholds.tolist(), start=1):
            yield threshold, np.flatnonzero(self.member(index)).tolist()


def _greedy_order(graph: DeducibilityGraph, risks: np.ndarray) -> np.ndarray:
    missing = np.diff(graph.indptr).tolist()
    indptr, claims = (array.tolist() for array in graph.child_lists)
    costs = risks.tolist()
    ready = [(costs[claim], claim) for claim, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, claim = heapq.heappop(ready)
        order.append(claim)
        for child in claims[indptr[claim] : indptr[claim + 1]]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, (costs[child], child))
    return np.array(order, np.int64)
