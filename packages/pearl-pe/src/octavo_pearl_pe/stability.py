"""Stability under changes of the graph: perturbations of a given size, changes, certified bounds (section 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch_geometric.data import Data

from octavo_pearl_pe.baselines.eigenvectors import spectrum
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.filters import FilterLayer
from octavo_pearl_pe.gnn import FilterGNN
from octavo_pearl_pe.graph import read_data, read_graph
from octavo_pearl_pe.walks import operator_to_scipy

__all__ = [
    "StabilityPoint",
    "certified_constant",
    "eigenvector_change",
    "perturb_weights",
    "shift_distance",
    "spread_edges",
    "stability_curve",
]

# Rounding of the operator's entries, against a change of weights of one.
_NO_CHANGE = 1e-9


@dataclass(frozen=True)
class StabilityPoint:
    """Changes of encodings when the weights of a graph change.

    Args:
        eps: Size of the change.
        shift_change: Spectral norm of the change of the shift operator.
        change: Relative change of the encoding in Frobenius norm.
        absolute_change: The same, absolute.
        bound: Certified bound on ``absolute_change``, where the encoder has one.
        eigenvector_change: Relative change of the first nontrivial eigenvectors, the better of the two signs.
    """

    eps: float
    shift_change: float
    change: float
    absolute_change: float
    bound: float | None
    eigenvector_change: float


def shift_distance(first: Tensor, second: Tensor) -> float:
    """Spectral norm of the difference of two symmetric shift operators.

    Args:
        first: From ``gso``.
        second: Of the same size.

    Returns:
        The norm.
    """
    difference = operator_to_scipy(first) - operator_to_scipy(second)
    if difference.nnz == 0 or abs(difference).max() == 0:
        return 0.0
    if difference.shape[0] <= 400:
        return float(np.abs(np.linalg.eigvalsh(difference.toarray())).max())
    start = np.random.default_rng(0).standard_normal(difference.shape[0])
    return float(abs(eigsh(difference, k=1, which="LM", v0=start, return_eigenvectors=False)[0]))


def perturb_weights(data: Data, size: float, generator: torch.Generator, *, kind: str = "sym_lap") -> Tensor:
    """Re-weight the edges at random so that the shift operator moves by a given spectral norm, by bisection.

    Args:
        data: An undirected graph without duplicate edges.
        size: ``||S - S~||``, positive; must be reachable by weights between 0 and 2 times the old ones.
        generator: Draws the direction.
        kind: Shift operator.

    Returns:
        New weights, one per edge in the order of ``data.edge_index``.

    Raises:
        InvalidValueError: If ``size`` is out of reach.
    """
    edges, count = _edges(data), data.num_nodes
    weight = data.get("edge_weight")
    base = torch.ones(edges.shape[1], dtype=torch.float64) if weight is None else weight.double()
    low, high = edges.min(0).values, edges.max(0).values
    _, pair = torch.unique(low * (count or 1) + high, return_inverse=True)
    direction = (torch.rand(int(pair.max()) + 1, generator=generator, dtype=torch.float64) * 2.0 - 1.0)[pair]

    def shift(scale: float) -> Tensor:
        return read_graph(edges, base * (1.0 + scale * direction), num_nodes=count, kind=kind).shift.matrix

    old = shift(0.0)
    bounds = [0.0, 1.0]
    if size <= 0 or shift_distance(old, shift(1.0)) < size:
        raise InvalidValueError(
            f"no re-weighting in this direction moves the operator by {size}; give a smaller size > 0"
        )
    for _ in range(60):
        middle = sum(bounds) / 2.0
        bounds[shift_distance(old, shift(middle)) >= size] = middle
    return base * (1.0 + bounds[1] * direction)


def eigenvector_change(first: Data, second: Data, count: int = 4) -> float:
    """Relative change of the first nontrivial Laplacian eigenvectors, each with its better sign.

    Args:
        first: A graph.
        second: The same graph with other weights.
        count: Number of eigenvectors.

    Returns:
        ``||V - V~|| / ||V||``.
    """
    old, new = (spectrum(read_data(graph, dtype=torch.float64), count, skip=1) for graph in (first, second))
    plus, minus = ((old.vectors + sign * new.vectors).norm(dim=0) for sign in (-1.0, 1.0))
    return float(torch.minimum(plus, minus).norm() / old.vectors.norm())


def certified_constant(encoder: PEARL, num_nodes: int, input_norms: Float[Tensor, " samples"]) -> float:
    """Constant C of ``||P(S) - P(S~)||_F <= C ||S - S~||`` for an encoder of filters, from its present weights.

    Args:
        encoder: With ``gnn="filter"``, no norm, an activation that is 1-Lipschitz and 0 at 0, the monomial basis, mean
            or sum pooling, and a shift operator of known norm (``"sym_lap"`` or ``"sym_adj"``).
        num_nodes: N.
        input_norms: Euclidean norm of each input signal.

    Returns:
        C. With ``constrain="beta"`` it stays bounded however large the filter weights are.

    Raises:
        InvalidValueError: If the encoder is of another kind.

    Source:
        Corollary 4.6 in a form derived here: ``||H(S) - H(S~)|| <= sum_k k |h_k| rho^(k-1) ||S - S~||`` and
        ``||H(S)|| <= sum_k |h_k| rho^k``, layer by layer, where rho bounds both operators.
    """
    config = encoder.config
    if (
        config.gnn != "filter"
        or config.norm is not None
        or config.act not in {"relu", "tanh", "abs", "leaky_relu", "identity", "elu"}
        or config.basis != "monomial"
        or config.gso not in {"sym_lap", "sym_adj"}
        or config.pooling not in {"mean", "sum"}
    ):
        raise InvalidValueError(
            "a bound is known for gnn='filter', norm=None, a 1-Lipschitz activation, the monomial basis, gso 'sym_lap' "
            "or 'sym_adj', and pooling 'mean' or 'sum'"
        )
    layers = [layer for layer in encoder.modules() if isinstance(layer, FilterLayer)]
    if encoder.body is not None and not isinstance(encoder.body, FilterGNN):
        raise AssertionError("gnn='filter' has a FilterGNN")
    # Norm of each channel and of its change per unit of ||S - S~||, for an input of average norm (both affine in it).
    size = input_norms.double().mean().reshape(1)
    change = torch.zeros(1, dtype=torch.float64)
    for layer in layers:
        taps = layer.taps().detach().double().abs().cpu()
        powers = torch.arange(len(taps), dtype=torch.float64)[:, None, None]
        norms = (taps * layer.shift_norm**powers).sum(0)
        slopes = (taps * powers * layer.shift_norm ** (powers - 1.0).clamp_min(0.0)).sum(0)
        change = slopes.T @ size + norms.T @ change
        size = norms.T @ size
        if layer.bias is not None:
            size = size + layer.bias.detach().double().cpu().abs() * math.sqrt(num_nodes)
    factor = 1.0 if config.pooling == "mean" else float(len(input_norms))
    return factor * float(change.norm())


def spread_edges(data: Data, count: int) -> list[tuple[int, int]]:
    """Choose undirected edges spread over a graph's list of them, fewer where it has fewer.

    Args:
        data: The graph.
        count: Number of edges.

    Returns:
        Distinct edges without self-loops.

    Raises:
        InvalidValueError: If there is none.
    """
    ends = _edges(data).sort(dim=0).values
    distinct = ends[:, ends[0] != ends[1]].unique(dim=1).T.tolist()
    if not distinct:
        raise InvalidValueError("the graph has no edges whose weights could change; give one with edges")
    chosen = {(index * len(distinct)) // (count + 1) for index in range(count)}
    return [(u, v) for u, v in (distinct[index] for index in sorted(chosen))]


@torch.no_grad()
def stability_curve(
    encoder: PEARL,
    data: Data,
    changed_edges: Sequence[tuple[int, int]],
    sizes: Sequence[float],
    *,
    seed: int = 0,
) -> list[StabilityPoint]:
    """Change the weights of some edges by eps and measure how far encodings move, for the same random inputs.

    Args:
        encoder: The encoder, in evaluation mode.
        data: An undirected graph; without ``edge_weight`` its weights are 1.
        changed_edges: Distinct undirected edges; the weight of the first is multiplied by 1 + eps, that of the second
            by 1 - eps, and so on in turn.
        sizes: Values of eps, above 0 and below 1.
        seed: Seed of the random inputs.

    Returns:
        A point for each eps.

    Raises:
        InvalidValueError: If the encoder chooses its inputs by itself (``variant="auto"``), an edge is not of the graph
            or named twice, an eps is out of range, or the change of weights leaves the shift operator as it was.
    """
    if encoder.config.variant == "auto":
        raise InvalidValueError("variant='auto' may change its inputs with the graph; give 'random' or 'basis'")
    if not sizes or not all(0 < eps < 1 for eps in sizes):
        raise InvalidValueError(f"sizes={list(sizes)}: give values of eps above 0 and below 1")
    parameter = next(encoder.parameters())
    count = data.num_nodes or 0
    q = None
    if encoder.config.variant == "random":
        generator = torch.Generator().manual_seed(seed)
        q = torch.randn(count, encoder.num_samples, generator=generator, dtype=parameter.dtype).to(parameter.device)
    ends, before = _edges(data).cpu(), data.get("edge_weight")
    before = torch.ones(ends.shape[1], dtype=torch.float64) if before is None else before.double().cpu()
    factors = _factors(ends, changed_edges)

    def encoded(weights: Tensor) -> Tensor:
        weights = weights.to(parameter.device)
        return encoder(ends.to(parameter.device), edge_weight=weights, num_nodes=count, q=q)

    old = encoded(before)
    constant = None
    if encoder.config.gnn == "filter" and encoder.config.norm is None:
        norms = torch.ones(count) if q is None else q.norm(dim=0)
        constant = certified_constant(encoder, count, norms)
    base = read_graph(ends, before, num_nodes=count, kind=encoder.config.gso).shift.matrix
    first = Data(edge_index=ends, edge_weight=before, num_nodes=count)
    points = []
    for eps in sizes:
        weights = before * (1.0 + eps * factors)
        other = Data(edge_index=ends, edge_weight=weights, num_nodes=count)
        moved = (encoded(weights) - old).norm()
        shift = read_graph(ends, weights, num_nodes=count, kind=encoder.config.gso).shift.matrix
        distance = shift_distance(base, shift)
        if distance < _NO_CHANGE * eps:
            raise InvalidValueError(
                "these edges make up whole components, whose normalised operator their weights do not change; name "
                "edges of a larger component"
            )
        bound = None if constant is None else constant * distance
        points.append(
            StabilityPoint(
                eps, distance, float(moved / old.norm()), float(moved), bound, eigenvector_change(first, other)
            )
        )
    return points


def _factors(ends: Tensor, changed_edges: Sequence[tuple[int, int]]) -> Tensor:
    """The sign of each stored edge's change, 0 for most."""
    factors = torch.zeros(ends.shape[1], dtype=torch.float64)
    for index, (u, v) in enumerate(changed_edges):
        chosen = ((ends[0] == u) & (ends[1] == v)) | ((ends[0] == v) & (ends[1] == u))
        if not bool(chosen.any()) or bool((factors[chosen] != 0).any()):
            raise InvalidValueError(f"({u}, {v}) is not an edge of the graph, or is named twice; give distinct edges")
        factors[chosen] = 1.0 if index % 2 == 0 else -1.0
    return factors


def _edges(data: Data) -> Tensor:
    if data.edge_index is None:
        raise InvalidValueError("data has no edge_index; give a graph with edges")
    return data.edge_index
