from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
from coherent_traces import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality.generator import random_graph
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.trace import ReasoningTrace


@given(traces())
@settings(deadline=None)
def test_orders_put_premises_first(trace: ReasoningTrace) -> None:
    graph = trace.graph
    position = np.empty(graph.num_claims, int)
    position[graph.topological_order] = np.arange(graph.num_claims)
    assert (position[graph.indices] < position[graph.edge_claims]).all()


@given(traces())
@settings(deadline=None)
def test_ancestors_agree_with_networkx(trace: ReasoningTrace) -> None:
    theirs = trace.graph.to_networkx()
    for claim in range(trace.num_claims):
        assert trace.graph.ancestors(claim) == networkx.ancestors(theirs, claim)
        assert trace.graph.descendants(claim) == networkx.descendants(theirs, claim)


@given(traces())
@settings(deadline=None)
def test_round_trips(trace: ReasoningTrace) -> None:
    graph = trace.graph
    assert DeducibilityGraph.from_parents(graph.to_parents()) == graph
    assert DeducibilityGraph.from_matrix(graph.to_matrix()) == graph
    assert DeducibilityGraph.from_matrix(graph.to_matrix().T.tolist(), convention="col_depends_on_row") == graph
    assert DeducibilityGraph.from_networkx(graph.to_networkx()) == graph


@pytest.mark.parametrize("forward", [False, True])
def test_large_graphs_by_levels_agree_with_the_plain_pass(forward: bool) -> None:
    graph = random_graph(6000, 15_000, seed=1, forward=forward)
    risks = np.random.default_rng(0).normal(size=6000)
    assert graph._levels is not None
    result = graph.running_max(risks)
    expected = risks.copy()
    for claim in graph.topological_order.tolist():
        expected[claim] = max([expected[claim], *(expected[parent] for parent in graph.parents(claim))])
    np.testing.assert_array_equal(result, expected)


def test_deep_large_graphs_take_the_plain_pass() -> None:
    graph = DeducibilityGraph.chain(6000)
    assert graph._levels is None
    risks = np.random.default_rng(0).normal(size=6000)
    np.testing.assert_array_equal(graph.running_max(risks), np.maximum.accumulate(risks))


def test_a_cycle_in_a_large_graph_is_told() -> None:
    graph = random_graph(6000, 15_000, seed=1)
    claims, premises = np.r_[graph.edge_claims, 0], np.r_[graph.indices, 5999]
    premises[-2], claims[-2] = 0, 5999
    with pytest.raises(ValueError, match="in a circle"):
        DeducibilityGraph.from_edges(6000, claims, premises)


def test_cycle_is_named_and_can_be_mended() -> None:
    parents = [[2], [0], [1], [2]]
    with pytest.raises(ValueError, match=r"\[.*\] rely on each other in a circle.*repair='break'"):
        DeducibilityGraph.from_parents(parents)
    broken = DeducibilityGraph.from_parents(parents, repair="break")
    assert broken.to_parents() == [[], [0], [1], [2]]
    assert broken.dropped_edges == ((0, 2),)
    chain = DeducibilityGraph.from_parents(parents, repair="chain")
    assert chain.to_parents() == [[], [0], [1], [2]]
    assert chain.fallback


@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_breaking_cycles_always_leaves_a_graph(size: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).random((size, size)) < 0.4
    claims, premises = np.nonzero(matrix)
    graph = DeducibilityGraph.from_edges(size, claims, premises, repair="break")
    kept = {(int(c), int(p)) for c, p in zip(graph.edge_claims, graph.indices, strict=True)}
    assert kept | set(graph.dropped_edges) == {(int(c), int(p)) for c, p in zip(claims, premises, strict=True)}
    assert len(graph.topological_order) == size


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: DeducibilityGraph.from_parents([[0]]), ValueError, "relies on itself"),
        (lambda: DeducibilityGraph.from_parents([[], [7]]), ValueError, "claim index 7 is out of range"),
        (lambda: DeducibilityGraph.from_parents([[], [-1]]), ValueError, "claim index -1 is out of range"),
        (lambda: DeducibilityGraph.from_parents([[], [0.5]]), TypeError, "not an index"),
        (lambda: DeducibilityGraph.from_parents([[], [True]]), TypeError, "not an index"),
        (lambda: DeducibilityGraph.from_parents([[]], num_claims=2), ValueError, "1 rows for 2 claims"),
        (lambda: DeducibilityGraph.from_matrix([[0, 0], [1, 0, 0]]), ValueError, "row 1 of the matrix has 3 entries"),
        (lambda: DeducibilityGraph.from_matrix([[0, 0, 0], [1, 0, 0]]), ValueError, "square"),
        (lambda: DeducibilityGraph.from_matrix([[0, 2], [0, 0]]), ValueError, "must be 0 or 1"),
        (lambda: DeducibilityGraph.from_matrix([[0, "a"], [0, 0]]), ValueError, "must be 0 or 1"),
        (lambda: DeducibilityGraph.from_matrix([[0, float("nan")], [0, 0]]), ValueError, "must be 0 or 1"),
        (lambda: DeducibilityGraph.from_matrix([[1]]), ValueError, "relies on itself"),
    ],
)
def test_bad_graphs_are_refused(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()  # type: ignore[operator]


def test_union_is_closed_where_all_are() -> None:
    first, second = DeducibilityGraph.from_parents([[], [0], []]), DeducibilityGraph.from_parents([[], [], [0]])
    union = DeducibilityGraph.union([first, second])
    for mask in range(8):
        kept = np.array([mask >> i & 1 for i in range(3)], bool)
        both = first.is_ancestor_closed(kept) and second.is_ancestor_closed(kept)
        assert union.is_ancestor_closed(kept) == both
    with pytest.raises(ValueError, match="same claims"):
        DeducibilityGraph.union([first, DeducibilityGraph.empty(2)])


def test_pyg() -> None:
    pytest.importorskip("torch_geometric")
    data = DeducibilityGraph.from_parents([[], [0], [0, 1]]).to_pyg()
    assert data.edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert data.num_nodes == 3


def test_parents_may_come_one_by_one() -> None:
    assert DeducibilityGraph.from_parents(row for row in [[], [0]]).to_parents() == [[], [0]]


@pytest.mark.parametrize(
    "kind", [pandas.DataFrame, np.matrix, scipy.sparse.csr_array, scipy.sparse.coo_matrix, np.array, list]
)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrices_of_every_kind(kind: Callable[..., Any]) -> None:
    rows = [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert DeducibilityGraph.from_matrix(kind(rows)).to_parents() == [[], [0], [0, 1]]


def test_the_arrays_of_the_caller_stay_writable() -> None:
    indptr, indices = np.array([0, 0, 1]), np.array([0])
    graph = DeducibilityGraph(indptr, indices)
    indices[0] = 1
    assert indptr.flags.writeable
    assert graph.to_parents() == [[], [0]]
