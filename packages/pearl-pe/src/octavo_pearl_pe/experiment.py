"""The training command: data, encoding and model by name, split, trained, tested and saved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.device import resolve_device
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write, ensure_folder
from octavo_core.progress import ProgressCallback, no_progress
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe import molecules, readers
from octavo_pearl_pe.baselines import PEG, RWSE, SPE, LapPE, NoPE, RandomNodeInit, SignNet
from octavo_pearl_pe.datasets import csl, cycle_count, density_accuracy, thread_graphs
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.identity import digest_graphs
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
        count: Graphs to generate or draw; 500 by default.
        root: Folder of a PyG data set.
        smiles_column: Column of SMILES in a CSV; ``"smiles"`` by default.
        target: Column of a CSV.
        format: Format of a file.
        make_undirected: Take directed graphs of a file as undirected.
        device: Device.
        seed: Seed of data, split, weights and training.
    """

    data: str
    pe: str = "r-pearl"
    model: str = "gin"
    inject: str = "per_layer"
    epochs: int = 20
    batch_size: int = 32
    lr: float | int = 1e-3
    hidden: int = 64
    layers: int = 3
    dim: int = 16
    samples: int = 32
    count: int | None = None
    root: str | None = None
    smiles_column: str | None = None
    target: str | None = None
    format: str | None = None
    make_undirected: bool = False
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
        resume: Continue from the newest checkpoint there, which must be of the same run (the device may be another).
        progress: Called with the share done.

    Returns:
        Name of the metric, its value on the validation and test graphs, and the sizes; for threads also what a
        threshold on the mean degree reaches.

    Raises:
        InvalidValueError: If a name is unknown, an option does not apply to the data, there are too few graphs, or
            their features or targets do not fit together.
        InvalidStateError: If ``folder`` holds a run and ``resume`` is off, or a run with other options.
    """
    if options.inject not in INJECTIONS or options.model not in {"gin", "gps"}:
        raise InvalidValueError(
            f"model {options.model!r} with injection {options.inject!r} does not exist; give gin or gps, and one of "
            f"{', '.join(INJECTIONS)}"
        )
    config = TrainingConfig(epochs=options.epochs, batch_size=options.batch_size, lr=options.lr, seed=options.seed)
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
    # What the training's own configuration says is compared with it; the device may be another.
    known = {"device", *asdict(config)}
    identity = {f"--{name}": value for name, value in asdict(options).items() if name not in known}
    train(
        model, parts[0], replace(config, loss=loss), valid=parts[1], folder=folder, resume=resume,
        identity=identity | {"test graphs": digest_graphs(parts[2])}, device=device, progress=progress,
    )  # fmt: skip
    summary = {
        "data": options.data,
        "pe": options.pe,
        "metric": _METRICS[loss],
        "valid": evaluate(model, parts[1], loss, device=device),
        "test": evaluate(model, parts[2], loss, device=device),
        "graphs": len(graphs),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if options.data == "threads":
        summary["mean_degree_accuracy"] = density_accuracy(graphs)
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
        InvalidValueError: If the graphs have no target, or an option is given that the data does not have.
    """
    count, seed = 500 if options.count is None else options.count, options.seed
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
        applying = {"count"} if options.data in {"cycles", "threads", "moses", "nci"} else set()
    else:
        applying = {"root"} if options.root is not None else {"format", "smiles_column", "target", "make_undirected"}
    _check_unused_options(options, applying)
    if options.data in makers:
        graphs = makers[options.data]()
    elif options.root is not None:
        graphs = list(readers.from_pyg(options.data, options.root))
    else:
        graphs = readers.read_graphs(
            options.data,
            options.format,
            smiles_column=options.smiles_column,
            target=options.target,
            make_undirected=options.make_undirected,
        )
    if any(graph.get("y") is None for graph in graphs):
        raise InvalidValueError(f"the graphs of {options.data!r} have no target; name its column with --target")
    return graphs


def _check_unused_options(options: Options, applying: set[str]) -> None:
    words = {"count": "--count", "root": "--root", "format": "--format"}
    words |= {"smiles_column": "--smiles-col", "target": "--target", "make_undirected": "--make-undirected"}
    given = [
        word for name, word in words.items() if name not in applying and getattr(options, name) not in (None, False)
    ]
    if given:
        raise InvalidValueError(f"{', '.join(given)} does not apply to --data {options.data}; leave it out")


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
    """Loss, outputs and readout that the targets ask for: a row of ``y`` for each node, or one ``y`` a graph."""
    for index, graph in enumerate(graphs):
        y = graph.y
        if not isinstance(y, Tensor) or y.dim() > 2 or not y.numel():
            raise InvalidValueError(f"y of graph {index} is {_shown(y)}; give a tensor of one target, or one per node")
        if y.dtype.is_floating_point != graphs[0].y.dtype.is_floating_point:
            raise InvalidValueError(f"y of graph {index} is {y.dtype}, of graph 0 {graphs[0].y.dtype}; give one type")
        if not bool(y.isfinite().all()) or (not y.dtype.is_floating_point and int(y.min()) < 0):
            raise InvalidValueError(
                f"y of graph {index} holds NaN, infinity or a negative class; number classes from 0"
            )
    per_node = all(g.y.dim() and len(g.y) == g.num_nodes for g in graphs) and any(g.num_nodes > 1 for g in graphs)
    widths = {g.y.numel() // g.num_nodes if per_node else g.y.numel() for g in graphs}
    classes = not graphs[0].y.dtype.is_floating_point
    if len(widths) > 1 or (classes and widths != {1}):
        raise InvalidValueError(
            f"the targets have {', '.join(map(str, sorted(widths)))} values; give one class, or equally many numbers, "
            "for each graph or for each node"
        )
    (width,) = widths
    if classes:
        return "cross_entropy", 1 + max(int(g.y.max()) for g in graphs), "node" if per_node else "mean"
    return ("mse", width, "node") if per_node else ("mae", width, "sum")


def _model(options: Options, graphs: list[Any], outputs: int, readout: str) -> nn.Module:
    encoder = make_encoder(options.pe, options.dim, options.samples, options.seed)
    node_types, node_features = _inputs("x", graphs)
    edge_types, edge_features = _inputs("edge_attr", [g for g in graphs if g.num_edges])
    build = PEARLGIN if options.model == "gin" else PEARLGPS
    return build(
        encoder, outputs, hidden=options.hidden, layers=options.layers, node_types=node_types,
        node_features=node_features, edge_types=edge_types, edge_features=edge_features, inject=options.inject,
        readout=readout,
    )  # fmt: skip


def _inputs(name: str, graphs: list[Any]) -> tuple[int, int]:
    """Number of types, or width of the features, in ``x`` or ``edge_attr``: one column of integers are types."""
    found = [graph.get(name) for graph in graphs]
    if all(values is None for values in found):
        return 0, 0
    for index, values in enumerate(found):
        first = found[0]
        if not isinstance(values, Tensor) or not isinstance(first, Tensor) or values.dim() not in {1, 2}:
            raise InvalidValueError(f"{name} of graph {index} is {_shown(values)}; give all graphs a tensor, or none")
        if values.dtype.is_floating_point != first.dtype.is_floating_point or values.shape[1:] != first.shape[1:]:
            raise InvalidValueError(
                f"{name} of graph {index} is {_shown(values)}, of the first {_shown(first)}; give one type and width"
            )
        if not bool(values.isfinite().all()):
            raise InvalidValueError(f"{name} of graph {index} holds NaN or infinite values; give finite features")
    values = [v for v in found if isinstance(v, Tensor)]
    width = values[0].shape[1] if values[0].dim() == 2 else 1
    if values[0].dtype.is_floating_point or width != 1:
        return 0, width
    if min(int(v.min()) for v in values if v.numel()) < 0:
        raise InvalidValueError(f"{name} holds negative types; number them from 0, or give floating-point features")
    return 1 + max(int(v.max()) for v in values if v.numel()), 0


def _shown(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
