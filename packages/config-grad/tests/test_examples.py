"""Every example runs as a script and gets somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DDE_BACKEND": "pytorch"}


def numbers(*command):
    """Run a command and return the last number of each line that it prints about its result."""
    done = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [
        float(match)
        for match in re.findall(r"^(?:relative|digit|losses) .*?([\d.]+)(?: of the start)?$", done.stdout, re.M)
    ]


def test_plain_loop_solves_the_boundary_value_problem():
    (error,) = numbers(EXAMPLES / "plain_loop.py")
    assert error < 0.1


@pytest.mark.parametrize(
    ("example", "module"),
    [("torchjd_interop", "torchjd"), ("lightning_manual", "lightning"), ("accelerate_ddp", "accelerate")],
)
def test_digits_are_told_apart(example, module):
    pytest.importorskip(module)
    (accuracy,) = numbers(EXAMPLES / f"{example}.py")
    assert accuracy > 0.8


def test_deepxde_losses_fall():
    if not any((Path(entry) / "deepxde").is_dir() for entry in sys.path):  # importing it would choose a back end here
        pytest.skip("deepxde is not installed")
    (ratio,) = numbers(EXAMPLES / "deepxde_burgers.py")
    assert ratio < 0.5


@pytest.mark.slow
def test_accelerate_runs_on_two_processes():
    pytest.importorskip("accelerate")
    launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0")
    first, second = numbers(*launch, str(EXAMPLES / "accelerate_ddp.py"))
    assert first == second > 0.8
