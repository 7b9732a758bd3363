"""CPU time of encodings against graph size, and Monte-Carlo error against the number of samples."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from octavo_core.device import num_threads
from octavo_core.errors import InvalidValueError
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE

from octavo_pearl_pe.datasets import family_graph
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.graph import gso
from octavo_pearl_pe.walks import operator_to_scipy

__all__ = ["PEERS", "check_peers", "cpu_seconds", "monte_carlo_errors", "scaling_encoder", "time_peers"]

PEERS = ("pearl", "eigh", "eigsh16", "rwpe")
"""What is timed: R-PEARL's forward pass from the edges; all eigenvectors (NumPy); 16 of them (SciPy, ARPACK, smallest);
PyG's random-walk encoding of 16 steps. The eigenvector peers get the finished Laplacian and return bare vectors."""

# Three dense matrices of the 20,000 nodes are 9 GiB; ARPACK needs more nodes than vectors.
_MOST_DENSE_NODES = 20_000
_ARPACK_VECTORS = 16


def check_peers(n: int, peers: Sequence[str]) -> None:
    """Refuse sizes that a peer cannot take.

    Args:
        n: Nodes.
        peers: Names in ``PEERS``.

    Raises:
        InvalidValueError: If a name is unknown, or the graph is too large or too small for a peer.
    """
    if unknown := [name for name in peers if name not in PEERS]:
        raise InvalidValueError(f"unknown {', '.join(unknown)}; give some of {', '.join(PEERS)}")
    if "eigh" in peers and n > _MOST_DENSE_NODES:
        gigabytes = 3 * n * n * 8 / 2**30
        raise InvalidValueError(f"eigh of {n:,} nodes takes {gigabytes:,.0f} GiB; give at most {_MOST_DENSE_NODES:,}")
    if "eigsh16" in peers and n < 2 * _ARPACK_VECTORS:
        raise InvalidValueError(f"{n} nodes are too few for {_ARPACK_VECTORS} eigenvectors; give {2 * _ARPACK_VECTORS}")


def scaling_encoder(num_samples: int = 32) -> PEARL:
    """Make the encoder of the timings: two filter layers of 4 taps and 32 channels, R-PEARL.

    Args:
        num_samples: M.

    Returns:
        The encoder, with seeded random weights, in evaluation mode.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = {"gnn": "filter", "layers": 2, "filter_taps": 4, "hidden": 32, "norm": None}
        return PEARL(32, num_samples=num_samples, eval_samples=num_samples, **options).eval()


def cpu_seconds(
    calls: Mapping[str, Callable[[], object]], repeats: int = 3, *, device: str | torch.device = "cpu"
) -> dict[str, float]:
    """Time calls by the CPU time of this process, one thread, interleaved: other processes' work does not count.

    Args:
        calls: What to time, by name.
        repeats: Repetitions of each, after one that is not timed.
        device: Where they run; on an accelerator wall-clock time is taken, until the device is idle.

    Returns:
        Median seconds by name.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    kind = torch.device(device).type

    def now() -> float:
        if kind == "cpu":
            return time.process_time()
        {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}[kind]()
        return time.perf_counter()

    with num_threads(1), torch.no_grad():
        for repeat in range(repeats + 1):
            for name, call in calls.items():
                start = now()
                call()
                if repeat:
                    samples[name].append(now() - start)
    return {name: float(np.median(values)) for name, values in samples.items()}


def time_peers(
    family: str,
    n: int,
    peers: Sequence[str] = PEERS,
    *,
    repeats: int = 3,
    seed: int = 0,
    num_samples: int = 32,
    device: str | torch.device = "cpu",
) -> dict[str, float]:
    """Time encodings of one graph.

    Args:
        family: See ``octavo_pearl_pe.datasets.FAMILIES``.
        n: Nodes.
        peers: Names in ``PEERS``.
        repeats: Timed repetitions.
        seed: Seed of the graph.
        num_samples: M.
        device: Where PEARL runs; the peers run on the CPU.

    Returns:
        Median CPU seconds by name; NaN where ARPACK does not converge.

    Raises:
        InvalidValueError: If the graph is too large or too small for a peer.
    """
    check_peers(n, peers)
    edges = family_graph(family, n, seed)
    count = int(edges.max()) + 1
    encoder, placed = scaling_encoder(num_samples).to(device), edges.to(device)
    laplacian = operator_to_scipy(gso(edges, num_nodes=count)).astype(np.float64)
    start = np.random.default_rng(0).standard_normal(count)
    data = Data(edge_index=edges, num_nodes=count)
    walk = AddRandomWalkPE(16)
    calls: dict[str, Callable[[], object]] = {
        "pearl": lambda: encoder(placed, num_nodes=count),
        "eigh": lambda: np.linalg.eigh(laplacian.toarray()),
        "eigsh16": lambda: eigsh(laplacian, k=_ARPACK_VECTORS, which="SA", v0=start),
        "rwpe": lambda: walk(Data(edge_index=data.edge_index, num_nodes=count)),
    }
    chosen = {name: calls[name] for name in peers}
    if "eigsh16" in chosen:
        try:
            chosen["eigsh16"]()
        except ArpackError:
            del chosen["eigsh16"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR")
        seconds = cpu_seconds(chosen, repeats, device=device)
    return {name: seconds.get(name, math.nan) for name in peers}


@torch.no_grad()
def monte_carlo_errors(
    encoder: PEARL, n: int, samples: Sequence[int], *, repeats: int = 8, seed: int = 0
) -> list[float]:
    """Root mean square error of R-PEARL on a circulant graph, whose nodes all have the same expectation.

    Args:
        encoder: The encoder, mean-pooled.
        n: Nodes of the circulant graph with connections 1 and 3.
        samples: Values of M.
        repeats: Draws for each.
        seed: Seed.

    Returns:
        An error for each M, relative to the root mean square of the expectation's estimate.
    """
    edges = family_graph("circulant", n)
    dtype = next(encoder.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Tensor:
        return encoder(edges, num_nodes=n, q=torch.randn(n, count, generator=generator, dtype=dtype))

    estimates = [[draw(count) for _ in range(repeats)] for count in samples]
    # Every node of every draw estimates the same number, so their mean is far more exact than any of them.
    weights = torch.tensor(samples, dtype=dtype)
    means = torch.stack([torch.stack(draws).mean((0, 1)) for draws in estimates])
    centre = (weights[:, None] * means).sum(0) / weights.sum()
    scale = centre.norm()
    return [
        float(torch.stack([((d - centre) ** 2).sum(1).mean() for d in draws]).mean().sqrt() / scale)
        for draws in estimates
    ]
