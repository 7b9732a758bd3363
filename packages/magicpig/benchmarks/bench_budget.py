"""Error of every estimator against the share of keys it reads, on the attention of a real model.

python bench_budget.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from octavo_magicpig import (
    LSHConfig,
    exact_attention,
    h2o_attention,
    hybrid_attention,
    lsh_attention,
    quest_attention,
    snapkv_attention,
    topk_attention,
    uniform_sampling_attention,
)
from octavo_magicpig.evaluation._runner import load_model
from octavo_magicpig.evaluation._study import Captured, capture
from octavo_magicpig.evaluation.tasks import english_text
from octavo_magicpig.plots import plot_error_against_budget

__all__ = ["run"]

_TABLES = (75, 150, 220, 300)


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Measure the mean relative error of one decode step on prose.

    Args:
        quick: One layer instead of five.
        seed: Seed of planes and draws.
        device: Accepted for uniformity; computed on the CPU.
        progress: Called with what is being measured and the share done.

    Returns:
        The report, with a figure.
    """
    report = Report("magicpig", "bench", seed=seed, title=f"magicpig: error against budget ({device} not used)")
    model, tokenizer = load_model("smollm2")
    tokens = tokenizer(english_text()[:20_000], return_tensors="pt").input_ids[:, :3072]
    layers = [15] if quick else [3, 9, 15, 21, 27]
    records = capture(model, tokens, layers, observed=32)
    curves: dict[str, list[tuple[float, float]]] = {}
    for done, tables in enumerate(_TABLES):
        progress("budgets", done / len(_TABLES))
        measured = [_errors(record, replace(LSHConfig(seed=seed), num_tables=tables), seed) for record in records]
        for name in measured[0]:
            share = sum(found[name][0] for found in measured) / len(measured)
            error = sum(found[name][1] for found in measured) / len(measured)
            curves.setdefault(name, []).append((share, error))
            report.add(
                f"{name}_{tables}",
                f"relative error of {name}, {share:.2%} of the keys",
                error,
                note=f"L={tables}, K=10",
            )
    progress("budgets", 1.0)
    report.attach("budget.png", plot_error_against_budget(curves))
    return report.finish()


def _errors(record: Captured, config: LSHConfig, seed: int) -> dict[str, tuple[float, float]]:
    """Share of the middle read and mean relative error of each method, at the share that hashing selects."""
    query, observed = record.queries[:, :, -1:], record.queries[:, :, :-1]
    arguments = query, record.keys, record.values
    middle = record.keys.shape[2] - config.sink_tokens - config.window_tokens
    exact = exact_attention(*arguments).out
    lsh = lsh_attention(*arguments, config=config, layer=record.layer)
    share = float(lsh.num_keys.mean()) / middle
    generator = torch.Generator().manual_seed(seed)
    # What was observed came before the query: the last key is its own.
    earlier = {"observed": torch.cat([observed, query], 2), "budget": share}
    found = {
        "lsh": lsh,
        "unweighted": lsh_attention(*arguments, config=config, weighted=False, layer=record.layer),
        "uniform": uniform_sampling_attention(*arguments, budget=share, generator=generator),
        "topk": topk_attention(*arguments, budget=share),
        "quest": quest_attention(*arguments, budget=share),
        "snapkv": snapkv_attention(*arguments, **earlier),
        "h2o": h2o_attention(*arguments, **earlier),
        "hybrid": hybrid_attention(*arguments, budget=share, config=config, layer=record.layer),
    }
    return {
        name: (
            float(estimate.num_keys.mean()) / middle,
            float(((estimate.out - exact).norm(dim=-1) / exact.norm(dim=-1)).mean()),
        )
        for name, estimate in found.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    from octavo_core.options import deliver

    deliver(run(quick=arguments.quick), out=arguments.out, as_json=False, quiet=False)
