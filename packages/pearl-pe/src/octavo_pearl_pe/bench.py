"""Benchmarks behind ``octavo bench pearl-pe``: CPU time and memory against eigenvectors and random-walk encodings.

Times are the CPU time of one thread, interleaved within one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from octavo_core.bench import fit_power_law, peak_bytes
from octavo_core.device import installed_versions, num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import scatter

from octavo_pearl_pe.baselines import SPE, SignNet
from octavo_pearl_pe.datasets import family_graph
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.gnn import SampleContext, SampleGIN
from octavo_pearl_pe.graph import read_data
from octavo_pearl_pe.official import official_encoder
from octavo_pearl_pe.scaling import cpu_seconds, scaling_encoder, time_peers
from octavo_pearl_pe.training import collate

__all__ = ["run"]

_FAMILIES = ("tree", "grid", "er")
_SETTING = "R-PEARL, M = 32, K = 4, H = 32, two filter layers, from edges to encoding; eigenvectors alone for the peer"


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the benchmarks.

    Args:
        quick: Smaller graphs: the rows keep their names and say so.
        seed: Seed of the graphs.
        device: Checked; everything is measured on the CPU, where the peers run.
        progress: Called with what is being measured and the share done.

    Returns:
        The report.
    """
    resolve_device(device)
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: benchmarks",
                    packages=("torch-geometric", "scipy", "numpy"))  # fmt: skip
    steps: list[Callable[[], None]] = [
        lambda: _eigenvectors(report, seed, quick),
        lambda: _arpack(report, seed, quick),
        lambda: _exponents(report, seed, quick),
        lambda: _memory(report, seed, quick),
        lambda: _million(report, seed, quick),
        lambda: _end_to_end(report, seed, quick),
        lambda: _molecules(report, seed, quick),
    ]
    for done, step in enumerate(steps):
        progress("benchmarks", done / len(steps))
        step()
    progress("benchmarks", 1.0)
    return report.finish()


def _eigenvectors(report: Report, seed: int, quick: bool) -> None:
    versions = installed_versions(("numpy", "torch-geometric"))
    sizes = {1000: "ratio >= 10", 2000: "ratio >= 40"}
    for n, target in sizes.items():
        if quick and n == 2000:
            n_used, repeats = 1000, 1
        else:
            n_used, repeats = n, 3
        seconds = time_peers("tree", n_used, ("pearl", "eigh"), repeats=repeats, seed=seed)
        _ratio(report, f"encode_vs_eigh_n{n}", f"encoding of a tree of {n_used:,} nodes against all eigenvectors",
               seconds["pearl"], seconds["eigh"], f"numpy {versions['numpy']} eigh", target, n != n_used)  # fmt: skip
    n_used = 500 if quick else 2000
    seconds = time_peers("tree", n_used, ("pearl", "rwpe"), repeats=1 if quick else 2, seed=seed)
    peer = f"torch-geometric {versions['torch-geometric']} AddRandomWalkPE(16)"
    _ratio(report, "encode_vs_rwpe_n2000", f"encoding of a tree of {n_used:,} nodes against 16 random-walk steps",
           seconds["pearl"], seconds["rwpe"], peer, "ratio >= 50", quick)  # fmt: skip


def _arpack(report: Report, seed: int, quick: bool) -> None:
    peer = f"scipy {installed_versions(('scipy',))['scipy']} eigsh(16, SA)"
    n = 1000 if quick else 4000
    for family in _FAMILIES:
        seconds = time_peers(family, n, ("pearl", "eigsh16"), repeats=1 if quick else 5, seed=seed)
        label = f"encoding of a graph ({family}, {n:,} nodes) against 16 eigenvectors"
        _ratio(report, f"encode_vs_eigsh16_n4000_{family}", label,
               seconds["pearl"], seconds["eigsh16"], peer, "ratio >= 2", quick)  # fmt: skip


def _ratio(
    report: Report, id: str, label: str, ours: float, theirs: float, peer: str, target: str, quick: bool
) -> None:
    note = _SETTING + ("; quick: a smaller graph than the target speaks of" if quick else "")
    report.add(id, label, ours * 1e3, "ms", peer=peer, peer_value=theirs * 1e3, target=target, note=note)


def _exponents(report: Report, seed: int, quick: bool) -> None:
    sizes = (1000, 4000, 16000) if quick else (1000, 10_000, 100_000)
    seconds = [time_peers("tree", n, ("pearl",), repeats=1 if n > 10_000 else 5, seed=seed)["pearl"] for n in sizes]
    report.add(
        "time_exponent",
        f"growth of the encoding's time with the number of nodes, {sizes[0]:,} to {sizes[-1]:,}",
        fit_power_law(sizes, seconds).exponent,
        target="value <= 1.25",
        note="random tree, M = 32: " + ", ".join(f"{s:.3g} s" for s in seconds),
    )
    small, large = (_samples_exponent(n, seed, repeats=3) for n in (2000, 4000 if quick else 10_000))
    report.add(
        "time_exponent_samples",
        f"growth of the encoding's time with the number of samples, 16 to 256, {4000 if quick else 10_000:,} nodes",
        large,
        target="0.9 <= value <= 1.1",
        note=f"random tree; {small:.2f} with 2,000 nodes, where the fixed cost of a call shows at M = 16",
    )


def _samples_exponent(n: int, seed: int, *, repeats: int) -> float:
    samples = (16, 64, 256)
    edges = family_graph("tree", n, seed)
    encoders = {str(m): scaling_encoder(m) for m in samples}
    timed = cpu_seconds({m: lambda e=encoder: e(edges, num_nodes=n) for m, encoder in encoders.items()}, repeats)
    return fit_power_law(samples, [timed[str(m)] for m in samples]).exponent


def _memory(report: Report, seed: int, quick: bool) -> None:
    n = 20_000 if quick else 100_000
    edges = family_graph("tree", n, seed)
    encoder = scaling_encoder(200)

    def encode() -> None:
        with torch.no_grad():
            encoder(edges, num_nodes=n)

    report.add(
        "n1e5_m200_extra_gb",
        f"memory beyond the graph to encode {n:,} nodes with 200 samples",
        peak_bytes(encode) / 2**30,
        "GiB",
        target="value < 1.5",
        note="quick: a smaller graph" if quick else "",
    )
    growth, default = (
        [_training_bytes(m, 2000 if quick else 8000, seed, fixed) for m in (32, 256)] for fixed in (True, False)
    )
    report.add(
        "checkpoint_memory_growth",
        "training memory with checkpoint=True at M = 256 over that at M = 32",
        growth[1] / growth[0],
        "x",
        target="value < 1.5",
        note=f"{growth[0] / 2**20:.0f} and {growth[1] / 2**20:.0f} MiB, freed blocks returned to the system; "
        f"glibc's default keeps them in its heap: {default[0] / 2**20:.0f} and {default[1] / 2**20:.0f} MiB",
    )


def _training_bytes(num_samples: int, n: int, seed: int, fixed: bool) -> int:
    """Peak memory of a forward and backward pass, in a fresh process: an allocator keeps what it had."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_training_pass, (num_samples, n, seed, fixed))


def _training_pass(num_samples: int, n: int, seed: int, fixed: bool) -> int:
    torch.set_num_threads(1)
    if fixed:
        # M_MMAP_THRESHOLD: what is freed goes back to the system, so that resident memory shows what is in use.
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).mallopt(-3, 2**17)
    edges = family_graph("tree", n, seed)
    encoder = PEARL(32, gnn="filter", layers=2, norm=None, num_samples=num_samples, checkpoint=True, chunk=8)
    encoder.train()(edges[:, :0], num_nodes=4).sum().backward()

    def step() -> None:
        encoder(edges, num_nodes=n).sum().backward()

    return peak_bytes(step)


def _million(report: Report, seed: int, quick: bool) -> None:
    n = 100_000 if quick else 1_000_000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, peak = pool.apply(_encode_large, (n, seed))
    report.add(
        "n1e6_peak_gb",
        f"resident memory of a process that encodes a tree of {n:,} nodes, M = 16",
        peak / 2**30,
        "GiB",
        target="value < 6",
        note=f"{seconds:.1f} CPU s" + ("; quick: a smaller graph" if quick else ""),
    )


def _encode_large(n: int, seed: int) -> tuple[float, int]:
    import resource
    import sys

    edges = family_graph("tree", n, seed)
    encoder = scaling_encoder(16)
    seconds = cpu_seconds({"pearl": lambda: encoder(edges, num_nodes=n)}, repeats=1)["pearl"]
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _end_to_end(report: Report, seed: int, quick: bool) -> None:
    """Whole encoders against whole encoders: networks on eigenvectors, eigenvectors included."""
    n = 200 if quick else 1000
    edges = family_graph("er", n, seed)
    data = Data(edge_index=edges, num_nodes=n)
    ours = scaling_encoder()
    peers = {"signnet": SignNet(32, norm=None).eval(), "spe": SPE(32, norm=None, hidden=32).eval()}
    calls: dict[str, Callable[[], object]] = {"pearl": lambda: ours(data)}
    calls |= {name: lambda m=module: m(data) for name, module in peers.items()}
    seconds = cpu_seconds(calls, repeats=1)
    for name in peers:
        label = f"encoding of a graph (er, {n:,} nodes) against {name}, eigenvectors included"
        report.add(f"encode_vs_{name}_n1000", label, seconds["pearl"] * 1e3, "ms", peer=f"{name} of this package",
                   peer_value=seconds[name] * 1e3, note=_SETTING.partition(";")[0])  # fmt: skip


def _molecules(report: Report, seed: int, quick: bool) -> None:
    """The honest row: on graphs of 23 nodes eigenvectors cost next to nothing."""
    rng = np.random.default_rng(seed)
    graphs = [
        Data(edge_index=family_graph("tree", int(n), i), num_nodes=int(n))
        for i, n in enumerate(rng.integers(15, 32, 32))
    ]
    batch = collate(graphs)
    options: dict[str, Any] = {"num_samples": 30} if quick else {}
    encoder = official_encoder("zinc-r", eval_samples=options.get("num_samples", 120), **options).eval()
    basis = official_encoder("zinc-b").eval()
    laplacians = [read_data(graph).shift.matrix.to_dense() for graph in graphs]
    released = _released_structure(encoder, graphs, batch)
    with num_threads(1):
        seconds = cpu_seconds(
            {
                "r": lambda: encoder(batch),
                "b": lambda: basis(batch),
                "released": released,
                "eigh": lambda: [torch.linalg.eigh(laplacian) for laplacian in laplacians],
            },
            repeats=1 if quick else 3,
        )
    samples = encoder.num_samples
    report.add(
        "molecules_vs_reference_cost",
        f"R-PEARL of 32 graphs of 23 nodes, released setting (8 GIN layers, M = {samples}), against all eigenvectors",
        seconds["r"] * 1e3,
        "ms",
        peer=f"torch {torch.__version__.partition('+')[0]} eigh",
        peer_value=seconds["eigh"] * 1e3,
        note=f"eigenvectors are cheaper here, and always will be; B-PEARL takes {seconds['b'] * 1e3:.0f} ms",
    )
    report.add(
        "molecules_vs_released_structure",
        "the same against the released program's structure: dense filters graph by graph, gather and scatter",
        seconds["r"] * 1e3,
        "ms",
        peer="released structure, rebuilt",
        peer_value=seconds["released"] * 1e3,
        target="ratio >= 1",
    )


def _released_structure(encoder: PEARL, graphs: list[Data], batch: Data) -> Callable[[], Tensor]:
    """The same network as the released code lays it out: a loop over graphs with dense matrices, then scatter sums."""
    laplacians = [read_data(graph).shift.matrix.to_dense() for graph in graphs]
    lift, body = encoder.lift, encoder.body
    if lift is None or lift.bias is None or not isinstance(body, SampleGIN):
        raise AssertionError("the released setting has a first stage and a GIN")
    weight, bias = lift.weight[:, 0], lift.bias
    whole = read_data(batch)
    context = SampleContext(whole.shift, whole.adjacency, whole.batch, whole.num_graphs)
    source, target = whole.columns, whole.rows

    def forward() -> Tensor:
        rows = []
        for laplacian in laplacians:
            q = torch.randn(len(laplacian), encoder.num_samples)
            terms = [q]
            for _ in range(len(weight) - 1):
                terms.append(laplacian @ terms[-1])
            rows.append(torch.stack(terms, dim=-1) @ weight + bias)
        x = torch.relu(encoder.lift_norm(torch.cat(rows), context))
        for index, mlp in enumerate(body.mlps):
            received = scatter(x[source], target, dim=0, dim_size=len(x), reduce="sum")
            x = mlp((1.0 + body.eps[index]) * x + received, context)
            if index < len(body.norms):
                x = body.norms[index](x, context)
        return x.sum(1)

    return forward
