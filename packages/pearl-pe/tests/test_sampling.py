"""Noise, variance reduction, standard errors and the stopping rule."""

from __future__ import annotations

import pytest
import torch
from octavo_core.errors import InvalidValueError
from octavo_pearl_pe.adaptive import encode_to_tolerance, suggest_num_samples
from octavo_pearl_pe.datasets import csl, family_graph
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.graph import read_graph
from octavo_pearl_pe.noise import NOISES, draw_signals, mix_seed
from torch_geometric.data import Data

EDGES = family_graph("er", 24, seed=2)
DATA = Data(edge_index=EDGES, num_nodes=24)
GRAPH = read_graph(EDGES, num_nodes=24)


def encoder(**options) -> PEARL:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = {"gnn": "filter", "layers": 2, "hidden": 8, "norm": None, "eval_samples": 64}
        return PEARL(5, **base | options).double().eval()


@torch.no_grad()
def errors(model: PEARL, exact: torch.Tensor, repeats: int) -> torch.Tensor:
    draws = [model(DATA, generator=torch.Generator().manual_seed(seed)) for seed in range(repeats)]
    return torch.stack(draws) - exact


@pytest.mark.parametrize("noise", NOISES)
def test_noise_has_its_mean_and_variance(noise: str) -> None:
    q = draw_signals(noise, GRAPH, 20_000, generator=torch.Generator().manual_seed(0))
    mean = 1.0 if noise == "normal1" else 0.0
    assert torch.allclose(q.mean(1), torch.full((24,), mean), atol=0.05)
    assert torch.allclose(q.var(1), torch.ones(24), atol=0.06)


def test_designs() -> None:
    paired = draw_signals("normal1", GRAPH, 6, antithetic=True)
    assert torch.allclose(paired[:, ::2] + paired[:, 1::2], torch.full((24, 3), 2.0), atol=1e-6)
    sphere = draw_signals("sphere", GRAPH, 6)
    assert torch.allclose(sphere.norm(dim=0), torch.full((6,), 24**0.5), atol=1e-4)
    orthogonal = draw_signals("orthogonal", GRAPH, 24, dtype=torch.float64)
    gram = orthogonal.T @ orthogonal
    assert float((gram - torch.diag(gram.diagonal())).abs().max()) < 1e-3


def test_repeatable_draws_depend_on_the_node_and_seed_alone() -> None:
    both = read_graph(torch.cat([EDGES, EDGES + 24], dim=1), batch=torch.arange(2).repeat_interleave(24))
    q = draw_signals("normal", both, 5, seed=4)
    assert torch.equal(q[:24], q[24:])
    assert torch.equal(q[:24], draw_signals("normal", GRAPH, 5, seed=4))
    assert not torch.equal(q[:24], draw_signals("normal", GRAPH, 5, seed=5))
    long = read_graph(family_graph("tree", 700), num_nodes=700)
    assert torch.equal(draw_signals("normal", long, 5, seed=4)[:24], q[:24])
    assert len({mix_seed(a, b) for a in range(20) for b in range(20)}) == 400


@pytest.mark.claim
def test_control_variates_save_more_than_four_times_the_samples_without_bias() -> None:
    exact = encoder(eval_samples=20_000, control_variate=True)(DATA).detach()
    plain = errors(encoder(), exact, 30)
    controlled = errors(encoder(control_variate=True), exact, 30)
    paired = errors(encoder(antithetic=True), exact, 30)
    assert float((plain**2).mean() / (controlled**2).mean()) > 4
    assert float((plain**2).mean() / (paired**2).mean()) > 1.1
    z = controlled.mean(0) / (controlled.std(0) / 30**0.5)
    assert float(z.abs().median()) < 1.5


def test_control_variates_agree_with_plain_sampling_in_batches_and_in_training() -> None:
    from torch_geometric.data import Batch

    graphs = [DATA, csl(n=11, skips=(2,), copies=1)[0]]
    model = encoder(control_variate=True, noise="normal1")
    batch = Batch.from_data_list(graphs)
    assert torch.allclose(model(batch), torch.cat([model(g) for g in graphs]), atol=1e-9)
    model.train()(batch).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("antithetic", [False, True])
def test_standard_errors_cover(antithetic: bool) -> None:
    # A bounded activation: a rare event of a ReLU that no sample met has a standard error of 0.
    exact = encoder(eval_samples=40_000, act="tanh")(DATA).detach()
    model = encoder(antithetic=antithetic, act="tanh")
    outcomes = []
    for seed in range(25):
        pe = model(DATA, generator=torch.Generator().manual_seed(seed))
        error = model.standard_error(DATA, generator=torch.Generator().manual_seed(seed))
        outcomes.append(((pe - exact).abs() < 2 * error).double().mean())
    assert 0.88 < float(torch.stack(outcomes).mean()) < 0.99


def test_standard_error_has_conditions() -> None:
    with pytest.raises(InvalidValueError, match="pooling='mean'"):
        encoder(pooling="max").standard_error(DATA)
    with pytest.raises(InvalidValueError, match="one independent sample"):
        encoder(eval_samples=1).standard_error(DATA)


@pytest.mark.parametrize("antithetic", [False, True])
def test_dependent_samples_have_no_standard_error(antithetic: bool) -> None:
    model = encoder(noise="orthogonal", antithetic=antithetic)
    for call in (
        lambda: model.standard_error(DATA),
        lambda: model.suggest_num_samples(DATA, 0.1),
        lambda: encode_to_tolerance(model, DATA, 0.1),
    ):
        with pytest.raises(InvalidValueError, match="noise='normal'"):
            call()


def test_stopping_rule_reaches_its_tolerance() -> None:
    exact = encoder(eval_samples=20_000, control_variate=True)(DATA).detach()
    found = encode_to_tolerance(encoder(), DATA, 0.02, 0.05)
    assert found.reached
    assert float(((found.pe - exact).abs() <= 0.02).double().mean()) > 0.9
    looser = encode_to_tolerance(encoder(antithetic=True), DATA, 0.2)
    assert looser.num_samples < found.num_samples
    assert not encode_to_tolerance(encoder(), DATA, 1e-6, limit=64).reached
    suggestion = suggest_num_samples(encoder(), DATA, 0.02)
    assert 0.3 < suggestion.worst / found.num_samples <= 1.5
    assert encoder(constrain="beta").suggest_num_samples(DATA, 0.1).guaranteed == 738
    for tol in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidValueError, match="tol > 0"):
            encode_to_tolerance(encoder(), DATA, tol)
    with pytest.raises(InvalidValueError, match="variant='random'"):
        encode_to_tolerance(encoder(variant="basis"), DATA, 0.1)


def test_constrained_outputs_obey_the_sub_gaussian_bound() -> None:
    model = encoder(constrain="beta", eval_samples=4000)
    with torch.no_grad():
        for layer in (model.lift, *model.body.layers):
            layer.weight.mul_(50)
    deviation = model.standard_error(DATA) * 4000**0.5
    assert float(deviation.max()) <= 1.0
