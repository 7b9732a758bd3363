"""Programs from wherever a user has them: the library, files of three kinds, or the command line itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.assembler import assemble
from octavo_prompt_turing.library import LIBRARY, library_program
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.python_compiler import compile_py
from octavo_prompt_turing.tm_compiler import CompiledMachine, Output, compile_tm
from octavo_prompt_turing.turing import TuringMachine
from octavo_prompt_turing.user_files import read_user_file

__all__ = ["LoadedProgram", "load_program"]

_SUFFIXES = (".ptm", ".json", ".py")
_MAX_BYTES = 4 * 2**20


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
            word: Bits; for a Turing machine its symbols, separated by commas if one is longer than a character.

        Returns:
            The bits.
        """
        if self.compiled is None:
            return word
        symbols = word.split(",") if "," in word else list(word)
        return self.compiled.encode([symbol for symbol in symbols if symbol])

    def describe(self, output: str) -> str:
        """Say what an output means.

        Args:
            output: Output bits.

        Returns:
            The bits, or for a Turing machine whether it accepted and its tape.
        """
        if self.compiled is None:
            return output
        accepted, tape = self.compiled.decode(output)
        parts = [] if accepted is None else ["accepted" if accepted else "rejected"]
        parts += [] if tape is None else ["".join(tape) if all(len(s) == 1 for s in tape) else ",".join(tape)]
        return " ".join(parts)


def load_program(
    text: str, *, output: Output = "accept", missing: Literal["error", "reject"] | None = None
) -> LoadedProgram:
    """Find a program.

    Args:
        text: Name of a ready program; a file: ``.ptm`` (assembler), ``.json`` (Turing machine) or ``.py`` (the language
            of :func:`octavo_prompt_turing.compile_py`; it is parsed and never executed); or instructions.
        output: What a compiled Turing machine prints.
        missing: What its missing transitions mean.

    Returns:
        The program.

    Raises:
        MissingFileError: If the file does not exist.
        InvalidValueError: If it cannot be read as a program.
    """
    name = text.strip()
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
