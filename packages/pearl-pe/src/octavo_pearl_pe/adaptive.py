"""How many samples are enough: a pilot estimate, and a stopping rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from scipy.stats import norm
from torch import Tensor
from torch_geometric.data import Data

from octavo_pearl_pe.chunks import run_chunks
from octavo_pearl_pe.noise import check_independent, draw_signals, mix_seed
from octavo_pearl_pe.pooling import Moments, merge_moments
from octavo_pearl_pe.signals import InputSignals
from octavo_pearl_pe.theory import sample_bound

if TYPE_CHECKING:
    from octavo_pearl_pe.encoder import PEARL

__all__ = ["AdaptiveEncoding", "SampleSuggestion", "encode_to_tolerance", "suggest_num_samples"]


@dataclass(frozen=True)
class SampleSuggestion:
    """Numbers of samples for an error of at most ``tol`` with probability ``1 - delta``, node by node.

    Args:
        typical: For the median node and channel, by the central limit theorem.
        worst: For the noisiest one.
        guaranteed: By the sub-Gaussian bound, whatever the graph; None unless the encoder has ``constrain="beta"``.
    """

    typical: int
    worst: int
    guaranteed: int | None


@dataclass(frozen=True)
class AdaptiveEncoding:
    """An encoding made with as many samples as it took.

    Args:
        pe: The encoding.
        standard_error: Its Monte-Carlo standard error.
        num_samples: M in the end.
        reached: Whether the tolerance was reached before the limit.
    """

    pe: Float[Tensor, "nodes channels"]
    standard_error: Float[Tensor, "nodes channels"]
    num_samples: int
    reached: bool


def suggest_num_samples(encoder: PEARL, data: Data, tol: float, delta: float = 0.05) -> SampleSuggestion:
    """Suggest M for a graph from the spread of a pilot pass with the encoder's present M.

    Args:
        encoder: The encoder, mean-pooled.
        data: The graph.
        tol: Largest error wanted, in the encoding's units.
        delta: Probability of a larger one, for each node and channel.

    Returns:
        The suggestion; whole antithetic pairs are counted as two samples.

    Raises:
        InvalidValueError: If ``tol`` or ``delta`` is out of range, or the encoder has no standard error, as with
            dependent samples (``noise="orthogonal"``).
    """
    _check(tol, delta)
    error = encoder.standard_error(data)
    quantile = float(norm.ppf(1.0 - delta / 2.0))
    needed = encoder.num_samples * (quantile * error / tol) ** 2
    bound = None
    if encoder.config.constrain == "beta" and encoder.config.noise == "normal":
        bound = sample_bound(tol, delta)
    return SampleSuggestion(max(1, math.ceil(float(needed.median()))), max(1, math.ceil(float(needed.max()))), bound)


@torch.no_grad()
def encode_to_tolerance(
    encoder: PEARL,
    data: Data,
    tol: float,
    delta: float = 0.05,
    *,
    start: int = 32,
    limit: int = 2**14,
    seed: int = 0,
) -> AdaptiveEncoding:
    """Double the number of samples until every node's error is at most ``tol`` with probability ``1 - delta``.

    Args:
        encoder: The encoder, random and mean-pooled.
        data: The graph.
        tol: Largest error wanted.
        delta: Probability of a larger one, for each node and channel.
        start: First number of samples, at least 8.
        limit: Most samples.
        seed: Seed of the draws.

    Returns:
        The encoding and what it took.

    Raises:
        InvalidValueError: If an argument is out of range, or the encoder is not random and mean-pooled on independent
            samples.
    """
    _check(tol, delta)
    config = encoder.config
    if config.variant != "random" or config.pooling != "mean" or config.control_variate:
        raise InvalidValueError("the stopping rule needs variant='random', pooling='mean' and no control variates")
    check_independent(config.noise)
    if start < 8 or limit < start:
        raise InvalidValueError(f"start={start}, limit={limit}: need 8 <= start <= limit")
    graph = encoder.read(data)
    quantile = float(norm.ppf(1.0 - delta / 2.0))
    start += start % 2 if config.antithetic else 0
    moments: Moments | None = None
    drawn, step = 0, start
    while True:
        generator = torch.Generator(graph.batch.device).manual_seed(mix_seed(seed, drawn))
        q = draw_signals(
            config.noise, graph, step, antithetic=config.antithetic, generator=generator, dtype=graph.weights.dtype
        )
        signals = InputSignals.random_only(q, graph)
        part = run_chunks(encoder, graph, signals, pooling="mean+var", pairs=config.antithetic)
        moments = merge_moments(moments, part)
        drawn += step
        if moments.squares is None:
            raise AssertionError("the variance was asked for")
        error = (moments.squares / (moments.count - 1.0) / moments.count).sqrt()
        reached = quantile * float(error.max()) <= tol
        if reached or drawn >= limit:
            return AdaptiveEncoding(graph.restored(moments.mean), graph.restored(error), drawn, reached)
        step = min(drawn, limit - drawn)
        step += step % 2 if config.antithetic else 0


def _check(tol: float, delta: float) -> None:
    if not 0 < tol < math.inf or not 0 < delta < 1:
        raise InvalidValueError(f"tol={tol}, delta={delta}: need tol > 0 and 0 < delta < 1")
