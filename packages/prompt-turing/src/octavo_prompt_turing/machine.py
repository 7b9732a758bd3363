"""Direct simulation of a two-tape Post-Turing machine: the yardstick that the Transformer is verified against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.arguments import check_integer, check_type
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tokens import check_bits

__all__ = ["Machine", "RunResult", "Step"]


@dataclass(frozen=True)
class Step:
    """One executed instruction.

    Args:
        index: Position of the instruction in the program.
        record: Tokens that the model prints for it.
        head_a: Cell under head A before it.
        head_b: Cell under head B before it.
    """

    index: int
    record: tuple[str, ...]
    head_a: int
    head_b: int


@dataclass(frozen=True)
class RunResult:
    """What a run of the machine left.

    Args:
        output: Output bits, ``None`` if it did not halt.
        steps: Instructions executed, the halt not counted.
        status: ``"halted"``, ``"max_steps"``, or ``"fell_off"`` when the program counter left the program.
        tokens: The chain of thought up to here; complete, with its final ``$``, if halted.
        trace: Every step, if it was asked for.
        head_a: Cell under head A at the end.
        head_b: Cell under head B at the end.
        tape_a: Cells of tape A that hold 1.
        tape_b: Cells of tape B that hold 1.
    """

    output: str | None
    steps: int
    status: Literal["halted", "max_steps", "fell_off"]
    tokens: list[str]
    trace: tuple[Step, ...] = field(repr=False)
    head_a: int
    head_b: int
    tape_a: frozenset[int]
    tape_b: frozenset[int]

    @property
    def halted(self) -> bool:
        """Whether the machine reached ``#``."""
        return self.status == "halted"


class Machine:
    """Simulator of one program.

    Args:
        program: The program.

    Raises:
        InvalidTypeError: If it is not a program.

    Source:
        Paper, Section 3 (two-tape Post-Turing machine); records of the chain of thought as in its construction.
    """

    def __init__(self, program: Program) -> None:
        advice = "a Program, such as Program.parse(text) or library_program(name) makes"
        check_type("program", program, Program, advice)
        self.program = program

    def run(self, bits: str = "", max_steps: int = 1_000_000, *, trace: bool = False) -> RunResult:
        """Run the program on an input.

        Args:
            bits: Input, a string of 0 and 1.
            max_steps: Most instructions to execute, at least 0.
            trace: Keep every step.

        Returns:
            The result; a run that does not halt in time is told by its ``status``.

        Raises:
            InvalidValueError: If the input is not made of bits or ``max_steps`` is negative.
            InvalidTypeError: If ``max_steps`` is not a whole number.
        """
        if check_integer("max_steps", max_steps) < 0:
            raise InvalidValueError(f"max_steps={max_steps} is negative; give 0 or more")
        state = _State(self.program, bits)
        tokens: list[str] = []
        kept: list[Step] = []
        status: Literal["halted", "max_steps", "fell_off"] = "max_steps"
        while True:
            if state.counter == len(self.program):
                status = "fell_off"
                break
            if state.ops[state.counter] == "#":
                status = "halted"
                break
            if state.steps == max_steps:
                break
            before = (state.counter, state.head_a, state.head_b)
            record = state.step()
            tokens += record
            if trace:
                kept.append(Step(before[0], record, before[1], before[2]))
        output = state.read_out() if status == "halted" else None
        if output is not None:
            tokens += [":", *output, "$"]
        return RunResult(
            output,
            state.steps,
            status,
            tokens,
            tuple(kept),
            state.head_a,
            state.head_b,
            frozenset(cell for cell, bit in state.tape_a.items() if bit),
            frozenset(cell for cell, bit in state.tape_b.items() if bit),
        )

    def cot(self, bits: str = "") -> Iterator[str]:
        """Generate the chain of thought token by token, without end if the program does not halt.

        Args:
            bits: Input, a string of 0 and 1.

        Yields:
            The tokens that the Transformer prints after the prompt.

        Raises:
            InvalidValueError: If the input is not made of bits, or the program falls off its end.
        """
        state = _State(self.program, bits)
        while True:
            if state.counter == len(self.program):
                raise InvalidValueError(f"{self.program.name} falls off its end on input {bits!r}; end it with '#'")
            if state.ops[state.counter] == "#":
                yield from (":", *state.read_out(), "$")
                return
            yield from state.step()


class _State:
    def __init__(self, program: Program, bits: str) -> None:
        check_bits(bits)
        self.ops = [instruction.op for instruction in program]
        self.offsets = [instruction.offset for instruction in program]
        # A record is fixed by the instruction, so it is made once: "/" or "=" with a copy of the offset.
        self.jumps = [("=", *instruction.to_tokens()[1:]) if instruction.is_jump else () for instruction in program]
        self.plain = [(instruction.op,) for instruction in program]
        self.tape_a = {2 * j + k: int(bit) for j, b in enumerate(bits) for k, bit in enumerate(("1", b))}
        self.tape_b: dict[int, int] = {}
        self.head_a = self.head_b = self.counter = self.steps = 0

    def step(self) -> tuple[str, ...]:
        """Execute one instruction and return its record."""
        at = self.counter
        op = self.ops[at]
        self.steps += 1
        self.counter += 1
        kind = op[1]
        on_a = op[0] == "A"
        if kind == "L" or kind == "R":
            move = 1 if kind == "R" else -1
            if on_a:
                self.head_a += move
            else:
                self.head_b += move
        elif kind == "0" or kind == "1":
            if on_a:
                self.tape_a[self.head_a] = int(kind)
            else:
                self.tape_b[self.head_b] = int(kind)
        else:
            bit = self.tape_a.get(self.head_a, 0) if on_a else self.tape_b.get(self.head_b, 0)
            if bit != (kind == "?"):
                return ("/",)
            self.counter = at + self.offsets[at]
            return self.jumps[at]
        return self.plain[at]

    def read_out(self) -> str:
        """Read tape A from absolute cell 0, wherever the head is."""
        bits, cell = [], 0
        while self.tape_a.get(cell, 0):
            bits.append(str(self.tape_a.get(cell + 1, 0)))
            cell += 2
        return "".join(bits)
