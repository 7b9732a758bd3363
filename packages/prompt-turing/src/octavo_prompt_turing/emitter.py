"""Linking of instructions with labels into a program; what the assembler and both compilers write to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.program import CONDITIONS, Instruction, Program

__all__ = ["Emitter"]

_MAX_INSTRUCTIONS = 500_000


@dataclass
class Emitter:
    """Collects instructions and labels, and resolves the jumps.

    Args:
        line: Source line that the next instructions come from, if any.
    """

    line: int | None = None
    _code: list[tuple[str, str | int, int | None]] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def op(self, *ops: str) -> None:
        """Append instructions that are no jumps.

        Args:
            *ops: Such as ``"AL"`` or ``"#"``.
        """
        self._code += [(op, 0, self.line) for op in ops]
        self._check_size()

    def move(self, tape: str, cells: int) -> None:
        """Move a head.

        Args:
            tape: ``"A"`` or ``"B"``.
            cells: Cells to the right; negative to the left.
        """
        self.op(*([f"{tape}{'R' if cells > 0 else 'L'}"] * abs(cells)))

    def write(self, tape: str, bit: int) -> None:
        """Write a bit under a head.

        Args:
            tape: ``"A"`` or ``"B"``.
            bit: 0 or 1.
        """
        self.op(f"{tape}{bit}")

    def jump(self, condition: str, target: str | int) -> None:
        """Append a conditional jump.

        Args:
            condition: ``"A!"``, ``"A?"``, ``"B!"`` or ``"B?"``.
            target: A label, or a relative offset.
        """
        self._code.append((condition, target, self.line))
        self._check_size()

    def goto(self, target: str, tape: str = "A", known: int | None = None) -> None:
        """Jump always.

        Args:
            target: A label.
            tape: Tape whose cell is tested.
            known: What that cell holds, if known: one instruction instead of two.
        """
        if known != 1:
            self.jump(f"{tape}!", target)
        if known != 0:
            self.jump(f"{tape}?", target)

    def label(self, name: str) -> None:
        """Put a label before the next instruction.

        Args:
            name: The label.

        Raises:
            InvalidValueError: If it exists already.
        """
        if name in self._labels:
            raise InvalidValueError(f"label {name!r} is defined twice{self._where(self.line)}")
        self._labels[name] = len(self._code)

    def fresh(self, hint: str) -> str:
        """Make a label name that is not in use, and that assembler text, with its space, cannot hold.

        Args:
            hint: What it is for.

        Returns:
            The name.
        """
        self._count += 1
        return f"{hint} {self._count}"

    @contextmanager
    def loop_while(self, tape: str, bit: int) -> Generator[None]:
        """Repeat the block while the cell under a head holds a bit.

        Args:
            tape: ``"A"`` or ``"B"``.
            bit: 0 or 1.

        Yields:
            Nothing.
        """
        start, end = self.fresh("loop"), self.fresh("end")
        # The test stands at both ends: a jump back costs |k| + 2 tokens, so there is one a round and not two.
        self.jump(f"{tape}{'!?'[1 - bit]}", end)
        self.label(start)
        yield
        self.jump(f"{tape}{'!?'[bit]}", start)
        self.label(end)

    def link(self, name: str = "program") -> Program:
        """Resolve the labels.

        Args:
            name: Name of the program.

        Returns:
            The program, validated.

        Raises:
            InvalidValueError: If a label is missing or stands after the last instruction, or the program is not valid.
        """
        if any(position == len(self._code) for position in self._labels.values()):
            self.op("#")
        instructions = []
        for index, (op, target, line) in enumerate(self._code):
            if op not in CONDITIONS:
                instructions.append(Instruction(op, 0, line))
                continue
            if isinstance(target, str):
                if target not in self._labels:
                    raise InvalidValueError(f"label {target!r} is not defined{self._where(line)}")
                target = self._labels[target] - index
            if target == 0:
                raise InvalidValueError(f"a jump to itself would never end{self._where(line)}")
            instructions.append(Instruction(op, target, line))
        return Program(tuple(instructions), name).validate()

    def _check_size(self) -> None:
        if len(self._code) > _MAX_INSTRUCTIONS:
            raise InvalidValueError(
                f"the program has more than {_MAX_INSTRUCTIONS:,} instructions{self._where(self.line)}; repeat less"
            )

    @staticmethod
    def _where(line: int | None) -> str:
        return "" if line is None else f" (line {line})"
