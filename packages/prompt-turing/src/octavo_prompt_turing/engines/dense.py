"""The dense engine in deficit form for one sequence, in numpy: the arithmetic of :mod:`attention`, one token at a time.

A step looks at all earlier tokens, as a plain Transformer does. The torch module does the same for batches and on other
devices; numpy has a fifth of its overhead a call, which is what counts for one token.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo_prompt_turing.construction import ALIASES
from octavo_prompt_turing.precision import max_length

__all__ = ["DenseReader"]

_CLIP = 2.0
_TIE = 2.0**-46
_INTEGER = 2.0**-20
_TINY = np.finfo(np.float64).tiny
_SCRATCH = 6
_FEW = 32


class DenseReader:
    """Reads one sequence token by token and scores the next token.

    Args:
        model: A :class:`octavo_prompt_turing.PromptTuringModel`.

    Source:
        Paper, Section 2; the deficit form is beyond the paper, see :mod:`octavo_prompt_turing.attention`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layout = model.layout
        self.ids: list[int] = []
        self._embedding, self._positional = _array(model.embedding), _array(model.positional)
        self._unembedding = _array(model.unembedding)
        self._blocks = [_Block(block, model.layout.num_integers) for block in model.blocks]
        self.stream = np.zeros(model.layout.width)

    def push(self, token: int) -> None:
        """Read a token.

        Args:
            token: Its id.
        """
        self.ids.append(token)
        i = len(self.ids)
        norm, following = math.sqrt(i * i + 1), math.sqrt((i + 1) * (i + 1) + 1)
        p, q = norm * following, i * (i + 1) + 1
        features = np.array([1 / i, 1 / (p * (p + q)), i / norm, 1 / norm])
        stream = self._embedding[token] + features @ self._positional
        for block in self._blocks:
            stream = block.step(stream, i - 1)
        self.stream = stream

    def logits(self) -> list[float]:
        """Scores of the next token, one for each of the 23."""
        return (self._unembedding @ self.stream).tolist()

    def next_id(self) -> int:
        """Id of the next token: that with the largest logit."""
        return int((self._unembedding @ self.stream).argmax())

    @property
    def counter(self) -> int:
        """The program counter that the model fetches with."""
        x, y = (self.stream[self.layout.index(name)] for name in ("prog_cur_norm", "prog_cur_one_norm"))
        return round(x / y) if y else -1

    def features(self) -> dict[str, float]:
        """All named features at the last token read."""
        values = dict(zip(self.layout.names, self.stream.tolist(), strict=True))
        return values | {name: values[base] * factor for name, (base, factor) in ALIASES.items()}

    def targets(self) -> dict[str, list[int]]:
        """Positions, from 1, that each head averaged for the last token; heads that averaged all are left out."""
        found = {}
        for block in self._blocks:
            for name, chosen in zip(block.names, block.chosen, strict=True):
                positions = np.flatnonzero(chosen) + 1
                if len(positions) < len(self.ids):
                    found[name] = positions.tolist()
        return found

    def copy(self) -> DenseReader:
        """Make an independent reader that has read the same tokens."""
        return self.rewound(len(self.ids))

    def rewound(self, length: int) -> DenseReader:
        """Make a reader that has read only the first tokens.

        Args:
            length: Number of tokens.

        Returns:
            The reader.
        """
        fresh = DenseReader(self.model)
        for token in self.ids[:length]:
            fresh.push(token)
        return fresh

    @property
    def limit(self) -> int | None:
        """Longest sequence that is guaranteed."""
        return max_length("deficit64")


class _Block:
    """Weights and memory of one block."""

    def __init__(self, block: Any, num_integers: int) -> None:
        self.shape, self.cut, self.names = block.shape, num_integers, block.head_names
        self.heads, self.width, _ = block.query.shape
        self.rows = np.concatenate([_array(block.query), _array(block.key), _array(block.value)], axis=1)
        self.rows = self.rows.reshape(-1, self.rows.shape[-1])
        self.output = np.ascontiguousarray(_array(block.output).transpose(1, 0, 2).reshape(self.rows.shape[1], -1))
        self.hidden, self.bias = _array(block.hidden), _array(block.hidden_bias)
        self.projection, self.projection_bias = _array(block.projection), _array(block.projection_bias)
        self.hidden_integers = np.ascontiguousarray(self.hidden[:, : self.cut])
        self.hidden_reals = np.ascontiguousarray(self.hidden[:, self.cut :])
        self.norms = [
            (source, target)
            for _, sources, targets in block._norms
            for source, target in zip(sources, targets, strict=True)
        ]
        self.num_values = block.value.shape[1]
        self.chosen = np.zeros((self.heads, 0), bool)
        self.mixed, self.range = False, np.arange(self.heads)
        self._grow(256)

    def _grow(self, capacity: int) -> None:
        def grown(old: np.ndarray | None, *shape: int) -> np.ndarray:
            new = np.empty((*shape, capacity))
            if old is not None:
                new[..., : old.shape[-1]] = old
            return new

        first = not hasattr(self, "keys")
        self.keys = grown(None if first else self.keys, self.width, self.heads)
        self.key_norms = grown(None if first else self.key_norms, self.shape.pairs, self.heads)
        self.values = grown(None if first else self.values, self.heads, self.num_values)
        self.scratch = np.empty((_SCRATCH, self.heads, capacity))

    def step(self, stream: np.ndarray, at: int) -> np.ndarray:
        """Add what the block computes at position ``at``, counted from 0."""
        if at == self.keys.shape[-1]:
            self._grow(2 * at)
        rows = (self.rows @ stream).reshape(self.heads, -1)
        query, key = rows[:, : self.width].T, rows[:, self.width : 2 * self.width].T
        self.keys[:, :, at] = key
        self.values[:, :, at] = rows[:, 2 * self.width :]
        norms: list[np.ndarray] = []
        if self.shape.pairs:
            first = self.shape.integers + self.shape.reals
            pairs = rows[:, : 2 * self.width].reshape(self.heads, 2, self.width)[:, :, first:]
            pairs = pairs.reshape(self.heads, 2, self.shape.pairs, 2)
            both = _unit(np.sqrt((pairs * pairs).sum(-1)))
            norms = list(both[:, 0].T)
            self.key_norms[:, :, at] = both[:, 1].T
            self.mixed = self.mixed or not np.array_equal(both[:, 1].T, self.key_norms[:, :, 0])
        chosen = self._choose(query[..., None], norms, at + 1)
        self.chosen = chosen
        found = np.empty((self.heads, self.num_values))
        for head in range(self.heads):
            positions = chosen[head].nonzero()[0]
            values = self.values[head, :, : at + 1]
            # Few keys: pick them. Many: multiply by zeros and ones.
            few = len(positions) <= _FEW
            total = values[:, positions].sum(1) if few else values @ chosen[head].astype(np.float64)
            found[head] = total / len(positions)
        stream = stream + self.output @ found.ravel()
        for source, target in self.norms:
            _normalise(stream, source, target)
        if not len(self.bias):
            return stream
        inner = self.hidden_integers @ stream[: self.cut] + self.bias + self.hidden_reals @ stream[self.cut :]
        return stream + (self.projection @ np.maximum(inner, 0.0) + self.projection_bias)

    def _choose(self, query: np.ndarray, query_norms: list[np.ndarray], length: int) -> np.ndarray:
        keys = self.keys[:, :, :length]
        whole, small, dot, cross, extra, _ = (buffer[:, :length] for buffer in self.scratch)
        integers, reals = self.shape.integers, self.shape.reals
        whole[:] = 0.0
        for index in range(integers):
            whole += np.multiply(keys[index], query[index], out=extra)
        if not reals and not self.shape.pairs:
            np.minimum(whole, _CLIP, out=whole)
            return whole == whole.max(1, keepdims=True)
        small[:] = 0.0
        for index in range(integers, integers + reals):
            small += np.multiply(keys[index], query[index], out=extra)
        for pair, query_norm in enumerate(query_norms):
            start = integers + reals + 2 * pair
            q0, q1, k0, k1 = query[start], query[start + 1], keys[start], keys[start + 1]
            np.multiply(k0, q0, out=dot)
            dot += np.multiply(k1, q1, out=extra)
            np.multiply(k1, q0, out=cross)
            cross -= np.multiply(k0, q1, out=extra)
            norm = query_norm[:, None]
            # In the construction all keys of a head have one norm; other weights may give them several.
            norm = norm * (self.key_norms[pair, :, :length] if self.mixed else self.key_norms[pair, :, :1])
            whole += np.copysign(norm, dot, out=extra)
            # |p||q| - |p . q|, with the sign of p . q.
            cross *= cross
            np.abs(dot, out=extra)
            extra += norm + _TINY
            cross /= extra
            small -= np.copysign(cross, dot, out=cross)
        leader = np.add(whole, small, out=extra).argmax(1)
        if extra[self.range, leader].max() >= _CLIP:
            over = small > np.subtract(_CLIP, whole, out=extra)
            if over.any():
                whole[over], small[over] = _CLIP, 0.0
                leader = np.add(whole, small, out=extra).argmax(1)
        whole -= np.take_along_axis(whole, leader[:, None], 1)
        small += whole
        best = small.max(1, keepdims=True)
        return small >= best - _TIE * np.abs(best)


def _unit(norms: np.ndarray) -> np.ndarray:
    whole = np.rint(norms)
    return np.where(np.abs(norms - whole) < 1e-12, whole, norms)


def _normalise(stream: np.ndarray, source: tuple[int, ...], target: tuple[int, ...]) -> None:
    x = float(stream[source[0]])
    if len(source) == 1:
        stream[target[0]] += (x > 0) - (x < 0)
        return
    y = float(stream[source[1]])
    if y:
        ratio = x / y
        whole = round(ratio) if abs(ratio) < 2**52 else 0
        if abs(ratio - whole) <= _INTEGER:
            x, y = math.copysign(whole, x), math.copysign(1.0, y)
    norm = math.sqrt(x * x + y * y)
    if norm:
        stream[target[0]] += x / norm
        stream[target[1]] += y / norm


def _array(tensor: Any) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().double().numpy())
