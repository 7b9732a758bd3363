"""What the paper claims, on simulated exchangeable data and on the public set of 50 problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.annotators import Gold, Independent, Silver
from octavo_coherent_factuality.curve import calibration_curve, curve_of_table
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.method import METHODS
from octavo_coherent_factuality.outcomes import OutcomeTable, jitter
from octavo_coherent_factuality.quantile import quantile_rank
from octavo_coherent_factuality.trace import ReasoningTrace

pytestmark = pytest.mark.claim

REPEATS = 2000
FRESH = 40


def _simulate(n: int, alpha: float, ties: Any, seed: int) -> float:
    """Coverage over fresh calibration sets and fresh tests, drawn with replacement from a large pool."""
    pool = _pool()
    generator = np.random.default_rng(seed)
    table = pool
    rank = quantile_rank(n, alpha)
    right = 0.0
    for _ in range(REPEATS):
        rows = generator.integers(0, len(table), n + FRESH)
        scores, numbers = table.scores[rows], generator.random(n + FRESH)
        order = np.lexsort((numbers[:n], scores[:n]))[::-1]
        if rank > n:
            right += 1.0
            continue
        cut, limit = scores[:n][order[rank - 1]], numbers[:n][order[rank - 1]]
        inclusive = {"jitter": numbers[n:] <= limit, "strict": np.zeros(FRESH, bool), "naive": np.ones(FRESH, bool)}
        members = table.chosen(float(cut), inclusive[ties], rows[n:])
        right += float(table.right(members, rows[n:]).mean())
    return right / REPEATS


_POOLS: dict[str, OutcomeTable] = {}


def _pool() -> OutcomeTable:
    if "pool" not in _POOLS:
        _POOLS["pool"] = OutcomeTable.build(random_traces(4000, 99, error_rate=0.2), METHODS["subgraph"])
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
    traces = random_traces(1500, 5, error_rate=0.2)
    curve = calibration_curve(
        traces, [0.05, 0.1, 0.2], protocol="split", ties=ties, calibration_size=40, repeats=600, seed=1
    )
    for point in curve:
        error = 3 * math.sqrt(point.target * point.alpha / 42 / 600)
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
    for evaluator, gap in ((Gold(), 0.10), (Silver(), 0.15)):
        curve = calibration_curve(problems, expected["alphas"], method=METHODS["independent"], evaluator=evaluator)
        point = next(point for point in curve if round(point.target, 3) == 0.896)
        assert point.realised <= point.target - gap


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
    traces = generate_traces(400, seed=seed)
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
