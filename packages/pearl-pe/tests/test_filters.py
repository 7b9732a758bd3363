from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_pearl_pe.datasets import family_graph
from octavo_pearl_pe.filters import BASES, FilterLayer, GraphFilter
from octavo_pearl_pe.graph import gso, read_graph

EDGES = family_graph("er", 14, seed=3)
GRAPH = read_graph(EDGES, num_nodes=14, dtype=torch.float64)


@pytest.mark.parametrize("taps", [1, 2, 5])
@pytest.mark.parametrize("basis", BASES)
def test_bases_span_the_same_filters(taps: int, basis: str) -> None:
    shift = gso(EDGES, num_nodes=14, dtype=torch.float64)
    signal = torch.randn(14, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    monomial = GraphFilter(taps)(shift, signal)[:, 0].numpy()
    other = GraphFilter(taps, basis)(shift, signal)[:, 0].numpy()
    change, *_ = np.linalg.lstsq(monomial, other, rcond=None)
    assert np.abs(monomial @ change - other).max() < 1e-8
    change, *_ = np.linalg.lstsq(other, monomial, rcond=None)
    assert np.abs(other @ change - monomial).max() < 1e-8


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 8])
def test_bernstein_terms_sum_to_the_identity(taps: int) -> None:
    signal = torch.eye(14, dtype=torch.float64)
    total = GraphFilter(taps, "bernstein")(gso(EDGES, num_nodes=14, dtype=torch.float64), signal).sum(-1)
    assert float((total - signal).abs().max()) < 1e-10


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 5), (3, 5), (5, 3), (4, 4)])
def test_layer_equals_its_definition_with_and_without_gradients(basis: str, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer = FilterLayer(inputs, outputs, 4, basis=basis).double()
    x = torch.randn(14, 2, inputs, dtype=torch.float64)
    terms = GraphFilter(4, basis)(GRAPH.shift.matrix, x.flatten(1)).view(14, 2, inputs, 4)
    expected = torch.einsum("nmik,kio->nmo", terms, layer.weight) + layer.bias
    assert torch.allclose(layer(x, GRAPH.shift), expected, atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(layer(x, GRAPH.shift), expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["sym_lap", "sym_adj"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_constrained_filters_have_norm_at_most_beta(kind: str, scale: float) -> None:
    torch.manual_seed(1)
    layer = FilterLayer(3, 4, 4, constrain=True, gso=kind).double()
    with torch.no_grad():
        layer.weight.normal_().mul_(scale)
    shift = read_graph(EDGES, num_nodes=14, kind=kind, dtype=torch.float64).shift.matrix.to_dense()
    powers = torch.stack([torch.linalg.matrix_power(shift, k) for k in range(4)])
    filters = torch.einsum("kio,kvu->iovu", layer.taps(), powers)
    assert float(torch.linalg.matrix_norm(filters, 2).max().detach()) <= 1 / 3 + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GraphFilter(0), "filter_taps >= 1"),
        (lambda: GraphFilter(2, "fourier"), "monomial"),
        (lambda: FilterLayer(1, 1, 2, constrain=True, gso="adj"), "norms are known"),
        (lambda: GraphFilter(2)(gso(EDGES, num_nodes=14), torch.zeros(3, 1)), "one row per node"),
    ],
)
def test_bad_filters_are_told(call, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        call()


@pytest.mark.parametrize("samples", [1, 31, 32, 200])
def test_one_channel_in_float32_equals_its_definition_for_any_number_of_samples(samples: int) -> None:
    torch.manual_seed(samples)
    layer, graph = FilterLayer(1, 6, 4), read_graph(EDGES, num_nodes=14)
    x = torch.randn(14, samples, 1)
    powers = torch.stack([torch.linalg.matrix_power(graph.shift.matrix.to_dense(), k) for k in range(4)])
    expected = torch.einsum("kuv,vmi,kio->umo", powers, x, layer.weight) + layer.bias
    assert torch.allclose(layer(x, graph.shift), expected, atol=1e-4)
    # Memory that was in use before must not show through.
    dirty = [torch.full((14 * samples * 8,), torch.nan) for _ in range(8)]
    del dirty
    with torch.no_grad():
        assert torch.allclose(layer(x, graph.shift), expected, atol=1e-4)


def test_a_dense_shift_operator_and_broken_numbers_of_taps_are_told() -> None:
    with pytest.raises(InvalidTypeError, match="what gso returns"):
        GraphFilter(3)(torch.eye(4), torch.ones(4, 1))
    with pytest.raises(InvalidValueError, match="whole number"):
        FilterLayer(1, 2, 0)
