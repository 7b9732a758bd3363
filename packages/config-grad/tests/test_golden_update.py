"""Updates against numbers of the official code (PyPI conflictfree 0.1.8, float64, torch 2.15), stored in data/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_config_grad.baselines import IMTLG, PCGrad
from octavo_config_grad.update import config_update

DATA = Path(__file__).parent / "data"
CASES = [f"c{index:02d}" for index in range(18)]


@pytest.fixture(scope="module")
def update_data():
    with np.load(DATA / "update_f64.npz") as archive:
        return {key: archive[key] for key in archive.files}


def variants(weights, num_losses):
    return {
        "config": {},
        "config_pinv": {},
        "weighted": {"direction_weights": weights},
        "len_min": {"length": "min"},
        "len_max": {"length": "max"},
        "len_harm": {"length": "harmonic"},
        "len_arith": {"length": "mean"},
        "len_geom": {"length": "geometric"},
        "len_spec0": {"length": 0},
        "len_spec_last": {"length": num_losses - 1},
    }


@pytest.mark.parametrize("case", CASES)
def test_config_update_matches_the_official_code(update_data, case):
    gradients = torch.from_numpy(update_data[f"{case}/grads"])
    weights = torch.from_numpy(update_data[f"{case}/w"])
    expected_keys = variants(weights, len(gradients))
    if len(gradients) == 2:
        expected_keys |= {"double": {}, "double_weighted": {"direction_weights": weights}}
    for key, options in expected_keys.items():
        expected = update_data[f"{case}/{key}"]
        update = config_update(gradients, **options).numpy()
        np.testing.assert_allclose(update, expected, rtol=1e-9, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("case", CASES)
def test_lists_of_parameters_give_the_same_update(update_data, case):
    gradients = torch.from_numpy(update_data[f"{case}/grads"])
    rows = [[row[:6].reshape(2, 3), row[6:7].reshape(()), row[7:]] for row in gradients]
    update = config_update(rows)
    assert [tuple(part.shape) for part in update] == [(2, 3), (), (17,)]
    flat = torch.cat([part.reshape(-1) for part in update]).numpy()
    np.testing.assert_allclose(flat, update_data[f"{case}/config"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_float32_gradients_stay_within_1e_4_of_the_float64_answer(update_data, case):
    gradients = torch.from_numpy(update_data[f"{case}/grads"]).float()
    weights = torch.from_numpy(update_data[f"{case}/w"])
    for key, options in variants(weights, len(gradients)).items():
        update = config_update(gradients, **options)
        assert update.dtype == torch.float32
        expected = update_data[f"{case}/{key}"]
        assert np.linalg.norm(update.double().numpy() - expected) <= 1e-4 * np.linalg.norm(expected), key


@pytest.mark.parametrize("case", CASES)
def test_baselines_match_the_official_code(update_data, case):
    gradients = torch.from_numpy(update_data[f"{case}/grads"])
    for key, aggregator in {"pcgrad": PCGrad(), "imtlg": IMTLG()}.items():
        update = aggregator(gradients).numpy()
        np.testing.assert_allclose(update, update_data[f"{case}/{key}"], rtol=1e-9, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("problem", ["burgers", "schrodinger", "kovasznay", "beltrami"])
def test_update_of_real_pinn_gradients_matches_the_official_code(problem):
    with np.load(DATA / "pinn_losses_f64.npz") as archive:
        gradients, expected = archive[f"{problem}/grads"], archive[f"{problem}/config"]
    update = config_update(torch.from_numpy(gradients)).numpy()
    np.testing.assert_allclose(update, expected, rtol=1e-8, atol=1e-11 * np.abs(expected).max())
