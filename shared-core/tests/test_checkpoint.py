from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_core.checkpoint import (
    CheckpointFolder,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from safetensors.torch import save_file

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16),
]
ARRAY_DTYPES = ["float64", "float32", "float16", "complex64", "bool", "int8", "int64", "uint8", "uint32", "uint64"]


def same(left: Any, right: Any) -> bool:
    """Tell whether two states are equal in types, nesting and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        kind = left.dtype == right.dtype and left.shape == right.shape and left.device == right.device
        return kind and _bytes(left) == _bytes(right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (left, math.copysign(1, left)) == (
            right,
            math.copysign(1, right),
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(map(repr, left)) == list(map(repr, right)) and all(same(left[key], right[key]) for key in left)
    return left == right


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape)
    bits = np.frombuffer(draw(st.binary(min_size=8 * count, max_size=8 * count)), np.uint8)
    if not count:
        tensor = torch.empty(shape, dtype=dtype)
    elif dtype is torch.bool:
        tensor = torch.from_numpy(bits[:count] > 127).reshape(shape)
    else:
        # Any bit pattern is a value: NaNs with payloads, denormals and infinities too.
        size = count * dtype.itemsize
        tensor = torch.from_numpy(bits[:size].copy()).view(dtype).reshape(shape)
    layout = draw(st.sampled_from(["dense", "transposed", "strided", "expanded"]))
    if layout == "transposed":
        return tensor.permute(tuple(reversed(range(tensor.ndim))))
    if layout == "strided" and tensor.ndim:
        return tensor[::2]
    return tensor.expand(2, *tensor.shape) if layout == "expanded" else tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(ARRAY_DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    flat = np.frombuffer(content, np.uint8) > 127 if dtype.kind == "b" else np.frombuffer(content, dtype)
    array = flat.reshape(shape)
    return array.T if draw(st.booleans()) else array


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers()
states = st.dictionaries(
    st.text(),
    st.recursive(
        scalars | tensors() | arrays(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states)
def test_a_state_comes_back_equal_in_types_nesting_and_bits(tmp_path: Path, state: dict[str, Any]) -> None:
    assert same(load_checkpoint(save_checkpoint(tmp_path / "state.safetensors", state)), state)


@pytest.mark.parametrize(
    "value",
    [10**300, -(2**63) - 1, math.nan, -math.inf, -0.0, 5e-324, "\ud800 lone", "\x00", b"\x00\xff", {1: "a", "1": "b"}],
)
def test_values_that_json_would_change_come_back(tmp_path: Path, value: Any) -> None:
    state = {"value": value, "nested": [(value,)]}
    assert same(load_checkpoint(save_checkpoint(tmp_path / "state.safetensors", state)), state)


def test_tensors_that_share_memory_and_parameters_are_stored_by_value(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    layer = torch.nn.Linear(2, 2)
    state = {"all": base, "part": base[1:3], "again": base, "weight": layer.weight}
    loaded = load_checkpoint(save_checkpoint(tmp_path / "state.safetensors", state))
    assert torch.equal(loaded["part"], torch.tensor([1.0, 2.0]))
    assert type(loaded["weight"]) is torch.Tensor
    assert not loaded["weight"].requires_grad
    loaded["all"].zero_()
    assert torch.equal(loaded["again"], base)


def test_numpy_scalars_and_other_mappings_become_plain(tmp_path: Path) -> None:
    state = {"count": np.int64(3), "rate": np.float32(0.5), "flag": np.bool_(True)}
    loaded = load_checkpoint(save_checkpoint(tmp_path / "state.safetensors", state))
    assert same(loaded, {"count": 3, "rate": 0.5, "flag": True})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1, 2}, r"state\['run'\]\[1\] is a set"),
        (object(), r"state\['run'\]\[1\] is a object"),
        ({"inner": [0, 1j]}, r"state\['run'\]\[1\]\['inner'\]\[1\] is a complex"),
        ({2.5: 0}, r"state\['run'\]\[1\] has a key of type float; give str or int keys"),
        (torch.eye(2).to_sparse(), r"state\['run'\]\[1\], Tensor of torch.float32"),
        (torch.zeros(2, device="meta"), r"state\['run'\]\[1\], Tensor"),
        (torch.zeros(2, dtype=torch.complex128), r"state\['run'\]\[1\], Tensor of torch.complex128"),
        (np.array(["text"]), r"state\['run'\]\[1\], ndarray"),
        (np.array([object()]), r"state\['run'\]\[1\], ndarray of object"),
        (np.ma.array([1, 2], mask=[False, True]), r"state\['run'\]\[1\], MaskedArray"),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place_and_the_old_file_stays(
    tmp_path: Path, value: Any, named: str
) -> None:
    path = save_checkpoint(tmp_path / "state.safetensors", {"run": "old"})
    with pytest.raises(InvalidTypeError, match=named):
        save_checkpoint(path, {"run": [0, value]})
    assert load_checkpoint(path) == {"run": "old"}
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_a_flipped_bit_in_any_byte_is_detected(tmp_path: Path) -> None:
    state = {"step": 3, "rate": 0.125, "weights": torch.arange(5.0), "empty": torch.zeros(0, 3), "name": "run"}
    path = save_checkpoint(tmp_path / "state.safetensors", state)
    whole = path.read_bytes()
    missed = []
    for position in range(len(whole)):
        bit = position % 8
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            load_checkpoint(path)
        except InvalidStateError:
            continue
        missed.append((position, bit))
    assert not missed
    path.write_bytes(whole)
    assert same(load_checkpoint(path), state)


def test_another_dtype_or_shape_over_the_same_bytes_is_detected(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "state.safetensors", {"weights": torch.arange(6.0).reshape(2, 3)})
    whole = path.read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b"[2,3]", b"[3,2]")):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(InvalidStateError, match="was altered"):
            load_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.999])
def test_a_truncated_file_is_told_from_a_missing_one(tmp_path: Path, share: float) -> None:
    path = save_checkpoint(tmp_path / "state.safetensors", {"weights": torch.ones(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InvalidStateError, match="torn or not a checkpoint"):
        load_checkpoint(path)
    path.unlink()
    with pytest.raises(MissingFileError, match="no checkpoint at"):
        load_checkpoint(path)


class _Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(Path(os.environ["OCTAVO_TEST_FOLDER"]) / "ran"),)


def test_a_pickle_is_refused_and_nothing_in_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TEST_FOLDER", str(tmp_path))
    path = tmp_path / "state.safetensors"
    for write in (
        lambda: path.write_bytes(pickle.dumps(_Malicious())),
        lambda: torch.save({"weights": _Malicious()}, path),
    ):
        write()
        with pytest.raises(InvalidStateError, match="not a checkpoint"):
            load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_foreign_and_newer_safetensors_are_refused_with_their_schema(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_file({"weights": torch.ones(2)}, path)
    with pytest.raises(InvalidStateError, match="has schema None; this version reads 'octavo-checkpoint/1'"):
        load_checkpoint(path)
    save_file({"weights": torch.ones(2)}, path, metadata={"schema": "octavo-checkpoint/2"})
    with pytest.raises(InvalidStateError, match="has schema 'octavo-checkpoint/2'"):
        load_checkpoint(path)
    save_file({"weights": torch.ones(2)}, path, metadata={"schema": "octavo-checkpoint/1"})
    with pytest.raises(InvalidStateError, match="cannot be read"):
        load_checkpoint(path)


def test_a_wrong_suffix_and_an_unwritable_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"must end in \.safetensors"):
        save_checkpoint(tmp_path / "state.pt", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidStateError, match="cannot write"):
        save_checkpoint(tmp_path / "file" / "state.safetensors", {})


def test_a_folder_keeps_the_newest_and_finds_the_latest(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "runs" / "one", keep=2)
    assert folder.latest() is None
    assert folder.steps() == []
    for step in (0, 9, 10, 100):
        folder.save(step, {"step": step})
    assert folder.steps() == [10, 100]
    assert folder.latest() == (100, {"step": 100})


def test_the_older_serves_when_the_newest_is_torn_and_training_goes_on(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2):
        folder.save(step, {"step": step})
    folder.path(2).write_bytes(folder.path(2).read_bytes()[:-1])
    assert folder.latest() == (1, {"step": 1})
    folder.save(2, {"step": 2, "again": True})
    assert folder.latest() == (2, {"step": 2, "again": True})


def test_when_none_can_be_read_the_error_is_the_newest_ones(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        folder.save(step, {})
        folder.path(step).write_bytes(b"")
    with pytest.raises(InvalidStateError, match="step-2"):
        folder.latest()


def test_what_was_just_saved_is_never_deleted(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(100, {"step": 100})
    folder.save(1, {"step": 1})
    folder.save(2, {"step": 2})
    assert folder.steps() == [2, 100]


def test_other_files_are_left_alone_and_leavings_of_a_killed_save_are_not(tmp_path: Path) -> None:
    for name in ("step-07.safetensors", "step-1.safetensors.bak", "notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".step-3.abc" / "inner").mkdir(parents=True)
    folder = CheckpointFolder(tmp_path, keep=1)
    for step in (4, 5):
        folder.save(step, {})
    assert folder.steps() == [5]
    assert sorted(os.listdir(tmp_path)) == [
        *("notes.txt", "step-07.safetensors", "step-1.safetensors.bak", "step-5.safetensors")
    ]


def test_impossible_steps_and_keeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="give 1 or more"):
        CheckpointFolder(tmp_path, keep=0)
    with pytest.raises(InvalidValueError, match="count steps from 0"):
        CheckpointFolder(tmp_path).save(-1, {})


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_random_states_come_back_from_disk(tmp_path: Path, bits: type[np.random.BitGenerator]) -> None:
    torch_generator, numpy_generator = torch.Generator().manual_seed(1), np.random.Generator(bits(2))

    def draw() -> list[float]:
        return [
            random.random(),
            random.gauss(),
            float(np.random.standard_normal()),
            float(torch.rand(())),
            float(torch.rand((), generator=torch_generator)),
            float(numpy_generator.normal()),
            float(numpy_generator.integers(1 << 20, dtype=np.uint32)),
        ]

    draw()  # leaves half-used pairs behind in the generators that make numbers in pairs
    outside = random_state()
    try:
        path = save_checkpoint(tmp_path / "rng.safetensors", random_state(torch_generator, numpy_generator))
        first = draw()
        restore_random_state(load_checkpoint(path), torch_generator, numpy_generator)
        assert draw() == first
        assert draw() != first
    finally:
        restore_random_state(outside)


def test_a_different_number_of_generators_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="holds 1 generators, got 0"):
        restore_random_state(random_state(torch.Generator()))


def test_training_resumed_with_adam_is_bit_exact(tmp_path: Path) -> None:
    def start() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any, torch.Generator]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return model, optimizer, schedule, torch.Generator().manual_seed(0)

    def train(run: tuple[Any, ...], steps: int) -> None:
        model, optimizer, schedule, generator = run
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 4, generator=generator)).square().mean().backward()
            optimizer.step()
            schedule.step()

    straight = start()
    train(straight, 5)
    folder = CheckpointFolder(tmp_path)
    model, optimizer, schedule, generator = straight
    folder.save(
        5,
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "random": random_state(generator),
        },
    )
    train(straight, 5)

    resumed = start()
    step, state = folder.latest()
    for part, name in zip(resumed, ("model", "optimizer", "schedule"), strict=False):
        part.load_state_dict(state[name])
    restore_random_state(state["random"], resumed[3])
    train(resumed, 10 - step)
    assert all(map(torch.equal, resumed[0].parameters(), model.parameters()))
    assert same(resumed[1].state_dict(), optimizer.state_dict())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_at_random_moments_always_leaves_a_checkpoint_and_progress(tmp_path: Path) -> None:
    script = """
        import os, random, signal, sys, time
        import torch
        from octavo_core.checkpoint import CheckpointFolder

        torch.set_num_threads(1)
        folder = CheckpointFolder(sys.argv[1])
        reached = []
        for kill in range(8):
            child = os.fork()
            if not child:
                found = folder.latest()
                step = found[0] if found else 0
                while True:
                    step += 1
                    folder.save(step, {"step": step, "weights": torch.full((300_000,), float(step))})
            before = max(reached, default=0)
            while max(folder.steps(), default=0) <= before:
                time.sleep(0.001)
            time.sleep(random.Random(kill).uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            step, state = folder.latest()
            assert step == folder.steps()[-1] == state["step"]  # the newest is whole: no falling back
            assert bool((state["weights"] == step).all())
            reached.append(step)
        folder.save(step + 1, {})
        assert not list(folder.folder.glob(".*")), "leavings"
        print(*reached)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reached = list(map(int, done.stdout.split()))
    assert len(reached) == 8
    assert reached == sorted(set(reached))
