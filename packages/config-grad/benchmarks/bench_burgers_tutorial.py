"""Burgers' equation at the scale of the official tutorial: three losses, 5,000 steps, Adam, ConFIG and M-ConFIG.

    python benchmarks/bench_burgers_tutorial.py [--quick] [--seeds 3] [--out DIR]

The tutorial reports one run of each method against its own reference file, which is wrong by a mean square of 1.6e-4;
here errors are taken against the exact Cole-Hopf solution. Its methods make the same number of steps, so M-ConFIG has a
third of the others' backward passes. About 12 minutes on two cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from octavo_config_grad import pinn
from octavo_config_grad.pinn.problem import PointCounts
from octavo_core.device import available_cores, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

# Learning rate, and the best mean square error that the tutorial prints.
METHODS = {"adam": (1e-4, 0.0310), "config": (1e-4, 0.00638), "m-config": (5e-4, 0.00186)}
STEPS = 5000
WIDTHS = (50,) * 5
POINTS = PointCounts(interior=2000, boundary=50, initial=50)


class Job(NamedTuple):
    """One training run."""

    method: str
    seed: int
    steps: int
    device: str


class Outcome(NamedTuple):
    """What the report needs of a run."""

    best_mse: float
    final_mse: float
    cpu_seconds: float


def train(job: Job) -> tuple[Job, Outcome]:
    """Train once, on one thread.

    Args:
        job: The run.

    Returns:
        The run and its outcome.
    """
    torch.set_num_threads(1)
    lr, _ = METHODS[job.method]
    passes = 1 if job.method.startswith("m-") else 3
    config = pinn.TrainingConfig(
        steps=job.steps,
        seed=job.seed,
        points=POINTS,
        hidden=WIDTHS,
        lr=lr,
        lr_end=lr,
        evaluate_every=100 * passes,
        device=job.device,
    )
    result = pinn.train(pinn.Burgers(num_losses=3), job.method, config)
    if result.best is None or result.final is None:
        raise AssertionError("Burgers has an exact reference")
    return job, Outcome(result.best.mse, result.final.mse, result.cpu_seconds)


def run(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "auto",
    progress: ProgressCallback = no_progress,
    seeds: int = 3,
) -> Report:
    """Train every method on every seed.

    Args:
        quick: 500 steps and one seed: shows that everything runs, nothing else.
        seed: First of the seeds.
        device: Device to train on.
        progress: Called with the share done.
        seeds: Number of seeds.

    Returns:
        The report: each method's best error, next to the tutorial's.
    """
    target = str(resolve_device(device))
    numbers = range(seed, seed + (1 if quick else seeds))
    steps = 500 if quick else STEPS
    jobs = [Job(method, number, steps, target) for method in METHODS for number in numbers]
    found: dict[Job, Outcome] = {}
    # As many processes as cores; an accelerator takes one run after another.
    workers = min(len(jobs), available_cores()) if target == "cpu" else 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for job, outcome in pool.imap_unordered(train, jobs):
            found[job] = outcome
            progress("training", len(found) / len(jobs))

    report = Report("config-grad", "bench", seed=seed, title="config-grad: Burgers at the scale of the tutorial")
    best = {
        method: np.array([found[Job(method, number, steps, target)].best_mse for number in numbers])
        for method in METHODS
    }
    for method, (lr, tutorial) in METHODS.items():
        runs = [found[Job(method, number, steps, target)] for number in numbers]
        report.add(
            f"{method.replace('-', '')}_best_mse",
            f"{pinn.METHODS[method]}: best mean square error against the exact solution",
            float(np.exp(np.log(best[method]).mean())),
            peer="official tutorial, against its own reference, one seed",
            peer_value=tutorial,
            spread=(float(best[method].min()), float(best[method].max())),
            note=f"geometric mean and range of {len(runs)} seeds, {steps} steps, learning rate {lr:g}; last errors "
            f"{', '.join(f'{outcome.final_mse:.2g}' for outcome in runs)}; "
            f"{np.mean([outcome.cpu_seconds for outcome in runs]):.0f} CPU s a run",
        )
    for method in ("config", "m-config"):
        ratios = best[method] / best["adam"]
        report.add(
            f"{method.replace('-', '')}_vs_adam",
            f"{pinn.METHODS[method]}: best error as a share of Adam's, equal steps",
            float(np.exp(np.log(ratios).mean())),
            spread=(float(ratios.min()), float(ratios.max())),
            note=f"geometric mean and range; the tutorial's single runs give {METHODS[method][1] / 0.0310:.2f}",
        )
    return report.finish()


if __name__ == "__main__":
    from octavo_core.progress import console_progress
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with console_progress(quiet=False) as shown:
        report = run(quick=arguments.quick, seeds=arguments.seeds, progress=shown)
    Console().print(report.table())
    if arguments.out is not None:
        report.save(arguments.out)
