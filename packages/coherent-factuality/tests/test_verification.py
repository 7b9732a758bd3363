"""Plans of what to verify, against exhaustive search."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality import verification
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import random_graph
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.groups import GroupConformalFilter, WeightedConformalFilter
from octavo_coherent_factuality.risk_control import RiskControlFilter
from octavo_coherent_factuality.trace import Claim, ReasoningTrace
from octavo_coherent_factuality.verification import cheapest_verification, plan_verification


def exhaustive_cost(trace: ReasoningTrace, safe: np.ndarray, costs: np.ndarray, goal: Any) -> float:
    best = math.inf
    order = trace.graph.topological_order.tolist()
    for bits in itertools.product((False, True), repeat=trace.num_claims):
        kept = np.zeros(trace.num_claims, bool)
        for claim in order:
            kept[claim] = bits[claim] or (safe[claim] and all(kept[p] for p in trace.graph.parents(claim)))
        if goal(kept):
            best = min(best, float(costs[np.array(bits)].sum()))
    return best


@given(traces(max_claims=7), st.integers(0, 2**32 - 1), st.sampled_from([0.3, 0.5, 0.6, 0.8, 1]))
@settings(max_examples=60, deadline=None)
def test_cheapest_verification_equals_exhaustive_search(trace: ReasoningTrace, seed: int, share: float) -> None:
    generator = np.random.default_rng(seed)
    safe = generator.random(trace.num_claims) < 0.5
    costs = generator.integers(1, 5, trace.num_claims).astype(float)
    target = int(generator.integers(trace.num_claims))
    plan = cheapest_verification(trace, safe, targets=[target], costs=costs)
    assert target in plan.kept
    assert plan.cost == exhaustive_cost(trace, safe, costs, lambda kept: kept[target])
    plan = cheapest_verification(trace, safe, keep_fraction=share, costs=costs)
    needed = math.ceil(share * trace.num_claims - 1e-9)
    assert plan.exact
    assert len(plan.kept) >= needed
    assert plan.cost == exhaustive_cost(trace, safe, costs, lambda kept: kept.sum() >= needed)
    tiny = cheapest_verification(trace, safe, keep_fraction=share, costs=costs * 1e-12)
    assert tiny.cost == pytest.approx(plan.cost * 1e-12, rel=1e-9, abs=0)


def test_no_more_is_checked_than_asked_for() -> None:
    trace = ReasoningTrace(tuple(Claim(str(index)) for index in range(10)))
    assert len(cheapest_verification(trace, np.zeros(10, bool), keep_fraction=0.5).verify) == 5
    few = ReasoningTrace(trace.claims[:4])
    assert len(cheapest_verification(few, np.zeros(4, bool), keep_fraction=0.25, costs=[1e-12] * 4).verify) == 1


def test_the_heuristic_for_long_answers_says_so_and_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    exact, found = [], []
    for seed in range(15):
        trace = ReasoningTrace((Claim("x"),) * 30, random_graph(30, 40, seed=seed))
        safe, costs = generator.random(30) < 0.6, generator.integers(1, 6, 30) * 1e-12
        exact.append(cheapest_verification(trace, safe, keep_fraction=0.6, costs=costs).cost)
        with monkeypatch.context() as patch:
            patch.setattr(verification, "_MAX_EXACT_CLAIMS", 0)
            plan = cheapest_verification(trace, safe, keep_fraction=0.6, costs=costs)
        assert len(plan.kept) >= 18
        assert plan.exact == (plan.cost == 0)
        found.append(plan.cost)
    assert (np.array(found) >= np.array(exact) * (1 - 1e-9)).all()
    assert np.sum(found) <= 1.25 * np.sum(exact)
    alone = ReasoningTrace((Claim("x"),) * 10)
    monkeypatch.setattr(verification, "_MAX_EXACT_CLAIMS", 0)
    assert len(cheapest_verification(alone, np.zeros(10, bool), keep_fraction=0.5).verify) == 5


@pytest.mark.filterwarnings("ignore:.*too few")
def test_plans_are_certified_by_filters_on_independent_factuality_only() -> None:
    made = random_traces(60, 9)
    for fitted in (
        SplitConformalFilter(0.1, family="independent"),
        SplitConformalFilter(0.1, family="posthoc"),
        GroupConformalFilter(0.1, family="independent", group_by=lambda trace: "all"),
        WeightedConformalFilter(0.1, family="independent", weight=lambda trace: 1.0),
    ):
        assert plan_verification(made[50], fitted.fit(made[:50]), targets=[0]).certified
    for fitted in (
        SplitConformalFilter(0.1),
        RiskControlFilter(0.3, family="independent"),
    ):
        with pytest.warns(UserWarning, match="family='independent'"):
            assert not plan_verification(made[50], fitted.fit(made[:50]), targets=[0]).certified


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "give either"),
        ({"targets": [99]}, "out of range"),
        ({"targets": [0.5]}, "not an index"),
        ({"keep_fraction": 0.0}, "out of range"),
        ({"keep_fraction": 0.5, "costs": [0.0]}, "one positive number"),
        ({"keep_fraction": 0.5, "costs": np.array(["a", "b", "c"])}, "list or an array of numbers"),
        ({"keep_fraction": float("nan")}, "keep_fraction is NaN"),
        ({"targets": "2"}, "targets='2' is no list"),
        ({"keep_fraction": 0.5, "safe": np.ones(1, bool)}, "one truth value per claim"),
        ({"keep_fraction": 0.5, "safe": np.ones(3)}, "mask of truth values"),
    ],
)
def test_bad_goals(options: dict[str, Any], match: str) -> None:
    trace = ReasoningTrace((Claim("a"), Claim("b"), Claim("c")), DeducibilityGraph.chain(3))
    with pytest.raises((ValueError, TypeError), match=match):
        cheapest_verification(trace, options.pop("safe", np.ones(3, bool)), **options)
