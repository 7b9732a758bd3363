"""The log of conflicts."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import torch
from octavo_config_grad.diagnostics import ConflictLog
from octavo_config_grad.info import update_info
from octavo_core.errors import InvalidTypeError, InvalidValueError


def report(*rows, alpha=(1.0, 1.0)):
    matrix = torch.tensor(rows, dtype=torch.float64)
    return update_info(matrix @ matrix.T, torch.tensor(alpha, dtype=torch.float64))


ORTHOGONAL = report((1.0, 0.0), (0.0, 2.0))
# Gradients at 135 degrees: they oppose each other, and the larger one wins the sum.
OPPOSED = report((1.0, 0.0), (-2.0, 2.0))


def test_histories_have_one_entry_per_record():
    log = ConflictLog(["pde", "bc"])
    log.record(0, None)  # no update yet
    log.record(1, ORTHOGONAL)
    log.record(2, OPPOSED)
    assert log.steps == [1, 2]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(log.cosine_history(), [np.eye(2), [[1.0, -half], [-half, 1.0]]], atol=1e-15)
    np.testing.assert_allclose(log.norms(), [[1.0, 2.0], [1.0, math.sqrt(8.0)]])
    np.testing.assert_allclose(log.alphas(), np.ones((2, 2)))
    # The sum of the opposed gradients is (-1, 2).
    np.testing.assert_allclose(log.update_cosines()[1], [-1.0 / math.sqrt(5.0), 3.0 / math.sqrt(10.0)])
    assert log.gradient_conflict_rate() == 0.5
    assert log.update_conflict_rate() == 0.5


def test_every_thins_the_record():
    log = ConflictLog(every=3)
    for step in range(7):
        log.record(step, ORTHOGONAL)
    assert log.steps == [0, 3, 6]


def test_csv_can_be_read_back(tmp_path):
    log = ConflictLog(["pde", "bc"])
    log.record(5, OPPOSED)
    log.write_csv(tmp_path / "log" / "conflicts.csv")
    with open(tmp_path / "log" / "conflicts.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["step"] == "5"
    assert float(row["conflict"]) == 1.0
    assert float(row["norm/bc"]) == float(OPPOSED.norms[1])
    assert float(row["cos/pde/bc"]) == float(OPPOSED.cosine_matrix[0, 1])
    assert float(row["cos/pde"]) == float(OPPOSED.cosines[0])
    assert float(row["alpha/pde"]) == 1.0


def test_empty_log_writes_a_header_and_knows_no_rate(tmp_path):
    log = ConflictLog(["a", "b", "c"])
    log.write_csv(tmp_path / "empty.csv")
    assert (tmp_path / "empty.csv").read_text() == "step\n"
    assert math.isnan(log.update_conflict_rate())
    assert math.isnan(log.gradient_conflict_rate())
    assert log.cosine_history().shape == (0, 3, 3)
    assert log.norms().shape == (0, 3)


class Writer:
    """Stands for a TensorBoard SummaryWriter."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value


def test_writer_gets_scalars_and_losses():
    writer = Writer()
    log = ConflictLog(writer=writer)
    log.record(2, OPPOSED, losses=[torch.tensor(3.0), 4])
    assert writer.scalars["config/conflict", 2] == 1.0
    assert writer.scalars["config/norm/1", 2] == float(OPPOSED.norms[1])
    assert writer.scalars["loss/0", 2] == 3.0
    assert writer.scalars["loss/1", 2] == 4.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ConflictLog(every=0), InvalidValueError, "every=0"),
        (lambda: ConflictLog(["a", "a"]), InvalidValueError, "repeats a name"),
        (lambda: ConflictLog(writer=3), InvalidTypeError, "writer is a int without add_scalar"),
        (
            lambda: ConflictLog(["a", "b", "c"]).record(0, ORTHOGONAL),
            InvalidValueError,
            "report of step 0 has 2 losses, the log 3",
        ),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_log_of_one_size_stays_so():
    log = ConflictLog()
    log.record(0, ORTHOGONAL)
    with pytest.raises(InvalidValueError, match="has 3 losses, the log 2"):
        log.record(1, report((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), alpha=(1.0, 1.0, 1.0)))
