"""Group-wise, weighted and risk-controlling filters, streams, and plans of what to verify."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality.annotators import Partial
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.groups import GroupConformalFilter, WeightedConformalFilter
from octavo_coherent_factuality.online import OnlineFilter
from octavo_coherent_factuality.risk_control import RiskControlFilter
from octavo_coherent_factuality.trace import ReasoningTrace
from octavo_coherent_factuality.verification import plan_verification


def grouped(count: int, seed: int) -> list[ReasoningTrace]:
    """Two groups of different difficulty."""
    easy, hard = random_traces(count, seed, error_rate=0.05), random_traces(count, seed + 500, error_rate=0.35)
    return [
        ReasoningTrace(t.claims, t.graph, id=t.id, group=group)
        for group, made in (("easy", easy), ("hard", hard))
        for t in made
    ]


@pytest.mark.claim
def test_groups_are_covered_each() -> None:
    right: dict[str, list[bool]] = {"easy": [], "hard": []}
    pooled: dict[str, list[bool]] = {"easy": [], "hard": []}
    pool = grouped(300, 1000)
    generator = np.random.default_rng(0)
    for _ in range(7):
        order = generator.permutation(600)
        calibration, test = [pool[row] for row in order[:100]], [pool[row] for row in order[100:220]]
        for fitted, found in ((GroupConformalFilter(0.2), right), (SplitConformalFilter(0.2), pooled)):
            for output in fitted.fit(calibration).predict(test):
                found[str(output.trace.group)].append(fitted.method.calibration_annotator(output.trace, output.mask))
    assert np.mean(right["easy"]) >= 0.8 - 0.03
    assert np.mean(right["hard"]) >= 0.8 - 0.03
    assert np.mean(pooled["hard"]) < 0.75


def test_groups_with_their_own_levels_and_unseen_ones() -> None:
    calibration = grouped(40, 1)
    fitted = GroupConformalFilter({"easy": 0.1, "hard": 0.4}).fit(calibration)
    by_hand = SplitConformalFilter(0.1).fit([t for t in calibration if t.group == "easy"])
    assert fitted.cuts_["easy"][0] == by_hand.threshold_
    other = ReasoningTrace(calibration[0].claims, calibration[0].graph, id="o", group="new")
    pooled = GroupConformalFilter(0.4, unseen="pooled").fit(calibration)
    assert GroupConformalFilter(0.4).fit(calibration).predict([other])[0].abstained
    assert pooled.predict([other])[0].threshold == SplitConformalFilter(0.4).fit(calibration).threshold_
    with pytest.raises(ValueError, match="has no group"):
        fitted.predict([random_traces(1, 0)[0]])
    with pytest.raises(ValueError, match="no level for the group 'easy'"):
        GroupConformalFilter({"hard": 0.1}).fit(calibration)
    with pytest.warns(UserWarning, match="too few for alpha=0.01"):
        GroupConformalFilter(0.01).fit(calibration)


def test_groups_by_several_properties() -> None:
    calibration = grouped(40, 1)
    by_name = GroupConformalFilter(0.2).fit(calibration)
    by_pair = GroupConformalFilter(0.2, group_by=lambda trace: (trace.group, 1)).fit(calibration)
    assert by_pair.counts_ == {("easy", 1): 40, ("hard", 1): 40}
    assert by_pair.cuts_ == {(name, 1): cut for name, cut in by_name.cuts_.items()}
    other = grouped(5, 2)
    assert by_pair.predict(other) == by_name.predict(other)


@pytest.mark.parametrize(("group", "match"), [(float("nan"), r"has no group \(nan\)"), (["a"], "give a name")])
def test_bad_groups(group: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        GroupConformalFilter(0.2, group_by=lambda trace: group).fit(random_traces(10, 0))


@given(st.integers(5, 80), st.sampled_from([0.05, 0.1, 0.25, 0.42]), st.floats(0.01, 100))
@settings(max_examples=15, deadline=None)
def test_equal_weights_are_the_plain_filter(n: int, alpha: float, weight: float) -> None:
    made = random_traces(n + 5, n)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = SplitConformalFilter(alpha).fit(made[:n]).predict(made[n:])
        weighted = WeightedConformalFilter(alpha, weight=lambda trace: weight).fit(made[:n]).predict(made[n:])
    assert plain == weighted


@pytest.mark.claim
def test_weights_repair_a_shift() -> None:
    """Calibration mostly on easy traces, test mostly on hard ones."""
    ratio = {"easy": (1 / 11) / (10 / 11), "hard": (10 / 11) / (1 / 11)}
    plain_right, weighted_right = [], []
    pool = grouped(300, 20_000)
    generator = np.random.default_rng(0)
    for _ in range(10):
        easy = [pool[row] for row in generator.permutation(300)[:104]]
        hard = [pool[300 + row] for row in generator.permutation(300)[:50]]
        calibration, test = easy[:100] + hard[:10], easy[100:104] + hard[10:50]
        weighted = WeightedConformalFilter(0.2, weight=lambda trace: ratio[str(trace.group)]).fit(calibration)
        plain = SplitConformalFilter(0.2).fit(calibration)
        for fitted, found in ((plain, plain_right), (weighted, weighted_right)):
            judge = fitted.method.calibration_annotator
            found += [judge(output.trace, output.mask) for output in fitted.predict(test)]
    assert np.mean(weighted_right) >= 0.8 - 0.03
    assert np.mean(plain_right) < 0.72


def test_bad_weights() -> None:
    made = random_traces(10, 0)
    for weight in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be positive and finite"):
            WeightedConformalFilter(0.5, weight=lambda trace, w=weight: w).fit(made)


@pytest.mark.claim
@pytest.mark.parametrize("loss", ["false_share", "false_discovery"])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_risk_is_controlled(loss: Any, alpha: float) -> None:
    losses, kept = [], []
    pool = random_traces(400, 30_000, error_rate=0.3)
    generator = np.random.default_rng(0)
    for _ in range(8):
        made = [pool[row] for row in generator.permutation(400)[:140]]
        for output in RiskControlFilter(alpha, loss=loss).fit(made[:100]).predict(made[100:]):
            bad = int((~output.trace.factual[output.mask]).sum())
            over = output.trace.num_claims if loss == "false_share" else max(len(output.kept), 1)
            losses.append(bad / over)
            kept.append(output.retained)
    assert np.mean(losses) <= alpha + 3 * np.std(losses) / math.sqrt(len(losses))
    assert np.mean(kept) > 0.2


def test_risk_control_is_the_largest_safe_threshold() -> None:
    made = random_traces(60, 4, error_rate=0.3)
    fitted = RiskControlFilter(0.1, loss="false_share").fit(made)

    def bound(threshold: float) -> Fraction:
        total = Fraction(0)
        for trace in made:
            family = fitted.method.output_family(trace)
            kept = family.at(threshold, inclusive=False)
            total += Fraction(int((~trace.factual[kept]).sum()), trace.num_claims)
        return (total + 1) / (len(made) + 1)

    candidates = sorted({t for trace in made for t in fitted.method.output_family(trace).thresholds.tolist()})
    safe = [t for t in candidates if bound(t) <= Fraction(1, 10)]
    assert fitted.threshold_ == max(safe)
    with pytest.warns(UserWarning, match="too few"):
        assert RiskControlFilter(0.01).fit(made[:20]).threshold_ == -math.inf
    with pytest.raises(ValueError, match="'posthoc'"):
        RiskControlFilter(0.1, family="posthoc").fit(made)


@pytest.mark.claim
def test_partial_factuality_keeps_more() -> None:
    made = random_traces(400, 8, error_rate=0.25)
    kept = []
    for annotator in (None, Partial(max_bad=1), Partial(min_fraction=0.7)):
        fitted = SplitConformalFilter(0.1, annotator=annotator).fit(made[:200])
        metrics = fitted.evaluate(made[200:])
        assert metrics.realised >= 0.9 - 0.06
        kept.append(metrics.retained)
    assert kept[1] > kept[0]
    assert kept[2] > kept[0]
    for bad in ({}, {"max_bad": -1}, {"min_fraction": 0.0}, {"max_bad": 1, "min_fraction": 0.5}):
        with pytest.raises(ValueError, match=r"max_bad|min_fraction"):
            Partial(**bad)  # type: ignore[arg-type]


@pytest.mark.claim
def test_online_filter_follows_a_drift() -> None:
    easy, hard = random_traces(200, 1, error_rate=0.05), random_traces(400, 2, error_rate=0.45)
    errors = {}
    for step in (0.0, 0.05):
        online = OnlineFilter(0.2, step_size=step)
        errors[step] = [not online.update(trace) for trace in easy + hard]
    assert abs(np.mean(errors[0.05]) - 0.2) < 0.04
    assert np.mean(errors[0.0][200:400]) > np.mean(errors[0.05][200:400])


def test_online_filter_equals_split_conformal_and_watches() -> None:
    made = random_traces(120, 5)
    online = OnlineFilter(0.2, seed=0)
    assert online.filter(made[0]).abstained
    for trace in made[:100]:
        online.update(trace)
    assert online._threshold()[0] == SplitConformalFilter(0.2).fit(made[:100]).threshold_
    report = online.drift()
    assert report.n == 99
    assert report.evidence < 20
    bad = [t.with_factual([False] * t.num_claims) for t in random_traces(60, 6)]
    windowed = OnlineFilter(0.1, window=5)
    for trace in made[:100] + bad:
        windowed.update(trace)
    assert len(windowed._memory) == 5
    with pytest.raises(ValueError, match="window"):
        OnlineFilter(0.1, window=0)


@pytest.mark.claim
def test_certified_plans_are_right_as_often_as_promised() -> None:
    """After the checks, everything that is kept is factual with the promised probability."""
    right = []
    pool = random_traces(600, 60_000, error_rate=0.25)
    generator = np.random.default_rng(0)
    for _ in range(25):
        made = [pool[row] for row in generator.permutation(600)[:60]]
        fitted = SplitConformalFilter(0.2, family="independent").fit(made[:50])
        for trace in made[50:]:
            plan = plan_verification(trace, fitted, keep_fraction=0.8)
            unchecked = [claim for claim in plan.kept if claim not in plan.verify]
            right.append(bool(trace.factual[unchecked].all()))
    assert np.mean(right) >= 0.8 - 0.03


def test_families_are_what_filters_cut() -> None:
    trace = random_traces(1, 3)[0]
    family = NestedFamily.build(trace, np.zeros(trace.num_claims))
    assert family.num_members == 2
