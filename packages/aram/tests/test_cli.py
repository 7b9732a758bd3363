"""The command line: training to comparison, checks of recorded actions, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import octavo_aram
import pytest
from octavo_aram.envs.registration import register_envs
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.cli import main
from octavo_core.errors import InvalidValueError

TINY = [
    *("--env", "octavo_aram/BSS3z-v0", "--constraint", "BSS3z", "--evaluate-every", "60", "--episodes", "1"),
    *("--set", "hidden=[8, 8]", "--set", "batch_size=16", "--set", "start_steps=40", "--set", "buffer_capacity=1000"),
]


@pytest.fixture
def run(capsys):
    def call(*words):
        status = main(["aram", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_train_resume_eval_compare(run, tmp_path):
    for method in ("aram", "spre"):
        status, out, _ = run("train", *TINY, "--method", method, "--steps", 60, "--out", tmp_path / method, "--json")
        assert status == 0
        summary = json.loads(out)
        assert summary["violations"] == 0
        assert summary["steps"] == 60
    status, out, _ = run("train", *TINY, "--steps", 120, "--out", tmp_path / "aram", "--resume")
    assert status == 0
    assert "120" in out
    status, out, _ = run("eval", tmp_path / "aram", "--preference", 0.1, 0.9, "--episodes", 2, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["preference"] == [0.1, 0.9]
    assert len(found["returns"]) == 2
    assert found["violations"] == 0
    pytest.importorskip("matplotlib")
    status, out, _ = run("compare", tmp_path / "aram", tmp_path / "spre", "--out", tmp_path / "figures")
    assert status == 0
    assert "spre" in out
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "comparison.json",
        "runs_over_step.png",
        "runs_over_seconds.png",
    }


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["train", "--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["train", "--env", "no_module:make"], "no_module"),
        (["train", *TINY, "--constraint", "BSS4z"], "BSS4z"),
        (["train", *TINY, "--method", "dqn"], "dqn"),
        (["train", *TINY, "--set", "penalty"], "name=value"),
        (["train", *TINY, "--set", "penalty="], "'penalty=' is no setting"),
        (["train", *TINY, "--set", "=3"], "'=3' is no setting"),
        (["train", *TINY, "--set", "penalty=" + "9" * 5000], "999...' cannot be read: Exceeds the limit (4300 digits)"),
        (["train", *TINY, "--set", "penalty=" + "9" * 4000], "too large for float64"),
        (["train", *TINY, "--set", "penalty=2020-13-45"], "'penalty=2020-13-45' cannot be read"),
        (["train", *TINY, "--set", "penalty=-1"], "penalty"),
        (["train", *TINY, "--set", "preference=[0.4, 0.4]"], "simplex"),
        (["train", *TINY, "--set", "no_such=1"], "no_such"),
        (["train", *TINY, "--set", "preference_schedule=5"], "preference_schedule"),
        (["train", *TINY, "--set", "seed=3", "--seed", "4"], "--seed and --set seed"),
        (["train", *TINY, "--set", "penalty=3", "--set", "penalty=4"], "twice"),
        (["train", *TINY, "--steps", "0"], "steps"),
        (["train", *TINY, "--resume"], "--out"),
        (["eval", "nowhere"], "nowhere"),
        (["compare", "nowhere"], "nowhere"),
        (["constraints", "check", "nowhere.csv", "--constraint", "Re+L2"], "nowhere.csv"),
    ],
)
def test_bad_input_is_told_in_one_line(run, words, match):
    status, out, err = run(*words)
    assert status == 2
    assert not out
    (line,) = [text for text in err.splitlines() if text.startswith("error: ")]
    assert match in line


def test_constraints_are_listed(run):
    status, out, _ = run("constraints", "list", "--json")
    assert status == 0
    assert {"Re+L2", "H+M10", "HC+O20", "NSFnetV2", "BSS3z"} <= {entry["id"] for entry in json.loads(out)}
    status, out, _ = run("constraints", "list")
    assert re.search(r"An\+L2 .*Ant-v5", out)


def test_recorded_actions_are_checked_and_projected(run, tmp_path):
    file = tmp_path / "actions.csv"
    file.write_text("time,a0,a1\n0,0.1,0.1\n1,0.9,0\n")
    status, out, _ = run(
        "constraints", "check", file, "--constraint", "Re+L2", "--project", tmp_path / "out.csv", "--json"
    )
    assert status == 1
    found = json.loads(out)
    assert (found["rows"], found["infeasible"]) == (2, 1)
    assert found["largest_violation"] > 0
    projected = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(projected, [[0.1, 0.1], [np.sqrt(0.05), 0]], atol=1e-9)
    assert run("constraints", "check", tmp_path / "out.csv", "--constraint", "Re+L2")[0] == 0


def test_recorded_actions_in_the_environments_units(run, tmp_path):
    file = tmp_path / "bikes.csv"
    file.write_text("a0,a1,a2\n30,30,30\n40,40,40\n")
    words = ["constraints", "check", file, "--constraint", "BSS3z", "--native", "--json"]
    status, out, _ = run(*words)
    assert status == 1
    assert json.loads(out)["infeasible"] == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a0,a1\n0.1,x\n", "line 2"),
        ("a0,a1\n0.1\n", "line 2"),
        ("a0,a1\n0.1,nan\n", "finite"),
        ("x,y\n1,2\n", "a0"),
        ("a0,a2\n1,2\n", "gaps"),
        ("a0\n0.1\n", "1 action columns"),
        ("a0,a1\n", "no rows"),
        ("", "a0"),
    ],
)
def test_tables_that_are_refused(run, tmp_path, text, match):
    file = tmp_path / "actions.csv"
    file.write_text(text)
    status, _, err = run("constraints", "check", file, "--constraint", "Re+L2")
    assert status == 2
    assert match in err


def test_an_environment_of_the_users(run, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from learning_helpers import Target\n"
        "from octavo_aram.constraints import L2Ball\n\n"
        "class Ball(L2Ball):\n"
        "    def __init__(self):\n"
        "        super().__init__(0.2, action_dim=2)\n\n"
        "def make_env():\n"
        "    return Target()\n"
    )
    pytest.importorskip("octavo_aram.loading")
    words = ["--steps", 60, "--set", "start_steps=40", "--set", "batch_size=16", "--episodes", 1, "--json"]
    status, out, err = run("train", "--env", f"{file}:make_env", "--constraint", f"{file}:Ball", *words)
    assert status == 0, err
    assert json.loads(out)["violations"] == 0
    status, _, err = run("train", "--env", f"{file}:other", "--constraint", "Re+L2")
    assert status == 2
    assert "other" in err


def test_the_command_line_answers_without_torch():
    code = "import sys, octavo_aram.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_methods_are_listed(run):
    status, out, _ = run("train", "--list")
    assert status == 0
    assert "spre+" in out


def test_numbers_with_an_exponent_are_numbers(run):
    status, _, err = run("train", *TINY, "--set", "learning_rate=-3e-4")
    assert status == 2, err
    assert "learning_rate=-0.0003 is out of range" in err


def test_a_table_in_another_encoding_is_told(run, tmp_path):
    (tmp_path / "a.csv").write_bytes("a0,a1\n0.1,0.1\n# caf\u00e9".encode("latin-1"))
    status, _, err = run("constraints", "check", tmp_path / "a.csv", "--constraint", "Re+L2")
    assert status == 2
    assert "UTF-8" in err


FAULTS = {
    "syntax": ("import numpy as np\ndef make(:\n", 2),
    "import": ("import numpy as np\n\nvalue = 1 / 0\n", 3),
    "call": ("def make():\n    x = 1\n    raise RuntimeError('mine fails')\n", 3),
    "answer": (
        "from octavo_aram.constraints import Oracle\n"
        "def inside(obs, act):\n"
        "    return act[:, 9] > 0\n"
        "def make():\n"
        "    return Oracle(inside, action_dim=2)\n",
        3,
    ),
    "subclass": (
        "from octavo_aram.constraints import Constraint\n"
        "class make(Constraint):\n"
        "    action_dim = 2\n"
        "    def _excess(self, obs, act):\n"
        "        raise KeyError('radius')\n",
        5,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_of_the_users_constraint_are_the_users(run, tmp_path, fault):
    code, line = FAULTS[fault]
    (tmp_path / "users_fault.py").write_text(code)
    (tmp_path / "a.csv").write_text("a0,a1\n0.1,0.1\n")
    status, out, err = run(
        "constraints", "check", tmp_path / "a.csv", "--constraint", f"{tmp_path / 'users_fault.py'}:make"
    )
    assert status == 2
    assert not out
    assert "Traceback" not in err
    assert f"users_fault.py', line {line}" in err


@pytest.mark.parametrize(("words", "steps"), [([], 5000), (["--paper"], 1_500_000), (["--paper", "--steps", "70"], 70)])
def test_the_papers_settings_bring_their_length(run, monkeypatch, words, steps):
    seen = []

    def note(settings, **_):
        seen.append(settings.steps)
        raise InvalidValueError("noted")

    monkeypatch.setattr("octavo_aram.training.train", note)
    assert run("train", *words)[0] == 2
    assert seen == [steps]


def test_runs_of_other_settings_are_compared_apart(run, tmp_path):
    for name, words in (("a", []), ("b", ["--set", "penalty=3"])):
        words = [*TINY, "--steps", 60, "--out", tmp_path / name, "--quiet", *words]
        assert run("train", *words)[0] == 0
    status, out, _ = run("compare", tmp_path / "a", tmp_path / "b")
    assert status == 0
    assert "seeds" not in out
    assert re.search(r"aram +penalty=3", out)
    status, out, _ = run("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert [(entry["settings"], entry["seeds"]) for entry in json.loads(out)["methods"]] == [("", 1), ("penalty=3", 1)]
    status, out, _ = run("compare", tmp_path / "a")
    assert "differs in" not in out


def test_a_checkpoint_of_another_version_is_told(run, tmp_path):
    assert run("train", *TINY, "--steps", 60, "--out", tmp_path, "--quiet")[0] == 0
    (file,) = (tmp_path / "checkpoints").glob("*.safetensors")
    state = load_checkpoint(file)
    del state["action_shift"]
    save_checkpoint(file, state)
    status, _, err = run("eval", tmp_path)
    assert status == 2
    assert "lacks 'action_shift'" in err


def test_names_as_they_are_told_can_be_used():
    told = re.findall(r"``(\S+-v\d)``", register_envs.__doc__ or "")
    assert len(told) == 7
    assert set(told) <= set(gymnasium.registry)
    assert octavo_aram.Routing.__module__ == "octavo_aram.envs.topology"


@pytest.mark.parametrize("command", [["train", *TINY], ["compare", "nowhere"]])
def test_an_empty_folder_is_not_the_working_folder(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*command, "--out", "")
    assert status == 2
    assert "the name is empty" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "advice"), [([], "nothing was saved"), (["--out", "run"], "continue with --resume")])
def test_a_stopped_run_is_told_what_was_saved(run, tmp_path, monkeypatch, words, advice):
    from octavo_aram.agent import Agent

    monkeypatch.chdir(tmp_path)
    step = Agent.step

    def interrupted(agent):
        step(agent)
        if agent.num_steps == 30:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Agent, "step", interrupted)
    status, out, _ = run("train", *TINY, "--steps", 60, *words)
    assert status == 0
    assert "stopped at step 30; " in out
    assert advice in out


def test_a_file_of_the_users_imports_its_neighbours(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "neighbour_at_once.py").write_text("from learning_helpers import Target\n")
    (tmp_path / "neighbour_later.py").write_text("LIMIT = 5\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from neighbour_at_once import Target\n\n"
        "def make_env():\n"
        "    from neighbour_later import LIMIT\n"
        "    return Target(limit=LIMIT)\n"
    )
    (tmp_path / "ball.yaml").write_text("type: l2_ball\nradius2: 0.2\naction_dim: 2\n")
    words = ["--steps", 60, "--set", "start_steps=40", "--set", "batch_size=16", "--episodes", 1]
    status, _, err = run("train", "--env", f"{file}:make_env", "--constraint", tmp_path / "ball.yaml", *words)
    assert status == 0, err
