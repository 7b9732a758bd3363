"""Weighted closed walks: diagonals of powers of a sparse operator, exactly and without a dense matrix."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidStateError, InvalidValueError
from scipy import sparse
from torch import Tensor

from octavo_pearl_pe.sparse import SparseOperator

__all__ = ["closed_walks", "operator_to_scipy"]

_MOST_ENTRIES = 2 * 10**8


def closed_walks(operator: SparseOperator, order: int) -> Float[Tensor, "nodes powers"]:
    """Compute ``(S^k)_vv`` for k = 0 to ``order``.

    Only powers up to half the order are formed: ``(S^(k+l))_vv = sum_u (S^k)_vu (S^l)_uv``. Their fill-in is the size
    of the neighbourhoods, so hubs are expensive.

    Args:
        operator: S.
        order: Highest power, at least 0.

    Returns:
        Diagonals in float64, on the operator's device; column k for power k.

    Raises:
        InvalidValueError: If the order is negative.
        InvalidStateError: If a power would need more than 2e8 entries.

    Source:
        Section 2, ``S^k``; the identity behind fact ``E[(S^k q)_v (S^l q)_v] = (S^(k+l))_vv`` for symmetric S.
    """
    if order < 0:
        raise InvalidValueError(f"order={order} is negative; give 0 or more")
    matrix = operator_to_scipy(operator.matrix)
    mirrored = matrix if operator.transpose is operator.matrix else matrix.T.tocsr()
    power = power_t = sparse.identity(matrix.shape[0], format="csr")
    columns = [np.ones(matrix.shape[0])]
    for step in range(1, order + 1):
        # Alternate the two factors, so that no power beyond half the order is formed.
        if step % 2:
            power = _product(power, matrix)
        else:
            power_t = power if mirrored is matrix else _product(power_t, mirrored)
        columns.append(np.asarray(power.multiply(power_t).sum(axis=1)).ravel())
    return torch.from_numpy(np.stack(columns, axis=1)).to(operator.matrix.device)


def _product(left: sparse.csr_matrix, right: sparse.csr_matrix) -> sparse.csr_matrix:
    per_column = np.diff(right.indptr)
    entries = int(per_column[left.indices].sum())
    if entries > _MOST_ENTRIES:
        raise InvalidStateError(
            f"the next power needs up to {entries:,} entries, the limit is {_MOST_ENTRIES:,}: the graph has hubs; use "
            "a lower order or fewer filter taps"
        )
    return (left @ right).tocsr()


def operator_to_scipy(matrix: Tensor) -> sparse.csr_matrix:
    """Copy a CSR matrix of torch to SciPy, in float64.

    Args:
        matrix: ``torch.sparse_csr`` matrix.

    Returns:
        The same matrix.
    """
    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    values, columns, pointers = (part.detach().cpu().numpy() for part in parts)
    return sparse.csr_matrix((values.astype(np.float64), columns, pointers), shape=tuple(matrix.shape))
