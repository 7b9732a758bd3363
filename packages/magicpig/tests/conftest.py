"""Fixtures, and the folder of the helpers on the path: tests are imported by file, not as a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from magicpig_helpers import available_kernels


@pytest.fixture(params=available_kernels())
def kernel(request: pytest.FixtureRequest) -> str:
    return request.param
