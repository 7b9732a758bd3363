"""Our projections against CVXPY with Clarabel, for ``octavo bench aram``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from octavo_core.bench import compare
from octavo_core.device import installed_versions
from octavo_core.report import Row

from octavo_aram.constraints import Constraint, Ellipsoid, Orthoplex, PositivePower, SumEquality

__all__ = ["bench_projections"]

_BATCH = 10_000
_DIM = 17


def bench_projections(quick: bool, seed: int) -> list[Row]:
    """Time projections: per action within a batch, one action alone, and a batch of 10,000.

    The peer's problem is compiled once and solved again with new parameters, its fastest form.

    Args:
        quick: Fewer repetitions.
        seed: Seed of the actions.

    Returns:
        Rows ``projection_vs_cvxpy_*`` (per action, target 50 times faster), ``projection_single_vs_cvxpy_*`` and
        ``projection_batch_*``. Without CVXPY the comparisons are told as not measured.

    Source:
        Beyond the paper: its cost of projections, with open solvers.
    """
    rng = np.random.default_rng(seed)
    versions = installed_versions(["cvxpy", "clarabel"])
    peer = ", ".join(f"{name} {version}" for name, version in versions.items())
    rows: list[Row] = []
    for name, constraint, dim in (
        ("orthoplex", Orthoplex(range(_DIM), 30.0), _DIM),
        ("power", PositivePower(range(_DIM), 30.0), _DIM),
        ("sum", SumEquality(2.5, 0.1, action_dim=5), 5),
        ("ellipsoid", Ellipsoid(np.linspace(0.05, 1, 20), 0.1), 20),
    ):
        actions = rng.uniform(-2, 2, (_BATCH, dim))
        obs = rng.normal(0, 5, (_BATCH, dim))
        if isinstance(constraint, Ellipsoid):
            obs = np.broadcast_to(np.asarray(constraint.matrix), (_BATCH, dim))
        label = f"projection onto {name}, {dim} components"
        calls: dict[str, Callable[[], object]] = {
            "batch": lambda c=constraint, o=obs, a=actions: c.project(o, a),
            "single": lambda c=constraint, o=obs, a=actions: c.project(o[0], a[0]),
        }
        solve = _peer(name, constraint, dim) if len(versions) == 2 else None
        if solve is not None:
            calls["peer"] = lambda s=solve, o=obs, a=actions: s(o[0], a[0])
        timing = compare(calls, repeats=3 if quick else 9, min_seconds=0.02)
        batch = timing["batch"]
        if solve is None:
            note = "not measured: pip install 'octavo-aram[solvers]'"
            rows.append(Row(f"projection_vs_cvxpy_{name}", label, None, "ms", note=note))
        else:
            difference = float(np.abs(solve(obs[0], actions[0]) - constraint.project(obs[0], actions[0])).max())
            one = timing["peer"].median * 1e3
            per_action = batch.median * 1e3 / _BATCH
            rows += [
                Row(
                    f"projection_vs_cvxpy_{name}", f"{label}, per action in a batch of {_BATCH:,}", per_action, "ms",
                    peer=peer, peer_value=one, target="ratio >= 50",
                    note=f"float64, one thread; the peer solves one at a time; largest difference {difference:.1e}",
                ),
                Row(
                    f"projection_single_vs_cvxpy_{name}", f"{label}, one action alone", timing["single"].median * 1e3,
                    "ms", peer=peer, peer_value=one,
                ),
            ]  # fmt: skip
        rows.append(
            Row(
                f"projection_batch_{name}",
                f"{label}, batch of {_BATCH:,}",
                batch.median * 1e3,
                "ms",
                target="value < 50",
                spread=(batch.spread[0] * 1e3, batch.spread[1] * 1e3),
            )
        )
    return rows


def _peer(name: str, constraint: Constraint, dim: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The same projection as a parametrised CVXPY problem."""
    import cvxpy as cp

    x, goal, weight = cp.Variable(dim), cp.Parameter(dim), cp.Parameter(dim, nonneg=name == "ellipsoid")
    limits: dict[str, Any] = {
        "orthoplex": lambda: cp.sum(cp.abs(cp.multiply(weight, x))) <= getattr(constraint, "limit", 0.0),
        "power": lambda: cp.sum(cp.pos(cp.multiply(weight, x))) <= getattr(constraint, "limit", 0.0),
        "ellipsoid": lambda: cp.sum(cp.multiply(weight, cp.square(x))) <= getattr(constraint, "bound", 0.0),
        "sum": lambda: cp.sum(x) == getattr(constraint, "total", 0.0),
    }
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - goal)), [limits[name](), x >= -1, x <= 1])

    def solve(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        goal.value, weight.value = action, obs
        problem.solve(solver=cp.CLARABEL)
        return np.asarray(x.value)

    return solve
