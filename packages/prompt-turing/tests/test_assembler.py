from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import Machine, Program, assemble


def output(source: str, bits: str = "") -> str | None:
    return Machine(assemble(source)).run(bits, 10_000).output


@given(st.text("01", max_size=8))
def test_blocks_and_macros(bits: str) -> None:
    flipped = "macro next { AR flip A AR } while A { next } halt"
    assert output(flipped, bits) == bits.translate({48: 49, 49: 48})


@given(st.text("01", min_size=1, max_size=8))
def test_copy_through_the_other_tape(bits: str) -> None:
    result = Machine(assemble("while A { AR copy A B clear A AR BR } halt")).run(bits)
    assert result.output == "0" * len(bits)
    assert result.tape_b == {index for index, bit in enumerate(bits) if bit == "1"}
    assert output("if A { AR A0 AR clear A } else { A0 } #", bits) == "0"


def test_labels_jumps_and_repeats() -> None:
    assert str(assemble("start: A! end A1 jmp start end: halt")) == "A!+4 A1 A!-2 A?-3 #"
    assert str(assemble("jmp B x x: #")) == "B!+2 B?+1 #"
    assert str(assemble("repeat 2 { A1 right B 2 } #")) == "A1 BR BR A1 BR BR #"
    assert str(assemble("A?+2 A1 #")) == "A?+2 A1 #"
    assert str(Program.assemble("A! end ; a comment\n\nend:")) == "A!+1 #"


def test_instructions_know_their_lines() -> None:
    assert [i.line for i in assemble("A1\n\nflip A\n#")] == [1, 3, 3, 3, 3, 4]


def test_until_repeats_on_zero() -> None:
    result = Machine(assemble("AR AR AR A1 AL AL AL until A { AR } #")).run()
    assert result.head_a == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("A1\nfoo", "line 2: unknown word 'foo'"),
        ("A!4 #", r"line 1: jump 'A!4': an offset needs its sign"),
        ("A! nowhere #", r"label 'nowhere' is not defined \(line 1\)"),
        ("x: A1 x: #", r"label 'x' is defined twice"),
        ("while A A1", r"line 1: a block"),
        ("while C { A1 }", "'C' is not a tape"),
        ("if A { A1", "the block is not closed"),
        ("right A many", "'many' is not a number from 1 to 10,000"),
        ("macro m { m } m", "nested deeper than 32"),
        ("repeat 9999 { right A 9999 }", "more than 500,000 instructions"),
        ("x: A! x #", "a jump to itself would never end"),
        ("A1\nA!+" + "9" * 5_000, "line 2: jump offset .* of 5,000 digits is beyond"),
        ("A1\nrepeat " + "9" * 5_000 + " { A1 }", "line 2: '9{40}' is not a number from 1 to 10,000"),
        ("A!", "a label is missing after 'A!'"),
        ("A1\nmacro halt { A1 } halt", "line 2: 'halt' is a word of the language and cannot name a macro"),
        ("macro AL { A1 } AL #", "line 1: 'AL' is a word"),
        ("macro clear { A1 } clear A #", "line 1: 'clear' is a word"),
        ("macro A! { A1 } #", "line 1: 'A!' is a word"),
        ("macro x: { A1 } #", "line 1: 'x:' is a word"),
        ("macro A?+1 { A1 } #", r"line 1: 'A\?\+1' is a word"),
        ("macro m { A1 }\nmacro m { A0 } m #", "line 2: macro 'm' is defined twice"),
        ("A: A1 jmp A #", "line 1: 'jmp A' names tape A, and '#' after it is no label; .* write 'jmp A A'"),
        ("A: A1 jmp A", "line 1: 'jmp A' names tape A, and the end after it"),
        ("A? one.1 flip A #", "label 'one.1' is not defined"),
        ("", "the program is empty"),
        ("A1", "falls off its end"),
    ],
)
def test_errors_name_the_line(source: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        assemble(source)


def test_names_that_others_have_taken_before_stay_free() -> None:
    assert str(assemble("one.1: flip A #")) == str(assemble("flip A #"))
    assert str(assemble("A: A1 A! A #")) == "A1 A!-1 #"
    assert str(assemble("A: A1 jmp A A #")) == "A1 A!-1 A?-2 #"
    assert str(assemble("repeat 2 { macro m { A1 } m } #")) == "A1 A1 #"


@pytest.mark.parametrize(
    "source",
    ["macro a { } repeat 10000 { repeat 10000 { repeat 10000 { a } } } #", "A1\nrepeat 10000 { repeat 10000 { } } #"],
)
def test_blocks_that_write_nothing_end_too(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_prompt_turing.assembler._MAX_WORDS", 20_000)
    with pytest.raises(InvalidValueError, match="line [12]: macros and repeats write out more than 20,000 words"):
        assemble(source)
