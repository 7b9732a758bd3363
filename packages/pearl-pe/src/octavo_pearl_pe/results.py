"""Results on disk: rows that are written as they come, and one table of all that a folder holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from octavo_core.files import atomic_write, ensure_folder

__all__ = ["RowFile", "collect_results", "markdown_table"]

_MOST_BYTES = 50 * 2**20


class RowFile:
    """The rows of a command, kept in ``<folder>/<name>.json`` after each one, so that a killed run loses none.

    Args:
        folder: Where the file is; None keeps the rows in memory alone.
        name: Name of the command.
        settings: What all rows share.
        keys: Fields that tell rows apart.
        resume: Keep the rows that are there, which must have been made with the same settings.

    Raises:
        InvalidStateError: If there are rows of other settings.
        InvalidValueError: If the file is not such a file.
    """

    def __init__(
        self, folder: Path | None, name: str, settings: dict[str, Any], keys: tuple[str, ...], *, resume: bool = False
    ) -> None:
        self._path = None if folder is None else ensure_folder(folder) / f"{name}.json"
        self._head, self._keys = {"command": name, "settings": settings}, keys
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        if resume and self._path is not None and self._path.exists():
            document = _read(self._path)
            if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
                raise InvalidValueError(f"{str(self._path)!r} holds no rows of {name!r}; name another folder")
            if document.get("settings") != settings:
                raise InvalidStateError(
                    f"{str(self._path)!r} was made with {document.get('settings')}, now asked for is {settings}; use "
                    "the same, or name another folder"
                )
            self._rows = {self._key(row): row for row in document["rows"]}

    def has(self, *key: Any) -> bool:
        """Tell whether a row is there.

        Args:
            *key: Its values of the key fields.

        Returns:
            Whether it is.
        """
        return key in self._rows

    def add(self, row: dict[str, Any]) -> None:
        """Add a row and write the file.

        Args:
            row: The row.
        """
        # As it will be read, so that a resumed run prints the same.
        row = json.loads(json.dumps(row))
        self._rows[self._key(row)] = row
        if self._path is not None:
            document = self._head | {"rows": list(self._rows.values())}
            atomic_write(self._path, json.dumps(document, indent=2) + "\n")

    def chosen(self, keys: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Return rows.

        Args:
            keys: Values of the key fields.

        Returns:
            The rows, in this order.
        """
        return [self._rows[key] for key in keys]

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._keys)


def collect_results(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Join the results of trainings, measurements, demos and benchmarks under a folder.

    Args:
        folder: The folder; the folders below it are searched too.

    Returns:
        Rows with ``file``, ``measurement``, ``value`` and ``note``, in the order of the files.

    Raises:
        MissingFileError: If there is no such folder, or no results in it.
        InvalidValueError: If a file of results cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise MissingFileError(f"no folder {str(root)!r}; give one that --out wrote to")
    rows = []
    for path in sorted(root.rglob("*.json")):
        reader = _READERS.get(path.name)
        if reader is None:
            continue
        try:
            found = list(reader(_read(path)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, InvalidValueError):
                raise
            raise InvalidValueError(f"{str(path)!r} is not a file of results of this version; move it away") from error
        name = path.relative_to(root).as_posix()
        rows += [{"file": name, "measurement": what, "value": value, "note": note} for what, value, note in found]
    if not rows:
        raise MissingFileError(f"no results under {str(root)!r}; commands write them with --out")
    return rows


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Lay rows out as a Markdown table.

    Args:
        rows: From ``collect_results``.

    Returns:
        The table.
    """
    lines = ["| file | measurement | value | note |", "|---|---|---|---|"]
    for row in rows:
        cells = (row["file"], row["measurement"], _shown(row["value"]), row["note"])
        lines.append("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


_Result = tuple[str, Any, str]


def _training(document: Any) -> Iterator[_Result]:
    options, result = document["options"], document["result"]
    named = f"{options['data']}, {options['pe']}, {options['model']}: {result['metric']}"
    note = f"{options['epochs']} epochs, seed {options['seed']}, {result['graphs']} graphs"
    yield f"{named}, test", result["test"], note
    yield f"{named}, validation", result["valid"], note


def _expressivity(document: Any) -> Iterator[_Result]:
    for row in document["rows"]:
        name = f"expressivity of {row['encoding']}"
        yield f"{name}: pairs of the atlas separated", row["atlas"][0], f"of {row['atlas'][1]}"
        yield f"{name}: CSL classes told apart", row["csl_classes"], "of 10"
        yield f"{name}: cospectral pairs separated", row["cospectral"][0], f"of {row['cospectral'][1]}"
        yield f"{name}: strongly regular pair separated", row["srg"], ""
        yield f"{name}: false alarms", row["false_alarms"], f"of {row['controls']}"


def _scaling(document: Any) -> Iterator[_Result]:
    settings = document["settings"]
    for row in document["rows"]:
        for peer in settings["peers"]:
            note = "seconds" if row[peer] is not None else "did not converge"
            yield f"time of {peer}, {row['family']}, n = {row['n']:,}", row[peer], note


def _stability(document: Any) -> Iterator[_Result]:
    for point in document:
        yield f"relative change of PEARL at eps = {point['eps']:g}", point["change"], ""
        yield f"relative change of eigenvectors at eps = {point['eps']:g}", point["eigenvector_change"], ""


def _report(document: Any) -> Iterator[_Result]:
    for row in document["rows"]:
        target = (
            "" if row["target"] is None else f"target {row['target']}: {'holds' if row['holds'] else 'DOES NOT HOLD'}"
        )
        yield row["label"], row["value"], "; ".join(part for part in (row["unit"], target) if part)


_READERS = {
    "result.json": _training,
    "expressivity.json": _expressivity,
    "scaling.json": _scaling,
    "stability.json": _stability,
    "report.json": _report,
}


def _read(path: Path) -> Any:
    if path.stat().st_size > _MOST_BYTES:
        raise InvalidValueError(f"{str(path)!r} has more than 50 MiB, which no file of results has; move it away")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidValueError(f"{str(path)!r} is not JSON: {error}") from error


def _shown(value: Any) -> str:
    match value:
        case None:
            return "n/a"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
    return str(value)
