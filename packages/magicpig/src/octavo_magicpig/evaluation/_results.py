"""Results of an evaluation: one line each in a file beside the settings they were made with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidStateError
from octavo_core.files import atomic_write

__all__ = ["Outcome", "ResultLog", "summarise"]

_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Outcome:
    """Result of one method on one example.

    Args:
        task: Task, or ``"nll"``.
        index: Number of the example.
        method: Method.
        protocol: ``"A"``: the question is processed exactly with its context; ``"B"``: it is decoded by the method.
        value: Score in [0, 1], or mean loss of a token in nats.
        tokens: Tokens of the prompt.
        seconds: Time of decoding.
        answer: What the model wrote.
    """

    task: str
    index: int
    method: str
    protocol: str
    value: float
    tokens: int
    seconds: float
    answer: str = ""

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What names the result."""
        return self.task, self.index, self.method, self.protocol


def summarise(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Mean value of each task, protocol and method.

    Args:
        outcomes: Outcomes.

    Returns:
        Rows with ``task``, ``protocol``, ``method``, ``mean``, ``examples`` and ``seconds``.
    """
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.task, outcome.protocol, outcome.method), []).append(outcome)
    return [
        {
            "task": task,
            "protocol": protocol,
            "method": method,
            "mean": sum(o.value for o in members) / len(members),
            "examples": len(members),
            "seconds": sum(o.seconds for o in members),
        }
        for (task, protocol, method), members in groups.items()
    ]


class ResultLog:
    """Finished outcomes, in memory and in a file of JSON lines.

    Args:
        path: The file, or ``None`` for memory alone. The settings go to ``settings.json`` beside it.
        resume: Keep what the file holds.
        settings: What decides the results, by name, JSON values; a run of others is not continued. ``None`` keeps no
            record.

    Raises:
        InvalidStateError: If the file exists and ``resume`` is not set, was made with other settings, or is damaged.
    """

    def __init__(
        self, path: str | Path | None, resume: bool = False, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.path = None if path is None else Path(path)
        self.outcomes: list[Outcome] = []
        if self.path is not None:
            record = None if settings is None else json.loads(json.dumps(dict(settings)))
            if self.path.exists():
                if not resume:
                    raise InvalidStateError(
                        f"{str(self.path)!r} exists; give --resume to continue it, or another folder"
                    )
                if record is not None:
                    _compare(self.path.with_name(_SETTINGS), record)
                self._read(self.path)
            elif record is not None:
                atomic_write(self.path.with_name(_SETTINGS), json.dumps(record, indent=2) + "\n")
        self.keys = {outcome.key for outcome in self.outcomes}

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome.

        Args:
            outcome: The outcome, written at once.
        """
        self.outcomes.append(outcome)
        self.keys.add(outcome.key)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")

    def _read(self, path: Path) -> None:
        text = _text(path)
        lines = text.splitlines()
        # A killed run leaves at most one line torn: the last. It is cut off, so that the next one starts on its own.
        if text and not text.endswith("\n"):
            lines.pop()
            atomic_write(path, "".join(f"{line}\n" for line in lines))
        for number, line in enumerate(lines, 1):
            try:
                self.outcomes.append(_parse(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise InvalidStateError(
                    f"{str(path)!r}, line {number} is no result of this version: {error}; mend or remove the line"
                ) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidStateError(f"{str(path)!r} is not UTF-8 text: {error.reason}; give another folder") from error
    except OSError as error:
        raise InvalidStateError(f"{str(path)!r} cannot be read: {error.strerror}; give another folder") from error


def _compare(path: Path, settings: dict[str, Any]) -> None:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidStateError(f"{str(path)!r} is not JSON: {error}; give another folder") from error
    before, now = _flat(found), _flat(settings)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise InvalidStateError(
                f"the results beside {str(path)!r} were made with {name}={before.get(name)!r}, this run has "
                f"{name}={now.get(name)!r}; give the same settings, or another folder"
            )


def _flat(settings: Any) -> dict[str, Any]:
    """Settings by name, those of a nested table beside the others."""
    flat: dict[str, Any] = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}


def _parse(entry: Any) -> Outcome:
    if not isinstance(entry, dict):
        raise TypeError(f"it is of type {type(entry).__name__}")
    for field in fields(Outcome):
        value = entry.get(field.name, "" if field.name == "answer" else None)
        if isinstance(value, bool) or not isinstance(value, _KINDS[str(field.type)]):
            raise TypeError(f"{field.name}={value!r} is not of type {field.type}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name}={value} is not finite")
    return Outcome(**entry)
