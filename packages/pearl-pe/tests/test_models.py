"""Injection, the models, the transform, heterogeneous graphs and GraphGym."""

from __future__ import annotations

import pytest
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_pearl_pe.baselines import RWSE, SPE, LapPE, NoPE, RandomNodeInit, SignNet
from octavo_pearl_pe.datasets import csl, family_graph
from octavo_pearl_pe.encoder import BPEARL, PEARL
from octavo_pearl_pe.hetero import HeteroPEARL, to_homogeneous
from octavo_pearl_pe.inject import INJECTIONS, PEInjector
from octavo_pearl_pe.models import PEARLGIN, PEARLGPS
from octavo_pearl_pe.transform import PEARLTransform
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import Compose

GRAPHS = csl(n=11, skips=(2, 3), copies=2)


def pearl(**options) -> PEARL:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PEARL(6, **{"hidden": 8, "layers": 2, "num_samples": 8, "eval_samples": 8} | options)


@pytest.mark.parametrize("inject", INJECTIONS)
@pytest.mark.parametrize("model", [PEARLGIN, PEARLGPS])
def test_models_train_end_to_end(model, inject: str) -> None:
    network = model(pearl(), 3, hidden=16, layers=2, inject=inject)
    out = network(Batch.from_data_list(GRAPHS))
    assert out.shape == (4, 3)
    out.square().sum().backward()
    assert float(network.encoder.lift.weight.grad.abs().max()) > 0


@pytest.mark.parametrize("encoder", [NoPE(2), RWSE(4), LapPE(4), pearl(), BPEARL(4)])
def test_any_encoding_fits(encoder: torch.nn.Module) -> None:
    assert PEARLGIN(encoder, 2, hidden=8, layers=1, readout="node")(GRAPHS[0]).shape == (11, 2)


def test_the_scale_of_the_encoding_does_not_matter_and_one_node_has_no_statistics() -> None:
    data = GRAPHS[0].clone()
    scores = []
    for scale in (1.0, 1000.0):
        data.pearl_pe = scale * torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        scores.append(PEARLGIN(NoPE(6), 2, hidden=8, layers=1, inject="add").train()(data))
    assert torch.allclose(scores[0], scores[1], rtol=1e-3, atol=1e-4)
    single = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=1)
    assert PEARLGIN(pearl(variant="basis"), 2, hidden=8, layers=1).train()(single).isfinite().all()


def test_types_features_and_given_encodings() -> None:
    data = GRAPHS[0].clone()
    data.x, data.edge_attr = torch.arange(11) % 3, torch.ones(44, dtype=torch.long)
    typed = PEARLGIN(NoPE(6), 2, hidden=8, node_types=3, edge_types=2).eval()
    assert typed(data).shape == (1, 2)
    before = typed(data)
    data.pearl_pe = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(typed(data), before)
    del data.pearl_pe
    featured = PEARLGIN(NoPE(1), 2, hidden=8, node_features=4)
    with pytest.raises(InvalidValueError, match=r"made for \[11, 4\]"):
        featured(data)
    data.x = torch.randn(11, 4)
    assert featured(Data(x=data.x, edge_index=data.edge_index)).shape == (1, 2)
    with pytest.raises(InvalidValueError, match="from 0 to 1"):
        PEARLGIN(NoPE(6), 2, hidden=8, node_types=2)(GRAPHS[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: PEInjector(3, 4, "magic"),
        lambda: PEARLGIN(NoPE(), 1, readout="max"),
        lambda: PEARLGPS(NoPE(), 1, layers=0),
        lambda: PEARLGIN(NoPE(), 1)(Data(num_nodes=3)),
        lambda: PEARLGPS(NoPE(), 1, hidden=10, heads=4),
        lambda: PEARLGIN(NoPE(), 1, hidden=0),
        lambda: PEARLGIN(NoPE(), 1, node_types=2, node_features=3),
    ],
)
def test_bad_models_are_told(call) -> None:
    with pytest.raises(InvalidValueError, match="give"):
        call()


def test_transform_is_frozen_composes_and_names_its_weights() -> None:
    encoder = pearl()
    transform = PEARLTransform(encoder)
    data = Compose([transform])(GRAPHS[0].clone())
    assert torch.equal(data.pearl_pe, encoder.eval()(GRAPHS[0]))
    assert not data.pearl_pe.requires_grad
    before = repr(transform)
    with torch.no_grad():
        encoder.lift.weight.add_(1.0)
    assert repr(transform) == before
    assert repr(PEARLTransform(encoder)) != before
    appended = PEARLTransform(encoder, attr_name=None)
    assert appended(GRAPHS[0].clone()).x.shape == (11, 6)
    assert appended(Data(x=torch.ones(11), edge_index=GRAPHS[0].edge_index)).x.shape == (11, 7)


def database(users: int = 20, items: int = 15, reviews: int = 60, seed: int = 0) -> HeteroData:
    """Reviews, each of one user on one item."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, count in (("user", users), ("item", items), ("review", reviews)):
        data[name].x = torch.randn(count, 4, generator=generator)
        data[name].num_nodes = count
    row = torch.arange(reviews)
    data["review", "by", "user"].edge_index = torch.stack([row, torch.randint(users, (reviews,), generator=generator)])
    data["review", "of", "item"].edge_index = torch.stack([row, torch.randint(items, (reviews,), generator=generator)])
    return data


def test_heterogeneous_graphs_map_there_and_back() -> None:
    data = database()
    graph = to_homogeneous(data)
    edges, batch, nodes = graph.edge_index, graph.batch, graph.nodes
    assert graph.edge_weight is None
    assert len(batch) == 95
    assert sorted(torch.cat(list(nodes.values())).tolist()) == list(range(95))
    by = data["review", "by", "user"].edge_index
    stored = {tuple(pair) for pair in edges.T.tolist()}
    first = nodes["review"][by[0, 0]], nodes["user"][by[1, 0]]
    assert (int(first[0]), int(first[1])) in stored
    assert (int(first[1]), int(first[0])) in stored
    encoded = HeteroPEARL(pearl().eval(), {"user": 4, "item": 4})(data)
    assert {kind: tuple(pe.shape) for kind, pe in encoded.items()} == {
        "user": (20, 6),
        "item": (15, 6),
        "review": (60, 6),
    }


def test_heterogeneous_batches_equal_their_graphs_one_by_one() -> None:
    graphs = [database(seed=1), database(users=7, items=5, reviews=11, seed=2)]
    module = HeteroPEARL(pearl(variant="basis").eval(), {"user": 4})
    together = module(Batch.from_data_list(graphs))
    for kind, pe in together.items():
        assert torch.allclose(pe, torch.cat([module(graph)[kind] for graph in graphs]), atol=1e-5)


def test_heterogeneous_injection_trains_every_part() -> None:
    data = database()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = HeteroPEARL(pearl(chunk=3).train(), {"user": 4, "review": 4}, layers=2)
    first, second = module(data), module(data)
    assert not torch.equal(first["user"], second["user"])
    features = module.inject(data.x_dict, first)
    for layer in range(2):
        features = module.inject(features, first, layer)
    assert features["item"] is data["item"].x
    sum(x.square().sum() for x in features.values()).backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in module.injectors.parameters())
    assert all(p.grad is not None for p in module.encoder.parameters())


def test_sampled_subgraphs_of_a_loader() -> None:
    from torch_geometric.transforms import ToUndirected

    try:
        from torch_geometric.loader import NeighborLoader

        loader = NeighborLoader(ToUndirected()(database(200, 150, 700)), [5, 5], batch_size=8, input_nodes="user")
        sampled = next(iter(loader))
    except ImportError:
        pytest.skip("neighbour sampling needs pyg-lib or torch-sparse")
    encoded = HeteroPEARL(pearl().eval(), {})(sampled)
    assert all(len(pe) == sampled[kind].num_nodes for kind, pe in encoded.items())


def test_heterogeneous_graph_without_edges_is_told() -> None:
    data = HeteroData()
    data["user"].num_nodes = 3
    with pytest.raises(InvalidValueError, match="no edges"):
        HeteroPEARL(pearl(), {})(data)


@pytest.mark.slow
def test_graphgym_registration() -> None:
    from octavo_pearl_pe.graphgym import PEARLNodeEncoder
    from torch_geometric.graphgym import register

    assert register.node_encoder_dict["PEARL"] is PEARLNodeEncoder
    batch = Batch.from_data_list([Data(x=torch.zeros(9, 12), edge_index=family_graph("tree", 9))])
    assert PEARLNodeEncoder(12, {"dim_pe": 4, "num_samples": 5})(batch).x.abs().sum() > 0


def test_weights_of_edge_types_are_used_and_reverse_types_do_not_double() -> None:
    data = HeteroData()
    data["a.b"].num_nodes, data["a_b"].num_nodes = 2, 3
    data["a.b", "to", "a_b"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    data["a.b", "to", "a_b"].edge_weight = torch.tensor([1.0, 2.0, 3.0])
    data["a_b", "back", "a.b"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    data["a_b", "back", "a.b"].edge_weight = torch.tensor([1.0, 2.0, 3.0])
    graph = to_homogeneous(data)
    assert graph.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [2, 3, 4, 0, 1, 1]]
    assert graph.edge_weight.tolist() == [1, 2, 3, 1, 2, 3]
    module = HeteroPEARL(pearl(variant="basis").eval(), {"a.b": 4, "a_b": 5})
    expected = module.encoder(graph.edge_index, graph.batch, graph.edge_weight)
    assert torch.equal(module(data)["a_b"], expected[2:])
    assert len(module.injectors) == 2
    data["a_b", "back", "a.b"].edge_weight = torch.ones(2)
    with pytest.raises(InvalidValueError, match="one weight for each edge"):
        module(data)
    with pytest.raises(InvalidTypeError, match="give a HeteroData"):
        module(GRAPHS[0])


def test_edges_with_features_are_embedded_and_odd_types_refused() -> None:
    data = Data(edge_index=GRAPHS[0].edge_index, edge_attr=torch.rand(44, 3))
    model = PEARLGIN(NoPE(), 2, hidden=8, layers=1, edge_features=3).eval()
    before = model(data)
    data.edge_attr = data.edge_attr + 1.0
    assert not torch.equal(model(data), before)
    with pytest.raises(InvalidValueError, match=r"made for \[44, 2\]"):
        PEARLGIN(NoPE(), 2, hidden=8, edge_features=2)(data)
    typed = PEARLGPS(NoPE(), 2, hidden=8, edge_types=3)
    for odd in (
        torch.full((44,), 99),
        torch.rand(44),
        torch.full((44,), -1),
        torch.zeros(44, 2, dtype=torch.long),
        None,
    ):
        with pytest.raises(InvalidValueError, match="one edge type"):
            typed(Data(edge_index=data.edge_index, edge_attr=odd, num_nodes=11))


@pytest.mark.parametrize(
    "make", [lambda: LapPE(4), lambda: RWSE(4), NoPE, lambda: RandomNodeInit(4), pearl, lambda: SignNet(4)]
)
@pytest.mark.parametrize("weight", [torch.float32, torch.float64])
def test_encodings_follow_the_dtype_of_the_model(make, weight: torch.dtype) -> None:
    data = GRAPHS[0].clone()
    data.edge_weight = torch.ones(44, dtype=weight)
    for dtype in (torch.float32, torch.float64):
        encoder = make().to(dtype).eval()
        assert encoder(data).dtype == dtype
        assert PEARLGIN(encoder, 1, hidden=8, layers=1).to(dtype)(data).dtype == dtype


def test_models_read_what_the_transform_writes() -> None:
    encoder = pearl().eval()
    model = PEARLGIN(pearl(), 2, hidden=8, layers=1).eval()
    stored = PEARLTransform(encoder)(GRAPHS[0].clone())
    stored.pearl_pe = stored.pearl_pe * torch.arange(6.0)
    assert not torch.equal(model(stored), model(GRAPHS[0]))
    stored.pearl_pe = torch.ones(11, 3)
    with pytest.raises(InvalidValueError, match="made for"):
        model(stored)


def test_transform_names_its_configuration_in_any_precision() -> None:
    names = {repr(PEARLTransform(pearl(**options))) for options in ({}, {"eval_seed": 1}, {"noise": "rademacher"})}
    assert len(names) == 3
    assert repr(PEARLTransform(pearl().bfloat16())) not in names
    with pytest.raises(InvalidTypeError, match="give a PEARL"):
        PEARLTransform(NoPE())


def test_nodes_in_any_order_are_encoded_in_it() -> None:
    whole = Batch.from_data_list([GRAPHS[0], GRAPHS[2]])
    order = torch.randperm(22, generator=torch.Generator().manual_seed(0))
    shuffled = Data(edge_index=order.argsort()[whole.edge_index], batch=whole.batch[order], num_nodes=22)
    for encoder in (BPEARL(4).eval(), RWSE(4), SPE(4)):
        assert torch.allclose(encoder(shuffled), encoder(whole)[order], atol=1e-4), type(encoder)
    q = torch.randn(22, 5, generator=torch.Generator().manual_seed(1))
    model = pearl().eval()
    assert torch.allclose(model(shuffled, q=q[order]), model(whole, q=q)[order], atol=1e-5)
    with pytest.raises(InvalidValueError, match="order of their graphs"):
        PEARLGPS(NoPE(), 2, hidden=8)(shuffled)
