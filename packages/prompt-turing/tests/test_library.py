from __future__ import annotations

import itertools

import pytest
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import LIBRARY, Machine, library_program, run_prompt
from octavo_prompt_turing.library import busy_beaver, counter_program


@pytest.mark.parametrize("name", list(LIBRARY))
def test_programs_compute_what_they_say(name: str) -> None:
    entry, program = LIBRARY[name], library_program(name)
    for length in range(5):
        for word in itertools.product("01", repeat=length):
            bits = "".join(word)
            if name == "multiplication" and bits.count("0") != 1:
                continue
            assert Machine(program).run(bits).output == entry.expected(bits), bits
    bits = "110" if name == "multiplication" else "0110"
    assert run_prompt(program, bits).output == entry.expected(bits)


@pytest.mark.parametrize(("states", "steps", "ones"), [(2, 6, 4), (3, 21, 5), (4, 107, 13)])
def test_busy_beavers_take_their_known_steps(states: int, steps: int, ones: int) -> None:
    program = busy_beaver(states)
    run = Machine(program).run(trace=True)
    assert sum(program.instructions[step.index].op in {"AL", "AR"} for step in run.trace) == steps
    assert len(run.tape_a) == ones
    assert run_prompt(program).tokens == tuple(run.tokens)


def test_counter_counts() -> None:
    for bits in (1, 2, 5):
        run = Machine(counter_program(bits)).run("01")
        assert run.output == "01"
        assert run.tape_a - {0, 1, 2, 3} == {-bits - 1}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="no program 'chess' in the library; it has identity"):
        library_program("chess")
    with pytest.raises(InvalidValueError, match="2, 3 or 4 states"):
        busy_beaver(5)
    with pytest.raises(InvalidValueError, match="limit_bits=0"):
        counter_program(0)
