"""How compiled Turing machines lie on the two tapes, and the code that reads, writes and moves them.

Tape 1 lives on B, in cells of a "visited" flag and a binary symbol, so that the ends of what was used can be found; a
second tape lives on A in the same way, with a mark of cell 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_prompt_turing.emitter import Emitter
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.turing import TuringMachine

__all__ = ["Output", "OwnTapes", "TapeWriter", "Track", "codes_of", "marks"]

Output = Literal["accept", "tape", "both"]
"""What a compiled machine prints: its verdict, the content of tape 1, or both."""


def marks(machine: TuringMachine) -> tuple[str, ...]:
    """Tape symbols other than the blank.

    Args:
        machine: The machine.

    Returns:
        The symbols in their order.
    """
    return tuple(symbol for symbol in machine.tape_symbols if symbol != machine.blank_symbol)


def codes_of(symbols: Sequence[str]) -> dict[str, str]:
    """Fixed-width codes; symbols "0" and "1" alone stand for themselves.

    Args:
        symbols: The symbols.

    Returns:
        A code for each.
    """
    if set(symbols) <= {"0", "1"}:
        return {symbol: symbol for symbol in sorted(symbols)}
    width = max(1, (len(symbols) - 1).bit_length())
    return {symbol: format(index, f"0{width}b") for index, symbol in enumerate(symbols)}


@dataclass(frozen=True)
class Track:
    """Where a tape of the machine lives.

    Args:
        tape: ``"A"`` or ``"B"``.
        cell: Cells of that tape for one cell of the machine.
        first: Place of the symbol's first bit among them.
    """

    tape: str
    cell: int
    first: int


class TapeWriter(ABC):
    """What all layouts share: input and output.

    Args:
        machine: The machine.
        output: What to print.
        tracks: Where its tapes live.
        origin: Whether cell 0 has to be found again on the tape of the last track.
    """

    def __init__(self, machine: TuringMachine, output: Output, tracks: Sequence[Track], origin: bool) -> None:
        self.machine, self.output, self.tracks, self.origin = machine, output, tracks, origin
        symbols = marks(machine)
        # The blank is all zeros, as cells never visited are.
        self.width = max(1, len(symbols).bit_length())
        self.code: dict[str, str] = {machine.blank_symbol: "0" * self.width}
        self.code |= {symbol: format(index + 1, f"0{self.width}b") for index, symbol in enumerate(symbols)}
        self.emit = Emitter()

    def write(self, name: str) -> Program:
        """Write the whole program.

        Args:
            name: Its name.

        Returns:
            The program.
        """
        self._prologue()
        self._body()
        self._epilogue()
        return self.emit.link(name)

    @abstractmethod
    def _body(self) -> None:
        """Write the machine's states."""

    def _tree(self, tape: str, codes: Mapping[str, str], stride: int, leaf: Callable[[str], None], other: str) -> None:
        """Read a code word whose bits stand ``stride`` cells apart; ``leaf`` gets the symbol, the head on its end."""
        emit = self.emit

        def read(prefix: str) -> None:
            matching = [symbol for symbol, code in codes.items() if code.startswith(prefix)]
            if not matching:
                emit.goto(other, tape)
                return
            if len(prefix) == len(next(iter(codes.values()))):
                leaf(matching[0])
                return
            if prefix:
                emit.move(tape, stride)
            one = emit.fresh("one")
            emit.jump(f"{tape}?", one)
            read(prefix + "0")
            emit.label(one)
            read(prefix + "1")

        read("")

    def _prologue(self) -> None:
        """Copy the input from A to track 1, and bring both heads back to their cell 0."""
        emit, track = self.emit, self.tracks[0]
        codes = codes_of(self.machine.input_symbols)
        emit.jump("A!", "input.end")
        emit.label("input")
        emit.op("AR")

        def leaf(symbol: str) -> None:
            emit.op("B1")
            self._put(track, 0, self.code[symbol])
            emit.op("AR")
            # The next cell of B is not visited yet; a jump back costs tokens only while input is left.
            emit.jump("A?", "input")
            emit.goto("input.end", "B", known=0)

        self._tree("A", codes, 2, leaf, "bad.input")
        emit.label("bad.input")
        emit.op("AR")
        emit.label("input.end")
        back, clear, done = "rewind.b", "rewind.a", "rewound"
        emit.label(back)
        emit.move("B", -track.cell)
        emit.jump("B?", back)
        emit.move("B", track.cell)
        emit.op("B1")
        emit.label(clear)
        emit.op("AL", "A0", "AL")
        emit.jump("A!", done)
        emit.op("A0")
        emit.jump("A!", clear)
        emit.label(done)
        emit.op("AR", "AR")

    def _put(self, track: Track, position: int, code: str) -> None:
        """Write a code from the head's place ``position`` in the cell, and go to the start of the next cell."""
        emit = self.emit
        for index, bit in enumerate(code):
            target = track.first + index
            if bit == "1":
                emit.move(track.tape, target - position)
                emit.write(track.tape, 1)
                position = target
        emit.move(track.tape, track.cell - position)

    def _change(self, track: Track, old: str, new: str, position: int) -> int:
        """Write the bits that differ, from right to left; return where the head is in the cell."""
        for index in reversed(range(self.width)):
            if old[index] != new[index]:
                target = track.first + index
                self.emit.move(track.tape, target - position)
                self.emit.write(track.tape, int(new[index]))
                position = target
        return position

    def _epilogue(self) -> None:
        emit = self.emit
        for verdict in ("accept", "reject"):
            emit.label(verdict)
            self._home_a()
            if self.output != "tape":
                emit.op("A1", "AR", "A1" if verdict == "accept" else "A0", "AR")
            if verdict == "accept":
                emit.goto("output")
        emit.label("output")
        if self.output != "accept":
            self._print_tape()
        emit.label("finish")
        emit.op("A0", "#")

    @abstractmethod
    def _home_a(self) -> None:
        """Bring head A to its absolute cell 0."""

    def _print_tape(self) -> None:
        emit, track = self.emit, self.tracks[0]
        left = emit.fresh("left")
        emit.label(left)
        emit.move("B", -track.cell)
        emit.jump("B?", left)
        emit.move("B", track.cell)
        codes = codes_of(marks(self.machine))
        end = track.first + self.width - 1

        def next_cell(symbol: str) -> None:
            if symbol == self.machine.blank_symbol:
                emit.move("B", track.cell - end)
                emit.jump("B?", "skip")
                emit.goto("finish", "B", known=0)
            else:
                emit.move("B", -end)
                emit.goto("print", "B", known=1)

        def print_symbol(symbol: str) -> None:
            if symbol == self.machine.blank_symbol:
                emit.goto("finish", "B")
                return
            for bit in codes[symbol]:
                emit.op("A1", "AR", f"A{bit}", "AR")
            emit.move("B", track.cell - end)
            emit.jump("B?", "print")
            emit.goto("finish", "B", known=0)

        for label, leaf in (("skip", next_cell), ("print", print_symbol)):
            emit.label(label)
            emit.move("B", track.first)
            self._tree("B", self.code, 1, leaf, "finish")


class OwnTapes(TapeWriter):
    """One or two tapes, each on a tape of its own.

    Args:
        machine: The machine.
        output: What to print.
    """

    def __init__(self, machine: TuringMachine, output: Output) -> None:
        width = max(1, len(marks(machine)).bit_length())
        tracks = (Track("B", 1 + width, 1), Track("A", 2 + width, 2))
        super().__init__(machine, output, tracks[: machine.num_tapes], origin=machine.num_tapes == 2)

    def _body(self) -> None:
        emit = self.emit
        if self.origin:
            emit.op("A1", "AR", "A1", "AL")
        emit.goto(f"state.{self.machine.initial_state}", "B", known=1)
        for state in self.machine.states:
            emit.label(f"state.{state}")
            if state in self.machine.final_states:
                emit.goto("accept", "B", known=1)
            else:
                self._read_track(state, ())

    def _read_track(self, state: str, seen: tuple[str, ...]) -> None:
        if len(seen) == len(self.tracks):
            self._act(state, seen)
            return
        track = self.tracks[len(seen)]
        self.emit.move(track.tape, track.first)
        self._tree(track.tape, self.code, 1, lambda symbol: self._read_track(state, (*seen, symbol)), "reject")

    def _act(self, state: str, seen: tuple[str, ...]) -> None:
        emit = self.emit
        action = self.machine.transitions.get(state, {}).get(seen)
        for index, (track, symbol) in enumerate(zip(self.tracks, seen, strict=True)):
            end = track.first + self.width - 1
            if action is None:
                emit.move(track.tape, -end)
                continue
            write, move = action[1][index]
            position = self._change(track, self.code[symbol], self.code[write], end)
            emit.move(track.tape, {"L": -track.cell, "N": 0, "R": track.cell}[move] - position)
            if move != "N":
                emit.write(track.tape, 1)
        # The last head stands on a flag that is 1.
        emit.goto("reject" if action is None else f"state.{action[0]}", self.tracks[-1].tape, known=1)

    def _home_a(self) -> None:
        if not self.origin:
            return
        emit, cell = self.emit, self.tracks[1].cell
        left, seek, found = emit.fresh("left"), emit.fresh("seek"), emit.fresh("found")
        emit.label(left)
        emit.move("A", -cell)
        emit.jump("A?", left)
        emit.label(seek)
        emit.move("A", cell + 1)
        emit.jump("A?", found)
        emit.op("AL")
        emit.jump("A?", seek)
        emit.label(found)
        emit.op("AL")
