"""The multi-task study: digits, and CelebA in the shape of its original folder."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from octavo_config_grad import mtl
from octavo_config_grad.mtl import study
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from PIL import Image

SHORT = mtl.StudyConfig(epochs=2, hidden=(32,), lr=1e-2)


@pytest.fixture(scope="module")
def pairs():
    return mtl.digit_pairs(pairs_per_digit=1)


@pytest.fixture(scope="module")
def attributes():
    return mtl.digit_attributes(4)


def images_of(split):
    return split.images(np.arange(len(split))).numpy()


def test_pairs_show_both_digits(pairs):
    assert (pairs.tasks, pairs.num_classes, pairs.image_shape) == (("left digit", "right digit"), 10, (1, 10, 12))
    assert [len(split) for split in (pairs.train, pairs.valid, pairs.test)] == [1077, 360, 360]
    images, labels = images_of(pairs.train), pairs.train.labels.numpy()
    assert images.shape == (1077, 1, 10, 12)
    assert images.min() == 0
    assert images.max() == 1
    assert sorted(np.unique(labels)) == list(range(10))
    # Each digit is on the left once and on the right once.
    assert np.array_equal(np.bincount(labels[:, 0]), np.bincount(labels[:, 1]))
    assert 0.05 < (labels[:, 0] == labels[:, 1]).mean() < 0.2


def test_attributes_are_different_halves_of_the_digits(attributes):
    assert len(set(attributes.tasks)) == 4
    assert all(len(task) == 5 for task in attributes.tasks)
    assert set(np.unique(attributes.test.labels)) == {0, 1}
    shares = attributes.train.labels.double().mean(0)
    assert ((shares > 0.45) & (shares < 0.55)).all()
    assert mtl.digit_attributes(4).tasks == attributes.tasks != mtl.digit_attributes(4, seed=1).tasks
    assert mtl.digit_attributes(252).train.labels.shape == (1077, 252)


def test_the_split_is_fixed_and_its_parts_are_apart(attributes):
    again = mtl.digit_attributes(4)
    parts = [images_of(split).reshape(len(split), -1) for split in (again.train, again.valid, again.test)]
    np.testing.assert_array_equal(parts[0], images_of(attributes.train).reshape(1077, -1))
    seen = {row.tobytes() for row in parts[0]}
    assert not any(row.tobytes() in seen for part in parts[1:] for row in part)


@pytest.mark.parametrize("method", ["sum", "pcgrad", "imtl-g", "mgda", "upgrad", "config", "m-config-1", "m-config-2"])
def test_every_method_learns_and_repeats(method, pairs):
    pytest.importorskip("torchjd")
    result = mtl.train_tasks(pairs, method, SHORT, seed=1)
    assert result.test_f1.shape == (2,)
    assert result.test_f1.min() > 0.2
    assert result.valid_f1[-1] > result.valid_f1[0]
    assert result.best_epoch == result.valid_f1.argmax()
    assert result.steps == 2 * 17
    assert result.backward_passes == result.steps * (1 if method == "m-config-1" else 2)
    np.testing.assert_array_equal(mtl.train_tasks(pairs, method, SHORT, seed=1).test_f1, result.test_f1)


def test_training_leaves_the_global_generator_alone(attributes):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    mtl.train_tasks(attributes, "sum", dataclasses.replace(SHORT, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_scores_are_the_f1_of_each_task(num_tasks):
    data = mtl.digit_attributes(num_tasks)
    scored = []

    class Guess(mtl.TaskNetwork):
        def predict(self, images):
            labels = super().predict(images)
            scored.append(labels)
            return labels

    network = Guess((1, 8, 8), num_tasks, 2, (16,))
    scores = study._f1(network, data.test, 2, 64, torch.device("cpu"))
    predicted, truth = torch.cat(scored), data.test.labels
    both = (predicted * truth).sum(0)
    np.testing.assert_allclose(scores, (2 * both / (predicted.sum(0) + truth.sum(0))).numpy())


def test_heads_follow_their_own_task(attributes):
    network = mtl.TaskNetwork((1, 8, 8), 4, 2, (16,))
    images, labels = attributes.train.images(np.arange(8)), attributes.train.labels[:8]
    gradient = torch.autograd.grad(network.losses(images, labels)[2], network.heads.weight)[0]
    assert gradient[2].any()
    assert not gradient[[0, 1, 3]].any()


def test_a_study_averages_and_ranks():
    def result(method, seed, *scores):
        return mtl.TaskResult(method, seed, np.array(scores), np.zeros(1), 0, 1, 2, 0.5)

    results = (result("a", 0, 0.9, 0.5), result("a", 1, 0.7, 0.5), result("b", 0, 0.8, 0.5), result("b", 1, 0.6, 0.9))
    study = mtl.StudyResult("toy", ("t1", "t2"), ("a", "b"), (0, 1), results)
    np.testing.assert_allclose(study.mean_f1, [0.65, 0.7])
    np.testing.assert_allclose(study.mean_rank, [(1 + 1.5 + 1 + 2) / 4, (2 + 1.5 + 2 + 1) / 4])
    assert study.table()[1]["f1_of_seeds"] == pytest.approx([0.65, 0.75])


def test_a_study_runs_what_fits_the_data(pairs):
    seen = []
    config = dataclasses.replace(SHORT, epochs=1)
    study = mtl.run_study(
        pairs, ("sum", "m-config-1", "m-config-10"), config, seeds=(0,), progress=lambda *job: seen.append(job)
    )
    assert study.methods == ("sum", "m-config-1")
    assert seen == [("sum", 0), ("m-config-1", 0)]
    assert [row["method"] for row in study.table()] == ["sum", "m-config-1"]


ATTRIBUTES = ("Smiling", "Young", "Eyeglasses")


@pytest.fixture
def celeba(tmp_path):
    """A folder shaped like CelebA: 12 images of 178 x 218 whose colour tells the first attribute."""
    for folder in ("Anno", "Eval", "Img/img_align_celeba"):
        (tmp_path / folder).mkdir(parents=True)
    rows, parts = [], []
    for number in range(12):
        name = f"{number + 1:06d}.jpg"
        smiling = 1 if number % 2 else -1
        color = (250, 20, 20) if smiling == 1 else (20, 20, 250)
        Image.new("RGB", (178, 218), color).save(tmp_path / "Img" / "img_align_celeba" / name)
        rows.append(f"{name}  {smiling: d} {-smiling: d}  1")
        parts.append(f"{name} {min(number // 4, 2)}")
    header = f"12\n{' '.join(ATTRIBUTES)} \n"
    (tmp_path / "Anno" / "list_attr_celeba.txt").write_text(header + "\n".join(rows) + "\n")
    (tmp_path / "Eval" / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return tmp_path


def test_celeba_is_read(celeba):
    data = mtl.load_celeba(celeba, image_size=32)
    assert (data.tasks, data.num_classes, data.image_shape) == (ATTRIBUTES, 2, (3, 32, 32))
    assert [len(split) for split in (data.train, data.valid, data.test)] == [4, 4, 4]
    assert data.train.labels.tolist() == [[0, 1, 1], [1, 0, 1], [0, 1, 1], [1, 0, 1]]
    images = data.test.images(np.array([0, 3]))
    assert images.shape == (2, 3, 32, 32)
    blue, red = images.mean((2, 3)).tolist()
    assert blue == pytest.approx([20 / 255, 20 / 255, 250 / 255], abs=0.02)
    assert red == pytest.approx([250 / 255, 20 / 255, 20 / 255], abs=0.02)


def test_the_convolutional_trunk_trains_on_celeba(celeba):
    result = mtl.train_tasks(
        mtl.load_celeba(celeba, image_size=32), "m-config-1", mtl.StudyConfig(epochs=1, batch_size=4)
    )
    assert result.test_f1.shape == (3,)
    assert np.isfinite(result.test_f1).all()


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_wrong_with_a_celeba_folder(celeba):
    attributes, partition = celeba / "Anno" / "list_attr_celeba.txt", celeba / "Eval" / "list_eval_partition.txt"
    with pytest.raises(MissingFileError, match=r"no Anno/list_attr_celeba\.txt in .*; give the folder that holds"):
        mtl.load_celeba(celeba / "Anno")
    with pytest.raises(InvalidValueError, match="image_size=4"):
        mtl.load_celeba(celeba, image_size=4)

    data = mtl.load_celeba(celeba)
    (celeba / "Img" / "img_align_celeba" / "000002.jpg").write_bytes(b"no image")
    with pytest.raises(InvalidStateError, match=r"image .*000002\.jpg' cannot be read"):
        data.train.images(np.array([1]))
    (celeba / "Img" / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(MissingFileError, match=r"no image .*000002\.jpg"):
        data.train.images(np.array([1]))

    change(partition, "000001.jpg 0", "000001.jpg 3")
    with pytest.raises(InvalidValueError, match=r"has parts \[0, 1, 2, 3\]"):
        mtl.load_celeba(celeba)
    change(partition, "000001.jpg 3\n", "")
    with pytest.raises(InvalidValueError, match=r"'000001\.jpg' has attributes and no line"):
        mtl.load_celeba(celeba)
    partition.write_text("000001.jpg\n")
    with pytest.raises(InvalidStateError, match="a file name and 0, 1 or 2"):
        mtl.load_celeba(celeba)

    change(attributes, "12\n", "13\n")
    with pytest.raises(InvalidValueError, match="announces 13 images of 3 attributes and holds a table of 12 x 3"):
        mtl.load_celeba(celeba)
    change(attributes, "13\n", "many\n")
    with pytest.raises(InvalidStateError, match="is not CelebA's list"):
        mtl.load_celeba(celeba)


def test_an_empty_part_of_celeba(celeba):
    partition = celeba / "Eval" / "list_eval_partition.txt"
    partition.write_text(partition.read_text().replace(".jpg 2", ".jpg 1"))
    with pytest.raises(InvalidValueError, match="has no test image"):
        mtl.load_celeba(celeba)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: mtl.digit_pairs(pairs_per_digit=0), "pairs_per_digit=0"),
        (lambda data: mtl.digit_attributes(253), "252 ways"),
        (lambda data: mtl.StudyConfig(epochs=0), "epochs=0 must be positive"),
        (lambda data: mtl.StudyConfig(hidden=(0,)), "hidden width=0 must be positive"),
        (lambda data: mtl.train_tasks(data, "config2", SHORT), "unknown method 'config2'; give one of config, sum"),
        (lambda data: mtl.run_study(data, ("sum", "config2"), SHORT), "unknown method 'config2'"),
        (lambda data: mtl.run_study(data, ("sum", "sum"), SHORT), "the method 'sum' is given twice"),
        (lambda data: mtl.train_tasks(data, "m-config-5", SHORT), "refreshes 5 of 4 tasks"),
        (lambda data: mtl.train_tasks(data, "m-config-0", SHORT), "refreshes 0 of 4 tasks"),
        (lambda data: mtl.run_study(data, ("m-config-40",), SHORT), "at least one method that fits"),
        (lambda data: mtl.run_study(data, ("sum",), SHORT, seeds=()), "one seed"),
    ],
)
def test_bad_input(call, message, attributes):
    with pytest.raises(InvalidValueError, match=message):
        call(attributes)
