from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.constraints import (
    Box,
    Constraint,
    Ellipsoid,
    IntegerAllocation,
    Intersection,
    L2Ball,
    LinearInequality,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
    count_qp,
)

Maker = Callable[[np.random.Generator, int], Constraint]


def spread(rng: np.random.Generator, dim: int) -> np.ndarray:
    """Weights over several orders of magnitude, some of them zero."""
    values = rng.normal(size=dim) * 10 ** rng.uniform(-3, 3, dim)
    return np.where(rng.random(dim) < 0.2, 0.0, values)


def polytope(rng: np.random.Generator, dim: int, rows: int) -> LinearInequality:
    matrix, inside = rng.normal(size=(rows, dim)), rng.uniform(-1, 1, dim)
    return LinearInequality(matrix, matrix @ inside + rng.uniform(0, 0.3, rows))


def full(rng: np.random.Generator, dim: int) -> Ellipsoid:
    factor = rng.normal(size=(dim, int(rng.integers(1, dim + 1))))
    return Ellipsoid(factor @ factor.T, rng.uniform(0.01, 1), rng.uniform(-0.9, 0.9, dim))


CONVEX: dict[str, Maker] = {
    "box": lambda rng, dim: Box(-rng.random(dim), rng.random(dim)),
    "ball": lambda rng, dim: L2Ball(rng.uniform(0, 1.5), rng.uniform(-1, 1, dim)),
    "orthoplex": lambda rng, dim: Orthoplex(weights=(w := spread(rng, dim)), limit=rng.random() * np.abs(w).sum()),
    "power": lambda rng, dim: PositivePower(weights=(w := spread(rng, dim)), limit=rng.random() * np.abs(w).sum()),
    "diagonal": lambda rng, dim: Ellipsoid(rng.random(dim) * (rng.random(dim) < 0.8), rng.uniform(0.001, 1)),
    "full": full,
    "half space": lambda rng, dim: polytope(rng, dim, 1),
    "polytope": lambda rng, dim: polytope(rng, dim, int(rng.integers(2, 7))),
    "sum": lambda rng, dim: SumEquality(rng.uniform(-dim, dim), action_dim=dim),
    "intersection": lambda rng, dim: Intersection(
        [
            Orthoplex(weights=rng.normal(size=dim), limit=rng.uniform(0.1, 2)),
            Ellipsoid(rng.random(dim), rng.uniform(0.05, 1)),
        ]
    ),
}


@pytest.mark.parametrize("kind", CONVEX)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 7), reach=st.floats(-2, 2))
def test_the_optimality_condition_of_a_projection_holds(kind: str, seed: int, dim: int, reach: float) -> None:
    # p is the projection of a onto a convex set iff (a - p) . (y - p) <= 0 for every y of the set.
    rng = np.random.default_rng(seed)
    constraint = CONVEX[kind](rng, dim)
    act = rng.normal(size=(6, dim)) * 10**reach
    point = constraint.project(None, act)
    assert constraint.contains(None, point, tol=1e-9).all()
    np.testing.assert_allclose(constraint.project(None, point), point, atol=2e-7)
    others = np.concatenate(
        [constraint.project(None, point + rng.normal(size=point.shape) * size) for size in (1e-3, 0.1, 2)]
    )
    gaps = ((act - point)[:, None] * (others[None] - point[:, None])).sum(-1)
    distance = np.linalg.norm(act - point, axis=1)[:, None]
    assert (gaps <= 1e-7 * (1 + distance)).all()


@pytest.mark.parametrize("kind", CONVEX)
def test_one_action_and_a_batch_agree(kind: str) -> None:
    rng = np.random.default_rng(4)
    for dim in (1, 2, 5, 12):
        constraint = CONVEX[kind](rng, dim)
        act = rng.normal(size=(300, dim)) * 2
        batched = constraint.project(None, act)
        for row in range(0, 300, 60):
            np.testing.assert_allclose(constraint.project(None, act[row]), batched[row], atol=1e-7)
        np.testing.assert_allclose(constraint.project(None, act[:3]), batched[:3], atol=1e-7)


SOLVED: dict[str, Callable] = {
    "orthoplex": lambda cp, x, c: [cp.sum(cp.abs(cp.multiply(c.weights, x))) <= c.limit],
    "power": lambda cp, x, c: [cp.sum(cp.pos(cp.multiply(c.weights, x))) <= c.limit],
    "ball": lambda cp, x, c: [cp.sum_squares(x - c.center) <= c.radius2],
    "full": lambda cp, x, c: [cp.quad_form(x - c.center, cp.psd_wrap(c.matrix)) <= c.bound],
    "polytope": lambda cp, x, c: [c.matrix @ x <= c.bound],
    "sum": lambda cp, x, c: [cp.sum(x) == c.total],
    "intersection": lambda cp, x, c: [
        cp.sum(cp.abs(cp.multiply(c.parts[0].weights, x))) <= c.parts[0].limit,
        cp.sum(cp.multiply(c.parts[1].matrix, cp.square(x))) <= c.parts[1].bound,
    ],
}


@pytest.mark.parametrize("kind", SOLVED)
def test_a_general_solver_finds_nothing_nearer(kind: str) -> None:
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(8)
    for _ in range(8):
        dim = int(rng.integers(1, 7))
        constraint = CONVEX[kind](rng, dim)
        act = rng.normal(size=dim) * 3
        x = cp.Variable(dim)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(x - act)), [*SOLVED[kind](cp, x, constraint), x >= -1, x <= 1])
        problem.solve(solver=cp.CLARABEL)
        ours = constraint.project(None, act)
        # The solver may cut corners by its tolerance, hence 1e-6; the points agree to its square root.
        assert np.linalg.norm(ours - act) <= np.linalg.norm(x.value - act) + 1e-6
        np.testing.assert_allclose(ours, x.value, atol=2e-3)


@pytest.mark.parametrize("kind", CONVEX)
def test_gradient_is_that_of_the_projection(kind: str) -> None:
    rng = np.random.default_rng(11)
    for dim in (2, 4)[: 1 if kind in {"full", "intersection"} else 2]:
        constraint = CONVEX[kind](rng, dim)
        act = torch.tensor(rng.normal(size=(2, dim)) * 2, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a, c=constraint: c.project(None, a), (act,), eps=1e-6, atol=1e-4)
        outside = act.detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda a, c=constraint: c.violation(None, a), (outside,), eps=1e-6, atol=1e-4)


@pytest.mark.parametrize("constraint", [
    Orthoplex([0, 1, 2], 0.5),
    PositivePower([0, 1, 2], 0.5),
    Intersection([Orthoplex([0, 1, 2], 0.5), L2Ball(0.3, action_dim=3)]),
    Intersection([Orthoplex([2, 0, 1], 0.4), PositivePower([0, 1, 2], 0.3), Ellipsoid([1.0, 0.5, 2.0], 0.4)]),
    Union([Orthoplex([0, 1, 2], 0.2), L2Ball(0.01, [0.5, 0.5, 0.5])]),
], ids=str)  # fmt: skip
def test_gradient_of_projections_and_violations_with_respect_to_the_observation(constraint: Constraint) -> None:
    rng = np.random.default_rng(3)
    for rows in (1, 8):
        obs, act = (torch.tensor(rng.normal(size=(rows, 3)) * size, requires_grad=True) for size in (1.0, 1.5))
        for function in (constraint.project, constraint.violation):
            assert torch.autograd.gradcheck(function, (obs, act), eps=1e-6, atol=1e-4)
        alone = constraint.project(obs, act.detach())
        (slope,) = torch.autograd.grad(alone.sum(), obs)
        assert slope.abs().max() > 0


def test_functions_in_numpy_give_the_observation_no_gradient() -> None:
    row = LinearInequality(lambda obs: obs[:, None, :3], [0.2], action_dim=3, min_obs_dim=3)
    obs = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    assert not row.project(obs, torch.ones_like(obs)).requires_grad
    act = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(row.project(obs, act).sum(), (obs, act), allow_unused=True)[0] is None


@pytest.mark.parametrize("kind", CONVEX)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_kind_dtype_and_shape_follow_the_input(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    constraint = CONVEX[kind](rng, 5)
    act = torch.tensor(rng.normal(size=(4, 3, 5)) * 2).to(dtype)
    point = constraint.project(None, act)
    assert isinstance(point, torch.Tensor)
    assert (point.dtype, point.shape) == (dtype, act.shape)
    # Sums of rounded numbers miss an equation by rounding; inequalities are kept by pulling inwards.
    slack = 5 * 2 * torch.finfo(dtype).eps if kind == "sum" else 1e-6
    assert constraint.contains(None, point, tol=slack).all()
    assert constraint.contains(None, act).shape == (4, 3)
    if dtype == torch.float32:
        array = constraint.project(None, act.numpy())
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, point.numpy())


def test_strided_read_only_reversed_and_empty_arrays() -> None:
    rng = np.random.default_rng(0)
    constraint = Orthoplex([3, 0, 5], 1.0)
    obs, act = rng.normal(size=(8, 12)) * 5, rng.normal(size=(6, 8))
    expected = constraint.project(np.ascontiguousarray(obs[::-1, ::2]), np.ascontiguousarray(act.T[:, ::2]))
    act.flags.writeable = False
    np.testing.assert_array_equal(constraint.project(obs[::-1, ::2], act.T[:, ::2]), expected)
    strided = torch.tensor(np.array(act)).T[:, ::2]
    np.testing.assert_array_equal(constraint.project(obs[::-1, ::2], strided).numpy(), expected)
    for kind in CONVEX:
        some = CONVEX[kind](rng, 3)
        assert some.project(None, np.zeros((0, 3))).shape == (0, 3)
        assert some.contains(None, np.zeros((0, 3))).shape == (0,)
        assert some.violation(None, torch.zeros(0, 3)).shape == (0,)
    assert constraint.project(np.zeros((0, 6)), np.zeros((0, 3), np.float32)).dtype == np.float32
    assert constraint.project(np.zeros(6), np.ones(3, int)).dtype == np.float64


@pytest.mark.parametrize("kind", CONVEX)
@pytest.mark.parametrize("size", [1e3, 1e8, 1e100, 1e308])
def test_actions_of_any_magnitude_are_projected_into_the_set(kind: str, size: float) -> None:
    rng = np.random.default_rng(5)
    constraint = CONVEX[kind](rng, 4)
    act = rng.uniform(-1, 1, (5, 4)) * size
    point = constraint.project(None, act)
    assert constraint.contains(None, point, tol=1e-9).all()
    gaps = (act / size * (constraint.project(None, rng.normal(size=(50, 4)))[:, None] - point)).sum(-1)
    assert (gaps <= 1e-4 + 20 / size).all()


@pytest.mark.parametrize("kind", CONVEX)
@pytest.mark.parametrize("distance", [1e3, 1e6, 1e9, 1e11])
def test_far_actions_are_projected_to_the_accuracy_of_their_rounding(kind: str, distance: float) -> None:
    rng = np.random.default_rng(8)
    for dim in (3, 9):
        constraint = CONVEX[kind](rng, dim)
        act = rng.normal(size=(40, dim)) * 3
        nearest = constraint.project(None, act)
        # All points of the ray from the nearest point through the action have that nearest point.
        point = constraint.project(None, nearest + distance * (act - nearest))
        assert constraint.contains(None, point, 1e-9).all()
        np.testing.assert_allclose(constraint.project(None, point), point, atol=2e-7)
        # Interior-point programs tell directions apart less finely.
        np.testing.assert_allclose(point, nearest, atol=1e-8 + (1e-6 if kind == "full" else 2e-13) * distance)


def test_a_program_ends_at_its_best_iterate() -> None:
    # After some 55 steps the method is there, but rounding then drives it away.
    both = Intersection([Box(-np.ones(3), np.ones(3)), LinearInequality([[1, 1, 0], [0, 1, 1]], [0.5, 0.4])])
    point = both.project(None, np.array([1455.06005, 1456.30832, -1.32043097]))
    np.testing.assert_allclose(point, [-0.374135, 0.874135, -1.0], atol=1e-7)


@pytest.mark.parametrize("dim", [3, 100])
@pytest.mark.parametrize("size", 10.0 ** np.arange(9, 16))
def test_no_far_row_makes_a_batch_fail(dim: int, size: float) -> None:
    rng = np.random.default_rng(1)
    act = rng.normal(size=(60, dim)) * size
    weights = rng.normal(size=dim)
    matrix = np.eye(2, dim) + np.eye(2, dim, 1)
    for constraint in (
        Orthoplex(weights=weights, limit=0.5),
        PositivePower(weights=weights, limit=0.5),
        SumEquality(0.3, action_dim=dim),
        LinearInequality(matrix, [0.5, 0.4]),
        Union([LinearInequality(matrix, [0.5, 0.4]), L2Ball(0.1, np.full(dim, 0.5))]),
        Intersection([L2Ball(0.5, action_dim=dim), LinearInequality(matrix, [0.2, 0.1])]),
        Ellipsoid(np.diag(np.linspace(0.1, 1, dim)) + 0.05, 0.3),
    )[: 7 if dim < 10 else 5]:
        assert constraint.contains(None, constraint.project(None, act), 1e-9).all()


def test_weights_of_zero_and_limits_of_zero() -> None:
    act = np.array([0.3, -2.0, 0.7])
    assert Orthoplex([0, 1, 2], 0.0).project(np.zeros(3), act).tolist() == [0.3, -1.0, 0.7]
    assert Orthoplex([0, 1, 2], 0.0).project(np.array([0.0, 1.0, 1e-200]), act).tolist() == [0.3, 0.0, 0.7]
    assert PositivePower([0, 1, 2], 0.0).project(np.array([1.0, 1.0, 0.0]), act).tolist() == [0.0, -1.0, 0.7]
    assert Orthoplex([0], 1.0).project(np.array([1e308]), np.array([1.0]))[0] == pytest.approx(1e-308)
    assert Orthoplex([0, 1], 1.0).contains(np.array([1e-308, 0.0]), np.array([1.0, 1.0]))
    assert L2Ball(0.0, action_dim=2).project(None, np.array([0.3, 0.4])).tolist() == [0.0, 0.0]
    assert Ellipsoid([1.0, 0.0], 0.0).project(None, np.array([0.3, 0.4])).tolist() == [0.0, 0.4]
    assert SumEquality(3.0, action_dim=3).project(None, act).tolist() == [1.0, 1.0, 1.0]
    assert SumEquality(-1.0, action_dim=1).project(None, np.array([0.2])).tolist() == [-1.0]


def test_power_leaves_braking_components_alone() -> None:
    constraint = PositivePower([0, 1, 2], 1.0)
    obs, act = np.array([4.0, -3.0, 2.0]), np.array([0.9, 0.8, 1.0])
    point = constraint.project(obs, act)
    assert point[1] == 0.8
    assert 4 * point[0] + 2 * point[2] == pytest.approx(1.0, abs=1e-12)


def test_quadratic_programs_are_counted_and_closed_forms_are_not() -> None:
    rng = np.random.default_rng(0)
    act = rng.normal(size=(20, 4)) * 3
    with count_qp() as counter:
        for kind in ("box", "ball", "orthoplex", "power", "diagonal", "half space", "sum"):
            constraint = CONVEX[kind](rng, 4)
            assert constraint.exact_projection
            constraint.project(None, act)
        assert counter.solves == 0
        flat = polytope(rng, 4, 3)
        assert not flat.exact_projection
        with count_qp() as inner:
            flat.project(None, act)
        outside = int((~flat.contains(None, act.clip(-1, 1), tol=0)).sum())
        assert inner.solves == counter.solves == outside > 0
    flat.project(None, act)
    assert counter.solves == outside


def test_union_goes_to_the_nearest_part() -> None:
    union = Union([L2Ball(0.05, [-0.5, 0.0]), L2Ball(0.05, [0.5, 0.0])])
    act = np.random.default_rng(0).uniform(-2, 2, (500, 2))
    point = union.project(None, act)
    parts = np.stack([part.project(None, act) for part in union.parts])
    nearest = np.linalg.norm(parts - act, axis=-1).min(0)
    np.testing.assert_allclose(np.linalg.norm(point - act, axis=1), nearest)
    assert union.contains(None, point, 1e-9).all()
    assert not union.contains(None, np.zeros(2))
    assert union.violation(None, np.zeros(2)) == pytest.approx(0.2)
    assert not union.convex


def test_intersections_multiply_out_unions_and_reject_empty_ones() -> None:
    discs = Union([L2Ball(0.05, [-0.5, 0.0]), L2Ball(0.05, [0.5, 0.0])])
    half = LinearInequality([[1.0, 0.0]], [-0.4])
    both = Intersection([discs, half])
    act = np.random.default_rng(1).uniform(-2, 2, (40, 2))
    point = both.project(None, act)
    assert both.contains(None, point, 1e-9).all()
    assert (point[:, 0] <= -0.4 + 1e-9).all()
    assert both.contains(None, both.interior())
    with pytest.raises(ValueError, match="empty"):
        Intersection([L2Ball(0.01, [-0.5, 0.0]), L2Ball(0.01, [0.5, 0.0])]).project(None, np.zeros(2))
    with pytest.raises(ValueError, match="empty"):
        Intersection([L2Ball(0.01, [-0.5, 0.0]), L2Ball(0.01, [0.5, 0.0])]).interior()
    with pytest.raises(TypeError, match="no projection"):
        Intersection([IntegerAllocation(2, 0, 2, action_dim=2), L2Ball(0.01, [1.0, 0.0])]).project(None, np.ones(2))


def test_integer_allocations_are_the_nearest_of_all() -> None:
    constraint = IntegerAllocation(6, 0, 4, action_dim=3)
    every = np.array([[i, j, 6 - i - j] for i in range(5) for j in range(5) if 0 <= 6 - i - j <= 4])
    feasible = (every - constraint.offset) / constraint.scale
    act = np.random.default_rng(0).uniform(-2, 2, (200, 3))
    point = constraint.project(None, act)
    best = np.linalg.norm(act[:, None] - feasible, axis=-1).min(1)
    np.testing.assert_allclose(np.linalg.norm(point - act, axis=1), best, atol=1e-12)
    assert constraint.contains(None, point).all()
    assert not constraint.contains(None, act).any()
    assert (constraint.counts(act).sum(1) == 6).all()


@pytest.mark.parametrize("kind", CONVEX)
def test_interior_points_are_feasible(kind: str) -> None:
    rng = np.random.default_rng(6)
    for dim in (1, 3, 6):
        for _ in range(3):
            constraint = CONVEX[kind](rng, dim)
            assert constraint.contains(None, constraint.interior(), 1e-9)


def test_gradients_at_zero_and_of_one_row() -> None:
    for constraint in (Orthoplex(weights=[1.0, 2.0], limit=5.0), PositivePower(weights=[1.0, 2.0], limit=5.0)):
        act = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        constraint.project(None, act).sum().backward()
        assert act.grad is not None
        assert act.grad.tolist() == [1.0, 1.0]
    weight = torch.tensor([[3.0, 1.0]], dtype=torch.float64, requires_grad=True)
    Orthoplex([0, 1], 1.0).project(weight, torch.tensor([[0.9, 0.8]], dtype=torch.float64))[:, 0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().min() > 0


def test_violations_of_huge_actions_are_no_nan() -> None:
    rng = np.random.default_rng(0)
    for make in CONVEX.values():
        constraint = make(rng, 3)
        act = np.array([1e308, -1e308, 1e308])
        assert not constraint.contains(None, act)
        assert constraint.violation(None, act) > 1e300


def test_thin_and_tiny_sets_are_projected_onto() -> None:
    rng = np.random.default_rng(9)
    inside = rng.uniform(-0.5, 0.5, 4)
    matrix = rng.normal(size=(3, 4))
    act = rng.normal(size=(10, 4))
    for constraint in (
        LinearInequality(np.concatenate([matrix, -matrix]), np.concatenate([matrix @ inside, -matrix @ inside])),
        LinearInequality(np.concatenate([np.eye(4), -np.eye(4)]), np.concatenate([inside, -inside])),
        Intersection([L2Ball(1e-8, inside), LinearInequality(matrix, matrix @ inside)]),
        Intersection([SumEquality(float(inside.sum()), 0.05, action_dim=4), L2Ball(1e-6, inside)]),
        Ellipsoid(np.diag([1e6, 1.0, 1e-6, 1.0]) + 0.1, 1e-6, inside),
    ):
        point = constraint.project(None, act)
        assert constraint.contains(None, point, 1e-8).all()
        np.testing.assert_allclose(constraint.project(None, point), point, atol=2e-7)


@pytest.mark.parametrize(("matrix", "act", "nearest"), [
    (np.outer([2, 1], [2, 1.0]), [1.0, -1.0], [0.5, -1.0]),
    (np.outer([2, 1], [2, 1.0]), [-5.0, 1.0], [-0.5, 1.0]),
    (np.diag([1.0, 2.0, 0.0]) + 0.0, [0.3, 0.4, 2.0], [0.0, 0.0, 1.0]),
])  # fmt: skip
def test_flat_ellipsoids_are_projected_onto_within_the_box(matrix: Any, act: list[float], nearest: list[float]) -> None:
    flat = Ellipsoid(matrix, 0.0)
    np.testing.assert_allclose(flat.project(None, act), nearest, atol=1e-9)
    assert flat.violation(None, flat.project(None, act)) <= 1e-10
    assert not flat.has_volume
    both = Intersection([flat, L2Ball(0.5, action_dim=len(act))])
    assert both.contains(None, both.project(None, act), 1e-9)
    point = Intersection([L2Ball(0.0, [0.1] * len(act)), L2Ball(0.5, action_dim=len(act))])
    np.testing.assert_allclose(point.project(None, act), 0.1, atol=1e-9)


def test_weights_and_rows_many_powers_of_ten_apart() -> None:
    for act in (np.ones(3), np.ones((5000, 3))):
        for scale in (1e12, 1e15, 1e20):
            wide = Orthoplex(limit=1.5, weights=[scale, 1.0, 1.0])
            np.testing.assert_allclose(np.atleast_2d(wide.project(None, act))[0], [0, 0.75, 0.75], atol=1e-9)
    seen = Orthoplex([0, 1], 1.0)
    assert seen.contains(np.array([1e16, 1.0]), seen.project(np.array([1e16, 1.0]), np.array([1.0, 1.0])))
    for scale in (1e6, 1e8, 1e10):
        rows = LinearInequality([[scale, 1.0], [-scale, 1.0]], [1.0, 1.0])
        point = rows.project(None, np.ones(2))
        assert rows.contains(None, point)
        np.testing.assert_allclose(point, [0, 1], atol=1e-6)


def test_a_result_that_float64_cannot_hold_is_an_error() -> None:
    # Each of the sums is a difference of products of size 1e12, whose rounding is far above the tolerance.
    matrix = np.array([[1e12, 1e12 / 3], [-1e12, -1e12 / 3]])
    narrow = LinearInequality(matrix, np.array([0.1, -0.1]))
    with pytest.raises(ValueError, match="rescale the rows"):
        narrow.project(None, np.random.default_rng(0).normal(size=(20, 2)))


def test_bands_count_whole_within_intersections() -> None:
    act = np.random.default_rng(0).normal(size=(30, 3))
    ones = [[1.0, 1.0, 1.0]]
    for parts, low, high in (
        ([SumEquality(1.0, 0.1, action_dim=3), LinearInequality(ones, [0.95])], 0.9, 0.95),
        ([SumEquality(0.0, 0.5, action_dim=3), SumEquality(0.3, 0.5, action_dim=3)], -0.2, 0.5),
        ([SumEquality(0.5, action_dim=3), SumEquality(0.6, 0.2, action_dim=3)], 0.5, 0.5),
    ):
        both = Intersection(parts)
        assert both.contains(None, both.interior(), 1e-9)
        point = both.project(None, act)
        assert both.contains(None, point, 1e-9).all()
        # The same set, written as a polytope.
        same = LinearInequality(np.concatenate([ones, -np.array(ones)]), [high, -low])
        np.testing.assert_allclose(point, same.project(None, act), atol=1e-7)
    np.testing.assert_array_equal(
        Intersection([SumEquality(1.0, 0.1, action_dim=3), L2Ball(1, action_dim=3)]).project(None, [0.3, 0.3, 0.35]),
        [0.3, 0.3, 0.35],
    )


def test_parts_of_a_union_may_be_empty_at_a_state() -> None:
    half = LinearInequality(lambda obs: np.ones((len(obs), 1, 2)), lambda obs: obs[:, :1], action_dim=2)
    union = Union([half, L2Ball(0.1, action_dim=2)])
    obs, act = np.array([[-5.0], [0.5], [-5.0], [1.0], [-9.0]]), np.full((5, 2), 0.9)
    point = union.project(obs, act)
    single = np.stack([union.project(*pair) for pair in zip(obs, act, strict=True)])
    np.testing.assert_allclose(point, single, atol=1e-12)
    np.testing.assert_allclose(point[:, 0], [0.05**0.5, 0.25, 0.05**0.5, 0.5, 0.05**0.5], atol=1e-9)
    assert union.contains(obs, union.interior(obs)).all()
    never = Intersection([L2Ball(0.01, [0.5, 0.5]), L2Ball(0.01, [-0.5, 0.5])])
    fixed = Union([never, L2Ball(0.1, action_dim=2)])
    assert fixed.contains(None, fixed.project(None, act), 1e-9).all()
    assert fixed.contains(None, fixed.interior())
    with pytest.raises(ValueError, match="empty"):
        Union([half, half]).project(obs, act)
    with pytest.raises(ValueError, match="empty"):
        Union([never, never]).interior()


PROGRAMS: dict[str, Callable[[np.random.Generator], Constraint]] = {
    "ellipsoid in the box": lambda rng: Ellipsoid(0.2 * (f := rng.normal(size=(3, 3))) @ f.T, 0.8, [0.6] * 3),
    "ball and polytope": lambda rng: Intersection([L2Ball(1.0, action_dim=3), polytope(rng, 3, 4)]),
    "orthoplex and ellipsoid": CONVEX["intersection"] and (lambda rng: CONVEX["intersection"](rng, 3)),
    "plane and ellipsoid": lambda rng: Intersection([SumEquality(0.4, action_dim=3), Ellipsoid(rng.random(3), 0.4)]),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_gradients_of_programs_are_those_of_differences(kind: str) -> None:
    rng = np.random.default_rng(0)
    constraint, checked = PROGRAMS[kind](rng), 0
    for _ in range(8):
        act = torch.tensor(rng.normal(size=3) * 2)
        exact = torch.autograd.functional.jacobian(lambda a: constraint.project(None, a), act).numpy()
        moves = np.eye(3)[None] * np.array([1e-4, 1e-5, -1e-4, -1e-5])[:, None, None]
        coarse, fine, coarse_back, fine_back = constraint.project(None, act.numpy() + moves)
        coarse, fine = (coarse - coarse_back).T / 2e-4, (fine - fine_back).T / 2e-5
        # Two step sizes that differ lie across a kink.
        if np.abs(coarse - fine).max() < 1e-5:
            np.testing.assert_allclose(exact, fine, atol=2e-5)
            checked += 1
    assert checked >= 5


def test_small_multipliers_count_in_the_gradient() -> None:
    factor = np.random.default_rng(0).normal(size=(4, 4))
    constraint = Ellipsoid(factor @ factor.T * 0.2, 1.5, [0.6] * 4)
    act = np.array([1.0039008995506673, 3.7303242769093634, 0.6882348736361066, -1.564354708493259])
    exact = torch.autograd.functional.jacobian(lambda a: constraint.project(None, a), torch.tensor(act)).numpy()
    steps = 1e-5 * np.eye(4)
    difference = (constraint.project(None, act + steps) - constraint.project(None, act - steps)).T / 2e-5
    np.testing.assert_allclose(exact, difference, atol=1e-5)


@pytest.mark.parametrize("kind", list(CONVEX))
def test_a_projection_stays_where_it_is(kind: str) -> None:
    rng = np.random.default_rng(7)
    for dim in (2, 3, 5, 6):
        for _ in range(10):
            constraint = CONVEX[kind](rng, dim)
            once = constraint.project(None, rng.uniform(-3, 3, (50, dim)))
            np.testing.assert_allclose(constraint.project(None, once), once, atol=1e-11)
