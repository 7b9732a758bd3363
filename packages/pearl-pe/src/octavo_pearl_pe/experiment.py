"""The training command: data, encoding and model by name, split, trained, tested and saved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.device import resolve_device
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write, ensure_folder
from octavo_core.progress import ProgressCallback, no_progress
from torch import nn
from torch_geometric.data import Data

from octavo_pearl_pe import molecules, readers
from octavo_pearl_pe.baselines import PEG, RWSE, SPE, LapPE, NoPE, RandomNodeInit, SignNet
from octavo_pearl_pe.datasets import csl, cycle_count, thread_graphs
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.inject import INJECTIONS
from octavo_pearl_pe.models import PEARLGIN, PEARLGPS
from octavo_pearl_pe.training import TrainingConfig, evaluate, train

__all__ = ["FILTER_RECIPE", "Options", "load_data", "make_encoder", "run"]

FILTER_RECIPE: dict[str, Any] = {
    "gnn": "filter", "layers": 2, "filter_taps": 4, "hidden": 16, "gso": "sym_adj", "norm": None
}  # fmt: skip
"""Options of PEARL that train well on small graphs: two layers of filters, without a norm before the pooling. A layer
norm there removes what tells the nodes of regular graphs apart; batch norm after it (``pe_norm``) sets the scale."""

_METRICS = {"mae": "mean absolute error", "mse": "R^2", "cross_entropy": "accuracy"}


@dataclass(frozen=True)
class Options:
    """Options of a run, as on the command line.

    Args:
        data: A generated or packaged set, a PyG name with ``root``, or a path.
        pe: Name of the encoding.
        model: ``"gin"`` or ``"gps"``.
        inject: See ``PEInjector``.
        epochs: Epochs.
        batch_size: Graphs a step.
        lr: Peak learning rate.
        hidden: Width of the model.
        layers: Layers of the model.
        dim: Width of the encoding.
        samples: M in training.
        count: Graphs to generate or draw.
        root: Folder of a PyG data set.
        smiles_column: Column of a CSV.
        target: Column of a CSV.
        format: Format of a file.
        device: Device.
        seed: Seed of data, split, weights and training.
    """

    data: str
    pe: str = "r-pearl"
    model: str = "gin"
    inject: str = "per_layer"
    epochs: int = 20
    batch_size: int = 32
    lr: float = 1e-3
    hidden: int = 64
    layers: int = 3
    dim: int = 16
    samples: int = 32
    count: int = 500
    root: str | None = None
    smiles_column: str = "smiles"
    target: str | None = None
    format: str | None = None
    device: str = "auto"
    seed: int = 0


def run(
    options: Options,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Train and test.

    Args:
        options: What to run.
        folder: For ``result.json``, ``log.jsonl``, checkpoints and, for PEARL, ``encoder.safetensors``.
        resume: Continue from the newest checkpoint there.
        progress: Called with the share done.

    Returns:
        Name of the metric, its value on the validation and test graphs, and the sizes.

    Raises:
        InvalidValueError: If a name is unknown or there are too few graphs.
    """
    if options.inject not in INJECTIONS or options.model not in {"gin", "gps"}:
        raise InvalidValueError(
            f"model {options.model!r} with injection {options.inject!r} does not exist; give gin or gps, and one of "
            f"{', '.join(INJECTIONS)}"
        )
    device = resolve_device(options.device)
    graphs = load_data(options)
    if len(graphs) < 10:
        raise InvalidValueError(f"{len(graphs)} graphs cannot be split 80 : 10 : 10; give 10 or more with a target")
    loss, outputs, readout = _task(graphs)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = _model(options, graphs, outputs, readout)
    order = np.random.default_rng(options.seed).permutation(len(graphs))
    first, second = int(0.8 * len(graphs)), int(0.9 * len(graphs))
    parts = [[graphs[i] for i in order[a:b]] for a, b in ((0, first), (first, second), (second, len(graphs)))]
    config = TrainingConfig(
        epochs=options.epochs, batch_size=options.batch_size, lr=options.lr, loss=loss, seed=options.seed
    )
    train(model, parts[0], config, valid=parts[1], folder=folder, resume=resume, device=device, progress=progress)
    summary = {
        "data": options.data,
        "pe": options.pe,
        "metric": _METRICS[loss],
        "valid": evaluate(model, parts[1], loss, device=device),
        "test": evaluate(model, parts[2], loss, device=device),
        "graphs": len(graphs),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if folder is not None:
        document = {"options": asdict(options), "result": summary}
        atomic_write(ensure_folder(folder) / "result.json", json.dumps(document, indent=2) + "\n")
        if isinstance(model.encoder, PEARL):
            model.encoder.save(Path(folder) / "encoder.safetensors")
    return summary


def load_data(options: Options) -> list[Data]:
    """Load or generate the graphs of a run.

    Args:
        options: Its options.

    Returns:
        Graphs with a target.

    Raises:
        InvalidValueError: If the graphs have no target.
    """
    count, seed = options.count, options.seed
    makers: dict[str, Callable[[], list[Data]]] = {
        "csl": lambda: csl(seed=seed),
        "cycles": lambda: cycle_count(count, seed=seed),
        "threads": lambda: thread_graphs(count, seed=seed),
        "moses": lambda: molecules.moses_plogp(count, seed),
        "nci": lambda: molecules.nci_plogp(count, seed),
        "freesolv": molecules.freesolv,
        "mutag": molecules.mutag,
    }
    if options.data in makers:
        graphs = makers[options.data]()
    elif options.root is not None:
        graphs = list(readers.from_pyg(options.data, options.root))
    else:
        graphs = readers.read_graphs(
            options.data, options.format, smiles_column=options.smiles_column, target=options.target
        )
    if any(graph.get("y") is None for graph in graphs):
        raise InvalidValueError(f"the graphs of {options.data!r} have no target; name its column with --target")
    return graphs


def make_encoder(name: str, dim: int, samples: int, seed: int = 0) -> nn.Module:
    """Make an encoding for training by name.

    Args:
        name: ``"r-pearl"``, ``"b-pearl"``, ``"auto"``, ``"lappe"``, ``"rwse"``, ``"signnet"``, ``"spe"``, ``"peg"``,
            ``"random"`` or ``"none"``.
        dim: Width.
        samples: M of R-PEARL in training.
        seed: Seed of its draws.

    Returns:
        The encoding.

    Raises:
        InvalidValueError: If the name is unknown.
    """
    makers: dict[str, Callable[[], nn.Module]] = {
        "r-pearl": lambda: PEARL(dim, num_samples=samples, seed=seed, **FILTER_RECIPE),
        "b-pearl": lambda: PEARL(dim, variant="basis", **FILTER_RECIPE),
        "auto": lambda: PEARL(dim, variant="auto", num_samples=samples, seed=seed, **FILTER_RECIPE),
        "lappe": lambda: LapPE(dim, seed=seed),
        "rwse": lambda: RWSE(dim),
        "signnet": lambda: SignNet(dim),
        "spe": lambda: SPE(dim),
        "peg": lambda: PEG(dim),
        "random": lambda: RandomNodeInit(dim, seed=seed),
        "none": NoPE,
    }
    if name not in makers:
        raise InvalidValueError(f"unknown encoding {name!r}; give one of {', '.join(makers)}")
    return makers[name]()


def _task(graphs: list[Any]) -> tuple[str, int, str]:
    """Loss, outputs and readout that the targets ask for."""
    first = graphs[0]
    if first.y.dim() == 2 and first.y.shape[0] == first.num_nodes and first.num_nodes != 1:
        return "mse", first.y.shape[1], "node"
    if not first.y.dtype.is_floating_point:
        return "cross_entropy", 1 + max(int(g.y.max()) for g in graphs), "mean"
    return "mae", first.y.numel(), "sum"


def _model(options: Options, graphs: list[Any], outputs: int, readout: str) -> nn.Module:
    encoder = make_encoder(options.pe, options.dim, options.samples, options.seed)
    x, edges = graphs[0].get("x"), graphs[0].get("edge_attr")
    types = 0 if x is None or x.dtype.is_floating_point else 1 + max(int(g.x.max()) for g in graphs)
    features = x.shape[1] if x is not None and x.dtype.is_floating_point else 0
    bonds = (
        0
        if edges is None or edges.dtype.is_floating_point
        else 1 + max(int(g.edge_attr.max()) for g in graphs if g.num_edges)
    )
    build = PEARLGIN if options.model == "gin" else PEARLGPS
    return build(
        encoder, outputs, hidden=options.hidden, layers=options.layers, node_types=types, node_features=features,
        edge_types=bonds, inject=options.inject, readout=readout,
    )  # fmt: skip
