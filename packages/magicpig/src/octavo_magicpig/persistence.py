"""Saving an index: one checked file without pickle, refused when it does not fit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_magicpig.config import MAX_SEGMENT, LSHConfig
from octavo_magicpig.heavy import distinct_positions
from octavo_magicpig.kernels import Segment
from octavo_magicpig.kernels.reference import from_bits16
from octavo_magicpig.segments import left_out

if TYPE_CHECKING:
    from octavo_magicpig.index import LSHIndex

__all__ = ["SCHEMA", "load", "pack", "save", "unpack"]

SCHEMA = "octavo-magicpig-index/1"
"""Name and version of the stored form."""

_SHAPE = ("layer", "num_kv_heads", "head_dim", "batch_size")
# Settings under which the same tables mean something else, or other tokens are exact.
_BINDING = (
    "key_bits", "num_tables", "planes", "planes_per", "transform", "center", "seed", "segment_max", "sink_tokens",
    "window_tokens",
)  # fmt: skip
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Entries of a state and what they are.
_ENTRIES: dict[str, type] = {
    "config": Mapping, "shape": Mapping, "dtype": str, "planes": Tensor, "planes_digest": str, "built": bool,
    "tail": int, "keys": Tensor, "values": Tensor, "first": Tensor, "heavy": Tensor, "mean": Tensor, "radius": Tensor,
    "norms": Tensor, "segments": list,
}  # fmt: skip
_SEGMENT: dict[str, type] = {"start": int, "size": int, "limit": int, "ids": Tensor, "offsets": Tensor}


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


def unpack(index: LSHIndex, state: Mapping[str, Any] | Any) -> None:
    """Put a state into an index.

    Args:
        index: The index; unchanged if the state is refused.
        state: What :func:`pack` returned.

    Raises:
        InvalidValueError: If it belongs to another configuration, shape, version or other planes.
        InvalidStateError: If its tensors do not fit together.
    """
    _check_form(state)
    config = index.config.to_dict()
    for name in _BINDING:
        if state["config"].get(name) != config[name]:
            raise InvalidValueError(
                f"the state was built with {name}={state['config'].get(name)!r}, this index has {config[name]!r}; "
                "make the index with the same settings"
            )
    shape = {name: getattr(index, name) for name in _SHAPE} | {"dtype": str(index.dtype).removeprefix("torch.")}
    for name, value in shape.items():
        found = state["dtype"] if name == "dtype" else state["shape"][name]
        if found != value:
            raise InvalidValueError(f"the state has {name}={found}, this index {value}; make the index the same")
    if state["planes_digest"] != _digest(index._key_planes.matrix):
        raise InvalidValueError("the state was built with other planes; make the index with the same planes or seed")
    if problem := _misfit(index, state):
        raise InvalidStateError(f"the state does not fit together: {problem}; save it again from a sound index")
    here = index.device
    segments = [
        Segment(s["start"], s["size"], s["limit"], s["ids"].to(here).contiguous(), s["offsets"].to(here).contiguous())
        for s in state["segments"]
    ]
    index._clear()
    index._store.append(state["keys"], state["values"])
    for name in ("first", "heavy", "mean", "radius"):
        setattr(index, f"_{name}", state[name].to(here).contiguous())
    index._segments, index._tail, index._built = segments, state["tail"], state["built"]
    index._norms = index._norms.new_zeros(index.batch_size, index.num_kv_heads, index._store.capacity)
    index._norms[:, :, : index._tail] = state["norms"].to(here)


def save(index: LSHIndex, path: str | Path | Any) -> Path:
    """Write an index to a file.

    Args:
        index: The index.
        path: The file, ending in ``.safetensors``.

    Returns:
        The path.

    Raises:
        InvalidTypeError: If the path is neither text nor a path.
    """
    return save_checkpoint(_checked_path(path), pack(index))


def load(kind: type[LSHIndex], path: str | Path | Any, *, device: str | torch.device = "cpu") -> LSHIndex:
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
        InvalidTypeError: If the path is neither text nor a path.
    """
    state = load_checkpoint(_checked_path(path))
    _check_form(state, repr(str(path)))
    config, shape, planes = LSHConfig.from_dict(state["config"]), state["shape"], state["planes"]
    if _digest(planes) != state["planes_digest"]:
        raise InvalidStateError(f"{str(path)!r} holds planes that were altered; build the index anew")
    index = kind(
        config,
        shape["num_kv_heads"],
        shape["head_dim"],
        shape["batch_size"],
        _DTYPES[state["dtype"]],
        device,
        layer=shape["layer"],
        planes=planes[0] if len(planes) == 1 else None,
    )
    unpack(index, state)
    return index


def _checked_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"path={path!r} is no path; give a file, such as 'layer.safetensors'")
    return Path(path)


def _digest(planes: Tensor) -> str:
    return hashlib.sha256(planes.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _check_form(state: Any, where: str = "the state") -> None:
    """Refuse what is not a state at all: another version, a missing entry, or one of another type."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        found = state.get("schema") if isinstance(state, Mapping) else type(state).__name__
        raise InvalidValueError(f"{where} has schema {found!r}; this version reads {SCHEMA!r}")
    problem = _wrong_entry(state, _ENTRIES) or _wrong_entry(state["shape"], dict.fromkeys(_SHAPE, int), "shape.")
    if problem is None and state["dtype"] not in _DTYPES:
        problem = f"dtype={state['dtype']!r} is none of {', '.join(_DTYPES)}"
    for number, segment in enumerate(state["segments"] if problem is None else []):
        problem = problem or _wrong_entry(segment, _SEGMENT, f"segments[{number}].")
    if problem:
        raise InvalidStateError(f"{where} is not of the form that this version reads: {problem}")


def _wrong_entry(entries: Any, wanted: Mapping[str, type], prefix: str = "") -> str | None:
    if not isinstance(entries, Mapping):
        return f"{prefix.rstrip('.')} is of type {type(entries).__name__}"
    for name, kind in wanted.items():
        value = entries.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = f"is of type {type(value).__name__}" if name in entries else "is missing"
            return f"{prefix}{name} {found}"
    unknown = sorted(set(map(str, entries)) - set(wanted) - {"schema"})
    return f"{prefix}{unknown[0]} is unknown" if unknown else None


def _misfit(index: LSHIndex, state: Mapping[str, Any]) -> str | None:
    """What does not hold between the parts of a state; ids out of range would read beyond the tables."""
    batch, kv_heads, dim = index.batch_size, index.num_kv_heads, index.head_dim
    length, tail = state["keys"].shape[-2] if state["keys"].ndim == 4 else -1, state["tail"]
    forms: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "keys": (index.dtype, (batch, kv_heads, length, dim)),
        "values": (index.dtype, (batch, kv_heads, length, dim)),
        "norms": (torch.float32, (batch, kv_heads, tail)),
        "mean": (torch.float32, (batch, kv_heads, dim)),
        "radius": (torch.float32, (batch, kv_heads)),
        "first": (torch.int64, (batch,)),
        "heavy": (torch.int32, (batch, kv_heads, *state["heavy"].shape[2:3])),
    }
    for name, (dtype, shape) in forms.items():
        tensor = state[name]
        if tensor.dtype != dtype or tensor.shape != shape or len(shape) != tensor.ndim:
            return f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} instead of {dtype} of shape {shape}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name} holds NaN or infinite numbers"
    # Padding and exact positions may lie behind the end, which a crop moves.
    if bool((state["first"] < 0).any()):
        return "padding is negative"
    heavy = state["heavy"]
    if heavy.ndim != 3 or bool((heavy < -1).any()) or not torch.equal(heavy, distinct_positions(heavy)):
        return "exact positions are out of order or repeated"
    segments = state["segments"]
    start = segments[0]["start"] if segments else tail
    if not 0 <= start <= min(index.config.sink_tokens, length) or not start <= tail <= length:
        return "the tables do not begin where the first exact tokens end"
    if not state["built"] and (segments or tail):
        return "there are tables, but they were never built"
    if state["built"] and length - tail < min(index.config.window_tokens, length - start):
        return "the last exact tokens are fewer than the window"
    for segment in segments:
        if segment["start"] != start:
            return "the segments overlap, or leave tokens out"
        if problem := _segment_misfit(index, state, segment):
            return problem
        start += segment["limit"]
    return None if start == tail else "the segments do not reach the last exact tokens"


def _segment_misfit(index: LSHIndex, state: Mapping[str, Any], segment: Mapping[str, Any]) -> str | None:
    """What is wrong with a segment: every table must hold each of its keys once, and no other."""
    size, config, rows = segment["size"], index.config, (index.batch_size, index.num_kv_heads)
    if not 0 < size <= MAX_SEGMENT or not 0 < segment["limit"] <= size:
        return f"a segment has {size} keys, of which {segment['limit']} are alive"
    ids, offsets = segment["ids"], segment["offsets"]
    forms = {"ids": (ids, size), "offsets": (offsets, 2**config.key_bits + 1)}
    for name, (tensor, last) in forms.items():
        if tensor.dtype != torch.int16 or tensor.shape != (*rows, config.num_tables, last):
            return f"{name} of a segment are {tensor.dtype} of shape {tuple(tensor.shape)}"
    begin = segment["start"]
    absent = left_out(state["first"], state["heavy"], config.sink_tokens, begin, begin + size)
    for b in range(rows[0]):
        for h in range(rows[1]):
            held = (~absent[b, h]).nonzero()[:, 0].to(ids.device)
            entries, bounds = from_bits16(ids[b, h]), from_bits16(offsets[b, h])
            if bool((bounds.diff(dim=1) < 0).any()) or not bool((bounds[:, [0, -1]] == _ends(held, bounds)).all()):
                return "the buckets of a table do not hold all keys of their segment"
            used = entries[:, : len(held)]
            if bool((entries >= size).any()):
                return "a table points outside its segment"
            found = torch.zeros_like(entries, dtype=torch.bool).scatter_(1, used, True)
            if not bool(found[:, held].all()):
                return "a table misses a key, or holds one twice or one that is exact"
    return None


def _ends(held: Tensor, bounds: Tensor) -> Tensor:
    return torch.tensor([0, len(held)], device=bounds.device)
