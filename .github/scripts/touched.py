"""Decide which packages a change touches, so that CI tests those and no others.

Prints two lines in the form that GITHUB_OUTPUT takes: ``packages``, a JSON list of what the test matrix needs to know
of each, and ``integration``, whether the integration tests have to run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Touched(NamedTuple):
    """What a change calls for."""

    folders: list[str]
    """Folders of the members to test."""
    integration: bool
    """Whether to run the integration tests."""


def members(root: Path = ROOT) -> list[str]:
    """Folders of the workspace's members, core first.

    Args:
        root: Root of the workspace.

    Returns:
        Paths relative to the root, with forward slashes.
    """
    workspace = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]["workspace"]
    found = {project.parent for pattern in workspace["members"] for project in root.glob(f"{pattern}/pyproject.toml")}
    paths = [folder.relative_to(root).as_posix() for folder in found]
    return sorted(paths, key=lambda path: (path != "shared-core", path))


def touched(paths: Iterable[str], folders: list[str]) -> Touched:
    """Map changed files to what has to be tested.

    Args:
        paths: Changed files, relative to the root, with forward slashes.
        folders: Folders of all members.

    Returns:
        A package for its own files; the integration tests alone for theirs and for prose at the root; everything for
        core, the lock, the workflows and whatever else may matter to all.
    """
    chosen: set[str] = set()
    integration = False
    for path in paths:
        top, _, rest = path.partition("/")
        integration = True
        if top == "packages" and "/" in rest:
            chosen.add(f"packages/{rest.partition('/')[0]}")
        elif top == "tests-integration" or path == "CITATION.cff" or (not rest and path.endswith(".md")):
            continue
        else:
            chosen.update(folders)
    # A package that the change removes has nothing left to test.
    return Touched([folder for folder in folders if folder in chosen], integration)


def changed_files(base: str, root: Path = ROOT) -> list[str] | None:
    """List the files that differ from where the current commit left another revision.

    Args:
        base: The other revision.
        root: A folder of the repository.

    Returns:
        Paths relative to the root of the repository, or None if the revision is not there: a first push, a forced one.
    """
    # An empty name would stand for HEAD, and nothing would seem changed.
    command = ["git", "diff", "--name-only", "--no-renames", "-z", f"{base or 'nothing'}...HEAD", "--"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"cannot compare with {base!r}, so everything counts as touched: {done.stderr.strip()}", file=sys.stderr)
        return None
    return [path for path in done.stdout.split("\0") if path]


def matrix_entry(folder: str) -> dict[str, str]:
    """Describe a member to the test matrix.

    Args:
        folder: Its folder.

    Returns:
        Its slug, folder and distribution.
    """
    slug = "core" if folder == "shared-core" else folder.partition("/")[2]
    return {"slug": slug, "folder": folder, "distribution": f"octavo-{slug}"}


def main(arguments: list[str] | None = None) -> int:
    """Print what is touched.

    Args:
        arguments: Command-line arguments; those of the process by default.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="revision to compare with; without it, changed paths are read from stdin")
    options = parser.parse_args(arguments)
    folders = members()
    paths = sys.stdin.read().splitlines() if options.base is None else changed_files(options.base)
    result = Touched(folders, True) if paths is None else touched(filter(None, paths), folders)
    print(f"packages={json.dumps([matrix_entry(folder) for folder in result.folders])}")
    print(f"integration={json.dumps(result.integration)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
