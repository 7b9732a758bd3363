"""Figures of the released implementation and closed forms, computed in float64 by independent code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.filters import GraphFilter
from octavo_pearl_pe.graph import gso
from octavo_pearl_pe.official import convert_official_state_dict
from octavo_pearl_pe.theory import expected_relu_filter, second_moment

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "exact_cases.json").read_text())
DOC = CASES.pop("_doc")


def stored(name: str) -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor], dict]:
    content = dict(np.load(DATA / f"{name}.npz", allow_pickle=False))
    weights = {key[2:]: torch.from_numpy(value) for key, value in content.items() if key.startswith("w/")}
    return content, weights, json.loads(str(content["meta"]))


def encoder_for(name: str, dtype: torch.dtype, **changes) -> tuple[PEARL, dict, dict]:
    content, weights, meta = stored(name)
    encoder = convert_official_state_dict(
        {k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()}, **changes
    )
    edges = torch.from_numpy(content["edge_index"])
    batch = torch.from_numpy(content["batch"]) if "batch" in content else None
    inputs = {"edge_index": edges, "batch": batch}
    if "reddit" in name:
        inputs["q"] = torch.from_numpy(content["q"])[..., 0].to(dtype)
        inputs["num_nodes"] = len(inputs["q"])
    elif meta["variant"] == "R":
        inputs["q"] = torch.cat([torch.from_numpy(content[f"q{i}"]) for i in range(int(batch.max()) + 1)]).to(dtype)
    return encoder, inputs, content


VARIANTS = {
    "official_rpearl_small": {},
    "official_bpearl_small": {"variant": "basis"},
    "official_reddit_mean_small": {},
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", VARIANTS)
def test_evaluation_equals_the_released_code(name: str, dtype: torch.dtype, tolerance: float) -> None:
    encoder, inputs, content = encoder_for(name, dtype, **VARIANTS[name])
    for chunk in (None, 1, 3):
        encoder.config.__dict__["chunk"] = chunk
        pe = encoder(**inputs).detach()
        assert pe.dtype == dtype
        assert float((pe.double() - torch.from_numpy(content["pe_eval"])).abs().max()) < tolerance


@pytest.mark.parametrize("name", VARIANTS)
def test_training_statistics_equal_the_released_code(name: str) -> None:
    encoder, inputs, content = encoder_for(name, torch.float64, **VARIANTS[name])
    encoder.train()
    pe = encoder(**inputs)
    assert float((pe - torch.from_numpy(content["pe_train_mode"])).abs().max().detach()) < 1e-9


@pytest.mark.parametrize("name", ["official_rpearl_small", "official_bpearl_small"])
def test_mean_pooling_divides_by_the_number_of_samples(name: str) -> None:
    encoder, inputs, content = encoder_for(name, torch.float64, pooling="mean", **VARIANTS[name])
    batch = torch.from_numpy(content["batch"])
    count = inputs["q"].shape[1] if "q" in inputs else torch.bincount(batch)[batch][:, None]
    assert torch.allclose(encoder(**inputs), torch.from_numpy(content["pe_eval"]) / count, atol=1e-9)


@pytest.mark.parametrize("name", ["official_rpearl_small", "official_bpearl_small"])
def test_filter_and_laplacian_equal_the_released_code(name: str) -> None:
    content, _, meta = stored(name)
    edges, batch = torch.from_numpy(content["edge_index"]), torch.from_numpy(content["batch"])
    shift = gso(edges, num_nodes=len(batch), dtype=torch.float64)
    start = 0
    for graph in range(int(batch.max()) + 1):
        laplacian, q = torch.from_numpy(content[f"L{graph}"]), torch.from_numpy(content[f"q{graph}"])
        nodes = slice(start, start + len(q))
        assert torch.allclose(shift.to_dense()[nodes, nodes], laplacian, atol=1e-12)
        padded = torch.zeros(len(batch), q.shape[1], dtype=torch.float64)
        padded[nodes] = q
        terms = GraphFilter(meta["K"])(shift, padded)[nodes]
        assert torch.allclose(terms, torch.from_numpy(content[f"filter{graph}"]), atol=1e-12)
        start += len(q)


def edges_of(case: dict) -> torch.Tensor:
    edges = torch.tensor(case["edges"]).T
    return torch.cat([edges, edges.flip(0)], dim=1)


def one_filter(**options) -> PEARL:
    """One ReLU filter with the golden taps and bias."""
    encoder = PEARL(1, gnn="filter", layers=1, filter_taps=3, norm=None, **options).double().eval()
    with torch.no_grad():
        encoder.lift.weight[:, 0, 0] = torch.tensor(DOC["w"])
        encoder.lift.bias[:] = DOC["b"]
    return encoder


@pytest.mark.parametrize("name", CASES)
def test_closed_forms(name: str) -> None:
    case = CASES[name]
    laplacian = gso(edges_of(case), num_nodes=case["n"], dtype=torch.float64)
    adjacency = gso(edges_of(case), num_nodes=case["n"], kind="adj", dtype=torch.float64)
    for matrix, key, k, l in [  # noqa: E741
        (laplacian, "diag_L2", 1, 1),
        (laplacian, "diag_L4", 1, 3),
        (adjacency, "diag_A2", 0, 2),
        (adjacency, "diag_A3", 2, 1),
    ]:
        assert torch.allclose(second_moment(matrix, k, l), torch.tensor(case[key]).double(), atol=1e-7)
    for mean, key in ((0.0, "relu_filter_expectation"), (1.0, "relu_filter_expectation_mean1")):
        expected = np.array(case[key])
        assert np.abs(expected_relu_filter(laplacian, DOC["w"], DOC["b"], mean).numpy() - expected).max() < 1e-10


@pytest.mark.parametrize("name", CASES)
def test_basis_values_are_exact(name: str) -> None:
    case = CASES[name]
    pe = one_filter(variant="basis")(edges_of(case), num_nodes=case["n"])
    assert np.abs(pe[:, 0].detach().numpy() - np.array(case["bpearl_sum_relu"])).max() < 1e-10


@pytest.mark.parametrize(
    ("noise", "key"), [("normal", "relu_filter_expectation"), ("normal1", "relu_filter_expectation_mean1")]
)
@pytest.mark.parametrize("name", CASES)
def test_random_estimate_lies_within_four_standard_errors(name: str, noise: str, key: str) -> None:
    case = CASES[name]
    encoder = one_filter(noise=noise, eval_samples=20_000)
    edges = edges_of(case)
    error = (encoder(edges, num_nodes=case["n"])[:, 0] - torch.tensor(case[key]).double()).abs()
    assert bool((error < 4 * encoder.standard_error(edges, num_nodes=case["n"])[:, 0]).all())
