"""Methods against a baseline."""

from __future__ import annotations

import pytest
from octavo_config_grad.pinn.comparison import compare_methods, run_names
from octavo_core.errors import InvalidValueError


def row(method, seed, mse, *, options=None, **settings):
    config = {"steps": 5, "seconds": None, "seed": seed, "device": "cpu", "lr": 1e-3, "updates_per_step": 1}
    return {
        "folder": f"{method}-{seed}",
        "problem": "Burgers",
        "problem_options": {"num_losses": 3} if options is None else options,
        "method": method,
        "seed": seed,
        "final_mse": mse,
        "config": {**config, "length": "projection", "rank_policy": "lstsq", **settings},
    }


def pair(method, values, **settings):
    return [row(method, seed, value, **settings) for seed, value in enumerate(values)]


def test_only_runs_that_differ_in_method_and_seed_are_compared():
    rows = [
        *pair("adam", [4.0, 2.0]),
        *pair("adam", [1.0, 1.0], options={"num_losses": 2}),
        *pair("config", [1.0, 1.0]),
        *pair("config", [8.0, 8.0], options={"num_losses": 2}),
    ]
    comparisons, notes = compare_methods(rows)
    assert not notes
    assert [entry["label"] for entry in comparisons] == [
        "Burgers (num_losses=3): config over adam",
        "Burgers (num_losses=2): config over adam",
    ]
    assert [entry["ratio"] for entry in comparisons] == pytest.approx([8**-0.5, 8.0])
    assert [(entry["wins"], entry["losses"]) for entry in comparisons] == [(2, 0), (0, 2)]


def test_settings_that_only_some_methods_have_do_not_part_them_from_the_others():
    rows = [
        *pair("adam", [4.0, 2.0], device="cuda", length="min"),
        *pair("config", [1.0, 1.0]),
        *pair("config", [2.0, 1.0], length="min", updates_per_step=3),
        *pair("m-pcgrad", [1.0, 1.0], updates_per_step=2),
    ]
    comparisons, _ = compare_methods(rows)
    assert [entry["label"].removeprefix("Burgers: ") for entry in comparisons] == [
        "config (length=projection) over adam",
        "config (length=min) over adam",
        "m-pcgrad over adam",
    ]
    among = compare_methods(rows, "config")[0]
    assert [entry["label"].removeprefix("Burgers: ") for entry in among] == [
        "adam over config (length=projection)",
        "adam over config (length=min)",
        "m-pcgrad over config (length=projection)",
        "m-pcgrad over config (length=min)",
    ]


def test_by_seconds_the_device_matters():
    rows = [*pair("adam", [4.0, 2.0], steps=None, seconds=9.0, device="cuda"), *pair("config", [1.0, 1.0])]
    rows[2:] = pair("config", [1.0, 1.0], steps=None, seconds=9.0)
    comparisons, notes = compare_methods(rows)
    assert not comparisons
    assert notes == ["Burgers (device=cpu): no run by adam under the same settings, so nothing is compared"]
    assert run_names(rows)[0] == ("Burgers (device=cuda)", "adam")


def test_runs_without_an_error_do_not_count():
    comparisons, notes = compare_methods([*pair("adam", [4.0, None, 1.0]), *pair("config", [1.0, 1.0])])
    assert not comparisons
    assert notes == ["Burgers: config over adam: both have a final error on 1 seed; a comparison needs two"]


def test_what_is_refused():
    with pytest.raises(InvalidValueError, match="no run is by the baseline 'best'; give one of adam"):
        compare_methods(pair("adam", [1.0, 2.0]), "best")
    with pytest.raises(InvalidValueError, match="'adam-1' and 'adam-1' are the same run"):
        compare_methods([*pair("adam", [1.0, 2.0]), row("adam", 1, 3.0, length="min")])
