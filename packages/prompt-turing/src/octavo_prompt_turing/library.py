"""Ready programs, each with a direct Python reference, and well-known machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.arguments import check_type
from octavo_prompt_turing.assembler import assemble
from octavo_prompt_turing.emitter import Emitter
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.python_compiler import compile_py
from octavo_prompt_turing.tm_compiler import compile_tm
from octavo_prompt_turing.turing import TuringMachine

__all__ = [
    "LIBRARY",
    "LibraryEntry",
    "busy_beaver",
    "counter_program",
    "library_program",
    "palindrome_machine",
    "wolfram_2_3",
]

_PARITY = "A!+4 AR AR A?-2 A1 AR A1 A?+3 AL AL AL AL AL A?+2 # AR AR A0 AR A!-11 A0 AL AL A?+3 A1 A?+2 A0 AL A?-17"
_DYCK = (
    "A?+14 A0 AL A0 AL A?-4 AR AR A1 AR BL B?+2 A1 # AR A?+4 B1 BR B!+3 BL B!+4 B0 AR B!-23 AL AR AR A?-2 "
    "A0 AL A0 AL A?-4 AR AR A1 #"
)
_NOT = "while A { AR flip A AR } halt"
_INCREMENT_LSB = "loop: A! carry AR A! last A0 AR jmp loop last: A1 halt carry: A1 AR A1 halt"
_REVERSE = """
def reverse():
    while more():
        push(read())
    while not empty():
        emit(pop())
"""
_PALINDROME = """
def palindrome():
    while more():
        push(read())
    rewind()
    while more():
        if read() != pop():
            return 0
    return 1
"""
_INCREMENT = """
def increment():
    n = 0
    while more():
        n = (n << 1) + read()
    return n + 1
"""
_ADDITION = """
def addition():
    length = 0
    while more():
        read()
        length += 1
    rewind()
    a = 0
    for i in range(length >> 1):
        a = (a << 1) + read()
    b = 0
    while more():
        b = (b << 1) + read()
    return a + b
"""
_MULTIPLICATION = """
def multiplication():
    a = 0
    while read():
        a += 1
    b = 0
    while read():
        b += 1
    for i in range(a):
        for j in range(b):
            emit(1)
"""
_MAJORITY = """
def majority():
    ones = 0
    zeros = 0
    while more():
        if read():
            ones += 1
        else:
            zeros += 1
    return ones > zeros
"""
_SORT = """
def sort():
    ones = 0
    while more():
        if read():
            ones += 1
        else:
            emit(0)
    for i in range(ones):
        emit(1)
"""


@dataclass(frozen=True)
class LibraryEntry:
    """A ready program.

    Args:
        description: What it computes.
        build: Makes the program.
        expected: The same function in Python.
        source: Its source, to be shown beside a trace; empty if there is none.
    """

    description: str
    build: Callable[[], Program]
    expected: Callable[[str], str]
    source: str = ""


def _is_dyck(bits: str) -> str:
    depth = 0
    for bit in bits:
        depth += 1 if bit == "0" else -1
        if depth < 0:
            return "0"
    return str(int(depth == 0))


def _written(source: str, name: str) -> Callable[[], Program]:
    return lambda: compile_py(source, name=name)


LIBRARY: dict[str, LibraryEntry] = {
    "identity": LibraryEntry("the input itself", lambda: Program.parse("#", name="identity"), lambda x: x),
    "not": LibraryEntry(
        "every bit inverted", lambda: assemble(_NOT, name="not"), lambda x: x.translate({48: 49, 49: 48}), _NOT
    ),
    "parity": LibraryEntry(
        "1 for an even number of ones (the paper's demonstration)",
        lambda: Program.parse(_PARITY, name="parity"),
        lambda x: str(1 - x.count("1") % 2),
    ),
    "dyck": LibraryEntry(
        "1 for balanced parentheses, 0 = '(' and 1 = ')' (the paper's demonstration)",
        lambda: Program.parse(_DYCK, name="dyck"),
        _is_dyck,
    ),
    "increment-lsb": LibraryEntry(
        "a number plus 1, least significant bit first",
        lambda: assemble(_INCREMENT_LSB, name="increment-lsb"),
        lambda x: _increment_lsb(x),
        _INCREMENT_LSB,
    ),
    "reverse": LibraryEntry("the input backwards", _written(_REVERSE, "reverse"), lambda x: x[::-1], _REVERSE),
    "palindrome": LibraryEntry(
        "1 for a palindrome", _written(_PALINDROME, "palindrome"), lambda x: str(int(x == x[::-1])), _PALINDROME
    ),
    "increment": LibraryEntry(
        "a binary number plus 1, most significant bit first",
        _written(_INCREMENT, "increment"),
        lambda x: format(int(x or "0", 2) + 1, "b"),
        _INCREMENT,
    ),
    "addition": LibraryEntry(
        "the sum of the two halves of the input, read as binary numbers",
        _written(_ADDITION, "addition"),
        lambda x: format(int(x[: len(x) // 2] or "0", 2) + int(x[len(x) // 2 :] or "0", 2), "b"),
        _ADDITION,
    ),
    "multiplication": LibraryEntry(
        "unary multiplication: 1^a 0 1^b gives 1^(a b)",
        _written(_MULTIPLICATION, "multiplication"),
        lambda x: "1" * (len(x.split("0")[0]) * len([*x.split("0"), ""][1])),
        _MULTIPLICATION,
    ),
    "majority": LibraryEntry(
        "1 for more ones than zeros",
        _written(_MAJORITY, "majority"),
        lambda x: str(int(x.count("1") > x.count("0"))),
        _MAJORITY,
    ),
    "sort": LibraryEntry("the bits sorted", _written(_SORT, "sort"), lambda x: "".join(sorted(x)), _SORT),
    "palindrome-tm": LibraryEntry(
        "1 for a palindrome, by the textbook Turing machine",
        lambda: compile_tm(palindrome_machine(), missing="reject", name="palindrome-tm").program,
        lambda x: str(int(x == x[::-1])),
    ),
}
"""Ready programs by name."""


@lru_cache(maxsize=64)
def library_program(name: str) -> Program:
    """Build a ready program.

    Args:
        name: A key of :data:`LIBRARY`, or ``"busy-beaver-2"`` to ``"busy-beaver-4"``.

    Returns:
        The program.

    Raises:
        InvalidValueError: If there is no such program.
        InvalidTypeError: If the name is not text.
    """
    check_type("name", name, str, "text such as 'parity'")
    if name in LIBRARY:
        return LIBRARY[name].build()
    if name.startswith("busy-beaver-") and name[12:] in {"2", "3", "4"}:
        return busy_beaver(int(name[12:]))
    raise InvalidValueError(f"no program {name!r} in the library; it has {', '.join(LIBRARY)}, busy-beaver-2 to -4")


def counter_program(limit_bits: int) -> Program:
    """A binary counter left of cell 0 of tape A that halts when its bit ``limit_bits`` is set.

    Args:
        limit_bits: At least 1; the run takes about ``50 * 2**limit_bits`` tokens.

    Returns:
        The program; its input stays as it is and is the output.

    Raises:
        InvalidValueError: If ``limit_bits`` is below 1.
    """
    if limit_bits < 1:
        raise InvalidValueError(f"limit_bits={limit_bits} must be at least 1")
    emit = Emitter()
    # Head B moves along with head A, between two ones: at home, and at the limit.
    emit.op("B1")
    emit.move("B", -limit_bits - 1)
    emit.op("B1")
    emit.move("B", limit_bits + 1)
    emit.label("increment")
    emit.op("AL", "BL")
    emit.label("carry")
    emit.jump("A!", "set")
    emit.op("A0", "AL", "BL")
    emit.goto("carry", "A")
    emit.label("set")
    emit.op("A1")
    emit.jump("B?", "halt")
    emit.label("back")
    emit.op("AR", "BR")
    emit.jump("B!", "back")
    emit.goto("increment", "B", known=1)
    emit.label("halt")
    emit.op("#")
    return emit.link(f"counter-{limit_bits}")


def busy_beaver(num_states: int) -> Program:
    """The champion of 2, 3 or 4 states for steps (6, 21, 107), on the bits of tape A themselves.

    Args:
        num_states: 2, 3 or 4.

    Returns:
        The program, for the empty input; tape A holds the machine's tape at the end.

    Raises:
        InvalidValueError: If there is no such champion here.
    """
    tables = {2: "1RB1LB_1LA1RH", 3: "1RB1RH_1LB0RC_1LC1LA", 4: "1RB1LB_1LA0LC_1RH1LD_1RD0RA"}
    if num_states not in tables:
        raise InvalidValueError(f"num_states={num_states}: the busy beavers here have 2, 3 or 4 states")
    emit = Emitter()
    for index, row in enumerate(tables[num_states].split("_")):
        state = "ABCD"[index]
        emit.label(state)
        emit.jump("A?", f"{state}1")
        for symbol, (write, move, target) in enumerate((row[:3], row[3:])):
            if symbol:
                emit.label(f"{state}1")
            emit.op(f"A{write}", f"A{move}")
            emit.goto(target, "A") if target != "H" else emit.op("#")
    return emit.link(f"busy-beaver-{num_states}")


def palindrome_machine() -> TuringMachine:
    """The textbook machine for binary palindromes: compare the ends, erase them, repeat.

    Returns:
        The machine.
    """
    move = {"0": ("0", "R"), "1": ("1", "R")}
    table: dict[str, dict[str, tuple[str, str, str]]] = {
        "start": {"0": ("seek0", "_", "R"), "1": ("seek1", "_", "R"), "_": ("yes", "_", "N")},
        "back": {"0": ("back", "0", "L"), "1": ("back", "1", "L"), "_": ("start", "_", "R")},
    }
    for bit in "01":
        table[f"seek{bit}"] = {s: (f"seek{bit}", *move[s]) for s in "01"} | {"_": (f"test{bit}", "_", "L")}
        table[f"test{bit}"] = {bit: ("back", "_", "L"), "_": ("yes", "_", "N")}
    return TuringMachine.single_tape(table, initial="start", final=["yes"], blank="_", input_symbols="01")


def wolfram_2_3() -> TuringMachine:
    """Wolfram's machine with 2 states and 3 symbols, weakly universal (Smith 2007); it never halts.

    Returns:
        The machine, with blank 0 and a third, unreachable state as its final one.
    """
    table = {
        "A": {"0": ("B", "1", "R"), "1": ("A", "2", "L"), "2": ("A", "1", "L")},
        "B": {"0": ("A", "2", "L"), "1": ("B", "2", "R"), "2": ("A", "0", "R")},
    }
    return TuringMachine.single_tape(table, initial="A", final=["halt"], blank="0", input_symbols="12")


def _increment_lsb(bits: str) -> str:
    ones = len(bits) - len(bits.lstrip("1"))
    return "0" * ones + "1" + bits[ones + 1 :]
