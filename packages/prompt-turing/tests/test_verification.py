from __future__ import annotations

import pytest
from octavo_core.errors import InvalidTypeError
from octavo_prompt_turing import EngineConfig, Machine, PrecisionError, Program, library_program, run_prompt, verify
from octavo_prompt_turing.verification import first_divergence


def test_verification_reports_agreement() -> None:
    outcomes = verify(library_program("not"), ["", "1", "0110"])
    assert all(outcome.ok and outcome.halted and outcome.within_bound for outcome in outcomes)
    assert [outcome.output for outcome in outcomes] == ["", "0", "1001"]


def test_a_run_without_end_is_compared_as_far_as_it_went() -> None:
    (outcome,) = verify(Program.parse("A1 A0 A!-2 #"), [""], max_steps=30)
    assert (outcome.ok, outcome.halted, outcome.output) == (True, False, None)


def test_first_divergence_has_all_features() -> None:
    program = library_program("not")
    tokens = Machine(program).run("01").tokens
    tokens[5] = "B1"
    found = first_divergence(program.to_prompt("01"), tokens, engine="deficit64")
    assert found is not None
    assert found.position == len(program.to_prompt("01")) + 6
    assert found.expected == "B1"
    assert found.found == run_prompt(program, "01").tokens[5]
    assert len(found.features) > 100
    assert found.logits[found.found] == max(found.logits.values())


def test_the_naive_engine_is_caught() -> None:
    program = library_program("dyck")
    with pytest.raises(PrecisionError, match="strict=False"):
        verify(program, ["01010101"], engine="float64")
    (outcome,) = verify(Program.parse("A1 A0 A!-2 #"), [""], engine=EngineConfig("float32", strict=False), max_steps=60)
    assert outcome.divergence is not None
    assert outcome.divergence.position > 8


def test_inputs_are_several() -> None:
    with pytest.raises(InvalidTypeError, match=r"inputs='0110' is one input; give a list of them"):
        verify(library_program("not"), "0110")
    outcomes = verify(library_program("not"), (bits for bits in ("0", "01")))
    assert [outcome.output for outcome in outcomes] == ["1", "10"]
