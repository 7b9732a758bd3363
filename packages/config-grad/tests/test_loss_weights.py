"""Loss-weighting baselines against values worked out by hand."""

from __future__ import annotations

import io
import math

import pytest
import torch
from octavo_config_grad.loss_weights import (
    DWA,
    LRA,
    RLW,
    GradNorm,
    LossWeighting,
    MinMax,
    ReLoBRaLo,
    UncertaintyWeighting,
)
from octavo_core.errors import InvalidValueError

F64 = torch.float64
RULES = [LRA, ReLoBRaLo, MinMax, UncertaintyWeighting, DWA, RLW, GradNorm]


def vector(*values):
    return torch.tensor(values, dtype=F64)


def softmax(*values):
    exponentials = [math.exp(value) for value in values]
    return [exponential / sum(exponentials) for exponential in exponentials]


def test_lra_compares_the_largest_entry_with_the_means():
    gradients = torch.tensor([[3.0, -6.0, 0.0], [1.0, 1.0, -1.0], [0.0, 0.0, 0.0]])
    rule = LRA(3, beta=0.9)
    # what_1 = 6 / 1; a loss without gradient keeps its weight.
    torch.testing.assert_close(rule.weights(vector(1.0, 1.0, 1.0), gradients), vector(1.0, 0.9 + 0.1 * 6.0, 1.0))
    lists = [[row[:1], row[1:].view(2, 1)] for row in gradients]
    expected = vector(1.0, 0.9 * 1.5 + 0.1 * 6.0, 1.0)
    torch.testing.assert_close(rule.weights(vector(1.0, 1.0, 1.0), lists), expected)


def test_lra_with_another_reference_and_the_official_decay():
    rule = LRA(2, reference=1)
    weights = rule.weights(vector(1.0, 1.0), torch.tensor([[2.0, 2.0], [0.0, -8.0]]))
    torch.testing.assert_close(weights, vector(0.999 + 0.001 * 4.0, 1.0))


def test_relobralo_balances_against_the_last_step_and_the_first():
    rule = ReLoBRaLo(2, alpha=0.75, tau=0.5, expected_rho=1.0)
    assert rule.weights(vector(2.0, 4.0)).tolist() == [1.0, 1.0]
    balance = [2.0 * share for share in softmax(1.0 / (0.5 * 2.0), 4.0 / (0.5 * 4.0))]
    expected = vector(*(0.75 * 1.0 + 0.25 * b for b in balance))
    torch.testing.assert_close(rule.weights(vector(1.0, 4.0)), expected)

    forgetful = ReLoBRaLo(2, alpha=0.75, tau=0.5, expected_rho=0.0)
    forgetful.weights(vector(2.0, 4.0))
    forgetful.weights(vector(1.0, 4.0))
    first = [2.0 * share for share in softmax(1.0 / (0.5 * 2.0), 1.0 / (0.5 * 4.0))]
    last = [2.0 * share for share in softmax(1.0 / (0.5 * 1.0), 1.0 / (0.5 * 4.0))]
    expected = vector(*(0.75 * a + 0.25 * b for a, b in zip(first, last, strict=True)))
    torch.testing.assert_close(forgetful.weights(vector(1.0, 1.0)), expected)


def test_relobralo_looks_back_as_often_as_expected():
    rule = ReLoBRaLo(2, alpha=1.0, tau=1.0, expected_rho=0.8, seed=3)
    rule.weights(vector(1.0, 1.0))
    # With alpha = 1 the weights change only when the first step is looked at.
    changes = 0
    last = rule.weights(vector(1.0, 2.0))
    for step in range(1000):
        now = rule.weights(vector(1.0, 1.0 + step / 1000.0))
        changes += int(not torch.equal(now, last))
        last = now
    assert 150 < changes < 250  # 200 expected, 4 standard deviations are 51


def test_minmax_climbs_towards_the_largest_loss():
    rule = MinMax(2, lr=0.1)
    assert rule.weights(vector(1.0, 3.0)).tolist() == [1.0, 1.0]
    # Adam's first step is lr times the sign of the gradient.
    torch.testing.assert_close(rule.weights(vector(1.0, 3.0)), vector(*(2.0 * s for s in softmax(-0.1, 0.1))))
    for _ in range(200):
        weights = rule.weights(vector(1.0, 3.0))
    assert weights[1] > 1.9
    assert weights.sum() == pytest.approx(2.0)


def test_uncertainty_weights_tend_to_half_the_inverse_loss():
    rule = UncertaintyWeighting(2, lr=0.05)
    assert rule.weights(vector(4.0, 0.25)).tolist() == [0.5, 0.5]
    torch.testing.assert_close(rule.weights(vector(4.0, 0.25)), 0.5 * torch.exp(vector(-0.05, 0.05)))
    for _ in range(300):
        weights = rule.weights(vector(4.0, 0.25))
    torch.testing.assert_close(weights, vector(0.125, 2.0), rtol=1e-2, atol=0.0)


def test_dwa_compares_the_last_two_calls():
    rule = DWA(2)
    assert rule.weights(vector(4.0, 4.0)).tolist() == [1.0, 1.0]
    assert rule.weights(vector(2.0, 4.0)).tolist() == [1.0, 1.0]
    expected = vector(*(2.0 * share for share in softmax(0.5 / 2.0, 1.0 / 2.0)))
    torch.testing.assert_close(rule.weights(vector(9.0, 9.0)), expected)


def test_dwa_averages_over_a_period():
    rule = DWA(2, period=2)
    for losses in (vector(3.0, 1.0), vector(5.0, 3.0), vector(1.0, 2.0), vector(3.0, 2.0)):
        assert rule.weights(losses).tolist() == [1.0, 1.0]
    expected = vector(*(2.0 * share for share in softmax(2.0 / 4.0 / 2.0, 2.0 / 2.0 / 2.0)))
    torch.testing.assert_close(rule.weights(vector(7.0, 7.0)), expected)
    torch.testing.assert_close(rule.weights(vector(7.0, 7.0)), expected)


def test_rlw_draws_positive_weights_that_sum_to_one():
    rule = RLW(3, seed=1)
    draws = torch.stack([rule.weights(vector(1.0, 1.0, 1.0)) for _ in range(2000)])
    assert draws.min() > 0.0
    torch.testing.assert_close(draws.sum(1), torch.ones(2000, dtype=F64))
    assert (draws.mean(0) - 1.0 / 3.0).abs().max() < 0.02  # standard error 0.005
    assert torch.equal(draws[0], RLW(3, seed=1).weights(vector(1.0, 1.0, 1.0)))
    assert not torch.equal(draws[0], RLW(3, seed=2).weights(vector(1.0, 1.0, 1.0)))


def test_gradnorm_raises_the_weight_of_the_smaller_gradient():
    rule = GradNorm(2, lr=0.1)
    gradients = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert rule.weights(vector(1.0, 1.0), gradients).tolist() == [1.0, 1.0]
    # Equal rates: the mean norm 3 is the target of both; Adam's first step is lr by sign, and the sum is 2 already.
    torch.testing.assert_close(rule.weights(vector(1.0, 1.0), gradients), vector(0.9, 1.1))
    for _ in range(300):
        weights = rule.weights(vector(1.0, 1.0), gradients)
    torch.testing.assert_close(weights * vector(5.0, 1.0), torch.full((2,), 10.0 / 6.0, dtype=F64), rtol=0.1, atol=0.0)


def test_gradnorm_favours_the_loss_that_falls_slowly():
    rule = GradNorm(2, lr=0.01)
    gradients = torch.eye(2)
    rule.weights(vector(1.0, 1.0), gradients)
    for _ in range(50):
        weights = rule.weights(vector(0.2, 1.0), gradients)
    assert weights[1] > 1.1
    assert weights.sum() == pytest.approx(2.0)


def use(rule, steps, start=0):
    drawn = []
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        losses = torch.rand(rule.num_losses, generator=generator, dtype=F64) + 0.1
        gradients = torch.randn(rule.num_losses, 5, generator=generator, dtype=F64)
        drawn.append(rule.weights(losses, gradients if rule.needs_gradients else None))
    return drawn


@pytest.mark.parametrize("rule", RULES)
def test_resumed_weights_equal_uninterrupted_ones(rule):
    whole, first, second = rule(3), rule(3), rule(3)
    expected = use(whole, 12)
    use(first, 5)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    use(first, 3)  # the saved state is a copy
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(expected[5:], use(second, 7, start=5), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_weights_follow_dtype_and_carry_no_graph(rule):
    losses = torch.rand(2, requires_grad=True) + 0.5
    weights = rule(2).weights(losses, torch.ones(2, 4))
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    assert bool((weights > 0.0).all())


@pytest.mark.parametrize("rule", RULES)
def test_zero_losses_and_gradients_give_finite_weights(rule):
    each = rule(2)
    for losses in (vector(0.0, 1.0), vector(0.0, 0.5), vector(0.0, 0.0)):
        weights = each.weights(losses, torch.zeros(2, 3))
        assert bool(weights.isfinite().all())


def test_one_loss_always_has_weight_one_or_a_half():
    for rule in (LRA, ReLoBRaLo, MinMax, DWA, RLW, GradNorm):
        assert [w.item() for w in use(rule(1), 4)] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RLW(0), "num_losses=0"),
        (lambda: LRA(2, beta=1.0), r"beta=1.0; give a number in \[0, 1\)"),
        (lambda: LRA(2, reference=2), "reference=2 is out of range"),
        (lambda: ReLoBRaLo(2, tau=0.0), "tau=0.0"),
        (lambda: ReLoBRaLo(2, alpha=1.5), r"alpha=1.5; give a number in \[0, 1\]"),
        (lambda: ReLoBRaLo(2, expected_rho=-0.1), "expected_rho=-0.1"),
        (lambda: MinMax(2, lr=-1.0), "lr=-1.0"),
        (lambda: UncertaintyWeighting(2, lr=math.inf), "lr=inf"),
        (lambda: DWA(2, temperature=0.0), "temperature=0.0"),
        (lambda: DWA(2, period=0), "period=0"),
        (lambda: GradNorm(2, alpha=-1.0), "alpha=-1.0"),
        (lambda: RLW(2).weights(vector(1.0)), r"losses has shape \(1,\); give one vector \(2,\)"),
        (lambda: RLW(2).weights(vector(1.0, math.nan)), "loss 1 is nan; RLW needs finite losses"),
        (lambda: LRA(2).weights(vector(1.0, 1.0)), "LRA needs the gradients of 2 losses, got none"),
        (lambda: GradNorm(2).weights(vector(1.0, 1.0), torch.ones(3, 2)), "gradients of 2 losses, got 3"),
        (lambda: RLW(2).load_state_dict(DWA(2).state_dict()), "load the state of the same rule"),
        (lambda: DWA(2).load_state_dict(DWA(3).state_dict()), "build it for the same number of losses"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InvalidValueError, match=message):
        make()


def test_base_class_asks_for_a_rule():
    with pytest.raises(NotImplementedError):
        LossWeighting(2).weights(vector(1.0, 1.0))
