"""Folders in TU format, the text files of the graph kernel benchmark sets."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidValueError, MissingFileError
from torch_geometric.data import Data

__all__ = ["read_tu"]

# What each file has a line for.
_LINES = {"node_labels": "node", "edge_labels": "edge", "graph_labels": "graph", "graph_attributes": "graph"}


def read_tu(folder: str | os.PathLike[str]) -> list[Data]:
    """Read a folder in TU format: ``NAME_A.txt``, ``NAME_graph_indicator.txt`` and labels, if there are any.

    Args:
        folder: The folder.

    Returns:
        Graphs with ``x`` (node labels), ``edge_attr`` (edge labels) and ``y`` (class from 0, or the graph's attribute).

    Raises:
        MissingFileError: If a file is missing.
        InvalidValueError: If the files do not fit together.
    """
    found = sorted(Path(folder).glob("*_A.txt"))
    if len(found) != 1:
        raise MissingFileError(f"{str(folder)!r} holds {len(found)} files *_A.txt; a TU folder has one")
    stem = found[0].name.removesuffix("_A.txt")

    def numbers(name: str, dtype: Any = np.int64) -> np.ndarray | None:
        file = found[0].with_name(f"{stem}_{name}.txt")
        return _table(file, dtype) if file.is_file() else None

    edges, indicator = numbers("A"), numbers("graph_indicator")
    if edges is None or indicator is None:
        raise MissingFileError(f"{str(folder)!r} has no {stem}_graph_indicator.txt; it tells the graph of each node")
    edges, owner = edges.reshape(-1, 2) - 1 if edges.size == 0 else edges - 1, indicator[:, 0] - 1
    if not len(owner):
        raise InvalidValueError(f"{str(folder)!r} holds no graphs: {stem}_graph_indicator.txt is empty")
    if edges.shape[1] != 2 or (edges.size and not 0 <= edges.min() <= edges.max() < len(owner)):
        raise InvalidValueError(f"{stem}_A.txt must hold pairs of nodes from 1 to {len(owner)}")
    num_graphs = int(owner[-1]) + 1
    if (np.diff(owner) < 0).any() or owner[0] < 0 or (owner[edges[:, 0]] != owner[edges[:, 1]]).any():
        raise InvalidValueError(f"{stem}: nodes must be ordered by graph, from 1, and edges must stay within one")
    if num_graphs > len(owner):
        raise InvalidValueError(
            f"{stem}: the last of {len(owner)} nodes is of graph {num_graphs}; number graphs from 1"
        )
    labels = {name: numbers(name) for name in ("node_labels", "edge_labels", "graph_labels")}
    labels["graph_attributes"] = numbers("graph_attributes", np.float32)
    counts = {"node": len(owner), "edge": len(edges), "graph": num_graphs}
    for name, table in labels.items():
        wanted = counts[_LINES[name]]
        if table is not None and len(table) != wanted:
            raise InvalidValueError(
                f"{stem}_{name}.txt has {len(table)} lines for {wanted} {_LINES[name]}s; give one for each"
            )
    starts = np.searchsorted(owner, np.arange(num_graphs + 1))
    order = np.argsort(owner[edges[:, 0]], kind="stable")
    cuts = np.searchsorted(owner[edges[order, 0]], np.arange(num_graphs + 1))
    node_types, edge_types = _types(labels["node_labels"]), _types(labels["edge_labels"])
    classes = (
        None if labels["graph_labels"] is None else np.unique(labels["graph_labels"][:, 0], return_inverse=True)[1]
    )
    attributes = labels["graph_attributes"]
    graphs = []
    for graph in range(num_graphs):
        chosen = order[cuts[graph] : cuts[graph + 1]]
        data = Data(
            edge_index=torch.from_numpy(np.ascontiguousarray(edges[chosen].T - starts[graph])),
            num_nodes=int(starts[graph + 1] - starts[graph]),
        )
        if node_types is not None:
            data.x = torch.from_numpy(node_types[starts[graph] : starts[graph + 1]])
        if edge_types is not None:
            data.edge_attr = torch.from_numpy(edge_types[chosen])
        if classes is not None:
            data.y = torch.tensor([int(classes[graph])])
        elif attributes is not None:
            data.y = torch.from_numpy(attributes[graph].copy())
        graphs.append(data)
    return graphs


def _table(file: Path, dtype: Any) -> np.ndarray:
    """A table of numbers; without rows for an empty file."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
            table = np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=2)
    except ValueError as error:
        raise InvalidValueError(f"{str(file)!r} is not a table of numbers: {error}") from error
    return table


def _types(labels: np.ndarray | None) -> np.ndarray | None:
    """The first column, from 0."""
    return labels[:, 0] - labels[:, 0].min() if labels is not None and len(labels) else None
