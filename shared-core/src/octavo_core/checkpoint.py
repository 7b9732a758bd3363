"""Checkpoints that survive a kill at any moment and never unpickle.

A checkpoint is one safetensors file: the tensors, and in its header the structure around them as JSON. One file means
one rename, so a reader finds the old state or the new one, never halves of both.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError, OctavoError
from octavo_core.files import atomic_path, ensure_folder

__all__ = ["CheckpointFolder", "load_checkpoint", "random_state", "restore_random_state", "save_checkpoint"]

SCHEMA = "octavo-checkpoint/1"
_FILE = re.compile(r"step-(0|[1-9][0-9]*)\.safetensors")


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> Path:
    """Write a state atomically.

    Args:
        path: The file, ending in ``.safetensors``; its folder is created if missing.
        state: Nested mappings (keys: str or int), lists and tuples of tensors, NumPy arrays, str, bytes, bool, int,
            float and None: what ``state_dict()`` of modules, optimizers, schedulers and scalers returns. Other
            mappings come back as dict, parameters as plain tensors, NumPy scalars as Python numbers.

    Returns:
        The path written.

    Raises:
        InvalidTypeError: If the state holds anything else.
        InvalidValueError: If the file name does not end in ``.safetensors``.
        InvalidStateError: If the file cannot be written there.
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InvalidValueError(f"checkpoint {str(target)!r} must end in .safetensors")
    tensors: dict[str, torch.Tensor] = {}
    structure = _encode(state, tensors, "state")
    text = json.dumps(structure)
    header = {"schema": SCHEMA, "structure": text, "crc32": json.dumps(_checksums(text, tensors))}
    ensure_folder(target.parent)
    with atomic_path(target) as temporary:
        try:
            save_file(tensors, temporary, metadata=header)
        except (SafetensorError, OSError) as error:
            raise InvalidStateError(
                f"cannot write {str(target)!r}: {error}; the file before it is untouched"
            ) from error
    return target


def load_checkpoint(path: str | os.PathLike[str], *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a state that :func:`save_checkpoint` wrote.

    Args:
        path: The file.
        map_location: Device for the tensors.

    Returns:
        The state, equal to what was saved: types, nesting, dtypes and bits.

    Raises:
        MissingFileError: If there is no such file.
        InvalidStateError: If the file is torn, altered, of another kind or of an unknown schema.
    """
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"no checkpoint at {str(file)!r}; give a file that save_checkpoint wrote")
    try:
        with safe_open(file, framework="pt", device="cpu") as content:
            header = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
        schema = header.get("schema")
        if schema == SCHEMA:
            intact = json.loads(header["crc32"]) == _checksums(header["structure"], tensors)
            structure = json.loads(header["structure"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InvalidStateError(
            f"checkpoint {str(file)!r} cannot be read ({error}); it is torn or not a checkpoint: use an older one"
        ) from error
    if schema != SCHEMA:
        raise InvalidStateError(f"checkpoint {str(file)!r} has schema {schema!r}; this version reads {SCHEMA!r}")
    if not intact:
        raise InvalidStateError(f"checkpoint {str(file)!r} was altered since it was written; use an older one")
    return _decode(structure, {name: tensor.to(map_location) for name, tensor in tensors.items()})


class CheckpointFolder:
    """A folder of checkpoints ``step-<n>.safetensors`` of which the newest few are kept.

    Args:
        folder: The folder; created at the first save.
        keep: How many to keep, at least 1. Two or more leave a way back when the newest is damaged on disk.

    Raises:
        InvalidValueError: If ``keep`` is below 1.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidValueError(f"keep={keep} would delete every checkpoint; give 1 or more")
        self.folder = Path(folder)
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in rising order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.folder.iterdir() if (match := _FILE.fullmatch(entry.name)))

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"step-{step}.safetensors"

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then delete those of earlier steps beyond ``keep``; later ones are left alone.

        Args:
            step: Step number, from 0.
            state: See :func:`save_checkpoint`.

        Returns:
            The file written.

        Raises:
            InvalidValueError: If the step is negative.
            InvalidTypeError: If the state holds what a checkpoint does not store.
            InvalidStateError: If the file cannot be written there.
        """
        if step < 0:
            raise InvalidValueError(f"step {step} is negative; count steps from 0")
        written = save_checkpoint(self.path(step), state)
        for torn in self.folder.glob(".step-*"):  # what a killed save left behind
            shutil.rmtree(torn, ignore_errors=True)
        for old in [saved for saved in self.steps() if saved <= step][: -self.keep]:
            self.path(old).unlink(missing_ok=True)
        return written

    def latest(self, *, map_location: str | torch.device = "cpu") -> tuple[int, dict[str, Any]] | None:
        """Read the newest checkpoint that is whole.

        Args:
            map_location: Device for the tensors.

        Returns:
            The step and its state, or ``None`` if there is no checkpoint.

        Raises:
            InvalidStateError: If there are checkpoints and none can be read; the error is the newest one's.
        """
        failure: OctavoError | None = None
        for step in reversed(self.steps()):
            try:
                return step, load_checkpoint(self.path(step), map_location=map_location)
            except (InvalidStateError, MissingFileError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return None


def random_state(*generators: torch.Generator | np.random.Generator) -> dict[str, Any]:
    """Capture random states for a checkpoint: the given generators, and Python's, NumPy's and torch's global ones.

    Args:
        *generators: Generators of torch or NumPy, in an order that :func:`restore_random_state` repeats.

    Returns:
        A state that :func:`save_checkpoint` takes.
    """
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(keys), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "generators": [
            g.get_state() if isinstance(g, torch.Generator) else dict(g.bit_generator.state) for g in generators
        ],
    }


def restore_random_state(state: Mapping[str, Any], *generators: torch.Generator | np.random.Generator) -> None:
    """Put back what :func:`random_state` captured. CUDA states return only where the number of devices is the same.

    Args:
        state: The captured state.
        *generators: The same generators in the same order.

    Raises:
        InvalidValueError: If the number of generators differs.
    """
    saved = state["generators"]
    if len(saved) != len(generators):
        raise InvalidValueError(f"the state holds {len(saved)} generators, got {len(generators)}; give the same ones")
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([entry.cpu() for entry in state["cuda"]])
    for generator, entry in zip(generators, saved, strict=True):
        if isinstance(generator, torch.Generator):
            generator.set_state(entry.cpu())
        else:
            generator.bit_generator.state = entry


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Any:
    """Replace tensors by references and tag what JSON does not tell apart (int keys, tuples, arrays, bytes, NaN)."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if np.isfinite(value) else {"float": repr(float(value))}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case torch.Tensor() | np.ndarray():
            name = str(len(tensors))
            tensors[name] = _stored_form(value, where)
            return {"tensor" if isinstance(value, torch.Tensor) else "array": name}
        case np.generic():
            return _encode(value.item(), tensors, where)
        case list():
            return [_encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
        case tuple():
            return {"tuple": [_encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
        case Mapping():
            items = []
            for key, item in value.items():
                if not isinstance(key, str | int):
                    raise InvalidTypeError(f"{where} has a key of type {type(key).__name__}; give str or int keys")
                items.append([key, _encode(item, tensors, f"{where}[{key!r}]")])
            return {"dict": items}
    raise InvalidTypeError(
        f"{where} is a {type(value).__name__}, which a checkpoint does not store; "
        "give tensors, arrays, numbers, strings, lists, tuples and dicts"
    )


def _stored_form(value: torch.Tensor | np.ndarray, where: str) -> torch.Tensor:
    """Copy to the CPU in one dense block, because safetensors refuses tensors that share memory."""
    try:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("masked")
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.array(value, order="C"))
        dense = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        save({"": dense.new_empty(0)})  # safetensors does not have every dtype
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{where}, {type(value).__name__} of {value.dtype}, cannot be stored in a checkpoint ({error}); "
            "give dense tensors or arrays of booleans, integers, floats or complex64"
        ) from error
    return dense


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "float":
            return float(content)
        case "bytes":
            return base64.b64decode(content)
        case "tensor":
            return tensors[content]
        case "array":
            return tensors[content].numpy(force=True)
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case "dict":
            return {key: _decode(item, tensors) for key, item in content}
    raise InvalidStateError(f"checkpoint has an unknown entry {tag!r}; it was written by a newer version")


def _checksums(structure: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    sums = {"structure": zlib.crc32(structure.encode())}
    for name, tensor in tensors.items():
        kind = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
        sums[name] = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy(), kind)
    return sums
