"""The paper's claims that need no model: the sampling law, the estimator, oracle sampling, and aggregation."""

from __future__ import annotations

import math

import pytest
import torch
from octavo_magicpig import (
    LSHConfig,
    LSHIndex,
    collision_probability,
    exact_attention,
    lsh_attention,
    oracle_sampling_attention,
    topk_attention,
)
from octavo_magicpig.aggregation import aggregation_problem

pytestmark = pytest.mark.claim

DRAWS = 400
EXPECTED = {20: 0.0665, 40: 0.1833, 80: 0.3948, 160: 0.6555}


@pytest.fixture(scope="module")
def draws() -> dict[int, dict[str, torch.Tensor]]:
    """Selections and estimates over many draws of the planes: 512 keys of size 32, 6 bits."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 1, 512, 32, generator=generator)
    values = torch.randn(1, 1, 512, 32, generator=generator)
    query = torch.randn(1, 1, 32, generator=generator)
    exact = exact_attention(query[:, :, None], keys, values)
    cosine = torch.nn.functional.cosine_similarity(query[0, 0].double(), keys[0, 0].double(), dim=-1)
    found = {}
    for tables in EXPECTED:
        config = {"key_bits": 6, "num_tables": tables, "sink_tokens": 0, "window_tokens": 0, "center": False}
        chosen, outputs, ratios = torch.zeros(DRAWS, 512, dtype=torch.bool), [], []
        for seed in range(DRAWS):
            index = LSHIndex(LSHConfig(seed=seed, weight_eps=0.0, **config), 1, 32).build(keys, values)
            chosen[seed, index.select(query)[0][0]] = True
            out, lse, _ = index.attend(query)
            outputs.append(out[0, 0])
            ratios.append(torch.exp(lse.double() - exact.lse.double())[0, 0])
        found[tables] = {
            "u": collision_probability(cosine, 6, tables),
            "chosen": chosen,
            "outputs": torch.stack(outputs).double(),
            "ratios": torch.stack(ratios),
            "exact": exact.out[0, 0, 0].double(),
        }
    return found


def test_selection_frequencies_follow_the_law(draws: dict) -> None:
    for tables, found in draws.items():
        u = found["u"]
        z = (found["chosen"].double().mean(0) - u) / (u * (1 - u) / DRAWS).sqrt()
        z = z[(u > 1e-3) & (u < 1 - 1e-3)]
        assert 0.85 <= float(z.square().mean().sqrt()) <= 1.15
        assert float(z.abs().max()) < 5
        assert float(u.mean()) == pytest.approx(EXPECTED[tables], abs=0.02)


def test_denominator_is_unbiased(draws: dict) -> None:
    for found in draws.values():
        ratios = found["ratios"]
        assert abs(float(ratios.mean()) - 1) <= 3 * float(ratios.std()) / math.sqrt(DRAWS)


def test_error_falls_with_tables_and_bias_is_small(draws: dict) -> None:
    errors = []
    for found in draws.values():
        deviation = found["outputs"] - found["exact"]
        errors.append(float(deviation.square().sum(1).mean().sqrt() / found["exact"].norm()))
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 4
    # The mean over the draws holds their noise as well, which is subtracted.
    outputs, exact = draws[160]["outputs"], draws[160]["exact"]
    bias = (outputs.mean(0) - exact).square().sum() - outputs.var(0).sum() / DRAWS
    assert float(bias) < (0.01 * float(exact.norm())) ** 2


def test_oracle_sampling_reads_few_distinct_keys() -> None:
    weights = torch.tensor([0.5, 0.25, 0.125, 0.125])
    keys = torch.zeros(1, 1, 4, 8)
    keys[0, 0, :, 0] = weights.log() * math.sqrt(8)
    # The heads are repetitions of one experiment.
    query = torch.zeros(1, 4000, 1, 8)
    query[..., 0] = 1.0
    generator = torch.Generator().manual_seed(0)
    found = oracle_sampling_attention(query, keys, keys, num_samples=4, generator=generator)
    assert float(found.num_keys.mean()) == pytest.approx(2.44873046875, abs=0.04)
    assert float(found.num_keys.mean()) <= 1 + 4 * 0.5


def test_oracle_sampling_is_unbiased_with_variance_over_draws() -> None:
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(1, 1, 256, 16, generator=generator) for _ in range(2))
    query = 2 * torch.randn(1, 1, 1, 16, generator=generator)
    exact = exact_attention(query, keys, values).out.flatten()
    weights = (query[0, 0, 0] @ keys[0, 0].T / 4).softmax(0)
    predicted = float((weights * values[0, 0].square().sum(1)).sum() - exact.square().sum())
    repeated = query.expand(-1, 1000, -1, -1)
    for samples in (16, 64, 256, 1024):
        found = oracle_sampling_attention(repeated, keys, values, num_samples=samples, generator=generator)
        outputs = found.out[0, :, 0]
        variance = float((outputs - exact).square().sum(1).mean())
        assert variance * samples == pytest.approx(predicted, rel=0.15)
        assert float((outputs.mean(0) - exact).norm()) <= 4 * math.sqrt(predicted / samples / 1000)


def test_topk_overtakes_oracle_sampling_at_large_budgets() -> None:
    generator = torch.Generator().manual_seed(2)
    problem = aggregation_problem(tokens=2048, seed=2)
    arguments = problem.query, problem.keys, problem.values

    def errors(samples: int) -> tuple[float, float]:
        sampled = oracle_sampling_attention(*arguments, num_samples=samples, generator=generator)
        top = topk_attention(*arguments, budget=int(sampled.num_keys), sink_tokens=0, window_tokens=0)
        return tuple(abs(float(found.out[..., 0]) - problem.share) for found in (sampled, top))

    few, many = errors(256), errors(100_000)
    assert few[0] < few[1], "with few keys sampling is better"
    assert many[1] < many[0], "with nearly all keys TopK is exact and sampling repeats itself"


@pytest.mark.parametrize("seed", range(5))
def test_aggregation_needs_sampling(seed: int) -> None:
    problem = aggregation_problem(seed=seed)
    everywhere = {"sink_tokens": 0, "window_tokens": 0}
    config = LSHConfig(seed=seed, **everywhere)
    arguments = problem.query, problem.keys, problem.values
    sampled = lsh_attention(*arguments, config=config)
    keys_read = int(sampled.num_keys)
    assert problem.share == pytest.approx(0.232, abs=0.01)
    assert keys_read / 16_384 < 0.02
    assert abs(float(sampled.out[..., 0]) - problem.share) <= 0.06
    assert float(topk_attention(*arguments, budget=keys_read, **everywhere).out[..., 0]) >= 0.85


def test_aggregation_needs_the_weights() -> None:
    shares = []
    for seed in range(5):
        problem = aggregation_problem(seed=seed)
        config = LSHConfig(seed=seed, sink_tokens=0, window_tokens=0)
        found = lsh_attention(problem.query, problem.keys, problem.values, config=config, weighted=False)
        shares.append(float(found.out[..., 0]))
    assert sum(shares) / 5 >= 0.35
    assert min(shares) >= 0.3
