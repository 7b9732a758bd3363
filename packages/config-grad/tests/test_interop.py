from __future__ import annotations

import sys

import pytest
import torch
from octavo_config_grad.aggregators import ConFIG, LossRatio
from octavo_config_grad.baselines import IMTLG, MGDA, PCGrad, Sum
from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.gramian import gramian
from octavo_config_grad.interop import from_torchjd, to_torchjd
from octavo_config_grad.update import config_update
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingDependencyError
from torch import nn

aggregation = pytest.importorskip("torchjd.aggregation")
autojac = pytest.importorskip("torchjd.autojac")


def random_gradients(dtype=torch.float64, num_losses=3, num_parameters=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_losses, num_parameters, generator=generator, dtype=torch.float64).to(dtype)


def as_lists(matrix):
    return [[row[:4].reshape(2, 2), row[4:]] for row in matrix]


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def two_losses(network):
    output = network(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))
    return [output[:, 0].square().mean(), (output[:, 1] - 1).square().mean()]


OURS = [ConFIG(), ConFIG([1.0, 2.0, 0.5], length="min", rank_policy="maxmin"), Sum(), PCGrad(), IMTLG(), MGDA()]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: type(ours).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_our_aggregators_in_torchjd(ours, dtype):
    gradients = random_gradients(dtype)
    theirs = to_torchjd(ours)
    assert isinstance(theirs, aggregation.GramianWeightedAggregator)
    torch.testing.assert_close(theirs(gradients), ours(gradients))
    weights = theirs.gramian_weighting(gramian(gradients))
    torch.testing.assert_close(weights, ours.weights(gramian(gradients)))
    assert type(ours).__name__ in repr(theirs)


def test_export_keeps_the_float64_gramian():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(20_000, generator=generator)
    gradients = torch.stack([base, -base + 1e-3 * torch.randn(20_000, generator=generator)])
    update = to_torchjd(ConFIG())(gradients)
    cosines = torch.cosine_similarity(gradients.double(), update.double()[None])
    torch.testing.assert_close(cosines[0], cosines[1], rtol=1e-4, atol=0.0)
    assert 0 < cosines.min() < 1e-3


@pytest.mark.parametrize("optimize", [False, True])
def test_autojac_with_our_aggregator(network, optimize):
    expected = ConFIG()(per_loss_gradients(two_losses(network), network.parameters()))
    autojac.backward(two_losses(network))
    weights = autojac.jac_to_grad(network.parameters(), to_torchjd(ConFIG()), optimize_gramian_computation=optimize)
    torch.testing.assert_close([parameter.grad for parameter in network.parameters()], expected, rtol=1e-5, atol=1e-7)
    assert weights.shape == (2,)


def test_mtl_backward_with_our_aggregator():
    torch.manual_seed(0)
    shared, heads = nn.Linear(3, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    points = torch.randn(6, 3)

    def losses_and_features():
        features = shared(points).tanh()
        return [(heads[0](features) - 1).square().mean(), (heads[1](features) + 2).square().mean()], features

    losses, _ = losses_and_features()
    expected = ConFIG()(per_loss_gradients(losses, shared.parameters()))
    losses, features = losses_and_features()
    autojac.mtl_backward(losses, features=features)
    autojac.jac_to_grad(shared.parameters(), to_torchjd(ConFIG()))
    torch.testing.assert_close([parameter.grad for parameter in shared.parameters()], expected, rtol=1e-5, atol=1e-7)
    assert all(parameter.grad is not None for head in heads for parameter in head.parameters())


def test_autogram_with_our_weighting(network):
    autogram = pytest.importorskip("torchjd.autogram")
    expected = ConFIG()(per_loss_gradients(two_losses(network), network.parameters()))
    engine = autogram.Engine(network, batch_dim=None)
    losses = torch.stack(two_losses(network))
    weights = to_torchjd(ConFIG()).gramian_weighting(engine.compute_gramian(losses))
    losses.backward(weights)
    torch.testing.assert_close([parameter.grad for parameter in network.parameters()], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["UPGrad", "DualProj", "MGDA", "PCGrad", "IMTLG", "AlignedMTL", "Mean"])
def test_torchjd_aggregators_here(name):
    if name in ("UPGrad", "DualProj"):
        pytest.importorskip("quadprog")
    theirs = getattr(aggregation, name)()
    expected = theirs(random_gradients())
    ours = from_torchjd(theirs)
    assert not ours.needs_gradients
    for gradients in (random_gradients(), list(random_gradients())):
        torch.manual_seed(3)
        update, info = ours.aggregate(gradients)
        torch.manual_seed(3)
        torch.testing.assert_close(update, theirs(random_gradients()), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(info.alpha @ random_gradients(), expected, rtol=1e-6, atol=1e-8)
    assert len(ours(as_lists(random_gradients()))) == 2


def test_a_weighting_of_whole_rows_needs_only_the_gramian():
    preferences = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    ours = from_torchjd(aggregation.Constant(preferences))
    torch.testing.assert_close(ours.weights(gramian(random_gradients())), preferences)
    weighting = from_torchjd(aggregation.MGDAWeighting())
    torch.testing.assert_close(weighting(random_gradients()), from_torchjd(aggregation.MGDA())(random_gradients()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coordinate_wise_aggregators_see_the_gradients(dtype):
    gradients = random_gradients(dtype, num_losses=5)
    theirs = aggregation.TrimmedMean(trim_number=1)
    ours = from_torchjd(theirs)
    assert ours.needs_gradients
    update, info = ours.aggregate(gradients)
    torch.testing.assert_close(update, theirs(gradients))
    parts = ours(as_lists(gradients))
    torch.testing.assert_close(torch.cat([part.reshape(-1) for part in parts]), theirs(gradients))
    assert info.alpha.isnan().all()
    assert info.length == pytest.approx(float(update.norm()), rel=1e-5)
    torch.testing.assert_close(info.cosines, torch.cosine_similarity(gradients.double(), update.double()[None]))
    with pytest.raises(InvalidStateError, match="TrimmedMean works on the coordinates"):
        ours.weights(gramian(gradients))


def test_their_config_agrees_with_ours():
    theirs = from_torchjd(aggregation.ConFIG())
    torch.testing.assert_close(theirs(random_gradients()), config_update(random_gradients()))


@pytest.mark.parametrize("name", ["MGDA", "ConFIG"])
def test_imported_aggregators_follow_the_nonfinite_policy(name):
    gradients = random_gradients()
    gradients[1, 0] = torch.nan
    with pytest.raises(InvalidValueError, match="gradient of loss 1 is not finite"):
        from_torchjd(getattr(aggregation, name)())(gradients)
    update, info = from_torchjd(getattr(aggregation, name)(), nonfinite="skip").aggregate(gradients)
    assert info.skipped
    assert not update.any()


def test_round_trip_of_a_coordinate_wise_aggregator():
    theirs = aggregation.TrimmedMean(trim_number=1)
    assert to_torchjd(from_torchjd(theirs)) is theirs


def test_wrong_objects_are_refused():
    with pytest.raises(InvalidTypeError, match="not ConFIG"):
        from_torchjd(ConFIG())
    with pytest.raises(InvalidStateError, match="needs the loss values"):
        to_torchjd(ConFIG(LossRatio()))(random_gradients())


def test_missing_torchjd_names_the_extra(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "torchjd"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "octavo_config_grad._torchjd", raising=False)
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(MissingDependencyError, match=r"octavo-config-grad\[torchjd\]"):
        to_torchjd(ConFIG())
