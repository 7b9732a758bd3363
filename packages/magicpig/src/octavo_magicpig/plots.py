"""Figures: error against budget, sampled share by layer, and time against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["plot_error_against_budget", "plot_fraction_by_layer", "plot_time_against_length"]


def plot_error_against_budget(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw the error of each method against the share of keys it read.

    Args:
        curves: For each method pairs of share and error.

    Returns:
        The figure.
    """
    figure, axes = _figure("keys read, share", "relative error of the output")
    for name, points in curves.items():
        ordered = sorted(points)
        axes.loglog([x for x, _ in ordered], [max(y, 1e-12) for _, y in ordered], marker="o", label=name)
    axes.legend()
    return figure


def plot_fraction_by_layer(fractions: Mapping[int, Sequence[float]]) -> Figure:
    """Draw the sampled share of every head of every layer.

    Args:
        fractions: For each layer the shares of its heads.

    Returns:
        The figure.
    """
    figure, axes = _figure("head", "layer")
    layers = sorted(fractions)
    image = axes.imshow(np.array([list(fractions[layer]) for layer in layers]), aspect="auto", cmap="viridis")
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    figure.colorbar(image, label="share of the keys that was sampled")
    return figure


def plot_time_against_length(lengths: Sequence[int], milliseconds: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the time of a decode step against the keys.

    Args:
        lengths: Keys.
        milliseconds: For each method its time at each length.

    Returns:
        The figure.
    """
    figure, axes = _figure("keys", "milliseconds of a decode step")
    for name, times in milliseconds.items():
        axes.loglog(lengths, times, marker="o", label=name)
    axes.legend()
    return figure


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes
