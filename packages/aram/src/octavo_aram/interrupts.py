"""A clean stop: the first interrupt ends a run at a step's end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator

__all__ = ["stoppable"]


@contextlib.contextmanager
def stoppable() -> Generator[threading.Event, None, None]:
    """Turn the first interrupt within a block into an event; a second one raises as usual.

    Handlers can be set in the main thread alone; elsewhere the event is never set.

    Yields:
        The event.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
