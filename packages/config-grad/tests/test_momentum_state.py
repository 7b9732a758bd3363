"""M-ConFIG's state: a resumed run equals the uninterrupted one, and states that do not fit are refused."""

from __future__ import annotations

import io

import pytest
import torch
from octavo_config_grad.aggregators import ConFIG, LossRatio
from octavo_config_grad.baselines import PCGrad
from octavo_config_grad.momentum import MConFIG
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidValueError


def make_net(width=5):
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net


def loss(net, index, step):
    inputs = torch.randn(7, 2, generator=torch.Generator().manual_seed(100 * index + step), dtype=torch.float64)
    return (net(inputs) - index).square().mean()


def train(net, optimizer, steps):
    for step in steps:
        optimizer.step({index: loss(net, index, step) for index in optimizer.next_losses()})


def through_torch(state, folder):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def through_checkpoint(state, folder):
    return load_checkpoint(save_checkpoint(folder / "state.safetensors", state))


class Alternating:
    """A stateful selection: 0, 1, 0, 1, ... and a loss of its own count every fifth time."""

    def __init__(self):
        self.calls = 0

    def __call__(self, count, num_losses):
        self.calls += 1
        return [self.calls % num_losses] if self.calls % 5 == 0 else [count % 2]

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


VARIANTS = {
    "round robin": dict,
    "random": lambda: {"select": "random", "seed": 3, "updates_per_step": 2},
    "function": lambda: {"select": Alternating()},
    "shuffled PCGrad": lambda: {"aggregator": PCGrad(shuffle=True, seed=5)},
    "loss ratios": lambda: {"aggregator": ConFIG(direction_weights=LossRatio())},
    "separate": lambda: {"second_moment": "separate", "weight_decay": 0.1},
    "recomputing": lambda: {"recompute_every": 4},
}


@pytest.mark.parametrize(
    ("variant", "storage", "cut"),
    [
        *[(variant, through_torch, 7) for variant in VARIANTS],
        ("random", through_checkpoint, 7),
        ("shuffled PCGrad", through_checkpoint, 7),
        ("round robin", through_torch, 0),
        ("round robin", through_checkpoint, 1),
    ],
)
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, variant, storage, cut):
    def build(net):
        optimizer = MConFIG(net.parameters(), 3, lr=0.02, **VARIANTS[variant]())
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)

    net = make_net()
    optimizer, scheduler = build(net)
    whole = make_net()
    uninterrupted, whole_scheduler = build(whole)
    for each_net, each, each_scheduler in ((net, optimizer, scheduler), (whole, uninterrupted, whole_scheduler)):
        train(each_net, each, range(cut))
        if cut:
            each_scheduler.step()
    pending = optimizer.next_losses()

    state = storage({"net": net.state_dict(), "opt": optimizer.state_dict(), "sched": scheduler.state_dict()}, tmp_path)
    train(net, optimizer, range(50, 53))  # the saved state is a copy: going on must not change it
    resumed = make_net()
    resumed.load_state_dict(state["net"])
    again, again_scheduler = build(resumed)
    again.load_state_dict(state["opt"])
    again_scheduler.load_state_dict(state["sched"])
    assert again.next_losses() == pending

    train(whole, uninterrupted, range(cut, cut + 9))
    train(resumed, again, range(cut, cut + 9))
    for expected, found in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, found)
    assert again.steps == uninterrupted.steps
    assert again.loss_steps == uninterrupted.loss_steps


def test_state_has_the_moments_of_every_parameter_in_its_shape():
    net = make_net()
    optimizer = MConFIG(net.parameters(), 3)
    train(net, optimizer, range(4))
    state = optimizer.state_dict()
    assert {name: tuple(value.shape) for name, value in state["state"][0].items()} == {
        "exp_avgs": (3, 5, 2),
        "pseudo_exp_avg": (5, 2),
        "exp_avg_sq": (5, 2),
    }
    assert state["mconfig"]["step"] == 2
    assert state["mconfig"]["history"]["steps"] == [2, 1, 1]


def test_added_loss_survives_a_checkpoint():
    net = make_net()
    optimizer = MConFIG(net.parameters(), 2)
    train(net, optimizer, range(3))
    optimizer.add_loss(unseen="exclude")
    other_net = make_net()
    other_net.load_state_dict(net.state_dict())
    other = MConFIG(other_net.parameters(), 3)
    other.load_state_dict(optimizer.state_dict())
    train(net, optimizer, range(3, 9))
    train(other_net, other, range(3, 9))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other_net.parameters(), strict=True))


def saved():
    net = make_net()
    optimizer = MConFIG(net.parameters(), 3)
    train(net, optimizer, range(4))
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net: MConFIG(net.parameters(), 2), "saved state has 3 losses, this optimizer 2.*num_losses=3"),
        (lambda net: MConFIG(make_net(6).parameters(), 3), r"parameter 0 of group 0 \(6, 2\) has shape \(3, 5, 2\)"),
        (lambda net: MConFIG(list(net.parameters())[:2], 3), r"groups have \[4\] parameters, those .* \[2\]"),
        (
            lambda net: MConFIG(net.parameters(), 3, second_moment="separate"),
            "second_moment of the saved state='pseudo'",
        ),
        (lambda net: MConFIG(net.parameters(), 3, select="random"), "selects losses by 'round_robin', .* by 'random'"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_changes(build, message):
    net = make_net()
    optimizer = build(net)
    with pytest.raises(InvalidValueError, match=message):
        optimizer.load_state_dict(saved())
    assert optimizer.loss_steps == (0,) * optimizer.num_losses
    assert not optimizer.state


def test_state_of_another_optimizer_is_refused():
    net = make_net()
    with pytest.raises(InvalidValueError, match="not the state of a MConFIG"):
        MConFIG(net.parameters(), 2).load_state_dict(torch.optim.Adam(net.parameters()).state_dict())
