from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_core.errors import InvalidStateError, InvalidValueError
from octavo_prompt_turing import EngineConfig, Machine, PromptTuringModel, default_model, random_program, verify
from octavo_prompt_turing.library import counter_program
from octavo_prompt_turing.tokens import token_ids
from octavo_prompt_turing.verification import first_divergence


def drawn(seed: int, count: int) -> list[tuple]:
    generator = np.random.default_rng(seed)
    return [
        (random_program(generator), "".join(map(str, generator.integers(0, 2, generator.integers(0, 13)))))
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_random_programs_agree_with_the_simulator(count: int) -> None:
    halted = 0
    for program, bits in drawn(7, count):
        (outcome,) = verify(program, [bits], max_steps=300)
        assert outcome.ok, (str(program), bits, outcome.divergence)
        assert outcome.within_bound
        halted += outcome.halted
    assert halted > 0.3 * count


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6))
def test_engines_agree_on_random_programs(seed: int) -> None:
    ((program, bits),) = drawn(seed, 1)
    tokens = Machine(program).run(bits[:3], 15).tokens
    prompt = program.to_prompt(bits[:3])
    for engine in ("exact", "deficit64", "reference"):
        assert first_divergence(prompt, tokens, engine=engine) is None


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["deficit64", "reference"])
def test_random_programs_with_the_dense_engines(engine: str) -> None:
    for program, bits in drawn(7, 200 if engine == "deficit64" else 60):
        (outcome,) = verify(program, [bits], engine=engine, max_steps=60)
        assert outcome.ok, (str(program), bits, outcome.divergence)


def test_exact_engine_equals_the_oracle_far_from_cell_0() -> None:
    program = counter_program(3)
    run = Machine(program).run("", 40)
    for engine in ("exact", "reference", "deficit64"):
        assert first_divergence(program.to_prompt(), run.tokens, engine=engine) is None


def test_copies_are_independent() -> None:
    ids = token_ids(counter_program(2).to_prompt())
    for engine in ("exact", "deficit64", "reference", "float64"):
        reader = default_model().new_reader(EngineConfig(engine, strict=False))
        for token in ids:
            reader.push(token)
        other, shorter = reader.copy(), reader.rewound(len(ids) - 1)
        first = reader.next_id()
        reader.push(first)
        assert other.next_id() == first
        shorter.push(ids[-1])
        assert shorter.logits() == other.logits()


@pytest.mark.parametrize("name", [name for name, _ in PromptTuringModel().named_parameters()])
def test_exact_engine_refuses_other_weights(name: str) -> None:
    model = PromptTuringModel()
    config = EngineConfig("exact")
    model.new_reader(config)
    tensor = model.get_parameter(name)
    if not tensor.numel():
        return
    tensor.data.view(-1)[-1] += 1
    with pytest.raises(InvalidValueError, match="not those of the construction, the only ones"):
        model.new_reader(config)
    tensor.data.view(-1)[-1] -= 1
    model.new_reader(config)


def test_exact_engine_names_the_weights_it_refuses() -> None:
    model = PromptTuringModel()
    model.blocks[1].projection.data.zero_()
    with pytest.raises(InvalidValueError, match="the projection weights of block 2 are not those"):
        model.new_reader(EngineConfig("exact"))


def test_exact_engine_wants_one_caret_at_the_start() -> None:
    reader = default_model().new_reader(EngineConfig("exact"))
    with pytest.raises(InvalidStateError, match="begins with '\\^'"):
        reader.push(3)


def test_reference_takes_more_bits_for_longer_sequences() -> None:
    from octavo_prompt_turing import PrecisionError
    from octavo_prompt_turing.engines.reference import ReferenceReader, compile_sparse

    reader = ReferenceReader(compile_sparse(default_model()), bits=8)
    reader.push(0, strict=True)
    reader.push(3, strict=True)
    with pytest.raises(PrecisionError, match="8 bits are guaranteed for 2 tokens"):
        reader.push(3, strict=True)


def test_decimal_port_agrees() -> None:
    from octavo_prompt_turing.baselines.decimal_port import DecimalReader

    program, ours = counter_program(1), default_model().new_reader(EngineConfig("reference"))
    port = DecimalReader(default_model())
    for token in token_ids([*program.to_prompt(), *Machine(program).run().tokens[:-1]]):
        port.push(token)
        ours.push(token)
        assert torch.allclose(torch.tensor(port.logits()), torch.tensor(ours.logits()), atol=1e-12)
