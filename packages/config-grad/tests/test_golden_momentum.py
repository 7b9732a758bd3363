"""M-ConFIG against numbers of the official code (PyPI conflictfree 0.1.8, float64, torch 2.15), stored in data/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.baselines import IMTLG, PCGrad
from octavo_config_grad.momentum import MConFIG

DATA = Path(__file__).parent / "data"
AGGREGATORS = {"config": ConFIG, "pcgrad": PCGrad, "imtlg": IMTLG}
RUNS = ["config_m1", "config_m2", "config_m3", "config_m5_u2", "config_m3_all", "config_m3_b", "pcgrad_m3", "imtlg_m3"]


@pytest.fixture(scope="module")
def momentum_data():
    with np.load(DATA / "momentum_f64.npz") as archive:
        return {key: archive[key] for key in archive.files}


@pytest.mark.parametrize("run", RUNS)
def test_every_step_matches_the_official_code(momentum_data, run):
    indices, gradients, expected, betas = (momentum_data[f"{run}/{key}"] for key in ("idx", "grads", "out", "betas"))
    parameter = torch.nn.Parameter(torch.zeros(expected.shape[1], dtype=torch.float64))
    optimizer = MConFIG(
        [parameter],
        int(indices.max()) + 1,
        betas=tuple(betas.tolist()),
        updates_per_step=indices.shape[1],
        aggregator=AGGREGATORS[run.split("_")[0]](),
    )
    for step, (chosen, rows, target) in enumerate(zip(indices, gradients, expected, strict=True)):
        assert optimizer.next_losses() == chosen.tolist()
        # The gradient of g . p is g.
        losses = {index: torch.from_numpy(row) @ parameter for index, row in zip(chosen, rows, strict=True)}
        (direction,) = optimizer.direction(losses)
        np.testing.assert_allclose(direction.numpy(), target, rtol=1e-9, atol=1e-12, err_msg=f"{run}, step {step}")


def test_updates_are_exactly_zero_until_every_loss_was_seen(momentum_data):
    assert not momentum_data["config_m3/out"][:2].any()
    assert momentum_data["config_m3/out"][2].any()
