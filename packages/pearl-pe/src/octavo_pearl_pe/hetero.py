"""Encodings of heterogeneous and sampled graphs: one homogeneous numbering in, one encoding per node type out."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.inject import PEInjector

__all__ = ["HeteroPEARL", "to_homogeneous"]


def to_homogeneous(data: HeteroData) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Number the nodes of all types together and join the edges of all types, symmetrised and without duplicates.

    Args:
        data: A heterogeneous graph, a sampled subgraph, or a batch of them.

    Returns:
        ``edge_index [2, E]``, the graph of each node ``[N]`` (sorted), and for each type the numbers of its nodes.

    Raises:
        InvalidValueError: If there are no edges.
    """
    types = data.node_types
    counts = [data[kind].num_nodes or 0 for kind in types]
    offsets = dict(zip(types, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
    edges = [
        torch.stack([store.edge_index[0] + offsets[source], store.edge_index[1] + offsets[target]])
        for (source, _, target), store in zip(data.edge_types, data.edge_stores, strict=True)
        if store.get("edge_index") is not None
    ]
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
    joined = joined[:, joined[0] != joined[1]]
    both = torch.cat([joined, joined.flip(0)], dim=1)
    nodes = {kind: number[offsets[kind] : offsets[kind] + n] for kind, n in zip(types, counts, strict=True)}
    return both, batch[order], nodes


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

    def forward(self, data: HeteroData) -> dict[str, Float[Tensor, "nodes channels"]]:
        """Encode.

        Args:
            data: The graph, or a batch of sampled subgraphs.

        Returns:
            The encoding of each node type.
        """
        edges, batch, nodes = to_homogeneous(data)
        pe = self.encoder(edges, batch)
        return {kind: pe[numbers] for kind, numbers in nodes.items()}

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
    # Module names may hold no dots.
    return "type_" + kind.replace(".", "_")
