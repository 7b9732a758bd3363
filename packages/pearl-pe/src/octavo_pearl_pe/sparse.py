"""Sparse operators applied along the node axis of tensors that carry a sample axis.

One CSR product serves all samples and channels at once: ``[N, m, C]`` is read as a matrix ``[N, m * C]``. Nothing of
size N x N is ever formed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

__all__ = ["Buffers", "SparseOperator", "apply_operator", "apply_operator_out", "keep_freed_memory"]

# Memory freed in blocks of up to this size is kept for the next ones, see ``keep_freed_memory``.
_KEPT_BYTES = 2**24
# Where ``embedding_bag``, a weighted sum of rows, is one to four times faster than the CSR product on a CPU with AVX2:
# wide rows of float32. It cannot write into a buffer, so its result must fit into the memory that is kept.
_BAG_WIDTH = 32


@cache
def keep_freed_memory() -> None:
    """Let malloc keep what is freed for the next tensors: faulting in fresh pages costs more than the products.

    glibc returns blocks to the system above a threshold, which it raises to the largest that was freed so far: freeing
    one that was never touched is enough, once a process. Other allocators do not mind.
    """
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)


class Buffers:
    """Memory that chunks of one pass without gradients reuse: faulting in fresh pages costs more than the products."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def take(self, owner: object, slot: int, shape: tuple[int, int], like: Tensor) -> Float[Tensor, "rows columns"]:
        """Hand out a matrix whose content is arbitrary, the same memory at every call.

        Args:
            owner: Who asks.
            slot: Number among the matrices of this owner.
            shape: Shape; at the first call the largest.
            like: A tensor of the dtype and device.

        Returns:
            The matrix.
        """
        key, size = (id(owner), slot), shape[0] * shape[1]
        kept = self._kept.get(key)
        if kept is None or len(kept) < size:
            kept = self._kept[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return kept[:size].view(shape)


@dataclass(frozen=True)
class SparseOperator:
    """A sparse N x N matrix, ready to be multiplied from the left and differentiated through.

    Args:
        matrix: ``torch.sparse_csr`` matrix, N x N.
        transpose: Its transpose; the same object where the matrix is symmetric.
        rows: Row of each stored entry, in the order of ``matrix``.
    """

    matrix: Tensor
    transpose: Tensor
    rows: Int[Tensor, " entries"]

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return self.matrix.shape[0]

    @classmethod
    def from_sorted(
        cls,
        rows: Int[Tensor, " entries"],
        columns: Int[Tensor, " entries"],
        values: Float[Tensor, " entries"],
        num_nodes: int,
        *,
        symmetric: bool,
    ) -> SparseOperator:
        """Build from entries sorted by row, then column, without duplicates.

        Args:
            rows: Row of each entry.
            columns: Column of each entry.
            values: Value of each entry.
            num_nodes: N.
            symmetric: Whether the matrix equals its transpose.

        Returns:
            The operator.
        """
        matrix = _csr(rows, columns, values, num_nodes)
        transpose = matrix
        if not symmetric:
            order = torch.argsort(columns, stable=True)
            transpose = _csr(columns[order], rows[order], values[order], num_nodes)
        return cls(matrix, transpose, rows)

    def transposed(self) -> SparseOperator:
        """Return the operator of the transpose; its ``rows`` are those of the transpose."""
        if self.transpose is self.matrix:
            return self
        counts = self.transpose.crow_indices().diff()
        rows = torch.repeat_interleave(torch.arange(self.num_nodes, device=self.rows.device), counts)
        return SparseOperator(self.transpose, self.matrix, rows)

    def restrict(self, nodes: Int[Tensor, " kept"]) -> SparseOperator:
        """Keep the rows and columns of some nodes, none of which is joined to a node left out.

        Args:
            nodes: Sorted node numbers; a union of whole connected components.

        Returns:
            The operator on the kept nodes, renumbered in their order.
        """
        number = torch.full((self.num_nodes,), -1, dtype=torch.long, device=nodes.device)
        number[nodes] = torch.arange(len(nodes), device=nodes.device)
        columns = self.matrix.col_indices()
        kept = number[self.rows] >= 0
        return SparseOperator.from_sorted(
            number[self.rows[kept]],
            number[columns[kept]],
            self.matrix.values()[kept],
            len(nodes),
            symmetric=self.transpose is self.matrix,
        )


def apply_operator(operator: SparseOperator, signal: Float[Tensor, "nodes ..."]) -> Float[Tensor, "nodes ..."]:
    """Multiply along the node axis, in the operator's precision, with gradients to the signal.

    Args:
        operator: The matrix.
        signal: N rows and any further axes (samples, channels).

    Returns:
        The product, in the signal's dtype.
    """
    precise = signal.to(operator.matrix.dtype)
    return _Product.apply(precise.reshape(len(signal), -1), operator).view_as(signal).to(signal.dtype)


def apply_operator_out(operator: SparseOperator, signal: Tensor, out: Tensor) -> Tensor:
    """Multiply without gradients, into a buffer where that is faster than fresh memory.

    Args:
        operator: The matrix, N x N.
        signal: Contiguous, N rows, of the operator's dtype.
        out: Contiguous buffer of the same shape, which may be overwritten.

    Returns:
        The product, in ``out`` or not.
    """
    flat = signal.view(len(signal), -1)
    return _product(operator.matrix, flat, out.view_as(flat)).view_as(signal)


class _Product(torch.autograd.Function):
    """CSR times dense; torch's own backward does not know that the transpose is at hand."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, operator: SparseOperator) -> Tensor:
        ctx.operator = operator
        with torch.autocast(dense.device.type, enabled=False):
            return _product(operator.matrix, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return _Product.apply(gradient.contiguous(), ctx.operator.transposed()), None


def _product(matrix: Tensor, dense: Tensor, out: Tensor | None = None) -> Tensor:
    """CSR times dense by the faster of torch's two kernels."""
    bag = dense.device.type == "cpu" and dense.dtype == torch.float32 and dense.shape[1] >= _BAG_WIDTH
    if bag and (out is None or dense.nbytes <= _KEPT_BYTES):
        pointers, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        return embedding_bag(columns, dense, pointers, mode="sum", per_sample_weights=values, include_last_offset=True)
    if out is None:
        return matrix @ dense
    return torch.addmm(out, matrix, dense, beta=0.0, out=out)


def _csr(rows: Tensor, columns: Tensor, values: Tensor, num_nodes: int) -> Tensor:
    # The CPU product takes 32-bit indices, and would convert wider ones at every call.
    index = torch.int32 if max(num_nodes, len(columns)) < 2**31 else torch.long
    pointers = torch.zeros(num_nodes + 1, dtype=index, device=rows.device)
    pointers[1:] = torch.bincount(rows, minlength=num_nodes).cumsum(0)
    columns = columns.to(index)
    with warnings.catch_warnings():
        # torch announces once a process that the layout is in beta.
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
        return torch.sparse_csr_tensor(
            pointers, columns, values, (num_nodes, num_nodes), dtype=values.dtype, check_invariants=False
        )
