"""The command line, run in this process on files as a user has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.io import read_traces, write_traces
from octavo_core.cli import main

pytest.importorskip("typer")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = generate_traces(160, seed=4)
    write_traces("calibration.jsonl", made[:120])
    write_traces("new.jsonl", [t.with_factual([None] * t.num_claims) for t in made[120:]])
    write_traces("test.jsonl", made[120:])
    return tmp_path


def octavo(*words: str) -> int:
    return main(["coherent-factuality", *words])


def test_fit_filter_report_verify(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert octavo("fit", "calibration.jsonl", "--alpha", "0.1", "-o", "f.json") == 0
    assert "P(event) >= 0.9" in capsys.readouterr().out
    assert octavo("filter", "new.jsonl", "-f", "f.json", "-o", "kept.jsonl") == 0
    lines = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert set(lines[0]) == {"id", "question", "kept", "order", "abstained", "threshold", "text"}
    assert octavo("filter", "new.jsonl", "-f", "f.json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 41
    assert octavo("report", "new.jsonl", "-f", "f.json", "-o", "t.html", "--trace", lines[3]["id"]) == 0
    assert "What is guaranteed" in Path("t.html").read_text()
    assert octavo("fit", "calibration.jsonl", "--family", "independent", "-o", "i.json", "--json") == 0
    capsys.readouterr()
    assert octavo("verify", "new.jsonl", "-f", "i.json", "--keep", "0.9") == 0
    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(plan["certified"] for plan in plans)


def test_fit_json_is_json_alone(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert octavo("fit", "calibration.jsonl", "--alpha", "1/12", "--delta", "0.1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["n"] == 120
    assert document["delta"] == 0.1


def test_curve(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert octavo("curve", "calibration.jsonl", "--alphas", "0.1,0.2", "--json", "--plot", "c.png") == 0
    curves = json.loads(capsys.readouterr().out)
    assert set(curves) == {"subgraph", "posthoc", "independent", "prefix"}
    assert curves["subgraph"][0]["realised"] >= 0.88
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert octavo("curve", "calibration.jsonl", "--protocol", "split", "--repeats", "5", "--beta", "0.5") == 0
    assert "abstained" in capsys.readouterr().out


def test_annotate_by_equations_and_by_hand(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_traces("few.jsonl", read_traces("new.jsonl")[:3])
    assert octavo("annotate", "few.jsonl", "-o", "a.jsonl", "--by", "equations", "--time-limit", "10") == 0
    assert [t.factual.tolist() for t in read_traces("a.jsonl")] == [
        t.factual.tolist() for t in read_traces("test.jsonl")[:3]
    ]
    answers = iter(["y", "?", "n", "q"])
    monkeypatch.setattr("typer.prompt", lambda text: next(answers))
    assert octavo("annotate", "few.jsonl", "-o", "h.jsonl") == 130
    assert "goes on from there" in capsys.readouterr().out
    half = read_traces("h.jsonl")
    assert sum(claim.factual is not None for t in half for claim in t.claims) == 2
    monkeypatch.setattr("typer.prompt", lambda text: "y")
    assert octavo("annotate", "few.jsonl", "-o", "h.jsonl") == 0
    assert all(t.is_annotated for t in read_traces("h.jsonl"))
    assert octavo("annotate", "few.jsonl", "-o", "s.jsonl", "--subsets") == 0
    assert all(t.subset_annotations for t in read_traces("s.jsonl"))
    assert octavo("annotate", "new.jsonl", "-o", "s.jsonl") == 2


def test_traces_from_given_answers(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"question": "q?", "answer": "Step 1: a = 2\nStep 2: a + 1 = 3", "alternatives": ["a = 2, 3"], "id": 5}
    Path("q.jsonl").write_text(json.dumps(entry) + "\n")
    assert octavo("trace", "q.jsonl", "-o", "t.jsonl", "--offline") == 0
    (trace,) = read_traces("t.jsonl")
    assert (trace.id, trace.graph.to_parents(), trace.score("frequency").tolist()) == ("5", [[], [0]], [1, 1])
    assert octavo("trace", "q.jsonl", "-o", "t.jsonl", "--offline") == 2
    assert octavo("trace", "q.jsonl", "-o", "u.jsonl") == 2
    assert (
        octavo(
            "trace", "q.jsonl", "-o", "u.jsonl", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--retries", "0"
        )
        == 2
    )


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["fit", "none.jsonl"], "no file at"),
        (["fit", "calibration.jsonl", "--alpha", "2"], "alpha=2 is out of range"),
        (["fit", "calibration.jsonl", "--score", "x"], "no score 'x'"),
        (["fit", "calibration.jsonl", "--family", "x"], "--family 'x' is unknown"),
        (["fit", "calibration.jsonl", "--annotation", "x"], "--annotation 'x' is unknown"),
        (["fit", "calibration.jsonl", "--annotation", "gold"], "no judgement of the subset"),
        (["fit", "calibration.jsonl", "--beta", "2"], "beta=2.0 is out of range"),
        (["fit", "calibration.jsonl", "--ties", "x"], "--ties 'x' is unknown"),
        (["fit", "calibration.jsonl", "-o", "no/such/f.json"], "cannot write"),
        (["fit", "new.jsonl"], "has no annotation"),
        (["filter", "new.jsonl", "-f", "none.json"], "no filter at"),
        (["filter", "new.jsonl", "-f", "new.jsonl"], "is not a saved filter"),
        (["curve", "calibration.jsonl", "--alphas", ""], "at least one level"),
        (["curve", "calibration.jsonl", "--protocol", "x"], "is unknown"),
        (["curve", "calibration.jsonl", "--alphas", "0.1,abc"], "alpha='abc' is not a number"),
        (["annotate", "new.jsonl", "-o", "a.jsonl", "--by", "magic"], "give one of hand, equations"),
        (["fit", "calibration.jsonl", "--repair", "x"], "--repair 'x' is unknown"),
        (["fit", "calibration.jsonl", "--alpha", "1e-999999999"], "too many digits"),
        (["fit", "calibration.jsonl", "--lower-is-safer"], "--lower-is-safer does not go with the score 'frequency'"),
        (["fit", "calibration.jsonl", "--samples", "1", "--family", "prefix"], "--samples 1"),
        (["fit", "."], "is a folder"),
        (["trace", ".", "--offline"], "is a folder"),
        (["report", "new.jsonl", "-f", "good.json", "--trace", "²"], "no trace '²'"),
        (["curve", "calibration.jsonl", "--plot", "no/such/c.png"], "cannot write"),
        (["fit", "cycle.jsonl"], "give --repair break to drop"),
        (["fit", "calibration.jsonl", "-o", "calibration.jsonl"], "--out 'calibration.jsonl' is the input"),
        (["fit", "calibration.jsonl", "-o", "link.jsonl"], "--out 'link.jsonl' is the input 'calibration.jsonl'"),
        (["filter", "new.jsonl", "-f", "good.json", "-o", "./new.jsonl"], "--out 'new.jsonl' is the input"),
        (["filter", "new.jsonl", "-f", "good.json", "-o", "good.json"], "--out 'good.json' is the input"),
        (["report", "new.jsonl", "-f", "good.json", "-o", "new.jsonl"], "--out 'new.jsonl' is the input"),
        (["report", "new.jsonl", "-f", "good.json", "-o", "good.json"], "--out 'good.json' is the input"),
        (["curve", "calibration.jsonl", "--plot", "calibration.jsonl"], "--plot 'calibration.jsonl' is the input"),
        (["annotate", "new.jsonl", "-o", "new.jsonl"], "--out 'new.jsonl' is the input"),
        (["trace", "question.jsonl", "--offline", "--resume", "-o", "question.jsonl"], "is the input"),
        (["trace", "twice.jsonl", "--model", "m", "--cache", "empty.jsonl", "--resume", "-o", "empty.jsonl"], "is the"),
        (["curve", "calibration.jsonl", "--plot", "c.svg"], "--plot 'c.svg' names no PNG file"),
        (["curve", "calibration.jsonl", "--families", "zz"], "--families 'zz' is unknown"),
        (["curve", "calibration.jsonl", "--evaluation", "zz"], "--evaluation 'zz' is unknown"),
        (
            ["trace", "fine.jsonl", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--resume", "-o", "."],
            "cannot write '.'",
        ),
        (["trace", "fine.jsonl", "--offline", "--resume", "-o", "."], "cannot write '.'"),
        (
            ["trace", "fine.jsonl", "--offline", "--resume", "-o", "latin.jsonl"],
            "line 1 of 'latin.jsonl' is not a trace",
        ),
        (["trace", "fine.jsonl", "--offline", "--resume", "-o", "notes.txt"], "line 1 of 'notes.txt' is not a trace"),
        (
            ["annotate", "new.jsonl", "-o", "a.jsonl", "--by", "equations", "--time-limit", "nan"],
            "give seconds above 0",
        ),
        (["trace", "empty.jsonl", "--offline"], "holds no questions"),
        (["trace", "no-answer.jsonl", "--offline"], "line 2 of 'no-answer.jsonl' has an empty answer"),
        (["trace", "twice.jsonl", "--offline"], "the id '1' occurs more than once"),
        (["trace", "twice.jsonl", "--model", "m"], "the id '1' occurs more than once"),
        (["trace", "alternatives.jsonl", "--offline"], "line 1 of 'alternatives.jsonl' has the alternatives 'a text'"),
        (["trace", "numbers.jsonl", "--offline"], "line 1 of 'numbers.jsonl' has the alternatives '[5]'"),
        (["trace", "question.jsonl", "--offline"], "line 1 of 'question.jsonl' has the question '5'"),
    ],
)
def test_bad_input_ends_with_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], words: list[str], match: str
) -> None:
    assert octavo("fit", "calibration.jsonl", "-o", "good.json", "-q") == 0
    cycle = {"claims": [{"text": "a", "frequency": 1, "factual": True}] * 2, "parents": [[1], [0]]}
    for name, entries in {
        "empty": [],
        "cycle": [cycle],
        "no-answer": [{"question": "q", "answer": "a"}, {"question": "r", "answer": " "}],
        "twice": [{"id": 1, "question": "q", "answer": "a"}, {"id": "1", "question": "r", "answer": "b"}],
        "alternatives": [{"question": "q", "answer": "a", "alternatives": "a text"}],
        "numbers": [{"question": "q", "answer": "a", "alternatives": [5]}],
        "question": [{"question": 5, "answer": "a"}],
        "fine": [{"question": "q", "answer": "a"}],
    }.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    Path("link.jsonl").symlink_to("calibration.jsonl")
    Path("latin.jsonl").write_bytes(b"\xe4\n")
    Path("notes.txt").write_text("thesis")
    before = {file: file.read_bytes() for file in files.iterdir() if file.is_file()}
    capsys.readouterr()
    assert octavo(*words) == 2
    assert {file: file.read_bytes() for file in before} == before
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning")]
    assert len(lines) == 1
    assert match in lines[0]


def test_a_figure_without_matplotlib_is_refused_first(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("octavo_coherent_factuality.curve.calibration_curve", None)
    assert octavo("curve", "calibration.jsonl", "--plot", "c.png") == 2
    assert "octavo-coherent-factuality[plot]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    Path("q.jsonl").write_text('{"question": "q"}\n')
    assert octavo("trace", "q.jsonl", "--local", "smollm2") == 2
    assert "octavo-coherent-factuality[transformers]" in capsys.readouterr().err


def test_offline_traces_are_resumed(files: Path) -> None:
    def ask(*entries: dict[str, Any]) -> list[Any]:
        Path("q.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        assert octavo("trace", "q.jsonl", "-o", "t.jsonl", "--offline", "--resume") == 0
        return read_traces("t.jsonl")

    one, two = {"id": "1", "question": "q", "answer": "1 + 1 = 2"}, {"question": "r", "answer": "2 + 2 = 4"}
    bare, other = {"answer": "3 + 3 = 6"}, {"answer": "4 + 4 = 8"}
    made = ask(one, bare)
    write_traces("t.jsonl", [trace.with_factual([True]) for trace in made])
    found = {trace.answer: trace.claims[0].factual for trace in ask(two, other, one)}
    assert found == {"1 + 1 = 2": True, "3 + 3 = 6": True, "2 + 2 = 4": None, "4 + 4 = 8": None}
    assert len(ask(one, two, bare, other)) == 4


def test_annotation_by_equations_is_interrupted_and_goes_on(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_traces("few.jsonl", read_traces("new.jsonl")[:3])
    asked: list[str] = []
    limit = [read_traces("few.jsonl")[0].num_claims + 2]

    def check(checker: Any, text: str, context: Any = ()) -> str:
        if len(asked) == limit[0]:
            raise KeyboardInterrupt
        asked.append(text)
        return "true"

    monkeypatch.setattr("octavo_coherent_factuality.equations.EquationChecker.check", check)
    assert octavo("annotate", "few.jsonl", "-o", "a.jsonl", "--by", "equations") == 130
    assert "what was answered is in a.jsonl" in capsys.readouterr().out
    half = [trace.is_annotated for trace in read_traces("a.jsonl")]
    assert half == [True, False, False]
    done = read_traces("a.jsonl")[0].num_claims
    asked.clear()
    limit[0] = 99
    assert octavo("annotate", "few.jsonl", "-o", "a.jsonl", "--by", "equations") == 0
    assert len(asked) == sum(trace.num_claims for trace in read_traces("few.jsonl")) - done
    monkeypatch.setattr("typer.prompt", lambda text: "q")
    assert octavo("annotate", "few.jsonl", "-o", "never.jsonl") == 130
    assert "nothing is saved" in capsys.readouterr().out
    assert not Path("never.jsonl").exists()


def test_warnings_are_lines(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_traces("five.jsonl", random_traces(5, 0))
    assert octavo("fit", "five.jsonl", "--alpha", "0.1") == 0
    assert "warning: 5 calibration traces are too few" in capsys.readouterr().err
    entry: dict[str, Any] = {"claims": [{"text": "a", "frequency": 1, "factual": True}] * 2, "parents": [[1], [0]]}
    Path("cycle.jsonl").write_text(json.dumps(entry) + "\n")
    assert octavo("fit", "cycle.jsonl", "--alpha", "0.5") == 2
    assert octavo("fit", "cycle.jsonl", "--alpha", "0.5", "--repair", "break") == 0
    assert "was mended: dropped ((0, 1),)" in capsys.readouterr().err


def test_demo_and_bench_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo_coherent_factuality import demo

    monkeypatch.setattr(demo, "_QUICK", (250, 60, 5))
    report = demo.run(quick=True)
    assert report.holds
    rows = {row.id for row in report.rows}
    assert {"coverage_alpha_0.1", "retained_vs_posthoc", "independent_undercovers"} <= rows
    assert "trace.html" in report.artifacts


def test_an_edited_question_needs_another_id(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("q.jsonl").write_text('{"id": 1, "question": "q", "answer": "1 + 1 = 2"}\n')
    assert octavo("trace", "q.jsonl", "-o", "t.jsonl", "--offline") == 0
    before = Path("t.jsonl").read_bytes()
    Path("q.jsonl").write_text('{"id": 1, "question": "r", "answer": "1 + 1 = 2"}\n')
    assert octavo("trace", "q.jsonl", "-o", "t.jsonl", "--offline", "--resume") == 2
    assert "the id '1' belongs to two questions" in capsys.readouterr().err
    assert Path("t.jsonl").read_bytes() == before


def test_equations_without_a_limit(files: Path) -> None:
    write_traces("one.jsonl", read_traces("new.jsonl")[:1])
    assert octavo("annotate", "one.jsonl", "-o", "a.jsonl", "--by", "equations", "--time-limit", "inf") == 0
    assert read_traces("a.jsonl")[0].is_annotated
