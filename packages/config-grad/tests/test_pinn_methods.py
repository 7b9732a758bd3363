"""Methods by name, on losses that need no network."""

from __future__ import annotations

import pytest
import torch
from octavo_config_grad import pinn
from octavo_core.errors import InvalidValueError, OctavoError

CENTERS = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])


def bowls(method, steps, **options):
    """Three bowls with minima apart: every method should end between them."""
    point = torch.tensor([3.0, 3.0], requires_grad=True)
    stepper = pinn.make_stepper(method, lambda i: (point - CENTERS[i]).square().sum(), 3, [point], lr=0.1, **options)
    for _ in range(steps):
        stepper.step()
    return point.detach(), stepper


# Two need packages of their own, and IMTL-G of momenta may point uphill for every loss, as IMTL-G itself may.
LEFT_OUT = ("cagrad", "nash-mtl", "m-imtl-g")


@pytest.mark.parametrize("method", [name for name in pinn.METHODS if name not in LEFT_OUT])
def test_every_method_goes_between_the_minima(method):
    pytest.importorskip("torchjd")
    point, _ = bowls(method, 120)
    # The corners of the triangle of minima, with room for methods that circle its edge.
    assert (point > -0.5).all()
    assert point[0] / 2 + point[1] < 1.5


def test_the_learning_rate_is_set():
    point = torch.tensor([1.0], requires_grad=True)
    stepper = pinn.make_stepper("adam", lambda i: point.square().sum(), 1, [point])
    stepper.set_lr(0.25)
    stepper.step()
    assert point.item() == pytest.approx(0.75)


@pytest.mark.parametrize(("k", "passes"), [(1, 1), (2, 2), (3, 3)])
def test_momentum_methods_refresh_as_many_losses_as_asked(k, passes):
    calls = []
    point = torch.tensor([1.0], requires_grad=True)

    def loss(index):
        calls.append(index)
        return (point - index).square().sum()

    stepper = pinn.make_stepper("m-config", loss, 3, [point], updates_per_step=k)
    for _ in range(3):
        stepper.step()
    assert stepper.passes_per_step == passes
    assert calls == [index % 3 for index in range(3 * k)]


def test_clipping_bounds_the_gradient():
    point = torch.tensor([1e3, 0.0], requires_grad=True)
    stepper = pinn.make_stepper("adam", lambda i: point.square().sum(), 1, [point], clip=0.5)
    stepper.step()
    assert point.grad.norm() == pytest.approx(0.5)


def test_the_projector_solves_its_problem():
    """v >= u minimises v^T G v: the gradient of the objective is non-negative, and zero where v > u."""
    pytest.importorskip("torchjd")
    from octavo_config_grad.pinn.dual_cone import dual_cone_projector

    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randn(5, 3, dtype=torch.float64, generator=generator)
        product = rows @ rows.T
        wanted = torch.rand(2, 5, dtype=torch.float64, generator=generator)
        found = dual_cone_projector()(wanted, product)
        slack = found - wanted
        slope = found @ (product / product.trace() + 1e-4 * torch.eye(5, dtype=torch.float64))
        assert (slack >= -1e-12).all()
        assert (slope >= -1e-10).all()
        assert (slack * slope).abs().max() < 1e-10
    zeros = torch.zeros(5, 5, dtype=torch.float64)
    assert torch.equal(dual_cone_projector()(wanted, zeros), wanted)


def test_upgrad_conflicts_with_no_loss():
    pytest.importorskip("torchjd")
    gradients = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    update = pinn.make_aggregator("upgrad", 4)(gradients)
    assert (gradients @ update > -1e-3).all()


def test_bad_input():
    point = torch.tensor([1.0], requires_grad=True)
    with pytest.raises(InvalidValueError, match="unknown method 'sgd'; give one of adam, config, m-config"):
        pinn.make_stepper("sgd", lambda i: point.sum(), 1, [point])
    with pytest.raises(InvalidValueError, match="unknown aggregator 'gradvac'; give one of config, sum"):
        pinn.make_aggregator("gradvac", 2)
    with pytest.raises(OctavoError, match="rank policy"):
        pinn.make_aggregator("config", 2, rank_policy="none")
