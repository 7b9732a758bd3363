"""Training: budgets, repetition, resuming, records."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from octavo_config_grad import pinn
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError, OctavoError
from torch import nn

TINY = pinn.TrainingConfig(steps=6, points=pinn.PointCounts(12, 8, 8), hidden=(5, 5), evaluate_every=4)
# Parts of torchjd that need packages of their own.
EXTRA = ("cagrad", "nash-mtl")


def tiny(**changes):
    budget = {"steps": None} if changes.keys() & {"backward_passes", "seconds"} else {}
    return dataclasses.replace(TINY, **{**budget, **changes})


@pytest.fixture(scope="module")
def coarse():
    """A small reference, so that evaluation costs nothing."""
    x, t = np.linspace(-1, 1, 9), np.linspace(0, 1, 5)
    values = pinn.cole_hopf(*np.meshgrid(x, t, indexing="ij"))[..., None]
    return pinn.Reference.from_grid(("x", "t"), ("u",), (x, t), values)


def run(method="m-config", config=TINY, *, num_losses=3, **options):
    return pinn.train(pinn.Burgers(num_losses), method, config, **options)


def assert_same_outcome(first, second):
    assert torch.equal(first.network.vector, second.network.vector)
    for name in ("steps", "backward_passes", "mse", "losses", "cosines"):
        np.testing.assert_array_equal(getattr(first.history, name), getattr(second.history, name))
    assert first.best == second.best
    assert first.best_step == second.best_step


@pytest.mark.parametrize("method", [method for method in pinn.METHODS if method not in EXTRA])
def test_every_method_trains_repeats_and_resumes_bit_for_bit(method, coarse, tmp_path):
    pytest.importorskip("torchjd")
    config = tiny(dtype="float64", clip=1.0)
    whole = run(method, config, reference=coarse)
    before = pinn.MLP((2, 5, 5, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not torch.equal(whole.network.vector, before.vector)
    assert whole.steps == 6
    assert whole.backward_passes == 6 * (1 if method.startswith("m-") else 3)

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step >= 4:
            raise Stop

    with pytest.raises(Stop):
        run(method, config, reference=coarse, folder=tmp_path, progress=stop)
    assert_same_outcome(run(method, config, reference=coarse, folder=tmp_path, resume=True), whole)


def test_summed_losses_are_what_adam_descends(coarse):
    """The method "adam" is torch's Adam on the sum, step by step."""
    config = tiny(dtype="float64", steps=4)
    result = run("adam", config, reference=coarse)
    network = pinn.MLP((2, 5, 5, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    objective = pinn.Objective(pinn.Burgers(3), network, config.points)
    optimizer = torch.optim.Adam(network.parameters())
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 1e-3 * pinn.learning_rate_factor(step, 4, 0, 0.1)
        optimizer.zero_grad()
        sum(objective.loss(index) for index in range(3)).backward()
        optimizer.step()
    torch.testing.assert_close(result.network.vector, network.vector, rtol=1e-10, atol=1e-13)


def test_seeds_matter(coarse):
    assert_same_outcome(run(reference=coarse), run(reference=coarse))
    assert not torch.equal(
        run(reference=coarse).network.vector, run(config=tiny(seed=1), reference=coarse).network.vector
    )


def test_schedule():
    factors = [pinn.learning_rate_factor(step, 1000, 10, 0.1) for step in range(1001)]
    assert factors[:3] == [0.0, 0.1, 0.2]
    assert factors[10] == 1.0
    assert factors[505] == pytest.approx(0.55)
    assert factors[1000] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert pinn.learning_rate_factor(0, 10, 0, 0.1) == 1.0


def test_budgets_are_kept_and_reported_together(coarse):
    by_passes = run("adam", tiny(backward_passes=20), reference=coarse)
    assert (by_passes.steps, by_passes.backward_passes) == (6, 18)
    assert by_passes.seconds > 0
    assert by_passes.cpu_seconds > 0
    by_seconds = run(config=tiny(seconds=0.2), reference=coarse)
    assert by_seconds.steps == by_seconds.backward_passes >= 1
    # The clock stops at the first step beyond the budget; a loaded machine may stretch one step.
    assert by_seconds.seconds >= 0.2
    assert by_seconds.history.seconds[-1] == by_seconds.seconds


def test_methods_are_evaluated_after_equally_many_passes(coarse):
    config = tiny(backward_passes=24, evaluate_every=6)
    for method in ("adam", "m-config"):
        assert run(method, config, reference=coarse).history.backward_passes.tolist() == [0, 6, 12, 18, 24]


def test_progress_is_reported_at_every_evaluation(coarse):
    seen = []
    result = run(reference=coarse, progress=seen.append)
    assert [entry.step for entry in seen] == [0, 4, 6] == result.history.steps.tolist()
    assert seen[-1].fraction == 1.0
    assert seen[-1].mse == result.final.mse
    assert len(seen[0].losses) == 3


def test_best_is_the_smallest_error_along_the_way(coarse):
    result = run(config=tiny(steps=40, lr=0.1, lr_end=0.1), reference=coarse)
    assert result.best.mse == result.history.mse.min()
    assert result.history.steps[result.history.mse.argmin()] == result.best_step
    assert result.final.mse == result.history.mse[-1]


def test_training_reduces_the_losses(coarse):
    config = tiny(steps=100, lr=2e-2, points=pinn.PointCounts(32, 16, 16), evaluate_every=1000)
    result = run("adam", config, reference=coarse)
    assert result.history.losses[-1].sum() < 0.7 * result.history.losses[0].sum()


def test_conflict_is_read_from_the_cosines():
    cosines = np.ones((2, 3, 3))
    cosines[1, 0, 2] = cosines[1, 2, 0] = -0.25
    ones = np.ones(2)
    history = pinn.History(np.arange(2), np.arange(2), ones, ones, np.ones((2, 3)), cosines)
    assert history.smallest_cosines.tolist() == [1.0, -0.25]
    assert history.conflict_rate == 0.5
    single = pinn.History(np.arange(2), np.arange(2), ones, ones, np.ones((2, 1)), np.ones((2, 1, 1)))
    assert single.conflict_rate == 0.0


def test_own_network_and_learning_of_all_its_parameters(coarse):
    network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    before = [parameter.clone() for parameter in network.parameters()]
    result = run(network=network, reference=coarse)
    assert result.network is network
    assert all((old != new).any() for old, new in zip(before, network.parameters(), strict=True))


def test_records_and_comparison(coarse, tmp_path):
    folders = [run(method, reference=coarse).save(tmp_path / method) for method in ("m-config", "adam")]
    rows = pinn.compare_runs(folders)
    assert [row["method"] for row in rows] == ["adam", "m-config"]
    assert rows[0]["folder"] == str(tmp_path / "adam")
    record = json.loads((tmp_path / "adam" / "result.json").read_text())
    assert record["config"]["hidden"] == [5, 5]
    assert len(record["history"]["mse"]) == 7
    with np.load(tmp_path / "adam" / "solution.npz") as solution:
        errors = solution["prediction"] - solution["reference"]
    assert rows[0]["final_mse"] == pytest.approx(np.mean(errors**2))


def test_what_is_no_record(tmp_path):
    with pytest.raises(MissingFileError, match=r"no run in .*result\.json is missing"):
        pinn.compare_runs([tmp_path])
    for content in ("{", "[]", "{}", '{"schema": "octavo-config-grad-run/1", "summary": {}}'):
        (tmp_path / "result.json").write_text(content)
        with pytest.raises(InvalidStateError, match="is not the result of a run"):
            pinn.compare_runs([tmp_path])
    summary = {"problem": "P", "problem_options": {}, "method": "adam", "seed": 0}
    (tmp_path / "result.json").write_text(json.dumps({"schema": "newer", "summary": summary}))
    with pytest.raises(InvalidStateError, match="schema 'newer'"):
        pinn.compare_runs([tmp_path])


def test_demo_setting():
    config = pinn.demo_setting(seed=3)
    assert (config.backward_passes, config.seed, config.hidden) == (8000, 3, (20, 20, 20, 20))
    assert dataclasses.astuple(config.points) == (400, 64, 64)
    assert pinn.demo_setting(seconds=2.0).backward_passes is None
    assert pinn.demo_setting(backward_passes=10).backward_passes == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"backward_passes": 5, "steps": 5},
            "exactly one budget of steps, backward_passes and seconds, got steps, backward",
        ),
        ({"steps": None}, "got none"),
        ({"steps": 0}, "steps=0 must be positive"),
        ({"seconds": -1.0}, "seconds=-1.0 must be positive"),
        ({"backward_passes": -5}, "backward_passes=-5 must be positive"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
        ({"lr": math.nan}, "lr=nan must be positive"),
        ({"hidden": (5, 0)}, r"hidden\[1\]=0 must be positive"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"warmup": 1.0}, "warmup=1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; give one of float32, float64"),
        ({"derivatives": "symbolic"}, "unknown derivatives 'symbolic'"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(InvalidValueError, match=message):
        tiny(**changes)


def test_bad_runs(coarse, tmp_path):
    with pytest.raises(InvalidValueError, match="unknown method 'adamw'; give one of adam, config"):
        run("adamw", reference=coarse)
    with pytest.raises(InvalidValueError, match="2 backward passes are less than a step of 'adam', which takes 3"):
        run("adam", tiny(backward_passes=2), reference=coarse)
    with pytest.raises(InvalidValueError, match=r"returns shape \(1, 2\) for one point; the problem has the fields u"):
        run(network=nn.Linear(2, 2), reference=coarse)
    with pytest.raises(InvalidValueError, match="does not take 2 coordinates a point"):
        run(network=nn.Linear(3, 1), reference=coarse)
    with pytest.raises(InvalidStateError, match="resuming needs the folder"):
        run(resume=True)
    with pytest.raises(OctavoError, match="unknown length"):
        run("config", tiny(length="longest"), reference=coarse)
    with pytest.raises(OctavoError, match="updates_per_step"):
        run(config=tiny(updates_per_step=4), reference=coarse)
    other = dataclasses.replace(coarse, coordinates=("x", "y"))
    with pytest.raises(InvalidValueError, match="coordinates x, y, fields u; the problem has x, t and u"):
        run(reference=other)
    far = dataclasses.replace(coarse, points=coarse.points * 2, axes=None)
    with pytest.raises(InvalidValueError, match="outside the problem's domain"):
        run(reference=far)
    with pytest.raises(OctavoError, match="unknown device 'gpu'"):
        run(config=tiny(device="gpu"))


def test_divergence_is_reported(coarse):
    with pytest.raises(OctavoError, match=r"diverged|not finite"):
        run("adam", tiny(steps=200, lr=1e30, lr_end=1e30, warmup=0.0), reference=coarse)


def test_checkpoints_of_another_run_are_refused_and_kept(coarse, tmp_path):
    run(reference=coarse, folder=tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InvalidStateError, match="holds the checkpoints of a run; resume it, or give another folder"):
        run(reference=coarse, folder=tmp_path)
    with pytest.raises(InvalidValueError, match="another run: lr was 0.001 and is 0.002"):
        run(config=tiny(lr=2e-3), reference=coarse, folder=tmp_path, resume=True)
    with pytest.raises(InvalidValueError, match="another run: method was 'm-config' and is 'adam'"):
        run("adam", reference=coarse, folder=tmp_path, resume=True)
    with pytest.raises(InvalidValueError, match="another run: problem option num_losses was 3 and is 2"):
        run(num_losses=2, reference=coarse, folder=tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    for path in tmp_path.iterdir():
        path.write_bytes(b"torn")
    with pytest.raises(InvalidStateError, match="every checkpoint in .* is torn .*; delete the folder or give another"):
        run(reference=coarse, folder=tmp_path, resume=True)


def test_another_reference_is_another_run(coarse, tmp_path):
    run(reference=coarse, folder=tmp_path)
    again = dataclasses.replace(coarse, values=coarse.values * (1.0 + 1e-14))  # another library's last bits
    assert_same_outcome(run(reference=coarse, folder=tmp_path, resume=True), run(reference=coarse))
    run(reference=again, folder=tmp_path, resume=True)
    changed = dataclasses.replace(coarse, values=coarse.values * 1.1)
    with pytest.raises(InvalidValueError, match="another run: hash of the reference was '.*' and is '"):
        run(reference=changed, folder=tmp_path, resume=True)
    with pytest.raises(InvalidValueError, match="hash of the reference was '.*' and is None"):
        run(folder=tmp_path, resume=True)


def test_a_torn_newest_checkpoint_is_passed_over_with_a_warning(coarse, tmp_path):
    whole = run(reference=coarse, folder=tmp_path)
    (tmp_path / "step-6.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="checkpoint of step 6 cannot be read; going on from step 4"):
        resumed = run(reference=coarse, folder=tmp_path, resume=True)
    assert_same_outcome(resumed, whole)


def test_resuming_a_finished_run_returns_it(coarse, tmp_path):
    whole = run(reference=coarse, folder=tmp_path)
    assert_same_outcome(run(reference=coarse, folder=tmp_path, resume=True), whole)


def test_resuming_an_empty_folder_starts(coarse, tmp_path):
    assert run(reference=coarse, folder=tmp_path / "new", resume=True).steps == 6


@pytest.mark.parametrize("method", EXTRA)
def test_extras_of_torchjd_are_named(method):
    pytest.importorskip("torchjd")
    try:
        run(method)
    except OctavoError as error:
        assert f"'{method}' needs an extra of torchjd" in str(error)  # noqa: PT017 - with the extra it trains
