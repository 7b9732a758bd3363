"""Random input signals q^(1), ..., q^(M): distributions, variance-reducing designs, and draws that can be repeated.

In evaluation a node's signals depend on the seed and on the node's number within its graph alone, so a graph is encoded
alike in any batch, process and device. In training every forward pass draws anew.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_pearl_pe.graph import GraphStructure

__all__ = ["NOISES", "Noise", "check_independent", "check_noise", "draw_signals", "mix_seed", "training_generator"]

Noise = str | Callable[[tuple[int, int], torch.Generator], Tensor]
"""A name in ``NOISES``, or a function of a shape and a generator on the CPU or the graph's device."""

NOISES = ("normal", "normal1", "rademacher", "uniform", "sphere", "orthogonal")
"""Distributions: N(0, 1); N(1, 1), as released for REDDIT; +-1; uniform with variance 1; uniform on the sphere of
radius sqrt(n) of each graph; Gaussian columns made orthogonal within each graph."""

_ROWS = 256
# About 17 GiB of float32: beyond it only memory is exhausted.
_MOST_VALUES = 2**32


def check_noise(noise: Noise, num_samples: int, antithetic: bool) -> None:
    """Refuse a noise that does not exist, and an odd number of antithetic samples.

    Args:
        noise: What the caller passed.
        num_samples: M.
        antithetic: Whether samples come in pairs mu + z, mu - z.

    Raises:
        InvalidValueError: If they do not fit.
    """
    if isinstance(noise, str) and noise not in NOISES:
        raise InvalidValueError(f"unknown noise {noise!r}; give one of {', '.join(NOISES)}, or a function")
    if antithetic and not isinstance(noise, str):
        raise InvalidValueError("antithetic=True mirrors a noise around its mean, which is not known for a function")
    if antithetic and num_samples % 2:
        raise InvalidValueError(f"antithetic samples come in pairs; {num_samples} is odd, give an even number")


def check_independent(noise: Noise) -> None:
    """Refuse a noise whose samples depend on one another, where their spread is read as the error of their mean.

    Args:
        noise: Distribution of the inputs.

    Raises:
        InvalidValueError: If the samples are not independent.
    """
    if noise == "orthogonal":
        raise InvalidValueError(
            "the samples of noise='orthogonal' depend on one another, so their spread does not tell the error of their "
            "mean; use noise='normal' (antithetic=True is fine), or compare encodings of several generators"
        )


def mix_seed(seed: int, counter: int) -> int:
    """Derive an unrelated seed (SplitMix64), so that streams of near-by seeds do not coincide.

    Args:
        seed: Seed of the family of streams.
        counter: Number of the stream, from 0.

    Returns:
        A seed of 63 bits.
    """
    mask = (1 << 64) - 1
    state = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return (state ^ (state >> 31)) >> 1


def training_generator(seed: int, draws: int, device: torch.device) -> torch.Generator:
    """Make the generator of one training pass: repeatable, and of its own in each process of a distributed training.

    Args:
        seed: Seed of the encoder.
        draws: Number of passes before this one.
        device: Device of the draws.

    Returns:
        The generator.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else 0
    stream = mix_seed(seed, draws)
    return torch.Generator(device).manual_seed(mix_seed(stream, rank) if rank else stream)


def draw_signals(
    noise: Noise,
    graph: GraphStructure,
    num_samples: int,
    *,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "nodes samples"]:
    """Draw M signals for each node.

    Args:
        noise: Distribution.
        graph: The graph or batch.
        num_samples: M.
        antithetic: Pair each sample with its mirror image; pairs are neighbours.
        generator: Draw from it; by default the draw is repeatable and depends on ``seed``.
        seed: Seed of the repeatable draw.
        dtype: Type of the signals.

    Returns:
        One column per sample, on the graph's device.

    Raises:
        InvalidValueError: If the noise is unknown, does not fit, or a function returns something else.
    """
    check_noise(noise, num_samples, antithetic)
    if graph.num_nodes * num_samples > _MOST_VALUES:
        gigabytes = graph.num_nodes * num_samples * dtype.itemsize / 2**30
        raise InvalidValueError(
            f"{num_samples:,} samples of {graph.num_nodes:,} nodes are {gigabytes:,.0f} GiB of inputs; give fewer"
        )
    columns = num_samples // 2 if antithetic else num_samples
    device = graph.batch.device
    if generator is not None:
        base = _draw(noise, graph.num_nodes, columns, generator).to(device)
    else:
        longest = int(graph.sizes.max())
        blocks = [
            _draw(noise, min(_ROWS, longest - start), columns, torch.Generator().manual_seed(mix_seed(seed, start)))
            for start in range(0, longest, _ROWS)
        ]
        table = torch.cat(blocks).to(device)
        base = table if graph.num_graphs == 1 else table[graph.position]
    base = base.to(dtype)
    if noise == "sphere":
        squares = base.new_zeros(graph.num_graphs, columns).index_add_(0, graph.batch, base**2)
        base = base * (graph.sizes[:, None] / squares).sqrt()[graph.batch]
    elif noise == "orthogonal":
        base = _orthogonal(base, graph)
    if antithetic:
        base = torch.stack([base, -base], dim=-1).flatten(1)
    return base + 1.0 if noise == "normal1" else base


def _draw(noise: Noise, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    if not isinstance(noise, str):
        drawn = noise((rows, columns), generator)
        if tuple(drawn.shape) != (rows, columns) or not bool(drawn.isfinite().all()):
            raise InvalidValueError(
                f"the noise function returned shape {tuple(drawn.shape)}, or values that are not finite; it must "
                f"return finite numbers of shape {(rows, columns)}"
            )
        return drawn
    device = generator.device
    if noise == "rademacher":
        return torch.randint(2, (rows, columns), generator=generator, device=device) * 2.0 - 1.0
    if noise == "uniform":
        return (torch.rand(rows, columns, generator=generator, device=device) * 2.0 - 1.0) * 3**0.5
    # Full blocks only, so that the first rows of a draw do not depend on how many follow.
    full = rows if generator.device.type != "cpu" else max(rows, _ROWS)
    return torch.randn(full, columns, generator=generator, device=device)[:rows]


def _orthogonal(base: Tensor, graph: GraphStructure) -> Tensor:
    """Haar-random orthogonal columns with the lengths of Gaussian ones, so that each column alone is Gaussian.

    Beyond the paper: orthogonal probes lower the variance of quadratic statistics. Graphs of one size share a QR.
    """
    result = torch.empty_like(base)
    for size in graph.sizes.unique().tolist():
        if size == 0:
            continue
        nodes = (graph.sizes[graph.batch] == size).nonzero()[:, 0]
        group = base[nodes].view(-1, size, base.shape[1])
        blocks = []
        for block in group.split(size, dim=2):
            factor, triangle = torch.linalg.qr(block)
            signs = triangle.diagonal(dim1=1, dim2=2).sign()
            blocks.append(factor * (signs * block.norm(dim=1))[:, None])
        result[nodes] = torch.cat(blocks, dim=2).flatten(0, 1)
    return result
