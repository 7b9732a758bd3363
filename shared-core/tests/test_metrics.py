from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_core.errors import InvalidValueError
from octavo_core.metrics import (
    AccuracyMatrix,
    beta_interval,
    binomial_interval,
    bootstrap_interval,
    compare_paired,
)
from scipy import stats

finite = st.floats(-1e6, 1e6)


@settings(deadline=None, max_examples=25)
@given(st.lists(finite, min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_bootstrap_interval_lies_within_the_sample_and_repeats(values: list[float], confidence: float) -> None:
    interval = bootstrap_interval(values, confidence=confidence, resamples=199)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    assert interval == bootstrap_interval(values, confidence=confidence, resamples=199)


def test_bootstrap_interval_of_a_mean_is_close_to_the_normal_one() -> None:
    sample = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = bootstrap_interval(sample)
    half = 1.96 * sample.std(ddof=1) / 20
    assert interval.estimate == pytest.approx(sample.mean())
    assert interval.low == pytest.approx(sample.mean() - half, abs=0.02)
    assert interval.high == pytest.approx(sample.mean() + half, abs=0.02)
    assert sample.mean() in interval
    assert 9.0 not in interval


def test_bootstrap_interval_narrows_with_the_confidence() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    wide, narrow = (bootstrap_interval(values, np.median, confidence=level) for level in (0.99, 0.5))
    assert wide.low <= narrow.low <= narrow.high <= wide.high
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 1.0 + 1e-15]])
@pytest.mark.parametrize("statistic", [np.mean, np.median])
def test_degenerate_samples_give_a_finite_interval_in_silence(values: list[float], statistic: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interval = bootstrap_interval(values, statistic)
    assert min(values) <= interval.low <= interval.high <= max(values)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, np.nan], [1.0, np.inf], [[1.0, 2.0], [3.0, 4.0]]])
def test_bootstrap_refuses_what_has_no_interval(values: list[float]) -> None:
    with pytest.raises(InvalidValueError, match="2 or more finite numbers"):
        bootstrap_interval(np.asarray(values))


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, -0.1])
def test_a_confidence_out_of_range_is_refused_everywhere(confidence: float) -> None:
    for call in (
        lambda: bootstrap_interval([1.0, 2.0], confidence=confidence),
        lambda: binomial_interval(1, 2, confidence=confidence),
        lambda: beta_interval(1.0, 1.0, confidence=confidence),
    ):
        with pytest.raises(InvalidValueError, match=r"confidence .* is out of range"):
            call()


def test_binomial_interval_hand_values() -> None:
    # 0 of n: (0, 1 - (alpha/2)^(1/n)), by the closed form of Clopper and Pearson.
    none = binomial_interval(0, 10)
    assert (none.estimate, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025**0.1)
    everything = binomial_interval(10, 10)
    assert (everything.low, everything.high) == (pytest.approx(0.025**0.1), 1.0)


@given(st.integers(1, 60), st.data())
def test_binomial_interval_is_the_beta_quantiles_and_holds_the_estimate(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    interval = binomial_interval(successes, trials, confidence=0.9)
    assert interval.estimate in interval
    if 0 < successes < trials:
        assert interval.low == pytest.approx(stats.beta.ppf(0.05, successes, trials - successes + 1))
        assert interval.high == pytest.approx(stats.beta.ppf(0.95, successes + 1, trials - successes))


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 2), (0, 0)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(InvalidValueError, match="give trials >= 1 and 0 <= successes <= trials"):
        binomial_interval(successes, trials)


def test_beta_interval_hand_values() -> None:
    uniform = beta_interval(1.0, 1.0, confidence=0.9)
    assert (uniform.estimate, uniform.low, uniform.high) == (0.5, pytest.approx(0.05), pytest.approx(0.95))
    power = beta_interval(3.0, 1.0, confidence=0.8)  # distribution function x^3
    assert (power.low, power.high) == (pytest.approx(0.1 ** (1 / 3)), pytest.approx(0.9 ** (1 / 3)))


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, -2.0), (float("nan"), 1.0)])
def test_shape_parameters_that_are_not_positive_are_refused(alpha: float, beta: float) -> None:
    with pytest.raises(InvalidValueError, match="both shape parameters must be positive"):
        beta_interval(alpha, beta)


def test_paired_comparison_hand_values() -> None:
    outcome = compare_paired([1.0, 2.0, 3.0, 4.0, 9.0], [2.0, 4.0, 6.0, 8.0, 9.0])
    assert (outcome.wins, outcome.losses) == (4, 0)
    assert outcome.p_value == pytest.approx(2 * 0.5**4)
    assert outcome.ratio == pytest.approx(0.5 ** (4 / 5))
    assert outcome.difference.estimate == pytest.approx(-2.0)
    higher = compare_paired([1.0, 2.0, 3.0, 4.0, 9.0], [2.0, 4.0, 6.0, 8.0, 9.0], better="higher")
    assert (higher.wins, higher.losses) == (0, 4)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=2, max_size=10))
def test_swapping_the_methods_swaps_the_outcome(pairs: list[tuple[float, float]]) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    one, other = compare_paired(first, second), compare_paired(second, first)
    assert (one.wins, one.losses, one.p_value) == (other.losses, other.wins, other.p_value)
    assert one.ratio * other.ratio == pytest.approx(1.0)
    assert one.difference.estimate == pytest.approx(-other.difference.estimate)


def test_equal_methods_differ_in_nothing() -> None:
    outcome = compare_paired([1.0, 0.0], [1.0, 0.0])
    assert (outcome.wins, outcome.losses, outcome.p_value, outcome.ratio) == (0, 0, 1.0, None)
    assert outcome.difference.low == outcome.difference.high == 0.0


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="2 and 3 values cannot be paired"):
        compare_paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(InvalidValueError, match="second must be 2 or more finite numbers"):
        compare_paired([1.0, 2.0], [1.0, float("nan")])


def test_accuracy_matrix_hand_values() -> None:
    matrix = AccuracyMatrix(np.array([[0.9, np.nan, np.nan], [0.7, 0.8, np.nan], [0.8, 0.6, 1.0]]))
    assert matrix.average == pytest.approx(0.8)
    assert matrix.average_incremental == pytest.approx((0.9 + 0.75 + 0.8) / 3)
    # Best earlier minus last: 0.9 - 0.8 for the first task, 0.8 - 0.6 for the second.
    assert matrix.forgetting == pytest.approx(0.15)
    assert matrix.backward_transfer == pytest.approx(-0.15)


def test_forgetting_counts_from_the_best_and_transfer_from_the_first() -> None:
    matrix = AccuracyMatrix(np.array([[0.5, 0.0, 0.0], [0.9, 0.4, 0.0], [0.6, 0.4, 0.7]]))
    assert matrix.forgetting == pytest.approx(0.15)
    assert matrix.backward_transfer == pytest.approx(0.05)


def test_one_task_forgets_nothing() -> None:
    matrix = AccuracyMatrix(np.array([[0.25]]))
    assert (matrix.average, matrix.forgetting, matrix.backward_transfer) == (0.25, 0.0, 0.0)


@pytest.mark.parametrize(
    "values", [np.zeros((2, 3)), np.zeros((0, 0)), np.array([[0.5, 0.0], [np.nan, 0.5]]), np.zeros(4)]
)
def test_an_accuracy_matrix_that_lacks_values_is_refused(values: np.ndarray) -> None:
    with pytest.raises(InvalidValueError, match="accuracy matrix"):
        AccuracyMatrix(values)
