from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import (
    Program,
    TuringMachine,
    compile_tm,
    generate_examples,
    library_program,
    random_program,
    run_prompt,
)
from octavo_prompt_turing.dataset import write_examples
from octavo_prompt_turing.tokens import tokenize


def test_examples_are_what_the_transformer_prints() -> None:
    for example in generate_examples(20, seed=3):
        result = run_prompt(Program.parse(example.program), example.input)
        assert "".join(result.tokens) == example.cot
        assert result.output == example.output
        assert result.length == example.num_tokens
        assert tokenize(example.prompt) == list(result.prompt)


def test_seeds_decide() -> None:
    first, again, other = (list(generate_examples(5, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_given_programs_are_used(tmp_path: Path) -> None:
    program = library_program("not")
    written = write_examples(tmp_path / "data.jsonl", generate_examples(8, programs=[program], max_input=3))
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert written == len(rows) == 8
    assert {row["program"] for row in rows} == {str(program)}
    assert all(len(row["output"]) == len(row["input"]) <= 3 for row in rows)


def test_random_programs_are_valid_and_varied() -> None:
    generator = np.random.default_rng(0)
    programs = [random_program(generator, min_instructions=4, max_instructions=12) for _ in range(50)]
    assert all(4 <= len(program.validate()) <= 12 for program in programs)
    assert len({str(program) for program in programs}) > 40
    assert {i.op for program in programs for i in program} >= {"A!", "A?", "B!", "B?", "AL", "BR", "B1"}


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="2 <= min <= max"):
        random_program(np.random.default_rng(0), min_instructions=5, max_instructions=4)
    with pytest.raises(InvalidValueError, match="must not be negative"):
        next(generate_examples(-1))
    with pytest.raises(InvalidValueError, match="no run halted"):
        next(generate_examples(1, programs=[Program.parse("A1 A0 A!-2 #")], max_steps=5))


def test_words_of_a_machine_are_drawn() -> None:
    swap = {"q": {s: ("q", t, "R") for s, t in zip("abc", "bca", strict=True)} | {"_": ("f", "_", "N")}}
    machine = TuringMachine.single_tape(swap, initial="q", final=["f"], blank="_", input_symbols="abc")
    compiled = compile_tm(machine, output="both")
    examples = list(generate_examples(30, programs=[compiled], max_input=7))
    assert {len(example.input) for example in examples} == {0, 2, 4, 6}
    for example in examples:
        word = "".join("abc"[int(example.input[at : at + 2], 2)] for at in range(0, len(example.input), 2))
        assert compiled.decode(example.output) == (True, tuple(word.translate(str.maketrans("abc", "bca"))))


@pytest.mark.parametrize(
    ("wish", "message"),
    [({"max_input": 10**11}, "max_input=100,000,000,000 is beyond 1,000,000"), ({"seed": -1}, "seed=-1")],
)
def test_numbers_out_of_range_are_refused(wish: dict, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        next(generate_examples(1, **wish))
