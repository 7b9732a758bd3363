"""Programs of two-tape Post-Turing machines: parsing, prompts, and the checks that the bare notation lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_prompt_turing.arguments import check_integer, check_type
from octavo_prompt_turing.tokens import PLAIN, encode_input

__all__ = ["CONDITIONS", "Instruction", "Program", "parse_offset"]

CONDITIONS = ("A!", "A?", "B!", "B?")
"""Conditional jumps: ``!`` jumps when the cell under the head is 0, ``?`` when it is 1."""

_JUMP = re.compile(r"([AB][!?])([+-][0-9]+)")
_MAX_OFFSET = 10**6
_MAX_DIGITS = 7


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
        op: ``AL AR A0 A1 A! A? BL BR B0 B1 B! B?`` or ``#``.
        offset: Relative target of a jump, signed and not 0; 0 for the others.
        line: Line of the source that it was compiled from, counted from 1, if known.

    Raises:
        InvalidValueError: If the operation is unknown, or the offset does not suit it.
        InvalidTypeError: If the offset is not a whole number.

    Source:
        Paper, Section 3 (two-tape Post-Turing machine).
    """

    op: str
    offset: int = 0
    line: int | None = None

    def __post_init__(self) -> None:
        if self.op not in (*PLAIN, *CONDITIONS, "#"):
            raise InvalidValueError(
                f"unknown instruction {self.op!r}; the instructions are {' '.join(PLAIN)} # and the jumps "
                "A!+k A?+k B!+k B?+k with a signed offset"
            )
        check_integer("offset", self.offset)
        if self.op in CONDITIONS and self.offset == 0:
            raise InvalidValueError(f"jump {self.op!r} has offset 0 and would never end; give +k or -k with k >= 1")
        if abs(self.offset) > _MAX_OFFSET:
            raise InvalidValueError(f"jump offset {self.offset} is beyond {_MAX_OFFSET:,}, the longest supported")
        if self.op not in CONDITIONS and self.offset != 0:
            raise InvalidValueError(f"{self.op!r} is no jump and takes no offset, got {self.offset}")

    @property
    def is_jump(self) -> bool:
        """Whether it is a conditional jump."""
        return self.offset != 0

    def to_tokens(self) -> list[str]:
        """Write it as prompt tokens; a jump in unary."""
        if not self.is_jump:
            return [self.op]
        return [self.op, *(("+" if self.offset > 0 else "-") * abs(self.offset)), "@"]

    def __str__(self) -> str:
        return f"{self.op}{self.offset:+d}" if self.is_jump else self.op


@dataclass(frozen=True)
class Program:
    """A program: instructions 0 to m - 1, executed from 0 until ``#``.

    Args:
        instructions: The instructions, at least one.
        name: What to call it in reports.

    Raises:
        InvalidValueError: If it is empty, or a jump leaves it.
        InvalidTypeError: If an element is not an instruction.

    Source:
        Paper, Section 3. The checks go beyond the paper: its Transformer runs a malformed program silently.
    """

    instructions: tuple[Instruction, ...]
    name: str = "program"

    def __post_init__(self) -> None:
        if not self.instructions:
            raise InvalidValueError("the program is empty; give at least one instruction, '#' to halt")
        for index, instruction in enumerate(self.instructions):
            if not isinstance(instruction, Instruction):
                raise InvalidTypeError(f"instruction {index} is a {type(instruction).__name__}; give Instruction(...)")
            target = index + instruction.offset
            if instruction.is_jump and not 0 <= target < len(self.instructions):
                raise InvalidValueError(
                    f"instruction {index} ({instruction}) jumps to {target}, outside the program's 0 to "
                    f"{len(self.instructions) - 1}"
                )

    @classmethod
    def parse(cls, text: str, *, name: str = "program") -> Program:
        """Read a program from text such as ``"A!+4 AR A?-1 #"``.

        Args:
            text: Instructions separated by white space or commas. Jump offsets need their sign.
            name: What to call it.

        Returns:
            The program, validated.

        Raises:
            InvalidValueError: If an instruction cannot be read or the program is not valid.
            InvalidTypeError: If it is not text.
        """
        check_type("text", text, str, "text such as 'A1 AR A1 #'")
        return cls.from_lines(text.replace(",", " ").split(), name=name)

    @classmethod
    def from_lines(cls, lines: Iterable[str], *, name: str = "program") -> Program:
        """Read a program from a list with one instruction an element.

        Args:
            lines: Instructions, e.g. ``["A!+4", "AR", "#"]``.
            name: What to call it.

        Returns:
            The program, validated.

        Raises:
            InvalidValueError: If an instruction cannot be read or the program is not valid.
        """
        program = cls(tuple(_parse_instruction(word.strip(), index) for index, word in enumerate(lines)), name)
        program.validate()
        return program

    @classmethod
    def assemble(cls, source: str, *, name: str = "program") -> Program:
        """Assemble text with labels and macros, see :func:`octavo_prompt_turing.assembler.assemble`.

        Args:
            source: Assembler text.
            name: What to call it.

        Returns:
            The program, validated.
        """
        from octavo_prompt_turing.assembler import assemble

        return assemble(source, name=name)

    @classmethod
    def from_prompt(cls, tokens: Sequence[str], *, name: str = "program") -> Program:
        """Read a program back from its prompt.

        Args:
            tokens: Tokens from ``^`` to the first ``$``; what follows is ignored.
            name: What to call it.

        Returns:
            The program.

        Raises:
            InvalidValueError: If the tokens are not the prompt of a program.
        """
        if not tokens or tokens[0] != "^" or "$" not in tokens:
            raise InvalidValueError("a prompt starts with '^' and its program ends with '$'; one of them is missing")
        body = iter(list(tokens)[1 : list(tokens).index("$")])
        program = cls(tuple(_read_instructions(body)), name)
        program.validate()
        return program

    def to_prompt(self, bits: str = "") -> list[str]:
        """Write the prompt: ``^``, the instructions, ``$``, and the input.

        Args:
            bits: Input, a string of 0 and 1.

        Returns:
            The tokens.

        Raises:
            InvalidValueError: If the input has other characters.
        """
        body = [token for instruction in self.instructions for token in instruction.to_tokens()]
        return ["^", *body, "$", *encode_input(bits)]

    def validate(self) -> Program:
        """Check that the program can halt and does not certainly run off its end.

        Returns:
            The program itself.

        Raises:
            InvalidValueError: If no ``#`` can be reached, or a last instruction that is no jump can be reached and
                does not halt. A last jump may fall through for some inputs only; that is found when it happens.
        """
        reached, pending = set(), [0]
        while pending:
            index = pending.pop()
            if index in reached or index >= len(self):
                continue
            reached.add(index)
            instruction = self.instructions[index]
            if instruction.op != "#":
                pending.append(index + 1)
            if instruction.is_jump:
                pending.append(index + instruction.offset)
        last = len(self) - 1
        if last in reached and self.instructions[last].op in PLAIN:
            raise InvalidValueError(
                f"the program falls off its end after instruction {last} ({self.instructions[last]}); end it with '#'"
            )
        if not any(self.instructions[index].op == "#" for index in reached):
            raise InvalidValueError("no '#' can be reached from the start, so the program never halts; add a '#'")
        return self

    @property
    def max_offset(self) -> int:
        """Longest jump, max |k|; 0 without jumps."""
        return max(abs(instruction.offset) for instruction in self.instructions)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt without an input."""
        return 2 + sum(1 if not i.is_jump else abs(i.offset) + 2 for i in self.instructions)

    def disassemble(self) -> str:
        """List the program with a label at every jump target; :meth:`assemble` reads the text back."""
        targets = sorted({index + i.offset for index, i in enumerate(self.instructions) if i.is_jump})
        labels = {target: f"L{number}" for number, target in enumerate(targets)}
        lines = []
        for index, instruction in enumerate(self.instructions):
            if index in labels:
                lines.append(f"{labels[index]}:")
            text = f"{instruction.op} {labels[index + instruction.offset]}" if instruction.is_jump else instruction.op
            lines.append(f"    {text}")
        return "\n".join(lines) + "\n"

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __str__(self) -> str:
        return " ".join(map(str, self.instructions))


def parse_offset(text: str) -> int:
    """Read the offset of a jump.

    Args:
        text: A sign and decimal digits, however many.

    Returns:
        The offset.

    Raises:
        InvalidValueError: If it has too many digits for any offset that is supported.
    """
    if len(text) - 1 > _MAX_DIGITS:
        raise InvalidValueError(
            f"jump offset {text[:12]}... of {len(text) - 1:,} digits is beyond {_MAX_OFFSET:,}, the longest supported"
        )
    return int(text)


def _parse_instruction(word: str, index: int) -> Instruction:
    if match := _JUMP.fullmatch(word):
        return _located(lambda: Instruction(match[1], parse_offset(match[2])), index)
    if re.fullmatch(r"[AB][!?][0-9]{1,7}", word):
        raise InvalidValueError(
            f"instruction {index}, {word!r}: a jump offset needs its sign; write {word[:2]}+{word[2:]} or "
            f"{word[:2]}-{word[2:]}"
        )
    if word in CONDITIONS:
        raise InvalidValueError(f"instruction {index}, {word!r}: a jump needs an offset, such as {word}+2")
    return _located(lambda: Instruction(word), index)


def _located(build: Callable[[], Instruction], index: int) -> Instruction:
    try:
        return build()
    except InvalidValueError as error:
        raise InvalidValueError(f"instruction {index}: {error}") from error


def _read_instructions(tokens: Iterator[str]) -> Iterator[Instruction]:
    for token in tokens:
        if token not in CONDITIONS:
            yield Instruction(token)
            continue
        offset = []
        for mark in tokens:
            if mark == "@":
                break
            offset.append(mark)
        else:
            raise InvalidValueError(f"the jump {token!r} of the prompt has no '@' before '$'")
        if len(set(offset)) > 1 or set(offset) - {"+", "-"}:
            raise InvalidValueError(f"the jump {token!r} of the prompt has offset {''.join(offset)!r}; use + or - only")
        yield Instruction(token, len(offset) if offset[:1] == ["+"] else -len(offset))
