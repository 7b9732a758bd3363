"""Putting an encoding into a model: added, concatenated, before every layer, or as distances on the edges."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn

from octavo_pearl_pe.checks import whole_number

__all__ = ["INJECTIONS", "PE_ATTRIBUTE", "PEInjector"]

PE_ATTRIBUTE = "pearl_pe"
"""Attribute of a graph that holds its encoding: ``PEARLTransform`` writes it, the graph models read it."""

INJECTIONS = ("add", "concat", "per_layer", "edge_distance")
"""Ways of injection; ``per_layer`` adds a projection at the start and an MLP of the encoding before every layer."""


class PEInjector(nn.Module):
    """Feeds an encoding P to a model with hidden width H.

    Args:
        pe_channels: d.
        channels: H.
        mode: One of ``INJECTIONS``.
        layers: Layers of the model, for ``"per_layer"``.

    Raises:
        InvalidValueError: If the mode is unknown or a width is out of range.

    Source:
        Section 5: ``x <- x + Linear(P)`` or ``Linear([x, P])``, and again ``x <- x + MLP_l(P)`` before each base layer.
    """

    def __init__(self, pe_channels: int, channels: int, mode: str = "per_layer", layers: int = 0) -> None:
        super().__init__()
        if mode not in INJECTIONS:
            raise InvalidValueError(f"unknown injection {mode!r}; give one of {', '.join(INJECTIONS)}")
        self.mode = mode
        whole_number("pe_channels", pe_channels)
        whole_number("channels", channels)
        whole_number("layers", layers, 0)
        self.start_linear = nn.Linear(pe_channels + (channels if mode == "concat" else 0), channels)
        self.layer_mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(pe_channels, channels), nn.ReLU(), nn.Linear(channels, channels))
            for _ in range(layers if mode == "per_layer" else 0)
        )
        self.edge_mlp = None
        if mode == "edge_distance":
            self.start_linear = nn.Identity()
            self.edge_mlp = nn.Sequential(nn.Linear(1, channels), nn.ReLU(), nn.Linear(channels, channels))

    def start(
        self, x: Float[Tensor, "nodes channels"], pe: Float[Tensor, "nodes pe"]
    ) -> Float[Tensor, "nodes channels"]:
        """Inject at the input.

        Args:
            x: Node features.
            pe: Encoding.

        Returns:
            Node features.
        """
        match self.mode:
            case "concat":
                return self.start_linear(torch.cat([x, pe], dim=1))
            case "edge_distance":
                return x
        return x + self.start_linear(pe)

    def layer(
        self, index: int, x: Float[Tensor, "nodes channels"], pe: Float[Tensor, "nodes pe"]
    ) -> Float[Tensor, "nodes channels"]:
        """Inject before a layer.

        Args:
            index: Layer, from 0.
            x: Node features.
            pe: Encoding.

        Returns:
            Node features.
        """
        return x + self.layer_mlps[index](pe) if self.mode == "per_layer" else x

    def edges(
        self, edge_index: Int[Tensor, "2 edges"], pe: Float[Tensor, "nodes pe"]
    ) -> Float[Tensor, "edges channels"] | None:
        """Make edge features of distances between encodings.

        Args:
            edge_index: Edges.
            pe: Encoding.

        Returns:
            Edge features, or None in the other modes.
        """
        if self.edge_mlp is None:
            return None
        distance = (pe[edge_index[0]] - pe[edge_index[1]]).norm(dim=1, keepdim=True)
        return self.edge_mlp(distance)
