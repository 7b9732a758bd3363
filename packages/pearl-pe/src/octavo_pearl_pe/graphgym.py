"""GraphGym registration: importing this module offers the node encoder ``PEARL`` and options ``cfg.posenc_PEARL``."""

from __future__ import annotations

from typing import Any

from octavo_core.errors import MissingDependencyError
from torch import nn
from torch_geometric.graphgym import register

from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.inject import PEInjector

__all__ = ["PEARLNodeEncoder", "add_options"]

_DEFAULTS = {"dim_pe": 16, "variant": "random", "num_samples": 64, "filter_taps": 4, "layers": 3, "hidden": 32}


def add_options(cfg: Any) -> None:
    """Add the group ``posenc_PEARL`` to a GraphGym configuration.

    Args:
        cfg: The configuration node.

    Raises:
        MissingDependencyError: If yacs, which GraphGym's configuration needs, is not installed.
    """
    try:
        from yacs.config import CfgNode  # ty: ignore[import-not-found]
    except ImportError as error:
        raise MissingDependencyError("GraphGym needs yacs; install it with: pip install yacs") from error
    cfg.posenc_PEARL = CfgNode(dict(_DEFAULTS))


class PEARLNodeEncoder(nn.Module):
    """Adds the encoding to ``batch.x``, which holds features of width ``dim_emb``.

    Args:
        dim_emb: Width of the node features.
        options: Options as in ``cfg.posenc_PEARL``; GraphGym's global configuration by default.
    """

    def __init__(self, dim_emb: int, options: Any = None) -> None:
        super().__init__()
        if options is None:
            from torch_geometric.graphgym.config import cfg

            options = getattr(cfg, "posenc_PEARL", _DEFAULTS)
        options: dict[str, Any] = {**_DEFAULTS, **dict(options)}
        width = options.pop("dim_pe")
        self.encoder = PEARL(width, **options)
        self.injector = PEInjector(width, dim_emb, "add")

    def forward(self, batch: Any) -> Any:
        """Encode and inject.

        Args:
            batch: A PyG batch with ``x``.

        Returns:
            The batch.
        """
        batch.x = self.injector.start(batch.x, self.encoder(batch))
        return batch


if "PEARL" not in register.node_encoder_dict:
    register.register_node_encoder("PEARL", PEARLNodeEncoder)
if "posenc_PEARL" not in register.config_dict:
    register.register_config("posenc_PEARL", add_options)
