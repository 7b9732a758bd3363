"""The contract of a member: what makes the nineteenth package as easy to install, test and release as the first.

CONTRIBUTING.md states the same rules in prose.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from fnmatch import fnmatch
from types import ModuleType
from typing import TYPE_CHECKING

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Member


def test_metadata_is_complete(member: Member, root: Path) -> None:
    project = member.project
    assert project["name"] == member.distribution
    assert project["readme"] == "README.md"
    assert project["license"] == "MIT"
    assert project["license-files"] == ["LICENSE"]
    assert (member.folder / "LICENSE").read_text() == (root / "LICENSE").read_text()
    assert project["requires-python"] == ">=3.11"
    assert 20 <= len(project["description"]) <= 130, "one line, shown by `octavo list`"
    assert project.get("authors"), "name the authors"
    assert project.get("keywords"), "give keywords: the index searches them"
    assert all(url.startswith("https://") for url in project.get("urls", {}).values())
    assert "dynamic" not in project, "versions are static"


def test_classifiers_say_python_and_typing(member: Member) -> None:
    classifiers = set(member.project.get("classifiers", []))
    wanted = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)} | {"Typing :: Typed"}
    assert wanted <= classifiers
    # PEP 639: the licence expression says it, and a licence classifier beside it is refused by the index.
    assert not [text for text in classifiers if text.startswith("License ::")]
    assert (member.source / "py.typed").is_file()


def test_method_links_its_paper(method: Member) -> None:
    assert "Paper" in method.project["urls"]


def test_version_is_the_same_everywhere(member: Member, load_script: Callable[[str], ModuleType]) -> None:
    changelog = (member.folder / "CHANGELOG.md").read_text()
    entry = load_script("check_release").top_entry(changelog)
    assert entry.version == member.project["version"]
    assert date.fromisoformat(entry.date) <= datetime.now(UTC).date()
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", entry.version), "a semantic version"
    package = importlib.import_module(member.package)
    assert getattr(package, "__version__", entry.version) == entry.version
    assert importlib.metadata.version(member.distribution) == entry.version, "the environment is stale: run uv sync"


def test_root_knows_the_member(member: Member, root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    distribution = member.distribution
    assert settings["tool"]["uv"]["sources"][distribution] == {"workspace": True}
    required = {Requirement(text).name: Requirement(text) for text in settings["project"]["dependencies"]}
    assert required[distribution].extras == {"all"}
    (hook,) = [o for o in settings["tool"]["pytest"]["ini_options"]["addopts"] if o.startswith("--jaxtyping-packages=")]
    assert member.package in hook.partition("=")[2].split(","), "its shapes are not checked at test time"
    assert member.package in settings["tool"]["coverage"]["run"]["source_pkgs"]
    tested = [root / path for path in settings["tool"]["pytest"]["ini_options"]["testpaths"]]
    assert any((member.folder / "tests").is_relative_to(path) for path in tested), (
        "`pytest` alone would not run its tests"
    )
    typed = settings["tool"]["ty"]["src"]["include"]
    assert any(fnmatch(member.source.parent.relative_to(root).as_posix(), pattern) for pattern in typed)


def requirements(member: Member) -> list[Requirement]:
    """All requirements, those of extras included, without an extra's reference to other extras of the member."""
    texts = list(member.project["dependencies"])
    for extra in member.project.get("optional-dependencies", {}).values():
        texts += extra
    parsed = [Requirement(text) for text in texts]
    return [requirement for requirement in parsed if requirement.name != member.distribution]


def test_every_dependency_has_a_lower_bound(member: Member) -> None:
    unbounded = [
        str(requirement)
        for requirement in requirements(member)
        if not any(clause.operator in {">=", "==", "~="} for clause in requirement.specifier)
    ]
    assert not unbounded


def test_all_extra_holds_every_extra(member: Member) -> None:
    extras = member.project.get("optional-dependencies", {})
    assert list(extras), "an extra `all` is what the workspace installs"
    gathered = {name for text in extras["all"] for name in Requirement(text).extras}
    assert gathered == set(extras) - {"all"}
    assert all(Requirement(text).name == member.distribution for text in extras["all"])


def test_method_depends_on_core_and_no_other_method(method: Member, members: list[Member]) -> None:
    core = members[0]
    (pinned,) = [r for r in map(Requirement, method.project["dependencies"]) if r.name == core.distribution]
    version = Version(core.project["version"])
    next_breaking = Version(f"0.{version.minor + 1}" if version.major == 0 else f"{version.major + 1}.0")
    assert version in pinned.specifier
    assert next_breaking not in pinned.specifier
    # The first version that breaks must be shut out too when it is a pre-release.
    assert any(clause.operator == "<" and Version(clause.version) <= next_breaking for clause in pinned.specifier)
    others = [r.name for r in requirements(method) if canonicalize_name(r.name).startswith("octavo-")]
    assert set(others) == {core.distribution}


def test_core_depends_on_no_method(members: list[Member]) -> None:
    assert not [r.name for r in requirements(members[0]) if canonicalize_name(r.name).startswith("octavo-")]


def test_no_file_imports_another_method(member: Member) -> None:
    allowed = {"octavo_core", member.package}
    foreign = [
        f"{file.relative_to(member.folder)}:{line} imports {name}"
        for file in member.python_files()
        for name, line in imported_packages(ast.parse(file.read_text()))
        if (name == "octavo" or name.startswith("octavo_")) and name not in allowed
    ]
    assert not foreign


def imported_packages(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno


def test_entry_point_is_named_as_the_folder(method: Member) -> None:
    assert method.project["entry-points"] == {"octavo.methods": {method.slug: f"{method.package}.cli:app"}}
    (entry_point,) = importlib.metadata.entry_points(group="octavo.methods", name=method.slug)
    app = entry_point.load()
    assert isinstance(app, typer.Typer)
    assert {"demo", "bench"} <= set(typer.main.get_command(app).commands)
