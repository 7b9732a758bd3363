from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from octavo_core.cli import main
from octavo_pearl_pe.encoder import PEARL


def run(*words: object) -> int:
    return main(["pearl-pe", *map(str, words)])


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    nx.write_graph6(nx.petersen_graph(), tmp_path / "g.g6", header=False)
    with (tmp_path / "g.g6").open("ab") as file:
        file.write(nx.to_graph6_bytes(nx.path_graph(5), header=False))
    return tmp_path / "g.g6"


def test_encode(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.npz", "b.npz"):
        assert run("encode", graph, "-o", tmp_path / name, "--dim", 5, "--seed", 3, "--json") == 0
        assert json.loads(capsys.readouterr().out)["nodes"] == 15
    first, second = (np.load(tmp_path / name) for name in ("a.npz", "b.npz"))
    assert first["pe"].shape == (15, 5)
    assert first["ptr"].tolist() == [0, 10, 15]
    assert np.array_equal(first["pe"], second["pe"])


def test_train_saves_what_encode_reads_and_resumes(
    tmp_path: Path, graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "--data", "cycles", "--count", 20, "--epochs", 2, "--hidden", 8, "--layers", 1, "--samples", 4)
    assert run(*words, "--out", tmp_path / "run", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metric"] == "R^2"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["result"] == result
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 2
    assert run(*words, "--out", tmp_path / "run", "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == result
    encoder = tmp_path / "run" / "encoder.safetensors"
    assert PEARL.load(encoder).out_channels == 16
    assert run("encode", graph, "-o", tmp_path / "pe.npz", "--encoder", encoder, "-q") == 0
    assert np.load(tmp_path / "pe.npz")["pe"].shape == (15, 16)


def test_expressivity_stability_and_scaling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run("expressivity", "--encodings", "none,rwse,b-pearl", "--atlas-nodes", 5, "--out", out, "--json") == 0
    rows = {row["encoding"]: row for row in json.loads(capsys.readouterr().out)}
    assert [rows[name]["csl_classes"] for name in ("none", "rwse", "b-pearl")] == [1, 10, 10]
    assert rows["b-pearl"]["srg"] is False
    assert all(rows["b-pearl"]["wl_pairs"].values())
    assert run("stability", "--variant", "basis", "--constrain", "--json") == 0
    points = json.loads(capsys.readouterr().out)
    assert all(p["absolute_change"] <= p["bound"] for p in points)
    assert run("scaling", "--n", "50,1e2", "--family", "tree,er", "--peers", "pearl,eigh", "--json") == 0
    assert [row["n"] for row in json.loads(capsys.readouterr().out)] == [50, 100, 50, 100]
    assert run("scaling", "--n", "50", "--out", out) == 0
    assert json.loads((out / "scaling.json").read_text())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["encode", "none.txt", "-o", "x.npz"], "none.txt"),
        (["encode", "none.txt", "-o", "x.csv"], ".npz"),
        (["encode", "{graph}", "-o", "x.npz", "--variant", "magic"], "magic"),
        (["encode", "{graph}", "-o", "x.npz", "--encoder", "none.safetensors"], "none.safetensors"),
        (["train", "--data", "none"], "none"),
        (["train", "--data", "csl", "--pe", "magic"], "magic"),
        (["train", "--data", "csl", "--model", "magic"], "magic"),
        (["train", "--data", "csl", "--resume"], "--out"),
        (["train", "--data", "{graph}"], "no target"),
        (["expressivity", "--encodings", "magic"], "magic"),
        (["scaling", "--n", "many"], "many"),
        (["scaling", "--n", "1"], "out of range"),
        (["scaling", "--family", "cube"], "cube"),
        (["stability", "--data", "none.txt"], "none.txt"),
    ],
)
def test_mistakes_end_with_status_2_and_one_line(
    words: list[str], named: str, graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(*(word.format(graph=graph) for word in words)) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert named in lines[0]
    assert not (tmp_path / "x.npz").exists()
