"""Networks: gradients written by hand against numerical ones, members, preferences, and Adam against torch's."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from octavo_aram.flat_adam import FlatAdam
from octavo_aram.networks import DeterministicPolicy, GaussianPolicy, StackedMLP, _Perceptrons, tanh_gaussian


def network(members=2, preferences=2, hidden=(5, 4), outputs=2, dtype=torch.float64):
    return StackedMLP(
        3,
        hidden,
        outputs,
        members=members,
        preferences=preferences,
        generator=torch.Generator().manual_seed(0),
        dtype=dtype,
    )


def reference(net, x, preference):
    """The same outputs by plain autograd, member by member."""
    views = net.views(net.flat)
    if preference is not None:
        x = torch.cat([x, preference.expand(len(x), -1)], 1)
    outputs = []
    for member in range(net.members):
        width = views[0].shape[1] // net.members
        columns = slice(member * width, (member + 1) * width)
        first = torch.cat([views[0], views[1]]) if preference is not None else views[0]
        hidden = (x @ first[:, columns] + views[2][columns]).relu()
        for index in range(3, len(views), 2):
            hidden = hidden @ views[index][member] + views[index + 1][member]
            if index < len(views) - 2:
                hidden = hidden.relu()
        outputs.append(hidden)
    return torch.stack(outputs)


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("kind", ["none", "shared", "each"])
def test_forward_and_backward_equal_autograd(members, kind):
    net = network(members, 0 if kind == "none" else 2)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    preference = {
        "none": None,
        "shared": torch.tensor([0.3, 0.7], dtype=torch.float64),
        "each": torch.rand(7, 2, dtype=torch.float64),
    }[kind]
    ours, theirs = net(x, preference), reference(net, x, preference)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    for found, wanted in zip(
        torch.autograd.grad((ours * weight).sum(), (net.flat, x)),
        torch.autograd.grad((theirs * weight).sum(), (net.flat, x)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_gradcheck_of_the_perceptrons():
    net = network()
    preference = torch.tensor([0.4, 0.6], dtype=torch.float64)

    def function(flat, x):
        net.flat.data.copy_(flat.detach())
        return _Perceptrons.apply(flat, x, preference, net)

    flat = torch.randn(net.flat.numel(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (flat, torch.randn(4, 3, dtype=torch.float64, requires_grad=True)))


def test_frozen_networks_pass_gradients_to_the_input_alone():
    net = network()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    output = net(x, torch.tensor([0.5, 0.5], dtype=torch.float64), frozen=True).sum()
    (gradient,) = torch.autograd.grad(output, x)
    assert gradient.abs().sum() > 0
    with pytest.raises(RuntimeError):
        torch.autograd.grad(net(x, frozen=True).sum(), net.flat)


def test_every_preference_is_evaluated_at_every_row():
    net = network(members=2)
    x = torch.randn(6, 3, dtype=torch.float64)
    preferences = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    together = net.forward_each(x, preferences)
    assert together.shape == (3, 2, 6, 2)
    for index, preference in enumerate(preferences):
        torch.testing.assert_close(together[index], net(x, preference))


def test_members_start_different_and_a_copy_starts_equal():
    net = network(members=2, dtype=torch.float32)
    x = torch.randn(4, 3)
    first, second = net(x)
    assert not torch.equal(first, second)
    twin = net.copy()
    assert torch.equal(twin(x), net(x))
    net.flat.data.add_(1.0)
    assert not torch.equal(twin(x), net(x))


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - just pickled


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_duplicate_is_evaluated_by_its_own_weights(duplicate):
    net = network(members=2)
    twin, adam = duplicate((net, FlatAdam(net.flat, 0.1)))
    x = torch.ones(4, 3, dtype=torch.float64)
    assert torch.equal(twin(x), net(x))
    adam.step(torch.ones_like(twin.flat))
    assert not torch.equal(twin(x), net(x))
    net.load_state_dict(twin.state_dict())
    assert torch.equal(twin(x), net(x))


def test_weights_are_xavier_uniform():
    net = StackedMLP(30, (40,), 20, members=2, preferences=2, generator=torch.Generator().manual_seed(1))
    bound = math.sqrt(6 / (32 + 40))
    assert 0.9 * bound < net.parts[0].abs().max() <= bound
    assert 0.5 * bound < net.parts[1].abs().max() <= bound
    assert not net.parts[2].any()
    assert 0.9 * math.sqrt(6 / 60) < net.parts[3].abs().max() <= math.sqrt(6 / 60)


def test_tanh_gaussian_is_the_density_of_the_squashed_draw():
    mean, log_std = torch.randn(2, 9, 3, dtype=torch.float64)
    noise = torch.randn(9, 3, dtype=torch.float64)
    action, log_prob = tanh_gaussian(mean, log_std, noise)
    draw = mean + log_std.exp() * noise
    normal = torch.distributions.Normal(mean, log_std.exp())
    expected = (normal.log_prob(draw) - torch.log(1 - torch.tanh(draw) ** 2 + 1e-6)).sum(1, keepdim=True)
    torch.testing.assert_close(action, draw.tanh())
    torch.testing.assert_close(log_prob, expected)


def test_gradcheck_of_tanh_gaussian():
    # Seeded: where tanh saturates, finite differences of 1 - tanh^2 are rounding.
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator).unbind()
    assert torch.autograd.gradcheck(tanh_gaussian, (mean.requires_grad_(), log_std.requires_grad_(), noise))


def test_log_deviation_is_clamped():
    policy = GaussianPolicy(3, 2, (4,), dtype=torch.float64)
    policy.network.parts[-1][..., 2:] = 50.0
    _, log_std = policy(torch.zeros(1, 3, dtype=torch.float64))
    assert log_std.tolist() == [[2.0, 2.0]]


def test_deterministic_policy_stays_in_the_box():
    policy = DeterministicPolicy(3, 2, (4,), generator=torch.Generator().manual_seed(0))
    assert policy(100 * torch.randn(50, 3)).abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torchs(dtype):
    start, gradients = torch.randn(20, dtype=dtype), torch.randn(30, 20, dtype=dtype)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    adam, reference_adam = FlatAdam(ours, 1e-2), torch.optim.Adam([theirs], 1e-2)
    for gradient in gradients:
        adam.step(gradient)
        theirs.grad = gradient.clone()
        reference_adam.step()
    torch.testing.assert_close(ours, theirs.detach())
