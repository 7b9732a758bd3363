"""Every example gets somewhere: imported, with few steps, in the default suite; as a script in the slow one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _random_state():
    with torch.random.fork_rng():
        yield


def run_main(example, **options):
    spec = importlib.util.spec_from_file_location(f"example_{example}", EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(**options)


def run_script(*command):
    """Run a command and return the number at the end of each line that reports a result."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DDE_BACKEND": "pytorch"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"^result: .* ([\d.]+)$", done.stdout, re.MULTILINE)]


def test_plain_loop_approaches_the_solution():
    assert run_main("plain_loop", steps=500) < 0.3


def test_torchjd_tells_digits_apart():
    pytest.importorskip("torchjd")
    assert run_main("torchjd_interop", steps=40) > 0.8


def test_lightning_tells_digits_apart():
    pytest.importorskip("lightning")
    assert run_main("lightning_manual", epochs=3) > 0.8


def test_accelerate_tells_digits_apart():
    pytest.importorskip("accelerate")
    assert run_main("accelerate_ddp", epochs=3) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "module", "holds"),
    [
        ("plain_loop", "torch", lambda error: error < 0.1),
        ("torchjd_interop", "torchjd", lambda accuracy: accuracy > 0.8),
        ("lightning_manual", "lightning", lambda accuracy: accuracy > 0.8),
        ("accelerate_ddp", "accelerate", lambda accuracy: accuracy > 0.8),
        ("deepxde_burgers", "deepxde", lambda ratio: ratio < 0.5),
    ],
)
def test_scripts_report_a_good_result(example, module, holds):
    # Looked up, not imported: deepxde would choose a back end in this process.
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    (result,) = run_script(EXAMPLES / f"{example}.py")
    assert holds(result)


@pytest.mark.slow
def test_accelerate_arrives_at_one_network_on_two_processes():
    pytest.importorskip("accelerate")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    first, second = run_script(*launch, EXAMPLES / "accelerate_ddp.py")
    assert first == second
    assert first > 0.8
