"""Numbers computed by the official functions on the public set of 50 problems (commit d864168): exact, or 1e-6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from octavo_coherent_factuality.annotators import Gold, Independent, Silver, nonconformity
from octavo_coherent_factuality.compat import reference_curve, reference_noise, reference_quantile
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.method import METHODS
from octavo_coherent_factuality.quantile import conformal_threshold, quantile_rank
from octavo_coherent_factuality.scorers import DescendantWeighted, FrequencyScorer
from octavo_coherent_factuality.trace import ReasoningTrace

Problems = list[ReasoningTrace]


@pytest.mark.parametrize("beta", [0, 0.5])
def test_node_risks_families_and_scores(problems: Problems, expected: dict[str, Any], beta: float) -> None:
    scorer = DescendantWeighted(FrequencyScorer(), beta)
    for trace, wanted in zip(problems, expected["per_problem_zero_noise"], strict=True):
        risks = scorer(trace)
        assert risks.tolist() == wanted[f"node_risk_beta{beta}"]
        family = NestedFamily.build(trace, risks)
        members = [[-1000.0 if np.isinf(t) else t, kept] for t, kept in family.members()]
        assert members == wanted[f"family_beta{beta}"]
        assert min(nonconformity(Silver(), trace, family), 1000.0) == wanted[f"r_beta{beta}_silver"]
        # The closed form: the smallest entry risk of a false claim.
        assert min([*family.entry_risk[~trace.factual], 1000.0]) == wanted[f"r_beta{beta}_silver"]


def test_independent_scores_and_prefix_family(problems: Problems, expected: dict[str, Any]) -> None:
    scorer = FrequencyScorer()
    for trace, wanted in zip(problems, expected["per_problem_zero_noise"], strict=True):
        independent = NestedFamily.build(trace, scorer(trace), "independent")
        assert min(nonconformity(Independent(), trace, independent), 1000.0) == wanted["r_ind"]
        prefix = NestedFamily.build(trace, scorer(trace), "prefix", lowest=1.0)
        assert [[max(t, 0.0), sorted(kept)] for t, kept in prefix.members()] == wanted["greedy"]


def test_the_official_order_is_a_topological_order_of_our_graph(problems: Problems, expected: dict[str, Any]) -> None:
    for trace, wanted in zip(problems, expected["per_problem_zero_noise"], strict=True):
        position = {claim: place for place, claim in enumerate(wanted["topological_order"])}
        for claims, premises in ((trace.graph.edge_claims, trace.graph.indices),):
            assert all(position[p] < position[c] for c, p in zip(claims.tolist(), premises.tolist(), strict=True))


def test_selection_at_fixed_thresholds(problems: Problems, expected: dict[str, Any]) -> None:
    scorer = FrequencyScorer()
    for tau, wanted in expected["selection_zero_noise"].items():
        for trace, subgraph, posthoc in zip(problems, wanted["subgraph"], wanted["posthoc"], strict=True):
            family = NestedFamily.build(trace, scorer(trace))
            assert np.flatnonzero(family.at(float(tau))).tolist() == subgraph
            alone = NestedFamily.build(trace, scorer(trace), "independent").at(float(tau))
            assert np.flatnonzero(trace.graph.largest_closed_subset(alone)).tolist() == posthoc


def test_noise_of_the_official_study(expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(reference_noise(50), expected["noise_seed42"], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "method", "evaluator"),
    [
        ("subgraph_b0", "subgraph", Silver()),
        ("subgraph_b05", "boosted", Silver()),
        ("independent", "independent", Silver()),
        ("independent_posthoc", "posthoc", Silver()),
        ("independent_eval_ind", "independent", Independent()),
        ("subgraph_b0_gold", "subgraph", Gold()),
        ("independent_gold", "independent", Gold()),
        ("independent_posthoc_gold", "posthoc", Gold()),
    ],
)
def test_official_leave_one_out_curves(
    problems: Problems, expected: dict[str, Any], name: str, method: str, evaluator: Any
) -> None:
    curve = reference_curve(
        problems,
        expected["alphas"],
        method=METHODS[method],
        evaluator=evaluator,
        noise=expected["noise_seed42"],
    )
    wanted = expected["official_leave_one_out"][name]
    np.testing.assert_allclose(curve.column("realised"), wanted["realised"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(curve.column("retained"), wanted["retained"], rtol=0, atol=1e-6)


def test_quantile_table(expected: dict[str, Any]) -> None:
    for n, row in expected["compute_quantile_on_0..n-1"].items():
        for alpha, wanted in row.items():
            scores = np.arange(int(n), dtype=float)
            assert reference_quantile(scores, float(alpha)) == wanted
            assert max(conformal_threshold(scores, alpha), -1000.0) == wanted


def test_rank_is_exact() -> None:
    assert quantile_rank(99, 0.42) == 58
    assert quantile_rank(24, 0.44) == 14
