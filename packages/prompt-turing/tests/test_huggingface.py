from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_prompt_turing.tokens import TOKENS, token_ids, tokenize

transformers = pytest.importorskip("transformers")
from octavo_prompt_turing.huggingface import (  # noqa: E402
    PromptTuringCache,
    PromptTuringConfig,
    PromptTuringForCausalLM,
    PromptTuringTokenizer,
)


@pytest.fixture(scope="module")
def tokenizer() -> PromptTuringTokenizer:
    return PromptTuringTokenizer()


def generated(tokenizer: PromptTuringTokenizer, row: torch.Tensor, start: int) -> str:
    text = tokenizer.decode(row[start:])
    return text[: text.index("$") + 1]


@pytest.mark.parametrize("engine", ["deficit64", "exact"])
def test_generate_in_a_padded_batch(traces: list[dict], tokenizer: PromptTuringTokenizer, engine: str) -> None:
    runs = [run for run in traces if run["n_total"] <= 110][:4]
    model = PromptTuringForCausalLM(PromptTuringConfig(engine=engine))
    texts = [run["prompt_program"] + run["prompt_input"] for run in runs]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert int(batch["attention_mask"].sum(1).min()) < batch["input_ids"].shape[1]
    output = model.generate(**batch, max_new_tokens=80)
    for run, row in zip(runs, output, strict=True):
        assert generated(tokenizer, row, batch["input_ids"].shape[1]) == run["cot"]


def test_generate_without_cache(traces: list[dict], tokenizer: PromptTuringTokenizer) -> None:
    run = traces[9]
    model = PromptTuringForCausalLM(PromptTuringConfig())
    batch = tokenizer(run["prompt_program"] + run["prompt_input"], return_tensors="pt")
    output = model.generate(**batch, max_new_tokens=30, use_cache=False)
    assert generated(tokenizer, output[0], run["n_prompt"]) == run["cot"]


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True}, {"do_sample": True, "use_cache": False}])
def test_only_greedy_decoding_is_taken(tokenizer: PromptTuringTokenizer, options: dict) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig())
    with pytest.raises(InvalidValueError, match="are not greedy decoding"):
        model.generate(**tokenizer("^A1#$", return_tensors="pt"), max_new_tokens=5, **options)


def test_every_way_to_encode_names_what_is_no_token(tokenizer: PromptTuringTokenizer) -> None:
    for encode in (
        lambda: tokenizer("^x"),
        lambda: tokenizer("^", "x"),
        lambda: tokenizer(["^", "x"], is_split_into_words=True),
        lambda: tokenizer([("^", "x")]),
        lambda: tokenizer.encode("x"),
        lambda: tokenizer.tokenize("^A1x"),
    ):
        with pytest.raises(InvalidValueError, match="not made of whole tokens"):
            encode()
    assert tokenizer.tokenize("^A1") == ["^", "A1"]
    assert tokenizer.encode("^A1") == tokenizer(["^", "A1"], is_split_into_words=True)["input_ids"]


def test_generation_goes_on_from_a_cache(traces: list[dict], tokenizer: PromptTuringTokenizer) -> None:
    run = next(run for run in traces if run["name"] == "not" and run["input"] == "1")
    model = PromptTuringForCausalLM(PromptTuringConfig())
    batch = tokenizer(run["prompt_program"] + run["prompt_input"], return_tensors="pt")
    first = model.generate(**batch, max_new_tokens=5, return_dict_in_generate=True)
    assert isinstance(first.cache, PromptTuringCache)
    rest = model.generate(first.sequences, cache=first.cache, max_new_tokens=50)
    assert generated(tokenizer, rest[0], run["n_prompt"]) == run["cot"]


@pytest.mark.filterwarnings("ignore")
def test_saved_models_are_the_same(tmp_path: Path, traces: list[dict], tokenizer: PromptTuringTokenizer) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig(engine="exact"))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, PromptTuringForCausalLM)
    assert loaded.config.engine == "exact"
    assert loaded.model.state_hash() == model.model.state_hash()
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(again, PromptTuringTokenizer)
    assert again.padding_side == "left"
    run = traces[1]
    batch = again(run["prompt_program"] + run["prompt_input"], return_tensors="pt")
    assert generated(again, loaded.generate(**batch, max_new_tokens=100)[0], run["n_prompt"]) == run["cot"]
    with pytest.raises(InvalidTypeError, match=r"dtype torch.float32 is right for at most 8 tokens"):
        PromptTuringForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)


def test_tokenizer_round_trips_and_pickles(traces: list[dict], tokenizer: PromptTuringTokenizer) -> None:
    copies = (tokenizer, pickle.loads(pickle.dumps(tokenizer)))  # noqa: S301
    for run in traces:
        text = run["prompt_program"] + run["prompt_input"] + run["cot"]
        for copy in copies:
            ids = copy(text)["input_ids"]
            assert ids == token_ids(tokenize(text))
            assert copy.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(list(range(23))) == list(TOKENS)
    with pytest.raises(InvalidValueError, match="not made of whole tokens"):
        tokenizer(["^A1", "^Ax"])


def test_hidden_states_and_features(tokenizer: PromptTuringTokenizer) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig())
    output = model(**tokenizer("^A1#$", return_tensors="pt"), output_hidden_states=True, logits_to_keep=1)
    assert output.logits.shape == (1, 1, 23)
    assert model.feature("after_delim", output.hidden_states[0])[0].tolist() == [0, 0, 0, 1]


def test_wrong_uses_are_refused(tokenizer: PromptTuringTokenizer) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig())
    ids = tokenizer("^#$", return_tensors="pt")["input_ids"]
    with pytest.raises(InvalidTypeError, match="the cache is a DynamicCache"):
        model(ids, cache=transformers.DynamicCache())
    with pytest.raises(InvalidTypeError, match="the weights are bfloat16"):
        PromptTuringForCausalLM(PromptTuringConfig()).to(torch.bfloat16)(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_new_tokens": 10}, "min_new_tokens=10 would forbid the final"),
        ({"min_length": 12}, "min_length=12 would forbid the final"),
        ({"stop_strings": [":"]}, r"stop_strings=\[':'\] .* eos_token_id"),
    ],
)
def test_options_that_cannot_be_right_are_refused_by_name(
    tokenizer: PromptTuringTokenizer, options: dict, message: str
) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig(engine="exact"))
    batch = tokenizer("^A1ARA1#$", return_tensors="pt")
    with pytest.raises(InvalidValueError, match=message):
        model.generate(**batch, max_new_tokens=20, tokenizer=tokenizer, **options)
    stopped = model.generate(**batch, max_new_tokens=20, eos_token_id=tokenizer.convert_tokens_to_ids(":"))
    assert tokenizer.decode(stopped[0]) == "^A1ARA1#$A1ARA1:"


def test_labels_are_refused(tokenizer: PromptTuringTokenizer) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig())
    ids = tokenizer("^#$", return_tensors="pt")["input_ids"]
    with pytest.raises(InvalidValueError, match="labels are given, but the weights are constructed and not trained"):
        model(input_ids=ids, labels=ids)


def test_a_configuration_knows_its_engines() -> None:
    with pytest.raises(InvalidValueError, match="unknown engine 'foo'"):
        PromptTuringConfig(engine="foo")


def test_chosen_positions_are_scored(tokenizer: PromptTuringTokenizer) -> None:
    model = PromptTuringForCausalLM(PromptTuringConfig())
    ids = tokenizer("^A1#$", return_tensors="pt")["input_ids"]
    assert torch.equal(model(ids, logits_to_keep=torch.tensor([1])).logits, model(ids).logits[:, 1:2])
