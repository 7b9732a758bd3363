from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import EngineConfig, max_length, precision_bound
from octavo_prompt_turing.precision import ENGINES, margin_bits, smallest_gap


def test_gap_is_a_lower_bound_and_tight() -> None:
    mpmath = pytest.importorskip("mpmath")
    mp, mpf, sqrt = mpmath.mp, mpmath.mpf, mpmath.sqrt
    mp.prec = 400
    for length in (2, 3, 10, 100, 5_000, 10**6):
        i = mpf(length)
        pe1 = 1 - (i * (i + 1) + 1) / sqrt((i * i + 1) * ((i + 1) ** 2 + 1))
        exact = pe1 * (1 / (i - 1) - 1 / i)
        bound = smallest_gap(length)
        ours = mpf(bound.numerator) / mpf(bound.denominator)
        assert ours <= exact
        assert ours > exact * mpf(0.9)


def test_bound_grows_like_six_bits_a_doubling() -> None:
    bits = [precision_bound(2**k) for k in range(4, 30)]
    assert all(after - before == 6 for before, after in itertools.pairwise(bits[4:]))
    assert bits[0] < bits[1]


@pytest.mark.parametrize("length", [2, 17, 1_000, 123_456])
def test_bound_and_length_are_inverse(length: int) -> None:
    bits = precision_bound(length)
    assert Fraction(1, 2**bits) < smallest_gap(length)
    limit = max_length("reference", bits=bits)
    assert limit is not None
    assert limit >= length
    assert precision_bound(limit + 1) > bits


def test_lengths_of_engines() -> None:
    assert max_length("exact") is None
    assert max_length("deficit64") == 2**17
    assert max_length("float32") == 8
    assert max_length("float64") == EngineConfig("float64").max_length == 223
    assert max_length("float64", tie_tolerance=0.5) == 1


def test_margin_says_when_an_engine_ends() -> None:
    assert margin_bits("exact", 10**9) == float("inf")
    assert margin_bits("deficit64", 2**17) == 0
    limit = max_length("float64")
    assert limit is not None
    assert margin_bits("float64", limit) > 0 > margin_bits("float64", limit + 1)
    assert all(margin_bits(engine, 100) > margin_bits(engine, 200) for engine in ("deficit64", "float64", "float32"))
    assert set(ENGINES) > {"exact"}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="unknown engine 'fast'"):
        EngineConfig("fast")
    with pytest.raises(InvalidValueError, match="tie_tolerance=2"):
        EngineConfig("float64", tie_tolerance=2.0)
    with pytest.raises(InvalidValueError, match="bits=3"):
        EngineConfig("reference", bits=3)
    with pytest.raises(InvalidValueError, match="too short"):
        precision_bound(1)


@pytest.mark.parametrize("bits", [8, 44, 128])
def test_the_reference_engine_with_a_limit_has_a_margin(bits: int) -> None:
    limit = max_length("reference", bits=bits)
    assert limit is not None
    assert margin_bits("reference", limit, bits=bits) > 0 > margin_bits("reference", limit + 1, bits=bits)
    assert margin_bits("reference", limit) == float("inf")


@pytest.mark.parametrize("length", [10, 1_000, 10**5, 10**6])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_numbers_of_numpy_are_taken(kind: type, length: int) -> None:
    assert precision_bound(kind(length)) == precision_bound(length)
    assert margin_bits("deficit64", kind(length)) == margin_bits("deficit64", length)
    close = np.float32(1e-8)
    assert max_length("float64", tie_tolerance=close) == max_length("float64", tie_tolerance=float(close))
