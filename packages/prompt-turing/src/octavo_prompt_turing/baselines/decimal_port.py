"""Evaluation as in the reference implementation: one position at a time, decimal numbers of 40 digits, scores to 20.

It reads the same weights, keeps keys and values, and skips zero weights, so that only the arithmetic is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from octavo_prompt_turing.engines.reference import SparseModel, Term, compile_sparse

__all__ = ["DecimalReader"]

_DIGITS = 40
_QUANTUM = Decimal(1).scaleb(-20)
_CONTEXT = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)
_CLIP = Decimal(2)


class DecimalReader:
    """Reads one sequence token by token and scores the next token.

    Args:
        model: A :class:`octavo_prompt_turing.PromptTuringModel`.

    Source:
        The paper's notebook: 40 digits, scores rounded to 20 digits before they are compared.
    """

    def __init__(self, model: Any) -> None:
        self.weights: SparseModel = compile_sparse(model)
        self.ids: list[int] = []
        self._memory: list[list[tuple[list[list[Decimal]], list[list[Decimal]]]]] = [
            [([], []) for _ in block.heads] for block in self.weights.blocks
        ]
        self._stream: list[Decimal] = []

    def push(self, token: int) -> None:
        """Read a token.

        Args:
            token: Its id.
        """
        self.ids.append(token)
        stream = [Decimal(0)] * self.weights.layout.width
        _scatter(stream, self.weights.embedding[token], Decimal(1))
        for feature, row in zip(_positional(len(self.ids)), self.weights.positional, strict=True):
            _scatter(stream, row, feature)
        for block, memory in zip(self.weights.blocks, self._memory, strict=True):
            self._block(stream, block, memory)
        self._stream = stream

    def logits(self) -> list[float]:
        """Scores of the next token, one for each of the 23."""
        return [float(_dot(row, self._stream)) for row in self.weights.unembedding]

    def next_id(self) -> int:
        """Id of the next token: that with the largest logit."""
        scores = [_dot(row, self._stream) for row in self.weights.unembedding]
        return scores.index(max(scores))

    def _block(self, stream: list[Decimal], block: Any, memory: Any) -> None:
        added: list[tuple[Sequence[Term], Decimal]] = []
        multiply, add = _CONTEXT.multiply, _CONTEXT.add
        for (query_rows, key_rows, value_rows, output_rows), (keys, values) in zip(block.heads, memory, strict=True):
            keys.append([_dot(row, stream) for row in key_rows])
            values.append([_dot(row, stream) for row in value_rows])
            query = [_dot(row, stream) for row in query_rows]
            scores = []
            for key in keys:
                score = Decimal(0)
                for q, k in zip(query, key, strict=True):
                    score = add(score, multiply(q, k))
                scores.append(min(_CLIP, score).quantize(_QUANTUM, context=_CONTEXT))
            best = max(scores)
            chosen = [value for score, value in zip(scores, values, strict=True) if score == best]
            for number, row in enumerate(output_rows):
                total = sum((value[number] for value in chosen), Decimal(0))
                added.append((row, _CONTEXT.divide(total, Decimal(len(chosen)))))
        for row, mean in added:
            _scatter(stream, row, mean)
        for sources, targets in block.norms:
            group = [stream[source] for source in sources]
            norm = _CONTEXT.sqrt(sum((multiply(entry, entry) for entry in group), Decimal(0)))
            if norm.quantize(_QUANTUM, context=_CONTEXT):
                for entry, target in zip(group, targets, strict=True):
                    stream[target] = add(stream[target], _CONTEXT.divide(entry, norm))
        active = []
        for row, bias, target in zip(block.hidden, block.hidden_bias, block.projection, strict=True):
            inner = add(_dot(row, stream), Decimal(bias.numerator) / bias.denominator)
            if inner > 0:
                active.append((target, inner))
        for target, inner in active:
            _scatter(stream, target, inner)
        for column, bias in block.projection_bias:
            stream[column] = add(stream[column], Decimal(bias.numerator) / bias.denominator)


def _positional(i: int) -> tuple[Decimal, Decimal, Decimal, Decimal]:
    position = Decimal(i)
    norm = _CONTEXT.sqrt(position * position + 1)
    following = _CONTEXT.sqrt((position + 1) * (position + 1) + 1)
    divide = _CONTEXT.divide
    cosine = divide(position * (position + 1) + 1, _CONTEXT.multiply(norm, following))
    return divide(Decimal(1), position), 1 - cosine, divide(position, norm), divide(Decimal(1), norm)


def _dot(row: Sequence[Term], stream: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for column, n, d in row:
        term = stream[column] * n if d == 1 else stream[column] * n / d
        total = _CONTEXT.add(total, term)
    return total


def _scatter(stream: list[Decimal], row: Sequence[Term], amount: Decimal) -> None:
    for column, n, d in row:
        stream[column] = _CONTEXT.add(stream[column], amount * n if d == 1 else amount * n / d)
