"""Choosing bits and tables: predicted share of keys, memory, measured error and time of each pair."""

from __future__ import annotations

import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_magicpig.collision import expected_fraction
from octavo_magicpig.config import MAX_SEGMENT, LSHConfig
from octavo_magicpig.estimators import exact_attention
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.validation import check_query, check_tensor, check_tokens

__all__ = ["CANDIDATES", "Tuned", "centred_cosines", "check_budget", "check_sample", "table_bytes", "tune"]

CANDIDATES = ((8, 75), (8, 90), (9, 120), (10, 100), (10, 150), (10, 170), (10, 220), (11, 220), (11, 300), (12, 300))
"""Pairs of bits and tables that are tried by default: those of the paper and its repositories, and their neighbours."""


@dataclass(frozen=True)
class Tuned:
    """One pair and what it costs and gives.

    Args:
        key_bits: Bits of a table (K).
        num_tables: Tables (L).
        predicted_fraction: Share of keys predicted from the cosines of the sample.
        measured_fraction: Share of keys that was sampled.
        bytes_per_token: Table bytes of a token and kv head, in full segments.
        error: Mean relative error of the output on the sample.
        milliseconds: Time of one decode step on the sample, one layer.
        within_budget: Whether the predicted share and the memory are within what was asked for.
    """

    key_bits: int
    num_tables: int
    predicted_fraction: float
    measured_fraction: float
    bytes_per_token: float
    error: float
    milliseconds: float
    within_budget: bool


def check_budget(budget: float | Any, max_table_bytes: float | Any = None) -> None:
    """Check what :func:`tune` is given to keep within.

    Args:
        budget: Largest share of keys wanted.
        max_table_bytes: Most table bytes of a token and kv head, or ``None``.

    Raises:
        InvalidValueError: If one is out of range.
        InvalidTypeError: If one is no number.
    """
    given = {"budget": budget} | ({} if max_table_bytes is None else {"max_table_bytes": max_table_bytes})
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InvalidTypeError(f"{name}={value!r} is not a number; give one above 0")
    if not 0 < budget <= 1:
        raise InvalidValueError(f"budget={budget} is out of range; give a share of the keys above 0, at most 1")
    if max_table_bytes is not None and not max_table_bytes > 0:
        raise InvalidValueError(f"max_table_bytes={max_table_bytes} is out of range; give a number above 0, or None")


def check_sample(tokens: int, config: LSHConfig) -> None:
    """Check that a sample leaves keys to hash.

    Args:
        tokens: Tokens of the sample.
        config: Settings: exact tokens.

    Raises:
        InvalidValueError: If all of them stay exact.
    """
    exact = config.sink_tokens + config.window_tokens
    if tokens <= exact:
        raise InvalidValueError(
            f"the sample has {tokens} tokens and the first {config.sink_tokens} and last {config.window_tokens} stay "
            f"exact, so that none is left to hash; give a text of at least {exact + 1} tokens"
        )


def table_bytes(key_bits: int, num_tables: int, tokens: int = MAX_SEGMENT) -> float:
    """Bytes of the tables of one token and kv head: ``2 L`` for ids, 4 for the norm, and the offsets of its segment.

    Args:
        key_bits: Bits of a table (K).
        num_tables: Tables (L).
        tokens: Keys of a segment; the offsets are shared among them.

    Returns:
        Bytes beyond the key and the value.

    Source:
        Section 5 of the paper counts 4 bytes an id; 16-bit ids are beyond it.
    """
    return 2 * num_tables + 4 + 2 * num_tables * (2**key_bits + 1) / tokens


def centred_cosines(
    queries: Float[Tensor, "batch heads observed dim"],
    keys: Float[Tensor, "batch kv_heads tokens dim"],
    config: LSHConfig,
) -> Float[Tensor, "batch heads observed middle"]:
    """Cosines between queries and the (centred) keys that would be hashed.

    Args:
        queries: Some queries.
        keys: All keys.
        config: Settings: exact tokens and centring.

    Returns:
        Cosines; 0 for a zero vector.
    """
    end = max(config.sink_tokens, keys.shape[2] - config.window_tokens)
    middle = keys[:, :, config.sink_tokens : end].float()
    if config.center:
        middle = middle - middle.mean(2, keepdim=True)
    unit = torch.nn.functional.normalize(middle, dim=-1).repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    return torch.nn.functional.normalize(queries.float(), dim=-1) @ unit.transpose(2, 3)


def tune(
    queries: Float[Tensor, "batch heads observed dim"] | Any,
    keys: Float[Tensor, "batch kv_heads tokens dim"] | Any,
    values: Float[Tensor, "batch kv_heads tokens dim"] | Any,
    *,
    budget: float | Any = 0.02,
    max_table_bytes: float | Any = None,
    config: LSHConfig | None = None,
    candidates: Sequence[tuple[int, int]] | Any = CANDIDATES,
) -> list[Tuned]:
    """Try pairs of bits and tables on a sample of a model's queries, keys and values.

    Args:
        queries: Some queries that come after all keys, such as those of the last prompt tokens.
        keys: Keys of one layer.
        values: Values of that layer.
        budget: Largest share of keys wanted, in (0, 1].
        max_table_bytes: Most table bytes of a token and kv head, or ``None``.
        config: The other settings.
        candidates: Pairs to try.

    Returns:
        The pairs, those within the budget first, by rising error.

    Raises:
        InvalidValueError: If the budget is out of range, there are no candidates, shapes do not fit, a number is not
            finite, or the sample leaves no key to hash.
        InvalidTypeError: If an argument is not of the right type.

    Source:
        Beyond the paper, which sweeps by hand (appendix): the share follows from the cosines and equation 1.
    """
    check_budget(budget, max_table_bytes)
    _check_candidates(candidates)
    base = config or LSHConfig()
    _check_layer(queries, keys, values)
    check_sample(keys.shape[2], base)
    cosines = centred_cosines(queries, keys, base)
    steps = [queries[:, :, number : number + 1] for number in range(queries.shape[2])]
    exact = [exact_attention(step, keys, values).out[:, :, 0] for step in steps]
    results = []
    for key_bits, num_tables in candidates:
        settings = replace(base, key_bits=key_bits, num_tables=num_tables)
        predicted = expected_fraction(cosines, key_bits, num_tables, settings.min_hits)
        index = LSHIndex(settings, keys.shape[1], keys.shape[3], keys.shape[0], keys.dtype, keys.device)
        index.build(keys, values)
        errors, fractions = [], []
        began = time.perf_counter()
        outputs = [index.attend_unchecked(step[:, :, 0]) for step in steps]
        seconds = (time.perf_counter() - began) / len(steps)
        for (out, _, stats), truth in zip(outputs, exact, strict=True):
            errors.append(((out.float() - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-30)).mean())
            fractions.append(stats.fraction.mean())
        memory = table_bytes(key_bits, num_tables)
        fits = predicted <= budget and (max_table_bytes is None or memory <= max_table_bytes)
        results.append(
            Tuned(
                key_bits,
                num_tables,
                predicted,
                float(torch.stack(fractions).mean()),
                memory,
                float(torch.stack(errors).mean()),
                seconds * 1e3,
                fits,
            )
        )
    return sorted(results, key=lambda result: (not result.within_budget, result.error))


def _check_candidates(candidates: Any) -> None:
    if not isinstance(candidates, Sequence):
        raise InvalidTypeError(f"candidates={candidates!r} is no sequence; give pairs of bits and tables")
    if not candidates:
        raise InvalidValueError("no candidates to try; give pairs of bits and tables")
    for pair in candidates:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidTypeError(f"candidates holds {pair!r}; give pairs of bits and tables, such as (10, 150)")


def _check_layer(queries: Any, keys: Any, values: Any) -> None:
    for name, tensor, form in (("queries", queries, "heads, observed"), ("keys", keys, "kv_heads, tokens")):
        if check_tensor(name, tensor).ndim != 4 or 0 in tensor.shape:
            raise InvalidValueError(
                f"{name} of shape {tuple(tensor.shape)} do not fit; give (batch, {form}, dim), each at least one"
            )
    batch, kv_heads, _, dim = keys.shape
    check_tokens(keys, values, batch, kv_heads, dim, torch.float32)
    for number in range(queries.shape[2]):
        check_query(queries[:, :, number], batch, kv_heads, dim)
