"""The input signals of a pass, made column by column: random ones, the standard basis of each graph, or a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_pearl_pe.graph import GraphStructure

__all__ = ["InputSignals"]


@dataclass(frozen=True)
class InputSignals:
    """Inputs of all graphs of a batch.

    Graph i with basis inputs owns the first n_i columns; the rest of its columns is padding. The columns of a chunk are
    made when they are asked for, so that the standard basis never takes N x N memory.

    Args:
        graph: The graphs.
        width: Number of columns.
        basis: For each graph, whether it has basis inputs.
        values: Random inputs, where there are any.
        scaled: Whether basis vectors are multiplied by sqrt(n), to have the second moments of random inputs.
    """

    graph: GraphStructure
    width: int
    basis: Bool[Tensor, " graphs"]
    values: Float[Tensor, "nodes samples"] | None = None
    scaled: bool = False

    @classmethod
    def given(cls, q: Tensor | Any, graph: GraphStructure, dtype: torch.dtype) -> InputSignals:
        """Use the caller's inputs.

        Args:
            q: Inputs, ``[N, M]``, rows in the caller's order.
            graph: The graphs.
            dtype: Type of the encoder.

        Returns:
            The signals.

        Raises:
            InvalidValueError: If the shape or device is wrong or a value is not finite.
            InvalidTypeError: If it is no tensor, or of another dtype than the encoder's.
        """
        if not isinstance(q, Tensor) or q.layout != torch.strided:
            shown = q.layout if isinstance(q, Tensor) else type(q).__name__
            raise InvalidTypeError(f"q is a {shown}; give a dense tensor [N, M]")
        if q.dim() != 2 or q.shape[0] != graph.num_nodes or q.shape[1] < 1:
            raise InvalidValueError(f"q has shape {tuple(q.shape)}; give [{graph.num_nodes}, M] with M >= 1")
        if q.dtype != dtype:
            raise InvalidTypeError(f"q has dtype {q.dtype} but the encoder {dtype}; convert one of them")
        if q.device != graph.batch.device:
            raise InvalidValueError(
                f"q is on {q.device} but the graph on {graph.batch.device}; move them to one device"
            )
        if not bool(q.isfinite().all()):
            raise InvalidValueError("q holds NaN or infinite values; give finite inputs")
        return cls.random_only(graph.arranged(q), graph)

    @classmethod
    def random_only(cls, q: Tensor, graph: GraphStructure) -> InputSignals:
        """Use random inputs for every graph.

        Args:
            q: Inputs, ``[N, M]``.
            graph: The graphs.

        Returns:
            The signals.
        """
        return cls(graph, q.shape[1], torch.zeros_like(graph.sizes, dtype=torch.bool), q)

    @classmethod
    def mixed(cls, q: Tensor, graph: GraphStructure, limit: int) -> InputSignals:
        """Use scaled basis inputs for small graphs and random inputs for others, the automatic variant.

        Args:
            q: Inputs, ``[N, M]``.
            graph: The graphs.
            limit: Largest number of nodes of a graph with basis inputs, at most M.

        Returns:
            The signals.
        """
        basis = graph.sizes <= limit
        width = int(graph.sizes.max()) if bool(basis.all()) else q.shape[1]
        return cls(graph, width, basis, q[:, :width], scaled=True)

    @classmethod
    def standard_basis(cls, graph: GraphStructure, limit: int, *, force: bool, width: int) -> InputSignals:
        """Use e_1, ..., e_n for every graph.

        Args:
            graph: The graphs.
            limit: Largest number of nodes of a graph.
            force: Ignore the limit.
            width: Hidden channels, for the estimate in the message.

        Returns:
            The signals.

        Raises:
            InvalidValueError: If a graph is larger than the limit.
        """
        largest = int(graph.sizes.max())
        if largest > limit and not force:
            gigabytes = float((graph.sizes.double() ** 2).sum()) * width * graph.weights.element_size() / 2**30
            raise InvalidValueError(
                f"basis inputs for a graph of {largest:,} nodes mean {gigabytes:,.1f} GiB a layer (less in "
                f"chunks, for the same work); the limit is {limit:,} nodes: use the random variant or force=True"
            )
        return cls(graph, largest, torch.ones_like(graph.sizes, dtype=torch.bool))

    def columns(self, start: int, stop: int) -> tuple[Float[Tensor, "nodes chunk"], Bool[Tensor, "nodes chunk"] | None]:
        """Make the columns of a chunk.

        Args:
            start: First column.
            stop: One past the last.

        Returns:
            The inputs, and the mask of those that are not padding (None if there is no padding).
        """
        graph = self.graph
        if self.values is not None and not self.scaled:
            return self.values[:, start:stop], None
        numbers = torch.arange(start, stop, device=graph.batch.device)
        ones = (graph.position[:, None] == numbers).to(graph.weights.dtype)
        sizes = graph.sizes[graph.batch][:, None]
        mask = numbers < sizes
        if self.values is not None:
            basis = self.basis[graph.batch][:, None]
            ones = torch.where(basis, ones * sizes.sqrt().to(ones.dtype), self.values[:, start:stop])
            mask = mask | ~basis
        return ones, None if bool(mask.all()) else mask
