"""Rows on disk and the table of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from octavo_pearl_pe.results import RowFile, collect_results, markdown_table


def test_rows_are_written_as_they_come_and_kept(tmp_path: Path) -> None:
    first = RowFile(tmp_path, "scaling", {"seed": 0}, ("n",))
    first.add({"n": 10, "pearl": 0.1})
    assert json.loads((tmp_path / "scaling.json").read_text())["rows"] == [{"n": 10, "pearl": 0.1}]
    again = RowFile(tmp_path, "scaling", {"seed": 0}, ("n",), resume=True)
    assert again.has(10)
    assert not again.has(20)
    again.add({"n": 20, "pearl": 0.2})
    assert [row["n"] for row in again.chosen([(20,), (10,)])] == [20, 10]
    with pytest.raises(InvalidStateError, match="use the same"):
        RowFile(tmp_path, "scaling", {"seed": 1}, ("n",), resume=True)
    assert not RowFile(tmp_path, "scaling", {"seed": 1}, ("n",)).has(10)
    (tmp_path / "scaling.json").write_text("[]")
    with pytest.raises(InvalidValueError, match="holds no rows"):
        RowFile(tmp_path, "scaling", {"seed": 0}, ("n",), resume=True)


def test_results_of_all_kinds_join(tmp_path: Path) -> None:
    kept = RowFile(tmp_path / "a", "scaling", {"peers": ["pearl", "eigsh16"]}, ("family", "n"))
    kept.add({"family": "tree", "n": 1000, "pearl": 0.25, "eigsh16": None})
    point = {"eps": 0.1, "change": 0.01, "eigenvector_change": 0.4}
    (tmp_path / "stability.json").write_text(json.dumps([point]))
    (tmp_path / "other.json").write_text("not of ours")
    row = {"label": "accuracy | folds", "value": True, "unit": "", "target": "value >= 1", "holds": False}
    (tmp_path / "report.json").write_text(json.dumps({"rows": [row]}))
    rows = collect_results(tmp_path)
    assert [r["file"] for r in rows] == ["a/scaling.json"] * 2 + ["report.json"] + ["stability.json"] * 2
    assert [r["value"] for r in rows] == [0.25, None, True, 0.01, 0.4]
    lines = markdown_table(rows).splitlines()
    assert len(lines) == 7
    assert lines[3].endswith("| n/a | did not converge |")
    assert lines[4] == "| report.json | accuracy \\| folds | yes | target value >= 1: DOES NOT HOLD |"


def test_bad_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no folder"):
        collect_results(tmp_path / "none")
    with pytest.raises(MissingFileError, match="no results"):
        collect_results(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InvalidValueError, match="of this version"):
        collect_results(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(InvalidValueError, match="not JSON"):
        collect_results(tmp_path)
