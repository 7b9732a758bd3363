"""Figures of the studies. Each function returns a matplotlib ``Figure`` and touches no global plotting state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from octavo_core.errors import InvalidValueError

from octavo_config_grad.landscape import PARETO_ENDS, Grid, Trajectory
from octavo_config_grad.pinn.reference import Reference
from octavo_config_grad.pinn.result import History

__all__ = ["plot_cosines", "plot_errors", "plot_landscape", "plot_losses", "plot_solution"]

# The palette of Okabe and Ito, which stays apart under the common colour-vision deficiencies; markers and dashes repeat
# the distinction for print. Yellow is left out: it vanishes on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_errors(histories: Mapping[str, History]) -> Figure:
    """Draw the error of each run against the reference, over backward passes and over seconds.

    Args:
        histories: Measurements by label, of runs with a reference.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is no history.
    """
    figure, axes = _figure(histories, columns=2, share_y=True)
    for index, (label, history) in enumerate(histories.items()):
        for ax, budget in zip(axes, (history.backward_passes, history.seconds), strict=True):
            ax.semilogy(budget, history.mse, label=label, **_style(index, len(history.mse)))
    axes[0].set(xlabel="Single-loss backward passes", ylabel="Mean square error")
    axes[1].set(xlabel="Training time (s)")
    axes[0].legend(frameon=False)
    return figure


def plot_losses(histories: Mapping[str, History], names: tuple[str, ...]) -> Figure:
    """Draw each loss of each run over backward passes, one panel for each loss.

    Args:
        histories: Measurements by label.
        names: Names of the losses.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is no history, or one has another number of losses.
    """
    for label, history in histories.items():
        if history.losses.shape[1] != len(names):
            raise InvalidValueError(f"{label!r} has {history.losses.shape[1]} losses and there are {len(names)} names")
    figure, axes = _figure(histories, columns=len(names))
    for column, (ax, name) in enumerate(zip(axes, names, strict=True)):
        for index, (label, history) in enumerate(histories.items()):
            ax.semilogy(
                history.backward_passes, history.losses[:, column], label=label, **_style(index, len(history.steps))
            )
        ax.set(xlabel="Single-loss backward passes", title=f"Loss: {name}")
    axes[0].set(ylabel="Mean square residual")
    axes[0].legend(frameon=False)
    return figure


def plot_cosines(histories: Mapping[str, History]) -> Figure:
    """Draw how far the gradients of the losses oppose each other along each run.

    Args:
        histories: Measurements by label.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is no history.
    """
    figure, (ax,) = _figure(histories, columns=1, width=7.6)
    ax.axhspan(-1.05, 0, color="0.94", zorder=0)
    ax.axhline(0, color="0.4", linewidth=0.8)
    for index, (label, history) in enumerate(histories.items()):
        rate = PercentFormatter(1, decimals=0).format_pct(history.conflict_rate, 1)
        ax.plot(
            history.backward_passes,
            history.smallest_cosines,
            label=f"{label} (conflict {rate})",
            **_style(index, len(history.steps)),
        )
    ax.set(
        xlabel="Single-loss backward passes",
        ylabel="Smallest cosine between loss gradients",
        ylim=(-1.05, 1.05),
    )
    # Above the axes, so that it hides no curve.
    figure.legend(frameon=False, loc="outside upper center", ncols=min(3, len(histories)))
    return figure


def plot_solution(reference: Reference, prediction: np.ndarray, *, field: int = 0) -> Figure:
    """Draw a field of the reference and of a prediction with the error, over two coordinates.

    Args:
        reference: Reference of two coordinates, on a grid or scattered.
        prediction: Fields at its points, (points, fields).
        field: Index of the field.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If the reference has other than two coordinates, or the prediction does not fit it.
    """
    if len(reference.coordinates) != 2:
        raise InvalidValueError(
            f"a solution is drawn over two coordinates, the reference has {', '.join(reference.coordinates)}"
        )
    if prediction.shape != reference.values.shape or not 0 <= field < len(reference.fields):
        raise InvalidValueError(
            f"the prediction has shape {prediction.shape}, the reference {reference.values.shape}; "
            f"field {field} must be one of 0 to {len(reference.fields) - 1}"
        )
    name = reference.fields[field]
    error = prediction[:, field] - reference.values[:, field]
    limit = float(np.abs(reference.values[:, field]).max()) or 1.0
    panels = (
        ("Reference", reference.values[:, field], "viridis", (-limit, limit)),
        ("Prediction", prediction[:, field], "viridis", (-limit, limit)),
        ("Error", error, "PuOr", (-np.abs(error).max() or -1.0, np.abs(error).max() or 1.0)),
    )
    figure = _new_figure(11.0, 3.2)
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    # The coordinate that is named last (time, as a rule) runs to the right.
    vertical, horizontal = reference.points.T
    for ax, (title, values, colors, (low, high)) in zip(axes, panels, strict=True):
        if reference.axes is None:
            image = ax.scatter(horizontal, vertical, c=values, s=4, cmap=colors, vmin=low, vmax=high)
        else:
            shape = [len(axis) for axis in reference.axes]
            image = ax.pcolormesh(
                reference.axes[1],
                reference.axes[0],
                values.reshape(shape),
                cmap=colors,
                vmin=low,
                vmax=high,
                shading="nearest",
                rasterized=True,
            )
        figure.colorbar(image, ax=ax, label=name if title != "Error" else f"{name} error")
        ax.set(title=title, xlabel=reference.coordinates[1])
    axes[0].set(ylabel=reference.coordinates[0])
    return figure


def plot_landscape(grid: Grid, trajectories: Mapping[str, Trajectory]) -> Figure:
    """Draw the toy landscape as contours of the mean of both losses, with the paths of optimizers.

    Args:
        grid: The landscape on a grid.
        trajectories: Paths by label; paths whose labels agree up to a "|" share colour and legend entry, such as
            ``"ConFIG|1"`` and ``"ConFIG|2"`` from two starts.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is no path.
    """
    figure, (ax,) = _figure(trajectories, columns=1, width=6.4, height=5.4)
    filled = ax.contourf(grid.x, grid.y, grid.losses.mean(axis=0).T, levels=24, cmap="Greys_r", alpha=0.75)
    figure.colorbar(filled, ax=ax, label="Mean of both losses")
    pareto = np.array(PARETO_ENDS)
    ax.plot(*pareto.T, color="black", linewidth=5, alpha=0.35, solid_capstyle="round", label="Pareto set")
    labels = list(dict.fromkeys(label.partition("|")[0] for label in trajectories))
    seen: set[str] = set()
    for full_label, path in trajectories.items():
        label = full_label.partition("|")[0]
        index = labels.index(label)
        color = COLORS[index % len(COLORS)]
        x, y = path.points.T
        name = label if label not in seen else None
        seen.add(label)
        ax.plot(x, y, color=color, linestyle=DASHES[index % len(DASHES)], linewidth=2, label=name)
        ax.plot(x[0], y[0], marker="o", color="white", markeredgecolor="black", markersize=6)
        ax.plot(
            x[-1], y[-1], marker=MARKERS[(index + 1) % len(MARKERS)], color=color, markeredgecolor="black", markersize=9
        )
    ax.set(
        xlabel="First parameter x",
        ylabel="Second parameter y",
        xlim=(grid.x[0], grid.x[-1]),
        ylim=(grid.y[0], grid.y[-1]),
    )
    ax.grid(visible=False)
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return figure


def _new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    # Attaches itself to the figure, so that savefig works without pyplot.
    FigureCanvasAgg(figure)
    return figure


def _figure(
    content: Mapping[str, object],
    *,
    columns: int,
    share_y: bool = False,
    width: float | None = None,
    height: float = 3.4,
) -> tuple[Figure, list[Axes]]:
    if not content:
        raise InvalidValueError("there is nothing to draw; give at least one run")
    figure = _new_figure(width or 1.4 + 3.8 * max(columns, 1.25), height)
    axes = figure.subplots(1, columns, sharey=share_y, squeeze=False)[0]
    for ax in axes:
        ax.grid(visible=True, color="0.9", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _style(index: int, count: int) -> dict[str, Any]:
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markevery": max(1, count // 8),
        "markersize": 4.5,
        "linewidth": 1.6,
    }
