"""Counting cycles through a node on random 4-regular graphs, where message passing alone sees nothing.

Run as a script for the table; ``--quick`` trains less. R^2 per cycle length on test graphs.
"""

from __future__ import annotations

import sys

import torch
from octavo_core.device import resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report
from octavo_pearl_pe import PEARL, PEARLGIN, NoPE, TrainingConfig, train
from octavo_pearl_pe.datasets import cycle_count
from octavo_pearl_pe.training import collate
from torch import nn

__all__ = ["run"]

LENGTHS = (3, 4, 5)
TARGETS = {
    ("none", 3): "value < 0.05",
    ("none", 4): "value < 0.05",
    ("none", 5): "value < 0.05",
    ("b", 3): "value >= 0.95",
    ("b", 4): "value >= 0.95",
    ("b", 5): "value >= 0.85",
    ("r", 3): "value >= 0.80",
}


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train and test each encoding.

    Args:
        quick: 5 epochs instead of 60.
        seed: Seed of the graphs, weights and training.
        device: Device.
        progress: Called with the encoding and the share done.

    Returns:
        The report.
    """
    target = resolve_device(device)
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: cycles through a node")
    graphs = cycle_count(500, lengths=LENGTHS, seed=seed)
    makers = {
        "none": lambda: NoPE(1),
        "b": lambda: PEARL(24, variant="basis", pooling="mean", filter_taps=4, layers=3, hidden=24),
        "r": lambda: PEARL(24, num_samples=64, eval_samples=256, filter_taps=4, layers=3, hidden=24, seed=seed),
    }
    for name, make in makers.items():
        torch.manual_seed(seed)
        model: nn.Module = PEARLGIN(make(), len(LENGTHS), hidden=48, layers=2, readout="node")
        config = TrainingConfig(epochs=5 if quick else 60, batch_size=20, lr=5e-3, loss="mse", seed=seed)
        train(model, graphs[:300], config, device=target, progress=lambda _, done, n=name: progress(n, done))
        batch = collate(graphs[400:], target)
        with torch.no_grad():
            output, y = model.eval()(batch), batch.y
        score = 1.0 - ((output - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
        for length, value in zip(LENGTHS, score.tolist(), strict=True):
            report.add(
                f"cycles_{name}_{length}",
                f"R^2 of the number of {length}-cycles through a node, encoding {name}",
                value,
                target=TARGETS.get((name, length)),
                note="300 graphs to train on, 100 to test; random inputs: M = 64, 256 in the test"
                if name == "r"
                else "",
            )
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())
