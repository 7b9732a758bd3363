"""What the paper claims, on simulated exchangeable data and on the public set of 50 problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.annotators import Gold, Independent, Silver
from octavo_coherent_factuality.compat import reference_curve
from octavo_coherent_factuality.curve import calibration_curve, curve_of_table
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.method import METHODS
from octavo_coherent_factuality.outcomes import OutcomeTable, jitter
from octavo_coherent_factuality.quantile import quantile_rank
from octavo_coherent_factuality.risk_control import RiskControlFilter
from octavo_coherent_factuality.trace import ReasoningTrace

pytestmark = pytest.mark.claim

REPEATS = 1000
FRESH = 40


def _simulate(n: int, alpha: float, ties: Any, seed: int) -> float:
    """Coverage over fresh calibration sets and fresh tests, drawn with replacement from a large pool."""
    table = _pool()
    rank = quantile_rank(n, alpha)
    if rank > n:
        return 1.0
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, len(table), (REPEATS, n + FRESH))
    numbers = generator.random(rows.shape)
    # Scores are whole numbers here, so this jitter reorders ties only.
    scores = np.minimum(table.scores, 1e3)[rows] + 1e-3 * numbers
    cut = np.sort(scores[:, :n], axis=1)[:, n - rank]
    test = rows[:, n:].ravel()
    limit = {
        "jitter": np.repeat(cut, FRESH) - 1e-3 * numbers[:, n:].ravel(),
        "strict": np.repeat(np.floor(cut), FRESH) - 0.5,
        "naive": np.repeat(np.floor(cut), FRESH),
    }[ties]
    return float(table.right(table.chosen(limit, True, test), test).mean())


_POOLS: dict[str, OutcomeTable] = {}


def _pool() -> OutcomeTable:
    if "pool" not in _POOLS:
        _POOLS["pool"] = OutcomeTable.build(random_traces(2000, 99, error_rate=0.2), METHODS["subgraph"])
    return _POOLS["pool"]


@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_coverage_is_within_both_bounds(n: int, alpha: float) -> None:
    rank = quantile_rank(n, alpha)
    mean = rank / (n + 1)
    error = math.sqrt(mean * (1 - mean) * (1 / (n + 2) + 1 / FRESH) / REPEATS)
    coverage = _simulate(n, alpha, "jitter", seed=n)
    assert 1 - alpha - 3 * error <= coverage <= 1 - alpha + 1 / (n + 1) + 3 * error
    assert _simulate(n, alpha, "strict", seed=n) >= 1 - alpha - 3 * error


def test_keeping_ties_without_jitter_undercovers() -> None:
    assert _simulate(50, 0.1, "naive", seed=1) < 0.87


@pytest.mark.parametrize("ties", ["jitter", "randomized", "strict"])
def test_coverage_of_the_curve(ties: Any) -> None:
    traces = random_traces(400, 5, error_rate=0.2)
    curve = calibration_curve(
        traces, [0.05, 0.1, 0.2], protocol="split", ties=ties, calibration_size=40, repeats=400, seed=1
    )
    for point in curve:
        error = 3 * math.sqrt(point.target * point.alpha / 42 / 400)
        assert point.realised >= point.target - error
        if ties != "strict":
            assert point.realised <= point.target + (0 if ties == "randomized" else 1 / 41) + error


def test_public_set_realises_its_targets(problems: list[ReasoningTrace], expected: dict[str, Any]) -> None:
    for evaluator in (Silver(), Gold()):
        curve = calibration_curve(problems, expected["alphas"], evaluator=evaluator)
        for point in curve:
            assert point.realised >= point.target - 0.02 - 1e-9
    at = {round(point.target, 3): point for point in curve}
    assert at[0.896].retained >= 0.78


def test_public_set_independent_filtering_falls_short(problems: list[ReasoningTrace], expected: dict[str, Any]) -> None:
    """By 0.176 and 0.216 under the official noise; by 0.09 and 0.14 on average where ties are broken without it."""
    for evaluator, official_gap, own_gap in ((Gold(), 0.10, 0.07), (Silver(), 0.15, 0.12)):
        official = reference_curve(problems, [0.104167], method=METHODS["independent"], evaluator=evaluator)
        assert official.points[0].realised <= 1 - 0.104167 - official_gap
        table = OutcomeTable.build(problems, METHODS["independent"], evaluator)
        own = [curve_of_table(table, [0.104167], np.random.default_rng(s).random(50)).points[0] for s in range(40)]
        assert np.mean([point.realised for point in own]) <= 1 - 0.104167 - own_gap


def test_public_set_subgraph_keeps_more(problems: list[ReasoningTrace], expected: dict[str, Any]) -> None:
    curves = {
        name: calibration_curve(problems, expected["alphas"], method=METHODS[name])
        for name in ("subgraph", "posthoc", "prefix")
    }
    kept = {name: curve.column("retained") for name, curve in curves.items()}
    assert (kept["subgraph"] >= kept["posthoc"] - 1e-12).all()
    at = next(i for i, point in enumerate(curves["subgraph"]) if round(point.target, 3) == 0.896)
    assert kept["subgraph"][at] - kept["prefix"][at] >= 0.10


def test_public_set_strict_rule(problems: list[ReasoningTrace]) -> None:
    """Figures of a reference implementation without noise."""
    wanted = {
        0.020833: (0.98, 0.015),
        0.041667: (0.96, 0.436),
        0.0625: (0.94, 0.602),
        0.083333: (0.92, 0.738),
        0.104167: (0.92, 0.824),
        0.166667: (0.84, 0.861),
        0.1875: (0.82, 0.936),
    }
    for point in calibration_curve(problems, list(wanted), ties="strict"):
        realised, kept = wanted[point.alpha]
        assert point.realised == pytest.approx(realised)
        assert point.retained == pytest.approx(kept, abs=6e-4)


def test_public_set_naive_ties_are_invalid(problems: list[ReasoningTrace]) -> None:
    """Keeping all ties without any noise: 0.84 realised at a target of 0.896."""
    table = OutcomeTable.build(problems, METHODS["subgraph"])
    rank = quantile_rank(49, 0.104167)
    cuts = [np.sort(np.delete(table.scores, row))[::-1][rank - 1] for row in range(50)]
    assert table.right(table.chosen(np.array(cuts), True)).mean() == pytest.approx(0.84)


@pytest.mark.parametrize("seed", range(5))
def test_generator_order_of_methods(seed: int) -> None:
    traces = generate_traces(250, seed=seed)
    points = {}
    for name in ("subgraph", "boosted", "posthoc", "prefix", "independent"):
        table = OutcomeTable.build(traces, METHODS[name], Silver())
        numbers = jitter(traces, seed, "calibration")
        points[name] = curve_of_table(
            table, [0.1], numbers, protocol="split", calibration_size=99, repeats=100, seed=seed
        ).points[0]
    assert points["subgraph"].retained > points["prefix"].retained
    assert points["subgraph"].retained > points["posthoc"].retained
    assert points["independent"].realised < 0.8
    assert abs(points["boosted"].realised - 0.9) < 0.03
    own = calibration_curve(traces, [0.1], method=METHODS["independent"], evaluator=Independent())
    assert own.points[0].realised == pytest.approx(0.9, abs=0.01)


def test_evaluation_names_the_event_it_measures() -> None:
    traces = generate_traces(60, seed=3)
    controlled = RiskControlFilter(0.3).fit(traces[:40])
    found = controlled.evaluate(traces[40:])
    assert found.event.startswith(Silver().event)
    assert controlled.event in found.event
    assert SplitConformalFilter(0.3).fit(traces[:40]).evaluate(traces[40:]).event == Silver().event
    assert controlled.evaluate(traces[40:], annotator=Independent()).event == Independent().event
