"""Problems by name and from the user's file."""

from __future__ import annotations

import math

import pytest
from octavo_config_grad import pinn
from octavo_config_grad.pinn.loading import source_fingerprint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError

MINE = """
import math
from dataclasses import dataclass
import torch
from octavo_config_grad.pinn import Problem

@dataclass(frozen=True)
class Heat(Problem):
    diffusivity: float = 0.1
    coordinates, fields = ("x", "t"), ("u",)
    lower, upper = (0.0, 0.0), (1.0, 1.0)

    def losses(self):
        return {
            "pde": self.interior(lambda f: f("u", "t") - self.diffusivity * f("u", "x", "x")),
            "boundary": self.boundary(lambda f: f("u"), "x"),
            "initial": self.initial(lambda f: f("u") - torch.sin(math.pi * f.at("x"))),
        }

class NotOne:
    pass
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("name", pinn.PROBLEMS)
def test_built_in_problems_by_name(name):
    problem = pinn.load_problem(name)
    assert type(problem) is pinn.PROBLEMS[name]
    assert len(problem.box().lower) == len(problem.coordinates)


def test_options_are_passed_on():
    assert pinn.load_problem("burgers", num_losses=3).num_losses == 3
    with pytest.raises(InvalidTypeError, match=r"problem 'kovasznay': got an unexpected keyword argument 'num_losses'"):
        pinn.load_problem("kovasznay", num_losses=3)


def test_a_file_of_ones_own_trains(mine):
    problem = pinn.load_problem(f"{mine}:Heat", diffusivity=0.05)
    assert problem.options() == {"diffusivity": 0.05}
    result = pinn.train(problem, "m-config", pinn.TrainingConfig(steps=12, hidden=(5,)))
    assert result.loss_names == ("pde", "boundary", "initial")
    assert result.final is None
    assert result.summary()["final_mse"] is None
    assert math.isfinite(sum(result.summary()["final_losses"].values()))


def test_the_class_may_be_left_out(mine):
    assert type(pinn.load_problem(str(mine))).__name__ == "Heat"


def test_what_is_wrong_with_a_file(mine, tmp_path):
    with pytest.raises(MissingFileError, match=r"no problem file '.*none\.py'"):
        pinn.load_problem(f"{tmp_path}/none.py:Heat")
    with pytest.raises(InvalidValueError, match=r"has no class 'Cool'; it defines Heat"):
        pinn.load_problem(f"{mine}:Cool")
    with pytest.raises(
        InvalidTypeError, match=r"'NotOne' in .* is not a subclass of octavo_config_grad\.pinn\.Problem"
    ):
        pinn.load_problem(f"{mine}:NotOne")
    mine.write_text("import nothing_of_this_name")
    with pytest.raises(
        InvalidStateError, match=r"fails with ModuleNotFoundError: No module named 'nothing_of_this_name'"
    ):
        pinn.load_problem(f"{mine}:Heat")
    mine.write_text("from octavo_config_grad.pinn import Problem")
    with pytest.raises(InvalidValueError, match=r"defines 0 problems \(no subclass of pinn\.Problem\)"):
        pinn.load_problem(str(mine))


def test_the_fingerprint_is_that_of_the_file(mine):
    assert source_fingerprint(pinn.Burgers()) is None
    first = pinn.load_problem(f"{mine}:Heat")
    mine.write_text(MINE + "# changed")
    second = pinn.load_problem(f"{mine}:Heat")
    assert source_fingerprint(second) == source_fingerprint(pinn.load_problem(f"{mine}:Heat"))
    assert source_fingerprint(first) != source_fingerprint(second)


def test_errors_name_the_innermost_line_of_the_user(tmp_path):
    (tmp_path / "its_helper.py").write_text("def helper(f):\n    return 1 / 0\n")
    file = tmp_path / "uses_helper.py"
    file.write_text(
        MINE.replace("import torch", "import torch, its_helper").replace('f("u", "t")', "its_helper.helper(f)")
    )
    with pytest.raises(
        InvalidStateError, match=r"loss 'pde' of Heat fails at .*uses_helper\.py:\d+ with Zero"
    ) as caught:
        pinn.train(pinn.load_problem(f"{file}:Heat"), "adam", pinn.TrainingConfig(steps=2, hidden=(5,)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_unknown_name():
    with pytest.raises(
        InvalidValueError, match=r"unknown problem 'burger'; give one of burgers, .* file\.py:ClassName"
    ):
        pinn.load_problem("burger")
