"""Poisson and heat equations in any dimension, with an exact solution that couples neighbouring coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.pinn.derivatives import Fields
from octavo_config_grad.pinn.problem import Condition, Problem

__all__ = ["HeatND", "PoissonND"]


class PoissonND(Problem):
    """``-laplace u = 2 pi^2 s`` on [0, 1]^d with ``u = s`` on the boundary; losses PDE | boundary.

    ``s(x) = d^(-1/2) sum_i sin(pi x_i) sin(pi x_(i+1))`` (cyclic) is an eigenfunction of the Laplacian, so it is the
    exact solution, of the same size in every dimension and not a sum of one-dimensional ones.

    Args:
        dimension: Number of coordinates d, at least 2.

    Raises:
        InvalidValueError: If the dimension is below 2.

    Source:
        Beyond the paper's four problems, which mention but do not specify a high-dimensional problem.
    """

    fields = ("u",)

    def __init__(self, dimension: int = 5) -> None:
        _check_dimension(dimension)
        self.dimension = dimension
        self.coordinates = tuple(f"x{i + 1}" for i in range(dimension))
        self.lower, self.upper = (0.0,) * dimension, (1.0,) * dimension

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        return {
            "pde": self.interior(lambda f: laplacian(f, "u", self.coordinates) + 2 * math.pi**2 * _target(self, f)),
            "boundary": self.boundary(lambda f: f("u") - _target(self, f), *self.coordinates),
        }

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """See :meth:`Problem.exact`."""
        return _eigenfunction(points).unsqueeze(1)

    def options(self) -> dict[str, Any]:
        """See :meth:`Problem.options`."""
        return {"dimension": self.dimension}


class HeatND(Problem):
    """``u_t = kappa laplace u`` on [0, 1]^d, t in [0, 1], with exact solution ``exp(-2 pi^2 kappa t) s(x)``.

    ``s`` is the eigenfunction of :class:`PoissonND`; losses PDE | boundary | initial.

    Args:
        dimension: Number of space coordinates d, at least 2.
        diffusivity: kappa > 0.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Beyond the paper's four problems, which mention but do not specify a high-dimensional problem.
    """

    fields = ("u",)

    def __init__(self, dimension: int = 5, diffusivity: float = 0.1) -> None:
        _check_dimension(dimension)
        if not diffusivity > 0:
            raise InvalidValueError(f"diffusivity {diffusivity} must be positive")
        self.dimension = dimension
        self.diffusivity = diffusivity
        self.space = tuple(f"x{i + 1}" for i in range(dimension))
        self.coordinates = (*self.space, "t")
        self.lower, self.upper = (0.0,) * (dimension + 1), (1.0,) * (dimension + 1)

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        return {
            "pde": self.interior(lambda f: f("u", "t") - self.diffusivity * laplacian(f, "u", self.space)),
            "boundary": self.boundary(lambda f: f("u") - _target(self, f), *self.space),
            "initial": self.initial(lambda f: f("u") - _target(self, f)),
        }

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """See :meth:`Problem.exact`."""
        decay = torch.exp(-2 * math.pi**2 * self.diffusivity * points[:, -1])
        return (decay * _eigenfunction(points[:, :-1])).unsqueeze(1)

    def options(self) -> dict[str, Any]:
        """See :meth:`Problem.options`."""
        return {"dimension": self.dimension, "diffusivity": self.diffusivity}


def laplacian(f: Fields, field: str, space: Sequence[str]) -> Float[Tensor, " points"]:
    """Sum of the pure second derivatives of a field.

    Args:
        f: The fields.
        field: Name of the field.
        space: Names of the space coordinates.

    Returns:
        One number for each point.
    """
    return torch.stack([f(field, name, name) for name in space]).sum(0)


def _eigenfunction(space: Tensor) -> Tensor:
    waves = torch.sin(math.pi * space)
    return (waves * waves.roll(-1, dims=1)).sum(1) / math.sqrt(space.shape[1])


def _target(problem: PoissonND | HeatND, f: Fields) -> Tensor:
    return problem.exact(f.points.detach())[:, 0]


def _check_dimension(dimension: int) -> None:
    if dimension < 2:
        raise InvalidValueError(f"dimension {dimension} is too small; give 2 or more")
