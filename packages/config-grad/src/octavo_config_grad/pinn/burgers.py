"""Burgers' equation, and its exact solution by the Cole-Hopf transform."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from octavo_core.errors import InvalidValueError
from scipy.special import roots_hermite
from torch import Tensor

from octavo_config_grad.pinn.derivatives import Fields
from octavo_config_grad.pinn.problem import Condition, Problem
from octavo_config_grad.pinn.reference import Reference

__all__ = ["Burgers", "cole_hopf"]

_CHUNK_NUMBERS = 2**20


@dataclass(frozen=True)
class Burgers(Problem):
    """``u_t + u u_x = nu u_xx`` on x in [-1, 1], t in [0, 1], from ``-sin(pi x)``, zero at both ends.

    Args:
        num_losses: 2 (PDE | boundary and initial) or 3 (PDE | boundary | initial).
        viscosity: nu > 0.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        The paper's PINN study. The reference is the exact solution, not the official file, which is off by 1.6e-4.
    """

    num_losses: int = 2
    viscosity: float = 0.01 / math.pi

    coordinates = ("x", "t")
    fields = ("u",)
    lower = (-1.0, 0.0)
    upper = (1.0, 1.0)

    def __post_init__(self) -> None:
        if self.num_losses not in (2, 3):
            raise InvalidValueError(f"Burgers has 2 or 3 losses, got {self.num_losses}")
        if not self.viscosity > 0:
            raise InvalidValueError(f"viscosity {self.viscosity} must be positive")

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        pde = self.interior(self._residual)
        boundary = self.boundary(lambda f: f("u"), "x")
        initial = self.initial(lambda f: f("u") + torch.sin(math.pi * f.at("x")))
        if self.num_losses == 2:
            return {"pde": pde, "boundary+initial": (boundary, initial)}
        return {"pde": pde, "boundary": boundary, "initial": initial}

    def _residual(self, f: Fields) -> Tensor:
        return f("u", "t") + f("u") * f("u", "x") - self.viscosity * f("u", "x", "x")

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """See :meth:`Problem.exact`."""
        x, t = points.detach().double().cpu().numpy().T
        return torch.from_numpy(cole_hopf(x, t, self.viscosity)).to(points).unsqueeze(1)

    def reference(self) -> Reference:
        """Exact solution on the official grid of 256 x 100 points (t from 0 to 0.99).

        Returns:
            The reference.
        """
        x, t = np.linspace(-1, 1, 256), np.linspace(0, 0.99, 100)
        grid = np.meshgrid(x, t, indexing="ij")
        return Reference.from_grid(self.coordinates, self.fields, (x, t), cole_hopf(*grid, self.viscosity)[..., None])


def cole_hopf(
    x: Float64[np.ndarray, "*shape"],
    t: Float64[np.ndarray, "*shape"],
    viscosity: float = 0.01 / math.pi,
    *,
    num_nodes: int = 128,
) -> Float64[np.ndarray, "*shape"]:
    """Exact solution of Burgers' equation from ``-sin(pi x)`` on the periodic line of period 2.

    ``u = -int sin(pi(x-z)) f(x-z) e^{-z^2/(4 nu t)} dz / int f(x-z) e^{-z^2/(4 nu t)} dz`` with
    ``f(y) = exp(-cos(pi y) / (2 pi nu))``, by Gauss-Hermite quadrature. The exponent is shifted by its maximum: small
    viscosities and times neither overflow nor lose the solution.

    Args:
        x: Positions.
        t: Times, at least 0.
        viscosity: nu > 0.
        num_nodes: Quadrature nodes, at least 2.

    Returns:
        The solution in float64.

    Raises:
        InvalidValueError: If a time is negative or a parameter out of range.

    Source:
        Basdevant et al., Computers & Fluids 14 (1986): the Cole-Hopf transform, by Gauss-Hermite quadrature.
    """
    x, t = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(t, dtype=np.float64))
    if not (t >= 0).all() or not viscosity > 0 or num_nodes < 2:
        raise InvalidValueError("the Cole-Hopf solution needs times >= 0, a viscosity > 0 and at least 2 nodes")
    nodes, weights = roots_hermite(num_nodes)
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    flat_x, flat_t = x.reshape(-1), t.reshape(-1)
    solution = np.empty(flat_x.size)
    for start in range(0, flat_x.size, max(1, _CHUNK_NUMBERS // num_nodes)):
        part = slice(start, start + max(1, _CHUNK_NUMBERS // num_nodes))
        # z = 2 sqrt(nu t) eta turns the Gaussian into the weight of the quadrature.
        y = flat_x[part, None] - 2.0 * np.sqrt(viscosity * flat_t[part, None]) * nodes
        exponent = log_weights - np.cos(np.pi * y) / (2.0 * np.pi * viscosity)
        mass = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        solution[part] = -(np.sin(np.pi * y) * mass).sum(axis=1) / mass.sum(axis=1)
    return solution.reshape(x.shape)
