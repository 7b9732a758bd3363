"""Eigenvectors of the shift operator for batches of graphs, and the Laplacian eigenvector encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidStateError, InvalidValueError
from scipy import sparse
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.graph import GraphStructure, read_data
from octavo_pearl_pe.noise import training_generator

__all__ = ["LapPE", "Spectrum", "spectrum"]

# Up to this many nodes, or wherever most of the spectrum is wanted, dense eigh is faster than ARPACK.
_DENSE_NODES = 400


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of every graph of a batch, padded with zeros to the same number.

    Args:
        vectors: Eigenvectors, a column each, ``[N, k]``.
        values: Eigenvalues, ``[G, k]``, in rising order.
        mask: Which eigenpairs exist, ``[G, k]``.
    """

    vectors: Float[Tensor, "nodes pairs"]
    values: Float[Tensor, "graphs pairs"]
    mask: Bool[Tensor, "graphs pairs"]


def spectrum(graph: GraphStructure, count: int | None = None, *, largest: bool = False, skip: int = 0) -> Spectrum:
    """Compute eigenpairs of the shift operator of each graph.

    Small graphs are decomposed in dense batches of equal size, large ones by ARPACK.

    Args:
        graph: The graphs; their shift operator is symmetric.
        count: k, at least 1; all if None.
        largest: Take the largest eigenvalues instead of the smallest.
        skip: Leave out this many from that end.

    Returns:
        The eigenpairs, in the graph's dtype, computed in float64.

    Raises:
        InvalidValueError: If ``count`` is below 1 or the operator is not symmetric.
        InvalidStateError: If ARPACK does not converge.
    """
    if (count is not None and count < 1) or graph.kind == "rw":
        raise InvalidValueError(f"{count} eigenvectors of {graph.kind!r}: give count >= 1 and a symmetric kind")
    longest = int(graph.sizes.max())
    width = max(1, longest - skip) if count is None else count
    vectors = torch.zeros(graph.num_nodes, width, dtype=torch.float64)
    values = torch.zeros(graph.num_graphs, width, dtype=torch.float64)
    sizes, batch = graph.sizes.cpu(), graph.batch.cpu()
    rows, columns = graph.shift.rows.cpu(), graph.shift.matrix.col_indices().cpu()
    entries, position = graph.shift.matrix.values().cpu().double(), graph.position.cpu()
    for size in sizes.unique().tolist():
        members = (sizes == size).nonzero()[:, 0]
        number = torch.full((len(sizes),), -1)
        number[members] = torch.arange(len(members))
        kept = number[batch[rows]] >= 0
        place = number[batch[rows[kept]]], position[rows[kept]], position[columns[kept]]
        wanted = max(0, min(width, size - skip))
        if size == 0 or wanted == 0:
            continue
        if size <= _DENSE_NODES or wanted + skip > size // 2:
            dense = torch.zeros(len(members), size, size, dtype=torch.float64)
            dense[place] = entries[kept]
            lam, vec = torch.linalg.eigh(dense)
        else:
            pairs = [
                _arpack(place, entries[kept], index, size, wanted + skip, largest) for index in range(len(members))
            ]
            lam, vec = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
        first = lam.shape[1] - skip - wanted if largest else skip
        nodes = (sizes[batch] == size).nonzero()[:, 0]
        vectors[nodes, :wanted] = vec[:, :, first : first + wanted].reshape(-1, wanted)
        values[members, :wanted] = lam[:, first : first + wanted]
    mask = torch.arange(width) < (sizes - skip)[:, None]
    device, dtype = graph.batch.device, graph.weights.dtype
    return Spectrum(vectors.to(device, dtype), values.to(device, dtype), mask.to(device))


def _arpack(
    place: tuple[Tensor, Tensor, Tensor], entries: Tensor, index: int, size: int, count: int, largest: bool
) -> tuple[Tensor, Tensor]:
    of_graph = place[0] == index
    coordinates = place[1][of_graph].numpy(), place[2][of_graph].numpy()
    matrix = sparse.csr_matrix((entries[of_graph].numpy(), coordinates), shape=(size, size))
    start = np.random.default_rng(0).standard_normal(size)
    try:
        lam, vec = eigsh(matrix, k=count, which="LA" if largest else "SA", v0=start)
    except ArpackError as error:
        raise InvalidStateError(
            f"ARPACK found no {count} eigenvectors of a graph of {size:,} nodes: {error}"
        ) from error
    order = np.argsort(lam)
    return torch.from_numpy(lam[order].copy()), torch.from_numpy(vec[:, order].copy())


class LapPE(nn.Module):
    """Laplacian eigenvectors with random signs in training.

    One eigenvector of the lowest eigenvalue is dropped; graphs with fewer than k others are padded with zeros. There is
    no invariance beyond the sign augmentation: with repeated eigenvalues the vectors are arbitrary.

    Args:
        count: k, at least 1.
        with_values: Append the k eigenvalues to every node.
        seed: Seed of the signs.

    Raises:
        InvalidValueError: If ``count`` is below 1.
    """

    draws: Tensor
    like: Tensor

    def __init__(self, count: int | Any, *, with_values: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.count, self.with_values, self.seed = whole_number("count", count), with_values, seed
        self.out_channels = count * (2 if with_values else 1)
        self.register_buffer("draws", torch.tensor(0))
        # Without weights, this is what follows .double() and .to().
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Encode a graph or a batch.

        Args:
            data: The graph.

        Returns:
            The eigenvectors, in the dtype of the module.
        """
        graph = read_data(data, dtype=torch.float64)
        found = spectrum(graph, self.count, skip=1)
        vectors = found.vectors
        if self.training:
            generator = training_generator(self.seed, int(self.draws), torch.device("cpu"))
            self.draws += 1
            signs = torch.randint(2, found.values.shape, generator=generator) * 2.0 - 1.0
            vectors = vectors * signs.to(vectors)[graph.batch]
        pe = torch.cat([vectors, found.values[graph.batch]], dim=1) if self.with_values else vectors
        return graph.restored(pe.to(self.like.dtype))
