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
        InvalidTypeError: If ``data`` is not a HeteroData.
        InvalidValueError: If there are no edges, or weights do not fit their edges.
    """
    if not isinstance(data, HeteroData):
        raise InvalidTypeError(f"data is a {type(data).__name__}; give a HeteroData, or encode it with PEARL")
    types = data.node_types
    counts = [data[kind].num_nodes or 0 for kind in types]
    offsets = dict(zip(types, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
    edges, given = [], []
    for (source, _, target), store in zip(data.edge_types, data.edge_stores, strict=True):
        if store.get("edge_index") is None:
            continue
        edges.append(torch.stack([store.edge_index[0] + offsets[source], store.edge_index[1] + offsets[target]]))
        given.append(store.get("edge_weight"))
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

    Source:
        Section 5, relational databases: R-PEARL on sampled subgraphs.
    """

    def __init__(self, encoder: PEARL, channels: dict[str, int], layers: int = 0) -> None:
        super().__init__()
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
