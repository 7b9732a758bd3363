"""Control variates for R-PEARL: the first layer's sample mean is corrected by its known expectation.

Beyond the paper, which only gives the rate M^-1/2: the first layer of a ReLU filter network on Gaussian inputs has a
closed-form mean, so the regression of the output on it removes the part of the error that it explains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from octavo_pearl_pe.graph import GraphStructure
from octavo_pearl_pe.pooling import Moments
from octavo_pearl_pe.theory import expected_relu
from octavo_pearl_pe.walks import closed_walks

if TYPE_CHECKING:
    from octavo_pearl_pe.encoder import PEARL

__all__ = ["FirstLayerControl"]

_RIDGE = 1e-6


class FirstLayerControl:
    """Collects what the correction needs during one pass.

    Args:
        encoder: An encoder whose configuration allows control variates.
        graph: The graphs.
    """

    def __init__(self, encoder: PEARL, graph: GraphStructure) -> None:
        if encoder.lift is None:
            raise AssertionError("the configuration demands a first stage")
        taps = encoder.lift.taps()[:, 0]
        ones = graph.weights.new_ones(graph.num_nodes, 1, 1)
        bias = encoder.lift.bias
        mean = float(encoder.config.noise == "normal1") * (
            encoder.lift(ones, graph.shift)[:, 0] - (0.0 if bias is None else bias)
        )
        if bias is not None:
            mean = mean + bias
        order = 2 * (len(taps) - 1)
        walks = closed_walks(graph.shift, order).to(taps)
        # (H H^T)_vv = sum_{k, l} w_k w_l (S^{k + l})_vv: the autocorrelation of the taps.
        products = torch.einsum("kc,lc->klc", taps, taps)
        numbers = torch.arange(len(taps), device=taps.device)
        sums = (numbers[:, None] + numbers).flatten()
        weights = taps.new_zeros(order + 1, taps.shape[1]).index_add(0, sums, products.flatten(0, 1))
        variance = (walks @ weights).clamp_min(0.0)
        self.expected = expected_relu(mean, (variance + torch.finfo(variance.dtype).tiny).sqrt())
        self.graph = graph
        self.samples = 0
        self.totals: list[Tensor] = []

    def statistics(
        self, first: Float[Tensor, "nodes samples width"], out: Float[Tensor, "nodes samples channels"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Summarise a chunk.

        Args:
            first: First layer's outputs.
            out: Phi's outputs.

        Returns:
            Sum of the first layer over the samples, and for each graph its Gram matrix and its products with the
            output, both without gradients: the slope is a constant.
        """
        with torch.no_grad():
            centred = first - self.expected[:, None]
            gram, cross = self._by_graph(centred, centred), self._by_graph(centred, out)
        return first.sum(1), gram, cross

    def add(self, statistics: tuple[Tensor, Tensor, Tensor], samples: int) -> None:
        """Take note of a chunk.

        Args:
            statistics: What ``statistics`` returned.
            samples: Samples in the chunk.
        """
        self.samples += samples
        self.totals = [a + b for a, b in zip(self.totals, statistics, strict=True)] if self.totals else list(statistics)

    def correct(self, pooled: Float[Tensor, "nodes channels"], moments: Moments) -> Float[Tensor, "nodes channels"]:
        """Subtract the explained error of the mean.

        Args:
            pooled: Mean of the outputs.
            moments: Their moments.

        Returns:
            The corrected mean.
        """
        first_total, gram, cross = self.totals
        error = first_total / self.samples - self.expected
        with torch.no_grad():
            # Deviations from each node's own sample mean, summed over the nodes of each graph.
            nodes, samples = error[:, None], self.samples
            gram = gram - samples * self._by_graph(nodes, nodes)
            cross = cross - samples * self._by_graph(nodes, moments.mean[:, None])
            scale = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(gram.dtype).tiny)
            ridge = _RIDGE * scale[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
            slope = torch.linalg.solve(gram + ridge, cross)
        if self.graph.num_graphs == 1:
            return pooled - error @ slope[0]
        return pooled - torch.einsum("nh,nhd->nd", error, slope[self.graph.batch])

    def _by_graph(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum over nodes and samples of outer products, for each graph."""
        if self.graph.num_graphs == 1:
            return (left.flatten(0, 1).T @ right.flatten(0, 1))[None]
        per_node = torch.einsum("nmh,nmd->nhd", left, right)
        shape = (self.graph.num_graphs, *per_node.shape[1:])
        return per_node.new_zeros(shape).index_add_(0, self.graph.batch, per_node)
