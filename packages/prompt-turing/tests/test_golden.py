"""Numbers of the reference implementation, commit d4a0c5455aba95980e063aa74a7478ca636e8a23."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest
import torch
from octavo_prompt_turing import EngineConfig, Program, PromptTuringModel, run_prompt
from octavo_prompt_turing.experiments import first_failure
from octavo_prompt_turing.tokens import TOKENS


@pytest.mark.parametrize(
    ("engine", "longest"),
    [
        ("exact", 1_000),
        ("deficit64", 110),
        ("reference", 45),
        pytest.param("deficit64", 1_000, marks=pytest.mark.slow),
        pytest.param("reference", 1_000, marks=pytest.mark.slow),
    ],
)
def test_every_engine_prints_every_trace(traces: list[dict], engine: str, longest: int) -> None:
    for run in (run for run in traces if run["n_total"] <= longest):
        result = run_prompt(Program.from_lines(run["program"]), run["input"], engine=engine)
        assert "".join(result.prompt) == run["prompt_program"] + run["prompt_input"]
        assert "".join(result.tokens) == run["cot"]
        assert (result.output, result.length) == (run["output"], run["n_total"])


def test_features_in_float64(activations: list[dict], model: PromptTuringModel) -> None:
    for run in activations:
        output = model(model.encode(run["tokens"][:-1]))
        for name, values in run["features"].items():
            wanted = torch.tensor([float(value) for value in values], dtype=torch.float64)
            assert (model.feature(name, output.hidden)[0] - wanted).abs().max() <= 1e-12, name
        for position, logits in enumerate(run["logits"]):
            wanted = torch.tensor([float(logits.get(token, 0)) for token in TOKENS], dtype=torch.float64)
            assert torch.equal(output.logits[0, position], wanted)


def test_features_in_float64_token_by_token(activations: list[dict], model: PromptTuringModel) -> None:
    for run in activations:
        reader = model.new_reader(EngineConfig("deficit64"))
        for position, token in enumerate(model.encode(run["tokens"][:-1])[0].tolist()):
            reader.push(token)
            features = reader.features()
            for name, values in run["features"].items():
                assert abs(features[name] - float(values[position])) <= 1e-12, name


def test_features_in_fixed_point(activations: list[dict], model: PromptTuringModel) -> None:
    for run in activations:
        reader = model.new_reader(EngineConfig("reference"))
        for position, token in enumerate(model.encode(run["tokens"][:-1])[0].tolist()):
            reader.push(token)
            features = reader.features()
            for name, values in run["features"].items():
                assert abs(features[name] - Fraction(values[position])) <= Fraction(1, 10**18), name


def test_long_runs_with_the_exact_engine(long_runs: list[dict]) -> None:
    assert max(run["n_total"] for run in long_runs) == 5_966
    for run in long_runs:
        result = run_prompt(Program.from_lines(run["program"]), run["input"])
        text = "".join([*result.prompt, *result.tokens])
        assert hashlib.sha256(text.encode()).hexdigest() == run["sha256"]
        assert (result.output, result.length) == (run["output"], run["n_total"])


def test_long_runs_with_deficit64(long_runs: list[dict]) -> None:
    for run in long_runs[:1]:
        result = run_prompt(Program.from_lines(run["program"]), run["input"], engine="deficit64")
        text = "".join([*result.prompt, *result.tokens])
        assert hashlib.sha256(text.encode()).hexdigest() == run["sha256"]


@pytest.mark.slow
def test_all_long_runs_with_deficit64_both_ways(long_runs: list[dict], model: PromptTuringModel) -> None:
    for run in long_runs[1:]:
        result = run_prompt(Program.from_lines(run["program"]), run["input"], engine="deficit64")
        text = "".join([*result.prompt, *result.tokens])
        assert hashlib.sha256(text.encode()).hexdigest() == run["sha256"]
        assert first_failure(result.prompt, result.tokens, EngineConfig("deficit64"), model=model) is None
