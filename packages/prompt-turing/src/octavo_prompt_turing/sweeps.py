"""Binary numbers on tape B, and operations on them as finite-state sweeps over their columns.

Column c of B holds bit c of every variable, least significant first: one "exists" cell, then a cell for each variable.
Column 0 always exists. Left of a gap stand groups of four cells, for the stack and for the output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from octavo_prompt_turing.emitter import Emitter

__all__ = ["ColumnLayout", "Sweep", "emit_sweep"]

State = Hashable
Rule = Callable[[State, tuple[int, ...]], tuple[State, int | None]]


@dataclass(frozen=True)
class ColumnLayout:
    """Where things are on tape B.

    Args:
        num_variables: Number of variables.
    """

    num_variables: int

    @property
    def width(self) -> int:
        """Cells of a column; at least 4, so that the groups' way back ends in the gap."""
        return max(4, 1 + self.num_variables)


@dataclass(frozen=True)
class Sweep:
    """A transducer over the columns, from bit 0 on.

    Args:
        reads: Variables read, each once.
        writes: Variable written, if any.
        start: First state.
        rule: From a state and the bits read: the next state and the bit to write.
        quiet: Whether a state needs no further columns when there are none.
        outcomes: Label to go on at, by final state.
        delay: Write to the column before the present one (a shift to the right).
    """

    reads: Sequence[int]
    writes: int | None
    start: State
    rule: Rule
    quiet: Callable[[State], bool]
    outcomes: Callable[[State], str]
    delay: bool = False


def emit_sweep(emit: Emitter, layout: ColumnLayout, sweep: Sweep) -> None:
    """Write the code of a sweep; the head starts and ends on the first cell of column 0, which holds 1.

    Args:
        emit: Where to.
        layout: Columns.
        sweep: What to do.
    """
    _SweepWriter(emit, layout, sweep).write()


class _SweepWriter:
    def __init__(self, emit: Emitter, layout: ColumnLayout, sweep: Sweep) -> None:
        self.emit, self.width, self.sweep = emit, layout.width, sweep
        self.names: dict[State, str] = {}
        self.order = sorted(sweep.reads)

    def name(self, state: State) -> str:
        if state not in self.names:
            self.names[state] = self.emit.fresh("sweep")
            self.pending.append(state)
        return self.names[state]

    def write(self) -> None:
        self.pending: list[State] = []
        self.name(self.sweep.start)
        while self.pending:
            state = self.pending.pop()
            self.emit.label(self.names[state])
            self.read(state, 0, ())
        homes: dict[str, str] = {}
        for state, name in list(self.names.items()):
            self.emit.label(f"{name}.end")
            self.finish(state, name, homes)

    def read(self, state: State, position: int, bits: tuple[int, ...]) -> None:
        emit, sweep = self.emit, self.sweep
        if len(bits) < len(self.order):
            cell = 1 + self.order[len(bits)]
            emit.move("B", cell - position)
            one = emit.fresh("one")
            emit.jump("B?", one)
            self.read(state, cell, (*bits, 0))
            emit.label(one)
            self.read(state, cell, (*bits, 1))
            return
        values = tuple(bits[self.order.index(variable)] for variable in sweep.reads)
        following, out = sweep.rule(state, values)
        if sweep.writes is not None and out is not None:
            target = 1 + sweep.writes - (self.width if sweep.delay else 0)
            if sweep.delay or sweep.writes not in sweep.reads or values[list(sweep.reads).index(sweep.writes)] != out:
                emit.move("B", target - position)
                emit.write("B", out)
                position = target
        emit.move("B", self.width - position)
        name = self.name(following)
        emit.jump("B?", name)
        emit.jump("B!", f"{name}.end")

    def finish(self, state: State, name: str, homes: dict[str, str]) -> None:
        """At a column that does not exist: make it if the state has more to write, else go home."""
        emit, sweep = self.emit, self.sweep
        if not sweep.quiet(state):
            emit.op("B1")
            emit.jump("B?", name)
            return
        if sweep.delay and sweep.writes is not None:
            target = 1 + sweep.writes - self.width
            emit.move("B", target)
            emit.write("B", 0)
            emit.move("B", -target)
        outcome = sweep.outcomes(state)
        if outcome in homes:
            emit.goto(homes[outcome], "B", known=0)
            return
        homes[outcome] = emit.fresh("home")
        emit.label(homes[outcome])
        emit.move("B", -self.width)
        emit.jump("B?", homes[outcome])
        emit.move("B", self.width)
        emit.goto(outcome, "B", known=1)
