"""Mistakes that a caller can make end in one clear error, and never in a wrong result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import networkx
import numpy as np
import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.heuristics import trace_from_text
from octavo_coherent_factuality.learned import CrossFittedFilter, train_scorer
from octavo_coherent_factuality.quantile import exact_alpha
from octavo_coherent_factuality.scorers import FrequencyScorer
from octavo_coherent_factuality.trace import Claim, ReasoningTrace, claims_from_arrays
from octavo_core.errors import OctavoError

TWO = ReasoningTrace((Claim("a", {"frequency": 1}, True), Claim("b", {"frequency": 2}, False)), id="two")


def fitted() -> SplitConformalFilter:
    return SplitConformalFilter(0.5).fit(random_traces(5, 0))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: fitted().set_params(seed="a").fit([TWO]), "seed='a'"),
        (lambda: fitted().fit(None), "got a NoneType"),
        (lambda: fitted().fit(TWO), "got a ReasoningTrace"),
        (lambda: fitted().predict(TWO), "got a ReasoningTrace"),
        (lambda: fitted().predict("text"), "got a str"),
        (lambda: fitted().score([]), "no traces"),
        (lambda: fitted().evaluate([]), "no traces"),
        (lambda: CrossFittedFilter().fit(None), "got a NoneType"),
        (lambda: TWO.with_factual([True]), "1 annotations for the 2 claims"),
        (lambda: TWO.with_factual(["no", "N"]), "not a truth value"),
        (lambda: claims_from_arrays(factual=["no"]), "not a truth value"),
        (lambda: TWO.with_score("x", [1.0]), "1 values for the 2 claims"),
        (lambda: TWO.permuted([0]), "no order"),
        (lambda: TWO.permuted([0, 0]), "no order"),
        (lambda: TWO.graph.permuted([0]), "no order"),
        (lambda: DeducibilityGraph.from_networkx(networkx.MultiDiGraph([(0, 1)])), "give a networkx.DiGraph"),
        (lambda: DeducibilityGraph.from_networkx(networkx.Graph([(0, 1)])), "give a networkx.DiGraph"),
        (lambda: DeducibilityGraph.from_networkx([[]]), "give a networkx.DiGraph"),
        (lambda: DeducibilityGraph.from_edges(2, [1.7], [0.2]), "give integers"),
        (lambda: DeducibilityGraph.from_edges(3, [1, 2], [0]), "of the same length"),
        (lambda: DeducibilityGraph.from_edges(3, [[1]], [[0]]), "one index per edge"),
        (lambda: DeducibilityGraph.from_parents([[], [10**30]]), "is out of range"),
        (lambda: DeducibilityGraph.from_parents([[], 3]), "are no list"),
        (lambda: DeducibilityGraph.from_matrix([[0, [1]], [1, 0]]), "cannot be read|must be 0 or 1|square"),
        (lambda: DeducibilityGraph.from_matrix(3), "cannot be read"),
        (lambda: DeducibilityGraph.empty(-1), "num_claims=-1"),
        (lambda: DeducibilityGraph.chain(-1), "num_claims=-1"),
        (lambda: DeducibilityGraph.full(-1), "num_claims=-1"),
        (lambda: FrequencyScorer(-5), "num_samples=-5"),
        (lambda: train_scorer(generate_traces(5), device="cuda:9"), "device 'cuda:9'"),
        (lambda: trace_from_text("a. b", alternatives="text"), "list of texts"),
        (lambda: exact_alpha("1e-999999999"), "too many digits"),
        (lambda: exact_alpha(Decimal("1e-999999999")), "too many digits"),
        (lambda: exact_alpha("0." + "0" * 5000 + "1"), "too many digits"),
    ],
)
def test_mistakes_are_told(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(OctavoError, match=match):
        call()


# Where signatures are narrow the import hook of these tests would speak first; users have none.
WITHOUT_HOOK = """
from octavo_coherent_factuality import *
from octavo_core.errors import OctavoError
from octavo_coherent_factuality.trace import ReasoningTrace

TWO = ReasoningTrace((Claim("a", {"frequency": 1}, True), Claim("b", {"frequency": 2}, False)), id="two")
fitted = lambda: SplitConformalFilter(0.5)
cases = [
    (lambda: fitted().set_params(scorer="frequency").fit([TWO]), "is no scorer"),
    (lambda: fitted().set_params(scorer=Silver()).fit([TWO]), "is no scorer"),
    (lambda: fitted().set_params(annotator="silver").fit([TWO]), "is no annotator"),
    (lambda: fitted().set_params(annotator=FrequencyScorer()).fit([TWO]), "is no annotator"),
    (lambda: fitted().set_params(scorer=lambda trace: ["x"] * trace.num_claims).fit([TWO]), "the scorer failed"),
    (lambda: ReasoningTrace(("a", "b")), "give Claim objects"),
    (lambda: ReasoningTrace(5), "give Claim objects"),
    (lambda: ReasoningTrace((Claim("a"),), [[]]), "give a DeducibilityGraph"),
    (lambda: FrequencyScorer("a"), "num_samples='a'"),
    (lambda: Ranked(3), "is no scorer"),
    (lambda: DescendantWeighted("x"), "is no scorer"),
    (lambda: DescendantWeighted(beta="x"), "beta='x'"),
    (lambda: Combined((3,)), "is no scorer"),
    (lambda: Gold("silvr"), "on_missing='silvr'"),
    (lambda: Partial(max_bad="a"), "max_bad='a'"),
]
for number, (call, match) in enumerate(cases):
    try:
        call()
        print(number, "no error")
    except OctavoError as error:
        if match not in str(error):
            print(number, match, error)
print(len(cases), "cases")
"""


def test_mistakes_in_narrow_places_are_told() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HOOK], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "15 cases"


def test_truth_values_of_every_kind_are_taken() -> None:
    for values in ([1, 0], [np.True_, np.False_], np.array([1.0, 0.0]), [True, None]):
        assert [claim.factual for claim in TWO.with_factual(values).claims] == [
            None if value is None else bool(value) for value in values
        ]
    assert exact_alpha("1e-30") == exact_alpha(Decimal("1e-30"))


def test_cross_fitted_filters_are_evaluated() -> None:
    made = generate_traces(24, seed=5)
    found = CrossFittedFilter(0.2, folds=2, steps=2, hidden=2).fit(made[:16]).evaluate(made[16:])
    assert found.n == 8
    assert 0 <= found.retained <= 1
    assert "coherent" in found.event
