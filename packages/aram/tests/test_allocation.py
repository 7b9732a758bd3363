"""Nearest integer allocation, against exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.envs.allocation import nearest_integer_allocation
from octavo_core.errors import InvalidValueError


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-9, 12) | st.integers(-4, 8).map(lambda n: n / 2), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 4),
    st.floats(0, 1),
)
def test_no_integer_point_is_nearer(target: list[float], low: int, span: int, share: float) -> None:
    high, parts = low + span, len(target)
    total = round(low * parts + share * span * parts)
    found = nearest_integer_allocation(target, total, low, high)
    assert found.sum() == total
    assert found.min() >= low
    assert found.max() <= high
    points = [p for p in itertools.product(range(low, high + 1), repeat=parts) if sum(p) == total]
    best = min(float(np.square(np.array(p) - target).sum()) for p in points)
    assert np.square(found - target).sum() == pytest.approx(best, abs=1e-9)


def test_batches_equal_single_rows_and_keep_their_shape() -> None:
    rng = np.random.default_rng(0)
    target = rng.uniform(-20, 60, (4, 25, 5))
    found = nearest_integer_allocation(target, 150, 0, 40)
    rows = [nearest_integer_allocation(row, 150, 0, 40) for row in target.reshape(-1, 5)]
    np.testing.assert_array_equal(found.reshape(-1, 5), rows)
    assert found.shape == target.shape


def test_largest_remainders_would_not_be_exact() -> None:
    # Sum 90.9: rounding gives (11, 39, 41 -> 40); the unit too much or too few must go where it costs least.
    found = nearest_integer_allocation([10.6, 39.4, 40.9], 90, 10, 40)
    np.testing.assert_array_equal(found, [11, 39, 40])
    np.testing.assert_array_equal(nearest_integer_allocation([[1e9, 0.0, -1e9]], 90, 10, 40), [[40, 40, 10]])
    far = nearest_integer_allocation(1e9 * np.random.default_rng(0).normal(size=(20, 50)), 10**6, 0, 10**6)
    assert (far.sum(axis=1) == 10**6).all()
    np.testing.assert_array_equal(nearest_integer_allocation([1e9, 1e9 + 4, 0.0], 100, 0, 1000), [48, 52, 0])
    np.testing.assert_array_equal(nearest_integer_allocation([0.5, 0.5, 0.5], 2, 0, 1), [1, 1, 0])


@pytest.mark.parametrize(
    ("target", "total", "low", "high", "message"),
    [
        ([1.0, 2.0], 100, 0, 40, "no integer allocation sums to 100"),
        ([1.0, 2.0], 1, 1, 40, "no integer allocation"),
        ([1.0, 2.0], 3, 4, 2, "no integer allocation"),
        ([1.0, float("nan")], 3, 0, 4, "finite"),
        (1.0, 3, 0, 4, "at least one part"),
    ],
)
def test_impossible_allocations_are_refused(target: object, total: int, low: int, high: int, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        nearest_integer_allocation(target, total, low, high)  # ty: ignore[invalid-argument-type]
