from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality.quantile import (
    conformal_threshold,
    coverage_law,
    exact_alpha,
    pac_rank,
    quantile_rank,
)
from octavo_core.errors import OctavoError
from scipy.stats import beta


@given(st.integers(0, 2000), st.integers(1, 999))
@settings(deadline=None)
def test_rank_is_the_exact_ceiling(n: int, thousandths: int) -> None:
    alpha = thousandths / 1000
    exact = (n + 1) * (1 - Fraction(thousandths, 1000))
    rank = quantile_rank(n, alpha)
    assert rank == math.ceil(exact)
    assert 1 <= rank <= n + 1


@given(st.integers(1, 300), st.integers(1, 99), st.integers(1, 99))
@settings(deadline=None)
def test_threshold_is_monotone_in_alpha(n: int, first: int, second: int) -> None:
    scores = np.random.default_rng(n).integers(0, 12, n).astype(float)
    low, high = sorted((first, second))
    assert conformal_threshold(scores, low / 100) <= conformal_threshold(scores, high / 100)


@pytest.mark.parametrize("alpha", [0.1, "0.1", Fraction(1, 10), Decimal("0.1"), np.float64(0.1), "1/10"])
def test_levels_are_read_as_decimal_fractions(alpha: object) -> None:
    assert exact_alpha(alpha) == Fraction(1, 10)  # type: ignore[arg-type]


def test_a_fraction_is_kept() -> None:
    assert quantile_rank(47, Fraction(1, 48)) == 47


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, "x", "1/0", float("nan"), float("inf")])
def test_levels_out_of_range(alpha: object) -> None:
    with pytest.raises(ValueError, match="alpha="):
        exact_alpha(alpha)  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [np.zeros((20, 2)), 3.0, ["a"], [1j], [float("nan")]])
def test_scores_that_are_no_list_of_numbers(scores: object) -> None:
    with pytest.raises(OctavoError, match="give|must be numbers"):
        conformal_threshold(scores, 0.1)


def test_law_of_coverage() -> None:
    law = coverage_law(99, 0.1)
    assert law.rank == 90
    assert law.mean == pytest.approx(0.9)
    assert law.quantile(0.05) == pytest.approx(beta.ppf(0.05, 90, 10))
    assert coverage_law(5, 0.1).interval() == (1.0, 1.0)


@pytest.mark.parametrize(("n", "alpha", "delta"), [(200, 0.1, 0.05), (1000, 0.2, 0.01), (50, 0.3, 0.1)])
def test_pac_rank_is_the_smallest_that_holds(n: int, alpha: float, delta: float) -> None:
    rank = pac_rank(n, alpha, delta)
    assert beta.cdf(1 - alpha, rank, n + 1 - rank) <= delta
    assert beta.cdf(1 - alpha, rank - 1, n + 2 - rank) > delta
    assert pac_rank(10, 0.1, 0.05) == 11


@pytest.mark.parametrize(("n", "alpha"), [(50, 0.1), (99, 0.25), (200, 0.05)])
def test_quantile_agrees_with_crepes(n: int, alpha: float) -> None:
    crepes = pytest.importorskip("crepes")
    # Levels at which its floating-point rank is right: at n = 99 and alpha = 0.2 it is one off.
    scores = np.random.default_rng(n).normal(size=n)
    # crepes ranks residuals upwards: the negated scores. Its interval half-width is the conformal quantile.
    regressor = crepes.ConformalRegressor()
    shift = 10.0
    regressor.fit(shift - scores)
    interval = regressor.predict_int(np.zeros(1), confidence=1 - alpha)
    assert shift - interval[0, 1] == pytest.approx(conformal_threshold(scores, alpha))


@pytest.mark.parametrize(("n", "alpha"), [(50, 0.1), (99, 0.2), (200, 0.05)])
def test_quantile_agrees_with_mapie(n: int, alpha: float) -> None:
    pytest.importorskip("mapie")
    from mapie.regression import SplitConformalRegressor
    from sklearn.dummy import DummyRegressor

    scores = np.random.default_rng(n).normal(size=n)
    shift = 10.0
    X = np.zeros((n, 1))
    model = DummyRegressor(strategy="constant", constant=0.0).fit(X, np.zeros(n))
    regressor = SplitConformalRegressor(model, confidence_level=1 - alpha, prefit=True)
    regressor.conformalize(X, shift - scores)
    _, interval = regressor.predict_interval(np.zeros((1, 1)))
    assert shift - float(np.ravel(interval)[1]) == pytest.approx(conformal_threshold(scores, alpha))
