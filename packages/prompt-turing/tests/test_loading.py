from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from octavo_core.errors import InvalidValueError, MissingFileError
from octavo_prompt_turing import TuringMachine, compile_tm, load_program, run_prompt
from octavo_prompt_turing.library import palindrome_machine
from octavo_prompt_turing.loading import LoadedProgram


def test_every_kind_of_program(tmp_path: Path) -> None:
    (tmp_path / "flip.ptm").write_text("while A { AR flip A AR } halt\n")
    (tmp_path / "twice.py").write_text("def twice():\n    while more():\n        push(read())\n    emit(pop())\n")
    (tmp_path / "palindrome.json").write_text(palindrome_machine().to_json())
    assert run_prompt(load_program(str(tmp_path / "flip.ptm")).program, "10").output == "01"
    loaded = load_program(str(tmp_path / "twice.py"))
    assert run_prompt(loaded.program, "01").output == "1"
    assert loaded.source.startswith("def twice")
    machine = load_program(str(tmp_path / "palindrome.json"), output="both", missing="reject")
    result = run_prompt(machine.program, machine.encode("010"))
    assert machine.describe(result.output or "") == "accepted "
    assert str(load_program("parity").program).startswith("A!+4")
    assert str(load_program("A1 #").program) == "A1 #"
    assert str(load_program("#").program) == "#"


def test_what_cannot_be_found_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file 'x.ptm'"):
        load_program("x.ptm")
    with pytest.raises(InvalidValueError, match="no program 'partiy' in the library"):
        load_program("partiy")
    with pytest.raises(MissingFileError, match="cannot be read: File name too long"):
        load_program("x" * 300 + ".ptm")
    (tmp_path / "x.ptm").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="not UTF-8"):
        load_program(str(tmp_path / "x.ptm"))
    (tmp_path / "evil.py").write_text("import os\nos.system('touch done')\n")
    with pytest.raises(InvalidValueError, match="0 functions"):
        load_program(str(tmp_path / "evil.py"))
    assert not (tmp_path / "done").exists()


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "flip.ptm").write_text("A1 #", encoding="utf-8-sig")
    (tmp_path / "one.py").write_text("def one():\n    return 1\n", encoding="utf-8-sig")
    (tmp_path / "palindrome.json").write_text(palindrome_machine().to_json(), encoding="utf-8-sig")
    assert str(load_program(str(tmp_path / "flip.ptm")).program) == "A1 #"
    assert run_prompt(load_program(str(tmp_path / "one.py")).program).output == "1"
    assert load_program(str(tmp_path / "palindrome.json"), missing="reject").compiled is not None


def machine(*symbols: str) -> TuringMachine:
    """Replace each symbol by itself up to the blank."""
    table = {"s": {symbol: ("s", symbol, "R") for symbol in symbols} | {"_": ("f", "_", "N")}}
    return TuringMachine.single_tape(table, initial="s", final=["f"], blank="_", input_symbols=symbols)


def loaded_machine(*symbols: str) -> LoadedProgram:
    compiled = compile_tm(machine(*symbols), output="tape")
    return LoadedProgram(compiled.program, compiled=compiled)


@pytest.mark.parametrize(
    ("symbols", "typed", "word"),
    [
        ("01", "0110", "0 1 1 0"),
        ("01", "0,1", "0 1"),
        ("01", "1,", "1"),
        (["q0", "q1"], "q0", "q0"),
        (["q0", "q1"], "q0,", "q0"),
        (["q0", "q1"], "q0,q1", "q0 q1"),
        (["q0", "q1"], "q0, q1", "q0 q1"),
        (["a", "b", "ab"], "ab", "a b"),
        (["a", "b", "ab"], "ab,", "ab"),
        (["a", "bc"], "aa", "a a"),
        ("a,", "a,a", "a , a"),
        ("a,", ",", ","),
        ("a,", "a a", "a a"),
        (["q0", ","], "q0 , q0", "q0 , q0"),
        (["q0", ","], ",,", ", ,"),
        (["q0", ", "], "q0;, ", "q0;, "),
    ],
)
def test_words_of_a_machine_are_typed_in_one_way(symbols: Sequence[str], typed: str, word: str) -> None:
    loaded = loaded_machine(*symbols)
    assert loaded.compiled is not None
    parts = word.split(";" if ";" in word else None)
    assert loaded.encode(typed) == loaded.compiled.encode(parts)


@pytest.mark.parametrize(
    "symbols",
    ["01", "a,", "a ,;|", ["q0", "q1"], ["a", "b", "ab"], ["a", ",", "a,"], ["x y", ",", ";z"], ["xy", "x", "y "]],
)
def test_the_tape_that_is_printed_can_be_typed(symbols: Sequence[str]) -> None:
    loaded = loaded_machine(*symbols)
    assert loaded.compiled is not None
    for length in range(4):
        for word in itertools.product(symbols, repeat=length):
            bits = loaded.compiled.encode(word)
            assert loaded.encode(loaded.describe(bits)) == bits


@pytest.mark.parametrize(
    ("symbols", "typed", "message"),
    [
        (["q0", "q1"], "q0q1", "'q0q1' is no input symbol; those are q0, q1; put ',' between symbols, such as q0,q1"),
        (["q0", "q1"], "q0,q2", "'q2' is no input symbol"),
        (["q0", ","], "q0,q0", "'q0,q0' is no input symbol; .* put ' ' between symbols"),
        ("ab", "abc", "'c' is no input symbol; those are a, b$"),
        ("", "a", "'a' is no input symbol; the machine has none"),
    ],
)
def test_other_words_are_refused(symbols: Sequence[str], typed: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        loaded_machine(*symbols).encode(typed)


def test_words_of_symbols_that_cannot_be_typed_apart() -> None:
    symbols = ["a,", "b ", ";", "|"]
    loaded = loaded_machine(*symbols)
    assert loaded.compiled is not None
    assert loaded.encode("a,") == loaded.compiled.encode(["a,"])
    assert loaded.describe(loaded.compiled.encode(["a,", ";"])) == '["a,", ";"]'
    with pytest.raises(
        InvalidValueError, match="'a,b ' is no input symbol; .* rename them so that none has one of ','"
    ):
        loaded.encode("a,b ")


def test_paths_are_taken(tmp_path: Path) -> None:
    (tmp_path / "one.ptm").write_text("A1 #")
    assert str(load_program(tmp_path / "one.ptm").program) == "A1 #"


def test_a_folder_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.ptm").mkdir()
    with pytest.raises(MissingFileError, match=r"x.ptm' is a folder, not a file; give an existing"):
        load_program(str(tmp_path / "x.ptm"))
