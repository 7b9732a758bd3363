from __future__ import annotations

import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coherent_traces import random_traces, traces
from hypothesis import given, settings
from octavo_coherent_factuality.annotate import annotate_claims, annotate_subsets, implied_judgement
from octavo_coherent_factuality.annotators import Gold, Partial
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.groups import GroupConformalFilter
from octavo_coherent_factuality.guarantee import guarantee_report
from octavo_coherent_factuality.io import read_traces, trace_from_json, trace_to_json, write_traces
from octavo_coherent_factuality.persist import data_digest, load_filter, save_filter
from octavo_coherent_factuality.render import trace_page
from octavo_coherent_factuality.risk_control import RiskControlFilter
from octavo_coherent_factuality.scorers import Combined, DescendantWeighted, FrequencyScorer, SelfConfidence
from octavo_coherent_factuality.trace import Claim, ReasoningTrace


@given(traces())
@settings(deadline=None)
def test_json_round_trip(trace: ReasoningTrace) -> None:
    back = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
    assert back.claims == trace.claims
    assert back.graph == trace.graph


def test_file_round_trip(tmp_path: Path, problems: list[ReasoningTrace]) -> None:
    write_traces(tmp_path / "t.jsonl", problems)
    back = read_traces(tmp_path / "t.jsonl")
    assert [t.claims for t in back] == [t.claims for t in problems]
    assert [dict(t.subset_annotations) for t in back] == [dict(t.subset_annotations) for t in problems]
    assert data_digest(back) == data_digest(problems[::-1])


def test_official_layout(tmp_path: Path) -> None:
    document = {
        "data": [
            {
                "prompt": "What is 1 + 1 + 1?",
                "claims": [
                    {"subclaim": "1 + 1 = 2", "manual_annotation": "Y", "frequency-score": 4.0, "gpt-score": 0.9},
                    {"subclaim": "2 + 1 = 4", "manual_annotation": "N", "frequency_score": -1, "gpt-score": 0.8},
                ],
                "dep_graph": [[0, 0], [1, 0]],
                "graph_annotations": {"Y": [[1, 0]], "N": [[1, 1]]},
            }
        ]
    }
    (tmp_path / "d.json").write_text(json.dumps(document))
    (trace,) = read_traces(tmp_path / "d.json")
    assert trace.factual.tolist() == [True, False]
    assert trace.score("frequency").tolist() == [4, -1]
    assert trace.score("self_confidence").tolist() == [0.9, 0.8]
    assert trace.graph.to_parents() == [[], [0]]
    assert trace.subset_annotations == {frozenset({0}): True, frozenset({0, 1}): False}
    assert trace.question == "What is 1 + 1 + 1?"


@pytest.mark.parametrize("name", ["one.json", "one.JSON", "many.Json"])
def test_json_files_by_any_name(tmp_path: Path, name: str) -> None:
    entry = {"claims": ["a"], "question": "q"}
    (tmp_path / name).write_text(json.dumps(entry if name.startswith("one") else {"data": [entry]}, indent=1))
    (trace,) = read_traces(tmp_path / name)
    assert trace.question == "q"


def test_plain_forms_of_claims() -> None:
    trace = trace_from_json(
        {
            "claims": ["one", {"text": "two", "score": 0.3, "factual": "no"}],
            "matrix": [[0, 0], [1, 0]],
            "subset_annotations": {"coherent": [1], "not_coherent": [3]},
        }
    )
    assert trace.claims == (Claim("one"), Claim("two", {"score": 0.3}, False))
    assert trace.subset_annotations == {frozenset({0}): True, frozenset({0, 1}): False}


def test_contradicting_judgements_warn() -> None:
    entry = {"claims": ["a"], "subset_annotations": {"coherent": [1], "not_coherent": [1]}}
    with pytest.warns(UserWarning, match="judged both ways"):
        assert trace_from_json(entry).subset_annotations == {frozenset({0}): True}


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "line 2 .* is not JSON"),
        ("[" * 5000, "line 2 .* is not JSON"),
        ("3", "line 2.*a trace is a JSON object"),
        ('{"claims": "x"}', "no list 'claims'"),
        ('{"claims": []}', "has no claims"),
        ('{"claims": [3]}', "claim 0 is a int"),
        ('{"claims": ["a"], "parents": [[0]]}', "relies on itself"),
        ('{"claims": ["a"], "parents": 3}', "graph cannot be read"),
        ('{"claims": ["a"], "parents": [[], []]}', "2 rows for 1 claims"),
        ('{"claims": ["a", "b"], "matrix": [[0, 1], [1, 0]]}', "in a circle"),
        ('{"claims": ["a", "b"], "matrix": [[0, 5], [0, 0]]}', "must be 0 or 1"),
        ('{"claims": [{"text": "a", "factual": "maybe"}]}', "give true, false or null"),
        ('{"claims": [{"text": "a", "score": NaN}]}', "must be finite"),
        ('{"claims": [{"text": "a", "score": 1' + "0" * 400 + "}]}", "must be finite"),
        ('{"claims": [{"text": "a", "scores": [1]}]}', "an object of numbers"),
        ('{"claims": [{"text": "a", "scores": {"frequency": "high"}}]}', "give a number"),
        ('{"claims": ["a"], "subset_annotations": {"coherent": [4]}}', "bit mask 4 does not fit"),
        ('{"claims": ["a"], "subset_annotations": [[1]]}', "subset annotations must be"),
        ('{"claims": ["a"], "question": 7}', "give a text"),
        ('{"claims": ["a", "b"], "parents": [[], [' + "1" + "0" * 30 + "]]}", "is out of range"),
        ('{"claims": ["a", "b"], "matrix": [[0, [1]], [1, 0]]}', "cannot be read|square|0 or 1"),
        ('{"claims": ["a"], "parents": [[]], "matrix": [[0]]}', "both 'parents' and a matrix"),
        ('{"claims": ["a"], "parents": [[]], "dep_graph": [[0]]}', "both 'parents' and a matrix"),
        ('{"claims": ["a"], "subset_annotations": {"coherent": 5}}', "give a list of subsets"),
        ('{"claims": ["a"], "subset_annotations": [{"kept": [0]}]}', "has no verdict"),
        ('{"claims": [{"text": "a", "factual": [1]}]}', "give true, false or null"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, match: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"claims": ["fine"]}\n' + line + "\n")
    with pytest.raises(ValueError, match=match):
        read_traces(path)


def test_judgements_left_open_are_skipped() -> None:
    listed = [{"kept": [0], "coherent": None}, {"kept": [1], "coherent": True}]
    trace = trace_from_json({"claims": ["a", "b"], "subset_annotations": listed})
    assert trace.subset_annotations == {frozenset({1}): True}


def test_graphs_that_are_misspelt_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the field 'parent' is not read"):
        trace_from_json({"claims": ["a", "b"], "parent": [[], [0]]})
    path = tmp_path / "t.jsonl"
    path.write_text('{"claims": ["a", "b"]}\n{"claims": ["a"]}\n')
    with pytest.warns(UserWarning, match="no trace of .* says which claims rely on which"):
        read_traces(path)
    path.write_text('{"claims": ["a", "b"]}\n{"claims": ["a", "b"], "parents": [[], [0]]}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_traces(path)
    with pytest.raises(ValueError, match="is a folder"):
        read_traces(tmp_path)


def test_unusual_texts_survive(tmp_path: Path) -> None:
    text = "line\u2028separator, \x85, \x0b, a\nnewline and \U0001f600"
    trace = ReasoningTrace((Claim(text, {"frequency": 1}, True),), question=text)
    write_traces(tmp_path / "t.jsonl", [trace, trace])
    assert [t.claims[0].text for t in read_traces(tmp_path / "t.jsonl")] == [text, text]
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"claims": ["half \\ud800 pair"]}\r\n')
    (back,) = read_traces(tmp_path / "b.jsonl")
    write_traces(tmp_path / "c.jsonl", [back])
    assert back.claims[0].text == "half ? pair"


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_traces(tmp_path / "x.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_traces(tmp_path / "b.jsonl")
    (tmp_path / "e.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no traces"):
        read_traces(tmp_path / "e.jsonl")
    (tmp_path / "d.json").write_text("3")
    with pytest.raises(ValueError, match="neither a list"):
        read_traces(tmp_path / "d.json")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": Fraction(1, 7), "ties": "strict"},
        {"scorer": DescendantWeighted(Combined((FrequencyScorer(), FrequencyScorer(3)), (1.0, 0.5)), 0.5)},
        {"annotator": Partial(max_bad=1), "family": "prefix", "delta": 0.1},
        {"ties": "randomized", "seed": 7, "annotator": Gold("silver")},
    ],
)
def test_saved_filters_filter_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    made = random_traces(150, 1)
    fitted = SplitConformalFilter(**{"alpha": 0.2, **options}).fit(made[:100])
    save_filter(tmp_path / "f.json", fitted, traces=made[:100])
    back = load_filter(tmp_path / "f.json")
    assert back.predict(made[100:]) == fitted.predict(made[100:])
    assert guarantee_report(back) == guarantee_report(fitted)
    with pytest.warns(UserWarning, match="share an id"):
        back.predict(made[:1])


def test_code_is_never_saved(tmp_path: Path) -> None:
    fitted = SplitConformalFilter(0.5, scorer=lambda trace: np.zeros(trace.num_claims)).fit(random_traces(5, 0))
    with pytest.raises(TypeError, match="code is never stored"):
        save_filter(tmp_path / "f.json", fitted)
    with pytest.raises(RuntimeError, match="not calibrated"):
        save_filter(tmp_path / "f.json", SplitConformalFilter())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("scores"),
        lambda d: d.update(schema="other"),
        lambda d: d["scores"].reverse(),
        lambda d: d.update(rank=999),
        lambda d: d["config"].update(scorer={"type": "os.system"}),
        lambda d: d["config"].update(alpha="2"),
        lambda d: d["config"].update(family="x"),
        lambda d: d["tie_numbers"].pop(),
        lambda d: d.update(rank=d["rank"] - 1),
        lambda d: d.update(n=float("inf")),
        lambda d: d.update(threshold=99.0),
        lambda d: d["config"].update(alpha="0.3"),
        lambda d: d["config"].update(seed=1),
        lambda d: d["config"].update(seed="a"),
        lambda d: d["tie_numbers"].__setitem__(0, 1.5),
        lambda d: d["tie_numbers"].__setitem__(0, float("nan")),
        lambda d: d["tie_numbers"].__setitem__(3, 0.5),
        lambda d: d["scores"].__setitem__(0, 1e6),
        lambda d: d.pop("sha256"),
        lambda d: d["config"]["scorer"].update(num_samples="a"),
        lambda d: d["config"]["scorer"].update(num_samples=4),
        lambda d: d["config"].update(scorer="x"),
        lambda d: d["config"].update(scorer={"type": "Ranked", "base": 3}),
        lambda d: d["config"].update(annotator={"type": "FrequencyScorer"}),
        lambda d: d["config"].update(scorer={"type": "Silver"}),
    ],
)
def test_altered_filters_are_refused(tmp_path: Path, change: Any) -> None:
    fitted = SplitConformalFilter(0.2, scorer=FrequencyScorer()).fit(random_traces(30, 2))
    path = save_filter(tmp_path / "f.json", fitted)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="is not a saved filter"):
        load_filter(path)


def test_files_that_are_no_filters(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    for text in ("[" * 100_000, "3", '{"schema": 1e999}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a saved filter"):
            load_filter(path)
    with pytest.raises(ValueError, match="is a folder"):
        load_filter(tmp_path)
    for other in (GroupConformalFilter(0.5, group_by=lambda trace: "a"), RiskControlFilter(0.5)):
        with pytest.raises(TypeError, match="only a SplitConformalFilter can"):
            save_filter(path, other.fit(random_traces(9, 0)))


def test_filters_of_traces_without_ids_are_saved(tmp_path: Path) -> None:
    bare = [ReasoningTrace(t.claims, t.graph) for t in random_traces(30, 2)]
    fitted = SplitConformalFilter(0.2).fit(bare)
    back = load_filter(save_filter(tmp_path / "f.json", fitted))
    assert back.predict(random_traces(20, 4)) == fitted.predict(random_traces(20, 4))


def test_annotation_goes_on_after_an_interruption(tmp_path: Path) -> None:
    made = [t.with_factual([None] * t.num_claims) for t in random_traces(4, 3)]
    path = tmp_path / "a.jsonl"
    asked: list[tuple[str | None, int]] = []

    def ask(trace: ReasoningTrace, mask: np.ndarray) -> bool:
        if len(asked) == 5:
            asked.append((None, -1))
            raise KeyboardInterrupt
        asked.append((trace.id, int(np.flatnonzero(mask)[0])))
        return True

    with pytest.raises(KeyboardInterrupt):
        annotate_claims(made, ask, lambda work: write_traces(path, work))
    resumed = read_traces(path)
    assert sum(claim.factual is not None for t in resumed for claim in t.claims) == 5
    done = annotate_claims(resumed, ask, lambda work: write_traces(path, work))
    assert all(t.is_annotated for t in done)
    answered = [entry for entry in asked if entry[0] is not None]
    assert len(set(answered)) == len(answered) == sum(t.num_claims for t in made)


def test_implied_judgements_are_not_asked_for() -> None:
    made = [t for t in random_traces(40, 5) if t.num_claims > 3]
    asked = []

    def ask(trace: ReasoningTrace, kept: np.ndarray) -> bool:
        asked.append(trace.id)
        return bool(trace.factual[kept].all())

    done = annotate_subsets(made, FrequencyScorer(), ask, lambda work: None)
    plain = sum(len({tuple(k) for _, k in SplitConformalFilter().method.output_family(t).members()}) - 1 for t in made)
    assert len(asked) < plain
    for trace in done:
        for subset, verdict in trace.subset_annotations.items():
            assert verdict == all(trace.claims[index].factual for index in subset)


@given(traces(max_claims=6))
@settings(deadline=None)
def test_implied_judgement_is_sound(trace: ReasoningTrace) -> None:
    family = SplitConformalFilter().method.output_family(trace)
    for index in range(1, family.num_members):
        kept = family.member(index)
        subset = frozenset(np.flatnonzero(kept).tolist())
        known = {
            frozenset(np.flatnonzero(family.member(i)).tolist()): bool(trace.factual[family.member(i)].all())
            for i in range(1, family.num_members)
            if i != index
        }
        known.pop(subset, None)
        judged = ReasoningTrace(trace.claims, trace.graph, subset_annotations=known)
        assert implied_judgement(judged, kept) in (None, bool(trace.factual[kept].all()))


def test_page_escapes_what_the_model_wrote() -> None:
    trace = ReasoningTrace(
        (Claim("<script>alert(1)</script>", {"frequency": 5}, True), Claim("b & c", {"frequency": -5}, False)),
        question="<img src=x onerror=alert(1)>",
    )
    fitted = SplitConformalFilter(0.2).fit(random_traces(30, 0))
    page = trace_page(fitted.predict([trace])[0], fitted, guarantee_report(fitted))
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "b &amp; c" in page
    assert "What is guaranteed" in page
    assert page.count("<circle") == 2
    # On a narrow screen nothing is wider than it: long words break, and rows become blocks with their own heads.
    assert "overflow-wrap:anywhere" in page
    assert "@media(max-width:600px)" in page
    assert page.count('data-head="relies on"') == 2
    assert "http" not in page


def test_self_confidence_scores() -> None:
    trace = trace_from_json({"claims": [{"text": "a", "self_confidence": 0.75}]})
    assert SelfConfidence()(trace).tolist() == [0.25]
