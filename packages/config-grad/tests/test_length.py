from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.gramian import gramian
from octavo_config_grad.length import LENGTH_MODELS, check_length_model, update_length
from octavo_config_grad.update import config_update, config_weights
from octavo_core.errors import InvalidTypeError, InvalidValueError

NORMS = np.array([1.0, 4.0, 16.0])
COSINES = np.array([0.5, 0.25, 0.125])


BY_HAND = {
    "projection": 0.5 + 1.0 + 2.0,
    "min": 0.875,
    "max": 16 * 0.875,
    "mean": 7 * 0.875,
    "geometric": 4 * 0.875,
    "harmonic": 3 / (1 + 1 / 4 + 1 / 16) * 0.875,
    1: 4 * 0.875,
    "inverse_min": 14.0,
    "inverse_max": 16 * 14.0,
    "inverse_mean": 7 * 14.0,
    "inverse_geometric": 4 * 14.0,
    "inverse_harmonic": 3 / (1 + 1 / 4 + 1 / 16) * 14.0,
}


@pytest.mark.parametrize("model", [*LENGTH_MODELS, 1])
def test_lengths_by_hand(model):
    assert update_length(model, NORMS, COSINES) == pytest.approx(BY_HAND[model], rel=1e-14)


@pytest.mark.parametrize("model", LENGTH_MODELS)
def test_the_update_has_the_length_of_the_model_and_the_direction_of_all(model):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(3, 10, generator=generator, dtype=torch.float64) * torch.tensor([[1e-2], [1.0], [1e2]])
    update, info = ConFIG(length=model).aggregate(gradients)
    assert float(update.norm()) == pytest.approx(info.length, rel=1e-12)
    assert info.length == pytest.approx(update_length(model, info.norms.numpy(), info.cosines.numpy()), rel=1e-12)
    reference = config_update(gradients)
    torch.testing.assert_close(update / update.norm(), reference / reference.norm())


def test_shrinking_and_growing_under_conflict():
    def length(model, degrees):
        angle = math.radians(degrees)
        gradients = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        return config_weights(gramian(gradients), length=model)[1].length

    assert length("mean", 170) < length("mean", 90) < length("mean", 10)
    assert length("inverse_mean", 170) > length("inverse_mean", 90) > length("inverse_mean", 10)


def test_inverse_models_make_no_step_where_a_cosine_is_not_positive():
    angles = torch.deg2rad(torch.tensor([0.0, 100.0, 250.0], dtype=torch.float64))
    gradients = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert not config_update(gradients, length="inverse_mean").any()
    assert config_update(gradients, length="mean").any()


def test_tracking_a_loss_with_a_zero_gradient_makes_no_step():
    gradients = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert config_update(gradients, length=0).tolist() == pytest.approx([1.0, 2.0])
    assert not config_update(gradients, length=1).any()


def test_a_function_of_norms_and_cosines():
    def longest_projection(norms, cosines):
        assert norms.dtype == cosines.dtype == torch.float64
        return (norms * cosines).max()

    gradients = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    update = config_update(gradients, length=longest_projection)
    assert update.norm().item() == pytest.approx(4 / math.sqrt(2))
    assert config_update(gradients, length=lambda norms, cosines: -2.0).tolist() == pytest.approx([-math.sqrt(2)] * 2)


def test_a_negative_length_turns_the_reported_cosines():
    gradients = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    update, info = ConFIG(length=lambda norms, cosines: -2.0).aggregate(gradients)
    assert info.length == 2.0
    assert info.conflict
    torch.testing.assert_close(info.cosines, torch.cosine_similarity(gradients.double(), update.double()[None]))


@pytest.mark.parametrize("returned", [math.nan, math.inf])
def test_a_function_must_return_a_finite_number(returned):
    with pytest.raises(InvalidValueError, match="length function returned"):
        update_length(lambda norms, cosines: returned, NORMS, COSINES)


@pytest.mark.parametrize("model", ["", "MIN", "inverse_projection", "track"])
def test_unknown_names_are_refused_when_the_aggregator_is_made(model):
    with pytest.raises(InvalidValueError, match="unknown length model"):
        ConFIG(length=model)


def test_a_negative_index_is_refused_when_the_aggregator_is_made():
    with pytest.raises(InvalidValueError, match="length=-1 tracks a loss that does not exist: use 0 or more"):
        ConFIG(length=-1)


@pytest.mark.parametrize("returned", ["5", "abc", None, True, torch.ones(2)])
def test_a_function_must_return_a_number(returned):
    with pytest.raises(InvalidTypeError, match="the length function returned .*; it must return a finite number"):
        update_length(lambda norms, cosines: returned, NORMS, COSINES)


@pytest.mark.parametrize("model", [True, 1.5, None, ["min"]])
def test_other_types_are_refused(model):
    with pytest.raises(InvalidTypeError, match="length must be"):
        check_length_model(model)
