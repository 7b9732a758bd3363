from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from octavo_core.cli import main
from octavo_pearl_pe.encoder import PEARL
from torch_geometric.data import Data


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
        (["stability", "--variant", "auto"], "random or basis"),
        (["stability", "--data", "{graph}"], "a file of one"),
        (["stability", "--format", "edges"], "--data"),
        (["scaling", "--n", "10", "--peers", "eigsh16"], "too few"),
        (["scaling", "--n", "60000", "--peers", "eigh"], "GiB"),
        (["scaling", "--resume"], "--out"),
        (["expressivity", "--resume"], "--out"),
        (["encode", "{graph}", "-o", "x.npz", "--encoder", "e.safetensors", "--dim", "4"], "--dim beside --encoder"),
        (["encode", "{graph}", "-o", "x.npz", "--taps", "100000000"], "filter_taps"),
        (["encode", "{graph}", "-o", "x.npz", "--samples", "1000000000000"], "num_samples"),
        (["encode", "{graph}", "-o", "x.npz", "--smiles-col", "s"], "only a CSV"),
        (["train", "--data", "csl", "--count", "9", "--root", "r"], "--count, --root does not apply"),
        (["train", "--data", "csl", "--target", "y"], "--target"),
        (["train", "--data", "csl", "--make-undirected"], "--make-undirected"),
        (["train", "--data", "csl", "--lr", "nan"], "lr=nan"),
        (["train", "--data", "csl", "--hidden", "-1"], "hidden=-1"),
        (["train", "--data", "csl", "--hidden", "0"], "hidden=0"),
        (["train", "--data", "csl", "--dim", "0", "--pe", "peg"], "out_channels=0"),
        (["train", "--data", "csl", "--model", "gps", "--hidden", "30"], "multiple of heads"),
        (["train", "--data", "cycles", "--count", "0"], "num_graphs=0"),
        (["train", "--data", "MUTAG"], "--root"),
        (["report", "none"], "none"),
        (["report", ".", "-o", "x.txt"], ".md or .json"),
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


def test_a_used_folder_and_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "--data", "cycles", "--count", 20, "--epochs", 1, "--hidden", 8, "--layers", 1, "--out", tmp_path)
    assert run(*words, "--samples", 4, "-q") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for more, named in (
        (("--samples", 8), "--resume"),
        (("--samples", 8, "--resume"), "--samples=4, now 8"),
        (("--samples", 4, "--inject", "add", "--resume"), "--inject"),
        (("--samples", 4, "--pe", "none", "--resume"), "--pe"),
        (("--samples", 4, "--count", 30, "--resume"), "--count"),
    ):
        assert run(*words, *more, "-q") == 2
        assert named in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"y": 1}, "y of graph 0 is int"),
        ({"y": torch.tensor([-1])}, "negative class"),
        ({"y": torch.tensor([torch.nan])}, "NaN"),
        ({"y": torch.tensor([0, 1])}, "2 values"),
        ({"y": torch.tensor([0]), "x": torch.full((5,), -1)}, "negative types"),
        ({"y": torch.tensor([0]), "edge_attr": torch.full((10,), -1)}, "negative types"),
    ],
)
def test_odd_targets_and_features_are_told(
    fields: dict, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save([cycle(**fields) for _ in range(10)], tmp_path / "g.pt")
    assert run("train", "--data", tmp_path / "g.pt", "--epochs", 1, "-q") == 2
    assert named in capsys.readouterr().err


def test_mixed_targets_and_widths_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero = torch.tensor([0])
    for first, second, named in (
        ({"y": zero}, {"y": torch.tensor([0.5])}, "give one type"),
        ({"y": zero, "x": torch.ones(5, 2)}, {"y": zero, "x": torch.ones(5, 3)}, "one type and width"),
        ({"y": zero, "x": torch.ones(5, 2)}, {"y": zero}, "a tensor, or none"),
    ):
        torch.save([cycle(**first)] * 5 + [cycle(**second)] * 5, tmp_path / "g.pt")
        assert run("train", "--data", tmp_path / "g.pt", "--epochs", 1, "-q") == 2
        assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "fields",
    [
        {"y": torch.tensor([0, 1, 0, 1, 1])},
        {"y": torch.ones(5)},
        {"y": torch.tensor([1.5]), "x": torch.ones(5), "edge_attr": torch.rand(10, 3)},
        {"y": torch.tensor([[1.5, 2.5]]), "x": torch.ones(5, 2), "edge_attr": torch.ones(10, 2, dtype=torch.long)},
    ],
)
def test_features_and_targets_of_every_kind_train(
    fields: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save([cycle(**fields) for _ in range(10)], tmp_path / "g.pt")
    assert run("train", "--data", tmp_path / "g.pt", "--epochs", 1, "--hidden", 8, "--samples", 4, "-q") == 0


def cycle(**fields) -> Data:
    edges = torch.tensor(list(nx.cycle_graph(5).edges)).T
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=5, **fields)


def test_threads_print_what_their_density_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "--data", "threads", "--count", 12, "--epochs", 1, "--hidden", 8, "--samples", 2, "--layers", 1)
    assert run(*words, "--json") == 0
    assert 0.3 <= json.loads(capsys.readouterr().out)["mean_degree_accuracy"] <= 0.7


def test_columns_and_marks_of_spreadsheets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    (tmp_path / "m.csv").write_text("\ufeffSMI,y\nCCO,1\nCC,2\n")
    assert run("encode", tmp_path / "m.csv", "--smiles-col", "SMI", "-o", tmp_path / "x.npz", "--json") == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 5
    (tmp_path / "b.smi").write_text("CCO\nnotasmiles\n")
    assert run("encode", tmp_path / "b.smi", "-o", tmp_path / "y.npz") == 2
    assert capsys.readouterr().err.splitlines() == ["error: molecule 1 is not valid SMILES: 'notasmiles'"]


def test_warnings_are_a_line_without_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.txt").write_text("0 0\n0 1\n")
    assert run("encode", tmp_path / "loop.txt", "-o", tmp_path / "x.npz") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "self-loops" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: 1 self-loops were removed")


def test_a_trained_encoder_takes_directed_graphs_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = PEARL(4).save(tmp_path / "e.safetensors")
    np.savez(tmp_path / "d.npz", edge_index=np.array([[0, 1], [1, 2]]))
    words = ("encode", tmp_path / "d.npz", "-o", tmp_path / "x.npz", "--encoder", encoder)
    assert run(*words) == 2
    assert "--make-undirected" in capsys.readouterr().err
    assert run(*words, "--make-undirected", "-q") == 0


def test_stability_needs_no_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a))
    assert run("stability", "--out", tmp_path) == 0
    captured = capsys.readouterr()
    assert "eps 1e-01" in captured.out
    assert "octavo-pearl-pe[plot]" in captured.err
    assert (tmp_path / "stability.json").is_file()
    assert not (tmp_path / "stability.png").exists()


def test_rows_are_kept_and_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo_pearl_pe import expressivity, scaling

    assert run("scaling", "--n", 50, "--out", tmp_path, "-q") == 0
    assert run("expressivity", "--encodings", "none", "--atlas-nodes", 4, "--out", tmp_path, "-q") == 0
    times = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert run("scaling", "--n", "50,60", "--out", tmp_path, "--resume", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[:1] == times
    assert [row["n"] for row in rows] == [50, 60]
    for module, name in ((expressivity, "expressivity"), (scaling, "time_peers")):
        monkeypatch.setattr(module, name, lambda *a, **k: pytest.fail("measured again"))
    assert run("scaling", "--n", "60", "--out", tmp_path, "--resume", "-q") == 0
    words = ("expressivity", "--encodings", "none", "--atlas-nodes", 4, "--out", tmp_path, "--resume")
    assert run(*words) == 0
    assert "CSL 1/10" in capsys.readouterr().out
    assert run(*words, "--seed", 1) == 2
    capsys.readouterr()
    assert run("report", tmp_path) == 0
    assert "time of pearl, tree, n = 60" in capsys.readouterr().out
    assert run("report", tmp_path, "-o", tmp_path / "all.json") == 0
    assert len(json.loads((tmp_path / "all.json").read_text())) == 7
