"""Networks on eigenvectors: SignNet, BasisNet (with a reduced invariant network) and SPE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe.baselines.eigenvectors import Spectrum, spectrum
from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.gnn import ACTIVATIONS, SampleContext, SampleGIN
from octavo_pearl_pe.graph import GraphStructure, read_data

__all__ = ["SPE", "BasisNet", "SignNet"]


class SignNet(nn.Module):
    """``rho(phi(u_1) + phi(-u_1), ...)`` with one GIN phi for all eigenvectors, which are its sample axis.

    Sign invariant exactly; not invariant to rotations within an eigenspace, and unstable there.

    Args:
        out_channels: d.
        count: k eigenvectors, concatenated before rho; None takes all and sums them.
        largest: Take the largest eigenvalues.
        hidden: Width of phi.
        layers: Layers of phi.
        norm: ``"layer"``, ``"batch"`` (as released) or None.
        phi_channels: Output width of phi.

    Raises:
        InvalidValueError: If a number is below 1 or a name is unknown.
    """

    def __init__(
        self,
        out_channels: int | Any,
        *,
        count: int | None = 8,
        largest: bool = False,
        hidden: int = 32,
        layers: int = 3,
        norm: str | None = "layer",
        phi_channels: int = 4,
    ) -> None:
        super().__init__()
        _check_counts(out_channels=out_channels, count=count, hidden=hidden, layers=layers, phi_channels=phi_channels)
        self.out_channels, self.count, self.largest = out_channels, count, largest
        self.phi = SampleGIN(1, hidden, phi_channels, layers=layers, norm=norm, residual=True)
        width = phi_channels * (count or 1)
        self.rho = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out_channels))

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Encode a graph or a batch.

        Args:
            data: The graph.

        Returns:
            The encoding.
        """
        graph = _read(data, self.phi)
        found = spectrum(graph, self.count, largest=self.largest, skip=0 if self.largest else 1)
        mask = found.mask[graph.batch]
        context = _context(graph, torch.cat([mask, mask], dim=1))
        signed = self.phi(torch.cat([found.vectors, -found.vectors], dim=1)[..., None], context)
        plus, minus = signed.chunk(2, dim=1)
        features = torch.where(mask[..., None], plus + minus, 0.0)
        return graph.restored(self.rho(features.sum(1) if self.count is None else features.flatten(1)))


class BasisNet(nn.Module):
    """``rho`` of one invariant network per multiplicity on the projectors ``V_l V_l^T`` of the first k eigenspaces.

    The invariant network is reduced to the five linear maps from N x N matrices to N vectors (diagonal, row sums,
    column sums, trace, total sum) and an MLP: enough to compare, not the whole 2-IGN.

    Args:
        out_channels: d.
        count: k eigenspaces.
        max_multiplicity: Multiplicities from here on share a network.
        hidden: Width of the MLPs.
        tolerance: Eigenvalues closer than this belong to one space.

    Raises:
        InvalidValueError: If a number is below 1 or a name is unknown.
    """

    def __init__(
        self,
        out_channels: int | Any,
        *,
        count: int = 8,
        max_multiplicity: int = 4,
        hidden: int = 32,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__()
        _check_counts(out_channels=out_channels, count=count, hidden=hidden, max_multiplicity=max_multiplicity)
        self.out_channels, self.count, self.tolerance = out_channels, count, tolerance
        self.phis = nn.ModuleList(
            nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 4)) for _ in range(max_multiplicity)
        )
        self.rho = nn.Sequential(nn.Linear(4 * count, hidden), nn.ReLU(), nn.Linear(hidden, out_channels))

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Encode a graph or a batch.

        Args:
            data: The graph.

        Returns:
            The encoding.
        """
        graph = _read(data, self)
        found = spectrum(graph)
        new = found.values.diff(dim=1, prepend=found.values[:, :1] - 1.0) > self.tolerance
        space = new.long().cumsum(1) - 1
        # Pairs beyond the first k spaces, and padding, go to a space of their own that is dropped.
        space = torch.where(found.mask & (space < self.count), space, self.count)
        total = found.vectors.new_zeros(found.values.shape).index_add_(0, graph.batch, found.vectors)
        multiplicity = torch.zeros(graph.num_graphs, self.count + 1, device=space.device, dtype=total.dtype)
        multiplicity.scatter_add_(1, space, found.mask.to(total))
        index = space[graph.batch]

        def per_space(values: Tensor) -> Tensor:
            return values.new_zeros(len(values), self.count + 1).scatter_add(1, index, values)[:, : self.count]

        diagonal = per_space(found.vectors**2)
        rows = per_space(found.vectors * total[graph.batch])
        everything = total.new_zeros(graph.num_graphs, self.count + 1).scatter_add(1, space, total**2)
        trace = multiplicity[graph.batch, : self.count]
        maps = torch.stack([diagonal, rows, rows, trace, everything[graph.batch, : self.count]], dim=-1)
        choice = trace.clamp(1, len(self.phis)).long() - 1
        outputs = torch.stack([phi(maps) for phi in self.phis], dim=-1)
        features = outputs.gather(-1, choice[..., None, None].expand(*outputs.shape[:-1], 1))[..., 0]
        return graph.restored(self.rho(torch.where(trace[..., None] > 0, features, 0.0).flatten(1)))


class SPE(nn.Module):
    """``rho(V diag(phi_1(lambda)) V^T, ..., V diag(phi_m(lambda)) V^T)``: stable and basis invariant.

    The N x N x m tensor is read as N signals of m channels a node, run through a GIN over a sample axis and summed, as
    B-PEARL does with ``S^k e_i``. With ``phi_j(lambda) = lambda^j`` it is B-PEARL.

    Args:
        out_channels: d.
        count: Eigenvectors used; all if None.
        filters: m.
        hidden: Width.
        layers: Layers of the GIN.
        norm: ``"layer"``, ``"batch"`` or None.
        act: Activation.
        phi: Function of eigenvalues ``[G, k]`` that returns ``[G, k, m]``; an element-wise MLP by default.
        max_nodes: Largest graph taken: memory is N^2 m.

    Raises:
        InvalidValueError: If a number is below 1 or a name is unknown.
    """

    def __init__(
        self,
        out_channels: int | Any,
        *,
        count: int | None = None,
        filters: int = 8,
        hidden: int = 32,
        layers: int = 3,
        norm: str | None = "layer",
        act: str = "relu",
        phi: Callable[[Tensor], Tensor] | None = None,
        max_nodes: int = 2000,
    ) -> None:
        super().__init__()
        _check_counts(out_channels=out_channels, count=count, filters=filters, hidden=hidden, layers=layers)
        if act not in ACTIVATIONS:
            raise InvalidValueError(f"unknown activation {act!r}; give one of {', '.join(ACTIVATIONS)}")
        self.out_channels, self.count, self.max_nodes = out_channels, count, max_nodes
        self.phi = _ElementWise(filters, hidden) if phi is None else phi
        self.lift = nn.Linear(filters, hidden)
        self.act = ACTIVATIONS[act]
        self.body = SampleGIN(hidden, hidden, out_channels, layers=layers, norm=norm, act=act)

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Encode a graph or a batch.

        Args:
            data: The graph.

        Returns:
            The encoding.

        Raises:
            InvalidValueError: If a graph is larger than ``max_nodes``.
        """
        graph = _read(data, self)
        longest = int(graph.sizes.max())
        if longest > self.max_nodes:
            raise InvalidValueError(
                f"SPE needs N x N memory; the graph has {longest:,} nodes, the limit is {self.max_nodes:,}"
            )
        found = spectrum(graph, self.count)
        signals = self._signals(graph, found, longest)
        mask = torch.arange(longest, device=graph.batch.device) < graph.sizes[graph.batch][:, None]
        outputs = self.body(self.act(self.lift(signals)), _context(graph, mask))
        return graph.restored(torch.where(mask[..., None], outputs, 0.0).sum(1))

    def _signals(self, graph: GraphStructure, found: Spectrum, longest: int) -> Float[Tensor, "nodes longest filters"]:
        """Entry (v, i, j): ``(V diag(phi_j) V^T)_vi``, i counted within v's graph."""
        weights = self.phi(found.values)
        weights = torch.where(found.mask[..., None], weights, 0.0)
        padded = found.vectors.new_zeros(graph.num_graphs, longest, found.vectors.shape[1])
        padded[graph.batch, graph.position] = found.vectors
        kernels = torch.einsum("gvl,glj,gil->gvij", padded, weights, padded)
        return kernels[graph.batch, graph.position]


class _ElementWise(nn.Module):
    """One MLP for every eigenvalue."""

    def __init__(self, filters: int, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, filters))

    def forward(self, values: Float[Tensor, "graphs pairs"]) -> Float[Tensor, "graphs pairs filters"]:
        return self.mlp(values[..., None])


def _check_counts(**given: Any) -> None:
    for name, value in given.items():
        if not (name == "count" and value is None):
            whole_number(name, value)


def _read(data: Data, module: nn.Module) -> GraphStructure:
    return read_data(data, dtype=next(module.parameters()).dtype)


def _context(graph: GraphStructure, mask: Tensor) -> SampleContext:
    return SampleContext(graph.shift, graph.adjacency, graph.batch, graph.num_graphs, mask)
