from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_core.checkpoint import load_checkpoint

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (Path(__file__).parents[1] / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return lambda example: exec(example, {"__name__": "__main__"})  # noqa: S102 - our own README


def test_the_report_example_saves_a_report(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(EXAMPLES[0])
    (row,) = json.loads((tmp_path / "out" / "report.json").read_text())["rows"]
    assert row["ratio"] > 1
    assert "[target ratio >= 2]" in capsys.readouterr().out


def test_the_training_example_resumes_where_it_was(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = tmp_path / "run" / "step-100.safetensors"
    run(EXAMPLES[1])
    straight = load_checkpoint(last)["model"]
    last.unlink()
    run(EXAMPLES[1])
    resumed = load_checkpoint(last)["model"]
    assert capsys.readouterr().out == "saved [75, 100]\n" * 2
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


def test_the_comparison_example_prints_its_outcome(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    run(EXAMPLES[2])
    assert re.fullmatch(
        r"\d of 8 splits, sign test p = \d\.\d{3}, difference -?\d\.\d{3} to -?\d\.\d{3}\n", capsys.readouterr().out
    )
