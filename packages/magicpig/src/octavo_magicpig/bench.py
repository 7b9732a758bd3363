"""Benchmarks behind ``octavo bench magicpig``: a decode step, the build of the tables, whole steps of a model.

The honest peer is grouped scaled dot-product attention, the query heads of a group folded into the query length, and
the package's own dense kernel; ``enable_gqa=True``, which stock transformers calls, is many times slower on a CPU and
is shown as well. Every call gets another query: with one query the sampled rows would stay in the cache.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from octavo_core.bench import Timing, compare, fit_power_law, speed_row
from octavo_core.device import available_cores, num_threads, resolve_device, torch_generator
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from torch import Tensor

from octavo_magicpig.attention import dense_decode_attention
from octavo_magicpig.config import LSHConfig
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.kernels import describe

__all__ = ["Shape", "Steps", "measure_steps", "run"]

_TARGETS = {16_384: "ratio >= 4", 65_536: "ratio >= 8", 131_072: "ratio >= 8"}
_TAGS = {16_384: "16k", 65_536: "64k", 131_072: "128k"}
_CROSSOVER = (512, 1024, 2048, 4096, 8192)
_END_TO_END = 32_768


@dataclass(frozen=True)
class Shape:
    """Shape of the attention that is timed; by default that of Llama-3.1-8B.

    Args:
        heads: Query heads.
        kv_heads: Key-value heads.
        head_dim: Size of a key.
        batch: Batch rows.
    """

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    batch: int = 1


@dataclass(frozen=True)
class Steps:
    """Timings of a decode step at one length, interleaved in one process.

    Args:
        length: Keys.
        timings: By name: ``lsh``, ``dense`` (own kernel), ``grouped``, and ``enable_gqa`` where asked for.
        fraction: Mean share of the keys that was sampled.
        touched: Bytes read as a share of all keys and values.
        index_bytes: Table bytes of a token and kv head.
        build_seconds: Seconds of hashing and sorting.
    """

    length: int
    timings: dict[str, Timing]
    fraction: float
    touched: float
    index_bytes: float
    build_seconds: float


def measure_steps(
    length: int,
    *,
    shape: Shape | None = None,
    config: LSHConfig | None = None,
    repeats: int = 9,
    enable_gqa: bool = False,
    seed: int = 0,
    threads: int | None = 1,
) -> Steps:
    """Time one decode step by sampling, by the own dense kernel and by PyTorch, on random bfloat16 keys.

    Args:
        length: Keys.
        shape: Heads, size and batch.
        config: Settings of the sampling.
        repeats: Repetitions.
        enable_gqa: Whether to time ``enable_gqa=True`` as well, which takes long.
        seed: Seed of keys and queries.
        threads: Threads, or ``None`` for those torch has.

    Returns:
        The timings.
    """
    form, settings = shape or Shape(), config or LSHConfig()
    generator = torch_generator(seed)
    index = LSHIndex(settings, form.kv_heads, form.head_dim, form.batch, torch.bfloat16)
    size = (form.batch, form.kv_heads, length, form.head_dim)
    keys, values = (torch.randn(size, generator=generator).bfloat16() for _ in range(2))
    with num_threads(threads or torch.get_num_threads()):
        began = time.perf_counter()
        index.build(keys, values)
        build_seconds = time.perf_counter() - began
    del keys, values
    queries = [torch.randn(form.batch, form.heads, form.head_dim, generator=generator).bfloat16() for _ in range(64)]
    turn = itertools.count()

    def query() -> Tensor:
        return queries[next(turn) % len(queries)]

    # The peers read the cache of the index, whose memory has large pages: the layout that suits them best.
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = (form.batch, form.kv_heads, form.heads // form.kv_heads, form.head_dim)
    calls: dict[str, Callable[[], Any]] = {
        "lsh": lambda: index.attend_unchecked(query()),
        "dense": lambda: dense_decode_attention(query(), index.keys, index.values),
        "grouped": lambda: attention(query().view(grouped), index.keys, index.values),
    }
    if enable_gqa:
        calls["enable_gqa"] = lambda: attention(query()[:, :, None], index.keys, index.values, enable_gqa=True)
    timings = compare(calls, repeats=repeats, threads=threads)
    stats = [index.attend_unchecked(one)[2] for one in queries[:8]]
    dense_bytes = 2 * index.keys.numel() * index.keys.element_size()
    return Steps(
        length,
        timings,
        float(torch.stack([s.fraction.mean() for s in stats]).mean()),
        sum(s.bytes_touched for s in stats) / len(stats) / dense_bytes,
        index.memory_bytes()["index"] / (form.batch * form.kv_heads * length),
        build_seconds,
    )


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the benchmarks on the CPU.

    Args:
        quick: Lengths up to 16,384, fewer repetitions, and no model.
        seed: Seed of keys and queries.
        device: Checked, but the benchmarks time the CPU kernel.
        progress: Called with what is being measured and the share done.

    Returns:
        The report. Rows that are left out are named with the reason.
    """
    resolve_device(device)
    report = Report(
        "magicpig", "bench", seed=seed, title="magicpig: benchmarks", packages=("transformers", "numba", "octavo-core")
    )
    active = describe()
    report.add(
        "kernel",
        "compiled kernel in use",
        active.active == "native",
        note=f"{active.active} {active.instruction_set or ''}; threads: {active.threads}",
    )
    repeats = 5 if quick else 11
    stages: list[Callable[[], None]] = [
        lambda: _decode(report, (16_384,) if quick else tuple(_TARGETS), seed, repeats),
        lambda: _crossover(report, seed, repeats),
        lambda: _batch(report, seed, repeats, 4096 if quick else 16_384),
        lambda: _build(report, seed, 16_384 if quick else 65_536),
        lambda: _end_to_end(report, seed, None if quick else _END_TO_END),
    ]
    for done, stage in enumerate(stages):
        progress("benchmarks", done / len(stages))
        stage()
    progress("benchmarks", 1.0)
    return report.finish()


def _decode(report: Report, lengths: tuple[int, ...], seed: int, repeats: int) -> None:
    seconds = []
    for length in lengths:
        steps = measure_steps(length, repeats=repeats, seed=seed, enable_gqa=length == 16_384)
        ours, tag = steps.timings["lsh"], _TAGS[length]
        label = f"one decode step by sampling, 32/8 heads of 128, {length:,} keys"
        note = f"bfloat16, 1 thread, {steps.fraction:.1%} of the keys; with query hashing; another query every call"
        report.append(
            speed_row(
                f"decode_vs_grouped_sdpa_{tag}", label, ours, steps.timings["grouped"],
                f"grouped SDPA, torch {torch.__version__}", target=_TARGETS[length], note=note,
            )
        )  # fmt: skip
        report.append(
            speed_row(
                f"decode_vs_own_dense_{tag}", label, ours, steps.timings["dense"], "own dense kernel",
                target="ratio >= 3" if length == 65_536 else None, note=note,
            )
        )  # fmt: skip
        if "enable_gqa" in steps.timings:
            report.append(
                speed_row(
                    f"decode_vs_enable_gqa_{tag}", label, ours, steps.timings["enable_gqa"],
                    f"SDPA enable_gqa=True, torch {torch.__version__}",
                    note="what stock transformers calls; a weak peer",
                )
            )  # fmt: skip
        if length == 65_536:
            report.add(
                "bytes_touched_share_64k",
                "bytes read by a step as a share of all keys and values",
                steps.touched,
                target="value <= 0.15",
                note=f"{steps.fraction:.2%} of the keys sampled; random accesses count as cache lines; with planes",
            )
            report.add(
                "index_bytes_per_token_head",
                "bytes of the tables for a token and kv head, 65,536 keys",
                steps.index_bytes,
                "B",
                target="value <= 310",
                note="16-bit ids and offsets, float32 norms; the key and the value take 512",
            )
        seconds.append(ours.median)
    if len(lengths) > 1:
        report.add(
            "decode_scaling_exponent",
            f"growth of a step's time with the keys, {lengths[0]:,} to {lengths[-1]:,}",
            fit_power_law(lengths, seconds).exponent,
            note="1 is linear",
        )


def _crossover(report: Report, seed: int, repeats: int) -> None:
    faster = {}
    for length in _CROSSOVER:
        timings = measure_steps(length, repeats=repeats, seed=seed).timings
        faster[length] = timings["dense"].median / timings["lsh"].median
    # The shortest length from which on sampling stays ahead.
    crossover = None
    for length in reversed(_CROSSOVER):
        if faster[length] < 1:
            break
        crossover = length
    listed = ", ".join(f"{length:,}: {ratio:.2f}x" for length, ratio in faster.items())
    report.add(
        "crossover_tokens",
        "keys from which sampling is faster than the own dense kernel",
        crossover,
        "keys",
        target="value <= 8192",
        note=f"{listed}; below min_context (4,096) the dense kernel runs",
    )


def _batch(report: Report, seed: int, repeats: int, length: int) -> None:
    one = measure_steps(length, repeats=repeats, seed=seed).timings["lsh"]
    eight = measure_steps(length, shape=Shape(batch=8), repeats=repeats, seed=seed).timings["lsh"]
    report.add(
        "batch_8_over_8_singles",
        f"a step of batch 8 over eight steps of batch 1, {length:,} keys",
        eight.median / (8 * one.median),
        "x",
        target="value <= 1.15",
        note=f"{eight.median * 1e3:.3g} ms against 8 x {one.median * 1e3:.3g} ms",
    )


def _build(report: Report, seed: int, length: int) -> None:
    threads = min(2, available_cores())
    generator = torch_generator(seed)
    keys, values = (torch.randn(1, 8, length, 128, generator=generator).bfloat16() for _ in range(2))
    index = LSHIndex(LSHConfig(), 8, 128, 1, torch.bfloat16)
    index.build(keys[:, :, :512], values[:, :, :512])
    samples, cpu = [], time.process_time()
    with num_threads(threads):
        for _ in range(3):
            began = time.perf_counter()
            index.build(keys, values)
            samples.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / len(samples)
    timing = Timing(tuple(samples))
    report.add(
        f"build_{length // 1024}k_seconds",
        f"hashing and tables of {length:,} keys, 8 kv heads of 128, one layer",
        timing.median,
        "s",
        target="value <= 5" if length == 65_536 else None,
        spread=timing.spread,
        note=f"{threads} threads, K=10 L=150, bfloat16 keys; {cpu:.3g} s of processor time",
    )


def _end_to_end(report: Report, seed: int, length: int | None) -> None:
    names = {"stock": "end_to_end_vs_stock_32k", "dense": "end_to_end_vs_own_dense_32k"}
    reason = None if length else "the quick version leaves it out"
    if importlib.util.find_spec("transformers") is None:
        reason = "transformers is not installed: pip install 'octavo-magicpig[transformers]'"
    if reason is not None or length is None:
        for name in names.values():
            report.add(name, "whole decoding steps of a model", None, note=f"skipped: {reason}")
        return
    timings = _model_steps(length, seed)
    tokens = {name: Timing(tuple(1 / sample for sample in timing.samples)) for name, timing in timings.items()}
    peers = {"stock": "DynamicCache + sdpa", "dense": "own dense kernel"}
    for peer, target in (("stock", "ratio >= 3"), ("dense", "ratio >= 2")):
        report.add(
            names[peer],
            "whole decoding steps, Llama with 2 layers of 32/8 heads of 128, 32,768 tokens in the cache",
            tokens["lsh"].median,
            "tokens/s",
            peer=peers[peer] + (f", transformers {_version('transformers')}" if peer == "stock" else ""),
            peer_value=tokens[peer].median,
            better="higher",
            target=target,
            spread=tokens["lsh"].spread,
            note="bfloat16, 1 thread, random weights and cache, both layers sampled",
        )


def _model_steps(length: int, seed: int) -> dict[str, Timing]:
    """Time forward passes of one token on caches that are filled with random keys."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from octavo_magicpig._cache import LSHCache
    from octavo_magicpig._integration import use_magicpig

    generator = torch_generator(seed)
    shape = LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=2 * length,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(shape).to(torch.bfloat16).eval()
    settings = LSHConfig(dense_layers=())
    caches = {
        "lsh": LSHCache(shape, settings),
        "dense": LSHCache(shape, LSHConfig(dense_layers=(0, 1))),
        "stock": DynamicCache(config=shape),
    }
    for layer in range(2):
        keys, values = (torch.randn(1, 8, length, 128, generator=generator).bfloat16() for _ in range(2))
        for cache in caches.values():
            cache.update(keys, values, layer)
    token = torch.zeros(1, 1, dtype=torch.int64)

    def step(name: str) -> None:
        model.set_attn_implementation("sdpa") if name == "stock" else use_magicpig(model)
        with torch.inference_mode():
            model(token, cache=caches[name], use_cache=True, position_ids=torch.full((1, 1), length))

    return compare({name: lambda name=name: step(name) for name in caches}, repeats=7, warmup=2)


def _version(distribution: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(distribution)
