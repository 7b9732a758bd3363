from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import Instruction, Program, assemble, random_program


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_prompt_text_and_disassembly_round_trip(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    assert Program.from_prompt(program.to_prompt("01")).instructions == program.instructions
    assert Program.parse(str(program)).instructions == program.instructions
    listed = assemble(program.disassemble())
    assert [str(i) for i in listed] == [str(i) for i in program]
    assert len(program.to_prompt()) == program.prompt_length


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the program is empty"),
        ("A!4 #", r"a jump offset needs its sign; write A!\+4 or A!-4"),
        ("A!+0 #", "has offset 0 and would never end"),
        ("A! #", "needs an offset"),
        ("A!+2 #", "jumps to 2, outside the program's 0 to 1"),
        ("A!-1 #", "jumps to -1"),
        ("AX #", "unknown instruction 'AX'"),
        ("A1+3 #", "unknown instruction"),
        ("A1 A0", "falls off its end after instruction 1"),
        ("A1 A!-1", "no '#' can be reached"),
        ("A1 A!+9999999 #", "longest supported"),
        ("A1 A!+" + "9" * 5_000 + " #", "instruction 1: jump offset .* of 5,000 digits is beyond"),
        ("A1 A!+\u0663 #", "unknown instruction"),
    ],
)
def test_bad_programs_are_refused_each_with_its_message(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Program.parse(text)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["A1", "#", "$"], "one of them is missing"),
        (["^", "A!", "+", "+", "$"], "has no '@'"),
        (["^", "A!", "+", "-", "@", "#", "$"], "use [+] or - only"),
        (["^", "A!", "@", "#", "$"], "offset 0"),
        (["^", "$"], "empty"),
    ],
)
def test_bad_prompts_are_refused(tokens: list[str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Program.from_prompt(tokens)


def test_a_last_jump_may_stay() -> None:
    assert Program.parse("A1 A?+2 # A?-1").max_offset == 2


def test_plain_instruction_takes_no_offset() -> None:
    with pytest.raises(InvalidValueError, match="takes no offset"):
        Instruction("A1", 3)
