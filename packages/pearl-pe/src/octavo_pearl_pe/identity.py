"""What a training is determined by, as plain values that a checkpoint keeps and a resumed run is held against."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

__all__ = ["differences", "digest_graphs", "digest_module", "plain"]


def plain(value: Any) -> Any:
    """Reduce a value to something whose ``repr`` says the same in every process.

    Args:
        value: A plain value, a record of such, a module or a function.

    Returns:
        The value itself, or a tuple or name in its place.
    """
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple((field.name, plain(getattr(value, field.name))) for field in dataclasses.fields(value))
    if isinstance(value, nn.Module):
        return digest_module(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def digest_module(module: nn.Module) -> str:
    """Digest what a module is, apart from its weights: classes, shapes, and plain attributes of all parts.

    Args:
        module: The module.

    Returns:
        A hexadecimal digest.
    """
    found = hashlib.sha256()
    for name, part in module.named_modules():
        shown = {
            key: plain(value)
            for key, value in sorted(vars(part).items())
            if key != "training" and (not key.startswith("_") or key in {"_heads", "_dropout"})
        }
        shapes = [(key, tuple(value.shape)) for key, value in part.named_parameters(recurse=False)]
        found.update(repr((name, type(part).__qualname__, shown, shapes)).encode())
    return found.hexdigest()


def digest_graphs(graphs: Iterable[Data]) -> str:
    """Digest the content of graphs: every tensor and plain value, in order.

    Args:
        graphs: The graphs.

    Returns:
        A hexadecimal digest.
    """
    found = hashlib.sha256()
    for graph in graphs:
        for key, value in sorted(graph.to_dict().items()):
            if isinstance(value, Tensor):
                content = value.detach().cpu().contiguous()
                found.update(f"{key} {content.dtype} {tuple(content.shape)}".encode())
                found.update(content.view(-1).view(torch.uint8).numpy().tobytes())
            else:
                found.update(f"{key} {plain(value)!r}".encode())
    return found.hexdigest()


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Name what differs between two identities.

    Args:
        first: What was.
        second: What is asked for.

    Returns:
        A phrase for each entry that differs.
    """
    names = sorted({*first, *second})
    return [_phrase(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]


def _phrase(name: str, old: Any, new: Any) -> str:
    digests = isinstance(old, str) and isinstance(new, str) and len(old) == len(new) == 64
    return f"other {name}" if digests else f"{name}={old!r}, now {new!r}"
