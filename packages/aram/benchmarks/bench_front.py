"""The preference front: one multi-objective policy at three preferences, on Reacher-v5 under Re+L2.

python benchmarks/bench_front.py [--quick] [--seeds 3] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
from octavo_aram.config import ARAMConfig
from octavo_aram.runs import train_all
from octavo_aram.training import RunSettings
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report


def run(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    progress: ProgressCallback = no_progress,
    seeds: int = 3,
) -> Report:
    """Train with random preferences and evaluate at (0.9, 0.1), (0.5, 0.5) and (0.1, 0.9).

    Args:
        quick: One seed and 1,500 steps.
        seed: First of the seeds.
        device: Device to train on.
        progress: Called with the share done.
        seeds: Number of seeds.

    Returns:
        The report.
    """
    numbers = range(seed, seed + (1 if quick else seeds))
    steps = 1500 if quick else 5000
    jobs = [
        RunSettings(
            "Reacher-v5",
            "Re+L2",
            "aram",
            steps,
            ARAMConfig(seed=s, device=device, preference="dirichlet", num_preferences=4),
            evaluate_every=steps,
            episodes=20,
        )
        for s in numbers
    ]
    outcomes = train_all(jobs, progress)
    entries = [outcome["history"][-1]["by_preference"] for outcome in outcomes]
    report = Report("aram", "bench", seed=seed, title="aram: preferences", packages=("gymnasium", "mujoco"))
    points, rates = [], []
    for index, entry in enumerate(entries[0]):
        weights = tuple(entry["preference"])
        valid = np.array([found[index]["valid_rate"] for found in entries])
        returns = np.array([found[index]["mean_return"] for found in entries])
        points.append((float(valid.mean()), float(returns.mean()), str(weights)))
        rates.append(valid.mean())
        report.add(
            f"valid_rate_{round(10 * weights[0])}{round(10 * weights[1])}",
            f"valid rate at preference {weights}",
            valid.mean(),
            spread=(valid.min(), valid.max()),
            note=f"return {returns.mean():.2f}; {len(entries)} seeds, {steps:,} steps",
        )
    report.add(
        "front_order",
        "valid rate at (0.1, 0.9) minus that at (0.9, 0.1)",
        rates[-1] - rates[0],
        target="value >= 0",
    )
    if importlib.util.find_spec("matplotlib") is not None:
        from octavo_aram.plots import plot_fronts

        report.attach("front.png", plot_fronts({"ARAM": points}))
    return report.finish()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with console_progress() as progress:
        report = run(quick=options.quick, seeds=options.seeds, progress=progress)
    if options.out is not None:
        report.save(options.out)
    from rich.console import Console

    Console(width=160).print(report.table())


if __name__ == "__main__":
    main()
