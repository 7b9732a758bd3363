"""Assembler: labels, unconditional jumps, blocks and macros on top of the thirteen instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.arguments import check_type
from octavo_prompt_turing.emitter import Emitter
from octavo_prompt_turing.program import CONDITIONS, Program, parse_offset
from octavo_prompt_turing.tokens import PLAIN

__all__ = ["assemble"]

_MAX_REPEAT = 10_000
_MAX_DEPTH = 32
_MAX_WORDS = 10_000_000
_WORDS = {"jmp", "right", "left", "clear", "flip", "copy", "while", "until", "if", "else", "repeat", "macro", "halt"}
_WORD = re.compile(r"[{}]|[^\s{};]+")
_RELATIVE = re.compile(r"([AB][!?])([+-][0-9]+)")
_NUMBER = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True)
class _Word:
    text: str
    line: int


def assemble(source: str, *, name: str = "program") -> Program:
    """Assemble a program.

    The language, one statement after another, ``;`` begins a comment::

        AL AR A0 A1 BL BR B0 B1 #        the instructions
        name:                            a label
        A! name   A?+3                   a jump to a label, or by a signed offset
        jmp name                         an unconditional jump; jmp B name tests tape B
        right A 3   left B 2             move a head by several cells
        clear A   flip A   copy A B      write 0; invert the cell; copy the cell under A to the cell under B
        while A { ... }                  repeat while the cell under A is 1; until A: while it is 0
        if A { ... } else { ... }        on 1, on 0
        repeat 4 { ... }                 write a block several times
        macro name { ... }               define a macro, called by its name
        halt                             the same as #

    Args:
        source: Assembler text.
        name: What to call the program.

    Returns:
        The program; every instruction knows its line.

    Raises:
        InvalidValueError: If the text cannot be assembled; the message names the line.
        InvalidTypeError: If it is not text.

    Source:
        Beyond the paper, whose programs are written with relative offsets by hand.
    """
    check_type("source", source, str, "text such as 'A1 AR A1 #'")
    words = [
        _Word(word, number)
        for number, line in enumerate(source.splitlines(), start=1)
        for word in _WORD.findall(line.partition(";")[0])
    ]
    emitter = Emitter()
    _Assembler(emitter, {}, {word.text[:-1] for word in words if word.text.endswith(":")}).block(words, 0)
    return emitter.link(name)


@dataclass
class _Assembler:
    emitter: Emitter
    macros: dict[str, list[_Word]]
    labels: set[str]
    num_words: int = 0

    def block(self, words: list[_Word], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _error(words[0], f"macros and blocks are nested deeper than {_MAX_DEPTH}")
        # Also blocks that write nothing take time.
        self.num_words += 1 + len(words)
        if self.num_words > _MAX_WORDS:
            raise InvalidValueError(
                f"line {self.emitter.line or 1}: macros and repeats write out more than {_MAX_WORDS:,} words; "
                "repeat less"
            )
        at = 0
        while at < len(words):
            at = self.statement(words, at, depth)

    def statement(self, words: list[_Word], at: int, depth: int) -> int:
        word, emit = words[at], self.emitter
        emit.line = word.line
        text = word.text
        if text in PLAIN or text in {"#", "halt"}:
            emit.op("#" if text == "halt" else text)
        elif text.endswith(":") and len(text) > 1:
            emit.label(text[:-1])
        elif text in CONDITIONS:
            emit.jump(text, self._argument(words, at + 1, "a label").text)
            return at + 2
        elif match := _RELATIVE.fullmatch(text):
            try:
                emit.jump(match[1], parse_offset(match[2]))
            except InvalidValueError as error:
                raise _error(word, str(error)) from error
        elif text == "jmp":
            target = self._argument(words, at + 1, "a label")
            if target.text in {"A", "B"}:
                self._check_target(words, at)
                emit.goto(self._argument(words, at + 2, "a label").text, target.text)
                return at + 3
            emit.goto(target.text)
            return at + 2
        elif text in {"left", "right"}:
            cells = self._number(words, at + 2)
            emit.move(self._tape(words, at + 1), cells if text == "right" else -cells)
            return at + 3
        elif text == "clear":
            emit.write(self._tape(words, at + 1), 0)
            return at + 2
        elif text == "flip":
            self._choose(self._tape(words, at + 1), self._tape(words, at + 1), (1, 0))
            return at + 2
        elif text == "copy":
            self._choose(self._tape(words, at + 1), self._tape(words, at + 2), (0, 1))
            return at + 3
        elif text in {"while", "until"}:
            body, after = self._body(words, at + 2)
            with emit.loop_while(self._tape(words, at + 1), int(text == "while")):
                self.block(body, depth + 1)
            return after
        elif text == "if":
            return self._if(words, at, depth)
        elif text == "repeat":
            body, after = self._body(words, at + 2)
            for _ in range(self._number(words, at + 1)):
                self.block(body, depth + 1)
            return after
        elif text == "macro":
            body, after = self._body(words, at + 2)
            self._define(self._argument(words, at + 1, "a name"), body)
            return after
        elif text in self.macros:
            self.block(self.macros[text], depth + 1)
        elif re.fullmatch(r"[AB][!?][0-9]{1,7}", text):
            raise _error(word, f"jump {text!r}: an offset needs its sign, + or -")
        else:
            raise _error(word, f"unknown word {text!r}; instructions are {' '.join(PLAIN)} # and A! A? B! B?")
        return at + 1

    def _define(self, name: _Word, body: list[_Word]) -> None:
        text = name.text
        is_ours = text in {*PLAIN, *CONDITIONS, *_WORDS, "#"} or text.endswith(":") or _RELATIVE.fullmatch(text)
        if is_ours:
            raise _error(name, f"{text!r} is a word of the language and cannot name a macro; take another name")
        if self.macros.get(text, body) != body:
            raise _error(name, f"macro {text!r} is defined twice; take another name")
        self.macros[text] = body

    def _check_target(self, words: list[_Word], at: int) -> None:
        """Tell a label that is called like a tape from a tape without a label."""
        tape, following = words[at + 1].text, words[at + 2].text if at + 2 < len(words) else ""
        if tape in self.labels and following not in self.labels:
            found = repr(following) if following else "the end"
            raise _error(
                words[at],
                f"'jmp {tape}' names tape {tape}, and {found} after it is no label; to jump to the label {tape!r}, "
                f"write 'jmp {tape} {tape}'",
            )

    def _choose(self, source: str, target: str, bits: tuple[int, int]) -> None:
        """Write one of two bits, by the cell under the source."""
        emit = self.emitter
        one, end = emit.fresh("one"), emit.fresh("end")
        emit.jump(f"{source}?", one)
        emit.write(target, bits[0])
        emit.goto(end, target, known=bits[0])
        emit.label(one)
        emit.write(target, bits[1])
        emit.label(end)

    def _if(self, words: list[_Word], at: int, depth: int) -> int:
        emit, tape = self.emitter, self._tape(words, at + 1)
        body, after = self._body(words, at + 2)
        otherwise, end = emit.fresh("else"), emit.fresh("end")
        emit.jump(f"{tape}!", otherwise)
        self.block(body, depth + 1)
        if after < len(words) and words[after].text == "else":
            other, after = self._body(words, after + 1)
            emit.goto(end, tape)
            emit.label(otherwise)
            self.block(other, depth + 1)
            emit.label(end)
        else:
            emit.label(otherwise)
        return after

    def _argument(self, words: list[_Word], at: int, what: str) -> _Word:
        if at >= len(words) or words[at].text in "{}":
            raise _error(words[min(at, len(words)) - 1], f"{what} is missing after {words[at - 1].text!r}")
        return words[at]

    def _tape(self, words: list[_Word], at: int) -> str:
        word = self._argument(words, at, "a tape, A or B,")
        if word.text not in {"A", "B"}:
            raise _error(word, f"{word.text!r} is not a tape; give A or B")
        return word.text

    def _number(self, words: list[_Word], at: int) -> int:
        word = self._argument(words, at, "a number")
        if not _NUMBER.fullmatch(word.text) or not 1 <= int(word.text) <= _MAX_REPEAT:
            raise _error(word, f"{word.text[:40]!r} is not a number from 1 to {_MAX_REPEAT:,}")
        return int(word.text)

    def _body(self, words: list[_Word], at: int) -> tuple[list[_Word], int]:
        if at >= len(words) or words[at].text != "{":
            raise _error(words[min(at, len(words)) - 1], "a block '{ ... }' is missing")
        depth = 0
        for end in range(at, len(words)):
            depth += {"{": 1, "}": -1}.get(words[end].text, 0)
            if depth == 0:
                return words[at + 1 : end], end + 1
        raise _error(words[at], "the block is not closed; add '}'")


def _error(word: _Word, message: str) -> InvalidValueError:
    return InvalidValueError(f"line {word.line}: {message}")
