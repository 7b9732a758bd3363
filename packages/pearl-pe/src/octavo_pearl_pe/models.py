"""Graph models that take any encoding: GINE message passing, and a graph transformer on PyG's ``GPSConv``."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GINEConv, GPSConv, global_add_pool, global_mean_pool

from octavo_pearl_pe.inject import PEInjector

__all__ = ["PEARLGIN", "PEARLGPS"]


class _GraphModel(nn.Module):
    """Embedding, injection, layers and readout; the layers are the subclass's."""

    def __init__(
        self,
        encoder: nn.Module,
        out_channels: int,
        *,
        hidden: int,
        layers: int,
        node_types: int,
        node_features: int,
        edge_types: int,
        inject: str,
        readout: str,
        pe_norm: bool,
    ) -> None:
        super().__init__()
        if readout not in {"sum", "mean", "node"}:
            raise InvalidValueError(f"unknown readout {readout!r}; give 'sum', 'mean' or 'node'")
        if layers < 1:
            raise InvalidValueError(f"layers={layers} is out of range; give 1 or more")
        self.encoder, self.readout = encoder, readout
        self.node_types, self.node_features = node_types, node_features
        self.embed = nn.Linear(node_features, hidden) if node_features else nn.Embedding(max(1, node_types), hidden)
        self.embed_edges = nn.Embedding(max(1, edge_types), hidden)
        # What tells nodes apart is a small part of a sum over samples; one graph of one node has no statistics.
        channels: Any = encoder.out_channels
        self.pe_norm = BatchNorm(channels, allow_single_element=True) if pe_norm else nn.Identity()
        self.injector = PEInjector(encoder.out_channels, hidden, inject, layers)  # ty: ignore[invalid-argument-type]
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out_channels))
        self.layers = nn.ModuleList(self._layer(hidden) for _ in range(layers))

    def _layer(self, hidden: int) -> nn.Module:
        raise NotImplementedError

    def _apply_layer(self, index: int, x: Tensor, edge_index: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, data: Data) -> Float[Tensor, "rows outputs"]:
        """Predict.

        Args:
            data: A graph or a batch; ``x`` holds node types or features, ``edge_attr`` edge types, where the model has
                them; a ``pe`` that is there already is used instead of the encoder.

        Returns:
            A row per graph, or per node with ``readout="node"``.

        Raises:
            InvalidValueError: If node features are missing or of another width.
        """
        if (edge_index := data.edge_index) is None:
            raise InvalidValueError("data has no edge_index; give a graph with edges, or an empty [2, 0] tensor")
        count = data.num_nodes or 0
        batch = data.get("batch")
        batch = edge_index.new_zeros(count) if batch is None else batch
        pe = data["pe"] if data.get("pe") is not None else self.encoder(data)
        x = self._embedded(data, count)
        distances = self.injector.edges(edge_index, pe)
        pe = self.pe_norm(pe)
        x = self.injector.start(x, pe)
        edges = data.get("edge_attr")
        edges = edge_index.new_zeros(edge_index.shape[1]) if edges is None else edges
        edges = self.embed_edges(edges.view(-1).long().clamp(0, self.embed_edges.num_embeddings - 1))
        if distances is not None:
            edges = edges + distances
        for index in range(len(self.layers)):
            x = self._apply_layer(index, self.injector.layer(index, x, pe), edge_index, edges, batch)
        if self.readout == "node":
            return self.head(x)
        pool = global_add_pool if self.readout == "sum" else global_mean_pool
        return self.head(pool(x, batch))

    def _embedded(self, data: Data, count: int) -> Tensor:
        x = data.get("x")
        if self.node_features:
            if x is None or x.dim() != 2 or x.shape[1] != self.node_features:
                found = None if x is None else tuple(x.shape)
                raise InvalidValueError(f"data.x has shape {found}; the model was made for [N, {self.node_features}]")
            return self.embed(x)
        if not self.node_types:
            return self.embed.weight.expand(count, -1)
        if x is None or x.numel() != count or int(x.min()) < 0 or int(x.max()) >= self.node_types:
            raise InvalidValueError(f"data.x must hold one node type from 0 to {self.node_types - 1} for each node")
        return self.embed(x.view(-1).long())


class PEARLGIN(_GraphModel):
    """GINE layers with residuals, the base model of the paper's molecule experiments.

    Args:
        encoder: An encoding with ``out_channels``, e.g. ``PEARL(16)`` or a baseline.
        out_channels: Width of the prediction.
        hidden: Width.
        layers: Number of layers, at least 1.
        node_types: Number of node types; 0 for none.
        node_features: Width of ``data.x``; 0 for types, or none.
        edge_types: Number of edge types; 0 for none.
        inject: See ``PEInjector``.
        readout: ``"sum"``, ``"mean"`` or ``"node"``.
        pe_norm: Batch norm of the encoding, whose scale else depends on the pooling and on the size of the graphs.
    """

    def __init__(
        self,
        encoder: nn.Module,
        out_channels: int,
        *,
        hidden: int = 64,
        layers: int = 4,
        node_types: int = 0,
        node_features: int = 0,
        edge_types: int = 0,
        inject: str = "per_layer",
        readout: str = "sum",
        pe_norm: bool = True,
    ) -> None:
        super().__init__(
            encoder, out_channels, hidden=hidden, layers=layers, node_types=node_types, node_features=node_features,
            edge_types=edge_types, inject=inject, readout=readout, pe_norm=pe_norm,
        )  # fmt: skip

    def _layer(self, hidden: int) -> nn.Module:
        mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        return GINEConv(mlp, train_eps=True)  # ty: ignore[abstract-class-instantiation]

    def _apply_layer(self, index: int, x: Tensor, edge_index: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        return x + self.layers[index](x, edge_index, edges)


class PEARLGPS(_GraphModel):
    """Graph transformer: ``GPSConv`` (GINE and global attention in parallel) on features that hold the encoding.

    Args:
        encoder: An encoding with ``out_channels``.
        out_channels: Width of the prediction.
        hidden: Width, a multiple of ``heads``.
        layers: Number of layers, at least 1.
        heads: Attention heads.
        dropout: Dropout in the layers.
        node_types: Number of node types; 0 for none.
        node_features: Width of ``data.x``; 0 for types, or none.
        edge_types: Number of edge types; 0 for none.
        inject: See ``PEInjector``.
        readout: ``"sum"``, ``"mean"`` or ``"node"``.
        pe_norm: Batch norm of the encoding, whose scale else depends on the pooling and on the size of the graphs.
    """

    def __init__(
        self,
        encoder: nn.Module,
        out_channels: int,
        *,
        hidden: int = 64,
        layers: int = 3,
        heads: int = 4,
        dropout: float = 0.0,
        node_types: int = 0,
        node_features: int = 0,
        edge_types: int = 0,
        inject: str = "add",
        readout: str = "sum",
        pe_norm: bool = True,
    ) -> None:
        self._heads, self._dropout = heads, dropout
        super().__init__(
            encoder, out_channels, hidden=hidden, layers=layers, node_types=node_types, node_features=node_features,
            edge_types=edge_types, inject=inject, readout=readout, pe_norm=pe_norm,
        )  # fmt: skip

    def _layer(self, hidden: int) -> nn.Module:
        mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        local = GINEConv(mlp)  # ty: ignore[abstract-class-instantiation]
        return GPSConv(hidden, local, heads=self._heads, dropout=self._dropout, norm="layer_norm")

    def _apply_layer(self, index: int, x: Tensor, edge_index: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        return self.layers[index](x, edge_index, batch, edge_attr=edges)
