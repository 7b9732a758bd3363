from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingFileError
from octavo_prompt_turing import Machine, TuringMachine, compile_tm, run_prompt
from octavo_prompt_turing.library import palindrome_machine, wolfram_2_3


def random_machine(generator: np.random.Generator, num_tapes: int, max_states: int = 5) -> TuringMachine:
    symbols = ("_", "0", "1")[: int(generator.integers(2, 4))] if num_tapes < 3 else ("_", "0")
    states = (*(f"q{i}" for i in range(generator.integers(2, max_states + 1))), "f")
    rows: dict[str, dict[tuple[str, ...], Any]] = {}
    for state in states[:-1]:
        for under in itertools.product(symbols, repeat=num_tapes):
            if generator.random() < 0.85:
                writes = tuple((str(generator.choice(symbols)), str(generator.choice(list("LRN")))) for _ in under)
                rows.setdefault(state, {})[under] = (str(generator.choice(states)), writes)
    return TuringMachine(states, symbols[1:], symbols, rows, "q0", "_", frozenset(["f"]), num_tapes)


def words(symbols: tuple[str, ...], longest: int) -> list[tuple[str, ...]]:
    return [word for length in range(longest + 1) for word in itertools.product(symbols, repeat=length)]


@pytest.mark.parametrize(("num_tapes", "count", "longest"), [(1, 12, 4), (2, 8, 4), (3, 5, 4)])
def test_random_machines_agree_with_direct_simulation(num_tapes: int, count: int, longest: int) -> None:
    generator = np.random.default_rng(num_tapes)
    compared = 0
    for _ in range(count):
        machine = random_machine(generator, num_tapes, 3 if num_tapes > 2 else 5)
        compiled = compile_tm(machine, output="both", missing="reject")
        for word in words(machine.input_symbols, longest):
            direct = machine.run(word, 100)
            if direct.halted:
                run = Machine(compiled.program).run(compiled.encode(word), 100_000)
                assert run.output is not None
                assert compiled.decode(run.output) == (direct.accepted, direct.tape)
                compared += 1
    assert compared > 20


def textbook() -> dict[str, TuringMachine]:
    """Five machines besides the palindromes."""
    go = {"0": ("0", "R"), "1": ("1", "R")}
    anbn = {
        "q0": {"0": ("q1", "x", "R"), "y": ("q3", "y", "R"), "_": ("q4", "_", "R")},
        "q1": {"0": ("q1", "0", "R"), "y": ("q1", "y", "R"), "1": ("q2", "y", "L")},
        "q2": {"0": ("q2", "0", "L"), "y": ("q2", "y", "L"), "x": ("q0", "x", "R")},
        "q3": {"y": ("q3", "y", "R"), "_": ("q4", "_", "R")},
    }
    increment = {
        "right": {s: ("right", *go[s]) for s in "01"} | {"_": ("carry", "_", "L")},
        "carry": {"1": ("carry", "0", "L"), "0": ("done", "1", "N"), "_": ("done", "1", "N")},
    }
    even = {
        "even": {"0": ("even", "0", "R"), "1": ("odd", "1", "R"), "_": ("yes", "_", "N")},
        "odd": {"0": ("odd", "0", "R"), "1": ("even", "1", "R")},
    }
    contains = {
        "a": {"0": ("a", "0", "R"), "1": ("b", "1", "R")},
        "b": {"1": ("b", "1", "R"), "0": ("c", "0", "R")},
        "c": {"0": ("a", "0", "R"), "1": ("yes", "1", "N")},
    }
    doubling = {
        "go": {"1": ("right", "x", "R"), "_": ("clean", "_", "L"), "y": ("go", "y", "R")},
        "right": {"1": ("right", "1", "R"), "y": ("right", "y", "R"), "_": ("left", "y", "L")},
        "left": {"1": ("left", "1", "L"), "y": ("left", "y", "L"), "x": ("go", "x", "R")},
        "clean": {"y": ("clean", "1", "L"), "x": ("clean", "1", "L"), "_": ("yes", "_", "R")},
    }
    one = TuringMachine.single_tape
    return {
        "0^n 1^n": one(anbn, initial="q0", final=["q4"], blank="_", input_symbols="01"),
        "increment": one(increment, initial="right", final=["done"], blank="_", input_symbols="01"),
        "even ones": one(even, initial="even", final=["yes"], blank="_", input_symbols="01"),
        "contains 101": one(contains, initial="a", final=["yes"], blank="_", input_symbols="01"),
        "unary doubling": one(doubling, initial="go", final=["yes"], blank="_", input_symbols="1"),
        "palindrome": palindrome_machine(),
    }


def as_dtm(machine: TuringMachine) -> Any:
    dtm = pytest.importorskip("automata.tm.dtm").DTM
    return dtm(
        states=set(machine.states),
        input_symbols=set(machine.input_symbols),
        tape_symbols=set(machine.tape_symbols),
        transitions={
            state: {under[0]: (target, *writes[0]) for under, (target, writes) in row.items()}
            for state, row in machine.transitions.items()
        },
        initial_state=machine.initial_state,
        blank_symbol=machine.blank_symbol,
        final_states=set(machine.final_states),
    )


def accepts(dtm: Any, word: tuple[str, ...], max_steps: int) -> bool | None:
    """Whether automata-lib's simulator accepts; None if it does not stop in time."""
    exceptions = pytest.importorskip("automata.base.exceptions")
    try:
        for step, configuration in enumerate(dtm.read_input_stepwise("".join(word))):
            if configuration.state in dtm.final_states:
                return True
            if step > max_steps:
                return None
    except exceptions.RejectionException:
        return False
    return True


@pytest.mark.parametrize("name", list(textbook()))
def test_textbook_machines_agree_with_automata_lib(name: str) -> None:
    machine = textbook()[name]
    dtm = as_dtm(machine)
    compiled = compile_tm(dtm)
    for word in words(machine.input_symbols, 6):
        run = Machine(compiled.program).run(compiled.encode(word))
        assert run.output == str(int(bool(accepts(dtm, word, 10_000)))), word


@pytest.mark.parametrize("seed", range(6))
def test_random_machines_agree_with_automata_lib(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    for _ in range(5):
        machine = random_machine(generator, 1)
        while machine.initial_state not in machine.transitions:  # automata-lib wants one there
            machine = random_machine(generator, 1)
        dtm = as_dtm(machine)
        compiled = compile_tm(dtm)
        for word in words(machine.input_symbols, 6 if len(machine.input_symbols) == 1 else 4):
            verdict = accepts(dtm, word, 60)
            if verdict is not None:
                run = Machine(compiled.program).run(compiled.encode(word), 20_000)
                assert run.output == str(int(verdict)), word


def test_several_tapes_from_automata_lib() -> None:
    mntm = pytest.importorskip("automata.tm.mntm").MNTM
    copier = mntm(
        states={"q0", "q1"},
        input_symbols={"0", "1"},
        tape_symbols={"0", "1", "#"},
        n_tapes=2,
        transitions={
            "q0": {
                ("1", "#"): {("q0", (("1", "R"), ("1", "R")))},
                ("0", "#"): {("q0", (("0", "R"), ("#", "N")))},
                ("#", "#"): {("q1", (("#", "N"), ("#", "N")))},
            }
        },
        initial_state="q0",
        blank_symbol="#",
        final_states={"q1"},
    )
    compiled = compile_tm(copier)
    assert compiled.machine.num_tapes == 2
    assert run_prompt(compiled.program, compiled.encode("0110")).output == "1"


def test_the_transformer_runs_a_compiled_machine() -> None:
    compiled = compile_tm(textbook()["increment"], output="tape", missing="reject")
    result = run_prompt(compiled.program, compiled.encode("1011"))
    assert compiled.decode(result.output or "") == (None, tuple("1100"))


def test_larger_alphabets_are_coded() -> None:
    swap = {"q": {s: ("q", t, "R") for s, t in zip("abcde", "bcdea", strict=True)} | {"_": ("f", "_", "N")}}
    machine = TuringMachine.single_tape(swap, initial="q", final=["f"], blank="_", input_symbols="abcde")
    compiled = compile_tm(machine, output="both", missing="reject")
    bits = compiled.encode("deca")
    assert len(bits) == 12
    output = Machine(compiled.program).run(bits).output
    assert output is not None
    assert compiled.decode(output) == (True, tuple("eadb"))


def test_wolframs_machine_runs_on() -> None:
    compiled = compile_tm(wolfram_2_3())
    assert Machine(compiled.program).run("", 5_000).status == "max_steps"


def test_files_round_trip(tmp_path: Path) -> None:
    for machine in (palindrome_machine(), random_machine(np.random.default_rng(0), 2)):
        path = tmp_path / "machine.json"
        path.write_text(machine.to_json())
        loaded = TuringMachine.load(path)
        assert loaded.transitions == machine.transitions
        assert (loaded.states, loaded.final_states) == (machine.states, machine.final_states)


def test_missing_transitions_are_refused_or_reject() -> None:
    machine = textbook()["even ones"]
    with pytest.raises(InvalidValueError, match="1 transitions are missing, the first from state 'odd' on '_'"):
        compile_tm(machine)
    assert Machine(compile_tm(machine, missing="reject").program).run("1").output == "0"


def test_the_size_is_checked_before_transitions_are_counted() -> None:
    symbols = tuple(f"s{number}" for number in range(65))
    machine = TuringMachine(("a", "b"), symbols[1:], symbols, {}, "a", "s0", frozenset("b"), 8)
    with pytest.raises(InvalidValueError, match="over the 20,000 supported"):
        compile_tm(machine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial_state": "z"}, "the initial state uses 'z', which is no state"),
        ({"final_states": frozenset("z")}, "the final states uses 'z'"),
        ({"states": (*palindrome_machine().states, "start")}, "the states have 'start' twice"),
        ({"input_symbols": ("0", "0")}, "the input symbols have '0' twice"),
        ({"tape_symbols": (*palindrome_machine().tape_symbols, "1")}, "the tape symbols have '1' twice"),
        ({"blank_symbol": "z"}, "the blank uses 'z', which is no tape symbol"),
        ({"blank_symbol": "0"}, "the blank '0' cannot be an input symbol"),
        ({"input_symbols": ("2",)}, "the input alphabet uses '2'"),
        ({"transitions": {"start": {("9",): ("yes", (("0", "R"),))}}}, "on '9' uses '9', which is no tape symbol"),
        ({"transitions": {"start": {("0",): ("yes", (("0", "U"),))}}}, "uses 'U', which is no move"),
        ({"transitions": {"start": {("0",): ("nowhere", (("0", "R"),))}}}, "uses 'nowhere', which is no state"),
        ({"transitions": {"start": {("0", "0"): ("yes", (("0", "R"),))}}}, "is not for 1 tape"),
    ],
)
def test_bad_machines_are_refused(change: dict[str, Any], message: str) -> None:
    from dataclasses import replace

    with pytest.raises(InvalidValueError, match=message):
        replace(palindrome_machine(), **change)


def test_bad_files_and_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file"):
        TuringMachine.load(tmp_path / "none.json")
    with pytest.raises(MissingFileError, match="cannot be read"):
        TuringMachine.load("x" * 300)
    with pytest.raises(InvalidTypeError, match=r"TuringMachine.load\(path\)"):
        compile_tm({"states": []})
    path = tmp_path / "machine.json"
    for text, message in (("{", "is not a Turing machine"), ('{"states": 1}', "is not a Turing machine: ")):
        path.write_text(text)
        with pytest.raises(InvalidValueError, match=message):
            TuringMachine.load(path)
    path.write_text(palindrome_machine().to_json().replace('"R"', "7"))
    with pytest.raises(InvalidValueError, match=r"write \[state, symbol, move\]"):
        TuringMachine.load(path)
    compiled = compile_tm(palindrome_machine(), missing="reject")
    with pytest.raises(InvalidValueError, match="'2' is no input symbol"):
        compiled.encode("2")
    with pytest.raises(InvalidValueError, match="output is empty"):
        compiled.decode("")
    with pytest.raises(InvalidTypeError, match="no Turing machine"):
        compile_tm(3)


@pytest.mark.parametrize("num_tapes", [1, 2, 3])
@pytest.mark.parametrize("symbols", ["_x", "_1", "_"])
def test_a_machine_without_input_symbols_starts_on_blanks(symbols: str, num_tapes: int) -> None:
    tapes = (("_", "N"),) * (num_tapes - 1)
    rows = {
        "a": {("_",) * num_tapes: ("b", ((symbols[-1], "R"), *tapes))},
        "b": {("_",) * num_tapes: ("h", (("_", "N"), *tapes))},
    }
    machine = TuringMachine(("a", "b", "h"), (), tuple(symbols), rows, "a", "_", frozenset("h"), num_tapes)
    compiled = compile_tm(machine, output="both", missing="reject")
    direct, run = machine.run(()), Machine(compiled.program).run(compiled.encode(()), 10_000)
    assert compiled.decode(run.output or "") == (direct.accepted, direct.tape) == (True, tuple(symbols[1:]))
    with pytest.raises(InvalidValueError, match="'1' is no input symbol; the machine has none"):
        compiled.encode("1")


def test_files_round_trip_with_a_comma_symbol(tmp_path: Path) -> None:
    keep = (("a,", "R"), (",", "N"))
    rows = {"s": dict.fromkeys(itertools.product(("_", ",", "a", "a,"), repeat=2), ("f", keep))}
    machine = TuringMachine(("s", "f"), ("a", ","), ("_", ",", "a", "a,"), rows, "s", "_", frozenset("f"), 2)
    path = tmp_path / "machine.json"
    path.write_text(machine.to_json())
    assert TuringMachine.load(path).transitions == machine.transitions
    path.write_text(palindrome_machine().to_json().replace('"0": [', '"[0": [', 1))
    with pytest.raises(InvalidValueError, match="no tape symbol"):
        TuringMachine.load(path)
