"""M-ConFIG's state: a resumed run equals the uninterrupted one, and states that do not fit are refused."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from octavo_config_grad.aggregators import ConFIG, LossRatio
from octavo_config_grad.baselines import PCGrad
from octavo_config_grad.momentum import MConFIG
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidTypeError, InvalidValueError


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


def put(state, path, value):
    """Set an entry deep in a state; Ellipsis deletes it."""
    *way, last = path
    for key in way:
        state = state[key]
    if value is ...:
        del state[last]
    else:
        state[last] = value


MOMENT = ("state", 0, "exp_avgs")
OWN = ("num_losses", "second_moment", "step", "history", "since_recompute", "skipped_steps", "selector", "aggregator")
DAMAGES = [
    *[(("mconfig", name), ..., f"saved mconfig lacks {name}") for name in OWN],
    *[(("mconfig", "history", name), ..., f"lacks {name}") for name in ("steps", "values", "gramian", "excluded")],
    *[(("mconfig", "selector", name), ..., f"lacks {name}") for name in ("position", "count", "pending")],
    *[(("param_groups", 0, name), ..., f"group 0 lacks {name}") for name in ("lr", "betas", "eps", "weight_decay")],
    *[(("state", 1, name), ..., f"lacks {name}") for name in ("exp_avgs", "exp_avg_sq")],
    (("mconfig",), None, "not the state of a MConFIG"),
    (("state",), None, "not the state of an optimizer"),
    (("param_groups",), "x", "not the state of an optimizer"),
    (("param_groups", 0, "params"), None, "not the state of an optimizer"),
    (("mconfig", "num_losses"), "x", "the saved num_losses='x' is a str, not an integer"),
    (("mconfig", "step"), 1.5, "the saved step=1.5 is a float"),
    (("mconfig", "step"), -1, "the saved step=-1 is out of range"),
    (("mconfig", "since_recompute"), None, "the saved since_recompute=None"),
    (("mconfig", "skipped_steps"), "0", "the saved skipped_steps='0'"),
    (("mconfig", "history"), [], "saved history lacks steps"),
    (("mconfig", "history", "steps"), [1, 2], "history.steps has 2 numbers, expected 3"),
    (("mconfig", "history", "steps"), [1, 2, "x"], r"history.steps\[2\]='x' is a str"),
    (("mconfig", "history", "steps"), 5, "history.steps is a int"),
    (("mconfig", "history", "values"), [1.0, 2.0, 3.0], "history.values is list"),
    (
        ("mconfig", "history", "gramian"),
        torch.eye(2).double(),
        r"history.gramian has shape \(2, 2\), expected \(3, 3\)",
    ),
    (("mconfig", "history", "gramian"), torch.eye(3), "history.gramian is torch.float32"),
    (("mconfig", "history", "gramian"), torch.full((3, 3), torch.nan).double(), "history.gramian holds NaN"),
    (("mconfig", "history", "excluded"), [7], "history.excluded: index 7 is out of range"),
    (("mconfig", "selector"), 5, "saved selector lacks kind"),
    (("mconfig", "selector", "position"), "x", "selector.position='x' is a str"),
    (("mconfig", "selector", "position"), 3, "selector.position=3 is out of range; give 0 to 2"),
    (("mconfig", "selector", "count"), -1, "selector.count=-1"),
    (("mconfig", "selector", "pending"), 5, "selector.pending is a int"),
    (("mconfig", "selector", "pending"), [9], "selector.pending: index 9 is out of range"),
    (("mconfig", "selector", "random_state"), torch.zeros(3), "selector.random_state is not that of a generator"),
    (("mconfig", "selector", "random_state"), None, "selector.random_state is not that of a generator"),
    (("mconfig", "aggregator"), 5, "saved state of the aggregator does not fit ConFIG"),
    (("mconfig", "aggregator"), {"x": torch.zeros(1)}, "saved state of the aggregator does not fit ConFIG"),
    (("param_groups", 0, "lr"), "0.1", "saved parameter group 0: lr='0.1' is a str"),
    (("param_groups", 0, "lr"), -1.0, "saved parameter group 0: lr=-1.0"),
    (("param_groups", 0, "betas"), (0.9, 1.5), r"saved parameter group 0: betas=\(0.9, 1.5\)"),
    (("param_groups", 0, "eps"), 0.0, "saved parameter group 0: eps=0.0"),
    ((*MOMENT,), [1.0, 2.0], "saved exp_avgs of parameter 0 of group 0 .* is list"),
    ((*MOMENT,), torch.full((3, 5, 2), torch.nan), "saved exp_avgs of parameter 0 .* holds NaN"),
    (("state", 0, "exp_avg_sq"), -torch.ones(5, 2), "an average of squares, is negative"),
    ((*MOMENT,), torch.ones(3, 5, 2, dtype=torch.int64), "saved exp_avgs .* is torch.int64"),
    (("state", 0), None, "saved state of parameter 0 of group 0 .* lacks exp_avgs"),
    (("state", 4), {}, "moments of parameter 4, this optimizer parameters 0 to 3"),
    (("state", -1), {}, "moments of parameter -1"),
    (("state", "0"), {}, "moments of parameter '0'"),
]


def same_state(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first.nan_to_num(), second.nan_to_num())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_state(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_state, first, second))
    return first == second


@pytest.mark.parametrize(("path", "value", "message"), DAMAGES)
def test_damaged_state_is_refused_and_nothing_changes(path, value, message):
    net = make_net()
    optimizer = MConFIG(net.parameters(), 3, lr=0.5)
    train(net, optimizer, range(5))
    before = optimizer.state_dict()
    state = copy.deepcopy(saved())
    put(state, path, value)
    with pytest.raises((InvalidValueError, InvalidTypeError), match=message):
        optimizer.load_state_dict(state)
    assert same_state(optimizer.state_dict(), before)


def test_betas_that_differ_between_saved_groups_are_refused():
    net = make_net()
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
    optimizer = MConFIG(groups, 3)
    state = optimizer.state_dict()
    state["param_groups"][1]["betas"] = (0.5, 0.9)
    with pytest.raises(InvalidValueError, match="betas differ"):
        optimizer.load_state_dict(state)
    state["param_groups"][0]["betas"] = [0.5, 0.9]  # as some formats store a tuple
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)


class Refusing(Alternating):
    def load_state_dict(self, state):
        self.calls = state["calls"]
        if self.calls == 7:
            raise RuntimeError("seven")


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({"aggregator": ConFIG}, {"aggregator": lambda: ConFIG(direction_weights=LossRatio())}, "the aggregator"),
        ({"aggregator": lambda: ConFIG(direction_weights=LossRatio())}, {"aggregator": ConFIG}, "the aggregator"),
        ({"select": Refusing}, {"select": Alternating}, r"selection function does not fit Refusing \(seven\)"),
        ({"select": Alternating}, {"select": lambda: lambda count, m: [count % m]}, "saved selector lacks function"),
    ],
)
def test_state_of_other_parts_is_refused_and_nothing_changes(ours, theirs, message):
    states = []
    for options, steps in ((ours, 5), (theirs, 7)):
        net = make_net()
        optimizer = MConFIG(net.parameters(), 3, **{name: make() for name, make in options.items()})
        train(net, optimizer, range(steps))
        states.append((optimizer, optimizer.state_dict()))
    (optimizer, before), (_, other) = states
    with pytest.raises(InvalidValueError, match=message):
        optimizer.load_state_dict(other)
    assert same_state(optimizer.state_dict(), before)
