"""The scripts that decide what CI tests and whether a tag may be released."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

CORE = {"slug": "core", "folder": "shared-core", "distribution": "octavo-core"}
FOLDERS = ["shared-core", "packages/config-grad", "packages/mmd"]


@pytest.fixture
def touched(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("touched")


@pytest.fixture
def check_release(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("check_release")


@pytest.mark.parametrize(
    ("paths", "folders", "integration"),
    [
        ([], [], False),
        (["packages/mmd/src/octavo_mmd/core.py"], ["packages/mmd"], True),
        (["packages/mmd/README.md", "packages/config-grad/tests/test_x.py"], FOLDERS[1:], True),
        (["tests-integration/test_cli.py"], [], True),
        (["README.md", "CONTRIBUTING.md", "CITATION.cff"], [], True),
        (["README.md", "packages/mmd/pyproject.toml"], ["packages/mmd"], True),
        (["shared-core/src/octavo_core/cli.py"], FOLDERS, True),
        (["shared-core/README.md"], FOLDERS, True),
        (["uv.lock"], FOLDERS, True),
        (["pyproject.toml"], FOLDERS, True),
        (["LICENSE"], FOLDERS, True),
        ([".ci/run"], FOLDERS, True),
        ([".github/workflows/ci.yml"], FOLDERS, True),
        ([".github/scripts/touched.py"], FOLDERS, True),
        (["packages/removed/src/octavo_removed/x.py"], [], True),
        (["packages/stray.txt"], FOLDERS, True),
        (["docs/guide.md"], FOLDERS, True),
    ],
)
def test_touched(paths: list[str], folders: list[str], integration: bool, touched: ModuleType) -> None:
    assert touched.touched(paths, FOLDERS) == (folders, integration)


def test_members_are_those_of_the_workspace(touched: ModuleType, root: Path) -> None:
    found = touched.members()
    locked = tomllib.loads((root / "uv.lock").read_text())["manifest"]["members"]
    assert found[0] == "shared-core"
    assert {touched.matrix_entry(folder)["distribution"] for folder in found} == set(locked) - {"octavo"}
    assert touched.matrix_entry(found[0]) == CORE
    assert touched.matrix_entry("packages/mmd") == {
        "slug": "mmd",
        "folder": "packages/mmd",
        "distribution": "octavo-mmd",
    }


def test_touched_reads_standard_input_and_prints_outputs(root: Path) -> None:
    script = root / ".github" / "scripts" / "touched.py"
    done = subprocess.run(
        [sys.executable, script], input="shared-core/pyproject.toml\n", capture_output=True, text=True, check=True
    )
    outputs = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert json.loads(outputs["packages"])[0] == CORE
    assert outputs["integration"] == "true"


def test_changed_files_follow_git(touched: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "old name é.txt").write_text("the same content, moved\n" * 9)
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    base = git("rev-parse", "HEAD")
    git("mv", "old name é.txt", "new.txt")
    git("commit", "--quiet", "--message=two")
    # Both ends of a rename count: one package loses the file and another gains it.
    assert set(touched.changed_files(base, tmp_path)) == {"old name é.txt", "new.txt"}
    assert touched.changed_files("HEAD", tmp_path) == []
    assert touched.changed_files("0" * 40, tmp_path) is None
    assert touched.changed_files("", tmp_path) is None


def test_unknown_base_touches_everything(touched: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert touched.main(["--base", "0" * 40]) == 0
    printed = capsys.readouterr().out
    assert [entry["folder"] for entry in json.loads(printed.splitlines()[0].partition("=")[2])] == touched.members()
    assert "integration=true" in printed


def workspace(folder: Path, version: str, heading: str, slug: str = "mmd", name: str | None = None) -> Path:
    member = folder / ("shared-core" if slug == "core" else f"packages/{slug}")
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text(f'[project]\nname = "{name or f"octavo-{slug}"}"\nversion = "{version}"\n')
    (member / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\nFirst.\n\n## [0.0.1] - 2024-01-01\n")
    return folder


@pytest.mark.parametrize(
    ("tag", "slug", "version"),
    [
        ("octavo-mmd-v0.1.0", "mmd", "0.1.0"),
        ("refs/tags/octavo-config-grad-v1.20.3", "config-grad", "1.20.3"),
        ("octavo-core-v0.2.0rc1", "core", "0.2.0rc1"),
        ("octavo-x-v2-v1.0.0", "x-v2", "1.0.0"),
    ],
)
def test_release_tags(tag: str, slug: str, version: str, check_release: ModuleType, tmp_path: Path) -> None:
    root = workspace(tmp_path, version, f"## [{version}] - 2025-03-01", slug)
    release = check_release.check_release(tag, root)
    assert release.distribution == f"octavo-{slug}"
    assert release.folder == ("shared-core" if slug == "core" else f"packages/{slug}")
    assert release.version == version


@pytest.mark.parametrize(
    "tag",
    [
        "v0.1.0",
        "octavo-mmd",
        "octavo-mmd-0.1.0",
        "octavo-mmd-v0.1",
        "octavo--v0.1.0",
        "octavo-../x-v0.1.0",
        "octavo-MMD-v0.1.0",
    ],
)
def test_other_tags_are_refused(tag: str, check_release: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check_release.ReleaseError, match=r"octavo-<slug>-v<version>"):
        check_release.check_release(tag, tmp_path)


@pytest.mark.parametrize(
    ("version", "heading", "message"),
    [
        ("0.1.1", "## [0.1.0] - 2025-03-01", "pyproject.toml says 0.1.1"),
        ("0.1.0", "## [0.2.0] - 2025-03-01", "CHANGELOG.md says 0.2.0"),
        ("0.1.0", "## [Unreleased]", "Unreleased"),
        ("0.1.0", "## 0.1.0", r"write '## \[<version>\] - <YYYY-MM-DD>'"),
        ("0.1.0", "## [0.1.0]", r"starts with '## \[0.1.0\]'"),
    ],
)
def test_disagreement_stops_the_release(
    version: str, heading: str, message: str, check_release: ModuleType, tmp_path: Path
) -> None:
    root = workspace(tmp_path, version, heading)
    with pytest.raises(check_release.ReleaseError, match=message):
        check_release.check_release("octavo-mmd-v0.1.0", root)


def test_folder_with_another_distribution_stops_the_release(check_release: ModuleType, tmp_path: Path) -> None:
    root = workspace(tmp_path, "0.1.0", "## [0.1.0] - 2025-03-01", name="octavo-animate")
    with pytest.raises(check_release.ReleaseError, match="is named octavo-animate"):
        check_release.check_release("octavo-mmd-v0.1.0", root)


def test_release_of_nothing_is_one_clear_line(check_release: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_release.main(["octavo-not-there-v0.1.0"]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("error: tag 'octavo-not-there-v0.1.0' names octavo-not-there, but ")
    assert len(captured.err.splitlines()) == 1


def test_actions_are_pinned_to_one_commit_each(root: Path) -> None:
    pins: dict[str, set[str]] = {}
    for workflow in (root / ".github" / "workflows").glob("*.yml"):
        for action, pin in re.findall(r"uses:\s*([\w./-]+)@(.*)", workflow.read_text()):
            assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pin), f"{workflow.name}: {action}@{pin}"
            pins.setdefault(action, set()).add(pin)
    assert pins
    assert not {action: found for action, found in pins.items() if len(found) > 1}
