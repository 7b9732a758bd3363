"""The embedded example: word counting, a needle and prose on a real model, and the time of a step.

The aggregation problem needs nothing. The needle and the next-token loss run SmolLM2-135M-Instruct when the package
that holds it and the extra ``transformers`` are installed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from octavo_core import assets
from octavo_core.bench import compare
from octavo_core.device import available_cores, num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_magicpig.aggregation import aggregation_problem
from octavo_magicpig.attention import dense_decode_attention
from octavo_magicpig.baselines import topk_attention
from octavo_magicpig.config import LSHConfig
from octavo_magicpig.estimators import lsh_attention
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.kernels import describe

__all__ = ["run"]

_AGGREGATION_SEEDS = 5
_NEEDLE_PROMPTS = 2
_NEEDLE_TOKENS = 1500
_TEXTS = 2
_PREFIX_TOKENS = 2000
_SCORED_TOKENS = 64
_METHODS = ("dense", "lsh", "window", "uncentered")
# What the sampled method must do and what the ablations must fail to do, of two prompts and per token.
_NEEDLE_TARGETS = {"dense": "value >= 2", "lsh": "value >= 2", "window": "value <= 0", "uncentered": "value <= 0"}
_LOSS_TARGETS = {"lsh": "value <= 0.1", "window": "value >= 0.25", "uncentered": None}


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the example. Everything is computed on the CPU, which is what the method is for.

    Args:
        quick: Two seeds of the aggregation problem and two lengths of the timing, without the model.
        seed: First seed.
        device: Checked, but the example runs on the CPU, which the method is for.
        progress: Called with what is being done and the share done.

    Returns:
        The report.
    """
    resolve_device(device)
    report = Report("magicpig", "demo", seed=seed, title="magicpig: sampling attention instead of reading it all")
    with num_threads(1):
        _aggregation(report, range(seed, seed + (2 if quick else _AGGREGATION_SEEDS)), progress)
        _timing(report, (4096, 16_384) if quick else (4096, 16_384, 65_536), seed, progress)
        reason = "the quick tour leaves the model out" if quick else _missing()
        if reason is None:
            _language_model(report, seed, progress)
        else:
            for name in [*(f"needle_hits_{method}" for method in _METHODS), *(f"extra_nll_{m}" for m in _LOSS_TARGETS)]:
                report.add(name, name.replace("_", " "), None, note=f"skipped: {reason}")
    return report.finish()


def _aggregation(report: Report, seeds: range, progress: ProgressCallback) -> None:
    errors: dict[str, list[float]] = {"lsh": [], "topk": []}
    shares, fractions = [], []
    for done, number in enumerate(seeds):
        progress("aggregation", done / len(seeds))
        problem = aggregation_problem(seed=number)
        exact_tokens: dict[str, Any] = {"sink_tokens": 0, "window_tokens": 0}
        sampled = lsh_attention(
            problem.query, problem.keys, problem.values, config=LSHConfig(seed=number, **exact_tokens)
        )
        keys = int(sampled.num_keys.item())
        top = topk_attention(problem.query, problem.keys, problem.values, budget=keys, **exact_tokens)
        errors["lsh"].append(abs(float(sampled.out[..., 0]) - problem.share))
        errors["topk"].append(abs(float(top.out[..., 0]) - problem.share))
        shares.append(problem.share)
        fractions.append(keys / problem.keys.shape[2])
    progress("aggregation", 1.0)
    note = (
        f"share of the small class, exact {np.mean(shares):.3f}; 16,384 keys, {np.mean(fractions):.1%} read by both; "
        f"{len(seeds)} seeds, largest error"
    )
    for name, label, target in (
        ("lsh", "LSH sampling", "value <= 0.06"),
        ("topk", "TopK, as many keys", "value >= 0.6"),
    ):
        report.add(
            f"aggregation_error_{name}",
            f"aggregation problem: error of {label}",
            max(errors[name]) if name == "lsh" else min(errors[name]),
            target=target,
            spread=(min(errors[name]), max(errors[name])),
            note=note if name == "lsh" else note.replace("largest", "smallest"),
        )


def _timing(report: Report, lengths: tuple[int, ...], seed: int, progress: ProgressCallback) -> None:
    """One decode step at the head shape of Llama-3.1-8B, a different query for every call."""
    generator = torch.Generator().manual_seed(seed)
    batch, kv_heads, group, dim = 1, 8, 4, 128
    queries = [torch.randn(batch, kv_heads * group, dim, generator=generator).bfloat16() for _ in range(64)]
    for done, length in enumerate(lengths):
        progress("timing", done / len(lengths))
        keys, values = (torch.randn(batch, kv_heads, length, dim, generator=generator).bfloat16() for _ in range(2))
        index = LSHIndex(LSHConfig(), kv_heads, dim, batch, torch.bfloat16).build(keys, values)
        turn = iter(range(10**9))

        def query(turn: Any = turn) -> torch.Tensor:
            return queries[next(turn) % len(queries)]

        timings = compare(
            {
                "ours": lambda query=query, index=index: index.attend_unchecked(query()),
                "peer": lambda query=query, index=index: torch.nn.functional.scaled_dot_product_attention(
                    query().view(batch, kv_heads, group, dim), index.keys, index.values
                ),
                "dense": lambda query=query, index=index: dense_decode_attention(query(), index.keys, index.values),
            },
            repeats=7,
            threads=None,
        )
        report.add(
            f"step_{length}",
            f"one decode step, 32/8 heads of 128, {length:,} keys",
            timings["ours"].median * 1e3,
            "ms",
            peer=f"grouped SDPA, torch {torch.__version__}",
            peer_value=timings["peer"].median * 1e3,
            note=f"{describe().active} kernel; own dense kernel {timings['dense'].median * 1e3:.3g} ms; random keys",
        )
    progress("timing", 1.0)


def _missing() -> str | None:
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'octavo-magicpig[transformers]'"
    if not assets.is_installed("smollm2"):
        return f"the model is not installed: {assets.ASSETS['smollm2'].install}"
    return None


def _language_model(report: Report, seed: int, progress: ProgressCallback) -> None:
    jobs = [(kind, number, seed) for number in range(max(_TEXTS, _NEEDLE_PROMPTS)) for kind in ("niah", "nll")]
    outcomes = []
    progress("language model", 0.0)
    # One single-threaded process a core, spawned because a fork of a process whose OpenMP threads run can hang. A Pool,
    # whose workers end when this process is killed.
    with multiprocessing.get_context("spawn").Pool(min(2, available_cores())) as pool:
        for done, found in enumerate(pool.imap_unordered(_model_job, jobs), 1):
            progress("language model", done / len(jobs))
            outcomes += found
    for name in _METHODS:
        hits = sum(o.value for o in outcomes if o.method == name and o.task == "niah")
        report.add(
            f"needle_hits_{name}",
            f"needles found, {_LABELS[name]}",
            hits,
            f"of {_NEEDLE_PROMPTS}",
            target=_NEEDLE_TARGETS[name],
            note=f"SmolLM2-135M-Instruct, {_NEEDLE_TOKENS:,} tokens; the question is decoded by the method too",
        )
    losses = {
        name: np.array(
            [o.value for o in sorted(outcomes, key=lambda o: o.index) if o.method == name and o.task == "nll"]
        )
        for name in _METHODS
    }
    extra = {name: losses[name] - losses["dense"] for name in _LOSS_TARGETS}
    for name, target in _LOSS_TARGETS.items():
        report.add(
            f"extra_nll_{name}",
            f"loss of a token beyond exact attention, {_LABELS[name]}",
            float(extra[name].mean()),
            "nat",
            target=target or f"value >= {3 * max(float(extra['lsh'].mean()), 0.0):.4f}",
            spread=(float(extra[name].min()), float(extra[name].max())),
            note=f"exact {losses['dense'].mean():.3f} nat; prose, {_PREFIX_TOKENS:,} tokens before, {_TEXTS} texts of "
            f"{_SCORED_TOKENS} tokens" + ("; target: three times the loss of LSH" if target is None else ""),
        )


def _model_job(job: tuple[str, int, int]) -> list[Any]:
    """One needle prompt or one piece of text under all methods, in a process of its own."""
    from octavo_magicpig.evaluation._runner import load_model, run_tasks, run_text_losses
    from octavo_magicpig.evaluation._study import make_method
    from octavo_magicpig.evaluation.tasks import english_text, make_examples

    kind, number, seed = job
    torch.set_num_threads(1)
    model, tokenizer = load_model("smollm2")
    config = replace(LSHConfig(seed=seed), min_context=0)
    methods = [make_method(name, config, seed=seed) for name in _METHODS]
    if kind == "niah":

        def count(text: str) -> int:
            return len(tokenizer(text).input_ids)

        examples = make_examples("niah", number + 1, _NEEDLE_TOKENS, count, seed=seed)[number:]
        return run_tasks(model, tokenizer, examples, methods, protocols=("B",), new_tokens=10)
    # More than four characters a token: pieces of the text far apart, without tokenising all of it.
    text = english_text()
    begin = len(text) * number // _TEXTS
    tokens = tokenizer(text[begin : begin + 8 * (_PREFIX_TOKENS + _SCORED_TOKENS)], return_tensors="pt").input_ids
    found = run_text_losses(model, tokens, methods, texts=1, prefix_tokens=_PREFIX_TOKENS, scored_tokens=_SCORED_TOKENS)
    return [replace(outcome, index=number) for outcome in found]


_LABELS = {
    "dense": "exact attention",
    "lsh": "LSH sampling",
    "window": "first and last tokens only",
    "uncentered": "LSH without centring",
}
