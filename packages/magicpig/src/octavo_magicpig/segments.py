"""Hash tables over runs of tokens: built once, merged as they grow, never changed.

Beyond the paper, whose reference code hashes the prompt alone and keeps every generated token exact in a buffer of 256:
here generated tokens leave the exact tail in runs of ``segment_min``, and runs of similar length are merged, so that N
tokens lie in O(log N) segments of at most 65,535 keys, whose ids fit in 16 bits. A query reads the union of the
segments; the selection probability of a key is the same in any of them, because the planes are.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from octavo_magicpig.config import LSHConfig
from octavo_magicpig.hashing import Planes
from octavo_magicpig.kernels import Kernel, Segment

__all__ = [
    "hash_tokens",
    "largest_norm",
    "last_boundary",
    "left_out",
    "mean_key",
    "merge_small",
    "rounding_level",
    "sampleable",
    "truncate",
]

_GOLDEN = 0.6180339887498949
_ROUNDING = 64 * torch.finfo(torch.float32).eps


def last_boundary(position: int, layer: int, config: LSHConfig) -> int:
    """Last position at which a segment of generated tokens may end.

    Boundaries are ``segment_min`` apart. Each layer has its own, spread by the golden ratio, so that the layers of a
    model do not all hash and merge at the same token.

    Args:
        position: First position that must stay exact.
        layer: Index of the layer.
        config: Settings.

    Returns:
        The boundary at or before the position; below 0 if there is none.

    Source:
        Beyond the paper.
    """
    phase = int(layer * _GOLDEN % 1 * config.segment_min)
    return (position - phase) // config.segment_min * config.segment_min + phase


def sampleable(first: Tensor, sink: int, begin: int, end: int) -> Tensor:
    """Which tokens of a range a row may sample: neither padding nor its sink.

    Args:
        first: First token of each row that is not padding, (batch,).
        sink: Tokens after it that are exact.
        begin: First position of the range.
        end: Its end.

    Returns:
        Bool, (batch, end - begin).
    """
    return torch.arange(begin, end, device=first.device) >= first[:, None] + sink


def left_out(first: Tensor, heavy: Tensor, sink: int, begin: int, end: int) -> Tensor:
    """Which tokens of a range the tables leave out: padding, sink and further exact ones.

    Args:
        first: First token of each row that is not padding, (batch,).
        heavy: Further exact positions, -1 for none, (batch, kv_heads, n).
        sink: Tokens after ``first`` that are exact.
        begin: First position of the range.
        end: Its end.

    Returns:
        Bool, (batch, kv_heads, end - begin).
    """
    skip = ~sampleable(first, sink, begin, end)[:, None].expand(-1, heavy.shape[1], -1).contiguous()
    if heavy.shape[-1]:
        b, h, i = torch.nonzero((heavy >= begin) & (heavy < end), as_tuple=True)
        skip[b, h, heavy[b, h, i].long() - begin] = True
    return skip


def mean_key(keys: Tensor, visible: Tensor) -> Tensor:
    """Mean of the keys that are hashed, which centring subtracts.

    Args:
        keys: (batch, kv_heads, tokens, head_dim), at least one token.
        visible: Tokens of each row that count, bool, (batch, tokens).

    Returns:
        Float32 means, (batch, kv_heads, head_dim); zero for a row without tokens.

    Source:
        Section 4.2: queries and keys lie in narrow cones apart from each other, so that without centring almost no key
        collides.
    """
    if bool(visible.all()):
        return keys.mean(dim=2, dtype=torch.float32).contiguous()
    counts = visible.sum(1).clamp_min(1)[:, None, None]
    return ((keys.float() * visible[:, None, :, None]).sum(2) / counts).contiguous()


def rounding_level(mean: Tensor) -> Tensor:
    """Norm at or below which a centred key is rounding noise: it equals the mean, and its cosine is taken as 0.

    Args:
        mean: What keys are centred by, (..., head_dim).

    Returns:
        Norms, (...); zero without centring.
    """
    return mean.norm(dim=-1) * _ROUNDING


def largest_norm(keys: Tensor, mean: Tensor, visible: Tensor) -> Tensor:
    """Largest norm R of a centred key, for ``transform="simple"``.

    Args:
        keys: (batch, kv_heads, tokens, head_dim), at least one token.
        mean: What to centre by, (batch, kv_heads, head_dim).
        visible: Tokens of each row that count, bool, (batch, tokens).

    Returns:
        Norms, (batch, kv_heads).
    """
    return ((keys.float() - mean[:, :, None]).norm(dim=-1) * visible[:, None]).amax(-1)


def hash_tokens(
    kernel: Kernel,
    keys: Tensor,
    start: int,
    *,
    mean: Tensor,
    radius: Tensor | None,
    skip: Tensor,
    planes: Planes,
    norms: Tensor,
    config: LSHConfig,
) -> list[Segment]:
    """Hash a run of tokens into segments of equal length.

    Args:
        kernel: What computes.
        keys: Keys of the run, (batch, kv_heads, tokens, head_dim).
        start: Position of its first token.
        mean: What to centre by, (batch, kv_heads, head_dim).
        radius: Largest norm R of a centred key, (batch, kv_heads), for ``transform="simple"``, else ``None``.
        skip: Keys to leave out of the tables, bool, (batch, kv_heads, tokens).
        planes: The hyperplanes, for transformed keys.
        norms: Norms by position, written for the run; with a transform the norm of the transformed key. Zero for a key
            that equals the mean up to rounding.
        config: Settings.

    Returns:
        The new segments, in order.

    Source:
        Section 5.1; counting sort as in the reference code, 16-bit ids beyond it.
    """
    batch, kv_heads, total, _ = keys.shape
    pieces = -(-total // config.segment_max)
    bounds = [total * piece // pieces for piece in range(pieces + 1)]
    shape = (batch, kv_heads, config.num_tables)
    level = rounding_level(mean)
    segments = []
    for begin, end in itertools.pairwise(bounds):
        ids = torch.empty(*shape, end - begin, dtype=torch.int16, device=keys.device)
        offsets = torch.empty(*shape, 2**config.key_bits + 1, dtype=torch.int16, device=keys.device)
        segments.append(Segment(start + begin, end - begin, end - begin, ids, offsets))
        # One head at a time: the codes of all heads together would be as large as the tables.
        for b in range(batch):
            for h in range(kv_heads):
                rows, centre = keys[b, h, begin:end], mean[b, h]
                if radius is not None:
                    rows, centre = _lift(rows.float() - centre, radius[b, h]), None
                codes, lengths = kernel.hash_rows(rows, centre, planes, h if len(planes.matrix) > 1 else 0)
                norms[b, h, start + begin : start + end] = torch.where(lengths > level[b, h], lengths, 0.0)
                absent = skip[b, h, begin:end]
                kernel.build_tables(
                    codes,
                    absent.contiguous() if bool(absent.any()) else None,
                    config.key_bits,
                    ids[b, h],
                    offsets[b, h],
                )
    return segments


def merge_small(kernel: Kernel, segments: list[Segment], config: LSHConfig) -> list[Segment]:
    """Merge segments from the end while the last is at least as long as the one before it, as a binary counter carries.

    Args:
        kernel: What computes.
        segments: Segments in order.
        config: Settings; no segment becomes longer than ``segment_max``.

    Returns:
        The segments that remain.

    Source:
        Beyond the paper: a log-structured merge, so that each key is moved O(log N) times.
    """
    segments = list(segments)
    while len(segments) > 1:
        left, right = segments[-2:]
        if left.limit > right.limit or left.limit + right.limit > config.segment_max:
            break
        segments[-2:] = [_merge(kernel, left, right, config.key_bits)]
    return segments


def truncate(segments: list[Segment], end: int) -> list[Segment]:
    """Forget the keys from a position on.

    Args:
        segments: Segments in order.
        end: First position to forget.

    Returns:
        The segments that still hold keys; a partly forgotten one keeps its tables and ignores the rest.
    """
    for segment in segments:
        segment.limit = min(segment.limit, end - segment.start)
    return [segment for segment in segments if segment.limit > 0]


def _merge(kernel: Kernel, left: Segment, right: Segment, key_bits: int) -> Segment:
    batch, kv_heads, tables, _ = left.ids.shape
    size = left.limit + right.limit
    ids = left.ids.new_empty(batch, kv_heads, tables, size)
    offsets = torch.empty_like(left.offsets)
    for b in range(batch):
        for h in range(kv_heads):
            parts = [
                (codes[:, : part.limit], skip[: part.limit])
                for part in (left, right)
                for codes, skip in [kernel.expand_tables(part.ids[b, h], part.offsets[b, h], key_bits)]
            ]
            codes = torch.cat([part[0] for part in parts], 1)
            skip = torch.cat([part[1] for part in parts])
            kernel.build_tables(codes, skip if bool(skip.any()) else None, key_bits, ids[b, h], offsets[b, h])
    return Segment(left.start, size, size, ids, offsets)


def _lift(centred: Tensor, radius: Tensor) -> Tensor:
    """Append ``sqrt(R^2 - |k|^2)``: cosines to a query then order as inner products do."""
    rest = (radius.double().square() - centred.double().square().sum(1)).clamp_min(0).sqrt()
    return torch.cat([centred, rest[:, None].float()], 1).contiguous()
