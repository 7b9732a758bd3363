"""DeepXDE with the PyTorch back end: Burgers' equation, its three losses combined by M-ConFIG.

DeepXDE computes the losses one by one before it sums them; replacing ``model.train_step`` hands them over separately,
and everything else of ``model.train`` stays. Run: python deepxde_burgers.py (pip install 'octavo-config-grad[deepxde]')
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DDE_BACKEND", "pytorch")

import deepxde as dde
import numpy as np
import torch
from deepxde.config import set_random_seed
from deepxde.nn.pytorch import FNN
from octavo_config_grad import MConFIG


def main(iterations: int = 400, seed: int = 0) -> float:
    """Train, and return the sum of the three losses at the end divided by that at the start."""
    set_random_seed(seed)

    def residual(x, u):
        u_x = dde.grad.jacobian(u, x, i=0, j=0)
        u_t = dde.grad.jacobian(u, x, i=0, j=1)
        u_xx = dde.grad.hessian(u, x, i=0, j=0)
        return u_t + u * u_x - 0.01 / np.pi * u_xx

    domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1.0, 1.0), dde.geometry.TimeDomain(0.0, 1.0))
    boundary = dde.icbc.DirichletBC(domain, lambda x: 0.0, lambda _, on_boundary: on_boundary)
    initial = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, 0:1]), lambda _, on_initial: on_initial)
    data = dde.data.TimePDE(domain, residual, [boundary, initial], num_domain=400, num_boundary=64, num_initial=64)
    net: Any = FNN([2, 20, 20, 20, 20, 1], "tanh", "Glorot normal")

    model: Any = dde.Model(data, net)
    optimizer = MConFIG(net.parameters(), num_losses=3, lr=3e-3)
    model.compile(optimizer, verbose=0)

    def train_step(inputs, targets, auxiliary_vars):
        def closure():
            losses = model.outputs_losses_train(inputs, targets, auxiliary_vars)[1]
            return {index: losses[index] for index in optimizer.next_losses()}

        optimizer.step(closure)

    model.train_step = train_step
    history, _ = model.train(iterations=iterations, display_every=iterations, verbose=0)
    start, end = (float(np.sum(losses)) for losses in (history.loss_train[0], history.loss_train[-1]))
    return end / start


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"result: final losses over initial losses {main():.4f}")
