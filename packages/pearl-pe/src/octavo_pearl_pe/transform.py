"""A frozen encoder as a PyG transform, for data sets that are encoded once."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.identity import plain
from octavo_pearl_pe.inject import PE_ATTRIBUTE

__all__ = ["PEARLTransform"]


@functional_transform("add_pearl_pe")
class PEARLTransform(BaseTransform):
    """Adds the encoding of a frozen encoder to ``data`` (functional name ``add_pearl_pe``).

    Its representation names the weights and the configuration, so that a data set processed with others is noticed by
    PyG.

    Args:
        encoder: The encoder; a copy in evaluation mode is kept. An untrained one is a random structural encoding.
        attr_name: Attribute to store it in, by default the one that ``PEARLGIN`` and ``PEARLGPS`` read instead of
            encoding; None to append it to ``x``.

    Raises:
        InvalidTypeError: If ``encoder`` is not a PEARL.
    """

    def __init__(self, encoder: PEARL | Any, attr_name: str | None = PE_ATTRIBUTE) -> None:
        if not isinstance(encoder, PEARL):
            raise InvalidTypeError(
                f"encoder is a {type(encoder).__name__}; give a PEARL (PyG has transforms of the other encodings)"
            )
        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
        self.attr_name = attr_name

    def forward(self, data: Data | Any) -> Data:
        """Encode one graph.

        Args:
            data: The graph.

        Returns:
            The graph with the encoding.

        Raises:
            InvalidTypeError: If it is not a PyG Data.
        """
        if not isinstance(data, Data):
            raise InvalidTypeError(f"data is a {type(data).__name__}; a transform takes a PyG Data")
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
        """Name the width, the variant, and a digest of the weights and the configuration."""
        config = self.encoder.config
        fields = {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
        digest = hashlib.sha256(repr(fields).encode())
        for name, value in self.encoder.state_dict().items():
            # The raw bytes: NumPy has no bfloat16.
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(f"{name} {value.dtype}".encode() + content.numpy().tobytes())
        name = f"{config.out_channels}, {config.variant!r}, attr_name={self.attr_name!r}"
        return f"PEARLTransform({name}, digest={digest.hexdigest()[:12]})"
