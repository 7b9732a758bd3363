from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from octavo_aram.constraints import (
    Box,
    Constraint,
    Ellipsoid,
    IntegerAllocation,
    Intersection,
    L2Ball,
    LinearInequality,
    Oracle,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
)
from octavo_aram.references import as_constraint
from octavo_aram.registry import make_constraint


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: L2Ball(-0.1, action_dim=2), "empty"),
        (lambda: L2Ball(float("nan"), action_dim=2), "finite"),
        (lambda: L2Ball(0.1), "action_dim"),
        (lambda: L2Ball(0.1, [2.0, 0.0]), "outside"),
        (lambda: L2Ball(0.1, [0.0, 0.0], action_dim=3), "action_dim=3"),
        (lambda: L2Ball(0.1, action_dim=0), ">= 1"),
        (lambda: Box([0.5], [0.1]), "empty"),
        (lambda: Box([-2.0], [0.1]), "normalised"),
        (lambda: Box([0.0], [0.1, 0.2]), "as many"),
        (lambda: Orthoplex([0, 1], -1.0), "empty"),
        (lambda: Orthoplex([-1, 1], 1.0), "indices"),
        (lambda: Orthoplex([], 1.0), "indices"),
        (lambda: Orthoplex([0.5], 1.0), "indices"),
        (lambda: Orthoplex([2**63], 1.0), "indices >= 0, at most"),
        (lambda: Orthoplex([10**20], 1.0), "indices >= 0, at most"),
        (lambda: Orthoplex(limit=1.0), "either"),
        (lambda: PositivePower([0], 1.0, weights=[1.0]), "either"),
        (lambda: PositivePower(weights=[float("inf")], limit=1.0), "finite"),
        (lambda: SumEquality(4.0, action_dim=3), "cannot sum"),
        (lambda: SumEquality(1.0, -0.1, action_dim=3), "half width"),
        (lambda: LinearInequality([[1.0, 0.0], [-1.0, 0.0]], [-0.5, -0.5]), "empty"),
        (lambda: LinearInequality([[1.0, 0.0]], [-2.0]), "empty"),
        (lambda: LinearInequality([[0.0, 0.0]], [-1.0]), "empty"),
        (lambda: LinearInequality([[1.0, 0.0]], [1.0, 2.0]), "as many"),
        (lambda: LinearInequality([[float("nan"), 0.0]], [1.0]), "NaN"),
        (lambda: LinearInequality([[1.0, 0.0], [1.0]], [1.0, 2.0]), "array"),
        (lambda: LinearInequality(lambda obs: obs, [1.0]), "action_dim"),
        (lambda: Ellipsoid([[1.0, 2.0], [0.0, 1.0]], 1.0), "symmetric"),
        (lambda: Ellipsoid([[1.0, 0.0], [0.0, -1.0]], 1.0), "convex"),
        (lambda: Ellipsoid([1.0], -1.0), "empty"),
        (lambda: IntegerAllocation(100, 0, 4, action_dim=3), "cannot hold"),
        (lambda: Union([]), "one or more"),
        (lambda: Union([L2Ball(1, action_dim=2), L2Ball(1, action_dim=3)]), "agree"),
        (lambda: Intersection([3]), "takes constraints"),
        (lambda: Oracle(3, action_dim=2), "function"),
        (lambda: Oracle(lambda obs, act: act[:, 0] > 0, action_dim=2, needs_obs=True, min_obs_dim="a"), "min_obs_dim"),
        (lambda: L2Ball("a", action_dim=2), "radius2='a' is no number"),
        (lambda: L2Ball(None, action_dim=2), "radius2=None is no number"),
        (lambda: L2Ball(0.1, ["a", "b"]), "center is no array of numbers"),
        (lambda: L2Ball(0.1, [1j, 0.0]), "center is no array of numbers"),
        (lambda: Ellipsoid([[1.0, 0.0], [1.0]], 1.0), "matrix is no array"),
        (lambda: Ellipsoid([1.0], "a"), "bound='a' is no number"),
        (lambda: Orthoplex([0, True], 1.0), "indices"),
        (lambda: Orthoplex([[0], [1, 2]], 1.0), "indices"),
        (lambda: Orthoplex([0], "a"), "limit='a'"),
        (lambda: SumEquality("a", action_dim=3), "total='a'"),
        (lambda: IntegerAllocation(2.5, 0, 4, action_dim=3), "total=2.5 is no whole number"),
        (lambda: IntegerAllocation(2, 0.5, 4, action_dim=3), "lower=0.5 is no whole number"),
        (lambda: Union(L2Ball(1, action_dim=2)), "a list of constraints"),
        (lambda: Intersection(3), "a list of constraints"),
        (lambda: make_constraint(None), "names no constraint"),
    ],
)
def test_definitions_that_cannot_be_met_are_refused(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


@pytest.mark.parametrize("method", ["contains", "violation", "project"])
@pytest.mark.parametrize(
    ("obs", "act", "message"),
    [
        (np.zeros(3), np.array([np.nan, 0.0]), "NaN"),
        (np.zeros(3), np.array([np.inf, 0.0]), "NaN or infinite"),
        (np.array([0.0, np.nan, 0.0]), np.zeros(2), "observation"),
        (np.zeros(2), np.zeros(2), "too short"),
        (np.zeros(3), np.zeros(3), "does not fit"),
        (np.zeros(3), np.array(1.0), "does not fit"),
        (None, np.zeros(2), "depends on the state"),
        (np.zeros((4, 3)), np.zeros((3, 2)), "do not match"),
        (np.zeros(3), np.zeros(2, complex), "real"),
        (torch.zeros(3), torch.tensor([float("nan"), 0.0]), "NaN"),
        (torch.zeros(2, 3), torch.zeros(3, 2), "do not match"),
    ],
)
def test_calls_that_cannot_be_answered_are_refused(method: str, obs: Any, act: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(Orthoplex([2, 0], 1.0), method)(obs, act)


def test_state_dependent_sets_can_be_empty_at_a_state() -> None:
    constraint = LinearInequality(lambda obs: obs[:, None, :2], lambda obs: obs[:, 2:], action_dim=2, min_obs_dim=3)
    fine, empty = np.array([1.0, 1.0, 0.5]), np.array([1.0, 1.0, -3.0])
    assert constraint.contains(fine, constraint.project(fine, np.ones(2)))
    with pytest.raises(ValueError, match="empty"):
        constraint.project(empty, np.ones(2))
    with pytest.raises(ValueError, match="empty"):
        constraint.project(np.stack([fine, empty]), np.ones((2, 2)))
    with pytest.raises(ValueError, match="empty"):
        constraint.interior(empty)
    rows = LinearInequality(
        lambda obs: np.stack([obs[:, :2], -obs[:, :2]], 1), lambda obs: obs[:, [2, 2]], action_dim=2, min_obs_dim=3
    )
    with pytest.raises(ValueError, match="empty"):
        rows.project(np.array([1.0, 0.0, -0.1]), np.zeros(2))


def test_functions_of_the_user_are_checked() -> None:
    wrong = LinearInequality(lambda obs: obs, [1.0], action_dim=2)
    with pytest.raises(ValueError, match="shape"):
        wrong.project(np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="finite"):
        Ellipsoid(lambda obs: obs * np.nan, 1.0, action_dim=2).contains(np.zeros(2), np.zeros(2))
    with pytest.raises(TypeError, match="convex"):
        Ellipsoid(lambda obs: -np.ones((len(obs), 2)), 1.0, action_dim=2).contains(np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="one bool per action"):
        Oracle(lambda obs, act: True, action_dim=2).contains(None, np.zeros((3, 2)))
    outside = Oracle(lambda obs, act: act[:, 0] > 0, project=lambda obs, act: -np.abs(act), action_dim=2)
    with pytest.raises(ValueError, match="itself calls infeasible"):
        outside.project(None, -np.ones((2, 2)))


def test_oracles_answer_and_project_with_the_users_functions() -> None:
    ring = Oracle(
        lambda obs, act: np.linalg.norm(act, axis=1) >= obs[:, 0],
        project=lambda obs, act: act / np.linalg.norm(act, axis=1, keepdims=True) * np.maximum(obs[:, :1] * 1.0001, 0),
        action_dim=2,
        needs_obs=True,
        min_obs_dim=1,
    )
    obs, act = np.full((3, 1), 0.5), np.array([[0.1, 0.0], [0.6, 0.0], [0.0, -0.2]])
    assert ring.contains(obs, act).tolist() == [False, True, False]
    point = ring.project(obs, torch.tensor(act, dtype=torch.float32))
    assert ring.contains(obs, point).all()
    assert point[1].tolist() == pytest.approx([0.6, 0.0])
    assert ring.violation(obs, act).tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(TypeError, match="no projection"):
        Oracle(lambda obs, act: act[:, 0] > 0, action_dim=2).project(None, -np.ones(2))
    with pytest.raises(TypeError, match="interior"):
        Oracle(lambda obs, act: act[:, 0] > 0, action_dim=2).interior()


def test_one_observation_serves_many_actions() -> None:
    constraint = Orthoplex([0, 1], 1.0)
    obs, act = np.array([3.0, 4.0]), np.random.default_rng(0).normal(size=(5, 7, 2))
    np.testing.assert_array_equal(
        constraint.project(obs, act), constraint.project(np.broadcast_to(obs, (5, 7, 2)), act)
    )
    assert constraint.interior(np.zeros((4, 2), np.float32)).dtype == np.float32
    assert constraint.interior(torch.zeros(4, 2)).shape == (4, 2)


def test_a_subclass_needs_two_functions() -> None:
    class Corner(Constraint):
        action_dim = 2

        def _excess(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return 0.5 - act

        def _project(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return act.clamp(0.5, 1)

    corner = Corner()
    assert corner.contains(None, corner.interior())
    assert corner.project(None, np.array([0.0, 2.0])).tolist() == [0.5, 1.0]
    assert corner.violation(None, np.array([0.0, 2.0])) == 1.5
    assert corner.volume_fraction().value == pytest.approx(1 / 16, abs=0.002)


@pytest.mark.parametrize("tol", [float("nan"), float("inf"), -1e-6, "a", None, True])
def test_tolerances_are_finite_and_not_negative(tol: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="tol="):
        L2Ball(0.1, action_dim=2).contains(None, np.zeros(2), tol=tol)


def test_lists_are_read_as_arrays() -> None:
    constraint: Any = Orthoplex([0, 1], 1.0)
    assert constraint.contains([1.0, 2.0], [0.2, 0.1]) is True
    assert constraint.contains([1.0, 2.0], [[0.2, 0.1], [1, 1]]).tolist() == [True, False]
    assert constraint.project([3.0, 4.0], [1, 1]).shape == (2,)
    assert constraint.interior([3.0, 4.0]).tolist() == [0.0, 0.0]
    assert constraint.interior([[3.0, 4.0]] * 3).shape == (3, 2)
    for bad in ([[0.1, 0.2], [0.3]], ["a", "b"], None):
        with pytest.raises((ValueError, TypeError), match="action"):
            constraint.contains([1.0, 2.0], bad)
    with pytest.raises(TypeError, match="real"):
        constraint.contains([1.0, 2.0], torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda act: 0.5 - act[:, 0], r"_excess returned shape \(3,\)"),
        (lambda act: act.sum() - 0.5, r"_excess returned shape \(\)"),
        (lambda act: act[:1] - 0.5, r"_excess returned shape \(1, 2\)"),
        (lambda act: act.numpy() - 0.5, "float64; return a torch tensor"),
        (lambda act: act > 0.5, "bool; return a torch tensor"),
        (lambda act: None, "NoneType; return a torch tensor"),
    ],
)
def test_results_of_a_subclass_are_checked(answer: Any, message: str) -> None:
    class Mine(Constraint):
        action_dim = 2

        def _excess(self, obs: Any, act: Any) -> Any:
            return answer(act)

    actions = np.array([[0.1, 0.1], [0.9, 0.9], [0.1, 0.9]])
    for constraint in (Mine(), Union([Mine(), L2Ball(0.1, action_dim=2)]), Intersection([Mine(), Mine()])):
        with pytest.raises((ValueError, TypeError), match=message):
            constraint.contains(None, actions)
        with pytest.raises((ValueError, TypeError), match=message):
            constraint.violation(None, actions)


def test_projections_of_a_subclass_are_checked() -> None:
    class Mine(Constraint):
        action_dim = 2

        def _excess(self, obs: Any, act: Any) -> Any:
            return act - 0.5

        def _project(self, obs: Any, act: Any) -> Any:
            return act[:, :1].clamp(max=0.5)

    with pytest.raises(ValueError, match=r"_project returned shape \(1, 1\)"):
        Mine().project(None, np.ones(2))
    with pytest.raises(ValueError, match=r"_project returned shape \(1, 1\)"):
        Mine().interior()


def test_errors_within_the_users_functions_name_their_place() -> None:
    def broken(obs: np.ndarray) -> np.ndarray:
        return obs[:, 99]

    with pytest.raises(RuntimeError, match=r"'broken' of observations failed in '.*test_constraint_input.py', line"):
        Ellipsoid(broken, 1.0, action_dim=2).contains(np.zeros(2), np.zeros(2))


class Tilted(Constraint):
    """A half plane; what is wrong about it is set from outside."""

    action_dim: Any = 2
    answer: Any = None
    inner: Any = None

    def _excess(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
        return act[:, :1] - 0.5

    def _project(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
        return self.answer(act)

    def _interior(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
        return self.inner(act)


def test_infeasible_results_of_a_subclass_are_refused() -> None:
    tilted, act = Tilted(), np.ones((3, 2))
    tilted.inner = lambda act: act + 0.9
    tilted.answer = lambda act: act * 0.9
    for call in (lambda: tilted.project(None, act), lambda: Union([tilted]).project(None, act)):
        with pytest.raises(ValueError, match=r"Tilted._project returned a point outside its set"):
            call()
    with pytest.raises(ValueError, match=r"Tilted._interior returned a point outside its set"):
        tilted.interior()
    tilted.answer = lambda act: act * torch.nan
    with pytest.raises(ValueError, match=r"Tilted._project returned NaN"):
        tilted.project(None, act)


def test_results_outside_by_rounding_are_pulled_inside() -> None:
    tilted = Tilted()
    tilted.inner = lambda act: act
    tilted.answer = lambda act: act.clamp(max=0.5 + 1.05e-6)
    act = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    point = tilted.project(None, act)
    assert tilted.contains(None, point).all()
    torch.testing.assert_close(point, torch.full_like(point, 0.5), atol=2e-6, rtol=0)
    assert point.requires_grad


def test_oracles_may_be_outside_by_rounding() -> None:
    def nearest(obs: Any, act: np.ndarray) -> np.ndarray:
        return act * np.minimum(1, np.sqrt(0.05 / ((act**2).sum(1, keepdims=True) + 1e-300)))

    act = np.random.default_rng(0).normal(size=(2000, 2))
    for interior in (None, lambda obs: np.zeros(2)):
        disc = Oracle(lambda obs, act: (act**2).sum(1) <= 0.05, project=nearest, action_dim=2, interior=interior)
        assert not disc.contains(None, nearest(None, act)).all()
        for dtype in (np.float64, np.float32):
            point = disc.project(None, act.astype(dtype))
            assert disc.contains(None, point).all()
            np.testing.assert_allclose(point, nearest(None, act), atol=1e-6)
    bad = Oracle(lambda obs, act: act[:, 0] > 0.5, project=lambda obs, act: act * 0 + 0.4999, action_dim=2)
    with pytest.raises(ValueError, match=r"further inside; leave some slack in fn"):
        bad.project(None, np.zeros(2))


def test_a_subclass_needs_its_number_of_actions() -> None:
    tilted = Tilted()
    for wrong in (None, 2.0, "2", True, 0):
        tilted.action_dim = wrong
        for call in (
            lambda: tilted.contains(None, np.zeros(2)),
            tilted.interior,
            tilted.volume_fraction,
            lambda: as_constraint(tilted, None),
        ):
            with pytest.raises(TypeError, match=r"Tilted.action_dim is .*; set it to the number"):
                call()

    class Forgotten(Constraint):
        def _excess(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return act - 0.5

    with pytest.raises(TypeError, match="Forgotten.action_dim is None"):
        Forgotten().contains(None, np.zeros(2))


def test_functions_of_a_subclass_may_work_in_place_but_not_answer_nan() -> None:
    class InPlace(Constraint):
        action_dim = 2

        def _excess(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return act.mul_(2).sub_(1).log() if obs is not None else act.mul_(2).sub_(1)

    act = torch.full((1, 2), 0.1, dtype=torch.float64)
    assert InPlace().contains(None, act).all()
    assert act.tolist() == [[0.1, 0.1]]
    with pytest.raises(TypeError, match=r"define _project\(self, obs, act\) in InPlace"):
        InPlace().project(None, act)
    broken = InPlace()
    broken.needs_obs = True
    with pytest.raises(ValueError, match=r"InPlace._excess returned NaN"):
        broken.contains(torch.zeros(1, 1), act)


def test_huge_rows_are_scaled() -> None:
    huge = LinearInequality([[1e308, 1e308], [1e308, -1e308]], [1e308, 1e308])
    np.testing.assert_allclose(huge.project(None, np.ones(2)), [0.5, 0.5], atol=1e-9)
    assert LinearInequality([[1e-300, 0.0]], [1e300]).project(None, np.ones(2)).tolist() == [1.0, 1.0]
