from __future__ import annotations

from pathlib import Path

import pytest
import torch
from magicpig_helpers import random_layer
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_magicpig import LSHConfig, LSHIndex
from octavo_magicpig.persistence import load, save

CONFIG = LSHConfig(key_bits=5, num_tables=20, segment_max=256, segment_min=32, window_tokens=16)


def make(**options) -> tuple[LSHIndex, torch.Tensor]:
    query, keys, values = random_layer(600, batch=2, dtype=torch.bfloat16)
    index = LSHIndex(LSHConfig.from_dict(CONFIG.to_dict() | options), 2, 32, 2, torch.bfloat16, layer=3)
    index.build(keys, values, padding=torch.tensor([0, 7]), heavy=torch.tensor([[[30], [31]], [[32], [33]]]))
    index.append(keys[:, :, :100], values[:, :, :100])
    index.crop(650)
    return index, query


@pytest.mark.parametrize("options", [{}, {"planes_per": "head"}, {"transform": "simple"}])
def test_round_trip(tmp_path: Path, options: dict) -> None:
    index, query = make(**options)
    loaded = LSHIndex.load(index.save(tmp_path / "layer.safetensors"))
    assert loaded.config == index.config
    assert loaded.layer == 3
    assert torch.equal(loaded.keys, index.keys)
    assert torch.equal(loaded.attend(query)[0], index.attend(query)[0])
    more = random_layer(64, batch=2, seed=5, dtype=torch.bfloat16)[1:]
    for one in (index, loaded):
        one.append(*more)
    assert torch.equal(loaded.attend(query)[0], index.attend(query)[0])


def test_state_dict_needs_the_same_index() -> None:
    index, _ = make()
    state = index.state_dict()
    for other, words in (
        (LSHIndex(LSHConfig.from_dict(CONFIG.to_dict() | {"key_bits": 6}), 2, 32, 2, layer=3), "key_bits"),
        (LSHIndex(CONFIG, 2, 32, 1, layer=3), "batch_size"),
        (LSHIndex(CONFIG, 2, 32, 2, layer=4), "layer"),
        (LSHIndex(CONFIG, 2, 32, 2, torch.float32, layer=3), "dtype"),
        (LSHIndex(LSHConfig.from_dict(CONFIG.to_dict() | {"sink_tokens": 64}), 2, 32, 2, layer=3), "sink_tokens=4"),
        (LSHIndex(LSHConfig.from_dict(CONFIG.to_dict() | {"window_tokens": 64}), 2, 32, 2, layer=3), "window_tokens"),
        (LSHIndex(CONFIG, 2, 32, 2, torch.bfloat16, layer=3, planes=torch.randn(32, 100)), "other planes"),
    ):
        with pytest.raises(InvalidValueError, match=words):
            other.load_state_dict(state)
        assert len(other) == 0
    with pytest.raises(InvalidValueError, match="schema 'octavo-magicpig-index/0'"):
        index.load_state_dict(state | {"schema": "octavo-magicpig-index/0"})


@pytest.mark.parametrize("path", [3, None, b"layer.safetensors"])
def test_files_are_named_by_paths(path: object) -> None:
    for call in (lambda: save(make()[0], path), lambda: load(LSHIndex, path)):
        with pytest.raises(InvalidTypeError, match="path="):
            call()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    index, _ = make()
    path = index.save(tmp_path / "layer.safetensors")
    with pytest.raises(MissingFileError):
        LSHIndex.load(tmp_path / "none.safetensors")
    content = path.read_bytes()
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidStateError):
        LSHIndex.load(torn)
    flipped = bytearray(content)
    flipped[-100] ^= 0xFF
    torn.write_bytes(bytes(flipped))
    with pytest.raises(InvalidStateError, match="altered"):
        LSHIndex.load(torn)


@pytest.mark.parametrize("damage", ["ids", "offsets", "start", "tail", "heavy", "first", "planes"])
def test_states_that_would_read_out_of_bounds_are_refused(tmp_path: Path, damage: str) -> None:
    index, _ = make()
    path = index.save(tmp_path / "layer.safetensors")
    state = load_checkpoint(path)
    segment = state["segments"][0]
    if damage == "ids":
        segment["ids"][0, 0, 0, 0] = -1
    elif damage == "offsets":
        segment["offsets"][0, 0, 0, 3] = -1
    elif damage == "start":
        segment["start"] = 10_000
    elif damage == "tail":
        state["tail"] = 10_000
    elif damage == "heavy":
        state["heavy"][0, 0, 0] = 10_000
    elif damage == "first":
        state["first"][0] = -5
    else:
        state["planes"][0, 0, 0] += 1
    save_checkpoint(path, state)
    with pytest.raises(InvalidStateError):
        LSHIndex.load(path)


NAMES = (
    "config", "shape", "dtype", "planes", "planes_digest", "built", "tail", "keys", "values", "first", "heavy", "mean",
    "radius", "norms", "segments",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_state_without_an_entry_is_refused_whole(tmp_path: Path, name: str) -> None:
    index, query = make()
    expected = index.attend(query)[0]
    state = index.state_dict()
    assert set(state) == {*NAMES, "schema"}
    del state[name]
    with pytest.raises(InvalidStateError, match=name):
        index.load_state_dict(state)
    assert torch.equal(index.attend(query)[0], expected)
    path = save_checkpoint(tmp_path / "layer.safetensors", state)
    with pytest.raises(InvalidStateError, match=name):
        LSHIndex.load(path)


def damaged(state: dict, damage: str) -> dict:
    segments = state["segments"]
    segment = dict(segments[0])
    changes: dict[str, dict] = {
        "no segments": {"segments": []},
        "segments twice": {"segments": segments * 2},
        "gap between segments": {"segments": segments[1:]},
        "segment moved": {"segments": [segment | {"start": segment["start"] + 1}, *segments[1:]]},
        "segment of text": {"segments": ["text"]},
        "unknown field": {"segments": [segment | {"more": 1}, *segments[1:]]},
        "heavy under the tables": {"heavy": torch.full_like(state["heavy"], 100)},
        "key twice in a table": {"segments": [segment | {"ids": twice(segment["ids"])}, *segments[1:]]},
        "NaN mean": {"mean": torch.full_like(state["mean"], torch.nan)},
        "NaN radius": {"radius": torch.full_like(state["radius"], torch.nan)},
        "NaN key": {"keys": torch.full_like(state["keys"], torch.nan)},
        "integer keys": {"keys": state["keys"].long(), "values": state["values"].long()},
        "infinite norms": {"norms": torch.full_like(state["norms"], torch.inf)},
        "fractional tail": {"tail": 100.5},
        "fractional padding": {"first": state["first"] + 0.5},
        "tail without segments": {"segments": [], "tail": 300, "norms": state["norms"][:, :, :300]},
        "not built": {"built": False},
        "built is text": {"built": "yes"},
        "keys are a list": {"keys": [1.0]},
        "shape is a list": {"shape": [1]},
        "config is a list": {"config": [1]},
        "unknown dtype": {"dtype": "Tensor"},
        "shape without layer": {"shape": {k: v for k, v in state["shape"].items() if k != "layer"}},
    }
    return state | changes[damage]


def twice(ids: torch.Tensor) -> torch.Tensor:
    ids = ids.clone()
    ids[0, 1, 3, 0] = ids[0, 1, 3, 1]
    return ids


DAMAGES = (
    "no segments", "segments twice", "gap between segments", "segment moved", "segment of text", "unknown field",
    "heavy under the tables", "key twice in a table", "NaN mean", "NaN radius", "NaN key", "integer keys",
    "infinite norms", "fractional tail", "fractional padding", "tail without segments", "not built", "built is text",
    "keys are a list", "shape is a list", "config is a list", "unknown dtype", "shape without layer",
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_state_that_does_not_fit_together_changes_nothing(damage: str) -> None:
    index, query = make()
    expected = index.attend(query)[0]
    with pytest.raises((InvalidStateError, InvalidValueError)):
        index.load_state_dict(damaged(index.state_dict(), damage))
    assert torch.equal(index.attend(query)[0], expected)
    index.append(*random_layer(64, batch=2, seed=5, dtype=torch.bfloat16)[1:])


@pytest.mark.parametrize("length", [0, 2, 4, 20, 100])
def test_cropped_and_empty_indices_are_kept(length: int) -> None:
    index, query = make()
    index.crop(length)
    other = LSHIndex(CONFIG, 2, 32, 2, torch.bfloat16, layer=3)
    other.load_state_dict(index.state_dict())
    assert len(other) == length
    assert other.is_built == index.is_built
    if index.is_built:
        assert torch.equal(other.attend(query)[0], index.attend(query)[0])


def test_a_cropped_index_that_grew_again_is_kept() -> None:
    index, query = make()
    more = random_layer(300, batch=2, seed=5, dtype=torch.bfloat16)[1:]
    for length in (300, 3):
        index.crop(length)
        index.append(*more)
        other = LSHIndex(CONFIG, 2, 32, 2, torch.bfloat16, layer=3)
        other.load_state_dict(index.state_dict())
        assert torch.equal(other.attend(query)[0], index.attend(query)[0])
