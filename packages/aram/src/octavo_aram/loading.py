"""Constraints from YAML files and from the user's own code.

A YAML file is data: it is checked against a schema and never evaluated. Code runs only where the user names it,
``module:attribute`` or ``file.py:attribute``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import yaml
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingFileError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from octavo_aram.constraints import (
    Box,
    Constraint,
    Ellipsoid,
    IntegerAllocation,
    Intersection,
    L2Ball,
    LinearInequality,
    Orthoplex,
    PositivePower,
    SumEquality,
    Union,
)
from octavo_aram.constraints._user import LARGEST_INDEX
from octavo_aram.observed import ObservedRow
from octavo_aram.registry import make_constraint
from octavo_aram.user_code import import_place, user_errors

__all__ = ["constraint_from_mapping", "load_constraint"]

_TAG = "tag:yaml.org,2002:"
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 8
_MAX_DIM = 100_000
# No finite float64 has more.
_MAX_DIGITS = 309


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    if isinstance(value, str):
        raise ValueError(f"{value!r} is no number; write one such as 10, 0.05 or 1e-3")
    return value


def _index(value: Any) -> Any:
    value = _number(value)
    if isinstance(value, int) and not 0 <= value <= LARGEST_INDEX:
        raise ValueError(f"{value} is no entry of the observation; give indices >= 0, at most {LARGEST_INDEX}")
    return value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_number)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=10_000)]
Matrix = Annotated[list[Vector], Field(min_length=1, max_length=10_000)]
Indices = Annotated[list[Annotated[int, BeforeValidator(_index)]], Field(min_length=1, max_length=10_000)]
Dimension = Annotated[Whole, Field(ge=1, le=_MAX_DIM)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _BoxSpec(_Spec):
    type: Literal["box"]
    low: Vector
    high: Vector


class _BallSpec(_Spec):
    type: Literal["l2_ball"]
    radius2: Number
    center: Vector | None = None
    action_dim: Dimension | None = None


class _EllipsoidSpec(_Spec):
    type: Literal["ellipsoid"]
    matrix: Matrix | Vector
    bound: Number
    center: Vector | None = None


class _WeightedSpec(_Spec):
    type: Literal["orthoplex", "positive_power"]
    limit: Number
    weights_from_obs: Indices | None = None
    weights: Vector | None = None


class _LinearSpec(_Spec):
    type: Literal["linear"]
    A: Matrix | Vector | None = None
    b: Vector | Number
    weights_from_obs: Indices | None = None


class _SumSpec(_Spec):
    type: Literal["sum"]
    total: Number
    action_dim: Dimension
    tol: Number = 0.0


class _IntegerSpec(_Spec):
    type: Literal["integer"]
    total: Whole
    lower: Whole
    upper: Whole
    action_dim: Dimension


class _NamedSpec(_Spec):
    type: Literal["named"]
    id: str


class _CombinedSpec(_Spec):
    type: Literal["union", "intersection"]
    parts: Annotated[list[Any], Field(min_length=1, max_length=1000)]


_SPECS: dict[str, type[_Spec]] = {
    "box": _BoxSpec,
    "l2_ball": _BallSpec,
    "ellipsoid": _EllipsoidSpec,
    "orthoplex": _WeightedSpec,
    "positive_power": _WeightedSpec,
    "linear": _LinearSpec,
    "sum": _SumSpec,
    "integer": _IntegerSpec,
    "named": _NamedSpec,
    "union": _CombinedSpec,
    "intersection": _CombinedSpec,
}


def load_constraint(reference: str | Path, env: Any = None) -> Constraint:
    """Load a constraint from a YAML file, from the user's code, or by name.

    Args:
        reference: A ``.yaml``/``.yml`` file; ``module:attribute`` or ``file.py:attribute`` naming a constraint, a
            class or a function that makes one (called with ``env`` if it requires an argument); or a name of
            :func:`octavo_aram.registry.make_constraint`.
        env: The environment, for names and functions that need it.

    Returns:
        The constraint.

    Raises:
        MissingFileError: If a file does not exist.
        InvalidValueError: If the content or the name is not accepted.
        InvalidTypeError: If the named attribute is no constraint and makes none.

    Source:
        Beyond the paper: constraints for the user's own environment.
    """
    text = str(reference)
    if text.lower().endswith((".yaml", ".yml")):
        return _from_file(Path(text), env)
    if ":" in text:
        return _from_code(text, env)
    return make_constraint(text, env)


def constraint_from_mapping(mapping: Any, env: Any = None) -> Constraint:
    """Build a constraint from the content of a YAML file.

    Types and fields: ``box`` (low, high), ``l2_ball`` (radius2, center or action_dim), ``ellipsoid`` (matrix, bound,
    center), ``orthoplex`` and ``positive_power`` (limit, weights_from_obs or weights), ``linear`` (A or
    weights_from_obs, b), ``sum`` (total, action_dim, tol), ``integer`` (total, lower, upper, action_dim), ``named``
    (id), ``union`` and ``intersection`` (parts).

    Args:
        mapping: ``{"type": ..., ...}`` with the fields of that type.
        env: The environment, for parts of type ``named``.

    Returns:
        The constraint.

    Raises:
        InvalidValueError: If a field is missing, unknown or out of range.

    Source:
        Beyond the paper.
    """
    return _build(mapping, env, _MAX_DEPTH)


class _PlainLoader(yaml.SafeLoader):
    """Plain data only: no aliases, with which a small file can describe a huge one, no key twice, numbers as they look.

    In YAML 1.1 ``1_0``, ``1:30`` and ``010`` are 10, 90 and 8.
    """

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in {f"{_TAG}int", f"{_TAG}float"}]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise InvalidValueError("YAML aliases (*name) are not accepted; write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        if twice := sorted({str(key) for key in keys if keys.count(key) > 1}):
            line = node.start_mark.line + 1
            raise InvalidValueError(f"the key {twice[0]!r} stands twice in the mapping at line {line}; keep one")
        return super().construct_mapping(node, deep)


def _whole(loader: Any, node: Any) -> int:
    digits = loader.construct_scalar(node)
    if len(digits) > _MAX_DIGITS:
        line = node.start_mark.line + 1
        raise InvalidValueError(
            f"the number at line {line} has {len(digits)} digits; give one of at most {_MAX_DIGITS}, or write 1e30"
        )
    return int(digits)


_PlainLoader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_PlainLoader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"([-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_PlainLoader.add_constructor(f"{_TAG}int", _whole)


def _from_file(path: Path, env: Any) -> Constraint:
    if not path.is_file():
        raise MissingFileError(f"no constraint file at {str(path)!r}; give an existing .yaml file")
    if path.stat().st_size > _MAX_BYTES:
        raise InvalidValueError(f"{str(path)!r} is larger than 1 MiB, too large for a constraint")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)
        return constraint_from_mapping(content, env)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValueError(f"{str(path)!r} is not readable YAML: {' '.join(str(error).split())}") from error
    except (InvalidValueError, InvalidTypeError) as error:
        raise InvalidValueError(f"{str(path)!r}: {error}") from error


def _build(mapping: Any, env: Any, depth: int) -> Constraint:
    if not isinstance(mapping, dict) or not isinstance(mapping.get("type"), str):
        raise InvalidValueError(f"a constraint is a mapping with a 'type': one of {', '.join(_SPECS)}")
    if depth == 0:
        raise InvalidValueError(f"constraints are nested deeper than {_MAX_DEPTH} levels")
    kind = mapping["type"]
    if kind not in _SPECS:
        raise InvalidValueError(f"type {kind!r} is not known; accepted: {', '.join(_SPECS)}")
    try:
        spec = _SPECS[kind].model_validate(mapping)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or kind}: {problem['msg']}"
            for problem in error.errors()[:3]
        )
        fields = ", ".join(name for name in _SPECS[kind].model_fields if name != "type")
        raise InvalidValueError(f"constraint of type {kind!r}: {problems} (fields: {fields})") from error
    return _construct(spec, env, depth)


def _construct(spec: _Spec, env: Any, depth: int) -> Constraint:
    match spec:
        case _BoxSpec():
            return Box(spec.low, spec.high)
        case _BallSpec():
            return L2Ball(spec.radius2, spec.center, action_dim=spec.action_dim)
        case _EllipsoidSpec():
            return Ellipsoid(_rectangular(spec.matrix, "matrix"), spec.bound, spec.center)
        case _WeightedSpec():
            _one_of(spec, "weights_from_obs", "weights")
            kind = Orthoplex if spec.type == "orthoplex" else PositivePower
            return kind(spec.weights_from_obs, spec.limit, weights=spec.weights)
        case _LinearSpec():
            return _linear(spec)
        case _SumSpec():
            return SumEquality(spec.total, spec.tol, action_dim=spec.action_dim)
        case _IntegerSpec():
            return IntegerAllocation(spec.total, spec.lower, spec.upper, action_dim=spec.action_dim)
        case _NamedSpec():
            return make_constraint(spec.id, env)
        case _CombinedSpec():
            parts = [_build(part, env, depth - 1) for part in spec.parts]
            return Union(parts) if spec.type == "union" else Intersection(parts)
    raise AssertionError(f"unreachable: {spec!r}")


def _linear(spec: _LinearSpec) -> Constraint:
    _one_of(spec, "A", "weights_from_obs")
    bound = spec.b if isinstance(spec.b, list) else [spec.b]
    if spec.A is not None:
        rows = np.atleast_2d(_rectangular(spec.A, "A"))
        if len(rows) != len(bound):
            raise InvalidValueError(
                f"constraint of type 'linear': A has {len(rows)} rows and b {len(bound)} entries; give as many of each"
            )
        return LinearInequality(rows, bound)
    indices = spec.weights_from_obs or []
    if len(bound) != 1:
        raise InvalidValueError(
            "constraint of type 'linear': weights_from_obs makes one row, sum obs[i] a_i <= b; give one b"
        )
    return LinearInequality(ObservedRow(tuple(indices)), bound, action_dim=len(indices), min_obs_dim=max(indices) + 1)


def _one_of(spec: _WeightedSpec | _LinearSpec, first: str, second: str) -> None:
    if (getattr(spec, first) is None) == (getattr(spec, second) is None):
        raise InvalidValueError(f"constraint of type {spec.type!r}: give either {first} or {second}")


def _rectangular(values: Any, name: str) -> np.ndarray:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError as error:
        raise InvalidValueError(f"the rows of {name} differ in length") from error


def _from_code(reference: str, env: Any) -> Constraint:
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute.isidentifier():
        raise InvalidValueError(f"{reference!r} names no constraint; write module:Class or path/file.py:Class")
    found = getattr(import_place(place), attribute, None)
    if found is None:
        raise InvalidValueError(
            f"{place!r} defines no {attribute!r}; name a constraint of it, or a class or function that makes one"
        )
    if isinstance(found, Constraint):
        return found
    if not callable(found):
        raise InvalidTypeError(f"{reference!r} is a {type(found).__name__}; give a constraint, or what makes one")
    with user_errors(f"making the constraint {reference!r}"):
        made = found(env) if _takes_argument(found) else found()
    if not isinstance(made, Constraint):
        raise InvalidTypeError(f"{reference!r} made a {type(made).__name__}, not a constraint")
    return made


def _takes_argument(function: Any) -> bool:
    return any(
        parameter.default is parameter.empty
        and parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        for parameter in inspect.signature(function).parameters.values()
    )
