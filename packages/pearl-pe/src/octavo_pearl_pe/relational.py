"""Relational databases as heterogeneous graphs: rows are nodes, references from table to table are edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor
from torch_geometric.data import HeteroData

__all__ = ["RelationalTable", "from_relbench", "tables_to_hetero"]


@dataclass(frozen=True)
class RelationalTable:
    """The keys of a table; its other columns do not matter to a positional encoding.

    Args:
        columns: Key columns by name, each one value a row: arrays, lists or pandas series. Missing references are None
            or NaN.
        primary_key: Column with a different value in every row; None if no table refers to this one.
        foreign_keys: Column to the name of the table whose primary key it holds.
        num_rows: Number of rows, for a table without key columns.
    """

    columns: Mapping[str, Any]
    primary_key: str | None = None
    foreign_keys: Mapping[str, str] = field(default_factory=dict)
    num_rows: int | None = None


def tables_to_hetero(tables: Mapping[str, RelationalTable | Any]) -> HeteroData:
    """Join tables along their keys.

    Every row becomes a node of the type named after its table. A foreign key ``column`` of table A that refers to table
    B gives the edge types ``(A, column, B)`` and ``(B, rev_column, A)``; missing references give no edge.

    Args:
        tables: Tables by name.

    Returns:
        The graph, with ``num_nodes`` of each type and no features; sampled subgraphs of it are what ``HeteroPEARL``
        encodes.

    Raises:
        InvalidTypeError: If a table is no ``RelationalTable``.
        InvalidValueError: If a column is missing or of another length, a primary key repeats or is missing in a row, or
            a reference leads nowhere.

    Source:
        Section 5, relational databases: the graph of primary and foreign keys that RelBench samples from.
    """
    sizes = {name: _num_rows(name, table) for name, table in tables.items()}
    data = HeteroData()
    for name, count in sizes.items():
        data[name].num_nodes = count
    for name, table in tables.items():
        for column, target in table.foreign_keys.items():
            if target not in tables:
                raise InvalidValueError(
                    f"{name}.{column} refers to the table {target!r}, which is not given; there are {', '.join(tables)}"
                )
            rows, referred = _references(name, table, column, target, tables[target])
            data[name, column, target].edge_index = torch.stack([rows, referred])
            data[target, f"rev_{column}", name].edge_index = torch.stack([referred, rows])
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
        keys = [*table.fkey_col_to_pkey_table, *([] if table.pkey_col is None else [table.pkey_col])]
        absent = [key for key in keys if key not in table.df]
        if absent:
            raise InvalidValueError(f"the table {name!r} has no column {absent[0]!r}, which is a key of it")
        columns = {key: table.df[key] for key in keys}
        tables[name] = RelationalTable(columns, table.pkey_col, table.fkey_col_to_pkey_table, len(table.df))
    return tables_to_hetero(tables)


def _num_rows(name: str, table: RelationalTable | Any) -> int:
    if not isinstance(table, RelationalTable):
        raise InvalidTypeError(f"the table {name!r} is a {type(table).__name__}; give a RelationalTable")
    keys = [*table.foreign_keys, *([] if table.primary_key is None else [table.primary_key])]
    if absent := [key for key in keys if key not in table.columns]:
        raise InvalidValueError(f"the table {name!r} has no column {absent[0]!r}, which is a key of it")
    lengths = {key: len(table.columns[key]) for key in keys}
    if table.num_rows is not None:
        lengths["num_rows"] = table.num_rows
    if not lengths:
        raise InvalidValueError(f"the table {name!r} has no keys, so its length is unknown; give num_rows")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise InvalidValueError(f"the columns of the table {name!r} differ in length: {shown}")
    return next(iter(lengths.values()))


def _references(
    name: str, table: RelationalTable, column: str, target: str, other: RelationalTable
) -> tuple[Tensor, Tensor]:
    """Rows that refer to another table, and the rows that they refer to."""
    if other.primary_key is None:
        raise InvalidValueError(f"{name}.{column} refers to the table {target!r}, which has no primary_key; name it")
    keys, missing = _values(other.columns[other.primary_key])
    if missing.any():
        raise InvalidValueError(f"{target}.{other.primary_key} is missing in {int(missing.sum())} rows")
    values, missing = _values(table.columns[column])
    rows = np.flatnonzero(~missing)
    wanted = values[rows]
    if keys.dtype.kind != wanted.dtype.kind:
        # Numbers and words: compared as words, none of which may match.
        keys, wanted = keys.astype(str), wanted.astype(str)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        repeated = ordered[1:][ordered[1:] == ordered[:-1]][0]
        raise InvalidValueError(f"{target}.{other.primary_key} holds {repeated} twice; a primary key may not repeat")
    places = np.searchsorted(ordered, wanted).clip(max=max(len(ordered) - 1, 0))
    lost = np.ones(len(wanted), bool) if not len(ordered) else ordered[places] != wanted
    if lost.any():
        raise InvalidValueError(
            f"{name}.{column} holds {wanted[lost][0]}, which is not in {target}.{other.primary_key} "
            f"({int(lost.sum())} such rows); leave references out as None or NaN"
        )
    return torch.from_numpy(rows), torch.from_numpy(order[places] if len(wanted) else rows)


def _values(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column, whole numbers as such, and which are missing."""
    values = np.asarray(column)
    if values.ndim != 1:
        raise InvalidValueError(f"a key column has shape {values.shape}; give one value a row")
    if values.dtype.kind == "O":
        # NaN, pandas' NA and NaT are not equal to themselves, or not comparable at all.
        missing = np.array([value is None or _is_missing(value) for value in values], bool)
    else:
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    filled = values.copy()
    if missing.any():
        kept = values[~missing]
        filled[missing] = kept[0] if len(kept) else 0
    if filled.dtype.kind == "O":
        filled = np.array(filled.tolist()) if len(filled) else filled.astype(np.int64)
    if filled.dtype.kind == "f" and (filled == np.floor(filled)).all():
        filled = filled.astype(np.int64)
    if filled.dtype.kind == "u":
        filled = filled.astype(np.int64)
    return filled, missing


def _is_missing(value: Any) -> bool:
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return True
