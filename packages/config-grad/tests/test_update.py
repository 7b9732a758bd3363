from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.gramian import gramian
from octavo_config_grad.update import config_update, config_weights, update_info
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from scipy.optimize import nnls

PROPERTY = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
loss_counts = st.integers(1, 8)


def random_gradients(num_losses, num_parameters, seed, decades=3.0):
    """Independent gradients whose norms spread over some decades and whose angles are often wide."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(num_losses, num_parameters, generator=generator, dtype=torch.float64)
    if seed % 2:
        matrix = matrix - 1.2 * matrix.mean(dim=0)
    scales = 10.0 ** (decades * (torch.rand(num_losses, 1, generator=generator, dtype=torch.float64) - 0.5))
    return matrix * scales


def random_weights(num_losses, seed):
    generator = torch.Generator().manual_seed(seed + 1)
    return 0.2 + torch.rand(num_losses, generator=generator, dtype=torch.float64)


def cosines_with(gradients, update):
    return torch.cosine_similarity(gradients.double(), update.double().expand_as(gradients), dim=1, eps=1e-300)


def plane(*degrees):
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def close(actual, expected, rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


class TestIdentities:
    @PROPERTY
    @given(loss_counts, seeds)
    def test_cosines_are_equal_and_known_from_the_cosine_matrix(self, num_losses, seed):
        gradients = random_gradients(num_losses, 20, seed)
        update = config_update(gradients)
        unit = torch.nn.functional.normalize(gradients, dim=1)
        common = torch.linalg.inv(unit @ unit.T).sum().rsqrt()
        close(cosines_with(gradients, update), common.expand(num_losses))
        close(update.norm(), gradients.norm(dim=1).sum() * common)

    @PROPERTY
    @given(loss_counts, seeds)
    def test_cosines_are_in_the_ratio_of_the_weights(self, num_losses, seed):
        gradients, weights = random_gradients(num_losses, 20, seed), random_weights(num_losses, seed)
        ratios = cosines_with(gradients, config_update(gradients, weights)) / weights
        assert ratios.min() > 0
        close(ratios, ratios[0].expand(num_losses))

    @PROPERTY
    @given(loss_counts, seeds, st.booleans())
    def test_summed_dot_products_equal_the_squared_length(self, num_losses, seed, dependent):
        gradients = random_gradients(num_losses, 2 if dependent else 20, seed)
        update = config_update(gradients, random_weights(num_losses, seed))
        close(gradients.sum(0) @ update, update @ update, rtol=1e-8, atol=1e-8)

    @PROPERTY
    @given(seeds)
    def test_two_losses_have_a_closed_form(self, seed):
        gradients = random_gradients(2, 20, seed)
        norms = gradients.norm(dim=1, keepdim=True)
        close(config_update(gradients), norms.mean() * (gradients / norms).sum(0))

    @PROPERTY
    @given(seeds)
    def test_two_weighted_losses_have_a_closed_form(self, seed):
        gradients, weights = random_gradients(2, 20, seed), random_weights(2, seed)
        unit = torch.nn.functional.normalize(gradients, dim=1)
        cosine = unit[0] @ unit[1]
        direction = (weights - cosine * weights.flip(0)) @ unit
        direction = direction / direction.norm()
        close(config_update(gradients, weights), (gradients @ direction).sum() * direction)

    @PROPERTY
    @given(loss_counts, seeds)
    def test_permuting_the_losses_permutes_nothing_else(self, num_losses, seed):
        gradients, weights = random_gradients(num_losses, 20, seed), random_weights(num_losses, seed)
        order = torch.randperm(num_losses, generator=torch.Generator().manual_seed(seed))
        close(config_update(gradients[order], weights[order]), config_update(gradients, weights))

    @PROPERTY
    @given(loss_counts, seeds, st.floats(1e-6, 1e6))
    def test_scaling_all_gradients_scales_the_update(self, num_losses, seed, factor):
        gradients = random_gradients(num_losses, 20, seed)
        close(config_update(factor * gradients), factor * config_update(gradients), atol=1e-11 * max(factor, 1.0))

    @PROPERTY
    @given(loss_counts, seeds, st.floats(1e-3, 1e3))
    def test_scaling_one_gradient_changes_the_length_only(self, num_losses, seed, factor):
        gradients = random_gradients(num_losses, 20, seed)
        scaled = gradients.clone()
        scaled[seed % num_losses] *= factor
        before, after = config_update(gradients), config_update(scaled)
        close(after / after.norm(), before / before.norm())

    @PROPERTY
    @given(loss_counts, seeds)
    def test_rotating_parameter_space_rotates_the_update(self, num_losses, seed):
        gradients = random_gradients(num_losses, 12, seed)
        generator = torch.Generator().manual_seed(seed)
        rotation, _ = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64))
        close(config_update(gradients @ rotation), config_update(gradients) @ rotation)

    @PROPERTY
    @given(seeds)
    def test_one_loss_gives_its_gradient(self, seed):
        gradients = random_gradients(1, 7, seed)
        close(config_update(gradients), gradients[0])

    @PROPERTY
    @given(st.integers(1, 12), st.integers(1, 6), seeds)
    def test_least_squares_is_the_pseudo_inverse_also_when_dependent(self, num_losses, num_parameters, seed):
        gradients, weights = random_gradients(num_losses, num_parameters, seed), random_weights(num_losses, seed)
        unit = torch.nn.functional.normalize(gradients, dim=1)
        x = torch.linalg.pinv(unit, rtol=1e-10) @ weights
        x = x / x.norm()
        close(config_update(gradients, weights), (gradients @ x).sum() * x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([[3, 0], [0, 4]], [3.5, 3.5]),
        ([[1, 0], [-1, 1]], [0.35355339, 0.85355339]),
        ([[2, 0, 0], [1, 1, 0], [1, 1, 1]], [4.04391883, 1.67504602, 1.28530802]),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [1, 1, 1]),
        ([[1, 2], [2, 4]], [3, 6]),
        ([[1, 2], [-2, -4]], [0, 0]),
        ([[1, 2], [0, 0]], [1, 2]),
        ([[0, 0], [0, 0]], [0, 0]),
        ([[5.0]], [5]),
        ([[1.0], [2.0], [4.0]], [7.0]),
    ],
)
def test_exact_cases(gradients, expected):
    update = config_update(torch.tensor(gradients, dtype=torch.float64))
    close(update, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-8)


def test_the_stated_cosine_of_the_three_by_three_case():
    gradients = torch.tensor([[2.0, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.float64)
    _, info = config_weights(gramian(gradients))
    close(info.cosines, torch.full((3,), 0.88645189, dtype=torch.float64), rtol=1e-8)


class TestDependentGradients:
    """Unit vectors in the plane, at angles in degrees."""

    @pytest.mark.parametrize("rank_policy", ["lstsq", "maxmin"])
    def test_a_pareto_stationary_point_gives_zero(self, rank_policy):
        update, info = ConFIG(rank_policy=rank_policy).aggregate(plane(0, 120, 240))
        close(update, torch.zeros(2, dtype=torch.float64))
        assert info.pareto_stationary
        assert info.conflict
        assert info.length == 0.0
        assert info.rank == 2

    def test_least_squares_conflicts_where_no_common_descent_direction_exists(self):
        _, info = ConFIG().aggregate(plane(0, 100, 250))
        close(info.cosines, torch.tensor([0.99972, -0.19691, -0.31969]).double(), atol=5e-6, rtol=0.0)
        assert info.conflict
        assert info.pareto_stationary
        update, info = ConFIG(rank_policy="maxmin").aggregate(plane(0, 100, 250))
        assert not update.any()
        assert info.pareto_stationary

    def test_dependent_gradients_may_be_harmless(self):
        _, info = ConFIG().aggregate(plane(0, 10, 150))
        close(info.cosines, torch.tensor([0.22463, 0.39042, 0.29269]).double(), atol=5e-6, rtol=0.0)
        assert not info.conflict
        assert not info.pareto_stationary
        assert info.rank == 2

    def test_maxmin_finds_the_descent_direction_that_least_squares_misses(self):
        gradients = plane(0.3, 0.6, 7.0, 13.5, 116.1, 174.3)
        _, info = ConFIG().aggregate(gradients)
        assert info.min_cos == pytest.approx(-0.2176, abs=5e-5)
        assert info.conflict
        assert not info.pareto_stationary
        update, info = ConFIG(rank_policy="maxmin").aggregate(gradients)
        assert math.degrees(math.atan2(update[1], update[0])) == pytest.approx(87.3, abs=1e-6)
        assert info.min_cos >= 0.052
        assert not info.conflict

    @pytest.mark.parametrize("rank_policy", ["lstsq", "maxmin"])
    def test_duplicates_keep_the_direction_and_lengthen_the_step(self, rank_policy):
        first, second = random_gradients(2, 9, seed=4)
        once = config_update(torch.stack([first, second]), rank_policy=rank_policy)
        twice = config_update(torch.stack([first, first, second]), rank_policy=rank_policy)
        close(twice / twice.norm(), once / once.norm())
        assert twice.norm() > once.norm()

    def test_opposite_pair_beside_a_third_loss_is_flagged(self):
        gradient, other = random_gradients(2, 9, seed=3)
        gradients = torch.stack([gradient, -2 * gradient, other])
        _, info = ConFIG().aggregate(gradients)
        close(info.cosines[:2], torch.zeros(2, dtype=torch.float64))
        assert info.cosines[2] > 0
        assert info.conflict
        assert info.pareto_stationary
        assert not info.reliable
        assert not ConFIG(rank_policy="maxmin").aggregate(gradients)[0].any()

    def test_policy_error_raises_for_dependent_gradients_only(self):
        with pytest.raises(InvalidStateError, match="span only 2 dimensions"):
            config_update(plane(0, 10, 150), rank_policy="error")
        close(config_update(plane(0, 80), rank_policy="error"), config_update(plane(0, 80)))
        with_zero = torch.cat([plane(0, 80), torch.zeros(1, 2)])
        close(config_update(with_zero, rank_policy="error"), config_update(plane(0, 80)))

    @PROPERTY
    @given(st.integers(1, 12), st.integers(1, 6), seeds, st.sampled_from([0.0, 0.5, 1.5]), st.booleans())
    def test_maxmin_is_optimal(self, num_losses, num_parameters, seed, shift, weighted):
        gradients = random_gradients(num_losses, num_parameters, seed)
        gradients[:, 0] += shift * gradients.norm(dim=1)
        weights = random_weights(num_losses, seed) if weighted else torch.ones(num_losses, dtype=torch.float64)
        update, info = ConFIG(weights, rank_policy="maxmin").aggregate(gradients)
        share = info.alpha * gradients.norm(dim=1) * weights
        assert share.min() >= 0
        points = torch.nn.functional.normalize(gradients, dim=1) / weights.unsqueeze(1)
        if info.pareto_stationary:
            assert not update.any()
            system = np.vstack([points.T.numpy(), np.ones(len(points))])
            combination, _ = nnls(system, np.append(np.zeros(num_parameters), 1.0))
            assert np.linalg.norm(combination @ points.numpy()) <= 1e-6 * combination.sum()
            return
        # A convex combination of the points, parallel to the update and with no point behind its plane, is the
        # nearest point of the hull, hence the direction with the largest smallest weighted cosine.
        nearest = share @ points / share.sum()
        close(nearest / nearest.norm(), update / update.norm(), rtol=1e-6, atol=1e-6)
        assert (points @ nearest).min() >= nearest @ nearest - 1e-12
        assert not info.conflict

    @PROPERTY
    @given(st.integers(2, 8), seeds)
    def test_maxmin_equals_least_squares_where_all_its_coefficients_are_positive(self, num_losses, seed):
        gradients = random_gradients(num_losses, 20, seed)
        _, info = config_weights(gramian(gradients))
        if info.alpha.min() > 0:
            close(config_update(gradients, rank_policy="maxmin"), config_update(gradients), rtol=1e-12)

    @pytest.mark.parametrize("num_parameters", [2, 20, 199, 400])
    @pytest.mark.parametrize("shift", [0.0, 3.0])
    def test_two_hundred_losses(self, num_parameters, shift):
        gradients = random_gradients(200, num_parameters, seed=0, decades=6)
        gradients[:, 0] += shift * gradients.norm(dim=1)
        update, info = ConFIG(rank_policy="maxmin").aggregate(gradients)
        assert torch.isfinite(update).all()
        assert info.pareto_stationary == (not update.any())
        if not info.pareto_stationary:
            assert cosines_with(gradients, update).min() > 0
        update, info = ConFIG().aggregate(gradients)
        assert torch.isfinite(update).all()
        assert info.rank == min(200, num_parameters)


class TestNumerics:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtype_follows_the_gradients(self, dtype):
        exact = random_gradients(4, 300, seed=2, decades=1.0)
        gradients = exact.to(dtype)
        update = config_update(gradients)
        assert update.dtype == dtype
        expected = config_update(gradients.double())
        error = (update.double() - expected).norm() / expected.norm()
        assert error <= torch.finfo(dtype).eps

    def test_norms_from_1e_30_to_1e30_in_float32(self):
        gradients = torch.tensor([[3e-30, 4e-30, 0.0], [0.0, 1.0, 1.0], [2e30, 0.0, -2e30]])
        for rank_policy in ("lstsq", "maxmin"):
            update, info = ConFIG(rank_policy=rank_policy).aggregate(gradients)
            unit = torch.nn.functional.normalize(gradients.double() / gradients.abs().amax(1, True).double(), dim=1)
            expected = config_update(unit, rank_policy=rank_policy)
            close(update.double() / update.double().norm(), expected / expected.norm(), rtol=1e-5, atol=1e-6)
            assert info.min_cos > 0
            assert info.length == pytest.approx(float(update.double().norm()), rel=1e-6)

    @pytest.mark.parametrize("factor", [1e-30, 1e30])
    def test_float32_extremes_scale(self, factor):
        gradients = random_gradients(3, 40, seed=5, decades=0.0).float()
        close(config_update(gradients * factor) / factor, config_update(gradients), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("factor", [1e-200, 1e200])
    def test_float64_norms_whose_squares_leave_its_range(self, factor):
        gradients = random_gradients(3, 40, seed=5)
        update, info = ConFIG().aggregate(gradients * factor)
        close(update / factor, config_update(gradients))
        close(config_update(gradients * factor), update, atol=0.0)
        close(info.norms / factor, gradients.norm(dim=1))
        assert info.length == pytest.approx(float((update / factor).norm()) * factor)

    @pytest.mark.parametrize("rank_policy", ["lstsq", "maxmin", "error"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_nearly_opposite_gradients_do_not_conflict(self, rank_policy, dtype):
        cosine = -1 + 1e-8
        sine = math.sqrt(1 - cosine**2)
        gradients = torch.tensor([[1.0, 0.0], [3 * cosine, 3 * sine]], dtype=torch.float64).to(dtype)
        update, info = ConFIG(rank_policy=rank_policy).aggregate(gradients)
        assert torch.isfinite(update).all()
        assert cosines_with(gradients, update).min() > 0
        close(config_update(gradients, rank_policy=rank_policy), update)
        assert not info.conflict
        assert info.min_cos == pytest.approx(math.sqrt((1 + cosine) / 2), rel=1e-2)

    def test_cosines_below_the_precision_of_the_gradients_are_called_unreliable(self):
        def info_at(cosine_of_update, dtype):
            tilt = cosine_of_update
            gradients = torch.tensor([[1.0, tilt], [-1.0, tilt]], dtype=torch.float64)
            return config_weights(gramian(gradients), gradient_dtype=dtype)[1]

        assert info_at(1e-4, torch.float32).reliable
        assert not info_at(1e-6, torch.float32).reliable
        assert info_at(1e-6, torch.float64).reliable
        assert not info_at(1e-8, torch.float64).reliable
        assert not info_at(1e-2, torch.float16).reliable
        assert info_at(0.5, torch.bfloat16).reliable

    def test_many_nearly_parallel_losses(self):
        generator = torch.Generator().manual_seed(0)
        gradients = torch.ones(50, 100, dtype=torch.float64)
        gradients += 1e-5 * torch.randn(50, 100, generator=generator, dtype=torch.float64)
        update, info = ConFIG().aggregate(gradients)
        assert info.rank == 50
        close(cosines_with(gradients, update), info.cosines[0].expand(50), rtol=1e-6)

    @pytest.mark.parametrize("length", ["projection", "min", "max", "mean", "geometric", "harmonic", 1, "inverse_mean"])
    @pytest.mark.parametrize("rank_policy", ["lstsq", "maxmin"])
    def test_zero_gradients_are_left_out(self, length, rank_policy):
        gradients = random_gradients(3, 8, seed=1)
        with_zero = torch.cat([gradients[:2], torch.zeros(1, 8), gradients[2:]])
        alpha, info = config_weights(gramian(with_zero), length=length, rank_policy=rank_policy)
        expected, _ = config_weights(gramian(gradients), length=length, rank_policy=rank_policy)
        close(alpha[[0, 1, 3]], expected)
        assert alpha[2] == 0.0
        assert info.cosines[2] == 0.0
        assert info.min_cos > 0
        assert not info.conflict
        alpha, info = config_weights(torch.zeros(3, 3, dtype=torch.float64), length=length, rank_policy=rank_policy)
        assert not alpha.any()
        assert info.pareto_stationary
        assert not info.conflict
        assert info.min_cos == 0.0

    def test_the_rank_cut_is_an_option(self):
        gradients = plane(0, 1e-3)
        assert config_weights(gramian(gradients))[1].rank == 2
        assert config_weights(gramian(gradients), rtol=1e-6)[1].rank == 1


@pytest.mark.claim
@pytest.mark.parametrize("seed", range(20))
def test_descent_lemma_on_quadratics(seed):
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(3, 30, 30, generator=generator, dtype=torch.float64) / math.sqrt(30)
    hessians = factors @ factors.mT
    centres = torch.randn(3, 30, generator=generator, dtype=torch.float64)
    theta = 3 * torch.randn(30, generator=generator, dtype=torch.float64)
    step = 1.0 / torch.linalg.eigvalsh(hessians.sum(0)).max()

    def total(theta):
        return 0.5 * torch.einsum("mi,mij,mj->", theta - centres, hessians, theta - centres)

    for _ in range(100):
        update = config_update(torch.einsum("mij,mj->mi", hessians, theta - centres))
        lower = theta - step * update
        assert total(lower) <= total(theta) - step / 2 * update @ update + 1e-10
        theta = lower


class TestReport:
    @PROPERTY
    @given(loss_counts, st.integers(1, 10), seeds)
    def test_report_describes_any_update(self, num_losses, num_parameters, seed):
        gradients = random_gradients(num_losses, num_parameters, seed)
        alpha = torch.randn(num_losses, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        info = update_info(gramian(gradients), alpha)
        update = alpha @ gradients
        close(info.norms, gradients.norm(dim=1))
        assert info.length == pytest.approx(float(update.norm()), rel=1e-6)
        close(info.cosines, cosines_with(gradients, update), rtol=1e-6, atol=1e-6)
        assert info.min_cos == float(info.cosines.min())
        assert info.conflict == (info.min_cos <= 0)
        assert info.rank == torch.linalg.matrix_rank(torch.nn.functional.normalize(gradients, dim=1))

    def test_report_of_the_returned_coefficients_agrees(self):
        product = gramian(random_gradients(5, 20, seed=7))
        alpha, info = config_weights(product)
        again = update_info(product, alpha)
        close(again.cosines, info.cosines)
        assert again.length == pytest.approx(info.length)
        assert (again.rank, again.conflict, again.reliable) == (info.rank, info.conflict, info.reliable)

    def test_a_cancelled_update_counts_as_zero(self):
        gradients = torch.tensor([[1.0, 2.0], [-3.0, -6.0]], dtype=torch.float64)
        info = update_info(gramian(gradients), torch.tensor([3.0, 1.0], dtype=torch.float64))
        assert info.length == 0.0
        assert not info.cosines.any()
        assert info.conflict
        assert info.pareto_stationary


class TestBadInput:
    PRODUCT = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_gradient_that_is_not_finite_is_named(self, bad):
        gradients = random_gradients(3, 5, seed=0)
        gradients[1, 2] = bad
        for kind in (torch.float32, torch.float64):
            with pytest.raises(InvalidValueError, match="gradient of loss 1 is not finite"):
                config_update(gradients.to(kind))

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1.0, 0.0], "loss 1 is 0"),
            ([-1.0, 1.0], "loss 0 is -1"),
            ([1.0], "2 losses"),
            ([1.0, 1.0, 1.0], "2 losses"),
            ([1.0, math.nan], "nan for loss 1"),
            ([math.inf, 1.0], "inf for loss 0"),
            (torch.ones(2, 1), "2 losses"),
        ],
    )
    def test_direction_weights(self, weights, message):
        with pytest.raises(InvalidValueError, match=message):
            config_weights(self.PRODUCT, weights)

    def test_integer_weights_are_fine(self):
        close(config_weights(self.PRODUCT, [1, 2])[0], config_weights(self.PRODUCT, torch.tensor([1.0, 2.0]))[0])

    @pytest.mark.parametrize("length", ["longest", "", "inverse_projection"])
    def test_unknown_length(self, length):
        with pytest.raises(InvalidValueError, match="unknown length model"):
            config_weights(self.PRODUCT, length=length)

    @pytest.mark.parametrize("length", [2, -3])
    def test_tracked_loss_out_of_range(self, length):
        with pytest.raises(InvalidValueError, match="tracks a loss that does not exist"):
            config_weights(self.PRODUCT, length=length)

    def test_unknown_rank_policy(self):
        with pytest.raises(InvalidValueError, match="unknown rank policy 'best'"):
            config_weights(self.PRODUCT, rank_policy="best")

    @pytest.mark.parametrize("rtol", [-1.0, 1.0, math.nan])
    def test_rtol_out_of_range(self, rtol):
        with pytest.raises(InvalidValueError, match="rtol"):
            config_weights(self.PRODUCT, rtol=rtol)

    @pytest.mark.parametrize("shape", [(2, 3), (4,), (0, 0), (2, 2, 2)])
    def test_a_gramian_is_square(self, shape):
        with pytest.raises(InvalidValueError, match="square matrix"):
            config_weights(torch.ones(shape))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
    def test_a_gramian_is_real(self, dtype):
        with pytest.raises(InvalidTypeError, match="real floating point"):
            config_weights(torch.ones(2, 2).to(dtype))

    def test_a_gramian_is_finite_off_the_diagonal(self):
        with pytest.raises(InvalidValueError, match="outside its diagonal"):
            config_weights(torch.tensor([[1.0, math.nan], [math.nan, 1.0]]))

    def test_alpha_of_a_report(self):
        with pytest.raises(InvalidValueError, match="alpha has shape"):
            update_info(self.PRODUCT, torch.ones(3))
        with pytest.raises(InvalidValueError, match="alpha is nan for loss 1"):
            update_info(self.PRODUCT, torch.tensor([1.0, math.nan]))
