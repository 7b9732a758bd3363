"""Deducibility graphs: which claims a claim relies on."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from octavo_coherent_factuality._checks import array_of, floats_of, mask_of

if TYPE_CHECKING:
    import networkx

__all__ = ["DeducibilityGraph", "MatrixConvention", "Repair"]

MatrixConvention = Literal["row_depends_on_col", "col_depends_on_row"]
"""How a matrix is read; in the first one entry (j, i) = 1 says that claim j relies on claim i."""

# From this many claims on, and this many claims a level on average, array calls beat plain loops.
_WIDE_GRAPH, _WIDE_LEVEL = 4096, 32

Repair = Literal["error", "break", "chain"]
"""What to do with a cycle: raise, drop the forward edges on it, or fall back to a chain in which i relies on i - 1."""


class DeducibilityGraph:
    """A directed acyclic graph on the claims of an answer, stored by premises (CSR).

    Make one with :meth:`from_parents`, :meth:`from_matrix`, :meth:`from_edges`, :meth:`from_networkx`, :meth:`empty`,
    :meth:`chain` or :meth:`full`. A premise may stand before or after the claim that relies on it.

    Args:
        indptr: Row pointers: the premises of claim v are ``indices[indptr[v]:indptr[v + 1]]``.
        indices: Premises.
        dropped_edges: Pairs (claim, premise) that a repair removed.
        fallback: Whether the graph is a chain that stands for one that could not be used.

    Raises:
        InvalidValueError: If the pointers do not fit the premises, a premise is out of range, or the graph has a cycle.
        InvalidTypeError: If an index is not an integer.
    """

    def __init__(
        self,
        indptr: Int64[np.ndarray, " claims_and_one"],
        indices: Int64[np.ndarray, " edges"],
        *,
        dropped_edges: tuple[tuple[int, int], ...] = (),
        fallback: bool = False,
    ) -> None:
        # Copies: the arrays are made read-only, and the caller's own must not be.
        self.indptr, self.indices = _indices(indptr, "indptr").copy(), _indices(indices, "indices").copy()
        if not len(self.indptr) or self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise InvalidValueError(
                f"indptr {_shown(self.indptr)} does not point into {len(self.indices)} premises; start with 0 and end "
                "with their number, or use from_parents"
            )
        if (self.indptr[1:] < self.indptr[:-1]).any():
            raise InvalidValueError(f"indptr {_shown(self.indptr)} falls; give rising numbers, or use from_parents")
        _check_range(self.indices, self.num_claims)
        self.dropped_edges = dropped_edges
        self.fallback = fallback
        for array in (self.indptr, self.indices):
            array.setflags(write=False)
        self.topological_order  # noqa: B018 - a cycle is told when the graph is made, not when it is used

    @classmethod
    def from_parents(
        cls, parents: Iterable[Any], *, num_claims: int | None = None, repair: Repair = "error"
    ) -> DeducibilityGraph:
        """Make a graph from the premises of each claim.

        Args:
            parents: For each claim, the indices of the claims it relies on; repetitions count once.
            num_claims: Number of claims expected; checked if given.
            repair: What to do with a cycle.

        Returns:
            The graph.

        Raises:
            InvalidValueError: If an index is out of range, a claim relies on itself, or there is a cycle.
            InvalidTypeError: If a row is no list, or an index not an integer.
        """
        if isinstance(parents, str) or not isinstance(parents, Iterable):
            raise InvalidTypeError(f"parents={parents!r} is no list; give a list of indices for each claim")
        rows = []
        for row in parents:
            if isinstance(row, str) or not isinstance(row, Iterable):
                raise InvalidTypeError(f"the premises {row!r} are no list; give a list of indices for each claim")
            rows.append(list(row))
        if num_claims is not None and len(rows) != num_claims:
            raise InvalidValueError(f"parents has {len(rows)} rows for {num_claims} claims; give one list per claim")
        flat = [parent for row in rows for parent in row]
        for parent in flat:
            if isinstance(parent, bool) or not isinstance(parent, int | np.integer):
                raise InvalidTypeError(f"premise {parent!r} is not an index; give integers from 0 to {len(rows) - 1}")
            if not 0 <= parent < len(rows):
                raise InvalidValueError(
                    f"claim index {str(parent)[:30]} is out of range; there are {len(rows)} claims, from 0"
                )
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        children = np.repeat(np.arange(len(rows)), lengths)
        return cls.from_edges(len(rows), children, np.array(flat, np.int64), repair=repair)

    @classmethod
    def from_edges(cls, num_claims: int, claims: Any, premises: Any, *, repair: Repair = "error") -> DeducibilityGraph:
        """Make a graph from arrays of edges.

        Args:
            num_claims: Number of claims, at least 0.
            claims: (edges,) the claim that relies ...
            premises: (edges,) ... on this one.
            repair: What to do with a cycle.

        Returns:
            The graph.

        Raises:
            InvalidValueError: If an index is out of range, the arrays differ in length, a claim relies on itself, or
                there is a cycle.
            InvalidTypeError: If an index is not an integer.
        """
        _check_size(num_claims)
        _check_repair(repair)
        claims, premises = _indices(claims, "claims"), _indices(premises, "premises")
        if len(claims) != len(premises):
            raise InvalidValueError(
                f"{len(claims)} claims and {len(premises)} premises do not make edges; give arrays of the same length"
            )
        for array in (claims, premises):
            _check_range(array, num_claims)
        loops = np.flatnonzero(claims == premises)
        dropped: list[tuple[int, int]] = []
        if loops.size:
            if repair == "error":
                raise InvalidValueError(
                    f"claim {int(claims[loops[0]])} relies on itself; remove the edge or give repair='break'"
                )
            dropped = [(int(claims[loop]), int(premises[loop])) for loop in loops]
            claims, premises = np.delete(claims, loops), np.delete(premises, loops)
        # One integer per edge sorts several times faster than two columns.
        edges = claims * num_claims + premises
        if (edges[1:] <= edges[:-1]).any():
            edges = _sorted_unique(edges)
        claims, premises = np.divmod(edges, max(num_claims, 1))
        try:
            return cls(*_csr(num_claims, claims, premises), dropped_edges=tuple(dropped))
        except InvalidValueError:
            if repair == "error":
                raise
        if repair == "chain":
            return cls(*_csr(num_claims, np.arange(1, num_claims), np.arange(num_claims - 1)), fallback=True)
        # On a cycle some edge points forward; without those the rest of its component is ordered by index.
        matrix = csr_array((np.ones(len(claims)), (claims, premises)), shape=(num_claims, num_claims))
        _, component = connected_components(matrix, directed=True, connection="strong")
        on_cycle = (component[claims] == component[premises]) & (premises > claims)
        dropped += [(int(c), int(p)) for c, p in zip(claims[on_cycle], premises[on_cycle], strict=True)]
        return cls(*_csr(num_claims, claims[~on_cycle], premises[~on_cycle]), dropped_edges=tuple(dropped))

    @classmethod
    def from_matrix(
        cls, matrix: Any, *, convention: MatrixConvention = "row_depends_on_col", repair: Repair = "error"
    ) -> DeducibilityGraph:
        """Make a graph from a square 0/1 matrix with a zero diagonal.

        Args:
            matrix: Nested lists, an array, a tensor, a data frame or a scipy sparse matrix, (claims, claims).
            convention: Whether rows or columns are the claims that rely on others.
            repair: What to do with a cycle.

        Returns:
            The graph.

        Raises:
            InvalidValueError: If the matrix is not square, has an entry other than 0 and 1, or has a cycle.
        """
        if convention not in ("row_depends_on_col", "col_depends_on_row"):
            raise InvalidValueError(
                f"convention={convention!r} is unknown; give 'row_depends_on_col' or 'col_depends_on_row'"
            )
        if hasattr(matrix, "toarray"):
            matrix = matrix.toarray()
        elif hasattr(matrix, "__array__"):
            # Rows of a data frame are the names of its columns, those of numpy.matrix are matrices again.
            matrix = array_of(matrix)
        try:
            rows = [np.asarray(row) for row in matrix]
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"the matrix cannot be read: {error}; give rows of 0 and 1") from error
        for index, row in enumerate(rows):
            if row.ndim != 1 or len(row) != len(rows):
                raise InvalidValueError(
                    f"row {index} of the matrix has {row.size} entries and there are {len(rows)} rows; "
                    "give a square matrix"
                )
            if row.dtype.kind not in "biuf" or not np.isin(row, (0, 1)).all():
                raise InvalidValueError(f"row {index} of the matrix is {row.tolist()!r}; entries must be 0 or 1")
        square = np.array(rows, float).reshape(len(rows), len(rows))
        claims, premises = np.nonzero(square if convention == "row_depends_on_col" else square.T)
        return cls.from_edges(len(rows), claims, premises, repair=repair)

    @classmethod
    def from_networkx(cls, graph: Any, *, repair: Repair = "error") -> DeducibilityGraph:
        """Make a graph from a networkx one whose edges go from premise to claim.

        Args:
            graph: Directed graph; its nodes are numbered in their order.
            repair: What to do with a cycle.

        Returns:
            The graph.

        Raises:
            InvalidTypeError: If it is not directed, or may have several edges between two nodes.
        """
        if not hasattr(graph, "is_directed") or not graph.is_directed() or graph.is_multigraph():
            raise InvalidTypeError(
                f"a {type(graph).__name__} says not which claim relies on which; give a networkx.DiGraph with edges "
                "from premise to claim"
            )
        index = {node: position for position, node in enumerate(graph.nodes)}
        edges = [(index[claim], index[premise]) for premise, claim in graph.edges]
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        return cls.from_edges(len(index), pairs[:, 0], pairs[:, 1], repair=repair)

    @classmethod
    def empty(cls, num_claims: int) -> DeducibilityGraph:
        """Make a graph without edges, in which every claim stands alone.

        Args:
            num_claims: Number of claims, at least 0.

        Returns:
            The graph.

        Raises:
            InvalidValueError: If the number is negative.
        """
        _check_size(num_claims)
        return cls(np.zeros(num_claims + 1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def chain(cls, num_claims: int) -> DeducibilityGraph:
        """Make a graph in which claim i relies on claim i - 1.

        Args:
            num_claims: Number of claims.

        Returns:
            The graph.
        """
        _check_size(num_claims)
        later = np.arange(1, num_claims)
        return cls(*_csr(num_claims, later, later - 1))

    @classmethod
    def full(cls, num_claims: int) -> DeducibilityGraph:
        """Make a graph in which each claim relies on all before it.

        Args:
            num_claims: Number of claims.

        Returns:
            The graph.
        """
        _check_size(num_claims)
        claims, premises = np.tril_indices(num_claims, -1)
        return cls(*_csr(num_claims, claims.astype(np.int64), premises.astype(np.int64)))

    @classmethod
    def union(cls, graphs: Sequence[DeducibilityGraph], *, repair: Repair = "error") -> DeducibilityGraph:
        """Join graphs on the same claims: a subset is ancestor-closed in the union iff it is in every one.

        Args:
            graphs: One or more graphs with the same number of claims, e.g. several proposals of a model.
            repair: What to do with a cycle between them.

        Returns:
            The graph.

        Raises:
            InvalidValueError: If there is none, or they differ in size.
        """
        sizes = {graph.num_claims for graph in graphs}
        if len(sizes) != 1:
            raise InvalidValueError(f"cannot join graphs with {sorted(sizes)} claims; give graphs on the same claims")
        claims = np.concatenate([graph.edge_claims for graph in graphs])
        premises = np.concatenate([graph.indices for graph in graphs])
        return cls.from_edges(sizes.pop(), claims, premises, repair=repair)

    @property
    def num_claims(self) -> int:
        """Number of claims."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @cached_property
    def edge_claims(self) -> Int64[np.ndarray, " edges"]:
        """The relying claim of each edge, in the order of ``indices``."""
        return np.repeat(np.arange(self.num_claims), np.diff(self.indptr))

    @cached_property
    def child_lists(self) -> tuple[Int64[np.ndarray, " claims_and_one"], Int64[np.ndarray, " edges"]]:
        """Row pointers and claims of the reversed graph: who relies directly on a claim."""
        if self.num_edges < _WIDE_GRAPH:
            edges = np.sort(self.indices * self.num_claims + self.edge_claims)
            return _pointers(self.num_claims, self.indices), edges % max(self.num_claims, 1)
        # Counting instead of sorting: linear in the number of edges.
        shape = (self.num_claims, self.num_claims)
        columns = csr_array((np.ones(self.num_edges, np.int8), self.indices, self.indptr), shape=shape).tocsc()
        return columns.indptr.astype(np.int64), columns.indices.astype(np.int64)

    def parents(self, claim: int) -> list[int]:
        """Return the direct premises of a claim, in rising order.

        Args:
            claim: Index of the claim.

        Raises:
            InvalidValueError: If there is no such claim.
        """
        self._check_claim(claim)
        return self.indices[self.indptr[claim] : self.indptr[claim + 1]].tolist()

    def children(self, claim: int) -> list[int]:
        """Return the claims that rely directly on a claim, in rising order.

        Args:
            claim: Index of the claim.

        Raises:
            InvalidValueError: If there is no such claim.
        """
        self._check_claim(claim)
        indptr, claims = self.child_lists
        return claims[indptr[claim] : indptr[claim + 1]].tolist()

    def _check_claim(self, claim: int) -> None:
        # A negative index would give an empty slice.
        if not 0 <= claim < self.num_claims:
            raise InvalidValueError(f"claim index {claim} is out of range; there are {self.num_claims} claims, from 0")

    @cached_property
    def topological_order(self) -> Int64[np.ndarray, " claims"]:
        """An order in which premises stand before what relies on them; the given one where it is such."""
        if (self.indices < self.edge_claims).all():
            return np.arange(self.num_claims)
        if self._levels is not None:
            return self._levels.claims
        # Kahn's algorithm: sequential by nature (a chain has as many rounds as claims), so plain lists beat arrays.
        indptr, claims = (array.tolist() for array in self.child_lists)
        missing = np.diff(self.indptr).tolist()
        order = [claim for claim, count in enumerate(missing) if count == 0]
        for claim in order:
            for child in claims[indptr[claim] : indptr[claim + 1]]:
                missing[child] -= 1
                if missing[child] == 0:
                    order.append(child)
        if len(order) < self.num_claims:
            raise InvalidValueError(
                f"the claims {self._cycle(missing)} rely on each other in a circle; mend the graph, or give "
                "repair='break' to drop the forward edges on cycles or repair='chain' to fall back to a chain"
            )
        return np.array(order, np.int64)

    @cached_property
    def _levels(self) -> _Levels | None:
        """Kahn's algorithm level by level, for large graphs whose levels are wide enough for array calls to pay."""
        if self.num_claims < _WIDE_GRAPH:
            return None
        indptr, claims = self.child_lists
        missing = np.diff(self.indptr)
        frontier = np.flatnonzero(missing == 0)
        levels: list[np.ndarray] = []
        found = 0
        while frontier.size:
            levels.append(frontier)
            found += frontier.size
            if len(levels) > 64 and found < _WIDE_LEVEL * len(levels):
                return None
            children = claims[_ranges(indptr[frontier], indptr[frontier + 1])]
            np.subtract.at(missing, children, 1)
            frontier = _sorted_unique(children[missing[children] == 0])
        if found < self.num_claims:
            return None
        order = np.concatenate(levels)
        edges = _ranges(self.indptr[order], self.indptr[order + 1])
        counts = np.diff(self.indptr)[order]
        return _Levels(
            order,
            np.r_[0, np.cumsum([len(level) for level in levels])],
            self.indices[edges],
            np.r_[0, np.cumsum(counts)],
        )

    def _cycle(self, missing: list[int]) -> list[int]:
        """Walk premises that were never reached until one repeats."""
        claim = next(claim for claim, count in enumerate(missing) if count > 0)
        seen: dict[int, int] = {}
        while claim not in seen:
            seen[claim] = len(seen)
            claim = next(parent for parent in self.parents(claim) if missing[parent] > 0)
        return [other for other, position in seen.items() if position >= seen[claim]][::-1]

    def ancestors(self, claim: int) -> set[int]:
        """Return all claims that a claim relies on, directly or not.

        Args:
            claim: Index of the claim.

        Raises:
            InvalidValueError: If there is no such claim.
        """
        return _reachable(claim, self.parents)

    def descendants(self, claim: int) -> set[int]:
        """Return all claims that rely on a claim, directly or not.

        Args:
            claim: Index of the claim.

        Raises:
            InvalidValueError: If there is no such claim.
        """
        return _reachable(claim, self.children)

    def running_max(self, values: Float64[np.ndarray, " claims"]) -> Float64[np.ndarray, " claims"]:
        """Largest value among a claim and its ancestors, in O(claims + edges).

        Args:
            values: One number per claim.

        Returns:
            The maxima.

        Raises:
            InvalidValueError: If there are more or fewer values than claims.
            InvalidTypeError: If they are no numbers.
        """
        values = floats_of(values, "values")
        if values.shape != (self.num_claims,):
            raise InvalidValueError(
                f"values have shape {values.shape} for {self.num_claims} claims; give one number per claim"
            )
        if self._levels is not None:
            return self._levels.running_max(values)
        # One sequential pass: small or deep graphs would pay one array call per level, as many as claims in a chain.
        indptr, indices = self.indptr.tolist(), self.indices.tolist()
        result = values.tolist()
        for claim in self.topological_order.tolist():
            highest = result[claim]
            for parent in indices[indptr[claim] : indptr[claim + 1]]:
                if result[parent] > highest:
                    highest = result[parent]
            result[claim] = highest
        return np.array(result, np.float64)

    def depth(self) -> Int64[np.ndarray, " claims"]:
        """Return the number of edges on the longest path that leads to each claim."""
        depth = [0] * self.num_claims
        for claim in self.topological_order.tolist():
            depth[claim] = max((depth[parent] + 1 for parent in self.parents(claim)), default=0)
        return np.array(depth, np.int64)

    def is_ancestor_closed(self, kept: Bool[np.ndarray, " claims"]) -> bool:
        """Tell whether every kept claim has all its premises kept.

        Args:
            kept: Mask of the kept claims.

        Returns:
            Whether the set is ancestor-closed.

        Raises:
            InvalidValueError: If the mask has another length than the claims.
            InvalidTypeError: If it holds other than truth values.
        """
        kept = mask_of(kept, self.num_claims)
        return not bool((kept[self.edge_claims] & ~kept[self.indices]).any())

    def largest_closed_subset(self, kept: Bool[np.ndarray, " claims"]) -> Bool[np.ndarray, " claims"]:
        """Drop the claims of which a premise, direct or not, is missing.

        Args:
            kept: Mask of the kept claims.

        Returns:
            Mask of the claims whose ancestors are all kept.

        Raises:
            InvalidValueError: If the mask has another length than the claims.
            InvalidTypeError: If it holds other than truth values.
        """
        return self.running_max((~mask_of(kept, self.num_claims)).astype(np.float64)) == 0.0

    def permuted(self, order: Sequence[int]) -> DeducibilityGraph:
        """Renumber the claims.

        Args:
            order: The old index of each new claim.

        Returns:
            The same graph under the new numbers.

        Raises:
            InvalidValueError: If an index is missing, repeated or out of range.
        """
        if sorted(order) != list(range(self.num_claims)):
            raise InvalidValueError(
                f"order {list(order)} is no order of {self.num_claims} claims; give each index once"
            )
        new = np.empty(self.num_claims, np.int64)
        new[np.asarray(order, np.int64)] = np.arange(self.num_claims)
        return type(self).from_edges(self.num_claims, new[self.edge_claims], new[self.indices])

    def to_parents(self) -> list[list[int]]:
        """Return the premises of each claim."""
        return [self.parents(claim) for claim in range(self.num_claims)]

    def to_matrix(self) -> Int64[np.ndarray, "claims claims"]:
        """Return the 0/1 matrix in which row j, column i says that claim j relies on claim i."""
        matrix = np.zeros((self.num_claims, self.num_claims), np.int64)
        matrix[self.edge_claims, self.indices] = 1
        return matrix

    def to_networkx(self) -> networkx.DiGraph:
        """Return a networkx graph with edges from premise to claim."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(range(self.num_claims))
        graph.add_edges_from(zip(self.indices.tolist(), self.edge_claims.tolist(), strict=True))
        return graph

    def to_pyg(self) -> Any:
        """Return a PyTorch Geometric ``Data`` with edges from premise to claim.

        Raises:
            MissingDependencyError: If torch-geometric is not installed.
        """
        try:
            data = importlib.import_module("torch_geometric.data")
        except ImportError as error:
            raise MissingDependencyError.for_extra("torch_geometric", "octavo-coherent-factuality", "pyg") from error
        import torch

        edges = torch.tensor(np.stack([self.indices, self.edge_claims]))
        return data.Data(edge_index=edges, num_nodes=self.num_claims)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DeducibilityGraph)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    def __hash__(self) -> int:
        return hash((self.indptr.tobytes(), self.indices.tobytes()))

    def __repr__(self) -> str:
        return f"DeducibilityGraph(num_claims={self.num_claims}, num_edges={self.num_edges})"


@dataclass(frozen=True, eq=False)
class _Levels:
    """Claims by depth, with their premises in the same order."""

    claims: np.ndarray
    level_ends: np.ndarray
    premises: np.ndarray
    edge_ends: np.ndarray

    def running_max(self, values: np.ndarray) -> np.ndarray:
        result = np.array(values, np.float64)
        bounds = self.level_ends.tolist()
        for start, stop in itertools.pairwise(bounds[1:]):
            claims = self.claims[start:stop]
            edges = self.edge_ends[start : stop + 1]
            above = np.maximum.reduceat(result[self.premises[edges[0] : edges[-1]]], edges[:-1] - edges[0])
            result[claims] = np.maximum(result[claims], above)
        return result


def _sorted_unique(values: np.ndarray) -> np.ndarray:
    # np.unique hashes integers, which takes several times as long as sorting them.
    ordered = np.sort(values)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if ordered.size else ordered


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenate the ranges from each start to its stop."""
    counts = stops - starts
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(starts - ends + counts, counts)


def _check_repair(repair: object) -> None:
    if repair not in ("error", "break", "chain"):
        raise InvalidValueError(f"repair={repair!r} is unknown; give 'error', 'break' or 'chain'")


def _check_size(num_claims: object) -> None:
    if isinstance(num_claims, bool) or not isinstance(num_claims, int | np.integer) or num_claims < 0:
        raise InvalidValueError(f"num_claims={num_claims!r} is out of range; give a whole number from 0 on")


def _check_range(indices: np.ndarray, num_claims: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= num_claims):
        wrong = int(indices[(indices < 0) | (indices >= num_claims)][0])
        raise InvalidValueError(f"claim index {wrong} is out of range; there are {num_claims} claims, from 0")


def _shown(array: np.ndarray) -> str:
    return np.array2string(array, threshold=10, edgeitems=3)


def _indices(values: Any, name: str) -> np.ndarray:
    array = array_of(values)
    if array.ndim != 1:
        raise InvalidValueError(f"{name} has shape {array.shape}; give a list of indices, e.g. one index per edge")
    if array.size and array.dtype.kind not in "iu":
        raise InvalidTypeError(f"{name} holds {array.dtype} values; give integers")
    return array.astype(np.int64)


def _pointers(num_claims: int, sorted_or_not: np.ndarray) -> np.ndarray:
    return np.r_[0, np.cumsum(np.bincount(sorted_or_not, minlength=num_claims))].astype(np.int64)


def _csr(num_claims: int, claims: np.ndarray, premises: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _pointers(num_claims, claims), np.ascontiguousarray(premises, np.int64)


def _reachable(start: int, neighbours: Any) -> set[int]:
    found: set[int] = set()
    pending = [start]
    while pending:
        for other in neighbours(pending.pop()):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found
