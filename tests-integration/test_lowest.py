"""The lower bounds of the dependencies are true: the oldest versions that they admit work."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Member, Python


@pytest.mark.slow
def test_lowest_direct_dependencies_work(
    uv: Callable[..., str],
    workspace_python: Python,
    root: Path,
    members: list[Member],
    methods: list[Member],
    tmp_path: Path,
) -> None:
    copy = tmp_path / "workspace"
    skipped = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", "dist", "runs", "out")
    shutil.copytree(root, copy, ignore=skipped)
    environment = copy / ".venv"
    uv(
        *("sync", "--resolution", "lowest-direct", "--no-default-groups", "--no-compile-bytecode"),
        *("--python", sys.executable),
        cwd=copy,
        timeout=1800,
        UV_PROJECT_ENVIRONMENT=str(environment),
    )
    lowest = type(workspace_python)(
        environment / workspace_python.executable.parent.name / workspace_python.executable.name
    )
    try:
        for member in members:
            done = lowest("-c", f"import {member.package}", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        for method in methods:
            done = lowest.octavo(method.slug, "demo", "--quick", "--json", cwd=tmp_path, timeout=300)
            assert done.returncode in {0, 1}, done.stderr
            assert json.loads(done.stdout)["rows"]
    finally:
        shutil.rmtree(environment)
