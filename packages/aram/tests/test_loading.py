from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo_aram.constraints import Constraint, IntegerAllocation, Intersection, L2Ball, Orthoplex, Union
from octavo_aram.loading import constraint_from_mapping, load_constraint
from octavo_aram.recorded import check_recorded, read_actions
from octavo_aram.references import as_constraint

FILES: dict[str, tuple[str, list[float], list[float]]] = {
    "box": ("{low: [-0.5, 0], high: [0.5, 1]}", [0.1, 0.5], [0.1, -0.1]),
    "l2_ball": ("{radius2: 0.05, action_dim: 2}", [0.1, 0.1], [0.2, 0.2]),
    "ellipsoid": ("{matrix: [[2, 0.5], [0.5, 1]], bound: 0.1}", [0.1, 0.1], [0.3, 0.3]),
    "orthoplex": ("{weights_from_obs: [2, 0], limit: 1}", [0.2, 0.1], [0.9, 0.9]),
    "positive_power": ("{weights: [1, 2], limit: 1}", [0.5, 0.2], [0.5, 0.5]),
    "linear": ("{A: [[1, 1], [1, -1]], b: [0.5, 0.5]}", [0.2, 0.2], [0.9, 0.1]),
    "sum": ("{total: 1, action_dim: 2, tol: 0.1}", [0.5, 0.55], [0.5, 0.7]),
    "integer": ("{total: 4, lower: 0, upper: 4, action_dim: 2}", [0.5, -0.5], [0.4, -0.4]),
    "named": ("{id: Re+S}", [0.5, 0.0], [0.0, 0.0]),
    "union": (
        "{parts: [{type: l2_ball, radius2: 0.01, center: [0.5, 0]}, {type: named, id: Re+L2}]}",
        [0.5, 0.0],
        [1, 1],
    ),
    "intersection": ("{parts: [{type: named, id: Re+L2}, {type: linear, A: [1, 0], b: 0}]}", [-0.1, 0.1], [0.1, 0.1]),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_type_is_read_from_a_file(kind: str, tmp_path: Path) -> None:
    body, inside, outside = FILES[kind]
    file = tmp_path / "constraint.yaml"
    file.write_text(
        f"type: {kind}\n" + body.strip("{}").replace(", ", "\n") if kind == "l2_ball" else f"{{type: {kind}, {body[1:]}"
    )
    constraint: Any = load_constraint(file)
    obs = np.array([1.0, 2.0, 3.0])
    assert constraint.contains(obs, np.array(inside, float))
    assert not constraint.contains(obs, np.array(outside, float))
    assert constraint.contains(obs, constraint.project(obs, np.array(outside, float)), 1e-9)


def test_weights_from_the_observation_in_a_linear_constraint() -> None:
    constraint: Any = constraint_from_mapping({"type": "linear", "weights_from_obs": [1, 0], "b": 0.5})
    assert constraint.contains(np.array([1.0, -2.0]), np.array([0.1, 0.5]))
    assert not constraint.contains(np.array([1.0, 2.0]), np.array([0.1, 0.5]))
    with pytest.raises(ValueError, match="too short"):
        constraint.contains(np.array([1.0]), np.array([0.1, 0.5]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "mapping"),
        ("[1, 2]", "mapping"),
        ("type: cube", "not known"),
        ("type: l2_ball", "radius2: Field required"),
        ("{type: l2_ball, radius2: big, action_dim: 2}", "radius2"),
        ("{type: l2_ball, radius2: 1, action_dim: 2, colour: red}", "colour"),
        ("{type: l2_ball, radius2: -1, action_dim: 2}", "empty"),
        ("{type: l2_ball, radius2: .nan, action_dim: 2}", "finite"),
        ("{type: linear, A: [[1, 2], [3]], b: [1, 1]}", "differ in length"),
        ("{type: linear, b: [1]}", "either A or weights_from_obs"),
        ("{type: linear, A: [[1, 0], [-1, 0]], b: [-0.5, -0.5]}", "empty"),
        ("{type: linear, weights_from_obs: [-1], b: 1}", "indices >= 0"),
        ("{type: orthoplex, weights_from_obs: [-1], limit: 1}", "weights_from_obs.*-1.*indices >= 0"),
        ("{type: orthoplex, limit: 1}", "give either weights_from_obs or weights"),
        ("{type: positive_power, limit: 1, weights: [1], weights_from_obs: [0]}", "either weights_from_obs or weights"),
        ("{type: linear, A: [[1, 1]], b: [1, 2]}", "A has 1 rows and b 2 entries"),
        ("{type: linear, weights_from_obs: [0, 1], b: [1, 2]}", "give one b"),
        ("{type: union, parts: []}", "at least 1"),
        ("{type: union, parts: [3]}", "mapping"),
        ("{type: named, id: H+X}", "no constraint is named"),
        ("{type: !!python/object/apply:os.system ['echo']}", "not readable YAML"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("type: [", "not readable YAML"),
        ("{type: l2_ball, radius2: 0.1, radius2: 0.2, action_dim: 2}", "'radius2' stands twice .* line 1"),
        ("{type: orthoplex, weights_from_obs: [true, 1], limit: 1}", "no numbers"),
        ("{type: l2_ball, radius2: true, action_dim: 2}", "no numbers"),
        ("{type: l2_ball, radius2: 1, action_dim: 1000000000}", "100000"),
        ("{type: integer, total: 2, lower: 0, upper: 4, action_dim: 1000000000}", "100000"),
        ("{type: linear, A: [[.inf, 1]], b: [1]}", "A.*finite number"),
        ("{type: linear, A: [[0, 1]], b: [-.inf]}", "b.*finite number"),
        ("{type: orthoplex, weights: [.nan], limit: 1}", "weights.0.*finite number"),
        ("{type: orthoplex, weights_from_obs: [99999999999999999999], limit: 1}", "weights_from_obs.*at most"),
        ("{type: linear, weights_from_obs: [9999999999999999999], b: 1}", "weights_from_obs.*at most"),
        ("{type: ellipsoid, matrix: [[-1, 0], [0, 1]], bound: 1}", "constraint.yml.*eigenvalue -1"),
    ],
)
def test_bad_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "constraint.yml"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_constraint(str(file))


@pytest.mark.parametrize("field", ["radius2", "action_dim"])
def test_integers_of_thousands_of_digits_are_refused(field: str, tmp_path: Path) -> None:
    file = tmp_path / "ball.yaml"
    file.write_text(f"type: l2_ball\n{field}: {'9' * 5000}\n")
    with pytest.raises(ValueError, match=r"ball.yaml': the number at line 2 has 5000 digits"):
        load_constraint(file)


def test_missing_large_and_deep_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no constraint file"):
        load_constraint(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ValueError, match="1 MiB"):
        load_constraint(large)
    nested: Any = {"type": "l2_ball", "radius2": 1, "action_dim": 2}
    for _ in range(10):
        nested = {"type": "union", "parts": [nested]}
    with pytest.raises(ValueError, match="nested"):
        constraint_from_mapping(nested)


def test_constraints_from_the_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from octavo_aram.constraints import L2Ball, Orthoplex\n"
        "fixed = L2Ball(0.1, action_dim=2)\n"
        "class Mine(L2Ball):\n    def __init__(self):\n        super().__init__(0.2, action_dim=3)\n"
        "def make(env):\n    return Orthoplex(range(env), 1.0)\n"
        "number = 3\n"
        "def wrong():\n    return 3\n"
    )
    (tmp_path / "user_constraints_aram.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("user_constraints_aram", str(tmp_path / "user_constraints_aram.py")):
        assert load_constraint(f"{place}:fixed").action_dim == 2
        assert load_constraint(f"{place}:Mine").action_dim == 3
        assert load_constraint(f"{place}:make", 4).action_dim == 4
        with pytest.raises(TypeError, match="is a int"):
            load_constraint(f"{place}:number")
        with pytest.raises(TypeError, match="made a int"):
            load_constraint(f"{place}:wrong")
        with pytest.raises(ValueError, match="defines no"):
            load_constraint(f"{place}:nothing")
    with pytest.raises(ValueError, match="no module"):
        load_constraint("no_such_module_aram:x")
    with pytest.raises(FileNotFoundError, match="no file"):
        load_constraint(f"{tmp_path}/none.py:x")


def test_names_are_accepted_too() -> None:
    kinds: list[tuple[str, type[Constraint]]] = [("Re+L2", L2Ball), ("Re+S", Union)]
    for name, kind in kinds:
        assert isinstance(load_constraint(name), kind)
    assert isinstance(
        constraint_from_mapping({"type": "integer", "total": 4, "lower": 0, "upper": 4, "action_dim": 2}),
        IntegerAllocation,
    )
    assert isinstance(constraint_from_mapping({"type": "orthoplex", "weights": [1, 2], "limit": 1}), Orthoplex)
    both = constraint_from_mapping({"type": "intersection", "parts": [{"type": "named", "id": "Re+L2"}] * 2})
    assert isinstance(both, Intersection)


def test_intersections_of_many_unions_are_refused_at_once() -> None:
    union = {"type": "union", "parts": [{"type": "l2_ball", "radius2": 1, "action_dim": 2}] * 4}
    with pytest.raises(ValueError, match="1,048,576 alternatives"):
        constraint_from_mapping({"type": "intersection", "parts": [union] * 10})


DATACLASS = (
    "from __future__ import annotations\n"
    "from dataclasses import dataclass\n"
    "from octavo_aram.constraints import L2Ball\n"
    "@dataclass\nclass Opt:\n    r: float = {radius}\n"
    "class Mine(L2Ball):\n    def __init__(self):\n        super().__init__(Opt().r, action_dim=2)\n"
)


def test_files_with_a_dataclass_and_files_that_change(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    prints = []
    for radius in (0.05, 0.25):
        file.write_text(DATACLASS.format(radius=radius))
        made: Any = load_constraint(f"{file}:Mine")
        assert made.radius2 == radius
        assert type(made) is type(load_constraint(f"{file}:Mine"))
        prints.append(made.fingerprint())
    assert prints[0] != prints[1]
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(DATACLASS.format(radius=0.25))
    assert load_constraint(f"{other}:Mine").fingerprint() == prints[1]


def test_modules_are_sought_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here_aram.py").write_text(DATACLASS.format(radius=0.5))
    (tmp_path / "needs_more_aram.py").write_text("import no_such_library_aram\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_constraint("found_here_aram:Mine").action_dim == 2
    assert sys.path == before
    with pytest.raises(ValueError, match=r"PYTHONPATH.*file\.py"):
        load_constraint("not_here_aram:Mine")
    with pytest.raises(RuntimeError, match=r"needs_more_aram.py', line 1: ModuleNotFoundError"):
        load_constraint("needs_more_aram:Mine")


def test_constraints_of_a_file_go_to_other_processes(tmp_path: Path) -> None:
    cloudpickle: Any = pytest.importorskip("cloudpickle", "2.0")
    file = tmp_path / "mine.py"
    file.write_text(DATACLASS.format(radius=0.25))
    made = load_constraint(f"{file}:Mine")
    (tmp_path / "constraint.bin").write_bytes(cloudpickle.dumps(made))
    code = (
        "import sys, cloudpickle; made = cloudpickle.load(open(sys.argv[1], 'rb')); "
        "print(made.radius2, made.fingerprint())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "constraint.bin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0.25", made.fingerprint()], done.stderr


@pytest.mark.parametrize("value", ["1_0", "1:30", "'0.05'", "0x10"])
def test_numbers_that_do_not_look_like_numbers_are_refused(value: str, tmp_path: Path) -> None:
    file = tmp_path / "ball.yaml"
    file.write_text(f"type: l2_ball\nradius2: {value}\naction_dim: 2\n")
    with pytest.raises(ValueError, match="is no number; write one such as"):
        load_constraint(file)


def test_numbers_are_read_as_they_look(tmp_path: Path) -> None:
    file = tmp_path / "BALL.YML"
    for text, value in (("1e-3", 1e-3), ("010", 10.0), ("+.5", 0.5), ("2.", 2.0), ("1E1", 10.0)):
        file.write_text(f"type: l2_ball\nradius2: {text}\naction_dim: 2\n")
        ball: Any = as_constraint(file, None)
        assert ball.radius2 == value
        assert as_constraint(str(file), None).fingerprint() == load_constraint(file).fingerprint()


def test_constraints_from_files_can_be_pickled() -> None:
    made = constraint_from_mapping({"type": "linear", "weights_from_obs": [1, 0], "b": 0.5})
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert again.fingerprint() == made.fingerprint()
    obs, act = np.array([1.0, -2.0]), np.array([0.1, 0.5])
    assert again.violation(obs, act) == made.violation(obs, act)


def test_huge_numbers_in_a_file() -> None:
    huge = constraint_from_mapping({"type": "linear", "A": [[1e308, 1e308]], "b": [1e308]})
    np.testing.assert_allclose(huge.project(None, np.ones(2)), [0.5, 0.5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a0,a0,a1\n.1,.9,.1\n", "one stands twice"),
        ("a00,a0,a1\n.1,.9,.1\n", "one stands twice"),
        ("a0,a1\n.1,.9,.1\n", "line 2: 3 cells below 2 column names"),
        ("a0,a1\n1_0,.9\n", "line 2: '1_0' is no number"),
        ("a0,a1,note\n.1,.9\n.1\n", "line 3: 1 cells below 3 column names"),
    ],
)
def test_tables_that_are_read_in_two_ways_are_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "actions.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_actions(file)
    file.write_text("a0,a1,note,\n.1,.9,fine,\n.2,.1,fine,,\n")
    assert read_actions(file)[0].tolist() == [[0.1, 0.9], [0.2, 0.1]]


@pytest.mark.parametrize("other", ["actions.csv", "sub/../actions.csv", "link.csv"])
def test_projections_do_not_overwrite_the_recorded_actions(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    file = Path("actions.csv")
    file.write_text("a0,a1,o0\n.9,.9,7\n")
    Path("link.csv").symlink_to(file)
    with pytest.raises(ValueError, match="give another file"):
        check_recorded("actions.csv", L2Ball(0.02, action_dim=2), project=other)
    assert file.read_text() == "a0,a1,o0\n.9,.9,7\n"
    check_recorded("actions.csv", L2Ball(0.02, action_dim=2), project="nearest.csv")
    np.testing.assert_allclose(read_actions("nearest.csv")[0], [[0.1, 0.1]], atol=1e-6)
