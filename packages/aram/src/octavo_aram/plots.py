"""Figures of runs. Each function returns a matplotlib ``Figure`` and touches no global plotting state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from octavo_core.errors import InvalidValueError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_fronts", "plot_runs"]

# The palette of Okabe and Ito, which stays apart under the common colour-vision deficiencies; dashes repeat it.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":")
# Letters that fit beside each other above the panels; a line and the gap to it take about eight.
_LEGEND_LETTERS = 110
_PANELS = (
    ("return", "Return"),
    ("valid_rate", "Valid rate of raw draws"),
    ("projections", "Projections so far"),
    ("acceptance_rate", "Acceptance rate in training"),
)


def plot_runs(histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], *, over: str = "step") -> Figure:
    """Draw return, valid rate, projections and acceptance rate along training.

    Args:
        histories: By label, the histories of one or more seeds; the mean is drawn, and their range as a band.
        over: ``"step"`` or ``"seconds"``.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is nothing to draw, or ``over`` is unknown.
        MissingDependencyError: If matplotlib is not installed.
    """
    if not histories:
        raise InvalidValueError("there is nothing to draw; give at least one run")
    if over not in {"step", "seconds"}:
        raise InvalidValueError(f"over={over!r} is unknown; give 'step' or 'seconds'")
    figure, axes = _figure(2, 2, 9.6, 6.4)
    for index, (label, seeds) in enumerate(histories.items()):
        length = min(len(history) for history in seeds)
        x = np.mean([[row[over] for row in history[:length]] for history in seeds], 0)
        style = {"color": _COLORS[index % len(_COLORS)], "linestyle": _DASHES[index % len(_DASHES)]}
        for ax, (name, _) in zip(axes, _PANELS, strict=True):
            values = np.array([[_number(row[name]) for row in history[:length]] for history in seeds])
            ax.plot(x, values.mean(0), label=label, linewidth=1.8, marker="o", markersize=3, **style)
            if len(seeds) > 1:
                ax.fill_between(x, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
    for ax, (name, title) in zip(axes, _PANELS, strict=True):
        ax.set(title=title, xlabel="Environment steps" if over == "step" else "Seconds")
        if name.endswith("rate"):
            ax.set_ylim(-0.03, 1.03)
        elif name == "projections":
            ax.set_yscale("symlog", linthresh=1)
            ax.set_ylim(bottom=0)
    columns = max(1, min(5, _LEGEND_LETTERS // (max(map(len, histories)) + 8)))
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=columns)
    return figure


def plot_fronts(points: Mapping[str, Sequence[tuple[float, float, str]]]) -> Figure:
    """Draw what a multi-objective policy reaches with different preferences.

    Args:
        points: By label, triples of valid rate, return and the preference as text.

    Returns:
        The figure.

    Raises:
        InvalidValueError: If there is nothing to draw.
        MissingDependencyError: If matplotlib is not installed.
    """
    if not points:
        raise InvalidValueError("there is nothing to draw; give at least one policy")
    figure, (ax,) = _figure(1, 1, 5.6, 4.0)
    for index, (label, entries) in enumerate(points.items()):
        x, y = [entry[0] for entry in entries], [entry[1] for entry in entries]
        ax.plot(x, y, marker="o", color=_COLORS[index % len(_COLORS)], linestyle=_DASHES[index % 4], label=label)
        for valid, value, text in entries:
            ax.annotate(text, (valid, value), textcoords="offset points", xytext=(5, 5), fontsize=8)
    ax.set(xlabel="Valid rate of raw draws", ylabel="Return")
    ax.legend(frameon=False)
    return figure


def _number(value: float | int | None) -> float:
    return float("nan") if value is None else float(value)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("matplotlib", "octavo-aram", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    # Attaches itself to the figure, so that savefig works without pyplot.
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.grid(visible=True, color="0.9", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)
