"""The public set of 50 problems (numbers only) and what reference implementations computed on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.trace import ReasoningTrace, claims_from_arrays

sys.path.insert(0, str(Path(__file__).parent))  # for coherent_traces, which several tests share

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def problems() -> list[ReasoningTrace]:
    return load_problems()


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    return json.loads((DATA / "expected_gpt.json").read_text())


def load_problems() -> list[ReasoningTrace]:
    entries = json.loads((DATA / "problems_gpt.json").read_text())["problems"]
    return [
        ReasoningTrace(
            claims_from_arrays(
                factual=entry["factual"], frequency=entry["frequency"], self_confidence=entry["self_confidence"]
            ),
            DeducibilityGraph.from_parents(entry["parents"]),
            id=str(entry["id"]),
            subset_annotations={
                frozenset(i for i in range(entry["n"]) if mask >> i & 1): verdict
                # Where a subset is listed as both, the official code takes it as coherent.
                for verdict, name in ((False, "not_coherent"), (True, "coherent"))
                for mask in entry["subset_annotations"][name]
            },
        )
        for entry in entries
    ]
