"""Runs in folders: evaluation, resuming, interrupts, comparison, figures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_helpers import SMALL, Target
from octavo_aram.compare import compare_runs, histories_by_label, load_records, summarise
from octavo_aram.constraints import L2Ball
from octavo_aram.evaluation import evaluate
from octavo_aram.learner import ARAM
from octavo_aram.runs import train_all
from octavo_aram.training import RunSettings, load_run, train
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError

BALL = L2Ball(0.2, action_dim=2)
SETTINGS = RunSettings("Target", "ball", "aram", 100, SMALL, evaluate_every=50, episodes=2)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def start(folder=None, settings=SETTINGS, **options):
    return train(settings, env=Target, constraint=BALL, folder=folder, **options)


def test_evaluation_leaves_the_run_as_it_was():
    plain, evaluated = ARAM(Target(), BALL, SMALL), ARAM(Target(), BALL, SMALL)
    for agent in (plain, evaluated):
        agent.learn(50)
        if agent is evaluated:
            found = evaluate(agent, watched := Target(), episodes=3)
        agent.learn(20)
    assert torch.equal(plain.core.policy.network.flat, evaluated.core.policy.network.flat)
    assert len(found.returns) == 3
    assert 0 <= found.valid_rate <= 1
    assert found.violations == 0
    assert evaluated.counters.evaluation.steps == len(watched.actions)
    assert plain.counters.training.steps == evaluated.counters.training.steps


def test_evaluation_is_repeatable_and_takes_a_preference():
    agent = ARAM(Target(), BALL, SMALL.replace(preference="dirichlet"))
    agent.learn(60)
    first, second = (evaluate(agent, Target(), episodes=2, preference=(0.1, 0.9)) for _ in range(2))
    assert first.returns == second.returns
    assert first.preference == (0.1, 0.9)
    assert evaluate(agent, Target(), episodes=2, preference=(0.9, 0.1)).returns != first.returns
    with pytest.raises(InvalidValueError, match="episodes"):
        evaluate(agent, Target(), episodes=0)


def test_the_valid_rate_is_that_of_raw_draws():
    agent = ARAM(Target(), BALL, SMALL)
    with torch.no_grad():
        agent.core.policy.network.flat.zero_()
        # Of a centred Gaussian in the plane, exp(-r^2 / (2 deviation^2)) lies beyond the radius r.
        agent.core.policy.network.parts[-1][..., 2:] = np.log(0.2)
    found = evaluate(agent, Target(), episodes=10, draws_per_state=50)
    radius = np.arctanh(np.sqrt(0.2))
    assert found.valid_rate == pytest.approx(1 - np.exp(-(radius**2) / (2 * 0.2**2)), abs=0.02)
    assert found.executed_valid == 1.0


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole = start(tmp_path / "whole", SETTINGS)
    half = RunSettings.from_json(SETTINGS.to_json() | {"steps": 50})
    start(tmp_path / "parts", half)
    rest = start(tmp_path / "parts", SETTINGS, resume=True)
    assert torch.equal(whole.agent.core.policy.network.flat, rest.agent.core.policy.network.flat)
    assert torch.equal(whole.agent.buffer._table, rest.agent.buffer._table)
    names = ("step", "return", "valid_rate", "projections", "acceptance_rate", "temperature")
    assert [[row[n] for n in names] for row in whole.history] == [[row[n] for n in names] for row in rest.history]


def test_an_interrupt_saves_and_the_run_goes_on(tmp_path):
    def interrupt(_, share):
        if 0.615 < share < 0.625:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = start(tmp_path, progress=interrupt)
    assert stopped.stopped
    assert 60 <= stopped.agent.num_steps < 70
    rest = start(tmp_path, resume=True)
    assert not rest.stopped
    assert torch.equal(start().agent.core.policy.network.flat, rest.agent.core.policy.network.flat)
    assert signal.getsignal(signal.SIGINT) is not None


def test_what_a_folder_refuses(tmp_path):
    start(tmp_path)
    with pytest.raises(InvalidStateError, match="holds a run"):
        start(tmp_path)
    with pytest.raises(InvalidStateError, match="method"):
        start(tmp_path, RunSettings.from_json(SETTINGS.to_json() | {"method": "spre"}), resume=True)
    with pytest.raises(MissingFileError, match="no run"):
        start(tmp_path / "other", resume=True)
    with pytest.raises(InvalidValueError, match="folder"):
        start(resume=True)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(InvalidStateError, match="cannot be read"):
        load_run(tmp_path)


def test_history_and_summary(tmp_path):
    result = start(tmp_path)
    rows = json.loads((tmp_path / "history.json").read_text())
    assert [row["step"] for row in rows] == [50, 100]
    assert rows[-1]["violations"] == 0
    assert set(rows[-1]["wall_time"]) == {"env", "sample", "project", "update"}
    summary = result.summary()
    assert summary["steps"] == 100
    assert summary["buffer_memory"] == "172 KiB"


def test_random_preferences_are_evaluated_at_three(tmp_path):
    settings = RunSettings.from_json(SETTINGS.to_json())
    settings = RunSettings(**(vars(settings) | {"config": SMALL.replace(preference="dirichlet"), "steps": 50}))
    row = start(settings=settings).final
    assert [entry["preference"] for entry in row["by_preference"]] == [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]


def test_comparison_over_seeds_and_methods(tmp_path):
    for method in ("aram", "spre"):
        for seed in (0, 1):
            settings = RunSettings(
                "Target", "ball", method, 80, SMALL.replace(seed=seed), evaluate_every=40, episodes=2
            )
            start(tmp_path / f"{method}{seed}", settings)
    records = load_records(sorted(tmp_path.iterdir()))
    rows = compare_runs(records)
    assert [(row["method"], row["seed"]) for row in rows] == [("aram", 0), ("aram", 1), ("spre", 0), ("spre", 1)]
    first, second = summarise(rows)
    assert first["seeds"] == 2
    assert first["projections"] < second["projections"]
    assert first["return"] == pytest.approx(np.mean([row["return"] for row in rows[:2]]))
    with pytest.raises(MissingFileError, match="settings.json"):
        load_records([tmp_path])
    with pytest.raises(InvalidValueError, match="no run"):
        load_records([])


def test_figures():
    pytest.importorskip("matplotlib")
    from octavo_aram.plots import plot_fronts, plot_runs

    history = start().history
    for over in ("step", "seconds"):
        assert len(plot_runs({"ARAM": [history, history], "SPre": [history]}, over=over).axes) == 4
    # Labels that name settings are long, and stay within the figure.
    figure = plot_runs({f"ARAM, preference=dirichlet, action_scaling=none, penalty={i}": [history] for i in range(4)})
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width
    assert len(plot_fronts({"ARAM": [(0.9, -8.0, "(0.9, 0.1)"), (1.0, -9.0, "(0.1, 0.9)")]}).axes) == 1
    with pytest.raises(InvalidValueError, match="nothing"):
        plot_runs({})
    with pytest.raises(InvalidValueError, match="over"):
        plot_runs({"ARAM": [history]}, over="day")


def test_runs_side_by_side_give_what_they_give_alone():
    jobs = [
        RunSettings("octavo_aram/BSS3z-v0", "BSS3z", method, 80, SMALL, evaluate_every=80, episodes=1)
        for method in ("aram", "spre")
    ]
    shares = []
    outcomes = train_all(jobs, lambda _, share: shares.append(share), workers=1)
    assert [outcome["method"] for outcome in outcomes] == ["aram", "spre"]
    assert shares[-1] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = train(jobs[1])
    assert alone.final["return"] == outcomes[1]["history"][-1]["return"]
    with pytest.raises(InvalidValueError, match="nothing"):
        train_all([])


@pytest.mark.parametrize("count", [None, 1.5, "2", True])
def test_counts_of_a_run_are_whole(tmp_path, count):
    with pytest.raises(InvalidTypeError, match="num_envs"):
        RunSettings(num_envs=count)
    start(tmp_path)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_envs": count}))
    with pytest.raises(InvalidStateError, match=r"settings\.json.*num_envs"):
        load_run(tmp_path)


def test_counts_of_a_run_become_plain_integers(tmp_path):
    settings = RunSettings(steps=np.int64(20), num_envs=torch.tensor(2), given=["env"])
    assert settings == RunSettings(steps=20, num_envs=2, given=("env",))
    assert {type(settings.steps), type(settings.num_envs)} == {int}
    json.dumps(settings.to_json())


def test_settings_given_as_arrays_are_kept_in_the_folder(tmp_path):
    settings = replace(SETTINGS, steps=50, config=SMALL.replace(preference=np.array([0.25, 0.75])))
    start(tmp_path, settings)
    assert load_run(tmp_path, env=Target, constraint=BALL)[0].config.preference == (0.25, 0.75)


def test_runs_of_other_settings_are_not_seeds(tmp_path):
    others = {
        "a": SETTINGS,
        "b": replace(SETTINGS, config=SMALL.replace(seed=1)),
        "c": replace(SETTINGS, config=SMALL.replace(penalty=3, preference="dirichlet")),
        "d": replace(SETTINGS, steps=50),
        "e": replace(SETTINGS, config=SMALL.replace(penalty=3, preference="dirichlet", seed=1), method="spre"),
    }
    for name, settings in others.items():
        start(tmp_path / name, settings)
    # A copy of a run is no further seed.
    shutil.copytree(tmp_path / "a", tmp_path / "f")
    records = load_records(sorted(tmp_path.iterdir()))
    groups = {(group["method"], group["settings"]): group["seeds"] for group in summarise(compare_runs(records))}
    other = "penalty=3, preference=dirichlet"
    assert groups == {("aram", ""): 2, ("aram", other): 1, ("aram", "steps=50"): 1, ("spre", other): 1}
    curves = histories_by_label(records)
    assert {label: len(histories) for label, histories in curves.items()} == {
        "ARAM": 3,
        f"ARAM, {other}": 1,
        "ARAM, steps=50": 1,
        f"SPre, {other}": 1,
    }


def test_curves_of_several_tasks_are_told_apart(tmp_path):
    start(tmp_path / "a", replace(SETTINGS, steps=50))
    for name, change in (("b", {"env": "Other"}), ("c", {"constraint": "set"})):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        file = tmp_path / name / "settings.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    labels = list(histories_by_label(load_records(sorted(tmp_path.iterdir()))))
    assert len(labels) == 3
    assert labels[2].endswith(" under set")
    assert " in Other" in labels[1]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"a": 1}', "it holds a dict"),
        ("[]", "no evaluation"),
        ("[5]", "row 1 is of type int"),
        ('[{"step": 5}]', "row 1 lacks 'return'"),
        ('[{"step": "x"}]', "row 1 has step='x'"),
        ("nonsense", "Expecting value"),
    ],
)
def test_a_damaged_history_is_told(tmp_path, text, match):
    start(tmp_path, replace(SETTINGS, steps=50))
    (tmp_path / "history.json").write_text(text)
    with pytest.raises(InvalidStateError, match=rf"history\.json.*{match}"):
        load_records([tmp_path])
    if text != "[]":
        with pytest.raises(InvalidStateError, match=r"history\.json.*delete it"):
            start(tmp_path, resume=True)


def test_settings_that_lack_a_field_are_refused(tmp_path):
    start(tmp_path, replace(SETTINGS, method="spre", steps=50))
    file = tmp_path / "settings.json"
    values = json.loads(file.read_text())
    del values["method"]
    file.write_text(json.dumps(values))
    with pytest.raises(InvalidStateError, match=r"settings\.json.*lack method"):
        load_run(tmp_path, env=Target, constraint=BALL)
    with pytest.raises(InvalidStateError, match=r"settings\.json.*lack method"):
        load_records([tmp_path])


@pytest.mark.parametrize(("steps", "told"), [(30, True), (40, True), (41, False)])
def test_a_run_within_its_warm_up_is_told(steps, told):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start(settings=replace(SETTINGS, steps=steps, episodes=1))
    assert any("start_steps=40" in str(entry.message) for entry in caught) is told


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"settings": "x"}, InvalidTypeError, "settings is a str; give RunSettings"),
        ({"env": Target()}, InvalidTypeError, "env is a Target; give a function .* lambda"),
        ({"checkpoint_every": -1}, InvalidValueError, "checkpoint_every=-1"),
        ({"checkpoint_every": 0}, InvalidValueError, "checkpoint_every=0"),
        ({"checkpoint_every": 1.5}, InvalidTypeError, "checkpoint_every=1.5"),
    ],
)
def test_arguments_that_train_refuses(options, error, match):
    with pytest.raises(error, match=match):
        train(**{"settings": SETTINGS, "env": Target, "constraint": BALL} | options)


def test_load_run_refuses_an_environment_for_its_maker(tmp_path):
    start(tmp_path, replace(SETTINGS, steps=50))
    with pytest.raises(InvalidTypeError, match="env is a Target; give a function"):
        load_run(tmp_path, env=Target(), constraint=BALL)


@pytest.mark.parametrize("checkpoint_every", [1000, 50])
def test_an_interrupt_at_an_evaluation_saves(tmp_path, checkpoint_every):
    def interrupt(_, share):
        if share == 0.5:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = start(tmp_path, progress=interrupt, checkpoint_every=checkpoint_every)
    assert stopped.stopped
    shares = []
    rest = start(tmp_path, resume=True, progress=lambda _, share: shares.append(share))
    assert shares[0] == 0.51
    assert torch.equal(start().agent.core.policy.network.flat, rest.agent.core.policy.network.flat)


def failing(*_):
    raise RuntimeError("ends the run")


@pytest.mark.filterwarnings("default::UserWarning")
def test_resuming_without_a_checkpoint_is_told(tmp_path):
    with pytest.raises(RuntimeError):
        start(tmp_path, progress=failing)
    with pytest.warns(UserWarning, match="holds no checkpoint yet"):
        assert start(tmp_path, resume=True).agent.num_steps == 100


@pytest.mark.parametrize("resume", [False, True])
def test_one_run_at_a_time_trains_in_a_folder(tmp_path, resume):
    def another(*_):
        with pytest.raises(InvalidStateError, match="another run is training"):
            start(tmp_path, replace(SETTINGS, config=SMALL.replace(seed=1)), resume=resume)
        raise RuntimeError("ends the run")

    with pytest.raises(RuntimeError):
        start(tmp_path, progress=another)
    assert json.loads((tmp_path / "settings.json").read_text())["config"]["seed"] == 0
    # A run that died holds nothing.
    assert start(tmp_path, resume=resume).agent.num_steps == 100


def test_a_killed_run_holds_its_folder_no_longer(tmp_path):
    code = (
        "import os, signal, warnings; warnings.simplefilter('ignore'); from test_training import start\n"
        f"start({str(tmp_path)!r}, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert start(tmp_path, replace(SETTINGS, steps=50)).agent.num_steps == 50


def test_a_run_is_not_made_shorter(tmp_path):
    start(tmp_path)
    before = (tmp_path / "settings.json").read_bytes()
    with pytest.raises(InvalidValueError, match="steps=30 is less than the 100"):
        start(tmp_path, replace(SETTINGS, steps=30), resume=True)
    assert (tmp_path / "settings.json").read_bytes() == before
    assert start(tmp_path, resume=True).agent.num_steps == 100


def test_a_run_that_ends_within_a_step_of_all_environments_is_complete(tmp_path):
    settings = replace(SETTINGS, steps=50, num_envs=3)
    assert start(tmp_path, settings).agent.num_steps == 51
    assert start(tmp_path, settings, resume=True).agent.num_steps == 51


def test_runs_under_a_changed_file_are_told_apart(tmp_path):
    limits = tmp_path / "limits.yaml"
    for name, limit, seed in (("a", 0.2, 0), ("b", 0.2, 1), ("c", 0.05, 2)):
        limits.write_text(f"type: l2_ball\nradius2: {limit}\naction_dim: 2\n")
        settings = replace(SETTINGS, constraint=str(limits), steps=50, config=SMALL.replace(seed=seed))
        train(settings, env=Target, folder=tmp_path / name)
    records = load_records([tmp_path / name for name in "abc"])
    fingerprints = [record.settings.constraint_fingerprint for record in records]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    groups = {group["constraint"]: group["seeds"] for group in summarise(compare_runs(records))}
    assert groups == {
        f"{limits} (fingerprint {fingerprints[0][:8]})": 2,
        f"{limits} (fingerprint {fingerprints[2][:8]})": 1,
    }
    assert [len(histories) for histories in histories_by_label(records).values()] == [2, 1]
    # Runs of earlier versions have none, and are read as before.
    file = tmp_path / "c" / "settings.json"
    values = json.loads(file.read_text())
    del values["constraint_fingerprint"]
    file.write_text(json.dumps(values))
    (group,) = summarise(compare_runs(load_records([tmp_path / name for name in "abc"])))
    assert (group["constraint"], group["seeds"]) == (str(limits), 3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (None, "of type NoneType"),
        ({"given": 3}, "given=3"),
        ({"given": [[1]]}, "given="),
        ({"method": "zzz"}, "unknown method 'zzz'; give one of aram"),
        ({"env": 5}, "env=5 is of type int"),
        ({"constraint_fingerprint": [1]}, "constraint_fingerprint="),
    ],
)
def test_damaged_settings_are_told(tmp_path, change, match):
    values = None if change is None else SETTINGS.to_json() | change
    (tmp_path / "settings.json").write_text(json.dumps(values))
    with pytest.raises(InvalidStateError, match=rf"settings\.json.*{match}"):
        load_run(tmp_path)


@pytest.mark.parametrize("name", ["settings.json", "history.json"])
def test_files_nested_too_deep_are_told(tmp_path, name):
    start(tmp_path, replace(SETTINGS, steps=50))
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(InvalidStateError, match=rf"{name}.*recursion"):
        load_records([tmp_path])
