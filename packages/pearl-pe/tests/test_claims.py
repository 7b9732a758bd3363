"""The paper's claims at a small scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_core.bench import fit_power_law
from octavo_pearl_pe import bench, demo
from octavo_pearl_pe.baselines import NoPE
from octavo_pearl_pe.datasets import cycle_count
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.experiment import FILTER_RECIPE
from octavo_pearl_pe.models import PEARLGIN
from octavo_pearl_pe.scaling import monte_carlo_errors, scaling_encoder
from octavo_pearl_pe.training import TrainingConfig, collate, train

SAMPLES = (8, 32, 128, 512)


@pytest.mark.claim
def test_error_falls_with_the_root_of_the_samples_and_not_with_the_size_of_the_graph() -> None:
    encoder = scaling_encoder()
    errors = monte_carlo_errors(encoder, 100, SAMPLES)
    assert -0.6 < fit_power_law(SAMPLES, errors).exponent < -0.4
    by_size = [monte_carlo_errors(encoder, n, (64,), repeats=16)[0] for n in (100, 400, 1600)]
    assert max(by_size) / min(by_size) < 1.2


@pytest.mark.claim
def test_no_encoding_is_at_chance_on_circular_skip_links() -> None:
    assert demo.csl_accuracy("nope", 0, quick=True) <= 0.15


@pytest.mark.claim
@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("r", 0.95), ("b", 0.99)])
def test_encodings_solve_circular_skip_links(name: str, target: float) -> None:
    for seed in range(3):
        assert np.mean([demo.csl_accuracy(name, fold, seed=seed) for fold in range(5)]) >= target


@pytest.mark.claim
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "floors", "ceiling"),
    [(None, (-0.1,) * 3, 0.05), ("basis", (0.95, 0.95, 0.85), 1.0), ("random", (0.80, 0.0, 0.0), 1.0)],
)
def test_cycles_of_regular_graphs_are_counted(variant: str | None, floors: tuple[float, ...], ceiling: float) -> None:
    graphs = cycle_count(400, lengths=(3, 4, 5))
    torch.manual_seed(0)
    encoder = NoPE(16) if variant is None else PEARL(16, variant=variant, eval_samples=256, **FILTER_RECIPE)
    model = PEARLGIN(encoder, 3, hidden=48, layers=2, readout="node")
    train(model, graphs[:300], TrainingConfig(epochs=40, batch_size=20, lr=5e-3, loss="mse"))
    batch = collate(graphs[300:])
    with torch.no_grad():
        residual = model.eval()(batch) - batch.y
    scores = 1.0 - (residual**2).sum(0) / ((batch.y - batch.y.mean(0)) ** 2).sum(0)
    assert all(floor <= score <= ceiling for floor, score in zip(floors, scores.tolist(), strict=True)), scores


@pytest.mark.claim
@pytest.mark.slow
def test_reports_have_their_rows() -> None:
    report = demo.run(quick=True)
    ids = {row.id for row in report.rows}
    assert {f"csl_accuracy_{name}" for name in ("nope", "r", "b")} <= ids
    assert {"stability_slope_r", "stability_slope_b", "mc_error_slope"} <= ids
    assert report.holds
    ids = {row.id for row in bench.run(quick=True).rows}
    assert {f"encode_vs_eigsh16_n4000_{family}" for family in ("tree", "grid", "er")} <= ids
    assert {"encode_vs_eigh_n2000", "encode_vs_rwpe_n2000", "time_exponent", "n1e6_peak_gb"} <= ids
    assert "molecules_vs_reference_cost" in ids


@pytest.mark.claim
@pytest.mark.filterwarnings("ignore:pooling='sum'")
def test_mean_pooling_lets_the_number_of_samples_change_and_sum_pooling_does_not() -> None:
    from torch_geometric.data import Data

    graph = Data(edge_index=scaling_graph(), num_nodes=60)
    sizes = {}
    for pooling in ("mean", "sum"):
        torch.manual_seed(0)
        norms = []
        for count in (32, 64, 512):
            torch.manual_seed(0)
            encoder = PEARL(8, pooling=pooling, gnn="filter", layers=2, norm=None, eval_samples=count).eval()
            norms.append(float(encoder(graph).norm().detach()))
        sizes[pooling] = max(norms) / min(norms)
    assert sizes["mean"] < 1.1
    assert sizes["sum"] > 12


def scaling_graph() -> torch.Tensor:
    from octavo_pearl_pe.datasets import family_graph

    return family_graph("er", 60)
