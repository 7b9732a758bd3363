"""Devices, precision, seeds, threads, time and memory: what differs between machines, in one place.

torch is imported inside the functions, so that the command line can read the machine without loading it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import random
import sys
import threading
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from octavo_core.errors import InvalidStateError, InvalidValueError

if TYPE_CHECKING:
    import torch

__all__ = [
    "MemoryPeak",
    "Timer",
    "available_cores",
    "describe",
    "installed_versions",
    "num_threads",
    "resolve_device",
    "resolve_dtype",
    "seed_everything",
    "synchronize",
    "torch_generator",
]

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Turn a device name into a device that exists on this machine.

    Args:
        name: ``"auto"`` (CUDA, else MPS, else CPU), ``"cpu"``, ``"cuda"``, ``"cuda:i"``, ``"mps"`` or a device.

    Returns:
        The device.

    Raises:
        InvalidValueError: If the name is not one of the above.
        InvalidStateError: If the device is named rightly but this machine or this build of torch does not have it.
    """
    import torch

    text = str(name)
    if text == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise InvalidValueError(f"unknown device {text!r}; give auto, cpu, cuda, cuda:<index> or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            reason = "this torch was built without CUDA" if torch.version.cuda is None else "no CUDA device is visible"
            raise InvalidStateError(
                f"device {text!r} was asked for but {reason}; "
                "use --device cpu, or install a CUDA build of torch, a driver, and check CUDA_VISIBLE_DEVICES"
            )
        if device.index is not None and device.index >= count:
            raise InvalidValueError(f"device {text!r} does not exist: this machine has cuda:0 to cuda:{count - 1}")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise InvalidStateError("device 'mps' was asked for but this machine has none; use --device cpu")
    elif device.type not in {"cpu", "mps"}:
        raise InvalidValueError(f"device {text!r} is not supported; give auto, cpu, cuda, cuda:<index> or mps")
    return device


def resolve_dtype(name: str | torch.dtype = "auto", device: str | torch.device = "cpu") -> torch.dtype:
    """Choose the floating-point type to compute with.

    Args:
        name: ``"float16"``, ``"bfloat16"``, ``"float32"``, ``"float64"``, a torch dtype of these, or ``"auto"``:
            bfloat16 on a CUDA device that computes it natively, float32 elsewhere.
        device: Device that will compute; used by ``"auto"`` only.

    Returns:
        The dtype.

    Raises:
        InvalidValueError: If the name is not one of the above, or the device cannot compute with it.
    """
    import torch

    target = torch.device(device)
    text = str(name).removeprefix("torch.")
    if text == "auto":
        native = target.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    if text not in _DTYPES:
        raise InvalidValueError(f"unknown dtype {text!r}; give auto, {', '.join(_DTYPES)}")
    if text == "float64" and target.type == "mps":
        raise InvalidValueError("float64 does not exist on mps; give float32, or use --device cpu")
    return getattr(torch, text)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators. For command-line entry points and tests only.

    Library code takes a generator or a seed and never touches global state.

    Args:
        seed: Integer in [0, 2**32).

    Raises:
        InvalidValueError: If the seed is out of range.
    """
    import torch

    if not 0 <= seed < 2**32:
        raise InvalidValueError(f"seed {seed} is out of range; give an integer from 0 to {2**32 - 1}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def torch_generator(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """Make a torch generator with a seed.

    Args:
        seed: Any integer that fits 64 bits.
        device: Device whose random numbers it draws.

    Returns:
        The generator.
    """
    import torch

    return torch.Generator(device=device).manual_seed(seed)


@contextlib.contextmanager
def num_threads(count: int) -> Generator[None, None, None]:
    """Pin torch's and the BLAS and OpenMP libraries' threads within a block.

    Args:
        count: Threads to use, at least 1.

    Yields:
        Nothing; the numbers of threads return when the block ends.

    Raises:
        InvalidValueError: If the count is below 1.
    """
    import torch

    if count < 1:
        raise InvalidValueError(f"thread count {count} is too small; give 1 or more")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: str | torch.device = "cpu") -> None:
    """Wait for the work queued on a device; nothing to wait for on the CPU.

    Args:
        device: The device.
    """
    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return
    import torch

    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


class Timer:
    """Wall-clock stopwatch that waits for the device before each reading.

    Use as ``with Timer(device) as timer: ...`` and read ``timer.seconds``.

    Args:
        device: Device whose queued work counts.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = device
        self._start = 0.0
        self._stop: float | None = None

    def __enter__(self) -> Timer:
        synchronize(self._device)
        self._stop = None
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        synchronize(self._device)
        self._stop = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of the block, or so far while it runs."""
        if self._stop is None:
            synchronize(self._device)
            return time.perf_counter() - self._start
        return self._stop - self._start


class MemoryPeak:
    """Peak memory of a block, above what was in use when it began.

    On the CPU a thread samples the resident set size every ``interval`` seconds, and the kernel's own high-water mark
    is used where the block raised it; on CUDA the allocator's peak is exact.

    Args:
        device: Device whose memory counts.
        interval: Seconds between samples.
    """

    def __init__(self, device: str | torch.device = "cpu", *, interval: float = 0.002) -> None:
        self._device = str(device)
        self._interval = interval
        self._process = psutil.Process()
        self._before = 0
        self.bytes = 0
        """Peak bytes above the start, known when the block has ended."""

    def __enter__(self) -> MemoryPeak:
        self.bytes = 0
        if self._device.startswith("cuda"):
            import torch

            synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
            return self
        self._before = self._process.memory_info().rss
        self._mark = _resident_high_water()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._done.wait(self._interval):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def __exit__(self, *_: object) -> None:
        if self._device.startswith("cuda"):
            import torch

            synchronize(self._device)
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
            return
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._process.memory_info().rss - self._before, 0)
        mark = _resident_high_water()
        if mark > self._mark:
            self.bytes = max(self.bytes, mark - self._before)


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine and the software, for reports and ``octavo doctor``.

    Args:
        packages: Distributions whose versions are to be named; those not installed are left out.

    Returns:
        JSON-ready mapping with ``python``, ``platform``, ``cores``, ``memory_gib``, ``torch``, ``threads``, ``cuda``
        (device names) and ``packages``.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "cores": available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda": [torch.cuda.get_device_name(index) for index in range(count)],
        "packages": installed_versions(packages),
    }


def available_cores() -> int:
    """Count the cores this process may run on.

    Returns:
        The count, at least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Look up the installed versions of distributions.

    Args:
        packages: Distribution names.

    Returns:
        Version by name, without those that are not installed.
    """
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _resident_high_water() -> int:
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
