"""Compiler from Turing machines to programs of the two-tape Post-Turing machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tm_layouts import Output, OwnTapes, codes_of, marks
from octavo_prompt_turing.tm_shared import SharedTape
from octavo_prompt_turing.turing import TuringMachine

__all__ = ["CompiledMachine", "Output", "compile_tm"]

_MAX_PRODUCTS = 20_000


@dataclass(frozen=True)
class CompiledMachine:
    """A compiled Turing machine with the coding of its inputs and outputs.

    Args:
        program: The program.
        machine: What it was compiled from.
        output: ``"accept"``: one bit; ``"tape"``: the content of tape 1; ``"both"``: the bit, then the content.
    """

    program: Program
    machine: TuringMachine
    output: Output

    def encode(self, word: Sequence[str]) -> str:
        """Write an input word as bits.

        Args:
            word: Input symbols.

        Returns:
            The bits to give to the program.

        Raises:
            InvalidValueError: If a symbol is not an input symbol.
        """
        codes = codes_of(self.machine.input_symbols)
        for symbol in word:
            if symbol not in codes:
                those = f"those are {', '.join(codes)}" if codes else "the machine has none"
                raise InvalidValueError(f"{symbol!r} is no input symbol; {those}")
        return "".join(codes[symbol] for symbol in word)

    def decode(self, bits: str) -> tuple[bool | None, tuple[str, ...] | None]:
        """Read the program's output.

        Args:
            bits: Output bits.

        Returns:
            Whether the machine accepted, and the content of tape 1; ``None`` for what the output does not hold.

        Raises:
            InvalidValueError: If the bits are not an output of this program.
        """
        accepted = None
        if self.output != "tape":
            if not bits:
                raise InvalidValueError("the output is empty; it should begin with the bit of acceptance")
            accepted, bits = bits[0] == "1", bits[1:]
        if self.output == "accept":
            return accepted, None
        codes = codes_of(marks(self.machine))
        names = {code: symbol for symbol, code in codes.items()}
        width = len(next(iter(names), "0"))
        pieces = [bits[start : start + width] for start in range(0, len(bits), width)]
        if any(piece not in names for piece in pieces):
            raise InvalidValueError(f"output {bits[:40]!r} is not made of symbol codes of {width} bits")
        return accepted, tuple(names[piece] for piece in pieces)


def compile_tm(
    machine: object, *, output: Output = "accept", missing: Literal["error", "reject"] | None = None, name: str = "tm"
) -> CompiledMachine:
    """Compile a Turing machine.

    Args:
        machine: A :class:`TuringMachine`, or an automata-lib ``DTM`` or deterministic ``MNTM``.
        output: What the program prints, see :class:`CompiledMachine`.
        missing: What a missing transition means: ``"reject"``, or ``"error"``, that the machine is refused. By default
            an error, but for machines of automata-lib, which reject.
        name: Name of the program.

    Returns:
        The program and its coding.

    Raises:
        InvalidValueError: If transitions are missing, or the machine is too large.

    Source:
        Paper, Section 3 (a two-tape machine of the same time for one and two tapes); several tapes on shared cells are
        the textbook simulation in quadratic time, not the O(t log t) one of the paper's corollary.
    """
    if not isinstance(machine, TuringMachine):
        machine = TuringMachine.from_automata(machine)
        missing = missing or "reject"
    size = len(machine.states) * len(machine.tape_symbols) ** machine.num_tapes
    if size > _MAX_PRODUCTS:
        raise InvalidValueError(f"states times symbols are {size:,}, over the {_MAX_PRODUCTS:,} supported")
    absent = machine.missing()
    if absent and missing != "reject":
        state, symbols = absent[0]
        raise InvalidValueError(
            f"{len(absent)} transitions are missing, the first from state {state!r} on {','.join(symbols)!r}; add "
            "them, or pass missing='reject' (--missing reject) if the machine rejects there"
        )
    writer = SharedTape(machine, output) if machine.num_tapes > 2 else OwnTapes(machine, output)
    return CompiledMachine(writer.write(name), machine, output)
