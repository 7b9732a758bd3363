"""Check that a tag, the version in pyproject.toml and the top entry of the changelog agree, before anything is built.

Prints ``distribution``, ``folder`` and ``version`` in the form that GITHUB_OUTPUT takes.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
_TAG = re.compile(rf"octavo-(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*?)-v(?P<version>{VERSION})")
_ENTRY = re.compile(rf"## \[(?P<version>{VERSION})\] - (?P<date>\d{{4}}-\d{{2}}-\d{{2}})")


class ReleaseError(Exception):
    """A release that must not happen; the message says what to mend."""


class Entry(NamedTuple):
    """The heading of a changelog entry."""

    version: str
    date: str


class Release(NamedTuple):
    """A distribution about to be released."""

    distribution: str
    folder: str
    version: str


def top_entry(changelog: str) -> Entry:
    """Read the first entry of a changelog.

    Args:
        changelog: Text in the form of Keep a Changelog.

    Returns:
        Version and date.

    Raises:
        ReleaseError: If there is no entry or its heading has another form.
    """
    heading = next((line.rstrip() for line in changelog.splitlines() if line.startswith("## ")), None)
    match = _ENTRY.fullmatch(heading) if heading is not None else None
    if match is None:
        raise ReleaseError(f"the changelog starts with {heading!r}; write '## [<version>] - <YYYY-MM-DD>'")
    return Entry(match["version"], match["date"])


def parse_tag(tag: str) -> tuple[str, str]:
    """Split a release tag.

    Args:
        tag: ``octavo-<slug>-v<version>``, with or without ``refs/tags/``.

    Returns:
        Slug and version.

    Raises:
        ReleaseError: If the tag has another form.
    """
    match = _TAG.fullmatch(tag.removeprefix("refs/tags/"))
    if match is None:
        raise ReleaseError(
            f"tag {tag!r} names no release; write octavo-<slug>-v<version>, as in octavo-config-grad-v0.1.0"
        )
    return match["slug"], match["version"]


def check_release(tag: str, root: Path = ROOT) -> Release:
    """Check that everything that states the version states the tag's.

    Args:
        tag: The tag.
        root: Root of the workspace.

    Returns:
        What is to be released.

    Raises:
        ReleaseError: If the tag names no member, or another version than pyproject.toml or the changelog.
    """
    slug, version = parse_tag(tag)
    folder = "shared-core" if slug == "core" else f"packages/{slug}"
    distribution = f"octavo-{slug}"
    try:
        project = tomllib.loads((root / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        changelog = (root / folder / "CHANGELOG.md").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ReleaseError(f"tag {tag!r} names {distribution}, but {error.filename} does not exist") from error
    stated = {f"{folder}/pyproject.toml": project["version"], f"{folder}/CHANGELOG.md": top_entry(changelog).version}
    wrong = [f"{file} says {found}" for file, found in stated.items() if found != version]
    if project["name"] != distribution:
        wrong.append(f"{folder}/pyproject.toml is named {project['name']}")
    if wrong:
        raise ReleaseError(f"tag {tag!r} would release {distribution} {version}, but {' and '.join(wrong)}")
    return Release(distribution, folder, version)


def main(arguments: list[str] | None = None) -> int:
    """Check the tag given on the command line.

    Args:
        arguments: Command-line arguments; those of the process by default.

    Returns:
        Exit status: 0 if the release may go on, 1 if not.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="octavo-<slug>-v<version>")
    options = parser.parse_args(arguments)
    try:
        release = check_release(options.tag)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, value in release._asdict().items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
