"""Residual losses and gradients of the official code, recorded in float64 on small networks (tolerance 1e-8)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_config_grad import pinn
from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.pinn.schrodinger import Schrodinger
from octavo_config_grad.update import config_update

GOLDEN = Path(__file__).parent / "data" / "pinn_losses_f64.npz"

HALF = slice(None, 8), slice(8, None)


def table(*columns):
    return torch.from_numpy(np.stack(np.broadcast_arrays(*columns), axis=1))


def points_of(name, pts):
    """The recorded points of each loss, placed on the boundary as the recording did."""
    if name == "burgers":
        sides = np.repeat([-1.0, 1.0], 8)
        return [
            table(pts["x_int"], pts["t_int"]),
            table(sides, pts["t_b"]),
            table(pts["x_i"], 0.0),
        ]
    if name == "schrodinger":
        pairs = torch.cat([table(-5.0, pts["t_b"]), table(5.0, pts["t_b"])])
        return [table(pts["x_int"], pts["t_int"]), pairs, pairs, table(pts["x_i"], 0.0)]
    if name == "kovasznay":
        return [table(pts["x_int"], pts["y_int"]), table(pts["x_b"], pts["y_b"])]
    return [
        table(pts["x_int"], pts["y_int"], pts["z_int"], pts["t_int"]),
        table(pts["x_b"], pts["y_b"], pts["z_b"], pts["t_b"]),
        table(pts["x_i"], pts["y_i"], pts["z_i"], 0.0),
    ]


def conditions_of(problem):
    """One condition for each recorded loss."""
    if isinstance(problem, Schrodinger):
        losses = problem.losses()
        return [losses["pde"], *losses["boundary"], losses["initial"]]
    return list(problem.losses().values())


PROBLEMS = {
    "burgers": pinn.Burgers(num_losses=3),
    "schrodinger": pinn.Schrodinger(periodic_condition="value+derivative"),
    "kovasznay": pinn.Kovasznay(),
    "beltrami": pinn.Beltrami(),
}


@pytest.mark.parametrize("mode", ["auto", "autograd", "jvp"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_gradients_and_update(name, mode):
    problem = PROBLEMS[name]
    with np.load(GOLDEN) as golden:
        recorded = {key.removeprefix(f"{name}/"): golden[key] for key in golden.files if key.startswith(f"{name}/")}
    network = pinn.MLP((len(problem.coordinates), 6, 6, 6, len(problem.fields)), dtype=torch.float64)
    with torch.no_grad():
        network.vector.copy_(torch.from_numpy(recorded["params"]))
    points = points_of(name, {key.removeprefix("pts/"): value for key, value in recorded.items()})

    losses = [
        pinn.mean_square([condition], [where], problem, network, mode=mode)
        for condition, where in zip(conditions_of(problem), points, strict=True)
    ]
    gradients = torch.stack([row[0] for row in per_loss_gradients(losses, [network.vector])])

    np.testing.assert_allclose(torch.stack(losses).detach().numpy(), recorded["losses"], rtol=1e-8)
    np.testing.assert_allclose(gradients.numpy(), recorded["grads"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(config_update(gradients).numpy(), recorded["config"], rtol=1e-8, atol=1e-12)
