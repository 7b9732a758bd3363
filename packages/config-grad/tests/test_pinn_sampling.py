"""Regions and Latin hypercubes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_config_grad.pinn import Beltrami, Box, Burgers, Kovasznay, LatinHypercube, PointCounts, Schrodinger
from octavo_config_grad.pinn.sampling import edges, face, faces, inside, periodic
from octavo_core.errors import InvalidValueError

BOX = Box((-1.0, 0.0, 2.0), (1.0, 1.0, 5.0))


def draw(region, count, number=0, **options):
    return LatinHypercube(region, count, dtype=torch.float64, **options).draw(number).numpy()


def assert_stratified(column, low, high):
    """One point in each of as many equal slices."""
    slices = np.floor((column - low) / (high - low) * len(column)).astype(int)
    assert sorted(slices) == list(range(len(column)))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 1000])
def test_every_draw_is_a_latin_hypercube(number):
    points = draw(inside(BOX), 37, number)
    assert points.shape == (37, 3)
    for column, low, high in zip(points.T, BOX.lower, BOX.upper, strict=True):
        assert_stratified(column, low, high)


def test_draws_depend_on_seed_stream_and_number_alone():
    fresh = draw(inside(BOX), 8, 300, seed=3, stream=2)
    sampler = LatinHypercube(inside(BOX), 8, seed=3, stream=2, dtype=torch.float64)
    for number in (0, 299, 301):
        assert not np.array_equal(sampler.draw(number).numpy(), fresh)
    assert np.array_equal(sampler.draw(300).numpy(), fresh)
    assert not np.array_equal(draw(inside(BOX), 8, 300, seed=4, stream=2), fresh)
    assert not np.array_equal(draw(inside(BOX), 8, 300, seed=3, stream=1), fresh)


def test_a_face_holds_its_coordinate_and_stratifies_the_others():
    points = draw(face(BOX, 1, "upper"), 20)
    assert (points[:, 1] == 1.0).all()
    assert_stratified(points[:, 0], -1.0, 1.0)
    assert_stratified(points[:, 2], 2.0, 5.0)


def test_faces_share_points_by_area():
    points = draw(faces(BOX, (0, 1, 2)), 220)
    on_face = np.stack([points == np.array(BOX.lower), points == np.array(BOX.upper)])
    # Areas of the six faces: 3, 6 and 2, twice each; 22 in all.
    assert on_face.sum(axis=1).tolist() == [[30, 60, 20], [30, 60, 20]]
    assert (on_face.sum(axis=(0, 2)) == 1).all()


def test_edges_hold_two_coordinates():
    points = draw(edges(BOX, (0, 1, 2)), 240)
    on_end = ((points == np.array(BOX.lower)) | (points == np.array(BOX.upper))).sum(axis=1)
    assert (on_end == 2).all()


def test_periodic_sides_differ_in_their_coordinate_only():
    low, high = np.split(draw(periodic(BOX, 0), 30), 2)
    assert (low[:, 0] == -1.0).all()
    assert (high[:, 0] == 1.0).all()
    assert np.array_equal(low[:, 1:], high[:, 1:])
    assert_stratified(low[:, 1], 0.0, 1.0)


def test_corners_of_a_line():
    assert sorted(draw(faces(Box((0.0,), (1.0,)), (0,)), 6)[:, 0]) == [0.0] * 3 + [1.0] * 3


def sampled(problem, name, count=70):
    entry = problem.losses()[name]
    (condition,) = entry if isinstance(entry, list) else [entry]
    return draw(condition.region, getattr(PointCounts(count, count, count), condition.points))


def test_boundary_rules_of_the_built_in_problems():
    points = sampled(Burgers(3), "boundary")
    assert points[:, 0].tolist() == [-1.0] * 35 + [1.0] * 35
    assert (sampled(Burgers(3), "initial")[:, 1] == 0.0).all()

    x, y = sampled(Kovasznay(), "boundary").T
    # The sides at constant x are 2 long, those at constant y 1.5.
    assert [(x == -0.5).sum(), (x == 1.0).sum(), (y == -0.5).sum(), (y == 1.5).sum()] == [20, 20, 15, 15]

    left, right = np.split(sampled(Schrodinger(), "boundary"), 2)
    assert (left[:, 0] == -5.0).all()
    assert (right[:, 0] == 5.0).all()
    assert np.array_equal(left[:, 1], right[:, 1])

    for problem, fixed in ((Beltrami(), 1), (Beltrami(edges_only=True), 2)):
        points = sampled(problem, "boundary", 120)
        assert ((np.abs(points[:, :3]) == 1.0).sum(axis=1) == fixed).all()
        assert ((points[:, 3] > 0) & (points[:, 3] < 1)).all()


def test_bad_input():
    with pytest.raises(InvalidValueError, match="lower below upper"):
        Box((0.0,), (0.0,))
    with pytest.raises(InvalidValueError, match="as many lower as upper"):
        Box((0.0,), (1.0, 1.0))
    with pytest.raises(InvalidValueError, match="finite"):
        Box((0.0,), (float("inf"),))
    with pytest.raises(InvalidValueError, match="coordinates 0 to 2, got 3"):
        faces(BOX, (3,))
    with pytest.raises(InvalidValueError, match="5 points are too few for a region of 6 pieces"):
        LatinHypercube(faces(BOX, (0, 1, 2)), 5)
    with pytest.raises(InvalidValueError, match="0 boundary points"):
        PointCounts(boundary=0)
