"""ConFIGOptimizer around torch optimizers."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from octavo_config_grad.aggregators import ConFIG, LossRatio
from octavo_config_grad.baselines import PCGrad, Sum
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.optimizer import ConFIGOptimizer
from octavo_config_grad.update import config_update
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import nn


class TwoHeads(nn.Module):
    """A trunk with two heads, and a parameter that no loss reaches."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.trunk = nn.Linear(3, 4, dtype=dtype)
        self.first = nn.Linear(4, 1, dtype=dtype)
        self.second = nn.Linear(4, 1, dtype=dtype)
        self.unused = nn.Parameter(torch.ones(2, dtype=dtype))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def losses(net, seed=0, count=16):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=generator).to(net.trunk.weight.dtype)
    hidden = torch.tanh(net.trunk(inputs))
    return [(net.first(hidden) - 1.0).square().mean(), (net.second(hidden) + 10.0 * inputs[:, :1]).square().mean()]


def per_loss(net, parameters, seed=0):
    rows = []
    for index in range(2):
        row = torch.autograd.grad(losses(net, seed)[index], parameters, allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, row, strict=True)])
    return rows


def same(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [2**18, 0])
def test_grad_is_the_config_update(monkeypatch, dtype, packed):
    monkeypatch.setattr("octavo_config_grad.optimizer._PACKED_ELEMENTS", packed)
    net = TwoHeads(dtype)
    reached = [p for name, p in net.named_parameters() if name != "unused"]
    expected = config_update(per_loss(net, reached))
    optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.0))
    values = optimizer.step(losses(net))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for parameter, update in zip(reached, expected, strict=True):
        torch.testing.assert_close(parameter.grad, update, rtol=tolerance, atol=tolerance)
    assert net.unused.grad is None
    assert [value.requires_grad for value in values] == [False, False]
    assert optimizer.last_info is not None
    assert optimizer.last_info.cosines.min() > 0.0


def test_sum_is_the_wrapped_optimizer_on_the_summed_loss():
    net, reference = TwoHeads(), TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), Sum())
    adam = torch.optim.Adam(reference.parameters(), lr=0.01)
    for seed in range(5):
        optimizer.step(losses(net, seed))
        adam.zero_grad()
        sum(losses(reference, seed)).backward()
        adam.step()
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrap", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimizer_descends_both_losses(wrap):
    net = TwoHeads()
    optimizer = ConFIGOptimizer(wrap(net.parameters(), lr=0.01))
    before = [loss.item() for loss in losses(net)]
    for _ in range(20):
        optimizer.step(losses(net))
    assert all(now.item() < then for now, then in zip(losses(net), before, strict=True))


@pytest.mark.parametrize("given", ["shared", "heads", "both", "modules"])
def test_heads_get_the_plain_gradient_of_the_summed_losses(given):
    net = TwoHeads()
    trunk, heads = [*net.trunk.parameters()], [*net.first.parameters(), *net.second.parameters()]
    roles = {
        "shared": {"shared": trunk},
        "heads": {"heads": heads},
        "both": {"shared": [*trunk, net.unused], "heads": heads},
        "modules": {"shared": net.trunk},
    }[given]
    optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), **roles)
    optimizer.step(losses(net))
    summed = torch.autograd.grad(sum(losses(net)), heads)
    for parameter, expected in zip(heads, summed, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=1e-12)
    for parameter, expected in zip(trunk, config_update(per_loss(net, trunk)), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=1e-12)


def test_frozen_parameters_and_groups_keep_their_own():
    net = TwoHeads()
    net.first.requires_grad_(False)
    groups = [{"params": net.trunk.parameters(), "lr": 0.1}, {"params": [*net.first.parameters()], "lr": 0.1}]
    optimizer = ConFIGOptimizer(torch.optim.SGD(groups, lr=0.1, weight_decay=0.1))
    optimizer.add_param_group({"params": net.second.parameters(), "lr": 0.0})
    before = copy.deepcopy(net)
    optimizer.step(losses(net))
    assert not torch.equal(net.trunk.weight, before.trunk.weight)
    assert torch.equal(net.first.weight, before.first.weight)
    assert net.first.weight.grad is None
    assert torch.equal(net.second.weight, before.second.weight)
    assert net.second.weight.grad is not None


def test_parameter_frozen_in_training_stays():
    net = TwoHeads()
    optimizer = wrap(net)
    for seed in range(3):
        optimizer.step(losses(net, seed))
    net.trunk.weight.requires_grad_(False)
    before = net.trunk.weight.clone()
    for seed in range(5):
        optimizer.step(losses(net, seed))
    assert torch.equal(net.trunk.weight, before)


def test_losses_of_a_mapping_are_told_apart_by_their_keys():
    first, second = TwoHeads(), TwoHeads()
    one = wrap(first, aggregator=ConFIG(direction_weights=[1.0, 3.0]))
    other = wrap(second, aggregator=ConFIG(direction_weights=[1.0, 3.0]))
    for optimizer, net, order in ((one, first, (0, 1)), (other, second, (1, 0))):
        pair = losses(net)
        optimizer.accumulate(dict(enumerate(pair)))
        pair = losses(net, 1)
        values = optimizer.accumulate({index: pair[index] for index in order})
        assert [value.item() for value in values] == [loss.item() for loss in pair]
        optimizer.step()
    assert same(first, second)


def test_sparse_gradients_and_wrong_scalers_are_named():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = ConFIGOptimizer(torch.optim.SGD(embedding.parameters(), lr=0.1))
    with pytest.raises(InvalidTypeError, match="set sparse=False on the embedding"):
        optimizer.step([embedding(torch.tensor([1])).sum(), embedding(torch.tensor([2])).sum()])
    net = TwoHeads()
    with pytest.raises(InvalidTypeError, match="scaler is a str"):
        wrap(net).step(losses(net), scaler="x")


@pytest.mark.parametrize("packed", [2**18, 0])
@pytest.mark.parametrize("policy", ["raise", "skip", "scaler"])
def test_update_that_overflows_is_held_to_the_policy(monkeypatch, policy, packed):
    monkeypatch.setattr("octavo_config_grad.optimizer._PACKED_ELEMENTS", packed)
    parameter = nn.Parameter(torch.zeros(2))
    aggregator = ConFIG(nonfinite="skip" if policy == "skip" else "raise")
    optimizer = ConFIGOptimizer(torch.optim.SGD([parameter], lr=0.1), aggregator)
    scale = 2.0**10 if policy == "scaler" else 1.0
    pair = [(parameter * torch.tensor(row) / scale).sum() for row in ([3e38, 0.0], [3e38, 1e38])]
    if policy == "raise":
        with pytest.raises(InvalidValueError, match="combined update is not finite although every gradient is"):
            optimizer.step(pair)
    elif policy == "skip":
        optimizer.step(pair)
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer.step(pair, scaler=scaler)
        scaler.update()
        assert scaler.get_scale() == scale / 2
    assert not parameter.any()
    assert optimizer.skipped_steps == (policy != "raise")
    optimizer.step([parameter.sum(), 2.0 * parameter.sum()])
    assert bool((parameter < 0.0).all())


def test_step_that_fails_drops_what_was_accumulated_and_losses_that_fail_do_not():
    net, reference = TwoHeads(), TwoHeads()
    optimizer, other = wrap(net), wrap(reference)
    optimizer.accumulate([loss * math.nan for loss in losses(net)])
    with pytest.raises(InvalidValueError, match="not finite"):
        optimizer.step()
    optimizer.accumulate(losses(net))
    with pytest.raises(InvalidTypeError, match="loss 1 is a float"):
        optimizer.accumulate([losses(net)[0], 1.0])
    optimizer.step()
    other.step(losses(reference))
    assert same(net, reference)


def test_micro_batches_are_accumulated_for_each_loss():
    whole, parts = TwoHeads(), TwoHeads()
    at_once = ConFIGOptimizer(torch.optim.SGD(whole.parameters(), lr=0.1), heads=whole.first)
    bit_by_bit = ConFIGOptimizer(torch.optim.SGD(parts.parameters(), lr=0.1), heads=parts.first)
    for _ in range(3):
        at_once.step([(a + b) / 2 for a, b in zip(losses(whole, 1), losses(whole, 2), strict=True)])
        bit_by_bit.accumulate([loss / 2 for loss in losses(parts, 1)])
        assert parts.trunk.weight.grad is None
        bit_by_bit.accumulate([loss / 2 for loss in losses(parts, 2)])
        bit_by_bit.step()
        bit_by_bit.zero_grad()
    for first, second in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_last_micro_batch_may_come_with_the_step_and_zero_grad_forgets():
    first, second = TwoHeads(), TwoHeads()
    one, other = (ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.1)) for net in (first, second))
    one.accumulate(losses(first, 1))
    one.step(losses(first, 2))
    other.accumulate(losses(second, 3))
    other.zero_grad()
    other.accumulate(losses(second, 1))
    other.accumulate(losses(second, 2))
    other.step()
    assert same(first, second)


def test_functions_share_nothing_and_tensors_may_share_a_graph():
    nets = [TwoHeads() for _ in range(4)]
    forms = [
        losses,
        lambda net: [lambda index=index: losses(net)[index] for index in range(2)],
        lambda net: dict(enumerate(losses(net))),
        lambda net: lambda: torch.stack(losses(net)),
    ]
    for net, form in zip(nets, forms, strict=True):
        optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            optimizer.step(form(net))
    for net in nets[1:]:
        for first, second in zip(nets[0].parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [0.5, lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.5)])
def test_clipping_bounds_the_combined_update(clip):
    net = TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), clip=clip)
    before = copy.deepcopy(net)
    optimizer.step(losses(net))
    moved = [(a - b).square().sum().item() for a, b in zip(net.parameters(), before.parameters(), strict=True)]
    assert math.sqrt(sum(moved)) == pytest.approx(0.5, rel=1e-5)


def test_grad_scaler_unscales_once_and_clips_the_unscaled_update():
    plain, scaled, by_hand = TwoHeads(torch.float32), TwoHeads(torch.float32), TwoHeads(torch.float32)
    without = ConFIGOptimizer(torch.optim.Adam(plain.parameters(), lr=0.01), clip=0.5)
    within = ConFIGOptimizer(torch.optim.Adam(scaled.parameters(), lr=0.01), clip=0.5)
    outside = ConFIGOptimizer(torch.optim.Adam(by_hand.parameters(), lr=0.01), ConFIG(nonfinite="skip"), clip=0.5)
    scalers = [torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2) for _ in range(2)]
    for seed in range(4):
        without.step(losses(plain, seed))
        within.step(losses(scaled, seed), scaler=scalers[0])
        outside.accumulate([scalers[1].scale(loss) for loss in losses(by_hand, seed)])
        outside.combine()
        scalers[1].step(outside)
        for scaler in scalers:
            scaler.update()
    assert [scaler.get_scale() for scaler in scalers] == [2048.0, 2048.0]
    for first, second, third in zip(plain.parameters(), scaled.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(first, third, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["within", "outside"])
def test_grad_scaler_skips_overflow_and_backs_off(where):
    net = TwoHeads(torch.float32)
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), ConFIG(nonfinite="skip"))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = copy.deepcopy(net)
    pair = losses(net)
    pair[1] = pair[1] * math.inf
    if where == "within":
        optimizer.aggregator = ConFIG()  # the scaler's skipping goes before the aggregator's policy
        optimizer.step(pair, scaler=scaler)
    else:
        optimizer.accumulate([scaler.scale(loss) for loss in pair])
        optimizer.combine()
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert same(net, before)
    assert not optimizer.state
    assert optimizer.skipped_steps == 1
    assert optimizer.last_info is None


@pytest.mark.parametrize("where", ["shared", "head"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_gradient_that_is_not_finite_leaves_everything_untouched(where, policy):
    net = TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.1), ConFIG(nonfinite=policy), heads=net.second)
    optimizer.step(losses(net))
    before, state = copy.deepcopy(net), copy.deepcopy(optimizer.state_dict())
    parameter = net.trunk.weight if where == "shared" else net.second.weight
    bad = losses(net)
    bad[1] = bad[1] + math.nan * parameter.sum()
    if policy == "raise":
        message = "gradient of loss 1 is not finite" if where == "shared" else "with respect to parameter 5 of group 0"
        with pytest.raises(InvalidValueError, match=message):
            optimizer.step(bad)
    else:
        optimizer.step(bad)
    assert optimizer.skipped_steps == (policy == "skip")
    assert same(net, before)
    for key, entry in state["state"].items():
        assert all(torch.equal(optimizer.state_dict()["state"][key][name], value) for name, value in entry.items())
    optimizer.step(losses(net))  # nothing of the bad step is left
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    assert not same(net, before)


def test_learning_rate_scheduler_and_hooks_work_on_the_wrapper():
    net = TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(3):
        optimizer.step(losses(net))
        scheduler.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0125)
    assert len(calls) == 3


def test_closure_protocol():
    net, twin = TwoHeads(), TwoHeads()
    first, second = (ConFIGOptimizer(torch.optim.SGD(each.parameters(), lr=0.1)) for each in (net, twin))
    first.step(closure=lambda: losses(net))
    second.accumulate(losses(twin))
    assert second.step(closure=lambda: None) is None
    assert same(net, twin)


@pytest.mark.parametrize("storage", ["torch", "checkpoint"])
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, storage):
    def build(net):
        aggregator = PCGrad(shuffle=True, seed=1)
        return ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), aggregator)

    whole, first, second = TwoHeads(), TwoHeads(), TwoHeads()
    uninterrupted, before, after = build(whole), build(first), build(second)
    for seed in range(10):
        uninterrupted.step(losses(whole, seed))
    for seed in range(4):
        before.step(losses(first, seed))
    state = {"net": first.state_dict(), "optimizer": before.state_dict()}
    if storage == "torch":
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        state = torch.load(buffer, weights_only=True)
    else:
        state = load_checkpoint(save_checkpoint(tmp_path / "state.safetensors", state))
    second.load_state_dict(state["net"])
    after.load_state_dict(state["optimizer"])
    for seed in range(4, 10):
        after.step(losses(second, seed))
    assert same(whole, second)


def test_state_of_the_wrapped_optimizer_alone_can_be_loaded():
    net = TwoHeads()
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    sum(losses(net)).backward()
    adam.step()
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=1.0), ConFIG(direction_weights=LossRatio()))
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert torch.equal(optimizer.state[net.trunk.weight]["exp_avg"], adam.state[net.trunk.weight]["exp_avg"])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "not the state of an optimizer"),
        ({"state": {}, "param_groups": [{"params": [0, 1]}]}, r"groups have \[2\] parameters, those .* \[7\]"),
    ],
)
def test_state_that_does_not_fit_is_refused(state, message):
    with pytest.raises(InvalidValueError, match=message):
        ConFIGOptimizer(torch.optim.Adam(TwoHeads().parameters())).load_state_dict(state)


def trained_state(make, net=None, **options):
    net = net or TwoHeads()
    optimizer = ConFIGOptimizer(make(net.parameters(), lr=0.01, **options))
    optimizer.step(losses(net))
    return optimizer.state_dict()


OTHER_TYPES = {
    "SGD into Adam": (torch.optim.SGD, {}, torch.optim.Adam, "lack '.*', which Adam has"),
    "SGD with momentum into Adam": (torch.optim.SGD, {"momentum": 0.9}, torch.optim.Adam, "lack '.*', which Adam has"),
    "Adam into SGD": (torch.optim.Adam, {}, torch.optim.SGD, "lack '.*', which SGD has"),
    "Adamax into Adam": (torch.optim.Adamax, {}, torch.optim.Adam, "which Adam has|but Adam keeps exp_avg, exp_avg_sq"),
    "Adam into Adagrad": (torch.optim.Adam, {}, torch.optim.Adagrad, "which Adagrad has|but Adagrad keeps step, sum"),
    "Adam into RMSprop": (torch.optim.Adam, {}, torch.optim.RMSprop, "lack '.*', which RMSprop has"),
}


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_state_of_another_type_of_optimizer_is_refused_and_nothing_changes(case):
    saved, options, loaded, message = OTHER_TYPES[case]
    net, twin = TwoHeads(), TwoHeads()
    optimizer, reference = (ConFIGOptimizer(loaded(each.parameters(), lr=0.01)) for each in (net, twin))
    calls = []
    optimizer.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with pytest.raises(InvalidValueError, match=message):
        optimizer.load_state_dict(trained_state(saved, **options))
    assert not calls
    optimizer.step(losses(net))
    reference.step(losses(twin))
    assert same(net, twin)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True, "fused": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.ASGD, {}),
        (torch.optim.Adadelta, {}),
    ],
)
def test_state_of_the_same_type_with_other_options_goes_on(make, options):
    net = TwoHeads()
    state = trained_state(make, net, **options)
    fresh = ConFIGOptimizer(make(net.parameters(), lr=0.5))
    fresh.load_state_dict(state)
    assert fresh.param_groups[0]["lr"] == 0.01
    fresh.step(losses(net))


def test_states_of_other_aggregators_and_of_mconfig_are_refused_and_nothing_changes():
    net = TwoHeads()
    optimizer = wrap(net)
    momentum = MConFIG(net.parameters(), 2)
    momentum.step(losses(net))
    with pytest.raises(InvalidValueError, match="this is the state of MConFIG"):
        optimizer.load_state_dict(momentum.state_dict())
    ratio = wrap(net, aggregator=ConFIG(direction_weights=LossRatio()))
    ratio.step(losses(net))
    with pytest.raises(InvalidValueError, match="saved state of the aggregator does not fit ConFIG"):
        optimizer.load_state_dict(ratio.state_dict())
    reference = ratio.aggregator.direction_weights.reference
    with pytest.raises(InvalidValueError, match="saved state of the aggregator does not fit ConFIG"):
        ratio.load_state_dict(optimizer.state_dict())
    assert ratio.aggregator.direction_weights.reference == reference
    for own in (5, {}, {"aggregator": {}}, {"aggregator": {}, "skipped_steps": "x"}):
        with pytest.raises(InvalidValueError, match="damaged 'config'"):
            optimizer.load_state_dict({**optimizer.state_dict(), "config": own})
    for groups in (None, [5], [{}], [{"params": 3}]):
        with pytest.raises(InvalidValueError, match="not the state of an optimizer"):
            optimizer.load_state_dict({**optimizer.state_dict(), "param_groups": groups})
    with pytest.raises(InvalidValueError, match="state of parameter 0 is a list"):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: [1]}})


def test_copy_goes_on_by_itself():
    net = TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step(losses(net))
    twin, copied = copy.deepcopy((net, optimizer))
    optimizer.step(losses(net, 1))
    assert not same(net, twin)
    copied.step(losses(twin, 1))
    assert same(net, twin)


def test_gradients_by_backward_equal_autograd():
    nets = [TwoHeads(), TwoHeads()]
    for net, by in zip(nets, ("autograd", "backward"), strict=True):
        optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), heads=net.first, gradients_by=by)
        for seed in range(3):
            optimizer.step(losses(net, seed))
    for first, second in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_compiled_networks_work():
    net, reference = TwoHeads(), TwoHeads()
    compiled = torch.compile(net.trunk, backend="aot_eager")
    inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).double()

    def pair(network, trunk):
        hidden = torch.tanh(trunk(inputs))
        return [network.first(hidden).square().mean(), (network.second(hidden) - inputs[:, :1]).square().mean()]

    optimizers = [wrap(net), wrap(reference)]
    for _ in range(3):
        optimizers[0].step(pair(net, compiled))
        optimizers[1].step(pair(reference, reference.trunk))
    for first, second in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


def test_aggregators_on_coordinates_work():
    torchjd = pytest.importorskip("torchjd.aggregation")
    from octavo_config_grad.interop import from_torchjd

    net = TwoHeads()
    optimizer = ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), from_torchjd(torchjd.ConFIG()))
    before = [loss.item() for loss in losses(net)]
    for _ in range(10):
        optimizer.step(losses(net))
    assert all(now.item() < then for now, then in zip(losses(net), before, strict=True))
    assert optimizer.last_info is not None
    assert optimizer.last_info.min_cos > 0.0
    with pytest.raises(InvalidTypeError, match="keeps only the Gramian"):
        MConFIG(net.parameters(), 2, aggregator=from_torchjd(torchjd.ConFIG()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda net: ConFIGOptimizer(net), InvalidTypeError, "wraps a torch.optim.Optimizer, not a TwoHeads"),
        (
            lambda net: ConFIGOptimizer(torch.optim.LBFGS(net.parameters())),
            InvalidTypeError,
            "LBFGS evaluates a closure",
        ),
        (lambda net: ConFIGOptimizer(wrap(net)), InvalidTypeError, "ConFIGOptimizer combines losses already"),
        (
            lambda net: ConFIGOptimizer(MConFIG(net.parameters(), 2)),
            InvalidTypeError,
            "MConFIG combines losses already",
        ),
        (lambda net: wrap(net, clip="1"), InvalidTypeError, "clip is a str"),
        (lambda net: wrap(net, clip=True), InvalidTypeError, "clip is a bool"),
        (lambda net: wrap(net, shared="x"), InvalidTypeError, "shared is a str; give parameters, a module, or None"),
        (lambda net: wrap(net, shared=5), InvalidTypeError, "shared is a int"),
        (lambda net: wrap(net, heads=net.named_parameters()), InvalidTypeError, "heads holds a tuple"),
        (lambda net: wrap(net, process_group="x"), InvalidTypeError, "process_group is a str"),
        (lambda net: wrap(net, aggregator=len), InvalidTypeError, "aggregator is a builtin_function_or_method"),
        (lambda net: wrap(net, clip=0.0), InvalidValueError, "clip=0.0"),
        (lambda net: wrap(net, clip=math.nan), InvalidValueError, "clip=nan"),
        (lambda net: wrap(net, gradients_by="hand"), InvalidValueError, "gradients_by='hand' is unknown"),
        (lambda net: wrap(net, reduction="sum"), InvalidValueError, "reduction='sum' is unknown"),
        (
            lambda net: wrap(net, shared=[nn.Parameter(torch.ones(3))]),
            InvalidValueError,
            r"shared holds a parameter of shape \(3,\) that the optimizer does not have",
        ),
        (
            lambda net: wrap(net, shared=net.trunk, heads=net),
            InvalidValueError,
            r"parameter 1 of group 0 \(4, 3\) is in shared and in heads",
        ),
        (
            lambda net: wrap(net, shared=net.trunk, heads=net.first),
            InvalidValueError,
            r"parameter 0 of group 0 \(2,\) is neither in shared nor in heads",
        ),
    ],
)
def test_bad_options_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make(TwoHeads())


def wrap(net, **options):
    return ConFIGOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), **options)


@pytest.mark.parametrize(
    ("make_losses", "error", "message"),
    [
        (lambda net: [], InvalidValueError, "no losses"),
        (lambda net: [losses(net)[0], 1.0], InvalidTypeError, "loss 1 is a float"),
        (
            lambda net: [losses(net)[0], net.trunk.weight],
            InvalidValueError,
            r"loss 1 has shape \(4, 3\); give a scalar",
        ),
        (lambda net: [losses(net)[0].detach(), losses(net)[1]], InvalidValueError, "loss 0 has no graph"),
        (lambda net: [losses(net)[0], losses(net)[1] * 1j], InvalidTypeError, "loss 1 has dtype torch.complex128"),
        (lambda net: [losses(net)[0]] * 2, InvalidValueError, "of 2 losses, numbers 0 and 1 are the same object"),
        (lambda net: [*losses(net), losses(net)[0]][:2] * 2, InvalidValueError, "numbers 0 and 2 are the same object"),
        (lambda net: {0: losses(net)[0], 2: losses(net)[1]}, InvalidValueError, "the losses have the keys 0, 2; give"),
        (lambda net: {"pde": losses(net)[0]}, InvalidValueError, "the losses have the keys 'pde'"),
        (lambda net: {1: losses(net)[0]}, InvalidValueError, "the losses have the keys 1; give all 1 losses"),
        (lambda net: 3.0, InvalidTypeError, "got a float"),
        (lambda net: None, InvalidStateError, "nothing to step on"),
    ],
)
def test_bad_losses_are_named(make_losses, error, message):
    net = TwoHeads()
    before = copy.deepcopy(net)
    with pytest.raises(error, match=message):
        wrap(net).step(make_losses(net))
    assert same(net, before)


def test_wrong_numbers_of_losses_are_named():
    net = TwoHeads()
    optimizer = wrap(net)
    optimizer.accumulate(losses(net))
    with pytest.raises(InvalidValueError, match="got 1 losses after 2 were accumulated"):
        optimizer.accumulate(losses(net)[:1])
    optimizer.step()
    weighted = wrap(net, aggregator=ConFIG(direction_weights=[1.0, 2.0, 3.0]))
    with pytest.raises(InvalidValueError, match="3"):
        weighted.step(losses(net))
    with pytest.raises(InvalidStateError, match="nothing to combine"):
        wrap(net).combine()


def test_freed_graph_and_frozen_network_are_named():
    net = TwoHeads()
    optimizer = wrap(net)
    pair = losses(net)
    optimizer.accumulate(pair)
    with pytest.raises(InvalidStateError, match="graph of loss 0 was freed"):
        optimizer.accumulate(pair)
    pair = losses(net)
    net.requires_grad_(False)
    with pytest.raises(InvalidStateError, match="every parameter of the optimizer is frozen"):
        optimizer.step(pair)


def test_copy_keeps_its_heads():
    net = TwoHeads()
    optimizer = wrap(net, heads=net.first)
    twin, copied = copy.deepcopy((net, optimizer))
    before = copy.deepcopy(net)
    optimizer.step(losses(net))
    copied.step(losses(twin))
    assert same(net, twin)
    summed = torch.autograd.grad(sum(losses(before)), before.first.weight)[0]
    torch.testing.assert_close(twin.first.weight.grad, summed, rtol=1e-12, atol=1e-12)
