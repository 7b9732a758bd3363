"""Graphs in: validation, clean-up, and the graph shift operator (section 2 of the paper).

Rules, stated once: duplicate edges of an unweighted graph count once, those of a weighted graph are added up;
self-loops are removed with a warning for the Laplacian kinds; a directed graph is refused by the symmetric kinds unless
``make_undirected=True``, which takes the larger weight of the two directions. Nodes may come in any order: those of a
``batch`` vector that is not sorted are brought into the order of their graphs, and results back into the caller's.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from octavo_core.errors import InvalidTypeError, InvalidValueError
from scipy.sparse import coo_array
from torch import Tensor
from torch_geometric.data import Data

from octavo_pearl_pe.checks import GraphWarning, whole_number
from octavo_pearl_pe.sparse import SparseOperator

__all__ = ["GSO_KINDS", "GraphStructure", "gso", "read_data", "read_graph"]

GSO_KINDS = ("sym_lap", "lap", "sym_adj", "adj", "rw")
"""Shift operators: I - D^-1/2 A D^-1/2, D - A, D^-1/2 A D^-1/2, A, A D^-1."""

_LAPLACIANS = ("sym_lap", "lap")
# Graphs without nodes are allowed, as sampling leaves them, but not numbers that make every table huge.
_MOST_EMPTY_GRAPHS = 10**6
# Pairs from which on counting them in SciPy is faster than torch's sort.
_WORTH_COUNTING = 2**11


@dataclass(frozen=True)
class GraphStructure:
    """One graph, or several in block-diagonal form, checked and free of duplicate edges.

    Args:
        rows: Target of each edge; edges are sorted by target, then source.
        columns: Source of each edge.
        weights: Weight of each edge.
        batch: Graph of each node, sorted.
        sizes: Number of nodes of each graph.
        kind: Shift operator, one of ``GSO_KINDS``.
        symmetric: Whether every edge has its reverse with the same weight.
        order: The caller's number of each node; None if it is the node's own.
    """

    rows: Int[Tensor, " edges"]
    columns: Int[Tensor, " edges"]
    weights: Float[Tensor, " edges"]
    batch: Int[Tensor, " nodes"]
    sizes: Int[Tensor, " graphs"]
    kind: str
    symmetric: bool
    order: Int[Tensor, " nodes"] | None = None

    def arranged(self, values: Tensor) -> Tensor:
        """Bring one row per node from the caller's order into the order of this graph.

        Args:
            values: Rows in the caller's order.

        Returns:
            The rows in the order of the graphs.
        """
        return values if self.order is None else values[self.order]

    def restored(self, values: Tensor) -> Tensor:
        """Bring one row per node back into the caller's order.

        Args:
            values: Rows in the order of the graphs.

        Returns:
            The rows in the caller's order.
        """
        return values if self.order is None else values[self.order.argsort()]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return len(self.batch)

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.sizes)

    @cached_property
    def position(self) -> Int[Tensor, " nodes"]:
        """Number of each node within its graph."""
        starts = self.sizes.cumsum(0) - self.sizes
        return torch.arange(self.num_nodes, device=self.batch.device) - starts[self.batch]

    @cached_property
    def adjacency(self) -> SparseOperator:
        """The adjacency matrix."""
        return SparseOperator.from_sorted(
            self.rows, self.columns, self.weights, self.num_nodes, symmetric=self.symmetric
        )

    @cached_property
    def shift(self) -> SparseOperator:
        """The graph shift operator S."""
        rows, columns, weights, count = self.rows, self.columns, self.weights, self.num_nodes
        if self.kind == "adj":
            return self.adjacency
        # An edge (source column, target row): D holds the weight that leaves each node.
        degree = torch.zeros(count, dtype=weights.dtype, device=weights.device).index_add_(0, columns, weights)
        if self.kind == "rw":
            inverse = torch.where(degree > 0, degree.reciprocal(), 0.0)
            return SparseOperator.from_sorted(
                rows, columns, weights * inverse.index_select(0, columns), count, symmetric=False
            )
        if self.kind != "lap":
            scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
            weights = scale.index_select(0, rows) * weights * scale.index_select(0, columns)
        if self.kind == "sym_adj":
            return SparseOperator.from_sorted(rows, columns, weights, count, symmetric=True)
        diagonal = degree if self.kind == "lap" else torch.ones_like(degree)
        return _difference(diagonal, rows, columns, weights)


def gso(
    edge_index: Tensor | Any,
    edge_weight: Tensor | Any | None = None,
    num_nodes: int | Any | None = None,
    kind: str = "sym_lap",
    dtype: torch.dtype | None = None,
    *,
    make_undirected: bool = False,
) -> Tensor:
    """Build a graph shift operator as a sparse CSR matrix.

    Args:
        edge_index: Edges, int64 ``[2, E]``, sources in the first row.
        edge_weight: Weights ``[E]``, not negative except for ``kind="adj"``; 1 by default.
        num_nodes: N; by default one more than the largest node number.
        kind: One of ``GSO_KINDS``. An isolated node has a row of I in ``"sym_lap"`` and a row of 0 in ``"sym_adj"``.
        dtype: Type of the values; that of the weights, else float32.
        make_undirected: Add missing reverse edges instead of refusing a directed graph.

    Returns:
        ``torch.sparse_csr`` matrix ``[N, N]``.

    Raises:
        InvalidValueError: If the edges, weights, number of nodes or kind are not as above.
        InvalidTypeError: If ``edge_index`` is not int64 or the weights are not floating point.

    Source:
        Section 2 of the paper: S is any matrix with the sparsity of the graph.
    """
    graph = read_graph(
        edge_index, edge_weight, num_nodes=num_nodes, kind=kind, dtype=dtype, make_undirected=make_undirected
    )
    return graph.shift.matrix


def read_graph(
    edge_index: Tensor | Any,
    edge_weight: Tensor | Any | None = None,
    batch: Tensor | Any | None = None,
    num_nodes: int | Any | None = None,
    *,
    kind: str = "sym_lap",
    dtype: torch.dtype | None = None,
    make_undirected: bool = False,
) -> GraphStructure:
    """Check a graph, or a block-diagonal batch of graphs, and bring it into canonical form.

    Args:
        edge_index: Edges, int64 ``[2, E]``, sources in the first row.
        edge_weight: Weights ``[E]``; 1 by default. No gradient flows to them.
        batch: Graph of each node, int64 ``[N]``, from 0, in any order; one graph by default.
        num_nodes: N; by default the length of ``batch``, else one more than the largest node number.
        kind: Shift operator, one of ``GSO_KINDS``.
        dtype: Type of the values; that of the weights, else float32.
        make_undirected: Add missing reverse edges.

    Returns:
        The graph.

    Raises:
        InvalidValueError: If anything is out of range, inconsistent, or directed where it must not be.
        InvalidTypeError: If something is not a tensor, or of a wrong dtype.
    """
    if kind not in GSO_KINDS:
        raise InvalidValueError(f"unknown shift operator {kind!r}; give one of {', '.join(GSO_KINDS)}")
    _check_edges(edge_index)
    if batch is not None:
        _check_tensor("batch", batch)
    count = _node_count(edge_index, batch, num_nodes)
    _check_range(edge_index, count)
    several = batch is not None
    batch, sizes = _check_batch(batch, count, edge_index)
    weights = _check_weights(edge_weight, edge_index, kind, dtype)
    order = None
    if several and bool((batch.diff() < 0).any()):
        order = batch.argsort(stable=True)
        batch, edge_index = batch[order], order.argsort()[edge_index]
    columns, rows = edge_index
    if kind in _LAPLACIANS and bool((loops := rows == columns).any()):
        warnings.warn(
            f"{int(loops.sum())} self-loops were removed: a Laplacian has none (kind='adj' or 'sym_adj' keeps them)",
            GraphWarning,
            stacklevel=3,
        )
        rows, columns, weights = rows[~loops], columns[~loops], weights[~loops]
    rows, columns, weights = _merged(rows, columns, weights, count, "amax" if edge_weight is None else "sum")
    mirrored = _mirrored(rows, columns, weights, count)
    symmetric = mirrored is not None
    if mirrored is not None and mirrored is not weights:
        # Rounding has told the two directions apart; with their mean the operator is its own transpose.
        weights = (weights + mirrored) / 2
    if make_undirected and not symmetric:
        both = torch.cat([rows, columns]), torch.cat([columns, rows])
        rows, columns, weights = _merged(*both, torch.cat([weights, weights]), count, "amax")
        symmetric = True
    if not symmetric and kind != "rw":
        raise InvalidValueError(
            f"the graph is directed (an edge without its reverse of equal weight), but {kind!r} needs an undirected "
            "one; pass make_undirected=True (--make-undirected) or use gso='rw'"
        )
    return GraphStructure(rows, columns, weights, batch, sizes, kind, symmetric, order)


def read_data(
    data: Data | Any, *, kind: str = "sym_lap", dtype: torch.dtype | None = None, make_undirected: bool = False
) -> GraphStructure:
    """Check the structure of a PyG ``Data`` or ``Batch``: its edges, ``edge_weight``, ``batch`` and number of nodes.

    Args:
        data: The graph.
        kind: Shift operator, one of ``GSO_KINDS``.
        dtype: Type of the values.
        make_undirected: Add missing reverse edges.

    Returns:
        The graph.

    Raises:
        InvalidValueError: If there is no ``edge_index``, or as for ``read_graph``.
        InvalidTypeError: If ``data`` is something else.
    """
    if not isinstance(data, Data):
        raise InvalidTypeError(f"data is a {type(data).__name__}; give a PyG Data or Batch")
    if data.edge_index is None:
        raise InvalidValueError("data has no edge_index; give a graph with edges, or an empty [2, 0] tensor")
    return read_graph(
        data.edge_index,
        data.get("edge_weight"),
        data.get("batch"),
        data.num_nodes,
        kind=kind,
        dtype=dtype,
        make_undirected=make_undirected,
    )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InvalidTypeError(f"{name} is a {type(value).__name__}; give a tensor")
    if value.layout != torch.strided:
        raise InvalidTypeError(f"{name} is sparse ({value.layout}); give a dense tensor, edges as [2, E]")


def _check_edges(edge_index: Any) -> None:
    _check_tensor("edge_index", edge_index)
    if edge_index.dtype != torch.long:
        raise InvalidTypeError(f"edge_index has dtype {edge_index.dtype}; convert it with .long()")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise InvalidValueError(f"edge_index has shape {tuple(edge_index.shape)}; give [2, E], sources first")


def _node_count(edge_index: Tensor, batch: Tensor | None, num_nodes: Any) -> int:
    if num_nodes is None and batch is None and edge_index.shape[1] == 0:
        raise InvalidValueError("the graph has no edges, so its number of nodes is unknown; pass num_nodes")
    if num_nodes is None:
        num_nodes = len(batch) if batch is not None else int(edge_index.max()) + 1
    if isinstance(num_nodes, int) and num_nodes == 0:
        raise InvalidValueError("the graph has 0 nodes; give a graph with at least one")
    return whole_number("num_nodes", num_nodes)


def _check_range(edge_index: Tensor, count: int) -> None:
    if edge_index.shape[1] and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < count:
        low, high = int(edge_index.min()), int(edge_index.max())
        raise InvalidValueError(
            f"edge_index holds nodes from {low} to {high}; with {count} nodes give 0 to {count - 1}"
        )


def _check_batch(batch: Tensor | None, count: int, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    device = edge_index.device
    if batch is None:
        return torch.zeros(count, dtype=torch.long, device=device), torch.tensor([count], device=device)
    if batch.dtype != torch.long:
        raise InvalidTypeError(f"batch has dtype {batch.dtype}; convert it with .long()")
    if tuple(batch.shape) != (count,):
        raise InvalidValueError(f"batch has shape {tuple(batch.shape)}; give the graph of each of the {count} nodes")
    if batch.device != device:
        raise InvalidValueError(f"batch is on {batch.device} but edge_index on {device}; move them to one device")
    low, high = int(batch.min()), int(batch.max())
    if low < 0 or high >= count + _MOST_EMPTY_GRAPHS:
        raise InvalidValueError(
            f"batch holds graphs from {low} to {high} for {count} nodes; number the graphs from 0 without large gaps"
        )
    if bool((batch[edge_index[0]] != batch[edge_index[1]]).any()):
        raise InvalidValueError("an edge joins nodes of different graphs; check batch and edge_index")
    return batch, torch.bincount(batch)


def _check_weights(edge_weight: Any, edge_index: Tensor, kind: str, dtype: torch.dtype | None) -> Tensor:
    count = edge_index.shape[1]
    if edge_weight is None:
        return torch.ones(count, dtype=dtype or torch.float32, device=edge_index.device)
    _check_tensor("edge_weight", edge_weight)
    if not edge_weight.dtype.is_floating_point:
        raise InvalidTypeError(f"edge_weight has dtype {edge_weight.dtype}; convert it with .float()")
    if tuple(edge_weight.shape) != (count,):
        raise InvalidValueError(f"edge_weight has shape {tuple(edge_weight.shape)}; give one weight for {count} edges")
    if edge_weight.device != edge_index.device:
        raise InvalidValueError(
            f"edge_weight is on {edge_weight.device} but edge_index on {edge_index.device}; move them to one device"
        )
    if edge_weight.requires_grad:
        raise InvalidValueError("edge_weight requires a gradient, which the encoding does not give; pass .detach()")
    dtype = dtype or edge_weight.dtype
    largest = float(edge_weight.abs().max()) if count else 0.0
    if not math.isfinite(largest):
        raise InvalidValueError("edge_weight holds NaN or infinite values; give finite weights")
    if largest > (limit := torch.finfo(dtype).max ** 0.5):
        raise InvalidValueError(
            f"edge_weight holds values up to {largest:.2g}, whose products overflow {dtype}; rescale the weights below "
            f"{limit:.2g}"
        )
    if kind != "adj" and bool((edge_weight < 0).any()):
        raise InvalidValueError(
            f"edge_weight holds negative values, which {kind!r} does not allow; use PEARL(..., gso='adj')"
        )
    return edge_weight.to(dtype)


def _merged(rows: Tensor, columns: Tensor, weights: Tensor, count: int, reduce: str) -> tuple[Tensor, Tensor, Tensor]:
    """Sort by row, then column, and merge duplicates."""
    if _increasing(rows * count + columns):
        return rows, columns, weights
    order = _order(rows, columns, count)
    rows, columns, weights = (values.index_select(0, order) for values in (rows, columns, weights))
    keys = rows * count + columns
    if _increasing(keys):
        return rows, columns, weights
    unique, inverse = torch.unique_consecutive(keys, return_inverse=True)
    merged = torch.zeros(len(unique), dtype=weights.dtype, device=weights.device)
    merged = merged.scatter_reduce(0, inverse, weights, reduce, include_self=False)
    return unique // count, unique % count, merged


def _mirrored(rows: Tensor, columns: Tensor, weights: Tensor, count: int) -> Tensor | None:
    """Weights of the reverse edges, ``weights`` itself if they are equal; None for a directed graph."""
    order = _order(columns, rows, count)
    if not torch.equal(columns.index_select(0, order), rows) or not torch.equal(rows.index_select(0, order), columns):
        return None
    reverse = weights.index_select(0, order)
    if torch.equal(reverse, weights):
        return weights
    return reverse if torch.allclose(reverse, weights, rtol=1e-5, atol=0.0) else None


def _increasing(keys: Tensor) -> bool:
    return bool((keys[1:] > keys[:-1]).all())


def _order(major: Tensor, minor: Tensor, count: int) -> Tensor:
    """The order of pairs by the first number, then the second."""
    if major.device.type == "cpu" and len(major) >= _WORTH_COUNTING:
        # SciPy counts where torch sorts, in linear time. It adds up the numbers of duplicates, which are useless then.
        pairs = np.arange(len(major)), (major.numpy(), minor.numpy())
        numbers = coo_array(pairs, shape=(count, count)).tocsr().data
        if len(numbers) == len(major):
            return torch.from_numpy(numbers)
    return (major * count + minor).argsort()


def _difference(diagonal: Tensor, rows: Tensor, columns: Tensor, weights: Tensor) -> SparseOperator:
    """A diagonal minus sorted entries beside it; the places are counted, since sorting costs as much as a product."""
    count, entries = len(diagonal), len(rows)
    nodes = torch.arange(count, device=rows.device)
    right = columns > rows
    # Before an entry come the diagonal entries of the rows above, and its own row's if that is further left.
    beside = torch.arange(entries, device=rows.device) + rows + right
    on = torch.ones(entries + count, dtype=torch.bool, device=rows.device).index_fill_(0, beside, False)
    places = torch.cat([beside, on.nonzero()[:, 0]])

    def placed(first: Tensor, second: Tensor) -> Tensor:
        both = torch.cat([first, second])
        return torch.empty_like(both).scatter_(0, places, both)

    return SparseOperator.from_sorted(
        placed(rows, nodes), placed(columns, nodes), placed(-weights, diagonal), count, symmetric=True
    )
