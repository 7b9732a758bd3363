"""Training a shared trunk with task heads by several methods, and comparing them task by task."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from octavo_core.device import resolve_device, synchronize
from octavo_core.errors import InvalidValueError
from scipy.stats import rankdata
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional

from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.mtl.data import MultiTaskData, Split
from octavo_config_grad.optimizer import ConFIGOptimizer
from octavo_config_grad.pinn.methods import AGGREGATORS, make_aggregator

__all__ = ["STUDY_METHODS", "StudyConfig", "StudyResult", "TaskNetwork", "TaskResult", "run_study", "train_tasks"]

STUDY_METHODS = ("sum", "pcgrad", "imtl-g", "upgrad", "config", "m-config-1", "m-config-10", "m-config-40")
"""Methods of the paper's comparison; ``m-config-k`` refreshes k tasks a step. UPGrad needs torchjd."""

_CONV_WIDTHS = (64, 128, 128, 256, 256, 512, 512)
_SMALL_PIXELS = 32


@dataclass(frozen=True)
class StudyConfig:
    """Settings that all methods share.

    Args:
        epochs: Passes over the training examples.
        batch_size: Examples of a step.
        lr: Learning rate of Adam and M-ConFIG, for trunk and heads alike.
        hidden: Widths of the trunk for small images; images of 32 pixels and more get the paper's convolutions.
        device: Where to compute.

    Raises:
        InvalidValueError: If a number is out of range.

    Source:
        The paper's multi-task benchmark: Adam 3e-4, batch 256, 15 epochs for CelebA; the defaults suit the digits.
    """

    epochs: int = 30
    batch_size: int = 64
    lr: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    device: str = "cpu"

    def __post_init__(self) -> None:
        numbers = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        for name, value in (*numbers.items(), *(("hidden width", width) for width in self.hidden)):
            if not value > 0:
                raise InvalidValueError(f"{name}={value} must be positive")


@dataclass(frozen=True)
class TaskResult:
    """Outcome of one method with one seed.

    Args:
        method: Name of the method.
        seed: Seed of the network and of the order of examples.
        test_f1: F1 on the test examples for each task, at the epoch with the best mean validation F1.
        valid_f1: Mean validation F1 after each epoch.
        best_epoch: That epoch, from 0.
        steps: Optimizer steps.
        backward_passes: Passes of a task's loss through the trunk.
        seconds: Seconds of training, without scoring.
    """

    method: str
    seed: int
    test_f1: Float64[np.ndarray, " tasks"]
    valid_f1: Float64[np.ndarray, " epochs"]
    best_epoch: int
    steps: int
    backward_passes: int
    seconds: float


@dataclass(frozen=True)
class StudyResult:
    """Outcome of several methods with several seeds.

    Args:
        data: Name of the data.
        tasks: Name of each task.
        methods: Name of each method.
        seeds: The seeds.
        results: One outcome for each method and seed, in this order.
    """

    data: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[TaskResult, ...]

    @property
    def test_f1(self) -> Float64[np.ndarray, "methods seeds tasks"]:
        """F1 of each method, seed and task."""
        scores = np.stack([result.test_f1 for result in self.results])
        return scores.reshape(len(self.methods), len(self.seeds), len(self.tasks))

    @property
    def mean_f1(self) -> Float64[np.ndarray, " methods"]:
        """Mean over seeds and tasks."""
        return self.test_f1.mean(axis=(1, 2))

    @property
    def mean_rank(self) -> Float64[np.ndarray, " methods"]:
        """Rank among the methods, averaged over seeds and tasks; 1 is best, ties share their mean rank."""
        return rankdata(-self.test_f1, axis=0).mean(axis=(1, 2))

    def table(self) -> list[dict[str, Any]]:
        """Return one row of figures for each method.

        Returns:
            JSON-ready mappings.
        """
        grouped = np.array(self.results, dtype=object).reshape(len(self.methods), len(self.seeds))
        return [
            {
                "method": method,
                "mean_f1": float(self.mean_f1[index]),
                "f1_of_seeds": [float(score) for score in self.test_f1[index].mean(axis=1)],
                "mean_rank": float(self.mean_rank[index]),
                "backward_passes": grouped[index, 0].backward_passes,
                "seconds": float(np.mean([result.seconds for result in grouped[index]])),
            }
            for index, method in enumerate(self.methods)
        ]


class TaskNetwork(nn.Module):
    """A trunk that all tasks share, and one linear head for each.

    The heads are the row blocks of one matrix, so that they are evaluated together; each block receives the gradient of
    its own task only.

    Args:
        image_shape: Channels, height, width.
        num_tasks: Number of tasks.
        num_classes: Classes of each; 2 gives one logit.
        hidden: Widths of the trunk for small images.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], num_tasks: int, num_classes: int, hidden: Sequence[int]
    ) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        self.outputs = 1 if num_classes == 2 else num_classes
        self.trunk, width = _trunk(image_shape, hidden)
        self.heads = nn.Linear(width, num_tasks * self.outputs)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tasks outputs"]:
        """Return the logits of every task.

        Args:
            images: The images.

        Returns:
            One logit for a binary task, one for each class otherwise.
        """
        return self.heads(self.trunk(images)).unflatten(1, (self.num_tasks, self.outputs))

    def losses(
        self, images: Float[Tensor, "batch channels height width"], labels: Int64[Tensor, "batch tasks"]
    ) -> Float[Tensor, " tasks"]:
        """Return the cross-entropy of every task.

        Args:
            images: The images.
            labels: Their labels.

        Returns:
            The mean over the batch for each task.
        """
        logits = self(images)
        if self.outputs == 1:
            entropy = functional.binary_cross_entropy_with_logits(logits[..., 0], labels.to(logits), reduction="none")
        else:
            entropy = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return entropy.mean(0)

    def predict(self, images: Float[Tensor, "batch channels height width"]) -> Int64[Tensor, "batch tasks"]:
        """Return the likeliest label of every task.

        Args:
            images: The images.

        Returns:
            The labels.
        """
        logits = self(images)
        return (logits[..., 0] > 0).long() if self.outputs == 1 else logits.argmax(-1)


def train_tasks(data: MultiTaskData, method: str, config: StudyConfig | None = None, *, seed: int = 0) -> TaskResult:
    """Train by one method and score every task.

    The method decides the update of the trunk; each head follows the gradient of its own loss by Adam. No method clips.

    Args:
        data: The data.
        method: ``"sum"``, ``"m-config-k"``, or a name that ``pinn.make_aggregator`` takes.
        config: Settings; the defaults if None.
        seed: Seed of the network and of the order of examples.

    Returns:
        The scores.

    Raises:
        InvalidValueError: If the method is unknown, or k is not from 1 to the number of tasks.
        MissingDependencyError: If the method needs torchjd and it is not installed.

    Source:
        The paper's multi-task benchmark.
    """
    _check_method(method)
    config = config or StudyConfig()
    device = resolve_device(config.device)
    with torch.random.fork_rng(devices=[]):
        # nn.Linear draws from the global generator; it is put back.
        torch.manual_seed(seed)
        network = TaskNetwork(data.image_shape, len(data.tasks), data.num_classes, config.hidden).to(device)
    update, passes_per_step = _update(method, network, len(data.tasks), config.lr)
    order = np.random.default_rng(seed)
    scores: list[float] = []
    test_f1 = np.zeros(len(data.tasks))
    steps, seconds = 0, 0.0
    for _ in range(config.epochs):
        synchronize(device)
        start = time.perf_counter()
        network.train()
        for indices in _batches(order.permutation(len(data.train)), config.batch_size):
            images = data.train.images(indices).to(device)
            labels = data.train.labels[torch.from_numpy(indices)].to(device)
            update(network.losses(images, labels))
            steps += 1
        synchronize(device)
        seconds += time.perf_counter() - start
        score = float(_f1(network, data.valid, data.num_classes, config.batch_size, device).mean())
        if not scores or score > max(scores):
            test_f1 = _f1(network, data.test, data.num_classes, config.batch_size, device)
        scores.append(score)
    return TaskResult(
        method,
        seed,
        test_f1,
        np.array(scores),
        int(np.argmax(scores)),
        steps,
        steps * passes_per_step,
        seconds,
    )


def run_study(
    data: MultiTaskData,
    methods: Sequence[str] = STUDY_METHODS,
    config: StudyConfig | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    progress: Callable[[str, int], None] | None = None,
) -> StudyResult:
    """Train by several methods with several seeds.

    Args:
        data: The data.
        methods: Names of methods; those that refresh more tasks than there are are left out.
        config: Settings of all; the defaults if None.
        seeds: The seeds.
        progress: Called with method and seed before each training.

    Returns:
        All scores.

    Raises:
        InvalidValueError: If there is no method or seed, a method is given twice, or as for :func:`train_tasks`; before
            any training.
        MissingDependencyError: As for :func:`train_tasks`.
    """
    for position, method in enumerate(methods):
        _check_method(method)
        if method in methods[:position]:
            raise InvalidValueError(f"the method {method!r} is given twice; give each once")
    fitting = tuple(method for method in methods if (_refreshed(method) or 0) <= len(data.tasks))
    if not fitting or not seeds:
        raise InvalidValueError("a study needs at least one method that fits the data, and one seed")
    results = []
    for method in fitting:
        for seed in seeds:
            if progress is not None:
                progress(method, seed)
            results.append(train_tasks(data, method, config, seed=seed))
    return StudyResult(data.name, data.tasks, fitting, tuple(seeds), tuple(results))


def _update(method: str, network: TaskNetwork, num_tasks: int, lr: float) -> tuple[Callable[[Tensor], None], int]:
    """Return what a step does with the losses, and how many of them it sends back through the trunk."""
    refreshed = _refreshed(method)
    if refreshed is not None:
        if not 1 <= refreshed <= num_tasks:
            raise InvalidValueError(
                f"{method!r} refreshes {refreshed} of {num_tasks} tasks; give from 1 to {num_tasks}"
            )
        momentum = MConFIG(network.trunk.parameters(), num_tasks, lr=lr, updates_per_step=refreshed)
        head_parameters = list(network.heads.parameters())
        adam = torch.optim.Adam(head_parameters, lr=lr)

        def refresh(losses: Tensor) -> None:
            # Every head learns at every step: its gradient does not pass the trunk and costs next to nothing.
            gradients = torch.autograd.grad(losses.sum(), head_parameters, retain_graph=True)
            momentum.step({index: losses[index] for index in momentum.next_losses()})
            for parameter, gradient in zip(head_parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()

        return refresh, refreshed
    adam = torch.optim.Adam(network.parameters(), lr=lr)
    if method == "sum":

        def descend(losses: Tensor) -> None:
            adam.zero_grad()
            losses.sum().backward()
            adam.step()

        return descend, num_tasks
    combined = ConFIGOptimizer(adam, make_aggregator(method, num_tasks), shared=network.trunk, heads=network.heads)

    def combine(losses: Tensor) -> None:
        combined.step(list(losses))

    return combine, num_tasks


def _check_method(method: str) -> None:
    if method not in AGGREGATORS and _refreshed(method) is None:
        raise InvalidValueError(
            f"unknown method {method!r}; give one of {', '.join(AGGREGATORS)}, or m-config-<k> with a number k of tasks"
        )


def _refreshed(method: str) -> int | None:
    found = re.fullmatch(r"m-config-(\d+)", method)
    return None if found is None else int(found[1])


@torch.no_grad()
def _f1(
    network: TaskNetwork, split: Split, num_classes: int, batch_size: int, device: torch.device
) -> Float64[np.ndarray, " tasks"]:
    network.eval()
    parts = [
        network.predict(split.images(indices).to(device)).cpu()
        for indices in _batches(np.arange(len(split)), max(batch_size, 256))
    ]
    predicted, labels = torch.cat(parts).numpy(), split.labels.numpy()
    if num_classes == 2 and labels.shape[1] > 1:
        # The tasks are the columns of one multi-label problem, scored in one call.
        return f1_score(labels, predicted, average=None, zero_division=0.0)
    average = "binary" if num_classes == 2 else "macro"
    columns = zip(labels.T, predicted.T, strict=True)
    return np.array([f1_score(truth, guess, average=average, zero_division=0.0) for truth, guess in columns])


def _batches(indices: Int64[np.ndarray, " examples"], size: int) -> list[Int64[np.ndarray, " batch"]]:
    return np.split(indices, range(size, len(indices), size))


def _trunk(image_shape: tuple[int, int, int], hidden: Sequence[int]) -> tuple[nn.Sequential, int]:
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    if min(height, width) < _SMALL_PIXELS:
        layers.append(nn.Flatten())
        size = channels * height * width
        for outputs in hidden:
            layers += [nn.Linear(size, outputs), nn.ReLU()]
            size = outputs
        return nn.Sequential(*layers), size
    # Seven convolutions and two linear layers, as the paper's network; where it halves the image is inferred.
    for index, outputs in enumerate(_CONV_WIDTHS):
        stride = 2 if index % 2 == 0 else 1
        layers += [nn.Conv2d(channels, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        channels = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for _ in range(2):
        layers += [nn.Linear(channels, channels), nn.ReLU()]
    return nn.Sequential(*layers), channels
