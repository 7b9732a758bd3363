from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_pearl_pe import PEARL, HeteroPEARL
from octavo_pearl_pe.relational import RelationalTable, from_relbench, tables_to_hetero

USERS = RelationalTable({"id": [10, 20, 30]}, "id")
ITEMS = RelationalTable({"sku": ["b", "a"]}, "sku")
REVIEWS = RelationalTable(
    {"user": [30, 10, None, 30], "item": ["a", "a", "b", None]}, foreign_keys={"user": "users", "item": "items"}
)


class Frame(dict):
    """As much of a data frame as is read: columns by name, and a length."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


def shop(rows: int, seed: int = 0) -> Any:
    """A stand-in for a RelBench database of users, items and reviews."""
    rng = np.random.default_rng(seed)
    users, items = rows // 4, rows // 8

    def table(frame: Frame, keys: dict[str, str], primary: str | None) -> Any:
        return SimpleNamespace(df=frame, fkey_col_to_pkey_table=keys, pkey_col=primary)

    user = rng.integers(0, users, rows).astype(float)
    user[rng.random(rows) < 0.1] = np.nan
    return SimpleNamespace(
        table_dict={
            "users": table(Frame(id=rng.permutation(users)), {}, "id"),
            "items": table(Frame(id=np.arange(items)), {}, "id"),
            "reviews": table(
                Frame(user=user, item=rng.integers(0, items, rows)), {"user": "users", "item": "items"}, None
            ),
        }
    )


def test_references_become_edges_in_both_directions() -> None:
    data = tables_to_hetero({"users": USERS, "items": ITEMS, "reviews": REVIEWS})
    assert {kind: data[kind].num_nodes for kind in data.node_types} == {"users": 3, "items": 2, "reviews": 4}
    assert data["reviews", "user", "users"].edge_index.tolist() == [[0, 1, 3], [2, 0, 2]]
    assert data["reviews", "item", "items"].edge_index.tolist() == [[0, 1, 2], [1, 1, 0]]
    forth, back = data["reviews", "user", "users"].edge_index, data["users", "rev_user", "reviews"].edge_index
    assert torch.equal(forth.flip(0), back)


def test_a_database_of_two_thousand_rows_is_encoded_by_type() -> None:
    data = from_relbench(shop(2000))
    database = shop(2000).table_dict
    present = ~np.isnan(database["reviews"].df["user"])
    edges = data["reviews", "user", "users"].edge_index
    assert edges.shape[1] == present.sum()
    assert (database["users"].df["id"][edges[1]] == database["reviews"].df["user"][present]).all()
    encoder = HeteroPEARL(PEARL(4, num_samples=4, hidden=8), {"users": 8})
    encodings = encoder(data)
    assert {kind: pe.shape for kind, pe in encodings.items()} == {
        "users": (500, 4),
        "items": (250, 4),
        "reviews": (2000, 4),
    }
    encodings["users"].sum().backward()
    assert all(p.grad is not None for p in encoder.encoder.parameters())


def test_empty_tables_and_columns_are_taken() -> None:
    nothing = RelationalTable({"user": []}, foreign_keys={"user": "users"})
    data = tables_to_hetero({"users": USERS, "visits": nothing, "log": RelationalTable({}, num_rows=5)})
    assert data["visits", "user", "users"].edge_index.shape == (2, 0)
    assert data["log"].num_nodes == 5


def joined(keys: Any, references: Any) -> list[list[int]]:
    tables = {
        "b": RelationalTable({"id": keys}, "id"),
        "a": RelationalTable({"b": references}, foreign_keys={"b": "b"}),
    }
    return tables_to_hetero(tables)["a", "b", "b"].edge_index.tolist()


def test_keys_agree_exactly_whatever_their_types() -> None:
    big = 2**53
    assert joined([big, big + 1, 2**63, -1, 2**63 + 1], [2**63 + 1, big + 1]) == [[0, 1], [4, 1]]
    assert joined(np.array([2**64 - 1, 7], np.uint64), [7]) == [[0], [1]]
    assert joined([1.0, 2.5], [1, 2.5]) == [[0, 1], [0, 1]]
    assert joined([1, "1"], ["1", 1]) == [[0, 1], [1, 0]]
    assert joined(["a", "a\0"], ["a\0"]) == [[0], [1]]
    assert joined(["a", "b"], np.array(["b"])) == [[0], [1]]
    assert joined([(1, 2), (1, 3)], [(1, 3), None]) == [[0], [1]]
    dates = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")
    assert joined(dates, np.array(["NaT", "2021-01-01"], "datetime64[ns]")) == [[1], [1]]
    assert joined(np.array([3, 4]), np.array([np.nan, 4.0])) == [[1], [1]]


def test_nullable_columns_of_pandas_are_exact() -> None:
    pandas = pytest.importorskip("pandas")
    keys = pandas.Series([2**53, 2**53 + 1], dtype="Int64")
    assert joined(keys, pandas.Series([2**53 + 1, None], dtype="Int64")) == [[0], [1]]
    assert joined(pandas.Series(["x", "y"]), pandas.Series([None, "y"])) == [[1], [1]]
    assert joined(pandas.Series(["x", "y"], dtype="category"), pandas.Series(["y", "y"])) == [[0, 1], [1, 1]]
    with pytest.raises(InvalidTypeError, match="MultiIndex"):
        joined(pandas.MultiIndex.from_tuples([(1, 2)]), [1])


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"a": 3}, InvalidTypeError, "RelationalTable"),
    ({"a": RelationalTable({}, "id")}, InvalidValueError, "no column 'id'"),
    ({"a": RelationalTable({})}, InvalidValueError, "give num_rows"),
    ({"a": RelationalTable({"id": [1, 2]}, "id", num_rows=3)}, InvalidValueError, "differ in length"),
    ({"a": RelationalTable({"b": [1]}, foreign_keys={"b": "c"})}, InvalidValueError, "not given"),
    ({1: USERS}, InvalidTypeError, "string"),
    ([USERS], InvalidTypeError, "dict of RelationalTable"),
    ({"a": RelationalTable({}, num_rows=-3)}, InvalidValueError, "out of range"),
    ({"a": RelationalTable({"id": 5}, "id")}, InvalidTypeError, "array, list or series"),
    ({"a": RelationalTable({"id": [[1], [2]]}, "id")}, InvalidValueError, "cannot be keys"),
    ({"a": RelationalTable({"id": np.ones((2, 2))}, "id")}, InvalidValueError, "one value a row"),
    ({"a": RelationalTable({"id": [1, 1]}, "id")}, InvalidValueError, "1 twice"),
    ({"a": RelationalTable({"id": np.array([2.0**53])}, "id")}, InvalidValueError, "rounded"),
    (
        {
            "u": RelationalTable({"id": [1], "m": [1]}, "id", {"m": "m"}),
            "m": RelationalTable({"id": [1], "rev_m": [1]}, "id", {"rev_m": "u"}),
        },
        InvalidValueError,
        "one edge type",
    ),
    (
        {
            "b": RelationalTable({"id": np.array([2**64 - 1], np.uint64)}, "id"),
            "a": RelationalTable({"b": [-1]}, foreign_keys={"b": "b"}),
        },
        InvalidValueError,
        "-1, which is not in",
    ),
    (
        {"b": RelationalTable({"id": [1, 2]}, "id"), "a": RelationalTable({"b": [1.0, 1.5]}, foreign_keys={"b": "b"})},
        InvalidValueError,
        r"1.5, which is not in b.id \(1 such",
    ),
    ({"b": RelationalTable({"id": np.array(["NaT"], "datetime64[s]")}, "id")}, InvalidValueError, "missing in 1"),
    (
        {"users": USERS, "a": RelationalTable({"u": [40]}, foreign_keys={"u": "users"})},
        InvalidValueError,
        "40, which is not in users.id",
    ),
    (
        {"users": RelationalTable({"id": [1, 1]}, "id"), "a": RelationalTable({"u": [1]}, foreign_keys={"u": "users"})},
        InvalidValueError,
        "twice",
    ),
    (
        {
            "users": RelationalTable({"id": [1, None]}, "id"),
            "a": RelationalTable({"u": [1]}, foreign_keys={"u": "users"}),
        },
        InvalidValueError,
        "missing in 1",
    ),
    (
        {"users": RelationalTable({}, num_rows=2), "a": RelationalTable({"u": [1]}, foreign_keys={"u": "users"})},
        InvalidValueError,
        "no primary_key",
    ),
    (
        {"items": ITEMS, "a": RelationalTable({"u": [1]}, foreign_keys={"u": "items"})},
        InvalidValueError,
        "not in items.sku",
    ),
]


@pytest.mark.parametrize(("tables", "error", "message"), BAD)
def test_bad_tables_are_told(tables: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tables_to_hetero(tables)


def test_what_is_no_database_is_told() -> None:
    with pytest.raises(InvalidTypeError, match="no RelBench database"):
        from_relbench([1])
    broken = SimpleNamespace(df=Frame(id=[1]), fkey_col_to_pkey_table={"user": "users"}, pkey_col="id")
    with pytest.raises(InvalidValueError, match="no column 'user'"):
        from_relbench(SimpleNamespace(table_dict={"a": broken}))
