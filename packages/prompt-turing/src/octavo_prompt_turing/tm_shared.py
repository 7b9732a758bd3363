"""Turing machines with three tapes or more: tracks of one tape, aligned so that all heads stand on cell 0.

A move of a head shifts its track instead, which takes as long as the tapes are; the next state and the moves wait in
scratch on tape A meanwhile.
"""

from __future__ import annotations

from itertools import product

from octavo_prompt_turing.tm_layouts import Output, TapeWriter, Track, marks
from octavo_prompt_turing.turing import TuringMachine

__all__ = ["SharedTape"]


class SharedTape(TapeWriter):
    """Three tapes and more: tracks of one tape that are shifted under heads that stay on cell 0.

    Args:
        machine: The machine.
        output: What to print.
    """

    def __init__(self, machine: TuringMachine, output: Output) -> None:
        width = max(1, len(marks(machine)).bit_length())
        cell = 2 + machine.num_tapes * width
        tracks = [Track("B", cell, 2 + index * width) for index in range(machine.num_tapes)]
        super().__init__(machine, output, tracks, origin=True)
        self.cell = cell
        self.state_bits = max(1, (len(machine.states) - 1).bit_length())

    def _body(self) -> None:
        emit = self.emit
        emit.op("BR", "B1", "BL")
        emit.goto(f"state.{self.machine.initial_state}", "B", known=1)
        for state in self.machine.states:
            emit.label(f"state.{state}")
            if state in self.machine.final_states:
                emit.goto("accept", "B", known=1)
                continue
            emit.move("B", 2)
            joint = {
                "\0".join(symbols): "".join(self.code[symbol] for symbol in symbols)
                for symbols in product(self.machine.tape_symbols, repeat=len(self.tracks))
            }
            self._tree("B", joint, 1, lambda key, state=state: self._act(state, tuple(key.split("\0"))), "reject")
        self._shifts()

    def _act(self, state: str, seen: tuple[str, ...]) -> None:
        emit = self.emit
        action = self.machine.transitions.get(state, {}).get(seen)
        position = self.cell - 1
        if action is None:
            emit.move("B", -position)
            emit.goto("reject", "B", known=1)
            return
        for track, symbol, (write, _) in reversed(list(zip(self.tracks, seen, action[1], strict=True))):
            position = self._change(track, self.code[symbol], self.code[write], position)
        emit.move("B", -position)
        # Scratch on A from cell 0: for each tape "moves" and "to the right", then the next state in binary.
        bits = "".join({"N": "00", "L": "10", "R": "11"}[move] for _, move in action[1])
        bits += format(self.machine.states.index(action[0]), f"0{self.state_bits}b")
        for index, bit in enumerate(bits):
            emit.op(f"A{bit}")
            if index < len(bits) - 1:
                emit.op("AR")
        emit.move("A", 1 - len(bits))
        emit.goto("shift.0", "B", known=1)

    def _home_a(self) -> None:
        """Head A is on cell 0 already: the scratch is left from its start."""

    def _shifts(self) -> None:
        emit = self.emit
        for index, track in enumerate(self.tracks):
            right, end = f"shift.{index}.right", f"shift.{index + 1}"
            emit.label(f"shift.{index}")
            nothing = f"shift.{index}.nothing"
            emit.jump("A!", nothing)
            emit.op("AR")
            emit.jump("A?", right)
            self._shift(track, 1)
            emit.op("AR")
            emit.goto(end, "B", known=1)
            emit.label(right)
            self._shift(track, -1)
            emit.op("AR")
            emit.goto(end, "B", known=1)
            emit.label(nothing)
            emit.op("AR", "AR")
        emit.label(f"shift.{len(self.tracks)}")
        codes = {state: format(i, f"0{self.state_bits}b") for i, state in enumerate(self.machine.states)}

        def leaf(state: str) -> None:
            emit.move("A", 1 - 2 * len(self.tracks) - self.state_bits)
            emit.goto(f"state.{state}", "B", known=1)

        self._tree("A", codes, 1, leaf, "reject")

    def _shift(self, track: Track, direction: int) -> None:
        """Move the content of a track by one cell, from the far end on; the head starts and ends on cell 0."""
        emit, cell = self.emit, self.cell * direction
        out, copy, last, back, seek, found = (
            emit.fresh(hint) for hint in ("out", "copy", "last", "back", "seek", "found")
        )
        emit.label(out)
        emit.move("B", cell)
        emit.jump("B?", out)
        emit.write("B", 1)
        emit.label(copy)
        emit.move("B", -cell)
        emit.jump("B!", last)
        for index in range(self.width):
            one, end = emit.fresh("one"), emit.fresh("end")
            offset = track.first + index
            emit.move("B", offset)
            emit.jump("B?", one)
            emit.move("B", cell)
            emit.write("B", 0)
            emit.goto(end, "B", known=0)
            emit.label(one)
            emit.move("B", cell)
            emit.write("B", 1)
            emit.label(end)
            emit.move("B", -cell - offset)
        emit.goto(copy, "B", known=1)
        emit.label(last)
        emit.move("B", cell + track.first)
        for index in range(self.width):
            emit.write("B", 0)
            if index < self.width - 1:
                emit.op("BR")
        emit.move("B", -(track.first + self.width - 1))
        # Back to the cell with the origin mark: to the left end, then to the right.
        emit.label(back)
        emit.move("B", -self.cell)
        emit.jump("B?", back)
        emit.label(seek)
        emit.move("B", self.cell + 1)
        emit.jump("B?", found)
        emit.op("BL")
        emit.jump("B?", seek)
        emit.label(found)
        emit.op("BL")
