"""A filtering method: how claims are scored, how outputs grow, and what counts as right in calibration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality.annotators import Annotator, Independent, Silver, check_annotator
from octavo_coherent_factuality.family import FamilyKind, NestedFamily
from octavo_coherent_factuality.scorers import (
    DescendantWeighted,
    FrequencyScorer,
    Scorer,
    check_scorer,
    claim_risks,
    lowest_risk,
)
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["METHODS", "FilteringMethod", "MethodFamily", "check_method"]

MethodFamily = FamilyKind | Literal["posthoc"]
"""Kinds of families, and ``"posthoc"``: calibrated like ``"independent"``, then pruned to the ancestor-closed part."""


@dataclass(frozen=True)
class FilteringMethod:
    """What is calibrated, apart from the level.

    Args:
        scorer: Risk of each claim.
        family: How the outputs grow.
        annotator: What counts as right in calibration; by default the silver rule, or the independent one for the
            families that ignore the graph in calibration (``"independent"`` and ``"posthoc"``).

    Raises:
        InvalidValueError: If the family is unknown.
        InvalidTypeError: If the scorer or the annotator is none.
    """

    scorer: Scorer = field(default_factory=FrequencyScorer)
    family: MethodFamily = "subgraph"
    annotator: Annotator | None = None

    def __post_init__(self) -> None:
        known = ("subgraph", "independent", "prefix", "greedy", "posthoc")
        if self.family not in known:
            raise InvalidValueError(f"family {self.family!r} is unknown; give one of {', '.join(known)}")
        check_scorer(self.scorer)
        if self.annotator is not None:
            check_annotator(self.annotator)

    @property
    def calibration_annotator(self) -> Annotator:
        """The annotator that the guarantee is about."""
        if self.annotator is not None:
            return self.annotator
        return Independent() if self.family in ("independent", "posthoc") else Silver()

    def families(self, trace: ReasoningTrace) -> tuple[NestedFamily, NestedFamily]:
        """Build the family that calibration scans and the one that outputs come from; they differ for post-hoc only.

        Args:
            trace: The trace.
        """
        risks = claim_risks(self.scorer, trace)
        if self.family == "posthoc":
            # Pruning U_ind(t) to its ancestor-closed part leaves the claims whose ancestors all have risk <= t.
            return NestedFamily.build(trace, risks, "independent"), NestedFamily.build(trace, risks, "subgraph")
        family = NestedFamily.build(trace, risks, self.family, lowest=lowest_risk(self.scorer))
        return family, family

    def output_family(self, trace: ReasoningTrace) -> NestedFamily:
        """Build the family that outputs come from.

        Args:
            trace: The trace.
        """
        return self.families(trace)[1]


def check_method(method: object) -> None:
    """Check that something is a method.

    Args:
        method: The method.

    Raises:
        InvalidTypeError: If it is none, e.g. a name or a filter.
    """
    if not isinstance(method, FilteringMethod):
        raise InvalidTypeError(
            f"method={method!r} is no method; give a FilteringMethod, one of METHODS such as METHODS['subgraph'], or "
            "the attribute method of a filter"
        )


METHODS: dict[str, FilteringMethod] = {
    "subgraph": FilteringMethod(),
    "boosted": FilteringMethod(DescendantWeighted(FrequencyScorer(), 0.5)),
    "independent": FilteringMethod(family="independent"),
    "posthoc": FilteringMethod(family="posthoc"),
    "prefix": FilteringMethod(family="prefix"),
    "greedy": FilteringMethod(family="greedy"),
}
"""The paper's methods and its baselines on frequency scores: subgraph filtering, descendant weight boosting (beta 0.5),
independent factuality (Mohri and Hashimoto), the same pruned afterwards, prefixes, and greedy growth on the graph."""
