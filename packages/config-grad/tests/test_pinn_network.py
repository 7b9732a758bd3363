"""The network and its forward sweep."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.pinn import MLP
from octavo_core.errors import InvalidValueError

F64 = torch.float64


def network(*sizes: int, seed: int = 0) -> MLP:
    return MLP(sizes, generator=torch.Generator().manual_seed(seed), dtype=F64)


def differentiate(values: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(values.sum(), points, create_graph=True, materialize_grads=True)[0]


def nested_autograd(net: MLP, points: torch.Tensor, first: list[int], second: list[int]) -> torch.Tensor:
    """The blocks of a sweep, by nested reverse mode."""
    points = points.clone().requires_grad_()
    blocks = []
    for value in net(points).unbind(1):
        gradient = differentiate(value, points)
        curvature = [differentiate(gradient[:, i], points)[:, i] for i in second]
        blocks.append(torch.stack([value, *(gradient[:, i] for i in first), *curvature]))
    return torch.stack(blocks)


@settings(deadline=None, max_examples=15)
@given(
    coordinates=st.integers(1, 4),
    hidden=st.lists(st.integers(1, 6), max_size=3),
    fields=st.integers(1, 3),
    data=st.data(),
)
def test_sweep_and_its_gradient_equal_nested_autograd(coordinates, hidden, fields, data):
    net = network(coordinates, *hidden, fields)
    first = data.draw(st.lists(st.integers(0, coordinates - 1), unique=True))
    second = first[: data.draw(st.integers(0, len(first)))]
    points = torch.randn(5, coordinates, dtype=F64, generator=torch.Generator().manual_seed(1))

    expected = nested_autograd(net, points, first, second)
    found = net.derivatives(points, first, second)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)

    weights = torch.randn(expected.shape, dtype=F64, generator=torch.Generator().manual_seed(2))
    wanted = torch.autograd.grad((expected * weights).sum(), net.vector)[0]
    gradient = torch.autograd.grad((found * weights).sum(), net.vector, retain_graph=True)[0]
    torch.testing.assert_close(gradient, wanted, rtol=1e-11, atol=1e-12)
    # A second pass through the retained graph must not see leftovers of the first.
    again = torch.autograd.grad((found * weights).sum(), net.vector)[0]
    torch.testing.assert_close(again, gradient, rtol=0, atol=0)


def test_a_changed_network_is_noticed_before_the_backward_pass():
    net = network(2, 3, 1)
    loss = net.derivatives(torch.rand(4, 2, dtype=F64), [0], [0]).sum()
    with torch.no_grad():
        net.vector.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_initial_weights_are_xavier_normal_and_biases_one_thousandth():
    layers = network(2, 200, 300, 1).to_sequential()
    weight = layers[2].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    assert abs(weight.mean().item()) < 1e-3
    assert torch.equal(layers[2].bias, torch.full((300,), 1e-3, dtype=F64))


def test_one_seed_gives_one_network_in_every_precision():
    assert torch.equal(network(2, 5, 1, seed=3).vector, network(2, 5, 1, seed=3).vector)
    assert not torch.equal(network(2, 5, 1, seed=3).vector, network(2, 5, 1, seed=4).vector)
    single = MLP((2, 5, 1), generator=torch.Generator().manual_seed(3))
    assert torch.equal(single.vector, network(2, 5, 1, seed=3).vector.float())


def test_ordinary_layers_hold_the_same_function_and_order():
    net = network(3, 4, 5, 2)
    layers = net.to_sequential()
    points = torch.randn(7, 3, dtype=F64)
    torch.testing.assert_close(layers(points), net(points))
    assert torch.equal(torch.nn.utils.parameters_to_vector(layers.parameters()), net.vector)


def test_bad_input():
    with pytest.raises(InvalidValueError, match=r"network sizes \(2,\)"):
        MLP((2,))
    with pytest.raises(InvalidValueError, match="at least 1"):
        MLP((2, 0, 1))
    with pytest.raises(InvalidValueError, match="leading entries"):
        network(2, 3, 1).derivatives(torch.rand(4, 2, dtype=F64), [0, 1], [1])
