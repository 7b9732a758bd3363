"""Corrections: feasible results, identity inside, gradients, agreement with independent solvers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.constraints import (
    Box,
    Constraint,
    Ellipsoid,
    Intersection,
    L2Ball,
    LinearInequality,
    Oracle,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
    count_qp,
)
from octavo_aram.corrections import (
    CORRECTIONS,
    alpha_projection,
    linear_maximiser,
    nfwpo_target,
    opt_layer,
    radial_squash,
    violation_penalty,
)
from octavo_aram.envs.topology import nsfnet_constraint_matrix
from octavo_core.errors import InvalidTypeError, InvalidValueError

WEIGHTS = [9.0, -4.0, 6.0, 2.0]


def sets() -> dict[str, Constraint]:
    return {
        "ball": L2Ball(0.05, action_dim=2),
        "wide ball": L2Ball(2.0, action_dim=4),
        "ellipsoid": Ellipsoid(np.array([[4.0, 1.0], [1.0, 2.0]]), 0.5),
        "orthoplex": Orthoplex(range(4), 8.0),
        "fixed orthoplex": Orthoplex(weights=WEIGHTS, limit=5.0),
        "power": PositivePower(range(4), 6.0),
        "halfplane": LinearInequality([1.0, 2.0, -1.0], 0.3),
        "network": LinearInequality(*nsfnet_constraint_matrix("V2")),
        "sum": SumEquality(1.0, 0.1, action_dim=3),
        "box": Box([-0.5, -1.0, 0.0], [0.25, 0.5, 1.0]),
    }


def observations(constraint: Constraint, rows: int) -> torch.Tensor | None:
    generator = torch.Generator().manual_seed(rows)
    return 8.0 * torch.randn(rows, 6, generator=generator, dtype=torch.float64) if constraint.needs_obs else None


def actions(constraint: Constraint, rows: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = rows, constraint.action_dim
    return scale * (2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0)


@pytest.mark.parametrize("name", sets())
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_results_are_feasible_for_any_action(name: str, correction: str) -> None:
    constraint = sets()[name]
    obs, raw = observations(constraint, 150), torch.cat([actions(constraint, 50, scale) for scale in (0.2, 1.0, 3.0)])
    corrected = CORRECTIONS[correction](constraint, obs, raw)
    assert corrected.shape == raw.shape
    assert constraint.contains(obs, corrected, tol=1e-9).all()
    single = CORRECTIONS[correction](constraint, None if obs is None else obs[0], raw[0])
    torch.testing.assert_close(single, corrected[0], atol=1e-9, rtol=0)
    low = CORRECTIONS[correction](constraint, None if obs is None else obs.float(), raw.float())
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), corrected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", sets())
@pytest.mark.parametrize("correction", [alpha_projection, opt_layer])
def test_feasible_actions_stay_as_they_are(name: str, correction: Callable[..., torch.Tensor]) -> None:
    constraint = sets()[name]
    obs = observations(constraint, 100)
    inside = constraint.project(obs, actions(constraint, 100, 0.9))
    center = constraint.interior(obs)
    inside = torch.as_tensor(center, dtype=torch.float64) * 0.1 + 0.9 * inside
    torch.testing.assert_close(correction(constraint, obs, inside), inside, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["ball", "ellipsoid", "orthoplex", "power", "halfplane", "network"])
def test_alpha_projection_stops_at_the_border_on_the_ray(name: str) -> None:
    constraint = sets()[name]
    obs, raw = observations(constraint, 100), actions(constraint, 100, 2.0)
    center = torch.as_tensor(constraint.interior(obs), dtype=torch.float64).expand_as(raw)
    corrected = alpha_projection(constraint, obs, raw)
    moved = ~constraint.contains(obs, raw, tol=0.0)
    step, full = (corrected - center)[moved], (raw - center)[moved]
    share = (step * full).sum(-1) / full.square().sum(-1)
    torch.testing.assert_close(step, share[:, None] * full, atol=1e-9, rtol=0)
    beyond = center[moved] + (share * (1 + 1e-6) + 1e-9)[:, None] * full
    assert not constraint.contains(None if obs is None else obs[moved], beyond, tol=0.0).any()
    assert moved.sum() > 20


@pytest.mark.parametrize("name", ["ball", "ellipsoid", "power", "halfplane", "network"])
def test_the_box_profile_maps_the_box_onto_the_set(name: str) -> None:
    constraint = sets()[name]
    obs, raw = observations(constraint, 300), actions(constraint, 300)
    at_border = raw / raw.abs().amax(-1, keepdim=True)
    corrected = radial_squash(constraint, obs, at_border)
    center = torch.as_tensor(constraint.interior(obs), dtype=torch.float64).expand_as(raw)
    outwards = center + (1 + 1e-6) * (corrected - center)
    assert not constraint.contains(obs, outwards, tol=0.0).any()
    torch.testing.assert_close(radial_squash(constraint, obs, center), center, atol=1e-12, rtol=0)
    # Order along a ray is kept, so that the map is one to one.
    nearer = radial_squash(constraint, obs, center + 0.5 * (at_border - center))
    torch.testing.assert_close(nearer, center + 0.5 * (corrected - center), atol=1e-8, rtol=0)


def test_the_tanh_profile_is_smooth_and_stays_inside() -> None:
    ball = L2Ball(0.05, action_dim=2)
    raw = actions(ball, 100, 2.0)
    squashed = radial_squash(ball, None, raw, profile="tanh")
    radius, norm = 0.05**0.5, raw.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(squashed, raw / norm * radius * torch.tanh(norm / radius), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "name", ["ball", "wide ball", "ellipsoid", "orthoplex", "power", "halfplane", "network", "sum"]
)
@pytest.mark.parametrize("correction", ["alpha", "radial", "tanh", "optlayer"])
def test_gradients_are_those_of_differences(name: str, correction: str) -> None:
    constraint = sets()[name]
    obs, raw = observations(constraint, 4), actions(constraint, 4, 1.7, seed=3).requires_grad_()

    def corrected(act: torch.Tensor) -> torch.Tensor:
        if correction == "tanh":
            return radial_squash(constraint, obs, act, profile="tanh")
        return CORRECTIONS[correction](constraint, obs, act)

    torch.autograd.gradcheck(corrected, (raw,), eps=1e-6, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(sets())), st.integers(0, 10_000))
def test_no_feasible_point_beats_the_maximiser(name: str, seed: int) -> None:
    constraint = sets()[name]
    obs, goal = observations(constraint, 5), actions(constraint, 5, 3.0, seed)
    best = linear_maximiser(constraint, obs, goal)
    assert constraint.contains(obs, best, tol=1e-9).all()
    value = (goal * best).sum(-1)
    others = torch.cat([*(actions(constraint, 5, 2.0, seed + k) for k in range(1, 20)), 10 * goal])
    points = constraint.project(None if obs is None else obs.repeat(20, 1), others).reshape(20, 5, -1)
    assert ((goal * points).sum(-1) <= value + 1e-5).all()


@pytest.mark.parametrize("name", ["fixed orthoplex", "halfplane", "network", "sum"])
def test_the_maximiser_solves_the_linear_program(name: str) -> None:
    from scipy.optimize import linprog

    constraint = sets()[name]
    goal = actions(constraint, 8, seed=5)
    tables = {
        "fixed orthoplex": {
            "A_ub": np.array(np.meshgrid(*[[1.0, -1.0]] * 4)).reshape(4, -1).T * WEIGHTS,
            "b_ub": np.full(16, 5.0),
        },
        "halfplane": {"A_ub": [[1.0, 2.0, -1.0]], "b_ub": [0.3]},
        "network": dict(zip(("A_ub", "b_ub"), nsfnet_constraint_matrix("V2"), strict=True)),
        "sum": {"A_eq": np.ones((1, 3)), "b_eq": [1.0]},
    }
    found = (goal * linear_maximiser(constraint, None, goal)).sum(-1)
    solved = [-linprog(-row, **tables[name], bounds=(-1, 1)).fun for row in goal.numpy()]
    np.testing.assert_allclose(found, solved, atol=2e-6)


def test_frank_wolfe_target_moves_from_the_projection_towards_the_maximiser() -> None:
    ball = L2Ball(0.05, action_dim=2)
    raw, gradient = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    radius = 0.05**0.5
    target = nfwpo_target(ball, None, raw, gradient, beta=0.25)
    torch.testing.assert_close(target, torch.tensor([[0.75 * radius, 0.25 * radius]]), atol=1e-5, rtol=0)
    assert not nfwpo_target(ball, None, raw.requires_grad_(), gradient).requires_grad
    torch.testing.assert_close(nfwpo_target(ball, None, raw, gradient, beta=0), ball.project(None, raw.detach()))
    torch.testing.assert_close(linear_maximiser(ball, None, torch.zeros(1, 2)), torch.zeros(1, 2))


def test_penalty_is_the_mean_violation() -> None:
    ball = L2Ball(0.05, action_dim=2)
    act = torch.tensor([[0.5, 0.0], [0.1, 0.0]], requires_grad=True)
    penalty = violation_penalty(ball, None, act, coefficient=10)
    assert penalty.item() == pytest.approx(10 * (0.25 - 0.05) / 2)
    penalty.backward()
    torch.testing.assert_close(act.grad, torch.tensor([[5.0, 0.0], [0.0, 0.0]]))


def test_rays_need_no_qp() -> None:
    network = LinearInequality(*nsfnet_constraint_matrix("V3"))
    raw = actions(network, 50)
    with count_qp() as counter:
        alpha_projection(network, None, raw)
        radial_squash(network, None, raw)
    assert counter.solves == 0
    with count_qp() as counter:
        opt_layer(network, None, raw)
    assert counter.solves > 0


def test_projection_layer_agrees_with_cvxpylayers() -> None:
    cvxpy = pytest.importorskip("cvxpy")
    layers = pytest.importorskip("cvxpylayers.torch")
    constraint = Orthoplex(weights=WEIGHTS, limit=5.0)
    raw, variable = cvxpy.Parameter(4), cvxpy.Variable(4)
    limits = [cvxpy.norm1(cvxpy.multiply(WEIGHTS, variable)) <= 5.0, variable <= 1, variable >= -1]
    layer = layers.CvxpyLayer(
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(variable - raw)), limits), [raw], [variable]
    )
    act = actions(constraint, 12, 1.5, seed=2)
    ours, theirs = act.clone().requires_grad_(), act.clone().requires_grad_()
    result, (expected,) = opt_layer(constraint, None, ours), layer(theirs, solver_args={"eps": 1e-9})
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)
    probe = actions(constraint, 12, seed=9)
    (result * probe).sum().backward()
    (expected * probe).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=0)


def test_bad_input_is_refused() -> None:
    ball = L2Ball(0.05, action_dim=2)
    discs = Union([L2Ball(0.05, center=[0.5, 0.0]), L2Ball(0.05, center=[-0.5, 0.0])])
    act = torch.zeros(1, 2)
    for correction in (*CORRECTIONS.values(), linear_maximiser):
        with pytest.raises(InvalidTypeError, match="not convex"):
            correction(discs, None, act)
        with pytest.raises(InvalidValueError, match="shape"):
            correction(ball, None, torch.zeros(1, 3))
        with pytest.raises(InvalidValueError, match="NaN"):
            correction(ball, None, torch.full((1, 2), torch.nan))
    with pytest.raises(InvalidValueError, match="'box' or 'tanh'"):
        radial_squash(ball, None, act, profile="cube")
    with pytest.raises(InvalidValueError, match="centre to move from"):
        alpha_projection(ball, None, act, center=torch.ones(1, 2))
    with pytest.raises(InvalidValueError, match="beta=2"):
        nfwpo_target(ball, None, act, act, beta=2)
    with pytest.raises(InvalidValueError, match="coefficient"):
        violation_penalty(ball, None, act, coefficient=-1)
    oracle = Oracle(lambda action: np.abs(action).sum(-1) <= 1, action_dim=2)
    with pytest.raises(InvalidTypeError):
        alpha_projection(oracle, None, act + 0.9)


FLAT: dict[str, Constraint] = {
    "box": Box([-1, 0.5], [1, 0.5]),
    "orthoplex": Orthoplex(limit=0.0, weights=[0.0, 1.0]),
    "ellipsoid": Ellipsoid([0.0, 1.0], 0.0),
    "full ellipsoid": Ellipsoid(np.outer([2, 1.0], [2, 1.0]), 0.0),
    "opposite rows": LinearInequality([[1, 1], [-1, -1]], [0.2, -0.2]),
    "a face of the box": LinearInequality([[0.0, 1.0, 1.0]], [-2.0]),
    "sum and rows": Intersection([SumEquality(0.5, action_dim=3), LinearInequality([[1, -1, 0], [-1, 1, 0]], [0, 0])]),
    "ellipsoid and rows": Intersection([Ellipsoid([1, 2, 3], 0.8), LinearInequality([[1, 1, 0], [-1, -1, 0]], [0, 0])]),
}


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("correction", ["alpha", "radial"])
def test_flat_sets_are_covered(name: str, correction: str) -> None:
    constraint = FLAT[name]
    raw = actions(constraint, 200, 3.0).requires_grad_()
    corrected = CORRECTIONS[correction](constraint, None, raw)
    assert constraint.contains(None, corrected, tol=1e-7).all()
    ends = constraint.project(None, 1e5 * actions(constraint, 100, seed=1))
    # The extremes are reached in each coordinate.
    torch.testing.assert_close(corrected.detach().amax(0), ends.amax(0), atol=0.06, rtol=0)
    torch.testing.assert_close(corrected.detach().amin(0), ends.amin(0), atol=0.06, rtol=0)
    corrected.square().sum().backward()
    assert raw.grad is not None
    assert torch.isfinite(raw.grad).all()


def test_sets_may_be_flat_at_some_states() -> None:
    band = LinearInequality(
        lambda obs: np.stack([np.ones((len(obs), 2)), -np.ones((len(obs), 2))], 1),
        lambda obs: np.stack([0.2 + obs[:, 0], obs[:, 0] - 0.2], 1),
        action_dim=2,
        min_obs_dim=1,
    )
    obs = torch.tensor([[0.0], [0.5]], dtype=torch.float64).repeat(100, 1)
    corrected = alpha_projection(band, obs, actions(band, 200))
    assert band.contains(obs, corrected, tol=1e-7).all()
    assert corrected[::2].std(0).min() > 0.2
    assert corrected.sum(-1)[1::2].std() > 0.2
    assert corrected.sum(-1)[::2].std() < 1e-7
