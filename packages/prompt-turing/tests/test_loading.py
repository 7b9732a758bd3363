from __future__ import annotations

from pathlib import Path

import pytest
from octavo_core.errors import InvalidValueError, MissingFileError
from octavo_prompt_turing import load_program, run_prompt
from octavo_prompt_turing.library import palindrome_machine


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
