"""The focusing nonlinear Schroedinger equation, and its solution by a split-step Fourier method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Complex128, Float64
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.pinn.derivatives import Fields
from octavo_config_grad.pinn.problem import Condition, Problem
from octavo_config_grad.pinn.reference import Reference

__all__ = ["Schrodinger", "split_step"]

PERIODIC = ("value", "value+derivative")


@dataclass(frozen=True)
class Schrodinger(Problem):
    """``i h_t + h_xx / 2 + |h|^2 h = 0`` with ``h = u + iv``, x in [-5, 5] periodic, t in [0, pi/2], from ``2 sech x``.

    Args:
        periodic_condition: ``"value"`` (as the official code trains) or ``"value+derivative"``.
        num_losses: 2 (PDE | boundary and initial) or 3 (PDE | boundary | initial).

    Raises:
        InvalidValueError: If an argument is not one of these.

    Source:
        The paper's PINN study (its official training configurations).
    """

    periodic_condition: str = "value"
    num_losses: int = 3

    coordinates = ("x", "t")
    fields = ("u", "v")
    lower = (-5.0, 0.0)
    upper = (5.0, math.pi / 2)

    def __post_init__(self) -> None:
        if self.periodic_condition not in PERIODIC:
            raise InvalidValueError(
                f"unknown periodic condition {self.periodic_condition!r}; give one of {', '.join(PERIODIC)}"
            )
        if self.num_losses not in (2, 3):
            raise InvalidValueError(f"Schrodinger has 2 or 3 losses, got {self.num_losses}")

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """See :meth:`Problem.losses`."""
        boundary = [self.periodic(_value_jump, "x")]
        if self.periodic_condition == "value+derivative":
            boundary.append(self.periodic(_slope_jump, "x"))
        initial = self.initial(lambda f: torch.stack([f("u") - 2 / torch.cosh(f.at("x")), f("v")]))
        pde = self.interior(_residual)
        if self.num_losses == 2:
            return {"pde": pde, "boundary+initial": (*boundary, initial)}
        return {"pde": pde, "boundary": boundary, "initial": initial}

    def reference(self) -> Reference:
        """Numerical solution on the official grid of 256 x 201 points.

        Returns:
            The reference: on this grid exact in time to 2e-8; twice as many points move it by 5e-5.
        """
        x, t, h = split_step()
        return Reference.from_grid(self.coordinates, self.fields, (x, t), np.stack([h.real, h.imag], axis=-1))


def _residual(f: Fields) -> tuple[Tensor, Tensor]:
    u, v = f("u"), f("v")
    density = u * u + v * v
    return f("u", "t") + 0.5 * f("v", "x", "x") + density * v, f("v", "t") - 0.5 * f("u", "x", "x") - density * u


def _value_jump(f: Fields) -> tuple[Tensor, Tensor]:
    return _jump(f("u")), _jump(f("v"))


def _slope_jump(f: Fields) -> tuple[Tensor, Tensor]:
    return _jump(f("u", "x")), _jump(f("v", "x"))


def _jump(values: Tensor) -> Tensor:
    left, right = values.chunk(2)
    return left - right


@lru_cache(maxsize=4)
def split_step(
    num_points: int = 256, num_times: int = 201, substeps: int = 20
) -> tuple[Float64[np.ndarray, " x"], Float64[np.ndarray, " t"], Complex128[np.ndarray, "x t"]]:
    """Solve the equation from ``2 sech x`` by Fourier split steps of fourth order.

    Args:
        num_points: Points of the periodic grid on [-5, 5), even.
        num_times: Output times from 0 to pi/2, at least 2.
        substeps: Time steps between two outputs, at least 1.

    Returns:
        Grid, times and ``h[x, t]``, not to be written to.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        The usual split step uses second-order steps, ten times as many; three of them with Yoshida's fractions make
        one step of fourth order.
    """
    if num_points < 2 or num_points % 2 or num_times < 2 or substeps < 1:
        raise InvalidValueError("split_step needs an even number of points, two or more times and one or more substeps")
    x = -5.0 + 10.0 * np.arange(num_points) / num_points
    t = np.linspace(0.0, math.pi / 2, num_times)
    step = (t[1] - t[0]) / substeps
    wavenumbers = 2.0 * np.pi * np.fft.fftfreq(num_points, d=10.0 / num_points)
    outer = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
    fractions = np.array([outer, 1.0 - 2.0 * outer, outer])
    # Linear half steps of neighbouring fractions merge into one.
    linear = np.array([outer / 2, (1.0 - outer) / 2, (1.0 - outer) / 2, outer / 2])
    drifts = np.exp(-0.5j * wavenumbers**2 * step * linear[:, None])
    h = (2.0 / np.cosh(x)).astype(np.complex128)
    outputs = [h]
    for _ in range(num_times - 1):
        for _ in range(substeps):
            for drift, fraction in zip(drifts[:3], fractions, strict=True):
                h = np.fft.ifft(drift * np.fft.fft(h))
                h = h * np.exp(1j * step * fraction * (h.real**2 + h.imag**2))
            h = np.fft.ifft(drifts[3] * np.fft.fft(h))
        outputs.append(h)
    solution = np.stack(outputs, axis=1)
    for array in (x, t, solution):
        array.flags.writeable = False
    return x, t, solution
