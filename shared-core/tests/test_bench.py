from __future__ import annotations

import gc
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo_core.bench import Timing, compare, fit_power_law, peak_bytes, speed_row, time_call
from octavo_core.errors import InvalidValueError


def test_calls_are_interleaved_after_warm_up() -> None:
    order: list[str] = []
    compare({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=2, min_seconds=0.0)
    # Two warm-up calls and one that calibrates, of each; then the repetitions in turn.
    assert "".join(order) == "aaabbb" + "ab" * 3


def test_a_short_call_is_looped_and_the_time_is_per_call() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.001)

    timing = time_call(call, repeats=2, min_seconds=0.02)
    assert calls > 2 + 2 * 2
    assert 0.001 <= timing.median < 0.02
    assert len(timing.samples) == 2


def test_the_collector_and_the_threads_return_even_after_an_error() -> None:
    seen: list[tuple[bool, int]] = []

    def call() -> None:
        seen.append((gc.isenabled(), torch.get_num_threads()))
        if len(seen) == 3:
            raise KeyError

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError):
            compare({"call": call}, repeats=5, min_seconds=0.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert gc.isenabled()
    assert seen == [(True, 1), (True, 1), (False, 1)]


def test_threads_none_leaves_them() -> None:
    seen: set[int] = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        time_call(lambda: seen.add(torch.get_num_threads()), repeats=1, min_seconds=0.0, threads=None)
    finally:
        torch.set_num_threads(before)
    assert seen == {2}


@pytest.mark.parametrize("options", [{"repeats": 0}, {"warmup": -1}])
def test_impossible_numbers_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="repeats >= 1 and warmup >= 0"):
        time_call(lambda: None, **options)


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="cannot time 0 calls"):
        compare({})


def test_timing_gives_the_median_and_the_quartiles() -> None:
    timing = Timing((5.0, 1.0, 2.0, 3.0, 4.0))
    assert timing.median == 3.0
    assert timing.spread == (2.0, 4.0)


@pytest.mark.parametrize(("unit", "scale"), [("s", 1.0), ("ms", 1e3), ("us", 1e6)])
def test_speed_row_scales_and_puts_the_peer_over_ours(unit: str, scale: float) -> None:
    row = speed_row("id", "label", Timing((0.5, 0.5, 1.0)), Timing((2.0,)), "peer 1", unit=unit, target="ratio >= 4")
    assert (row.value, row.peer_value, row.unit) == (0.5 * scale, 2.0 * scale, unit)
    assert row.spread == (0.5 * scale, 0.75 * scale)
    assert row.ratio == 4.0
    assert row.holds is True


def test_peak_bytes_counts_what_the_call_needs() -> None:
    size = 64 * 2**20

    def call() -> None:
        block = torch.ones(size // 4)
        time.sleep(0.03)
        del block

    assert 0.8 * size <= peak_bytes(call) <= 1.3 * size


@given(
    st.floats(-3, 3),
    st.floats(1e-3, 1e3),
    st.lists(st.floats(1e-2, 1e4), min_size=2, max_size=6, unique_by=lambda x: round(math.log(x), 1)),
)
def test_a_power_law_is_recovered(exponent: float, factor: float, sizes: list[float]) -> None:
    fit = fit_power_law(sizes, [factor * size**exponent for size in sizes])
    assert fit.exponent == pytest.approx(exponent, abs=1e-6)
    assert fit.factor == pytest.approx(factor, rel=1e-6)


def test_r_squared_tells_a_law_from_noise() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0]
    assert fit_power_law(sizes, [3.0, 6.0, 12.0, 24.0]).r_squared == pytest.approx(1.0)
    assert fit_power_law(sizes, [1.0, 5.0, 1.0, 5.0]).r_squared < 0.5
    assert fit_power_law(sizes, [7.0] * 4).r_squared == 1.0


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ([1.0], [1.0]),
        ([2.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [1.0]),
        ([1.0, 2.0], [1.0, 0.0]),
        ([-1.0, 2.0], [1.0, 1.0]),
        ([1.0, 2.0], [1.0, np.inf]),
        ([1.0, np.nan], [1.0, 2.0]),
    ],
)
def test_points_that_no_law_fits_are_refused(sizes: list[float], values: list[float]) -> None:
    with pytest.raises(InvalidValueError, match="two or more different positive sizes"):
        fit_power_law(sizes, values)
