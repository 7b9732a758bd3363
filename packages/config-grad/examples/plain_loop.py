"""The plain loop: a boundary value problem by a small network, its two losses combined without conflict.

``u'' = -pi^2 sin(pi x)`` on [-1, 1] with ``u(-1) = u(1) = 0``; the solution is ``sin(pi x)``. Run: python plain_loop.py
"""

from __future__ import annotations

import math

import torch
from octavo_config_grad import MConFIG
from torch import nn


def main(steps: int = 1500, seed: int = 0) -> float:
    """Train, and return the relative L2 error of the solution."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def residual() -> torch.Tensor:
        x = (2.0 * torch.rand(64, 1) - 1.0).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (curvature + math.pi**2 * torch.sin(math.pi * x)).square().mean()

    def boundary() -> torch.Tensor:
        return net(torch.tensor([[-1.0], [1.0]])).square().mean()

    losses = [residual, boundary]
    optimizer = MConFIG(net.parameters(), num_losses=2, lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    for _ in range(steps):
        optimizer.step({index: losses[index] for index in optimizer.next_losses()})
        scheduler.step()

    with torch.no_grad():
        x = torch.linspace(-1.0, 1.0, 201)[:, None]
        exact = torch.sin(math.pi * x)
        return float((net(x) - exact).norm() / exact.norm())


if __name__ == "__main__":
    print(f"result: relative L2 error {main():.4f}")
