from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_pearl_pe.graph import GSO_KINDS, gso, read_graph
from octavo_pearl_pe.sparse import apply_operator, apply_operator_out
from torch_geometric.utils import get_laplacian, to_dense_adj

TRIANGLE = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])


def dense(kind: str, adjacency: torch.Tensor) -> torch.Tensor:
    degree = adjacency.sum(0)
    inverse = torch.where(degree > 0, 1.0 / degree, 0.0)
    normalised = inverse.sqrt()[:, None] * adjacency * inverse.sqrt()
    return {
        "adj": adjacency,
        "lap": torch.diag(degree) - adjacency,
        "sym_adj": normalised,
        "sym_lap": torch.eye(len(adjacency)) - normalised,
        "rw": adjacency * inverse,
    }[kind]


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 12), density=st.floats(0, 1), seed=st.integers(0, 10**6), weighted=st.booleans())
def test_operators_equal_their_dense_definitions(n: int, density: float, seed: int, weighted: bool) -> None:
    graph = nx.gnp_random_graph(n, density, seed=seed)
    edges = torch.tensor(list(graph.edges), dtype=torch.long).view(-1, 2).T
    weights = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(seed)) + 0.1
    edges, both = torch.cat([edges, edges.flip(0)], dim=1), torch.cat([weights, weights])
    adjacency = torch.zeros(n, n)
    adjacency[edges[0], edges[1]] = both if weighted else 1.0
    for kind in GSO_KINDS:
        built = gso(edges, both if weighted else None, n, kind)
        assert torch.allclose(built.to_dense(), dense(kind, adjacency), atol=1e-6)


def test_laplacian_equals_pyg() -> None:
    edges, weights = get_laplacian(TRIANGLE, normalization="sym", num_nodes=4)
    expected = to_dense_adj(edges, edge_attr=weights, max_num_nodes=4)[0]
    assert torch.allclose(gso(TRIANGLE, num_nodes=4).to_dense(), expected)


def test_isolated_node_has_a_row_of_the_identity_or_of_zero() -> None:
    assert gso(TRIANGLE, num_nodes=4, kind="sym_lap").to_dense()[3].tolist() == [0, 0, 0, 1]
    assert gso(TRIANGLE, num_nodes=4, kind="sym_adj").to_dense()[3].tolist() == [0, 0, 0, 0]


def test_duplicates_count_once_without_weights_and_add_up_with_them() -> None:
    twice = torch.cat([TRIANGLE, TRIANGLE], dim=1)
    assert torch.equal(gso(twice, kind="adj").to_dense(), gso(TRIANGLE, kind="adj").to_dense())
    assert gso(twice, torch.ones(12), kind="adj").to_dense().max() == 2


def test_self_loops_leave_laplacians_with_a_warning_and_stay_in_adjacencies() -> None:
    looped = torch.cat([TRIANGLE, torch.tensor([[0], [0]])], dim=1)
    with pytest.warns(UserWarning, match="self-loops were removed"):
        assert torch.equal(gso(looped).to_dense(), gso(TRIANGLE).to_dense())
    assert gso(looped, kind="adj").to_dense()[0, 0] == 1


def test_random_walk_takes_directed_graphs_and_columns_sum_to_one() -> None:
    ring = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    walk = gso(ring, kind="rw").to_dense()
    assert torch.allclose(walk.sum(0), torch.ones(3))
    assert walk[1, 2] == 0.5


def test_gradient_of_a_directed_operator_is_its_transpose() -> None:
    graph = read_graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), kind="rw", dtype=torch.float64)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: apply_operator(graph.shift, x), (x,))
    assert torch.autograd.gradgradcheck(lambda x: apply_operator(graph.shift, x), (x,))


@pytest.mark.parametrize("kind", ["sym_lap", "rw"])
@pytest.mark.parametrize("width", [1, 31, 32, 100])
def test_products_of_any_width_equal_the_dense_ones_with_their_gradients(kind: str, width: int) -> None:
    edges, weights = TRIANGLE[:, :5] if kind == "rw" else TRIANGLE, torch.rand(5 if kind == "rw" else 6)
    graph = read_graph(edges, None if kind == "sym_lap" else weights, num_nodes=4, kind=kind)
    matrix = graph.shift.matrix.to_dense()
    signal = torch.randn(4, width, requires_grad=True)
    product = apply_operator(graph.shift, signal)
    assert torch.allclose(product, matrix @ signal, atol=1e-6)
    cotangent = torch.randn(4, width)
    assert torch.allclose(torch.autograd.grad(product, signal, cotangent)[0], matrix.T @ cotangent, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(apply_operator_out(graph.shift, signal, torch.empty_like(signal)), product)


@pytest.mark.parametrize("duplicates", [0, 5])
@pytest.mark.parametrize("nodes", [300, 3000])
def test_large_graphs_are_sorted_merged_and_recognised_as_undirected_or_not(nodes: int, duplicates: int) -> None:
    generator = torch.Generator().manual_seed(nodes + duplicates)
    ends = torch.randint(nodes, (2, 6000), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    ends = torch.cat([ends, ends[:, :duplicates]], dim=1)
    both = torch.cat([ends, ends.flip(0)], dim=1)[:, torch.randperm(2 * ends.shape[1], generator=generator)]
    graph = read_graph(both, num_nodes=nodes, kind="adj")
    pairs = sorted({(int(row), int(column)) for column, row in both.T})
    assert list(zip(graph.rows.tolist(), graph.columns.tolist(), strict=True)) == pairs
    assert graph.symmetric
    assert bool((graph.weights == 1).all())
    directed = both[:, (both[0] != pairs[0][1]) | (both[1] != pairs[0][0])]
    with pytest.raises(InvalidValueError, match="directed"):
        read_graph(directed, num_nodes=nodes, kind="adj")
    weights = torch.rand(both.shape[1], generator=generator)
    assert not read_graph(both, weights, num_nodes=nodes, kind="rw").symmetric


def test_restriction_keeps_whole_graphs() -> None:
    edges = torch.cat([TRIANGLE, TRIANGLE + 3], dim=1)
    kept = read_graph(edges, batch=torch.tensor([0, 0, 0, 1, 1, 1])).shift.restrict(torch.tensor([3, 4, 5]))
    assert torch.equal(kept.matrix.to_dense(), gso(TRIANGLE).to_dense())


def test_make_undirected_adds_the_reverse_edges() -> None:
    assert torch.equal(gso(TRIANGLE[:, ::2], make_undirected=True).to_dense(), gso(TRIANGLE).to_dense())


BAD = [
    ({"edge_index": TRIANGLE.int()}, InvalidTypeError, "convert it with .long()"),
    ({"edge_index": TRIANGLE.T}, InvalidValueError, r"give \[2, E\]"),
    ({"edge_index": TRIANGLE[0]}, InvalidValueError, r"give \[2, E\]"),
    ({"edge_index": TRIANGLE, "num_nodes": 2}, InvalidValueError, "with 2 nodes give 0 to 1"),
    ({"edge_index": TRIANGLE - 1}, InvalidValueError, "nodes from -1"),
    ({"edge_index": TRIANGLE[:, :0]}, InvalidValueError, "pass num_nodes"),
    ({"edge_index": TRIANGLE[:, :0], "num_nodes": 0}, InvalidValueError, "at least one"),
    ({"edge_index": TRIANGLE[:, :1]}, InvalidValueError, "make_undirected=True"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.arange(6.0)}, InvalidValueError, "directed"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.ones(6) * torch.nan}, InvalidValueError, "NaN"),
    ({"edge_index": TRIANGLE, "edge_weight": -torch.ones(6)}, InvalidValueError, "negative"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.ones(5)}, InvalidValueError, "one weight for 6 edges"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.ones(6).long()}, InvalidTypeError, ".float()"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.ones(6, requires_grad=True)}, InvalidValueError, "detach"),
    ({"edge_index": TRIANGLE, "kind": "cube"}, InvalidValueError, "sym_lap"),
    ({"edge_index": TRIANGLE, "batch": torch.tensor([0, 1, 0])}, InvalidValueError, "different graphs"),
    ({"edge_index": TRIANGLE, "batch": torch.full((3,), 10**9)}, InvalidValueError, "without large gaps"),
    ({"edge_index": TRIANGLE, "batch": [0, 0, 0]}, InvalidTypeError, "batch is a list"),
    ({"edge_index": None}, InvalidTypeError, "edge_index is a NoneType"),
    ({"edge_index": TRIANGLE.tolist()}, InvalidTypeError, "edge_index is a list"),
    ({"edge_index": TRIANGLE, "num_nodes": 5.0}, InvalidTypeError, "num_nodes=5.0 is a float"),
    ({"edge_index": TRIANGLE, "edge_weight": [1.0] * 6}, InvalidTypeError, "edge_weight is a list"),
    ({"edge_index": TRIANGLE, "edge_weight": torch.full((6,), 1e38)}, InvalidValueError, "rescale the weights"),
    ({"edge_index": TRIANGLE, "batch": torch.tensor([0, 0, 1])}, InvalidValueError, "different graphs"),
    ({"edge_index": TRIANGLE, "batch": torch.zeros(3)}, InvalidTypeError, "batch has dtype"),
    ({"edge_index": TRIANGLE, "batch": torch.zeros(2).long(), "num_nodes": 3}, InvalidValueError, "each of the 3"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_graphs_are_told(given: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_graph(**given)


def test_negative_weights_are_allowed_for_the_plain_adjacency() -> None:
    assert gso(TRIANGLE, -torch.ones(6), kind="adj").to_dense().min() == -1


def test_nodes_in_any_order_are_encoded_as_in_the_order_of_their_graphs() -> None:
    edges = torch.cat([TRIANGLE, TRIANGLE[:, :2] + 3], dim=1)
    batch, order = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([3, 0, 4, 1, 2])
    place = order.argsort()
    graph = read_graph(place[edges], batch=batch[order])
    assert graph.batch.tolist() == batch.tolist()
    assert torch.equal(graph.shift.matrix.to_dense(), read_graph(edges, batch=batch).shift.matrix.to_dense())
    rows = torch.arange(5)
    assert torch.equal(graph.restored(graph.arranged(rows)), rows)
