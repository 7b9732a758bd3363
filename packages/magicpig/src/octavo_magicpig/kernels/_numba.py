"""The kernel for machines without a compiler: the same loops, compiled at first use by numba.

Hashing stays with torch, whose matrix product is as good as any; half precision is read through a table of its 65,536
values, because numba has no type for it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from octavo_magicpig.hashing import Planes
from octavo_magicpig.kernels import STATISTICS, DecodeState
from octavo_magicpig.kernels import reference as _reference

__all__ = ["attend", "build_tables", "dense", "expand_tables", "hash_rows", "select"]

# Sums may be reordered, but infinities and NaN keep their meaning.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def _jit(function: Callable[..., Any]) -> Any:
    """Compile a loop as it was written: hooks that check types at run time wrap functions, which numba cannot read."""
    return numba.njit(nogil=True, cache=True, fastmath=_FASTMATH)(inspect.unwrap(function))


def hash_rows(rows: Tensor, mean: Tensor | None, planes: Planes, planes_set: int = 0) -> tuple[Tensor, Tensor]:
    """Hash centred rows; see :func:`octavo_magicpig.kernels.reference.hash_rows`.

    Args:
        rows: Keys or queries, (n, head_dim).
        mean: What to subtract, or ``None``.
        planes: The hyperplanes.
        planes_set: Which set of them.

    Returns:
        Codes (tables, n) as 16-bit patterns, and norms (n,).
    """
    return _reference.hash_rows(rows, mean, planes, planes_set)


def build_tables(codes: Tensor, skip: Tensor | None, key_bits: int, ids: Tensor, offsets: Tensor) -> None:
    """Sort keys into buckets by counting.

    Args:
        codes: Codes (tables, n), 16-bit patterns.
        skip: Keys to leave out, bool (n,), or ``None``.
        key_bits: Bits of a table.
        ids: Output (tables, n).
        offsets: Output (tables, 2^key_bits + 1).
    """
    left_out = torch.zeros(codes.shape[1], dtype=torch.bool) if skip is None else skip
    _build(_unsigned(codes), left_out.numpy(), key_bits, _unsigned(ids), _unsigned(offsets))


def expand_tables(ids: Tensor, offsets: Tensor, key_bits: int) -> tuple[Tensor, Tensor]:
    """Recover the codes that tables were built from.

    Args:
        ids: Keys by bucket, (tables, n).
        offsets: Bucket starts.
        key_bits: Bits of a table.

    Returns:
        Codes (tables, n) and the flags of the keys left out.
    """
    codes = torch.zeros(ids.shape, dtype=torch.int16)
    skip = torch.ones(ids.shape[1], dtype=torch.bool)
    _expand(_unsigned(ids), _unsigned(offsets), key_bits, _unsigned(codes), skip.numpy())
    return codes, skip


def attend(
    state: DecodeState, query: Tensor, scale: float, *, with_error: bool = False, with_dense: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend over the exact and the selected keys; see :func:`octavo_magicpig.kernels.reference.attend`.

    Args:
        state: What the step reads.
        query: Queries, float32, (batch, heads, head_dim).
        scale: Factor of the scores.
        with_error: Whether to estimate the error.
        with_dense: Whether the exact keys take part.

    Returns:
        Output, log-sum-exp and statistics, float32.
    """
    batch, heads, dim = query.shape
    planes = state.planes
    codes = _codes(state, query)
    out = np.zeros((batch, heads, dim), np.float32)
    lse = np.zeros((batch, heads), np.float32)
    stats = np.zeros((batch, heads, len(STATISTICS)), np.float32)
    keys, values, table = _arrays(state.keys, state.values)
    q, norms, mean = query.numpy(), state.norms.numpy(), state.mean.numpy()
    binomial = np.array([math.comb(planes.num_tables, j) for j in range(state.min_hits + 1)], np.float64)
    group = heads // keys.shape[1]
    for b in range(batch):
        for h in range(heads):
            kv = h // group
            selected, visited = _collect_all(state, codes[b, h], b, kv)
            exact = _exact_positions(state, b, kv) if with_dense else np.empty(0, np.int64)
            _attend_head(
                q[b, h], keys[b, kv], values[b, kv], table, norms[b, kv], mean[b, kv], exact, selected, scale,
                state.weight_eps, planes.key_bits, planes.num_tables, state.min_hits, binomial, with_error,
                out[b, h], lse[b, h : h + 1], stats[b, h],
            )  # fmt: skip
            stats[b, h, 0], stats[b, h, 1] = len(selected), visited
    return torch.from_numpy(out), torch.from_numpy(lse), torch.from_numpy(stats)


def select(state: DecodeState, query: Tensor) -> list[list[Tensor]]:
    """Select keys.

    Args:
        state: What the step reads.
        query: Queries, float32, (batch, heads, head_dim).

    Returns:
        For each batch row and head the selected positions, int64, rising.
    """
    batch, heads, _ = query.shape
    codes, group = _codes(state, query), heads // state.keys.shape[1]
    return [
        [torch.from_numpy(_collect_all(state, codes[b, h], b, h // group)[0]) for h in range(heads)]
        for b in range(batch)
    ]


def dense(
    query: Tensor, keys: Tensor, values: Tensor, first: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Exact attention of one query token.

    Args:
        query: Queries, float32, (batch, heads, head_dim).
        keys: Keys, (batch, kv_heads, tokens, head_dim).
        values: Values.
        first: First visible position, (batch,).
        mask: Visible keys, bool (batch, tokens), or ``None``.
        scale: Factor of the scores.

    Returns:
        Output and log-sum-exp, float32.
    """
    # torch's matrix products read whole rows as fast as a loop of ours could.
    return _reference.dense(query, keys, values, first, mask, scale)


def _unsigned(tensor: Tensor) -> np.ndarray:
    return tensor.numpy().view(np.uint16)


def _codes(state: DecodeState, query: Tensor) -> np.ndarray:
    return _reference._query_codes(state, query).numpy().astype(np.uint16)


def _arrays(keys: Tensor, values: Tensor) -> tuple[Any, Any, np.ndarray | None]:
    """Arrays to index, and what their entries mean; ``None`` is a branch that numba removes."""
    if keys.dtype == torch.float32:
        return keys.numpy(), values.numpy(), None
    bits = [tensor.view(torch.int16).numpy().view(np.uint16) for tensor in (keys, values)]
    return bits[0], bits[1], _half_table(keys.dtype)


@functools.cache
def _half_table(dtype: torch.dtype) -> np.ndarray:
    patterns = np.arange(2**16, dtype=np.uint16).view(np.int16)
    return torch.from_numpy(patterns).view(dtype).float().numpy()


def _collect_all(state: DecodeState, codes: np.ndarray, batch: int, kv_head: int) -> tuple[np.ndarray, int]:
    found, visited = [np.empty(0, np.int64)], 0
    for segment in state.segments:
        ids, offsets = _unsigned(segment.ids[batch, kv_head]), _unsigned(segment.offsets[batch, kv_head])
        positions, entries = _collect(ids, offsets, codes, state.min_hits, segment.limit)
        found.append(positions + segment.start)
        visited += entries
    return np.concatenate(found), visited


def _exact_positions(state: DecodeState, batch: int, kv_head: int) -> np.ndarray:
    first, length = int(state.first[batch]), state.keys.shape[2]
    sink_end = max(first, min(first + state.sink, state.tail))
    heavy = state.heavy[batch, kv_head].numpy().astype(np.int64)
    heavy = heavy[(heavy >= sink_end) & (heavy < state.tail)]
    return np.concatenate([np.arange(first, sink_end), heavy, np.arange(max(state.tail, first), length)])


@_jit
def _build(codes, skip, key_bits, ids, offsets):
    buckets = 1 << key_bits
    for t in range(codes.shape[0]):
        start = np.zeros(buckets + 1, np.int64)
        for i in range(codes.shape[1]):
            if not skip[i]:
                start[np.int64(codes[t, i]) + 1] += 1
        for b in range(buckets):
            start[b + 1] += start[b]
        for b in range(buckets + 1):
            offsets[t, b] = start[b]
        ids[t, start[buckets] :] = 0
        for i in range(codes.shape[1]):
            if not skip[i]:
                code = np.int64(codes[t, i])
                ids[t, start[code]] = i
                start[code] += 1


@_jit
def _expand(ids, offsets, key_bits, codes, skip):
    for t in range(ids.shape[0]):
        for b in range(1 << key_bits):
            for i in range(np.int64(offsets[t, b]), np.int64(offsets[t, b + 1])):
                codes[t, ids[t, i]] = b
    for i in range(np.int64(offsets[0, 1 << key_bits])):
        skip[ids[0, i]] = False


@_jit
def _collect(ids, offsets, codes, min_hits, limit):
    counters = np.zeros(ids.shape[1], np.uint16)
    entries = 0
    if min_hits == 0:
        entries = np.int64(offsets[0, offsets.shape[1] - 1])
        for i in range(entries):
            counters[ids[0, i]] = 1
    else:
        for t in range(ids.shape[0]):
            code = np.int64(codes[t])
            begin, end = np.int64(offsets[t, code]), np.int64(offsets[t, code + 1])
            entries += end - begin
            for i in range(begin, end):
                counters[ids[t, i]] += 1
    threshold = max(min_hits, 1)
    count = 0
    for i in range(limit):
        count += counters[i] >= threshold
    found = np.empty(count, np.int64)
    count = 0
    for i in range(limit):
        if counters[i] >= threshold:
            found[count] = i
            count += 1
    return found, entries


@_jit
def _dot(query, row, table):
    total = np.float32(0)
    if table is None:
        for j in range(len(row)):
            total += query[j] * row[j]
    else:
        for j in range(len(row)):
            total += query[j] * table[row[j]]
    return total


@_jit
def _add(out, row, table, weight):
    if table is None:
        for j in range(len(row)):
            out[j] += weight * row[j]
    else:
        for j in range(len(row)):
            out[j] += weight * table[row[j]]


@_jit
def _distance(out, row, table):
    total = 0.0
    if table is None:
        for j in range(len(row)):
            total += (np.float64(row[j]) - out[j]) ** 2
    else:
        for j in range(len(row)):
            total += (np.float64(table[row[j]]) - out[j]) ** 2
    return total


@_jit
def _probability(cosine, key_bits, tables, min_hits, binomial):
    if min_hits == 0:
        return 1.0
    hit = (1.0 - math.acos(min(1.0, max(-1.0, cosine))) / math.pi) ** key_bits
    miss = 1.0 - hit
    rest = miss ** (tables - min_hits)
    if hit * tables < min_hits:
        term = binomial[min_hits] * hit**min_hits * rest
        tail, odds = term, hit / max(miss, 1e-6)
        for j in range(min_hits, min(min_hits + 40, tables)):
            term *= odds * (tables - j) / (j + 1)
            tail += term
            if term < 1e-12 * tail:
                break
        return min(tail, 1.0)
    fewer = 0.0
    for j in range(min_hits):
        fewer += binomial[j] * hit**j * miss ** (tables - j)
    return min(max(1.0 - fewer, 0.0), 1.0)


@_jit
def _attend_head(
    query, keys, values, table, norms, mean, exact, selected, scale, eps, key_bits, tables, min_hits, binomial,
    with_error, out, lse, stats,
):  # fmt: skip
    dense, count = len(exact), len(exact) + len(selected)
    score, spread = np.empty(count, np.float32), np.zeros(count, np.float32)
    shift, square = 0.0, 0.0
    for j in range(len(query)):
        shift += np.float64(query[j]) * mean[j]
        square += np.float64(query[j]) * query[j]
    size = math.sqrt(square)
    top, largest = -np.inf, -np.inf
    for i in range(count):
        position = exact[i] if i < dense else selected[i - dense]
        dot = _dot(query, keys[position], table)
        z = np.float64(dot) * scale
        if i >= dense:
            length = size * norms[position]
            cosine = (np.float64(dot) - shift) / length if length > 1e-30 else 0.0
            u = _probability(cosine, key_bits, tables, min_hits, binomial)
            if min_hits > 0:
                z -= math.log(max(u + eps, 1e-30))
            spread[i] = 1.0 - u
            largest = max(largest, z)
        score[i] = z
        top = max(top, z)
    total, sampled, squares = 0.0, 0.0, 0.0
    for i in range(count):
        weight = math.exp(score[i] - top)
        score[i] = weight
        total += weight
        if i >= dense:
            sampled += weight
            squares += weight * weight
        position = exact[i] if i < dense else selected[i - dense]
        _add(out, values[position], table, np.float32(weight))
    if total != 0:  # NaN too
        for j in range(len(out)):
            out[j] /= total
    lse[0] = top + math.log(total) if total != 0 else -np.inf
    stats[2] = math.exp(largest - lse[0]) if len(selected) else 0.0
    stats[3] = sampled * sampled / squares if squares > 0 else 0.0
    stats[5] = top + math.log(sampled) if sampled > 0 else -np.inf
    if with_error:
        error = 0.0
        for i in range(dense, count):
            error += spread[i] * (score[i] / total) ** 2 * _distance(out, values[selected[i - dense]], table)
        stats[4] = math.sqrt(max(error, 0.0))
