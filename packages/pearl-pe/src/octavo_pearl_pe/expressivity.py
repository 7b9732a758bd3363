"""What an encoding tells apart: a benchmark of a minute that any encoding can be put through.

Encoders are judged untrained: with random weights, almost every network separates what its architecture can separate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from octavo_core.progress import ProgressCallback, no_progress
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe.baselines import PEG, RWSE, SPE, BasisNet, LapPE, NoPE, RandomNodeInit, SignNet
from octavo_pearl_pe.datasets import atlas_pairs, cospectral_pairs, csl, srg16, wl_pairs
from octavo_pearl_pe.encoder import BPEARL, PEARL
from octavo_pearl_pe.theory import compare_outputs, graph_outputs

__all__ = ["ENCODINGS", "ExpressivityRow", "expressivity", "make_encoding"]

# Five taps and two layers reach closed walks of length 8, which all ten CSL classes need.
_PEARL = {"gnn": "gin", "filter_taps": 5, "layers": 2, "hidden": 16, "norm": None}

ENCODINGS: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: NoPE(8),
    "random-features": lambda: RandomNodeInit(8),
    "lappe": lambda: LapPE(8),
    "rwse": lambda: RWSE(16),
    "peg": lambda: PEG(8),
    "signnet": lambda: SignNet(8, norm=None),
    "basisnet": lambda: BasisNet(8),
    "spe": lambda: SPE(8, norm=None),
    "r-pearl": lambda: PEARL(8, eval_samples=512, control_variate=True, **_PEARL | {"gnn": "filter"}),
    "r-pearl-var": lambda: PEARL(8, eval_samples=256, pooling="mean+var", **_PEARL),
    "b-pearl": lambda: BPEARL(8, **_PEARL),
    "b-pearl-var": lambda: BPEARL(8, pooling="mean+var", **_PEARL),
}
"""Encodings by name, at sizes for small graphs."""

# Their evaluation mode hides the randomness that training shows.
_RANDOM_IN_TRAINING = (RandomNodeInit, LapPE)


@dataclass(frozen=True)
class ExpressivityRow:
    """Outcome for one encoding.

    Args:
        encoding: Its name.
        wl_pairs: Whether each pair that 1-WL confuses is separated.
        csl_classes: Classes of the ten circular skip-link graphs that are told apart.
        srg: Whether the strongly regular pair is separated.
        cospectral: Cospectral pairs separated, and their number.
        atlas: Pairs of the graph atlas that 1-WL confuses: separated, and their number.
        false_alarms: Graphs "separated" from a renumbered copy of themselves, of ``controls``: not an invariant.
        controls: Number of such checks.
        seconds: CPU time of all.
    """

    encoding: str
    wl_pairs: dict[str, bool]
    csl_classes: int
    srg: bool
    cospectral: tuple[int, int]
    atlas: tuple[int, int]
    false_alarms: int
    controls: int
    seconds: float


def make_encoding(name: str, seed: int = 0) -> nn.Module:
    """Make an encoding by name, with weights drawn from a seed.

    Args:
        name: A name in ``ENCODINGS``.
        seed: Seed of the weights.

    Returns:
        The encoding, in evaluation mode; in training mode where only that is random.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = ENCODINGS[name]()
    return encoder.train(isinstance(encoder, _RANDOM_IN_TRAINING))


def expressivity(
    encodings: Mapping[str, nn.Module],
    *,
    repeats: int = 48,
    atlas_nodes: int = 7,
    device: str | torch.device = "cpu",
    progress: ProgressCallback = no_progress,
) -> list[ExpressivityRow]:
    """Put encodings through the benchmark.

    Args:
        encodings: Encodings by name, each mapping a graph to ``[N, d]``; in float64 differences of 1e-9 count.
        repeats: Evaluations of each graph by a random encoding.
        atlas_nodes: Largest graphs of the atlas.
        device: Device to encode on.
        progress: Called with the encoding and the share done.

    Returns:
        A row for each encoding.
    """
    pairs = wl_pairs()
    classes = csl(copies=1)
    cospectral = list(cospectral_pairs(6).values())
    atlas = atlas_pairs(atlas_nodes)
    rows = []
    for index, (name, encoder) in enumerate(encodings.items()):
        progress(f"expressivity of {name}", index / len(encodings))
        start = time.process_time()
        encoder = encoder.to(device)

        def outputs(graph: Data, encoder: nn.Module = encoder) -> Tensor:
            return _outputs(encoder, graph.clone().to(str(device)), repeats).cpu()

        def told_apart(first: Data, second: Data, outputs: Callable[[Data], Tensor] = outputs) -> bool:
            return compare_outputs(outputs(first), outputs(second)).separated

        controls = [classes[0], classes[4], srg16()[0], pairs["decalin / bicyclopentyl"][0]]
        rows.append(
            ExpressivityRow(
                name,
                {pair: told_apart(*graphs) for pair, graphs in pairs.items()},
                _distinct([outputs(graph) for graph in classes]),
                told_apart(*srg16()),
                (sum(told_apart(*graphs) for graphs in cospectral), len(cospectral)),
                (sum(told_apart(*graphs) for graphs in atlas), len(atlas)),
                sum(told_apart(graph, _renumbered(graph)) for graph in controls),
                len(controls),
                time.process_time() - start,
            )
        )
    progress("expressivity", 1.0)
    return rows


def _outputs(encoder: nn.Module, graph: Data, repeats: int) -> Tensor:
    random = isinstance(encoder, _RANDOM_IN_TRAINING) or (
        isinstance(encoder, PEARL) and encoder.config.variant != "basis"
    )
    rows = graph_outputs(encoder, graph, repeats if random else 1)
    return rows if random else rows.expand(2, -1)


def _distinct(outputs: list[Tensor]) -> int:
    """Number of groups when graphs that are not told apart are joined."""
    group = list(range(len(outputs)))
    for i, first in enumerate(outputs):
        for j in range(i):
            if group[j] != group[i] and not compare_outputs(first, outputs[j]).separated:
                group = [group[j] if g == group[i] else g for g in group]
    return len(set(group))


def _renumbered(graph: Data) -> Data:
    order = torch.randperm(graph.num_nodes or 0, generator=torch.Generator().manual_seed(1))
    return Data(edge_index=order[graph.edge_index], num_nodes=graph.num_nodes)
