"""Training a network on a problem, under an equal budget for every method."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.checkpoint import CheckpointFolder
from octavo_core.device import resolve_device, synchronize
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, OctavoError
from torch import Tensor, nn

from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.gramian import gramian
from octavo_config_grad.info import update_info
from octavo_config_grad.pinn.config import TrainingConfig, learning_rate_factor
from octavo_config_grad.pinn.loading import source_fingerprint
from octavo_config_grad.pinn.methods import Stepper, make_stepper
from octavo_config_grad.pinn.network import MLP
from octavo_config_grad.pinn.problem import Objective, Problem
from octavo_config_grad.pinn.reference import Errors, Reference
from octavo_config_grad.pinn.result import History, TrainingResult
from octavo_config_grad.pinn.user_code import blame_user

__all__ = ["Progress", "train"]

_WARMUP_STEPS = 100
# Evaluation points are the same for all runs and apart from every run's training points.
_EVALUATION_SEED = 2**32
_FOREVER = 2**62


@dataclass(frozen=True)
class Progress:
    """Where a run is, as its callback sees it at every evaluation.

    Args:
        fraction: Share of the budget that is spent, in [0, 1].
        step: Optimizer steps so far.
        backward_passes: Single-loss backward passes so far.
        seconds: Seconds of training so far.
        losses: Each loss on the evaluation points.
        mse: Mean square error; None without a reference.
    """

    fraction: float
    step: int
    backward_passes: int
    seconds: float
    losses: tuple[float, ...]
    mse: float | None


def train(
    problem: Problem,
    method: str,
    config: TrainingConfig,
    *,
    network: nn.Module | None = None,
    reference: Reference | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> TrainingResult:
    """Train a network to solve a problem.

    Args:
        problem: The problem.
        method: A name in ``pinn.METHODS``.
        config: Settings, with the budget.
        network: A network of your own, on the device and in the dtype to train in; its derivatives are computed by
            autograd. By default an :class:`MLP` of the configured sizes, device and dtype.
        reference: What to measure errors against; by default the problem's own, if it has one.
        folder: Where checkpoints go, one at each evaluation; none are written without it.
        resume: Continue from the newest checkpoint in ``folder``, if there is one. By steps or passes the outcome is
            that of the uninterrupted run, bit for bit. A newest one that is torn is passed over, with a warning.
        progress: Called at each evaluation.

    Returns:
        The outcome; :meth:`TrainingResult.save` writes it.

    Raises:
        InvalidValueError: If the method is unknown, the network or reference does not fit the problem, or the
            checkpoint is of another run (other settings, losses, reference or problem file).
        InvalidTypeError: If the problem is not made as :class:`Problem` asks.
        InvalidStateError: If the losses stop being finite, ``resume`` lacks a folder, no checkpoint can be read, the
            folder holds checkpoints and ``resume`` is not set, or code of the problem fails.

    Source:
        The paper's PINN study (its official training configurations).
    """
    if resume and folder is None:
        raise InvalidStateError("resuming needs the folder of the run's checkpoints")
    problem.box()
    device = resolve_device(config.device)
    if network is None:
        network = MLP(
            (len(problem.coordinates), *config.hidden, len(problem.fields)),
            generator=torch.Generator().manual_seed(config.seed),
            dtype=getattr(torch, config.dtype),
            device=device,
        )
    else:
        device = next(network.parameters()).device
    # A built-in problem's own reference follows from its options.
    follows = reference is None and type(problem).__module__.startswith("octavo_config_grad.")
    reference = _fitting(_own_reference(problem) if reference is None else reference, problem)
    run = _Run(problem, method, config, network, device, reference)
    run.reference_fingerprint = None if follows or reference is None else reference.fingerprint()
    checkpoints = None if folder is None else CheckpointFolder(folder)
    if checkpoints is not None and checkpoints.steps():
        if not resume:
            raise InvalidStateError(
                f"{str(folder)!r} holds the checkpoints of a run; resume it, or give another folder"
            )
        step, state = _newest(checkpoints)
        run.load_state_dict(state)
        if step < max(checkpoints.steps()):
            warnings.warn(
                f"the checkpoint of step {max(checkpoints.steps())} cannot be read; going on from step {step}",
                stacklevel=2,
            )
    run.advance(checkpoints, progress)
    return run.result()


class _Run:
    """A run in progress: all its state, and the loop."""

    def __init__(
        self,
        problem: Problem,
        method: str,
        config: TrainingConfig,
        network: nn.Module,
        device: torch.device,
        reference: Reference | None,
    ) -> None:
        self.problem, self.method, self.config = problem, method, config
        self.network, self.device, self.reference = network, device, reference
        self.reference_fingerprint: str | None = None
        self._check_network()
        options: dict[str, Any] = {"mode": config.derivatives}
        self.objective = Objective(
            problem, network, config.points, seed=config.seed, resample_every=config.resample_every, **options
        )
        self._evaluation = Objective(
            problem, network, config.points, seed=_EVALUATION_SEED, resample_every=_FOREVER, **options
        )
        self.stepper: Stepper = make_stepper(
            method,
            self.objective.loss,
            len(self.objective),
            network.parameters(),
            lr=config.lr,
            updates_per_step=config.updates_per_step,
            length=config.length,
            rank_policy=config.rank_policy,
            clip=config.clip,
            seed=config.seed,
        )
        passes = self.stepper.passes_per_step
        self.total_steps = config.steps
        if config.backward_passes is not None:
            self.total_steps = config.backward_passes // passes
            if self.total_steps < 1:
                raise InvalidValueError(
                    f"{config.backward_passes} backward passes are less than a step of {method!r}, which takes {passes}"
                )
        self.steps_between = max(1, config.evaluate_every // passes)
        self.step = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.finished = False
        self.history: list[dict[str, Any]] = []
        self.best_score = float("inf")
        self.best_step = 0
        self.best_errors: Errors | None = None
        self.final_errors: Errors | None = None
        self.prediction: np.ndarray | None = None

    def advance(self, checkpoints: CheckpointFolder | None, progress: Callable[[Progress], None] | None) -> None:
        """Train until the budget is spent."""
        if not self.history:
            self._evaluate(checkpoints, progress)
        while not self.finished:
            self._train_until_evaluation()
            self._evaluate(checkpoints, progress)

    def _train_until_evaluation(self) -> None:
        """Take steps up to the next evaluation or the end, on the clock."""
        synchronize(self.device)
        wall, cpu, before = time.perf_counter(), time.process_time(), self.seconds
        target = self.step - self.step % self.steps_between + self.steps_between
        if self.total_steps is not None:
            target = min(target, self.total_steps)
        while self.step < target:
            self.stepper.set_lr(self.config.lr * self._lr_factor())
            self.stepper.step()
            self.step += 1
            if self.config.seconds is not None:
                self.seconds = before + time.perf_counter() - wall
                if self.seconds >= self.config.seconds:
                    break
        synchronize(self.device)
        self.seconds = before + time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        self.finished = self.fraction >= 1.0

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent."""
        if self.total_steps is not None:
            return self.step / self.total_steps
        return min(1.0, self.seconds / float(self.config.seconds or 1.0))

    def _lr_factor(self) -> float:
        ratio = self.config.lr_end / self.config.lr
        if self.total_steps is None:
            return learning_rate_factor(self.fraction, 1.0, self.config.warmup, ratio)
        warmup = min(_WARMUP_STEPS, int(self.config.warmup * self.total_steps))
        return learning_rate_factor(self.step, self.total_steps, warmup, ratio)

    def _evaluate(self, checkpoints: CheckpointFolder | None, progress: Callable[[Progress], None] | None) -> None:
        """Measure errors, losses and conflict on fixed points, off the clock."""
        closures = [lambda index=index: self._evaluation.loss(index) for index in range(len(self.objective))]
        losses = [closure() for closure in closures]
        gradients = per_loss_gradients(losses, list(self.network.parameters()))
        values = torch.stack([loss.detach() for loss in losses]).double().cpu()
        if not torch.isfinite(values).all():
            raise InvalidStateError(
                f"training by {self.method!r} diverged: losses at step {self.step} are {values.tolist()}; "
                "lower the learning rate or clip"
            )
        mse = None
        if self.reference is not None:
            self.prediction = self.reference.predict(self.network)
            self.final_errors = self.reference.errors(self.prediction)
            mse = self.final_errors.mse
        self.history.append(
            {
                "steps": self.step,
                "backward_passes": self.backward_passes,
                "seconds": self.seconds,
                "mse": float("nan") if mse is None else mse,
                "losses": values.numpy(),
                "cosines": _cosines(gradients),
            }
        )
        score = float(values.sum()) if mse is None else mse
        if score < self.best_score:
            self.best_score, self.best_step, self.best_errors = score, self.step, self.final_errors
        if checkpoints is not None:
            checkpoints.save(self.step, self.state_dict())
        if progress is not None:
            progress(
                Progress(self.fraction, self.step, self.backward_passes, self.seconds, tuple(values.tolist()), mse)
            )

    @property
    def backward_passes(self) -> int:
        """Single-loss backward passes so far."""
        return self.step * self.stepper.passes_per_step

    def result(self) -> TrainingResult:
        """Return the outcome so far."""
        columns = {name: np.array([entry[name] for entry in self.history]) for name in self.history[0]}
        return TrainingResult(
            problem=type(self.problem).__name__,
            problem_options=self.problem.options(),
            method=self.method,
            config=self.config,
            loss_names=self.objective.names,
            history=History(**columns),
            steps=self.step,
            backward_passes=self.backward_passes,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            final=self.final_errors,
            best=self.best_errors,
            best_step=self.best_step,
            network=self.network,
            reference=self.reference,
            prediction=self.prediction,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        columns = {name: np.array([entry[name] for entry in self.history]) for name in self.history[0]}
        best = self.best_errors
        return {
            "identity": self._identity(),
            "network": dict(self.network.state_dict()),
            "stepper": self.stepper.state_dict(),
            "draws": list(self.objective.draws),
            "step": self.step,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "finished": self.finished,
            "history": columns,
            "best_score": self.best_score,
            "best_step": self.best_step,
            "best_errors": None if best is None else [best.mse, list(best.relative_l2), best.max_error],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        saved, own = state.get("identity", {}), self._identity()
        differing = [name for name in own if saved.get(name) != own[name]]
        if differing:
            name = differing[0]
            raise InvalidValueError(
                f"the checkpoint is of another run: {name} was {saved.get(name)!r} and is {own[name]!r}; "
                "give the same settings or another folder"
            )
        self.network.load_state_dict(copy.copy(state["network"]))
        self.stepper.load_state_dict(state["stepper"])
        self.objective.draws[:] = state["draws"]
        self.step, self.finished = state["step"], state["finished"]
        self.seconds, self.cpu_seconds = state["seconds"], state["cpu_seconds"]
        columns = state["history"]
        self.history = [{name: columns[name][i] for name in columns} for i in range(len(columns["steps"]))]
        self.best_score, self.best_step = state["best_score"], state["best_step"]
        if state["best_errors"] is not None:
            mse, relative, largest = state["best_errors"]
            self.best_errors = Errors(mse, tuple(relative), largest)
        if self.reference is not None:
            self.prediction = self.reference.predict(self.network)
            self.final_errors = self.reference.errors(self.prediction)

    def _identity(self) -> dict[str, Any]:
        options = {f"problem option {name}": value for name, value in self.problem.options().items()}
        settings = {name: value for name, value in self.config.to_dict().items() if name != "device"}
        shapes = [list(parameter.shape) for parameter in self.network.parameters()]
        return {
            "problem": type(self.problem).__name__,
            **options,
            "method": self.method,
            **settings,
            "shapes": shapes,
            "names of losses": list(self.objective.names),
            "hash of the reference": self.reference_fingerprint,
            "hash of the problem file": source_fingerprint(self.problem),
        }

    def _check_network(self) -> None:
        parameter = next(self.network.parameters())
        point = torch.zeros(1, len(self.problem.coordinates), dtype=parameter.dtype, device=parameter.device)
        try:
            with torch.no_grad():
                found = tuple(self.network(point).shape)
        except RuntimeError as error:
            raise InvalidValueError(
                f"the network does not take {len(self.problem.coordinates)} coordinates a point ({error})"
            ) from error
        if found != (1, len(self.problem.fields)):
            raise InvalidValueError(
                f"the network returns shape {found} for one point; the problem has the fields "
                f"{', '.join(self.problem.fields)}, so it must be {(1, len(self.problem.fields))}"
            )


def _cosines(gradients: list[list[Tensor]]) -> Float64[np.ndarray, "losses losses"]:
    products = gramian(gradients)
    return update_info(products, torch.ones(len(products), dtype=torch.float64)).cosine_matrix.numpy()


def _newest(checkpoints: CheckpointFolder) -> tuple[int, dict[str, Any]]:
    try:
        found = checkpoints.latest()
    except OctavoError as error:
        raise InvalidStateError(
            f"every checkpoint in {str(checkpoints.folder)!r} is torn or of another version; delete the folder or give "
            "another one to start anew"
        ) from error
    assert found is not None, "the folder was just seen to hold checkpoints"
    return found


def _own_reference(problem: Problem) -> Reference | None:
    try:
        found = problem.reference()
    except (Exception, SystemExit) as error:
        blame_user(error, f"the reference of {type(problem).__name__}", type(problem))
        raise
    if found is not None and not isinstance(found, Reference):
        raise InvalidTypeError(
            f"{type(problem).__name__}.reference() returned a {type(found).__name__}; return a pinn.Reference or None"
        )
    return found


def _fitting(reference: Reference | None, problem: Problem) -> Reference | None:
    if reference is None:
        return None
    if reference.coordinates != problem.coordinates or reference.fields != problem.fields:
        raise InvalidValueError(
            f"the reference has coordinates {', '.join(reference.coordinates)}, fields {', '.join(reference.fields)}; "
            f"the problem has {', '.join(problem.coordinates)} and {', '.join(problem.fields)}"
        )
    low, high = np.array(problem.lower), np.array(problem.upper)
    slack = 1e-6 * (high - low)
    if (reference.points < low - slack).any() or (reference.points > high + slack).any():
        raise InvalidValueError(
            f"the reference has points outside the problem's domain {tuple(problem.lower)} to {tuple(problem.upper)}"
        )
    return reference
