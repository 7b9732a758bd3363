"""Training of graph models with an encoding inside: the recipe of the paper's appendix, resumable, with a plain log."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.checkpoint import CheckpointFolder
from octavo_core.device import resolve_device
from octavo_core.errors import InvalidStateError, InvalidValueError
from octavo_core.files import atomic_write, ensure_folder
from octavo_core.progress import ProgressCallback, no_progress
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from octavo_pearl_pe.checks import positive_number, whole_number
from octavo_pearl_pe.identity import differences, digest_graphs, digest_module
from octavo_pearl_pe.noise import mix_seed
from octavo_pearl_pe.norms import recompute_batch_statistics

__all__ = [
    "LOSSES",
    "RUN_FILES",
    "TrainingConfig",
    "TrainingResult",
    "collate",
    "evaluate",
    "learning_rate_factor",
    "train",
]

RUN_FILES = ("log.jsonl", "result.json", "encoder.safetensors")
"""Files of a run, beside its checkpoints."""

LOSSES = ("mae", "mse", "cross_entropy")
"""Losses; the metric is the mean absolute error, the coefficient of determination R^2, or the accuracy."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Args:
        epochs: Passes over the training graphs.
        batch_size: Graphs a step.
        lr: Peak learning rate of Adam.
        weight_decay: Weight decay; none on biases and norms.
        warmup: Share of the steps in which the rate rises from 0; it then falls to 0 along a cosine.
        clip: Largest gradient norm; None for no clipping.
        loss: One of ``LOSSES``.
        seed: Seed of the order of the graphs and of dropout.

    Raises:
        InvalidTypeError: If a value is of another type.
        InvalidValueError: If a value is out of range.
    """

    epochs: int = 50
    batch_size: int = 32
    lr: float | int = 1e-3
    weight_decay: float | int = 0.0
    warmup: float | int = 0.05
    clip: float | int | None = 1.0
    loss: str = "mae"
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("epochs", self.epochs)
        whole_number("batch_size", self.batch_size)
        whole_number("seed", self.seed, -(2**63), 2**64)
        positive_number("lr", self.lr)
        positive_number("weight_decay", self.weight_decay, zero=True)
        if self.clip is not None:
            positive_number("clip", self.clip)
        if positive_number("warmup", self.warmup, zero=True) >= 1:
            raise InvalidValueError(f"warmup={self.warmup} is out of range; give a share of the steps below 1")
        if self.loss not in LOSSES:
            raise InvalidValueError(f"unknown loss {self.loss!r}; give one of {', '.join(LOSSES)}")


@dataclass
class TrainingResult:
    """What happened.

    Args:
        history: For each epoch the training loss, the learning rate and, if asked for, the validation metric.
        seconds: CPU time of this process.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def learning_rate_factor(step: int, total: int, warmup: float) -> float:
    """Share of the peak learning rate: linear warm-up, then a cosine to 0.

    Args:
        step: Step about to be taken, from 0.
        total: Number of steps.
        warmup: Share of them that warm up.

    Returns:
        The factor, in (0, 1].
    """
    rising = max(1, round(warmup * total))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, total - rising)))


def train(
    model: nn.Module,
    graphs: Sequence[Data],
    config: TrainingConfig,
    *,
    valid: Sequence[Data] | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    identity: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
    progress: ProgressCallback = no_progress,
) -> TrainingResult:
    """Train a model on graphs with ``y``.

    A checkpoint is written after every epoch, and a run that is resumed ends with the same bits on the CPU as one that
    was not interrupted. Only the same run is resumed: graphs, model, encoder and configuration are compared, the number
    of epochs too, since the learning rate falls over all of them. With an initialised ``torch.distributed`` group the
    gradients are averaged by DDP and each process takes its share of every batch and draws inputs of its own.

    Args:
        model: Maps a batch to predictions, a row per graph (or per node, if ``y`` has one).
        graphs: Training graphs.
        config: How.
        valid: Graphs to evaluate on after each epoch.
        folder: Where checkpoints and ``log.jsonl`` go, without those of another run; None keeps nothing.
        resume: Continue from the newest checkpoint in ``folder``.
        identity: Plain values that a resumed run must share, besides what is compared anyway.
        device: Device.
        progress: Called with the epoch and the share done.

    Returns:
        The history.

    Raises:
        InvalidValueError: If there are no graphs, a graph has no ``y``, or ``resume`` has no folder.
        InvalidStateError: If the folder holds a run and ``resume`` is off, if the checkpoint is of another run, or if
            the loss is no longer finite.
    """
    if not len(graphs) or any(graph.get("y") is None for graph in graphs):
        raise InvalidValueError(f"{len(graphs)} training graphs, all of which need a target y; give at least one")
    if resume and folder is None:
        raise InvalidValueError("resume=True needs folder, where the run to continue keeps its checkpoints")
    target = resolve_device(device)
    checkpoints = None
    if folder is not None:
        checkpoints = CheckpointFolder(Path(ensure_folder(folder)) / "checkpoints")
        if not resume:
            _check_unused(Path(folder), checkpoints)
    known = asdict(config) | {"model": digest_module(model), "training graphs": digest_graphs(graphs)}
    known |= {"validation graphs": digest_graphs(valid or ())} | dict(identity or {})
    model.to(target)
    parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if parallel else 1
    rank = torch.distributed.get_rank() if parallel else 0
    runner = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if parallel else model
    optimizer = torch.optim.Adam(_groups(model, config.weight_decay), lr=config.lr)
    result = TrainingResult()
    first = _restore(model, optimizer, result, checkpoints, known) if resume and checkpoints else 0
    steps = math.ceil(len(graphs) / config.batch_size)
    start = time.process_time()
    for epoch in range(first, config.epochs):
        progress("training", epoch / config.epochs)
        model.train()
        order = np.random.default_rng(mix_seed(config.seed, epoch)).permutation(len(graphs))
        losses = []
        # Dropout draws from torch's global stream: one of its own for each epoch, so that a resumed run repeats it.
        with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
            torch.manual_seed(mix_seed(config.seed + rank, epoch))
            for step in range(steps):
                chosen = order[step * config.batch_size : (step + 1) * config.batch_size]
                share = chosen[rank::world] if len(chosen) >= world else chosen
                batch = collate([graphs[i] for i in share], target)
                rate = config.lr * learning_rate_factor(epoch * steps + step, config.epochs * steps, config.warmup)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.zero_grad()
                loss = _loss(runner(batch), batch.y, config.loss)
                loss.backward()
                if config.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                optimizer.step()
                losses.append(float(loss.detach()))
        entry: dict[str, Any] = {"epoch": epoch, "loss": float(np.mean(losses)), "lr": rate}
        if not math.isfinite(entry["loss"]):
            raise InvalidStateError(f"the loss became {entry['loss']} in epoch {epoch}; lower lr or set clip")
        if valid:
            entry["batch_norm_batches"] = _refresh(model, graphs, config, target)
            entry["valid"] = evaluate(model, valid, config.loss, batch_size=config.batch_size, device=target)
        result.history.append(entry)
        if checkpoints is not None and folder is not None and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": result.history}
            checkpoints.save(epoch + 1, state | {"identity": known})
            log = "".join(json.dumps(line) + "\n" for line in result.history)
            atomic_write(Path(folder) / "log.jsonl", log)
    if not valid:
        _refresh(model, graphs, config, target)
    model.eval()
    progress("training", 1.0)
    result.seconds = time.process_time() - start
    return result


@torch.no_grad()
def evaluate(
    model: nn.Module,
    graphs: Sequence[Data],
    loss: str,
    *,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
) -> float:
    """Evaluate a model; every graph or node weighs alike, whatever its batch.

    Args:
        model: The model; left in evaluation mode.
        graphs: Graphs with ``y``.
        loss: One of ``LOSSES``, which names the metric.
        batch_size: Graphs at a time.
        device: Device.

    Returns:
        Mean absolute error, mean R^2 over the outputs, or accuracy.

    Raises:
        InvalidValueError: If there are no graphs.
    """
    if not len(graphs):
        raise InvalidValueError("no graphs to evaluate on; give at least one")
    model.eval()
    outputs, targets = [], []
    for start in range(0, len(graphs), batch_size):
        batch = collate(graphs[start : start + batch_size], device)
        outputs.append(model(batch))
        targets.append(batch.y)
    output, target = torch.cat(outputs), torch.cat(targets)
    if loss == "cross_entropy":
        return float((output.argmax(1) == target.view(-1)).double().mean())
    output, target = output.double().view(len(output), -1), target.double().view(len(output), -1)
    if loss == "mae":
        return float((output - target).abs().mean())
    residual = ((output - target) ** 2).sum(0)
    total = ((target - target.mean(0)) ** 2).sum(0).clamp_min(1e-12)
    return float((1.0 - residual / total).mean())


def collate(graphs: Sequence[Data], device: str | torch.device = "cpu") -> Any:
    """Join graphs into one block-diagonal PyG batch.

    Args:
        graphs: The graphs.
        device: Where the batch goes.

    Returns:
        The batch.
    """
    # Batch takes its methods from Data at run time, which a type checker cannot see.
    batch: Any = Batch.from_data_list(list(graphs))
    return batch.to(str(device))


def _loss(output: Tensor, target: Tensor, loss: str) -> Tensor:
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(output, target.view(-1).long())
    target = target.to(output.dtype).view_as(output)
    return nn.functional.l1_loss(output, target) if loss == "mae" else nn.functional.mse_loss(output, target)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _refresh(model: nn.Module, graphs: Sequence[Data], config: TrainingConfig, device: torch.device) -> int:
    batches = (
        collate(graphs[start : start + config.batch_size], device) for start in range(0, len(graphs), config.batch_size)
    )
    return recompute_batch_statistics(model, batches, model)


def _check_unused(folder: Path, checkpoints: CheckpointFolder) -> None:
    if checkpoints.steps() or any((folder / name).exists() for name in RUN_FILES):
        raise InvalidStateError(
            f"the folder {str(folder)!r} holds a run already; continue it with --resume (resume=True), or name another "
            "folder"
        )


def _restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    result: TrainingResult,
    checkpoints: CheckpointFolder,
    known: dict[str, Any],
) -> int:
    found = checkpoints.latest()
    if found is None:
        return 0
    epoch, state = found
    if found := differences(state.get("identity", {}), known):
        raise InvalidStateError(
            f"the checkpoint is of another run: {'; '.join(found)}; ask for the same, or name another folder"
        )
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        line = " ".join(str(error).split())[:300]
        raise InvalidStateError(f"the checkpoint is of a model of other dimensions: {line}") from error
    result.history = list(state["history"])
    return epoch
