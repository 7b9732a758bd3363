from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_prompt_turing.tokens import TOKENS, check_bits, encode_input, read_out, token_ids, tokenize

BITS = st.text("01", max_size=12)


@given(st.lists(st.sampled_from(TOKENS)))
def test_token_text_splits_in_one_way(tokens: list[str]) -> None:
    assert tokenize("".join(tokens)) == tokens
    assert tokenize(" ".join(tokens)) == tokens


@given(BITS)
def test_input_is_the_record_of_writing_it(bits: str) -> None:
    tokens = encode_input(bits)
    if not bits:
        assert tokens == []
        return
    written = 5 * len(bits) + bits.count("1")
    assert len(tokens) == 2 * written + 2
    tape: dict[int, int] = {}
    head = 0
    for token in tokens[:written]:
        head += {"AR": 1, "AL": -1}.get(token, 0)
        if token == "A1":
            tape[head] = 1
    assert head == 0
    assert [tape.get(cell, 0) for cell in range(2 * len(bits) + 2)] == [
        *(value for bit in bits for value in (1, int(bit))),
        *(0, 0),
    ]


def test_read_out_needs_a_finished_chain() -> None:
    assert read_out(["A1", ":", "1", "0", "$"]) == "10"
    assert read_out([":", "$"]) == ""
    assert read_out(["A1", ":", "1"]) is None
    assert read_out([]) is None


def test_tokenize_names_the_place() -> None:
    with pytest.raises(InvalidValueError, match=r"'Ax' at character 1 is not made of whole tokens"):
        tokenize("^Ax")


def test_unknown_token_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"token 'C1' at index 1 is unknown"):
        token_ids(["^", "C1"])


def test_input_is_bits() -> None:
    with pytest.raises(InvalidValueError, match="'2' at index 1"):
        check_bits("02")
    with pytest.raises(InvalidTypeError, match="got int"):
        check_bits(10)
