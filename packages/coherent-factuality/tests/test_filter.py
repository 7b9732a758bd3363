from __future__ import annotations

import itertools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.annotators import Independent, Silver
from octavo_coherent_factuality.curve import calibration_curve
from octavo_coherent_factuality.filter import FilteredOutput, SplitConformalFilter
from octavo_coherent_factuality.guarantee import guarantee_report
from octavo_coherent_factuality.method import METHODS, FilteringMethod
from octavo_coherent_factuality.quantile import conformal_threshold
from octavo_coherent_factuality.trace import Claim, ReasoningTrace, claims_from_arrays
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_predict, cross_val_score


@pytest.mark.parametrize("ties", ["jitter", "strict", "randomized"])
@pytest.mark.parametrize("method", ["subgraph", "posthoc", "prefix"])
def test_filter_agrees_with_the_curve(ties: Any, method: str) -> None:
    """The curve's look-ups and the filter's own cut are two ways to the same leave-one-out outputs."""
    traces = random_traces(30, 1)
    chosen = METHODS[method]
    curve = calibration_curve(traces, [0.2], method=chosen, ties="strict" if ties == "strict" else "jitter", seed=0)
    kept = []
    for row, trace in enumerate(traces):
        fitted = SplitConformalFilter(0.2, scorer=chosen.scorer, family=chosen.family, ties="strict")
        fitted.fit([other for index, other in enumerate(traces) if index != row])
        kept.append(fitted.predict([trace])[0].retained)
    if ties == "strict":
        assert curve.points[0].retained == pytest.approx(np.mean(kept))
    else:
        assert curve.points[0].retained >= np.mean(kept) - 1e-12


def test_threshold_is_the_conformal_quantile() -> None:
    traces = random_traces(60, 2)
    for alpha in (0.05, 0.1, 0.3):
        fitted = SplitConformalFilter(alpha).fit(traces)
        assert fitted.threshold_ == conformal_threshold(fitted.scores_, alpha)


def test_outputs_are_ancestor_closed_and_ordered() -> None:
    traces = random_traces(80, 3)
    for output in SplitConformalFilter(0.2).fit(traces[:40]).predict(traces[40:]):
        assert output.trace.graph.is_ancestor_closed(output.mask)
        assert sorted(output.order) == list(output.kept)
        assert output.abstained == (not output.kept)


def test_more_risk_keeps_more() -> None:
    traces = random_traces(80, 4)
    sizes = [
        [len(o.kept) for o in SplitConformalFilter(alpha, seed=5).fit(traces[:40]).predict(traces[40:])]
        for alpha in (0.05, 0.1, 0.2, 0.4)
    ]
    assert all((np.array(small) <= np.array(large)).all() for small, large in itertools.pairwise(sizes))


def test_subgraph_keeps_what_posthoc_keeps() -> None:
    traces = random_traces(80, 6)
    for ties in ("strict", "jitter"):
        ours = SplitConformalFilter(0.2, ties=ties).fit(traces[:40])  # type: ignore[arg-type]
        theirs = SplitConformalFilter(0.2, family="posthoc", ties=ties).fit(traces[:40])  # type: ignore[arg-type]
        assert ours.threshold_ >= theirs.threshold_
        for first, second in zip(ours.predict(traces[40:]), theirs.predict(traces[40:]), strict=True):
            assert set(first.kept) >= set(second.kept) or ours.threshold_ == theirs.threshold_


def test_outputs_do_not_depend_on_order_or_company() -> None:
    traces = random_traces(60, 7)
    fitted = SplitConformalFilter(0.2).fit(traces[:30])
    together = fitted.predict(traces[30:])
    assert [fitted.predict([trace])[0] for trace in traces[30:]] == together
    assert fitted.predict(traces[:29:-1])[::-1] == together
    shuffled = SplitConformalFilter(0.2).fit(traces[29::-1])
    assert shuffled.predict(traces[30:]) == together
    order = np.random.default_rng(0)
    for trace, output in zip(traces[30:], together, strict=True):
        names = order.permutation(trace.num_claims).tolist()
        moved = fitted.predict([trace.permuted(names)])[0]
        assert {names[index] for index in moved.kept} == set(output.kept)


def test_predict_from_many_threads() -> None:
    traces = random_traces(120, 8)
    fitted = SplitConformalFilter(0.2).fit(traces[:40])
    expected = fitted.predict(traces[40:])
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: fitted.predict(traces[40:]), range(16)))
    assert all(result == expected for result in results)


def test_scikit_learn_conventions() -> None:
    traces = random_traces(60, 9)
    fitted = SplitConformalFilter(0.2, family="prefix", ties="strict", seed=3)
    copy = clone(fitted).set_params(alpha=0.3)
    assert copy.get_params()["family"] == "prefix"
    assert copy.alpha == 0.3
    assert fitted.alpha == 0.2
    groups = np.repeat(np.arange(12), 5)
    outputs = cross_val_predict(copy, traces, groups=groups, cv=GroupKFold(4))
    assert len(outputs) == 60
    assert all(isinstance(output, FilteredOutput) for output in outputs)
    scores = cross_val_score(copy, traces, groups=groups, cv=GroupKFold(4))
    assert ((scores >= 0) & (scores <= 1)).all()


def test_large_scales_and_small_gaps_do_not_weaken_ties() -> None:
    """The jitter is infinitesimal: it works at any scale of risk."""
    for scale in (1e12, 1e-12):
        traces = [
            ReasoningTrace(claims_from_arrays(factual=[index % 3 != 0], risk=[scale * (index % 2)]), id=str(index))
            for index in range(400)
        ]
        from octavo_coherent_factuality.scorers import ScoreColumn

        method = FilteringMethod(ScoreColumn("risk", higher_is_safer=False))
        point = calibration_curve(
            traces, [0.2], method=method, protocol="split", calibration_size=49, repeats=400
        ).points[0]
        assert 0.79 <= point.realised <= 0.83


def test_evaluation_reports_the_event() -> None:
    traces = random_traces(80, 10)
    fitted = SplitConformalFilter(0.2, family="independent").fit(traces[:40])
    assert "independent factuality" in fitted.event
    metrics = fitted.evaluate(traces[40:], annotator=Silver())
    assert "coherent" in metrics.event
    assert metrics.realised <= fitted.evaluate(traces[40:]).realised
    assert metrics.realised in metrics.interval
    assert fitted.score(traces[40:]) == metrics.retained


def test_pac_level_is_tighter() -> None:
    traces = random_traces(200, 11)
    plain, tight = SplitConformalFilter(0.2).fit(traces), SplitConformalFilter(0.2, delta=0.05).fit(traces)
    assert tight.rank_ > plain.rank_
    report = guarantee_report(tight)
    assert report.law.probability_below(0.8) <= 0.05
    assert "with probability at least 0.95 over calibration sets" in report.text


def test_guarantee_names_event_and_bounds() -> None:
    fitted = SplitConformalFilter(0.1).fit(random_traces(99, 12))
    report = guarantee_report(fitted)
    assert (report.n, report.rank, report.lower) == (99, 90, pytest.approx(0.9))
    assert report.upper <= 0.9 + 1 / 100 + 1e-12
    assert "ancestor-closed" in report.text
    assert "Beta(90, 10)" in report.text
    assert report.to_json()["beta"] == [90, 10]
    assert guarantee_report(SplitConformalFilter(0.1, ties="randomized").fit(random_traces(50, 1))).upper == 0.9
    with pytest.raises(RuntimeError, match="not calibrated"):
        guarantee_report(SplitConformalFilter())


def test_guarantee_of_a_randomised_rank() -> None:
    made = random_traces(50, 1)
    report = guarantee_report(SplitConformalFilter(0.1, ties="randomized").fit(made))
    assert [(law.rank, pytest.approx(weight)) for weight, law in report.laws] == [(46, 0.9), (45, 0.1)]
    assert sum(weight * law.mean for weight, law in report.laws) == pytest.approx(0.9)
    assert "Beta(46, 5) distributed with probability 0.9 (rank 46)" in report.text
    assert "Beta(45, 6) distributed with probability 0.1 (rank 45): mean 0.9000" in report.text
    assert [part["beta"] for part in report.to_json()["mixture"]] == [[46, 5], [45, 6]]
    assert report.interval()[0] < 0.9 < report.interval()[1]
    few = guarantee_report(SplitConformalFilter(0.01, ties="randomized").fit(made[:30]))
    assert "abstained from with probability 0.69 (rank 31)" in few.text
    assert "every answer" not in few.text
    assert few.laws[0][0] == pytest.approx(0.69)
    one = guarantee_report(SplitConformalFilter(0.7, ties="randomized").fit(made[:1]))
    assert "the whole answer is kept with probability 0.4 (rank 0)" in one.text


@pytest.mark.filterwarnings("ignore:.*too few")
def test_guarantee_of_nothing() -> None:
    text = guarantee_report(SplitConformalFilter(0.01).fit(random_traces(30, 1))).text
    assert "P(event) >= 1.0000, because nothing is kept" in text
    assert "Upper side" not in text


# --- bad input


def test_predict_before_fit() -> None:
    with pytest.raises(RuntimeError, match="call fit"):
        SplitConformalFilter().predict(random_traces(1, 0))


def test_no_traces() -> None:
    with pytest.raises(ValueError, match="no traces"):
        SplitConformalFilter().fit([])
    assert SplitConformalFilter(0.5).fit(random_traces(5, 0)).predict([]) == []


@pytest.mark.parametrize("alpha", [0, 1, -1, 2.0, "a"])
def test_alpha_out_of_range(alpha: Any) -> None:
    with pytest.raises(ValueError, match="alpha="):
        SplitConformalFilter(alpha).fit(random_traces(5, 0))


def test_too_few_traces_warn_and_abstain() -> None:
    with pytest.warns(UserWarning, match="at least 19 traces"):
        fitted = SplitConformalFilter(0.05).fit(random_traces(18, 0))
    assert fitted.threshold_ == -math.inf
    assert all(output.abstained for output in fitted.predict(random_traces(5, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SplitConformalFilter(0.05).fit(random_traces(19, 0))


def test_missing_annotations_and_scores_are_named() -> None:
    bare = ReasoningTrace((Claim("x", {"frequency": 1}),), id="a")
    with pytest.raises(ValueError, match="claim 0 of trace 'a' has no annotation"):
        SplitConformalFilter(0.5).fit([bare])
    unscored = ReasoningTrace((Claim("x", {"other": 1}, True),), id="b")
    with pytest.raises(ValueError, match=r"no score 'frequency' \(it has: other\)"):
        SplitConformalFilter(0.5).fit([unscored])


def test_shared_questions_warn() -> None:
    traces = random_traces(10, 0)
    fitted = SplitConformalFilter(0.2).fit(traces)
    with pytest.warns(UserWarning, match="share an id or a question"):
        fitted.predict(traces[:2])
    twice = [ReasoningTrace(t.claims, t.graph, question="same?") for t in traces]
    with pytest.warns(UserWarning, match="share a question"):
        SplitConformalFilter(0.2).fit(twice)


def test_duplicate_ids_are_refused() -> None:
    traces = random_traces(5, 0)
    with pytest.raises(ValueError, match="occurs more than once"):
        SplitConformalFilter(0.2).fit([*traces, traces[0]])
    with pytest.raises(ValueError, match="two claims with the id"):
        ReasoningTrace((Claim("a", id="1"), Claim("b", id="1")))


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_not_finite(score: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Claim("x", {"frequency": score})
    with pytest.raises(ValueError, match="risks must be finite"):
        SplitConformalFilter(0.5, scorer=lambda trace: np.full(trace.num_claims, score)).fit(random_traces(3, 0))


def test_other_bad_input() -> None:
    with pytest.raises(ValueError, match="has no claims"):
        ReasoningTrace(())
    with pytest.raises(TypeError, match="ReasoningTrace"):
        SplitConformalFilter(0.5).fit(["text"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="ties='x' is unknown"):
        SplitConformalFilter(0.5).set_params(ties="x").fit(random_traces(3, 0))
    with pytest.raises(ValueError, match="one number per claim"):
        SplitConformalFilter(0.5, scorer=lambda trace: np.zeros(99)).fit(random_traces(3, 0))
    assert Independent().event
