"""CelebA from the folder layout of its authors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError, MissingFileError
from torch import Tensor

from octavo_config_grad.mtl.data import MultiTaskData, Split

__all__ = ["load_celeba"]

ATTRIBUTES_FILE = Path("Anno", "list_attr_celeba.txt")
PARTITION_FILE = Path("Eval", "list_eval_partition.txt")
IMAGES_FOLDER = Path("Img", "img_align_celeba")


def load_celeba(root: str | os.PathLike[str], *, image_size: int = 64) -> MultiTaskData:
    """Read CelebA: one binary task for each attribute, the official partition.

    Images are read when they are asked for, scaled to ``image_size``.

    Args:
        root: Folder that holds ``Anno/list_attr_celeba.txt``, ``Eval/list_eval_partition.txt`` and
            ``Img/img_align_celeba/``.
        image_size: Height and width in pixels, at least 8.

    Returns:
        The data.

    Raises:
        MissingFileError: If a file is missing.
        InvalidStateError: If a list cannot be read.
        InvalidValueError: If the lists do not fit together, a part is empty, or the size is too small.
        MissingDependencyError: If Pillow is not installed.

    Source:
        The paper's multi-task benchmark (40 attributes, 64 x 64 pixels).
    """
    if image_size < 8:
        raise InvalidValueError(f"image_size={image_size} is too small; give 8 or more pixels")
    folder = Path(root)
    for needed in (ATTRIBUTES_FILE, PARTITION_FILE, IMAGES_FOLDER):
        if not (folder / needed).exists():
            raise MissingFileError(
                f"no {needed.as_posix()} in {str(folder)!r}; give the folder that holds Anno, Eval and Img of CelebA"
            )
    names, attributes, labels = _read_attributes(folder / ATTRIBUTES_FILE)
    part_of = _read_partition(folder / PARTITION_FILE)
    unplaced = next((name for name in names if name not in part_of), None)
    if unplaced is not None:
        raise InvalidValueError(f"{unplaced!r} has attributes and no line in {PARTITION_FILE.as_posix()}")
    parts = np.array([part_of[name] for name in names])
    splits = []
    for part, title in enumerate(("training", "validation", "test")):
        rows = np.flatnonzero(parts == part)
        if not len(rows):
            raise InvalidValueError(f"{PARTITION_FILE.as_posix()} has no {title} image (number {part})")
        files = [folder / IMAGES_FOLDER / names[row] for row in rows]
        splits.append(Split(_Images(files, image_size), torch.from_numpy(labels[rows])))
    return MultiTaskData("CelebA", tuple(attributes), 2, (3, image_size, image_size), *splits)


class _Images:
    """Reads image files when their indices are asked for."""

    def __init__(self, files: list[Path], size: int) -> None:
        try:
            from PIL import Image
        except ModuleNotFoundError as error:
            raise MissingDependencyError("Pillow is not installed and CelebA needs it: pip install pillow") from error
        self._image = Image
        self._files = files
        self._size = size

    def __call__(self, indices: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch 3 height width"]:
        pixels = np.stack([self._read(self._files[index]) for index in indices])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255.0

    def _read(self, file: Path) -> np.ndarray:
        try:
            with self._image.open(file) as image:
                return np.asarray(image.convert("RGB").resize((self._size, self._size)))
        except FileNotFoundError as error:
            raise MissingFileError(f"no image {str(file)!r}, though the lists of CelebA name it") from error
        except OSError as error:
            raise InvalidStateError(f"image {str(file)!r} cannot be read; it is damaged") from error


def _read_attributes(file: Path) -> tuple[list[str], list[str], Int64[np.ndarray, "images attributes"]]:
    lines = _lines(file)
    try:
        count, attributes = int(lines[0]), lines[1].split()
        rows = [line.split() for line in lines[2:]]
        labels = np.array([[int(value) for value in row[1:]] for row in rows], dtype=np.int64)
    except (ValueError, IndexError) as error:
        raise InvalidStateError(
            f"{str(file)!r} is not CelebA's list: a count, a line of names, then a file name and -1 or 1 for each name"
        ) from error
    if labels.shape != (count, len(attributes)) or not np.isin(labels, (-1, 1)).all():
        raise InvalidValueError(
            f"{str(file)!r} announces {count} images of {len(attributes)} attributes and holds a table of "
            f"{' x '.join(map(str, labels.shape))}; every entry must be -1 or 1"
        )
    return [row[0] for row in rows], attributes, (labels + 1) // 2


def _read_partition(file: Path) -> dict[str, int]:
    try:
        parts = {name: int(part) for name, part in (line.split() for line in _lines(file))}
    except ValueError as error:
        raise InvalidStateError(f"{str(file)!r} must hold a file name and 0, 1 or 2 on each line") from error
    if not set(parts.values()) <= {0, 1, 2}:
        raise InvalidValueError(f"{str(file)!r} has parts {sorted(set(parts.values()))}; they must be 0, 1 or 2")
    return parts


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStateError(f"{str(file)!r} cannot be read as text") from error
