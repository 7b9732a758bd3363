from __future__ import annotations

import itertools

import pytest
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import Machine, Program


def test_golden_traces(traces: list[dict]) -> None:
    assert len(traces) == 34
    for run in traces:
        program = Program.from_lines(run["program"])
        result = Machine(program).run(run["input"])
        assert "".join(program.to_prompt()) == run["prompt_program"]
        assert "".join(program.to_prompt(run["input"])) == run["prompt_program"] + run["prompt_input"]
        assert "".join(result.tokens) == run["cot"]
        assert (result.output, result.steps) == (run["output"], run["steps"])
        assert list(Machine(program).cot(run["input"])) == result.tokens


def test_halt_alone_is_the_identity_up_to_length_10() -> None:
    machine = Machine(Program.parse("#"))
    for length in range(11):
        for bits in itertools.product("01", repeat=length):
            assert machine.run("".join(bits)).output == "".join(bits)


def test_output_is_read_from_cell_0_wherever_the_head_is() -> None:
    result = Machine(Program.parse("A1 AR A1 AR AR AR #")).run()
    assert result.output == "1"
    assert result.head_a == 4
    assert result.tape_a == {0, 1}


def test_a_run_without_end_stops() -> None:
    result = Machine(Program.parse("A1 A0 A!-2 #")).run("", 10)
    assert (result.status, result.steps, result.output) == ("max_steps", 10, None)


def test_falling_off_is_told() -> None:
    program = Program.parse("A!+2 # A?-1")
    assert Machine(program).run().status == "fell_off"
    with pytest.raises(InvalidValueError, match="falls off its end"):
        list(Machine(program).cot())


def test_trace_has_every_step() -> None:
    program = Program.parse("A1 AR A!+2 A0 B1 #")
    result = Machine(program).run(trace=True)
    assert [step.index for step in result.trace] == [0, 1, 2, 4]
    assert [token for step in result.trace for token in step.record] + [":", "0", "$"] == result.tokens


def test_negative_steps_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="max_steps=-1"):
        Machine(Program.parse("#")).run("", -1)
