from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_prompt_turing import CoTResult, EngineConfig, PrecisionError, Program, library_program, run_prompt

ENDLESS = Program.parse("A1 A0 A!-2 #")


@pytest.mark.parametrize("engine", ["exact", "deficit64"])
@pytest.mark.parametrize("stop", [0, 1, 7, 40])
def test_a_stopped_run_goes_on_to_the_same_result(tmp_path: Path, engine: str, stop: int) -> None:
    program = library_program("increment-lsb")
    whole = run_prompt(program, "1101", engine=engine)
    part = run_prompt(program, "1101", engine=engine, max_new_tokens=stop)
    assert part.status == "max_new_tokens"
    assert part.output is None
    loaded = CoTResult.load(part.save(tmp_path / "run.json"))
    assert loaded.tokens == part.tokens
    again = run_prompt(program, "1101", engine=engine, generated=loaded.tokens)
    assert (again.tokens, again.output, again.status) == (whole.tokens, whole.output, "halted")


def test_repeated_runs_are_equal() -> None:
    runs = [run_prompt(library_program("parity"), "0101").tokens for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_program_that_does_not_halt_is_told() -> None:
    result = run_prompt(ENDLESS, max_new_tokens=50)
    assert (result.ok, result.output, len(result.tokens)) == (False, None, 50)
    assert "max_new_tokens reached after 50 tokens" in result.message


@pytest.mark.parametrize("engine", ["exact", "deficit64", "reference"])
def test_leaving_the_program_is_told(engine: str) -> None:
    result = run_prompt(Program.parse("A!+2 # A?-1"), engine=engine, max_new_tokens=50)
    assert result.status == "fell_off"
    assert "end every path" in result.message


def test_an_engine_stops_at_its_guaranteed_length() -> None:
    config = EngineConfig("float64", tie_tolerance=1e-10)
    result = run_prompt(ENDLESS, engine=config)
    assert result.status == "precision"
    assert result.length == config.max_length
    with pytest.raises(PrecisionError, match="the prompt has"):
        run_prompt(library_program("palindrome-tm"), engine="float64")
    loose = run_prompt(ENDLESS, engine=EngineConfig("float64", 1e-10, strict=False), max_new_tokens=60)
    assert loose.length > result.length


def test_a_whole_prompt_is_taken_too() -> None:
    prompt = library_program("not").to_prompt("01")
    assert run_prompt(prompt).output == "10"


@pytest.mark.parametrize("engine", ["exact", "deficit64", "reference"])
def test_a_changed_chain_of_thought_is_refused(engine: str) -> None:
    program = library_program("not")
    tokens = [*run_prompt(program, "10").tokens[:12]]
    tokens[7] = "A1" if tokens[7] != "A1" else "A0"
    with pytest.raises(InvalidValueError, match="token 7 of the chain of thought .* the model prints .* was changed"):
        run_prompt(program, "10", engine=engine, generated=tokens)


def test_an_interrupted_run_is_kept(tmp_path: Path) -> None:
    program, kept = library_program("increment-lsb"), []

    def interrupt(label: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_prompt(ENDLESS, max_new_tokens=10_000, progress=interrupt, keep=kept.append)
    assert [(part.status, len(part.tokens)) for part in kept] == [("interrupted", 4_096)]
    assert CoTResult.load(kept[0].save(tmp_path / "run.json")).tokens == kept[0].tokens
    assert run_prompt(program, "1", keep=kept.append).ok
    assert len(kept) == 1


def test_a_long_run_is_kept_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_prompt_turing.decoding._KEEP_SECONDS", -1.0)
    kept: list[CoTResult] = []
    whole = run_prompt(ENDLESS, max_new_tokens=200, keep=kept.append)
    assert [len(part.tokens) for part in kept] == [64, 128, 192]
    assert run_prompt(ENDLESS, max_new_tokens=200, generated=kept[1].tokens).tokens == whole.tokens


def test_a_whole_prompt_takes_no_bits_and_no_text() -> None:
    with pytest.raises(InvalidValueError, match="bits='1' is given beside a whole prompt"):
        run_prompt(library_program("not").to_prompt("0"), "1")
    with pytest.raises(InvalidTypeError, match=r"tokenize\(text\) for a whole prompt"):
        run_prompt("^A1#$")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="max_new_tokens=-1"):
        run_prompt(ENDLESS, max_new_tokens=-1)
    with pytest.raises(InvalidValueError, match="'x' at index 0"):
        run_prompt(ENDLESS, "x")
    with pytest.raises(InvalidStateError, match="is finished"):
        run_prompt(Program.parse("#"), generated=[":", "$"])
    with pytest.raises(InvalidValueError, match="unknown engine"):
        run_prompt(ENDLESS, engine="quick")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file"):
        CoTResult.load(tmp_path / "none.json")
    good = json.loads(run_prompt(Program.parse("#")).save(tmp_path / "run.json").read_text())
    for change in ({"schema": "other"}, {"tokens": "A"}, {"status": "fine"}, {"engine": 1}):
        (tmp_path / "bad.json").write_text(json.dumps(good | change))
        with pytest.raises(InvalidValueError, match="not a saved chain of thought"):
            CoTResult.load(tmp_path / "bad.json")
    for text in ("[1]", "[" * 100_000, "\xff"):
        (tmp_path / "bad.json").write_text(text, encoding="latin-1")
        with pytest.raises(InvalidValueError, match="not a saved chain of thought"):
            CoTResult.load(tmp_path / "bad.json")


def test_a_run_that_stops_for_precision_has_no_margin_left() -> None:
    config = EngineConfig("reference", bits=44)
    result = run_prompt(library_program("parity"), "10", engine=config)
    assert (result.status, result.length) == ("precision", config.max_length)
    assert 0 < result.margin < 1


def test_a_halted_run_without_its_end_is_refused(tmp_path: Path) -> None:
    good = json.loads(run_prompt(Program.parse("#")).save(tmp_path / "run.json").read_text())
    (tmp_path / "bad.json").write_text(json.dumps(good | {"tokens": ":1"}))
    with pytest.raises(InvalidValueError, match="not a saved chain of thought: status 'halted' .* '\\$'"):
        CoTResult.load(tmp_path / "bad.json")
