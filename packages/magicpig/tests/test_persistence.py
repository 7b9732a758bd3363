from __future__ import annotations

from pathlib import Path

import pytest
import torch
from magicpig_helpers import random_layer
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from octavo_magicpig import LSHConfig, LSHIndex

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
        (LSHIndex(CONFIG, 2, 32, 2, layer=3, planes=torch.randn(32, 100)), "other planes"),
    ):
        with pytest.raises(InvalidValueError, match=words):
            other.load_state_dict(state)
        assert len(other) == 0
    with pytest.raises(InvalidValueError, match="schema 'octavo-magicpig-index/0'"):
        index.load_state_dict(state | {"schema": "octavo-magicpig-index/0"})


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
