from __future__ import annotations

import gc
import weakref

import pytest
import torch
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.gramian import gramian
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import nn


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


@pytest.fixture
def points():
    return torch.randn(16, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def residual_loss(network, points):
    """A PINN-like loss: its graph contains first and second derivatives with respect to the input."""
    inputs = points.clone().requires_grad_()
    output = network(inputs)
    first = torch.autograd.grad(output.sum(), inputs, create_graph=True)[0]
    second = torch.autograd.grad(first[:, 0].sum(), inputs, create_graph=True)[0][:, 0]
    return (first[:, 1] + output.squeeze() * first[:, 0] - 0.1 * second).square().mean()


def losses_of(network, points):
    return [
        residual_loss(network, points),
        network(points[:4]).square().mean(),
        (network(points[4:8]) - 1.0).abs().mean(),
    ]


def closures_of(network, points):
    return [
        lambda: residual_loss(network, points),
        lambda: network(points[:4]).square().mean(),
        lambda: (network(points[4:8]) - 1.0).abs().mean(),
    ]


def reference(network, points):
    rows = []
    for loss in losses_of(network, points):
        network.zero_grad()
        loss.backward()
        rows.append([parameter.grad.clone() for parameter in network.parameters()])
    network.zero_grad()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retain": "graph"},
        {"none": "raise"},
        {"offload": True},
        {"batched": True},
        {"batched": True, "chunk": 1},
        {"batched": True, "chunk": 2},
        {"batched": True, "chunk": 5, "offload": True},
    ],
)
@pytest.mark.parametrize("form", ["tensors", "vector", "closures"])
def test_all_ways_give_the_gradients_of_separate_backward_passes(network, points, options, form):
    expected = reference(network, points)
    losses = losses_of(network, points) if form != "closures" else closures_of(network, points)
    if form == "vector":
        losses = torch.stack(losses)
    rows = per_loss_gradients(losses, network.parameters(), **options)
    assert len(rows) == 3
    for row, expected_row in zip(rows, expected, strict=True):
        torch.testing.assert_close(row, expected_row, rtol=1e-10, atol=1e-12)
        assert not any(gradient.requires_grad for gradient in row)


def test_closures_one_at_a_time(network, points):
    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor

    alive = weakref.WeakSet()
    calls = []

    def pack(tensor):
        saved = Saved(tensor)
        alive.add(saved)
        return saved

    def tracked(closure):
        def call():
            gc.collect()
            calls.append(len(alive))
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
                return closure()

        return call

    closures = [tracked(closure) for closure in closures_of(network, points)[1:]]
    rows = per_loss_gradients(closures, network.parameters())
    torch.testing.assert_close(rows, reference(network, points)[1:])
    assert calls == [0, 0]
    calls.clear()
    per_loss_gradients(closures, network.parameters(), retain="graph")
    assert calls[1] > 0


def test_the_rows_feed_the_gramian(network, points):
    rows = per_loss_gradients(losses_of(network, points), network.parameters())
    flat = torch.stack([torch.cat([gradient.reshape(-1) for gradient in row]) for row in rows])
    torch.testing.assert_close(gramian(rows), flat @ flat.T)
    update = ConFIG()(rows)
    assert [part.shape for part in update] == [parameter.shape for parameter in network.parameters()]


@pytest.mark.parametrize("options", [{}, {"batched": True}])
def test_the_shared_graph_is_freed(network, points, options):
    hidden = network(points)
    losses = [hidden.square().mean(), hidden.exp().mean()]
    per_loss_gradients(losses, network.parameters(), **options)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(hidden.sum(), list(network.parameters()))
    with pytest.raises(InvalidStateError, match="graph of loss 0 was freed"):
        per_loss_gradients([hidden.sum(), hidden.square().sum()], network.parameters())


@pytest.mark.parametrize("options", [{}, {"batched": True}])
def test_grad_is_left_alone(network, points, options):
    first, *others = network.parameters()
    first.grad = torch.full_like(first, 7.0)
    per_loss_gradients(losses_of(network, points), network.parameters(), **options)
    assert torch.equal(first.grad, torch.full_like(first, 7.0))
    assert all(parameter.grad is None for parameter in others)


@pytest.mark.parametrize("options", [{}, {"batched": True}])
def test_parameters_that_a_loss_does_not_reach_get_zeros(options):
    shared, left, right, unused = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(4))
    losses = [(shared * left).sum(), (shared * right).sum() * 2]
    rows = per_loss_gradients(losses, [shared, left, right, unused], **options)
    one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(rows, [[one, one, zero, zero], [2 * one, zero, 2 * one, zero]])


def test_none_raise_names_the_loss_and_the_parameter():
    shared, left = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    losses = [shared.sum() + left.sum(), shared.sum()]
    with pytest.raises(InvalidValueError, match=r"loss 1 does not reach parameter 1 of shape \(3,\)"):
        per_loss_gradients(losses, [shared, left], none="raise")


@pytest.mark.parametrize("batched", [False, True])
def test_under_autocast(batched):
    torch.manual_seed(0)
    network = nn.Linear(4, 3)
    points = torch.randn(8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(points)
        assert output.dtype == torch.bfloat16
        losses = [output.float().square().mean(), output.float().exp().mean()]
        rows = per_loss_gradients(losses, network.parameters(), batched=batched)
    exact = per_loss_gradients([network(points).square().mean(), network(points).exp().mean()], network.parameters())
    assert {gradient.dtype for row in rows for gradient in row} == {torch.float32}
    torch.testing.assert_close(rows, exact, rtol=3e-2, atol=1e-2)


def test_closures_run_with_gradients_enabled(network, points):
    with torch.no_grad():
        rows = per_loss_gradients(closures_of(network, points), network.parameters())
    torch.testing.assert_close(rows, reference(network, points))


def test_parameters_of_several_dtypes():
    first = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    second = torch.ones(2, requires_grad=True)
    losses = [first.float().sum() * 2 + second.sum(), (first.float() ** 2).sum() - second.sum()]
    rows = per_loss_gradients(losses, [first, second])
    assert [gradient.dtype for gradient in rows[0]] == [torch.bfloat16, torch.float32]
    update, info = ConFIG().aggregate(rows)
    assert [part.dtype for part in update] == [torch.bfloat16, torch.float32]
    assert not info.conflict


X = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        ([], InvalidValueError, "no losses"),
        (lambda: torch.ones(0), InvalidValueError, "no losses"),
        (lambda: torch.ones(2, 2), InvalidValueError, "vector"),
        (lambda: [X.sum(), X], InvalidValueError, "loss 1 has shape"),
        (lambda: [X.sum(), torch.ones(())], InvalidValueError, "loss 1 has no graph"),
        (lambda: [X.sum(), X.sum().to(torch.complex64)], InvalidTypeError, "loss 1 has dtype torch.complex64"),
        (lambda: [X.sum(), lambda: 3.0], InvalidTypeError, "loss 1 is a float"),
        (lambda: [X.sum()] * 3, InvalidValueError, "numbers 0 and 1 are the same object"),
    ],
)
def test_bad_losses_are_refused_by_index(losses, error, message):
    with pytest.raises(error, match=message):
        per_loss_gradients(losses() if callable(losses) else losses, [X])


def test_one_closure_given_twice_is_refused():
    def closure():
        return X.sum()

    with pytest.raises(InvalidValueError, match="same object"):
        per_loss_gradients([closure, closure], [X])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retain": "all"}, "unknown retain mode 'all'"),
        ({"none": "skip"}, "unknown none policy 'skip'"),
        ({"retain": "closures"}, "needs every loss as a function"),
        ({"batched": True, "none": "raise"}, "needs batched=False"),
        ({"batched": True, "chunk": 0}, "chunk=0"),
        ({"chunk": 2}, "needs batched=True"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidValueError, match=message):
        per_loss_gradients([X.sum(), X.square().sum()], [X], **options)


def test_closures_cannot_be_batched_one_at_a_time():
    with pytest.raises(InvalidValueError, match="batched=True needs"):
        per_loss_gradients([lambda: X.sum(), lambda: X.exp().sum()], [X], retain="closures", batched=True)


def test_bad_parameters_are_refused():
    with pytest.raises(InvalidValueError, match="no parameters"):
        per_loss_gradients([X.sum()], [])
    with pytest.raises(InvalidValueError, match=r"parameter 1 of shape \(2,\) does not require gradients"):
        per_loss_gradients([X.sum()], [X, torch.ones(2)])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (lambda net: net, r"parameters is a Sequential: give its parameters\(\)"),
        (lambda net: net[0].weight, "parameters is a Parameter: give a list of tensors"),
        (lambda net: 5, "parameters is a int: give a list of tensors"),
        (lambda net: net.named_parameters(), "parameter 0 is a tuple: give tensors"),
    ],
)
def test_what_is_no_list_of_parameters_is_named(network, points, parameters, message):
    with pytest.raises(InvalidTypeError, match=message):
        per_loss_gradients(losses_of(network, points), parameters(network))


def test_sparse_gradients_are_named():
    embedding = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(InvalidTypeError, match="is sparse; set sparse=False on the embedding"):
        per_loss_gradients([embedding(torch.tensor([1])).sum()], embedding.parameters())
