"""Generated graphs: what the encodings are told apart by. Every function is determined by its seed."""

from __future__ import annotations

import itertools
from collections import defaultdict

import networkx as nx
import numpy as np
import torch
from jaxtyping import Int
from octavo_core.errors import InvalidValueError
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.graph import read_data
from octavo_pearl_pe.theory import wl_colors

__all__ = [
    "CSL_SKIPS",
    "FAMILIES",
    "atlas_pairs",
    "cospectral_pairs",
    "csl",
    "csl_folds",
    "cycle_count",
    "density_accuracy",
    "family_graph",
    "srg16",
    "thread_graphs",
    "wl_pairs",
]

CSL_SKIPS = (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)
"""Skip lengths of the ten classes of circular skip-link graphs."""

FAMILIES = ("tree", "grid", "er", "sbm", "circulant")
"""Families of large graphs for scaling and stability."""

# Edges of a thread beyond those of a tree, for each node.
_EXTRA_EDGES = 0.05
_DECALIN = "0-1,1-2,2-3,3-4,4-5,5-0,4-6,6-7,7-8,8-9,9-5"
_BICYCLOPENTYL = "0-1,1-2,2-3,3-4,4-0,4-5,5-6,6-7,7-8,8-9,9-5"


def csl(n: int = 41, skips: tuple[int, ...] = CSL_SKIPS, copies: int = 15, seed: int = 0) -> list[Data]:
    """Circular skip-link graphs: a cycle with chords of one length, nodes permuted at random; y is the class.

    Args:
        n: Nodes of each graph.
        skips: Chord length of each class.
        copies: Graphs of each class.
        seed: Seed of the permutations.

    Returns:
        Graphs, class by class.

    Raises:
        InvalidValueError: If there are no skips, one is out of range, or two of them give the same graph.

    Source:
        Section 5, CSL: 150 graphs of 41 nodes in ten classes, which 1-WL cannot separate.
    """
    whole_number("copies", copies)
    if not skips or not all(2 <= skip <= n - 2 for skip in skips):
        raise InvalidValueError(f"skips={skips} do not fit {n} nodes; give chord lengths from 2 to {n - 2}")
    for first, second in itertools.combinations(skips, 2):
        # Multiplying all node numbers by a unit maps one on the other.
        if (first - second) % n == 0 or (first + second) % n == 0 or first * second % n in {1, n - 1}:
            raise InvalidValueError(
                f"skips {first} and {second} give isomorphic graphs of {n} nodes, which no method tells apart; "
                "leave one out"
            )
    rng = np.random.default_rng(seed)
    graphs = []
    for label, skip in enumerate(skips):
        edges = _undirected(list(nx.circulant_graph(n, [1, skip]).edges))
        for _ in range(copies):
            order = torch.from_numpy(rng.permutation(n))
            graphs.append(Data(edge_index=order[edges], num_nodes=n, y=torch.tensor([label])))
    return graphs


def csl_folds(
    labels: Int[np.ndarray, " graphs"], folds: int = 5, seed: int = 0
) -> list[tuple[Int[np.ndarray, " train"], Int[np.ndarray, " valid"], Int[np.ndarray, " test"]]]:
    """Split stratified folds in the proportions 3 : 1 : 1 for five folds.

    Args:
        labels: Class of each graph.
        folds: Number of folds, at least 3.
        seed: Seed.

    Returns:
        Indices of training, validation and test graphs of each fold; every graph is tested once.

    Raises:
        InvalidValueError: If there are fewer than three folds.
    """
    if folds < 3:
        raise InvalidValueError(f"folds={folds} leaves none to train on; give 3 or more")
    rng = np.random.default_rng(seed)
    part = np.empty(len(labels), dtype=int)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        part[members] = np.arange(len(members)) % folds
    splits = []
    for fold in range(folds):
        valid = (fold + 1) % folds
        train = np.flatnonzero((part != fold) & (part != valid))
        splits.append((train, np.flatnonzero(part == valid), np.flatnonzero(part == fold)))
    return splits


def wl_pairs() -> dict[str, tuple[Data, Data]]:
    """Pairs of graphs that 1-WL cannot separate: cycles, circular skip links, two molecules.

    Returns:
        Pairs by name.
    """
    return {
        "C6 / 2 C3": (_data(nx.cycle_graph(6)), _data(nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)))),
        "CSL(11,2) / CSL(11,3)": (_data(nx.circulant_graph(11, [1, 2])), _data(nx.circulant_graph(11, [1, 3]))),
        "decalin / bicyclopentyl": (_data(_parse(_DECALIN)), _data(_parse(_BICYCLOPENTYL))),
    }


def srg16() -> tuple[Data, Data]:
    """The strongly regular graphs SRG(16, 6, 2, 2): Rook 4 x 4 and Shrikhande. 3-WL cannot separate them.

    Returns:
        The two graphs.
    """
    rook = nx.line_graph(nx.complete_bipartite_graph(4, 4))
    steps = [(1, 0), (0, 1), (1, 1)]
    shrikhande = nx.Graph(((i, j), ((i + a) % 4, (j + b) % 4)) for i in range(4) for j in range(4) for a, b in steps)
    return _data(rook), _data(shrikhande)


def cospectral_pairs(max_nodes: int = 6) -> dict[str, tuple[Data, Data]]:
    """Non-isomorphic pairs with equal spectra, which features of eigenvalues alone miss.

    Args:
        max_nodes: Search the atlas of graphs up to this size, at most 7.

    Returns:
        ``K1,4 / C4 + K1`` (equal adjacency spectra), and all pairs of the atlas without isolated nodes with equal
        spectra of the normalised Laplacian.

    Raises:
        InvalidValueError: If ``max_nodes`` is above 7, where the atlas ends.
    """
    if max_nodes > 7:
        raise InvalidValueError(f"max_nodes={max_nodes}: the atlas holds graphs of up to 7 nodes")
    square = nx.disjoint_union(nx.cycle_graph(4), nx.empty_graph(1))
    pairs = {"K1,4 / C4 + K1": (_data(nx.star_graph(4)), _data(square))}
    groups: dict[tuple[float, ...], list[nx.Graph]] = defaultdict(list)
    for graph in nx.graph_atlas_g():
        if 1 < len(graph) <= max_nodes and min(dict(graph.degree).values()) > 0:
            data = _data(graph)
            dense = read_data(data, dtype=torch.float64).shift.matrix.to_dense()
            values = torch.linalg.eigvalsh(dense).round(decimals=7) + 0.0
            groups[tuple(values.tolist())].append(graph)
    for group in groups.values():
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                pairs[f"atlas {first.name} / {second.name}"] = (_data(first), _data(second))
    return pairs


def atlas_pairs(max_nodes: int = 7) -> list[tuple[Data, Data]]:
    """All pairs of non-isomorphic connected graphs of the atlas that 1-WL cannot separate.

    Args:
        max_nodes: Largest size, at most 7.

    Returns:
        The pairs.

    Raises:
        InvalidValueError: If ``max_nodes`` is above 7, where the atlas ends.
    """
    if max_nodes > 7:
        raise InvalidValueError(f"max_nodes={max_nodes}: the atlas holds graphs of up to 7 nodes")
    groups: dict[object, list[nx.Graph]] = defaultdict(list)
    for graph in nx.graph_atlas_g():
        if 1 < len(graph) <= max_nodes and nx.is_connected(graph):
            groups[wl_colors(graph)].append(graph)
    found = (group for group in groups.values() if len(group) > 1)
    return [(_data(a), _data(b)) for group in found for i, a in enumerate(group) for b in group[i + 1 :]]


def cycle_count(
    num_graphs: int = 500, degree: int = 4, n: int = 20, lengths: tuple[int, ...] = (3, 4, 5, 6), seed: int = 0
) -> list[Data]:
    """Random regular graphs; y is each node's number of simple cycles of each length, standardised over all nodes.

    Args:
        num_graphs: Number of graphs.
        degree: Degree of every node.
        n: Nodes.
        lengths: Cycle lengths.
        seed: Seed.

    Returns:
        Graphs with ``y [n, lengths]``.

    Raises:
        InvalidValueError: If there is no such graph.

    Source:
        Section 3: PEARL counts the cycles of 3 to 7 nodes on which a node lies. Message passing alone gives a constant
        on regular graphs.
    """
    whole_number("num_graphs", num_graphs)
    whole_number("n", n, 2)
    whole_number("degree", degree, 1, n - 1)
    if degree * n % 2:
        raise InvalidValueError(f"no graph of n={n} nodes is regular of degree={degree}; make n * degree even")
    if not lengths or min(lengths) < 3:
        raise InvalidValueError(f"lengths={lengths}: give cycle lengths of 3 or more")
    graphs, counts = [], []
    for index in range(num_graphs):
        net = nx.random_regular_graph(degree, n, seed=seed * num_graphs + index)
        count = np.zeros((n, len(lengths)), dtype=np.float32)
        for cycle in nx.simple_cycles(net, length_bound=max(lengths)):
            if len(cycle) in lengths:
                count[cycle, lengths.index(len(cycle))] += 1
        graphs.append(Data(edge_index=_undirected(list(net.edges)), num_nodes=n))
        counts.append(torch.from_numpy(count))
    stacked = torch.stack(counts)
    mean, std = stacked.mean((0, 1)), stacked.std((0, 1)).clamp_min(1e-6)
    for graph, count in zip(graphs, stacked, strict=True):
        graph.y = (count - mean) / std
    return graphs


def thread_graphs(num: int, n_min: int = 50, n_max: int = 3000, seed: int = 0) -> list[Data]:
    """Two kinds of discussion threads with matched density, after the REDDIT sets: y = 0 questions, y = 1 discussions.

    Question-and-answer threads have a few experts whom many askers meet once or twice; discussions are trees that grow
    by attachment in proportion to degree^0.7, with some extra reply edges. Graphs 2 i and 2 i + 1 have the same
    numbers of nodes and edges, so sizes and the mean degree say nothing: ``density_accuracy`` checks it.

    Args:
        num: Number of graphs, alternating.
        n_min: Fewest nodes, at least 20.
        n_max: Most nodes.
        seed: Seed.

    Returns:
        The graphs.

    Raises:
        InvalidValueError: If the sizes are out of order.
    """
    if not 20 <= n_min <= n_max:
        raise InvalidValueError(f"n_min={n_min}, n_max={n_max}: need 20 <= n_min <= n_max")
    whole_number("num", num)
    rng = np.random.default_rng(seed)
    graphs, n = [], n_min
    for index in range(num):
        kind = index % 2
        if not kind:
            n = int(np.exp(rng.uniform(np.log(n_min), np.log(n_max))))
        edges = (_discussion if kind else _questions)(n, max(1, round(_EXTRA_EDGES * n)), rng)
        graphs.append(Data(edge_index=_undirected(edges), num_nodes=n, y=torch.tensor([kind])))
    return graphs


def density_accuracy(graphs: list[Data]) -> float:
    """Accuracy of the best threshold on the mean degree: chosen on half of the graphs, tested on the other.

    Args:
        graphs: Graphs of two classes, y = 0 and 1, at least four.

    Returns:
        Share of the second half that is classified rightly; near 0.5 where the density says nothing.

    Raises:
        InvalidValueError: If there are fewer than four graphs.
    """
    whole_number("number of graphs", len(graphs), 4)
    density = np.array([graph.num_edges / (graph.num_nodes or 1) for graph in graphs])
    labels = np.array([int(graph["y"]) for graph in graphs])
    half = len(graphs) // 2
    cuts = [(cut, above) for cut in np.unique(density[:half]) for above in (0, 1)]

    def accuracy(cut: float, above: int, part: slice) -> float:
        return float(np.mean(np.where(density[part] > cut, above, 1 - above) == labels[part]))

    best = max(cuts, key=lambda rule: accuracy(*rule, slice(0, half)))
    return accuracy(*best, slice(half, None))


def family_graph(family: str, n: int, seed: int = 0) -> Int[torch.Tensor, "2 edges"]:
    """A large sparse graph: random recursive tree, square grid, Erdos-Renyi (mean degree 4), blocks, or circulant.

    Args:
        family: One of ``FAMILIES``.
        n: Nodes; the grid takes the nearest square below.
        seed: Seed.

    Returns:
        ``edge_index``, both directions.

    Raises:
        InvalidValueError: If the family is unknown, or has no edges at this size.
    """
    whole_number("n", n, 2)
    rng = np.random.default_rng(seed)
    match family:
        case "tree":
            child = np.arange(1, n)
            pairs = np.stack([child, (rng.random(n - 1) * child).astype(int)])
        case "grid":
            side = int(n**0.5)
            grid = np.arange(side * side).reshape(side, side)
            pairs = np.concatenate(
                [np.stack([a.ravel(), b.ravel()]) for a, b in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]))],
                axis=1,
            )
        case "er":
            pairs = _distinct(rng.integers(n, size=(2, 2 * n)))
        case "sbm":
            # Ten blocks; nine edges in ten stay within a block.
            first = rng.integers(n, size=2 * n)
            block = max(1, n // 10)
            inside = (first // block) * block + rng.integers(block, size=2 * n)
            second = np.where(rng.random(2 * n) < 0.9, np.minimum(inside, n - 1), rng.integers(n, size=2 * n))
            pairs = _distinct(np.stack([first, second]))
        case "circulant":
            node = np.arange(n)
            pairs = np.concatenate([np.stack([node, (node + step) % n]) for step in (1, 3)], axis=1)
        case _:
            raise InvalidValueError(f"unknown family {family!r}; give one of {', '.join(FAMILIES)}")
    if not pairs.shape[1]:
        raise InvalidValueError(f"a graph of family {family!r} with {n} nodes has no edges; give more nodes")
    edges = torch.from_numpy(np.ascontiguousarray(pairs, dtype=np.int64))
    return torch.cat([edges, edges.flip(0)], dim=1)


def _distinct(pairs: np.ndarray) -> np.ndarray:
    low, high = np.sort(pairs, axis=0)
    return np.unique(np.stack([low, high])[:, low != high], axis=1)


def _questions(n: int, extra: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Experts and askers; ``n - 1 + extra`` edges."""
    experts = int(rng.integers(3, 11))
    shares = rng.dirichlet(np.ones(experts))
    edges = [(int(rng.integers(i)), i) for i in range(1, experts) if rng.random() < 0.3]
    first = rng.choice(experts, size=n - experts, p=shares)
    edges += [(int(expert), experts + asker) for asker, expert in enumerate(first)]
    # The edges that a tree would have between experts, and the extra ones, are second questions.
    for asker in rng.choice(n - experts, size=min(n - experts, n - 1 + extra - len(edges)), replace=False):
        second = int(rng.choice(np.delete(np.arange(experts), first[asker])))
        edges.append((second, experts + int(asker)))
    return edges


def _discussion(n: int, extra: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """A growing tree with replies across; ``n - 1 + extra`` edges."""
    degree = np.zeros(n)
    parent = np.zeros(n, dtype=int)
    edges: set[tuple[int, int]] = set()
    for post in range(1, n):
        weight = np.maximum(degree[:post], 1.0) ** 0.7
        parent[post] = int(np.searchsorted(np.cumsum(weight), rng.random() * weight.sum()))
        degree[[post, parent[post]]] += 1
        edges.add((int(parent[post]), post))
    # Replies between posts whose parents are siblings; in the rare tree that has too few of these, between any two.
    for attempt in range(100 * extra):
        if len(edges) == n - 1 + extra:
            break
        post = int(rng.integers(1, n))
        cousins = np.flatnonzero(parent[parent] == parent[parent[post]]) if attempt < 50 * extra else np.arange(n)
        cousin = int(rng.choice(cousins))
        pair = (min(post, cousin), max(post, cousin))
        if cousin != post and pair not in edges:
            edges.add(pair)
    return sorted(edges)


def _parse(text: str) -> nx.Graph:
    return nx.Graph(tuple(map(int, edge.split("-"))) for edge in text.split(","))


def _undirected(edges: list[tuple[int, int]]) -> Int[torch.Tensor, "2 edges"]:
    pairs = torch.tensor(edges, dtype=torch.long).T
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def _data(graph: nx.Graph) -> Data:
    bare = nx.Graph()
    bare.add_nodes_from(graph.nodes)
    bare.add_edges_from(graph.edges)
    return from_networkx(bare)
