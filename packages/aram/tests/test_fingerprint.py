from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo_aram.constraints import (
    Box,
    Constraint,
    Ellipsoid,
    IntegerAllocation,
    Intersection,
    L2Ball,
    LinearInequality,
    Oracle,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
)
from octavo_aram.registry import make_constraint

BUILDERS: list[Any] = [
    lambda x: Box([-x], [x]),
    lambda x: L2Ball(x, action_dim=2),
    lambda x: L2Ball(0.1, [x, 0.0]),
    lambda x: Ellipsoid([[1.0, 0.0], [0.0, x]], 0.1),
    lambda x: Ellipsoid(lambda obs: x * obs, 0.1, action_dim=2),
    lambda x: Orthoplex([0, 1], x),
    lambda x: PositivePower(weights=[x, 1.0], limit=1.0),
    lambda x: LinearInequality([[x, 1.0]], [0.5]),
    lambda x: SumEquality(1.0, x, action_dim=3),
    lambda x: IntegerAllocation(round(10 * x), 0, 10, action_dim=3),
    lambda x: Union([L2Ball(x, action_dim=2), L2Ball(0.1, [0.5, 0.0])]),
    lambda x: Intersection([L2Ball(x, action_dim=2), Orthoplex([0, 1], 1.0)]),
    lambda x: Oracle(lambda obs, act: act[:, 0] > x, action_dim=2),
    lambda x: Oracle(lambda obs, act, least=x: act[:, 0] > least, action_dim=2),
]


@pytest.mark.parametrize("build", BUILDERS)
def test_parameters_decide_the_fingerprint(build: Any) -> None:
    first, same, other = build(0.3).fingerprint(), build(0.3).fingerprint(), build(0.4).fingerprint()
    assert first == same
    assert first != other
    assert len(first) == 64


def test_kinds_order_and_indices_count() -> None:
    both = [L2Ball(0.1, action_dim=2), Orthoplex([0, 1], 1.0)]
    made = [
        Orthoplex([0, 1], 1.0),
        Orthoplex([1, 0], 1.0),
        PositivePower([0, 1], 1.0),
        Union(both),
        Intersection(both),
        Union(both[::-1]),
    ]
    assert len({constraint.fingerprint() for constraint in made}) == len(made)


def test_using_a_constraint_leaves_its_fingerprint() -> None:
    constraint = Intersection([Union([L2Ball(0.1, action_dim=2), L2Ball(0.1, [0.5, 0.0])]), Box([-1, 0], [1, 1])])
    before = constraint.fingerprint()
    constraint.project(None, np.ones((3, 2)))
    constraint.interior()
    assert constraint.fingerprint() == before


def test_named_constraints_are_equal_to_themselves() -> None:
    ids = ["Re+L2", "Re+S", "R+T", "NSFnetV2", "NSFnetV3", "BSS3z", "BSS5z", "An+L2", "Hum+L2"]
    prints = {name: make_constraint(name).fingerprint() for name in ids}
    assert prints == {name: make_constraint(name).fingerprint() for name in ids}
    assert len(set(prints.values())) == len(ids)


CODE = """
from octavo_aram.constraints import Constraint, Oracle
LIMIT = {limit}
def helper(act):
    return act[:, 0] {sign} LIMIT
def make():
    return Oracle(lambda obs, act: helper(act), action_dim=2)
class Mine(Constraint):
    action_dim = 2
    slack = {slack}
    def _excess(self, obs, act):
        return act[:, :1] - LIMIT
"""


def _module(folder: Path, name: str, **values: Any) -> Any:
    file = folder / f"{name}.py"
    file.write_text(CODE.format(**{"limit": 0.5, "sign": ">", "slack": 0, **values}))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_code_and_module_values_of_the_user_count(tmp_path: Path) -> None:
    def prints(**values: Any) -> tuple[str, str]:
        module = _module(tmp_path, "users_code_aram", **values)
        # The cache of byte code knows files by second and size.
        for cached in tmp_path.glob("__pycache__/*"):
            cached.unlink()
        return module.make().fingerprint(), module.Mine().fingerprint()

    plain = prints()
    assert plain == prints()
    for index, change in [(0, {"limit": 0.7}), (1, {"limit": 0.7}), (0, {"sign": "<"}), (1, {"slack": 1})]:
        assert prints(**change)[index] != plain[index]
    del sys.modules["users_code_aram"]


def test_the_printed_form_shows_the_parameters() -> None:
    assert repr(L2Ball(0.05, action_dim=2)) == "L2Ball(action_dim=2, radius2=0.05, center=[0, 0])"
    assert "limit=1.5" in repr(Orthoplex([3, 4], 1.5))
    assert "w_idx=[3, 4]" in repr(Orthoplex([3, 4], 1.5))
    assert "low=[-0.5]" in repr(Box([-0.5], [0.5]))
    assert "bound=[0.5]" in repr(LinearInequality([[1.0, 1.0]], [0.5]))
    assert "total=4" in repr(IntegerAllocation(4, 0, 4, action_dim=2))
    assert "radius2=0.05" in repr(Union([L2Ball(0.05, action_dim=2)]))
    assert "20 numbers" in repr(Box([-1.0] * 20, [1.0] * 20))
    assert "bound=0.1" in repr(Ellipsoid([1.0, 2.0], 0.1))

    class Half(Constraint):
        action_dim = 1

        def _excess(self, obs: Any, act: Any) -> Any:
            return act

    assert repr(Half()) == "Half(action_dim=1)"
