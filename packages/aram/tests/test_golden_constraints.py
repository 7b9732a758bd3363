"""Reference numbers: the official membership checks, and projections confirmed by two independent solvers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from octavo_aram.constraints import Constraint, L2Ball, Orthoplex, PositivePower
from octavo_aram.registry import make_constraint

DATA = Path(__file__).parent / "data"
ANT = [25, 26, 19, 20, 21, 22, 23, 24]
HUMANOID = [29, 28, *range(30, 45)]


def reference_constraint(name: str, dim: int, indices: list[int] | None) -> Constraint:
    match name:
        case "Re+L2_005":
            return L2Ball(0.05, action_dim=2)
        case "An+L2_2":
            return L2Ball(2, action_dim=8)
        case "H+M_10" | "W+M_10":
            return PositivePower(indices or range(dim), 10)
        case "HC+O_20":
            return Orthoplex(indices or range(dim), 20)
        case "An+O_30" | "Humanoid+O_30":
            return Orthoplex(indices or range(dim), 30)
        case _:
            return make_constraint(name)


def names(file: str, key: str) -> list[str]:
    with np.load(DATA / file) as data:
        return sorted({k.rpartition("/")[0] for k in data.files if k.endswith(f"/{key}")})


@pytest.mark.parametrize("name", names("checks.npz", "feasible"))
def test_membership_equals_the_official_check(name: str) -> None:
    with np.load(DATA / "checks.npz") as data:
        action, feasible, entries = (data[f"{name}/{key}"] for key in ("action", "feasible", "state_slice"))
        offset, size = int(data[f"{name}/state_offset"]), int(data[f"{name}/state_dim"])
    indices = {"An+O_30": ANT, "Humanoid+O_30": HUMANOID, "H+M_10": [8, 9, 10]}.get(name, list(range(11, 17)))
    obs = np.full((len(action), size), 7.0)
    obs[:, offset : offset + entries.shape[1]] = entries
    constraint = reference_constraint(name, action.shape[1], indices)
    assert constraint.contains(obs, action).tolist() == feasible.tolist()


@pytest.mark.parametrize("name", names("projections.npz", "proj"))
def test_projection_equals_two_solvers(name: str) -> None:
    with np.load(DATA / "projections.npz") as data:
        weight, action, expected = (data[f"{name}/{key}"] for key in ("w", "a", "proj"))
    constraint = reference_constraint(name, action.shape[1], None)
    projected = constraint.project(weight, action)
    np.testing.assert_allclose(projected, expected, atol=1e-6)
    assert constraint.contains(weight, projected, tol=1e-9).all()
    np.testing.assert_allclose(constraint.project(weight, projected), projected, atol=1e-9)
    rng = np.random.default_rng(0)
    total = {"BSS3z+S+D40": 1.0, "BSS5z+S+D40": 2.5}.get(name)
    for index, point in enumerate(projected):
        rivals = (point + rng.normal(size=(2000, len(point))) * rng.choice([1e-3, 1e-2, 0.1, 1.0], (2000, 1))).clip(
            -1, 1
        )
        if total is not None:
            rivals += (total - rivals.sum(1, keepdims=True)) / len(point)
        rivals = rivals[constraint.contains(np.broadcast_to(weight[index], (2000, len(point))), rivals, tol=0.0)]
        distance = np.linalg.norm(rivals - action[index], axis=1)
        assert (distance >= np.linalg.norm(point - action[index]) - 1e-9).all()
