"""Two gloo processes on the CPU compute what one process does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from octavo_config_grad.distributed import Reducer, average_gradients, broadcast_weights, sharded_gramian
from octavo_config_grad.gramian import gramian
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.optimizer import ConFIGOptimizer
from octavo_core.errors import InvalidStateError

WORKER = Path(__file__).with_name("distributed_worker.py")
WORLD_SIZE = 2


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("distributed_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes computed."""
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(WORLD_SIZE), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(WORLD_SIZE)]


def single(worker, method):
    net = worker.make_net()
    if method == "config":
        worker.train_config(net, ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05)), ())
    else:
        worker.train_momentum(net, MConFIG(net.parameters(), 2, lr=0.05), ())
    return worker.values(net)


@pytest.mark.parametrize("run", ["config", "momentum", "ddp hooks", "ddp no_sync", "fsdp config", "fsdp momentum"])
def test_processes_agree_and_equal_a_single_one(worker, ranks, run):
    expected = single(worker, "momentum" if "momentum" in run else "config")
    assert not torch.allclose(expected[0], worker.values(worker.make_net())[0])
    for first, second, alone in zip(ranks[0][run], ranks[1][run], expected, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["gramian", "gramian of lists"])
def test_gramian_of_shards_is_that_of_the_whole(ranks, form):
    expected = gramian(torch.arange(12.0).view(2, 6) + 1.0)
    for rank in ranks:
        assert torch.equal(rank[form], expected)


def test_means_keep_shapes_and_dtypes(ranks):
    for rank in ranks:
        matrix, scalar, expanded = rank["mean"]
        assert torch.equal(matrix, torch.full((2, 2), 1.5))
        assert torch.equal(scalar, torch.tensor(1.5, dtype=torch.bfloat16))
        assert torch.equal(expanded, torch.ones(3))


def test_weights_are_those_of_rank_0(ranks):
    for rank in ranks:
        assert torch.equal(rank["weights"], torch.zeros(2, dtype=torch.float64))


def test_all_processes_skip_when_one_has_a_bad_gradient(worker, ranks):
    for rank in ranks:
        assert rank["skipped"] == [1, 1]
        for now, before in zip(rank["after skip"], worker.values(worker.make_net()), strict=True):
            assert torch.equal(now, before)


def test_without_processes_nothing_is_communicated():
    assert Reducer("auto").active() == "none"
    for call in (lambda: average_gradients([torch.ones(2)]), lambda: sharded_gramian(torch.ones(2, 3))):
        with pytest.raises(InvalidStateError, match=r"torch\.distributed is not initialised; start the script"):
            call()
    with pytest.raises(InvalidStateError, match="not initialised"):
        broadcast_weights(torch.ones(2, dtype=torch.float64))
