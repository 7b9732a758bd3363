from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent


def test_own_machine(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "examples" / "own_machine.py"))
    assert "0011     accepted" in capsys.readouterr().out


def test_transformers_generate(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    runpy.run_path(str(FOLDER / "examples" / "transformers_generate.py"))
    assert capsys.readouterr().out.splitlines()[0].endswith(":0$")


@pytest.mark.slow
def test_long_benchmark() -> None:
    report = runpy.run_path(str(FOLDER / "benchmarks" / "bench_lengths.py"))["run"](quick=True)
    assert {row.id for row in report.rows} == {"exact_n1000", "exact_n10000", "deficit64_n1000", "deficit64_n2000"}
