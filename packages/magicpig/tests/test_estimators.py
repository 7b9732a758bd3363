from __future__ import annotations

import math

import pytest
import torch
from magicpig_helpers import random_layer
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_magicpig import (
    LSHConfig,
    LSHIndex,
    dense_decode_attention,
    exact_attention,
    h2o_attention,
    heavy_positions,
    hybrid_attention,
    lsh_attention,
    oracle_sampling_attention,
    quest_attention,
    snapkv_attention,
    streaming_attention,
    topk_attention,
    tune,
    uniform_sampling_attention,
)
from octavo_magicpig.tuning import centred_cosines, table_bytes

CONFIG = LSHConfig(key_bits=5, num_tables=30, segment_min=32, window_tokens=16)


@pytest.fixture
def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, keys, values = random_layer(300, batch=2)
    return query[:, :, None], keys, values


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_exact_matches_the_kernel(layer: tuple) -> None:
    query, keys, values = layer
    found = exact_attention(query, keys, values)
    out, lse = dense_decode_attention(query[:, :, 0], keys, values)
    assert torch.allclose(found.out[:, :, 0], out, atol=1e-5)
    assert torch.allclose(found.lse, lse, atol=1e-5)
    assert found.cost_attend == 1.0


def test_a_full_budget_is_exact(layer: tuple) -> None:
    query, keys, values = layer
    exact = exact_attention(query, keys, values)
    observed = query.expand(-1, -1, 8, -1)
    for found in (
        topk_attention(query, keys, values, budget=1.0),
        quest_attention(query, keys, values, budget=1.0),
        uniform_sampling_attention(query, keys, values, budget=1.0, generator=generator()),
        snapkv_attention(query, keys, values, observed=observed, budget=1.0),
        h2o_attention(query, keys, values, observed=observed, budget=1.0),
        hybrid_attention(query, keys, values, budget=1.0, config=CONFIG),
        streaming_attention(query, keys, values, window_tokens=300),
        lsh_attention(query, keys, values, config=LSHConfig(min_hits=0)),
    ):
        assert torch.allclose(found.out, exact.out, atol=1e-5)
        assert torch.allclose(found.lse, exact.lse, atol=1e-5)


def test_lsh_estimator_matches_the_index(layer: tuple) -> None:
    query, keys, values = layer
    for options in ({}, {"center": False}, {"min_hits": 1}, {"transform": "simple"}, {"weight_eps": 0.0}):
        config = LSHConfig.from_dict(CONFIG.to_dict() | options)
        found = lsh_attention(query, keys, values, config=config, layer=2)
        out, lse, stats = LSHIndex(config, 2, 32, 2, layer=2).build(keys, values).attend(query[:, :, 0])
        assert torch.allclose(found.out[:, :, 0], out, atol=1e-5)
        assert torch.allclose(found.lse, lse, atol=1e-5)
        assert torch.equal(found.num_keys, stats.selected)
    unweighted = lsh_attention(query, keys, values, config=CONFIG, weighted=False)
    assert not torch.allclose(unweighted.out, found.out, atol=1e-3)


def test_topk_takes_the_highest_scores(layer: tuple) -> None:
    query, keys, values = layer
    found = topk_attention(query, keys, values, budget=10, sink_tokens=0, window_tokens=0)
    scores = (query.view(2, 2, 2, 32) @ keys.mT).view(2, 4, 300) / math.sqrt(32)
    best = scores.topk(10)
    rows = values.repeat_interleave(2, dim=1).gather(2, best.indices[..., None].expand(-1, -1, -1, 32))
    assert torch.allclose(found.out[:, :, 0], (best.values.softmax(-1)[..., None] * rows).sum(2), atol=1e-5)
    assert bool((found.num_keys == 10).all())


def test_quest_bound_holds_and_pages_are_whole(layer: tuple) -> None:
    query, keys, values = layer
    found = quest_attention(query, keys, values, budget=33, page_size=16, sink_tokens=0, window_tokens=0)
    assert bool((found.num_keys >= 33 - 16).all())
    assert bool((found.num_keys <= 48).all())
    # One key a page makes the bound the score itself: TopK.
    single = quest_attention(query, keys, values, budget=20, page_size=1)
    assert torch.allclose(single.out, topk_attention(query, keys, values, budget=20).out, atol=1e-5)


def test_eviction_keeps_what_was_observed() -> None:
    query, keys, values = random_layer(200, kv_heads=1, group=1, dim=16)
    keys[0, 0, 77] = 4 * query[0, 0]
    observed = query[:, :, None].expand(-1, -1, 4, -1)
    for found in (
        h2o_attention(query[:, :, None], keys, values, observed=observed, budget=1),
        snapkv_attention(query[:, :, None], keys, values, observed=observed, budget=7),
    ):
        exact = exact_attention(query[:, :, None], keys, values)
        assert torch.allclose(found.out, exact.out, atol=0.05)
    assert heavy_positions(observed, keys, 1).flatten().tolist() == [77]
    assert heavy_positions(observed, keys, 3, begin=100).min() >= 100


def test_observed_queries_see_only_the_past() -> None:
    query, keys, _ = random_layer(50, kv_heads=1, group=1, dim=16)
    keys[0, 0, 48] = 10 * query[0, 0]
    observed = query[:, :, None].expand(-1, -1, 3, -1)
    from octavo_magicpig.heavy import observed_attention

    attention = observed_attention(observed[:, :, :2], keys)
    assert float(attention.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(attention[0, 0, 49]) < 0.05
    with pytest.raises(InvalidValueError, match="do not fit"):
        observed_attention(query[:, :, None].expand(-1, -1, 51, -1), keys)


def test_hybrid_repairs_the_top(layer: tuple) -> None:
    query, keys, values = layer
    errors = {"lsh": 0.0, "hybrid": 0.0}
    exact = exact_attention(query, keys, values).out
    for seed in range(6):
        config = LSHConfig.from_dict(CONFIG.to_dict() | {"seed": seed, "key_bits": 8})
        errors["lsh"] += float((lsh_attention(query, keys, values, config=config).out - exact).norm())
        errors["hybrid"] += float((hybrid_attention(query, keys, values, budget=20, config=config).out - exact).norm())
    assert errors["hybrid"] < 0.8 * errors["lsh"]


def test_tuning_ranks_by_error_within_the_budget() -> None:
    query, keys, values = random_layer(1000, kv_heads=2, group=2, dim=64)
    queries = torch.stack([query, query.roll(1, 1)], 2)
    ranked = tune(queries, keys, values, budget=0.05, candidates=((6, 40), (8, 75), (10, 150)))
    inside = [result for result in ranked if result.within_budget]
    assert ranked[: len(inside)] == inside
    assert [r.error for r in inside] == sorted(r.error for r in inside)
    for result in ranked:
        assert result.measured_fraction == pytest.approx(result.predicted_fraction, abs=0.02)
        assert result.bytes_per_token == table_bytes(result.key_bits, result.num_tables)
    limited = tune(queries, keys, values, budget=1.0, max_table_bytes=200, candidates=((8, 75), (10, 150)))
    assert [result.within_budget for result in limited] == [True, False]
    assert centred_cosines(queries, keys, LSHConfig()).shape == (1, 4, 2, 932)
    for wrong in ({"budget": 0.0}, {"budget": 0.1, "candidates": ()}):
        with pytest.raises(InvalidValueError):
            tune(queries, keys, values, **wrong)


def test_what_is_refused(layer: tuple) -> None:
    query, keys, values = layer
    for call in (
        lambda: topk_attention(query, keys, values, budget=-1),
        lambda: topk_attention(query, keys, values, budget=1.5),
        lambda: streaming_attention(query, keys, values, sink_tokens=-1),
        lambda: oracle_sampling_attention(query, keys, values, num_samples=0, generator=generator()),
        lambda: quest_attention(query, keys, values, budget=5, page_size=0),
        lambda: snapkv_attention(query, keys, values, observed=query, budget=5, pool=4),
    ):
        with pytest.raises(InvalidValueError):
            call()


@pytest.mark.parametrize("budget", [True, "a", None, float("nan")])
def test_budgets_must_be_numbers(layer: tuple, budget: object) -> None:
    query, keys, values = layer
    for method in (topk_attention, quest_attention, hybrid_attention):
        with pytest.raises((InvalidTypeError, InvalidValueError), match="budget="):
            method(query, keys, values, budget=budget)
    for count, error in ((-1, InvalidValueError), (1.5, InvalidTypeError), (True, InvalidTypeError)):
        with pytest.raises(error, match="count="):
            heavy_positions(query.expand(-1, -1, 4, -1), keys, count)
