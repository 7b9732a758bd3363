"""Benchmarks behind ``octavo bench config-grad``: speed, scaling, memory and correctness at size, against named peers.

All ratios are measured within one process, interleaved, on one thread.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable

import torch
from octavo_core.bench import compare, fit_power_law, peak_bytes, speed_row, time_call
from octavo_core.device import installed_versions, num_threads, resolve_device, torch_generator
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from torch import Tensor

from octavo_config_grad import pinn
from octavo_config_grad.update import config_update

__all__ = ["run"]

_PEERS = ("conflictfree", "torchjd")
# Pairwise cosine of the gradients of the check at size: three of them then allow a common cosine of 0.365.
_OPPOSITION = -0.3
# From 2**23 parameters the relative cut of float32 least squares, eps times N, reaches 1.
_PEERS_FAIL_FROM = 2**23


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the benchmarks.

    Args:
        quick: Fewer repetitions, and sizes up to 2e6 parameters instead of 2e7.
        seed: Seed of the gradients and of the networks.
        device: Device to measure on.
        progress: Called with what is being measured and the share done.

    Returns:
        The report. Rows that need a peer that is not installed are left out and named in a note.
    """
    target = resolve_device(device)
    report = Report("config-grad", "bench", seed=seed, title="config-grad: benchmarks", packages=_PEERS)
    steps: list[Callable[[], None]] = [
        lambda: _update_speed(report, target, seed, repeats=5 if quick else 15),
        lambda: _update_scaling(report, target, seed, sizes=(10**5, 10**6) if quick else (10**5, 10**6, 10**7)),
        lambda: _memory(report, target, seed, size=10**6 if quick else 10**7),
        lambda: _correct_at_size(report, target, seed, size=2 * 10**6 if quick else 2 * 10**7),
        lambda: _step_cost(report, target, seed, repeats=5 if quick else 21),
    ]
    for done, step in enumerate(steps):
        progress("benchmarks", done / len(steps))
        step()
    progress("benchmarks", 1.0)
    return report.finish()


def _update_speed(report: Report, device: torch.device, seed: int, repeats: int) -> None:
    sizes = [("n1e5_m10", 10**5, 10), ("n1e6_m3", 10**6, 3)]
    for tag, num_parameters, num_losses in sizes:
        gradients = _gradients(num_losses, num_parameters, seed, device)
        calls: dict[str, Callable[[], object]] = {"ours": lambda g=gradients: config_update(g)}
        for peer, update in _peer_updates().items():
            calls[peer] = lambda g=gradients, u=update: u(g)
        timings = compare(calls, repeats=repeats, device=device)
        for peer in [name for name in calls if name != "ours"]:
            report.append(
                speed_row(
                    f"update_vs_{peer}_{tag}",
                    f"one ConFIG update, {num_losses} losses, {num_parameters:,} parameters",
                    timings["ours"],
                    timings[peer],
                    f"{peer} {installed_versions([peer])[peer]}",
                    target="ratio >= 5",
                    note="float32, one thread",
                )
            )
    for peer in _PEERS:
        if not installed_versions([peer]):
            report.add(
                f"update_vs_{peer}", f"one ConFIG update against {peer}", None,
                note=f"{peer} is not installed: pip install 'octavo-config-grad[bench]'",
            )  # fmt: skip


def _update_scaling(report: Report, device: torch.device, seed: int, sizes: tuple[int, ...]) -> None:
    seconds = []
    for size in sizes:
        gradients = _gradients(3, size, seed, device)
        seconds.append(time_call(lambda g=gradients: config_update(g), repeats=5, device=device).median)
    fit = fit_power_law(sizes, seconds)
    report.add(
        "update_scaling_exponent",
        f"growth of the update's time with the number of parameters, {sizes[0]:.0e} to {sizes[-1]:.0e}",
        fit.exponent,
        target="value <= 1.1",
        note=f"3 losses; {seconds[-1] * 1e3:.3g} ms at the largest; 1 is linear",
    )


def _memory(report: Report, device: torch.device, seed: int, size: int) -> None:
    gradients = _gradients(3, size, seed, device)
    config_update(gradients[:, :1000])
    extra = peak_bytes(lambda: config_update(gradients), device=device) / 2**20
    report.add(
        "update_extra_memory",
        f"memory of one update beyond the gradients and the result, {size:,} parameters",
        max(0.0, extra - gradients[0].nbytes / 2**20),
        "MiB",
        target="value <= 64",
        note=f"the gradients themselves take {gradients.nbytes / 2**20:.0f} MiB",
    )


def _correct_at_size(report: Report, device: torch.device, seed: int, size: int) -> None:
    """Smallest cosine of the update with the gradients, measured afresh in float64, at a size where solvers fail."""
    gradients = _opposed_gradients(size, seed, device)
    expected = ((1 + 2 * _OPPOSITION) / 3) ** 0.5
    ours = _smallest_cosine(gradients, config_update(gradients))
    label = f"smallest cosine between the update and a gradient, {size:,} parameters"
    note = f"three gradients with pairwise cosine {_OPPOSITION}: exact is {expected:.4f}; 0 or below is a conflict"
    if size < _PEERS_FAIL_FROM:
        report.add("correct_at_size", label, ours, target="value >= 0.36", note=note)
        return
    report.add("correct_at_n2e7", label, ours, target="value >= 0.36", note=note)
    for peer, update in _peer_updates().items():
        name = f"{peer} {installed_versions([peer])[peer]}"
        try:
            theirs = _smallest_cosine(gradients, update(gradients))
        except RuntimeError as error:
            report.add(
                f"correct_at_n2e7_vs_{peer}", f"{label}, {name}", None, note=f"fails with {type(error).__name__}"
            )
            continue
        report.add(
            f"correct_at_n2e7_vs_{peer}",
            label,
            ours,
            peer=name,
            peer_value=theirs,
            better="higher",
            target="value >= 0.36 and peer_value <= 0.01",
            note=note,
        )


def _step_cost(report: Report, device: torch.device, seed: int, repeats: int) -> None:
    """Whole training steps on the three-loss Burgers problem: forward, backward, combination, update."""
    with num_threads(1):
        calls = {
            method: _training_step(method, seed, device) for method in ("adam-single", "adam", "config", "m-config")
        }
        timings = compare(calls, repeats=repeats, warmup=10, min_seconds=0.05, device=device)
    report.add(
        "mconfig_step_vs_single_loss",
        "M-ConFIG step over an Adam step that back-propagates one loss",
        timings["m-config"].median / timings["adam-single"].median,
        "x",
        target="value <= 1.6",
        note=f"Burgers, 3 losses, 400/64/64 points; {timings['m-config'].median * 1e3:.3g} ms a step",
    )
    report.add(
        "config_step_vs_sum",
        "ConFIG step over an Adam step on the sum of the losses",
        timings["config"].median / timings["adam"].median,
        "x",
        target="value <= 1.2",
        note=f"same problem; {timings['config'].median * 1e3:.3g} ms a step",
    )


def _training_step(method: str, seed: int, device: torch.device) -> Callable[[], None]:
    """One step of a method on the three-loss problem; ``adam-single`` back-propagates the losses in turn."""
    config = pinn.demo_setting(seed=seed)
    problem = pinn.Burgers(num_losses=3)
    network = pinn.MLP(
        (len(problem.coordinates), *config.hidden, len(problem.fields)), generator=torch_generator(seed), device=device
    )
    objective = pinn.Objective(problem, network, config.points, seed=seed)
    if method != "adam-single":
        stepper = pinn.make_stepper(method, objective.loss, len(objective), network.parameters())
        return stepper.step
    adam = torch.optim.Adam(network.parameters(), fused=device.type in {"cpu", "cuda"})
    turn = itertools.cycle(range(len(objective)))

    def step() -> None:
        adam.zero_grad()
        objective.loss(next(turn)).backward()
        adam.step()

    return step


def _gradients(num_losses: int, num_parameters: int, seed: int, device: torch.device) -> Tensor:
    return torch.randn(num_losses, num_parameters, generator=torch_generator(seed, device), device=device)


def _opposed_gradients(size: int, seed: int, device: torch.device) -> Tensor:
    """Three float32 gradients whose pairwise cosines are ``_OPPOSITION``, in general position."""
    # Rows of a factor of the wanted cosine matrix, applied to nearly orthonormal random vectors.
    cosines = torch.full((3, 3), _OPPOSITION).fill_diagonal_(1.0)
    factor = torch.linalg.cholesky(cosines).to(device)
    basis = _gradients(3, size, seed, device)
    basis /= basis.norm(dim=1, keepdim=True)
    return factor @ basis


def _smallest_cosine(gradients: Tensor, update: Tensor) -> float:
    """Smallest cosine, from dot products in float64 of pieces that fit the memory; 0 for a zero update."""
    dots = torch.zeros(len(gradients), dtype=torch.float64, device=gradients.device)
    squares, update_square = torch.zeros_like(dots), torch.zeros_like(dots[0])
    for block, piece in zip(gradients.split(2**20, dim=1), update.split(2**20), strict=True):
        block, piece = block.double(), piece.double()
        dots += block @ piece
        squares += (block**2).sum(1)
        update_square += piece @ piece
    if update_square == 0:
        return 0.0
    return float((dots / (squares * update_square).sqrt()).min())


def _peer_updates() -> dict[str, Callable[[Tensor], Tensor]]:
    """ConFIG of the installed peers, as a function of the gradient matrix."""
    updates: dict[str, Callable[[Tensor], Tensor]] = {}
    if installed_versions(["conflictfree"]):
        operator = importlib.import_module("conflictfree.grad_operator")
        updates["conflictfree"] = lambda gradients: operator.ConFIG_update(gradients)
    if installed_versions(["torchjd"]):
        updates["torchjd"] = importlib.import_module("torchjd.aggregation").ConFIG()
    return updates
