"""Relational databases as heterogeneous graphs: rows are nodes, references from table to table are edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor
from torch_geometric.data import HeteroData

from octavo_pearl_pe.checks import whole_number

__all__ = ["RelationalTable", "from_relbench", "tables_to_hetero"]

# Floats count to here without gaps; beyond, two keys may have become one.
_EXACT_FLOATS = 2.0**53


@dataclass(frozen=True)
class RelationalTable:
    """The keys of a table; its other columns do not matter to a positional encoding.

    Args:
        columns: Key columns by name, each one value a row: arrays, lists or pandas series. Missing references are None,
            NaN, NaT or pandas' NA.
        primary_key: Column with a different value in every row; None if no table refers to this one.
        foreign_keys: Column to the name of the table whose primary key it holds.
        num_rows: Number of rows, for a table without key columns.
    """

    columns: Mapping[str, Any]
    primary_key: str | None = None
    foreign_keys: Mapping[str, str] = field(default_factory=dict)
    num_rows: int | None = None


def tables_to_hetero(tables: Mapping[str, RelationalTable] | Any) -> HeteroData:
    """Join tables along their keys.

    Every row becomes a node of the type named after its table. A foreign key ``column`` of table A that refers to table
    B gives the edge types ``(A, column, B)`` and ``(B, rev_column, A)``; missing references give no edge. Keys agree
    where Python's ``==`` does: 1 and 1.0 are one key, 1 and "1" are two.

    Args:
        tables: Tables by name.

    Returns:
        The graph, with ``num_nodes`` of each type and no features; sampled subgraphs of it are what ``HeteroPEARL``
        encodes.

    Raises:
        InvalidTypeError: If a table is no ``RelationalTable``, or a name is no string.
        InvalidValueError: If a column is missing, of another length or holds values that cannot be keys, a primary key
            repeats or is missing in a row, a reference leads nowhere, or two edge types have one name.

    Source:
        Section 5, relational databases: the graph of primary and foreign keys that RelBench samples from.
    """
    if not isinstance(tables, Mapping):
        raise InvalidTypeError(f"tables is a {type(tables).__name__}; give a dict of RelationalTable by name")
    data, keys = HeteroData(), {}
    for name, table in tables.items():
        data[name].num_nodes = _num_rows(name, table)
        if table.primary_key is not None:
            keys[name] = _PrimaryKey(f"{name}.{table.primary_key}", table.columns[table.primary_key])
    seen: set[tuple[str, str, str]] = set()
    for name, table in tables.items():
        for column, target in table.foreign_keys.items():
            label = f"{name}.{column}"
            if target not in tables:
                raise InvalidValueError(
                    f"{label} refers to the table {target!r}, which is not given; there are {', '.join(tables)}"
                )
            if target not in keys:
                raise InvalidValueError(f"{label} refers to the table {target!r}, which has no primary_key; name it")
            forth, back = (name, column, target), (target, f"rev_{column}", name)
            if forth in seen or back in seen:
                raise InvalidValueError(f"{label} and another foreign key give one edge type; rename the column")
            seen |= {forth, back}
            rows, referred = keys[target].references(label, table.columns[column])
            data[forth].edge_index = torch.stack([rows, referred])
            data[back].edge_index = torch.stack([referred, rows])
    return data


def from_relbench(database: Any) -> HeteroData:
    """Read the structure of a RelBench ``Database``, without its features and times.

    Args:
        database: What ``relbench.base.Dataset.get_db()`` returns: tables with ``df``, ``pkey_col`` and
            ``fkey_col_to_pkey_table``.

    Returns:
        The graph, see :func:`tables_to_hetero`.

    Raises:
        InvalidTypeError: If it is no such database.
        InvalidValueError: As for :func:`tables_to_hetero`.
    """
    found = getattr(database, "table_dict", None)
    if not isinstance(found, Mapping):
        raise InvalidTypeError(
            f"a {type(database).__name__} is no RelBench database; give dataset.get_db(), or tables_to_hetero(tables)"
        )
    tables = {}
    for name, table in found.items():
        if not all(hasattr(table, part) for part in ("df", "pkey_col", "fkey_col_to_pkey_table")):
            raise InvalidTypeError(f"the table {name!r} is a {type(table).__name__} and no RelBench table")
        keys = [*table.fkey_col_to_pkey_table, *([] if table.pkey_col is None else [table.pkey_col])]
        columns = {key: table.df[key] for key in keys if key in table.df}
        tables[name] = RelationalTable(columns, table.pkey_col, table.fkey_col_to_pkey_table, len(table.df))
    return tables_to_hetero(tables)


def _num_rows(name: Any, table: Any) -> int:
    if not isinstance(name, str):
        raise InvalidTypeError(f"a table is named {name!r}; give its name as a string")
    if not isinstance(table, RelationalTable):
        raise InvalidTypeError(f"the table {name!r} is a {type(table).__name__}; give a RelationalTable")
    if not isinstance(table.columns, Mapping) or not isinstance(table.foreign_keys, Mapping):
        raise InvalidTypeError(f"columns and foreign_keys of the table {name!r} must be dicts by column name")
    keys = [*table.foreign_keys, *([] if table.primary_key is None else [table.primary_key])]
    if absent := [key for key in keys if key not in table.columns]:
        raise InvalidValueError(f"the table {name!r} has no column {absent[0]!r}, which is a key of it")
    lengths = {}
    for key in keys:
        if not hasattr(table.columns[key], "__len__"):
            given = type(table.columns[key]).__name__
            raise InvalidTypeError(f"the column {name}.{key} is a {given}; give an array, list or series")
        lengths[key] = len(table.columns[key])
    if table.num_rows is not None:
        lengths["num_rows"] = whole_number(f"num_rows of {name!r}", table.num_rows, low=0, high=2**40)
    if not lengths:
        raise InvalidValueError(f"the table {name!r} has no keys, so its length is unknown; give num_rows")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise InvalidValueError(f"the columns of the table {name!r} differ in length: {shown}")
    return next(iter(lengths.values()))


class _PrimaryKey:
    """A primary key that rows are looked up in: by binary search among whole numbers or dates, else by a dict."""

    def __init__(self, label: str, column: Any) -> None:
        self.label = label
        self.values, missing = _values(label, column)
        if missing.any():
            raise InvalidValueError(f"{label} is missing in {int(missing.sum())} rows; a primary key may not be")
        self._rows: dict[Any, int] | None = None
        repeated: Any = None
        if self.values.dtype.kind in "iMm":
            self._order = np.argsort(self.values, kind="stable")
            self._sorted = self.values[self._order]
            if (same := self._sorted[1:] == self._sorted[:-1]).any():
                repeated = self._sorted[1:][same][0]
        elif len(self._by_value()) < len(self.values):
            repeated = Counter(self.values.tolist()).most_common(1)[0][0]
        if repeated is not None:
            raise InvalidValueError(f"{label} holds {repeated} twice; a primary key may not repeat")

    def references(self, label: str, column: Any) -> tuple[Tensor, Tensor]:
        """Rows of a foreign key that refer to this key, and the rows that they refer to."""
        wanted, missing = _values(label, column)
        rows = np.flatnonzero(~missing)
        if self.values.dtype.kind in "iMm" and wanted.dtype.kind == self.values.dtype.kind:
            places = np.searchsorted(self._sorted, wanted).clip(max=max(len(self._sorted) - 1, 0))
            lost = self._sorted[places] != wanted if len(self._sorted) else np.ones(len(wanted), bool)
            found = self._order[places] if len(self._sorted) else places
        else:
            known = self._by_value()
            found = np.array([known.get(value, -1) for value in wanted.tolist()], np.int64)
            lost = found < 0
        if lost.any():
            raise InvalidValueError(
                f"{label} holds {wanted[lost][0]!s}, which is not in {self.label} ({int(lost.sum())} such rows); leave "
                "references out as None or NaN"
            )
        return torch.from_numpy(rows), torch.from_numpy(found.astype(np.int64))

    def _by_value(self) -> dict[Any, int]:
        if self._rows is None:
            self._rows = {value: row for row, value in enumerate(self.values.tolist())}
        return self._rows


def _values(label: str, column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values that are there, whole numbers as int64 where they fit, and which rows have none."""
    if hasattr(column, "isna") and hasattr(column, "dropna"):
        # A pandas series: its own array would round nullable whole numbers that stand beside NA.
        try:
            missing = np.asarray(column.isna(), bool)
            column = column.dropna()
        except NotImplementedError as error:
            raise InvalidTypeError(f"{label} is a {type(column).__name__}; join its parts into one column") from error
    else:
        missing = None
    if isinstance(column, list | tuple):
        values = np.fromiter(column, dtype=object, count=len(column))
    else:
        values = np.asarray(column)
    if values.ndim != 1:
        raise InvalidValueError(f"{label} has shape {values.shape}; give one value a row")
    if missing is None:
        missing = _missing(values)
        values = values[~missing]
    return _whole(label, values), missing


def _missing(values: np.ndarray) -> np.ndarray:
    match values.dtype.kind:
        case "f":
            return np.isnan(values)
        case "M" | "m":
            return np.isnat(values)
        case "O":
            return np.array([value is None or _differs_from_itself(value) for value in values], bool)
    return np.zeros(len(values), bool)


def _differs_from_itself(value: Any) -> bool:
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        # pandas' NA has no truth value.
        return True


def _whole(label: str, values: np.ndarray) -> np.ndarray:
    """Turn what stands for whole numbers into int64 where all fit, and refuse what cannot be a key."""
    if values.dtype.kind == "f" and len(values):
        if (np.abs(values[np.isfinite(values)]) >= _EXACT_FLOATS).any():
            raise InvalidValueError(
                f"{label} holds floats of 2^53 or more, in which whole numbers are rounded; give it as whole numbers"
            )
        return values.astype(np.int64) if (values == np.floor(values)).all() and np.isfinite(values).all() else values
    if values.dtype.kind in "ub":
        fits = not len(values) or values.max() <= np.iinfo(np.int64).max
        return values.astype(np.int64) if fits else values.astype(object)
    if values.dtype.kind == "i":
        return values.astype(np.int64)
    if values.dtype.kind == "O":
        kinds = {type(value) for value in values.tolist()}
        if not len(values) or kinds <= {int, bool}:
            try:
                return values.astype(np.int64)
            except OverflowError:
                return values
        try:
            set(values.tolist())
        except TypeError as error:
            raise InvalidValueError(f"{label} holds values that cannot be keys: {error}") from error
    return values
