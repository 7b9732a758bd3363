"""Ways to estimate one step of attention, in one signature: exact, oracle, sampled, and the sampled one by hashing.

These are for study: they compute every score and then pretend to have looked at few. Their costs say what a real
implementation would read. The fast form of :func:`lsh_attention` is :class:`octavo_magicpig.LSHIndex`. Deterministic
selections are in :mod:`octavo_magicpig.baselines`.

All take ``query`` (batch, heads, 1, dim), ``keys`` and ``values`` (batch, kv_heads, tokens, dim); the first
``sink_tokens`` and the last ``window_tokens`` are exact, ``budget`` (an int for keys, a float for a share) counts among
the others, the middle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_magicpig.collision import collision_probability
from octavo_magicpig.config import LSHConfig
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.segments import rounding_level
from octavo_magicpig.validation import (
    check_count,
    check_decode_inputs,
    check_finite,
    check_number,
    check_scale,
    check_tensor,
)

__all__ = [
    "Estimate",
    "Problem",
    "exact_attention",
    "hybrid_attention",
    "lsh_attention",
    "oracle_sampling_attention",
    "uniform_sampling_attention",
]


@dataclass(frozen=True)
class Estimate:
    """An estimated attention output.

    Args:
        out: Output, (batch, heads, 1, dim), float32.
        lse: Log-sum-exp (estimated where sampling estimates it), (batch, heads).
        num_keys: Distinct middle keys read by each head, (batch, heads).
        cost_search: Bytes read to find the keys, as a share of reading all keys and values.
        cost_attend: Bytes of the keys and values read, exact ones included, as the same share.
    """

    out: Float[Tensor, "batch heads 1 dim"]
    lse: Float[Tensor, "batch heads"]
    num_keys: Float[Tensor, "batch heads"]
    cost_search: float
    cost_attend: float


class Problem:
    """Scores and shapes that every estimator starts from.

    Args:
        query: (batch, heads, 1, dim).
        keys: (batch, kv_heads, tokens, dim).
        values: The same shape.
        scale: Factor of the scores; ``1 / sqrt(dim)`` by default.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Raises:
        InvalidValueError: If a number of exact tokens is negative, the shapes do not fit, or the query, a key, a value
            or the scale is not finite.
        InvalidTypeError: If a dtype is not supported, a number of tokens is no integer, or the scale no number.
    """

    def __init__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float | Any,
        sink_tokens: int | Any,
        window_tokens: int | Any,
    ) -> None:
        if check_tensor("query", query).ndim != 4 or query.shape[2] != 1:
            raise InvalidValueError(
                f"query of shape {tuple(query.shape)} is not one token; give (batch, heads, 1, dim)"
            )
        sink_tokens = check_count("sink_tokens", sink_tokens, 0)
        window_tokens = check_count("window_tokens", window_tokens, 0)
        check_decode_inputs(query[:, :, 0], keys, values)
        check_finite("query", query.float(), "holds")
        check_finite("keys", keys)
        check_finite("values", values)
        self.batch, self.heads, _, self.dim = query.shape
        self.kv_heads = keys.shape[1]
        self.group = self.heads // self.kv_heads
        self.tokens = keys.shape[2]
        self.query = query[:, :, 0].float()
        self.keys, self.values = keys, values
        self.scale = check_scale(scale, self.dim)
        self.begin = min(sink_tokens, self.tokens)
        self.end = max(self.begin, self.tokens - window_tokens)
        grouped = self.query.view(self.batch, self.kv_heads, self.group, self.dim)
        with torch.autocast(keys.device.type, enabled=False):
            scores = grouped @ keys.float().transpose(2, 3) * self.scale
        self.scores = scores.view(self.batch, self.heads, self.tokens)

    @property
    def middle(self) -> int:
        """Keys that are not exact."""
        return self.end - self.begin

    def count(self, budget: float | Any) -> int:
        """Turn a budget into a number of middle keys.

        Args:
            budget: An int for keys, a float in [0, 1] for a share of the middle.

        Returns:
            Keys, at most the middle.

        Raises:
            InvalidValueError: If it is negative or a share above 1.
            InvalidTypeError: If it is no number.
        """
        accepted = "a number of keys, or a share from 0.0 to 1.0"
        budget = check_number("budget", budget, accepted)
        if not budget >= 0 or (isinstance(budget, float) and budget > 1):
            raise InvalidValueError(f"budget={budget} is out of range; give {accepted}")
        return min(self.middle, round(budget * self.middle) if isinstance(budget, float) else budget)

    def exact_mask(self) -> Bool[Tensor, "batch heads tokens"]:
        """Which keys are exact: sink and window."""
        position = torch.arange(self.tokens, device=self.keys.device)
        return ((position < self.begin) | (position >= self.end)).expand(self.batch, self.heads, self.tokens)

    def finish(self, chosen: Tensor, *, log_weight: Tensor | float = 0.0, search_rows: float | int = 0) -> Estimate:
        """Attend over the exact keys and the chosen ones.

        Args:
            chosen: Middle keys to use, bool (batch, heads, tokens).
            log_weight: Added to the scores of the chosen keys.
            search_rows: Keys' worth of bytes that each head reads to find them.

        Returns:
            The estimate.
        """
        exact = self.exact_mask()
        chosen = chosen & ~exact
        scores = torch.where(exact, self.scores, self.scores + log_weight).masked_fill(~(exact | chosen), -torch.inf)
        lse = scores.logsumexp(-1)
        weight = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
        out = self._weighted_sum(weight)
        used = chosen.sum(-1).float()
        rows = (float(used.mean()) if used.numel() else 0.0) + (self.tokens - self.middle)
        return Estimate(out[:, :, None], lse, used, search_rows / (2 * max(self.tokens, 1)), rows / max(self.tokens, 1))

    def _weighted_sum(self, weight: Tensor) -> Tensor:
        grouped = weight.view(self.batch, self.kv_heads, self.group, self.tokens)
        with torch.autocast(weight.device.type, enabled=False):
            return (grouped @ self.values.float()).view(self.batch, self.heads, self.dim)


def exact_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    scale: float | Any = None,
) -> Estimate:
    """Attend over all keys.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        scale: Factor of the scores.

    Returns:
        The exact output.
    """
    problem = Problem(query, keys, values, scale, 0, 0)
    return problem.finish(torch.ones_like(problem.scores, dtype=torch.bool))


def oracle_sampling_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    num_samples: int | Any,
    generator: torch.Generator,
    scale: float | Any = None,
    sink_tokens: int | Any = 0,
    window_tokens: int | Any = 0,
) -> Estimate:
    """Draw middle keys independently from the attention distribution itself and average their values.

    Unbiased, with variance ``(sum_i w_i |v_i|^2 - |o|^2) / B``; it needs all scores, so it is a yardstick.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        num_samples: Draws B, 1 or more.
        generator: Source of randomness.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate; ``num_keys`` counts distinct keys.

    Raises:
        InvalidValueError: If ``num_samples`` is below 1.

    Source:
        Section 3.2, oracle sampling.
    """
    num_samples = check_count("num_samples", num_samples)
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    if problem.middle == 0 or problem.scores.numel() == 0:
        return problem.finish(torch.zeros_like(problem.scores, dtype=torch.bool))
    middle = problem.scores[..., problem.begin : problem.end]
    weights = middle.softmax(-1).flatten(0, 1)
    drawn = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
    counts = torch.zeros_like(weights).scatter_add_(1, drawn, torch.ones_like(drawn, dtype=weights.dtype))
    # The mass of the middle is known exactly; a drawn key carries its share of the draws.
    mass = middle.logsumexp(-1)[..., None] + (counts / num_samples).log().view_as(middle)
    log_weight = torch.full_like(problem.scores, -torch.inf)
    log_weight[..., problem.begin : problem.end] = mass - middle
    return problem.finish(log_weight > -torch.inf, log_weight=log_weight, search_rows=problem.tokens)


def uniform_sampling_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    budget: float | Any,
    generator: torch.Generator,
    scale: float | Any = None,
    sink_tokens: int | Any = 4,
    window_tokens: int | Any = 64,
) -> Estimate:
    """Draw middle keys uniformly without replacement, each standing for as many as were left out.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        budget: Keys of each head, or their share of the middle.
        generator: Source of randomness.
        scale: Factor of the scores.
        sink_tokens: Exact tokens at the beginning.
        window_tokens: Exact tokens at the end.

    Returns:
        The estimate.

    Source:
        The baseline that importance sampling must beat at the same number of keys.
    """
    problem = Problem(query, keys, values, scale, sink_tokens, window_tokens)
    count = problem.count(budget)
    chosen = torch.zeros_like(problem.scores, dtype=torch.bool)
    if count == 0:
        return problem.finish(chosen)
    noise = torch.rand(
        problem.batch, problem.heads, problem.middle, generator=generator, dtype=torch.float32, device=generator.device
    )
    drawn = noise.to(keys.device).topk(count).indices + problem.begin
    chosen.scatter_(2, drawn, True)
    return problem.finish(chosen, log_weight=math.log(problem.middle / count))


def lsh_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    config: LSHConfig | None = None,
    weighted: bool = True,
    scale: float | Any = None,
    layer: int | Any = 0,
) -> Estimate:
    """Sample middle keys by hashing and weight each by the inverse of its selection probability.

    The selection is that of :class:`octavo_magicpig.LSHIndex`; the weights and the sum are computed here on their own.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        config: Settings: bits, tables, hits, centring, exact tokens, guard of the weights, seed.
        weighted: Whether to divide by the probabilities; without it the estimator is the ablation of the paper.
        scale: Factor of the scores.
        layer: Index of the layer, which has planes of its own.

    Returns:
        The estimate.

    Source:
        Section 4, equation 7.
    """
    config = replace(config or LSHConfig(), tolerance=None, heavy_tokens=0)
    problem = Problem(query, keys, values, scale, config.sink_tokens, config.window_tokens)
    chosen, log_u, search = _sampled(problem, config, layer)
    return problem.finish(chosen, log_weight=-log_u if weighted else 0.0, search_rows=search)


def hybrid_attention(
    query: Float[Tensor, "batch heads 1 dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    values: Float[Tensor, "batch kv_heads tokens dim"],
    *,
    budget: float | Any,
    config: LSHConfig | None = None,
    scale: float | Any = None,
    layer: int | Any = 0,
) -> Estimate:
    """Use the middle keys with the highest scores exactly, and sample the others by hashing.

    Args:
        query: One query token.
        keys: Keys.
        values: Values.
        budget: Keys of each head that are exact, or their share of the middle.
        config: Settings of the sampled part.
        scale: Factor of the scores.
        layer: Index of the layer.

    Returns:
        The estimate; ``num_keys`` counts exact and sampled middle keys.

    Source:
        Beyond the paper, after vAttention (arXiv 2510.05688): TopK misses the tail and sampling the top, so each gets
        its part. The top is found by all scores here; the index has ``heavy_tokens`` and ``tolerance`` instead.
    """
    config = replace(config or LSHConfig(), tolerance=None, heavy_tokens=0)
    problem = Problem(query, keys, values, scale, config.sink_tokens, config.window_tokens)
    chosen, log_u, search = _sampled(problem, config, layer)
    top = torch.zeros_like(chosen)
    if (count := problem.count(budget)) > 0:
        best = problem.scores[..., problem.begin : problem.end].topk(count).indices + problem.begin
        top.scatter_(2, best, True)
    return problem.finish(chosen | top, log_weight=torch.where(top, 0.0, -log_u), search_rows=search + problem.tokens)


def _sampled(problem: Problem, config: LSHConfig, layer: int) -> tuple[Tensor, Tensor, float]:
    """Keys that hashing selects, the log of their selection probabilities, and what finding them reads."""
    batch, kv_heads, _, dim = problem.keys.shape
    if problem.scores.numel() == 0:
        return torch.zeros_like(problem.scores, dtype=torch.bool), torch.zeros_like(problem.scores), 0.0
    index = LSHIndex(config, kv_heads, dim, batch, problem.keys.dtype, problem.keys.device, layer=layer)
    index.build(problem.keys, problem.values)
    chosen = torch.zeros_like(problem.scores, dtype=torch.bool)
    for b, heads in enumerate(index.select(problem.query)):
        for h, positions in enumerate(heads):
            chosen[b, h, positions] = True
    middle = problem.keys[:, :, problem.begin : problem.end].float()
    mean = (
        middle.mean(2, keepdim=True) if config.center and problem.middle else middle.new_zeros(batch, kv_heads, 1, dim)
    )
    centred = (problem.keys.float() - mean).repeat_interleave(problem.group, dim=1)
    norm = _hashed_norm(centred, problem, config)
    known = norm > rounding_level(mean).repeat_interleave(problem.group, dim=1)
    # Directions, so that the products of tiny numbers do not underflow.
    direction = torch.nn.functional.normalize(problem.query, dim=-1, eps=1e-30)
    dots = (centred / norm.clamp_min(1e-30)[..., None] * direction[:, :, None]).sum(-1)
    cosine = torch.where(known & (norm > 1e-30), dots, 0.0)
    u = collision_probability(cosine, config.key_bits, config.num_tables, config.min_hits)
    log_u = torch.zeros_like(u) if config.min_hits == 0 else (u + config.weight_eps).clamp_min(1e-30).log()
    hits = config.num_tables * problem.middle / 2**config.key_bits
    row_bytes = dim * problem.keys.element_size()
    return chosen, log_u, 2 * hits / row_bytes


def _hashed_norm(centred: Tensor, problem: Problem, config: LSHConfig) -> Tensor:
    norm = centred.double().norm(dim=-1).float()
    if config.transform is None or not problem.middle:
        return norm
    return norm.clamp_min(0).maximum(norm[..., problem.begin : problem.end].amax(-1, keepdim=True))
