"""The Kuramoto-Sivashinsky equation, and its solution by an exponential Runge-Kutta spectral method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.pinn.derivatives import Fields
from octavo_config_grad.pinn.problem import Condition, Problem
from octavo_config_grad.pinn.reference import Reference

__all__ = ["KuramotoSivashinsky", "etdrk4"]

ALPHA, BETA, GAMMA = 100 / 16, 100 / 16**2, 100 / 16**4


@dataclass(frozen=True)
class KuramotoSivashinsky(Problem):
    """``u_t + a u u_x + b u_xx + c u_xxxx = 0`` on x in [0, 2 pi] periodic, from ``cos(x) (1 + sin(x))``.

    With a = 100/16, b = 100/16^2, c = 100/16^4 the solution turns chaotic within t < 1. Losses PDE | periodic |
    initial; the fourth derivative makes this the only built-in problem that needs nested autograd.

    Args:
        final_time: End of time, in (0, 1].

    Raises:
        InvalidValueError: If the time is out of range.

    Source:
        Beyond the paper: a harder problem that its reviewers asked for.
    """

    final_time: float = 0.5

    coordinates = ("x", "t")
    fields = ("u",)
    lower = (0.0, 0.0)

    def __post_init__(self) -> None:
        if not 0 < self.final_time <= 1:
            raise InvalidValueError(f"final time {self.final_time} must be above 0 and at most 1")

    @property
    def upper(self) -> tuple[float, ...]:
        """Upper end of each coordinate."""
        return (2 * math.pi, self.final_time)

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        return {
            "pde": self.interior(_residual),
            "periodic": self.periodic(_jumps, "x"),
            "initial": self.initial(lambda f: f("u") - torch.cos(f.at("x")) * (1 + torch.sin(f.at("x")))),
        }

    def reference(self) -> Reference:
        """Spectral solution on 256 x 101 points.

        Returns:
            The reference.
        """
        x, t, u = etdrk4(self.final_time)
        return Reference.from_grid(self.coordinates, self.fields, (x, t), u[..., None])


def _residual(f: Fields) -> Tensor:
    convection = ALPHA * f("u") * f("u", "x")
    return f("u", "t") + convection + BETA * f("u", "x", "x") + GAMMA * f("u", "x", "x", "x", "x")


def _jumps(f: Fields) -> tuple[Tensor, Tensor]:
    sides = [f("u").chunk(2), f("u", "x").chunk(2)]
    return sides[0][0] - sides[0][1], sides[1][0] - sides[1][1]


@lru_cache(maxsize=4)
def etdrk4(
    final_time: float = 0.5, *, num_points: int = 256, num_times: int = 101, substeps: int = 40
) -> tuple[Float64[np.ndarray, " x"], Float64[np.ndarray, " t"], Float64[np.ndarray, "x t"]]:
    """Solve the equation by a Fourier method with fourth-order exponential time differencing.

    Args:
        final_time: End of time, above 0.
        num_points: Points of the periodic grid on [0, 2 pi), even.
        num_times: Output times from 0 on, at least 2.
        substeps: Time steps between two outputs, at least 1.

    Returns:
        Grid, times and ``u[x, t]``, not to be written to.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Kassam and Trefethen, "Fourth-order time-stepping for stiff PDEs" (2005): the coefficients are contour means,
        since their closed forms cancel for small wavenumbers.
    """
    if not final_time > 0 or num_points < 2 or num_points % 2 or num_times < 2 or substeps < 1:
        raise InvalidValueError(
            "etdrk4 needs a final time > 0, an even number of points, two or more times and one or more substeps"
        )
    x = 2 * np.pi * np.arange(num_points) / num_points
    t = np.linspace(0.0, final_time, num_times)
    step = (t[1] - t[0]) / substeps
    wavenumbers = np.fft.rfftfreq(num_points, d=1.0 / num_points)
    linear = BETA * wavenumbers**2 - GAMMA * wavenumbers**4
    contour = step * linear[:, None] + np.exp(1j * np.pi * (np.arange(32) + 0.5) / 32)
    exp = np.exp(contour)

    def mean(values: np.ndarray) -> np.ndarray:
        return step * values.mean(axis=1).real

    half_weight = mean((np.exp(contour / 2) - 1) / contour)
    first = mean((-4 - contour + exp * (4 - 3 * contour + contour**2)) / contour**3)
    middle = mean((2 + contour + exp * (contour - 2)) / contour**3)
    last = mean((-4 - 3 * contour - contour**2 + exp * (4 - contour)) / contour**3)
    full, half = np.exp(step * linear), np.exp(step * linear / 2)
    # Products of two fields fold back above two thirds of the spectrum.
    slope = -0.5j * ALPHA * wavenumbers * (wavenumbers < num_points / 3)

    def nonlinear(spectrum: np.ndarray) -> np.ndarray:
        return slope * np.fft.rfft(np.fft.irfft(spectrum, num_points) ** 2)

    spectrum = np.fft.rfft(np.cos(x) * (1 + np.sin(x)))
    outputs = [np.fft.irfft(spectrum, num_points)]
    for _ in range(num_times - 1):
        for _ in range(substeps):
            force = nonlinear(spectrum)
            a = half * spectrum + half_weight * force
            force_a = nonlinear(a)
            force_b = nonlinear(half * spectrum + half_weight * force_a)
            force_c = nonlinear(half * a + half_weight * (2 * force_b - force))
            spectrum = full * spectrum + first * force + 2 * middle * (force_a + force_b) + last * force_c
        outputs.append(np.fft.irfft(spectrum, num_points))
    solution = np.stack(outputs, axis=1)
    for array in (x, t, solution):
        array.flags.writeable = False
    return x, t, solution
