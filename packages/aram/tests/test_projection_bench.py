from __future__ import annotations

import pytest
from octavo_aram.projection_bench import bench_projections


def test_rows_are_named_and_the_peer_agrees() -> None:
    rows = {row.id: row for row in bench_projections(True, 0)}
    for name in ("orthoplex", "power", "sum", "ellipsoid"):
        assert rows[f"projection_vs_cvxpy_{name}"].label
        assert rows[f"projection_batch_{name}"].value
    pytest.importorskip("cvxpy")
    for name in ("orthoplex", "power", "sum", "ellipsoid"):
        row = rows[f"projection_vs_cvxpy_{name}"]
        assert row.target == "ratio >= 50"
        assert float(row.note.rpartition(" ")[2]) < 1e-4
