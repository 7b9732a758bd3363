"""The oracle: the dense Transformer in fixed point with as many bits as wanted, every score computed as written.

All numbers of the construction lie in [-4, 4], so fixed point loses nothing against floating point of the same width,
and Python's integers are fast enough for thousands of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from octavo_prompt_turing.blocks import Layout
from octavo_prompt_turing.construction import ALIASES
from octavo_prompt_turing.precision import PrecisionError, max_length

__all__ = ["ReferenceReader", "SparseModel", "compile_sparse"]

# A position is off by 2^-P, its direction by i 2^-P: enough for the 2^21 tokens that 128 bits allow.
_GUARD = 32

Term = tuple[int, int, int]
Rows = list[list[Term]]


@dataclass(frozen=True)
class SparseBlock:
    """Nonzero weights of a block; a row is a list of (column, numerator, denominator)."""

    heads: list[tuple[Rows, Rows, Rows, list[list[Term]]]]
    norms: list[tuple[tuple[int, ...], tuple[int, ...]]]
    hidden: Rows
    hidden_bias: list[Fraction]
    projection: list[list[Term]]
    projection_bias: list[tuple[int, Fraction]]


@dataclass(frozen=True)
class SparseModel:
    """Nonzero weights of a model, as fractions.

    Args:
        layout: Names of the columns.
        embedding: Row of each token.
        positional: Columns of the four positional features.
        blocks: The blocks.
        unembedding: Row of each token.
    """

    layout: Layout
    embedding: Rows
    positional: Rows
    blocks: list[SparseBlock]
    unembedding: Rows


def compile_sparse(model: Any) -> SparseModel:
    """Collect the nonzero weights of a model as they are now.

    Args:
        model: A :class:`octavo_prompt_turing.PromptTuringModel`.

    Returns:
        The weights.
    """
    blocks = []
    for block in model.blocks:
        heads = []
        for query, key, value, output in zip(
            _array(block.query), _array(block.key), _array(block.value), _array(block.output), strict=True
        ):
            used = [row for row in range(len(query)) if query[row].any() and key[row].any()]
            values = [row for row in range(len(value)) if value[row].any() and output[:, row].any()]
            heads.append((_rows(query[used]), _rows(key[used]), _rows(value[values]), _rows(output[:, values].T)))
        norms = [
            (tuple(s), tuple(t)) for _, sources, targets in block._norms for s, t in zip(sources, targets, strict=True)
        ]
        bias = _array(block.projection_bias)
        blocks.append(
            SparseBlock(
                heads,
                norms,
                _rows(_array(block.hidden)),
                [Fraction(float(value)) for value in _array(block.hidden_bias)],
                _rows(_array(block.projection).T),
                [(int(index), Fraction(float(bias[index]))) for index in np.flatnonzero(bias)],
            )
        )
    return SparseModel(
        model.layout,
        _rows(_array(model.embedding)),
        _rows(_array(model.positional)),
        blocks,
        _rows(_array(model.unembedding)),
    )


class ReferenceReader:
    """Reads one sequence token by token and scores the next token.

    Args:
        weights: From :func:`compile_sparse`.
        bits: Bits after the binary point of a comparison; scores closer than ``2**-bits`` are ties.

    Source:
        Paper, Section 2; fixed point is beyond the paper, which asks for O(log N) bits.
    """

    def __init__(self, weights: SparseModel, bits: int = 128) -> None:
        self.weights = weights
        self.bits = bits
        self._point = bits + _GUARD
        self._tie = 1 << _GUARD
        self._limit = _limit(bits)
        self._ids: list[int] = []
        self._memory = [
            [([_Column() for _ in head[1]], [_Column() for _ in head[2]]) for head in block.heads]
            for block in weights.blocks
        ]
        self._stream: list[int] = []

    def push(self, token: int, *, strict: bool = False) -> None:
        """Read a token.

        Args:
            token: Its id.
            strict: Refuse to go beyond what the bits are good for.

        Raises:
            PrecisionError: If ``strict`` and the sequence is too long.
        """
        if strict and len(self._ids) >= self._limit:
            raise PrecisionError(f"{self.bits} bits are guaranteed for {self._limit:,} tokens only; give more bits")
        self._ids.append(token)
        unit = 1 << self._point
        stream = [0] * self.weights.layout.width
        _scatter(stream, self.weights.embedding[token], unit)
        for feature, row in zip(_positional(len(self._ids), self._point), self.weights.positional, strict=True):
            _scatter(stream, row, feature)
        for block, memory in zip(self.weights.blocks, self._memory, strict=True):
            self._block(stream, block, memory, unit)
        self._stream = stream

    def logits(self) -> list[float]:
        """Scores of the next token, one for each of the 23."""
        scale = 2.0**-self._point
        return [float(_dot(row, self._stream)) * scale for row in self.weights.unembedding]

    def next_id(self) -> int:
        """Id of the next token: that with the largest logit."""
        scores = [_dot(row, self._stream) for row in self.weights.unembedding]
        return scores.index(max(scores))

    @property
    def counter(self) -> int:
        """The program counter that the model fetches with."""
        x, y = (self._stream[self.weights.layout.index(name)] for name in ("prog_cur_norm", "prog_cur_one_norm"))
        return (2 * x + y) // (2 * y) if y > 0 else -1

    def features(self) -> dict[str, Fraction]:
        """All named features at the last token read, as fractions."""
        unit = 1 << self._point
        values = {n: Fraction(v, unit) for n, v in zip(self.weights.layout.names, self._stream, strict=True)}
        return values | {name: values[base] * int(factor) for name, (base, factor) in ALIASES.items()}

    def copy(self) -> ReferenceReader:
        """Make an independent reader that has read the same tokens."""
        return self.rewound(len(self._ids))

    def rewound(self, length: int) -> ReferenceReader:
        """Make a reader that has read only the first tokens.

        Args:
            length: Number of tokens.

        Returns:
            The reader.
        """
        fresh = ReferenceReader(self.weights, self.bits)
        for token in self._ids[:length]:
            fresh.push(token)
        return fresh

    def _block(self, stream: list[int], block: SparseBlock, memory: Any, unit: int) -> None:
        added: list[tuple[list[Term], int]] = []
        for (query, key, value, output), (keys, values) in zip(block.heads, memory, strict=True):
            for column, row in zip(keys, key, strict=True):
                column.append(_dot(row, stream))
            for column, row in zip(values, value, strict=True):
                column.append(_dot(row, stream))
            scores = sum(_dot(row, stream) * column.array for row, column in zip(query, keys, strict=True))
            scores = np.minimum(scores >> self._point, 2 * unit)
            chosen = np.flatnonzero(scores >= scores.max() - self._tie)
            for column, row in zip(values, output, strict=True):
                added.append((row, int(column.array[chosen].sum()) // len(chosen)))
        for row, mean in added:
            _scatter(stream, row, mean)
        for sources, targets in block.norms:
            group = [stream[source] for source in sources]
            norm = math.isqrt(sum(entry * entry for entry in group))
            if norm > self._tie:
                for entry, target in zip(group, targets, strict=True):
                    stream[target] += (entry << self._point) // norm
        active = []
        for row, bias, target in zip(block.hidden, block.hidden_bias, block.projection, strict=True):
            inner = _dot(row, stream) + unit * bias.numerator // bias.denominator
            if inner > 0:
                active.append((target, inner))
        for target, inner in active:
            _scatter(stream, target, inner)
        for column, bias in block.projection_bias:
            stream[column] += unit * bias.numerator // bias.denominator


class _Column:
    """A growing array of Python integers."""

    def __init__(self) -> None:
        self._buffer = np.empty(64, dtype=object)
        self._length = 0

    def append(self, number: int) -> None:
        if self._length == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(self._length, dtype=object)])
        self._buffer[self._length] = number
        self._length += 1

    @property
    def array(self) -> np.ndarray:
        return self._buffer[: self._length]


@lru_cache(maxsize=64)
def _limit(bits: int) -> int:
    return max_length("reference", bits=bits) or 0


def _positional(i: int, point: int) -> tuple[int, int, int, int]:
    """pe0 to pe3 in fixed point, rounded down."""
    unit, square = 1 << point, i * i + 1
    p = math.isqrt(square * ((i + 1) * (i + 1) + 1) << (2 * point))
    q = (i * (i + 1) + 1) << point
    return unit // i, unit - (q << point) // p, _root_ratio(i * i, square, point), _root_ratio(1, square, point)


def _root_ratio(above: int, below: int, point: int) -> int:
    """sqrt(above/below) in fixed point."""
    return math.isqrt((above << (2 * point)) // below)


def _dot(row: Sequence[Term], stream: list[int]) -> int:
    return sum(stream[column] * n if d == 1 else stream[column] * n // d for column, n, d in row)


def _scatter(stream: list[int], row: Sequence[Term], amount: int) -> None:
    for column, n, d in row:
        stream[column] += amount * n if d == 1 else amount * n // d


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _rows(matrix: np.ndarray) -> Rows:
    rows: Rows = []
    for row in matrix:
        fractions = [(int(column), Fraction(float(row[column]))) for column in np.flatnonzero(row)]
        rows.append([(column, f.numerator, f.denominator) for column, f in fractions])
    return rows
