"""Turing machines with any finite alphabet and any number of tapes: description, files, direct simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octavo_prompt_turing.user_files import read_user_file

__all__ = ["Action", "TMResult", "TuringMachine"]

Action = tuple[str, tuple[tuple[str, str], ...]]
"""Next state, and for each tape the symbol written and the move: ``L``, ``R`` or ``N``."""

_MAX_BYTES = 16 * 2**20


class _File(BaseModel):
    """The JSON form: the attributes of automata-lib's machines; several tapes' symbols are joined by commas."""

    model_config = ConfigDict(extra="forbid")
    states: list[str]
    input_symbols: list[str]
    tape_symbols: list[str]
    transitions: dict[str, dict[str, Any]]
    initial_state: str
    blank_symbol: str
    final_states: list[str]
    n_tapes: int = Field(default=1, ge=1, le=8)


@dataclass(frozen=True)
class TMResult:
    """What a run of a Turing machine left.

    Args:
        accepted: Whether it stopped in a final state.
        halted: Whether it stopped at all.
        steps: Transitions made.
        tape: Tape 1 from its leftmost symbol that is not blank up to the next blank.
    """

    accepted: bool
    halted: bool
    steps: int
    tape: tuple[str, ...]


@dataclass(frozen=True)
class TuringMachine:
    """A deterministic Turing machine; it accepts on entering a final state and rejects where no transition is given.

    Args:
        states: Names of the states.
        input_symbols: Symbols that inputs are made of.
        tape_symbols: All symbols.
        transitions: By state, then by the tuple of symbols under the heads.
        initial_state: Where it starts, heads on the first input symbol, input on tape 1.
        blank_symbol: Content of cells never written.
        final_states: States that accept at once.
        num_tapes: Number of tapes.

    Raises:
        InvalidValueError: If a state or symbol is unknown or named twice, a move is none of L, R, N, or tapes are
            miscounted.
    """

    states: tuple[str, ...]
    input_symbols: tuple[str, ...]
    tape_symbols: tuple[str, ...]
    transitions: Mapping[str, Mapping[tuple[str, ...], Action]]
    initial_state: str
    blank_symbol: str
    final_states: frozenset[str]
    num_tapes: int = 1

    def __post_init__(self) -> None:
        _distinct("states", self.states)
        _distinct("input symbols", self.input_symbols)
        _distinct("tape symbols", self.tape_symbols)
        _known("the initial state", [self.initial_state], self.states, "state")
        _known("the final states", self.final_states, self.states, "state")
        _known("the input alphabet", self.input_symbols, self.tape_symbols, "tape symbol")
        _known("the blank", [self.blank_symbol], self.tape_symbols, "tape symbol")
        if self.blank_symbol in self.input_symbols:
            raise InvalidValueError(f"the blank {self.blank_symbol!r} cannot be an input symbol")
        _known("the transitions", self.transitions, self.states, "state")
        for state, row in self.transitions.items():
            for symbols, (target, writes) in row.items():
                where = f"transition from {state!r} on {','.join(symbols)!r}"
                if len(symbols) != self.num_tapes or len(writes) != self.num_tapes:
                    raise InvalidValueError(f"{where} is not for {self.num_tapes} tape(s)")
                _known(where, [target], self.states, "state")
                _known(where, [*symbols, *(symbol for symbol, _ in writes)], self.tape_symbols, "tape symbol")
                _known(where, [move for _, move in writes], ("L", "R", "N"), "move")

    @classmethod
    def single_tape(
        cls,
        table: Mapping[str, Mapping[str, tuple[str, str, str]]],
        *,
        initial: str,
        final: Iterable[str],
        blank: str,
        input_symbols: Iterable[str],
    ) -> TuringMachine:
        """Describe a one-tape machine by its table.

        Args:
            table: By state and symbol: next state, symbol written, move.
            initial: Initial state.
            final: Final states.
            blank: Blank symbol.
            input_symbols: Input alphabet.

        Returns:
            The machine; states and symbols are collected from the table.

        Raises:
            InvalidValueError: If the machine is not consistent.
        """
        inputs, finals = tuple(input_symbols), tuple(final)
        entries = [entry for row in table.values() for entry in row.values()]
        states = dict.fromkeys([initial, *table, *(entry[0] for entry in entries), *finals])
        symbols = dict.fromkeys([blank, *inputs, *(s for row in table.values() for s in row), *(e[1] for e in entries)])
        rows: dict[str, dict[tuple[str, ...], Action]] = {
            state: {(symbol,): (target, ((write, move),)) for symbol, (target, write, move) in row.items()}
            for state, row in table.items()
        }
        return cls(tuple(states), inputs, tuple(symbols), rows, initial, blank, frozenset(finals))

    @classmethod
    def from_automata(cls, machine: Any) -> TuringMachine:
        """Convert a machine of automata-lib: ``DTM``, or ``MNTM`` with at most one transition each.

        Args:
            machine: The machine.

        Returns:
            The same machine.

        Raises:
            InvalidTypeError: If it is of another kind.
            InvalidValueError: If it is not deterministic.
        """
        wanted = ("states", "input_symbols", "tape_symbols", "transitions", "initial_state", "blank_symbol")
        if not all(hasattr(machine, name) for name in (*wanted, "final_states")):
            raise InvalidTypeError(
                f"a {type(machine).__name__} is no Turing machine; give a TuringMachine, such "
                "as TuringMachine.load(path) reads from JSON, or an automata-lib DTM or MNTM"
            )
        num_tapes = int(getattr(machine, "n_tapes", 1))
        rows: dict[str, dict[tuple[str, ...], Action]] = {}
        for state, row in machine.transitions.items():
            for symbols, result in row.items():
                key = tuple(symbols) if hasattr(machine, "n_tapes") else (symbols,)
                options = list(result) if hasattr(machine, "n_tapes") else [(result[0], [result[1:]])]
                if len(options) > 1:
                    raise InvalidValueError(f"state {state!r} has {len(options)} transitions on {symbols!r}; one is ok")
                for target, writes in options:
                    rows.setdefault(str(state), {})[key] = (str(target), tuple((str(s), str(m)) for s, m in writes))
        return cls(
            tuple(sorted(map(str, machine.states))),
            tuple(sorted(machine.input_symbols)),
            tuple(sorted(machine.tape_symbols)),
            rows,
            str(machine.initial_state),
            machine.blank_symbol,
            frozenset(map(str, machine.final_states)),
            num_tapes,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TuringMachine:
        """Read a machine from a JSON file with the attributes that automata-lib's machines have.

        Args:
            path: File with ``states``, ``input_symbols``, ``tape_symbols``, ``transitions`` (by state and symbol:
                ``[state, symbol, move]``; for several tapes by state and ``"a,b"``, or ``'["a", ","]'`` if a tape
                symbol has a comma: ``[state, [[symbol, move], ...]]``),
                ``initial_state``, ``blank_symbol``, ``final_states``, and ``n_tapes`` if not 1.

        Returns:
            The machine.

        Raises:
            MissingFileError: If there is no such file, or it cannot be read.
            InvalidValueError: If it does not describe a machine.
        """
        file = Path(path)
        content = read_user_file(file, "give the JSON description of a Turing machine", _MAX_BYTES)
        try:
            data = _File.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise InvalidValueError(f"{str(file)!r} is not a Turing machine: {place}: {first['msg']}") from error
        rows: dict[str, dict[tuple[str, ...], Action]] = {}
        for state, row in data.transitions.items():
            for symbols, result in row.items():
                under = _key(symbols, data.n_tapes, data.tape_symbols)
                rows.setdefault(state, {})[under] = _action(state, symbols, result, data.n_tapes)
        return cls(
            tuple(data.states),
            tuple(data.input_symbols),
            tuple(data.tape_symbols),
            rows,
            data.initial_state,
            data.blank_symbol,
            frozenset(data.final_states),
            data.n_tapes,
        )

    def to_json(self) -> str:
        """Write the JSON form that :meth:`load` reads."""
        rows: dict[str, dict[str, Any]] = {}
        as_list = self.num_tapes > 1 and _has_comma(self.tape_symbols)
        for state, row in self.transitions.items():
            for symbols, (target, writes) in row.items():
                key = json.dumps(symbols, ensure_ascii=False) if as_list else ",".join(symbols)
                result = [target, *writes[0]] if self.num_tapes == 1 else [target, [list(write) for write in writes]]
                rows.setdefault(state, {})[key] = result
        data = _File(
            states=list(self.states),
            input_symbols=list(self.input_symbols),
            tape_symbols=list(self.tape_symbols),
            transitions=rows,
            initial_state=self.initial_state,
            blank_symbol=self.blank_symbol,
            final_states=sorted(self.final_states),
            n_tapes=self.num_tapes,
        )
        return json.dumps(data.model_dump(), indent=1, ensure_ascii=False) + "\n"

    def missing(self) -> list[tuple[str, tuple[str, ...]]]:
        """Pairs of a state that is not final and symbols for which no transition is given."""
        from itertools import product

        return [
            (state, symbols)
            for state in self.states
            if state not in self.final_states
            for symbols in product(self.tape_symbols, repeat=self.num_tapes)
            if symbols not in self.transitions.get(state, {})
        ]

    def run(self, word: Sequence[str], max_steps: int = 100_000) -> TMResult:
        """Simulate the machine directly.

        Args:
            word: Input symbols.
            max_steps: Most transitions.

        Returns:
            The result.

        Raises:
            InvalidValueError: If a symbol is not an input symbol.
        """
        _known("the input", word, self.input_symbols, "input symbol")
        tapes: list[dict[int, str]] = [dict(enumerate(word)), *({} for _ in range(self.num_tapes - 1))]
        heads, state, steps = [0] * self.num_tapes, self.initial_state, 0
        while True:
            if state in self.final_states:
                return TMResult(True, True, steps, self._content(tapes[0]))
            under = tuple(tape.get(head, self.blank_symbol) for tape, head in zip(tapes, heads, strict=True))
            action = self.transitions.get(state, {}).get(under)
            if action is None:
                return TMResult(False, True, steps, self._content(tapes[0]))
            if steps == max_steps:
                return TMResult(False, False, steps, self._content(tapes[0]))
            state, steps = action[0], steps + 1
            for index, (symbol, move) in enumerate(action[1]):
                tapes[index][heads[index]] = symbol
                heads[index] += {"L": -1, "N": 0, "R": 1}[move]

    def _content(self, tape: dict[int, str]) -> tuple[str, ...]:
        written = [cell for cell, symbol in tape.items() if symbol != self.blank_symbol]
        symbols: list[str] = []
        cell = min(written, default=0)
        while (symbol := tape.get(cell, self.blank_symbol)) != self.blank_symbol:
            symbols.append(symbol)
            cell += 1
        return tuple(symbols)


def _known(where: str, names: Iterable[str], allowed: Iterable[str], kind: str) -> None:
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            raise InvalidValueError(f"{where} uses {name!r}, which is no {kind}; those are {', '.join(allowed)}")


def _distinct(kind: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidValueError(f"the {kind} have {name!r} twice; name each once")
        seen.add(name)


def _has_comma(symbols: Iterable[str]) -> bool:
    return any("," in symbol for symbol in symbols)


def _key(symbols: str, num_tapes: int, tape_symbols: Sequence[str]) -> tuple[str, ...]:
    """Symbols under the heads: joined by commas, or, where that is ambiguous, also a JSON list."""
    if num_tapes == 1:
        return (symbols,)
    if _has_comma(tape_symbols) and symbols.startswith("["):
        try:
            parts = json.loads(symbols)
            if len(parts) == num_tapes and all(isinstance(part, str) for part in parts):
                return tuple(parts)
        except (ValueError, RecursionError):
            pass
    return tuple(symbols.split(","))


def _action(state: str, symbols: str, result: Any, num_tapes: int) -> Action:
    try:
        if num_tapes == 1:
            target, symbol, move = result
            writes = [(symbol, move)]
        else:
            target, writes = result
        action = (target, tuple((symbol, move) for symbol, move in writes))
        if all(isinstance(text, str) for text in (target, *(part for write in action[1] for part in write))):
            return action
    except (TypeError, ValueError):
        pass
    form = "[state, symbol, move]" if num_tapes == 1 else "[state, [[symbol, move], ...]]"
    raise InvalidValueError(f"transition from {state!r} on {symbols!r} is {result!r}; write {form}")
