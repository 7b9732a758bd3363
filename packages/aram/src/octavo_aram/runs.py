"""Several training runs at once, one process a core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch
from octavo_core.device import available_cores, num_threads
from octavo_core.errors import InvalidValueError
from octavo_core.progress import ProgressCallback, no_progress

from octavo_aram.training import RunSettings, train

__all__ = ["train_all"]


def train_all(
    jobs: Sequence[RunSettings], progress: ProgressCallback = no_progress, *, workers: int | None = None
) -> list[dict[str, Any]]:
    """Train every job on one thread each.

    Args:
        jobs: The runs.
        progress: Called with the share done.
        workers: Processes; None for one a core, or one where a job trains on an accelerator.

    Returns:
        For each job its summary (see :meth:`octavo_aram.training.TrainingResult.summary`) and its ``history``.

    Raises:
        InvalidValueError: If there is no job.
    """
    if not jobs:
        raise InvalidValueError("there is nothing to train; give at least one run")
    if workers is None:
        workers = available_cores() if all(job.config.device == "cpu" for job in jobs) else 1
    workers = min(len(jobs), workers)
    progress("training", 0.0)
    outcomes: dict[int, dict[str, Any]] = {}
    if workers == 1:
        with num_threads(1):
            for index, job in enumerate(jobs):
                outcomes[index] = _train(
                    job, lambda _, share, index=index: progress("training", (index + share) / len(jobs))
                )
    else:
        # Spawned, not forked: a fork of a process whose OpenMP threads have started can hang. A Pool, whose workers end
        # when this process is killed; those of an executor would wait for ever.
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for index, outcome in pool.imap_unordered(_train_alone, list(enumerate(jobs))):
                outcomes[index] = outcome
                progress("training", len(outcomes) / len(jobs))
    progress("training", 1.0)
    return [outcomes[index] for index in range(len(jobs))]


def _train_alone(numbered: tuple[int, RunSettings]) -> tuple[int, dict[str, Any]]:
    torch.set_num_threads(1)
    return numbered[0], _train(numbered[1], no_progress)


def _train(job: RunSettings, progress: ProgressCallback) -> dict[str, Any]:
    result = train(job, progress=progress)
    return {**result.summary(), "history": result.history}
