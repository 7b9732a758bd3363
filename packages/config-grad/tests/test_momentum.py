"""M-ConFIG as an optimizer: what it computes."""

from __future__ import annotations

import copy
import math

import numpy as np
import octavo_config_grad.moments
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.aggregators import ConFIG, LossRatio
from octavo_config_grad.gramian import gramian
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.update import config_update
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError


def make_parameters(shapes=((3, 2), (4,), ()), *, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in shapes
    ]


def quadratic(parameters, index):
    """A loss per index with its own minimum and curvature."""
    generator = torch.Generator().manual_seed(1000 + index)
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        centre = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        curvature = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.1
        total = total + (curvature * (parameter.double() - centre) ** 2).sum()
    return total


def run(optimizer, parameters, steps):
    for _ in range(steps):
        optimizer.step({index: quadratic(parameters, index) for index in optimizer.next_losses()})


def report(optimizer):
    assert optimizer.last_info is not None
    return optimizer.last_info


@settings(max_examples=15, deadline=None)
@given(
    lrs=st.tuples(st.floats(1e-5, 1e-1), st.floats(1e-5, 1e-1)),
    # V averages a reconstructed gradient: with beta2 = 0 its rounding error is divided by a single, possibly tiny, one.
    betas=st.tuples(st.floats(0.0, 0.99), st.floats(0.9, 0.9999)),
    eps=st.floats(1e-10, 1e-3),
    decay=st.sampled_from([0.0, 1e-2]),
    second_moment=st.sampled_from(["pseudo", "separate"]),
)
def test_one_loss_is_adam(lrs, betas, eps, decay, second_moment):
    ours, theirs = make_parameters(), make_parameters()
    options = {"betas": betas, "eps": eps, "weight_decay": decay}
    optimizer = MConFIG(
        [{"params": ours[:2], "lr": lrs[0]}, {"params": ours[2:], "lr": lrs[1]}],
        1,
        second_moment=second_moment,
        **options,
    )
    adam = torch.optim.AdamW([{"params": theirs[:2], "lr": lrs[0]}, {"params": theirs[2:], "lr": lrs[1]}], **options)
    for _ in range(12):
        optimizer.step(quadratic(ours, 0))
        adam.zero_grad()
        quadratic(theirs, 0).backward()
        adam.step()
    for ours_now, theirs_now in zip(ours, theirs, strict=True):
        torch.testing.assert_close(ours_now, theirs_now, rtol=1e-12, atol=1e-12)


def test_nothing_moves_until_every_loss_was_seen():
    parameters = make_parameters()
    before = [parameter.clone() for parameter in parameters]
    optimizer = MConFIG(parameters, 3, lr=0.1, weight_decay=0.1)
    run(optimizer, parameters, 2)
    assert optimizer.steps == 0
    assert optimizer.loss_steps == (1, 1, 0)
    assert optimizer.last_info is None
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))
    run(optimizer, parameters, 1)
    assert optimizer.steps == 1
    assert not torch.equal(parameters[0], before[0])


@settings(max_examples=8, deadline=None)
@given(num_losses=st.integers(1, 5), seed=st.integers(0, 100), recompute_every=st.sampled_from([1, 3, 1000]))
def test_kept_gramian_is_that_of_the_moments(num_losses, seed, recompute_every):
    parameters = make_parameters()
    optimizer = MConFIG(parameters, num_losses, select="random", seed=seed, recompute_every=recompute_every)
    run(optimizer, parameters, 12)
    moments = [optimizer.state[parameter]["exp_avgs"] for parameter in parameters]
    expected = gramian([[moment[index] for moment in moments] for index in range(num_losses)])
    kept = optimizer.state_dict()["mconfig"]["history"]["gramian"]
    torch.testing.assert_close(kept, expected, rtol=1e-13, atol=1e-13)


def test_refreshing_a_loss_changes_only_its_row_and_column():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 4)
    run(optimizer, parameters, 8)
    before = optimizer.state_dict()["mconfig"]["history"]["gramian"]
    optimizer.step({2: quadratic(parameters, 2)})
    changed = optimizer.state_dict()["mconfig"]["history"]["gramian"] != before
    assert changed[2].all()
    assert changed[:, 2].all()
    changed[2], changed[:, 2] = False, False
    assert not changed.any()


def test_update_is_the_config_update_of_the_corrected_moments():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 3, lr=0.0)
    run(optimizer, parameters, 6)
    run(optimizer, parameters, 1)
    rows = []
    for index in range(3):
        correction = 1.0 - 0.9 ** optimizer.loss_steps[index]
        rows.append([optimizer.state[parameter]["exp_avgs"][index] / correction for parameter in parameters])
    combined = config_update(rows)
    for parameter, h in zip(parameters, combined, strict=True):
        kept = optimizer.state[parameter]["pseudo_exp_avg"] / (1.0 - 0.9**optimizer.steps)
        torch.testing.assert_close(kept, h, rtol=1e-10, atol=1e-12)
    assert report(optimizer).cosines.min() > 0.0


@pytest.mark.parametrize("limit", [64, 512, 2**20])
@pytest.mark.parametrize("second_moment", ["pseudo", "separate"])
def test_result_does_not_depend_on_how_the_buffers_are_cut(monkeypatch, limit, second_moment):
    shapes = [(40, 50), (3,), (), (700, 2), (1, 1500), (5, 2, 2)]
    monkeypatch.setattr(octavo_config_grad.moments, "_MIN_STRETCH", 16)

    def train(elements):
        monkeypatch.setattr(octavo_config_grad.moments, "_CACHE_ELEMENTS", elements)
        parameters = make_parameters(shapes)
        # Memory order other than row-major, where a flat view does not exist.
        parameters[0].data = parameters[0].data.t().contiguous().t()
        optimizer = MConFIG(
            [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 1e-2}], 2, second_moment=second_moment
        )
        run(optimizer, parameters, 5)
        return parameters, len(optimizer._moments.stretches)

    whole, _ = train(2**30)
    cut, count = train(limit)
    assert count > 2 or limit == 2**20
    for first, second in zip(whole, cut, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_parameters_of_several_dtypes():
    parameters = [
        *make_parameters([(3,)], dtype=torch.float64),
        *make_parameters([(4, 2)], dtype=torch.float32, seed=1),
        *make_parameters([(5,)], dtype=torch.bfloat16, seed=2),
    ]
    reference = [torch.nn.Parameter(parameter.detach().double()) for parameter in parameters]
    optimizer = MConFIG(parameters, 2, lr=0.02)
    exact = MConFIG(reference, 2, lr=0.02)
    run(optimizer, parameters, 20)
    run(exact, reference, 20)
    assert [optimizer.state[p]["exp_avg_sq"].dtype for p in parameters] == [torch.float64, torch.float32, torch.float32]
    for ours, double, tolerance in zip(parameters, reference, (2e-2, 2e-2, 5e-2), strict=True):
        torch.testing.assert_close(ours.double(), double, rtol=0.0, atol=tolerance)


def test_frozen_parameters_are_left_alone_and_unreached_ones_do_not_decay():
    frozen, unreached, trained = make_parameters([(3,), (2,), (4,)])
    frozen.requires_grad_(False)
    before = frozen.clone(), unreached.clone(), trained.clone()
    optimizer = MConFIG([frozen, unreached, trained], 2, lr=0.1, weight_decay=0.5)
    run(optimizer, [trained], 6)
    assert torch.equal(frozen, before[0])
    assert torch.equal(unreached, before[1])
    assert not torch.equal(trained, before[2])
    assert frozen.grad is None
    assert trained.grad is None
    assert set(optimizer.state) == {trained}


def test_freezing_midway_drops_the_moments_of_a_parameter():
    first, second = make_parameters([(3,), (4,)])
    optimizer = MConFIG([first, second], 2, lr=0.1)
    run(optimizer, [first, second], 6)
    first.requires_grad_(False)
    before = first.clone()
    run(optimizer, [first.detach(), second], 1)
    moments = optimizer.state[second]["exp_avgs"]
    kept = optimizer.state_dict()["mconfig"]["history"]["gramian"]
    torch.testing.assert_close(kept, moments @ moments.T)
    run(optimizer, [first.detach(), second], 3)
    assert torch.equal(first, before)
    assert first not in optimizer.state


def test_group_added_later_counts_as_having_had_zero_gradients():
    def train(add_at_start):
        first, second = make_parameters([(3,), (4,)])
        groups = [{"params": [first]}]
        if add_at_start:
            groups.append({"params": [second], "lr": 0.02})
        optimizer = MConFIG(groups, 2, lr=0.1)
        for step in range(12):
            if step == 5 and not add_at_start:
                optimizer.add_param_group({"params": [second], "lr": 0.02})
            # In the first steps no loss depends on the second parameter.
            reached = [first, second] if step >= 5 else [first]
            losses = {index: quadratic(reached, index) for index in optimizer.next_losses()}
            if add_at_start and step < 5:
                losses = {index: loss + 0.0 * second.sum() for index, loss in losses.items()}
            optimizer.step(losses)
        return first, second

    for early, late in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(early, late, rtol=1e-12, atol=1e-12)


def test_added_loss_freezes_updates_until_seen():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2, lr=0.1)
    run(optimizer, parameters, 4)
    steps = optimizer.steps
    assert optimizer.add_loss() == 2
    before = parameters[0].clone()
    optimizer.step({0: quadratic(parameters, 0)})
    assert torch.equal(parameters[0], before)
    assert optimizer.steps == steps
    optimizer.step({2: quadratic(parameters, 2)})
    assert optimizer.steps == steps + 1
    assert len(report(optimizer).alpha) == 3
    assert not torch.equal(parameters[0], before)


def test_added_loss_can_be_excluded_until_seen():
    parameters, twin = make_parameters(), make_parameters()
    optimizer, without = MConFIG(parameters, 2, lr=0.1), MConFIG(twin, 2, lr=0.1)
    run(optimizer, parameters, 4)
    run(without, twin, 4)
    optimizer.add_loss(unseen="exclude")
    for index in (0, 1, 0):
        optimizer.step({index: quadratic(parameters, index)})
        without.step({index: quadratic(twin, index)})
    assert all(torch.equal(a, b) for a, b in zip(parameters, twin, strict=True))
    assert [optimizer.next_losses() for _ in range(2)] == [[0], [0]]
    optimizer.step({2: quadratic(parameters, 2)})
    assert len(report(optimizer).alpha) == 3


def test_separate_second_moments_combine_the_adam_directions():
    parameters = make_parameters([(6,)])
    optimizer = MConFIG(parameters, 2, lr=0.0, second_moment="separate")
    run(optimizer, parameters, 4)
    (direction,) = optimizer.direction({0: quadratic(parameters, 0)})
    moments = optimizer.state[parameters[0]]
    t = torch.tensor(optimizer.loss_steps, dtype=torch.float64)[:, None]
    rows = moments["exp_avgs"] / (1 - 0.9**t) / ((moments["exp_avg_sqs"] / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(direction, config_update(rows), rtol=1e-10, atol=1e-12)


def test_direction_with_sgd_is_a_step_and_adam_on_top_is_the_ablation():
    parameters, by_hand, on_top = make_parameters(), make_parameters(), make_parameters()
    optimizer, momenta, ablation = MConFIG(parameters, 2, lr=0.03), MConFIG(by_hand, 2), MConFIG(on_top, 2)
    sgd, adam = torch.optim.SGD(by_hand, lr=0.03), torch.optim.Adam(on_top, lr=0.03)
    for _ in range(8):
        run(optimizer, parameters, 1)
        for inner, outer, theirs in ((momenta, sgd, by_hand), (ablation, adam, on_top)):
            directions = inner.direction({index: quadratic(theirs, index) for index in inner.next_losses()})
            for parameter, direction in zip(theirs, directions, strict=True):
                parameter.grad = direction
            outer.step()
    for first, second in zip(parameters, by_hand, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(parameters[0], on_top[0])


def test_losses_may_be_functions_sequences_or_come_from_a_closure():
    parameters: list[torch.nn.Parameter] = []
    forms = {
        "tensors": lambda: {index: quadratic(parameters, index) for index in range(2)},
        "functions": lambda: {index: lambda index=index: quadratic(parameters, index) for index in range(2)},
        "sequence": lambda: [quadratic(parameters, index) for index in range(2)],
        "closure": lambda: lambda: [quadratic(parameters, index) for index in range(2)],
        "vector": lambda: torch.stack([quadratic(parameters, index) for index in range(2)]),
        "one element each": lambda: [quadratic(parameters, index).reshape(1) for index in range(2)],
    }
    results = []
    for form in forms.values():
        parameters[:] = make_parameters()
        optimizer = MConFIG(parameters, 2, lr=0.1)
        for _ in range(3):
            values = optimizer.step(closure=form())
        assert list(values) == [0, 1]
        assert not values[0].requires_grad
        results.append(list(parameters))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_numpy_and_tensor_indices_are_accepted():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 3)
    values = optimizer.step({np.int64(2): quadratic(parameters, 2), torch.tensor(0): quadratic(parameters, 0)})
    assert list(values) == [2, 0]
    assert optimizer.loss_steps == (1, 0, 1)


def test_learning_rate_schedulers_work():
    parameters = make_parameters()
    optimizer = MConFIG([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.4}], 2, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        run(optimizer, parameters, 1)
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.1]


def test_scheduler_that_cycles_beta1_keeps_updates_finite():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2, lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
    for _ in range(11):
        run(optimizer, parameters, 1)
        scheduler.step()
    assert all(bool(parameter.isfinite().all()) for parameter in parameters)


def test_losses_of_the_other_steps_reach_the_aggregator():
    parameters = make_parameters()
    seen = []
    aggregator = ConFIG(
        direction_weights=lambda gramian, losses: seen.append(losses.tolist()) or torch.ones(len(losses))
    )
    optimizer = MConFIG(parameters, 2, lr=0.1, aggregator=aggregator)
    first, second = quadratic(parameters, 0), quadratic(parameters, 1)
    optimizer.step({0: first})
    optimizer.step({1: second})
    assert seen == [[first.item(), second.item()]]


def test_gradients_by_backward_equal_autograd_and_restore_grad():
    results = []
    for by in ("autograd", "backward"):
        parameters = make_parameters()
        optimizer = MConFIG(parameters, 2, lr=0.1, gradients_by=by)
        mark = torch.ones_like(parameters[0])
        parameters[0].grad = mark
        run(optimizer, parameters, 5)
        assert parameters[0].grad is mark
        assert parameters[1].grad is None
        results.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_autocast_of_the_forward_pass_does_not_touch_the_moments():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 8, generator=generator)
    weight = torch.nn.Parameter(torch.randn(8, 4, generator=generator))
    optimizer = MConFIG([weight], 2, lr=0.01)
    seen = []
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = inputs @ weight
            seen.append(output.dtype)
            optimizer.step({step % 2: output.float().square().mean() if step % 2 else output.float().mean()})
    assert set(seen) == {torch.bfloat16}
    moments = optimizer.state[weight]["exp_avgs"].double().flatten(1)
    kept = optimizer.state_dict()["mconfig"]["history"]["gramian"]
    torch.testing.assert_close(kept, moments @ moments.T, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradient_that_is_not_finite_leaves_everything_untouched(policy, bad):
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2, lr=0.1, nonfinite=policy)
    run(optimizer, parameters, 5)
    chosen = optimizer.next_losses()
    before, state = [p.clone() for p in parameters], optimizer.state_dict()
    losses = {index: quadratic(parameters, index) + bad * parameters[1].sum() for index in chosen}
    if policy == "raise":
        with pytest.raises(
            InvalidValueError, match=rf"gradient of loss {chosen[0]} .*parameter 1 of group 0.*not finite"
        ):
            optimizer.step(losses)
    else:
        optimizer.step(losses)
    assert optimizer.skipped_steps == (policy == "skip")
    assert optimizer.next_losses() == chosen
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    now = optimizer.state_dict()
    for key in state["state"]:
        assert all(torch.equal(now["state"][key][name], state["state"][key][name]) for name in state["state"][key])
    assert now["mconfig"]["history"]["steps"] == state["mconfig"]["history"]["steps"]
    run(optimizer, parameters, 1)
    assert not torch.equal(parameters[0], before[0])


def test_grad_scaler_changes_nothing_but_skips_on_overflow():
    plain, scaled = make_parameters(dtype=torch.float32), make_parameters(dtype=torch.float32)
    without, optimizer = MConFIG(plain, 2, lr=0.1), MConFIG(scaled, 2, lr=0.1, updates_per_step=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for _ in range(3):
        without.step({index: quadratic(plain, index) for index in range(2)})
        optimizer.step({index: quadratic(scaled, index) for index in optimizer.next_losses()}, scaler=scaler)
        scaler.update()
    assert scaler.get_scale() == 2048.0
    for first, second in zip(plain, scaled, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)
    before = [parameter.clone() for parameter in scaled]
    optimizer.step({1: quadratic(scaled, 1) * math.inf}, scaler=scaler)
    scaler.update()
    assert scaler.get_scale() == 1024.0
    assert optimizer.skipped_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(scaled, before, strict=True))
    assert scaled[0].grad is None


def test_copy_goes_on_by_itself():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2, lr=0.1, select="random")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    run(optimizer, parameters, 4)
    scheduler.step()
    twin_parameters, twin = copy.deepcopy((parameters, optimizer))
    run(optimizer, parameters, 3)
    assert not torch.equal(parameters[0], twin_parameters[0])
    run(twin, twin_parameters, 3)
    assert all(torch.equal(a, b) for a, b in zip(parameters, twin_parameters, strict=True))


def test_loss_ratio_weights_work_with_momenta():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2, lr=0.05, aggregator=ConFIG(direction_weights=LossRatio()))
    start = [quadratic(parameters, index).item() for index in range(2)]
    run(optimizer, parameters, 30)
    assert sum(quadratic(parameters, index).item() for index in range(2)) < sum(start)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_losses": 0}, InvalidValueError, "num_losses=0 is out of range; give at least 1"),
        ({"num_losses": 1.5}, InvalidTypeError, "num_losses.*not an integer"),
        ({"num_losses": True}, InvalidTypeError, "num_losses.*not an integer"),
        ({"num_losses": -1}, InvalidValueError, "num_losses=-1 is out of range; give at least 1"),
        ({"lr": "0.1"}, InvalidTypeError, "lr='0.1' is a str; give a number"),
        ({"lr": None}, InvalidTypeError, "lr=None is a NoneType"),
        ({"lr": True}, InvalidTypeError, "lr=True is a bool"),
        ({"eps": "x"}, InvalidTypeError, "eps='x' is a str"),
        ({"weight_decay": "x"}, InvalidTypeError, "weight_decay='x' is a str"),
        ({"betas": ("a", "b")}, InvalidTypeError, r"betas\[0\]='a' is a str"),
        ({"seed": "x"}, InvalidTypeError, "seed='x' is a str, not an integer"),
        ({"seed": 2**64}, InvalidValueError, "seed=18446744073709551616 is out of range"),
        ({"recompute_every": "x"}, InvalidTypeError, "recompute_every='x' is a str, not an integer"),
        ({"recompute_every": 1.5}, InvalidTypeError, "recompute_every=1.5 is a float, not an integer"),
        ({"process_group": "x"}, InvalidTypeError, "process_group is a str"),
        ({"lr": -1.0}, InvalidValueError, "lr=-1.0"),
        ({"lr": math.nan}, InvalidValueError, "lr=nan"),
        ({"betas": (0.9, 1.0)}, InvalidValueError, "betas"),
        ({"betas": 0.9}, InvalidValueError, "betas"),
        ({"eps": 0.0}, InvalidValueError, "eps=0.0"),
        ({"weight_decay": -0.1}, InvalidValueError, "weight_decay=-0.1"),
        ({"updates_per_step": 0}, InvalidValueError, "updates_per_step=0"),
        ({"updates_per_step": 4}, InvalidValueError, "updates_per_step=4 is out of range; give 1 to 3"),
        ({"select": "best"}, InvalidValueError, "select='best' is unknown"),
        ({"select": 3}, InvalidTypeError, "select is a int"),
        ({"second_moment": "none"}, InvalidValueError, "second_moment='none' is unknown"),
        ({"nonfinite": "ignore"}, InvalidValueError, "nonfinite='ignore' is unknown"),
        ({"gradients_by": "hand"}, InvalidValueError, "gradients_by='hand' is unknown"),
        ({"recompute_every": 0}, InvalidValueError, "recompute_every=0"),
        ({"reduction": "mean"}, InvalidValueError, "reduction='mean' is unknown"),
        ({"reduction": 1}, InvalidTypeError, "reduction is a int"),
        ({"aggregator": "config"}, InvalidTypeError, "aggregator is a str"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        MConFIG(make_parameters(), **{"num_losses": 3, **options})


@pytest.mark.parametrize(
    ("make_losses", "error", "message"),
    [
        (lambda p: {3: quadratic(p, 0)}, InvalidValueError, "index 3 is out of range; give 0 to 2"),
        (lambda p: {-1: quadratic(p, 0)}, InvalidValueError, "index -1 is out of range"),
        (lambda p: {1.0: quadratic(p, 0)}, InvalidTypeError, "1.0 is a float, not an integer"),
        (lambda p: {True: quadratic(p, 0)}, InvalidTypeError, "True is a bool, not an integer"),
        (
            lambda p: {torch.tensor(1): quadratic(p, 0), torch.tensor(1): quadratic(p, 1)},
            InvalidValueError,
            "index 1 is repeated",
        ),
        (lambda p: {}, InvalidValueError, "no losses"),
        (lambda p: [], InvalidValueError, "no losses"),
        (lambda p: None, InvalidValueError, "no losses"),
        (lambda p: [quadratic(p, 0)], InvalidValueError, "got 1 losses instead of 3"),
        (lambda p: 5.0, InvalidTypeError, "got a float"),
        (lambda p: {1: 5.0}, InvalidTypeError, "loss 1 is a float"),
        (lambda p: {1: p[0] * 2}, InvalidValueError, r"loss 1 has shape \(3, 2\); give a scalar"),
        (lambda p: {1: quadratic(p, 0).detach()}, InvalidValueError, "loss 1 has no graph"),
        (lambda p: {2: quadratic(p, 0) * 1j}, InvalidTypeError, "loss 2 has dtype torch.complex128"),
        (lambda p: [quadratic(p, 0)] * 3, InvalidValueError, "of 3 losses, numbers 0 and 1 are the same object"),
        (lambda p: twice(quadratic(p, 0), quadratic(p, 1)), InvalidValueError, "numbers 0 and 2 are the same object"),
    ],
)
def test_bad_losses_are_named(make_losses, error, message):
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 3)
    with pytest.raises(error, match=message):
        optimizer.step(make_losses(parameters))
    assert optimizer.loss_steps == (0, 0, 0)


def twice(first, second):
    return [first, second, first]


def test_tensors_as_learning_rates_are_accepted():
    parameters = make_parameters()
    run(MConFIG(parameters, 1, lr=torch.tensor(0.1), eps=np.float64(1e-8)), parameters, 2)


@pytest.mark.parametrize("by", ["autograd", "backward"])
def test_sparse_gradients_are_named(by):
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = MConFIG(embedding.parameters(), 1, gradients_by=by)
    with pytest.raises(InvalidTypeError, match=r"loss 0 for a parameter of shape \(5, 3\) is sparse; set sparse=False"):
        optimizer.step(embedding(torch.tensor([1])).sum())
    assert optimizer.loss_steps == (0,)


def test_what_is_no_scaler_is_named():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 1)
    with pytest.raises(InvalidTypeError, match=r"scaler is a str; give a torch.amp.GradScaler"):
        optimizer.step(quadratic(parameters, 0), scaler="x")


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_gradient_that_would_overflow_the_update_leaves_everything_untouched(policy):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = MConFIG([parameter], 2, lr=0.1, nonfinite=policy)
    rows = torch.tensor([[3e38, 0.0], [3e38, 1e38]])
    optimizer.step([parameter[0], parameter[1]])
    before, state = parameter.clone(), optimizer.state_dict()
    losses = [(parameter * row).sum() for row in rows]
    if policy == "raise":
        with pytest.raises(InvalidValueError, match="gradient of loss 0 .* so large that the update may not be finite"):
            optimizer.step(losses)
    else:
        optimizer.step(losses)
    assert optimizer.skipped_steps == (policy == "skip")
    assert torch.equal(parameter, before)
    for name, moment in state["state"][0].items():
        assert torch.equal(optimizer.state[parameter][name], moment)
    optimizer.step([parameter[0], parameter[1]])
    assert bool(parameter.isfinite().all())


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_update_that_a_length_function_lets_overflow_moves_no_parameter(policy):
    parameter = torch.nn.Parameter(torch.zeros(2))
    aggregator = ConFIG(length=lambda norms, cosines: 1e39)
    optimizer = MConFIG([parameter], 2, lr=0.1, nonfinite=policy, aggregator=aggregator)
    if policy == "raise":
        with pytest.raises(InvalidValueError, match="combined update is not finite although every gradient is"):
            optimizer.step([parameter[0], parameter[1]])
    else:
        optimizer.step([parameter[0], parameter[1]])
        assert optimizer.last_info is None
    assert optimizer.skipped_steps == (policy == "skip")
    assert optimizer.steps == 0
    assert not parameter.any()


def test_large_gradients_in_float64_are_taken():
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = MConFIG([parameter], 2, lr=0.1)
    optimizer.step([(parameter * 1e120)[0], (parameter * 1e120)[1]])
    assert bool((parameter < 0.0).all())


def test_loss_whose_graph_was_freed_is_named():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2)
    losses = {1: quadratic(parameters, 1)}
    optimizer.step(losses)
    with pytest.raises(InvalidStateError, match="graph of loss 1 was freed"):
        optimizer.step(losses)


def test_complex_parameters_and_different_betas_are_refused():
    with pytest.raises(InvalidTypeError, match=r"parameter 0 of group 0 \(2,\) has dtype torch.complex64"):
        MConFIG([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))], 2)
    optimizer = MConFIG(make_parameters(), 2)
    with pytest.raises(InvalidValueError, match="betas differ"):
        optimizer.add_param_group({"params": make_parameters([(2,)]), "betas": (0.5, 0.9)})
    assert len(optimizer.param_groups) == 1


def test_names_of_parameters_appear_in_messages():
    optimizer = MConFIG([("trunk.weight", make_parameters()[0])], 1)
    (parameter,) = optimizer.param_groups[0]["params"]
    with pytest.raises(InvalidValueError, match=r"loss 0 with respect to trunk.weight \(3, 2\)"):
        optimizer.step((parameter * math.inf).sum())


def test_everything_frozen_is_an_error():
    parameters = make_parameters()
    optimizer = MConFIG(parameters, 2)
    loss = quadratic(parameters, 0)
    for parameter in parameters:
        parameter.requires_grad_(False)
    with pytest.raises(InvalidStateError, match="every parameter of MConFIG is frozen"):
        optimizer.step({0: loss})


def test_unknown_treatment_of_an_added_loss_is_named():
    with pytest.raises(InvalidValueError, match="unseen='wait' is unknown"):
        MConFIG(make_parameters(), 2).add_loss(unseen="wait")


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_nearly_opposite_and_extreme_gradients_stay_conflict_free_in_float32(scale):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1000, generator=generator)
    other = -base + 1e-3 * torch.randn(1000, generator=generator)
    parameter = torch.nn.Parameter(torch.zeros(1000))
    optimizer = MConFIG([parameter], 2)
    for _ in range(3):
        (direction,) = optimizer.direction([(parameter * base).sum(), (parameter * other * scale).sum()])
    combined = optimizer.state[parameter]["pseudo_exp_avg"].double()
    for moment in optimizer.state[parameter]["exp_avgs"].double():
        assert float(moment @ combined) / float(moment.norm() * combined.norm()) > 1e-4
    assert bool(direction.isfinite().all())
