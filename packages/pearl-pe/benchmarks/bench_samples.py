"""Trained with M = 32, tested with M = 8 to 512: mean pooling does not mind, sum pooling breaks.

The task is five classes of circular skip-link graphs of 21 nodes. Run as a script for the table.
"""

from __future__ import annotations

import sys
import warnings

import torch
from octavo_core.device import resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report
from octavo_pearl_pe import PEARL, PEARLGIN, TrainingConfig, evaluate, train
from octavo_pearl_pe.datasets import csl

__all__ = ["run"]

SAMPLES = (8, 32, 64, 128, 256, 512)


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train once for each pooling, test for each M.

    Args:
        quick: Fewer epochs.
        seed: Seed.
        device: Device.
        progress: Called with the pooling and the share done.

    Returns:
        The report.
    """
    target = resolve_device(device)
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: other numbers of samples in the test")
    graphs = csl(n=21, skips=(2, 3, 4, 6, 8), copies=12, seed=seed)
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    for pooling in ("mean", "sum"):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="pooling='sum'")
            options = {"gnn": "filter", "filter_taps": 5, "layers": 2, "hidden": 16, "pooling": pooling}
            model = PEARLGIN(PEARL(16, num_samples=32, **options), 5, hidden=32, layers=1, inject="add", readout="mean")
        config = TrainingConfig(
            epochs=10 if quick else 120, batch_size=20, lr=1e-2, warmup=0.3, loss="cross_entropy", seed=seed
        )
        train(
            model,
            [graphs[i] for i in order[:40]],
            config,
            device=target,
            progress=lambda _, d, p=pooling: progress(p, d),
        )
        accuracy = {}
        for count in SAMPLES:
            object.__setattr__(model.encoder.config, "eval_samples", count)
            accuracy[count] = evaluate(model, [graphs[i] for i in order[40:]], "cross_entropy", device=target)
        from_64 = [accuracy[count] for count in SAMPLES if count >= 64]
        note = "accuracy at M = " + ", ".join(f"{count}: {100 * value:.0f} %" for count, value in accuracy.items())
        if pooling == "mean":
            label = "change of the test accuracy between M = 64 and M = 512, trained with M = 32, mean pooling"
            change, target_text = max(from_64) - min(from_64), "value < 3"
        else:
            label = "test accuracy lost from M = 32, as trained, to M = 64 and more, sum pooling"
            change, target_text = accuracy[32] - min(from_64), None
        report.add(f"samples_change_{pooling}", label, 100.0 * change, "%", target=target_text, note=note)
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())
