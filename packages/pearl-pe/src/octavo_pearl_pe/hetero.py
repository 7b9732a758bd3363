"""Encodings of heterogeneous and sampled graphs: one homogeneous numbering in, one encoding per node type out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.utils import coalesce, to_undirected

from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.inject import PEInjector

__all__ = ["HeteroPEARL", "HomogeneousGraph", "to_homogeneous"]


@dataclass(frozen=True)
class HomogeneousGraph:
    """The nodes and edges of all types in one numbering.

    Args:
        edge_index: Edges in both directions.
        edge_weight: Their weights; None if no edge type has any.
        batch: Graph of each node, sorted.
        nodes: For each type the numbers of its nodes.
    """

    edge_index: Int[Tensor, "2 edges"]
    edge_weight: Float[Tensor, " edges"] | None
    batch: Int[Tensor, " nodes"]
    nodes: dict[str, Tensor]


def to_homogeneous(data: HeteroData | Any) -> HomogeneousGraph:
    """Number the nodes of all types together and join the edges of all types, symmetrised and without duplicates.

    Weights are read from ``edge_weight`` of each edge type; types without it weigh 1 where another type has it.
    Parallel edges of one direction add up, and the larger of the two directions counts, so that reverse edge types do
    not double.

    Args:
        data: A heterogeneous graph, a sampled subgraph, or a batch of them.

    Returns:
        The graph.

    Raises:
        InvalidTypeError: If ``data`` is not a HeteroData, or edges or weights are no tensors of the right dtype.
        InvalidValueError: If there are no edges, they lead beyond the nodes of their types, or weights do not fit them.
    """
    if not isinstance(data, HeteroData):
        raise InvalidTypeError(f"data is a {type(data).__name__}; give a HeteroData, or encode it with PEARL")
    types = data.node_types
    counts = [data[kind].num_nodes or 0 for kind in types]
    offsets = dict(zip(types, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
    edges, given = [], []
    for (source, relation, target), store in zip(data.edge_types, data.edge_stores, strict=True):
        if store.get("edge_index") is None:
            continue
        index = store.edge_index
        name = f"edge_index of {(source, relation, target)}"
        _check_index(name, index, (data[source].num_nodes or 0, data[target].num_nodes or 0))
        edges.append(torch.stack([index[0] + offsets[source], index[1] + offsets[target]]))
        given.append(_checked_weight(store.get("edge_weight"), index, name))
    if not edges or not sum(edge.shape[1] for edge in edges):
        raise InvalidValueError("the HeteroData has no edges, so there is no structure to encode; add edge types")
    joined = torch.cat(edges, dim=1)
    device = joined.device
    batch = torch.cat(
        [
            data[kind].batch if data[kind].get("batch") is not None else torch.zeros(n, dtype=torch.long, device=device)
            for kind, n in zip(types, counts, strict=True)
        ]
    )
    # Graph by graph, types in order within each, as a block-diagonal batch must be.
    order = torch.argsort(batch, stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=device)
    joined = number[joined]
    kept = joined[0] != joined[1]
    weights = _joined_weights(edges, given)
    nodes = {kind: number[offsets[kind] : offsets[kind] + n] for kind, n in zip(types, counts, strict=True)}
    joined, count = joined[:, kept], len(order)
    if weights is None:
        return HomogeneousGraph(to_undirected(joined, num_nodes=count), None, batch[order], nodes)
    joined, weights = coalesce(joined, weights[kept], num_nodes=count, reduce="sum")
    joined, weights = to_undirected(joined, weights, num_nodes=count, reduce="max")
    return HomogeneousGraph(joined, weights, batch[order], nodes)


def _check_index(name: str, index: Any, counts: tuple[int, int]) -> None:
    """An index beyond its own node type would become an edge of the next type."""
    if not isinstance(index, Tensor) or index.dtype != torch.long:
        shown = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise InvalidTypeError(f"{name} is {shown}; give an int64 tensor [2, E]")
    if index.dim() != 2 or index.shape[0] != 2:
        raise InvalidValueError(f"{name} has shape {tuple(index.shape)}; give [2, E]")
    for row, (end, count) in zip(index, (("source", counts[0]), ("target", counts[1])), strict=True):
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < count:
            raise InvalidValueError(
                f"{name} holds {end} nodes from {int(row.min())} to {int(row.max())}, but there are {count} of that "
                "type; set its num_nodes or mend the edges"
            )


def _checked_weight(weight: Any, index: Tensor, name: str) -> Tensor | None:
    if weight is not None and not isinstance(weight, Tensor):
        given = type(weight).__name__
        raise InvalidTypeError(f"edge_weight beside {name} is a {given}; give a tensor of {index.shape[1]} weights")
    return weight


def _joined_weights(edges: list[Tensor], given: list[Any]) -> Tensor | None:
    dtypes = {w.dtype for w in given if isinstance(w, Tensor)}
    if not dtypes:
        return None
    if len(dtypes) > 1 or any(
        w is not None and tuple(w.shape) != (e.shape[1],) for e, w in zip(edges, given, strict=True)
    ):
        raise InvalidValueError("edge_weight of the edge types must have one dtype and one weight for each edge")
    (dtype,) = dtypes
    ones = [
        torch.ones(e.shape[1], dtype=dtype, device=e.device) if w is None else w
        for e, w in zip(edges, given, strict=True)
    ]
    return torch.cat(ones)


class HeteroPEARL(nn.Module):
    """Encodes ``HeteroData`` and injects the encoding into each node type's features.

    Args:
        encoder: The encoder; in training it draws new inputs at every call, so at every sampled subgraph.
        channels: Width of each node type's features.
        layers: Layers of the model, to inject before each; 0 for the input alone.

    Raises:
        InvalidTypeError: If the encoder is no PEARL or the widths are no dict.

    Source:
        Section 5, relational databases: R-PEARL on sampled subgraphs.
    """

    def __init__(self, encoder: PEARL | Any, channels: dict[str, int] | Any, layers: int = 0) -> None:
        super().__init__()
        if not isinstance(encoder, PEARL) or not isinstance(channels, dict):
            given = f"{type(encoder).__name__} and {type(channels).__name__}"
            raise InvalidTypeError(f"HeteroPEARL got a {given}; give a PEARL and a dict of widths by node type")
        self.encoder = encoder
        mode = "per_layer" if layers else "add"
        self.injectors = nn.ModuleDict(
            {_key(kind): PEInjector(encoder.out_channels, width, mode, layers) for kind, width in channels.items()}
        )

    def forward(self, data: HeteroData | Any) -> dict[str, Float[Tensor, "nodes channels"]]:
        """Encode.

        Args:
            data: The graph, or a batch of sampled subgraphs; ``edge_weight`` of its edge types is used.

        Returns:
            The encoding of each node type.

        Raises:
            InvalidTypeError: If ``data`` is not a HeteroData.
            InvalidValueError: If there are no edges, or weights do not fit their edges.
        """
        graph = to_homogeneous(data)
        pe = self.encoder(graph.edge_index, graph.batch, graph.edge_weight)
        return {kind: pe[numbers] for kind, numbers in graph.nodes.items()}

    def inject(
        self, features: dict[str, Tensor], encodings: dict[str, Tensor], layer: int | None = None
    ) -> dict[str, Tensor]:
        """Inject encodings.

        Args:
            features: Features of each node type.
            encodings: What ``forward`` returned.
            layer: Layer about to be run; None for the input.

        Returns:
            Features of each node type; types without an injector are passed through.
        """
        injectors: dict[str, Any] = dict(self.injectors.items())
        result = {}
        for kind, x in features.items():
            injector = injectors.get(_key(kind))
            if injector is None:
                result[kind] = x
            elif layer is None:
                result[kind] = injector.start(x, encodings[kind])
            else:
                result[kind] = injector.layer(layer, x, encodings[kind])
        return result


def _key(kind: str) -> str:
    # Module names may hold no dots; the underscore is escaped too, so that no two types share a name.
    return "type_" + kind.replace("_", "__").replace(".", "_d")
