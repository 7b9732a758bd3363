from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_pearl_pe import walks
from octavo_pearl_pe.datasets import CSL_SKIPS, atlas_pairs, cospectral_pairs, family_graph, srg16, wl_pairs
from octavo_pearl_pe.encoder import BPEARL, PEARL
from octavo_pearl_pe.graph import gso, read_graph
from octavo_pearl_pe.theory import expected_relu_filter, sample_bound, second_moment, separates, wl_colors
from octavo_pearl_pe.walks import closed_walks
from torch_geometric.utils import from_networkx

EDGES = family_graph("er", 15, seed=1)


def basis_encoder(layers: int = 2, **options) -> BPEARL:
    with torch.random.fork_rng():
        torch.manual_seed(layers)
        return BPEARL(8, **{"filter_taps": 5, "layers": layers, "hidden": 16, "norm": None} | options).double().eval()


def test_a_linear_network_encodes_nothing_but_the_constant_signal() -> None:
    options = {"gnn": "filter", "layers": 2, "act": "identity", "norm": None, "filter_taps": 3, "hidden": 5}
    basis = basis_encoder(**options)
    for layer in (basis.lift, basis.body.layers[0]):
        torch.nn.init.zeros_(layer.bias)
    random = PEARL(8, eval_samples=4096, **options).double().eval()
    random.load_state_dict(basis.state_dict())
    ones = random(EDGES, num_nodes=15, q=torch.ones(15, 1, dtype=torch.float64))
    assert torch.allclose(basis(EDGES, num_nodes=15), ones, atol=1e-12)
    z = random(EDGES, num_nodes=15) / random.standard_error(EDGES, num_nodes=15)
    assert float(z.abs().max()) < 5


@pytest.mark.parametrize("kind", ["sym_lap", "sym_adj", "adj"])
def test_second_moments_are_closed_walks(kind: str) -> None:
    shift = gso(EDGES, num_nodes=15, kind=kind, dtype=torch.float64)
    dense = shift.to_dense()
    for k, l in [(0, 0), (1, 2), (3, 3), (0, 5)]:  # noqa: E741
        power_k, power_l = torch.linalg.matrix_power(dense, k), torch.linalg.matrix_power(dense, l)
        assert torch.allclose(second_moment(shift, k, l), (power_k * power_l).sum(1), atol=1e-9, rtol=1e-9)
    q = torch.randn(15, 200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    products = (dense @ q) * (dense @ dense @ q)
    error = products.std(1) / q.shape[1] ** 0.5
    assert bool(((products.mean(1) - second_moment(shift, 1, 2)).abs() < 5 * error).all())


def test_closed_walks_of_a_directed_operator() -> None:
    graph = read_graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), kind="rw", dtype=torch.float64)
    dense = graph.shift.matrix.to_dense()
    expected = torch.stack([torch.linalg.matrix_power(dense, k).diagonal() for k in range(7)], dim=1)
    assert torch.allclose(closed_walks(graph.shift, 6), expected)


def test_closed_walks_of_hubs_are_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "_MOST_ENTRIES", 50)
    with pytest.raises(InvalidStateError, match="hubs"):
        closed_walks(read_graph(EDGES, num_nodes=15).shift, 4)
    with pytest.raises(InvalidValueError, match="negative"):
        second_moment(gso(EDGES, num_nodes=15), -1, 2)


def test_classes_of_circular_skip_links_by_length_of_closed_walks() -> None:
    counts = []
    for length in range(3, 9):
        walks = set()
        for skip in CSL_SKIPS:
            adjacency = nx.to_numpy_array(nx.circulant_graph(41, [1, skip])).astype(int)
            powers = [np.linalg.matrix_power(adjacency, k)[0, 0] for k in range(3, length + 1)]
            walks.add(tuple(powers))
        counts.append(len(walks))
    assert counts == [2, 3, 5, 6, 9, 10]


@pytest.mark.parametrize(("taps", "layers", "classes"), [(5, 1, 10), (3, 2, 10), (2, 1, 1)])
def test_depth_decides_how_many_classes_are_told_apart(taps: int, layers: int, classes: int) -> None:
    encoder = basis_encoder(layers, filter_taps=taps, gnn="filter", act="tanh")
    sums = [encoder(from_networkx(nx.circulant_graph(41, [1, skip]))).sum(0) for skip in CSL_SKIPS]
    assert len({tuple((s.detach() * 1e8).round().tolist()) for s in sums}) == classes


def test_colour_refinement() -> None:
    for first, second in [*wl_pairs().values(), srg16()]:
        assert wl_colors(first) == wl_colors(second)
    assert wl_colors(nx.path_graph(4)) != wl_colors(nx.star_graph(3))
    assert len(atlas_pairs(7)) == 20


@pytest.mark.parametrize("layers", [2, 3])
def test_basis_variant_separates_what_1wl_confuses_but_not_the_strongly_regular_pair(layers: int) -> None:
    encoder = basis_encoder(layers)
    for first, second in wl_pairs().values():
        assert separates(encoder, first, second, repeats=2).separated
    rook, shrikhande = srg16()
    sums = [encoder(g).sum(0) for g in (rook, shrikhande)]
    assert float(((sums[0] - sums[1]).abs() / sums[0].abs().max()).max().detach()) < 2e-14 * 16
    for first, second in cospectral_pairs(5).values():
        assert separates(encoder, first, second, repeats=2).separated


def test_random_variant_needs_samples_to_separate_and_raises_no_false_alarm() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = PEARL(8, gnn="filter", filter_taps=5, layers=2, norm=None, eval_samples=256, control_variate=True)
    encoder.double().eval()
    first, second = wl_pairs()["C6 / 2 C3"]
    assert separates(encoder, first, second, repeats=16).separated
    again = from_networkx(nx.relabel_nodes(nx.cycle_graph(6), dict(enumerate([3, 0, 5, 2, 4, 1]))))
    assert not separates(encoder, first, again, repeats=16).separated
    assert not separates(encoder, *srg16(), repeats=8).separated
    with pytest.raises(InvalidValueError, match="2 or more"):
        separates(encoder, first, second, repeats=1)


def test_sample_bound() -> None:
    assert sample_bound(0.1, 0.05) == math.ceil(200 * math.log(40))
    assert sample_bound(0.1, 0.05, num_values=1000) > sample_bound(0.1, 0.05)
    with pytest.raises(InvalidValueError, match="tol > 0"):
        sample_bound(0.0, 0.05)


def test_dense_operators_are_told() -> None:
    with pytest.raises(InvalidTypeError, match="gso"):
        expected_relu_filter(torch.eye(3), [1.0])
