"""The strings of the small language: the input on tape A, and stack and output in groups left of tape B's columns."""

from __future__ import annotations

from octavo_prompt_turing.naturals import Naturals

__all__ = ["Strings"]

# Cells of a group left of the gap, counted leftwards: flag and bit of the stack, flag and bit of the output.
_GROUP = 4
_PLACE = {"stack": 0, "output": 2}


class Strings(Naturals):
    """Code for the input, the stack and the output."""

    def rewind(self) -> None:
        """Bring head A to the first input bit: flags are 1 from cell 0 on, and cell -2 is 0."""
        start = self.emit.fresh("rewind")
        self.emit.label(start)
        self.emit.op("AL", "AL")
        self.emit.jump("A?", start)
        self.emit.op("AR", "AR")

    def append(self, place: str, bit: int) -> None:
        """Append a bit to the stack or to the output.

        Args:
            place: ``"stack"`` or ``"output"``.
            bit: The bit.
        """
        self._has_output = self._has_output or place == "output"
        self.emit.move("B", -self._first(place))
        with self.emit.loop_while("B", 1):
            self.emit.move("B", -_GROUP)
        self.emit.op("B1", "BL", f"B{bit}", "BR")
        self._leave_groups(place)

    def finish(self) -> None:
        """Write the ends of all paths: the output goes to tape A from cell 0 on."""
        emit = self.emit
        if self.returns_number:
            emit.label("return.number")
            self._write_output()
            self._write_number()
            emit.op("A0", "#")
        emit.label("return.nothing")
        self._write_output()
        emit.op("A0", "#")

    def _write_output(self) -> None:
        emit = self.emit
        self.rewind()
        if not self._has_output:
            return
        emit.move("B", -self._first("output"))
        with emit.loop_while("B", 1):
            one, end = emit.fresh("one"), emit.fresh("end")
            emit.op("A1", "AR", "BL")
            emit.jump("B?", one)
            emit.op("A0")
            emit.goto(end, "B", known=0)
            emit.label(one)
            emit.op("A1")
            emit.label(end)
            emit.op("AR")
            emit.move("B", 1 - _GROUP)
        if self.returns_number:
            emit.move("B", _GROUP)
            with emit.loop_while("B", 1):
                emit.move("B", _GROUP)
            emit.move("B", self._first("output") - _GROUP)

    def _write_number(self) -> None:
        """Binary, most significant bit first; "0" for zero."""
        emit, width, cell = self.emit, self.layout.width, 1 + self.returned
        out, skip, found, following, end = (emit.fresh(hint) for hint in ("out", "skip", "found", "following", "end"))
        emit.label(out)
        emit.move("B", width)
        emit.jump("B?", out)
        emit.label(skip)
        emit.move("B", cell - width)
        emit.jump("B?", found)
        emit.move("B", -cell)
        # Column 0 is the last one to look at; left of it the gap holds 0.
        emit.move("B", -width)
        first = emit.fresh("first")
        emit.jump("B!", first)
        emit.move("B", width)
        emit.goto(skip, "B", known=1)
        emit.label(first)
        emit.op("A1", "AR", "A0", "AR")
        emit.goto(end, "B", known=0)
        emit.label(found)
        emit.op("A1", "AR", "A1", "AR")
        emit.label(following)
        emit.move("B", -cell - width)
        emit.jump("B!", end)
        emit.move("B", cell)
        emit.jump("B?", found)
        emit.op("A1", "AR", "A0", "AR")
        emit.goto(following, "B", known=0)
        emit.label(end)

    def _first(self, place: str) -> int:
        """Distance from column 0 to the flag of the first group, leftwards."""
        return self.layout.width + 1 + _PLACE[place]

    def _leave_groups(self, place: str, *, from_empty: bool = False) -> None:
        """From a flag of a group back to column 0; ``from_empty``: the flag under the head is 0 now."""
        if from_empty:
            self.emit.move("B", _GROUP)
        with self.emit.loop_while("B", 1):
            self.emit.move("B", _GROUP)
        self.emit.move("B", self._first(place) - _GROUP)

    def _read(self, yes: str, no: str) -> None:
        emit, one = self.emit, self.emit.fresh("one")
        end = emit.fresh("end")
        emit.jump("A!", end)
        emit.op("AR")
        emit.jump("A?", one)
        emit.op("AR")
        emit.goto(no, "B", known=1)
        emit.label(one)
        emit.op("AR")
        emit.goto(yes, "B", known=1)
        emit.label(end)
        emit.goto(no, "B", known=1)

    def _empty(self, yes: str, no: str) -> None:
        emit, filled, first = self.emit, self.emit.fresh("filled"), self._first("stack")
        emit.move("B", -first)
        emit.jump("B?", filled)
        emit.move("B", first)
        emit.goto(yes, "B", known=1)
        emit.label(filled)
        emit.move("B", first)
        emit.goto(no, "B", known=1)

    def _pop(self, yes: str, no: str) -> None:
        emit, first = self.emit, self._first("stack")
        nothing, one = emit.fresh("nothing"), emit.fresh("one")
        emit.move("B", -first)
        emit.jump("B!", nothing)
        with emit.loop_while("B", 1):
            emit.move("B", -_GROUP)
        emit.move("B", _GROUP)
        emit.op("B0", "BL")
        emit.jump("B?", one)
        for label, target in ((None, no), (one, yes)):
            if label is not None:
                emit.label(label)
            emit.op("BR")
            self._leave_groups("stack", from_empty=True)
            emit.goto(target, "B", known=1)
        emit.label(nothing)
        emit.move("B", first)
        emit.goto(no, "B", known=1)
