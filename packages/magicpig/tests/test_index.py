"""The index: limits, segments, appending, cropping, batches, memory, and what is refused."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from magicpig_helpers import random_layer
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_magicpig import LSHConfig, LSHIndex, dense_decode_attention, merge_states

CONFIG = LSHConfig(key_bits=5, num_tables=30, segment_max=512, segment_min=32, window_tokens=16)


def same_sets(first: list, second: list) -> bool:
    return all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("settings_", [{"min_hits": 0}, {"key_bits": 1, "num_tables": 4000}])
def test_selecting_all_is_exact_attention(kernel: str, settings_: dict) -> None:
    if kernel != "native" and "num_tables" in settings_:
        settings_ = {"key_bits": 1, "num_tables": 300}
    query, keys, values = random_layer(600, batch=2)
    keys = keys * 0.05 + query.view(2, 2, 2, 32).mean(2)[:, :, None] if "key_bits" in settings_ else keys
    config = dataclasses.replace(CONFIG, kernel=kernel, weight_eps=0.0, center=False, **settings_)
    index = LSHIndex(config, 2, 32, 2).build(keys, values)
    out, lse, stats = index.attend(query)
    exact, exact_lse = dense_decode_attention(query, keys, values)
    if "min_hits" in settings_:
        assert float(stats.fraction.min()) == 1.0
    assert float(stats.fraction.min()) > 0.9
    tolerance = 1e-5 if float(stats.fraction.min()) == 1.0 else 5e-2
    assert torch.allclose(out, exact, atol=tolerance)
    assert torch.allclose(lse, exact_lse, atol=tolerance)


def test_empty_selection_is_the_exact_part(kernel: str) -> None:
    query, keys, values = random_layer(400)
    keys[:, :, 4:-16] = -5 * query.view(1, 2, 2, 32).mean(2)[:, :, None] - keys[:, :, 4:-16] * 0.01
    config = dataclasses.replace(CONFIG, kernel=kernel, key_bits=16, num_tables=2, center=False)
    index = LSHIndex(config, 2, 32).build(keys, values)
    out, lse, stats = index.attend(query)
    kept = [*range(4), *range(384, 400)]
    expected, expected_lse = dense_decode_attention(query, keys[:, :, kept], values[:, :, kept])
    assert bool(stats.empty.all())
    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.allclose(lse, expected_lse, atol=1e-6)
    assert bool((stats.sampled_lse == -torch.inf).all())


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 19, 20, 21, 22])
def test_short_prompts_are_exact(kernel: str, tokens: int) -> None:
    query, keys, values = random_layer(40)
    keys, values = keys[:, :, :tokens], values[:, :, :tokens]
    index = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel, min_hits=0), 2, 32).build(keys, values)
    assert index.hashed_tokens == max(0, tokens - 20)
    assert torch.allclose(index.attend(query)[0], dense_decode_attention(query, keys, values)[0], atol=1e-5)


def test_shifting_all_keys_changes_nothing(kernel: str) -> None:
    query, keys, values = random_layer(500)
    new_keys, new_values = random_layer(5, seed=9)[1:]
    shift = 3 * torch.randn(32, generator=torch.Generator().manual_seed(4))
    outputs = []
    for offset in (0.0, shift):
        index = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel), 2, 32).build(keys + offset, values)
        index.append(new_keys + offset, new_values)
        outputs.append(index.attend(query)[0])
    assert torch.allclose(*outputs, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_appending_equals_building(kernel: str, chunk: int) -> None:
    query, keys, values = random_layer(700, batch=2)
    config = dataclasses.replace(CONFIG, kernel=kernel, segment_min=1 if chunk > 1 else 16)
    half = LSHIndex(config, 2, 32, 2).build(keys[:, :, :350], values[:, :, :350])
    for begin in range(350, 700, chunk):
        half.append(keys[:, :, begin : begin + chunk], values[:, :, begin : begin + chunk])
    tail = half._tail
    whole = LSHIndex(dataclasses.replace(config, window_tokens=700 - tail), 2, 32, 2)
    whole.build(keys, values, mean=half._mean)
    assert whole._tail == tail
    assert same_sets(half.select(query), whole.select(query))
    assert torch.allclose(half.attend(query)[0], whole.attend(query)[0], atol=1e-5)
    assert half.num_segments <= 8


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["append", "crop"]), st.integers(1, 90)), min_size=1, max_size=12))
def test_any_history_equals_one_table(steps: list[tuple[str, int]]) -> None:
    query, keys, values = random_layer(1500, kv_heads=1, dim=16)
    index = LSHIndex(CONFIG, 1, 16).build(keys[:, :, :200], values[:, :, :200])
    held = torch.arange(200)
    fresh = 200
    for action, count in steps:
        if action == "append":
            added = torch.arange(fresh, fresh + count)
            fresh += count
            index.append(keys[:, :, added], values[:, :, added])
            held = torch.cat([held, added])
        else:
            held = held[: max(30, len(held) - count)]
            index.crop(len(held))
    assert len(index) == len(held)
    assert torch.equal(index.keys, keys[:, :, held])
    assert len(held) - index._tail >= min(CONFIG.window_tokens, len(held) - CONFIG.sink_tokens)
    whole = LSHIndex(dataclasses.replace(CONFIG, window_tokens=len(held) - index._tail), 1, 16)
    whole.build(keys[:, :, held], values[:, :, held], mean=index._mean)
    assert same_sets(index.select(query), whole.select(query))
    assert torch.allclose(index.attend(query)[0], whole.attend(query)[0], atol=1e-5)


def test_segments_stay_few_and_within_their_limit() -> None:
    _, keys, values = random_layer(4000, kv_heads=1, dim=8)
    config = LSHConfig(key_bits=3, num_tables=4, segment_min=10, segment_max=1000, window_tokens=10)
    index = LSHIndex(config, 1, 8).build(keys[:, :, :100], values[:, :, :100])
    for begin in range(100, 4000, 13):
        index.append(keys[:, :, begin : begin + 13], values[:, :, begin : begin + 13])
    assert index.num_segments <= 14
    assert max(segment.size for segment in index._segments) <= 1000
    starts = [segment.start for segment in index._segments]
    assert starts == sorted(starts)
    assert sum(segment.limit for segment in index._segments) + len(index) - index._tail + 4 == len(index)


@pytest.mark.parametrize("hashed", [65_535, 65_536, 65_537])
def test_segment_boundary(hashed: int) -> None:
    query, keys, values = random_layer(hashed + 20, kv_heads=1, group=1, dim=8)
    config = LSHConfig(key_bits=8, num_tables=6, window_tokens=16)
    index = LSHIndex(config, 1, 8).build(keys, values)
    assert index.num_segments == (1 if hashed <= 65_535 else 2)
    assert index.hashed_tokens == hashed
    halves = LSHIndex(dataclasses.replace(config, segment_max=20_000), 1, 8).build(keys, values)
    assert same_sets(index.select(query), halves.select(query))


def test_identical_keys_fill_one_bucket() -> None:
    keys = torch.ones(1, 1, 65_555, 8)
    index = LSHIndex(LSHConfig(key_bits=4, num_tables=3, center=False, window_tokens=16), 1, 8).build(keys, keys)
    (((selected,),)) = index.select(torch.ones(1, 1, 8))
    assert len(selected) == 65_535


def test_reorder_permutes_rows(kernel: str) -> None:
    query, keys, values = random_layer(300, batch=3)
    config = dataclasses.replace(CONFIG, kernel=kernel)
    index = LSHIndex(config, 2, 32, 3).build(keys, values, padding=torch.tensor([0, 10, 20]))
    before = index.attend(query)[0]
    order = torch.tensor([2, 0, 0, 1])
    index.reorder(order)
    assert index.batch_size == 4
    assert torch.allclose(index.attend(query[order])[0], before[order], atol=1e-6)
    index.append(*(tensor[order][:, :, :40] for tensor in (keys, values)))
    assert len(index) == 340


def test_padding_takes_part_in_nothing(kernel: str) -> None:
    query, keys, values = random_layer(400)
    config = dataclasses.replace(CONFIG, kernel=kernel)
    alone = LSHIndex(config, 2, 32).build(keys, values)
    filler = torch.full((1, 2, 37, 32), 1e4)
    padded = LSHIndex(config, 2, 32).build(
        torch.cat([filler, keys], 2), torch.cat([filler, values], 2), padding=torch.tensor([37])
    )
    shifted = [[positions - 37 for positions in heads] for heads in padded.select(query)]
    assert same_sets(alone.select(query), shifted)
    assert torch.allclose(alone.attend(query)[0], padded.attend(query)[0], atol=1e-5)


def test_heavy_keys_are_exact(kernel: str) -> None:
    query, keys, values = random_layer(400)
    heavy = torch.tensor([[[50, 60, 399, -1], [100, 101, 102, 103]]])
    config = dataclasses.replace(CONFIG, kernel=kernel)
    index = LSHIndex(config, 2, 32).build(keys, values, heavy=heavy)
    chosen = index.select(query)[0]
    assert not {50, 60} & set(chosen[0].tolist())
    assert not {100, 101, 102, 103} & set(chosen[2].tolist())
    everything = LSHIndex(dataclasses.replace(config, min_hits=0), 2, 32).build(keys, values, heavy=heavy)
    assert torch.allclose(everything.attend(query)[0], dense_decode_attention(query, keys, values)[0], atol=1e-5)


@pytest.mark.parametrize("options", [{"planes_per": "head"}, {"planes": "hadamard"}, {"transform": "simple"}])
def test_options_agree_between_kernels_and_match_the_law(kernel: str, options: dict) -> None:
    query, keys, values = random_layer(500)
    index, reference = (
        LSHIndex(dataclasses.replace(CONFIG, kernel=name, **options), 2, 32).build(keys, values)
        for name in (kernel, "torch")
    )
    assert same_sets(index.select(query), reference.select(query))
    assert torch.allclose(index.attend(query)[0], reference.attend(query)[0], atol=1e-5)
    index.append(keys[:, :, :100] * 2, values[:, :, :100])
    assert bool(torch.isfinite(index.attend(query)[0]).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_follow_the_input(dtype: torch.dtype) -> None:
    query, keys, values = (tensor.to(dtype) for tensor in random_layer(300))
    index = LSHIndex(CONFIG, 2, 32, 1, dtype).build(keys, values)
    out, lse, _ = index.attend(query)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert index.keys.dtype == (torch.float32 if dtype == torch.float64 else dtype)
    assert LSHIndex(dataclasses.replace(CONFIG, kv_dtype="bfloat16"), 2, 32).dtype == torch.bfloat16


def test_tolerance_falls_back_to_exact_attention(kernel: str) -> None:
    query, keys, values = random_layer(600)
    sampled = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel), 2, 32).build(keys, values)
    out, _, stats = sampled.attend(query, with_error=True)
    assert bool((stats.error > 0).all())
    threshold = float(stats.error.sort().values.flatten()[1:3].mean())
    strict = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel, tolerance=threshold), 2, 32).build(keys, values)
    mixed, _, mixed_stats = strict.attend(query)
    exact, _ = dense_decode_attention(query, keys, values)
    assert torch.equal(mixed_stats.fell_back, stats.error > threshold)
    expected = torch.where(mixed_stats.fell_back[..., None], exact, out)
    assert torch.allclose(mixed, expected, atol=1e-5)


def test_error_estimate_is_of_the_size_of_the_error() -> None:
    query, keys, values = random_layer(3000, kv_heads=4, group=4, dim=64, seed=3)
    exact, _ = dense_decode_attention(query, keys, values)
    ratios = []
    for seed in range(8):
        config = LSHConfig(key_bits=8, num_tables=75, seed=seed, weight_eps=0.0)
        out, _, stats = LSHIndex(config, 4, 64).build(keys, values).attend(query, with_error=True)
        error = (out - exact).norm(dim=-1) / exact.norm(dim=-1)
        ratios.append((error.square().mean() / stats.error.square().mean()).sqrt())
    assert 0.5 < float(torch.stack(ratios).mean()) < 2.0


def test_memory_is_counted() -> None:
    _, keys, values = random_layer(65_536, kv_heads=1, dim=8)
    index = LSHIndex(LSHConfig(), 1, 8).build(keys, values)
    memory = index.memory_bytes()
    assert memory["kv"] == 2 * 8 * 4 * 65_536
    assert memory["ids"] == 2 * 150 * (65_536 - 68)
    assert memory["index"] / 65_536 <= 310
    index.append(keys[:, :, :1], values[:, :, :1])
    assert index.memory_bytes()["spare"] >= 0


def test_memory_does_not_grow_beyond_the_tokens() -> None:
    _, keys, values = random_layer(3000, kv_heads=1, dim=16)
    index = LSHIndex(dataclasses.replace(CONFIG, segment_min=64), 1, 16).build(keys[:, :, :500], values[:, :, :500])
    for token in range(500, 2500):
        index.append(keys[:, :, token : token + 1], values[:, :, token : token + 1])
    memory = index.memory_bytes()
    offsets = 2 * 30 * (2**5 + 1) * index.num_segments
    assert memory["index"] == 2 * 30 * index.hashed_tokens + 4 * index.hashed_tokens + offsets
    assert memory["spare"] <= 0.3 * (memory["kv"] + 4 * len(index)) + 2**16


def test_two_indices_in_two_threads() -> None:
    layers = [random_layer(800, group=4, dim=64, seed=seed) for seed in range(2)]
    indices = [LSHIndex(CONFIG, 2, 64).build(keys, values) for _, keys, values in layers]
    expected = [index.attend(query)[0] for index, (query, _, _) in zip(indices, layers, strict=True)]

    def work(number: int) -> bool:
        outputs = [indices[number].attend(layers[number][0])[0] for _ in range(50)]
        return all(torch.equal(out, expected[number]) for out in outputs)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_inference_mode_and_autocast(kernel: str) -> None:
    query, keys, values = random_layer(300)
    config = dataclasses.replace(CONFIG, kernel=kernel)
    expected = LSHIndex(config, 2, 32).build(keys, values).attend(query)[0]
    with torch.inference_mode():
        index = LSHIndex(config, 2, 32).build(keys, values)
        index.append(keys[:, :, :50], values[:, :, :50])
        index.crop(300)
        assert index.hashed_tokens == 280
        assert torch.allclose(index.attend(query)[0], expected, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(index.attend(query)[0], expected, atol=1e-6)


def test_merging_states() -> None:
    query, keys, values = random_layer(100)
    whole, lse = dense_decode_attention(query, keys, values)
    parts = [
        dense_decode_attention(query, keys[:, :, part], values[:, :, part]) for part in (slice(30), slice(30, 100))
    ]
    merged, merged_lse = merge_states(*parts[0], *parts[1])
    assert torch.allclose(merged, whole, atol=1e-6)
    assert torch.allclose(merged_lse, lse, atol=1e-6)
    nothing = torch.full_like(whole, torch.nan), torch.full_like(lse, -torch.inf)
    assert torch.equal(merge_states(whole, lse, *nothing)[0], whole)
    assert bool((merge_states(*nothing, *nothing)[0] == 0).all())


def test_what_is_refused() -> None:
    query, keys, values = random_layer(100)
    index = LSHIndex(CONFIG, 2, 32)
    for action in (lambda: index.attend(query), lambda: index.select(query), lambda: index.append(keys, values)):
        with pytest.raises(InvalidStateError, match="before build"):
            action()
    with pytest.raises(InvalidValueError, match=r"keys of shape.*head_dim"):
        index.build(keys[..., :16], values[..., :16])
    with pytest.raises(InvalidValueError, match=r"values of shape"):
        index.build(keys, values[:, :, :50])
    with pytest.raises(InvalidTypeError, match="one floating-point dtype"):
        index.build(keys, values.bfloat16())
    for bad in (torch.nan, torch.inf):
        poisoned = keys.clone()
        poisoned[0, 0, 50, 3] = bad
        with pytest.raises(InvalidValueError, match="keys hold NaN"):
            index.build(poisoned, values)
        with pytest.raises(InvalidValueError, match="values hold NaN"):
            index.build(keys, poisoned)
    index.build(keys, values)
    with pytest.raises(InvalidValueError, match="not a multiple of num_kv_heads=2"):
        index.attend(torch.zeros(1, 3, 32))
    with pytest.raises(InvalidValueError, match="query of shape"):
        index.attend(torch.zeros(2, 4, 32))
    with pytest.raises(InvalidValueError, match="query holds NaN"):
        index.attend(query * torch.nan)
    with pytest.raises(InvalidValueError, match=r"values of shape|keys of shape"):
        index.append(keys[:, :1], values[:, :1])
    with pytest.raises(InvalidValueError, match="crop to 101"):
        index.crop(101)
    with pytest.raises(InvalidValueError, match="rows"):
        index.reorder(torch.tensor([1]))
    with pytest.raises(InvalidValueError, match="padding"):
        index.build(keys, values, padding=torch.tensor([101]))
    with pytest.raises(InvalidValueError, match="heavy"):
        index.build(keys, values, heavy=torch.zeros(1, 3, 2, dtype=torch.int32))
    with pytest.raises(InvalidValueError, match="mean"):
        index.build(keys, values, mean=torch.zeros(1, 2, 31))
    for sizes in ((0, 32), (2, 0), (2, 5000)):
        with pytest.raises(InvalidValueError, match="too"):
            LSHIndex(CONFIG, *sizes)
    with pytest.raises(InvalidValueError, match="planes of shape"):
        LSHIndex(CONFIG, 2, 32, planes=torch.zeros(32, 5))
    with pytest.raises(InvalidValueError, match="planes hold NaN"):
        LSHIndex(CONFIG, 2, 32, planes=torch.full((32, 150), torch.nan))
    with pytest.raises(InvalidValueError, match="heads=3 is not a multiple"):
        dense_decode_attention(torch.zeros(1, 3, 32), keys, values)
    with pytest.raises(InvalidTypeError, match="float32, bfloat16 or float16"):
        dense_decode_attention(query, keys, values.bfloat16())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": None}, "config=None"),
        ({"config": {}}, "config"),
        ({"head_dim": 32.0}, "head_dim=32.0"),
        ({"num_kv_heads": True}, "num_kv_heads=True"),
        ({"batch_size": "1"}, "batch_size='1'"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"dtype": torch.int32}, "dtype=torch.int32"),
        ({"layer": 0.5}, "layer=0.5"),
        ({"planes": [1]}, "planes.*list"),
    ],
)
def test_an_index_of_other_types_is_refused(arguments: dict[str, Any], words: str) -> None:
    defaults: dict[str, Any] = {"config": CONFIG, "num_kv_heads": 2, "head_dim": 32}
    with pytest.raises(InvalidTypeError, match=words):
        LSHIndex(**defaults | arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layer": -1}, "layer=-1"),
        ({"device": "xx"}, "unknown device 'xx'"),
        ({"head_dim": 4096, "config": dataclasses.replace(CONFIG, transform="simple")}, "head_dim=4096.*4095"),
    ],
)
def test_an_index_that_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    defaults: dict[str, Any] = {"config": CONFIG, "num_kv_heads": 2, "head_dim": 32}
    with pytest.raises(InvalidValueError, match=words):
        LSHIndex(**defaults | arguments)


@pytest.mark.parametrize("bad", [None, [1.0], "keys"])
def test_tokens_must_be_tensors(bad: object) -> None:
    _, keys, values = random_layer(100)
    index = LSHIndex(CONFIG, 2, 32).build(keys, values)
    for action in (
        lambda: index.build(bad, values),
        lambda: index.append(keys, keys.numpy()),
        lambda: index.attend(bad),
        lambda: index.reorder(bad),
    ):
        with pytest.raises(InvalidTypeError, match="give a tensor"):
            action()
    assert len(index) == 100


def test_positions_and_means_are_checked() -> None:
    query, keys, values = random_layer(100)
    index = LSHIndex(CONFIG, 2, 32).build(keys, values)
    before = index.attend(query)[0]
    for error, words, options in (
        (InvalidTypeError, "padding.*list", {"padding": [3]}),
        (InvalidTypeError, "padding of torch.float32", {"padding": torch.tensor([3.7])}),
        (InvalidTypeError, "heavy of torch.float32", {"heavy": torch.rand(1, 2, 3)}),
        (InvalidValueError, "heavy.*-1 to 99", {"heavy": torch.full((1, 2, 3), 100)}),
        (InvalidValueError, "heavy.*-1 to 99", {"heavy": torch.full((1, 2, 3), -7)}),
        (InvalidValueError, "mean holds NaN", {"mean": torch.full((1, 2, 32), torch.nan)}),
    ):
        with pytest.raises(error, match=words):
            index.build(keys, values, **options)
        assert torch.equal(index.attend(query)[0], before), "a refused build changes nothing"
    for length in (2.5, True, "3", None):
        with pytest.raises(InvalidTypeError, match="length="):
            index.crop(length)
    with pytest.raises(InvalidTypeError, match="rows of torch"):
        index.reorder(torch.tensor([0.7]))
    for scale in (torch.nan, torch.inf):
        with pytest.raises(InvalidValueError, match="scale="):
            index.attend(query, scale=scale)
    with pytest.raises(InvalidTypeError, match="scale="):
        index.attend(query, scale="a")


def test_heavy_positions_given_twice_count_once(kernel: str) -> None:
    query, keys, values = random_layer(400)
    config = dataclasses.replace(CONFIG, kernel=kernel, min_hits=0)
    exact, exact_lse = dense_decode_attention(query, keys, values)
    heavy = torch.tensor([[[100, 100, 100, -1], [7, 8, 7, 7]]])
    index = LSHIndex(config, 2, 32).build(keys, values, heavy=heavy)
    out, lse, _ = index.attend(query)
    assert torch.allclose(out, exact, atol=1e-5)
    assert torch.allclose(lse, exact_lse, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])  # noqa: S301
def test_copies_go_their_own_way(kernel: str, copied: Any) -> None:
    query, keys, values = random_layer(400)
    index = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel), 2, 32).build(keys, values)
    expected = index.attend(query)[0]
    other = copied(index)
    assert torch.equal(other.attend(query)[0], expected)
    other.append(keys[:, :, :200], values[:, :, :200])
    other.crop(450)
    assert len(index) == 400
    assert torch.equal(index.attend(query)[0], expected)
    assert bool(torch.isfinite(other.attend(query)[0]).all())


def test_cropping_to_nothing_forgets_the_prompt() -> None:
    query, keys, values = random_layer(300, batch=2)
    index = LSHIndex(dataclasses.replace(CONFIG, min_hits=0), 2, 32, 2)
    index.build(keys, values, padding=torch.tensor([40, 0]), heavy=torch.full((2, 2, 1), 60))
    index.crop(0)
    assert not index.is_built
    index.extend(keys, values)
    index.build_tables()
    assert torch.allclose(index.attend(query)[0], dense_decode_attention(query, keys, values)[0], atol=1e-5)


def test_layers_hash_at_different_steps() -> None:
    _, keys, values = random_layer(400, kv_heads=1, dim=8)
    config = LSHConfig(key_bits=3, num_tables=4, segment_min=64, window_tokens=8)
    indices = [LSHIndex(config, 1, 8, layer=layer).build(keys[:, :, :100], values[:, :, :100]) for layer in range(16)]
    busy = []
    for token in range(100, 400):
        before = [index._tail for index in indices]
        for index in indices:
            index.append(keys[:, :, token : token + 1], values[:, :, token : token + 1])
        busy.append(sum(index._tail > tail for index, tail in zip(indices, before, strict=True)))
        assert all(8 <= len(index) - index._tail <= 8 + 64 for index in indices)
    assert max(busy) <= 2
    # Where the boundaries lie does not depend on how the tokens came.
    at_once = LSHIndex(config, 1, 8, layer=5).build(keys[:, :, :100], values[:, :, :100])
    at_once.append(keys[:, :, 100:], values[:, :, 100:])
    assert at_once._tail == indices[5]._tail


def test_memory_of_inference_mode_is_written_outside_of_it(kernel: str) -> None:
    query, keys, values = random_layer(300)
    more = [tensor[:, :, :40] for tensor in random_layer(40, seed=1)[1:]]
    config = dataclasses.replace(CONFIG, kernel=kernel)
    expected = LSHIndex(config, 2, 32).build(keys, values)
    with torch.inference_mode():
        index = LSHIndex(config, 2, 32).build(keys * 1, values * 1, mean=keys.mean(2), padding=torch.tensor([0]))
        index.reorder(torch.tensor([0]))
    expected.build(keys, values, mean=keys.mean(2))
    for one in (index, expected):
        one.append(*more)
        one.crop(310)
        one.append(*more)
    with torch.inference_mode():
        index.append(*more)
    expected.append(*more)
    with torch.no_grad():
        index.append(*more)
    expected.append(*more)
    assert torch.equal(index.attend(query)[0], expected.attend(query)[0])


def test_the_index_holds_no_graph(kernel: str) -> None:
    query, keys, values = random_layer(300)
    index = LSHIndex(dataclasses.replace(CONFIG, kernel=kernel), 2, 32)
    mean = keys.mean(2).requires_grad_()
    index.build(keys.requires_grad_(), values.requires_grad_(), mean=mean)
    index.append(keys[:, :, :50] * 2, values[:, :, :50] * 2)
    assert not index.keys.requires_grad
    assert not index.values.requires_grad
    assert not index._mean.requires_grad
    assert not index._norms.requires_grad
    index.attend(query)


@pytest.mark.parametrize(
    ("kv_dtype", "dtype", "size"), [("float16", torch.float32, 1e6), ("auto", torch.float64, 1e300)]
)
@pytest.mark.parametrize("which", ["keys", "values"])
def test_what_the_storage_cannot_hold_is_refused(kv_dtype: str, dtype: torch.dtype, size: float, which: str) -> None:
    _, keys, values = random_layer(300, dtype=dtype)
    large = {"keys": keys, "values": values} | {which: (keys * size)}
    index = LSHIndex(dataclasses.replace(CONFIG, kv_dtype=kv_dtype), 2, 32, 1, dtype)
    with pytest.raises(InvalidValueError, match=f"{which} .* kv_dtype"):
        index.build(**large)
    index.build(keys, values)
    with pytest.raises(InvalidValueError, match=f"{which} .* kv_dtype"):
        index.append(**large)
    assert len(index) == 300


def test_queries_and_scales_beyond_float32_are_refused() -> None:
    query, keys, values = random_layer(300)
    index = LSHIndex(CONFIG, 2, 32).build(keys, values)
    for call in (index.attend, index.select):
        with pytest.raises(InvalidValueError, match="query .* float32"):
            call(query.double() * 1e300)
    for scale in (1e300, -1e39, 10**400):
        with pytest.raises(InvalidValueError, match="scale="):
            index.attend(query, scale)
        with pytest.raises(InvalidValueError, match="scale="):
            dense_decode_attention(query, keys, values, scale=scale)


def test_numpy_numbers_are_numbers() -> None:
    query, keys, values = random_layer(300)
    index = LSHIndex(CONFIG, np.int64(2), np.int32(32), np.int8(1), layer=np.int64(1)).build(keys, values)
    assert {type(size) for size in (index.num_kv_heads, index.head_dim, index.batch_size, index.layer)} == {int}
    expected = LSHIndex(CONFIG, 2, 32, layer=1).build(keys, values)
    index.crop(np.int64(200))
    expected.crop(200)
    assert torch.equal(index.attend(query, np.float32(0.25))[0], expected.attend(query, 0.25)[0])
    for refused in (np.bool_(True), np.float64(2.0), True):
        with pytest.raises(InvalidTypeError, match="num_kv_heads="):
            LSHIndex(CONFIG, refused, 32)
        with pytest.raises(InvalidTypeError, match="length="):
            index.crop(refused)
    for refused in (np.bool_(True), True, "x"):
        with pytest.raises(InvalidTypeError, match="scale="):
            index.attend(query, refused)
