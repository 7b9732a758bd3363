"""The embedded example: Reacher with a limit on the torques' norm, by ARAM and by projection in front of SAC.

Without MuJoCo the same comparison runs on the bike-sharing task, whose feasible set is a thin slab.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from octavo_core.device import resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_aram.config import ARAMConfig
from octavo_aram.methods import method_label
from octavo_aram.runs import train_all
from octavo_aram.training import RunSettings

__all__ = ["demo_settings", "run"]

_METHODS = ("aram", "spre", "spre+")
_SEEDS = 2
_REACHER = ("Reacher-v5", "Re+L2", 5000)
_BIKES = ("octavo_aram/BSS3z-v0", "BSS3z", 5000)


def demo_settings(method: str, *, seed: int = 0, quick: bool = False, device: str = "cpu") -> RunSettings:
    """Settings of one run of the example.

    Args:
        method: A name of :data:`octavo_aram.methods.METHODS`.
        seed: Seed.
        quick: Fewer and larger learning steps, and more tries so that the share of projections can be judged on them.
        device: Device to train on.

    Returns:
        The run: Reacher-v5 with Re+L2, or BSS3z where MuJoCo is not installed.
    """
    reacher = _has_mujoco()
    env, constraint, steps = _REACHER if reacher else _BIKES
    # Rewards of bike sharing go down to about -3.4, and the penalty must exceed that.
    penalty = 1.0 if reacher else 5.0
    if quick:
        config = ARAMConfig(
            seed=seed,
            device=device,
            start_steps=300,
            learning_rate=2e-3 if reacher else 3e-3,
            penalty=penalty,
            max_tries=200,
        )
        return RunSettings(env, constraint, method, 1800, config, evaluate_every=600, episodes=2, final_episodes=10)
    config = ARAMConfig(seed=seed, device=device, penalty=penalty)
    return RunSettings(env, constraint, method, steps, config, evaluate_every=1000, episodes=5, final_episodes=100)


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the example.

    Args:
        quick: One seed and 1,800 steps, without SPre+; the claims are checked on that alone.
        seed: First of the seeds.
        device: Device to train on; ``"auto"`` is the CPU, which suits networks of this size.
        progress: Called with what is being trained and the share done.

    Returns:
        The report: valid rates, returns, projections and executed violations, with a figure.
    """
    target = "cpu" if device == "auto" else str(resolve_device(device))
    methods = _METHODS[:2] if quick else _METHODS
    seeds = range(seed, seed + (1 if quick else _SEEDS))
    jobs = [demo_settings(method, seed=s, quick=quick, device=target) for s in seeds for method in methods]
    first = jobs[0]
    report = Report(
        "aram",
        "demo",
        seed=seed,
        title=f"aram: {first.env} under {first.constraint}, {first.steps:,} steps",
        packages=("gymnasium", "mujoco"),
    )
    outcomes = train_all(jobs, progress, workers=1 if quick else None)
    by_method: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_method[job.method].append(outcome)
    _add_rows(report, by_method, first, quick)
    if importlib.util.find_spec("matplotlib") is not None:
        from octavo_aram.plots import plot_runs

        histories = {method_label(method): [r["history"] for r in entries] for method, entries in by_method.items()}
        report.attach("runs.png", plot_runs(histories))
    return report.finish()


def _add_rows(report: Report, runs: dict[str, list[dict[str, Any]]], first: RunSettings, quick: bool) -> None:
    values = {
        method: {name: np.array([entry[name] for entry in entries], float) for name in _FIGURES}
        for method, entries in runs.items()
    }
    seeds = len(runs["aram"])
    scale = f"{seeds} seed{'s' if seeds > 1 else ''}, {first.steps:,} steps"
    where = "" if first.env == _REACHER[0] else "; MuJoCo is not installed, so this is the bike-sharing task instead"
    if quick:
        where += "; quick: fewer steps than the claim's, up to 200 tries"
    for method, figures in values.items():
        if method != "aram":
            report.add(
                f"{_row_name(method)}_valid_rate",
                f"{method_label(method)}: share of raw draws that are feasible",
                figures["valid_rate"].mean(),
                spread=_range(figures["valid_rate"]),
                note=f"return {figures['return'].mean():.4g}; {figures['projections'].mean():,.0f} projections",
            )
    ours = values["aram"]
    report.add(
        "aram_valid_rate",
        "ARAM: share of raw draws that are feasible, lowest seed",
        ours["valid_rate"].min(),
        target="value >= 0.90",
        spread=_range(ours["valid_rate"]),
        note=f"{scale}; return {ours['return'].mean():.4g}; {ours['projections'].mean():.0f} projections{where}",
    )
    for method, row, target in (("spre", "qp_share_vs_projection", 0.01), ("spre+", "qp_share_vs_spre_plus", 0.05)):
        if method in values:
            share = ours["projections"].sum() / max(1.0, values[method]["projections"].sum())
            report.add(
                row,
                f"projections of ARAM as a share of {method_label(method)}'s",
                share,
                target=f"value <= {target}",
                note=f"{ours['projections'].sum():.0f} of {values[method]['projections'].sum():,.0f}; "
                "ARAM's fall in the warm-up and right after it",
            )
    report.add(
        "executed_violations",
        "executed actions outside the feasible set, all methods, training and evaluation",
        int(sum(figures["violations"].sum() for figures in values.values())),
        target="value == 0",
    )
    for method, row, target in (("spre", "return_vs_spre", 1.0), ("spre+", "return_vs_spre_plus", -1.5)):
        if method in values:
            gap = ours["return"] - values[method]["return"]
            # The targets are those of Reacher at full size.
            claimed = first.env == _REACHER[0] and not quick
            report.add(
                row,
                f"return of ARAM minus {method_label(method)}'s",
                gap.mean(),
                target=f"value >= {target}" if claimed else None,
                spread=_range(gap),
                note="SPre+ with its penalty tuned to 10"
                if method == "spre+"
                else "1.8 over five seeds; one seed varies by 0.7",
            )
    report.add(
        "seconds_per_run",
        "seconds of a training run with its evaluations, ARAM",
        ours["seconds"].mean(),
        "s",
        note="; ".join(f"{method_label(m)} {v['seconds'].mean():.1f} s" for m, v in values.items() if m != "aram"),
    )


_FIGURES = ("valid_rate", "return", "projections", "violations", "seconds")


def _row_name(method: str) -> str:
    return method.replace("+", "_plus")


def _range(values: np.ndarray) -> tuple[float, float] | None:
    """Smallest and largest value; None for a single one, which has no spread."""
    return (float(values.min()), float(values.max())) if len(values) > 1 else None


def _has_mujoco() -> bool:
    return importlib.util.find_spec("mujoco") is not None
