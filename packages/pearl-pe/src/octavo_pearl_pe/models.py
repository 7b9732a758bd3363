"""Graph models that take any encoding: GINE message passing, and a graph transformer on PyG's ``GPSConv``."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GINEConv, GPSConv, global_add_pool, global_mean_pool

from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.inject import PE_ATTRIBUTE, PEInjector

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
        edge_features: int,
        inject: str,
        readout: str,
        pe_norm: bool,
    ) -> None:
        super().__init__()
        for name, given in {"out_channels": out_channels, "hidden": hidden, "layers": layers}.items():
            whole_number(name, given)
        counts = {"node_types": node_types, "node_features": node_features}
        counts |= {"edge_types": edge_types, "edge_features": edge_features}
        for name, given in counts.items():
            whole_number(name, given, 0)
        for types, features in (("node_types", "node_features"), ("edge_types", "edge_features")):
            if counts[types] and counts[features]:
                raise InvalidValueError(f"{types} and {features} exclude one another; give one of them")
        if readout not in {"sum", "mean", "node"}:
            raise InvalidValueError(f"unknown readout {readout!r}; give 'sum', 'mean' or 'node'")
        self.encoder, self.readout = encoder, readout
        self.node_types, self.node_features = node_types, node_features
        self.embed = nn.Linear(node_features, hidden) if node_features else nn.Embedding(max(1, node_types), hidden)
        self.hidden, self.edge_types, self.edge_features = hidden, edge_types, edge_features
        self.embed_edges = (
            nn.Linear(edge_features, hidden) if edge_features else nn.Embedding(max(1, edge_types), hidden)
        )
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
            data: A graph or a batch; ``x`` holds node types or features, ``edge_attr`` edge types or features, where
                the model has them; a ``pearl_pe`` that is there already is used instead of the encoder.

        Returns:
            A row per graph, or per node with ``readout="node"``.

        Raises:
            InvalidValueError: If types or features are missing, out of range or of another width.
        """
        if (edge_index := data.edge_index) is None:
            raise InvalidValueError("data has no edge_index; give a graph with edges, or an empty [2, 0] tensor")
        count = data.num_nodes or 0
        batch = data.get("batch")
        batch = edge_index.new_zeros(count) if batch is None else batch
        pe = self._encoded(data)
        x = self._embedded(data, count)
        distances = self.injector.edges(edge_index, pe)
        pe = self.pe_norm(pe)
        x = self.injector.start(x, pe)
        edges = self._embedded_edges(data, edge_index.shape[1])
        if distances is not None:
            edges = edges + distances
        for index in range(len(self.layers)):
            x = self._apply_layer(index, self.injector.layer(index, x, pe), edge_index, edges, batch)
        if self.readout == "node":
            return self.head(x)
        pool = global_add_pool if self.readout == "sum" else global_mean_pool
        return self.head(pool(x, batch))

    def _encoded(self, data: Data) -> Tensor:
        dtype = self.head[0].weight.dtype
        stored = data.get(PE_ATTRIBUTE)
        if stored is None:
            return self.encoder(data).to(dtype)
        if stored.dim() != 2 or stored.shape[1] != self.encoder.out_channels:
            raise InvalidValueError(
                f"data.{PE_ATTRIBUTE} has shape {tuple(stored.shape)}; the model was made for "
                f"[N, {self.encoder.out_channels}]"
            )
        return stored.to(dtype)

    def _embedded(self, data: Data, count: int) -> Tensor:
        if self.node_features:
            return self.embed(_features("x", data.get("x"), count, self.node_features).to(self.embed.weight.dtype))
        if not self.node_types:
            return self.embed.weight.expand(count, -1)
        return self.embed(_types("x", data.get("x"), count, self.node_types))

    def _embedded_edges(self, data: Data, count: int) -> Tensor:
        weight = self.embed_edges.weight
        if not count:
            return weight.new_zeros(0, self.hidden)
        if self.edge_features:
            return self.embed_edges(
                _features("edge_attr", data.get("edge_attr"), count, self.edge_features).to(weight.dtype)
            )
        if not self.edge_types:
            return weight.expand(count, -1)
        return self.embed_edges(_types("edge_attr", data.get("edge_attr"), count, self.edge_types))


def _features(name: str, values: Any, count: int, width: int) -> Tensor:
    columns = values[:, None] if isinstance(values, Tensor) and values.dim() == 1 else values
    if not isinstance(columns, Tensor) or tuple(columns.shape) != (count, width):
        found = tuple(values.shape) if isinstance(values, Tensor) else None
        raise InvalidValueError(f"data.{name} has shape {found}; the model was made for [{count}, {width}]")
    return columns


def _types(name: str, values: Any, count: int, types: int) -> Tensor:
    whole = isinstance(values, Tensor) and not values.dtype.is_floating_point and values.numel() == count
    if not whole or int(values.min()) < 0 or int(values.max()) >= types:
        kind = "node" if name == "x" else "edge"
        raise InvalidValueError(
            f"data.{name} must hold one {kind} type, an integer from 0 to {types - 1}, for each {kind}; numbers go to "
            f"a model made with {kind}_features"
        )
    return values.view(-1).long()


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
        edge_features: Width of ``data.edge_attr``; 0 for types, or none.
        inject: See ``PEInjector``.
        readout: ``"sum"``, ``"mean"`` or ``"node"``.
        pe_norm: Batch norm of the encoding, whose scale else depends on the pooling and on the size of the graphs.

    Raises:
        InvalidValueError: If a number is out of range, two do not fit together, or a name is unknown.
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
        edge_features: int = 0,
        inject: str = "per_layer",
        readout: str = "sum",
        pe_norm: bool = True,
    ) -> None:
        super().__init__(
            encoder, out_channels, hidden=hidden, layers=layers, node_types=node_types, node_features=node_features,
            edge_types=edge_types, edge_features=edge_features, inject=inject, readout=readout, pe_norm=pe_norm,
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
        edge_features: Width of ``data.edge_attr``; 0 for types, or none.
        inject: See ``PEInjector``.
        readout: ``"sum"``, ``"mean"`` or ``"node"``.
        pe_norm: Batch norm of the encoding, whose scale else depends on the pooling and on the size of the graphs.

    Raises:
        InvalidValueError: If a number is out of range, two do not fit together, or a name is unknown.
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
        edge_features: int = 0,
        inject: str = "add",
        readout: str = "sum",
        pe_norm: bool = True,
    ) -> None:
        self._heads, self._dropout = whole_number("heads", heads), dropout
        if whole_number("hidden", hidden) % heads:
            raise InvalidValueError(f"hidden={hidden} is not a multiple of heads={heads}; give one that is")
        super().__init__(
            encoder, out_channels, hidden=hidden, layers=layers, node_types=node_types, node_features=node_features,
            edge_types=edge_types, edge_features=edge_features, inject=inject, readout=readout, pe_norm=pe_norm,
        )  # fmt: skip

    def forward(self, data: Data) -> Float[Tensor, "rows outputs"]:
        """Predict, as ``PEARLGIN`` does.

        Args:
            data: A graph or a batch, the nodes in the order of their graphs.

        Returns:
            A row per graph, or per node with ``readout="node"``.

        Raises:
            InvalidValueError: If types or features do not fit the model, or the nodes are in another order.
        """
        batch = data.get("batch")
        if batch is not None and bool((batch.diff() < 0).any()):
            raise InvalidValueError("batch is not sorted; attention needs the nodes in the order of their graphs")
        return super().forward(data)

    def _layer(self, hidden: int) -> nn.Module:
        mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        local = GINEConv(mlp)  # ty: ignore[abstract-class-instantiation]
        return GPSConv(hidden, local, heads=self._heads, dropout=self._dropout, norm="layer_norm")

    def _apply_layer(self, index: int, x: Tensor, edge_index: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        return self.layers[index](x, edge_index, batch, edge_attr=edges)
