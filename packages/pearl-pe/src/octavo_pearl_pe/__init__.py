"""PEARL: learnable positional encodings for graphs, without eigenvectors, native to PyTorch Geometric.

Charilaos I. Kanatsoulis, Evelyn Choi, Stefanie Jegelka, Jure Leskovec, Alejandro Ribeiro, "Learning Efficient
Positional Encodings with Graph Neural Networks", ICLR 2025, arXiv 2502.01122.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_pearl_pe.adaptive import encode_to_tolerance, suggest_num_samples
    from octavo_pearl_pe.baselines import PEG, RWSE, SPE, BasisNet, LapPE, NoPE, RandomNodeInit, SignNet
    from octavo_pearl_pe.config import PEARLConfig
    from octavo_pearl_pe.encoder import BPEARL, PEARL, RPEARL, Encoding
    from octavo_pearl_pe.expressivity import expressivity
    from octavo_pearl_pe.filters import GraphFilter
    from octavo_pearl_pe.graph import gso
    from octavo_pearl_pe.hetero import HeteroPEARL
    from octavo_pearl_pe.inject import PEInjector
    from octavo_pearl_pe.models import PEARLGIN, PEARLGPS
    from octavo_pearl_pe.norms import recompute_batch_statistics
    from octavo_pearl_pe.official import OFFICIAL_SETTINGS, convert_official_state_dict, official_encoder
    from octavo_pearl_pe.readers import from_pyg, read_graphs
    from octavo_pearl_pe.relational import RelationalTable, from_relbench, tables_to_hetero
    from octavo_pearl_pe.stability import certified_constant, stability_curve
    from octavo_pearl_pe.theory import expected_relu_filter, second_moment, separates, wl_colors
    from octavo_pearl_pe.training import TrainingConfig, evaluate, train
    from octavo_pearl_pe.transform import PEARLTransform

__version__ = "0.1.0"

_HOMES = {
    "adaptive": ("encode_to_tolerance", "suggest_num_samples"),
    "baselines": ("PEG", "RWSE", "SPE", "BasisNet", "LapPE", "NoPE", "RandomNodeInit", "SignNet"),
    "config": ("PEARLConfig",),
    "encoder": ("BPEARL", "PEARL", "RPEARL", "Encoding"),
    "expressivity": ("expressivity",),
    "filters": ("GraphFilter",),
    "graph": ("gso",),
    "hetero": ("HeteroPEARL",),
    "inject": ("PEInjector",),
    "models": ("PEARLGIN", "PEARLGPS"),
    "norms": ("recompute_batch_statistics",),
    "official": ("OFFICIAL_SETTINGS", "convert_official_state_dict", "official_encoder"),
    "readers": ("from_pyg", "read_graphs"),
    "relational": ("RelationalTable", "from_relbench", "tables_to_hetero"),
    "stability": ("certified_constant", "stability_curve"),
    "theory": ("expected_relu_filter", "second_moment", "separates", "wl_colors"),
    "training": ("TrainingConfig", "evaluate", "train"),
    "transform": ("PEARLTransform",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BPEARL",
    "OFFICIAL_SETTINGS",
    "PEARL",
    "PEARLGIN",
    "PEARLGPS",
    "PEG",
    "RPEARL",
    "RWSE",
    "SPE",
    "BasisNet",
    "Encoding",
    "GraphFilter",
    "HeteroPEARL",
    "LapPE",
    "NoPE",
    "PEARLConfig",
    "PEARLTransform",
    "PEInjector",
    "RandomNodeInit",
    "RelationalTable",
    "SignNet",
    "TrainingConfig",
    "certified_constant",
    "convert_official_state_dict",
    "encode_to_tolerance",
    "evaluate",
    "expected_relu_filter",
    "expressivity",
    "from_pyg",
    "from_relbench",
    "gso",
    "official_encoder",
    "read_graphs",
    "recompute_batch_statistics",
    "second_moment",
    "separates",
    "stability_curve",
    "suggest_num_samples",
    "tables_to_hetero",
    "train",
    "wl_colors",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line answers without loading torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
