"""Programs from wherever a user has them: the library, files of three kinds, or the command line itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.arguments import check_type
from octavo_prompt_turing.assembler import assemble
from octavo_prompt_turing.library import LIBRARY, library_program
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.python_compiler import compile_py
from octavo_prompt_turing.tm_compiler import CompiledMachine, Output, compile_tm
from octavo_prompt_turing.tm_layouts import marks
from octavo_prompt_turing.turing import TuringMachine
from octavo_prompt_turing.user_files import read_user_file

__all__ = ["LoadedProgram", "load_program"]

_SUFFIXES = (".ptm", ".json", ".py")
_MAX_BYTES = 4 * 2**20
_SEPARATORS = (",", " ", ";", "|")


@dataclass(frozen=True)
class LoadedProgram:
    """A program with what belongs to it.

    Args:
        program: The program.
        source: Text that the instructions' line numbers refer to; empty if there is none.
        compiled: Coding of inputs and outputs, if it came from a Turing machine.
    """

    program: Program
    source: str = ""
    compiled: CompiledMachine | None = None

    def encode(self, word: str) -> str:
        """Turn what a user typed into input bits.

        Args:
            word: Bits; for a Turing machine its symbols, with commas between them (or, if an input symbol has a comma,
                the first of space, ``;`` and ``|`` that none has). Without a separator each character is a symbol, or,
                where some character is none, the whole word is one. So the symbol ``ab`` beside ``a`` and ``b`` is
                ``"ab,"``.

        Returns:
            The bits.

        Raises:
            InvalidValueError: If the word is not made of input symbols.
        """
        if self.compiled is None:
            return word
        return self.compiled.encode(_read_word(word, self.compiled.machine.input_symbols))

    def describe(self, output: str) -> str:
        """Say what an output means.

        Args:
            output: Output bits.

        Returns:
            The bits, or for a Turing machine whether it accepted and its tape, as :meth:`encode` reads words.
        """
        if self.compiled is None:
            return output
        accepted, tape = self.compiled.decode(output)
        parts = [] if accepted is None else ["accepted" if accepted else "rejected"]
        if tape is not None:
            machine = self.compiled.machine
            of_inputs = set(tape) <= set(machine.input_symbols)
            parts.append(_write_word(tape, machine.input_symbols if of_inputs else marks(machine)))
        return " ".join(parts)


def load_program(
    text: str | os.PathLike[str], *, output: Output = "accept", missing: Literal["error", "reject"] | None = None
) -> LoadedProgram:
    """Find a program.

    Args:
        text: Name of a ready program; path of a file: ``.ptm`` (assembler), ``.json`` (Turing machine) or ``.py`` (the
            language of :func:`octavo_prompt_turing.compile_py`; it is parsed and never executed); or instructions.
        output: What a compiled Turing machine prints.
        missing: What its missing transitions mean.

    Returns:
        The program.

    Raises:
        MissingFileError: If the file does not exist.
        InvalidValueError: If it cannot be read as a program.
        InvalidTypeError: If it is neither text nor a path.
    """
    check_type("text", text, (str, os.PathLike), "text or a path")
    name = os.fspath(text).strip()
    if name in LIBRARY or name.startswith("busy-beaver-"):
        return LoadedProgram(library_program(name), LIBRARY[name].source if name in LIBRARY else "")
    suffix = Path(name).suffix.lower() if "\n" not in name and len(name) < 4096 else ""
    if suffix not in _SUFFIXES:
        if name.isascii() and name.replace("-", "").replace("_", "").isalpha() and len(name) > 2:
            library_program(name)
        return LoadedProgram(Program.parse(name, name="command line"))
    path = Path(name)
    content = read_user_file(path, "give an existing .ptm, .json or .py file, or a name from the library", _MAX_BYTES)
    if suffix == ".json":
        compiled = compile_tm(TuringMachine.load(path), output=output, missing=missing, name=path.stem)
        return LoadedProgram(compiled.program, compiled=compiled)
    try:
        source = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{name!r} is not UTF-8 text: {error.reason}") from error
    build = assemble if suffix == ".ptm" else compile_py
    return LoadedProgram(build(source, name=path.stem), source)


def _separator(symbols: Sequence[str]) -> str:
    """What stands between typed symbols: the first mark that none of them has, nothing if they have all."""
    return next((mark for mark in _SEPARATORS if not any(mark in symbol for symbol in symbols)), "")


def _read_word(text: str, symbols: Sequence[str]) -> list[str]:
    separator = _separator(symbols)
    if separator and separator in text:
        pieces = (piece if piece in symbols else piece.strip() for piece in text.split(separator))
        return [piece for piece in pieces if piece]
    if all(character in symbols for character in text) or all(len(symbol) == 1 for symbol in symbols):
        return list(text)
    if text in symbols:
        return [text]
    advice = f"put {separator!r} between symbols, such as {separator.join(symbols[:2])}"
    if not separator:
        advice = f"rename them so that none has one of {' '.join(map(repr, _SEPARATORS))}, to put it between symbols"
    raise InvalidValueError(f"{text[:40]!r} is no input symbol; those are {', '.join(symbols)}; {advice}")


def _write_word(word: Sequence[str], symbols: Sequence[str]) -> str:
    """Write a word as :func:`_read_word` reads it; as a JSON list where that cannot be."""
    separator = _separator(symbols)
    if all(len(symbol) == 1 for symbol in word):
        return "".join(word)
    if not separator:
        return json.dumps(list(word), ensure_ascii=False)
    text = separator.join(word)
    return text if _read_word(text, symbols) == list(word) else text + separator
