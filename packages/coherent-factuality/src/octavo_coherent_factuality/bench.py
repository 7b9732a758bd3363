"""Speed: the leave-one-out sweep against a loop that recomputes, and the family of large graphs."""

from __future__ import annotations

import tracemalloc

import numpy as np
from octavo_core.bench import compare, fit_power_law, speed_row, time_call
from octavo_core.device import resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_coherent_factuality.baselines import recomputed_curve
from octavo_coherent_factuality.curve import calibration_curve
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.generator import generate_traces, random_graph
from octavo_coherent_factuality.graph import DeducibilityGraph

__all__ = ["run"]

_LEVELS = [round(level / 48, 6) for level in range(1, 13)]


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Measure the package's speed.

    Args:
        quick: Fewer repetitions; the sizes stay.
        seed: Seed of the data.
        device: Checked, but everything runs on the CPU.
        progress: Called with what is done.

    Returns:
        The report.
    """
    resolve_device(device)
    report = Report(
        "coherent-factuality",
        "bench",
        seed=seed,
        title="Coherent factuality: speed",
        packages=("scipy", "scikit-learn"),
    )
    _sweep(report, seed, repeats=3 if quick else 7)
    progress("benchmarks", 0.4)
    _families(report, seed, repeats=5 if quick else 25)
    progress("benchmarks", 0.8)
    _memory(report, seed)
    progress("benchmarks", 1.0)
    return report.finish()


def _sweep(report: Report, seed: int, repeats: int) -> None:
    traces = generate_traces(50, seed=seed)
    timings = compare(
        {
            "ours": lambda: calibration_curve(traces, _LEVELS, ties="strict"),
            "recomputed": lambda: recomputed_curve(traces, _LEVELS),
        },
        repeats=repeats,
    )
    report.append(
        speed_row(
            "loo_sweep_vs_recompute",
            "leave-one-out sweep, 50 traces, 12 levels, from traces to curve",
            timings["ours"],
            timings["recomputed"],
            "loop that rebuilds every family for each level and left-out trace",
            unit="s",
            target="ratio >= 50 and value < 0.2",
        )
    )
    ours = [(point.realised, point.retained) for point in calibration_curve(traces, _LEVELS, ties="strict")]
    report.add(
        "loo_sweep_agrees",
        "both sweeps give the same curve",
        bool(np.allclose(ours, recomputed_curve(traces, _LEVELS), rtol=0, atol=1e-12)),
        target="value == 1",
    )


def _families(report: Report, seed: int, repeats: int) -> None:
    sizes = [10_000, 20_000, 50_000, 100_000]
    calls = {}
    for size in sizes:
        graph = random_graph(size, 3 * size, seed=seed, forward=True)
        risks = np.random.default_rng(seed).normal(size=size)
        claims, premises = graph.edge_claims, graph.indices

        def build(
            size: int = size, claims: np.ndarray = claims, premises: np.ndarray = premises, risks: np.ndarray = risks
        ) -> NestedFamily:
            return NestedFamily.build(DeducibilityGraph.from_edges(size, claims, premises), risks)

        calls[str(size)] = build
    timings = compare(calls, repeats=repeats, min_seconds=0.0)
    seconds = [min(timings[str(size)].samples) for size in sizes]
    law = fit_power_law([sizes[0], sizes[-1]], [seconds[0], seconds[-1]])
    report.add(
        "family_scaling_exponent",
        "growth of the family's time with the number of claims, 1e4 to 1e5",
        law.exponent,
        target="value <= 1.15",
        note=f"graph, order and family; best of {repeats} interleaved runs; "
        f"{seconds[0] * 1e3:.0f} ms to {seconds[-1] * 1e3:.0f} ms; 1 is linear",
    )
    low, high = timings["100000"].spread
    report.add(
        "family_1e5_claims",
        "graph, topological order and family of 1e5 claims with 3e5 edges",
        timings["100000"].median,
        "s",
        target="value < 2",
        spread=(low, high),
        note="premises before and after the claims that use them",
    )
    chain = DeducibilityGraph.chain(100_000)
    risks = np.random.default_rng(seed).normal(size=100_000)
    report.add(
        "family_1e5_chain",
        "family of a chain of 1e5 claims",
        time_call(lambda: NestedFamily.build(chain, risks), repeats=repeats).median,
        "s",
        target="value < 2",
    )


def _memory(report: Report, seed: int) -> None:
    graph = random_graph(100_000, 300_000, seed=seed)
    risks = np.random.default_rng(seed).normal(size=100_000)
    claims, premises = graph.edge_claims, graph.indices
    # Traced rather than read from the process, which has had more memory than this before and keeps it.
    tracemalloc.start()
    NestedFamily.build(DeducibilityGraph.from_edges(100_000, claims, premises), risks)
    extra = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report.add(
        "family_memory_1e5",
        "memory of graph and family, 1e5 claims and 3e5 edges",
        extra / 2**20,
        "MiB",
        target="value <= 128",
        note="a dense matrix would take 10 GB as bytes",
    )
