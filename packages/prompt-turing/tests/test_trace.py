from __future__ import annotations

import re
from dataclasses import replace

import pytest
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import Program, compile_py, library_program, run_prompt, trace_to_html, trace_to_text
from octavo_prompt_turing.trace import trace_records


def test_records_cover_the_chain_and_say_where_they_read() -> None:
    program = library_program("not")
    result = run_prompt(program, "01")
    records = trace_records(program, "01", result)
    assert tuple(token for record in records for token in record.tokens) == result.tokens
    assert records[0].instruction == "A!+8"
    assert records[-1].instruction == "#"
    for record in records[:-1]:
        assert record.index is not None
        # The fetch head reads the instruction's own token in the prompt.
        (position,) = record.attention["fetch"]
        assert result.prompt[position - 1] == program.instructions[record.index].op
    reads = [r for r in records[:-1] if r.instruction.startswith("A?") or r.instruction.startswith("A!")]
    sequence = [*result.prompt, *result.tokens]
    for record in reads:
        positions = record.attention["tape A"]
        if record.tape_a[8] == "1":
            assert sequence[positions[0] - 1] == "A1"


def test_text_trace() -> None:
    program = Program.parse("A1 AR A1 A?+2 A0 #")
    text = trace_to_text(program, "", run_prompt(program))
    assert len(text.splitlines()) == 1 + 5 + 1
    assert "A?+2" in text
    assert text.endswith("halted after 10 tokens; output '1'\n")


def test_html_trace_is_one_page_and_escapes() -> None:
    source = "def main():\n    if read():  # <i>\n        emit(1)\n"
    program = compile_py(source)
    page = trace_to_html(program, "1", run_prompt(program, "1"), source=source, title="<b>&")
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    assert "if read():  # &lt;i&gt;" in page
    assert not re.search(r"(src|href)=|https?://|@import", page)
    assert page.count("data-row") > 20


def test_source_lines_reach_the_trace() -> None:
    source = "def main():\n    a = 1\n    a += 1\n    return a\n"
    program = compile_py(source)
    records = trace_records(program, "", run_prompt(program), attention=False)
    assert [line for line in dict.fromkeys(r.line for r in records) if line] == [2, 3, 4]


def test_long_chains_are_cut() -> None:
    program = library_program("parity")
    result = run_prompt(program, "0101")
    assert len(trace_records(program, "0101", result, attention=False, max_records=10)) == 10
    assert "Only the first 10 records are shown" in trace_to_html(program, "0101", result, max_records=10)


def test_another_programs_chain_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="another program or input"):
        trace_to_text(library_program("not"), "1", run_prompt(library_program("parity"), "1"))


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 6, 11, 20])
def test_the_last_record_of_a_cut_chain_is_the_one_being_printed(limit: int) -> None:
    program = library_program("parity")
    whole = trace_records(program, "01", run_prompt(program, "01"))
    cut = trace_records(program, "01", run_prompt(program, "01", max_new_tokens=limit))
    assert sum(len(record.tokens) for record in cut) == limit
    expected = whole[: len(cut)]
    assert cut[:-1] == expected[:-1]
    assert cut[-1] == replace(expected[-1], tokens=expected[-1].tokens[: len(cut[-1].tokens)])


def test_a_chain_that_goes_wrong_is_shown_up_to_there() -> None:
    program = library_program("parity")
    result = run_prompt(program, "01")
    wrong = replace(result, tokens=(*result.tokens[:2], "B1", *result.tokens[3:]))
    records, right = trace_records(program, "01", wrong), trace_records(program, "01", result)
    at = len(records) - 1
    assert (records[at].index, records[at].head_a) == (right[at].index, right[at].head_a)
    assert tuple(token for record in records for token in record.tokens) == wrong.tokens
