"""Multi-task data from scikit-learn's 1,797 handwritten digits, split once and for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from octavo_core.errors import InvalidValueError
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

__all__ = ["MultiTaskData", "Split", "digit_attributes", "digit_pairs"]

PAIR_SHAPE = (10, 12)
# Fixed apart from the seeds of training, so that every run of a study sees the same examples.
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Split:
    """Examples of one part of a data set.

    Args:
        images: Returns the images of some indices, (examples, channels, height, width), values in [0, 1].
        labels: Label of each example in each task.
    """

    images: Callable[[Int64[np.ndarray, " batch"]], Float32[Tensor, "batch channels height width"]]
    labels: Int64[Tensor, "examples tasks"]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class MultiTaskData:
    """A data set whose examples are labelled in several tasks.

    Args:
        name: What it is called.
        tasks: Name of each task.
        num_classes: Classes of every task; 2 makes them binary with one logit.
        image_shape: Channels, height, width.
        train: Examples to learn from.
        valid: Examples that choose the epoch.
        test: Examples that are scored.
    """

    name: str
    tasks: tuple[str, ...]
    num_classes: int
    image_shape: tuple[int, int, int]
    train: Split
    valid: Split
    test: Split


def digit_pairs(*, pairs_per_digit: int = 3) -> MultiTaskData:
    """Make images of two overlapping digits; the tasks are to name the left and the right one.

    Two images of 8 x 8 pixels are laid over each other on a canvas of 10 x 12, the left one at the top left, the right
    one at the bottom right; half of each is covered by the other, the brighter pixel showing. Both come from the same
    part of the data, so no digit of a test image was seen in training.

    Args:
        pairs_per_digit: Pairs in which each digit is the left one, at least 1.

    Returns:
        Two tasks of ten classes.

    Raises:
        InvalidValueError: If the number is below 1.

    Source:
        The construction follows MultiMNIST.
    """
    if pairs_per_digit < 1:
        raise InvalidValueError(f"pairs_per_digit={pairs_per_digit} must be at least 1")
    splits = []
    for index, (images, labels) in enumerate(_digits()):
        generator = np.random.default_rng([_SPLIT_SEED, index])
        left = np.tile(np.arange(len(images)), pairs_per_digit)
        right = generator.permuted(np.tile(np.arange(len(images)), (pairs_per_digit, 1)), axis=1).reshape(-1)
        canvas = np.zeros((len(left), *PAIR_SHAPE), dtype=np.float32)
        canvas[:, :8, :8] = images[left]
        canvas[:, 2:, 4:] = np.maximum(canvas[:, 2:, 4:], images[right])
        splits.append(_split(canvas, np.stack([labels[left], labels[right]], axis=1)))
    return MultiTaskData("digit pairs", ("left digit", "right digit"), 10, (1, *PAIR_SHAPE), *splits)


def digit_attributes(num_tasks: int = 40, *, seed: int = 0) -> MultiTaskData:
    """Make binary tasks on single digits: is the digit in a random half of the ten classes?

    Args:
        num_tasks: Number of tasks, from 1 to 252, the number of such halves.
        seed: Seed of the halves.

    Returns:
        That many binary tasks; no two ask for the same half.

    Raises:
        InvalidValueError: If the number is out of range.

    Source:
        A stand-in for the 40 attributes of CelebA.
    """
    if not 1 <= num_tasks <= 252:
        raise InvalidValueError(
            f"{num_tasks} tasks asked for; there are 252 ways to take half of ten digits, give 1 to 252"
        )
    generator = np.random.default_rng(seed)
    halves: dict[tuple[int, ...], None] = {}
    while len(halves) < num_tasks:
        halves[tuple(sorted(generator.choice(10, size=5, replace=False).tolist()))] = None
    members = np.zeros((num_tasks, 10), dtype=np.int64)
    for task, half in enumerate(halves):
        members[task, list(half)] = 1
    splits = [_split(images, members[:, labels].T) for images, labels in _digits()]
    names = tuple("".join(map(str, half)) for half in halves)
    return MultiTaskData(f"digit attributes ({num_tasks})", names, 2, (1, 8, 8), *splits)


def _digits() -> list[tuple[Float32[np.ndarray, "examples 8 8"], Int64[np.ndarray, " examples"]]]:
    """Images in [0, 1] and labels: 60 % to train, 20 % to validate, 20 % to test, classes in proportion."""
    found = load_digits()
    images = (found.images / 16.0).astype(np.float32)
    labels = found.target.astype(np.int64)
    rest, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=_SPLIT_SEED, stratify=labels)
    train, valid = train_test_split(rest, test_size=0.25, random_state=_SPLIT_SEED, stratify=labels[rest])
    return [(images[part], labels[part]) for part in (train, valid, test)]


def _split(images: Float[np.ndarray, "examples height width"], labels: Int[np.ndarray, "examples tasks"]) -> Split:
    tensor = torch.from_numpy(images).unsqueeze(1)
    return Split(lambda indices: tensor[torch.from_numpy(indices)], torch.from_numpy(np.ascontiguousarray(labels)))
