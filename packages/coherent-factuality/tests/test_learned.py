from __future__ import annotations

import numpy as np
import pytest
import torch
from coherent_traces import random_traces, traces
from hypothesis import given, settings
from octavo_coherent_factuality.curve import calibration_curve
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.learned import (
    CrossFittedFilter,
    _Batch,
    claim_features,
    soft_entry_risk,
    train_scorer,
)
from octavo_coherent_factuality.method import METHODS, FilteringMethod
from octavo_coherent_factuality.trace import ReasoningTrace


@given(traces())
@settings(max_examples=30, deadline=None)
def test_soft_entry_risk_tends_to_the_exact_one(trace: ReasoningTrace) -> None:
    risks = np.random.default_rng(trace.num_claims).normal(size=trace.num_claims)
    batch = _Batch.build([trace, trace], torch.device("cpu"))
    doubled = torch.tensor(np.r_[risks, risks])
    exact = np.tile(trace.graph.running_max(risks), 2)
    for temperature in (0.1, 0.001):
        soft = soft_entry_risk(doubled, batch.levels, temperature).numpy()
        assert (soft >= exact - 1e-9).all()
        assert (soft <= exact + temperature * trace.num_claims * np.log(trace.num_claims + 1) + 1e-9).all()


def test_soft_entry_risk_has_the_right_gradient() -> None:
    trace = random_traces(1, 4)[0]
    batch = _Batch.build([trace], torch.device("cpu"))
    risks = torch.randn(trace.num_claims, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    risks.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda r: soft_entry_risk(r, batch.levels, 0.3), (risks,))


@given(traces())
@settings(max_examples=30, deadline=None)
def test_features_follow_the_claims(trace: ReasoningTrace) -> None:
    order = np.random.default_rng(0).permutation(trace.num_claims)
    np.testing.assert_allclose(
        claim_features(trace.permuted(order.tolist()), ["frequency"]), claim_features(trace, ["frequency"])[order]
    )


def test_training_is_reproducible_and_leaves_global_state_alone() -> None:
    made = generate_traces(60, seed=1)
    state = torch.get_rng_state()
    first, second = train_scorer(made, steps=20), train_scorer(made, steps=20)
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(first(made[0]), second(made[0]))
    assert not np.array_equal(first(made[0]), train_scorer(made, steps=20, seed=1)(made[0]))


@pytest.mark.claim
def test_a_learned_scorer_keeps_more_and_stays_valid() -> None:
    scorer = train_scorer(generate_traces(300, seed=11), alpha=0.05, steps=120)
    fresh = generate_traces(800, seed=12)
    points = [
        calibration_curve(fresh, [0.05], method=method, protocol="split", calibration_size=199, repeats=200).points[0]
        for method in (FilteringMethod(scorer), METHODS["subgraph"])
    ]
    assert points[0].realised >= 0.945
    assert points[0].retained >= points[1].retained + 0.08


@pytest.mark.parametrize("combine", ["random", "pooled"])
def test_cross_fitting_never_calibrates_on_what_it_was_trained_on(combine: str) -> None:
    made = generate_traces(30, seed=5)
    fitted = CrossFittedFilter(0.2, folds=2, combine=combine, steps=4, hidden=2).fit(made)  # type: ignore[arg-type]
    assert sum(part.n_ for part in fitted.filters_) == 30
    test = generate_traces(20, seed=6)
    outputs = fitted.predict(test)
    assert [output.trace.id for output in outputs] == [trace.id for trace in test]
    assert fitted.predict(test[::-1])[::-1] == outputs
    assert 0 <= fitted.score(test) <= 1


@pytest.mark.slow
@pytest.mark.claim
def test_cross_fitting_stays_valid() -> None:
    """Small training sets, many of them: coverage over calibration sets is what is promised."""
    right: dict[str, list[bool]] = {"random": [], "pooled": []}
    pool = generate_traces(900, seed=100)
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(900)
        made, test = [pool[row] for row in order[:90]], [pool[row] for row in order[90:390]]
        for combine, found in right.items():
            fitted = CrossFittedFilter(0.2, folds=3, combine=combine, steps=20, hidden=4, seed=seed)  # type: ignore[arg-type]
            for output in fitted.fit(made).predict(test):
                found.append(bool(output.trace.factual[output.mask].all()))
    assert np.mean(right["random"]) >= 0.8 - 0.035
    assert np.mean(right["pooled"]) >= 0.8 - 0.05


def test_bad_training_input() -> None:
    good = [t for t in generate_traces(20, seed=1) if t.factual.all()]
    with pytest.raises(ValueError, match="nothing can be learned"):
        train_scorer(good)
    with pytest.raises(ValueError, match="must be positive"):
        train_scorer(generate_traces(5), steps=0)
    with pytest.raises(ValueError, match="positive and finite"):
        train_scorer(generate_traces(5), learning_rate=float("inf"))
    with pytest.raises(ValueError, match="training diverged with learning_rate=1e\\+37"):
        train_scorer(generate_traces(20), steps=20, learning_rate=1e37)
    with pytest.raises(TypeError, match="give a list of names"):
        train_scorer(generate_traces(5), scores="frequency")
    with pytest.raises(TypeError, match="give a list of names"):
        CrossFittedFilter(scores="frequency").fit(generate_traces(5))
    with pytest.raises(ValueError, match="seed=-1 is out of range"):
        CrossFittedFilter(seed=-1).fit(generate_traces(5))
    with pytest.raises(ValueError, match="folds"):
        CrossFittedFilter(folds=1).fit(generate_traces(5))
    with pytest.raises(RuntimeError, match="not calibrated"):
        CrossFittedFilter().predict(generate_traces(1))
