from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from octavo_aram.constraints import (
    Box,
    IntegerAllocation,
    L2Ball,
    LinearInequality,
    Oracle,
    Orthoplex,
    SumEquality,
    Union,
    VolumeEstimate,
)
from octavo_aram.registry import make_constraint
from scipy.special import gamma


def sum_band(dim: int, total: float, half: float) -> float:
    """Chance that a sum of uniforms on [-1, 1] lies in a band: a difference of Irwin-Hall distribution functions."""

    def below(x: float) -> float:
        terms = ((-1) ** k * math.comb(dim, k) * (x - k) ** dim for k in range(math.floor(x) + 1))
        return sum(terms) / math.factorial(dim)

    return below((total + half + dim) / 2) - below((total - half + dim) / 2)


@pytest.mark.claim
@pytest.mark.parametrize(
    ("name", "expected", "error"),
    [
        ("Re+L2", math.pi * 0.05 / 4, 0.0),
        ("An+L2", 0.2230, 0.001),
        ("BSS3z", 0.0506, 0.0005),
        ("BSS5z", 0.01030, 0.0002),
        ("BSS3z", sum_band(3, 1.0, 0.1), 0.0),
        ("BSS5z", sum_band(5, 2.5, 0.1), 0.0),
        ("Re+S", math.pi * 0.1 / 4, 0.0),
    ],
)
def test_volume_fractions(name: str, expected: float, error: float) -> None:
    estimate = make_constraint(name).volume_fraction()
    assert abs(estimate.value - expected) < 4 * math.hypot(estimate.stderr, error)
    assert estimate.stderr < 0.1 * expected
    dim = make_constraint(name).action_dim
    assert estimate.log_volume == pytest.approx(math.log(estimate.value) + dim * math.log(2))


@pytest.mark.claim
def test_the_link_capacities_have_a_tiny_volume() -> None:
    # Uniform draws found 4e-6.
    estimate = make_constraint("NSFnetV2").volume_fraction(n=30_000)
    assert 2.5e-6 < estimate.value < 5e-6
    assert estimate.stderr < 0.5 * estimate.value


def test_thin_balls_are_measured_by_level_sets() -> None:
    dim, radius2 = 6, 0.01
    exact = (math.pi * radius2) ** (dim / 2) / gamma(dim / 2 + 1) / 2**dim
    estimate = L2Ball(radius2, action_dim=dim).volume_fraction(n=20_000, seed=2)
    assert abs(estimate.value - exact) < 4 * estimate.stderr
    assert estimate.stderr < 0.6 * exact


def test_sets_without_volume_have_none() -> None:
    for constraint in (
        SumEquality(1.0, action_dim=3),
        IntegerAllocation(6, 0, 4, action_dim=3),
        Union([SumEquality(1.0, action_dim=3), SumEquality(0.0, action_dim=3)]),
        Oracle(lambda obs, act: np.zeros(len(act), bool), action_dim=3),
    ):
        estimate = constraint.volume_fraction(n=2000)
        assert (estimate.value, estimate.log_volume) == (0.0, -math.inf)


def test_states_seeds_and_full_boxes() -> None:
    constraint = Orthoplex([0, 1], 1.0)
    obs = np.array([[1.0, 1.0], [0.5, 0.5]])
    assert constraint.volume_fraction(obs[0]).value == pytest.approx(0.5, abs=0.005)
    assert constraint.volume_fraction(torch.tensor(obs)).value == pytest.approx(0.75, abs=0.005)
    assert constraint.volume_fraction(obs, seed=1) == constraint.volume_fraction(obs, seed=1)
    assert Box([-1.0], [1.0]).volume_fraction(n=10).value == 1.0
    with pytest.raises(ValueError, match="n >= 1"):
        constraint.volume_fraction(obs, n=0)
    with pytest.raises(ValueError, match="depends on the state"):
        constraint.volume_fraction()


def test_oracles_keep_the_estimate_of_their_draws() -> None:
    oracle = Oracle(lambda obs, act: (act**2).sum(1) <= 0.0005, action_dim=2)
    estimate = oracle.volume_fraction()
    exact = math.pi * 0.0005 / 4
    assert abs(estimate.value - exact) < 4 * estimate.stderr
    assert estimate.log_volume == pytest.approx(math.log(estimate.value) + 2 * math.log(2))


def test_no_hit_is_no_exact_zero() -> None:
    estimate = LinearInequality([[1.0, 1.0], [-1.0, -1.0]], [0.2, -0.2]).volume_fraction(n=2000)
    assert (estimate.value, estimate.stderr) == (0.0, pytest.approx(1 / 2000))
    nothing = Oracle(lambda obs, act: np.zeros(len(act), bool), action_dim=3).volume_fraction(n=2000)
    assert nothing.stderr == pytest.approx(1 / 2000)
    for flat in (L2Ball(0.0, action_dim=2), Box([0.0, -1.0], [0.0, 1.0]), Orthoplex(limit=0.0, weights=[0.0, 1.0])):
        assert flat.volume_fraction() == VolumeEstimate(0.0, 0.0, -math.inf)


def test_many_actions_and_numbers_of_draws_that_are_not_whole() -> None:
    assert Box(-np.ones(22_000), np.ones(22_000)).volume_fraction(n=20).value == 1.0
    with pytest.raises(TypeError, match="n=1.5 is no whole number"):
        L2Ball(0.1, action_dim=2).volume_fraction(n=1.5)
