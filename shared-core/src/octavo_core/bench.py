"""Timing that can be believed on a shared machine: warm-up, interleaved repetitions, medians, ratios within one run."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from octavo_core.device import MemoryPeak, num_threads, synchronize
from octavo_core.errors import InvalidValueError
from octavo_core.report import Row

if TYPE_CHECKING:
    import torch

__all__ = ["PowerLaw", "Timing", "compare", "fit_power_law", "peak_bytes", "speed_row", "time_call"]

_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one call.

    Args:
        samples: Seconds per call, one number a repetition.
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return float(np.median(self.samples))

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the seconds per call."""
        low, high = np.quantile(self.samples, [0.25, 0.75])
        return float(low), float(high)


def compare(
    calls: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 7,
    warmup: int = 1,
    min_seconds: float = 0.02,
    threads: int | None = 1,
    device: str | torch.device = "cpu",
) -> dict[str, Timing]:
    """Time several calls against each other.

    The repetitions are interleaved (A B C, A B C, ...), so that a change of the machine's load meets all alike; a call
    shorter than ``min_seconds`` is looped within a repetition; the garbage collector rests meanwhile.

    Args:
        calls: What to time, by name.
        repeats: Repetitions of each, at least 1.
        warmup: Untimed calls of each before.
        min_seconds: Least seconds of one repetition.
        threads: Threads for torch, BLAS and OpenMP; ``None`` leaves them as they are.
        device: Device whose queued work is waited for.

    Returns:
        A timing by name.

    Raises:
        InvalidValueError: If there is nothing to time, ``repeats`` is below 1 or ``warmup`` below 0.
    """
    if not calls or repeats < 1 or warmup < 0:
        raise InvalidValueError(
            f"cannot time {len(calls)} calls with repeats={repeats} and warmup={warmup}; "
            "give one call or more, repeats >= 1 and warmup >= 0"
        )
    if threads is not None:
        with num_threads(threads):
            return compare(calls, repeats=repeats, warmup=warmup, min_seconds=min_seconds, threads=None, device=device)
    loops = {}
    for name, call in calls.items():
        for _ in range(warmup):
            call()
        loops[name] = max(1, math.ceil(min_seconds / max(_seconds(call, 1, device), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, call in calls.items():
                samples[name].append(_seconds(call, loops[name], device) / loops[name])
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def time_call(call: Callable[[], Any], **options: Any) -> Timing:
    """Time one call.

    Args:
        call: What to time.
        **options: See :func:`compare`.

    Returns:
        Its timing.
    """
    return compare({"call": call}, **options)["call"]


def speed_row(
    id: str,
    label: str,
    ours: Timing,
    peer: Timing,
    peer_name: str,
    *,
    unit: Literal["s", "ms", "us"] = "ms",
    target: str | None = None,
    note: str = "",
) -> Row:
    """Make the report row that compares our time with a peer's.

    Args:
        id: Row id.
        label: What was timed.
        ours: Our timing.
        peer: The peer's timing, from the same :func:`compare`.
        peer_name: The peer and its version.
        unit: Unit shown.
        target: The claim, e.g. ``"ratio >= 5"``.
        note: What a reader must know.

    Returns:
        The row; its ratio is peer time over our time.
    """
    scale = _UNITS[unit]
    low, high = ours.spread
    return Row(
        id,
        label,
        ours.median * scale,
        unit,
        peer=peer_name,
        peer_value=peer.median * scale,
        target=target,
        spread=(low * scale, high * scale),
        note=note,
    )


def peak_bytes(call: Callable[[], Any], *, device: str | torch.device = "cpu") -> int:
    """Measure the memory that a call needs on top of what is in use before it.

    Args:
        call: What to measure; run once.
        device: Device whose memory counts.

    Returns:
        Peak bytes above the start.
    """
    gc.collect()
    with MemoryPeak(device) as peak:
        call()
    return peak.bytes


@dataclass(frozen=True)
class PowerLaw:
    """A fit of ``y = factor * x ** exponent``.

    Args:
        exponent: Slope in log-log space.
        factor: Value at x = 1.
        r_squared: Share of the variance of log y that the fit explains.
    """

    exponent: float
    factor: float
    r_squared: float


def fit_power_law(sizes: Sequence[float] | Sequence[int], values: Sequence[float] | Sequence[int]) -> PowerLaw:
    """Fit a power law by least squares in log-log space, e.g. to find how time grows with size.

    Args:
        sizes: Two or more different positive sizes.
        values: A positive value for each.

    Returns:
        The fit.

    Raises:
        InvalidValueError: If there are too few points or any is not positive and finite.
    """
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    usable = x.shape == y.shape and x.ndim == 1 and len(set(x.tolist())) >= 2
    if not usable or not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise InvalidValueError(
            f"cannot fit a power law to sizes {list(sizes)} and values {list(values)}; "
            "give two or more different positive sizes and a positive value for each"
        )
    log_x, log_y = np.log(x), np.log(y)
    exponent, intercept = np.polyfit(log_x, log_y, 1)
    residual = log_y - (exponent * log_x + intercept)
    total = float(((log_y - log_y.mean()) ** 2).sum())
    r_squared = 1.0 - float((residual**2).sum()) / total if total > 0 else 1.0
    return PowerLaw(float(exponent), float(np.exp(intercept)), r_squared)


def _seconds(call: Callable[[], Any], loops: int, device: str | torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    synchronize(device)
    return time.perf_counter() - start
