"""The language-model side, against a local server that misbehaves on demand, a recording, and a stand-in model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.generator import generate_traces
from octavo_coherent_factuality.io import read_traces, write_traces
from octavo_coherent_factuality.llm import LLM, CachedLLM, OpenAICompatible, ReplayLLM, request_key
from octavo_coherent_factuality.pipeline import LLMJudge, ReasoningPipeline, merge_claims
from octavo_core.errors import InvalidStateError

ANSWER = "Step 1: 2 + 3 = 5\nStep 2: 5 * 4 = 20"


def reply(content: str) -> str:
    """What a model of perfect manners would say to the package's requests."""
    if "Break the answer below" in content:
        claims = [{"claim": "2 + 3 = 5", "confidence": 0.9}, {"claim": "5 * 4 = 20", "confidence": 0.8}]
        return json.dumps({"claims": claims})
    if "Reply with a matrix" in content:
        return '{"matrix": [[0, 0], [1, 0]]}'
    if "For each claim say" in content:
        return '{"votes": [{"id": 0, "score": 1}, {"id": 1, "score": 1}]}'
    if "yes or no" in content:
        return "Yes."
    if "Use these steps ONLY" in content:
        return "merged"
    return ANSWER


class StandIn:
    """A model in this process."""

    def __init__(self, function: Any = reply) -> None:
        self.calls: list[tuple[str, float, int]] = []
        self.function = function

    @property
    def name(self) -> str:
        return "stand-in"

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        self.calls.append((messages[-1]["content"], temperature, sample))
        return self.function(messages[-1]["content"])


class Server:
    """Answers a script of behaviours first, then properly."""

    def __init__(self) -> None:
        self.script: list[str] = []
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(request)
                behaviour = outer.script.pop(0) if outer.script else "fine"
                status, headers = 200, {}
                body = json.dumps(completion(reply(request["messages"][-1]["content"])))
                if behaviour == "slow":
                    time.sleep(1.0)
                elif behaviour == "429":
                    status, headers, body = 429, {"Retry-After": "0"}, '{"error": {"message": "slow down"}}'
                elif behaviour == "500":
                    status, body = 500, "oops"
                elif behaviour == "401":
                    status, body = 401, '{"error": {"message": "who are you"}}'
                elif behaviour == "400":
                    status, body = 400, '{"error": {"message": "no schemas here"}}'
                elif behaviour == "broken":
                    body = '{"choices": [{"mess'
                elif behaviour == "empty":
                    body = json.dumps(completion(""))
                elif behaviour == "no choices":
                    body = json.dumps({**completion(""), "choices": []})
                elif behaviour == "surrogate":
                    body = json.dumps(completion("half \ud83d a pair"))
                elif behaviour == "html":
                    headers, body = {"Content-Type": "text/html"}, "<html>proxy</html>"
                content = body.encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def completion(text: str) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
    }


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("openai")
    running = Server()
    yield running
    running.server.shutdown()
    running.server.server_close()


def client(server: Server, **options: Any) -> OpenAICompatible:
    return OpenAICompatible("m", base_url=server.url, **{"timeout": 5.0, "max_retries": 3, **options})


HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("behaviour", ["429", "500", "broken", "empty", "no choices", "html"])
def test_passing_troubles_are_retried(server: Server, behaviour: str) -> None:
    server.script = [behaviour]
    assert client(server).complete(HELLO) == ANSWER
    assert len(server.requests) == 2


def test_timeouts_are_retried_and_then_told(server: Server) -> None:
    server.script = ["slow"]
    assert client(server, timeout=0.3).complete(HELLO) == ANSWER
    server.script = ["slow"] * 3
    with pytest.raises(RuntimeError, match="no answer from .* for model 'm'"):
        client(server, timeout=0.2, max_retries=0).complete(HELLO)


@pytest.mark.parametrize(
    ("behaviour", "match"),
    [("broken", "no usable answer"), ("empty", "without text"), ("429", "slow down"), ("401", "who are you")],
)
def test_lasting_troubles_are_told(server: Server, behaviour: str, match: str) -> None:
    server.script = [behaviour] * 20
    with pytest.raises(RuntimeError, match=match):
        client(server, max_retries=1).complete(HELLO)


def test_schemas_are_sent_and_given_up_where_refused(server: Server) -> None:
    llm = client(server)
    schema = {"type": "object"}
    llm.complete(HELLO, schema=schema, temperature=0.5, max_tokens=7, sample=3)
    request = server.requests[-1]
    assert request["response_format"]["json_schema"]["schema"] == schema
    assert (request["temperature"], request["max_tokens"], request["seed"]) == (0.5, 7, 3)
    server.script = ["400"]
    assert llm.complete(HELLO, schema=schema) == ANSWER
    assert "response_format" not in server.requests[-1]
    server.script = ["400"]
    with pytest.raises(RuntimeError, match="refused the request"):
        llm.complete(HELLO)


def test_no_server_is_told() -> None:
    pytest.importorskip("openai")
    with pytest.raises(RuntimeError, match="no answer from"):
        OpenAICompatible("m", base_url="http://127.0.0.1:9/v1", max_retries=0, timeout=2).complete(HELLO)
    with pytest.raises(ValueError, match="timeout"):
        OpenAICompatible("m", base_url="http://x", timeout=0)


def test_a_key_is_needed_for_the_public_service(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="no API key"):
        OpenAICompatible("m")


def test_whole_pipeline_over_http(server: Server, tmp_path: Path) -> None:
    pipeline = ReasoningPipeline(CachedLLM(client(server), tmp_path / "cache.sqlite"), num_samples=3)
    trace = pipeline.trace("What is (2 + 3) * 4?", id="q")
    assert [claim.text for claim in trace.claims] == ["2 + 3 = 5", "5 * 4 = 20"]
    assert trace.score("frequency").tolist() == [3, 3]
    assert trace.score("self_confidence").tolist() == [0.9, 0.8]
    assert trace.graph.to_parents() == [[], [0]]
    (output,) = SplitConformalFilter(0.2).fit(generate_traces(60)).predict([trace])
    assert merge_claims(pipeline.llm, output) == "merged"
    assert LLMJudge(pipeline.llm)(trace, output.mask)


def test_cache_asks_once_and_counts_draws_apart(tmp_path: Path) -> None:
    model = StandIn()
    cached = CachedLLM(model, tmp_path / "c.sqlite")
    assert isinstance(cached, LLM)
    for _ in range(3):
        assert cached.complete(HELLO) == ANSWER
    assert len(model.calls) == 1
    cached.complete(HELLO, sample=1)
    cached.complete(HELLO, temperature=1.0)
    assert (len(model.calls), cached.hits, cached.misses) == (3, 2, 3)
    again = CachedLLM(model, tmp_path / "c.sqlite")
    assert again.complete(HELLO) == ANSWER
    assert len(model.calls) == 3
    assert request_key("m", HELLO) != request_key("m", HELLO, max_tokens=9)
    (tmp_path / "x").write_text("not a data base, but long enough to be mistaken for one")
    with pytest.raises(RuntimeError, match="not an SQLite cache"):
        CachedLLM(model, tmp_path / "x")


def test_half_a_surrogate_pair_is_kept_in_the_cache(server: Server, tmp_path: Path) -> None:
    server.script = ["surrogate"]
    cached = CachedLLM(client(server), tmp_path / "c.sqlite")
    assert cached.complete(HELLO) == cached.complete(HELLO) == "half ? a pair"
    assert len(server.requests) == 1
    model = CachedLLM(StandIn(lambda content: "\ud800"), tmp_path / "d.sqlite")
    assert model.complete([{"role": "user", "content": "\ud800"}]) == "?"
    (trace,) = ReasoningPipeline(StandIn(), num_samples=0).run([{"question": "half \ud800?"}], tmp_path / "t.jsonl")
    assert trace.question == "half ??"
    assert ReasoningPipeline(StandIn(), num_samples=0).run([{"question": "half \ud800?"}], tmp_path / "t.jsonl")
    assert len(read_traces(tmp_path / "t.jsonl")) == 1


def test_a_run_that_fails_at_once_leaves_no_file(tmp_path: Path) -> None:
    def refuse(content: str) -> str:
        if "second" in content:
            raise InvalidStateError("no answer")
        return reply(content)

    pipeline = ReasoningPipeline(StandIn(refuse), num_samples=0)
    with pytest.raises(RuntimeError, match="nothing is finished yet"):
        pipeline.run([{"question": "second"}], tmp_path / "t.jsonl")
    assert not (tmp_path / "t.jsonl").exists()
    with pytest.raises(RuntimeError, match="goes on from there .*--resume"):
        pipeline.run([{"question": "first"}, {"question": "second"}], tmp_path / "t.jsonl")
    assert len(read_traces(tmp_path / "t.jsonl")) == 1


def test_cache_serves_many_threads(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    cached = CachedLLM(StandIn(lambda content: content.upper()), tmp_path / "c.sqlite")
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: cached.complete([{"role": "user", "content": f"a{n % 5}"}]), range(80)))
    assert texts == [f"A{n % 5}" for n in range(80)]


def test_recordings_replay(tmp_path: Path) -> None:
    cached = CachedLLM(StandIn(), tmp_path / "c.sqlite")
    expected = ReasoningPipeline(cached, num_samples=2).trace("What is (2 + 3) * 4?")
    replay = ReplayLLM(cached.export(tmp_path / "r.jsonl"))
    assert replay.name == "stand-in"
    trace = ReasoningPipeline(replay, num_samples=2).trace("What is (2 + 3) * 4?")
    assert trace.content_digest == expected.content_digest
    with pytest.raises(RuntimeError, match="recording has no answer"):
        replay.complete(HELLO, sample=99)
    with pytest.raises(FileNotFoundError, match="no recording"):
        ReplayLLM(tmp_path / "none")
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(ValueError, match="not a recording"):
        ReplayLLM(tmp_path / "bad")


def test_graphs_that_cannot_be_read_fall_back_to_a_chain() -> None:
    answers = iter(["nonsense", "[[0,1],[1,0]]", "[[0,0],[1,0],[0,0]]"])
    model = StandIn(lambda content: next(answers) if "Reply with a matrix" in content else reply(content))
    pipeline = ReasoningPipeline(model, num_samples=0, attempts=3)
    with pytest.warns(UserWarning, match="a chain stands for it"):
        graph = pipeline.build_graph("q", ["a", "b"])
    assert graph.fallback
    assert graph.to_parents() == [[], [0]]
    attempts = [(temperature, sample) for content, temperature, sample in model.calls if "Reply with" in content]
    assert attempts == [(0.0, 0), (0.7, 1), (0.7, 2)]


def test_lost_votes_count_nothing() -> None:
    model = StandIn(lambda content: "what?" if "For each claim say" in content else reply(content))
    with pytest.warns(UserWarning, match="are lost"):
        assert ReasoningPipeline(model, num_samples=1, attempts=2).frequency("q", ["a"]).tolist() == [0]


def test_pipeline_without_a_model_for_its_parts() -> None:
    model = StandIn()
    pipeline = ReasoningPipeline(model, num_samples=2, splitting="text", graph="symbols", votes="numbers")
    trace = pipeline.trace("What is (2 + 3) * 4?")
    assert [claim.text for claim in trace.claims] == ["2 + 3 = 5", "5 * 4 = 20"]
    assert trace.score("frequency").tolist() == [2, 2]
    assert len(model.calls) == 3
    for bad in ({"num_samples": -1}, {"attempts": 0}, {"max_claims": 0}):
        with pytest.raises(ValueError, match="give"):
            ReasoningPipeline(model, **bad)


def test_a_judge_that_is_no_judge() -> None:
    trace = generate_traces(1)[0]
    with pytest.raises(RuntimeError, match="not yes or no"):
        LLMJudge(StandIn(lambda content: "perhaps"))(trace, np.ones(trace.num_claims, bool))
    assert not LLMJudge(StandIn(lambda content: "No, it"))(trace, np.ones(trace.num_claims, bool))


def test_runs_go_on_after_a_torn_line(tmp_path: Path) -> None:
    questions = [{"id": index, "question": f"Question {index}?"} for index in range(4)]
    out = tmp_path / "t.jsonl"
    pipeline = ReasoningPipeline(StandIn(), num_samples=1)
    pipeline.run(questions[:2], out)
    whole = out.read_bytes()
    out.write_bytes(whole + b'{"id": "2", "claims": [{"te')
    model = StandIn()
    with pytest.warns(UserWarning, match="cut off in the middle"):
        traces = ReasoningPipeline(model, num_samples=1).run(questions, out)
    assert [trace.id for trace in traces] == ["0", "1", "2", "3"]
    assert [trace.id for trace in read_traces(out)] == ["0", "1", "2", "3"]
    assert not [content for content, *_ in model.calls if "Question 0" in content]
    with pytest.raises(RuntimeError, match="exists"):
        pipeline.run(questions, out, resume=False)
    with pytest.raises(ValueError, match="no text 'question'"):
        pipeline.run([{"id": 1}], tmp_path / "u.jsonl")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"thesis", "line 1 of .* is not a trace"),
        (b"first line\nsecond line without newline", "line 1 of .* is not a trace"),
        (b'{"claims": ["a"]}\n{"notes": "torn', "line 2 of .* is not a trace"),
        (b'{"claims": ["a"]}\n3', "line 2 of .* is not a trace"),
        (b"\xe4\n", "line 1 of .* is not a trace"),
        (b"[" * 100_000, "line 1 of .* is not a trace"),
    ],
)
def test_a_file_that_is_no_run_is_refused_untouched(tmp_path: Path, content: bytes, match: str) -> None:
    out = tmp_path / "notes.txt"
    out.write_bytes(content)
    model = StandIn()
    with pytest.raises(RuntimeError, match=match):
        ReasoningPipeline(model, num_samples=0).run([{"question": "q"}], out)
    assert out.read_bytes() == content
    assert not model.calls
    with pytest.raises(RuntimeError, match="Is a directory"):
        ReasoningPipeline(model, num_samples=0).run([{"question": "q"}], tmp_path)


def test_a_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    questions = [{"id": index, "question": f"Question {index}?"} for index in range(3)]
    out = tmp_path / "t.jsonl"
    made = ReasoningPipeline(StandIn(), num_samples=0).run(questions[:2], out)
    write_traces(out, [trace.with_factual([True, True]) for trace in made])
    judged = out.read_bytes()
    out.write_bytes(judged[:-1])
    ReasoningPipeline(StandIn(), num_samples=0).run(questions, out)
    assert out.read_bytes().startswith(judged)
    assert [(trace.id, trace.factual.tolist()) for trace in read_traces(out)[:2]] == [
        ("0", [True] * 2),
        ("1", [True] * 2),
    ]
    assert len(read_traces(out)) == 3


def test_two_runs_never_write_to_one_file(tmp_path: Path) -> None:
    questions = [{"id": index, "question": f"Question {index}?"} for index in range(2)]
    out = tmp_path / "t.jsonl"
    refused = []

    def other(content: str) -> str:
        """Start a second run while the first waits for its model."""
        if "Question 1" in content and not refused:
            with pytest.raises(RuntimeError, match="another run is writing to") as caught:
                ReasoningPipeline(StandIn(), num_samples=0).run(questions, out)
            refused.append(caught.value)
        return reply(content)

    ReasoningPipeline(StandIn(other), num_samples=0).run(questions, out)
    assert len(refused) == 1
    assert [trace.id for trace in read_traces(out)] == ["0", "1"]
    # Both started before there was a file: the one that comes second to write is refused.
    fresh = tmp_path / "u.jsonl"
    calls = []

    def first(content: str) -> str:
        if not calls:
            calls.append(content)
            ReasoningPipeline(StandIn(), num_samples=0).run(questions, fresh)
        return reply(content)

    with pytest.raises(RuntimeError, match="another run has made"):
        ReasoningPipeline(StandIn(first), num_samples=0).run(questions, fresh)
    assert [trace.id for trace in read_traces(fresh)] == ["0", "1"]


def test_a_file_that_is_replaced_during_a_run_is_told(tmp_path: Path) -> None:
    questions = [{"id": index, "question": f"Question {index}?"} for index in range(2)]
    out = tmp_path / "t.jsonl"

    def annotate(content: str) -> str:
        if "Question 1" in content:
            write_traces(out, read_traces(out))
        return reply(content)

    with pytest.raises(RuntimeError, match="was moved or replaced"):
        ReasoningPipeline(StandIn(annotate), num_samples=0).run(questions, out)
    assert [trace.id for trace in read_traces(out)] == ["0"]


def test_an_id_stands_for_one_question(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    model = StandIn()
    pipeline = ReasoningPipeline(model, num_samples=0)
    pipeline.run([{"id": 1, "question": "q"}], out)
    count = len(model.calls)
    with pytest.raises(ValueError, match="the id '1' belongs to two questions"):
        pipeline.run([{"id": 2, "question": "r"}, {"id": 1, "question": "other"}], out)
    with pytest.raises(ValueError, match="the id '3' belongs to two questions"):
        pipeline.run([{"id": 3, "question": "r"}, {"id": "3", "question": "s"}], out)
    assert len(model.calls) == count
    assert len(read_traces(out)) == 1


def test_confidences_that_are_missing_are_told() -> None:
    claims = [{"claim": "a", "confidence": 90}, {"claim": "b", "confidence": "much"}]
    model = StandIn(lambda content: json.dumps({"claims": claims}))
    with pytest.warns(UserWarning, match="1 of 2 claims"):
        split = ReasoningPipeline(model).split("q", "a. b.")
    assert not any(claim.scores for claim in split)


KILLED = """
import sys, time
from octavo_coherent_factuality.llm import CachedLLM
from octavo_coherent_factuality.pipeline import ReasoningPipeline

class Slow:
    name = "slow"
    def complete(self, messages, *, temperature=0.0, max_tokens=1000, schema=None, sample=0):
        with open(sys.argv[3], "a") as log:
            log.write("x")
        time.sleep(0.02)
        return "Step 1: 2 + 3 = 5\\nStep 2: 5 * 4 = 20"

pipeline = ReasoningPipeline(
    CachedLLM(Slow(), sys.argv[1]), num_samples=2, splitting="text", graph="symbols", votes="numbers"
)
pipeline.run([{"id": i, "question": f"q{i}"} for i in range(25)], sys.argv[2])
"""


def test_work_survives_kill_9(tmp_path: Path) -> None:
    """Killed at any moment, a run loses at most the answer it was waiting for."""
    cache, out, log = tmp_path / "c.sqlite", tmp_path / "t.jsonl", tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(cache), str(out), str(log)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.stat().st_size < 25):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < len(out.read_text().splitlines()) < 25
    subprocess.run(command, check=True, timeout=120)
    assert [trace.id for trace in read_traces(out)] == [str(index) for index in range(25)]
    assert log.stat().st_size <= 3 * 25 + 1


@pytest.mark.slow
def test_smollm2_end_to_end() -> None:
    from octavo_coherent_factuality.llm import TransformersLLM
    from octavo_core.assets import is_installed

    pytest.importorskip("transformers")
    if not is_installed("smollm2"):
        pytest.skip("the asset smollm2 is not installed")
    llm = TransformersLLM.load("smollm2")
    first = llm.complete([{"role": "user", "content": "What is 2 + 2?"}], max_tokens=8)
    assert first == llm.complete([{"role": "user", "content": "What is 2 + 2?"}], max_tokens=8)
    pipeline = ReasoningPipeline(
        llm, num_samples=2, splitting="text", graph="symbols", votes="numbers", max_tokens=40, temperature=0.7
    )
    trace = pipeline.trace("Tom has 3 boxes of 4 pencils. How many pencils does he have?")
    assert trace.num_claims >= 1
    assert len(SplitConformalFilter(0.2).fit(generate_traces(60)).predict([trace])) == 1
