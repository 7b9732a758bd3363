"""The one command line, as a user meets it: quick to answer, clear about mistakes, unharmed by a broken plug-in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from conftest import Member, Python

# An idle machine answers in under half a second; runners are shared, so the limit leaves room.
ANSWER_SECONDS = 1.5


class Install(Protocol):
    """Put a plug-in on the path."""

    def __call__(self, slug: str, **modules: str) -> None: ...


@pytest.fixture
def plugins(tmp_path: Path) -> tuple[str, Install]:
    """A folder for PYTHONPATH, and a function that installs a plug-in made of the given modules there."""
    folder = tmp_path / "plugins"

    def install(slug: str, **modules: str) -> None:
        package = folder / f"octavo_{slug}"
        package.mkdir(parents=True)
        for name, code in {"__init__": "", **modules}.items():
            (package / f"{name}.py").write_text(code)
        info = folder / f"octavo_{slug}-9.9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: octavo-{slug}\nVersion: 9.9.9\nSummary: A plug-in\n"
        )
        (info / "entry_points.txt").write_text(f"[octavo.methods]\n{slug} = octavo_{slug}.cli:app\n")

    return str(folder), install


CLI = """
import typer
from octavo_core.options import add_report_commands
app = typer.Typer()
add_report_commands(app, {package!r})
"""
CALLS = """
import contextlib, io, json, sys
from octavo_core.cli import main
results = []
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(line.split())
    results.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""
DEMO = """
from octavo_core.report import Report
def run(*, quick, seed, device, progress):
    report = Report({slug!r}, "demo", seed=seed)
    report.add("answer", "the answer", {value}, target="value == 42")
    return report
"""


def words_id(value: list[str] | str) -> str:
    """Name of a parametrised case: the words of its command line."""
    return " ".join(value) if isinstance(value, list) else value


def one_line(stderr: str) -> str:
    """The single line on standard error, which is an error message and no traceback."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("words", [["--help"], ["list"], ["--version"]], ids=words_id)
def test_host_answers_without_torch(words: list[str], workspace_python: Python, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from octavo_core.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "heavy = {'torch', 'scipy', 'matplotlib', 'sklearn', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else status)\n"
    )
    done = workspace_python("-c", script, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("word", ["--help", "list"])
def test_host_answers_at_once(word: str, workspace_python: Python, tmp_path: Path) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = workspace_python.octavo(word, cwd=tmp_path)
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    print(f"octavo {word}: best of 3 {min(seconds):.2f} s")
    assert min(seconds) < ANSWER_SECONDS


def test_list_shows_every_method(methods: list[Member], workspace_python: Python, tmp_path: Path) -> None:
    done = workspace_python.octavo("list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        {
            "slug": method.slug,
            "version": method.project["version"],
            "paper": method.project["urls"]["Paper"],
            "summary": method.project["description"],
        }
        for method in methods
    ]
    table = workspace_python.octavo("list", cwd=tmp_path).stdout
    usage = workspace_python.octavo("--help", cwd=tmp_path).stdout
    assert all(method.slug in table and method.slug in usage for method in methods)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nonsense"], "nonsense"),
        (["nonsense", "demo"], "pip install octavo-nonsense"),
        (["demo", "nonsense"], "pip install octavo-nonsense"),
        (["bench", "nonsense"], "installed methods"),
        (["list", "--nonsense"], "--nonsense"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--out", "file/below"], "file"),
        (["assets", "convert", "nonsense"], "nonsense"),
    ],
    ids=words_id,
)
def test_mistakes_at_the_host(words: list[str], named: str, workspace_python: Python, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a regular file, so that no folder can be made below it, not even by root")
    done = workspace_python.octavo(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert named in one_line(done.stderr)
    assert not done.stdout


def test_mistakes_at_a_method(method: Member, workspace_python: Python, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    mistakes = {
        "nonsense": "nonsense",
        "demo --nonsense": "--nonsense",
        "demo extra-word": "extra-word",
        "demo --quick --seed -1": "--seed",
        "demo --quick --device abacus": "abacus",
        "demo --quick --device cuda:99": "cuda:99",
        "demo --quick --out file/below": "file",
        "bench --quick --device abacus": "abacus",
    }
    # One process for all: most of the time of a call goes into importing what the method needs.
    done = workspace_python("-c", CALLS, *(f"{method.slug} {words}" for words in mistakes), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for (words, named), (status, stdout, stderr) in zip(mistakes.items(), json.loads(done.stdout), strict=True):
        assert status == 2, words
        assert named in one_line(stderr)
        assert not stdout, words


@pytest.mark.parametrize("words", [["--debug", "demo", "nonsense"], ["demo", "nonsense", "--debug"]], ids=words_id)
def test_debug_shows_the_traceback(words: list[str], workspace_python: Python, tmp_path: Path) -> None:
    done = workspace_python.octavo(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_broken_plugin_is_reported_and_the_rest_works(
    plugins: tuple[str, Install], methods: list[Member], workspace_python: Python, tmp_path: Path
) -> None:
    path, install = plugins
    install("broken", cli="raise RuntimeError('libfoo.so.7 is missing')")

    def octavo(*words: str) -> tuple[int, str, str]:
        done = workspace_python.octavo(*words, cwd=tmp_path, PYTHONPATH=path)
        return done.returncode, done.stdout, done.stderr

    status, stdout, stderr = octavo("doctor", "--json")
    assert status == 1, stderr
    problems = {entry["slug"]: entry["problem"] for entry in json.loads(stdout)["methods"]}
    assert "libfoo.so.7 is missing" in problems.pop("broken")
    assert problems == dict.fromkeys(method.slug for method in methods)
    status, stdout, _ = octavo("doctor")
    assert status == 1
    assert "libfoo.so.7 is missing" in stdout

    for words in (["broken"], ["broken", "demo"], ["demo", "broken"]):
        status, stdout, stderr = octavo(*words)
        assert status == 2
        assert "libfoo.so.7 is missing" in one_line(stderr)
        assert not stdout

    for words in (["list"], ["--help"]):
        status, stdout, stderr = octavo(*words)
        assert status == 0, stderr
        assert all(slug in stdout for slug in ["broken", *(method.slug for method in methods)])
    for method in methods:
        status, stdout, stderr = octavo(method.slug, "--help")
        assert status == 0, stderr
        assert "demo" in stdout


def test_tour_goes_on_past_a_broken_plugin(
    plugins: tuple[str, Install],
    installed_alone: Callable[[Member], Python],
    members: list[Member],
    tmp_path: Path,
) -> None:
    path, install = plugins
    core_alone = installed_alone(members[0])
    install("broken", cli="import module_that_is_not_there")
    install("right", cli=CLI.format(package="octavo_right"), demo=DEMO.format(slug="right", value=42))
    done = core_alone.octavo("demo", "--out", "tour", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 1
    assert "module_that_is_not_there" in one_line(done.stderr)
    assert "the answer: 42" in done.stdout
    assert [file.name for file in (tmp_path / "tour").iterdir()] == ["right"]


@pytest.mark.parametrize(("value", "status"), [(42, 0), (41, 1)])
def test_exit_status_tells_whether_the_claims_hold(
    value: int,
    status: int,
    plugins: tuple[str, Install],
    installed_alone: Callable[[Member], Python],
    members: list[Member],
    tmp_path: Path,
) -> None:
    path, install = plugins
    core_alone = installed_alone(members[0])
    install("asked", cli=CLI.format(package="octavo_asked"), demo=DEMO.format(slug="asked", value=value))
    for words in (["asked", "demo", "--json"], ["demo", "--json"]):
        done = core_alone.octavo(*words, cwd=tmp_path, PYTHONPATH=path)
        assert done.returncode == status, done.stderr
        printed = json.loads(done.stdout)
        (report,) = printed if isinstance(printed, list) else [printed]
        assert report["rows"][0]["holds"] is (status == 0)
