"""A frozen encoder as a PyG transform, for data sets that are encoded once."""

from __future__ import annotations

import hashlib

import torch
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from octavo_pearl_pe.encoder import PEARL

__all__ = ["PEARLTransform"]


@functional_transform("add_pearl_pe")
class PEARLTransform(BaseTransform):
    """Adds the encoding of a frozen encoder to ``data`` (functional name ``add_pearl_pe``).

    Its representation names the weights, so that a data set processed with other weights is noticed by PyG.

    Args:
        encoder: The encoder; a copy in evaluation mode is kept. An untrained one is a random structural encoding.
        attr_name: Attribute to store it in; None to append it to ``x``.
    """

    def __init__(self, encoder: PEARL, attr_name: str | None = "pearl_pe") -> None:
        import copy

        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
        self.attr_name = attr_name

    def forward(self, data: Data) -> Data:
        """Encode one graph.

        Args:
            data: The graph.

        Returns:
            The graph with the encoding.
        """
        with torch.no_grad():
            pe = self.encoder(data)
        if self.attr_name is not None:
            data[self.attr_name] = pe
        elif data.x is None:
            data.x = pe
        else:
            x = data.x[:, None] if data.x.dim() == 1 else data.x
            data.x = torch.cat([x.to(pe.dtype), pe], dim=1)
        return data

    def __repr__(self) -> str:
        """Name the width, the variant and the weights."""
        digest = hashlib.sha256()
        for name, value in self.encoder.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        config = self.encoder.config
        return f"PEARLTransform({config.out_channels}, {config.variant!r}, weights={digest.hexdigest()[:12]})"
