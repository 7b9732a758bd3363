"""Counting cycles through a node on random 4-regular graphs, where message passing alone sees nothing.

Run as a script for the table; ``--quick`` trains one seed for a few epochs. R^2 per cycle length on test graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from octavo_core.device import num_threads, resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report
from octavo_pearl_pe import PEARL, PEARLGIN, NoPE, TrainingConfig, train
from octavo_pearl_pe.datasets import cycle_count
from octavo_pearl_pe.experiment import FILTER_RECIPE
from octavo_pearl_pe.training import collate
from torch import nn
from torch_geometric.data import Data

__all__ = ["cycle_scores", "run"]

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
_SAMPLES: dict[str, Any] = {"num_samples": 64, "eval_samples": 256}
ENCODERS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda seed: NoPE(16),
    "b": lambda seed: PEARL(16, variant="basis", **FILTER_RECIPE),
    "r": lambda seed: PEARL(16, seed=seed, **_SAMPLES, **FILTER_RECIPE),
    "r_orthogonal": lambda seed: PEARL(16, seed=seed, noise="orthogonal", **_SAMPLES, **FILTER_RECIPE),
}
LABELS = {"none": "no encoding", "b": "B-PEARL", "r": "R-PEARL", "r_orthogonal": "R-PEARL, orthogonal inputs"}


def cycle_scores(
    name: str, graphs: list[Data], *, seed: int = 0, epochs: int = 40, device: str | torch.device = "cpu"
) -> list[float]:
    """Train an encoding within a small GINE model on 300 graphs and test it on the last 100.

    Args:
        name: A name in ``ENCODERS``.
        graphs: 500 graphs of ``cycle_count``.
        seed: Seed of the weights, inputs and training.
        epochs: Epochs of 15 steps.
        device: Device.

    Returns:
        R^2 for each cycle length.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = PEARLGIN(ENCODERS[name](seed), len(LENGTHS), hidden=48, layers=2, readout="node")
    train(
        model, graphs[:300], TrainingConfig(epochs=epochs, batch_size=20, lr=5e-3, loss="mse", seed=seed), device=device
    )
    batch = collate(graphs[400:], device)
    with torch.no_grad():
        output, y = model.eval()(batch).double(), batch.y.double()
    return (1.0 - ((output - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).tolist()


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train and test each encoding on three sets of graphs.

    Args:
        quick: One seed and 5 epochs instead of 40.
        seed: First seed, of the graphs, weights and training.
        device: Device.
        progress: Called with the encoding and the share done.

    Returns:
        The report.
    """
    target = resolve_device(device)
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: cycles through a node")
    seeds = range(seed, seed + (1 if quick else 3))
    sets = {number: cycle_count(500, lengths=LENGTHS, seed=number) for number in seeds}
    # Small products: one thread is fastest.
    with num_threads(1):
        for index, name in enumerate(ENCODERS):
            progress(name, index / len(ENCODERS))
            epochs = 5 if quick else 40
            scores = np.array(
                [cycle_scores(name, graphs, seed=s, epochs=epochs, device=target) for s, graphs in sets.items()]
            )
            for length, values in zip(LENGTHS, scores.T, strict=True):
                report.add(
                    f"cycles_{name}_{length}",
                    f"R^2 of the number of {length}-cycles through a node: {LABELS[name]}",
                    float(values.mean()),
                    target=TARGETS.get((name, length)),
                    spread=(float(values.min()), float(values.max())),
                    note=f"{len(values)} seeds, 300 graphs to train on, 100 to test"
                    + ("; M = 64, 256 in the test" if name.startswith("r") else ""),
                )
    progress("cycles", 1.0)
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())
