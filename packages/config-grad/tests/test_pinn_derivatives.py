"""Derivatives as residuals ask for them: three ways, one answer."""

from __future__ import annotations

import pytest
import torch
from octavo_config_grad.pinn import MLP, evaluate_fields
from octavo_core.errors import InvalidValueError
from torch import nn

F64 = torch.float64
REQUESTS = [
    ("u",),
    ("v",),
    ("u", "x"),
    ("u", "t"),
    ("v", "x", "x"),
    ("u", "t", "t"),
    ("u", "x", "t"),
    ("v", "t", "x"),
    ("u", "x", "x", "x"),
    ("u", "x", "x", "x", "x"),
]


def evaluate(mode, network=None, wanted=None):
    network = network or MLP((2, 6, 6, 2), dtype=F64)
    points = torch.rand(9, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    return evaluate_fields(network, points, ("x", "t"), ("u", "v"), mode=mode, wanted=wanted)


@pytest.mark.parametrize("request_", REQUESTS, ids="_".join)
def test_forward_sweep_reverse_and_forward_mode_agree(request_):
    found = [evaluate(mode)(*request_) for mode in ("auto", "autograd", "jvp")]
    assert found[0].shape == (9,)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[2], found[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["auto", "autograd", "jvp"])
def test_the_gradient_of_a_residual_agrees_too(mode):
    network = MLP((2, 6, 6, 2), dtype=F64)
    gradients = []
    for way in ("autograd", mode):
        f = evaluate(way, network)
        residual = f("u", "t") + f("u") * f("v", "x") - 0.1 * f("u", "x", "x") + f.at("x") * f("v")
        gradients.append(torch.autograd.grad(residual.square().mean(), network.vector)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-13)


def test_order_of_coordinates_does_not_matter():
    f = evaluate("autograd")
    torch.testing.assert_close(f("u", "x", "t"), f("u", "t", "x"))


def test_what_was_asked_for_is_planned_for_the_next_step():
    wanted = set()
    first = evaluate("auto", wanted=wanted)
    expected = first("u", "x", "x"), first("v", "t")
    assert wanted == {(0, 0), (1,)}
    second = evaluate("auto", wanted=wanted)
    torch.testing.assert_close((second("u", "x", "x"), second("v", "t")), expected)


def test_own_networks_are_differentiated_too():
    network = nn.Sequential(nn.Linear(2, 5), nn.SiLU(), nn.Linear(5, 2)).double()
    torch.testing.assert_close(evaluate("auto", network)("u", "x", "x"), evaluate("jvp", network)("u", "x", "x"))


def test_a_linear_network_has_zero_curvature():
    network = nn.Linear(2, 2).double()
    assert not evaluate("auto", network)("u", "x", "x").any()


def test_bad_input():
    with pytest.raises(InvalidValueError, match="unknown derivative mode 'finite'; give one of auto"):
        evaluate("finite")
    with pytest.raises(InvalidValueError, match="no field 'w'; it has u, v"):
        evaluate("auto")("w")
    with pytest.raises(InvalidValueError, match="no coordinate 'y'; it has x, t"):
        evaluate("auto")("u", "y")
    with pytest.raises(InvalidValueError, match="no coordinate 'y'"):
        evaluate("auto").at("y")
