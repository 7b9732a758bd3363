"""The pass over all input signals, a chunk of samples at a time, with the same values and gradients for any chunk."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from octavo_pearl_pe.gnn import SampleContext
from octavo_pearl_pe.graph import GraphStructure
from octavo_pearl_pe.norms import FrozenStatistics
from octavo_pearl_pe.pooling import Moments, chunk_moments, merge_moments
from octavo_pearl_pe.signals import InputSignals
from octavo_pearl_pe.sparse import Buffers, keep_freed_memory

if TYPE_CHECKING:
    from octavo_pearl_pe.control import FirstLayerControl
    from octavo_pearl_pe.encoder import PEARL

__all__ = ["chunk_size", "run_chunks"]

# Numbers in a block of nodes x samples x channels: about a core's level-2 cache, or enough to fill a GPU.
_CPU_BLOCK = 2**19
_GPU_BLOCK = 2**26
# Below this share of nodes that still have samples, a smaller graph is cut out for the chunk.
_WORTH_CUTTING = 0.75


def chunk_size(encoder: PEARL, graph: GraphStructure, width: int) -> int:
    """Choose how many samples to process at a time.

    Args:
        encoder: The encoder.
        graph: The graphs.
        width: Number of samples in all.

    Returns:
        The chunk; all samples where batch statistics over them are needed.
    """
    config = encoder.config
    if config.chunk is None or (config.norm == "batch" and encoder.training):
        return width
    if isinstance(config.chunk, int):
        return min(config.chunk, width)
    block = _CPU_BLOCK if graph.batch.device.type == "cpu" else _GPU_BLOCK
    fitting = block // (graph.num_nodes * max(config.hidden, config.out_channels))
    if config.antithetic:
        fitting -= fitting % 2
    return min(width, max(2 if config.antithetic else 1, fitting))


def run_chunks(
    encoder: PEARL,
    graph: GraphStructure,
    signals: InputSignals,
    *,
    pooling: str | None = None,
    control: FirstLayerControl | None = None,
    pairs: bool = False,
    keep: bool = False,
) -> Any:
    """Run Phi on all signals.

    Args:
        encoder: The encoder.
        graph: The graphs.
        signals: Their inputs.
        pooling: What to accumulate; the encoder's own rule by default.
        control: Collects the first layer's statistics on the way.
        pairs: Average neighbouring samples first: antithetic ones are not independent.
        keep: Return all outputs instead of moments.

    Returns:
        Moments, or the outputs ``[N, M, d]`` and their mask.
    """
    rule = pooling or (encoder.config.pooling if isinstance(encoder.config.pooling, str) else "mean")
    if graph.batch.device.type == "cpu" and not torch.is_grad_enabled():
        keep_freed_memory()
    # Outputs that are kept must not be overwritten by the next chunk.
    buffers = None if keep else Buffers()
    # Layers of filters never read the adjacency, so it is not built for them.
    adjacency = graph.shift if encoder.config.gnn == "filter" else graph.adjacency
    whole = SampleContext(graph.shift, adjacency, graph.batch, graph.num_graphs, None, buffers)
    recompute = encoder.config.checkpoint and torch.is_grad_enabled()
    moments: Moments | None = None
    outputs: list[Tensor] = []
    masks: list[Tensor | None] = []
    size = chunk_size(encoder, graph, signals.width)
    size += size % 2 if pairs else 0
    for start in range(0, signals.width, size):
        q, mask = signals.columns(start, min(start + size, signals.width))
        context, nodes = _with_mask(whole, mask)
        if nodes is not None:
            q = q[nodes]

        def block(q: Tensor, context: SampleContext = context) -> tuple[Any, ...]:
            first, out = encoder.phi(q, context)
            if keep:
                return (out,)
            if pairs:
                out = out.unflatten(1, (-1, 2)).mean(2)
            mask = context.mask[:, ::2] if pairs and context.mask is not None else context.mask
            part = chunk_moments(out, mask, rule)
            collected = () if control is None else control.statistics(first, out)
            return part.count, part.total, part.squares, part.largest, *collected

        result = _recomputed(encoder, block, q) if recompute else block(q)
        if keep:
            outputs.append(_placed(result[0], nodes, graph.num_nodes))
            masks.append(mask)
            continue
        if control is not None:
            control.add(result[4:], q.shape[1])
        part = Moments(*result[:4])
        part = part if nodes is None else part.spread_to(nodes, graph.num_nodes)
        moments = merge_moments(moments, part, reuse=not torch.is_grad_enabled())
    if keep:
        padded = any(mask is not None for mask in masks)
        filled = [
            out.new_ones(out.shape[:2], dtype=torch.bool) if m is None else m
            for m, out in zip(masks, outputs, strict=True)
        ]
        return torch.cat(outputs, dim=1), torch.cat(filled, dim=1) if padded else None
    return moments


def _recomputed(encoder: PEARL, block: Any, q: Tensor) -> Any:
    """Run a chunk that is run again in the backward pass: with the same dropout, and counted once by batch norms."""
    return checkpoint(
        block,
        q,
        use_reentrant=False,
        # Our own layers draw nothing; a module of the user may.
        preserve_rng_state=isinstance(encoder.config.gnn, nn.Module),
        context_fn=lambda: (nullcontext(), FrozenStatistics(encoder)),
    )


def _with_mask(whole: SampleContext, mask: Tensor | None) -> tuple[SampleContext, Tensor | None]:
    """The context of a chunk: where most graphs have run out of samples, only the rest of the batch."""
    if mask is None:
        return whole, None
    alive = mask.any(1)
    if float(alive.float().mean()) > _WORTH_CUTTING:
        return replace(whole, mask=mask), None
    nodes = alive.nonzero()[:, 0]
    cut = SampleContext(
        whole.shift.restrict(nodes),
        whole.adjacency.restrict(nodes),
        whole.batch[nodes],
        whole.num_graphs,
        mask[nodes],
        whole.buffers,
    )
    return cut, nodes


def _placed(values: Tensor, nodes: Tensor | None, num_nodes: int) -> Tensor:
    if nodes is None:
        return values
    return values.new_zeros(num_nodes, *values.shape[1:]).index_copy(0, nodes, values)
