from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
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
from octavo_magicpig.estimators import Estimate
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


METHODS: dict[str, Callable[..., Estimate]] = {
    "exact": exact_attention,
    "streaming": streaming_attention,
    "topk": functools.partial(topk_attention, budget=0.5),
    "quest": functools.partial(quest_attention, budget=0.5),
    "lsh": functools.partial(lsh_attention, config=CONFIG),
    "hybrid": functools.partial(hybrid_attention, budget=0.5, config=CONFIG),
    "h2o": lambda query, keys, values, **options: h2o_attention(
        query, keys, values, observed=query, budget=0.5, **options
    ),
    "snapkv": lambda query, keys, values, **options: snapkv_attention(
        query, keys, values, observed=query, budget=0.5, **options
    ),
    "oracle": lambda query, keys, values, **options: oracle_sampling_attention(
        query, keys, values, num_samples=9, generator=generator(), **options
    ),
    "uniform": lambda query, keys, values, **options: uniform_sampling_attention(
        query, keys, values, budget=0.5, generator=generator(), **options
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_autocast_and_the_default_dtype_change_nothing(layer: tuple, name: str) -> None:
    expected = METHODS[name](*layer)
    with torch.autocast("cpu", torch.bfloat16):
        cast = METHODS[name](*layer)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        default = METHODS[name](*layer)
    finally:
        torch.set_default_dtype(before)
    for found in (cast, default):
        assert found.out.dtype == found.lse.dtype == torch.float32
        assert torch.equal(found.out, expected.out)
        assert torch.equal(found.lse, expected.lse)


@pytest.mark.parametrize("shape", [(0, 2, 2, 50), (2, 0, 2, 50), (2, 2, 1, 0)])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_to_attend_to(name: str, shape: tuple[int, int, int, int]) -> None:
    batch, group, kv_heads, tokens = shape
    if tokens == 0 and name in ("h2o", "snapkv"):
        pytest.skip("an observed query needs its own key")
    query, keys = torch.ones(batch, group * kv_heads, 1, 8), torch.ones(batch, kv_heads, tokens, 8)
    found = METHODS[name](query, keys, keys)
    assert found.out.shape == query.shape
    assert not bool(found.out.any())
    assert bool((found.lse == -torch.inf).all())
    assert (found.cost_search, found.cost_attend) == (0.0, 0.0) or found.cost_attend <= 1.0


@pytest.mark.parametrize("name", METHODS)
def test_numbers_that_are_not_finite_are_refused(layer: tuple, name: str) -> None:
    for scale in (torch.nan, torch.inf, 1e300):
        with pytest.raises(InvalidValueError, match="scale="):
            METHODS[name](*layer, scale=scale)
    with pytest.raises(InvalidTypeError, match="scale="):
        METHODS[name](*layer, scale=True)
    for number, bad in itertools.product(range(3), (torch.nan, torch.inf)):
        tensors = [tensor.clone() for tensor in layer]
        tensors[number][0, 0, 0, 0] = bad
        with pytest.raises(InvalidValueError, match=f"{('query', 'keys', 'values')[number]} holds? NaN or infinite"):
            METHODS[name](*tensors)


@pytest.mark.parametrize("shape", [(2, 6, 3, 32), (1, 4, 3, 32), (2, 4, 3, 16)])
def test_observed_queries_must_be_those_of_the_query(layer: tuple, shape: tuple[int, ...]) -> None:
    observed = torch.ones(shape)
    for method in (h2o_attention, snapkv_attention):
        with pytest.raises(InvalidValueError, match="observed of shape"):
            method(*layer, observed=observed, budget=5)


@pytest.mark.parametrize("options", [{"begin": -10}, {"end": -1}, {"begin": 20, "end": 10}, {"end": 301}])
def test_ranges_of_heavy_positions_are_checked(layer: tuple, options: dict) -> None:
    query, keys, _ = layer
    with pytest.raises(InvalidValueError, match="|".join(f"{name}=" for name in options)):
        heavy_positions(query, keys, 3, **options)


def test_numpy_numbers_are_numbers(layer: tuple) -> None:
    query, keys, _ = layer
    for budget in (3, 0.25):
        like = np.int64(budget) if budget == 3 else np.float32(budget)
        found = topk_attention(
            *layer, budget=like, scale=np.float32(0.5), sink_tokens=np.int64(2), window_tokens=np.int16(5)
        )
        expected = topk_attention(*layer, budget=budget, scale=0.5, sink_tokens=2, window_tokens=5)
        assert torch.equal(found.out, expected.out)
    assert torch.equal(
        heavy_positions(query, keys, np.int64(3), begin=np.int64(2)), heavy_positions(query, keys, 3, begin=2)
    )
    sampled = oracle_sampling_attention(*layer, num_samples=np.int64(9), generator=generator())
    assert torch.equal(sampled.out, METHODS["oracle"](*layer).out)
    assert torch.equal(
        quest_attention(*layer, budget=9, page_size=np.int64(4)).out, quest_attention(*layer, budget=9, page_size=4).out
    )
    with pytest.raises(InvalidTypeError, match="budget="):
        topk_attention(*layer, budget=np.bool_(True))
