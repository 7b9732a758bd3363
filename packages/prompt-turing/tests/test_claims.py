"""Claims of the paper, and of this package about it."""

from __future__ import annotations

import math

import pytest
from octavo_prompt_turing import EngineConfig, Machine, PromptTuringModel, library_program, precision_bound, run_prompt
from octavo_prompt_turing.experiments import cot_exponent, first_failure, precision_law, precision_probe
from octavo_prompt_turing.library import counter_program

pytestmark = pytest.mark.claim


@pytest.mark.parametrize("name", ["dyck", "parity"])
def test_chain_of_thought_is_linear_in_the_steps(name: str) -> None:
    unit = {"dyck": "01", "parity": "1"}[name]
    exponent, within = cot_exponent(library_program(name), [unit * size for size in (8, 16, 32, 64, 128)])
    assert within
    assert abs(exponent - 1) <= 0.03


def test_first_failing_length_grows_as_the_sixth_root_of_the_tolerance() -> None:
    slope, points = precision_law(tolerances=(1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14), bits=(50,))
    assert len(points) == 7
    assert 1 / 6 * 0.8 <= slope <= 1 / 6 * 1.2


@pytest.mark.parametrize("bits", [32, 38, 44])
def test_precision_bound_is_enough_and_tight(bits: int) -> None:
    prompt, tokens = precision_probe(int(2 ** ((bits - 1) / 6) * 1.5) + 30)
    failure = first_failure(prompt, tokens, EngineConfig("reference", bits=bits, strict=False))
    assert failure is not None
    limit = EngineConfig("reference", bits=bits).max_length
    assert limit is not None
    # Right up to the guaranteed length, and wrong soon after.
    assert limit < failure <= limit + 14
    # What the failing length needs is between the bits that fail there and the bound.
    assert bits < precision_bound(failure) <= bits + 3


@pytest.mark.parametrize("bits", ["01010101", "00001111", "0101010101"])
def test_naive_float64_fails_on_dyck_and_the_deficit_form_does_not(bits: str, model: PromptTuringModel) -> None:
    program = library_program("dyck")
    prompt, tokens = program.to_prompt(bits), Machine(program).run(bits).tokens
    failure = first_failure(prompt, tokens, EngineConfig("float64"), model=model)
    assert failure is not None
    assert failure > (EngineConfig("float64").max_length or math.inf)
    if bits == "01010101":
        assert first_failure(prompt, tokens, EngineConfig("deficit64"), model=model) is None


@pytest.mark.slow
def test_a_million_tokens() -> None:
    program = counter_program(15)
    result = run_prompt(program, max_new_tokens=10**7)
    assert result.ok
    assert len(result.tokens) >= 10**6
    assert all(a == b for a, b in zip(result.tokens, Machine(program).cot(), strict=True))
