"""What is known exactly about PEARL: closed forms, the 1-WL colouring, and tests of what an encoding separates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from scipy.stats import t as student_t
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx, to_networkx

from octavo_pearl_pe.sparse import SparseOperator, apply_operator
from octavo_pearl_pe.walks import closed_walks

__all__ = [
    "Separation",
    "compare_outputs",
    "expected_relu",
    "expected_relu_filter",
    "graph_outputs",
    "sample_bound",
    "second_moment",
    "separates",
    "wl_colors",
]


def expected_relu(mean: Float[Tensor, ...], std: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Expectation of ``relu(x)`` for ``x ~ N(mean, std^2)``: ``m Phi(m/s) + s phi(m/s)``.

    Args:
        mean: m.
        std: s, positive.

    Returns:
        The expectation.
    """
    z = mean / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return mean * torch.special.ndtr(z) + std * density


def expected_relu_filter(
    shift: Tensor, taps: Sequence[float] | Tensor, bias: float | int = 0.0, mean: float | int = 0.0
) -> Float[Tensor, " nodes"]:
    """Expectation of ``relu((H q)_v + b)`` for ``H = sum_k w_k S^k`` and ``q ~ N(mu 1, I)``, in closed form.

    Args:
        shift: Symmetric shift operator from ``gso``.
        taps: w, at least one.
        bias: b.
        mean: mu.

    Returns:
        One value per node, float64.

    Raises:
        InvalidTypeError: If S is not a sparse CSR matrix.
        InvalidValueError: If there are no taps or S is not symmetric.

    Source:
        Follows from the filter layer of section 2: ``(Hq)_v + b`` is Gaussian with mean ``mu (H1)_v + b`` and variance
        ``(H H^T)_vv``.
    """
    weights = torch.as_tensor(taps, dtype=torch.float64)
    if weights.dim() != 1 or not len(weights):
        raise InvalidValueError(f"taps have shape {tuple(weights.shape)}; give one weight per power, from S^0")
    operator = _operator(shift)
    walks = closed_walks(operator, 2 * len(weights) - 2)
    products = torch.zeros(walks.shape[1], dtype=torch.float64)
    for tap, weight in enumerate(weights):
        products[tap : tap + len(weights)] += weight * weights
    term = torch.ones(operator.num_nodes, 1, dtype=torch.float64)
    response = torch.zeros_like(term)
    for weight in weights:
        response += weight * term
        term = apply_operator(operator, term)
    centre = mean * response[:, 0] + bias
    std = (walks @ products).clamp_min(0.0).sqrt()
    return torch.where(std > 0, expected_relu(centre, std.clamp_min(1e-300)), centre.relu())


def second_moment(shift: Tensor, k: int, l: int) -> Float[Tensor, " nodes"]:  # noqa: E741 - the paper's letters
    """Second-moment pooling without sampling: ``E[(S^k q)_v (S^l q)_v] = (S^(k+l))_vv``.

    With S the normalised adjacency these are the random-walk return probabilities.

    Args:
        shift: Symmetric shift operator from ``gso``.
        k: First power, at least 0.
        l: Second power, at least 0.

    Returns:
        One value per node, float64.

    Raises:
        InvalidTypeError: If S is not a sparse CSR matrix.
        InvalidValueError: If a power is negative or S is not symmetric.

    Source:
        Fact about pooling by the second moment; also ``sum_m (S^k e_m)_v (S^l e_m)_v``, the basis variant's value.
    """
    if k < 0 or l < 0:
        raise InvalidValueError(f"powers {k} and {l} must not be negative")
    return closed_walks(_operator(shift), k + l)[:, k + l]


def sample_bound(tol: float, delta: float, *, num_values: int = 1) -> int:
    """Number of samples that guarantees an error of at most ``tol`` for an encoder with ``constrain="beta"``.

    Args:
        tol: Error of one value, positive.
        delta: Probability of a larger error, in (0, 1).
        num_values: Values that must all be within ``tol`` (N d for all nodes and channels; 1 for each alone).

    Returns:
        ``M = (2 / tol^2) log(2 num_values / delta)``, rounded up.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Theorem 4.3's content, in a form derived here: with filters bounded by 1 / F and 1-Lipschitz activations each
        output is a 1-Lipschitz function of a Gaussian vector, hence sub-Gaussian with variance at most 1, whatever N.
    """
    if not tol > 0 or not 0 < delta < 1 or num_values < 1:
        raise InvalidValueError(f"tol={tol}, delta={delta}, num_values={num_values}: need tol > 0, 0 < delta < 1, >= 1")
    return math.ceil(2.0 / tol**2 * math.log(2.0 * num_values / delta))


def wl_colors(graph: Data | nx.Graph, rounds: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Histogram of 1-WL colours after each round; equal for two graphs iff colour refinement does not tell them apart.

    Args:
        graph: A graph without features.
        rounds: Rounds of refinement; the number of nodes by default.

    Returns:
        For each round the sorted canonical colours (hashes of the neighbourhoods' colours).
    """
    net = to_networkx(graph, to_undirected=True) if isinstance(graph, Data) else graph
    colors = dict.fromkeys(net, 0)
    history = []
    for _ in range(len(net) if rounds is None else rounds):
        # Hashes of integers and tuples of integers do not depend on the process.
        colors = {v: hash((colors[v], tuple(sorted(colors[u] for u in net[v])))) for v in net}
        history.append(tuple(sorted(colors.values())))
    return tuple(history)


@dataclass(frozen=True)
class Separation:
    """Outcome of a test whether an encoding tells two graphs apart.

    Args:
        separated: Whether it does.
        statistic: Largest difference of the graph-level outputs: relative for an encoding without randomness, else in
            standard errors of the difference.
        p_value: Of no difference, corrected for the number of outputs; 0 or 1 without randomness.
    """

    separated: bool
    statistic: float
    p_value: float


def separates(
    encoder: nn.Module | Callable[[Data], Tensor],
    first: Data | nx.Graph,
    second: Data | nx.Graph,
    *,
    repeats: int = 64,
    tolerance: float | None = None,
    level: float = 1e-3,
    readout_channels: int = 32,
) -> Separation:
    """Test whether an encoding separates two graphs at graph level, by random ReLU features summed over the nodes.

    Args:
        encoder: Maps a graph to ``[N, d]``; evaluated ``repeats`` times, so that its own randomness shows. A ``PEARL``
            with random inputs gets a fresh generator each time.
        first: A graph.
        second: A graph.
        repeats: Evaluations of each, at least 2.
        tolerance: Relative difference that counts, for an encoding without randomness; by default 1e-9 in float64 and
            1e-4 otherwise.
        level: Significance level, for a random one.
        readout_channels: Number of features.

    Returns:
        The outcome.

    Raises:
        InvalidValueError: If there are fewer than two repeats.
    """
    if repeats < 2:
        raise InvalidValueError(f"repeats={repeats} shows no randomness; give 2 or more")
    pair = [from_networkx(g) if isinstance(g, nx.Graph) else g for g in (first, second)]
    outputs = [graph_outputs(encoder, graph, repeats, readout_channels) for graph in pair]
    return compare_outputs(outputs[0], outputs[1], tolerance=tolerance, level=level)


def compare_outputs(
    first: Float[Tensor, "repeats outputs"],
    second: Float[Tensor, "repeats outputs"],
    *,
    tolerance: float | None = None,
    level: float = 1e-3,
) -> Separation:
    """Compare graph-level outputs of two graphs, see ``separates``.

    Args:
        first: From ``graph_outputs``.
        second: From ``graph_outputs``, with the same encoder.
        tolerance: See ``separates``.
        level: See ``separates``.

    Returns:
        The outcome.
    """
    if tolerance is None:
        tolerance = 1e-9 if first.dtype == torch.float64 else 1e-4
    samples = [first.double(), second.double()]
    size = torch.stack(samples).abs().amax().clamp_min(1e-30)
    spread = [outputs.std(0) for outputs in samples]
    difference = (samples[0].mean(0) - samples[1].mean(0)).abs()
    if float(torch.stack(spread).amax() / size) < 1e-3 * tolerance:
        statistic = float((difference / size).max())
        return Separation(statistic > tolerance, statistic, 0.0 if statistic > tolerance else 1.0)
    error = ((spread[0] ** 2 + spread[1] ** 2) / len(first)).sqrt()
    z = float((difference / error.clamp_min(1e-12 * float(size))).max())
    # Student's t, with the fewest degrees of freedom that Welch's test can have.
    p_value = min(1.0, 2.0 * len(difference) * float(student_t.sf(z, len(first) - 1)))
    return Separation(p_value < level, z, p_value)


@torch.no_grad()
def graph_outputs(
    encoder: nn.Module | Callable[[Data], Tensor], graph: Data, repeats: int, channels: int = 32
) -> Float[Tensor, "repeats outputs"]:
    """Evaluate an encoding several times and read each out: sums over the nodes, plain and of random ReLU features.

    Args:
        encoder: Maps a graph to ``[N, d]``; a ``PEARL`` gets a fresh generator each time.
        graph: A graph.
        repeats: Number of evaluations; one suffices for an encoding without randomness.
        channels: Number of features, the same for every graph.

    Returns:
        A row per evaluation, in the encoding's dtype.
    """
    from octavo_pearl_pe.encoder import PEARL

    outputs = []
    for repeat in range(repeats):
        if isinstance(encoder, PEARL):
            outputs.append(encoder(graph, generator=torch.Generator().manual_seed(repeat + 1)))
        else:
            outputs.append(encoder(graph))
    stacked = torch.stack(outputs)
    generator = torch.Generator().manual_seed(0)
    width = stacked.shape[-1]
    weights = torch.randn(width, channels, generator=generator, dtype=torch.float64) / math.sqrt(width)
    offset = torch.randn(channels, generator=generator, dtype=torch.float64)
    features = torch.relu(stacked.double() @ weights + offset)
    return torch.cat([stacked.double().sum(1), features.sum(1)], dim=-1).to(stacked.dtype)


def _operator(shift: Any) -> SparseOperator:
    if not isinstance(shift, Tensor) or shift.layout != torch.sparse_csr:
        raise InvalidTypeError("the shift operator is not a sparse CSR matrix; give what gso() returns")
    counts = shift.crow_indices().diff()
    rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    columns, values = shift.col_indices(), shift.values().double()
    operator = SparseOperator.from_sorted(rows, columns, values, shift.shape[0], symmetric=False)
    mirrored = operator.transpose
    same = torch.equal(mirrored.col_indices(), operator.matrix.col_indices()) and torch.allclose(
        mirrored.values(), values
    )
    if not same:
        raise InvalidValueError("the shift operator is not symmetric, but the closed form needs it; use kind='sym_adj'")
    return SparseOperator.from_sorted(rows, columns, values, shift.shape[0], symmetric=True)
