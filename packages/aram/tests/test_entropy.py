"""Target entropy from the feasible volume."""

from __future__ import annotations

import math

import numpy as np
import pytest
from octavo_aram.constraints import Box, L2Ball, LinearInequality, Orthoplex, SumEquality
from octavo_aram.entropy import feasible_entropy
from octavo_core.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_the_whole_box_keeps_the_usual_target(dim):
    target = feasible_entropy(Box([-1.0] * dim, [1.0] * dim))
    assert target.value == -dim
    assert target.feasible_share == 1.0
    assert target.log_volume == pytest.approx(dim * math.log(2))


def test_a_ball_of_small_radius():
    target = feasible_entropy(L2Ball(0.05, action_dim=2))
    assert target.feasible_share == pytest.approx(math.pi * 0.05 / 4, abs=4 * 0.0008)
    assert -6 < target.value < -2
    assert target.value == pytest.approx(2 * (math.log(target.deviation) + 0.5 * math.log(2 * math.pi * math.e)))


def test_thin_sets_get_a_target_that_falls_with_their_thickness():
    values = [
        np.mean([feasible_entropy(SumEquality(1.0, tol, action_dim=3), seed=seed).value for seed in range(3)])
        for tol in (0.4, 0.1, 0.025)
    ]
    assert values[0] > values[1] > values[2]
    # A set four times as thin: four times as narrow a Gaussian, in each of three components.
    assert values[1] - values[2] == pytest.approx(3 * math.log(4), abs=0.4)
    assert values[1] == pytest.approx(-9.3, abs=0.4)
    # More draws are kept by a narrower Gaussian.
    assert feasible_entropy(SumEquality(1.0, 0.1, action_dim=3), retention=0.9).value > values[1] + 0.4


def test_most_draws_of_that_width_stay_inside():
    slab = SumEquality(1.0, 0.1, action_dim=3)
    target = feasible_entropy(slab, retention=0.9)
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (200_000, 3))
    points = points[slab.contains(None, points)]
    moved = np.clip(points + target.deviation * rng.standard_normal(points.shape), -1, 1)
    assert slab.contains(None, moved).mean() == pytest.approx(0.9, abs=0.02)


def test_sets_that_uniform_draws_never_hit():
    # Flows over a shared link of small capacity: a share of the box of 1 / 10! * 0.2^10.
    corner = LinearInequality(np.ones((1, 10)), [-9.8])
    target = feasible_entropy(corner, num_draws=2000)
    assert target.feasible_share == 0.0
    assert target.log_volume == -math.inf
    # The default keeps 0.9 for ten actions.
    # About 10 (log 0.0016 + 1.42): 10 / 0.063 of the volume within reach of the face, times 0.4 deviations, is 0.1.
    assert target.value == pytest.approx(-50, abs=5)


def test_states_matter_where_the_set_depends_on_them():
    constraint = Orthoplex([0, 1], 1.0)
    slow, fast = np.full((50, 2), 0.1), np.full((50, 2), 30.0)
    assert feasible_entropy(constraint, slow).value == -2.0
    assert feasible_entropy(constraint, fast).value < -4.0
    with pytest.raises(InvalidValueError, match="observation"):
        feasible_entropy(constraint)


def test_retention_must_be_a_share():
    with pytest.raises(InvalidValueError, match="retention"):
        feasible_entropy(L2Ball(0.05, action_dim=2), retention=1.0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_draws": 0}, "num_draws=0"),
        ({"num_draws": -1}, "num_draws=-1"),
        ({"num_draws": 1.5}, "num_draws=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "a"}, "seed='a'"),
    ],
)
def test_counts_and_seeds_are_whole(arguments, match):
    with pytest.raises((InvalidTypeError, InvalidValueError), match=match):
        feasible_entropy(L2Ball(0.05, action_dim=2), **arguments)
