from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidValueError
from octavo_pearl_pe.baselines import NoPE
from octavo_pearl_pe.datasets import csl
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.models import PEARLGIN, PEARLGPS
from octavo_pearl_pe.norms import SampleBatchNorm, recompute_batch_statistics
from octavo_pearl_pe.training import TrainingConfig, collate, evaluate, learning_rate_factor, train

GRAPHS = csl(n=11, skips=(2, 3), copies=6)
CONFIG = TrainingConfig(epochs=4, batch_size=5, lr=1e-2, loss="cross_entropy")


def model(**options) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = PEARL(4, **{"hidden": 6, "layers": 2, "num_samples": 6, "eval_samples": 12} | options)
        return PEARLGPS(encoder, 2, hidden=8, layers=1, heads=2, dropout=0.2, readout="mean")


class Stop(Exception):
    pass


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = model()
    expected = train(whole, GRAPHS, CONFIG, valid=GRAPHS[:4])

    def interrupt(description: str, done: float) -> None:
        if done >= 0.5:
            raise Stop

    with pytest.raises(Stop):
        train(model(), GRAPHS, CONFIG, valid=GRAPHS[:4], folder=tmp_path, progress=interrupt)
    resumed = model()
    result = train(resumed, GRAPHS, CONFIG, valid=GRAPHS[:4], folder=tmp_path, resume=True)
    assert result.history == expected.history
    for ours, theirs in zip(resumed.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log == expected.history


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    train(model(), GRAPHS, CONFIG, folder=tmp_path, identity={"--data": "csl"})
    known = {"folder": tmp_path, "resume": True, "identity": {"--data": "csl"}}
    others = [
        (model(hidden=7), GRAPHS, CONFIG, {}, "other model"),
        (model(num_samples=8), GRAPHS, CONFIG, {}, "other model"),
        (model(noise="rademacher"), GRAPHS, CONFIG, {}, "other model"),
        (model(), GRAPHS[1:], CONFIG, {}, "other training graphs"),
        (model(), GRAPHS, CONFIG, {"valid": GRAPHS[:3]}, "other validation graphs"),
        (model(), GRAPHS, CONFIG, {"identity": {"--data": "moses"}}, "'csl', now 'moses'"),
        (model(), GRAPHS, replace(CONFIG, epochs=9), {}, "epochs=4, now 9"),
        (model(), GRAPHS, replace(CONFIG, weight_decay=0.1), {}, "weight_decay=0.0, now 0.1"),
        (model(), GRAPHS, replace(CONFIG, clip=None), {}, "clip=1.0, now None"),
    ]
    for network, graphs, config, changes, message in others:
        with pytest.raises(InvalidStateError, match=message):
            train(network, graphs, config, **known | changes)
    train(model(), GRAPHS, CONFIG, **known)
    with pytest.raises(InvalidValueError, match="needs folder"):
        train(model(), GRAPHS, CONFIG, resume=True)


@pytest.mark.parametrize("left", ["checkpoints/step-3.safetensors", "log.jsonl", "result.json", "encoder.safetensors"])
def test_a_used_folder_is_refused(tmp_path: Path, left: str) -> None:
    (tmp_path / "notes.txt").write_text("not of a run")
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text("")
    with pytest.raises(InvalidStateError, match="--resume"):
        train(model(), GRAPHS, CONFIG, folder=tmp_path)
    (tmp_path / left).unlink()
    train(model(), GRAPHS, replace(CONFIG, epochs=1), folder=tmp_path)


def test_training_lowers_the_loss_and_learns_the_classes() -> None:
    torch.manual_seed(0)
    encoder = PEARL(8, variant="basis", gnn="filter", filter_taps=5, layers=2, hidden=16, pooling="mean")
    network = PEARLGIN(encoder, 2, hidden=16, layers=1, inject="add", readout="mean")
    config = TrainingConfig(epochs=60, batch_size=12, lr=2e-2, loss="cross_entropy")
    result = train(network, GRAPHS, config)
    assert result.history[-1]["loss"] < 0.3 * result.history[0]["loss"]
    assert evaluate(network, GRAPHS, "cross_entropy") == 1.0


def test_batch_statistics_are_recomputed_before_evaluation() -> None:
    network = model(norm="batch")
    result = train(network, GRAPHS, CONFIG, valid=GRAPHS[:4])
    assert result.history[0]["batch_norm_batches"] == 3
    norms = [m for m in network.modules() if isinstance(m, SampleBatchNorm)]
    assert norms
    assert all(int(n.num_batches_tracked) == 3 and n.momentum == 0.1 for n in norms)
    assert recompute_batch_statistics(model(), [], model) == 0


def test_metrics_weigh_every_graph_alike() -> None:
    torch.manual_seed(0)
    network = PEARLGIN(NoPE(), 1, hidden=8, layers=1, readout="mean")
    graphs = csl(n=11, skips=(2,), copies=7)
    for index, graph in enumerate(graphs):
        graph.y = torch.tensor([float(index)])
    output = network.eval()(graphs[0]).item()
    expected = np.mean([abs(index - output) for index in range(7)])
    for size in (2, 3, 7):
        assert np.isclose(evaluate(network, graphs, "mae", batch_size=size), expected)
    assert evaluate(network, graphs, "mse", batch_size=3) < 0.01


def test_weight_decay_spares_biases() -> None:
    network = PEARLGIN(NoPE(), 2, hidden=8, layers=1)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    graphs = csl(n=11, skips=(2, 3), copies=2)
    train(network, graphs, TrainingConfig(epochs=1, lr=1e-12, weight_decay=0.5, loss="cross_entropy"))
    assert all(torch.allclose(p, before[name], atol=1e-9) for name, p in network.named_parameters())


def test_learning_rate_rises_and_falls() -> None:
    factors = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert np.argmax(factors) == 9
    assert factors[9] == 1.0
    assert min(factors) == factors[-1] > 0


def test_bad_training_is_told() -> None:
    bad = ({"epochs": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"clip": -1.0}, {"weight_decay": -1.0}, {"warmup": 1.0})
    for options in (*bad, {"loss": "hinge"}):
        with pytest.raises(InvalidValueError, match="give"):
            TrainingConfig(**options)
    # InvalidTypeError, or what a type checker at run time says before it.
    with pytest.raises(TypeError, match="epochs"):
        TrainingConfig(epochs=1.5)
    with pytest.raises(InvalidValueError, match="0 training graphs"):
        train(model(), [], CONFIG)
    with pytest.raises(InvalidValueError, match="no graphs"):
        evaluate(model(), [], "mae")
    broken = [graph.clone() for graph in GRAPHS[:4]]
    network = PEARLGIN(NoPE(), 1, hidden=8, layers=1)
    for graph in broken:
        graph.y = torch.tensor([torch.nan])
    with pytest.raises(InvalidStateError, match="lower lr"):
        train(network, broken, TrainingConfig(epochs=1))


# Run as a script of its own: a spawned process could not import this file under every import mode.
_WORKER = """
import os, sys
import torch
from octavo_pearl_pe import PEARL, PEARLGIN, NoPE, TrainingConfig, train
from octavo_pearl_pe.datasets import csl

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
graphs = csl(n=11, skips=(2, 3), copies=6)
network = PEARLGIN(NoPE(), 2, hidden=8, layers=1)
torch.manual_seed(0)
for parameter in network.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
train(network, graphs, TrainingConfig(epochs=2, batch_size=4, loss="cross_entropy", clip=None))
torch.manual_seed(0)
drawn = PEARL(4, num_samples=4).train()(graphs[0]).detach()
torch.save(network.state_dict() | {"drawn": drawn}, f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one_and_draw_apart(tmp_path: Path) -> None:
    import socket
    import subprocess
    import sys

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "worker.py").write_text(_WORKER)
    words = [sys.executable, "-W", "ignore", str(tmp_path / "worker.py")]
    workers = [subprocess.Popen([*words, str(rank), str(port), str(tmp_path)]) for rank in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert not torch.equal(first.pop("drawn"), second.pop("drawn"))
    alone = PEARLGIN(NoPE(), 2, hidden=8, layers=1)
    torch.manual_seed(0)
    for parameter in alone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    train(alone, GRAPHS, TrainingConfig(epochs=2, batch_size=4, loss="cross_entropy", clip=None))
    for name, value in alone.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(first[name], value, atol=1e-5)


def test_processes_of_a_distributed_training_draw_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        drawn[rank] = model().encoder.train()(GRAPHS[0])
    assert not torch.equal(drawn[0], drawn[1])


def test_collate_joins_graphs() -> None:
    assert collate(GRAPHS[:3]).num_graphs == 3
