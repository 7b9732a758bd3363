from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from octavo_core.errors import OctavoError
from octavo_prompt_turing import TuringMachine
from octavo_prompt_turing.cli import app
from octavo_prompt_turing.library import palindrome_machine
from typer.testing import CliRunner, Result

ENDLESS = "A1 A0 A!-2 #"


def run(*arguments: str, code: int = 0, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=given)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, OctavoError), result.output
    return str(result.exception)


def test_importing_the_command_line_loads_no_torch() -> None:
    code = "import sys, octavo_prompt_turing.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_run_prints_the_output() -> None:
    assert run("run", "not", "0110", "--quiet").stdout == "1001\n"
    document = json.loads(run("run", "A1 AR A1 #", "--json", "--engine", "deficit64", "--tokens").stdout)
    assert (document["output"], document["status"], document["cot"]) == ("1", "halted", "A1ARA1:1$")


def test_run_reads_many_inputs(tmp_path: Path) -> None:
    (tmp_path / "inputs.txt").write_text("0\n\n11\n")
    result = run("run", "not", "--input-file", str(tmp_path / "inputs.txt"), "--quiet")
    assert result.stdout.splitlines() == ["1", "", "00"]
    assert run("run", "not", "--input-file", "-", "--quiet", given="10\n").stdout == "01\n"


def test_run_exits_with_1_when_there_is_no_output() -> None:
    assert "max_new_tokens" in run("run", ENDLESS, "--max-tokens", "50", code=1).stderr
    assert "not guaranteed beyond 223 tokens" in run("run", ENDLESS, "--engine", "float64", code=1).stderr
    assert "left the program" in run("run", "A!+2 # A?-1", code=1).stderr


def test_a_saved_run_goes_on(tmp_path: Path) -> None:
    saved = str(tmp_path / "run.json")
    run("run", "parity", "01", "--max-tokens", "20", "--save", saved, code=1)
    result = run("run", "parity", "01", "--resume", saved, "--tokens", "--quiet")
    assert result.stdout == run("run", "parity", "01", "--tokens", "--quiet").stdout
    assert "another program or input" in refused("run", "parity", "11", "--resume", saved)


def test_a_run_is_saved_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo_prompt_turing import library_program
    from octavo_prompt_turing.engines.exact import ExactReader

    read, stop = ExactReader.push, len(library_program("parity").to_prompt("0101")) + 20

    def push(self: ExactReader, token: int) -> None:
        read(self, token)
        if len(self.ids) == stop:
            raise KeyboardInterrupt

    saved = tmp_path / "run.json"
    with monkeypatch.context() as patch:
        patch.setattr(ExactReader, "push", push)
        result = CliRunner().invoke(app, ["run", "parity", "0101", "--save", str(saved)])
    assert result.exit_code != 0
    document = json.loads(saved.read_text())
    assert document["status"] == "interrupted"
    assert document["tokens"]
    again = run("run", "parity", "0101", "--resume", str(saved), "--tokens", "--quiet")
    assert again.stdout == run("run", "parity", "0101", "--tokens", "--quiet").stdout


def test_a_damaged_saved_run_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    run("run", "not", "01", "--max-tokens", "9", "--save", str(saved), code=1)
    document = json.loads(saved.read_text())
    saved.write_text(json.dumps(document | {"tokens": ":1"}))
    assert "the file was changed" in refused("run", "not", "01", "--resume", str(saved))


def test_what_cannot_be_written_or_read_is_told_before_the_run(tmp_path: Path) -> None:
    assert "is a folder" in refused("run", ENDLESS, "--save", str(tmp_path))
    assert "is a folder" in refused("trace", "not", "--out", str(tmp_path))
    assert "is a folder" in refused("dataset", str(tmp_path))
    assert "longer than 255 bytes" in refused("run", ENDLESS, "--save", str(tmp_path / ("x" * 300)))
    (tmp_path / "inputs.txt").write_text("01\n0\n1x\n")
    for command in ("run", "verify"):
        message = refused(command, "not", "--input-file", str(tmp_path / "inputs.txt"))
        assert re.search("line 3 of .*inputs.txt.*'x' at index 1", message)


def test_a_turing_machine_file(tmp_path: Path) -> None:
    path = tmp_path / "palindrome.json"
    path.write_text(palindrome_machine().to_json())
    assert run("run", str(path), "0110", "--missing", "reject", "--quiet").stdout == "accepted\n"
    assert "transitions are missing" in refused("run", str(path), "0110")
    rows = json.loads(run("verify", str(path), "--missing", "reject", "--all-up-to", "2", "--json").stdout)
    assert [row["output"] for row in rows] == ["1", "1", "1", "1", "0", "0", "1"]


def test_verify_compares_all_short_inputs() -> None:
    rows = json.loads(run("verify", "not", "--all-up-to", "2", "--json").stdout)
    assert [row["input"] for row in rows] == ["", "0", "1", "00", "01", "10", "11"]
    assert all(row["ok"] and row["within_bound"] for row in rows)
    assert "7 of 7 inputs agree" in run("verify", "not", "--all-up-to", "2").stdout


def test_verify_exits_with_1_on_a_difference() -> None:
    result = run("verify", ENDLESS, "1", "--engine", "float32", "--unchecked", "--max-steps", "60", code=1)
    assert "0 of 1 inputs agree" in result.stdout
    assert "should be" in result.stdout


def test_compile_shows_every_form(tmp_path: Path) -> None:
    assert run("compile", "not").stdout.startswith("A!+8 AR")
    assert run("compile", "A!+2 A1 #", "--to", "prompt").stdout == "^A!++@A1#$\n"
    assert "L0:" in run("compile", "not", "--to", "labels").stdout
    assert run("compile", "not", "--to", "lines").stdout.splitlines()[0].split() == ["0", "1", "A!+8"]
    out = tmp_path / "not.txt"
    run("compile", "not", "--out", str(out))
    assert out.read_text() == run("compile", "not").stdout
    assert "--to 'c'" in refused("compile", "not", "--to", "c")


def test_trace_and_dataset_write_files(tmp_path: Path) -> None:
    run("trace", "not", "1", "--out", str(tmp_path / "t.html"))
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    assert "halted after" in run("trace", "not", "1").stdout
    run("run", "not", "1", "--trace", str(tmp_path / "u.html"))
    assert (tmp_path / "u.html").stat().st_size > 1_000
    run("dataset", str(tmp_path / "d.jsonl"), "--count", "5", "--programs", "not,parity")
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) == 5


def test_model_and_programs_are_listed() -> None:
    document = json.loads(run("model", "--json").stdout)
    assert document["blocks"] == 5
    assert document["max_length"]["exact"] is None
    assert "sha256" in run("model").stdout
    assert "palindrome-tm" in run("programs").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "not", "012"), "'2' at index 2"),
        (("run", "not", "1", "--engine", "fast"), "unknown engine 'fast'"),
        (("run", "none.ptm"), "no file 'none.ptm'"),
        (("run", "x" * 300 + ".py"), "cannot be read"),
        (("run", "not", "--input-file", "x" * 300), "cannot be read"),
        (("run", "not", "--resume", "x" * 300), "cannot be read"),
        (("run", "A1 A!+" + "9" * 5_000 + " #"), "5,000 digits"),
        (("run", "A!4 #"), "an offset needs its sign|a jump offset needs its sign"),
        (("run", "not", "1", "--output", "x"), "--output 'x'"),
        (("run", "not", "1", "--input-file", "x"), "not both"),
        (("run", "not", "--input-file", "x"), "no file 'x'"),
        (("verify", "dyck", "01010101", "--engine", "float64"), "710 tokens are more than the 223"),
    ],
)
def test_bad_input_has_its_message(arguments: tuple[str, ...], message: str) -> None:
    assert re.search(message, refused(*arguments))


def test_words_with_a_comma_symbol_or_long_symbols_are_run(tmp_path: Path) -> None:
    comma = {"s": {"a": ("s", "a", "R"), ",": ("f", ",", "N")}}
    swap = {"s": {"q0": ("s", "q1", "R"), "q1": ("s", "q0", "R"), "_": ("f", "_", "N")}}
    for name, table, symbols in (("comma", comma, ("a", ",")), ("swap", swap, ("q0", "q1"))):
        made = TuringMachine.single_tape(table, initial="s", final=["f"], blank="_", input_symbols=symbols)
        (tmp_path / f"{name}.json").write_text(made.to_json())
    for word, verdict in (("a,a", "accepted"), (",", "accepted"), ("aa", "rejected"), ("", "rejected")):
        found = run("run", str(tmp_path / "comma.json"), word, "--missing", "reject", "--quiet").stdout
        assert found == f"{verdict}\n"
    arguments = ("verify", str(tmp_path / "comma.json"), "--all-up-to", "1", "--missing", "reject", "--json")
    assert [row["output"] for row in json.loads(run(*arguments).stdout)] == ["0", "0", "1"]
    for word, tape in (("q0", "q1"), ("q0,q1", "q1,q0")):
        found = run("run", str(tmp_path / "swap.json"), word, "--output", "tape", "--quiet").stdout
        assert found == f"{tape}\n"


@pytest.mark.parametrize("command", ["run", "verify", "trace"])
def test_help_says_how_words_are_typed(command: str) -> None:
    assert "q0,q1" in re.sub(r"[\s│]+", " ", run(command, "--help").stdout)


@pytest.mark.parametrize("other", ["--save", "--resume"])
def test_a_trace_does_not_overwrite_the_saved_run(tmp_path: Path, other: str) -> None:
    saved = tmp_path / "z.json"
    run("run", "parity", "01", "--max-tokens", "20", "--save", str(saved), code=1)
    before = saved.read_text()
    same = str(tmp_path / "." / "z.json")
    assert f"--trace and {other} name the same file" in refused(
        "run", "parity", "01", other, str(saved), "--trace", same
    )
    assert saved.read_text() == before


def test_verify_exits_with_1_where_a_run_does_not_halt() -> None:
    result = run("verify", "parity", "01", "--max-steps", "3", code=1)
    assert "1 of 1 inputs agree token by token; 1 did not halt within 3 steps" in result.stdout


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_file_without_a_line_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "none.txt").write_text("")
    assert "has no lines; give one input a line" in refused(command, "not", "--input-file", str(tmp_path / "none.txt"))
    assert "is a folder" in refused(command, "not", "--input-file", str(tmp_path))


def test_a_dataset_of_a_machine_has_its_words(tmp_path: Path) -> None:
    table = {"s": {s: ("s", t, "R") for s, t in zip("abc", "bca", strict=True)} | {"_": ("f", "_", "N")}}
    made = TuringMachine.single_tape(table, initial="s", final=["f"], blank="_", input_symbols="abc")
    (tmp_path / "m.json").write_text(made.to_json())
    run("dataset", str(tmp_path / "d.jsonl"), "--count", "20", "--programs", str(tmp_path / "m.json"))
    inputs = [json.loads(line)["input"] for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    codes = [bits[at : at + 2] for bits in inputs for at in range(0, len(bits), 2)]
    assert set(codes) == {"00", "01", "10"}
    assert max(map(len, inputs)) == 8
    assert "is beyond 1,000,000" in refused("dataset", str(tmp_path / "e.jsonl"), "--max-input", "100000000000")
