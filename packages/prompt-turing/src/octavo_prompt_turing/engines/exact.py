"""The exact engine: integers only, a constant number of dictionary look-ups a token, no limit on the length.

Every normalised pair of the construction is ``(p, 1)/sqrt(p^2 + 1)`` with an integer p, or ``(1, 0)``. So a key is an
integer, attention with the largest score is a look-up of an equal integer, and the tie-breaks ``-pe1(i)/k`` and
``+pe1(i)/k`` choose the latest and the earliest position, because pe1(i) is below ``1 - cos`` of any two different
integers up to i (paper, construction). Uniform attention is a running sum.

All this is proven for the weights of the construction only, so every tensor of the model must equal the construction's;
this is checked, and any other model is refused. Embedding, feed-forward layers and unembedding are still evaluated from
the model's matrices: they see few different inputs, so each is computed once and remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidValueError

from octavo_prompt_turing.blocks import BlockWeights, Layout
from octavo_prompt_turing.construction import build_construction, column
from octavo_prompt_turing.engines.fallback import nearest_fetch
from octavo_prompt_turing.tokens import TOKEN_IDS, TOKENS

__all__ = ["ExactReader", "ExactTables", "compile_tables"]

_CARET, _DOLLAR = TOKEN_IDS["^"], TOKEN_IDS["$"]
_LOCAL = (
    *("A_move", "is_A_write", "A_write", "B_move", "is_B_write", "B_write"),
    *("is_inst", "is_goto_cond", "rec_is_start", "rec_is_end", "rec_is_goto", "prog_cur_move"),
)
_INFINITE = -1
_GLOBAL = ("embedding", "positional", "unembedding")
_IN_BLOCK = ("query", "key", "value", "output", "hidden", "hidden_bias", "projection", "projection_bias")

Local = tuple[int, ...]


@dataclass(eq=False)
class ExactTables:
    """What the model's embedding, feed-forward layers and unembedding do to the few inputs that occur.

    Args:
        layout: Names of the columns.
        embedding: (23, D).
        blocks: Weights of the blocks.
        unembedding: (23, D).
        local: By token id and "the program has been read": the features of a single token after block 1.
        next_token: By (fetched id, bit under A, bit under B, output state, flag, bit): the logits and the next id.
    """

    layout: Layout
    embedding: np.ndarray
    blocks: list[BlockWeights]
    unembedding: np.ndarray
    local: list[tuple[Local, Local]] = field(default_factory=list)
    next_token: dict[tuple[int, int, int, int, int, int], tuple[list[float], int]] = field(default_factory=dict)
    _val: dict[tuple[str, int], int] = field(default_factory=dict)
    _ends: dict[tuple[int, int], int] = field(default_factory=dict)
    _excess: dict[int, bool] = field(default_factory=dict)

    def feed(self, block: int, inputs: Mapping[str, float | int]) -> Callable[[str], float]:
        """Run one feed-forward layer on named features.

        Args:
            block: Number of the block, from 0.
            inputs: Features that are not 0.

        Returns:
            A function that gives what a feature is afterwards.
        """
        stream = self.layout.row(inputs)
        weights = self.blocks[block]
        cut = self.layout.num_integers
        inner = weights.hidden[:, :cut] @ stream[:cut] + weights.hidden_bias + weights.hidden[:, cut:] @ stream[cut:]
        after = stream + weights.projection @ np.maximum(inner, 0) + weights.projection_bias
        return lambda name: float(after[self.layout.index(name)])

    def value(self, name: str, bit: int) -> int:
        """The bit that a tape read gives when the newest write to the cell wrote ``bit`` (block 4).

        Args:
            name: ``"A"``, ``"B"``, ``"read_retr0"`` or ``"read_retr1"``.
            bit: The bit written.

        Returns:
            0 or 1.
        """
        key = (name, bit)
        if key not in self._val:
            retrieved = f"{name}_retr" if len(name) == 1 else name
            read = self.feed(3, {retrieved: bit, f"{retrieved}_is_write": 1, "one": 1})
            self._val[key] = _integer(read(f"{name}_val"), f"{name}_val")
        return self._val[key]

    def token_index(self, end: int, count: int) -> int:
        """Index of the next token inside a jump (block 3), or ``_INFINITE`` when no jump is being printed.

        Args:
            end: Whether the present token ends a record.
            count: Tokens of the present record if it began with ``=``, else ``_INFINITE``.

        Returns:
            The index.

        Raises:
            InvalidValueError: If the feed-forward weights turn the direction into something else.
        """
        key = (end, count)
        if key not in self._ends:
            norm = (count * count + 1) ** 0.5
            x, y = (1.0, 0.0) if count == _INFINITE else (count / norm, 1 / norm)
            read = self.feed(2, {"_prog_tmp_norm": x, "_prog_tmp_one_norm": y, "rec_is_end": end, "one": 1})
            found = (read("prog_tmp_norm"), read("prog_tmp_one_norm"))
            if found == (1.0, 0.0):
                self._ends[key] = _INFINITE
            elif found == (x, y):
                self._ends[key] = count
            else:
                raise InvalidValueError(f"block 3 makes {found} of ({x}, {y}), which is no direction of an integer")
        return self._ends[key]

    def excludes_record(self, in_jump: int) -> bool:
        """Whether the program counter leaves out the present record (blocks 3 and 4).

        Args:
            in_jump: The feature ``rec_is_goto``.

        Returns:
            Whether ``bias`` is below 3.

        Raises:
            InvalidValueError: If the feed-forward weights give neither 0 nor half the gap.
        """
        if in_jump not in self._excess:
            gap = 2.0**-20
            excess = self.feed(2, {"prog_rec_diff": gap, "rec_is_goto": in_jump, "one": 1})("prog_rec_excess")
            if excess not in {0.0, gap / 2}:
                raise InvalidValueError(f"block 3 makes an excess of {excess} of a gap of {gap}; 0 or half is expected")
            self._excess[in_jump] = excess > 0
        return self._excess[in_jump]

    def decide(self, fetched: int, a: int, b: int, reading: int, flag: int, bit: int) -> tuple[list[float], int]:
        """Logits and the most likely token (block 5 and unembedding).

        Args:
            fetched: Id of the token fetched from the program; -1 for none.
            a: Bit under head A.
            b: Bit under head B.
            reading: The feature ``is_read_key``.
            flag: Flag of the next output bit.
            bit: The next output bit.

        Returns:
            The 23 logits, and the id of the largest, the first one on ties.
        """
        key = (fetched, a, b, reading, flag, bit)
        if key not in self.next_token:
            inputs = {"A_val": a, "B_val": b, "is_read_key": reading, "read_retr0_val": flag, "read_retr1_val": bit}
            stream = self.layout.row({**inputs, "one": 1})
            if fetched >= 0:
                head = self.blocks[4]
                stream += head.output[0] @ (head.value[0] @ self.layout.row({column(TOKENS[fetched]): 1}))
            names = {name: float(stream[i]) for i, name in enumerate(self.layout.names) if stream[i]}
            read = self.feed(4, names)
            after = np.array([read(name) for name in self.layout.names])
            logits = self.unembedding @ after
            self.next_token[key] = (logits.tolist(), int(logits.argmax()))
        return self.next_token[key]


_COMPILED: weakref.WeakKeyDictionary[Any, tuple[str, ExactTables]] = weakref.WeakKeyDictionary()


def compile_tables(model: Any) -> ExactTables:
    """Check that a model's weights are the construction's and tabulate its layers; kept until the weights change.

    Args:
        model: A :class:`octavo_prompt_turing.PromptTuringModel`.

    Returns:
        The tables.

    Raises:
        InvalidValueError: If any tensor is not that of the construction.
    """
    state = model.state_hash()
    if model in _COMPILED and _COMPILED[model][0] == state:
        return _COMPILED[model][1]
    built = build_construction()
    blocks = []
    own = {name: _checked(getattr(model, name), getattr(built, name), f"the {name} weights") for name in _GLOBAL}
    for number, (block, weights) in enumerate(zip(model.blocks, built.blocks, strict=True), start=1):
        arrays = {
            name: _checked(getattr(block, name), getattr(weights, name), f"the {name} weights of block {number}")
            for name in _IN_BLOCK
        }
        blocks.append(
            BlockWeights(
                **arrays,
                norm_sources=weights.norm_sources,
                norm_targets=weights.norm_targets,
                shape=weights.shape,
                head_names=weights.head_names,
            )
        )
    tables = ExactTables(model.layout, own["embedding"], blocks, own["unembedding"])
    tables.local = [(_local(tables, token, 0), _local(tables, token, 1)) for token in range(len(TOKENS))]
    _COMPILED[model] = (state, tables)
    return tables


def _local(tables: ExactTables, token: int, after: int) -> Local:
    row = tables.embedding[token]
    names = {name: float(row[i]) for i, name in enumerate(tables.layout.names) if row[i]}
    read = tables.feed(0, {**names, "after_delim": after})
    embedded = ("[=]", "is_read_key", "read_cur0_shift", "read_cur1_shift", "[:]")
    return tuple(_integer(read(name), name) for name in (*_LOCAL, *embedded))


class ExactReader:
    """Reads one sequence token by token and tells the next token.

    Args:
        tables: From :func:`compile_tables`.

    Source:
        Paper, construction; the look-ups by integer are beyond the paper.
    """

    def __init__(self, tables: ExactTables) -> None:
        self.tables = tables
        self.ids: list[int] = []
        self.head_a = self.head_b = 0
        self.tape_a: dict[int, int] = {}
        self.tape_b: dict[int, int] = {}
        self._delimiter = 0
        self._starts: list[int] = []
        self._record_length = self._record_jump = self._record_moves = 0
        self._moves = 0
        self._cursor = (0, 0, 0)
        self._local: Local = ()

    def push(self, token: int) -> None:
        """Read a token.

        Args:
            token: Its id.

        Raises:
            InvalidStateError: If the sequence does not begin with ``^``, or has it again.
        """
        ids = self.ids
        if (token == _CARET) != (not ids):
            raise InvalidStateError("a sequence begins with '^' and has it only there; the exact engine relies on it")
        ids.append(token)
        if token == _DOLLAR and not self._delimiter:
            self._delimiter = 1
        self._local = local = self.tables.local[token][self._delimiter]
        (move_a, write_a, bit_a, move_b, write_b, bit_b, inst, _, start, _, _, move, jump, reading, cur0, cur1, sep) = (
            local
        )
        if move_a:
            self.head_a += move_a
        if write_a:
            self.tape_a[self.head_a] = bit_a
        if move_b:
            self.head_b += move_b
        if write_b:
            self.tape_b[self.head_b] = bit_b
        if inst:
            self._starts.append(len(ids))
        if start:
            self._record_length = self._record_jump = self._record_moves = 0
        self._record_length += 1
        self._record_jump += jump
        self._record_moves += move
        self._moves += move
        if reading:
            a, b, c = self._cursor
            self._cursor = (a + cur0, b + cur1, c + sep)

    @property
    def counter(self) -> int:
        """The program counter that the model attends with."""
        return self._moves - (self._record_moves if self.tables.excludes_record(self._local[10]) else 0)

    def next_id(self) -> int:
        """Id of the next token: that with the largest logit."""
        return self._decide()[1]

    def logits(self) -> list[float]:
        """Scores of the next token, one for each of the 23."""
        return self._decide()[0]

    def generate(self) -> Iterator[int]:
        """Decode greedily, without end unless the caller stops at ``$``.

        Yields:
            Token ids, each read before the next is computed.
        """
        while True:
            token = self._decide()[1]
            self.push(token)
            yield token

    def copy(self) -> ExactReader:
        """Make an independent reader that has read the same tokens."""
        other = ExactReader(self.tables)
        other.__dict__.update(self.__dict__)
        other.ids, other._starts = self.ids.copy(), self._starts.copy()
        other.tape_a, other.tape_b = self.tape_a.copy(), self.tape_b.copy()
        return other

    def rewound(self, length: int) -> ExactReader:
        """Make a reader that has read only the first tokens.

        Args:
            length: Number of tokens.

        Returns:
            The reader.
        """
        if length >= len(self.ids):
            return self.copy()
        fresh = ExactReader(self.tables)
        for token in self.ids[:length]:
            fresh.push(token)
        return fresh

    def _decide(self) -> tuple[list[float], int]:
        tables, local = self.tables, self._local
        fetched = self._fetch()
        bit_a, bit_b = self.tape_a.get(self.head_a), self.tape_b.get(self.head_b)
        reading = local[13]
        a = 0 if bit_a is None else tables.value("A", bit_a)
        b = 0 if bit_b is None else tables.value("B", bit_b)
        flag, bit = self._output_reads() if reading else (0, 0)
        key = (fetched, a, b, reading, flag, bit)
        known = tables.next_token.get(key)
        return tables.decide(*key) if known is None else known

    def _output_reads(self) -> tuple[int, int]:
        """Flag and bit of the next output bit: tape A at the cells of the two cursors."""
        cells, separators = self._cursor[:2], self._cursor[2]
        reads = []
        for name, cell in zip(("read_retr0", "read_retr1"), cells, strict=True):
            # The cursor is (cell, separators) normalised; it is the direction of an integer when ':' stands once.
            written = self.tape_a.get(cell // separators) if separators and cell % separators == 0 else None
            reads.append(0 if written is None else self.tables.value(name, written))
        return reads[0], reads[1]

    def _fetch(self) -> int:
        """Id of the token of instruction pc at the place reached in the record; -1 where no value row sees it."""
        local, starts = self._local, self._starts
        counter = self._moves
        if local[10] and self.tables.excludes_record(local[10]):
            counter -= self._record_moves
        place = self._record_length if self._record_jump else _INFINITE
        if place != _INFINITE or local[9]:
            place = self.tables.token_index(local[9], place)
        if 0 <= counter < len(starts):
            position = starts[counter]
            if place == _INFINITE:
                return self.ids[position - 1]
            # Tokens of a jump stand one after another, the j-th after its condition token.
            end = starts[counter + 1] if counter + 1 < len(starts) else len(self.ids) + 1
            if position + place < end and self.tables.local[self.ids[position - 1]][0][7]:
                return self.ids[position + place - 1]
        return nearest_fetch(self.ids, starts, counter, None if place == _INFINITE else place)


def _integer(value: float, name: str) -> int:
    if value != round(value):
        raise InvalidValueError(
            f"feature {name!r} is {value}, not an integer, which the exact engine needs; use engine='reference'"
        )
    return int(value)


def _checked(tensor: Any, wanted: np.ndarray, what: str) -> np.ndarray:
    found = tensor.detach().cpu().double().numpy()
    if not np.array_equal(found, wanted):
        raise InvalidValueError(
            f"{what} are not those of the construction, the only ones that the exact engine is proven for; use "
            "engine='reference' or 'deficit64' for other weights"
        )
    return found.copy()
