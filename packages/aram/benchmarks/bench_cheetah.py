"""HalfCheetah-v5 under HC+O20 (sum of |w_i a_i| at most 20): valid rate and projections, ARAM against SPre and SPre+.

    python benchmarks/bench_cheetah.py [--quick] [--seeds 3] [--steps 30000] [--out DIR]

The set depends on the state: it shrinks as the joints move faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from octavo_aram.config import ARAMConfig
from octavo_aram.runs import train_all
from octavo_aram.training import RunSettings
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report

METHODS = ("aram", "spre", "spre+")


def run(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    progress: ProgressCallback = no_progress,
    seeds: int = 3,
    steps: int = 30_000,
) -> Report:
    """Run the comparison.

    Args:
        quick: One seed and 2,000 steps.
        seed: First of the seeds.
        device: Device to train on.
        progress: Called with the share done.
        seeds: Number of seeds.
        steps: Environment steps of a run.

    Returns:
        The report.
    """
    numbers = range(seed, seed + (1 if quick else seeds))
    steps = 2000 if quick else steps
    jobs = [
        RunSettings(
            "HalfCheetah-v5",
            "HC+O20",
            method,
            steps,
            ARAMConfig(seed=s, device=device, hidden=(128, 128), start_steps=1000),
            evaluate_every=max(1, steps // 3),
            episodes=3,
        )
        for method in METHODS
        for s in numbers
    ]
    outcomes = iter(train_all(jobs, progress))
    report = Report("aram", "bench", seed=seed, title="aram: HalfCheetah", packages=("gymnasium", "mujoco"))
    projections = {}
    violations = 0
    for method in METHODS:
        runs = [next(outcomes) for _ in numbers]
        valid, returns, solves = (
            np.array([entry[name] for entry in runs], float) for name in ("valid_rate", "return", "projections")
        )
        projections[method] = solves.mean()
        violations += sum(int(entry["violations"]) for entry in runs)
        report.add(
            f"{method.replace('+', '_plus')}_valid_rate",
            f"{method}: mean valid rate",
            valid.mean(),
            spread=(valid.min(), valid.max()),
            note=f"return {returns.mean():.0f} ({returns.min():.0f} to {returns.max():.0f}); {solves.mean():,.0f} "
            f"projections; {len(runs)} seeds, {steps:,} steps",
        )
    share = projections["aram"] / max(1.0, projections["spre"])
    report.add("qp_share_vs_spre", "ARAM's projections over SPre's", share, target="value <= 0.05")
    report.add("executed_violations", "executed actions outside the set, all runs", violations, target="value == 0")
    return report.finish()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with console_progress() as progress:
        report = run(quick=options.quick, seeds=options.seeds, steps=options.steps, progress=progress)
    if options.out is not None:
        report.save(options.out)
    from rich.console import Console

    Console(width=160).print(report.table())


if __name__ == "__main__":
    main()
