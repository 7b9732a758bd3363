from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo_core import assets, data
from octavo_core.data import ImageDataset, animal_mnist, digits, photo_patches
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError

pytest.importorskip("sklearn")
skimage_data = pytest.importorskip("skimage.data")
with_animals = pytest.mark.skipif(
    not assets.is_installed("animal-mnist-images"), reason=assets.ASSETS["animal-mnist-images"].install
)


def check(dataset: ImageDataset, shape: tuple[int, ...], train: int, test: int) -> None:
    """Check what every loader promises: shapes, types, range and classes present in both parts."""
    for images, labels, count in (
        (dataset.train_images, dataset.train_labels, train),
        (dataset.test_images, dataset.test_labels, test),
    ):
        assert images.shape == (count, *shape)
        assert (images.dtype, labels.dtype) == (np.float32, np.int64)
        assert 0 <= images.min() < 0.1
        assert 0.9 < images.max() <= 1
        assert set(labels.tolist()) == set(range(len(dataset.classes)))
    assert dataset.licence


def rows(images: np.ndarray, labels: np.ndarray) -> list[tuple[bytes, int]]:
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def test_digits_split_all_images_by_class() -> None:
    dataset = digits(test_share=0.25, seed=1)
    check(dataset, (1, 8, 8), 1347, 450)
    test_share = np.bincount(dataset.test_labels) / (
        np.bincount(dataset.test_labels) + np.bincount(dataset.train_labels)
    )
    assert np.abs(test_share - 0.25).max() < 0.01
    # Together the parts are the whole set, whatever the split: so the parts are disjoint too.
    other = digits(test_share=0.5, seed=2)
    whole = [
        rows(
            np.concatenate([part.train_images, part.test_images]), np.concatenate([part.train_labels, part.test_labels])
        )
        for part in (dataset, other)
    ]
    assert whole[0] == whole[1]
    assert len(whole[0]) == 1797


@with_animals
def test_animals_are_ten_classes_of_a_thousand() -> None:
    dataset = animal_mnist()
    check(dataset, (1, 28, 28), 8000, 2000)
    assert np.bincount(dataset.test_labels).tolist() == [200] * 10
    assert np.bincount(dataset.train_labels).tolist() == [800] * 10


def test_photo_patches_have_the_sizes_asked_for() -> None:
    dataset = photo_patches(size=24, train_per_class=6, test_per_class=3)
    check(dataset, (3, 24, 24), 120, 60)
    assert len(dataset.classes) == 20
    assert np.bincount(dataset.train_labels).tolist() == [6] * 20


def test_photo_patches_of_the_two_parts_come_from_different_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every picture becomes one whose colour says the column.
    column = np.broadcast_to(np.arange(240, dtype=np.uint8), (180, 240))
    for name in data._PHOTOS:
        monkeypatch.setattr(skimage_data, name, lambda: column, raising=False)
    dataset = photo_patches(size=40, train_per_class=50, test_per_class=50)
    assert dataset.train_images.max() * 255 == pytest.approx(119)
    assert dataset.test_images.min() * 255 == pytest.approx(120)
    assert dataset.train_images.min() == 0


def test_the_largest_patch_fits_every_photograph() -> None:
    assert photo_patches(size=168, train_per_class=1, test_per_class=1).train_images.shape == (20, 3, 168, 168)


@pytest.mark.parametrize(
    "load",
    [
        lambda seed: digits(seed=seed),
        lambda seed: photo_patches(size=16, train_per_class=2, test_per_class=2, seed=seed),
        pytest.param(lambda seed: animal_mnist(seed=seed), marks=with_animals),
    ],
)
def test_a_seed_names_the_split_and_the_checksum_names_the_data(load: Any) -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first, again, other = load(0), load(0), load(1)
    assert first.checksum == again.checksum != other.checksum
    assert np.array_equal(before, np.random.get_state()[1])


def test_checksums_stay_the_same_between_versions() -> None:
    assert digits().checksum == "b0c4307ed7ccb3afed993620d96b0c317a3b3b952fb477832d31a552551681c3"
    assert (
        photo_patches(size=16, train_per_class=2, test_per_class=2).checksum
        == "ad0a3a7fdcf45c1b714b19742adb786742ce54ab5fa1398d9678e6b59ae039bf"
    )


@with_animals
def test_the_animals_checksum_stays_the_same() -> None:
    assert animal_mnist().checksum == "4c5b15a1897f9d683a255b404ca274bc2f08e5e660f7e88c686d3fad5e135564"


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidValueError, match="give a share between 0 and 1"):
        digits(test_share=share)


@pytest.mark.parametrize(
    "options", [{"size": 7}, {"size": 169}, {"train_per_class": 0}, {"test_per_class": -1}], ids=str
)
def test_patches_that_cannot_be_cut_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="give a size from 8 to 168 and counts of 1 or more"):
        photo_patches(**options)


def test_other_data_in_the_place_of_digits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (np.zeros((2, 64)), np.zeros(2)))
    with pytest.raises(InvalidStateError, match=r"digits have SHA-256 .*, expected"):
        digits()


@pytest.mark.parametrize(("module", "load"), [("sklearn.datasets", digits), ("skimage", photo_patches)])
def test_a_missing_library_names_the_extra(module: str, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'octavo-core\[data\]'"):
        load()


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_before_anything_runs(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    for payload in (
        _Runs(os.mkdir, str(made)),
        _Runs(os.system, f"mkdir {made}"),
        _Runs(eval, f"__import__('os').mkdir({str(made)!r})"),
        [np.zeros(2), {"deep": _Runs(os.mkdir, str(made))}],
    ):
        with pytest.raises(InvalidStateError, match="only NumPy arrays are read, and nothing was run"):
            data._unpickle_array(pickle.dumps(payload, protocol=protocol))
    assert not made.exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2], protocol=2),
        pickle.dumps(np.array([{"a": 1}, None], dtype=object), protocol=2),
        pickle.dumps(np.zeros(3), protocol=2)[:-4],
        b"",
        b"no pickle",
        gzip.compress(b"x", mtime=0),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidStateError, match=r"the file (holds|is not|asks)"):
        data._unpickle_array(content)


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_arrays_written_by_either_numpy_are_read(module: bytes) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    content = pickle.dumps(array, protocol=3).replace(b"numpy._core.multiarray", module)
    assert module in content
    assert np.array_equal(data._unpickle_array(content), array)
