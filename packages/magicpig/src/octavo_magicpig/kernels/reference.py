"""The reference: torch operations alone, on any device, without a loop over tokens or heads."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_magicpig.collision import collision_probability
from octavo_magicpig.hashing import Planes, hash_codes
from octavo_magicpig.kernels import STATISTICS, DecodeState, Segment

__all__ = ["attend", "build_tables", "dense", "expand_tables", "hash_rows", "select"]

_HASH_ROWS = 4096


def hash_rows(rows: Tensor, mean: Tensor | None, planes: Planes, planes_set: int = 0) -> tuple[Tensor, Tensor]:
    """Hash centred rows.

    Args:
        rows: Keys or queries, (n, head_dim).
        mean: What to subtract, float32, (head_dim,), or ``None``.
        planes: The hyperplanes.
        planes_set: Which set of them.

    Returns:
        Codes (tables, n) as 16-bit patterns in int16, and float32 norms (n,) of the centred rows.
    """
    codes = torch.empty(planes.num_tables, len(rows), dtype=torch.int16, device=rows.device)
    norms = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    matrix = planes.matrix[planes_set]
    # Bounded pieces: a projection is L*K floats a row, far more than the row itself.
    for begin in range(0, len(rows), _HASH_ROWS):
        piece = rows[begin : begin + _HASH_ROWS].float()
        piece = piece if mean is None else piece - mean
        hashed = hash_codes(piece, matrix, planes.key_bits, planes.num_tables)
        codes[:, begin : begin + _HASH_ROWS] = _to_bits16(hashed.t())
        norms[begin : begin + _HASH_ROWS] = piece.double().square().sum(1).sqrt().float()
    return codes, norms


def build_tables(codes: Tensor, skip: Tensor | None, key_bits: int, ids: Tensor, offsets: Tensor) -> None:
    """Sort keys into buckets by a stable sort.

    Args:
        codes: Codes (tables, n), 16-bit patterns.
        skip: Keys to leave out, bool (n,), or ``None``.
        key_bits: Bits of a table.
        ids: Output (tables, n), 16-bit patterns; entries beyond the last bucket are 0.
        offsets: Output (tables, 2^key_bits + 1), 16-bit patterns.
    """
    kept = torch.arange(codes.shape[1], device=codes.device)
    kept = kept if skip is None else kept[~skip]
    wide = from_bits16(codes)[:, kept]
    order = torch.argsort(wide, dim=1, stable=True)
    ids.zero_()
    ids[:, : len(kept)] = _to_bits16(kept[order])
    counts = torch.zeros(len(codes), 2**key_bits + 1, dtype=torch.int64, device=codes.device)
    counts.scatter_add_(1, wide + 1, torch.ones_like(wide))
    offsets.copy_(_to_bits16(counts.cumsum(1)))


def expand_tables(ids: Tensor, offsets: Tensor, key_bits: int) -> tuple[Tensor, Tensor]:
    """Recover the codes that tables were built from.

    Args:
        ids: Keys by bucket, (tables, n).
        offsets: Bucket starts, (tables, 2^key_bits + 1).
        key_bits: Bits of a table.

    Returns:
        Codes (tables, n), zero for keys that were left out, and those keys' flags, bool (n,).
    """
    tables, size = ids.shape
    starts = from_bits16(offsets)
    used = int(starts[0, -1])
    bucket = torch.arange(2**key_bits, device=ids.device).repeat(tables, 1).flatten()
    by_entry = bucket.repeat_interleave(starts.diff(dim=1).flatten()).view(tables, used)
    entries = from_bits16(ids[:, :used])
    codes = torch.zeros(tables, size, dtype=torch.int64, device=ids.device).scatter_(1, entries, by_entry)
    skip = torch.ones(size, dtype=torch.bool, device=ids.device)
    skip[entries[0]] = False
    return _to_bits16(codes), skip


def select(state: DecodeState, query: Tensor) -> list[list[Tensor]]:
    """Select keys.

    Args:
        state: What the step reads.
        query: Queries, float32, (batch, heads, head_dim).

    Returns:
        For each batch row and head the selected positions, int64, rising.
    """
    batch, heads, _ = query.shape
    chosen = [_selected(state, segment, query) for segment in state.segments]
    rows = torch.cat([row for row, _, _ in chosen]) if chosen else torch.empty(0, dtype=torch.int64)
    positions = torch.cat([position for _, position, _ in chosen]) if chosen else rows
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=batch * heads).tolist()
    split = positions[order].split(counts)
    return [[split[b * heads + h] for h in range(heads)] for b in range(batch)]


def attend(
    state: DecodeState, query: Tensor, scale: float, *, with_error: bool = False, with_dense: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend over the exact and the selected keys.

    Args:
        state: What the step reads.
        query: Queries, float32, (batch, heads, head_dim).
        scale: Factor of the scores.
        with_error: Whether to estimate the error.
        with_dense: Whether the exact keys take part.

    Returns:
        Output (batch, heads, head_dim), log-sum-exp (batch, heads), and statistics (batch, heads, 6) in the order of
        :data:`octavo_magicpig.kernels.STATISTICS`, all float32.
    """
    batch, heads, dim = query.shape
    groups = heads // state.keys.shape[1]
    device = query.device
    count = batch * heads
    flat_query = query.reshape(count, dim)
    kv_index = torch.arange(batch * state.keys.shape[1], device=device).repeat_interleave(groups)
    mean = state.mean.reshape(-1, dim)[kv_index]

    chosen = [_selected(state, segment, query) for segment in state.segments]
    empty = torch.empty(0, dtype=torch.int64, device=device)
    sampled_rows = torch.cat([row for row, _, _ in chosen]) if chosen else empty
    sampled_at = torch.cat([position for _, position, _ in chosen]) if chosen else empty
    visited = torch.zeros(count, dtype=torch.float32, device=device)
    for _, _, entries in chosen:
        visited += entries

    batch_of, head_of = sampled_rows // heads, sampled_rows % heads // groups
    score = torch.empty(0, dtype=torch.float32, device=device)
    spread = score
    if len(sampled_rows):
        key = state.keys[batch_of, head_of, sampled_at].float()
        dots = (key * flat_query[sampled_rows]).sum(1)
        centred = dots - (flat_query.double() * mean.double()).sum(1).float()[sampled_rows]
        length = flat_query.double().norm(dim=1).float()[sampled_rows] * state.norms[batch_of, head_of, sampled_at]
        cosine = torch.where(length <= 1e-30, 0.0, centred / length.clamp_min(1e-30))
        u = collision_probability(cosine, state.planes.key_bits, state.planes.num_tables, state.min_hits)
        score = dots * scale
        if state.min_hits > 0:
            score = score - (u + state.weight_eps).clamp_min(1e-30).log()
        spread = 1 - u

    dense_rows, dense_at = _dense_pairs(state, batch, heads) if with_dense else (empty, empty)
    dense_key = state.keys[dense_rows // heads, dense_rows % heads // groups, dense_at].float()
    dense_score = (dense_key * flat_query[dense_rows]).sum(1) * scale

    rows = torch.cat([dense_rows, sampled_rows])
    at = torch.cat([dense_at, sampled_at])
    scores = torch.cat([dense_score, score])
    lse = _segment_lse(scores, rows, count)
    weight = torch.exp(scores - lse[rows])
    value = state.values[rows // heads, rows % heads // groups, at].float()
    out = torch.zeros(count, dim, dtype=torch.float32, device=device).index_add_(0, rows, weight[:, None] * value)

    lse_sampled = _segment_lse(score, sampled_rows, count)
    share = torch.exp(score - lse[sampled_rows])
    stats = torch.zeros(count, len(STATISTICS), dtype=torch.float32, device=device)
    stats[:, 0] = torch.bincount(sampled_rows, minlength=count).float()
    stats[:, 1] = visited
    stats[:, 2] = torch.zeros(count, dtype=torch.float32, device=device).scatter_reduce(0, sampled_rows, share, "amax")
    squares = torch.zeros(count, dtype=torch.float32, device=device).index_add_(0, sampled_rows, share.square())
    sums = torch.zeros(count, dtype=torch.float32, device=device).index_add_(0, sampled_rows, share)
    stats[:, 3] = torch.where(squares > 0, sums.square() / squares.clamp_min(1e-38), 0.0)
    if with_error:
        distance = (value[len(dense_rows) :] - out[sampled_rows]).square().sum(1)
        stats[:, 4].index_add_(0, sampled_rows, spread * share.square() * distance)
        stats[:, 4] = stats[:, 4].clamp_min(0).sqrt()
    stats[:, 5] = lse_sampled
    return out.view(batch, heads, dim), lse.view(batch, heads), stats.view(batch, heads, -1)


def dense(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    first: Tensor,
    mask: Tensor | None,
    scale: float,
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
        Output (batch, heads, head_dim) and log-sum-exp (batch, heads), float32; 0 and -inf where nothing is visible.
    """
    batch, heads, dim = query.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, dim)
    with torch.autocast(query.device.type, enabled=False):
        scores = grouped @ keys.float().transpose(2, 3) * scale
    visible = torch.arange(length, device=query.device) >= first[:, None]
    visible = visible if mask is None else visible & mask
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weight = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
    with torch.autocast(query.device.type, enabled=False):
        out = weight @ values.float()
    return out.reshape(batch, heads, dim), lse.reshape(batch, heads)


def from_bits16(bits: Tensor) -> Tensor:
    """Read 16-bit patterns as unsigned numbers."""
    return bits.long() & 0xFFFF


def _to_bits16(numbers: Tensor) -> Tensor:
    return torch.where(numbers >= 2**15, numbers - 2**16, numbers).to(torch.int16)


def _selected(state: DecodeState, segment: Segment, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (batch * heads) and positions of the keys selected in a segment, and the entries read by each row."""
    batch, heads, _ = query.shape
    kv_heads, tables, device = state.keys.shape[1], state.planes.num_tables, query.device
    groups, count = heads // kv_heads, batch * heads
    buckets = segment.offsets.shape[-1]
    kv_index = torch.arange(batch * kv_heads, device=device).repeat_interleave(groups)
    starts = from_bits16(segment.offsets).view(-1, tables, buckets)[kv_index]
    if state.min_hits == 0:
        begin = torch.zeros(count, 1, dtype=torch.int64, device=device)
        end = starts[:, :1, -1]
    else:
        codes = _query_codes(state, query).view(count, tables, 1)
        begin, end = starts.gather(2, codes)[..., 0], starts.gather(2, codes + 1)[..., 0]
    lengths = end - begin
    # Every entry of every bucket, without a loop: its table's beginning plus its rank within the bucket.
    flat = lengths.flatten()
    rank = torch.arange(int(flat.sum()), device=device) - (flat.cumsum(0) - flat).repeat_interleave(flat)
    table = torch.arange(lengths.shape[1], device=device).repeat(count).repeat_interleave(flat)
    row = torch.arange(count, device=device).repeat_interleave(lengths.sum(1))
    entry = (kv_index[row] * tables + table) * segment.size + begin.flatten().repeat_interleave(flat) + rank
    ids = from_bits16(segment.ids.reshape(-1)[entry])
    hits = torch.zeros(count * segment.size, dtype=torch.int32, device=device)
    hits.index_add_(0, row * segment.size + ids, torch.ones_like(ids, dtype=torch.int32))
    chosen = torch.nonzero(hits >= max(state.min_hits, 1))[:, 0]
    row, ids = chosen // segment.size, chosen % segment.size
    alive = ids < segment.limit
    return row[alive], ids[alive] + segment.start, lengths.sum(1).float()


def _query_codes(state: DecodeState, query: Tensor) -> Tensor:
    batch, heads, dim = query.shape
    planes, sets = state.planes, len(state.planes.matrix)
    if sets == 1:
        return hash_codes(query, planes.matrix[0], planes.key_bits, planes.num_tables)
    grouped = query.view(batch, sets, heads // sets, dim)
    codes = [
        hash_codes(grouped[:, index], planes.matrix[index], planes.key_bits, planes.num_tables) for index in range(sets)
    ]
    return torch.stack(codes, 1).view(batch, heads, -1)


def _dense_pairs(state: DecodeState, batch: int, heads: int) -> tuple[Tensor, Tensor]:
    """Rows and positions of the exact keys: sink, tail and heavy ones."""
    length, kv_heads, device = state.keys.shape[2], state.keys.shape[1], state.keys.device
    position = torch.arange(length, device=device)
    first = state.first.to(device)[:, None]
    sink = (position >= first) & (position < first + state.sink) & (position < state.tail)
    exact = (sink | ((position >= state.tail) & (position >= first)))[:, None].expand(batch, kv_heads, length).clone()
    if state.heavy.shape[-1]:
        listed = state.heavy.to(device).long()
        inside = (listed >= 0) & (listed < state.tail) & (listed >= first[:, None] + state.sink)
        b, h, i = torch.nonzero(inside, as_tuple=True)
        exact[b, h, listed[b, h, i]] = True
    pairs = torch.nonzero(exact.repeat_interleave(heads // kv_heads, dim=1))
    return pairs[:, 0] * heads + pairs[:, 1], pairs[:, 2]


def _segment_lse(scores: Tensor, rows: Tensor, count: int) -> Tensor:
    top = torch.full((count,), -torch.inf, dtype=torch.float32, device=scores.device).scatter_reduce(
        0, rows, scores, "amax"
    )
    base = torch.where(top == -torch.inf, 0.0, top)
    return base + torch.zeros_like(base).index_add_(0, rows, torch.exp(scores - base[rows])).log()
