"""A run goes on only as itself: same constraint, environment and settings; and its folder tells the truth."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_helpers import SMALL, Target
from octavo_aram.agent import Agent
from octavo_aram.compare import load_records
from octavo_aram.constraints import L2Ball, LinearInequality, Oracle, Orthoplex
from octavo_aram.env_loading import load_env
from octavo_aram.evaluation import evaluate
from octavo_aram.learner import ARAM
from octavo_aram.training import RunSettings, load_run, train
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

BALL = L2Ball(0.2, action_dim=2)
SETTINGS = RunSettings("Target", "ball", "aram", 60, SMALL, evaluate_every=30, episodes=1)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def small_first(obs, act):
    return np.abs(act[:, 0]) < 0.5


def small_second(obs, act):
    return np.abs(act[:, 1]) < 0.5


def centre(obs):
    return np.zeros(2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (L2Ball(0.05, action_dim=2), L2Ball(2.0, action_dim=2)),
        (Orthoplex([0, 1], 1.5), Orthoplex([0, 2], 1.5)),
        (LinearInequality([[1.0, 1.0]], [0.5]), LinearInequality([[1.0, 1.0 + 1e-9]], [0.5])),
        (Oracle(small_first, action_dim=2, interior=centre), Oracle(small_second, action_dim=2, interior=centre)),
    ],
)
def test_another_constraint_is_refused(first, second, tmp_path):
    file = ARAM(Target(), first, SMALL.replace(fallback="interior")).save(tmp_path / "a.safetensors")
    Agent.load(file, Target(), first)
    with pytest.raises(InvalidStateError, match="constraint"):
        Agent.load(file, Target(), second)


class Remembering(L2Ball):
    """A user's constraint that keeps what it has computed."""

    def contains(self, obs, act, tol=1e-6):
        self.asked = getattr(self, "asked", 0) + 1
        return super().contains(obs, act, tol)


def test_what_a_constraint_keeps_while_it_is_used_does_not_make_it_another(tmp_path):
    agent = ARAM(Target(), Remembering(0.2, action_dim=2), SMALL)
    agent.learn(30)
    assert agent.constraint.asked > 10
    Agent.load(agent.save(tmp_path / "a.safetensors"), Target(), Remembering(0.2, action_dim=2))
    with pytest.raises(InvalidStateError, match="constraint"):
        Agent.load(tmp_path / "a.safetensors", Target(), Remembering(0.3, action_dim=2))


def test_a_changed_file_of_the_constraint_is_refused(tmp_path):
    limits, run = tmp_path / "limits.yaml", tmp_path / "run"

    def go(limit, steps, **options):
        limits.write_text(f"type: l2_ball\nradius2: {limit}\naction_dim: 2\n")
        settings = dataclasses.replace(SETTINGS, constraint=str(limits), steps=steps)
        return train(settings, env=Target, folder=run, **options)

    go(0.2, 30)
    before = (run / "settings.json").read_bytes()
    with pytest.raises(InvalidStateError, match=r"radius2=0\.2"):
        go(0.1, 60, resume=True)
    assert (run / "settings.json").read_bytes() == before
    assert go(0.2, 60, resume=True).agent.num_steps == 60


def test_a_refused_resume_leaves_the_folder_as_it_was(tmp_path):
    train(SETTINGS, env=Target, constraint=BALL, folder=tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    other = dataclasses.replace(SETTINGS, steps=600, config=SMALL.replace(penalty=3))
    with pytest.raises(InvalidStateError, match=r"penalty=1\.0"):
        train(other, env=Target, constraint=BALL, folder=tmp_path, resume=True)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_a_batch_larger_than_the_buffer_is_refused():
    with pytest.raises(InvalidValueError, match=r"batch_size=200 exceeds buffer_capacity=100"):
        ARAM(Target(), BALL, SMALL.replace(batch_size=200, buffer_capacity=100))


def test_settings_are_settings():
    with pytest.raises(InvalidTypeError, match="dict"):
        ARAM(Target(), BALL, {"seed": 1})


@pytest.mark.parametrize("steps", [float("nan"), 1.5, "3", True])
def test_steps_are_whole(steps):
    with pytest.raises(InvalidValueError, match="steps="):
        ARAM(Target(), BALL, SMALL).learn(steps)


def test_a_run_of_objects_says_so_and_asks_for_them(tmp_path):
    result = train(dataclasses.replace(SETTINGS, env="Reacher-v5"), env=Target, constraint=BALL, folder=tmp_path)
    saved = json.loads((tmp_path / "settings.json").read_bytes())
    assert (saved["env"], saved["given"]) == ("Target", ["env", "constraint"])
    assert "0.2" in saved["constraint"]
    with pytest.raises(InvalidValueError, match="env="):
        load_run(tmp_path)
    with pytest.raises(InvalidValueError, match="constraint="):
        load_run(tmp_path, env=Target)
    _, agent = load_run(tmp_path, env=Target, constraint=BALL)
    assert torch.equal(agent.core.policy.network.flat, result.agent.core.policy.network.flat)


USER_ENV = """
from __future__ import annotations
import sys
sys.path.insert(0, {tests!r})
from learning_helpers import Target

class Failing(Target):
    def step(self, action):
        if self.clock == 5:
            return 1 / 0
        return super().step(action)

def unmade():
    raise RuntimeError("no licence")

number = 3
"""


def test_errors_of_the_users_code_name_its_file_and_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(USER_ENV.format(tests=str(Path(__file__).parent)))
    with pytest.raises(InvalidStateError, match=r"mine\.py', line 10: ZeroDivisionError"):
        ARAM(load_env(f"{file}:Failing"), BALL, SMALL).learn(20)
    with pytest.raises(InvalidStateError, match=r"mine\.py', line 14: RuntimeError: no licence"):
        load_env(f"{file}:unmade")
    with pytest.raises(InvalidTypeError, match="int"):
        load_env(f"{file}:number")
    broken = tmp_path / "broken.py"
    broken.write_text("def make(:\n")
    with pytest.raises(InvalidStateError, match=r"broken\.py', line 1"):
        load_env(f"{broken}:make")


def test_files_of_the_user_are_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "there.py").write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from learning_helpers import Target
        """)
    )
    (tmp_path / "ball.yaml").write_text("type: l2_ball\nradius2: 0.2\naction_dim: 2\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    names = {"env": "there.py:Target", "constraint": "ball.yaml"}
    train(dataclasses.replace(SETTINGS, steps=30, **names), folder="run")
    train(dataclasses.replace(SETTINGS, steps=60, **names), folder="run", resume=True)
    monkeypatch.chdir(elsewhere)
    assert load_run(tmp_path / "run")[1].num_steps == 60


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_leaves_every_generator_alone(deterministic):
    thin = L2Ball(1e-6, action_dim=2)
    agent = ARAM(Target(), thin, SMALL.replace(fallback="hit_and_run", max_tries=2)).learn(45)

    def states():
        return agent.walk.get_state(), agent.generator.get_state(), repr(agent.rng.bit_generator.state)

    before = states()
    evaluate(agent, Target(), episodes=1, deterministic=deterministic)
    after = states()
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_an_interrupted_run_names_the_step_of_its_checkpoint(tmp_path):
    def interrupt(_, share):
        if 0.75 < share < 0.77:
            os.kill(os.getpid(), signal.SIGINT)

    result = train(SETTINGS, env=Target, constraint=BALL, folder=tmp_path, progress=interrupt)
    assert result.stopped
    newest = max(int(file.stem.partition("-")[2]) for file in (tmp_path / "checkpoints").iterdir())
    assert result.summary()["steps"] == newest == result.agent.num_steps


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_torn_checkpoint_is_told_and_a_cut_history_refused(tmp_path):
    train(SETTINGS, env=Target, constraint=BALL, folder=tmp_path)
    newest = tmp_path / "checkpoints" / "step-60.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="step 60 .* damaged; the one of step 30"):
        load_run(tmp_path, env=Target, constraint=BALL)
    history = tmp_path / "history.json"
    history.write_bytes(history.read_bytes()[:50])
    with pytest.raises(InvalidStateError, match=r"history\.json"):
        train(SETTINGS, env=Target, constraint=BALL, folder=tmp_path, resume=True)
    history.unlink()
    assert train(SETTINGS, env=Target, constraint=BALL, folder=tmp_path, resume=True).agent.num_steps == 60


def test_a_run_is_compared_once(tmp_path):
    train(dataclasses.replace(SETTINGS, steps=30), env=Target, constraint=BALL, folder=tmp_path / "a")
    with pytest.raises(InvalidValueError, match="given twice"):
        load_records([tmp_path / "a", tmp_path / "b" / ".." / "a"])


@pytest.mark.parametrize("module", ["user_code", "env_loading"])
def test_modules_can_be_imported_first(module):
    subprocess.run([sys.executable, "-c", f"import octavo_aram.{module}"], check=True)
