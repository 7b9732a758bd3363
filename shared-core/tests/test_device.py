from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest
import threadpoolctl
import torch
from octavo_core import device as device_module
from octavo_core.device import (
    MemoryPeak,
    Timer,
    describe,
    installed_versions,
    num_threads,
    resolve_device,
    resolve_dtype,
    seed_everything,
    synchronize,
    torch_generator,
)
from octavo_core.errors import InvalidStateError, InvalidValueError

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_auto_is_a_device_that_computes() -> None:
    device = resolve_device("auto")
    assert torch.ones(2, device=device).sum().item() == 2


def test_cpu_is_accepted_as_a_name_and_as_a_device() -> None:
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:-1", "cuda:x", "CPU", "meta", "xpu"])
def test_an_unknown_device_is_refused_with_those_accepted(name: str) -> None:
    with pytest.raises(InvalidValueError, match="give auto, cpu, cuda, cuda:<index> or mps"):
        resolve_device(name)


@without_cuda
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:99"])
def test_cuda_without_cuda_names_the_remedy(name: str) -> None:
    with pytest.raises(InvalidStateError, match=f"'{name}' was asked for but .*; use --device cpu, or install a CUDA"):
        resolve_device(name)


def test_a_cuda_index_beyond_the_last_names_those_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("auto").type == "cuda"
    with pytest.raises(InvalidValueError, match=r"cuda:2.*cuda:0 to cuda:1"):
        resolve_device("cuda:2")


def test_mps_without_mps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidStateError, match="use --device cpu"):
        resolve_device("mps")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_by_name_and_as_dtype(name: str) -> None:
    expected = getattr(torch, name)
    assert resolve_dtype(name) is resolve_dtype(expected) is expected


def test_auto_dtype_is_float32_on_the_cpu_and_follows_the_native_support_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolve_dtype("auto", "cpu") is torch.float32
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda native=native, **_: native)
        assert resolve_dtype("auto", "cuda:0") is expected


def test_bad_dtypes_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="unknown dtype 'int8'; give auto, float16"):
        resolve_dtype(torch.int8)
    with pytest.raises(InvalidValueError, match="does not exist on mps"):
        resolve_dtype("float64", "mps")


def test_seed_everything_repeats_the_three_global_generators() -> None:
    def draw(seed: int) -> tuple[float, float, float]:
        seed_everything(seed)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert draw(2**32 - 1) == draw(2**32 - 1)
    assert all(a != b for a, b in zip(draw(0), draw(1), strict=True))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(InvalidValueError, match="give an integer from 0 to 4294967295"):
        seed_everything(seed)


def test_torch_generator_is_its_own_stream() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (torch.rand(3, generator=torch_generator(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_num_threads_pins_and_restores_even_after_an_error() -> None:
    def blas() -> list[int]:
        return [entry["num_threads"] for entry in threadpoolctl.threadpool_info() if entry["user_api"] == "blas"]

    def fail() -> None:
        with num_threads(1):
            assert torch.get_num_threads() == 1
            assert set(blas()) <= {1}
            raise KeyError

    torch_before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        blas_before = blas()
        with pytest.raises(KeyError):
            fail()
        assert torch.get_num_threads() == 2
        assert blas() == blas_before
    finally:
        torch.set_num_threads(torch_before)


def test_num_threads_below_one_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="give 1 or more"), num_threads(0):
        pass


def test_timer_reads_while_running_stops_at_the_end_and_can_be_used_again() -> None:
    with Timer() as timer:
        time.sleep(0.01)
        running = timer.seconds
    stopped = timer.seconds
    assert 0.01 <= running <= stopped
    time.sleep(0.01)
    assert timer.seconds == stopped
    with timer:
        pass
    assert timer.seconds != stopped


def test_synchronize_on_the_cpu_takes_names_and_devices() -> None:
    assert synchronize("cpu") is synchronize(torch.device("cpu")) is None


def test_memory_peak_sees_a_freed_allocation_within_a_fifth() -> None:
    size = 200 * 2**20
    with MemoryPeak() as peak:
        block = torch.ones(size // 4)
        time.sleep(0.05)
        del block
    assert 0.8 * size <= peak.bytes <= 1.2 * size


def test_memory_peak_of_nothing_is_small_and_never_negative() -> None:
    held = torch.ones(50 * 2**18)
    with MemoryPeak() as peak:
        del held
    assert 0 <= peak.bytes < 20 * 2**20


@with_cuda
def test_memory_peak_on_cuda_is_exact() -> None:
    with MemoryPeak("cuda") as peak:
        torch.ones(2**20, device="cuda")
    assert peak.bytes == 4 * 2**20


def test_describe_is_ready_for_json_and_leaves_out_what_is_missing() -> None:
    machine = json.loads(json.dumps(describe(["torch", "no-such-distribution"]), allow_nan=False))
    assert set(machine) == {"python", "platform", "cores", "memory_gib", "torch", "threads", "cuda", "packages"}
    assert list(machine["packages"]) == ["torch"]
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0


def test_installed_versions_keeps_the_order_asked_for() -> None:
    assert list(installed_versions(["torch", "numpy"])) == ["torch", "numpy"]


def test_cores_are_counted_where_affinity_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(device_module.os, "sched_getaffinity", raising=False)
    assert device_module.available_cores() >= 1
