"""Three implementations of the same operations: compiled (C++), numba, and plain torch, which is the reference.

Each is a module with the functions of :class:`Kernel`. They select the same keys; their outputs differ by rounding
only.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_magicpig.hashing import Planes

__all__ = ["STATISTICS", "Availability", "DecodeState", "Kernel", "Segment", "describe", "resolve"]

STATISTICS = ("selected", "visited", "max_share", "effective_samples", "error", "sampled_lse")
"""Columns of the statistics that ``attend`` returns for each head."""


@dataclass
class Segment:
    """Hash tables over a run of consecutive positions; keys left out (padding, exact ones) are in no bucket.

    Args:
        start: Position of the first key.
        size: Keys it was built over.
        limit: Keys still alive; a crop lowers it.
        ids: Keys ordered by bucket, 16 bits each, unsigned, (batch, kv_heads, tables, size).
        offsets: First entry of each bucket and the end, unsigned 16 bits, (batch, kv_heads, tables, 2^key_bits + 1).
    """

    start: int
    size: int
    limit: int
    ids: Tensor
    offsets: Tensor


@dataclass
class DecodeState:
    """What a decode step reads.

    Args:
        keys: Raw keys, (batch, kv_heads, tokens, head_dim); may be a strided view.
        values: Values, the same shape and dtype.
        norms: Norms of the centred keys, float32, (batch, kv_heads, tokens); read only within segments.
        mean: Mean key of each kv head, float32, (batch, kv_heads, head_dim); zero without centring.
        segments: Hashed runs of positions, in rising order, without gaps.
        first: Position of the first token that is not padding, int64, (batch,).
        sink: Tokens after ``first`` that are exact.
        tail: Position from which all tokens are exact.
        heavy: Further exact positions, int32, (batch, kv_heads, heavy), -1 for none.
        planes: The hyperplanes.
        min_hits: Tables needed for selection.
        weight_eps: Guard of the weights.
    """

    keys: Tensor
    values: Tensor
    norms: Tensor
    mean: Tensor
    segments: list[Segment]
    first: Tensor
    sink: int
    tail: int
    heavy: Tensor
    planes: Planes
    min_hits: int
    weight_eps: float


@runtime_checkable
class Kernel(Protocol):
    """The operations that every implementation provides."""

    def hash_rows(self, rows: Tensor, mean: Tensor | None, planes: Planes, planes_set: int) -> tuple[Tensor, Tensor]:
        """Hash centred rows (n, head_dim): codes (tables, n) as 16 bits, and norms (n,) of the centred rows."""
        ...

    def build_tables(self, codes: Tensor, skip: Tensor | None, key_bits: int, ids: Tensor, offsets: Tensor) -> None:
        """Sort keys into buckets: fill ``ids`` (tables, n) and ``offsets`` (tables, 2^key_bits + 1)."""
        ...

    def expand_tables(self, ids: Tensor, offsets: Tensor, key_bits: int) -> tuple[Tensor, Tensor]:
        """Return codes (tables, n) and the flags (n,) of the keys that the tables leave out."""
        ...

    def attend(
        self, state: DecodeState, query: Tensor, scale: float, *, with_error: bool, with_dense: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend with a query (batch, heads, head_dim), float32: output, log-sum-exp, statistics."""
        ...

    def select(self, state: DecodeState, query: Tensor) -> list[list[Tensor]]:
        """Return the selected positions of each batch row and head, rising."""
        ...

    def dense(
        self, query: Tensor, keys: Tensor, values: Tensor, first: Tensor, mask: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Exact attention of a query (batch, heads, head_dim), float32: output and log-sum-exp."""
        ...


@dataclass(frozen=True)
class Availability:
    """Which kernel runs, and why.

    Args:
        active: ``"native"``, ``"numba"`` or ``"torch"``.
        instruction_set: What the native kernel uses, or ``None``.
        reasons: For each kernel, ``"available"`` or why it is not.
        threads: Where the native kernel's threads come from.
    """

    active: str
    instruction_set: str | None
    reasons: dict[str, str]
    threads: str


def describe() -> Availability:
    """Tell which kernel ``"auto"`` means here.

    Returns:
        The choice with the reasons.
    """
    from octavo_magicpig.kernels import native

    reasons = {"native": native.problem() or "available", "torch": "available"}
    reasons["numba"] = "available" if _has_numba() else "numba is not installed: pip install 'octavo-magicpig[numba]'"
    active = next(name for name in ("native", "numba", "torch") if reasons[name] == "available")
    isa = native.instruction_set() if active == "native" else None
    threads = native.thread_source() if active == "native" else "torch"
    return Availability(active, isa, reasons, threads)


def resolve(name: str = "auto", device: str | torch.device = "cpu") -> Kernel:
    """Choose a kernel.

    Args:
        name: ``"native"``, ``"numba"``, ``"torch"``, or ``"auto"``: the first of them that is available; away from the
            CPU always torch.
        device: Device of the tensors.

    Returns:
        The module.

    Raises:
        InvalidValueError: If the name is unknown.
        InvalidStateError: If the kernel does not work here.
        MissingDependencyError: If numba is asked for and not installed.
    """
    from octavo_magicpig.kernels import native, reference

    if name not in ("auto", "native", "numba", "torch"):
        raise InvalidValueError(f"kernel={name!r} is unknown; give auto, native, numba or torch")
    on_cpu = torch.device(device).type == "cpu"
    if name == "auto":
        name = describe_active() if on_cpu else "torch"
    if name == "torch":
        return _as_kernel(reference)
    if not on_cpu:
        raise InvalidStateError(
            f"kernel={name!r} computes on the CPU and the tensors are on {device}; give torch or auto"
        )
    if name == "native":
        if problem := native.problem():
            raise InvalidStateError(f"kernel='native' is not available: {problem}; give auto")
        return _as_kernel(native)
    if not _has_numba():
        raise MissingDependencyError.for_extra("numba", "octavo-magicpig", "numba")
    from octavo_magicpig.kernels import _numba

    return _as_kernel(_numba)


def describe_active() -> str:
    """Return the name of the kernel that ``"auto"`` means on the CPU."""
    from octavo_magicpig.kernels import native

    if native.problem() is None:
        return "native"
    return "numba" if _has_numba() else "torch"


def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def _as_kernel(module: Any) -> Kernel:
    return cast("Kernel", module)
