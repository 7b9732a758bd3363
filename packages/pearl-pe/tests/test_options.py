"""Options of the encoder that meet: recomputation, batch norm, antithetic pairs, modules and functions of the user."""

from __future__ import annotations

import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.graph import read_graph
from octavo_pearl_pe.hetero import to_homogeneous
from octavo_pearl_pe.norms import SampleBatchNorm
from octavo_pearl_pe.sparse import apply_operator
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import to_undirected

TRIANGLE = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])


class Dropping(nn.Module):
    """A network of the user that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(32, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor, context: object) -> Tensor:
        return self.linear(self.dropout(x))


def test_recomputing_repeats_the_dropout_of_a_users_network() -> None:
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        encoder = PEARL(4, gnn=Dropping(), num_samples=6, checkpoint=recompute, chunk=2).train()
        torch.manual_seed(1)
        encoder(TRIANGLE, q=torch.randn(3, 6)).square().sum().backward()
        gradients.append(encoder.body.linear.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-5)


def test_recomputing_counts_a_batch_once_in_the_running_statistics() -> None:
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        encoder = PEARL(4, norm="batch", num_samples=6, checkpoint=recompute).train()
        encoder(TRIANGLE, q=torch.randn(3, 6, generator=torch.Generator().manual_seed(0))).sum().backward(
            retain_graph=recompute
        )
        assert all(norm.track_running_stats for norm in encoder.modules() if isinstance(norm, SampleBatchNorm))
        found.append({name: value for name, value in encoder.named_buffers() if "running" in name or "num_b" in name})
    assert all(torch.allclose(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("sizes", [[3], [3, 40]])
def test_standard_errors_of_antithetic_pairs_beside_basis_inputs(sizes: list[int]) -> None:
    graphs = [Data(edge_index=to_undirected(torch.tensor([range(n - 1), range(1, n)])), num_nodes=n) for n in sizes]
    batch = Batch.from_data_list(graphs)
    encoder = PEARL(4, variant="auto", antithetic=True, num_samples=32, eval_samples=32).eval()
    error = encoder.standard_error(batch)
    assert bool((error[:3] == 0).all())
    assert bool((error[3:].mean(0) > 0).all()) or sizes == [3]
    plain = PEARL(4, antithetic=True, num_samples=32).eval()
    with pytest.raises(InvalidValueError, match="even number"):
        plain.standard_error(graphs[0], q=torch.randn(3, 7))


def test_weights_that_rounding_tells_apart_have_exact_gradients() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    weights = torch.tensor([1.0, 1.0 + 9e-6, 1.0, 1.0], dtype=torch.float64)
    shift = read_graph(edges, weights, kind="adj").shift
    signal = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(apply_operator(shift, signal).sum(), signal)
    assert torch.allclose(gradient[:, 0], shift.matrix.to_dense().sum(0), rtol=1e-14)


@pytest.mark.parametrize("pooled", [torch.ones(64, 4), torch.ones(3), 3])
def test_what_a_pooling_of_the_user_returns_is_checked(pooled: object) -> None:
    with pytest.raises(InvalidValueError, match="one row for 3 nodes"):
        PEARL(4, pooling=lambda outputs, mask: pooled, num_samples=2)(TRIANGLE)
    with pytest.raises(InvalidStateError, match="NaN"):
        PEARL(4, pooling=lambda outputs, mask: torch.full((3, 4), torch.nan), num_samples=2)(TRIANGLE)


def test_a_network_of_another_width_is_told() -> None:
    with pytest.raises(InvalidValueError, match="3 channels, but out_channels=4"):
        PEARL(4, gnn=Width(3), num_samples=2)(TRIANGLE)


class Width(nn.Module):
    """The first channels of the first stage."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, context: object) -> Tensor:
        return x[..., : self.width]


def two_types(edges: object) -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 3, 2
    data["a", "to", "b"].edge_index = edges
    return data


@pytest.mark.parametrize(
    ("edges", "error", "message"),
    [
        (torch.tensor([[0, 3], [0, 1]]), InvalidValueError, "source nodes from 0 to 3, but there are 3"),
        (torch.tensor([[0, 1], [0, 2]]), InvalidValueError, "target nodes from 0 to 2, but there are 2"),
        (torch.tensor([[0, -1], [0, 1]]), InvalidValueError, "from -1"),
        (torch.tensor([[0.0], [0.0]]), InvalidTypeError, "float32"),
        (torch.tensor([[0], [0]], dtype=torch.int32), InvalidTypeError, "int64"),
        (torch.tensor([0, 1]), InvalidValueError, "shape"),
    ],
)
def test_edges_beyond_their_node_types_are_refused(edges: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        to_homogeneous(two_types(edges))


def test_weights_of_another_kind_are_refused() -> None:
    data = two_types(torch.tensor([[0, 1], [0, 1]]))
    data["a", "to", "b"].edge_weight = [5.0, 1.0]
    with pytest.raises(InvalidTypeError, match="give a tensor of 2 weights"):
        to_homogeneous(data)
