"""Graph neural networks that carry a sample axis untouched: ``[N, m, C]`` in, ``[N, m, d]`` out (section 3, Phi)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn

from octavo_pearl_pe.filters import FilterLayer
from octavo_pearl_pe.norms import SampleNorm, make_norm
from octavo_pearl_pe.sparse import Buffers, SparseOperator, apply_operator

__all__ = ["ACTIVATIONS", "FilterGNN", "SampleContext", "SampleGIN", "SampleMLP"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "leaky_relu": nn.functional.leaky_relu,
    "identity": lambda x: x,
}
"""Nonlinearities by name. All but gelu are 1-Lipschitz; with identity the encoding carries no information (fact 1)."""


@dataclass(frozen=True)
class SampleContext:
    """The graph, as the layers of Phi see it.

    Args:
        shift: The shift operator S.
        adjacency: The adjacency matrix.
        batch: Graph of each node, sorted.
        num_graphs: Number of graphs.
        mask: Which samples belong to which node (padding is False); all of them if None.
        buffers: Memory that the chunks of a pass without gradients share.
    """

    shift: SparseOperator
    adjacency: SparseOperator
    batch: Int[Tensor, " nodes"]
    num_graphs: int
    mask: Bool[Tensor, "nodes samples"] | None = None
    buffers: Buffers | None = None


class SampleMLP(nn.Module):
    """Linear, norm and activation for each hidden layer, then one bare Linear.

    Args:
        in_channels: Input width.
        hidden: Width of the hidden layers.
        out_channels: Output width.
        layers: Number of Linear layers, at least 1.
        norm: ``"layer"``, ``"batch"`` or None.
        act: Name in ``ACTIVATIONS``.
        bias: Whether the Linear layers have biases.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        *,
        layers: int = 2,
        norm: str | None = "layer",
        act: str = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden] * (layers - 1), out_channels]
        self.linears = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(make_norm(norm, width) for width in widths[1:-1])
        self.act = ACTIVATIONS[act]

    def forward(
        self, x: Float[Tensor, "nodes samples inputs"], context: SampleContext
    ) -> Float[Tensor, "nodes samples outputs"]:
        """Apply the network to every node and sample.

        Args:
            x: Input.
            context: The graph.

        Returns:
            Output.
        """
        for linear, norm in zip(self.linears, self.norms, strict=False):
            x = self.act(norm(linear(x), context))
        return self.linears[-1](x)


class SampleGIN(nn.Module):
    """Graph isomorphism network over a sample axis, with plain sum aggregation.

    Args:
        in_channels: Input width.
        hidden: Width between layers.
        out_channels: Output width.
        layers: Number of GIN layers, at least 1.
        mlp_hidden: Width inside each MLP; ``hidden`` by default, 0 for the layer's input width.
        mlp_layers: Linear layers of each MLP.
        norm: ``"layer"``, ``"batch"`` or None; inside the MLPs and after every layer but the last.
        act: Name in ``ACTIVATIONS``.
        jump: ``"last"``, or ``"concat"`` for a Linear of all layers' outputs, each after a norm and an activation.
        bias: Whether the Linear layers have biases.
        residual: Add a layer's input to its output where their widths agree.

    Raises:
        InvalidValueError: If there is no layer or ``jump`` is unknown.

    Source:
        Section 5 and the released configurations: no activation between layers, except with ``jump="concat"``.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        *,
        layers: int = 3,
        mlp_hidden: int | None = None,
        mlp_layers: int = 2,
        norm: str | None = "layer",
        act: str = "relu",
        jump: str = "last",
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if layers < 1 or jump not in {"last", "concat"}:
            raise InvalidValueError(
                f"a GIN of {layers} layers with jump={jump!r} does not exist; give layers >= 1 and 'last' or 'concat'"
            )
        concat = jump == "concat"
        widths = [in_channels, *[hidden] * (layers - 1), hidden if concat else out_channels]
        inner = hidden if mlp_hidden is None else mlp_hidden
        self.residual = residual
        self.eps = nn.Parameter(torch.zeros(layers))
        self.mlps = nn.ModuleList(
            SampleMLP(a, inner or a, b, layers=mlp_layers, norm=norm, act=act, bias=bias)
            for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(make_norm(norm, width) for width in (widths[1:] if concat else widths[1:-1]))
        self.act = ACTIVATIONS[act]
        self.readout = nn.Linear(hidden * layers, out_channels, bias=False) if concat else None
        self.readout_norm = make_norm(norm, out_channels) if concat else None

    def forward(
        self, x: Float[Tensor, "nodes samples inputs"], context: SampleContext
    ) -> Float[Tensor, "nodes samples outputs"]:
        """Run the layers.

        Args:
            x: Input.
            context: The graph.

        Returns:
            Output of the last layer, or the Linear of all.
        """
        outputs = []
        for layer, mlp in enumerate(self.mlps):
            out = mlp((1.0 + self.eps[layer]) * x + apply_operator(context.adjacency, x), context)
            x = x + out if self.residual and out.shape == x.shape else out
            if layer < len(self.norms):
                x = self.norms[layer](x, context)
            if self.readout is not None:
                x = self.act(x)
                outputs.append(x)
        if self.readout is None or self.readout_norm is None:
            return x
        return self.readout_norm(self.readout(torch.cat(outputs, dim=-1)), context)


class FilterGNN(nn.Module):
    """Layers ``X <- act(norm(sum_k S^k X H_k + b))``, the network of the paper's theory.

    Args:
        widths: Channels before, between and after the layers.
        num_taps: K of each layer.
        norm: ``"layer"``, ``"batch"`` or None; after every layer but the last.
        act: Name in ``ACTIVATIONS``, also after the last layer: the nonlinearity must precede the pooling.
        basis: Polynomial basis.
        constrain: Bound every scalar filter, see ``FilterLayer``.
        gso: Kind of the shift operator.

    Source:
        Section 2, ``X^(l) = sigma(sum_k S^k X^(l-1) H_k^(l))``.
    """

    def __init__(
        self,
        widths: list[int],
        num_taps: int,
        *,
        norm: str | None = None,
        act: str = "relu",
        basis: str = "monomial",
        constrain: bool = False,
        gso: str = "sym_lap",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            FilterLayer(a, b, num_taps, basis=basis, constrain=constrain, gso=gso)
            for a, b in itertools.pairwise(widths)
        )
        last = len(widths) - 2
        norms: list[SampleNorm] = [
            make_norm(norm if index < last else None, width) for index, width in enumerate(widths[1:])
        ]
        self.norms = nn.ModuleList(norms)
        self.act_name = act
        self.act = ACTIVATIONS[act]

    def forward(
        self, x: Float[Tensor, "nodes samples inputs"], context: SampleContext
    ) -> Float[Tensor, "nodes samples outputs"]:
        """Run the layers.

        Args:
            x: Input.
            context: The graph.

        Returns:
            Output of the last layer.
        """
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x, context.shift, context.buffers), context)
            x = x.relu_() if self.act_name == "relu" and not torch.is_grad_enabled() else self.act(x)
        return x
