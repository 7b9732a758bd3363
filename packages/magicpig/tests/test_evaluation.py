from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_magicpig import LSHConfig
from octavo_magicpig.evaluation import TASKS, Example, load_examples, make_examples, score
from octavo_magicpig.evaluation.tasks import english_text


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("task", TASKS)
def test_examples_fit_and_hold_their_answer(task: str) -> None:
    examples = make_examples(task, 3, 900, words, seed=4)
    assert [example.index for example in examples] == [0, 1, 2]
    for example in examples:
        assert 600 <= words(example.prompt) <= 900
        assert all(output in example.context for output in example.outputs)
        assert score(example, "It is " + ", ".join(example.outputs)) == 1.0
        assert score(example, "no idea") == 0.0
    assert make_examples(task, 1, 900, words, seed=4)[0] == examples[0]
    assert examples[0] != examples[1]


def test_words_to_count_have_their_frequencies() -> None:
    (example,) = make_examples("cwe", 1, 1500, words)
    listed = [word.split()[-1] for word in example.context.split("\n")[1].replace(". ", " ").split(" ") if word]
    counts = sorted(((listed.count(word), word) for word in set(listed) if word.isalpha()), reverse=True)
    assert {word for _, word in counts[:10]} == set(example.outputs)
    (coded,) = make_examples("fwe", 1, 800, words)
    found = coded.context.split("\n")[1].split(" ... ")
    top = sorted(set(found), key=found.count, reverse=True)[:3]
    assert tuple(top) == coded.outputs


def test_ruler_files(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    lines = [
        {"index": 7, "input": "long text\nWhat?", "outputs": ["a", "B"], "length": 5},
        {"input": "x", "outputs": "y"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second = load_examples(file)
    assert first == Example(7, "long text", "\nWhat?", ("a", "B"), "ruler")
    assert second.outputs == ("y",)
    assert score(first, "it is b") == 0.5
    for content, message in (("{", "line 1 is not JSON"), ('{"outputs": []}', "no text field"), ("", "no example")):
        file.write_text(content)
        with pytest.raises(InvalidValueError, match=message):
            load_examples(file)
    file.write_text('{"input": "x", "outputs": [1]}')
    with pytest.raises(InvalidValueError, match="list of texts"):
        load_examples(file)
    with pytest.raises(MissingFileError):
        load_examples(tmp_path / "none.jsonl")
    with pytest.raises(InvalidValueError, match="unknown task"):
        make_examples("qa", 1, 100, words)
    with pytest.raises(InvalidValueError, match="does not fit 20 tokens"):
        make_examples("niah", 1, 20, words)


def test_prose_comes_with_python() -> None:
    assert len(english_text()) > 300_000


class Letters:
    """A tokenizer of single characters."""

    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=torch.tensor([[3 + ord(letter) % 120 for letter in text]]))

    def decode(self, tokens: torch.Tensor, **_: Any) -> str:
        return " ".join(map(str, tokens.tolist()))


@pytest.fixture(scope="module")
def model() -> Any:
    transformers = pytest.importorskip("transformers", minversion="5.24")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            )
        ).eval()  # fmt: skip


EVERY_KEY = LSHConfig(min_context=0, min_hits=0, dense_layers=(), window_tokens=8)
EXAMPLES = [Example(i, "some context " * 12 + str(i), " question?", ("5",), "niah") for i in range(3)]


def test_methods_that_read_every_key_agree(model: Any) -> None:
    from octavo_magicpig.evaluation import run_tasks, summarise
    from octavo_magicpig.evaluation._study import METHODS, make_method

    methods = [make_method(name, EVERY_KEY, budget=1.0) for name in METHODS if name != "oracle"]
    outcomes = run_tasks(model, Letters(), EXAMPLES, methods, new_tokens=5)
    assert len(outcomes) == 3 * 2 * len(methods)
    for example in EXAMPLES:
        for protocol in ("A", "B"):
            answers = {o.method: o.answer for o in outcomes if o.index == example.index and o.protocol == protocol}
            answers.pop("window")
            assert len(set(answers.values())) == 1, answers
    rows = summarise(outcomes)
    assert {row["examples"] for row in rows} == {3}
    assert model.config._attn_implementation == "sdpa"


def test_a_killed_run_is_resumed(model: Any, tmp_path: Path) -> None:
    from octavo_magicpig.evaluation._runner import run_tasks
    from octavo_magicpig.evaluation._study import make_method

    methods = [make_method(name, EVERY_KEY) for name in ("dense", "lsh")]
    results = tmp_path / "results.jsonl"
    whole = run_tasks(model, Letters(), EXAMPLES, methods, new_tokens=3, results=results)
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:5]) + lines[5][:20])
    with pytest.raises(InvalidStateError, match="--resume"):
        run_tasks(model, Letters(), EXAMPLES, methods, new_tokens=3, results=results)
    again = run_tasks(model, Letters(), EXAMPLES, methods, new_tokens=3, results=results, resume=True)
    assert {o.key: o.answer for o in again} == {o.key: o.answer for o in whole}
    assert len(results.read_text().splitlines()) == len(lines)
    results.write_text("nonsense\n")
    with pytest.raises(InvalidStateError, match="line 1"):
        run_tasks(model, Letters(), EXAMPLES, methods, results=results, resume=True)


def test_losses_of_text(model: Any) -> None:
    from octavo_magicpig.evaluation._runner import run_text_losses
    from octavo_magicpig.evaluation._study import make_method

    tokens = torch.randint(3, 128, (1, 400), generator=torch.Generator().manual_seed(0))
    methods = [make_method(name, EVERY_KEY, budget=1.0) for name in ("dense", "lsh", "topk", "window")]
    outcomes = run_text_losses(model, tokens, methods, texts=2, prefix_tokens=100, scored_tokens=8)
    with torch.no_grad():
        logits = model(tokens[:, :109]).logits[0, 100:108]
    expected = float(torch.nn.functional.cross_entropy(logits, tokens[0, 101:109]))
    losses = {o.method: o.value for o in outcomes if o.index == 0}
    for name in ("dense", "lsh", "topk"):
        assert losses[name] == pytest.approx(expected, abs=1e-4)
    assert losses["window"] != pytest.approx(expected, abs=1e-6)
    with pytest.raises(InvalidValueError, match="400 tokens"):
        run_text_losses(model, tokens, methods, texts=4, prefix_tokens=100)


def test_capture_sees_queries_keys_and_values(model: Any) -> None:
    from octavo_magicpig.evaluation._study import capture

    tokens = torch.arange(3, 103)[None]
    (seen,) = capture(model, tokens, [1], observed=5)
    assert seen.layer == 1
    assert seen.queries.shape == (1, 4, 5, 8)
    assert seen.keys.shape == seen.values.shape == (1, 2, 100, 8)


def test_what_is_refused(model: Any, tmp_path: Path) -> None:
    from octavo_magicpig.evaluation._runner import load_model, run_tasks
    from octavo_magicpig.evaluation._study import make_method, prefill

    with pytest.raises(InvalidValueError, match="unknown method"):
        make_method("magic")
    with pytest.raises(InvalidValueError, match="unknown protocol 'C'"):
        run_tasks(model, Letters(), EXAMPLES, [], protocols=("C",))
    with pytest.raises(InvalidValueError, match="prompt is empty"):
        prefill(model, torch.empty(1, 0, dtype=torch.int64))
    for name in ("nowhere", str(tmp_path / "none"), str(tmp_path / "none.gguf")):
        with pytest.raises(MissingFileError):
            load_model(name)


def test_a_run_of_other_settings_is_not_resumed(model: Any, tmp_path: Path) -> None:
    from octavo_magicpig.evaluation._runner import run_tasks
    from octavo_magicpig.evaluation._study import make_method

    results = tmp_path / "results.jsonl"
    methods = [make_method("dense", EVERY_KEY)]
    options: dict[str, Any] = {"protocols": ("A",), "new_tokens": 2, "results": results}
    settings = {"model": "tiny", "tokens": 100, "config": EVERY_KEY.to_dict()}
    run_tasks(model, Letters(), EXAMPLES[:1], methods, settings=settings, **options)
    kept = results.read_text()
    for change, words in (
        ({"tokens": 120}, "tokens=100.*tokens=120"),
        ({"config": EVERY_KEY.to_dict() | {"key_bits": 4}}, "key_bits=10.*key_bits=4"),
        ({"text": "abc"}, "text=None.*text='abc'"),
    ):
        with pytest.raises(InvalidStateError, match=words):
            run_tasks(model, Letters(), EXAMPLES, methods, settings=settings | change, resume=True, **options)
    assert results.read_text() == kept
    more = run_tasks(model, Letters(), EXAMPLES, methods, settings=settings, resume=True, **options)
    assert [outcome.index for outcome in more] == [0, 1, 2]
    (tmp_path / "settings.json").unlink()
    with pytest.raises(InvalidStateError, match=r"settings\.json"):
        run_tasks(model, Letters(), EXAMPLES, methods, settings=settings, resume=True, **options)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(InvalidStateError, match=r"settings\.json"):
        run_tasks(model, Letters(), EXAMPLES, methods, settings=settings, resume=True, **options)


@pytest.mark.parametrize(
    "change", [{"value": "x"}, {"value": float("nan")}, {"seconds": "y"}, {"index": 1.5}, {"task": 3}, {"more": 1}]
)
def test_result_lines_are_checked(model: Any, tmp_path: Path, change: dict[str, Any]) -> None:
    from octavo_magicpig.evaluation._runner import run_tasks

    line = {"task": "niah", "index": 7, "method": "dense", "protocol": "A", "value": 0.5, "tokens": 1, "seconds": 0.1}
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(line | change) + "\n")
    with pytest.raises(InvalidStateError, match="line 1"):
        run_tasks(model, Letters(), [], [], results=results, resume=True)
    results.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidStateError, match="UTF-8"):
        run_tasks(model, Letters(), [], [], results=results, resume=True)


def test_repeated_indices_of_a_file_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text("".join(json.dumps({"index": i, "input": f"{i}", "outputs": []}) + "\n" for i in (0, 3, 0, 1)))
    assert [example.index for example in load_examples(file)] == [0, 1, 2, 3]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="UTF-8"):
        load_examples(file)


def test_models_are_told_apart_by_their_weights(model: Any) -> None:
    from octavo_magicpig.evaluation._runner import fingerprint

    before = fingerprint(model)
    assert fingerprint(model) == before
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
        assert fingerprint(model) != before
        model.lm_head.weight[0, 0] -= 1


@pytest.mark.parametrize("budget", [0.0, -0.1, 2.0, float("nan"), "a", True])
def test_budgets_are_checked_when_a_method_is_made(budget: Any) -> None:
    pytest.importorskip("transformers", minversion="5.24")
    from octavo_magicpig.evaluation import make_method

    with pytest.raises((InvalidValueError, InvalidTypeError), match="budget="):
        make_method("topk", budget=budget)


@pytest.mark.parametrize("protocols", [(), ("a",), ("A", "C")])
def test_protocols_are_checked(protocols: tuple[str, ...]) -> None:
    pytest.importorskip("transformers", minversion="5.24")
    from octavo_magicpig.evaluation._runner import check_protocols

    with pytest.raises(InvalidValueError, match="give A, B or both"):
        check_protocols(protocols)
    assert check_protocols("BAB") == ("B", "A")


def test_files_that_are_no_models_are_told(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.24")
    from octavo_magicpig.evaluation import load_model

    for name in (str(tmp_path), str(tmp_path / "broken")):
        with pytest.raises((MissingFileError, InvalidValueError), match="model"):
            load_model(name)
        (tmp_path / "broken").mkdir(exist_ok=True)
        (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    pytest.importorskip("gguf")
    junk = tmp_path / "junk.gguf"
    junk.write_text("x")
    with pytest.raises((MissingFileError, InvalidValueError), match="model"):
        load_model(str(junk))
