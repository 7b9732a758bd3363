"""Mistakes that a caller can make end in one clear error, and never in a wrong result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import networkx
import numpy as np
import pandas
import pytest
import torch
from coherent_traces import random_traces
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.heuristics import trace_from_text
from octavo_coherent_factuality.io import trace_from_json
from octavo_coherent_factuality.learned import CrossFittedFilter, train_scorer
from octavo_coherent_factuality.quantile import conformal_threshold, exact_alpha
from octavo_coherent_factuality.scorers import FrequencyScorer, claim_risks
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
        (lambda: TWO.with_score("x", ["1", "2"]), "give a list or an array of numbers"),
        (lambda: TWO.with_score("x", [[1.0, 2.0]]), r"values of shape \(1, 2\) for the 2 claims"),
        (lambda: claims_from_arrays(frequency=5), "give one number per claim"),
        (lambda: claims_from_arrays(frequency=["a"]), "give a list or an array of numbers"),
        (lambda: claims_from_arrays(frequency=(n for n in (1, 2))), "give a list or an array of numbers"),
        (lambda: claims_from_arrays(frequency=[1j]), "give a list or an array of numbers"),
        (lambda: claims_from_arrays(factual=[pandas.NA]), "not a truth value"),
        (lambda: claims_from_arrays(texts="abc"), "texts is 'abc'; give a list"),
        (lambda: Claim("a", {"f": np.array([1.0, 2.0])}), "score 'f' is array"),
        (lambda: trace_from_json({"claims": [{"text": "a", "frequency": "5"}]}), "'frequency' of claim 0 is '5'"),
        (lambda: trace_from_json({"claims": [{"text": "a", "gpt-score": "0.5"}]}), "'gpt-score' of claim 0 is '0.5'"),
        (
            lambda: trace_from_json({"claims": ["a"], "subset_annotations": {"Coherent": [[0]]}}),
            "unknown key 'Coherent'; give 'coherent' and 'not_coherent'",
        ),
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
        (lambda: DeducibilityGraph(np.array([0, 0, 1]), np.array([-1])), "claim index -1 is out of range"),
        (lambda: DeducibilityGraph(np.array([0, 0, 1]), np.array([9])), "claim index 9 is out of range"),
        (lambda: DeducibilityGraph(np.array([0, 2]), np.array([0])), "does not point into 1 premises"),
        (lambda: DeducibilityGraph(np.array([0, 1, 0, 1]), np.array([0])), "give rising numbers"),
        (lambda: TWO.graph.parents(-1), "claim index -1 is out of range; there are 2 claims"),
        (lambda: TWO.graph.children(-1), "claim index -1 is out of range"),
        (lambda: TWO.graph.ancestors(2), "claim index 2 is out of range"),
        (lambda: TWO.graph.descendants(-1), "claim index -1 is out of range"),
        (lambda: TWO.graph.is_ancestor_closed(np.ones(9, bool)), "one truth value per claim"),
        (lambda: TWO.graph.largest_closed_subset(np.ones(5, bool)), "one truth value per claim"),
        (lambda: TWO.graph.running_max(np.ones(3)), "give one number per claim"),
        (lambda: DeducibilityGraph.from_matrix([[0, [1]], [1, 0]]), "cannot be read|must be 0 or 1|square"),
        (lambda: DeducibilityGraph.from_matrix(3), "cannot be read"),
        (lambda: DeducibilityGraph.empty(-1), "num_claims=-1"),
        (lambda: DeducibilityGraph.chain(-1), "num_claims=-1"),
        (lambda: DeducibilityGraph.full(-1), "num_claims=-1"),
        (lambda: FrequencyScorer(-5), "num_samples=-5"),
        (lambda: generate_traces(2, seed=-1), "seed=-1 is out of range"),
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
import json
import tempfile

import numpy as np
from octavo_coherent_factuality import *
from octavo_coherent_factuality.io import trace_from_json, trace_to_json
from octavo_coherent_factuality.baselines import fixed_threshold
from octavo_coherent_factuality.learned import train_scorer
from octavo_coherent_factuality.persist import load_filter, save_filter
from octavo_coherent_factuality.quantile import quantile_rank
from octavo_coherent_factuality.scorers import Ordinal
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
    (lambda: Claim(5), "the text of a claim is 5; give a text"),
    (lambda: Claim("a", 0.5), "give a mapping"),
    (lambda: Claim("a", None), "give a mapping"),
    (lambda: ReasoningTrace(TWO.claims, question=float("nan")), "the question is nan; give a text"),
    (lambda: ReasoningTrace(TWO.claims, answer=5), "the answer is 5; give a text"),
    (lambda: ReasoningTrace(TWO.claims, id=float("nan")), "the id of a trace is nan"),
    (lambda: ReasoningTrace(TWO.claims, subset_annotations=5), "give a mapping"),
    (lambda: ReasoningTrace(TWO.claims, subset_annotations={frozenset([0]): "no"}), "'no' is not a truth value"),
    (lambda: ReasoningTrace(TWO.claims, subset_annotations={frozenset([0]): None}), "give True or False"),
    (lambda: ReasoningTrace(TWO.claims, subset_annotations={(0,): True}), "as a frozenset"),
    (lambda: ReasoningTrace(TWO.claims, subset_annotations={1: True}), "as a frozenset"),
    (lambda: TWO.with_factual(5), "factual is 5; give a list"),
    (lambda: DeducibilityGraph.from_parents(None), "parents=None is no list"),
    (lambda: TWO.graph.is_ancestor_closed(np.array([1, 0])), "give a mask of truth values"),
    (lambda: TWO.graph.is_ancestor_closed({0, 1}), "give one truth value per claim"),
    (lambda: TWO.graph.largest_closed_subset(np.array([1, 1])), "give a mask of truth values"),
    (lambda: TWO.graph.running_max(["a", "b"]), "give a list or an array of numbers"),
    (lambda: NestedFamily.build([[], [0]], [1, 2]), "give a ReasoningTrace or a DeducibilityGraph"),
    (lambda: NestedFamily.build(TWO, [1, 2]).at("x"), "tau='x' is not a number"),
    (lambda: fixed_threshold([TWO], "x"), "tau='x' is not a number"),
    (lambda: quantile_rank("5", 0.1), "n='5' is not a whole number"),
    (lambda: quantile_rank(5.5, 0.1), "n=5.5 is not a whole number"),
    (lambda: calibration_curve([TWO] * 1, [0.1], method="subgraph"), "method='subgraph' is no method"),
    (lambda: calibration_curve([TWO], [0.1], method=fitted()), "is no method"),
    (lambda: calibration_curve([TWO], [0.1], evaluator="gold"), "evaluator='gold' is no annotator"),
    (lambda: calibration_curve([TWO], [0.1], evaluator=Gold), "is no annotator"),
    (lambda: calibration_curve([TWO], 0.1), "alphas=0.1 is no list"),
    (lambda: calibration_curve([TWO], "0.1"), "alphas='0.1' is no list"),
    (lambda: calibration_curve([TWO], [0.1], seed=-1), "seed=-1 is out of range"),
    (lambda: calibration_curve([TWO], [0.1], seed=1.5), "seed=1.5 is not a whole number"),
    (lambda: calibration_curve([TWO], [0.1], seed=None), "seed=None is not a whole number"),
    (lambda: calibration_curve([TWO], [0.1], repeats=2.5), "repeats=2.5 is not a whole number"),
    (lambda: calibration_curve([TWO], [0.1], calibration_size=1.0), "calibration_size=1.0 is not a whole number"),
    (lambda: OnlineFilter(step_size="x"), "step_size='x' is not a number"),
    (lambda: OnlineFilter(step_size=-1.0), "step_size=-1.0 is negative"),
    (lambda: OnlineFilter(window=1.5), "window=1.5 is not a whole number"),
    (lambda: OnlineFilter(seed="x"), "seed='x' is not a whole number"),
    (lambda: OnlineFilter(method="subgraph"), "method='subgraph' is no method"),
    (lambda: WeightedConformalFilter(weight=None).fit([TWO]), "weight=None is no function"),
    (lambda: WeightedConformalFilter(weight=lambda trace: None).fit([TWO]), "give a positive number"),
    (lambda: generate_traces(2.5), "count=2.5 is not a whole number"),
    (lambda: train_scorer([TWO], hidden=2.5), "hidden=2.5 is not a whole number"),
    (lambda: train_scorer([TWO], steps=3.5), "steps=3.5 is not a whole number"),
    (lambda: train_scorer([TWO], seed=1.5), "seed=1.5 is not a whole number"),
    (lambda: cheapest_verification(TWO, np.ones(2, bool), targets=3), "targets=3 is no list"),
    (lambda: cheapest_verification(TWO, np.ones(2, bool), keep_fraction="x"), "keep_fraction='x' is not a number"),
]
for number, (call, match) in enumerate(cases):
    try:
        call()
        print(number, "no error")
    except OctavoError as error:
        if match not in str(error):
            print(number, match, error)
print(len(cases), "cases")
# Ids of a table are numbers; they are told apart and stored as texts.
judged = {frozenset([np.int64(0)]): np.True_}
made = ReasoningTrace((Claim("a", id=7),), id=np.int64(7), group=np.int64(1), subset_annotations=judged)
stored = json.loads(json.dumps(trace_to_json(made)))
print(stored["id"], stored["group"], trace_from_json(stored).key == made.key)
# Settings of a sweep are numbers of NumPy.
boosted = DescendantWeighted(FrequencyScorer(np.int64(5)), beta=np.float32(0.1))
scorer = Combined((boosted, Ordinal()), (np.float32(1), np.int64(2)))
made = generate_traces(40, seed=1)
for limits in ({"max_bad": np.int64(1)}, {"min_fraction": np.float32(0.9)}):
    saved = SplitConformalFilter(0.2, scorer=scorer, annotator=Partial(**limits), seed=np.int64(3)).fit(made[:30])
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_filter(save_filter(folder + "/filter.json", saved))
    print(loaded.scorer == scorer, loaded.seed, loaded.predict(made[30:]) == saved.predict(made[30:]))
"""


def test_mistakes_in_narrow_places_are_told() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HOOK], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["61 cases", "7 1 True", "True 3 True", "True 3 True"]


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


@pytest.mark.parametrize("index", [[2, 1, 0], [5, 6, 7]])
def test_pandas_columns_are_read_by_position(index: list[int]) -> None:
    frame = pandas.DataFrame({"claim": ["a", "b", "c"], "frequency": [5, 0, -5], "factual": [1, 1, 0]}, index=index)
    claims = claims_from_arrays(factual=frame.factual, texts=frame.claim, frequency=frame.frequency)
    assert [(c.text, c.scores["frequency"], c.factual) for c in claims] == [
        ("a", 5.0, True),
        ("b", 0.0, True),
        ("c", -5.0, False),
    ]
    bare = ReasoningTrace(claims_from_arrays(texts=frame.claim))
    assert bare.with_factual(frame.factual).with_score("frequency", frame.frequency).claims == claims


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_taken_with_gradients_and_in_any_precision(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 3.0], dtype=dtype, requires_grad=True)
    claims = claims_from_arrays(factual=torch.tensor([1, 0]), frequency=values)
    assert [(claim.scores["frequency"], claim.factual) for claim in claims] == [(1.0, True), (3.0, False)]
    assert TWO.with_score("x", values).score("x").tolist() == [1.0, 3.0]
    assert NestedFamily.build(TWO, values).entry_risk.tolist() == [1.0, 3.0]
    assert conformal_threshold(values, 0.5) == 1.0
    assert claim_risks(lambda trace: values, TWO).tolist() == [1.0, 3.0]  # type: ignore[arg-type, return-value]
    matrix = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=dtype, requires_grad=True)
    assert DeducibilityGraph.from_matrix(matrix).to_parents() == [[], [0]]


def test_claims_can_be_hashed() -> None:
    assert len({Claim("a", {"f": 1, "g": 2}), Claim("a", {"g": 2, "f": 1}), Claim("a")}) == 2
