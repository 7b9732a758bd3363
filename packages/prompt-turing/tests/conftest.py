from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_prompt_turing import PromptTuringModel

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def traces() -> list[dict[str, Any]]:
    """34 runs of the reference implementation (q-rz/ICLR25-prompting-theory, commit d4a0c54)."""
    return json.loads((DATA / "traces.json").read_text())


@pytest.fixture(scope="session")
def activations() -> list[dict[str, Any]]:
    """All features of two runs of the reference implementation, 24 decimals."""
    return json.loads((DATA / "activations.json").read_text())


@pytest.fixture(scope="session")
def long_runs() -> list[dict[str, Any]]:
    """SHA-256 of the token text of six longer runs, from an independent simulator."""
    return json.loads((DATA / "long_runs.json").read_text())


@pytest.fixture
def model() -> PromptTuringModel:
    return PromptTuringModel()
