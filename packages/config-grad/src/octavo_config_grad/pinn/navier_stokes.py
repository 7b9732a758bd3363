"""Two exact solutions of the Navier-Stokes equations: Kovasznay's steady wake and Beltrami's unsteady vortices."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.pinn.derivatives import Fields
from octavo_config_grad.pinn.problem import Condition, Problem
from octavo_config_grad.pinn.sampling import edges

__all__ = ["Beltrami", "Kovasznay"]


@dataclass(frozen=True)
class Kovasznay(Problem):
    """Steady two-dimensional flow behind a grid, Re = 40, x in [-0.5, 1], y in [-0.5, 1.5]; losses PDE | boundary.

    Args:
        reynolds: Reynolds number 1/nu > 0.

    Raises:
        InvalidValueError: If it is not positive.

    Source:
        The paper's PINN study ; ``lambda = 1/(2 nu) - sqrt(1/(4 nu^2) + 4 pi^2)``.
    """

    reynolds: float = 40.0

    coordinates = ("x", "y")
    fields = ("u", "v", "p")
    lower = (-0.5, -0.5)
    upper = (1.0, 1.5)
    reference_points = (27, 37)

    def __post_init__(self) -> None:
        if not self.reynolds > 0:
            raise InvalidValueError(f"Reynolds number {self.reynolds} must be positive")

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        return {
            "pde": self.interior(lambda f: _navier_stokes(f, 1.0 / self.reynolds, "uv", "xy")),
            "boundary": self.boundary(lambda f: _deviation(self, f), "x", "y"),
        }

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """See :meth:`Problem.exact`."""
        x, y = points.unbind(1)
        decay = self.reynolds / 2 - math.sqrt(self.reynolds**2 / 4 + 4 * math.pi**2)
        growth = torch.exp(decay * x)
        u = 1 - growth * torch.cos(2 * math.pi * y)
        v = decay / (2 * math.pi) * growth * torch.sin(2 * math.pi * y)
        return torch.stack([u, v, 0.5 * (1 - growth * growth)], dim=1)


@dataclass(frozen=True)
class Beltrami(Problem):
    """Unsteady three-dimensional flow of Ethier and Steinman on [-1, 1]^3, t in [0, 1], a = d = nu = 1.

    Args:
        num_losses: 2 (PDE | boundary and initial) or 3 (PDE | boundary | initial).
        edges_only: Whether boundary points lie on the twelve edges of the cube only, as in the official code, instead
            of on its six faces.

    Raises:
        InvalidValueError: If the number of losses is another.

    Source:
        The paper's PINN study (its official training configurations).
    """

    num_losses: int = 3
    edges_only: bool = False

    coordinates = ("x", "y", "z", "t")
    fields = ("u", "v", "w", "p")
    lower = (-1.0, -1.0, -1.0, 0.0)
    upper = (1.0, 1.0, 1.0, 1.0)
    reference_points = (7, 7, 8, 5)

    def __post_init__(self) -> None:
        if self.num_losses not in (2, 3):
            raise InvalidValueError(f"Beltrami has 2 or 3 losses, got {self.num_losses}")

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""

        def deviation(f: Fields) -> Tensor:
            return _deviation(self, f)

        pde = self.interior(lambda f: _navier_stokes(f, 1.0, "uvw", "xyz", time="t"))
        boundary = (
            Condition(deviation, edges(self.box(), (0, 1, 2)), "boundary")
            if self.edges_only
            else self.boundary(deviation, "x", "y", "z")
        )
        initial = self.initial(deviation)
        if self.num_losses == 2:
            return {"pde": pde, "boundary+initial": (boundary, initial)}
        return {"pde": pde, "boundary": boundary, "initial": initial}

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """See :meth:`Problem.exact`."""
        x, y, z, t = points.unbind(1)
        decay = torch.exp(-t)
        cycles = ((x, y, z), (y, z, x), (z, x, y))
        velocity = [-decay * (torch.exp(a) * torch.sin(b + c) + torch.exp(c) * torch.cos(a + b)) for a, b, c in cycles]
        pressure = sum(
            torch.exp(2 * a) + 2 * torch.sin(a + b) * torch.cos(c + a) * torch.exp(b + c) for a, b, c in cycles
        )
        return torch.stack([*velocity, -0.5 * pressure * decay * decay], dim=1)


def _navier_stokes(
    f: Fields, viscosity: float, velocity: str, space: str, time: str | None = None
) -> tuple[Tensor, ...]:
    """Momentum equations, then continuity; pressure is the field ``p``."""
    momentum = []
    for component, direction in zip(velocity, space, strict=True):
        advection = _sum(f(carrier) * f(component, axis) for carrier, axis in zip(velocity, space, strict=True))
        diffusion = _sum(f(component, axis, axis) for axis in space)
        residual = advection + f("p", direction) - viscosity * diffusion
        momentum.append(residual if time is None else residual + f(component, time))
    return (*momentum, _sum(f(component, axis) for component, axis in zip(velocity, space, strict=True)))


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(operator.add, terms)


def _deviation(problem: Kovasznay | Beltrami, f: Fields) -> Tensor:
    return torch.stack([f(name) for name in problem.fields]) - problem.exact(f.points.detach()).t()
