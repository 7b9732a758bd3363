"""Weights and settings of the released implementation (commit cc2826b), for comparison and for reuse."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_pearl_pe.config import PEARLConfig
from octavo_pearl_pe.encoder import PEARL

__all__ = ["OFFICIAL_SETTINGS", "convert_official_state_dict", "official_encoder"]

_GIN: dict[str, Any] = {"gnn": "gin", "norm": "batch", "per_graph_norm": True}

OFFICIAL_SETTINGS: dict[str, dict[str, Any]] = {
    "zinc-r": _GIN
    | {"out_channels": 37, "num_samples": 120, "filter_taps": 1, "hidden": 40, "lift_channels": 37, "layers": 8},
    "zinc-b": _GIN
    | {"out_channels": 37, "variant": "basis", "filter_taps": 7, "hidden": 40, "lift_channels": 37, "layers": 8},
    "peptides-r": _GIN | {"out_channels": 37, "num_samples": 200, "filter_taps": 4, "hidden": 37, "layers": 9},
    "peptides-b": _GIN | {"out_channels": 37, "variant": "basis", "filter_taps": 1, "hidden": 37, "layers": 9},
    "drugood-assay-r": _GIN
    | {"out_channels": 32, "num_samples": 200, "filter_taps": 2, "hidden": 64, "lift_channels": 32, "layers": 3},
    "drugood-scaffold-r": _GIN
    | {"out_channels": 32, "num_samples": 200, "filter_taps": 16, "hidden": 64, "lift_channels": 32, "layers": 3},
    "reddit-binary-r": {
        "gnn": "gin",
        "norm": "batch",
        "lift": False,
        "filter_taps": 1,
        "jump": "concat",
        "bias": False,
        "mlp_hidden": 0,
        "noise": "normal1",
        "num_samples": 30,
        "eval_samples": 200,
        "out_channels": 64,
        "hidden": 64,
        "layers": 8,
    },
    "relbench-r": _GIN | {"out_channels": 8, "num_samples": 80, "filter_taps": 12, "hidden": 120, "layers": 8},
    "relbench-b": _GIN | {"out_channels": 8, "variant": "basis", "filter_taps": 7, "hidden": 120, "layers": 8},
}
"""Options of ``PEARL`` at the released settings; the molecule code sums over samples, the paper and these average."""


def official_encoder(setting: str, **changes: Any) -> PEARL:
    """Make an untrained encoder at a released setting.

    Args:
        setting: A name in ``OFFICIAL_SETTINGS``.
        **changes: Options to change.

    Returns:
        The encoder.

    Raises:
        InvalidValueError: If the name is unknown.
    """
    if setting not in OFFICIAL_SETTINGS:
        raise InvalidValueError(f"unknown setting {setting!r}; give one of {', '.join(OFFICIAL_SETTINGS)}")
    return PEARL(PEARLConfig(**(OFFICIAL_SETTINGS[setting] | changes)))


def convert_official_state_dict(state: Mapping[str, Tensor], **changes: Any) -> PEARL:
    """Build the encoder that a released state dict belongs to, and load it.

    Args:
        state: State dict of the released molecule encoder (``layers.*``, ``norms.*``, ``sample_aggr.gin.*``) or of the
            REDDIT encoder (``phi.convs.*``, ``phi.norms.*``, ``phi.output_encoder``).
        **changes: Options to change, e.g. ``variant="basis"``, ``pooling="mean"`` or ``num_samples``. The released
            molecule code sums over the samples, the REDDIT code averages; these are the defaults.

    Returns:
        The encoder, in evaluation mode and in the dtype of the weights.

    Raises:
        InvalidValueError: If the names are of neither encoder.
    """
    if any(name.startswith("phi.convs.") for name in state):
        options, renamed = _reddit(state)
    elif any(name.startswith("sample_aggr.gin.") for name in state):
        options, renamed = _molecules(state)
    else:
        names = ", ".join(list(state)[:3])
        raise InvalidValueError(
            f"not a released encoder: its names begin {names}; expected sample_aggr.gin or phi.convs"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pooling='sum'")
        encoder = PEARL(PEARLConfig(**(options | changes)))
    encoder.to(next(value.dtype for value in state.values() if value.is_floating_point()))
    encoder.load_state_dict(renamed | {"draws": torch.tensor(0)})
    return encoder.eval()


def _molecules(state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    gin = {name.removeprefix("sample_aggr.gin."): value for name, value in state.items() if ".gin." in name}
    layers = 1 + max(int(name.split(".")[1]) for name in gin if name.startswith("layers."))
    mlp_layers = 1 + len([name for name in gin if re.fullmatch(r"layers\.0\.mlp\.layers\.\d+\.fc\.weight", name)])
    lift = state["layers.0.weight"]
    inner = gin["layers.0.mlp.layers.0.fc.weight"].shape[0] if mlp_layers > 1 else 0
    out = gin[f"layers.{layers - 1}.mlp.fc.weight"].shape[0]
    hidden = gin["layers.0.mlp.fc.weight"].shape[0] if layers > 1 else lift.shape[0]
    renamed = {"lift.weight": lift.T[:, None], "lift.bias": state["layers.0.bias"]}
    renamed |= _batch_norm(state, "norms.0", "lift_norm")
    renamed["body.eps"] = torch.cat([gin[f"layers.{layer}.eps"] for layer in range(layers)])
    for layer in range(layers):
        for index in range(mlp_layers):
            inside = index < mlp_layers - 1
            source = f"layers.{layer}.mlp.layers.{index}.fc" if inside else f"layers.{layer}.mlp.fc"
            for kind in ("weight", "bias"):
                renamed[f"body.mlps.{layer}.linears.{index}.{kind}"] = gin[f"{source}.{kind}"]
            if inside:
                renamed |= _batch_norm(gin, f"layers.{layer}.mlp.layers.{index}.bn", f"body.mlps.{layer}.norms.{index}")
        if layer < layers - 1:
            renamed |= _batch_norm(gin, f"batch_norms.{layer}", f"body.norms.{layer}")
    options = _GIN | {"filter_taps": lift.shape[1], "hidden": hidden, "layers": layers, "out_channels": out}
    options["lift_channels"] = lift.shape[0]
    return options | {"mlp_hidden": inner, "mlp_layers": mlp_layers, "pooling": "sum"}, renamed


def _reddit(state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    phi = {name.removeprefix("phi."): value for name, value in state.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in phi if name.startswith("convs."))
    hidden = phi["convs.0.nn.layers.1.weight"].shape[0]
    renamed = {"body.eps": torch.cat([phi[f"convs.{layer}.layer.eps"] for layer in range(layers)])}
    for layer in range(layers):
        for index in range(2):
            renamed[f"body.mlps.{layer}.linears.{index}.weight"] = phi[f"convs.{layer}.nn.layers.{index}.weight"]
        renamed |= _batch_norm(phi, f"convs.{layer}.nn.norms.0.bn", f"body.mlps.{layer}.norms.0")
        renamed |= _batch_norm(phi, f"norms.{layer}.bn", f"body.norms.{layer}")
    renamed["body.readout.weight"] = phi["output_encoder.weight"]
    renamed |= _batch_norm(phi, "output_norm.bn", "body.readout_norm")
    out = phi["output_encoder.weight"].shape[0]
    return OFFICIAL_SETTINGS["reddit-binary-r"] | {"hidden": hidden, "layers": layers, "out_channels": out}, renamed


def _batch_norm(state: Mapping[str, Tensor], source: str, target: str) -> dict[str, Tensor]:
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {f"{target}.{name}": state[f"{source}.{name}"] for name in names}
