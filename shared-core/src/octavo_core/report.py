"""Reports: what every demo and benchmark returns, as a table, as JSON and as one self-contained HTML page.

A row states a measurement and, where there is a claim, its target; whether the target holds is computed here from the
measured numbers and never passed in.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import math
import operator
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

from octavo_core.errors import InvalidValueError, MissingFileError
from octavo_core.files import atomic_write, ensure_folder

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["SCHEMA", "Report", "Row", "figure_png", "load_report", "target_holds"]

SCHEMA = "octavo-report/1"
"""Name and version of the JSON form."""

Number = float | int | bool
"""What a row holds. int is named because run-time checkers do not take it for a float."""

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FIELD = r"value|ratio|peer_value"
_SIDED = re.compile(rf"(?P<field>{_FIELD})\s*(?P<op>>=|<=|==|>|<)\s*(?P<bound>{_NUMBER})")
_BETWEEN = re.compile(rf"(?P<low>{_NUMBER})\s*<=\s*(?P<field>{_FIELD})\s*<=\s*(?P<high>{_NUMBER})")
_VERDICTS = {True: "holds", False: "DOES NOT HOLD", None: ""}


def target_holds(target: str, fields: Mapping[str, Number | None]) -> bool:
    """Evaluate a target such as ``"ratio >= 5"``, ``"0.9 <= value <= 1.1"`` or two of them joined by ``and``.

    Args:
        target: Comparisons of ``value``, ``ratio`` or ``peer_value`` with numbers.
        fields: The measured fields. One that is missing or not finite meets no target.

    Returns:
        Whether every comparison holds.

    Raises:
        InvalidValueError: If the target cannot be read.
    """
    holds = True
    for clause in re.split(r"\s+and\s+", target.strip()):
        if match := _SIDED.fullmatch(clause):
            comparisons = [(_COMPARE[match["op"]], match["bound"])]
        elif match := _BETWEEN.fullmatch(clause):
            comparisons = [(operator.ge, match["low"]), (operator.le, match["high"])]
        else:
            raise InvalidValueError(
                f"target {target!r} cannot be read; write comparisons of value, ratio or peer_value with numbers, "
                "as in 'ratio >= 5' or '0.9 <= value <= 1.1', joined by 'and'"
            )
        measured = fields.get(match["field"])
        # Every clause is read even after one has failed, so that a target that cannot be read is always told.
        holds = (
            holds
            and measured is not None
            and math.isfinite(measured)
            and all(compare(measured, float(bound)) for compare, bound in comparisons)
        )
    return holds


@dataclass(frozen=True)
class Row:
    """One measurement of a report.

    Args:
        id: Name that stays the same between versions, e.g. ``"update_vs_torchjd_n1e6_m3"``.
        label: What it says, for a reader.
        value: The measurement; a bool for a check.
        unit: Unit of ``value`` and ``peer_value``.
        peer: What it is compared with, with its version.
        peer_value: The peer's measurement.
        better: ``"lower"`` when a smaller value is better (times, errors), ``"higher"`` for scores.
        target: The claim, read by :func:`target_holds`; ``None`` for a plain figure.
        spread: Low and high end of the repetitions, in ``unit``.
        note: What a reader must know to judge the number.
    """

    id: str
    label: str
    value: Number | None
    unit: str = ""
    peer: str | None = None
    peer_value: Number | None = None
    better: Literal["lower", "higher"] = "lower"
    target: str | None = None
    spread: tuple[Number, Number] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.target is not None:
            target_holds(self.target, {})

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer; above 1 is better whatever the unit.

        ``None`` where it would say nothing: without a peer, for numbers below zero, or over zero.
        """
        if self.value is None or self.peer_value is None:
            return None
        ours, theirs = float(self.value), float(self.peer_value)
        numerator, denominator = (theirs, ours) if self.better == "lower" else (ours, theirs)
        return numerator / denominator if numerator >= 0 and denominator > 0 else None

    @property
    def holds(self) -> bool | None:
        """Whether the target holds; ``None`` without a target."""
        if self.target is None:
            return None
        return target_holds(self.target, {"value": self.value, "ratio": self.ratio, "peer_value": self.peer_value})

    def summary(self) -> str:
        """Return the measured figures in one phrase."""
        cells = _cells(self)
        against = f" against {cells['peer']}" if self.peer is not None else ""
        ratio = f" ({cells['ratio']})" if cells["ratio"] else ""
        target = f" [target {self.target}]" if self.target else ""
        return f"{cells['value']}{against}{ratio}{target}"

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready fields; numbers that are not finite become null."""
        return {
            "id": self.id,
            "label": self.label,
            "value": _finite(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": _finite(self.peer_value),
            "ratio": _finite(self.ratio),
            "target": self.target,
            "holds": self.holds,
            "spread": None if self.spread is None else [_finite(end) for end in self.spread],
            "note": self.note,
        }


@dataclass
class Report:
    """The result of a demo or a benchmark.

    Args:
        method: Slug of the method, e.g. ``"config-grad"``.
        kind: ``"demo"`` or ``"bench"``.
        seed: Seed of the run.
        title: Heading of the HTML page.
        packages: Distributions whose versions belong to the environment, besides torch and NumPy.
    """

    method: str
    kind: Literal["demo", "bench"]
    seed: int = 0
    title: str = ""
    packages: Sequence[str] = ()
    rows: list[Row] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    command: list[str] = field(default_factory=lambda: [Path(sys.argv[0]).name, *sys.argv[1:]])
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float | None = None

    def __post_init__(self) -> None:
        self._clock = time.perf_counter()

    def add(self, id: str, label: str, value: SupportsFloat | None, unit: str = "", **fields: Any) -> Row:
        """Append a row.

        Args:
            id: See :class:`Row`.
            label: See :class:`Row`.
            value: See :class:`Row`; a scalar of NumPy or torch is taken too, here and for ``peer_value``.
            unit: See :class:`Row`.
            **fields: The other fields of :class:`Row`.

        Returns:
            The row.

        Raises:
            InvalidValueError: If the id is taken or the target cannot be read.
        """
        plain = {name: _plain(content) for name, content in fields.items()}
        return self.append(Row(id, label, _plain(value), unit, **plain))

    def append(self, row: Row) -> Row:
        """Append a row that exists already.

        Args:
            row: The row.

        Returns:
            The row.

        Raises:
            InvalidValueError: If its id is taken.
        """
        if any(other.id == row.id for other in self.rows):
            raise InvalidValueError(f"report row {row.id!r} exists already; ids are unique within a report")
        self.rows.append(row)
        return row

    def attach(self, name: str, content: bytes | Any) -> None:
        """Attach a file, saved beside the report; PNG figures are shown in the page.

        Args:
            name: File name without folders, e.g. ``"landscape.png"``.
            content: The bytes, or a matplotlib figure, stored as PNG.

        Raises:
            InvalidValueError: If the name has folders in it or would overwrite the report.
        """
        if not name or Path(name).name != name or name.startswith(".") or name in {"report.json", "report.html"}:
            raise InvalidValueError(f"artifact name {name!r} is not allowed; give a plain file name")
        self.artifacts[name] = content if isinstance(content, bytes) else figure_png(content)

    def finish(self) -> Report:
        """Stop the clock; later calls change nothing.

        Returns:
            The report itself.
        """
        if self.seconds is None:
            self.seconds = time.perf_counter() - self._clock
        return self

    @property
    def holds(self) -> bool:
        """Whether every row with a target meets it."""
        return all(row.holds is not False for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON object of schema ``octavo-report/1``."""
        from octavo_core.device import describe

        self.finish()
        return {
            "schema": SCHEMA,
            "method": self.method,
            "version": _version(f"octavo-{self.method}"),
            "kind": self.kind,
            "command": self.command,
            "seed": self.seed,
            "environment": describe(["octavo-core", f"octavo-{self.method}", "torch", "numpy", *self.packages]),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds or 0.0, 3),
            "rows": [row.to_json() for row in self.rows],
            "artifacts": list(self.artifacts),
        }

    def table(self) -> Table:
        """Lay the rows out for a terminal.

        Returns:
            A rich table.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title or f"{self.method} {self.kind}"), title_justify="left")
        table.add_column("measurement")
        for name in ("value", "peer", "ratio"):
            table.add_column(name, justify="right")
        table.add_column("target")
        table.add_column("holds")
        for row in self.rows:
            cells = _cells(row)
            verdict = Text(cells["verdict"], style={True: "green", False: "bold red", None: "dim"}[row.holds])
            label = Text(row.label)
            if row.note:
                label.append(f"\n{row.note}", style="dim")
            # Text, because a plain string would be read as markup: "[m]" in a unit would vanish.
            figures = (Text(cells[name]) for name in ("value", "peer", "ratio", "target"))
            table.add_row(label, *figures, verdict)
        return table

    def to_html(self) -> str:
        """Render one page with the figures inlined and no request to anywhere.

        Returns:
            The page.
        """
        from jinja2 import Environment, PackageLoader

        document = self.to_json()
        templates = Environment(
            loader=PackageLoader("octavo_core"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        pictures = {name: content for name, content in self.artifacts.items() if content.startswith(b"\x89PNG")}
        rows = [{**_cells(row), "label": row.label, "note": row.note, "holds": row.holds} for row in self.rows]
        return templates.get_template("report.html.j2").render(
            report=document,
            title=self.title or f"{self.method} {self.kind}",
            command=shlex.join(self.command),
            rows=rows,
            figures=[(name, base64.b64encode(content).decode()) for name, content in pictures.items()],
            files=[name for name in self.artifacts if name not in pictures],
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``report.json``, ``report.html`` and the artifacts, each atomically.

        Args:
            folder: Where to; created if missing.

        Returns:
            The folder.

        Raises:
            InvalidStateError: If the folder cannot be written to.
        """
        path = ensure_folder(folder)
        for name, content in self.artifacts.items():
            atomic_write(path / name, content)
        atomic_write(path / "report.json", json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")
        atomic_write(path / "report.html", self.to_html())
        return path


def load_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a ``report.json``.

    Args:
        path: The file, or the folder that holds it.

    Returns:
        The JSON object.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is not a report of a schema this version reads.
    """
    file = Path(path)
    file = file / "report.json" if file.is_dir() else file
    if not file.is_file():
        raise MissingFileError(
            f"no report at {str(file)!r}; give a report.json or the folder that a demo wrote with --out"
        )
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise InvalidValueError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InvalidValueError(f"{str(file)!r} is not a report: schema is {found!r}, accepted is {SCHEMA!r}")
    return document


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _plain(number: Any) -> Any:
    return number.item() if hasattr(number, "item") else number


def _finite(number: Number | None) -> Number | None:
    return number if number is not None and math.isfinite(number) else None


def _format(number: Number | None, unit: str = "") -> str:
    if number is None:
        return "n/a"
    if isinstance(number, bool):
        return "yes" if number else "no"
    text = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    return f"{text} {unit}".rstrip()


def _cells(row: Row) -> dict[str, str]:
    value = _format(row.value, row.unit)
    if row.spread is not None:
        value += f" ({row.spread[0]:.3g} to {row.spread[1]:.3g})"
    return {
        "value": value,
        "peer": "" if row.peer is None else f"{_format(row.peer_value, row.unit)} {row.peer}",
        "ratio": "" if row.ratio is None else f"{row.ratio:.3g}x",
        "target": row.target or "",
        "verdict": _VERDICTS[row.holds],
    }


def figure_png(figure: Any) -> bytes:
    """Draw a matplotlib figure as PNG.

    Args:
        figure: The figure.

    Returns:
        The file's content.
    """
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()
