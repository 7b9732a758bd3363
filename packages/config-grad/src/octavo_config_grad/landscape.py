"""The toy landscape: two losses of two parameters on which the sum of the gradients gets stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.aggregators import Aggregator
from octavo_config_grad.optimizer import ConFIGOptimizer

__all__ = ["PARETO_ENDS", "STARTS", "Grid", "Trajectory", "landscape_grid", "landscape_losses", "trace"]

STARTS: tuple[tuple[float, float], ...] = ((-8.5, 7.5), (0.0, -1e-3), (9.0, 9.0), (-7.5, -0.5), (9.0, -1.0))
"""Usual starting points. The second stands in for (0, 0), a kink at which the gradients of both losses vanish."""

PARETO_ENDS: tuple[tuple[float, float], tuple[float, float]] = ((-7.0, -8.43), (7.0, -8.43))
"""Ends of the set on which no loss falls without the other rising."""

_LOG_FLOOR = 5e-6
_SCALE_OF_FIRST = 0.1


@dataclass(frozen=True)
class Trajectory:
    """The path of an optimizer over the landscape.

    Args:
        points: Parameters (x, y), from the start on.
        losses: Both losses at the points, without the factor that training puts on the first.
    """

    points: Float[np.ndarray, "steps 2"]
    losses: Float[np.ndarray, "steps 2"]


@dataclass(frozen=True)
class Grid:
    """The landscape on a grid, for contours.

    Args:
        x: Positions along the first parameter.
        y: Positions along the second parameter.
        losses: Both losses, unscaled, at ``[loss, x, y]``.
    """

    x: Float64[np.ndarray, " x"]
    y: Float64[np.ndarray, " y"]
    losses: Float64[np.ndarray, "2 x y"]


def landscape_losses(point: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
    """Evaluate both losses.

    Args:
        point: Parameters (x, y).

    Returns:
        The losses, unscaled.

    Source:
        The official toy example; the landscape is that of CAGrad (Liu et al., NeurIPS 2021).
    """
    x, y = point.unbind(-1)
    upper = torch.tanh(y / 2).clamp_min(0)
    lower = torch.tanh(-y / 2).clamp_min(0)
    log_first = (0.5 * (-x - 7) - torch.tanh(-y)).abs().clamp_min(_LOG_FLOOR).log() + 6
    log_second = (0.5 * (-x + 3) + torch.tanh(-y) + 2).abs().clamp_min(_LOG_FLOOR).log() + 6
    bowl_first = ((-x + 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    bowl_second = ((-x - 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    return torch.stack([log_first * upper + bowl_first * lower, log_second * upper + bowl_second * lower], dim=-1)


def trace(
    aggregator: Aggregator,
    start: Sequence[float],
    *,
    steps: int = 5000,
    lr: float = 1e-2,
    optimizer: Callable[[Iterable[Tensor], float], torch.optim.Optimizer] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Trajectory:
    """Train the two parameters, on 0.1 times the first loss and the second.

    Args:
        aggregator: Combines the two gradients.
        start: Where to begin, (x, y).
        steps: Optimizer steps, at least 1.
        lr: Learning rate, above 0.
        optimizer: Makes the optimizer from the parameters and the learning rate; Adam if None.
        dtype: Precision. Along the valleys of the logarithms rounding decides when a path escapes, so end points of
            two precisions differ.

    Returns:
        The path, ``steps + 1`` points.

    Raises:
        InvalidValueError: If a number is out of range.

    Source:
        The official toy example: Adam, learning rate 0.01, 5000 steps.
    """
    if len(start) != 2 or steps < 1 or not lr > 0:
        raise InvalidValueError(f"a path needs a start (x, y), 1 or more steps and lr > 0; got {start}, {steps}, {lr}")
    point = torch.tensor(list(start), dtype=dtype, requires_grad=True)
    made = torch.optim.Adam([point], lr=lr) if optimizer is None else optimizer([point], lr)
    combined = ConFIGOptimizer(made, aggregator)
    points = [point.detach().clone()]
    for _ in range(steps):
        first, second = landscape_losses(point).unbind()
        combined.step([_SCALE_OF_FIRST * first, second])
        points.append(point.detach().clone())
    path = torch.stack(points)
    return Trajectory(path.numpy(), landscape_losses(path).numpy())


def landscape_grid(*, extent: float | int = 10.0, resolution: int = 201) -> Grid:
    """Evaluate the landscape for a contour plot.

    Args:
        extent: Half the side of the square around the origin, above 0.
        resolution: Points along each side, at least 2.

    Returns:
        The grid.

    Raises:
        InvalidValueError: If a number is out of range.
    """
    if not extent > 0 or resolution < 2:
        raise InvalidValueError(
            f"a grid needs an extent above 0 and 2 or more points a side; got {extent}, {resolution}"
        )
    axis = torch.linspace(-extent, extent, resolution, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    return Grid(axis.numpy(), axis.numpy(), landscape_losses(points).movedim(-1, 0).contiguous().numpy())
