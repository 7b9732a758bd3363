"""Training runs in a folder: settings, evaluations along the way, checkpoints, a clean stop, and resuming."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo_core.checkpoint import CheckpointFolder
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_core.files import ensure_folder
from octavo_core.progress import ProgressCallback, no_progress

from octavo_aram.agent import Agent, as_constraint
from octavo_aram.buffers import memory_text
from octavo_aram.constraints._user import checked_count
from octavo_aram.env_loading import load_env
from octavo_aram.evaluation import EVALUATION_PREFERENCES, evaluate
from octavo_aram.interrupts import stoppable
from octavo_aram.methods import make_agent
from octavo_aram.ownership import refuse_training_envs
from octavo_aram.run_settings import (
    HISTORY,
    RunSettings,
    described,
    read_history,
    read_settings,
    sole_run,
    write_history,
    write_settings,
)
from octavo_aram.setting_checks import plain_value
from octavo_aram.user_code import user_errors

__all__ = ["RunSettings", "TrainingResult", "load_run", "train"]

_CHECKPOINTS = "checkpoints"
_NEEDED = ("step", "seconds", "training_tries", "training_accepted")


@dataclass
class TrainingResult:
    """A run and what was measured along it.

    Args:
        settings: The run.
        agent: The agent at its end.
        history: One row an evaluation.
        stopped: Whether it was stopped before its end.
    """

    settings: RunSettings
    agent: Agent
    history: list[dict[str, Any]]
    stopped: bool = False

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluation."""
        return self.history[-1]

    def summary(self) -> dict[str, Any]:
        """Return the run's main figures, JSON-ready.

        Returns:
            Names, last return and valid rate, projections, violations, seconds and memory.
        """
        last = self.final
        return {
            "env": self.settings.env,
            "constraint": self.settings.constraint,
            "method": self.settings.method,
            "seed": self.settings.config.seed,
            "steps": self.agent.num_steps,
            "return": last["return"],
            "valid_rate": last["valid_rate"],
            "acceptance_rate": last["acceptance_rate"],
            "projections": last["projections"],
            "violations": last["violations"],
            "microseconds_per_action": last["microseconds_per_action"],
            "seconds": last["seconds"],
            "buffer_memory": memory_text(self.agent.buffer.nbytes),
            "target_entropy": getattr(self.agent.core, "target_entropy", None),
            "stopped": self.stopped,
        }


def train(
    settings: RunSettings | Any,
    *,
    env: Callable[[], Any] | Any = None,
    constraint: Any = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int | Any = None,
    progress: ProgressCallback = no_progress,
) -> TrainingResult:
    """Train, evaluate along the way, and keep the run in a folder.

    An interrupt (Ctrl-C) ends the running step, saves a checkpoint and returns; a second one ends at once. Meanwhile
    no other run can train in the folder.

    Args:
        settings: The run.
        env: Makes the environment, instead of ``settings.env``.
        constraint: The constraint, instead of ``settings.constraint``.
        folder: Where settings, history and checkpoints are kept; None keeps nothing.
        resume: Continue from the last checkpoint in the folder; the run then equals the uninterrupted one. Without a
            checkpoint yet it begins anew, with a warning.
        checkpoint_every: Environment steps between checkpoints; at every evaluation if None.
        progress: Called with what is being done and the share done.

    Returns:
        The result.

    Raises:
        InvalidStateError: If the folder holds another run, or holds one already and ``resume`` is not given, or a run
            is training in it now.
        MissingFileError: If there is nothing to resume.
        InvalidValueError: If ``resume`` is given without a folder or with fewer steps than the run has made, ``env``
            returns the same object again, or ``checkpoint_every`` is below 1.
        InvalidTypeError: If ``settings`` or ``env`` is of a kind that is not accepted.
    """
    if not isinstance(settings, RunSettings):
        raise InvalidTypeError(f"settings is a {type(settings).__name__}; give RunSettings(env=..., constraint=...)")
    every = settings.evaluate_every
    if checkpoint_every is not None:
        every = checked_count(plain_value(checkpoint_every), "checkpoint_every", least=1)
    make = _maker(env, settings)
    if resume and folder is None:
        raise InvalidValueError("resume needs the folder of the run to continue")
    with user_errors("making the environment"):
        envs = [make() for _ in range(settings.num_envs)]
    feasible = as_constraint(settings.constraint if constraint is None else constraint, envs[0])
    agent = make_agent(settings.method, envs, feasible, settings.config)
    settings = described(settings, None if env is None else envs[0], None if constraint is None else feasible)
    settings = replace(settings, constraint_fingerprint=agent.constraint_fingerprint)
    result = TrainingResult(settings, agent, [])
    place = None if folder is None else Path(folder)
    checkpoints = None
    with contextlib.ExitStack() as held:
        if place is not None:
            checkpoints = CheckpointFolder(place / _CHECKPOINTS)
            _check_folder(place, settings, checkpoints, resume)
            held.enter_context(sole_run(ensure_folder(place)))
            if resume:
                _resume(result, place, checkpoints)
            # Only now: a run that is refused stays as it was.
            write_settings(place, settings)
        with user_errors("making the environment"):
            evaluation_env = make()
        refuse_training_envs([evaluation_env])
        clock = time.perf_counter() - (result.history[-1]["seconds"] if result.history else 0.0)
        if settings.steps <= settings.config.start_steps:
            warnings.warn(
                f"steps={settings.steps:,} is no more than start_steps={settings.config.start_steps:,}, the uniform "
                "steps before the updates begin, so that the policy stays untrained; raise steps, or lower start_steps",
                stacklevel=2,
            )
        description = f"{settings.method} on {settings.constraint}, seed {settings.config.seed}"
        saved = agent.num_steps
        try:
            with stoppable() as stop, agent.suitable_threads():
                while agent.num_steps < settings.steps and not stop.is_set():
                    before = agent.num_steps
                    agent.step()
                    progress(description, min(1.0, agent.num_steps / settings.steps))
                    ended = agent.num_steps >= settings.steps
                    if ended or _crosses(before, agent.num_steps, settings.evaluate_every):
                        result.history.append(_measure(result, evaluation_env, time.perf_counter() - clock))
                        if place is not None:
                            write_history(place, result.history)
                    if checkpoints is not None and (ended or _crosses(before, agent.num_steps, every)):
                        checkpoints.save(agent.num_steps, agent.state_dict())
                        saved = agent.num_steps
                result.stopped = agent.num_steps < settings.steps
                if checkpoints is not None and agent.num_steps != saved:
                    checkpoints.save(agent.num_steps, agent.state_dict())
                if not result.history:
                    result.history.append(_measure(result, evaluation_env, time.perf_counter() - clock))
        finally:
            for entry in (*envs, evaluation_env):
                entry.close()
        return result


def load_run(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    env: Callable[[], Any] | Any = None,
    constraint: Any = None,
    predict_only: bool = False,
) -> tuple[RunSettings, Agent]:
    """Load the agent of a run's last checkpoint.

    Args:
        folder: The run's folder.
        device: Device of the networks; that of the run if None.
        env: Makes the environment; needed if the run was given one as an object, otherwise its name is loaded.
        constraint: The constraint; as ``env``.
        predict_only: Load the policy alone, in one environment, without buffers and running episodes.

    Returns:
        The run's settings and its agent.

    Raises:
        MissingFileError: If the folder holds no run, or no checkpoint yet.
        InvalidValueError: If the run was given its environment or constraint as an object and none is given now.
        InvalidTypeError: If ``env`` is no function that makes one.
        InvalidStateError: If what is given is not that of the run, or files cannot be read.
    """
    from octavo_aram.methods import agent_from_state

    settings = read_settings(Path(folder))
    for name, value in (("env", env), ("constraint", constraint)):
        if name in settings.given and value is None:
            raise InvalidValueError(
                f"the run in {str(folder)!r} was given its {name} as a Python object, {getattr(settings, name)}; give "
                f"it again: load_run(folder, {name}=...)"
            )
    found = _newest(CheckpointFolder(Path(folder) / _CHECKPOINTS))
    if found is None:
        raise MissingFileError(f"no checkpoint in {str(folder)!r} yet; train longer")
    make = _maker(env, settings)
    with user_errors("making the environment"):
        envs = [make() for _ in range(1 if predict_only else settings.num_envs)]
    feasible = as_constraint(settings.constraint if constraint is None else constraint, envs[0])
    return settings, agent_from_state(found[1], envs, feasible, device=device, predict_only=predict_only)


def _maker(env: Any, settings: RunSettings) -> Callable[[], Any]:
    """What makes an environment of the run."""
    if env is None:
        return lambda: load_env(settings.env)
    if not callable(env):
        kind = type(env).__name__
        raise InvalidTypeError(f"env is a {kind}; give a function that makes one, such as lambda: {kind}(...)")
    return env


def _measure(result: TrainingResult, env: Any, seconds: float) -> dict[str, Any]:
    """One row of the history."""
    agent, settings = result.agent, result.settings
    random = agent.objectives > 1 and settings.config.preference == "dirichlet"
    preferences: Sequence[Any] = EVALUATION_PREFERENCES if random else (None,)
    last = agent.num_steps >= settings.steps
    episodes = (settings.final_episodes if last else None) or settings.episodes
    found = [
        evaluate(agent, env, episodes=episodes, preference=weights, seed=settings.config.seed)
        for weights in preferences
    ]
    middle = found[len(found) // 2]
    counters = agent.counters
    training = counters.training
    previous = result.history[-1] if result.history else {"training_tries": 0, "training_accepted": 0, "step": 0}
    tries = training.tries - previous["training_tries"]
    accepted = training.accepted - previous["training_accepted"]
    return {
        "step": agent.num_steps,
        "seconds": round(seconds, 3),
        "return": middle.mean_return,
        "valid_rate": middle.valid_rate,
        "by_preference": [entry.to_json() for entry in found] if random else [],
        "returns": list(middle.returns),
        # Since the row before.
        "acceptance_rate": accepted / tries if tries else None,
        "mean_tries": tries / accepted if accepted else None,
        "training_tries": training.tries,
        "training_accepted": training.accepted,
        "projections": counters.projections,
        "warmup_projections": counters.warmup.projections,
        "evaluation_projections": counters.evaluation.projections,
        "fallbacks": counters.warmup.fallbacks + training.fallbacks,
        "violations": counters.violations,
        "temperature": agent.core.temperature,
        "microseconds_per_action": middle.seconds_per_action * 1e6,
        "wall_time": {name: round(value, 3) for name, value in counters.seconds.items()},
    }


def _crosses(before: int, after: int, every: int) -> bool:
    return before // every != after // every


def _check_folder(folder: Path, settings: RunSettings, checkpoints: CheckpointFolder, resume: bool) -> None:
    if resume:
        saved = read_settings(folder).to_json()
        mine = settings.to_json()
        # More steps continue a run further, and a checkpoint knows its constraint; all else makes it another one.
        differing = [
            name
            for name in mine
            if name not in {"steps", "config", "final_episodes", "constraint_fingerprint"} and mine[name] != saved[name]
        ]
        if differing:
            shown = ", ".join(f"{name}={saved[name]!r}" for name in differing)
            raise InvalidStateError(f"the run in {str(folder)!r} has {shown}; give the same to continue it")
    elif checkpoints.steps():
        raise InvalidStateError(
            f"{str(folder)!r} holds a run already; continue it with resume (--resume), or give another folder"
        )


def _newest(checkpoints: CheckpointFolder) -> tuple[int, dict[str, Any]] | None:
    """The newest checkpoint that is whole; a newer one that is not is told."""
    found = checkpoints.latest()
    if found is not None and found[0] != (newest := checkpoints.steps()[-1]):
        warnings.warn(
            f"the checkpoint of step {newest} in {str(checkpoints.folder)!r} is damaged; the one of step {found[0]} is "
            "used instead",
            stacklevel=3,
        )
    return found


def _resume(result: TrainingResult, folder: Path, checkpoints: CheckpointFolder) -> None:
    found = _newest(checkpoints)
    if found is None:
        warnings.warn(
            f"{str(folder)!r} holds no checkpoint yet, so that nothing is resumed: the run begins anew", stacklevel=3
        )
        return
    # Less than a step of all environments beyond the wanted length is where a run of that length ends.
    steps, settings = found[0], result.settings
    if steps - settings.num_envs >= settings.steps:
        raise InvalidValueError(
            f"steps={settings.steps:,} is less than the {steps:,} that the run in {str(folder)!r} has made; give more "
            "to continue it"
        )
    file = folder / HISTORY
    try:
        # What later rows and summaries are computed from.
        rows = read_history(file, _NEEDED) if file.is_file() else []
    except InvalidValueError as error:
        raise InvalidStateError(
            f"{str(file)!r} cannot be read as the history of a run ({error}); mend it, or delete it to continue "
            "without the rows so far"
        ) from error
    result.agent.load_state_dict(found[1], global_random=True)
    # A checkpoint can be older than the last row when the run was killed between the two.
    result.history = [row for row in rows if row["step"] <= found[0]]
