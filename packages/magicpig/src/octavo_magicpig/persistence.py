"""Saving an index: one checked file without pickle, refused when it does not fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidValueError
from torch import Tensor

from octavo_magicpig.config import MAX_SEGMENT, LSHConfig
from octavo_magicpig.kernels import Segment

if TYPE_CHECKING:
    from octavo_magicpig.index import LSHIndex

__all__ = ["SCHEMA", "load", "pack", "save", "unpack"]

SCHEMA = "octavo-magicpig-index/1"
"""Name and version of the stored form."""

_SHAPE = ("layer", "num_kv_heads", "head_dim", "batch_size")
# Settings under which the same tables mean something else.
_BINDING = ("key_bits", "num_tables", "planes", "planes_per", "transform", "center", "seed", "segment_max")


def pack(index: LSHIndex) -> dict[str, Any]:
    """Gather the state of an index.

    Args:
        index: The index.

    Returns:
        Nested plain values and tensors.
    """
    planes = index._key_planes.matrix
    return {
        "schema": SCHEMA,
        "config": index.config.to_dict(),
        "shape": {name: getattr(index, name) for name in _SHAPE},
        "dtype": str(index.dtype).removeprefix("torch."),
        "planes": planes,
        "planes_digest": _digest(planes),
        "built": index.is_built,
        "tail": index._tail,
        "keys": index.keys,
        "values": index.values,
        "first": index._first,
        "heavy": index._heavy,
        "mean": index._mean,
        "radius": index._radius,
        "norms": index._norms[:, :, : index._tail],
        "segments": [vars(segment).copy() for segment in index._segments],
    }


def unpack(index: LSHIndex, state: Mapping[str, Any]) -> None:
    """Put a state into an index.

    Args:
        index: The index; unchanged if the state is refused.
        state: What :func:`pack` returned.

    Raises:
        InvalidValueError: If it belongs to another configuration, shape, version or other planes.
        InvalidStateError: If its tensors do not fit together.
    """
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        found = state.get("schema") if isinstance(state, Mapping) else type(state).__name__
        raise InvalidValueError(f"the state has schema {found!r}; this version reads {SCHEMA!r}")
    config = index.config.to_dict()
    for name in _BINDING:
        if state["config"].get(name) != config[name]:
            raise InvalidValueError(
                f"the state was built with {name}={state['config'].get(name)!r}, this index has {config[name]!r}; "
                "make the index with the same settings"
            )
    for name in _SHAPE:
        if state["shape"][name] != getattr(index, name):
            raise InvalidValueError(f"the state has {name}={state['shape'][name]}, this index {getattr(index, name)}")
    if state["planes_digest"] != _digest(index._key_planes.matrix):
        raise InvalidValueError("the state was built with other planes; make the index with the same planes or seed")
    try:
        segments = [Segment(**fields) for fields in state["segments"]]
        problem = _misfit(index, state, segments)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise InvalidStateError(f"the state does not have the form that this version reads: {error}") from error
    if problem:
        raise InvalidStateError(f"the state does not fit together: {problem}")
    index._clear()
    index._store.append(state["keys"], state["values"])
    for name in ("first", "heavy", "mean", "radius"):
        setattr(index, f"_{name}", state[name].to(index.device).contiguous())
    index._segments = [
        Segment(s.start, s.size, s.limit, s.ids.to(index.device).contiguous(), s.offsets.to(index.device).contiguous())
        for s in segments
    ]
    index._tail, index._built = state["tail"], state["built"]
    index._norms = index._norms.new_zeros(index.batch_size, index.num_kv_heads, index._store.capacity)
    index._norms[:, :, : index._tail] = state["norms"].to(index.device)


def save(index: LSHIndex, path: str | Path) -> Path:
    """Write an index to a file.

    Args:
        index: The index.
        path: The file, ending in ``.safetensors``.

    Returns:
        The path.
    """
    return save_checkpoint(path, pack(index))


def load(kind: type[LSHIndex], path: str | Path, *, device: str | torch.device = "cpu") -> LSHIndex:
    """Read an index from a file.

    Args:
        kind: Class to make.
        path: The file.
        device: Where to put it.

    Returns:
        The index.

    Raises:
        InvalidValueError: If the file is no index or of another version.
        InvalidStateError: If it is damaged.
    """
    state = load_checkpoint(path)
    if state.get("schema") != SCHEMA:
        raise InvalidValueError(f"{str(path)!r} has schema {state.get('schema')!r}; this version reads {SCHEMA!r}")
    config, shape, planes = LSHConfig.from_dict(state["config"]), state["shape"], state["planes"]
    if _digest(planes) != state["planes_digest"]:
        raise InvalidStateError(f"{str(path)!r} holds planes that were altered; build the index anew")
    index = kind(
        config,
        shape["num_kv_heads"],
        shape["head_dim"],
        shape["batch_size"],
        getattr(torch, state["dtype"]),
        device,
        layer=shape["layer"],
        planes=planes[0] if len(planes) == 1 else None,
    )
    unpack(index, state)
    return index


def _digest(planes: Tensor) -> str:
    return hashlib.sha256(planes.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _misfit(index: LSHIndex, state: Mapping[str, Any], segments: list[Segment]) -> str | None:
    """What is wrong with the sizes of a state; ids out of range would read beyond the tables."""
    rows, length = (index.batch_size, index.num_kv_heads), state["keys"].shape[2]
    if state["keys"].shape != (*rows, length, index.head_dim) or state["values"].shape != state["keys"].shape:
        return "keys and values differ from the shape"
    if not 0 <= state["tail"] <= length or state["norms"].shape != (*rows, state["tail"]):
        return "norms differ from the hashed tokens"
    if state["first"].shape != (rows[0],) or state["mean"].shape != (*rows, index.head_dim):
        return "padding or mean differ from the shape"
    if bool(((state["first"] < 0) | (state["first"] > length)).any()):
        return "padding is out of range"
    if state["heavy"].shape[:2] != rows or bool((state["heavy"] >= length).any()):
        return "exact positions are out of range"
    for segment in segments:
        buckets = 2**index.config.key_bits + 1
        if not 0 < segment.size <= MAX_SEGMENT:
            return "a segment has more keys than 16 bits can name"
        if segment.ids.shape != (*rows, index.config.num_tables, segment.size) or segment.offsets.shape != (
            *rows, index.config.num_tables, buckets,
        ):  # fmt: skip
            return "tables differ from the settings"
        if not (
            segment.start >= 0 and 0 < segment.limit <= segment.size and segment.start + segment.limit <= state["tail"]
        ):
            return "a segment lies outside the hashed tokens"
        ids, offsets = segment.ids.int() & 0xFFFF, segment.offsets.int() & 0xFFFF
        if (
            int(ids.max()) >= segment.size
            or int(offsets.max()) > segment.size
            or bool((offsets.diff(dim=-1) < 0).any())
        ):
            return "a table points outside its segment"
    return None
