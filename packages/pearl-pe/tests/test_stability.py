from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_core.bench import fit_power_law
from octavo_core.errors import InvalidValueError
from octavo_pearl_pe.demo import cycle_stability
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.graph import gso
from octavo_pearl_pe.stability import certified_constant, perturb_weights, shift_distance, spread_edges, stability_curve
from torch_geometric.data import Data

NODE = torch.arange(20)
RING = torch.stack([NODE, (NODE + 1) % 20])
CYCLE = Data(edge_index=torch.cat([RING, RING.flip(0)], dim=1), num_nodes=20)
SIZES = (1e-1, 1e-2, 1e-3, 1e-4)


@pytest.mark.claim
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("variant", ["random", "basis"])
def test_encodings_are_lipschitz_where_eigenvectors_jump(variant: str, seed: int) -> None:
    points = cycle_stability(variant, seed)
    slope = fit_power_law([p.eps for p in points], [p.change for p in points]).exponent
    assert 0.9 < slope < 1.1
    assert all(p.eigenvector_change > 0.1 for p in points)


@pytest.mark.parametrize("variant", ["random", "basis"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_certified_bound_holds_and_does_not_grow_with_the_weights(variant: str, scale: float) -> None:
    torch.manual_seed(0)
    options = {"gnn": "filter", "layers": 2, "filter_taps": 3, "norm": None, "constrain": "beta", "pooling": "mean"}
    model = PEARL(4, variant=variant, **options).double().eval()
    norms = torch.ones(20)
    before = certified_constant(model, 20, norms)
    with torch.no_grad():
        for layer in (model.lift, *model.body.layers):
            layer.weight.mul_(scale)
    points = stability_curve(model, CYCLE, [(0, 1), (7, 8)], SIZES)
    assert all(p.absolute_change <= p.bound for p in points)
    # Once every filter is at its limit, larger weights change nothing.
    with torch.no_grad():
        for layer in (model.lift, *model.body.layers):
            layer.weight.mul_(1000)
    saturated = certified_constant(model, 20, norms)
    assert saturated < 100 * max(before, 1.0)
    with torch.no_grad():
        for layer in (model.lift, *model.body.layers):
            layer.weight.mul_(1000)
    assert np.isclose(certified_constant(model, 20, norms), saturated)


@pytest.mark.parametrize("size", [1e-3, 1e-1])
def test_perturbation_has_the_size_asked_for(size: float) -> None:
    weights = perturb_weights(CYCLE, size, torch.Generator().manual_seed(0))
    old = gso(CYCLE.edge_index, dtype=torch.float64)
    assert np.isclose(shift_distance(old, gso(CYCLE.edge_index, weights)), size, rtol=1e-6)
    assert shift_distance(old, old) == 0.0
    with pytest.raises(InvalidValueError, match="smaller size"):
        perturb_weights(CYCLE, 100.0, torch.Generator().manual_seed(0))


def test_distance_of_large_operators_is_found_without_dense_matrices() -> None:
    from octavo_pearl_pe.datasets import family_graph

    edges = family_graph("circulant", 500)
    first = gso(edges, dtype=torch.float64)
    second = gso(edges, torch.full((edges.shape[1],), 2.0, dtype=torch.float64), kind="lap")
    exact = np.abs(np.linalg.eigvalsh((first.to_dense() - second.to_dense()).numpy())).max()
    assert np.isclose(shift_distance(first, second), exact, rtol=1e-6)


def test_bounds_are_refused_for_other_encoders() -> None:
    with pytest.raises(InvalidValueError, match="a bound is known for"):
        certified_constant(PEARL(4), 20, torch.ones(3))


def filters(**options) -> PEARL:
    torch.manual_seed(0)
    return PEARL(4, **{"gnn": "filter", "layers": 2, "filter_taps": 3, "norm": None} | options).double().eval()


def test_given_weights_are_changed_by_their_share() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    weights = torch.tensor([2.0, 0.5, 1.0, 3.0, 1.0])
    data = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), edge_weight=weights.repeat(2), num_nodes=4)
    model = filters(constrain="beta")
    points = stability_curve(model, data, spread_edges(data, 2), SIZES)
    slope = fit_power_law([p.eps for p in points], [p.change for p in points]).exponent
    assert 0.9 < slope < 1.1
    assert all(0 < p.absolute_change <= p.bound for p in points)
    # The chosen edges are (0, 1) and (0, 2), of weights 2 and 1.
    q = torch.randn(4, model.num_samples, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    changed = weights.clone()
    changed[0], changed[4] = 2.0 * 1.1, 0.9
    with torch.no_grad():
        moved = model(data.edge_index, edge_weight=changed.repeat(2), q=q) - model(data, q=q)
    assert np.isclose(points[0].absolute_change, float(moved.norm()), rtol=1e-5)


def test_chosen_edges_are_distinct_and_change_something() -> None:
    triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    data = Data(edge_index=triangle, num_nodes=3)
    chosen = spread_edges(data, 2)
    assert len({frozenset(edge) for edge in chosen}) == 2
    assert all(p.change > 0 for p in stability_curve(filters(), data, chosen, SIZES))
    with pytest.raises(InvalidValueError, match="distinct edges"):
        stability_curve(filters(), data, [(0, 1), (1, 0)], SIZES)
    with pytest.raises(InvalidValueError, match="larger component"):
        stability_curve(filters(), Data(edge_index=triangle[:, :2], num_nodes=2), [(0, 1)], SIZES)
    with pytest.raises(InvalidValueError, match="no edges"):
        spread_edges(Data(edge_index=triangle[:, :0], num_nodes=2), 2)
    with pytest.raises(InvalidValueError, match="'random' or 'basis'"):
        stability_curve(filters(variant="auto"), data, chosen, SIZES)
    with pytest.raises(InvalidValueError, match="above 0 and below 1"):
        stability_curve(filters(), data, chosen, (1.5,))
