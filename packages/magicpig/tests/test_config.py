from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from magicpig_helpers import random_layer
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_magicpig import LSHConfig, LSHIndex, exact_attention


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"key_bits": 0}, "key_bits=0.*1 to 16"),
        ({"key_bits": 17}, "key_bits=17.*1 to 16"),
        ({"num_tables": 1, "min_hits": 2}, "num_tables=1.*min_hits=2"),
        ({"num_tables": 5000}, "num_tables=5000"),
        ({"min_hits": 9}, "min_hits=9.*0 to 8"),
        ({"sink_tokens": -1}, "sink_tokens=-1.*0 or more"),
        ({"window_tokens": -1}, "window_tokens=-1"),
        ({"segment_max": 65_536}, "segment_max=65536.*65535"),
        ({"segment_min": 2000, "segment_max": 1000}, "segment_min=2000"),
        ({"weight_eps": -1e-3}, "weight_eps"),
        ({"weight_eps": float("nan")}, "weight_eps"),
        ({"tolerance": 0}, "tolerance=0"),
        ({"tolerance": float("inf")}, "tolerance=inf"),
        ({"transform": "mips"}, "transform='mips'"),
        ({"planes": "random"}, "planes='random'"),
        ({"planes_per": "token"}, "planes_per='token'"),
        ({"kv_dtype": "int8"}, "kv_dtype='int8'"),
        ({"kernel": "cuda"}, "kernel='cuda'"),
        ({"dense_layers": (-1,)}, "negative"),
        ({"seed": -1}, "seed=-1"),
        ({"sink_tokens": 10**30}, r"sink_tokens=10+ .*0 or more, at most 2\^62"),
        ({"window_tokens": 2**63}, r"window_tokens=.*at most 2\^62"),
        ({"min_context": 10**30}, "min_context=10+ .*0 to"),
        ({"heavy_tokens": 10**30}, r"heavy_tokens=10+ .*at most 2\^62"),
        ({"tolerance": 10**400}, "tolerance=10+ "),
        ({"weight_eps": -(10**400)}, "weight_eps=-10+ "),
        ({"planes": np.array(["gaussian", "hadamard"])}, "planes=.*unknown"),
        ({"kv_dtype": torch.bfloat16}, "kv_dtype=torch.bfloat16.*unknown"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        LSHConfig(**settings)


@pytest.mark.parametrize("dense_layers", [(1.5,), "all", ("0",), (True,), None, 0, {0, 1}, np.array([0, 1])])
def test_dense_layers_must_be_indices(dense_layers: object) -> None:
    with pytest.raises(InvalidTypeError, match="dense_layers"):
        LSHConfig(dense_layers=dense_layers)


def test_the_largest_exact_parts_are_the_whole_context(kernel: str) -> None:
    query, keys, values = random_layer(100)
    expected = exact_attention(query[:, :, None], keys, values).out[:, :, 0]
    for name in ("sink_tokens", "window_tokens"):
        index = LSHIndex(LSHConfig(**{name: 2**62, "kernel": kernel}), 2, 32).build(keys, values)
        torch.testing.assert_close(index.attend(query)[0], expected, atol=1e-5, rtol=1e-5)


def test_numbers_may_come_from_numpy() -> None:
    config = LSHConfig(
        key_bits=np.int64(8), seed=np.uint32(3), weight_eps=np.float32(0.5), tolerance=np.float64(0.25),
        dense_layers=[np.int64(1)],
    )  # fmt: skip
    assert config == LSHConfig(key_bits=8, seed=3, weight_eps=0.5, tolerance=0.25, dense_layers=(1,))
    assert LSHConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_dense_layers_of_a_model() -> None:
    assert LSHConfig().dense_layer_indices(32) == {0, 16}
    assert LSHConfig().dense_layer_indices(80) == {0, 16, 32, 48, 64}
    assert LSHConfig().dense_layer_indices(12) == {0, 6}
    assert LSHConfig(dense_layers=[]).dense_layer_indices(12) == frozenset()
    with pytest.raises(InvalidValueError, match="layer 12.*0 to 11"):
        LSHConfig(dense_layers=(3, 12)).dense_layer_indices(12)


def test_round_trip_through_a_dictionary() -> None:
    config = LSHConfig(key_bits=8, dense_layers=(0, 3), tolerance=0.1, transform="simple")
    assert LSHConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InvalidValueError, match="unknown setting 'K'"):
        LSHConfig.from_dict({"K": 10})
    with pytest.raises(InvalidValueError, match="unknown setting 1;"):
        LSHConfig.from_dict({1: 2, "a": 3})


@pytest.mark.parametrize(
    "settings",
    [
        {"key_bits": 10.0},
        {"key_bits": True},
        {"seed": "1"},
        {"window_tokens": None},
        {"weight_eps": "a"},
        {"weight_eps": None},
        {"weight_eps": True},
        {"tolerance": "x"},
        {"tolerance": True},
        {"center": "no"},
        {"center": None},
        {"center": 1},
    ],
)
def test_settings_of_another_type_are_refused_by_name(settings: dict) -> None:
    with pytest.raises(InvalidTypeError, match=f"{next(iter(settings))}="):
        LSHConfig(**settings)


@pytest.mark.parametrize("settings", [None, [1], "key_bits"])
def test_a_configuration_comes_from_a_dictionary(settings: object) -> None:
    with pytest.raises(InvalidTypeError, match="settings by name"):
        LSHConfig.from_dict(settings)
