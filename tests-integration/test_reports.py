"""The report that a demo prints is what other programs read: it keeps to the published schema."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from octavo_core.report import Report

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Member, Python


@pytest.fixture(scope="module")
def schema(root: Path) -> jsonschema.Draft202012Validator:
    document = json.loads((root / "tests-integration" / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def sample(**fields: Any) -> dict[str, Any]:
    report = Report("config-grad", "demo", command=["octavo", "config-grad", "demo"])
    report.add("time", "time of a step", 1.5, "ms", peer="peer 1.0", peer_value=3.0, target="ratio >= 1.5", **fields)
    report.add("check", "a check", True)
    report.attach("figure.png", b"\x89PNG")
    return json.loads(json.dumps(report.to_json()))


def test_quick_demo_prints_a_valid_report(
    method: Member, schema: jsonschema.Draft202012Validator, workspace_python: Python, tmp_path: Path
) -> None:
    done = workspace_python.octavo(method.slug, "demo", "--quick", "--json", cwd=tmp_path, timeout=300)
    assert done.returncode in {0, 1}, done.stderr
    report = json.loads(done.stdout)
    schema.validate(report)
    assert report["method"] == method.slug
    assert report["version"] == method.project["version"]
    assert report["kind"] == "demo"
    assert report["environment"]["packages"][method.distribution] == method.project["version"]
    assert datetime.fromisoformat(report["started"]).tzinfo is not None
    ids = [row["id"] for row in report["rows"]]
    assert len(set(ids)) == len(ids)
    assert any(row["target"] for row in report["rows"]), "a demo checks at least one claim"
    assert done.returncode == int(any(row["holds"] is False for row in report["rows"]))
    assert not list(tmp_path.iterdir()), "a demo without --out writes nothing where it runs"


def test_schema_accepts_what_core_writes(schema: jsonschema.Draft202012Validator) -> None:
    schema.validate(sample(spread=(1.4, 1.6), note="median of 5"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "octavo-report/2"),
        (("method",), "config_grad"),
        (("command",), ["python", "x.py"]),
        (("rows",), []),
        (("rows", 0, "id"), "Time of a step"),
        (("rows", 0, "holds"), None),
        (("rows", 1, "holds"), True),
        (("rows", 1, "ratio"), 2.0),
        (("rows", 0, "peer"), None),
        (("rows", 0, "value"), "fast"),
        (("rows", 0, "colour"), "red"),
        (("artifacts",), ["../figure.png"]),
        (("started",), "yesterday"),
    ],
)
def test_schema_refuses_a_damaged_report(
    path: tuple[str | int, ...], value: Any, schema: jsonschema.Draft202012Validator
) -> None:
    document: Any = sample()
    schema.validate(document)
    target = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    assert not schema.is_valid(document)
