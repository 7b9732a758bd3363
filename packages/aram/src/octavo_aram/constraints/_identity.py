"""What tells one constraint from another: a fingerprint of its parameters and code, and its printed form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo_aram.user_code import USER_MODULE

__all__ = ["describe", "fingerprint"]

_OWN = __name__.partition(".")[0]
_MAX_DEPTH = 30
# What follows from the parameters, and what a constraint computes for itself.
_DERIVED = {"needs_obs", "min_obs_dim", "exact_projection", "convex", "has_volume", "_center", "_alternatives"}
_SHOWN_ENTRIES = 8


def fingerprint(constraint: Any) -> str:
    """Hash the class and the parameters of a constraint.

    Arrays count by content, parts by their own parameters, functions and classes of the user by module, qualified name,
    byte code, defaults, and the variables and module-level values that they read. Functions of this package count by
    name, so that a policy outlives a release of Python.

    Args:
        constraint: The constraint.

    Returns:
        64 hexadecimal digits; equal for constraints that are the same.

    Source:
        Beyond the paper: a run goes on only under the constraint that it was started with.
    """
    return _digest(constraint, frozenset(), 0).hex()


def describe(constraint: Any) -> str:
    """Print a constraint with its parameters; long arrays by their shape.

    Args:
        constraint: The constraint.

    Returns:
        ``Name(action_dim=..., parameter=...)``.
    """
    values = {"action_dim": getattr(constraint, "action_dim", "?")} | {
        name: value
        for name, value in vars(constraint).items()
        if not name.startswith("_") and name not in _DERIVED and value is not None
    }
    return f"{type(constraint).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in values.items())})"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, np.ndarray | torch.Tensor):
        entries = value.tolist() if np.prod(value.shape) <= _SHOWN_ENTRIES else None
        return _shown(entries) if entries is not None else f"<{'x'.join(str(size) for size in value.shape)} numbers>"
    if isinstance(value, list | tuple):
        if len(value) > _SHOWN_ENTRIES:
            return f"<{len(value)} entries>"
        return f"[{', '.join(_shown(entry) for entry in value)}]"
    if callable(value):
        return f"<{getattr(value, '__name__', type(value).__name__)}>"
    text = repr(value)
    return text if len(text) <= 200 else f"<{type(value).__name__}>"


def _digest(value: Any, seen: frozenset[int], depth: int) -> bytes:
    """Hash of a value; what contains itself is cut where it recurs."""
    if depth > _MAX_DEPTH or id(value) in seen:
        return _hash("again", type(value).__qualname__)

    def inner(part: Any) -> bytes:
        return _digest(part, seen | {id(value)}, depth + 1)

    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        plain = value.item() if isinstance(value, np.generic) else value
        return _hash(type(plain).__name__, repr(plain))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return _hash("array", value.dtype.str, str(value.shape), np.ascontiguousarray(value).tobytes())
    if isinstance(value, list | tuple | np.ndarray):
        return _hash("sequence", *(inner(part) for part in value))
    if isinstance(value, set | frozenset):
        return _hash("set", *sorted(inner(part) for part in value))
    if isinstance(value, dict):
        return _hash("mapping", *sorted(_hash(inner(key), inner(part)) for key, part in value.items()))
    if isinstance(value, range | slice | Path):
        return _hash(type(value).__name__, repr(value))
    if isinstance(value, types.CodeType):
        return _hash("code", value.co_code, str(value.co_names), inner(value.co_consts))
    if isinstance(value, functools.partial):
        return _hash("partial", inner(value.func), inner(value.args), inner(value.keywords))
    if isinstance(value, types.MethodType):
        return _hash("method", inner(value.__func__), inner(value.__self__))
    if isinstance(value, types.FunctionType):
        return _hash("function", *_function_parts(value, inner))
    if isinstance(value, type):
        return _hash("class", *_class_parts(value, inner))
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        return _hash("name", str(getattr(value, "__module__", "")), value.__name__)
    return _hash("object", inner(type(value)), *_object_parts(value, inner))


def _object_parts(value: Any, inner: Any) -> list[bytes]:
    from octavo_aram.constraints.base import Constraint

    if dataclasses.is_dataclass(value):
        return [inner({entry.name: getattr(value, entry.name, None) for entry in dataclasses.fields(value)})]
    # Other objects, such as an environment, hold state that changes as they are used.
    if isinstance(value, Constraint | types.SimpleNamespace) or callable(value):
        fields = (
            {name: part for name, part in vars(value).items() if name not in _DERIVED}
            if hasattr(value, "__dict__")
            else {}
        )
        return [inner(fields)]
    return []


def _function_parts(function: types.FunctionType, inner: Any) -> list[Any]:
    parts: list[Any] = [_module_name(function.__module__), function.__qualname__]
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            # A variable that has no value yet.
            cells.append(None)
    parts += [inner(cells), inner(function.__defaults__), inner(function.__kwdefaults__)]
    if not _is_own(function.__module__):
        read = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        read = {name: part for name, part in read.items() if _counts(part, function.__module__)}
        parts += [inner(function.__code__), inner(read)]
    return parts


def _class_parts(kind: type, inner: Any) -> list[Any]:
    parts: list[Any] = []
    for base in kind.__mro__:
        parts += [_module_name(base.__module__), base.__qualname__]
        if base.__module__ == kind.__module__ and not _is_own(base.__module__) and base.__module__ != "builtins":
            own = {
                name: getattr(part, "__func__", part)
                for name, part in vars(base).items()
                if isinstance(getattr(part, "__func__", part), types.FunctionType)
                or (not name.startswith("__") and _is_plain(part))
            }
            parts.append(inner(own))
    return parts


def _names(code: types.CodeType) -> set[str]:
    nested = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*(_names(part) for part in nested))


def _counts(value: Any, module: str) -> bool:
    """Whether a module-level value belongs to the code that reads it."""
    if isinstance(value, types.FunctionType | type):
        return value.__module__ == module
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(part) for part in value)
    if isinstance(value, dict):
        return all(_is_plain(part) for part in value.values())
    return value is None or isinstance(
        value, bool | int | float | complex | str | np.generic | np.ndarray | torch.Tensor
    )


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] == _OWN


def _module_name(module: str | None) -> str:
    """The name that a module has however it was started: imported, as a script, or from its file."""
    name = module or ""
    if name.startswith(USER_MODULE):
        return name.removeprefix(USER_MODULE).rpartition("_")[0]
    if name in {"__main__", "__mp_main__"}:
        return Path(getattr(sys.modules.get(name), "__file__", None) or name).stem
    return name


def _hash(*parts: str | bytes) -> bytes:
    """Hash of parts with their lengths, so that none runs into the next."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(f"{len(data)}:".encode())
        whole.update(data)
    return whole.digest()
