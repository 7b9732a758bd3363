"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator

__all__ = ["ProgressCallback", "console_progress", "no_progress"]

ProgressCallback = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, in [0, 1]."""


def no_progress(description: str, done: float) -> None:
    """Show nothing; the default of library code.

    Args:
        description: What is being done.
        done: Share done, in [0, 1].
    """


@contextlib.contextmanager
def console_progress(*, quiet: bool = False, every_seconds: float = 5.0) -> Generator[ProgressCallback, None, None]:
    """Show progress on standard error, so that standard output stays clean for results.

    Args:
        quiet: Show nothing.
        every_seconds: Least seconds between two lines about the same work where standard error is no terminal.

    Yields:
        The callback.
    """
    if quiet:
        yield no_progress
    elif sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield _lines(every_seconds)


@contextlib.contextmanager
def _bar() -> Generator[ProgressCallback, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def callback(description: str, done: float) -> None:
            if description not in tasks:
                tasks[description] = progress.add_task(description, total=1.0)
            progress.update(tasks[description], completed=done)

        yield callback


def _lines(every_seconds: float) -> ProgressCallback:
    last: dict[str, float] = {}
    finished: set[str] = set()

    def callback(description: str, done: float) -> None:
        now = time.monotonic()
        if description in finished or (done < 1.0 and now - last.get(description, -every_seconds) < every_seconds):
            return
        last[description] = now
        if done >= 1.0:
            finished.add(description)
        print(f"{description}: {done:.0%}", file=sys.stderr, flush=True)

    return callback
