"""Graphs from files: edge lists, GraphML, graph6, NPZ, PyG, SMILES, CSV and TU folders. Nothing is unpickled."""

from __future__ import annotations

import csv
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx
import numpy as np
import torch
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import to_undirected

__all__ = ["FORMATS", "from_pyg", "read_graphs", "read_tu"]

FORMATS = ("edges", "graphml", "graph6", "npz", "pt", "smiles", "csv", "tu")
"""Formats of ``read_graphs``; chosen by the suffix, or TU for a folder."""

_SUFFIXES = {
    ".txt": "edges", ".edges": "edges", ".el": "edges", ".graphml": "graphml", ".g6": "graph6", ".s6": "graph6",
    ".npz": "npz", ".pt": "pt", ".smi": "smiles", ".csv": "csv",
}  # fmt: skip
# Plain containers of tensors: with these, and nothing else, torch's restricted unpickler reads PyG graphs.
_SAFE: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
_MOST_BYTES = 2 * 2**30
_PYG = {
    "ZINC": ("ZINC", {"subset": True}),
    "Peptides-struct": ("LRGBDataset", {"name": "Peptides-struct"}),
    "REDDIT-BINARY": ("TUDataset", {"name": "REDDIT-BINARY"}),
    "REDDIT-MULTI-5K": ("TUDataset", {"name": "REDDIT-MULTI-5K"}),
    "MUTAG": ("TUDataset", {"name": "MUTAG"}),
}


def read_graphs(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    smiles_column: str = "smiles",
    target: str | None = None,
) -> list[Data]:
    """Read graphs.

    Args:
        path: A file, or a folder in TU format.
        format: One of ``FORMATS``; by the suffix if None.
        smiles_column: Column of a CSV that holds SMILES.
        target: Column of a CSV that holds the target, a number.

    Returns:
        The graphs, undirected.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If the format is unknown or the content is not of it.
    """
    file = Path(path)
    if not file.exists():
        raise MissingFileError(f"no file {str(file)!r}; give a graph file or a folder in TU format")
    kind = format or ("tu" if file.is_dir() else _SUFFIXES.get(file.suffix.lower()))
    if kind not in FORMATS:
        raise InvalidValueError(f"cannot tell the format of {str(file)!r}; name one of {', '.join(FORMATS)}")
    if (kind == "tu") != file.is_dir():
        raise InvalidValueError(f"{str(file)!r} is {'a folder' if file.is_dir() else 'a file'}, which {kind!r} is not")
    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise InvalidValueError(f"{str(file)!r} has {file.stat().st_size / 2**30:.1f} GiB; the limit is 2 GiB")
    try:
        match kind:
            case "edges":
                return [_edge_list(file)]
            case "graphml":
                return [_from_networkx(nx.read_graphml(file))]
            case "graph6":
                return _graph6(file)
            case "npz":
                return [_npz(file)]
            case "pt":
                return _pyg(file)
            case "smiles":
                return _smiles(file)
            case "csv":
                return _csv(file, smiles_column, target)
            case _:
                return read_tu(file)
    except (OSError, UnicodeDecodeError, ParseError, nx.NetworkXError, zipfile.BadZipFile) as error:
        raise InvalidValueError(f"{str(file)!r} cannot be read as {kind}: {error}") from error


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
        if not file.is_file():
            return None
        try:
            return np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=1)
        except ValueError as error:
            raise InvalidValueError(f"{str(file)!r} is not a table of numbers: {error}") from error

    edges, indicator = numbers("A"), numbers("graph_indicator")
    if edges is None or indicator is None:
        raise MissingFileError(f"{str(folder)!r} has no {stem}_graph_indicator.txt; it tells the graph of each node")
    edges, owner = np.atleast_2d(edges) - 1, indicator - 1
    if edges.shape[1] != 2 or (edges.size and not 0 <= edges.min() <= edges.max() < len(owner)):
        raise InvalidValueError(f"{stem}_A.txt must hold pairs of nodes from 1 to {len(owner)}")
    if (np.diff(owner) < 0).any() or (owner[edges[:, 0]] != owner[edges[:, 1]]).any():
        raise InvalidValueError(f"{stem}: nodes must be ordered by graph, and edges must stay within one")
    labels = {name: numbers(name) for name in ("node_labels", "edge_labels", "graph_labels")}
    attributes = numbers("graph_attributes", np.float32)
    num_graphs = int(owner[-1]) + 1
    starts = np.searchsorted(owner, np.arange(num_graphs + 1))
    order = np.argsort(owner[edges[:, 0]], kind="stable")
    cuts = np.searchsorted(owner[edges[order, 0]], np.arange(num_graphs + 1))
    classes = None if labels["graph_labels"] is None else np.unique(labels["graph_labels"], return_inverse=True)[1]
    graphs = []
    for graph in range(num_graphs):
        chosen = order[cuts[graph] : cuts[graph + 1]]
        nodes = slice(starts[graph], starts[graph + 1])
        data = Data(
            edge_index=torch.from_numpy(np.ascontiguousarray(edges[chosen].T - starts[graph])),
            num_nodes=int(starts[graph + 1] - starts[graph]),
        )
        if (node_labels := labels["node_labels"]) is not None:
            data.x = torch.from_numpy(_first(node_labels)[nodes] - _first(node_labels).min())
        if (edge_labels := labels["edge_labels"]) is not None:
            data.edge_attr = torch.from_numpy(_first(edge_labels)[chosen] - _first(edge_labels).min())
        if classes is not None:
            data.y = torch.tensor([int(classes[graph])])
        elif attributes is not None:
            data.y = torch.from_numpy(np.atleast_1d(attributes[graph]))
        graphs.append(data)
    return graphs


def from_pyg(name: str, root: str | os.PathLike[str], *, download: bool = False, **options: Any) -> Any:
    """Open a data set of the paper through PyG.

    Args:
        name: ``"ZINC"``, ``"Peptides-struct"``, ``"REDDIT-BINARY"``, ``"REDDIT-MULTI-5K"`` or ``"MUTAG"``.
        root: PyG's folder of it.
        download: Allow PyG to fetch it; without this no network is used.
        **options: Passed to PyG's class, e.g. ``split="train"``.

    Returns:
        PyG's data set.

    Raises:
        InvalidValueError: If the name is unknown.
        MissingFileError: If nothing is there and ``download`` is off.
    """
    if name not in _PYG:
        raise InvalidValueError(f"unknown data set {name!r}; give one of {', '.join(_PYG)}")
    folder = Path(root)
    if not download and not any(path.is_file() for path in folder.rglob("*")):
        raise MissingFileError(f"no files of {name} under {str(folder)!r}; put them there, or pass download=True")
    import torch_geometric.datasets

    kind, defaults = _PYG[name]
    return getattr(torch_geometric.datasets, kind)(str(folder), **(defaults | options))


def _first(labels: np.ndarray) -> np.ndarray:
    return labels if labels.ndim == 1 else labels[:, 0]


def _edge_list(file: Path) -> Data:
    try:
        table = np.loadtxt(file, comments=("#", "%"), ndmin=2, delimiter=_delimiter(file))
    except ValueError as error:
        raise InvalidValueError(
            f"{str(file)!r} is not an edge list of numbers 'u v' or 'u v weight': {error}"
        ) from error
    if table.size == 0 or table.shape[1] not in {2, 3}:
        raise InvalidValueError(
            f"{str(file)!r} has {table.shape[1] if table.size else 0} columns; give 'u v' or 'u v weight'"
        )
    ends = table[:, :2].astype(np.int64)
    if (ends != table[:, :2]).any() or ends.min() < 0 or ends.max() >= 2**31:
        raise InvalidValueError(f"{str(file)!r}: node numbers must be integers from 0 to 2^31 - 1")
    edges = torch.from_numpy(np.ascontiguousarray(ends.T))
    if table.shape[1] == 2:
        return Data(edge_index=to_undirected(edges), num_nodes=int(ends.max()) + 1)
    weights = torch.from_numpy(table[:, 2].astype(np.float32))
    edges, weights = to_undirected(edges, weights, reduce="max")
    return Data(edge_index=edges, edge_weight=weights, num_nodes=int(ends.max()) + 1)


def _delimiter(file: Path) -> str | None:
    with file.open(encoding="utf-8") as lines:
        first = next((line for line in lines if line.strip() and line[0] not in "#%"), "")
    return "," if "," in first else None


def _graph6(file: Path) -> list[Data]:
    reader = nx.from_sparse6_bytes if file.suffix.lower() == ".s6" else nx.from_graph6_bytes
    graphs = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            graphs.append(_from_networkx(reader(line.strip())))
        except (nx.NetworkXError, ValueError, IndexError) as error:
            raise InvalidValueError(f"line {number} of {str(file)!r} is not {file.suffix[1:]}: {error}") from error
    return graphs


def _from_networkx(graph: nx.Graph) -> Data:
    number = {node: index for index, node in enumerate(graph.nodes)}
    edges = torch.tensor([(number[u], number[v]) for u, v in graph.edges()], dtype=torch.long).view(-1, 2).T
    return Data(edge_index=to_undirected(edges, num_nodes=len(number)), num_nodes=len(number))


def _npz(file: Path) -> Data:
    with np.load(file, allow_pickle=False) as content:
        if "edge_index" not in content:
            raise InvalidValueError(f"{str(file)!r} has no array edge_index; it holds {', '.join(content.files)}")
        edges = torch.from_numpy(content["edge_index"].astype(np.int64))
        count = int(content["num_nodes"]) if "num_nodes" in content else int(edges.max()) + 1 if edges.numel() else 0
        data = Data(edge_index=edges, num_nodes=count)
        if "edge_weight" in content:
            data.edge_weight = torch.from_numpy(content["edge_weight"].astype(np.float32))
    return data


def _pyg(file: Path) -> list[Data]:
    try:
        with torch.serialization.safe_globals(_SAFE):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        first = str(error).splitlines()[0]
        raise InvalidStateError(
            f"{str(file)!r} is not a PyG Data saved by torch.save, or asks to run code: {first}"
        ) from error
    graphs = list(content) if isinstance(content, list | tuple) else [content]
    if not graphs or not all(isinstance(graph, Data) for graph in graphs):
        raise InvalidValueError(f"{str(file)!r} holds {type(content).__name__}, not PyG Data or a list of them")
    return graphs


def _smiles(file: Path) -> list[Data]:
    from octavo_pearl_pe.molecules import molecule_graphs

    return molecule_graphs([line.split()[0] for line in file.read_text().splitlines() if line.strip()])


def _csv(file: Path, smiles_column: str, target: str | None) -> list[Data]:
    from octavo_pearl_pe.molecules import molecule_graphs

    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = list(rows[0]) if rows else []
    for wanted in [smiles_column, *([] if target is None else [target])]:
        if wanted not in names:
            raise InvalidValueError(
                f"{str(file)!r} has no column {wanted!r}; its columns are {', '.join(map(str, names))}"
            )
    targets = None
    if target is not None:
        number = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
        for line, row in enumerate(rows, start=2):
            if not number.fullmatch(row[target] or ""):
                raise InvalidValueError(f"line {line} of {str(file)!r}: {target}={row[target]!r} is not a number")
        targets = [float(row[target]) for row in rows]
    return molecule_graphs([row[smiles_column] for row in rows], targets)
