"""The toy landscape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.baselines import Sum
from octavo_config_grad.landscape import PARETO_ENDS, STARTS, landscape_grid, landscape_losses, trace
from octavo_core.errors import InvalidValueError


def losses_at(x, y):
    return landscape_losses(torch.tensor([x, y], dtype=torch.float64)).tolist()


@pytest.mark.parametrize(
    ("point", "expected"),
    [((5.205, 2.094), (5.9606, 2.6364)), ((3.58, -3.57), (-17.6135, -8.1385)), ((3.22, -8.25), (-18.5608, -9.5495))],
)
def test_known_values(point, expected):
    assert losses_at(*point) == pytest.approx(expected, abs=2e-4)


def test_the_losses_mirror_each_other_below():
    assert losses_at(3.0, -5.0) == pytest.approx(losses_at(-3.0, -5.0)[::-1])


def test_on_the_pareto_set_the_losses_pull_apart():
    (left, bottom), (right, _) = PARETO_ENDS
    for x in np.linspace(left + 0.5, right - 0.5, 5):
        point = torch.tensor([x, bottom], dtype=torch.float64, requires_grad=True)
        first, second = landscape_losses(point).unbind()
        gradients = [torch.autograd.grad(loss, point, retain_graph=True)[0] for loss in (first, second)]
        assert torch.cosine_similarity(*gradients, dim=0) < -0.95


def test_the_origin_is_a_kink_without_gradient():
    point = torch.zeros(2, requires_grad=True)
    for loss in landscape_losses(point).unbind():
        assert not torch.autograd.grad(loss, point, retain_graph=True)[0].any()
    assert (0.0, 0.0) not in STARTS


def test_a_path_of_one_aggregator_is_that_of_adam():
    point = torch.tensor([2.0, -3.0], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([point], lr=0.05)
    for _ in range(20):
        adam.zero_grad()
        first, second = landscape_losses(point).unbind()
        (0.1 * first + second).backward()
        adam.step()
    path = trace(Sum(), (2.0, -3.0), steps=20, lr=0.05, dtype=torch.float64)
    np.testing.assert_allclose(path.points[-1], point.detach().numpy(), rtol=1e-12)


def test_a_path_holds_every_step_and_unscaled_losses():
    # Plain descent: Adam's scaling by element could turn a conflict-free direction uphill for one loss.
    path = trace(ConFIG(), (2.0, -5.0), steps=15, optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr))
    assert path.points.shape == path.losses.shape == (16, 2)
    assert path.points[0].tolist() == [2.0, -5.0]
    np.testing.assert_allclose(path.losses[7], landscape_losses(torch.tensor(path.points[7])).numpy())
    assert (path.losses[-1] < path.losses[0]).all()


def test_another_optimizer():
    path = trace(ConFIG(), (9.0, -1.0), steps=3, optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr))
    assert not np.array_equal(path.points, trace(ConFIG(), (9.0, -1.0), steps=3).points)


def test_grid():
    grid = landscape_grid(extent=2, resolution=5)
    assert grid.losses.shape == (2, 5, 5)
    assert grid.losses[:, 3, 1].tolist() == pytest.approx(losses_at(1.0, -1.0))


@pytest.mark.parametrize("arguments", [{"start": (1.0,)}, {"steps": 0}, {"lr": 0.0}])
def test_bad_paths(arguments):
    with pytest.raises(InvalidValueError, match="a path needs a start"):
        trace(ConFIG(), **{"start": (9.0, 9.0), **arguments})


def test_bad_grid():
    with pytest.raises(InvalidValueError, match="a grid needs an extent"):
        landscape_grid(resolution=1)
