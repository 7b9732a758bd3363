from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality.annotators import (
    CallableAnnotator,
    Gold,
    Independent,
    Partial,
    Silver,
    first_wrong,
    member_verdicts,
    nonconformity,
)
from octavo_coherent_factuality.baselines import fixed_threshold, oracle_retained, oracle_subset
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.scorers import (
    Combined,
    DescendantWeighted,
    FrequencyScorer,
    Ordinal,
    Ranked,
    claim_risks,
)
from octavo_coherent_factuality.trace import ReasoningTrace, claims_from_arrays

SCORERS = [FrequencyScorer(), DescendantWeighted(), DescendantWeighted(beta=0.3, scope="descendants")]
KINDS: list[Any] = ["subgraph", "independent", "prefix", "greedy"]


def by_definition(trace: ReasoningTrace, risks: np.ndarray, tau: float) -> np.ndarray:
    """U(tau) = {v : r(v) <= tau and every direct premise is in U(tau)}."""
    kept = np.zeros(trace.num_claims, bool)
    for claim in trace.graph.topological_order.tolist():
        kept[claim] = risks[claim] <= tau and all(kept[parent] for parent in trace.graph.parents(claim))
    return kept


@given(traces(), st.sampled_from(SCORERS))
@settings(deadline=None)
def test_family_equals_its_definition(trace: ReasoningTrace, scorer: Any) -> None:
    risks = claim_risks(scorer, trace)
    family = NestedFamily.build(trace, risks)
    for tau in [-np.inf, *np.unique(risks), *(np.unique(risks) + 0.25), np.inf]:
        np.testing.assert_array_equal(family.at(float(tau)), by_definition(trace, risks, tau))


@given(traces(), st.sampled_from(KINDS))
@settings(deadline=None)
def test_families_are_nested_and_closed(trace: ReasoningTrace, kind: Any) -> None:
    family = NestedFamily.build(trace, claim_risks(FrequencyScorer(), trace), kind, lowest=1.0)
    members = [family.member(index) for index in range(family.num_members)]
    assert not members[0].any()
    assert members[-1].all()
    assert all((small <= large).all() for small, large in itertools.pairwise(members))
    assert [int(member.sum()) for member in members] == family.sizes().tolist()
    assert (np.diff(family.thresholds) >= 0).all()
    if kind in ("subgraph", "greedy"):
        assert all(trace.graph.is_ancestor_closed(member) for member in members)


@given(traces(max_claims=8), st.sampled_from(KINDS))
@settings(deadline=None)
def test_score_equals_a_scan(trace: ReasoningTrace, kind: Any) -> None:
    family = NestedFamily.build(trace, claim_risks(FrequencyScorer(), trace), kind, lowest=1.0)
    for annotator in (Silver(), Independent(), Partial(max_bad=1), Partial(min_fraction=0.6, closed=False)):
        judged = [annotator(trace, family.member(index)) for index in range(family.num_members)]
        scan = next((float(family.thresholds[i - 1]) for i in range(1, len(judged)) if not judged[i]), np.inf)
        assert nonconformity(annotator, trace, family) == scan
        assert member_verdicts(annotator, trace, family).tolist() == [1, *map(int, judged[1:])]
        plain = CallableAnnotator(lambda t, kept, a=annotator: a(t, kept))
        assert first_wrong(plain, trace, family) == first_wrong(annotator, trace, family)
        assert member_verdicts(plain, trace, family).tolist() == [1, *map(int, judged[1:])]


@given(traces())
@settings(deadline=None)
def test_silver_score_has_a_closed_form(trace: ReasoningTrace) -> None:
    family = NestedFamily.build(trace, claim_risks(FrequencyScorer(), trace))
    assert nonconformity(Silver(), trace, family) == min([np.inf, *family.entry_risk[~trace.factual]])


@given(traces(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_nothing_depends_on_the_order_of_claims(trace: ReasoningTrace, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(trace.num_claims)
    moved = trace.permuted(order.tolist())
    assert moved.content_digest == trace.content_digest
    for scorer in SCORERS:
        ours, theirs = claim_risks(scorer, trace), claim_risks(scorer, moved)
        np.testing.assert_array_equal(theirs, ours[order])
        ours_family, theirs_family = NestedFamily.build(trace, ours), NestedFamily.build(moved, theirs)
        np.testing.assert_array_equal(theirs_family.entry_risk, ours_family.entry_risk[order])
        assert nonconformity(Silver(), moved, theirs_family) == nonconformity(Silver(), trace, ours_family)


@given(traces())
@settings(deadline=None)
def test_posthoc_pruning_is_the_subgraph_at_the_same_threshold(trace: ReasoningTrace) -> None:
    risks = claim_risks(FrequencyScorer(), trace)
    alone, together = NestedFamily.build(trace, risks, "independent"), NestedFamily.build(trace, risks)
    for tau in np.unique(risks).tolist():
        np.testing.assert_array_equal(trace.graph.largest_closed_subset(alone.at(tau)), together.at(tau))


@given(traces())
@settings(deadline=None)
def test_without_edges_subgraph_is_independent(trace: ReasoningTrace) -> None:
    trace = trace.with_graph(DeducibilityGraph.empty(trace.num_claims))
    risks = claim_risks(DescendantWeighted(beta=0), trace)
    first, second = NestedFamily.build(trace, risks), NestedFamily.build(trace, risks, "independent")
    np.testing.assert_array_equal(first.rank, second.rank)
    assert nonconformity(Silver(), trace, first) == nonconformity(Independent(), trace, second)


@given(traces())
@settings(deadline=None)
def test_a_chain_gives_prefixes(trace: ReasoningTrace) -> None:
    trace = trace.with_graph(DeducibilityGraph.chain(trace.num_claims))
    family = NestedFamily.build(trace, claim_risks(FrequencyScorer(), trace))
    for _, kept in family.members():
        assert kept == list(range(len(kept)))


@given(traces(max_claims=8))
@settings(max_examples=50, deadline=None)
def test_oracle_equals_exhaustive_search(trace: ReasoningTrace) -> None:
    best = 0
    for bits in itertools.product((False, True), repeat=trace.num_claims):
        kept = np.array(bits)
        if Silver()(trace, kept):
            best = max(best, int(kept.sum()))
    assert int(oracle_subset(trace).sum()) == best


def test_oracle_budget_equals_exhaustive_search() -> None:
    made = random_traces(7, 3, error_rate=0.4)
    for budget in (0.0, 0.15, 0.3, 1.0):
        allowed = int(budget * len(made) + 1e-9)
        best = max(
            np.mean([1.0 if row in wrong else oracle_subset(trace).mean() for row, trace in enumerate(made)])
            for wrong in itertools.combinations(range(len(made)), allowed)
        )
        assert oracle_retained(made, [budget])[0] == pytest.approx(best)


def test_descendant_weights_by_hand() -> None:
    made = ReasoningTrace(
        claims_from_arrays(frequency=[5, 4, 0, -2, 3]), DeducibilityGraph.from_parents([[], [0], [0], [0], [1]])
    )
    # Children of 0 have risks 2, 6, 8: the upper median is 6. All descendants: 2, 3, 6, 8, again 6.
    assert DescendantWeighted(beta=0.5)(made).tolist() == [0.5 * 1 + 0.5 * 6, 0.5 * 2 + 0.5 * 3, 6, 8, 3]
    assert DescendantWeighted(beta=0.5, scope="descendants")(made).tolist() == [3.5, 2.5, 6, 8, 3]
    assert Combined((FrequencyScorer(), Ordinal()), (1.0, 2.0))(made).tolist() == [1, 4, 10, 14, 11]
    assert Ranked()(made).tolist() == [0, 1, 3, 4, 2]


def test_partial_factuality_at_its_limit() -> None:
    trace = ReasoningTrace(claims_from_arrays(factual=[1] * 9 + [0], frequency=[5] * 9 + [1]))
    assert Partial(min_fraction=0.9)(trace, np.ones(10, bool))
    assert not Partial(min_fraction=0.91)(trace, np.ones(10, bool))


def test_gold_judgements() -> None:
    trace = ReasoningTrace(
        claims_from_arrays(factual=[1, 1], frequency=[1, 3]),
        DeducibilityGraph.chain(2),
        subset_annotations={frozenset({1}): True, frozenset({0, 1}): False},
    )
    assert Gold()(trace, np.array([False, False]))
    assert not Gold()(trace, np.array([True, True]))
    with pytest.warns(UserWarning, match="not ancestor-closed"):
        assert Gold()(trace, np.array([False, True]))
    with pytest.raises(ValueError, match=r"no judgement of the subset \[0\]"):
        Gold()(trace, np.array([True, False]))
    assert Gold("silver")(trace, np.array([True, False]))
    assert not Gold(lambda t, kept: False)(trace, np.array([True, False]))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.float64])
def test_any_real_dtype_of_risks(dtype: type) -> None:
    graph = DeducibilityGraph.from_parents([[], [0], [0, 1]])
    family = NestedFamily.build(graph, np.array([1, 3, 2], dtype))
    assert family.entry_risk.tolist() == [1.0, 3.0, 3.0]
    assert [kept for _, kept in family.members()] == [[], [0], [0], [0, 1, 2]]


@pytest.mark.parametrize("risks", [[1.0], [1.0, np.nan], [1.0, np.inf], [[1.0, 2.0]]])
def test_bad_risks_are_refused(risks: Any) -> None:
    with pytest.raises(ValueError, match="one finite number per claim"):
        NestedFamily.build(DeducibilityGraph.empty(2), np.array(risks))


def test_summing_families_need_a_lowest_risk() -> None:
    with pytest.raises(ValueError, match="lower attribute 'lowest'"):
        NestedFamily.build(DeducibilityGraph.empty(2), np.array([-1.0, 2.0]), "prefix")


def test_a_threshold_that_is_no_number_keeps_nothing_by_accident() -> None:
    trace = random_traces(1, 0)[0]
    with pytest.raises(ValueError, match="tau is NaN"):
        NestedFamily.build(trace, claim_risks(FrequencyScorer(), trace)).at(float("nan"))
    with pytest.raises(ValueError, match="tau is NaN"):
        fixed_threshold([trace], float("nan"))


@pytest.mark.parametrize("annotator", [Independent(), Silver(), Partial(max_bad=0), Gold("silver")])
@pytest.mark.parametrize(
    ("kept", "match"),
    [(np.array([1, 0, 0]), "mask of truth values"), (np.array([True]), "one truth value per claim")],
)
def test_annotators_take_masks_only(annotator: Any, kept: np.ndarray, match: str) -> None:
    """Zeros and ones would index: claims 1 and 0 instead of claim 0 alone."""
    trace = ReasoningTrace(claims_from_arrays(factual=[1, 0, 1]))
    assert annotator(trace, np.array([True, False, False]))
    with pytest.raises((TypeError, ValueError), match=match):
        annotator(trace, kept)


@pytest.mark.parametrize("risks", [["1", "2"], [1j, 2j], np.array([1j, 2j])])
def test_risks_that_are_no_numbers(risks: Any) -> None:
    with pytest.raises(TypeError, match="give a list or an array of numbers"):
        NestedFamily.build(DeducibilityGraph.empty(2), risks)
