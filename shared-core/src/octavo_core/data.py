"""Small real image sets that ship inside packages: no download, deterministic splits.

| loader | images | classes | size | licence | source |
|---|---|---|---|---|---|
| :func:`digits` | 1,797 | 10 | 1 x 8 x 8 | BSD-3-Clause | scikit-learn |
| :func:`animal_mnist` | 10,000 | 10 | 1 x 28 x 28 | MIT | asset package ``animal-mnist`` |
| :func:`photo_patches` | as asked | 20 | 3 x size x size | per image, see scikit-image's data README | scikit-image |
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy._core.multiarray import _reconstruct

from octavo_core.assets import locate
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError

__all__ = ["ImageDataset", "animal_mnist", "digits", "photo_patches"]

_DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
_PHOTOS = (
    *("astronaut", "brick", "camera", "cell", "chelsea", "clock", "coffee", "coins", "colorwheel", "grass"),
    *("gravel", "horse", "hubble_deep_field", "immunohistochemistry", "moon", "page", "retina", "rocket"),
    *("stereo_motorcycle", "text"),
)


@dataclass(frozen=True)
class ImageDataset:
    """Images with labels, split in two.

    Args:
        name: Name of the set.
        train_images: (n, channels, height, width), in [0, 1].
        train_labels: (n,), class indices.
        test_images: (k, channels, height, width), in [0, 1].
        test_labels: (k,), class indices.
        classes: Class names by index.
        licence: Licence of the images.
    """

    name: str
    train_images: Float32[np.ndarray, "n channels height width"]
    train_labels: Int64[np.ndarray, " n"]
    test_images: Float32[np.ndarray, "k channels height width"]
    test_labels: Int64[np.ndarray, " k"]
    classes: tuple[str, ...]
    licence: str

    @property
    def checksum(self) -> str:
        """SHA-256 of all arrays: names the exact data in a report."""
        parts = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def digits(*, test_share: float = 0.25, seed: int = 0) -> ImageDataset:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, split by class in equal proportions.

    Args:
        test_share: Share of each class kept for testing, in (0, 1).
        seed: Seed of the split.

    Returns:
        The data set.

    Raises:
        InvalidValueError: If the share is out of range.
        MissingDependencyError: If scikit-learn is not installed.
        InvalidStateError: If the installed data is not the known one.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError.for_extra("scikit-learn", "octavo-core", "data") from error
    pixels, labels = load_digits(return_X_y=True)
    found = hashlib.sha256(pixels.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    if found != _DIGITS_SHA256:
        raise InvalidStateError(
            f"scikit-learn's digits have SHA-256 {found[:12]}…, expected {_DIGITS_SHA256[:12]}…; "
            "reinstall it with: pip install --force-reinstall scikit-learn"
        )
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    names = tuple(str(digit) for digit in range(10))
    return _split("digits", images, labels.astype(np.int64), names, "BSD-3-Clause", test_share, seed)


def animal_mnist(*, test_share: float = 0.2, seed: int = 0) -> ImageDataset:
    """Load 10,000 animal silhouettes of 28 x 28 pixels, ten classes of 1,000, split by class in equal proportions.

    The files are gzipped pickles; they are read by an unpickler that can build NumPy arrays and nothing else.

    Args:
        test_share: Share of each class kept for testing, in (0, 1).
        seed: Seed of the split.

    Returns:
        The data set.

    Raises:
        InvalidValueError: If the share is out of range.
        MissingDependencyError: If the asset package is not installed.
        InvalidStateError: If the files are not the known ones.
    """
    pixels, labels = (
        _unpickle_array(gzip.decompress(locate(f"animal-mnist-{part}").read_bytes())) for part in ("images", "labels")
    )
    images = (pixels.astype(np.float32) / 255.0)[:, None]
    names = tuple(f"animal {index}" for index in range(10))
    return _split("animal-mnist", images, labels.astype(np.int64), names, "MIT", test_share, seed)


def photo_patches(
    *, size: int = 48, train_per_class: int = 100, test_per_class: int = 50, seed: int = 0
) -> ImageDataset:
    """Cut random patches from 20 real photographs and micrographs; the photograph is the class.

    Training patches come from the left half of each picture and test patches from the right, so that none overlap.

    Args:
        size: Side of a patch in pixels, from 8 to 168.
        train_per_class: Training patches per photograph, at least 1.
        test_per_class: Test patches per photograph, at least 1.
        seed: Seed of the cuts.

    Returns:
        The data set, RGB.

    Raises:
        InvalidValueError: If a size or a count is out of range.
        MissingDependencyError: If scikit-image is not installed.
    """
    if not 8 <= size <= 168 or train_per_class < 1 or test_per_class < 1:
        raise InvalidValueError(
            f"patches of {size} pixels, {train_per_class} and {test_per_class} per class, cannot be cut; "
            "give a size from 8 to 168 and counts of 1 or more"
        )
    try:
        from skimage import data
    except ImportError as error:
        raise MissingDependencyError.for_extra("scikit-image", "octavo-core", "data") from error
    rng = np.random.default_rng(seed)
    patches: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for name in _PHOTOS:
        photo = _rgb(getattr(data, name)())
        middle = photo.shape[1] // 2
        for part, half, count in (
            ("train", photo[:, :middle], train_per_class),
            ("test", photo[:, middle:], test_per_class),
        ):
            rows = rng.integers(half.shape[0] - size + 1, size=count)
            columns = rng.integers(half.shape[1] - size + 1, size=count)
            windows = np.lib.stride_tricks.sliding_window_view(half, (size, size), axis=(0, 1))
            patches[part].append(windows[rows, columns])
    labels = np.arange(len(_PHOTOS))
    return ImageDataset(
        "photo-patches",
        np.concatenate(patches["train"]).astype(np.float32) / np.float32(255),
        labels.repeat(train_per_class),
        np.concatenate(patches["test"]).astype(np.float32) / np.float32(255),
        labels.repeat(test_per_class),
        _PHOTOS,
        "per image: see the README of scikit-image's data folder",
    )


def _split(
    name: str, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], licence: str, share: float, seed: int
) -> ImageDataset:
    if not 0 < share < 1:
        raise InvalidValueError(f"test_share={share} is out of range; give a share between 0 and 1, e.g. 0.25")
    order = np.random.default_rng(seed).permutation(len(labels))
    test = np.zeros(len(labels), dtype=bool)
    for label in range(len(classes)):
        members = order[labels[order] == label]
        test[members[: round(share * len(members))]] = True
    train = order[~test[order]]
    held_out = order[test[order]]
    return ImageDataset(name, images[train], labels[train], images[held_out], labels[held_out], classes, licence)


def _rgb(photo: np.ndarray | tuple[np.ndarray, ...]) -> np.ndarray:
    """Return (height, width, 3) in [0, 255]: the left picture of a stereo pair, grey as three equal channels."""
    picture = photo[0] if isinstance(photo, tuple) else photo
    if picture.dtype == bool:
        picture = picture.astype(np.uint8) * np.uint8(255)
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=-1)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that resolves the three names a NumPy array needs, and refuses every other."""

    def find_class(self, module: str, name: str) -> Any:
        # Files written by NumPy 1 name numpy.core, which NumPy 2 calls numpy._core.
        match module.replace("numpy.core", "numpy._core"), name:
            case "numpy._core.multiarray", "_reconstruct":
                return _reconstruct
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
        raise InvalidStateError(f"the file asks for {module}.{name}; only NumPy arrays are read, and nothing was run")


def _unpickle_array(content: bytes) -> np.ndarray:
    try:
        array = _ArrayUnpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidStateError(f"the file is not a pickled NumPy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise InvalidStateError(f"the file holds a {type(array).__name__}, not an array of numbers")
    return array
