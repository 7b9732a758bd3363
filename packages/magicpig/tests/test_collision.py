from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_magicpig import collision_probability, expected_fraction
from scipy.stats import binom

MANY_TABLES = [
    (10, 150, 15),
    (10, 1000, 8),
    (2, 4096, 8),
    (1, 4096, 2048),
    (4, 4096, 4096),
    (1, 300, 290),
    (16, 4096, 1),
]

# Cosine, then the probability with 10 bits and 150 tables, and with 8 bits and 75 tables.
TABLE = [
    (-0.1, 0.002715, 0.013197),
    (0.0, 0.009684, 0.035083),
    (0.1, 0.030745, 0.083819),
    (0.3, 0.213667, 0.341589),
    (0.5, 0.735551, 0.795558),
    (0.7, 0.997676, 0.995625),
]


@pytest.mark.parametrize(("cosine", "wide", "narrow"), TABLE)
def test_published_values(cosine: float, wide: float, narrow: float) -> None:
    assert float(collision_probability(cosine, 10, 150)) == pytest.approx(wide, abs=1e-6)
    assert float(collision_probability(cosine, 8, 75)) == pytest.approx(narrow, abs=1e-6)


def test_exact_small_case() -> None:
    assert float(collision_probability(0.0, 2, 3)) == pytest.approx(0.15625, abs=1e-12)
    assert float(collision_probability(0.5, 2, 3)) == pytest.approx(0.41700960219478733, abs=1e-12)


@given(cosine=st.floats(-1, 1), bits=st.integers(1, 16), tables=st.integers(8, 4096), hits=st.integers(0, 8))
def test_it_is_the_binomial_tail(cosine: float, bits: int, tables: int, hits: int) -> None:
    angle = torch.arccos(torch.tensor(cosine, dtype=torch.float64)) / torch.pi
    expected = binom.sf(hits - 1, tables, float((1 - angle) ** bits))
    found = float(collision_probability(cosine, bits, tables, hits))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-300)


@given(bits=st.integers(1, 16), tables=st.integers(2, 300), hits=st.integers(0, 2))
def test_it_rises_with_the_cosine(bits: int, tables: int, hits: int) -> None:
    u = collision_probability(torch.linspace(-1, 1, 201, dtype=torch.float64), bits, tables, hits)
    assert bool((u.diff() >= -1e-12).all())
    assert float(u[-1]) == pytest.approx(1.0)


def test_float32_keeps_the_digits_of_small_probabilities() -> None:
    cosine = torch.linspace(-0.9, 1, 500)
    single = collision_probability(cosine, 10, 150).double()
    double = collision_probability(cosine.double(), 10, 150)
    assert float(((single - double) / double).abs().max()) < 2e-3


def test_half_precision_is_raised() -> None:
    assert collision_probability(torch.zeros(3, dtype=torch.bfloat16), 10, 150).dtype == torch.float32


def test_expected_fraction_is_the_mean() -> None:
    cosine = torch.tensor([0.0, 0.5])
    assert expected_fraction(cosine, 10, 150) == pytest.approx((0.009684 + 0.735551) / 2, abs=1e-5)


@pytest.mark.parametrize(("bits", "tables", "hits"), [(0, 10, 2), (10, 0, 0), (10, 2, 3), (10, 2, -1)])
def test_impossible_counts_are_refused(bits: int, tables: int, hits: int) -> None:
    with pytest.raises(InvalidValueError, match="not possible"):
        collision_probability(0.0, bits, tables, hits)


@pytest.mark.parametrize(("bits", "tables", "hits"), MANY_TABLES)
def test_many_tables_and_hits_do_not_overflow(bits: int, tables: int, hits: int) -> None:
    cosine = torch.linspace(-1, 1, 401, dtype=torch.float64)
    p = (1 - torch.arccos(cosine) / torch.pi) ** bits
    expected = torch.from_numpy(binom.sf(hits - 1, tables, p.numpy()))
    assert torch.allclose(collision_probability(cosine, bits, tables, hits), expected, rtol=1e-6, atol=1e-290)
    assert torch.allclose(collision_probability(cosine.float(), bits, tables, hits).double(), expected, atol=1e-3)


@pytest.mark.parametrize("sizes", [(2.5, 3, 2), (2, 3.5, 2), (2, 3, 1.0), ("a", 3, 2), (True, 3, 2)])
def test_counts_must_be_whole_numbers(sizes: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidTypeError, match="is not an integer"):
        collision_probability(0.5, *sizes)


def test_numpy_counts_are_counts() -> None:
    counts = (np.int64(10), np.int32(150), np.int8(2))
    assert torch.equal(collision_probability(0.5, *counts), collision_probability(0.5, 10, 150, 2))
