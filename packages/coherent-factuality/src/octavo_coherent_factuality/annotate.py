"""Annotating by hand: claim by claim, or output by output, asking only what does not follow from earlier answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.scorers import Scorer, claim_risks
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["annotate_claims", "annotate_subsets", "implied_judgement"]

Ask = Callable[[ReasoningTrace, np.ndarray], bool | None]
"""Shown a trace and a mask of claims, says whether they are right; ``None`` leaves it open."""
Save = Callable[[list[ReasoningTrace]], None]
"""Called after every answer with all traces, so that nothing is lost when the work is interrupted."""


def annotate_claims(traces: Sequence[ReasoningTrace], ask: Ask, save: Save) -> list[ReasoningTrace]:
    """Ask for each claim that has no annotation whether it is true by itself.

    Args:
        traces: The traces; what they have already is kept, so an interrupted session goes on where it stopped.
        ask: Asks; the mask holds one claim.
        save: Stores the work so far.

    Returns:
        The traces.
    """
    work = list(traces)
    for row, trace in enumerate(work):
        factual = [claim.factual for claim in trace.claims]
        for index in trace.graph.topological_order.tolist():
            if factual[index] is None:
                mask = np.arange(trace.num_claims) == index
                factual[index] = ask(work[row], mask)
                work[row] = trace.with_factual(factual)
                save(work)
    return work


def annotate_subsets(traces: Sequence[ReasoningTrace], scorer: Scorer, ask: Ask, save: Save) -> list[ReasoningTrace]:
    """Ask whether the outputs of subgraph filtering are coherent, from the smallest on.

    Args:
        traces: The traces; judgements that they have already are kept.
        scorer: Decides which outputs there are.
        ask: Asks; the mask holds the kept claims.
        save: Stores the work so far.

    Returns:
        The traces with subset annotations.
    """
    work = list(traces)
    for row, trace in enumerate(work):
        family = NestedFamily.build(trace, claim_risks(scorer, trace))
        for index in range(1, family.num_members):
            kept = family.member(index)
            subset = frozenset(np.flatnonzero(kept).tolist())
            if not subset or subset in work[row].subset_annotations:
                continue
            verdict = implied_judgement(work[row], kept)
            if verdict is None:
                verdict = ask(work[row], kept)
            if verdict is None:
                continue
            work[row] = replace(work[row], subset_annotations={**work[row].subset_annotations, subset: verdict})
            save(work)
    return work


def implied_judgement(trace: ReasoningTrace, kept: np.ndarray) -> bool | None:
    """Tell what earlier judgements of a trace say about a further ancestor-closed subset.

    A closed part of a coherent set is coherent; a set with an incoherent closed part is not.

    Args:
        trace: The trace.
        kept: Mask of the kept claims, ancestor-closed.

    Returns:
        The verdict, or ``None`` if it does not follow.
    """
    subset = frozenset(np.flatnonzero(kept).tolist())
    if not trace.graph.is_ancestor_closed(kept):
        return None
    for judged, verdict in trace.subset_annotations.items():
        if verdict and subset <= judged:
            return True
        if not verdict and judged <= subset:
            mask = np.isin(np.arange(trace.num_claims), list(judged))
            if trace.graph.is_ancestor_closed(mask):
                return False
    return None
