"""Statistical pooling over the sample axis (the paper's rho), accumulated chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from octavo_core.errors import InvalidValueError
from torch import Tensor

__all__ = ["POOLINGS", "Moments", "chunk_moments", "merge_moments", "pool_moments"]

POOLINGS = ("mean", "sum", "var", "max", "mean+var", "mean+std")
"""Pooling rules. With ``"sum"`` and random inputs the encoding grows with M, so M must not change after training."""

# Keeps the gradient of the standard deviation finite where all samples agree.
_STD_EPS = 1e-6


@dataclass(frozen=True)
class Moments:
    """What is known about the samples of each node so far.

    Args:
        count: Number of samples, ``[N, 1]``.
        total: Sum of the samples, ``[N, d]``.
        squares: Sum of squared deviations from the mean, ``[N, d]``, if asked for.
        largest: Maximum, ``[N, d]``, if asked for.
    """

    count: Float[Tensor, "nodes 1"]
    total: Float[Tensor, "nodes channels"]
    squares: Float[Tensor, "nodes channels"] | None = None
    largest: Float[Tensor, "nodes channels"] | None = None

    @property
    def mean(self) -> Float[Tensor, "nodes channels"]:
        """Mean of the samples; 0 without samples."""
        return self.total / self.count.clamp_min(1.0)

    def spread_to(self, nodes: Int[Tensor, " kept"], num_nodes: int) -> Moments:
        """Place the rows at their nodes; the other nodes have no samples.

        Args:
            nodes: Node of each row.
            num_nodes: N.

        Returns:
            Moments of N rows.
        """

        def spread(values: Tensor | None, fill: float = 0.0) -> Tensor | None:
            if values is None:
                return None
            return values.new_full((num_nodes, values.shape[1]), fill).index_copy(0, nodes, values)

        count, total = spread(self.count), spread(self.total)
        if count is None or total is None:
            raise AssertionError("count and total are always there")
        return Moments(count, total, spread(self.squares), spread(self.largest, -torch.inf))


def chunk_moments(
    samples: Float[Tensor, "nodes samples channels"],
    mask: Bool[Tensor, "nodes samples"] | None,
    pooling: str,
) -> Moments:
    """Summarise a chunk of samples.

    Args:
        samples: Outputs of Phi.
        mask: Which of them count; all if None.
        pooling: One of ``POOLINGS``, which decides what is kept.

    Returns:
        Moments, in float32 or better.
    """
    samples = samples.float() if samples.dtype in {torch.float16, torch.bfloat16} else samples
    nodes, num_samples = samples.shape[:2]
    if mask is None:
        count = samples.new_full((nodes, 1), float(num_samples))
        total = samples.sum(1)
    else:
        weight = mask[..., None].to(samples.dtype)
        count = weight.sum(1)
        total = torch.where(mask[..., None], samples, 0.0).sum(1)
    squares = largest = None
    if "var" in pooling or "std" in pooling:
        deviation = samples - (total / count.clamp_min(1.0))[:, None]
        if mask is not None:
            deviation = torch.where(mask[..., None], deviation, 0.0)
        squares = (deviation**2).sum(1)
    if pooling == "max":
        visible = samples if mask is None else samples.masked_fill(~mask[..., None], -torch.inf)
        largest = visible.amax(1)
    return Moments(count, total, squares, largest)


def merge_moments(first: Moments | None, second: Moments, *, reuse: bool = False) -> Moments:
    """Combine the moments of two disjoint sets of samples, without the cancellation of E[x^2] - E[x]^2.

    Args:
        first: Moments, or None for an empty set.
        second: Moments of as many nodes.
        reuse: Write the total into the memory of ``first``, which must not be used afterwards; without gradients only.

    Returns:
        Moments of both.
    """
    if first is None:
        return second
    count = first.count + second.count
    squares = largest = None
    if first.squares is not None and second.squares is not None:
        share = first.count * second.count / count.clamp_min(1.0)
        squares = first.squares + second.squares + share * (second.mean - first.mean) ** 2
    if first.largest is not None and second.largest is not None:
        largest = torch.maximum(first.largest, second.largest)
    total = first.total.add_(second.total) if reuse else first.total + second.total
    return Moments(count, total, squares, largest)


def pool_moments(moments: Moments, pooling: str) -> Float[Tensor, "nodes pooled"]:
    """Turn moments into the pooled statistics.

    Args:
        moments: Moments with what the rule needs.
        pooling: One of ``POOLINGS``.

    Returns:
        ``[N, d]``, or ``[N, 2 d]`` for the rules with two statistics.

    Raises:
        InvalidValueError: If the rule is unknown.
    """
    count = moments.count.clamp_min(1.0)
    parts = []
    for name in pooling.split("+"):
        match name:
            case "mean":
                parts.append(moments.mean)
            case "sum":
                parts.append(moments.total)
            case "var" if moments.squares is not None:
                parts.append(moments.squares / count)
            case "std" if moments.squares is not None:
                parts.append((moments.squares / count + _STD_EPS).sqrt())
            case "max" if moments.largest is not None:
                parts.append(moments.largest)
            case _:
                raise InvalidValueError(f"unknown pooling {pooling!r}; give one of {', '.join(POOLINGS)}")
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
