"""Settings: what is refused, and the JSON form."""

from __future__ import annotations

import copy
import inspect
import json
import pickle

import numpy as np
import pytest
import torch
from octavo_aram.config import ARAMConfig, config_from_json, config_to_json
from octavo_aram.setting_checks import check_preference
from octavo_core.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"penalty": -0.1}, "penalty"),
        ({"max_tries": 0}, "max_tries"),
        ({"discount": 1.0}, "discount"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"preference": (0.5, 0.6)}, "simplex"),
        ({"preference": (1.2, -0.2)}, "simplex"),
        ({"preference": (0.2, 0.3, 0.5)}, "simplex"),
        ({"preference": "uniform"}, "dirichlet"),
        ({"preference_schedule": ((0, (0.5, 0.5)), (0, (0.1, 0.9)))}, "rise"),
        ({"preference_schedule": ((0, (0.5, 0.9)),)}, "simplex"),
        ({"hidden": ()}, "hidden"),
        ({"fallback": "guess"}, "fallback"),
        ({"temperature": "high"}, "temperature"),
        ({"reward_scale": 0.0}, "reward_scale"),
        ({"no_such": 1}, "no_such"),
        ({"seed": 2**70}, "seed.* at most"),
        ({"buffer_capacity": 10**18}, "buffer_capacity.* at most"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"batch_size": 200, "buffer_capacity": 100}, "no update would ever"),
        ({"preference": "dirichlet", "preference_schedule": ((0, (0.5, 0.5)),)}, "one of the two"),
        ({"penalti": 1}, "did you mean 'penalty'"),
    ],
)
def test_values_out_of_range_are_refused(changes, match):
    with pytest.raises(InvalidValueError, match=match):
        config_from_json(changes)


@pytest.mark.parametrize(
    "changes", [{"batch_size": 1.5}, {"penalty": "much"}, {"penalty": True}, {"seed": True}, {"preference_schedule": 5}]
)
def test_wrong_types_are_refused(changes):
    with pytest.raises(InvalidTypeError, match=next(iter(changes))):
        config_from_json(changes)


def test_json_round_trip():
    config = ARAMConfig.paper(seed=3, preference=(0.5, 0.5), preference_schedule=((0, (0.5, 0.5)), (100, (0.1, 0.9))))
    text = json.dumps(config_to_json(config))
    assert config_to_json(config_from_json(json.loads(text))) == config_to_json(config)


def test_the_papers_values():
    paper = ARAMConfig.paper()
    assert (paper.batch_size, tuple(paper.hidden), paper.penalty, paper.start_steps) == (1024, (256, 256), 0.2, 10_000)
    assert (paper.num_preferences, paper.num_snapshots, paper.snapshot_every, paper.snapshot_start) == (
        4,
        4,
        1000,
        20_000,
    )
    assert (paper.augmented_share, paper.augmented_decay, paper.max_tries) == (0.2, 0.99, 100)


def test_preferences_are_returned_as_floats():
    assert check_preference([1, 0]) == (1.0, 0.0)


def test_unknown_settings_are_told_with_the_known_ones():
    with pytest.raises(InvalidValueError, match=r"no setting foo; known are .*penalty"):
        ARAMConfig(foo=1)
    with pytest.raises(InvalidTypeError, match="by name"):
        config_from_json(3)


def test_settings_are_copied():
    config = ARAMConfig(penalty=2)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("preference", np.array([0.5, 0.5]), (0.5, 0.5)),
        ("preference", torch.tensor([0.25, 0.75], requires_grad=True), (0.25, 0.75)),
        ("preference", [np.float32(0.25), torch.tensor(0.75)], (0.25, 0.75)),
        (
            "preference_schedule",
            [(np.int64(0), [0.5, 0.5]), (9, np.array([0.25, 0.75]))],
            ((0, (0.5, 0.5)), (9, (0.25, 0.75))),
        ),
        ("hidden", np.array([4, 4]), (4, 4)),
        ("hidden", [8], (8,)),
        ("seed", np.int64(3), 3),
        ("penalty", np.float32(0.5), 0.5),
        ("penalty", torch.tensor(2), 2),
        ("augmented_capacity", np.array(7), 7),
        ("use_arm", np.bool_(False), False),
    ],
)
def test_scalars_and_arrays_become_plain_values(name, given, kept):
    # The test run checks annotations of the constructor, which users' runs do not.
    made = ARAMConfig.__new__(ARAMConfig)
    inspect.unwrap(ARAMConfig.__init__)(made, **{name: given})
    for config in (made, ARAMConfig().replace(**{name: given})):
        value = getattr(config, name)
        assert value == kept
        assert type(value) is type(kept)
        assert config == ARAMConfig(**{name: kept})
        assert hash(config) == hash(ARAMConfig(**{name: kept}))
        assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_entropy_that_is_not_finite_is_told_without_a_bound(value):
    with pytest.raises(InvalidValueError, match="give a finite number$"):
        ARAMConfig(target_entropy=value)
