"""Problems: exact solutions satisfy them, users can write their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from octavo_config_grad import pinn
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import nn

COUNTS = pinn.PointCounts(40, 48, 40)


class Exact(nn.Module):
    """The exact solution in place of a network."""

    def __init__(self, problem):
        super().__init__()
        self.problem = problem
        self.zero = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, points):
        return self.problem.exact(points) + self.zero


class Wave(pinn.Problem):
    """A user's problem: the wave equation with a standing wave."""

    coordinates, fields = ("x", "t"), ("u",)
    lower, upper = (0.0, 0.0), (1.0, 1.0)
    reference_points = (9, 5)

    def losses(self):
        return {
            "pde": self.interior(lambda f: f("u", "t", "t") - f("u", "x", "x")),
            "boundary": self.boundary(lambda f: f("u"), "x"),
            "initial": [
                self.initial(lambda f: f("u") - torch.sin(math.pi * f.at("x"))),
                self.initial(lambda f: f("u", "t")),
            ],
        }

    def exact(self, points):
        x, t = points.unbind(1)
        return (torch.sin(math.pi * x) * torch.cos(math.pi * t)).unsqueeze(1)


EXACT = [
    pinn.Kovasznay(),
    pinn.Beltrami(),
    pinn.Beltrami(num_losses=2, edges_only=True),
    pinn.PoissonND(dimension=4),
    pinn.HeatND(dimension=3, diffusivity=0.2),
    Wave(),
]


@pytest.mark.parametrize("problem", EXACT, ids=lambda problem: type(problem).__name__)
def test_exact_solutions_have_no_loss(problem):
    objective = pinn.Objective(problem, Exact(problem), COUNTS)
    for index in range(len(objective)):
        assert objective.loss(index).item() ** 0.5 <= 1e-12


ALL = [
    *EXACT,
    pinn.Burgers(),
    pinn.Burgers(num_losses=3),
    pinn.Schrodinger(),
    pinn.Schrodinger(periodic_condition="value+derivative", num_losses=2),
    pinn.KuramotoSivashinsky(),
]


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: type(problem).__name__)
def test_losses_have_gradients_and_fresh_points(problem):
    network = pinn.MLP((len(problem.coordinates), 5, len(problem.fields)))
    objective = pinn.Objective(problem, network, COUNTS, seed=1)
    for index in range(len(objective)):
        first, second = objective.loss(index), objective.loss(index)
        assert first.item() != second.item()
        assert torch.autograd.grad(first, network.vector)[0].abs().max() > 0
    assert objective.draws == [2] * len(objective)


def test_points_are_kept_as_long_as_asked():
    network = pinn.MLP((2, 5, 1))
    objective = pinn.Objective(pinn.Burgers(), network, COUNTS, resample_every=2)
    values = [objective.loss(0).item() for _ in range(4)]
    assert values[0] == values[1] != values[2] == values[3]


def test_two_losses_are_the_sum_of_three():
    network = pinn.MLP((2, 5, 1), dtype=torch.float64)
    two, three = (pinn.Objective(pinn.Burgers(n), network, COUNTS, seed=2) for n in (2, 3))
    assert two.names == ("pde", "boundary+initial")
    torch.testing.assert_close(two.loss(1), three.loss(1) + three.loss(2))


def test_references_of_the_official_sizes():
    assert pinn.Burgers().reference().values.shape == (256 * 100, 1)
    assert pinn.Schrodinger().reference().values.shape == (256 * 201, 2)
    assert pinn.Kovasznay().reference().values.shape == (999, 3)
    assert pinn.Beltrami().reference().values.shape == (5 * 7 * 7 * 8, 4)
    assert pinn.PoissonND(3).reference().axes is None
    assert Wave().reference().grid().shape == (9, 5)
    assert pinn.Problem.exact(Wave(), torch.zeros(1, 2)) is None


@pytest.mark.parametrize("problem", [pinn.Burgers(), Wave(), pinn.PoissonND(2)])
def test_reference_holds_the_exact_solution(problem):
    reference = problem.reference()
    assert reference.errors(problem.exact(torch.from_numpy(reference.points)).numpy()).max_error < 1e-12


def test_options_describe_a_problem():
    assert pinn.Burgers(3).options() == {"num_losses": 3, "viscosity": 0.01 / math.pi}
    assert pinn.HeatND(2).options() == {"dimension": 2, "diffusivity": 0.1}
    assert Wave().options() == {}


class Odd(Wave):
    def __init__(self, losses=None, **changes):
        self._losses = losses
        for name, value in changes.items():
            setattr(self, name, value)

    def losses(self):
        return self._losses(self) if callable(self._losses) else self._losses


def objective_of(problem):
    return pinn.Objective(problem, pinn.MLP((2, 4, 1)), COUNTS)


def test_a_user_learns_what_is_wrong_with_a_problem():
    with pytest.raises(InvalidTypeError, match=r"Odd\.losses\(\) must return a dictionary"):
        objective_of(Odd([1, 2]))
    with pytest.raises(InvalidValueError, match=r"Odd\.losses\(\) returned no loss; return at least one"):
        objective_of(Odd({}))
    with pytest.raises(InvalidTypeError, match=r"Problem has no losses\(\); write one"):
        objective_of(pinn.Problem())
    with pytest.raises(InvalidTypeError, match="Odd has lower=.*; give tuples of numbers"):
        Odd(lower=("a", 0.0)).box()
    with pytest.raises(InvalidTypeError, match=r"Odd\.exact\(\) returned a ndarray; return a tensor"):
        Odd(exact=lambda points: points.numpy()).reference()
    with pytest.raises(InvalidStateError, match=r"loss 'pde' of Odd fails at .*test_pinn_problem\.py:\d+ with ZeroDiv"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: f("u") / (1 // 0))}))
    with pytest.raises(InvalidTypeError, match="loss 'pde' of Odd must be conditions made by"):
        objective_of(Odd({"pde": [lambda f: f("u")]}))
    with pytest.raises(InvalidTypeError, match="loss 'pde' of Odd must be conditions made by"):
        objective_of(Odd({"pde": lambda f: f("u")}))
    with pytest.raises(InvalidValueError, match=r"shape \(40, 1\) for 40 points"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: f("u").unsqueeze(1))})).loss(0)
    with pytest.raises(InvalidTypeError, match="must return tensors, got float"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: (1.0, 2.0))})).loss(0)
    with pytest.raises(InvalidTypeError, match="must return tensors, got NoneType"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: None)})).loss(0)
    with pytest.raises(InvalidValueError, match="no coordinate 'y'; it has x, t"):
        objective_of(Odd(lambda p: {"wall": p.boundary(lambda f: f("u"), "y")}))
    with pytest.raises(InvalidValueError, match="Odd must name its coordinates and fields"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: f("u"))}, coordinates=()))
    with pytest.raises(InvalidValueError, match="2 coordinates and 1 lower ends"):
        objective_of(Odd(lambda p: {"pde": p.interior(lambda f: f("u"))}, lower=(0.0,)))
    with pytest.raises(NotImplementedError, match="Problem must implement losses"):
        pinn.Problem().losses()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pinn.Burgers(num_losses=4), "2 or 3 losses, got 4"),
        (lambda: pinn.Burgers(viscosity=0.0), "viscosity 0.0 must be positive"),
        (lambda: pinn.Schrodinger(periodic_condition="slope"), "unknown periodic condition 'slope'"),
        (lambda: pinn.Schrodinger(num_losses=1), "2 or 3 losses"),
        (lambda: pinn.Kovasznay(reynolds=-1.0), "Reynolds number"),
        (lambda: pinn.Beltrami(num_losses=1), "2 or 3 losses"),
        (lambda: pinn.PoissonND(dimension=1), "2 or more"),
        (lambda: pinn.HeatND(diffusivity=0.0), "diffusivity 0.0 must be positive"),
        (lambda: pinn.KuramotoSivashinsky(final_time=2.0), "at most 1"),
        (lambda: pinn.Objective(pinn.Burgers(), pinn.MLP((2, 1)), COUNTS, resample_every=0), "resample_every=0"),
    ],
)
def test_bad_options(build, message):
    with pytest.raises(InvalidValueError, match=message):
        build()


def test_scattered_points_fill_high_dimensional_domains():
    points = pinn.PoissonND(5).reference().points
    assert np.all((points > 0) & (points < 1))
    assert len(np.unique(points[:, 3])) == 4096
