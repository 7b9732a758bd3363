"""The embedded example: circular skip-link graphs, stability at a repeated eigenvalue, sampling error, molecules."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from octavo_core.bench import fit_power_law
from octavo_core.device import available_cores, num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_mean_pool

from octavo_pearl_pe.baselines import RWSE, LapPE, NoPE
from octavo_pearl_pe.datasets import csl, csl_folds, family_graph
from octavo_pearl_pe.encoder import PEARL
from octavo_pearl_pe.experiment import FILTER_RECIPE
from octavo_pearl_pe.expressivity import ExpressivityRow, expressivity, make_encoding
from octavo_pearl_pe.models import PEARLGIN
from octavo_pearl_pe.molecules import molecule_graphs, moses_plogp, nci_plogp
from octavo_pearl_pe.scaling import monte_carlo_errors, scaling_encoder
from octavo_pearl_pe.stability import StabilityPoint, stability_curve
from octavo_pearl_pe.training import TrainingConfig, evaluate, train

__all__ = ["csl_accuracy", "cycle_stability", "molecule_error", "run"]

_LABELS = {"nope": "no encoding", "r": "R-PEARL", "b": "B-PEARL", "rwse": "RWSE", "lappe": "LapPE"}
_TARGETS = {"nope": "value <= 15", "r": "value >= 95", "b": "value >= 99"}
# R-PEARL with the recipe of ``experiment``. B-PEARL trains better with a norm: its inputs are small beside the biases.
# Neither chunks: a step of 20 graphs is small, and two chunks cost twice the calls.
_CSL: dict[str, dict[str, Any]] = {
    "r": FILTER_RECIPE | {"filter_taps": 5, "chunk": None, "num_samples": 48, "eval_samples": 384},
    "b": FILTER_RECIPE | {"filter_taps": 5, "chunk": None, "variant": "basis", "norm": "layer", "gso": "sym_lap"},
}
_CSL_RATES = {"nope": 2e-2, "r": 2e-2, "b": 5e-2}
_CSL_EPOCHS = {"nope": 10, "r": 60, "b": 60}
_QUICK_EPOCHS = {"nope": 5, "r": 25, "b": 25}
_MOLECULE_EPOCHS = 10
_EXPRESSIVITY = ("none", "rwse", "signnet", "spe", "b-pearl", "r-pearl")
_EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4)
_SAMPLES = (8, 32, 128, 512)


_Key = tuple[str, str, int]
_Job = tuple[_Key, Callable[..., Any], dict[str, Any]]


class _Classifier(nn.Module):
    """Mean of the encoding over the nodes, batch norm (the classes differ by little), an MLP."""

    def __init__(self, encoder: PEARL, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.out_channels
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, data: Data) -> Tensor:
        return self.head(global_mean_pool(self.encoder(data), data.batch))


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the example.

    Args:
        quick: One fold of a four-class task, no molecules, no expressiveness table.
        seed: Seed.
        device: Device to train on.
        progress: Called with what is being done and the share done.

    Returns:
        The report.
    """
    target = str(resolve_device(device))
    # Small products, and workers beside: one thread each is fastest.
    with num_threads(1):
        return _run(quick, seed, target, progress)


def _run(quick: bool, seed: int, target: str, progress: ProgressCallback) -> Report:
    report = Report("pearl-pe", "demo", seed=seed, title="pearl-pe: positional encodings without eigenvectors",
                    packages=("torch-geometric", "rdkit", "molsets"))  # fmt: skip
    progress("stability and sampling error", 0.0)
    _stability(report, seed)
    _sampling(report, seed, quick)
    folds = 1 if quick else 5
    options: dict[str, Any] = {"seed": seed, "device": target}
    jobs: list[_Job] = [
        (("csl", name, fold), csl_accuracy, {"name": name, "fold": fold, "quick": quick} | options)
        for name in ("r", "b", "nope")
        for fold in range(folds)
    ]
    source = None if quick else _molecule_source()
    if source:
        graphs = moses_plogp(2000, seed) if source == "moses" else nci_plogp(2000, seed)
        # The targets are what takes long, so they are worked out once; workers make their own graphs of the text.
        molecules = {"smiles": [g["smiles"] for g in graphs], "targets": [float(g["y"]) for g in graphs]}
        jobs += [
            (("molecules", name, 0), _molecule_job, {"name": name} | molecules | options)
            for name in ("r", "b", "lappe", "rwse", "nope")
        ]
    if not quick:
        jobs += [(("expressivity", name, 0), _expressivity_job, {"name": name, "seed": seed}) for name in _EXPRESSIVITY]
    results = _run_jobs(jobs, target, progress)
    for name in ("nope", "r", "b"):
        accuracy = [results["csl", name, fold] for fold in range(folds)]
        report.add(
            f"csl_accuracy_{name}",
            f"circular skip links, ten classes of 41 nodes: test accuracy with {_LABELS[name]}",
            100.0 * float(np.mean(accuracy)),
            "%",
            target=_TARGETS[name],
            spread=(100.0 * min(accuracy), 100.0 * max(accuracy)),
            note="quick: one fold" + ("" if name == "nope" else ", four classes") if quick else "mean of five folds",
        )
    if not quick:
        _expressivity(report, [results["expressivity", name, 0] for name in _EXPRESSIVITY])
        _molecules(report, results, source)
    return report.finish()


def csl_accuracy(name: str, fold: int, *, seed: int = 0, device: str = "cpu", quick: bool = False) -> float:
    """Train on circular skip-link graphs and test on one fold.

    Args:
        name: ``"nope"``, ``"r"`` or ``"b"``.
        fold: Fold, from 0 to 4.
        seed: Seed of the weights, data and training.
        device: Device.
        quick: Fewer epochs; for the encodings four classes instead of ten.

    Returns:
        Test accuracy.
    """
    few = quick and name != "nope"
    graphs = csl(skips=(2, 3, 4, 5), seed=seed) if few else csl(seed=seed)
    classes = 4 if few else 10
    train_set, _, test_set = csl_folds(np.array([int(g["y"]) for g in graphs]), seed=seed)[fold]
    with torch.random.fork_rng():
        torch.manual_seed(seed * 10 + fold)
        if name == "nope":
            model: nn.Module = PEARLGIN(NoPE(), classes, hidden=32, layers=3, readout="mean")
        else:
            model = _Classifier(PEARL(16, seed=seed, **_CSL[name]), classes)
    config = TrainingConfig(
        epochs=_QUICK_EPOCHS[name] if quick else _CSL_EPOCHS[name],
        batch_size=12 if few else 20,
        lr=_CSL_RATES[name],
        warmup=0.3,
        loss="cross_entropy",
        seed=seed,
    )
    train(model, [graphs[i] for i in train_set], config, device=device)
    return evaluate(model, [graphs[i] for i in test_set], "cross_entropy", device=device)


def molecule_error(
    name: str,
    graphs: list[Data],
    *,
    seed: int = 0,
    device: str = "cpu",
    epochs: int = 12,
    options: dict[str, Any] | None = None,
) -> float:
    """Train a small GINE model on molecules, 80 : 10 : 10, and test it.

    Args:
        name: ``"nope"``, ``"rwse"``, ``"lappe"``, ``"r"`` or ``"b"``.
        graphs: Molecules with a target.
        seed: Seed of the weights, split and training.
        device: Device.
        epochs: Epochs.
        options: Changes to the encoder of ``"r"`` and ``"b"``.

    Returns:
        Mean absolute error on the test molecules.
    """
    order = np.random.default_rng(seed).permutation(len(graphs))
    first, second = int(0.8 * len(graphs)), int(0.9 * len(graphs))
    pearl = FILTER_RECIPE | {"num_samples": 32, "eval_samples": 128, "seed": seed} | (options or {})
    makers: dict[str, Callable[[], nn.Module]] = {
        "nope": NoPE,
        "rwse": lambda: RWSE(16),
        "lappe": lambda: LapPE(8, seed=seed),
        "r": lambda: PEARL(16, **pearl),
        "b": lambda: PEARL(16, variant="basis", **pearl),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = PEARLGIN(makers[name](), 1, hidden=48, layers=3, node_types=14, edge_types=4)
    config = TrainingConfig(epochs=epochs, batch_size=32, lr=2e-3, loss="mae", seed=seed)
    train(model, [graphs[i] for i in order[:first]], config, device=device)
    return evaluate(model, [graphs[i] for i in order[second:]], "mae", device=device)


def cycle_stability(variant: str, seed: int = 0) -> list[StabilityPoint]:
    """Change two edge weights of the cycle C20, whose Laplacian eigenvalues are double, and measure encodings' changes.

    Args:
        variant: ``"random"`` or ``"basis"``.
        seed: Seed of weights and inputs.

    Returns:
        A point for eps = 1e-1, 1e-2, 1e-3, 1e-4.
    """
    node = torch.arange(20)
    ring = torch.stack([node, (node + 1) % 20])
    data = Data(edge_index=torch.cat([ring, ring.flip(0)], dim=1), num_nodes=20)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = PEARL(8, variant=variant, gnn="filter", layers=2, filter_taps=3, hidden=16, norm=None)
    return stability_curve(encoder.double().eval(), data, [(0, 1), (7, 8)], _EPSILONS, seed=seed)


def _stability(report: Report, seed: int) -> None:
    curves = {"R-PEARL": cycle_stability("random", seed), "B-PEARL": cycle_stability("basis", seed)}
    for name, points in curves.items():
        slope = fit_power_law([p.eps for p in points], [p.change for p in points]).exponent
        report.add(
            f"stability_slope_{name[0].lower()}",
            f"{name}: growth of the encoding's change with the change of two edge weights of C20",
            slope,
            target="0.9 <= value <= 1.1",
            note="1 is Lipschitz; relative change " + ", ".join(f"{p.change:.1e}" for p in points),
        )
    smallest = min(p.eigenvector_change for p in curves["R-PEARL"])
    report.add(
        "stability_eigenvectors",
        "Laplacian eigenvectors: smallest relative change over the same changes, the better sign taken",
        smallest,
        target="value > 0.1",
        note="does not shrink with the change: the eigenvalues are double",
    )
    if importlib.util.find_spec("matplotlib"):
        from octavo_pearl_pe.plots import plot_stability

        report.attach("stability.png", plot_stability(curves))


def _sampling(report: Report, seed: int, quick: bool) -> None:
    encoder = scaling_encoder()
    errors = monte_carlo_errors(encoder, 200, _SAMPLES, repeats=4 if quick else 8, seed=seed)
    report.add(
        "mc_error_slope",
        "R-PEARL: growth of the sampling error with the number of samples M",
        fit_power_law(_SAMPLES, errors).exponent,
        target="-0.6 <= value <= -0.4",
        note="relative error at M = 8, 32, 128, 512: " + ", ".join(f"{error:.3f}" for error in errors),
    )
    sizes = (100, 400, 1600) if quick else (100, 200, 400, 800, 1600, 3200)
    by_size = [monte_carlo_errors(encoder, n, (64,), repeats=4 if quick else 16, seed=seed)[0] for n in sizes]
    report.add(
        "mc_error_size_spread",
        f"R-PEARL: spread of that error over graphs of {sizes[0]} to {sizes[-1]} nodes, M = 64",
        100.0 * (max(by_size) / min(by_size) - 1.0),
        "%",
        target="value < 20",
        note="the number of samples needed does not grow with the graph",
    )
    if importlib.util.find_spec("matplotlib"):
        from octavo_pearl_pe.plots import plot_encoding, plot_errors

        report.attach("sampling_error.png", plot_errors(_SAMPLES, {"R-PEARL": errors}))
        tree = Data(edge_index=family_graph("tree", 80, seed), num_nodes=80)
        with torch.no_grad():
            report.attach("encoding.png", plot_encoding(tree, encoder(tree)))


def _expressivity(report: Report, rows: list[ExpressivityRow]) -> None:
    for row in rows:
        report.add(
            f"atlas_pairs_{row.encoding.replace('-', '_')}",
            f"pairs of small graphs that 1-WL confuses: separated by {row.encoding}",
            row.atlas[0],
            note=f"of {row.atlas[1]}; CSL classes {row.csl_classes} of 10; strongly regular pair "
            f"{'separated' if row.srg else 'not separated'}; cospectral pairs "
            f"{row.cospectral[0]} of {row.cospectral[1]}; false alarms on renumbered copies "
            f"{row.false_alarms} of {row.controls}",
        )


def _molecules(report: Report, results: dict[_Key, Any], source: str | None) -> None:
    if source is None:
        report.add(
            "molecules_plogp", "penalised logP of molecules", None,
            note="skipped: RDKit is not installed; pip install 'octavo-pearl-pe[mol]'",
        )  # fmt: skip
        return
    origin = "2,000 molecules of MOSES" if source == "moses" else "2,000 NCI molecules (molsets is not installed)"
    for name in ("nope", "rwse", "lappe", "r", "b"):
        report.add(
            f"molecules_mae_{name}",
            f"penalised logP of molecules, test mean absolute error with {_LABELS[name]}",
            results["molecules", name, 0],
            note=f"{origin}, one seed, {_MOLECULE_EPOCHS} epochs; small differences say nothing",
        )


def _molecule_source() -> str | None:
    if importlib.util.find_spec("rdkit") is None:
        return None
    return "moses" if importlib.util.find_spec("moses") else "nci"


def _run_jobs(jobs: list[_Job], device: str, progress: ProgressCallback) -> dict[_Key, Any]:
    """Run the jobs, one process a core on the CPU, one after another on an accelerator or for a single fold."""
    results: dict[_Key, Any] = {}
    workers = min(len(jobs), available_cores()) if device == "cpu" and len(jobs) > 3 else 1
    progress("training", 0.0)
    if workers == 1:
        for job in jobs:
            results[job[0]] = _job(job)[1]
            progress("training", len(results) / len(jobs))
        return results
    # Spawned, not forked: a fork of a process whose OpenMP threads have started can hang.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for key, value in pool.imap_unordered(_job, jobs):
            results[key] = value
            progress("training", len(results) / len(jobs))
    return results


def _job(job: _Job) -> tuple[_Key, Any]:
    key, function, arguments = job
    with num_threads(1):
        return key, function(**arguments)


def _molecule_job(*, name: str, smiles: list[str], targets: list[float], seed: int, device: str) -> float:
    graphs = molecule_graphs(smiles, targets)
    return molecule_error(name, graphs, seed=seed, device=device, epochs=_MOLECULE_EPOCHS)


def _expressivity_job(*, name: str, seed: int) -> ExpressivityRow:
    # An encoding that needs samples gets fewer evaluations here than in the command of its own.
    return expressivity({name: make_encoding(name, seed).double()}, repeats=8)[0]
