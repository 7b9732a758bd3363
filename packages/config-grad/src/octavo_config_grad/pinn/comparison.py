"""Methods against a baseline, on runs that differ in nothing but the method and the seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from octavo_core.errors import InvalidValueError
from octavo_core.metrics import compare_paired

__all__ = ["compare_methods", "run_names"]

# Settings that only some methods have; the others ignore them.
_OF_MOMENTUM = ("updates_per_step",)
_OF_CONFIG = ("length", "rank_policy")


def run_names(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Name the problem and the method of each run, with the options and settings in which runs of one name differ.

    Args:
        rows: What :func:`pinn.compare_runs` returned.

    Returns:
        For each run the names, such as ``("Burgers (num_losses=3)", "config (length=min)")``.
    """
    shared = [{**row["problem_options"], **_shared_settings(row)} for row in rows]
    own = [_own_settings(row) for row in rows]
    problems, methods = [row["problem"] for row in rows], [row["method"] for row in rows]
    return list(zip(_names(problems, shared), _names(methods, own), strict=True))


def compare_methods(
    rows: Sequence[Mapping[str, Any]], baseline: str = "adam"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare methods with a baseline, seed by seed.

    Runs are compared if they are of the same problem with the same options, budget and settings; settings that only
    some methods have (``updates_per_step``, ``length``, ``rank_policy``) make a method of their own.

    Args:
        rows: What :func:`pinn.compare_runs` returned.
        baseline: Method that the others are compared with.

    Returns:
        One JSON-ready mapping for each comparison, and one sentence for each that could not be made.

    Raises:
        InvalidValueError: If no run is by the baseline, unless that is ``"adam"``; or if two runs are of the same
            problem, settings, method and seed.
    """
    known = sorted({row["method"] for row in rows})
    if baseline not in known and baseline != "adam":
        raise InvalidValueError(f"no run is by the baseline {baseline!r}; give one of {', '.join(known)}")
    groups: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    names = {id(row): name for row, name in zip(rows, run_names(rows), strict=True)}
    for row in rows:
        setting = _key([row["problem"], row["problem_options"], _shared_settings(row)])
        seeds = groups.setdefault(setting, {}).setdefault(_key([row["method"], _own_settings(row)]), {})
        if row["seed"] in seeds:
            raise InvalidValueError(
                f"{seeds[row['seed']]['folder']!r} and {row['folder']!r} are the same run ({row['method']}, seed "
                f"{row['seed']}, the same settings); leave one out"
            )
        seeds[row["seed"]] = row
    comparisons, notes = [], []
    for methods in groups.values():
        first = {method: next(iter(seeds.values())) for method, seeds in methods.items()}
        baselines = [method for method, row in first.items() if row["method"] == baseline]
        others = [method for method in methods if method not in baselines]
        if not baselines and others:
            problem = names[id(first[others[0]])][0]
            notes.append(f"{problem}: no run by {baseline} under the same settings, so nothing is compared")
        for method in others:
            for against in baselines:
                problem, name = names[id(first[method])]
                label = f"{problem}: {name} over {names[id(first[against])][1]}"
                errors = _common_errors(methods[method], methods[against])
                if len(errors) < 2:
                    count = f"{len(errors)} seed{'' if len(errors) == 1 else 's'}"
                    notes.append(f"{label}: both have a final error on {count}; a comparison needs two")
                else:
                    comparisons.append(_comparison(label, first[method], first[against], errors))
    return comparisons, notes


def _comparison(label: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], errors: np.ndarray) -> dict[str, Any]:
    fields = dataclasses.asdict(compare_paired(errors[:, 0], errors[:, 1]))
    return {
        "label": label,
        "problem": ours["problem"],
        "problem_options": ours["problem_options"],
        "settings": _shared_settings(ours),
        "method": ours["method"],
        "method_settings": _own_settings(ours),
        "baseline": theirs["method"],
        "baseline_settings": _own_settings(theirs),
        "seeds": len(errors),
        **{name: fields[name] for name in ("wins", "losses", "p_value", "ratio")},
    }


def _common_errors(ours: Mapping[int, Mapping[str, Any]], theirs: Mapping[int, Mapping[str, Any]]) -> np.ndarray:
    """Final errors (seeds, 2) on the seeds that both have."""
    pairs = [(ours[seed]["final_mse"], theirs[seed]["final_mse"]) for seed in sorted(ours.keys() & theirs.keys())]
    return np.array([pair for pair in pairs if None not in pair], dtype=float).reshape(-1, 2)


def _own_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    method = row["method"]
    names = (_OF_MOMENTUM if method.startswith("m-") else ()) + (
        _OF_CONFIG if method.removeprefix("m-") == "config" else ()
    )
    return {name: row["config"].get(name) for name in names}


def _shared_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    config = row["config"]
    # By steps or passes every device computes the same up to rounding.
    left_out = {"seed", *_OF_MOMENTUM, *_OF_CONFIG, *(["device"] if config.get("seconds") is None else [])}
    return {name: value for name, value in config.items() if name not in left_out}


def _names(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each name, with those settings in which its bearers differ."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, values in zip(names, settings, strict=True):
        for key, value in values.items():
            found.setdefault(name, {}).setdefault(key, set()).add(_key(value))
    labels = []
    for name, values in zip(names, settings, strict=True):
        differing = [f"{key}={_text(value)}" for key, value in values.items() if len(found[name][key]) > 1]
        labels.append(f"{name} ({', '.join(differing)})" if differing else name)
    return labels


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
