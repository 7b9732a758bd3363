"""Circular skip links, ten classes that 1-WL cannot tell apart: five folds on each of three seeds.

Run as a script for the table; ``--quick`` trains one fold of one seed. The demo runs the five folds of one seed.
"""

from __future__ import annotations

import sys

import numpy as np
from octavo_core.device import num_threads, resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report
from octavo_pearl_pe.demo import csl_accuracy

__all__ = ["run"]

TARGETS = {"nope": "value <= 15", "r": "value >= 95", "b": "value >= 99"}
LABELS = {"nope": "no encoding", "r": "R-PEARL", "b": "B-PEARL"}


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train and test each encoding on the five folds of three seeds.

    Args:
        quick: One fold of one seed.
        seed: First seed, of the graphs, folds, weights and training.
        device: Device.
        progress: Called with the encoding and the share done.

    Returns:
        The report: a row for each encoding and seed.
    """
    target = str(resolve_device(device))
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: circular skip links")
    seeds, folds = (range(seed, seed + 1), 1) if quick else (range(seed, seed + 3), 5)
    runs = [(name, number) for number in seeds for name in TARGETS]
    # Small products: one thread is fastest.
    with num_threads(1):
        for index, (name, number) in enumerate(runs):
            progress(f"{LABELS[name]}, seed {number}", index / len(runs))
            accuracy = [100.0 * csl_accuracy(name, fold, seed=number, device=target) for fold in range(folds)]
            report.add(
                f"csl_accuracy_{name}_seed{number}",
                f"test accuracy with {LABELS[name]}, seed {number}",
                float(np.mean(accuracy)),
                "%",
                better="higher",
                target=TARGETS[name],
                spread=(min(accuracy), max(accuracy)),
                note=f"folds: {', '.join(f'{value:.1f}' for value in accuracy)}",
            )
    progress("circular skip links", 1.0)
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())
