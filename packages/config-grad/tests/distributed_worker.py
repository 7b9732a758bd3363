"""One process of test_distributed.py: python distributed_worker.py RANK WORLD_SIZE FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from octavo_config_grad.aggregators import ConFIG
from octavo_config_grad.distributed import average_gradients, broadcast_weights, sharded_gramian
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.optimizer import ConFIGOptimizer
from torch import nn

STEPS = 6


def make_net():
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return net


def batch(step, rank=None, world_size=1):
    """Inputs of a step: all of them, or the share of a rank."""
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return inputs if rank is None else inputs.chunk(world_size)[rank]


def losses(net, inputs):
    return [lambda: (net(inputs)[:, 0] - 1.0).square().mean(), lambda: (net(inputs)[:, 1] + 5.0).square().mean()]


def train_config(net, optimizer, share):
    for step in range(STEPS):
        optimizer.step(losses(net, batch(step, *share)))
    return optimizer


def train_momentum(net, optimizer, share):
    for step in range(STEPS):
        terms = losses(net, batch(step, *share))
        optimizer.step({index: terms[index] for index in optimizer.next_losses()})
    return optimizer


def values(net):
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in net.parameters()]


def main(rank, world_size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    share = (rank, world_size)
    results = {}

    net = make_net()
    train_config(net, ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), ConFIG()), share)
    results["config"] = values(net)

    net = make_net()
    train_momentum(net, MConFIG(net.parameters(), 2, lr=0.05), share)
    results["momentum"] = values(net)

    # Data parallel through DDP's own all-reduce, one forward pass per loss.
    net = make_net()
    parallel = nn.parallel.DistributedDataParallel(net)
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), reduction="none", gradients_by="backward")
    train_config(parallel, optimizer, share)
    results["ddp hooks"] = values(net)

    # DDP, averaged by this package.
    net = make_net()
    parallel = nn.parallel.DistributedDataParallel(net)
    with parallel.no_sync():
        train_config(parallel, ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05)), share)
    results["ddp no_sync"] = values(net)

    from torch.distributed.fsdp import fully_shard

    for name in ("fsdp config", "fsdp momentum"):
        net = make_net()
        fully_shard(net, mesh=dist.init_device_mesh("cpu", (world_size,)))
        options = {"reduction": "sharded", "gradients_by": "backward"}
        if name == "fsdp config":
            train_config(net, ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), **options), share)
        else:
            train_momentum(net, MConFIG(net.parameters(), 2, lr=0.05, **options), share)
        results[name] = values(net)

    rows = torch.arange(12.0).view(2, 6) + 1.0
    shard = rows.chunk(world_size, dim=1)[rank]
    results["gramian"] = sharded_gramian(shard)
    results["gramian of lists"] = sharded_gramian([[row[:1], row[1:].view(2, 1)] for row in shard])
    mixed = [torch.full((2, 2), 1.0 + rank), torch.tensor(3.0 * rank, dtype=torch.bfloat16), torch.ones(1).expand(3)]
    results["mean"] = average_gradients(mixed)
    results["weights"] = broadcast_weights(torch.full((2,), float(rank), dtype=torch.float64))

    # A gradient that is not finite on one process only.
    net = make_net()
    optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=0.05), ConFIG(nonfinite="skip"))
    momentum = MConFIG(net.parameters(), 2, lr=0.05, nonfinite="skip")
    for each in (optimizer, momentum):
        terms = [term() for term in losses(net, batch(0, *share))]
        if rank == 1:
            terms[1] = terms[1] * float("nan")
        each.step(terms)
    results["skipped"] = [optimizer.skipped_steps, momentum.skipped_steps]
    results["after skip"] = values(net)

    torch.save(results, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
