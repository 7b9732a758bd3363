"""Reacher-v5 under Re+L2, 5,000 steps: ARAM against every peer, and its ablations.

    python benchmarks/bench_reacher.py [--quick] [--seeds 5] [--part methods|ablations|peers] [--out DIR]

``methods`` compares ARAM with SPre, SPro and SPre+ (penalty 1, the benchmark's default, and 10, tuned). ``ablations``
changes one thing of ARAM at a time. ``peers`` runs the other baselines on one seed each. About 12 CPU seconds a run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from octavo_aram.config import ARAMConfig
from octavo_aram.runs import train_all
from octavo_aram.training import RunSettings
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "aram": ("aram", {}),
    "spre": ("spre", {}),
    "spro": ("spro", {}),
    "spre_plus_1": ("spre+", {"violation_weight": 1.0}),
    "spre_plus_10": ("spre+", {"violation_weight": 10.0}),
}
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "aram": ("aram", {}),
    "kappa_0": ("aram", {"penalty": 0.0}),
    "kappa_01": ("aram", {"penalty": 0.1}),
    "kappa_10": ("aram", {"penalty": 10.0}),
    "no_automdp": ("aram", {"use_automdp": False}),
    "no_arm": ("aram", {"use_arm": False}),
    "single_buffer": ("aram", {"dual_buffer": False}),
    "entropy_dimension": ("aram", {"target_entropy": "dimension"}),
    "no_action_scaling": ("aram", {"action_scaling": "none"}),
    "fixed_91": ("aram", {"preference": (0.9, 0.1)}),
    "fixed_19": ("aram", {"preference": (0.1, 0.9)}),
    "morl": ("aram", {"preference": "dirichlet", "num_preferences": 4}),
    "snapshots": ("aram", {"num_snapshots": 4, "snapshot_start": 1000, "snapshot_every": 500}),
    "official_kappa": ("aram", {"penalty": 0.2, "preference": (0.9, 0.1), "target_entropy": "dimension"}),
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name in ("dpre+", "dpro+", "spro+", "alpha", "radial", "optlayer", "nfwpo", "lagrangian")
}
PARTS = {"methods": METHODS, "ablations": ABLATIONS, "peers": PEERS}


def run(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    progress: ProgressCallback = no_progress,
    seeds: int = 5,
    part: str = "methods",
) -> Report:
    """Run one part.

    Args:
        quick: One seed and 1,500 steps; the targets then say little.
        seed: First of the seeds.
        device: Device to train on.
        progress: Called with the share done.
        seeds: Number of seeds.
        part: A key of ``PARTS``.

    Returns:
        The report.
    """
    numbers = range(seed, seed + (1 if quick else seeds))
    steps = 1500 if quick else 5000
    variants = PARTS[part]
    jobs = [
        RunSettings(
            "Reacher-v5",
            "Re+L2",
            method,
            steps,
            ARAMConfig(seed=s, device=device).replace(**changes),
            episodes=10,
            final_episodes=20 if quick else 100,
        )
        for method, changes in variants.values()
        for s in numbers
    ]
    outcomes = iter(train_all(jobs, progress))
    found = {name: [next(outcomes) for _ in numbers] for name in variants}
    report = Report("aram", "bench", seed=seed, title=f"aram: Reacher, {part}", packages=("gymnasium", "mujoco"))
    for name, runs in found.items():
        valid, returns = figures(runs, "valid_rate"), figures(runs, "return")
        report.add(
            f"{name.replace('+', '_plus')}_valid_rate",
            f"{name}: lowest valid rate over {len(runs)} seeds",
            valid.min(),
            spread=(valid.min(), valid.max()),
            note=f"mean {valid.mean():.3f}; return {returns.mean():.2f} ({returns.min():.1f} to {returns.max():.1f}); "
            f"{figures(runs, 'projections').mean():,.0f} projections; {figures(runs, 'seconds').mean():.0f} s",
        )
    if part == "methods":
        add_claims(report, found)
    elif part == "ablations":
        gap = figures(found["aram"], "valid_rate").mean() - figures(found["kappa_0"], "valid_rate").mean()
        report.add("kappa_0_gap", "valid rate lost without the penalty", gap, target="value > 0")
    violations = sum(int(figures(runs, "violations").sum()) for runs in found.values())
    report.add("executed_violations", "executed actions outside the set, all runs", violations, target="value == 0")
    return report.finish()


def add_claims(report: Report, found: dict[str, list[dict[str, Any]]]) -> None:
    """Add the rows that compare.

    Args:
        report: Where to.
        found: Outcomes by variant.
    """
    projections = {name: figures(runs, "projections").sum() for name, runs in found.items()}
    returns = {name: figures(runs, "return").mean() for name, runs in found.items()}
    lowest = figures(found["aram"], "valid_rate").min()
    report.add("aram_lowest", "ARAM's valid rate, lowest seed", lowest, target="value >= 0.90")
    for name in ("spre", "spro"):
        highest = figures(found[name], "valid_rate").max()
        report.add(f"{name}_highest", f"{name}'s valid rate, highest seed", highest, target="value <= 0.10")
    for name, limit in (("spre", 0.01), ("spre_plus_10", 0.05)):
        share = projections["aram"] / projections[name]
        report.add(f"qp_share_vs_{name}", f"ARAM's projections over {name}'s", share, target=f"value <= {limit}")
    for name, least in (("spre", 1.0), ("spre_plus_10", -1.5)):
        gap = returns["aram"] - returns[name]
        report.add(f"return_vs_{name}", f"ARAM's mean return minus {name}'s", gap, target=f"value >= {least}")


def figures(runs: list[dict[str, Any]], name: str) -> np.ndarray:
    """Collect one figure over seeds.

    Args:
        runs: Outcomes.
        name: Figure.

    Returns:
        One number a seed.
    """
    return np.array([entry[name] for entry in runs], float)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, default="methods")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with console_progress() as progress:
        report = run(quick=options.quick, seeds=options.seeds, part=options.part, progress=progress)
    if options.out is not None:
        report.save(options.out)
    from rich.console import Console

    Console(width=160).print(report.table())


if __name__ == "__main__":
    main()
