"""The problem on which selecting the top keys fails: an attention output that many ordinary keys decide together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from octavo_core.device import torch_generator
from torch import Tensor

__all__ = ["AggregationProblem", "aggregation_problem"]


@dataclass(frozen=True)
class AggregationProblem:
    """Keys of two classes; the attention output is the share that each class gets.

    Args:
        query: (1, 1, 1, dim).
        keys: (1, 1, tokens, dim).
        values: One-hot of the class in the first two coordinates, (1, 1, tokens, dim).
        share: Exact share of the small class A.
    """

    query: Float[Tensor, "1 1 1 dim"]
    keys: Float[Tensor, "1 1 tokens dim"]
    values: Float[Tensor, "1 1 tokens dim"]
    share: float


def aggregation_problem(tokens: int = 16_384, dim: int = 128, *, seed: int = 0) -> AggregationProblem:
    """Draw the problem: 10 % of keys of class A with logits N(1, 0.5^2), 90 % of class B with logits N(0, 0.5^2).

    Class A holds the highest scores, class B most of the mass: TopK answers almost 1, the truth is about 0.23. Keys are
    random directions orthogonal to the query plus the component along it that gives the wanted logit.

    Args:
        tokens: Keys.
        dim: Size of a key, 3 or more.
        seed: Seed of the draw.

    Returns:
        The problem.

    Source:
        The word-counting tasks of section 3.1 in their purest form.
    """
    generator = torch_generator(seed)
    query = torch.randn(dim, generator=generator, dtype=torch.float32)
    query *= math.sqrt(dim) / query.norm()
    in_a = torch.zeros(tokens, dtype=torch.bool)
    in_a[torch.randperm(tokens, generator=generator)[: tokens // 10]] = True
    logits = torch.randn(tokens, generator=generator, dtype=torch.float32) * 0.5 + in_a.float()
    noise = torch.randn(tokens, dim, generator=generator, dtype=torch.float32)
    unit = query / query.norm()
    with torch.autocast("cpu", enabled=False):
        across = noise - (noise @ unit)[:, None] * unit
    across *= math.sqrt(dim) / across.norm(dim=1, keepdim=True)
    keys = across + (logits * math.sqrt(dim) / query.norm())[:, None] * unit
    values = torch.zeros(tokens, dim, dtype=torch.float32)
    values[in_a, 0] = 1.0
    values[~in_a, 1] = 1.0
    weights = logits.double().softmax(0)
    return AggregationProblem(
        query.view(1, 1, 1, dim), keys[None, None], values[None, None], float(weights[in_a].sum())
    )
