from __future__ import annotations

import networkx as nx
import pytest
import torch
from octavo_core.errors import InvalidValueError
from octavo_pearl_pe.baselines import PEG, RWSE, SPE, BasisNet, LapPE, NoPE, RandomNodeInit, SignNet
from octavo_pearl_pe.baselines import eigenvectors as module
from octavo_pearl_pe.baselines.eigenvectors import spectrum
from octavo_pearl_pe.datasets import family_graph
from octavo_pearl_pe.encoder import BPEARL
from octavo_pearl_pe.graph import read_data, read_graph
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import from_networkx

GRAPHS = [from_networkx(nx.gnp_random_graph(n, 0.4, seed=n)) for n in (5, 8, 8, 12)]
BATCH = Batch.from_data_list(GRAPHS)


@pytest.mark.parametrize("data", GRAPHS)
def test_random_walk_encoding_equals_pyg(data: Data) -> None:
    expected = AddRandomWalkPE(16)(data.clone()).random_walk_pe
    assert torch.allclose(RWSE(16)(data), expected, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [NoPE, lambda: RandomNodeInit(4), lambda: RWSE(6), lambda: PEG(4), lambda: LapPE(5, with_values=True),
     lambda: SignNet(4), lambda: SignNet(4, count=None), lambda: SignNet(4, largest=True), lambda: BasisNet(4),
     lambda: SPE(4)],
)  # fmt: skip
def test_batches_and_widths(make) -> None:
    torch.manual_seed(0)
    encoder = make().eval()
    pe = encoder(BATCH)
    assert pe.shape == (BATCH.num_nodes, encoder.out_channels)
    assert torch.allclose(pe, torch.cat([encoder(data) for data in GRAPHS]), atol=1e-5)


@pytest.mark.parametrize("largest", [False, True])
def test_eigenpairs(largest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_graph(family_graph("er", 60, seed=2), num_nodes=60, dtype=torch.float64)
    dense = graph.shift.matrix.to_dense()
    values = torch.linalg.eigvalsh(dense)
    expected = values[-4:] if largest else values[1:5]
    for limit in (400, 10):
        monkeypatch.setattr(module, "_DENSE_NODES", limit)
        found = spectrum(graph, 4, largest=largest, skip=0 if largest else 1)
        assert torch.allclose(found.values[0], expected, atol=1e-8)
        assert torch.allclose(dense @ found.vectors, found.vectors * found.values[0], atol=1e-7)


def test_small_graphs_are_padded() -> None:
    pe = LapPE(8)(GRAPHS[0])
    assert pe.shape == (5, 8)
    assert float(pe[:, 4:].abs().max()) == 0
    with pytest.raises(InvalidValueError, match="count >= 1"):
        spectrum(read_data(GRAPHS[0]), 0)


def test_signs_are_random_in_training_only() -> None:
    encoder = LapPE(4)
    assert len({tuple(encoder(GRAPHS[3]).flatten().tolist()) for _ in range(12)}) > 3
    encoder.eval()
    assert torch.equal(encoder(GRAPHS[3]), encoder(GRAPHS[3]))


def rotated(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Replace eigenvectors by others that are as good."""
    original = torch.linalg.eigh

    def eigh(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = original(matrix)
        return values, change(vectors)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)


def flip(vectors: torch.Tensor) -> torch.Tensor:
    return vectors * torch.where(torch.arange(vectors.shape[-1]) % 2 == 0, -1.0, 1.0).double()


def turn(vectors: torch.Tensor) -> torch.Tensor:
    """Rotate the first eigenspace of a cycle, which is that of vectors 1 and 2."""
    first, second = vectors[..., 1].clone(), vectors[..., 2].clone()
    vectors = vectors.clone()
    vectors[..., 1], vectors[..., 2] = 0.6 * first + 0.8 * second, -0.8 * first + 0.6 * second
    return vectors


def test_invariances(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    encoders = {"signnet": SignNet(4), "basisnet": BasisNet(4), "spe": SPE(4), "peg": PEG(4, count=2)}
    encoders["lappe"] = LapPE(4)
    cycle = from_networkx(nx.cycle_graph(9))
    before = {name: (e.eval()(GRAPHS[3]), e(cycle)) for name, e in encoders.items()}
    invariant = {}
    for kind, change in (("sign", flip), ("rotation", turn)):
        with monkeypatch.context() as patch:
            rotated(patch, change)
            data = GRAPHS[3] if kind == "sign" else cycle
            index = 0 if kind == "sign" else 1
            invariant[kind] = {n for n, e in encoders.items() if torch.allclose(e(data), before[n][index], atol=1e-5)}
    assert invariant["sign"] == {"signnet", "basisnet", "spe", "peg"}
    assert invariant["rotation"] == {"basisnet", "spe", "peg"}


@pytest.mark.parametrize("taps", [1, 3, 5])
def test_spe_with_powers_of_the_eigenvalues_is_the_basis_variant(taps: int) -> None:
    torch.manual_seed(0)
    pearl = BPEARL(6, filter_taps=taps, hidden=8, layers=2).double().eval()
    powers = torch.arange(taps, dtype=torch.float64)
    spe = SPE(6, filters=taps, hidden=8, layers=2, phi=lambda values: values[..., None] ** powers).double().eval()
    with torch.no_grad():
        spe.lift.weight.copy_(pearl.lift.weight[:, 0].T)
        spe.lift.bias.copy_(pearl.lift.bias)
        # The first stage of the encoder also has a norm.
        act = spe.act
        spe.act = lambda x: act(pearl.lift_norm(x, None))
    spe.body.load_state_dict(pearl.body.state_dict())
    assert torch.allclose(spe(BATCH), pearl(BATCH), atol=1e-8)


def test_bad_baselines_are_told() -> None:
    with pytest.raises(InvalidValueError, match="steps=0"):
        RWSE(0)
    for make in (
        lambda: LapPE(0),
        lambda: NoPE(0),
        lambda: RandomNodeInit(-1),
        lambda: SignNet(0),
        lambda: PEG(4, count=0),
    ):
        with pytest.raises(InvalidValueError, match="out of range"):
            make()
    with pytest.raises(InvalidValueError, match="filters=0"):
        SPE(4, filters=0)
    with pytest.raises(InvalidValueError, match="layers=0"):
        PEG(3, layers=0)
    with pytest.raises(InvalidValueError, match="limit is 3"):
        SPE(3, max_nodes=3)(GRAPHS[1])
