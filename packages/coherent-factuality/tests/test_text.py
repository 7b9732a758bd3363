"""Texts that models write: parsing, splitting, guessing graphs, checking equations."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality import equations
from octavo_coherent_factuality.arithmetic import annotate_arithmetic
from octavo_coherent_factuality.equations import EquationChecker, check_equations, parse_expression
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.heuristics import number_votes, split_steps, symbol_graph, trace_from_text
from octavo_coherent_factuality.parsing import json_values, parse_claims, parse_matrix, parse_votes
from octavo_coherent_factuality.trace import Claim, ReasoningTrace
from octavo_core.errors import OctavoError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[0, 0], [1, 0]]", [[0, 0], [1, 0]]),
        ("Sure! Here it is:\n```json\n[[0,0],\n [1,0],]\n```\nHope this helps [1].", [[0, 0], [1, 0]]),
        ('{"matrix": [[0, 0], [1, 0]]}', [[0, 0], [1, 0]]),
        ("[0, 0]\n[1, 0]", [[0, 0], [1, 0]]),
        ("0 0\n1 0", [[0, 0], [1, 0]]),
        ("0, 0\n1, 0\n", [[0, 0], [1, 0]]),
        ("[[0.0, 0], [1.0, 0]]", [[0, 0], [1, 0]]),
        ("[[false, false], [true, false]]", [[0, 0], [1, 0]]),
        # A model that repeats the example of the prompt, or thinks aloud, says what it means last.
        ('Like {"matrix": [[0,1],[0,0]]}, my answer is {"matrix": [[0,0],[1,0]]}.', [[0, 0], [1, 0]]),
        ("<think>[[0,1],[0,0]] hmm no</think>[[0,0],[1,0]]", [[0, 0], [1, 0]]),
        ("<think>[[0,1],[0,0]]</think>0 0\n1 0", [[0, 0], [1, 0]]),
        ("[[0,0],[1,0]] for the 3 claims, not [[0,0,0],[0,0,0],[1,1,0]]", [[0, 0], [1, 0]]),
    ],
)
def test_matrices(text: str, expected: list[list[int]]) -> None:
    assert parse_matrix(text, 2).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "[[0,0],[1,0],[1,1]]",
        "[[0,0,0],[1,0,0]]",
        "[[0,2],[1,0]]",
        "[[0,0.5],[1,0]]",
        "[[0,true],[1,0]]",
        "as in [[0,0],[1,0]], [[0,0],[2,0]]",
        "<think>[[0,0],[1,0]] or perhaps",
        "[[0,0],[1,0]]</think>I cannot tell.",
        "[[0,0],[1]]",
        "no matrix",
        "",
        "[[0,0],[__import__('os').system('true'),0]]",
        "[" * 100_000,
        "[" * 50_000 + "]" * 50_000,
    ],
)
def test_bad_matrices(text: str) -> None:
    with pytest.raises(ValueError, match="no 2 x 2 matrix"):
        parse_matrix(text, 2)


def test_claims_with_latex_braces_and_prose() -> None:
    text = r"""Here are the claims:
{"claim": "By definition $\frac{a}{b} \neq \{1, 2\}$", "confidence": 0.9}
{"claim": "So \"x\" is \\sqrt{2}, and \times works", "confidence": 1.0,}
{"claim": "a line\nand a tab\t here", "confidence": 7}
broken {"claim": oops}
"""
    claims = parse_claims(text)
    assert claims[0] == (r"By definition $\frac{a}{b} \neq \{1, 2\}$", 0.9)
    assert claims[1] == (r'So "x" is \sqrt{2}, and \times works', 1.0)
    assert claims[2] == ("a line\nand a tab\t here", None)
    assert len(claims) == 3
    assert parse_claims('{"claims": ["a", {"subclaim": "b", "gpt-score": 0.5}]}') == [("a", None), ("b", 0.5)]
    assert len(parse_claims('["a", "b", "c"]', max_claims=2)) == 2
    with pytest.raises(ValueError, match="no claims"):
        parse_claims("nothing here {}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"claim": "first\nu = 3\ne = 2"}), "first\nu = 3\ne = 2"),
        (json.dumps({"claim": "$x$\nu = 3, $\\frac{1}{2}$"}), "$x$\nu = 3, $\\frac{1}{2}$"),
        (r'{"claim": "a \ne b"}', r"a \ne b"),
        (r'{"claim": "$a\ne b$"}', r"$a\ne b$"),
        (r'{"claim": "the frequency \nu is \tau"}', r"the frequency \nu is \tau"),
        (r'{"claim": "\frac{1}{2}\ne 1"}', r"\frac{1}{2}\ne 1"),
        ('<think>{"claim": "draft"}</think>{"claim": "said"}', "said"),
    ],
)
def test_line_breaks_and_commands_are_told_apart(text: str, expected: str) -> None:
    assert parse_claims(text) == [(expected, None)]


@pytest.mark.parametrize(
    ("given", "confidence"),
    [
        *((90, 0.9), (100, 1.0), (10.5, 0.105), ("90%", 0.9), (" 7 % ", 0.07), ("0.9", 0.9), (1, 1.0)),
        *((given, None) for given in (7, 101, -1, True, float("nan"), 10**400, "nan", "high", "200%", "1" * 5000)),
    ],
)
def test_confidences_as_models_write_them(given: object, confidence: float | None) -> None:
    ((_, found),) = parse_claims(json.dumps({"claim": "a", "confidence": given}))
    assert found == (None if confidence is None else pytest.approx(confidence))


def test_votes_survive_bad_lines() -> None:
    assert parse_votes(
        '[{"id": "0", "score": "1"}, {"id": "1", "score": "-1"}, {"id": 2, "score": "x"}]', 3
    ).tolist() == [1, -1, 0]
    text = '{"id": 0, "score": 1}\n{"id": 1, "score": oops}\n{"id": 2, "score": -1}\n{"id": 99, "score": 1}\n'
    assert parse_votes(text, 3).tolist() == [1, 0, -1]
    assert parse_votes('{"votes": [{"id": 1, "score": 1.0}]}', 2).tolist() == [0, 1]
    with pytest.raises(ValueError, match="no votes"):
        parse_votes("[1, 2, 3]", 3)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_text_breaks_the_parsers(text: str) -> None:
    json_values(text)
    for parse in (lambda: parse_claims(text), lambda: parse_matrix(text, 2), lambda: parse_votes(text, 2)):
        with contextlib.suppress(ValueError):  # nothing else may come out
            parse()
    assert check_equations(text) in ("true", "false", "unknown")
    if text.strip():
        split_steps(text)
        symbol_graph([text, text])


def test_no_source_evaluates_text() -> None:
    source = Path(equations.__file__).parent
    import ast

    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name not in {"eval", "exec", "sympify", "parse_expr", "literal_eval", "S"}, (file, node.lineno)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("### Step 1\n2 + 3 = 5\n### Step 2\n5 * 4 = 20", ["2 + 3 = 5", "5 * 4 = 20"]),
        ("**Step 1**\n2 + 3 = 5\n\n**Step 2**\n- 5 * 4 = 20", ["2 + 3 = 5", "5 * 4 = 20"]),
        ("Intro.\nStep 1: a = 2\nStep 2: b = a + 1 = 3", ["a = 2", "b = a + 1 = 3"]),
        ("**Step 1:** first\n\n**Step 2:** second\nmore", ["first", "second more"]),
        ("1. first\n2. second", ["first", "second"]),
        ("- first\n- second", ["first", "second"]),
        ("first line\n\nsecond line", ["first line", "second line"]),
        ("We have 3.5 kg, i.e. A lot. So we stop. Done", ["We have 3.5 kg, i.e. A lot.", "So we stop.", "Done"]),
        ("single", ["single"]),
    ],
)
def test_steps(text: str, steps: list[str]) -> None:
    assert split_steps(text) == steps


def test_empty_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        split_steps("  \n")


def test_symbol_graph_follows_symbols_and_numbers() -> None:
    steps = ["x = 3 * 4 = 12", "y = 5 + 1 = 6", "x + y = 18", "Half of 18 is 18 / 2 = 9"]
    assert symbol_graph(steps, "Given 3, 4, 5 and 1.").to_parents() == [[], [], [0, 1], [2]]


def test_symbol_graph_recovers_generated_graphs() -> None:
    found, known = set(), set()
    for index, trace in enumerate(generate_traces(60, seed=3)):
        # The generated steps name their operands by number only; with names the graph must be exact.
        named = []
        for claim, text in enumerate(c.text or "" for c in trace.claims):
            left, _, right = text.partition(" = ")
            names = [f"t{parent}" for parent in trace.graph.parents(claim)]
            named.append(f"{left} = {' + '.join(names)} = {right}" if names else f"{left} = {right}")
        known |= {(index, *edge) for edge in zip(trace.graph.edge_claims, trace.graph.indices, strict=True)}
        graph = symbol_graph(named, trace.question or "")
        found |= {(index, *edge) for edge in zip(graph.edge_claims, graph.indices, strict=True)}
    assert known <= found
    assert len(found) < 1.6 * len(known)


def test_traces_from_text_alone() -> None:
    trace = trace_from_text(
        "Step 1: 2 + 3 = 5\nStep 2: 5 * 4 = 20",
        question="What is (2 + 3) * 4?",
        alternatives=["2 + 3 = 5, so 20", "it is 2 + 3 = 6 and 24", "5, 20"],
    )
    assert trace.graph.to_parents() == [[], [0]]
    assert trace.score("frequency").tolist() == [1, 1]
    assert number_votes(["a = 1 + 1 = 2"], "nothing").tolist() == [-1]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("so 3 + 4 = 7 apples", "true"),
        ("3 + 4 = 8", "false"),
        ("5 dollars * 3 = 15 dollars", "unknown"),
        ("5 apples + 3 = 8", "unknown"),
        ("3 x 4 = 12", "true"),
        ("2 + 3 = 5 = 10 / 2", "true"),
        ("2 + 3 = 5 = 10 / 3", "false"),
        (r"$\frac{1}{2} + \frac{1}{3} = \frac{5}{6}$", "true"),
        (r"2\cdot 3 = 7", "false"),
        (r"\sqrt{16} = 4", "true"),
        (r"\sqrt{2}\sqrt{3}=\sqrt{6}", "true"),
        ("1/3 = 0.33", "true"),
        ("1/3 = 0.34", "false"),
        (r"22 / 7 \approx 3.14", "true"),
        ("20% * 50 = 10", "true"),
        ("1,000 + 1 = 1001", "true"),
        ("-2^2 = -4", "true"),
        ("10 - 3 - 2 = 5", "true"),
        ("x^2 - 1 = (x-1)(x+1)", "true"),
        ("x + 2 = 5", "unknown"),
        ("1/0 = 5", "unknown"),
        ("9^9^9^9 = 1", "unknown"),
        ("2^100000000 = 1", "unknown"),
        ("(" * 3000 + "1" + ")" * 3000 + " = 1", "unknown"),
        ("-" * 5000 + "1 = 1", "unknown"),
        ("__import__('os').system('touch x') = 1", "unknown"),
        ("no equation", "unknown"),
        ("", "unknown"),
    ],
)
def test_equations(text: str, verdict: str) -> None:
    assert check_equations(text) == verdict


@pytest.mark.parametrize(
    ("text", "context", "verdict"),
    [
        ("x = 2", ["2x + 3 = 7"], "true"),
        ("2x = 4", ["2x + 3 = 7"], "true"),
        ("x = 3", ["2x + 3 = 7"], "false"),
        ("x = 2", ["x^2 = 4"], "unknown"),
        ("x + y = 5", ["x = 2", "y = 3"], "true"),
        ("x = 1", ["x + y = 3", "x - y = -1"], "true"),
        ("z = 3", ["x = 2"], "unknown"),
        # What contradicts itself proves nothing.
        ("x + 1 = 6", ["x = 5", "x = 6"], "unknown"),
        ("x + 1 = 7", ["x = 5", "x = 6"], "unknown"),
        ("x = 1", ["x + y = 3", "x - y = -1", "y = 7"], "unknown"),
        ("x = 1/3", ["3x = 1", "x = 0.333"], "true"),
        ("x/x = 1", ["x = 0"], "unknown"),
        ("1/x = 1/x", ["x = 0"], "unknown"),
        ("x^0 = 1", ["x = 0"], "unknown"),
        ("2/x * x = 2", ["x = 0"], "unknown"),
        ("2/x * 3x = 6x", ["x = 0"], "unknown"),
        ("2/x * 6 = 4", ["x = 3"], "true"),
        ("(x^2 - 1)/(x - 1) = x + 1", ["x = 1"], "unknown"),
        ("6/x = 2", ["x = 3"], "true"),
        ("3/(2x) = 1/2", ["x = 3"], "true"),
        ("x = 4", ["x = 4 apples more than y"], "unknown"),
        ("x = 3", ["What if x = 3?"], "unknown"),
        ("x = 3", ["Is x = 3?"], "unknown"),
    ],
)
def test_equations_with_context(text: str, context: list[str], verdict: str) -> None:
    assert check_equations(text, context) == verdict


def test_expressions_that_cannot_be_read() -> None:
    assert str(parse_expression("2(x+1)")) == "2*x + 2"
    for text in ("", "2 +", "a = b", "2 apples", ")("):
        with pytest.raises(ValueError, match=r"cannot be read|not one expression"):
            parse_expression(text)


def test_a_claim_that_takes_too_long_is_given_up() -> None:
    with EquationChecker(time_limit=1.0) as checker:
        assert checker.check("2 + 2 = 4") == "true"
        hard = " * ".join(f"(x + y + {n} * z + w)^90" for n in range(2, 8))
        start = time.monotonic()
        assert checker.check(f"{hard} + 1 = (x + 1)^3 * {hard}") in ("unknown", "false")
        assert time.monotonic() - start < 30
        assert checker.check("2 + 2 = 5") == "false"
        assert checker._process is not None
        checker._process.kill()
        checker._process.wait()
        assert checker.check("2 + 2 = 4") == "true"
    for limit in (0, -1, float("nan")):
        with pytest.raises(OctavoError, match="give seconds above 0"):
            EquationChecker(limit)


@pytest.mark.parametrize("limit", [float("inf"), 1e20, 10**12])
def test_a_claim_may_take_any_time(limit: float | int) -> None:
    with EquationChecker(limit) as checker:
        assert checker.check("2 + 2 = 4") == "true"


def test_labels_agree_with_the_generator() -> None:
    made = generate_traces(12, seed=8)
    blank = [t.with_factual([None] * t.num_claims) for t in made]
    for ours, theirs in zip(annotate_arithmetic(blank, time_limit=10), made, strict=True):
        assert [c.factual for c in ours.claims] == [c.factual for c in theirs.claims]


def test_a_false_premise_makes_nothing_true() -> None:
    trace = ReasoningTrace((Claim("x = 4"), Claim("x + 1 = 5")), question="Solve 2x = 6.")
    (labelled,) = annotate_arithmetic([trace], time_limit=10)
    assert [claim.factual for claim in labelled.claims] == [False, False]
    saved: list[int] = []
    annotate_arithmetic([trace, trace], time_limit=10, save=lambda work: saved.append(len(work)))
    assert saved == [2, 2]
    kept = trace.with_factual([True, None])
    assert annotate_arithmetic([kept], time_limit=10)[0].claims[0].factual is True
    assert annotate_arithmetic([kept], time_limit=10, overwrite=True)[0].claims[0].factual is False


WITHOUT_HOOK = """
import numpy as np
from octavo_coherent_factuality import *
from octavo_coherent_factuality.equations import EquationChecker, check_equations
from octavo_coherent_factuality.heuristics import number_votes, split_steps, symbol_graph, trace_from_text
from octavo_coherent_factuality.io import trace_to_json, write_traces
from octavo_coherent_factuality.llm import OpenAICompatible
from octavo_coherent_factuality.parsing import json_values, parse_claims, parse_matrix, parse_votes
from octavo_coherent_factuality.pipeline import ReasoningPipeline
from octavo_core.errors import OctavoError

cases = [
    (lambda: split_steps(None), "the answer is a NoneType; give a text"),
    (lambda: trace_from_text(None), "the answer is a NoneType; give a text"),
    (lambda: symbol_graph(["a", None]), "give a list of texts"),
    (lambda: symbol_graph("abc", ""), "give a list of texts"),
    (lambda: symbol_graph(["a"], None), "the question is a NoneType; give a text"),
    (lambda: number_votes("abc", "a"), "give a list of texts"),
    (lambda: number_votes(["a"], None), "the alternative answer is a NoneType; give a text"),
    (lambda: json_values(None), "the text is a NoneType; give"),
    (lambda: parse_claims(None), "the text is a NoneType; give"),
    (lambda: parse_matrix(5, 2), "the text is a int; give"),
    (lambda: parse_votes(b"x", 2), "the text is a bytes; give"),
    (lambda: check_equations(None), "the claim is a NoneType; give a text"),
    (lambda: check_equations("x = 5", "x = 5"), "give a list of texts"),
    (lambda: check_equations("x = 5", None), "give a list of texts"),
    (lambda: check_equations("x = 5", [5]), "give a list of texts"),
    (lambda: EquationChecker().check("x = 5", "x = 5"), "give a list of texts"),
    (lambda: EquationChecker("x"), "give seconds above 0"),
    (lambda: write_traces("f", "abc"), "give a list of ReasoningTrace"),
    (lambda: write_traces("f", ReasoningTrace((Claim("a"),))), "give a list of ReasoningTrace"),
    (lambda: write_traces("f", [5]), "give a list of ReasoningTrace"),
    (lambda: write_traces("f", 5), "give a list of ReasoningTrace"),
    (lambda: OpenAICompatible("m", base_url="http://x", max_retries=1.5), "max_retries=1.5"),
    (lambda: OpenAICompatible("m", base_url="http://x", timeout="5"), "timeout='5'"),
    (lambda: OpenAICompatible("m", base_url="http://x", timeout=float("nan")), "timeout=nan"),
]
for number, (call, match) in enumerate(cases):
    try:
        call()
        print(number, "no error")
    except OctavoError as error:
        if match not in str(error):
            print(number, match, error)
    except Exception as error:
        print(number, "raw", type(error), error)
# The id of a row of a table.
print(trace_to_json(ReasoningTrace((Claim("a", id=np.int64(3)),), id=np.int64(7), group=np.int64(2))))
"""


def test_what_is_no_text_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HOOK], capture_output=True, text=True, check=True, timeout=300)
    fields = {"id": "7", "group": "2", "claims": [{"id": "3", "text": "a"}], "parents": [[]]}
    assert done.stdout.strip() == str(fields)
