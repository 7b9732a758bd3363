"""The command line: what it refuses and how, and where its output goes."""

from __future__ import annotations

import json
import re
import sys

import pytest
from octavo_config_grad import pinn
from octavo_config_grad.pinn.user_code import blame_user
from octavo_core.cli import main
from octavo_core.errors import InvalidValueError

TINY = ["--steps", "4", "--interior", "8", "--boundary", "6", "--initial", "6", "--hidden", "4", "--device", "cpu"]

HEAT = """
import torch
from octavo_config_grad.pinn import Problem

class Heat(Problem):
    coordinates, fields = ("x", "t"), ("u",)
    lower, upper = (0.0, 0.0), (1.0, 1.0)
    reference_points = (5, 3)

    def losses(self):
        return {
            "pde": self.interior(lambda f: f("u", "t") - f("u", "x", "x")),
            "boundary": self.boundary(lambda f: f("u"), "x"),
        }

    def exact(self, points):
        return points[:, :1] * 0.0
"""


@pytest.fixture
def run(capsys):
    def call(*words):
        status = main(["config-grad", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def heat(tmp_path):
    file = tmp_path / "heat.py"
    file.write_text(HEAT)
    return file


def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def train(run, problem, out, *words):
    status, _, error = run("train", problem, *TINY, "--quiet", "--out", out, *words)
    assert status == 0, error


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('f("u", "t") -', "1 / 0 -", r"loss 'pde' of Heat fails at .*heat\.py:12 with ZeroDivisionError: division"),
        ("lower, upper = (0.0, 0.0)", 'lower, upper = ("a", 0.0)', r"Heat has lower=\('a', 0\.0\) and .*; give tuples"),
        ("lower, upper = (0.0, 0.0)", "lower, upper = 0.0", r"Heat has lower=0\.0 and .*; give tuples"),
        ("* 0.0\n", ".numpy()\n", r"Heat\.exact\(\) returned a ndarray; return a tensor"),
        ("points[:, :1] * 0.0", "[][1]", r"the reference of Heat fails at .*heat\.py:17 with IndexError"),
        ("def losses(self)", "def loss(self)", r"Heat has no losses\(\); write one"),
        ("return {", "return {}[3] or {", r"Heat\.losses\(\) fails at .*heat\.py:11 with KeyError: 3"),
        ("return {", "return {} and {", r"Heat\.losses\(\) returned no loss"),
        ("def losses", "def __init__(self):\n        y\n\n    def losses", r"problem .*heat\.py:11 with NameError"),
        ("import torch\n", "raise SystemExit(3)\n", r"problem file .* fails with SystemExit: 3; mend the file"),
        ('f("u", "t") -', 'exit(3) -', r"loss 'pde' of Heat fails at .*heat\.py:12 with SystemExit: 3"),
    ],
)  # fmt: skip
def test_errors_in_the_users_file_are_the_users(run, heat, old, new, message):
    change(heat, old, new)
    status, _, error = run("train", heat, *TINY)
    assert status == 2
    assert re.search(message, error), error
    assert "defect" not in error
    assert "Traceback" not in error


def test_an_error_outside_the_users_code_stays_a_defect():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    inside = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # frames of the standard library alone
    assert blame_user(inside, "nothing", pinn.Burgers) is None
    assert blame_user(InvalidValueError("said already"), "nothing", pinn.Burgers) is None


def test_modules_beside_the_file_are_found_and_prints_go_to_stderr(run, heat):
    (heat.parent / "beside_heat.py").write_text("FACTOR = 2.0\nprint('beside')\n")
    change(heat, "import torch\n", "import torch\nfrom beside_heat import FACTOR\nprint('top')\n")
    change(heat, 'f("u", "t") -', 'print("residual") or FACTOR * f("u", "t") -')
    before = list(sys.path)
    status, output, error = run("train", heat, *TINY, "--json")
    assert status == 0, error
    assert json.loads(output)["problem"] == "Heat"
    assert {"beside", "top", "residual"} <= set(error.split())
    assert sys.path == before


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("--5", "unknown length model '--5'"),
        ("²", "unknown length model '²'"),
        ("-1", "length=-1 tracks a loss that does not exist"),
        ("2", "length=2 tracks a loss that does not exist: with 2 losses use 0 to 1"),
    ],
)
def test_bad_lengths(run, heat, length, message):
    status, _, error = run("train", heat, "--method", "config", f"--length={length}", *TINY)
    assert status == 2
    assert message in error


def test_a_file_as_folder_is_named(run, heat):
    for words in (("train", heat, *TINY), ("mtl",)):
        status, _, error = run(*words, "--out", heat)
        assert status == 2
        assert f"--out {str(heat)!r} is a file; give a folder" in error


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("config, sum, config", "the method 'config' is given twice"),
        ("config, best", "unknown method 'best'; give one of config, sum, "),
        ("m-config", r"unknown method 'm-config'; give one of .*, or m-config-<k>"),
    ],
)
def test_bad_methods_of_a_study(run, methods, message):
    status, _, error = run("mtl", "--methods", methods, "--epochs", 1)
    assert status == 2
    assert re.search(message, error), error


def test_methods_of_a_study_may_have_spaces(run):
    status, output, error = run(
        "mtl", "--methods", "config, sum", "--epochs", 1, "--seeds", 1, "--device", "cpu", "--json"
    )
    assert status == 0, error
    assert [row["method"] for row in json.loads(output)["methods"]] == ["config", "sum"]


def test_a_changed_reference_or_problem_file_is_another_run(run, heat, tmp_path):
    train(run, heat, tmp_path / "run")
    change(heat, "* 0.0\n", "* 0.5\n")
    status, _, error = run("train", heat, *TINY, "--out", tmp_path / "run", "--resume")
    assert status == 2
    assert "the checkpoint is of another run: hash of the reference was" in error
    change(heat, "* 0.5\n", "* 0.0\n")
    change(heat, 'f("u", "t") -', 'f("u", "t") - 0.0 *')
    status, _, error = run("train", heat, *TINY, "--out", tmp_path / "run", "--resume")
    assert status == 2
    assert "the checkpoint is of another run: hash of the problem file was" in error
    change(heat, '"boundary":', '"wall":')
    status, _, error = run("train", heat, *TINY, "--out", tmp_path / "run", "--resume")
    assert status == 2
    assert "names of losses was ['pde', 'boundary'] and is ['pde', 'wall']" in error


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """What a run leaves behind."""
    folder = tmp_path_factory.mktemp("run")
    file = folder / "heat.py"
    file.write_text(HEAT)
    config = pinn.TrainingConfig(steps=4, hidden=(4,), points=pinn.PointCounts(8, 6, 6))
    pinn.train(pinn.load_problem(str(file)), "adam", config).save(folder)
    return (folder / "result.json").read_text()


def finish(record, folder, method, seed=0, **settings):
    """Make the folder of another run by editing a record."""
    content = json.loads(record)
    content["summary"] |= {"method": method, "seed": seed}
    content["config"] |= {"seed": seed, **settings}
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(content))


def test_runs_are_compared_with_those_of_the_same_settings(run, record, tmp_path):
    for seed in (0, 1):
        for method in ("adam", "m-config"):
            finish(record, tmp_path / f"{method}-{seed}", method, seed)
            finish(record, tmp_path / f"{method}-short-{seed}", method, seed, steps=3)
    finish(record, tmp_path / "fast-0", "m-config", lr=0.01)
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    status, output, error = run("compare", *folders)
    assert status == 0, error
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "conflicts" in lines[0]  # the last column, not cut by a narrow console
    assert "Heat (steps=4, lr=0.001): m-config over adam: " in "\n".join(lines)
    assert "Heat (steps=3, lr=0.001): m-config over adam: " in "\n".join(lines)
    assert lines[-1] == "Heat (steps=4, lr=0.01): no run by adam under the same settings, so nothing is compared"
    status, output, _ = run("compare", *folders, "--json")
    document = json.loads(output)
    assert [entry["settings"]["steps"] for entry in document["comparisons"]] == [4, 3]
    assert all(entry["seeds"] == 2 for entry in document["comparisons"])
    assert len(document["runs"]) == 9
    assert len(document["notes"]) == 1


def test_one_seed_a_baseline_that_is_not_there_and_a_run_given_twice(run, record, tmp_path):
    adam, other = tmp_path / "adam", tmp_path / "other"
    finish(record, adam, "adam")
    finish(record, other, "m-config")
    status, output, _ = run("compare", adam, other)
    assert status == 0
    assert "Heat: m-config over adam: both have a final error on 1 seed; a comparison needs two" in output
    status, _, error = run("compare", adam, other, "--baseline", "nope")
    assert status == 2
    assert "no run is by the baseline 'nope'; give one of adam, m-config" in error
    status, output, _ = run("compare", other)
    assert status == 0
    assert "Heat: no run by adam under the same settings" in output
    status, _, error = run("compare", adam, other, adam)
    assert status == 2
    assert "are the same run (adam, seed 0, the same settings); leave one out" in error


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("final_mse", ..., "final_mse is missing"),
        ("final_mse", "0.1", "final_mse is '0.1'"),
        ("final_mse", -1.0, "final_mse is -1.0"),
        ("best_mse", [], r"best_mse is \[\]"),
        ("seconds", None, "seconds is None"),
        ("seed", "0", "seed is '0'"),
        ("problem_options", None, "problem_options is None"),
        ("conflict_rate", True, "conflict_rate is True"),
        ("cpu_seconds", float("nan"), "is not the result of a run; train"),
    ],
)
def test_edited_results_are_refused(run, record, tmp_path, field, value, message):
    content = json.loads(record)
    if value is ...:
        del content["summary"][field]
    else:
        content["summary"][field] = value
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(content))
    status, _, error = run("compare", tmp_path / "run", "--json")
    assert status == 2
    assert re.search(message, error), error
