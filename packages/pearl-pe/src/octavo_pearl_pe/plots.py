"""Figures: error against M, time against N, change against eps, an encoding drawn on its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
from jaxtyping import Float
from octavo_core.errors import MissingDependencyError
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_networkx

if TYPE_CHECKING:
    from octavo_pearl_pe.stability import StabilityPoint

__all__ = ["plot_encoding", "plot_errors", "plot_stability", "plot_times"]


def plot_errors(samples: Sequence[int], errors: Mapping[str, Sequence[float]]) -> Any:
    """Draw Monte-Carlo errors against the number of samples.

    Args:
        samples: Values of M.
        errors: Root mean square errors by name.

    Returns:
        A matplotlib figure.
    """
    return _loglog(samples, errors, "samples M", "root mean square error")


def plot_times(sizes: Mapping[str, Sequence[int]], seconds: Mapping[str, Sequence[float]]) -> Any:
    """Draw times against the number of nodes.

    Args:
        sizes: Numbers of nodes by name.
        seconds: Times by name.

    Returns:
        A matplotlib figure.
    """
    figure, axes = _axes()
    for name, times in seconds.items():
        axes.loglog(sizes[name], times, marker="o", label=name)
    axes.set(xlabel="nodes", ylabel="CPU seconds")
    axes.legend()
    return figure


def plot_stability(curves: Mapping[str, Sequence[StabilityPoint]]) -> Any:
    """Draw the change of encodings against the change of the graph.

    Args:
        curves: Points by name of the encoding; the change of the eigenvectors is taken from the first.

    Returns:
        A matplotlib figure.
    """
    figure, axes = _axes()
    for name, points in curves.items():
        axes.loglog([p.eps for p in points], [p.change for p in points], marker="o", label=name)
    first = next(iter(curves.values()))
    axes.loglog([p.eps for p in first], [p.eigenvector_change for p in first], "k--", label="Laplacian eigenvectors")
    axes.set(xlabel="change of two edge weights", ylabel="relative change of the encoding")
    axes.legend()
    return figure


def plot_encoding(data: Data, pe: Float[Tensor, "nodes channels"], channels: int = 3) -> Any:
    """Draw channels of an encoding as colours of the nodes.

    Args:
        data: The graph, small enough to draw.
        pe: Its encoding.
        channels: How many, from the first.

    Returns:
        A matplotlib figure.
    """
    count = min(channels, pe.shape[1])
    figure, axes = _axes(count)
    graph = to_networkx(data, to_undirected=True)
    places = nx.spring_layout(graph, seed=0)
    for channel, panel in enumerate(axes if count > 1 else [axes]):
        nx.draw(graph, places, ax=panel, node_color=pe[:, channel].detach().cpu().numpy(), node_size=40, width=0.5)
        panel.set_title(f"channel {channel}")
    return figure


def _loglog(x: Sequence[int], curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> Any:
    figure, axes = _axes()
    for name, y in curves.items():
        axes.loglog(x, y, marker="o", label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend()
    return figure


def _axes(panels: int = 1) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.for_extra("matplotlib", "octavo-pearl-pe", "plot") from error
    # A figure without pyplot keeps no global state and needs no display.
    figure = Figure(figsize=(5.0 * panels, 3.6), layout="constrained")
    return figure, figure.subplots(1, panels)
