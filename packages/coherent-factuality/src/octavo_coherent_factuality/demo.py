"""The embedded example: generated derivations with a known graph, and a live language model where one is installed."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from octavo_core.assets import cache_folder, is_installed
from octavo_core.device import num_threads, resolve_device
from octavo_core.metrics import compare_paired
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_coherent_factuality.annotators import Silver
from octavo_coherent_factuality.arithmetic import annotate_arithmetic
from octavo_coherent_factuality.curve import CalibrationCurve, curve_of_table
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import DerivationGenerator, generate_traces
from octavo_coherent_factuality.guarantee import guarantee_report
from octavo_coherent_factuality.method import METHODS, FilteringMethod
from octavo_coherent_factuality.outcomes import OutcomeTable, jitter
from octavo_coherent_factuality.quantile import coverage_law
from octavo_coherent_factuality.render import plot_curves, trace_page
from octavo_coherent_factuality.trace import ReasoningTrace

if TYPE_CHECKING:
    import torch

__all__ = ["WORD_PROBLEMS", "run"]

# Derivations, random splits, and derivations that sympy labels.
_FULL, _QUICK = (2000, 2000, 150), (400, 200, 15)
_CALIBRATION = 99
_ALPHA = 0.1

WORD_PROBLEMS = (
    "A box holds 12 pencils. Tom buys 4 boxes and gives away 9 pencils. How many pencils does he have?",
    "A train travels 60 km per hour for 3 hours and then 40 km. How many km does it travel in total?",
    "Anna has 15 apples. She eats 3 and shares the rest equally among 4 friends. How many apples does each friend get?",
    "A shirt costs 20 dollars and a hat costs 8 dollars. How much do 2 shirts and 3 hats cost?",
    "A garden is 7 m long and 5 m wide. What is its area, and how many plants fit if each needs 5 square metres?",
)
"""What the live run asks."""


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Filter generated derivations with every method, and check what is guaranteed.

    Args:
        quick: Fewer traces and repeats, no training and no language model.
        seed: Seed.
        device: Where the learned scorer trains.
        progress: Called with what is done.

    Returns:
        The report.
    """
    chosen = resolve_device(device)
    report = Report(
        "coherent-factuality",
        "demo",
        seed=seed,
        title="Coherent factuality: conformal filtering of generated derivations",
        packages=("scikit-learn", "scipy", "sympy"),
    )
    count, repeats, labelled = _QUICK if quick else _FULL
    traces = generate_traces(count, seed=seed)
    progress("derivations", 1.0)
    tables = {name: OutcomeTable.build(traces, method, Silver()) for name, method in METHODS.items()}
    numbers = jitter(traces, seed, "calibration")
    curves = {}
    for done, (name, table) in enumerate(tables.items(), start=1):
        curves[name] = curve_of_table(
            table,
            [_ALPHA],
            numbers,
            event=Silver().event,
            protocol="split",
            repeats=repeats,
            calibration_size=_CALIBRATION,
            seed=seed,
        )
        progress("splits", done / len(tables))
    _rows(report, curves, count, repeats)
    _boosting(report, traces, tables, numbers)
    _labels(report, traces[:labelled], progress)
    _page_and_figure(report, traces, tables, numbers, seed)
    if not quick:
        _learned(report, seed, chosen, progress)
        _live(report, seed, progress)
    return report.finish()


def _rows(report: Report, curves: dict[str, CalibrationCurve], count: int, repeats: int) -> None:
    point = {name: curve.points[0] for name, curve in curves.items()}
    law = coverage_law(_CALIBRATION, _ALPHA)
    variance = law.mean * (1 - law.mean) * (1 / (_CALIBRATION + 2) + 1 / (count - _CALIBRATION))
    margin = 3 * math.sqrt(variance / repeats)
    low, high = 1 - _ALPHA - margin, 1 - _ALPHA + 1 / (_CALIBRATION + 1) + margin
    ours = point["subgraph"]
    report.add(
        "coverage_alpha_0.1",
        "coherent outputs of subgraph filtering at alpha = 0.1",
        ours.realised,
        target=f"{low:.4f} <= value <= {high:.4f}",
        spread=(ours.low, ours.high),
        note=f"{repeats:,} random splits of {count:,} derivations, {_CALIBRATION} for calibration; two-sided "
        "bound with "
        "three standard errors; the range is that of single calibration sets",
    )
    report.add(
        "retained_vs_posthoc",
        "claims kept by subgraph filtering at alpha = 0.1, against pruning afterwards",
        ours.retained,
        peer="post-hoc pruning of independent filtering",
        peer_value=point["posthoc"].retained,
        better="higher",
        target="ratio >= 1",
        note=f"post-hoc pruning realises {point['posthoc'].realised:.3f}, more than was asked for",
    )
    report.add(
        "independent_undercovers",
        "coherent outputs when claims are treated as independent (target 0.9)",
        point["independent"].realised,
        target="value < 0.87",
        spread=(point["independent"].low, point["independent"].high),
        note=f"keeps {point['independent'].retained:.3f} of the claims, but conclusions without their premises",
    )
    report.add(
        "retained_vs_prefix",
        "claims kept by subgraph filtering at alpha = 0.1, against prefixes",
        ours.retained,
        peer="prefix filtering",
        peer_value=point["prefix"].retained,
        better="higher",
        target="ratio >= 1",
        note=f"prefixes realise {point['prefix'].realised:.3f}; growth by the greedy rule keeps "
        f"{point['greedy'].retained:.3f}",
    )


def _boosting(
    report: Report, traces: Sequence[ReasoningTrace], tables: dict[str, OutcomeTable], numbers: np.ndarray
) -> None:
    """Claims kept trace by trace, with and without descendant weights, at thresholds from the same half."""
    half = len(traces) // 2
    kept = {}
    for name in ("subgraph", "boosted"):
        fitted = SplitConformalFilter(_ALPHA, scorer=METHODS[name].scorer, ties="strict").fit(traces[:half])
        rows = np.arange(half, len(traces))
        kept[name] = tables[name].retained(tables[name].chosen(fitted.threshold_, False, rows), rows)
    difference = kept["boosted"] - kept["subgraph"]
    comparison = compare_paired(kept["boosted"], kept["subgraph"])
    interval = comparison.difference
    report.add(
        "boosting_gain",
        "claims kept with descendant weight boosting (beta = 0.5) less without, alpha = 0.1",
        float(difference.mean()),
        spread=(interval.low, interval.high),
        note="range: 95 % confidence interval; helps where consequences tell more about a claim than its own score",
    )


def _labels(report: Report, traces: Sequence[ReasoningTrace], progress: ProgressCallback) -> None:
    blank = [trace.with_factual([None] * trace.num_claims) for trace in traces]
    # The question is the only context here, so the labels do not rest on each other.
    labelled = annotate_arithmetic(blank, time_limit=5.0)
    progress("labels by sympy", 1.0)
    agree = [
        ours.factual == theirs.factual
        for found, known in zip(labelled, traces, strict=True)
        for ours, theirs in zip(found.claims, known.claims, strict=True)
    ]
    report.add(
        "sympy_labels_agree",
        f"labels by sympy that agree with the generator, {len(agree):,} claims",
        float(np.mean(agree)),
        target="value == 1",
    )


def _page_and_figure(
    report: Report,
    traces: Sequence[ReasoningTrace],
    tables: dict[str, OutcomeTable],
    numbers: np.ndarray,
    seed: int,
) -> None:
    fitted = SplitConformalFilter(_ALPHA, seed=seed).fit(traces[: len(traces) // 2])
    outputs = fitted.predict(traces[len(traces) // 2 :])
    shown = next((o for o in outputs if 0 < len(o.kept) < o.trace.num_claims), outputs[0])
    report.attach("trace.html", trace_page(shown, fitted, guarantee_report(fitted)).encode())
    if importlib.util.find_spec("matplotlib") is None:
        return
    alphas = [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    names = ("subgraph", "boosted", "independent", "posthoc", "prefix")
    curves = {
        name: curve_of_table(
            tables[name], alphas, numbers, protocol="split", repeats=50, calibration_size=_CALIBRATION, seed=seed
        )
        for name in names
    }
    report.attach("calibration.png", plot_curves(curves))


def _learned(report: Report, seed: int, device: torch.device, progress: ProgressCallback) -> None:
    from octavo_coherent_factuality.learned import train_scorer

    # Traces of their own: those of the study must not have been seen in training.
    training = generate_traces(400, seed=seed + 1_000_001)
    fresh = generate_traces(1500, seed=seed + 2_000_003)
    with num_threads(1):
        scorer = train_scorer(training, alpha=0.05, steps=200, seed=seed, device=device, progress=progress)
    numbers = jitter(fresh, seed, "calibration")
    points = {
        name: curve_of_table(
            OutcomeTable.build(fresh, method), [0.05], numbers, protocol="split", calibration_size=199, repeats=300
        ).points[0]
        for name, method in (("learned", FilteringMethod(scorer)), ("frequency", METHODS["subgraph"]))
    }
    report.add(
        "learned_scorer_gain",
        "claims kept at 0.95 with a learned scorer, in points more than with frequency scores",
        100 * (points["learned"].retained - points["frequency"].retained),
        "points",
        target="value >= 10",
        note=f"{points['learned'].retained:.3f} against {points['frequency'].retained:.3f}; trained on 400 other "
        "traces",
    )
    report.add(
        "learned_scorer_coverage",
        "coherent outputs with the learned scorer at 0.95",
        points["learned"].realised,
        target="0.94 <= value <= 0.965",
        spread=(points["learned"].low, points["learned"].high),
        note="199 calibration traces, 300 splits",
    )


def _live(report: Report, seed: int, progress: ProgressCallback) -> None:
    """Question to filtered text with SmolLM2. The threshold comes from generated data: nothing is guaranteed here."""
    converted = any(cache_folder().glob("smollm2-*/config.json"))
    if not (is_installed("smollm2") and converted and importlib.util.find_spec("transformers")):
        return
    from octavo_coherent_factuality.llm import TransformersLLM
    from octavo_coherent_factuality.pipeline import ReasoningPipeline

    samples, seconds = 1, 35.0
    fitted = SplitConformalFilter(0.2, seed=seed).fit(
        generate_traces(300, seed=seed + 3_000_017, settings=DerivationGenerator(num_samples=samples))
    )
    fitted.scorer = None
    pipeline = ReasoningPipeline(
        TransformersLLM.load("smollm2", quiet=True),
        num_samples=samples,
        splitting="text",
        graph="symbols",
        votes="numbers",
        max_tokens=40,
        temperature=0.7,
    )
    traces = []
    start = time.monotonic()
    for index, question in enumerate(WORD_PROBLEMS):
        if traces and time.monotonic() - start > seconds * index / (index + 1):
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traces.append(pipeline.trace(question, id=f"live-{index}"))
        progress("live language model", (index + 1) / len(WORD_PROBLEMS))
    outputs = fitted.predict(traces)
    labelled = annotate_arithmetic(traces, time_limit=2.0)
    decided = [claim.factual for trace in labelled for claim in trace.claims if claim.factual is not None]
    report.add(
        "live_traces",
        "word problems answered by SmolLM2-135M, cut, scored and filtered",
        len(traces),
        note=f"of {len(WORD_PROBLEMS)}, as many as fit into {seconds:.0f} s; "
        f"{sum(trace.num_claims for trace in traces)} claims, {sum(len(output.kept) for output in outputs)} kept; "
        f"sympy decided {len(decided)}, of which {sum(decided)} hold. Thresholds from generated data: no guarantee",
    )
    report.attach("live.html", trace_page(max(outputs, key=lambda o: len(o.kept)), fitted).encode())
