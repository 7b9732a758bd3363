from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_magicpig import LSHConfig
from octavo_magicpig.cli import app
from octavo_magicpig.evaluation import TASKS, Example, load_examples, make_examples, score
from octavo_magicpig.evaluation import _study as study
from octavo_magicpig.evaluation.tasks import english_text, read_text
from typer.testing import CliRunner


def words(text: str) -> int:
    return len(text.split())


def letters(text: str) -> int:
    return len(text) // 4


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


@pytest.mark.parametrize("task", TASKS)
def test_examples_reach_the_lengths_of_the_paper(task: str) -> None:
    (example,) = make_examples(task, 1, 120_000, letters, seed=1)
    assert 110_000 <= letters(example.prompt) <= 120_000
    assert make_examples(task, 1, 120_000, letters, seed=1) == [example]


def test_made_up_words_follow_the_list_and_come_as_often() -> None:
    (example,) = make_examples("cwe", 1, 50_000, words)
    listed = example.context.split("\n")[1].split()[1::2]
    counts = Counter(listed)
    assert len(counts) > 5000
    assert {counts[word] for word in example.outputs} == {30}
    assert {count for word, count in counts.items() if word not in example.outputs} == {3}


def test_a_count_that_stops_growing_is_told() -> None:
    with pytest.raises(InvalidValueError, match="stops growing at 512 tokens.*600"):
        make_examples("niah", 1, 600, lambda text: min(words(text), 512))


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 200_000, "line 1 nests too deeply"),
        ('{"input": "a' + "\\ud800" + '", "outputs": []}', r"line 1.*'input'.*U\+D800"),
        ('{"input": " ", "outputs": []}', "line 1.*'input' is empty"),
    ],
)
def test_lines_that_no_model_can_read_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "task.jsonl").write_text(content)
    with pytest.raises(InvalidValueError, match=message):
        load_examples(tmp_path / "task.jsonl")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text('{"input": "long\\nWhat?", "outputs": ["a"]}\n', encoding="utf-8-sig")
    assert load_examples(file) == [Example(0, "long", "\nWhat?", ("a",), "ruler")]
    file.write_text("prose", encoding="utf-8-sig")
    assert read_text(file) == "prose"


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


def test_a_question_without_context_is_named_before_protocol_b(model: Any) -> None:
    from octavo_magicpig.evaluation._runner import run_tasks
    from octavo_magicpig.evaluation._study import make_method

    methods, examples = [make_method("dense", EVERY_KEY)], [EXAMPLES[0], Example(7, "", "\nWhat?", ("5",), "ruler")]
    with pytest.raises(InvalidValueError, match=r"example 7 of ruler .*line break.*protocol A"):
        run_tasks(model, Letters(), examples, methods)
    assert len(run_tasks(model, Letters(), examples, methods, protocols="A", new_tokens=2)) == 2


def test_methods_of_one_name_are_refused(model: Any) -> None:
    from octavo_magicpig.evaluation._runner import run_tasks, run_text_losses
    from octavo_magicpig.evaluation._study import make_method

    methods = [make_method(name, EVERY_KEY) for name in ("lsh", "dense", "lsh")]
    with pytest.raises(InvalidValueError, match="two methods are named 'lsh'"):
        run_tasks(model, Letters(), EXAMPLES, methods)
    with pytest.raises(InvalidValueError, match="two methods are named 'lsh'"):
        run_text_losses(model, torch.zeros(1, 400, dtype=torch.int64), methods, texts=1, prefix_tokens=100)


@pytest.fixture
def tiny(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line with the small model in place of the real one."""
    monkeypatch.setattr("octavo_magicpig.evaluation._runner.load_model", lambda _: (model, Letters()))


@pytest.mark.usefixtures("tiny")
def test_methods_on_the_command_line_come_once_and_may_be_spaced(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text(json.dumps({"input": "some context " * 12 + "\nWhat?", "outputs": ["5"]}) + "\n")
    words = ["eval", str(file), "--methods", "topk, dense ,topk", "--protocol", "B", "--new-tokens", "2", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    summary = json.loads(result.output)["summary"]
    assert [(row["method"], row["examples"]) for row in summary] == [("topk", 1), ("dense", 1)]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("content", ["", "far too short", "x" * 68])
def test_a_text_too_short_to_tune_on_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "short.txt").write_text(content)
    result = CliRunner().invoke(app, ["tune", "--text", str(tmp_path / "short.txt")])
    assert isinstance(result.exception, InvalidValueError)
    assert f"{len(content)} tokens" in str(result.exception)
    assert "at least 69" in str(result.exception)


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
    results.write_text("[" * 200_000 + "\n")
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


def test_budgets_may_come_from_numpy() -> None:
    pytest.importorskip("transformers", minversion="5.24")
    from octavo_magicpig.evaluation import make_method

    assert make_method("topk", budget=np.float32(0.5)).name == "topk"


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


def test_tokens_go_to_the_device_of_the_model() -> None:
    seen = []

    class Elsewhere:
        device = torch.device("meta")
        config = SimpleNamespace(_attn_implementation="sdpa")

        def set_attn_implementation(self, name: str) -> None:
            pass

        def __call__(self, tokens: torch.Tensor, **_: Any) -> SimpleNamespace:
            seen.append(tokens.device.type)
            return SimpleNamespace(logits=torch.zeros(1, tokens.shape[1], 5, device=tokens.device))

    study.decode(Elsewhere(), None, torch.zeros(1, 2, dtype=torch.long))
    study.capture(Elsewhere(), torch.zeros(1, 3, dtype=torch.long), [0])
    assert seen == ["meta"] * 3
