from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.baselines import IMTLG, MGDA, PCGrad, Sum
from octavo_config_grad.gramian import gramian
from scipy.optimize import nnls

PROPERTY = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
counts = st.integers(1, 8)


def random_gradients(num_losses, num_parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(num_losses, num_parameters, generator=generator, dtype=torch.float64)
    if seed % 2:
        matrix = matrix - 1.2 * matrix.mean(dim=0)
    return matrix * 10.0 ** (2 * torch.rand(num_losses, 1, generator=generator, dtype=torch.float64) - 1)


def projected_vectors(gradients, orders):
    """PCGrad on the vectors themselves."""
    total = torch.zeros_like(gradients[0])
    for index, order in enumerate(orders):
        running = gradients[index].clone()
        for other in order:
            dot = running @ gradients[other]
            if other != index and dot < 0:
                running -= dot / (gradients[other] @ gradients[other]) * gradients[other]
        total += running
    return total


@PROPERTY
@given(counts, st.integers(1, 12), seeds)
def test_sum(num_losses, num_parameters, seed):
    gradients = random_gradients(num_losses, num_parameters, seed)
    torch.testing.assert_close(Sum()(gradients), gradients.sum(0))


@PROPERTY
@given(counts, st.integers(2, 12), seeds)
def test_pcgrad_equals_the_projection_of_vectors(num_losses, num_parameters, seed):
    gradients = random_gradients(num_losses, num_parameters, seed)
    expected = projected_vectors(gradients, [range(num_losses)] * num_losses)
    torch.testing.assert_close(PCGrad()(gradients), expected, rtol=1e-9, atol=1e-9)


@PROPERTY
@given(counts, seeds)
def test_shuffled_pcgrad_is_a_projection_in_some_order_per_loss(num_losses, seed):
    gradients = random_gradients(num_losses, 12, seed)
    draws = torch.rand(num_losses, num_losses, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = projected_vectors(gradients, draws.argsort(dim=1).tolist())
    torch.testing.assert_close(PCGrad(shuffle=True, seed=5)(gradients), expected, rtol=1e-9, atol=1e-9)


def test_the_random_order_resumes_from_the_state():
    gradients = gramian(random_gradients(6, 7, seed=1))
    aggregator = PCGrad(shuffle=True, seed=3)
    before = torch.random.get_rng_state()
    drawn = [aggregator.weights(gradients) for _ in range(3)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(drawn[0], drawn[1])
    resumed = PCGrad(shuffle=True, seed=3)
    resumed.weights(gradients)
    state = resumed.state_dict()
    other = PCGrad(shuffle=True, seed=9)
    other.load_state_dict(state)
    assert torch.equal(other.weights(gradients), drawn[1])
    assert torch.equal(other.weights(gradients), drawn[2])


@PROPERTY
@given(counts, seeds)
def test_imtlg_has_equal_projections_and_weights_that_sum_to_one(num_losses, seed):
    gradients = random_gradients(num_losses, 12, seed)
    update, info = IMTLG().aggregate(gradients)
    assert float(info.alpha.sum()) == pytest.approx(1.0)
    projections = torch.nn.functional.normalize(gradients, dim=1) @ update
    scale = float(info.alpha.abs() @ info.norms)
    torch.testing.assert_close(projections, projections[:1].expand(num_losses), rtol=1e-9, atol=1e-11 * scale)


def test_imtlg_points_uphill_where_config_has_the_right_sign():
    def degrees(value):
        return math.radians(value)

    gradients = torch.tensor(
        [
            [math.cos(degrees(60)), math.sin(degrees(60)), 0.0],
            [math.cos(degrees(60)), -math.sin(degrees(60)), 0.0],
            [0.1 * math.cos(degrees(20)), 0.0, 0.1 * math.sin(degrees(20))],
        ],
        dtype=torch.float64,
    )
    config, config_info = ConFIG().aggregate(gradients)
    imtlg, imtlg_info = IMTLG().aggregate(gradients)
    np.testing.assert_allclose(config, [0.39582258, 0.0, -0.50885970], atol=1e-8)
    np.testing.assert_allclose(config_info.cosines, [0.30699100] * 3, atol=1e-8)
    np.testing.assert_allclose(imtlg, [-0.03505878, 0.0, 0.04507070], atol=1e-8)
    np.testing.assert_allclose(imtlg_info.cosines, [-0.30699100] * 3, atol=1e-8)
    assert imtlg_info.conflict
    assert not config_info.conflict


def test_imtlg_is_zero_where_it_is_not_defined():
    gradients = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert not IMTLG()(gradients).any()


@PROPERTY
@given(counts, st.integers(1, 6), seeds, st.sampled_from([0.0, 0.5, 1.5]))
def test_mgda_is_the_shortest_vector_of_the_hull(num_losses, num_parameters, seed, shift):
    gradients = random_gradients(num_losses, num_parameters, seed)
    gradients[:, 0] += shift * gradients.norm(dim=1)
    update, info = MGDA().aggregate(gradients)
    scale = float(gradients.norm(dim=1).max())
    system = np.vstack([gradients.T.numpy() / scale, np.ones(num_losses)])
    combination, _ = nnls(system, np.append(np.zeros(num_parameters), 1.0))
    expected = torch.from_numpy(combination / combination.sum()) @ gradients
    torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-6 * scale)
    assert info.alpha.min() >= 0
    if update.any():
        assert float(info.alpha.sum()) == pytest.approx(1.0)


def test_mgda_by_hand():
    torch.testing.assert_close(MGDA()(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(MGDA()(torch.tensor([[1.0, 0.0], [3.0, 1.0]])), torch.tensor([1.0, 0.0]))
    assert not MGDA()(torch.tensor([[1.0, 1.0], [-2.0, -2.0]])).any()
    assert not MGDA()(torch.tensor([[1.0, 1.0], [0.0, 0.0]])).any()
    extreme = torch.tensor([[1e-30, 0.0], [0.0, 1e30]])
    torch.testing.assert_close(MGDA()(extreme) * 1e30, torch.tensor([1.0, 0.0]))
