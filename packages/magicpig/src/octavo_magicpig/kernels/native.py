"""The compiled kernel: a C++ library without a Python or torch interface, called through its plain C functions."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import re
from pathlib import Path

import torch
from octavo_core.errors import InvalidStateError, InvalidValueError
from torch import Tensor

from octavo_magicpig.hashing import Planes
from octavo_magicpig.kernels import STATISTICS, DecodeState, Segment, _abi

__all__ = [
    "advise_large_pages",
    "attend",
    "build_tables",
    "dense",
    "expand_tables",
    "hash_rows",
    "instruction_set",
    "problem",
    "select",
    "thread_source",
]

_ABI = 1
_INSTRUCTION_SETS = ("baseline", "avx2", "avx512", "avx512bf16")
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_DENSE_CHUNK = 2048


class _Library:
    """The loaded library, the instruction set in use, and the threads it joins."""

    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        if self.functions.mp_abi_version() != _ABI:
            raise OSError(f"{path} was built from another version; reinstall octavo-magicpig")
        self.functions.mp_partial_floats.restype = _abi.i64
        best = self.functions.mp_best_isa()
        wanted = _setting("OCTAVO_MAGICPIG_ISA", _INSTRUCTION_SETS)
        self.isa = best if wanted is None else min(best, _INSTRUCTION_SETS.index(wanted))
        self.team = self._join_openmp()

    def _join_openmp(self) -> str:
        path = _openmp_library()
        if path is not None:
            try:
                runner = ctypes.CDLL(path).GOMP_parallel
            except (OSError, AttributeError):
                return "threads of its own"
            self.functions.mp_use_team(ctypes.cast(runner, _abi.ptr))
            return f"torch's OpenMP team ({Path(path).name})"
        return "threads of its own"


def problem() -> str | None:
    """Tell why the library does not work here.

    Returns:
        The reason, or ``None`` if it works.

    Raises:
        InvalidValueError: If an environment variable has an unknown value.
    """
    return _load()[1]


def instruction_set() -> str:
    """Name the instruction set in use.

    Returns:
        ``"avx512bf16"``, ``"avx512"``, ``"avx2"`` or ``"baseline"``. The environment variable ``OCTAVO_MAGICPIG_ISA``
        chooses a lower one than the processor's best.
    """
    return _INSTRUCTION_SETS[_library().isa]


def thread_source() -> str:
    """Say where the threads come from.

    Returns:
        torch's own OpenMP team where it can be joined, so that no second team competes for the cores.
    """
    return _library().team


def advise_large_pages(tensor: Tensor) -> None:
    """Ask the system to back a large tensor with large pages, before it is first written.

    Args:
        tensor: A contiguous CPU tensor.
    """
    if problem() is None:
        _library().functions.mp_advise_large_pages(_abi.ptr(tensor.data_ptr()), _abi.i64(tensor.nbytes))


def hash_rows(rows: Tensor, mean: Tensor | None, planes: Planes, planes_set: int = 0) -> tuple[Tensor, Tensor]:
    """Hash centred rows; see :func:`octavo_magicpig.kernels.reference.hash_rows`.

    Args:
        rows: Keys or queries, (n, head_dim), float32, bfloat16 or float16, the last axis contiguous.
        mean: What to subtract, float32, (head_dim,), or ``None``.
        planes: The hyperplanes.
        planes_set: Which set of them.

    Returns:
        Codes (tables, n) as 16-bit patterns, and norms (n,).
    """
    library = _library()
    codes = torch.empty(planes.num_tables, len(rows), dtype=torch.int16)
    norms = torch.empty(len(rows), dtype=torch.float32)
    arguments = _abi.Hash(
        isa=library.isa,
        threads=torch.get_num_threads(),
        dtype=_DTYPES[rows.dtype],
        key_bits=planes.key_bits,
        tables=planes.num_tables,
        head_dim=rows.shape[1],
        count=len(rows),
        stride_row=rows.stride(0),
        rows=_rows("rows", rows[None, None]).data,
        mean=None if mean is None else _address("mean", mean, torch.float32),
        panels=_address("panels", planes.panels[planes_set], torch.float32),
        plane_norm=planes.largest_norm,
        codes=codes.data_ptr(),
        norms=norms.data_ptr(),
    )
    _check(library.functions.mp_hash(ctypes.byref(arguments)))
    return codes, norms


def build_tables(codes: Tensor, skip: Tensor | None, key_bits: int, ids: Tensor, offsets: Tensor) -> None:
    """Sort keys into buckets by counting.

    Args:
        codes: Codes (tables, n), 16-bit patterns, contiguous.
        skip: Keys to leave out, bool (n,), or ``None``.
        key_bits: Bits of a table.
        ids: Output (tables, n), contiguous.
        offsets: Output (tables, 2^key_bits + 1), contiguous.
    """
    arguments = _table_arguments(codes.shape[1], len(codes), key_bits, ids, offsets)
    arguments.codes = _address("codes", codes, torch.int16)
    arguments.skip = None if skip is None else _address("skip", skip, torch.bool)
    _check(_library().functions.mp_build_tables(ctypes.byref(arguments)))


def expand_tables(ids: Tensor, offsets: Tensor, key_bits: int) -> tuple[Tensor, Tensor]:
    """Recover the codes that tables were built from.

    Args:
        ids: Keys by bucket, (tables, n).
        offsets: Bucket starts.
        key_bits: Bits of a table.

    Returns:
        Codes (tables, n) and the flags of the keys left out, bool (n,).
    """
    tables, size = ids.shape
    codes = torch.empty(tables, size, dtype=torch.int16)
    skip = torch.empty(size, dtype=torch.bool)
    arguments = _table_arguments(size, tables, key_bits, ids, offsets)
    _check(
        _library().functions.mp_expand_tables(
            ctypes.byref(arguments), _abi.ptr(codes.data_ptr()), _abi.ptr(skip.data_ptr())
        )
    )
    return codes, skip


def attend(
    state: DecodeState, query: Tensor, scale: float, *, with_error: bool = False, with_dense: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend over the exact and the selected keys; see :func:`octavo_magicpig.kernels.reference.attend`.

    Args:
        state: What the step reads.
        query: Queries, float32, contiguous, (batch, heads, head_dim).
        scale: Factor of the scores.
        with_error: Whether to estimate the error.
        with_dense: Whether the exact keys take part.

    Returns:
        Output, log-sum-exp and statistics, float32.
    """
    library = _library()
    batch, heads, dim = query.shape
    out = torch.empty(batch, heads, dim, dtype=torch.float32)
    lse = torch.empty(batch, heads, dtype=torch.float32)
    stats = torch.empty(batch, heads, len(STATISTICS), dtype=torch.float32)
    arguments, kept = _attend_arguments(library, state, query, scale, with_dense)
    floats = batch * heads * (len(state.segments) + 1) * library.functions.mp_partial_floats(dim)
    parts = torch.empty(floats, dtype=torch.float32)
    arguments.with_error = with_error
    arguments.partial, arguments.out = parts.data_ptr(), out.data_ptr()
    arguments.lse, arguments.stats = lse.data_ptr(), stats.data_ptr()
    _check(library.functions.mp_attend(ctypes.byref(arguments)))
    del kept
    return out, lse, stats


def select(state: DecodeState, query: Tensor) -> list[list[Tensor]]:
    """Select keys.

    Args:
        state: What the step reads.
        query: Queries, float32, contiguous, (batch, heads, head_dim).

    Returns:
        For each batch row and head the selected positions, int64, rising.
    """
    library = _library()
    batch, heads, _ = query.shape
    capacity = max(1, sum(segment.limit for segment in state.segments))
    positions = torch.empty(batch, heads, capacity, dtype=torch.int32)
    counts = torch.empty(batch, heads, dtype=torch.int64)
    arguments, kept = _attend_arguments(library, state, query, 1.0, with_dense=True)
    whole = _abi.Select(arguments, positions.data_ptr(), capacity, counts.data_ptr())
    _check(library.functions.mp_select(ctypes.byref(whole)))
    del kept
    return [[positions[b, h, : counts[b, h]].long() for h in range(heads)] for b in range(batch)]


def dense(
    query: Tensor, keys: Tensor, values: Tensor, first: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Exact attention of one query token, the query heads of a group together.

    Args:
        query: Queries, float32, contiguous, (batch, heads, head_dim).
        keys: Keys, (batch, kv_heads, tokens, head_dim), the last axis contiguous.
        values: Values.
        first: First visible position, int64, (batch,).
        mask: Visible keys, bool, contiguous, (batch, tokens), or ``None``.
        scale: Factor of the scores.

    Returns:
        Output (batch, heads, head_dim) and log-sum-exp (batch, heads), float32.
    """
    library = _library()
    batch, heads, dim = query.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    chunks = max(1, -(-length // _DENSE_CHUNK))
    out = torch.empty(batch, heads, dim, dtype=torch.float32)
    lse = torch.empty(batch, heads, dtype=torch.float32)
    floats = batch * heads * chunks * library.functions.mp_partial_floats(dim)
    parts = torch.empty(floats, dtype=torch.float32)
    arguments = _abi.Dense(
        isa=library.isa,
        threads=torch.get_num_threads(),
        dtype=_DTYPES[keys.dtype],
        batch=batch,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        head_dim=dim,
        scale=scale,
        query=_address("query", query, torch.float32),
        keys=_rows("keys", keys),
        values=_rows("values", values),
        length=length,
        first=_address("first", first, torch.int64),
        mask=None if mask is None else _address("mask", mask, torch.bool),
        chunk=_DENSE_CHUNK,
        num_chunks=chunks,
        partial=parts.data_ptr(),
        out=out.data_ptr(),
        lse=lse.data_ptr(),
    )
    _check(library.functions.mp_dense(ctypes.byref(arguments)))
    return out, lse


def _attend_arguments(
    library: _Library, state: DecodeState, query: Tensor, scale: float, with_dense: bool
) -> tuple[_abi.Attend, tuple[object, ...]]:
    """Fill in the C structure; the second result must outlive the call."""
    batch, heads, dim = query.shape
    kv_heads, length = state.keys.shape[1], state.keys.shape[2]
    planes, segments = state.planes, (_abi.Segment * len(state.segments))(*map(_segment, state.segments))
    codes = torch.empty(planes.num_tables * batch * heads, dtype=torch.int16)
    arguments = _abi.Attend(
        isa=library.isa,
        threads=torch.get_num_threads(),
        dtype=_DTYPES[state.keys.dtype],
        batch=batch,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        head_dim=dim,
        key_bits=planes.key_bits,
        tables=planes.num_tables,
        min_hits=state.min_hits,
        num_segments=len(state.segments),
        panel_heads=len(planes.matrix),
        scale=scale,
        weight_eps=state.weight_eps,
        plane_norm=planes.largest_norm,
        query=_address("query", query, torch.float32),
        keys=_rows("keys", state.keys),
        values=_rows("values", state.values),
        norms=_address("norms", state.norms, torch.float32),
        norm_stride=state.norms.stride(1),
        mean=_address("mean", state.mean, torch.float32),
        panels=_address("panels", planes.panels, torch.float32),
        segments=ctypes.cast(segments, _abi.ptr),
        first=_address("first", state.first, torch.int64),
        sink=state.sink if with_dense else 0,
        tail=state.tail if with_dense else length,
        length=length,
        heavy=_address("heavy", state.heavy, torch.int32),
        num_heavy=state.heavy.shape[-1] if with_dense else 0,
        codes=codes.data_ptr(),
    )
    return arguments, (segments, codes)


def _segment(segment: Segment) -> _abi.Segment:
    ids, offsets = _address("ids", segment.ids, torch.int16), _address("offsets", segment.offsets, torch.int16)
    return _abi.Segment(ids, offsets, segment.start, segment.size, segment.limit)


def _rows(name: str, tensor: Tensor) -> _abi.Rows:
    if tensor.dtype not in _DTYPES or tensor.stride(-1) != 1:
        raise InvalidStateError(
            f"{name} of {tensor.dtype} with strides {tensor.stride()} cannot be read by the native kernel; give "
            "float32, bfloat16 or float16, the last axis contiguous"
        )
    return _abi.Rows(tensor.data_ptr(), *tensor.stride()[:3])


def _address(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Address of memory that native code reads without looking: another dtype or layout would corrupt the process."""
    if tensor.dtype != dtype or not tensor.is_contiguous():
        raise InvalidStateError(
            f"{name} of {tensor.dtype} with strides {tensor.stride()} cannot be read by the native kernel; give "
            f"{dtype}, contiguous"
        )
    return tensor.data_ptr()


def _table_arguments(count: int, tables: int, key_bits: int, ids: Tensor, offsets: Tensor) -> _abi.Tables:
    return _abi.Tables(
        threads=torch.get_num_threads(),
        key_bits=key_bits,
        tables=tables,
        count=count,
        offsets=_address("offsets", offsets, torch.int16),
        ids=_address("ids", ids, torch.int16),
    )


def _check(status: int) -> None:
    if status != 0:
        raise InvalidStateError("the native kernel ran out of memory or threads, or head_dim is above 4096")


def _library() -> _Library:
    library, reason = _load()
    if library is None:
        raise InvalidStateError(f"the native kernel is not available: {reason}")
    return library


@functools.cache
def _load() -> tuple[_Library | None, str | None]:
    switch = _setting("OCTAVO_MAGICPIG_NATIVE", ("0", "1"))
    path = _find()
    if path is None:
        return None, "the library was not built: no C++ compiler was there when the package was installed"
    if switch == "0":
        return None, "OCTAVO_MAGICPIG_NATIVE=0 turns it off"
    try:
        return _Library(path), None
    except OSError as error:
        return None, f"the library does not load on this {platform.machine()} machine: {error}"


def _setting(name: str, accepted: tuple[str, ...]) -> str | None:
    value = os.environ.get(name) or None
    if value is not None and value not in accepted:
        raise InvalidValueError(
            f"the environment variable {name}={value!r} is unknown; give {', '.join(accepted[:-1])} or {accepted[-1]}"
        )
    return value


def _find() -> Path | None:
    """Find the library beside this package, or where an editable installation keeps it."""
    name = re.compile(r"_kernels\.(so|dylib|dll)")
    for file in Path(__file__).resolve().parents[1].iterdir():
        if name.fullmatch(file.name):
            return file
    try:
        recorded = importlib.metadata.files("octavo-magicpig") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in recorded:
        if name.fullmatch(entry.name) and (path := Path(str(entry.locate()))).is_file():
            return path
    return None


def _openmp_library() -> str | None:
    """Path of the OpenMP runtime that this process has loaded already, which is torch's."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.findall(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps)
    return min(found, key=lambda path: ("torch" not in path, path)) if found else None
