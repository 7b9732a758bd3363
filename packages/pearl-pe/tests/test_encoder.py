from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_pearl_pe.config import PEARLConfig
from octavo_pearl_pe.datasets import family_graph
from octavo_pearl_pe.encoder import BPEARL, PEARL, RPEARL
from octavo_pearl_pe.official import OFFICIAL_SETTINGS, convert_official_state_dict, official_encoder
from octavo_pearl_pe.pooling import POOLINGS
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import from_networkx


def graph(n: int, seed: int) -> Data:
    return from_networkx(nx.gnp_random_graph(n, 0.3, seed=seed))


def permuted(data: Data, order: torch.Tensor) -> Data:
    return Data(edge_index=order[data.edge_index], num_nodes=data.num_nodes)


def encoder(**options) -> PEARL:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PEARL(6, **{"hidden": 8, "layers": 2, "num_samples": 10, "eval_samples": 10} | options).eval()


GRAPHS = [graph(n, n) for n in (1, 4, 9, 14)]
BATCH = Batch.from_data_list(GRAPHS)


@pytest.mark.parametrize("options", [{"variant": "basis"}, {"gnn": "filter", "variant": "basis", "norm": None}, {}])
@torch.no_grad()
def test_equivariance(options: dict) -> None:
    model = encoder(**options)
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        data = graph(6 + seed % 9, seed)
        n = data.num_nodes
        q = torch.randn(n, 12, generator=generator) if model.config.variant == "random" else None
        pe = model(data, q=q)
        for _ in range(5):
            order = torch.randperm(n, generator=generator)
            moved_q = None if q is None else q[torch.argsort(order)]
            moved = model(permuted(data, order), q=moved_q)
            size = pe.abs().max().clamp_min(1.0)
            assert float((moved[order] - pe).abs().max() / size) < 1e-5
            assert float((moved.sum(0) - pe.sum(0)).abs().max() / (n * size)) < 1e-5


@pytest.mark.parametrize("variant", ["random", "basis", "auto"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.filterwarnings("ignore:pooling='sum'")
@torch.no_grad()
def test_a_batch_equals_its_graphs_one_by_one(variant: str, pooling: str) -> None:
    model = encoder(variant=variant, pooling=pooling)
    single = torch.cat([model(data) for data in GRAPHS])
    assert torch.allclose(model(BATCH), single, atol=1e-5, rtol=1e-5)
    if variant == "random":
        q = torch.randn(BATCH.num_nodes, 7, generator=torch.Generator().manual_seed(1))
        parts = [model(data, q=part) for data, part in zip(GRAPHS, q.split([d.num_nodes for d in GRAPHS]), strict=True)]
        assert torch.allclose(model(BATCH, q=q), torch.cat(parts), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"variant": "basis", "pooling": "mean+var"},
        {"variant": "auto", "pooling": "max"},
        {"gnn": "filter", "norm": None, "control_variate": True},
        {"antithetic": True, "pooling": "mean+std"},
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, "auto"])
def test_chunks_and_checkpoints_change_nothing(options: dict, chunk: int | str) -> None:
    if options.get("antithetic") and isinstance(chunk, int) and chunk % 2:
        pytest.skip("pairs cannot be parted")
    results = []
    for changes in ({"chunk": None}, {"chunk": chunk}, {"chunk": chunk, "checkpoint": True}):
        model = encoder(**options | changes).double()
        pe = model(BATCH)
        (pe**2).sum().backward()
        results.append((pe.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    for pe, gradients in results[1:]:
        assert torch.allclose(pe, results[0][0], atol=1e-6)
        assert len(gradients) == len(results[0][1]) > 0
        for ours, expected in zip(gradients, results[0][1], strict=True):
            assert torch.allclose(ours, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("options", [{"variant": "basis"}, {}, {"gnn": "filter", "norm": None, "act": "tanh"}])
def test_gradients_are_right(options: dict) -> None:
    data = graph(6, 5)
    model = encoder(
        **{"act": "tanh", "hidden": 2, "eval_samples": 3, "filter_taps": 2, "mlp_layers": 1} | options
    ).double()
    names = [name for name, _ in model.named_parameters()]

    def pooled(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (data,))

    assert torch.autograd.gradcheck(pooled, tuple(p.detach().requires_grad_() for p in model.parameters()), atol=1e-6)


@torch.no_grad()
def test_evaluation_is_bitwise_repeatable_in_any_order_of_the_batch() -> None:
    for model in (encoder(), encoder(variant="basis"), encoder(noise="orthogonal"), encoder(gnn="filter")):
        pe = model(BATCH)
        assert torch.equal(pe, model(BATCH))
        other = model(Batch.from_data_list(GRAPHS[::-1]))
        sizes = [data.num_nodes for data in GRAPHS]
        for ours, theirs in zip(pe.split(sizes), other.split(sizes[::-1])[::-1], strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_evaluation_is_bitwise_repeatable_across_processes() -> None:
    code = (
        "import torch; from octavo_pearl_pe import PEARL; torch.manual_seed(3); "
        "e = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]); "
        "print(PEARL(4).eval()(e).detach().numpy().tobytes().hex())"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1
    assert len(runs.pop()) > 100


def test_training_draws_anew_and_repeats_after_loading_the_state() -> None:
    model = encoder().train()
    first, second = model(BATCH), model(BATCH)
    assert not torch.equal(first, second)
    assert int(model.draws) == 2
    state = model.state_dict()
    other = encoder().train()
    other.load_state_dict(state)
    assert torch.equal(model(BATCH), other(BATCH))


def test_the_global_stream_of_random_numbers_is_left_alone() -> None:
    model = encoder().train()
    before = torch.get_rng_state()
    model(BATCH)
    model.eval()(BATCH)
    assert torch.equal(before, torch.get_rng_state())


def test_auto_is_recorded_and_uses_basis_inputs_for_small_graphs() -> None:
    coded = encoder(variant="auto").encode(BATCH, standard_error=True)
    assert coded.basis.tolist() == [True, True, True, False]
    error = coded.standard_error.split([d.num_nodes for d in GRAPHS])
    assert all(float(e.max()) == 0 for e in error[:3])
    assert float(error[3].min()) > 0
    assert coded.num_samples == 10


def test_scaled_basis_inputs_have_the_second_moments_of_random_ones() -> None:
    options = {"gnn": "filter", "layers": 1, "act": "abs", "norm": None, "pooling": "var", "filter_taps": 3}
    data = graph(9, 2)
    exact = encoder(variant="auto", **options | {"act": "identity", "pooling": "mean+var", "eval_samples": 9})
    many = encoder(**options | {"act": "identity", "pooling": "mean+var", "eval_samples": 40_000})
    many.load_state_dict(exact.state_dict())
    moments = []
    for model in (exact, many):
        model.combine = torch.nn.Identity()
        mean, var = model(data).chunk(2, dim=1)
        moments.append(mean**2 + var)
    # The bias b adds b^2 to both and 2 b E[Hq], which is 0 for random inputs and 2 b (H1)_v / sqrt(n) for basis ones.
    shift = exact.lift.bias.detach()
    response = encoder(variant="auto", **options | {"act": "identity", "pooling": "mean", "eval_samples": 9})
    response.load_state_dict(exact.state_dict(), strict=False)
    offset = 2 * shift * (response(data) - shift)
    assert torch.allclose(moments[0] - offset, moments[1], rtol=0.1, atol=0.02)


def test_save_and_load(tmp_path: Path) -> None:
    model = encoder(variant="auto", pooling="mean+var").double()
    loaded = PEARL.load(model.save(tmp_path / "encoder.safetensors"))
    assert loaded.config == model.config
    assert torch.equal(loaded(BATCH), model(BATCH))
    with pytest.raises(InvalidValueError, match="cannot be saved"):
        encoder(noise=lambda shape, generator: torch.ones(shape)).save(tmp_path / "odd.safetensors")


def test_loading_other_dimensions_is_told(tmp_path: Path) -> None:
    from octavo_core.checkpoint import load_checkpoint, save_checkpoint

    content = load_checkpoint(encoder().save(tmp_path / "a.safetensors"))
    content["pearl"]["hidden"] = 9
    with pytest.raises(InvalidStateError, match="size mismatch"):
        PEARL.load(save_checkpoint(tmp_path / "b.safetensors", content))
    with pytest.raises(InvalidStateError, match="not a saved encoder"):
        PEARL.load(save_checkpoint(tmp_path / "c.safetensors", {"x": 1}))


def test_precisions() -> None:
    data = graph(9, 1)
    double = encoder().double()
    single = encoder()
    assert double(data).dtype == torch.float64
    assert torch.allclose(single(data).double(), double(data), atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pe = single(data)
    assert pe.dtype == torch.float32
    assert torch.allclose(pe, single(data), atol=0.1)


def test_half_precision_on_a_cpu_is_refused_with_the_way_out() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(InvalidTypeError, match=r"torch\.autocast"):
            encoder().to(dtype)(graph(9, 1))


def test_an_overflow_is_told() -> None:
    data = graph(9, 1)
    data.edge_weight = torch.full((data.num_edges,), 1e18)
    with pytest.raises(InvalidStateError, match="NaN or infinite"):
        encoder(gso="adj", filter_taps=5, norm=None)(data)


def test_auto_keeps_its_threshold_between_training_and_evaluation() -> None:
    model = encoder(variant="auto", num_samples=10, eval_samples=40)
    for data, basis in ((graph(10, 3), True), (graph(11, 3), False), (graph(40, 3), False)):
        assert model.train().encode(data).basis.tolist() == [basis]
        assert model.eval().encode(data).basis.tolist() == [basis]
    few = encoder(variant="auto", num_samples=40, eval_samples=10)
    assert few.config.basis_limit == 10
    assert few.encode(Batch.from_data_list([graph(10, 3), graph(30, 3)])).basis.tolist() == [True, False]


def test_more_inputs_than_memory_holds_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="GiB of inputs"):
        encoder(eval_samples=2**24)(family_graph("tree", 1000))


@torch.no_grad()
def test_unusual_graphs_have_finite_encodings() -> None:
    star = family_graph("tree", 2)
    leaves = torch.stack([torch.zeros(10**5, dtype=torch.long), torch.arange(1, 10**5 + 1)])
    cases = {
        "star": (torch.cat([leaves, leaves.flip(0)], dim=1), None),
        "single node": (star[:, :0], 1),
        "no edges": (star[:, :0], 5),
        "isolated and disconnected": (torch.cat([star, star + 4], dim=1), 9),
        "multi-edges": (torch.cat([star, star, star], dim=1), None),
    }
    for edges, count in cases.values():
        for options in ({"eval_samples": 2}, {"eval_samples": 2, "gnn": "filter"}):
            assert bool(encoder(**options)(edges, num_nodes=count).isfinite().all())


BAD = [
    ({"q": torch.zeros(3, 4)}, InvalidValueError, r"give \[9, M\]"),
    ({"q": torch.zeros(9, 0)}, InvalidValueError, "M >= 1"),
    ({"q": [[1.0]] * 9}, InvalidTypeError, "q is a list"),
    ({"batch": torch.zeros(9, dtype=torch.long)}, InvalidValueError, "beside a Data"),
    ({"num_nodes": 9}, InvalidValueError, "beside a Data"),
    ({"q": torch.full((9, 2), torch.nan)}, InvalidValueError, "NaN"),
    ({"q": torch.zeros(9, 2, dtype=torch.float64)}, InvalidTypeError, "convert one"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_inputs_are_told(given: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        encoder()(graph(9, 1), **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples=0"),
        ({"filter_taps": 0}, "filter_taps=0"),
        ({"variant": "magic"}, "'random', 'basis', 'auto'"),
        ({"noise": "pink"}, "rademacher"),
        ({"antithetic": True, "num_samples": 7}, "even number"),
        ({"antithetic": True, "chunk": 3}, "part antithetic pairs"),
        ({"chunk": 0}, "number of samples"),
        ({"constrain": "beta"}, "gnn='filter'"),
        ({"control_variate": True}, "closed form"),
        ({"pooling": "median"}, "mean\\+var"),
        ({"lift_channels": 0}, "lift_channels=0"),
        ({"mlp_hidden": -3}, "mlp_hidden=-3"),
        ({"chunk": True}, "number of samples"),
        ({"chunk": []}, "number of samples"),
        ({"filter_taps": 10**8}, "filter_taps=100000000"),
    ],
)
def test_bad_options_are_told(options: dict, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        PEARL(4, **options)


def test_misspelt_options_and_mixtures_are_told() -> None:
    with pytest.raises(InvalidTypeError, match="unknown option smaples"):
        PEARL(4, smaples=3)
    with pytest.raises(InvalidValueError, match="beside a PEARLConfig"):
        PEARL(PEARLConfig(4), layers=3)
    for options in ({"num_samples": 2.5}, {"layers": None}, {"seed": "a"}, {"antithetic": 1}):
        with pytest.raises(InvalidTypeError, match="give"):
            PEARL(4, **options)
    for options in ({"pooling": 3}, {"gnn": 3}, {"noise": None}):
        with pytest.raises(InvalidTypeError, match="a function|a module"):
            PEARL(4, **options)
    for width in ("8", 8.0, True):
        with pytest.raises(InvalidTypeError, match="out_channels"):
            PEARL(width)
    with pytest.raises(InvalidTypeError, match="edge_index is a NoneType"):
        encoder().encode(None)
    with pytest.raises(InvalidTypeError, match="HeteroPEARL"):
        encoder().encode(HeteroData())
    with pytest.raises(InvalidValueError, match="no edge_index"):
        encoder()(Data(num_nodes=3))


def test_a_large_basis_is_refused_unless_forced() -> None:
    edges = family_graph("tree", 40)
    with pytest.raises(InvalidValueError, match=r"40 nodes.*GiB.*force=True"):
        BPEARL(2, max_basis_nodes=30, hidden=4)(edges)
    assert BPEARL(2, max_basis_nodes=30, hidden=4, force=True)(edges).shape == (40, 2)


def test_aliases_and_functions_as_parts() -> None:
    assert RPEARL(3).config.variant == "random"
    assert BPEARL(3).config.pooling == "sum"
    median = encoder(pooling=lambda samples, mask: samples.median(1).values)
    assert median(graph(9, 1)).shape == (9, 6)
    ones = encoder(noise=lambda shape, generator: torch.ones(shape))
    assert torch.allclose(ones(graph(9, 1)), ones(graph(9, 1), q=torch.ones(9, 1)), atol=1e-6)

    class Body(torch.nn.Module):
        def forward(self, x, context):
            return x[..., :6] * 2

    assert encoder(gnn=Body())(graph(9, 1)).shape == (9, 6)


def test_sum_pooling_of_random_inputs_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="grow with the number of samples"):
        PEARL(3, pooling="sum")


@pytest.mark.parametrize("setting", OFFICIAL_SETTINGS)
def test_released_settings_build_and_encode(setting: str) -> None:
    model = official_encoder(setting, eval_samples=4).eval()
    assert bool(model(graph(9, 1)).isfinite().all())


def test_unknown_settings_and_states_are_told() -> None:
    with pytest.raises(InvalidValueError, match="zinc-r"):
        official_encoder("imagenet")
    with pytest.raises(InvalidValueError, match="not a released encoder"):
        convert_official_state_dict({"a": torch.ones(1)})


def test_works_in_loader_workers() -> None:
    from octavo_pearl_pe.transform import PEARLTransform
    from torch_geometric.loader import DataLoader

    transform = PEARLTransform(encoder())
    expected = [transform(data.clone()).pearl_pe for data in GRAPHS]
    items = torch.utils.data.DataLoader(GRAPHS, batch_size=None, num_workers=1)
    assert len(list(items)) == len(GRAPHS)

    class Encoded(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(GRAPHS)

        def __getitem__(self, index: int) -> Data:
            return transform(GRAPHS[index].clone())

    loader = DataLoader(Encoded(), batch_size=4, num_workers=1)
    assert torch.equal(next(iter(loader)).pearl_pe, torch.cat(expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_cpu() -> None:
    for options in ({}, {"variant": "basis"}, {"gnn": "filter", "norm": None}):
        model = encoder(**options)
        expected = model(BATCH)
        assert torch.allclose(model.cuda()(BATCH.to("cuda")).cpu(), expected, atol=1e-4)


def test_devices_must_agree() -> None:
    with pytest.raises(InvalidValueError, match="move one with .to"):
        encoder().to("meta")(graph(9, 1))
