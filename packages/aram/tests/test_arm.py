from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from octavo_aram.arm import ArmInfo, LowAcceptanceWarning, arm_sample, hit_and_run
from octavo_aram.constraints import (
    Box,
    Constraint,
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
from octavo_aram.registry import make_constraint
from octavo_core.errors import InvalidValueError
from scipy import stats

Draw = Callable[[torch.Tensor, int], torch.Tensor]


def uniform(dim: int, seed: int = 0) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    return lambda obs, n: torch.rand(len(obs), n, dim, generator=generator, dtype=torch.float64) * 2 - 1


def gaussian(mean: list[float], scale: float, seed: int = 0) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    center = torch.tensor(mean, dtype=torch.float64)
    shape = (len(mean),)
    return lambda obs, n: center + scale * torch.randn(len(obs), n, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.claim
def test_accepted_actions_follow_the_truncated_law() -> None:
    count, mean, scale = 100_000, [0.1, -0.05], 0.15
    normal = np.array([0.6, 0.8])
    limit = -0.02
    action, info = arm_sample(
        gaussian(mean, scale), torch.zeros(count, 1), LinearInequality(normal[None], [limit]), max_tries=1000, tol=0.0
    )
    assert info.accepted.all()
    # Along the normal the law is a truncated normal, across it the normal stays; the box is 5 standard deviations off.
    center, across = normal @ mean, np.array([-0.8, 0.6])
    cut = stats.truncnorm(-np.inf, (limit - center) / scale, loc=center, scale=scale)
    along = action.numpy() @ normal
    error = 4 / math.sqrt(count)
    assert abs(along.mean() - cut.mean()) < error * cut.std()
    assert abs(along.var() - cut.var()) < error * math.sqrt(cut.stats(moments="k") + 2) * cut.var()
    side = action.numpy() @ across
    assert abs(side.mean() - across @ mean) < error * scale
    assert abs(side.var() - scale**2) < error * math.sqrt(2) * scale**2
    assert stats.kstest(along, cut.cdf).pvalue > 1e-4


@pytest.mark.claim
def test_tries_are_geometric() -> None:
    count, share = 100_000, math.pi * 0.05 / 4
    _, info = arm_sample(uniform(2), torch.zeros(count, 1), L2Ball(0.05, action_dim=2), max_tries=10_000, tol=0.0)
    deviation = math.sqrt(1 - share) / share
    assert abs(info.tries.mean() - 1 / share) < 4 * deviation / math.sqrt(count)
    assert abs(info.acceptance_rate - share) < 4 * share * math.sqrt((1 - share) / count)
    expected = np.array([share * (1 - share) ** k for k in range(60)])
    seen = np.bincount(info.tries - 1, minlength=60)[:60] / count
    assert (np.abs(seen - expected) < 5 * np.sqrt(expected / count)).all()


def cheap_constraints() -> dict[str, tuple[Constraint, int]]:
    sets: dict[str, Constraint] = {name: make_constraint(name) for name in ("Re+L2", "An+L2", "Re+S", "BSS3z", "BSS5z")}
    sets |= {
        "orthoplex": Orthoplex(range(6), 5.0),
        "power": PositivePower(range(6), 3.0),
        "box": Box([-0.5, 0.1], [0.5, 0.2]),
        "integers": IntegerAllocation(90, 10, 40, action_dim=3),
        "R+T": make_constraint("R+T"),
        "NSFnetV2": make_constraint("NSFnetV2"),
        "NSFnetV3": make_constraint("NSFnetV3"),
    }
    return {name: (constraint, 30 if "NSF" in name else 500) for name, constraint in sets.items()}


@pytest.mark.parametrize("name", cheap_constraints())
@pytest.mark.parametrize("fallback", ["project", "interior", "hit_and_run"])
def test_no_action_is_infeasible(name: str, fallback: str) -> None:
    constraint, count = cheap_constraints()[name]
    rng = np.random.default_rng(3)
    obs = rng.normal(0, 4, (count, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowAcceptanceWarning)
        action, info = arm_sample(
            uniform(constraint.action_dim), torch.tensor(obs), constraint, max_tries=20, fallback=fallback
        )
    assert constraint.contains(obs, action).all()
    assert (info.tries <= 20).all()
    assert info.n_projections == (0 if fallback == "interior" else int((~info.accepted).sum()))
    assert len(info.rejected) == int((info.tries - info.accepted).sum())
    assert not constraint.contains(obs[info.rejected_row], info.rejected).any()


@pytest.mark.slow
@pytest.mark.claim
def test_no_action_is_infeasible_in_a_million_draws() -> None:
    tested = 0
    for name, (constraint, _) in cheap_constraints().items():
        count = 20_000 if "NSF" in name else 100_000
        obs = np.random.default_rng(1).normal(0, 4, (count, 10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LowAcceptanceWarning)
            action, _ = arm_sample(
                uniform(constraint.action_dim, 5), torch.tensor(obs), constraint, max_tries=8, batch=4
            )
        assert constraint.contains(obs, action).all(), name
        tested += count
    assert tested >= 1_000_000


def test_blocks_double_and_only_unfinished_states_are_drawn_again() -> None:
    calls: list[tuple[int, int]] = []
    easy = torch.tensor([[1.0], [0.0], [0.0]])

    def draw(obs: torch.Tensor, n: int) -> torch.Tensor:
        calls.append((len(obs), n))
        return torch.where(obs[:, None] > 0, 0.05, 0.9).expand(len(obs), n, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action, info = arm_sample(draw, easy, L2Ball(0.05, action_dim=2))
    assert calls == [(3, 16), (2, 32), (2, 52)]
    assert info.tries.tolist() == [1, 100, 100]
    assert info.accepted.tolist() == [True, False, False]
    assert (info.n_projections, len(info.rejected)) == (2, 200)
    assert np.bincount(info.rejected_row).tolist() == [0, 100, 100]
    assert action[0].tolist() == pytest.approx([0.05, 0.05])
    assert action[1].tolist() == pytest.approx([math.sqrt(0.025)] * 2)


def test_the_first_feasible_candidate_in_draw_order_is_taken() -> None:
    candidates = np.array([[0.9, -0.8, 0.1, 0.05, 0.7], [0.02, 0.9, 0.9, 0.9, 0.9], [0.8, 0.6, 0.7, 0.9, 0.03]])[
        ..., None
    ]
    served = np.zeros(3, int)

    def draw(obs: np.ndarray, n: int) -> np.ndarray:
        rows = obs[:, 0].astype(int)
        block = np.stack([candidates[row, served[row] : served[row] + n] for row in rows])
        served[rows] += n
        return block

    action, info = arm_sample(draw, np.arange(3.0)[:, None], L2Ball(0.02, action_dim=1), batch=2, max_tries=5)
    assert action[:, 0].tolist() == [0.1, 0.02, 0.03]
    assert info.tries.tolist() == [3, 1, 5]
    assert info.rejected[:, 0].tolist() == [0.9, -0.8, 0.8, 0.6, 0.7, 0.9]
    assert info.rejected_row.tolist() == [0, 0, 2, 2, 2, 2]
    assert served.tolist() == [5, 2, 5]
    assert isinstance(info, ArmInfo)


def test_one_state_no_states_kinds_and_gradients() -> None:
    ball = L2Ball(0.5, action_dim=3)
    draw32 = lambda obs, n: torch.rand(len(obs), n, 3, generator=torch.Generator().manual_seed(n)) - 0.5  # noqa: E731
    action, info = arm_sample(draw32, torch.zeros(7), ball)
    assert (action.shape, action.dtype, info.tries.shape) == ((3,), torch.float32, (1,))
    action, info = arm_sample(draw32, torch.zeros(0, 7), ball)
    assert (action.shape, info.tries.shape, info.rejected.shape) == ((0, 3), (0,), (0, 3))
    assert math.isnan(info.acceptance_rate)
    weight = torch.tensor(0.1, requires_grad=True)
    action, info = arm_sample(lambda obs, n: weight * torch.ones(len(obs), n, 3), torch.zeros(2, 7), ball)
    action.sum().backward()
    assert weight.grad == 6
    assert not info.rejected.requires_grad


def test_the_constraint_reads_its_own_observations() -> None:
    constraint = PositivePower([0], 0.5)
    raw = np.array([[10.0], [0.1]])
    action, info = arm_sample(
        lambda obs, n: torch.full((len(obs), n, 1), 0.9), torch.zeros(2, 4), constraint, constraint_obs=raw, max_tries=3
    )
    assert info.accepted.tolist() == [False, True]
    assert action[:, 0].tolist() == pytest.approx([0.05, 0.9])


def test_what_happens_when_tries_run_out() -> None:
    far = lambda obs, n: torch.full((len(obs), n, 2), 0.9)  # noqa: E731
    oracle = Oracle(lambda obs, act: (np.abs(act) < 0.1).all(1), action_dim=2)
    with pytest.warns(LowAcceptanceWarning, match="none of 4"), pytest.raises(TypeError, match="no projection"):
        arm_sample(far, torch.zeros(1, 1), oracle, max_tries=4)
    with pytest.warns(LowAcceptanceWarning), pytest.raises(RuntimeError, match="none of 4"):
        arm_sample(far, torch.zeros(1, 1), oracle, max_tries=4, fallback="raise")
    helped = Oracle(oracle.fn, action_dim=2, interior=lambda obs: np.zeros(2))
    for fallback in ("interior", "hit_and_run"):
        with pytest.warns(LowAcceptanceWarning):
            action, info = arm_sample(far, torch.zeros(3, 1), helped, max_tries=4, fallback=fallback)
        assert helped.contains(None, action).all()
        assert info.n_projections == 0


def test_rare_acceptance_falls_back_within_the_cap() -> None:
    constraint = make_constraint("NSFnetV2")
    calls = []

    def draw(obs: torch.Tensor, n: int) -> torch.Tensor:
        calls.append(n)
        return uniform(9, len(calls))(obs, n)

    with pytest.warns(LowAcceptanceWarning, match="hit_and_run"):
        action, info = arm_sample(draw, torch.zeros(40), constraint)
    assert sum(calls) == info.tries[0] == 100
    assert constraint.contains(None, action)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_tries": 0}, ">= 1"), ({"batch": 0}, ">= 1"), ({"fallback": "clip"}, "not known")],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arm_sample(uniform(2), torch.zeros(1, 1), L2Ball(0.1, action_dim=2), **options)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda obs, n: torch.zeros(len(obs), n, 3), "return an array or tensor"),
        (lambda obs, n: torch.zeros(len(obs), n + 1, 2), "return an array or tensor"),
        (lambda obs, n: [[0.0, 0.0]], "return an array or tensor"),
        (lambda obs, n: torch.full((len(obs), n, 2), float("nan")), "NaN"),
    ],
)
def test_bad_policies_are_refused(draw: Draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arm_sample(draw, torch.zeros(2, 1), L2Ball(0.1, action_dim=2))


@pytest.mark.claim
def test_hit_and_run_tends_to_the_uniform_law() -> None:
    generator = torch.Generator().manual_seed(0)
    disc = L2Ball(0.25, [0.2, 0.1])
    points = hit_and_run(
        disc, None, torch.tensor([[0.2, 0.1]] * 4000, dtype=torch.float64), steps=20, generator=generator
    )
    assert disc.contains(None, points).all()
    radius = ((points - torch.tensor([0.2, 0.1])).norm(dim=1) ** 2 / 0.25).numpy()
    assert stats.kstest(radius, "uniform").pvalue > 1e-3


def test_hit_and_run_keeps_equations_and_stays_random() -> None:
    plane = SumEquality(1.0, action_dim=3)
    start = np.tile(plane.interior(), (200, 1))
    points = hit_and_run(plane, None, start, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(points.sum(1), 1.0, atol=1e-8)
    assert points.std(0).min() > 0.2
    with pytest.raises(ValueError, match="feasible"):
        hit_and_run(plane, None, np.zeros(3))
    with pytest.raises(ValueError, match="steps"):
        hit_and_run(plane, None, start, steps=-1)


def test_a_union_is_sampled_in_all_its_parts() -> None:
    union = Union([L2Ball(0.05, [-0.5, 0.0]), L2Ball(0.05, [0.5, 0.0])])
    action, info = arm_sample(uniform(2), torch.zeros(2000, 1), union, max_tries=500)
    assert info.accepted.all()
    assert 0.45 < float((action[:, 0] > 0).double().mean()) < 0.55


@pytest.mark.parametrize("arguments", [{"max_tries": 1.5}, {"max_tries": np.nan}, {"max_tries": "a"}, {"batch": 0.5}])
def test_counts_are_whole(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(arguments))):
        arm_sample(lambda obs, n: np.zeros((len(obs), n, 2)), np.zeros(3), L2Ball(0.05, action_dim=2), **arguments)


def test_names_are_refused_and_lists_accepted() -> None:
    def draw(obs: Any, n: int) -> np.ndarray:
        return np.zeros((len(obs), n, 2))

    with pytest.raises(TypeError, match="make_constraint"):
        arm_sample(draw, np.zeros(3), "Re+L2")
    action, _ = arm_sample(draw, [0.0, 0.0, 0.0], L2Ball(0.05, action_dim=2))
    assert action.tolist() == [0.0, 0.0]


def test_the_fallback_is_checked_too() -> None:
    class Shrunk(Constraint):
        action_dim = 2

        def _excess(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return act - 0.5

        def _project(self, obs: Any, act: torch.Tensor) -> torch.Tensor:
            return act * 0.9

    draw = lambda obs, n: np.ones((len(obs), n, 2))  # noqa: E731
    for fallback in ("project", "interior", "hit_and_run"):
        constraint = Shrunk()
        constraint._interior = lambda obs, act: act + 0.9  # ty: ignore[invalid-assignment]
        with pytest.raises(ValueError, match="returned a point outside its set"):
            arm_sample(draw, np.zeros((3, 1)), constraint, max_tries=2, fallback=fallback, warn=False)


def test_moves_of_a_walk_are_whole() -> None:
    with pytest.raises(TypeError, match="steps=2.5 is no whole number"):
        hit_and_run(L2Ball(0.1, action_dim=2), None, np.zeros(2), steps=2.5)


@pytest.mark.parametrize("fallback", ["project", "hit_and_run"])
@pytest.mark.parametrize(
    "make",
    [
        lambda low, wide: LinearInequality(low, wide, action_dim=3),
        lambda low, wide: Union([LinearInequality(low, wide, action_dim=3)] * 2),
        lambda low, wide: Intersection([L2Ball(3.0, action_dim=3), LinearInequality(low, wide, action_dim=3)]),
        lambda low, wide: Intersection(
            [LinearInequality(low, wide, action_dim=3), LinearInequality(lambda obs: 2 * low(obs), wide, action_dim=3)]
        ),
    ],
)
def test_an_empty_state_is_named_by_its_row_in_the_batch(make: Any, fallback: str) -> None:
    constraint = make(lambda obs: np.ones((len(obs), 1, 3)), lambda obs: 1 - 6 * np.abs(obs[:, :1]))
    # Only the fourth state has no feasible action, and the first ones are soon done.
    draw = lambda obs, n: np.full((len(obs), n, 3), -0.1)  # noqa: E731
    obs = np.zeros((5, 4))
    obs[3, 0] = 5.0
    with pytest.raises(InvalidValueError, match=r"row 3\)"):
        arm_sample(draw, obs, constraint, max_tries=2, fallback=fallback, warn=False)
