"""The three implementations agree, and all agree with float64 where numbers are extreme."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from magicpig_helpers import available_kernels, random_layer
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_magicpig import LSHConfig, LSHIndex, collision_probability, dense_decode_attention, lsh_attention
from octavo_magicpig.kernels import describe, native, resolve

SMALL = LSHConfig(key_bits=5, num_tables=40, segment_max=256, segment_min=64)


@pytest.mark.parametrize("dim", [32, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
def test_kernels_agree(dim: int, group: int) -> None:
    query, keys, values = random_layer(611, batch=2, group=group, dim=dim)
    padding = torch.tensor([0, 33])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        results = []
        for name in available_kernels():
            if name == "numba" and (dim, group) not in {(64, 3), (80, 4)}:
                continue
            index = LSHIndex(dataclasses.replace(SMALL, kernel=name), 2, dim, 2, dtype)
            index.build(keys.to(dtype), values.to(dtype), padding=padding)
            results.append((index.attend(query, with_error=True), index.select(query)))
        ((out, lse, stats), selected), *others = results
        assert float(stats.fraction.mean()) > 0.02
        for (out2, lse2, stats2), selected2 in others:
            assert all(
                torch.equal(a, b) for x, y in zip(selected, selected2, strict=True) for a, b in zip(x, y, strict=True)
            )
            assert torch.allclose(out, out2, atol=1e-5)
            assert torch.allclose(lse, lse2, atol=1e-5)
            for name in ("selected", "fraction", "max_share", "sampled_lse", "error"):
                assert torch.allclose(getattr(stats, name), getattr(stats2, name), rtol=1e-3, atol=5e-5), name
            assert torch.allclose(stats.effective_samples, stats2.effective_samples, rtol=1e-3)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "avx512bf16"])
def test_instruction_sets_agree(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.problem() is not None:
        pytest.skip("no native kernel")
    order = ["baseline", "avx2", "avx512", "avx512bf16"]
    if order.index(isa) > order.index(native.instruction_set()):
        pytest.skip(f"this processor has no {isa}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        query, keys, values = random_layer(500, group=3, dim=80, dtype=dtype)
        index = LSHIndex(SMALL, 2, 80, 1, dtype).build(keys, values)
        expected, _, _ = index.attend(query.to(dtype).float(), with_error=True)
        dense, _ = dense_decode_attention(query, keys, values)
        with monkeypatch.context() as patch:
            patch.setattr(native._library(), "isa", order.index(isa))
            lower = LSHIndex(SMALL, 2, 80, 1, dtype).build(keys, values)
            out, _, _ = lower.attend(query.to(dtype).float(), with_error=True)
            assert torch.allclose(out, expected, atol=2e-5)
            assert torch.allclose(dense_decode_attention(query, keys, values)[0], dense, atol=2e-5)
            assert torch.equal(lower._segments[0].ids, index._segments[0].ids)


def test_threads_change_nothing(kernel: str) -> None:
    query, keys, values = random_layer(700, batch=2, group=4, dim=64)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel), 2, 64, 2).build(keys, values)
            results.append((index.attend(query)[0], index.select(query)))
    finally:
        torch.set_num_threads(before)
    (one, chosen), (two, chosen2) = results
    assert all(torch.equal(a, b) for x, y in zip(chosen, chosen2, strict=True) for a, b in zip(x, y, strict=True))
    assert torch.equal(one, two) if kernel == "native" else torch.allclose(one, two, atol=1e-6)


def float64_attention(index: LSHIndex, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Equation 2 with the log-sum-exp merge, by hand and in float64."""
    config, keys, values = index.config, index.keys.double(), index.values.double()
    group, tokens = query.shape[1] // keys.shape[1], keys.shape[2]
    out, lse = torch.zeros_like(query, dtype=torch.float64), torch.zeros(query.shape[:2], dtype=torch.float64)
    begin, tail = config.sink_tokens, index._tail
    for b, heads in enumerate(index.select(query)):
        for h, chosen in enumerate(heads):
            k, v, q = keys[b, h // group], values[b, h // group], query[b, h].double()
            scores = k @ q / q.shape[0] ** 0.5
            exact = torch.cat([torch.arange(min(begin, tail)), torch.arange(tail, tokens)])
            centred = k - index._mean[b, h // group].double()
            length = q.norm() * centred.norm(dim=1)
            cosine = torch.where(length > 0, (centred @ q) / length.clamp_min(1e-300), 0.0)
            u = collision_probability(cosine, config.key_bits, config.num_tables, config.min_hits)
            z = torch.cat([scores[exact], (scores - (u + config.weight_eps).clamp_min(1e-30).log())[chosen]])
            rows = torch.cat([v[exact], v[chosen]])
            lse[b, h] = z.logsumexp(0)
            out[b, h] = z.softmax(0) @ rows
    return out, lse


@pytest.mark.parametrize("span", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("hits", [1, 2, 3])
def test_extreme_keys_match_float64(kernel: str, span: float, hits: int) -> None:
    query, keys, values = random_layer(400, kv_heads=1, group=2, dim=32, seed=7)
    query[0, 1] = 0.0
    direction = query[0, 0] / query[0, 0].norm()
    # Parallel and antiparallel to the query, zero, duplicated, and logits that span hundreds.
    keys[0, 0, 50:60] = direction * torch.linspace(0.1, 1, 10)[:, None] * span / query[0, 0].norm() * 32**0.5
    keys[0, 0, 60:65] = -direction * span
    keys[0, 0, 70:75] = 0.0
    keys[0, 0, 80:90] = keys[0, 0, 80]
    for eps in (1e-4, 0.0):
        config = dataclasses.replace(SMALL, kernel=kernel, min_hits=hits, weight_eps=eps, center=False)
        index = LSHIndex(config, 1, 32).build(keys, values)
        out, lse, _ = index.attend(query, with_error=True)
        expected, expected_lse = float64_attention(index, query)
        assert bool(torch.isfinite(out).all())
        assert torch.allclose(out.double(), expected, atol=1e-3)
        assert torch.allclose(lse.double(), expected_lse, atol=1e-3)


def test_zero_centred_keys_have_cosine_zero(kernel: str) -> None:
    keys = torch.ones(1, 1, 200, 16)
    values = torch.randn(1, 1, 200, 16, generator=torch.Generator().manual_seed(0))
    index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel), 1, 16).build(keys, values)
    out, lse, _ = index.attend(torch.ones(1, 1, 16))
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(lse).all())


@pytest.mark.parametrize("tables", [255, 256, 300])
def test_more_than_255_hits_are_counted(kernel: str, tables: int) -> None:
    # A key equal to the query collides in every table: an 8-bit counter would wrap around.
    query, keys, values = random_layer(200, kv_heads=1, group=1, dim=16)
    keys[0, 0, 100] = query[0, 0] * 3
    config = LSHConfig(key_bits=11, num_tables=tables, center=False, kernel=kernel)
    index = LSHIndex(config, 1, 16).build(keys, values)
    assert 100 in index.select(query)[0][0].tolist()


def test_dense_attention_matches_softmax(kernel: str) -> None:
    for tokens in (1, 15, 16, 17, 257, 2049):
        query, keys, values = random_layer(max(tokens, 2), batch=2, group=3, dim=40)
        keys, values = keys[:, :, :tokens], values[:, :, :tokens]
        mask = torch.rand(2, tokens, generator=torch.Generator().manual_seed(0)) > 0.3
        mask[:, -1] = True
        out, lse = dense_decode_attention(query, keys, values, mask, kernel=kernel)
        scores = torch.einsum("bkgd,bknd->bkgn", query.view(2, 2, 3, 40), keys) / 40**0.5
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        expected = torch.einsum("bkgn,bknd->bkgd", scores.softmax(-1), values).reshape(2, 6, 40)
        assert torch.allclose(out, expected, atol=1e-5)
        assert torch.allclose(lse, scores.logsumexp(-1).view(2, 6), atol=1e-5)


def test_dense_attention_without_any_key(kernel: str) -> None:
    query, keys, values = random_layer(5)
    out, lse = dense_decode_attention(query, keys, values, torch.zeros(1, 5, dtype=torch.bool), kernel=kernel)
    assert bool((out == 0).all())
    assert bool((lse == -torch.inf).all())
    out, _ = dense_decode_attention(query, keys[:, :, :0], values[:, :, :0], kernel=kernel)
    assert bool((out == 0).all())


def test_dense_attention_reads_any_layout(kernel: str) -> None:
    query, keys, values = random_layer(50, batch=2)
    expected, _ = dense_decode_attention(query, keys, values, kernel=kernel)
    swapped = keys.transpose(1, 2).contiguous().transpose(1, 2), values.mT.contiguous().mT
    assert torch.allclose(dense_decode_attention(query, *swapped, kernel=kernel)[0], expected, atol=1e-6)


def test_choice_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = describe()
    assert found.reasons[found.active] == "available"
    with pytest.raises(InvalidValueError, match="kernel='gpu'"):
        resolve("gpu")
    monkeypatch.setattr(native, "problem", lambda: "no compiler")
    assert describe().active in ("numba", "torch")
    assert describe().reasons["native"] == "no compiler"
    assert resolve("auto") is not native
    with pytest.raises(InvalidStateError, match="no compiler"):
        resolve("native")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mask": torch.ones(1, 3, dtype=torch.bool)}, InvalidValueError, r"mask of shape \(1, 3\).*\(1, 50\)"),
        ({"mask": torch.ones(0, 50, dtype=torch.bool)}, InvalidValueError, "mask of shape"),
        ({"mask": torch.ones(1, 50)}, InvalidTypeError, "mask of torch.float32.*bool"),
        ({"mask": torch.ones(1, 50, dtype=torch.int64)}, InvalidTypeError, "mask of torch.int64.*bool"),
        ({"mask": torch.ones(1, 50, dtype=torch.bool, device="meta")}, InvalidValueError, "mask is on meta"),
        ({"mask": [True] * 50}, InvalidTypeError, "mask.*list"),
        ({"first": torch.tensor([], dtype=torch.int64)}, InvalidValueError, r"first of shape \(0,\).*\(1,\)"),
        ({"first": torch.tensor([0, 1, 2])}, InvalidValueError, "first of shape"),
        ({"first": torch.tensor([1.5])}, InvalidTypeError, "first of torch.float32.*int"),
        ({"first": torch.tensor([-5])}, InvalidValueError, "first.*0 to 50"),
        ({"first": torch.tensor([51])}, InvalidValueError, "first.*0 to 50"),
        ({"scale": float("nan")}, InvalidValueError, "scale=nan"),
        ({"scale": float("inf")}, InvalidValueError, "scale=inf"),
        ({"scale": "1"}, InvalidTypeError, "scale='1'"),
    ],
)
def test_dense_attention_refuses_what_does_not_fit(kernel: str, options: dict, error: type, words: str) -> None:
    query, keys, values = random_layer(50)
    with pytest.raises(error, match=words):
        dense_decode_attention(query, keys, values, kernel=kernel, **options)


def test_dense_attention_refuses_mixed_devices(kernel: str) -> None:
    query, keys, values = random_layer(50)
    with pytest.raises(InvalidValueError, match="on cpu.*on meta"):
        dense_decode_attention(query, keys.to("meta"), values.to("meta"), kernel=kernel)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["keys", "values"])
def test_numbers_that_are_not_finite_are_seen_in_the_output(kernel: str, where: str, bad: float) -> None:
    query, keys, values = random_layer(300, kv_heads=1, group=2, dim=32)
    poisoned = {"keys": keys.clone(), "values": values.clone()}
    poisoned[where][0, 0, 7, 3] = bad
    out, lse = dense_decode_attention(query, poisoned["keys"], poisoned["values"], kernel=kernel)
    reference, reference_lse = dense_decode_attention(query, poisoned["keys"], poisoned["values"], kernel="torch")
    # An infinite key whose score is minus infinity takes no part; any other spoils its head.
    assert torch.equal(torch.isfinite(out).all(-1), torch.isfinite(reference).all(-1))
    assert torch.equal(torch.isfinite(lse), torch.isfinite(reference_lse))
    assert not bool(torch.isfinite(out).all())
    for position in (2, 150, 299):  # sink, tables, window
        index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel, min_hits=0), 1, 32).build(keys, values)
        (index.keys if where == "keys" else index.values)[0, 0, position, 3] = bad
        out, _, _ = index.attend(query, with_error=True)
        assert not bool(torch.isfinite(out).all())


def test_scores_that_overflow_are_seen_in_the_output(kernel: str) -> None:
    query, keys, values = random_layer(300, kv_heads=1, group=1, dim=32)
    out, lse = dense_decode_attention(query.abs() * 1e20, keys.abs() * 1e20, values, kernel=kernel)
    assert bool(torch.isnan(out).all())
    assert not bool(torch.isfinite(lse).any())
    index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel, min_hits=0, center=False), 1, 32)
    out, lse, _ = index.build(keys.abs() * 1e20, values).attend(query.abs() * 1e20)
    assert bool(torch.isnan(out).all())
    assert not bool(torch.isfinite(lse).any())


@pytest.mark.parametrize(("tables", "hits"), [(1000, 8), (4096, 8), (600, 5)])
def test_many_tables_and_hits_agree(kernel: str, tables: int, hits: int) -> None:
    query, keys, values = random_layer(200, kv_heads=1, group=2, dim=16)
    config = LSHConfig(key_bits=8, num_tables=tables, min_hits=hits, weight_eps=0.0)
    expected = LSHIndex(dataclasses.replace(config, kernel="torch"), 1, 16).build(keys, values).attend(query)
    out, lse, _ = LSHIndex(dataclasses.replace(config, kernel=kernel), 1, 16).build(keys, values).attend(query)
    assert torch.allclose(out, expected[0], atol=1e-4)
    assert torch.allclose(lse, expected[1], atol=1e-4)


def test_unknown_values_of_environment_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, good, bad in (
        ("OCTAVO_MAGICPIG_ISA", "avx2", "sse9"),
        ("OCTAVO_MAGICPIG_NATIVE", "1", "off"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, bad)
            with pytest.raises(InvalidValueError, match=f"{name}='{bad}' is unknown; give "):
                native._load.__wrapped__()
            patch.setenv(name, good)
            native._load.__wrapped__()
    monkeypatch.setenv("OCTAVO_MAGICPIG_NATIVE", "0")
    assert "turns it off" in str(native._load.__wrapped__()[1]) or native._find() is None


NO_THREAD = """
import resource, torch
from octavo_magicpig import dense_decode_attention
from octavo_magicpig.kernels import native
native._library().functions.mp_use_team(None)
tensors = torch.randn(1, 4, 16), torch.randn(1, 4, 5000, 16), torch.randn(1, 4, 5000, 16)
torch.set_num_threads(1)
expected = dense_decode_attention(*tensors)[0]
torch.set_num_threads(3)
print(torch.equal(dense_decode_attention(*tensors)[0], expected), "then", end=" ")
torch.set_num_threads(64)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 20 * 2**20, resource.RLIM_INFINITY))
try:
    dense_decode_attention(*tensors)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_threads_that_cannot_be_started_fail_the_call_alone() -> None:
    if native.problem() is not None:
        pytest.skip("no native kernel")
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, then, words = done.stdout.split(" ", 2)
    assert (first, then) == ("True", "then")
    assert "ran out of memory or threads" in words


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("options", [{}, {"planes": "hadamard"}, {"transform": "simple", "tolerance": 0.01}])
def test_the_default_dtype_changes_nothing(kernel: str, default_dtype: torch.dtype, options: dict) -> None:
    query, keys, values = random_layer(400)
    more = random_layer(40, seed=1)

    def attended() -> list[torch.Tensor]:
        index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel, **options), 2, 32).build(keys, values)
        index.append(*more[1:])
        out, lse, stats = index.attend(query, with_error=True)
        dense = dense_decode_attention(query, keys, values, kernel=kernel)
        return [out, lse, stats.selected, stats.error, stats.sampled_lse, *dense, *index.select(query)[0]]

    expected = attended()
    torch.set_default_dtype(default_dtype)
    for found, wanted in zip(attended(), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "spoiled"),
    [
        ("mean", lambda tensor: tensor.double()),
        ("norms", lambda tensor: tensor.bfloat16()),
        ("norms", lambda tensor: tensor.mT.contiguous().mT),
        ("first", lambda tensor: tensor.int()),
        ("heavy", lambda tensor: tensor.long()),
        ("keys", lambda tensor: tensor.mT.contiguous().mT),
    ],
)
def test_native_code_gets_only_the_memory_it_expects(name: str, spoiled: Callable) -> None:
    if native.problem() is not None:
        pytest.skip("no native kernel")
    query, keys, values = random_layer(400)
    index = LSHIndex(SMALL, 2, 32).build(keys, values, heavy=torch.tensor([[[40], [50]]]))
    state = dataclasses.replace(index._state(), **{name: spoiled(getattr(index._state(), name))})
    with pytest.raises(InvalidStateError, match=f"{name} "):
        native.attend(state, query, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"transform": "simple"}, {"center": False}])
def test_duplicated_keys_are_weighted_alike(dtype: torch.dtype, options: dict) -> None:
    # Centred they are rounding noise, whose cosine is taken as 0, as that of zero is.
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 1, 1, 32, generator=generator).expand(1, 1, 5000, 32).to(dtype)
    values = torch.randn(1, 1, 5000, 32, generator=generator).to(dtype)
    query = torch.randn(1, 8, 32, generator=generator)
    results = []
    for name in available_kernels():
        index = LSHIndex(LSHConfig(key_bits=2, num_tables=30, kernel=name, **options), 1, 32, 1, dtype)
        results.append(index.build(keys, values).attend(query))
    results.append(
        (
            found := lsh_attention(
                query[:, :, None], keys, values, config=LSHConfig(key_bits=2, num_tables=30, **options)
            )
        ).out[:, :, 0],
    )
    (out, lse, stats), *others, estimate = results
    assert int((stats.selected > 0).sum()) > 0
    for out2, lse2, stats2 in others:
        assert torch.equal(stats.selected, stats2.selected)
        assert torch.allclose(out, out2, atol=1e-4)
        assert torch.allclose(lse, lse2, atol=1e-4)
    assert torch.allclose(estimate, out, atol=1e-4)
    assert torch.allclose(found.lse, lse, atol=1e-4)


@pytest.mark.parametrize("size", [1e-10, 1e-18, 1e-22])
def test_tiny_queries_and_keys_keep_their_cosine(kernel: str, size: float) -> None:
    query, keys, values = random_layer(400)
    index = LSHIndex(dataclasses.replace(SMALL, kernel=kernel), 2, 32).build(keys * size, values)
    scale = min(1 / size**2, 1e36) / 32
    found = index.attend(query * size, scale)
    plain = LSHIndex(dataclasses.replace(SMALL, kernel=kernel), 2, 32).build(keys, values)
    expected = plain.attend(query, scale * size**2)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_autocast_changes_nothing(kernel: str) -> None:
    query, keys, values = random_layer(300)
    expected = dense_decode_attention(query, keys, values, kernel=kernel)
    with torch.autocast("cpu", torch.bfloat16):
        found = dense_decode_attention(query, keys, values, kernel=kernel)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
