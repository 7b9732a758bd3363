"""The layers of Phi that a configuration asks for."""

from __future__ import annotations

from torch import nn

from octavo_pearl_pe.config import PEARLConfig
from octavo_pearl_pe.gnn import FilterGNN, SampleGIN

__all__ = ["make_body"]


def make_body(config: PEARLConfig, width: int) -> nn.Module | None:
    """Make the layers of Phi after its first stage.

    Args:
        config: The configuration.
        width: Channels that the first stage hands on.

    Returns:
        The layers; None for a network of one filter layer, which is its first stage.
    """
    if isinstance(config.gnn, nn.Module):
        return config.gnn
    if config.gnn == "filter":
        if config.layers == 1:
            return None
        widths = [*[config.hidden] * (config.layers - 1), config.out_channels]
        return FilterGNN(
            widths,
            config.filter_taps,
            norm=config.norm,
            act=config.act,
            basis=config.basis,
            constrain=config.constrain == "beta",
            gso=config.gso,
        )
    return SampleGIN(
        width,
        config.hidden,
        config.out_channels,
        layers=config.layers,
        mlp_hidden=config.mlp_hidden,
        mlp_layers=config.mlp_layers,
        norm=config.norm,
        act=config.act,
        jump=config.jump,
        bias=config.bias,
    )
