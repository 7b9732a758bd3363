"""Graphs from files: edge lists, GraphML, graph6, NPZ, PyG, SMILES, CSV and TU folders. Nothing is unpickled."""

from __future__ import annotations

import csv
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx
import numpy as np
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import coalesce, to_undirected

from octavo_pearl_pe.tu import read_tu

__all__ = ["FORMATS", "from_pyg", "read_graphs"]

FORMATS = ("edges", "graphml", "graph6", "npz", "pt", "smiles", "csv", "tu")
"""Formats of ``read_graphs``; chosen by the suffix, or TU for a folder."""

_SUFFIXES = {
    ".txt": "edges", ".edges": "edges", ".el": "edges", ".graphml": "graphml", ".g6": "graph6", ".s6": "graph6",
    ".npz": "npz", ".pt": "pt", ".smi": "smiles", ".csv": "csv",
}  # fmt: skip
# Plain containers of tensors: with these, and nothing else, torch's restricted unpickler reads PyG graphs.
_SAFE: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
_MOST_BYTES = 2 * 2**30
# A node number far above the number of nodes named is an identifier, and would make a graph of isolated nodes.
_SPARE_NODES, _SPARE_FACTOR = 10**6, 100
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
    smiles_column: str | None = None,
    target: str | None = None,
    make_undirected: bool = False,
) -> list[Data]:
    """Read graphs.

    A line of an edge list is an undirected edge, which may be listed in both directions. Weights of repeated lines add
    up. GraphML weights are read from the attribute ``weight``.

    Args:
        path: A file, or a folder in TU format.
        format: One of ``FORMATS``; by the suffix if None.
        smiles_column: Column of a CSV that holds SMILES, ``"smiles"`` by default.
        target: Column of a CSV that holds the target, a number.
        make_undirected: Take directed graphs as undirected, with the larger weight of the two directions.

    Returns:
        The graphs, at least one.

    Raises:
        MissingFileError: If there is no such file.
        InvalidStateError: If a PyG file holds more than plain graphs.
        InvalidValueError: If the format is unknown, the content is not of it, an option does not apply to it, or an
            edge list or GraphML file is directed.
    """
    file = Path(path)
    if not file.exists():
        hint = "; give --root, its folder" if str(path) in _PYG else "; give a graph file or a folder in TU format"
        raise MissingFileError(f"no file {str(file)!r}{hint}")
    kind = format or ("tu" if file.is_dir() else _SUFFIXES.get(file.suffix.lower()))
    if kind not in FORMATS:
        raise InvalidValueError(f"cannot tell the format of {str(file)!r}; name one of {', '.join(FORMATS)}")
    if (kind == "tu") != file.is_dir():
        raise InvalidValueError(f"{str(file)!r} is {'a folder' if file.is_dir() else 'a file'}, which {kind!r} is not")
    if kind != "csv" and (smiles_column is not None or target is not None):
        raise InvalidValueError(f"a column is named, but {str(file)!r} is read as {kind}; only a CSV has columns")
    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise InvalidValueError(f"{str(file)!r} has {file.stat().st_size / 2**30:.1f} GiB; the limit is 2 GiB")
    try:
        match kind:
            case "edges":
                graphs = [_edge_list(file, make_undirected)]
            case "graphml":
                graphs = [_graphml(file, make_undirected)]
            case "graph6":
                graphs = _graph6(file)
            case "npz":
                graphs = [_npz(file)]
            case "pt":
                graphs = _pyg(file)
            case "smiles":
                graphs = _smiles(file)
            case "csv":
                graphs = _csv(file, "smiles" if smiles_column is None else smiles_column, target)
            case _:
                graphs = read_tu(file)
    except (OSError, UnicodeDecodeError, ParseError, nx.NetworkXError, zipfile.BadZipFile, csv.Error) as error:
        if isinstance(error, MissingFileError):
            raise
        raise InvalidValueError(f"{str(file)!r} cannot be read as {kind}: {error}") from error
    if not graphs:
        raise InvalidValueError(f"{str(file)!r} holds no graphs; give a file with at least one")
    return [_symmetrised(graph) for graph in graphs] if make_undirected else graphs


def from_pyg(name: str, root: str | os.PathLike[str], *, download: bool = False, **options: Any) -> Any:
    """Open a data set of the paper through PyG.

    Args:
        name: ``"ZINC"``, ``"Peptides-struct"``, ``"REDDIT-BINARY"``, ``"REDDIT-MULTI-5K"`` or ``"MUTAG"``.
        root: PyG's folder of it.
        download: Allow PyG to fetch it; without this no network is used, whatever the folder holds.
        **options: Passed to PyG's class, e.g. ``split="train"``.

    Returns:
        PyG's data set.

    Raises:
        InvalidValueError: If the name is unknown.
        MissingFileError: If the raw files that PyG looks for are not there and ``download`` is off.
    """
    if name not in _PYG:
        raise InvalidValueError(f"unknown data set {name!r}; give one of {', '.join(_PYG)}")
    import torch_geometric.datasets

    kind, defaults = _PYG[name]
    dataset_class = getattr(torch_geometric.datasets, kind)
    if download:
        return dataset_class(str(root), **(defaults | options))

    # PyG calls download exactly when a raw file is missing; refusing there follows its rules for every data set.
    def refuse(dataset: Any) -> None:
        names = dataset.raw_file_names
        wanted = ", ".join([names] if isinstance(names, str) else names)
        raise MissingFileError(
            f"no raw files of {name} in {dataset.raw_dir!r} (PyG looks for {wanted}); put them there, or pass "
            "download=True"
        )

    dataset = type(kind, (dataset_class,), {"download": refuse})(str(root), **(defaults | options))
    dataset.__class__ = dataset_class
    return dataset


def _symmetrised(data: Data) -> Data:
    """Add missing reverse edges; of two directions the larger weight or type counts."""
    if data.edge_index is None:
        return data
    names = [name for name in ("edge_weight", "edge_attr") if data.get(name) is not None]
    edges, values = to_undirected(data.edge_index, [data[name] for name in names], data.num_nodes, reduce="max")
    data.edge_index = edges
    for name, value in zip(names, values, strict=True):
        data[name] = value
    return data


def _undirected(file: Path, edges: Tensor, weights: Tensor | None, count: int, *, directed: bool) -> Data:
    """An undirected graph of listed edges.

    Edges of an undirected list stand for both directions; if both are listed, with different weights, or if the list is
    directed and a direction is missing, the graph is directed.
    """
    if weights is None:
        listed, both = coalesce(edges, num_nodes=count), to_undirected(edges, num_nodes=count)
        one_way = directed and listed.shape[1] != both.shape[1]
        data = Data(edge_index=both, num_nodes=count)
    else:
        listed, weights = coalesce(edges, weights, num_nodes=count, reduce="sum")
        if not bool(weights.isfinite().all()):
            raise InvalidValueError(f"{str(file)!r} holds edge weights that are NaN or infinite; give finite ones")
        high, low = (to_undirected(listed, weights, num_nodes=count, reduce=rule) for rule in ("max", "min"))
        one_way = not torch.allclose(high[1], low[1], rtol=1e-5) or (directed and listed.shape[1] != high[0].shape[1])
        data = Data(edge_index=high[0], edge_weight=high[1], num_nodes=count)
    if one_way:
        raise InvalidValueError(
            f"{str(file)!r} is a directed graph (an edge without its reverse of equal weight); pass --make-undirected "
            "(make_undirected=True) to take the larger weight of both directions"
        )
    return data


def _edge_list(file: Path, make_undirected: bool) -> Data:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
            table = np.loadtxt(file, comments=("#", "%"), ndmin=2, delimiter=_delimiter(file), encoding="utf-8-sig")
    except ValueError as error:
        raise InvalidValueError(
            f"{str(file)!r} is not an edge list of numbers 'u v' or 'u v weight': {error}"
        ) from error
    if table.size == 0 or table.shape[1] not in {2, 3}:
        raise InvalidValueError(
            f"{str(file)!r} has {table.shape[1] if table.size else 0} columns; give 'u v' or 'u v weight'"
        )
    if not np.isfinite(table).all():
        raise InvalidValueError(f"{str(file)!r} holds NaN or infinite numbers; give finite ones")
    ends = table[:, :2].astype(np.int64)
    if (ends != table[:, :2]).any() or ends.min() < 0 or ends.max() >= 2**31:
        raise InvalidValueError(f"{str(file)!r}: node numbers must be integers from 0 to 2^31 - 1")
    edges = torch.from_numpy(np.ascontiguousarray(ends.T))
    weights = None if table.shape[1] == 2 else torch.from_numpy(table[:, 2].astype(np.float32))
    count = _checked_count(file, int(ends.max()) + 1, edges)
    if make_undirected and weights is not None:
        edges, weights = coalesce(edges, weights, num_nodes=count, reduce="sum")
        edges, weights = to_undirected(edges, weights, num_nodes=count, reduce="max")
    return _undirected(file, edges, weights, count, directed=False)


def _checked_count(file: Path, count: int, edges: Tensor) -> int:
    named = edges.unique().numel()
    if count > max(_SPARE_NODES, _SPARE_FACTOR * named):
        raise InvalidValueError(
            f"{str(file)!r} names {named:,} nodes but numbers them up to {count - 1:,}; renumber the nodes from 0"
        )
    return count


def _delimiter(file: Path) -> str | None:
    with file.open(encoding="utf-8-sig") as lines:
        first = next((line for line in lines if line.strip() and line[0] not in "#%"), "")
    return "," if "," in first else None


def _graphml(file: Path, make_undirected: bool) -> Data:
    graph = nx.read_graphml(file)
    number = {node: index for index, node in enumerate(graph.nodes)}
    edges = torch.tensor([(number[u], number[v]) for u, v in graph.edges()], dtype=torch.long).view(-1, 2).T
    given = [values.get("weight") for _, _, values in graph.edges(data=True)]
    weights = None
    if any(value is not None for value in given):
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
            raise InvalidValueError(f"{str(file)!r}: weight must be a number on every edge, or on none")
        weights = torch.tensor([float(value) for value in given])
    data = Data(edge_index=edges, num_nodes=len(number))
    if not len(number):
        raise InvalidValueError(f"{str(file)!r} holds a graph without nodes; give one with at least one")
    if make_undirected:
        if weights is not None:
            edges, weights = coalesce(edges, weights, num_nodes=len(number), reduce="sum")
            data = Data(edge_index=edges, edge_weight=weights, num_nodes=len(number))
        return _symmetrised(data)
    return _undirected(file, edges, weights, len(number), directed=graph.is_directed())


def _graph6(file: Path) -> list[Data]:
    reader = nx.from_sparse6_bytes if file.suffix.lower() == ".s6" else nx.from_graph6_bytes
    graphs = []
    for line, text in enumerate(file.read_bytes().splitlines(), start=1):
        if not text.strip():
            continue
        try:
            graph = reader(text.strip())
        except (nx.NetworkXError, ValueError, IndexError) as error:
            raise InvalidValueError(f"line {line} of {str(file)!r} is not {file.suffix[1:]}: {error}") from error
        if not len(graph):
            raise InvalidValueError(f"line {line} of {str(file)!r} is a graph without nodes; leave it out")
        edges = torch.tensor(list(graph.edges()), dtype=torch.long).view(-1, 2).T
        graphs.append(Data(edge_index=to_undirected(edges, num_nodes=len(graph)), num_nodes=len(graph)))
    return graphs


def _npz(file: Path) -> Data:
    if not zipfile.is_zipfile(file):
        raise InvalidValueError(f"{str(file)!r} cannot be read as npz: it is not an archive that numpy.savez wrote")
    with zipfile.ZipFile(file) as archive:
        if (size := sum(info.file_size for info in archive.infolist())) > 4 * _MOST_BYTES:
            raise InvalidValueError(f"{str(file)!r} unpacks to {size / 2**30:.1f} GiB; the limit is 8 GiB")
    arrays: dict[str, np.ndarray] = {}
    with np.load(file, allow_pickle=False) as content:
        for name in ("edge_index", "edge_weight", "num_nodes"):
            if name in content:
                try:
                    arrays[name] = content[name]
                except ValueError as error:
                    raise InvalidValueError(f"{str(file)!r}: {name} is no array of numbers ({error})") from error
        names = ", ".join(content.files)
    edges = arrays.get("edge_index")
    if edges is None:
        raise InvalidValueError(f"{str(file)!r} has no array edge_index; it holds {names}")
    if edges.dtype.kind not in "iu" or edges.ndim != 2 or edges.shape[0] != 2:
        raise InvalidValueError(
            f"{str(file)!r}: edge_index is {edges.dtype} of shape {edges.shape}; give integers of shape (2, E)"
        )
    edge_index = torch.from_numpy(edges.astype(np.int64))
    count = int(edges.max()) + 1 if edges.size else 0
    if (given := arrays.get("num_nodes")) is not None:
        if given.dtype.kind not in "iu" or given.size != 1 or not count <= int(given.reshape(())) < 2**31:
            raise InvalidValueError(f"{str(file)!r}: num_nodes must be one integer of at least {count}")
        count = int(given.reshape(()))
    else:
        count = _checked_count(file, count, edge_index)
    data = Data(edge_index=edge_index, num_nodes=count)
    if (weights := arrays.get("edge_weight")) is not None:
        if weights.dtype.kind not in "iuf" or weights.shape != edges.shape[1:]:
            raise InvalidValueError(
                f"{str(file)!r}: edge_weight is {weights.dtype} of shape {weights.shape}; give {edges.shape[1]} numbers"
            )
        data.edge_weight = torch.from_numpy(weights.astype(np.float32))
    return data


def _pyg(file: Path) -> list[Data]:
    try:
        with torch.serialization.safe_globals(_SAFE):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise InvalidStateError(
            f"{str(file)!r} is not a PyG Data, or a list of them, saved by torch.save; other classes are not read, "
            "since that could run code (of a Batch save batch.to_data_list())"
        ) from error
    graphs = list(content) if isinstance(content, list | tuple) else [content]
    if not all(isinstance(graph, Data) for graph in graphs):
        raise InvalidValueError(f"{str(file)!r} holds {type(content).__name__}, not PyG Data or a list of them")
    for index, graph in enumerate(graphs):
        edges = graph.edge_index
        if not isinstance(edges, Tensor) or edges.dtype != torch.long or edges.dim() != 2 or len(edges) != 2:
            raise InvalidTypeError(
                f"{str(file)!r}: graph {index} has no edge_index of int64 [2, E]; give every graph one"
            )
    return graphs


def _smiles(file: Path) -> list[Data]:
    from octavo_pearl_pe.molecules import molecule_graphs

    text = file.read_text(encoding="utf-8-sig")
    return molecule_graphs([line.split()[0] for line in text.splitlines() if line.strip()])


def _csv(file: Path, smiles_column: str, target: str | None) -> list[Data]:
    from octavo_pearl_pe.molecules import molecule_graphs

    # Spreadsheets write a byte order mark.
    with file.open(newline="", encoding="utf-8-sig") as lines:
        table = csv.DictReader(lines)
        names = list(table.fieldnames or ())
        for wanted in [smiles_column, *([] if target is None else [target])]:
            if wanted not in names:
                raise InvalidValueError(f"{str(file)!r} has no column {wanted!r}; its columns are {', '.join(names)}")
        rows = [(table.line_num, row) for row in table]
    number = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
    for line, row in rows:
        if not (row[smiles_column] or "").strip():
            raise InvalidValueError(f"line {line} of {str(file)!r} has nothing in the column {smiles_column!r}")
        if target is not None and not number.fullmatch(row[target] or ""):
            raise InvalidValueError(f"line {line} of {str(file)!r}: {target}={row[target]!r} is not a number")
    targets = None if target is None else [float(row[target]) for _, row in rows]
    return molecule_graphs([row[smiles_column].strip() for _, row in rows], targets)
