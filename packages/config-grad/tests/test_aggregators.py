from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from octavo_config_grad.aggregators import Aggregator, ConFIG, LossRatio
from octavo_config_grad.baselines import IMTLG, MGDA, PCGrad, Sum
from octavo_config_grad.gramian import gramian, weighted_sum
from octavo_config_grad.update import config_update, config_weights
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

BUILDERS = {
    "config": ConFIG,
    "maxmin": partial(ConFIG, rank_policy="maxmin"),
    "sum": Sum,
    "pcgrad": PCGrad,
    "pcgrad-shuffle": partial(PCGrad, shuffle=True),
    "imtlg": IMTLG,
    "mgda": MGDA,
}
each_aggregator = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


def random_gradients(num_losses=3, num_parameters=12, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_losses, num_parameters, generator=generator, dtype=torch.float64).to(dtype)


class FirstOnly(Aggregator):
    """The smallest subclass a user would write."""

    def coefficients(self, gramian, losses):
        alpha = torch.zeros(len(gramian))
        alpha[0] = 1.0 if losses is None else losses[0]
        return alpha


def test_a_subclass_needs_coefficients_only():
    gradients = random_gradients()
    update, info = FirstOnly().aggregate(gradients)
    torch.testing.assert_close(update, gradients[0])
    assert info.cosines[0] == pytest.approx(1.0)
    torch.testing.assert_close(FirstOnly()(gradients, losses=[2.0, 1, 1]), 2 * gradients[0])
    torch.testing.assert_close(FirstOnly()(gradients, losses=torch.tensor([2.0, 1.0, 1.0])), 2 * gradients[0])
    with pytest.raises(NotImplementedError, match="coefficients"):
        Aggregator()(gradients)


@each_aggregator
def test_forms_of_gradients_and_entry_points_agree(build):
    gradients = random_gradients()
    update, info = build().aggregate(gradients)
    alpha = build().weights(gramian(gradients))
    assert alpha.dtype == torch.float64
    torch.testing.assert_close(alpha, info.alpha)
    torch.testing.assert_close(alpha @ gradients, update)
    torch.testing.assert_close(build()(list(gradients)), update)
    parts = build()([[row[:4].reshape(2, 2), row[4:]] for row in gradients])
    torch.testing.assert_close(torch.cat([part.reshape(-1) for part in parts]), update)
    assert info.length == pytest.approx(float(update.norm()))
    torch.testing.assert_close(info.cosines, torch.cosine_similarity(gradients, update[None]))


@each_aggregator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_gradients_give_finite_updates(build, dtype):
    aggregator = build()
    gradients = random_gradients(dtype=dtype)
    gradients[1] = 0
    update, info = aggregator.aggregate(gradients)
    assert update.dtype == dtype
    assert torch.isfinite(update).all()
    assert info.norms[1] == 0.0
    update, info = aggregator.aggregate(torch.zeros_like(gradients))
    assert not update.any()
    assert info.pareto_stationary


@each_aggregator
@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_a_common_factor_beyond_the_square_root_of_the_range(build, factor):
    gradients = random_gradients()
    expected = build()(gradients)
    update, info = build().aggregate(gradients * factor)
    torch.testing.assert_close(update / factor, expected)
    torch.testing.assert_close(info.norms / factor, gradients.norm(dim=1))


def test_config_is_config_update():
    gradients, weights = random_gradients(), [1.0, 2.0, 0.5]
    aggregator = ConFIG(weights, length="harmonic", rank_policy="maxmin", rtol=1e-8)
    expected = config_update(gradients, weights, length="harmonic", rank_policy="maxmin", rtol=1e-8)
    torch.testing.assert_close(aggregator(gradients), expected)
    torch.testing.assert_close(
        aggregator.coefficients(gramian(gradients), None),
        config_weights(gramian(gradients), weights, length="harmonic", rank_policy="maxmin", rtol=1e-8)[0],
    )


def test_direction_weights_may_be_a_function_of_gramian_and_losses():
    gradients = random_gradients()
    seen = {}

    def weights(gramian, losses):
        seen["losses"] = losses
        return 1.0 / gramian.diagonal().sqrt()

    update = ConFIG(weights)(gradients, losses=[torch.tensor(3.0, requires_grad=True), 2, 1.0])
    assert seen["losses"].tolist() == [3.0, 2.0, 1.0]
    torch.testing.assert_close(update, config_update(gradients, 1.0 / gradients.norm(dim=1)))
    with pytest.raises(InvalidValueError, match="direction weight of loss 0 is -1"):
        ConFIG(lambda gramian, losses: [-1.0, 1.0, 1.0])(gradients)


@each_aggregator
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_raise_or_skip(build, bad):
    gradients = random_gradients()
    gradients[2, 3] = bad
    with pytest.raises(InvalidValueError, match="gradient of loss 2 is not finite"):
        build()(gradients)
    skipping = build(nonfinite="skip")
    update, info = skipping.aggregate(gradients)
    assert not update.any()
    assert info.skipped
    assert not info.alpha.any()
    assert math.isfinite(info.norms[0])
    assert not math.isfinite(info.norms[2])
    lists = skipping([[row[:4], row[4:]] for row in gradients])
    assert not any(part.any() for part in lists)
    assert not skipping.aggregate(random_gradients())[1].skipped


@pytest.mark.slow
def test_functions_that_combine_gradients_compile():
    gradients = random_gradients(dtype=torch.float32)
    alpha = torch.tensor([0.1, 0.7, -1.3], dtype=torch.float64)

    def sum_lists(gradients):
        return weighted_sum([[row] for row in gradients], 2 * alpha)[0] + 1.0

    def sum_matrix(gradients):
        return weighted_sum(2 * gradients, alpha) + 1.0

    def update(gradients):
        return 2 * config_update(gradients) - 1.0

    def combine(gradients):
        return 3 * ConFIG()(gradients) + PCGrad()(2 * gradients)

    def solve(gradients):
        return config_weights(gramian(gradients))[0] + ConFIG(length="min").weights(gramian(gradients))

    for function in (sum_lists, sum_matrix, update, combine, solve):
        compiled = torch.compile(function, backend="aot_eager")
        torch.testing.assert_close(compiled(gradients), function(gradients))
        torch.testing.assert_close(compiled(2 * gradients), function(2 * gradients))


def test_gradient_precision_reaches_the_report():
    gradients = torch.tensor([[1.0, 1e-6], [-1.0, 1e-6]])
    assert not ConFIG().aggregate(gradients)[1].reliable
    assert ConFIG().aggregate(gradients.double())[1].reliable
    mixed = [[row[:1], row[1:].double()] for row in gradients]
    assert not ConFIG().aggregate(mixed)[1].reliable


def test_alpha_does_not_alias_the_report():
    alpha, info = Sum().solve(gramian(random_gradients()))
    alpha.zero_()
    assert info.alpha.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("options", [{"nonfinite": "ignore"}, {"rank_policy": "best"}, {"length": "long"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(InvalidValueError, match="unknown"):
        ConFIG(**options)


@pytest.mark.parametrize("losses", [[1.0], torch.ones(4)])
def test_losses_must_match_the_gradients(losses):
    with pytest.raises(InvalidValueError, match="loss values given for 3 gradients"):
        ConFIG()(random_gradients(), losses=losses)


def test_repr_names_the_options():
    assert "rank_policy='maxmin'" in repr(ConFIG(rank_policy="maxmin"))


class TestLossRatio:
    GRAMIAN = torch.eye(3, dtype=torch.float64)

    def weights(self, model, *losses):
        return model(self.GRAMIAN, torch.tensor(losses, dtype=torch.float64))

    def test_the_loss_that_fell_least_gets_the_most(self):
        model = LossRatio()
        assert self.weights(model, 2.0, 4.0, 8.0).tolist() == [1.0, 1.0, 1.0]
        weights = self.weights(model, 1.0, 4.0, 4.0)
        assert weights.tolist() == pytest.approx([0.75, 1.5, 0.75])
        assert self.weights(LossRatio(exponent=0), 5.0, 1.0, 2.0).tolist() == [1.0] * 3

    def test_exponent_and_floor(self):
        model = LossRatio(exponent=2.0, floor=0.1)
        self.weights(model, 1.0, 1.0, 1.0)
        weights = self.weights(model, 1.0, 0.5, 1e-9)
        assert (weights / weights[0]).tolist() == pytest.approx([1.0, 0.25, 0.1])
        assert self.weights(model, 0.0, 0.0, 0.0).tolist() == [1.0] * 3

    def test_in_config(self):
        gradients = torch.eye(3, dtype=torch.float64)
        aggregator = ConFIG(LossRatio())
        aggregator(gradients, losses=[2.0, 4.0, 8.0])
        _, info = aggregator.aggregate(gradients, losses=[1.0, 4.0, 4.0])
        torch.testing.assert_close(info.cosines / info.cosines[0], torch.tensor([1.0, 2.0, 1.0]).double())

    def test_the_reference_travels_in_the_state(self):
        aggregator = ConFIG(LossRatio())
        aggregator(torch.eye(2), losses=[2.0, 4.0])
        ratios = LossRatio()
        ConFIG(ratios).load_state_dict(aggregator.state_dict())
        assert ratios.reference == [2.0, 4.0]
        ConFIG(ratios).load_state_dict(ConFIG(LossRatio()).state_dict())
        assert ratios.reference is None

    def test_bad_input(self):
        with pytest.raises(InvalidStateError, match="needs the loss values"):
            ConFIG(LossRatio())(torch.eye(2))
        with pytest.raises(InvalidValueError, match="loss 1 is 0"):
            self.weights(LossRatio(), 1.0, 0.0, 1.0)
        model = LossRatio()
        self.weights(model, 1.0, 1.0, 1.0)
        for value in (-1.0, math.nan, math.inf):
            with pytest.raises(InvalidValueError, match="loss 0 is"):
                self.weights(model, value, 1.0, 1.0)
        with pytest.raises(InvalidValueError, match="reference holds 3"):
            model(torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        for options in ({"floor": 0.0}, {"floor": 1.5}, {"exponent": -1.0}):
            with pytest.raises(InvalidValueError, match="floor"):
                LossRatio(**options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ConFIG(rtol="x"), InvalidTypeError, "rtol='x' is a str; give a number"),
        (lambda: ConFIG(rtol=2.0), InvalidValueError, r"rtol=2.0 must lie in \[0, 1\)"),
        (lambda: ConFIG(direction_weights="ab"), InvalidTypeError, "direction_weights='ab' is a str; give one number"),
        (lambda: ConFIG(direction_weights=["a", "b"]), InvalidTypeError, "direction_weights=.* is a list; give one"),
        (lambda: PCGrad(seed="x"), InvalidTypeError, "seed='x' is a str, not an integer"),
    ],
)
def test_options_of_other_types_are_refused_when_the_aggregator_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_weight_function_must_return_numbers():
    with pytest.raises(InvalidTypeError, match="direction_weights='ab' is a str"):
        ConFIG(direction_weights=lambda gramian, losses: "ab")(torch.eye(2))


OVERFLOWING = torch.tensor([[3e38, 0.0], [3e38, 1e38]])


@pytest.mark.parametrize("form", [torch.Tensor.clone, list, lambda rows: [[row[:1], row[1:]] for row in rows]])
def test_an_update_that_overflows_is_held_to_the_policy(form):
    gradients = form(OVERFLOWING)
    with pytest.raises(InvalidValueError, match="combined update is not finite although every gradient is"):
        config_update(gradients)
    with pytest.raises(InvalidValueError, match="combined update is not finite"):
        ConFIG()(gradients)
    update, info = ConFIG(nonfinite="skip").aggregate(gradients)
    assert info.skipped
    assert not any(part.any() for part in (update if isinstance(update, list) else [update]))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 6e4), (torch.float32, 3e38), (torch.float64, 1.5e308)])
def test_updates_up_to_the_largest_number_are_returned(dtype, size):
    spread = torch.eye(2, dtype=dtype) * size  # the update is as long as both together, but no number of it too large
    assert bool(config_update(spread * 0.9).isfinite().all())
    with pytest.raises(InvalidValueError, match="combined update is not finite"):
        config_update(torch.tensor([[1.0, 0.0], [1.0, 0.3]], dtype=dtype) * size)
