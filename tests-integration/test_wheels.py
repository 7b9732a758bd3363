"""What a release uploads: it holds what it should and nothing else, and works where nothing else is installed."""

from __future__ import annotations

import email
import html
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from conftest import Member, Python

SIZE_LIMIT = 2 * 2**20
JUNK = {"__pycache__", "tests", "benchmarks", "examples"}


def source_files(member: Member) -> set[str]:
    """Files of the import package, as a wheel must hold them."""
    files = [f for f in member.source.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    return {f.relative_to(member.source.parent).as_posix() for f in files}


def test_wheel_holds_the_package_and_nothing_else(member: Member, find_wheel: Callable[[Member], Path]) -> None:
    wheel = find_wheel(member)
    info = f"{member.package}-{member.project['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
    extra = {name for name in names if name.startswith(f"{info}/")}
    compiled = {name for name in names if name.endswith((".so", ".dylib", ".dll"))}
    assert names - extra - compiled == source_files(member)
    assert f"{member.package}/py.typed" in names
    assert f"{info}/licenses/LICENSE" in extra
    assert not [name for name in names if JUNK & set(name.split("/")) or name.endswith(".pyc")]
    if member.is_compiled and compiled:
        # One plain library serves every interpreter of a platform; without a compiler the wheel is a pure one.
        assert len(compiled) == 1
        assert "-py3-none-" in wheel.name
    else:
        assert not compiled
        assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < SIZE_LIMIT
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == member.readme.strip()
    assert not [text for text in metadata.get_all("Requires-Dist") or () if Requirement(text).url], (
        "the index refuses URLs"
    )


def test_sdist_holds_what_builds_the_wheel(member: Member, dist: Path) -> None:
    # The wheel of the other tests was built from this archive, so what is missing here is missing there.
    (sdist,) = dist.glob(f"{member.package}-*.tar.gz")
    stem = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{stem}/") for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert {f"src/{name}" for name in source_files(member)} <= names
    assert not [name for name in names if JUNK & set(name.split("/")) or name.endswith(".pyc")]
    assert sdist.stat().st_size < SIZE_LIMIT


def test_installed_alone_it_imports(
    member: Member, installed_alone: Callable[[Member], Python], tmp_path: Path, members: list[Member]
) -> None:
    python = installed_alone(member)
    script = (
        "import importlib, importlib.metadata, json, pkgutil, sys\n"
        "from octavo_core.errors import MissingDependencyError\n"
        "package = importlib.import_module(sys.argv[1])\n"
        # Extras are not installed: what needs one is imported where it is used, is a private module, or a module whose
        # classes derive from the library's and whose import says what to install.
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if '._' not in module.name:\n"
        "        try:\n"
        "            importlib.import_module(module.name)\n"
        "        except MissingDependencyError as error:\n"
        "            assert 'pip install' in str(error), error\n"
        "found = sorted(d.name for d in importlib.metadata.distributions() if d.name.startswith('octavo'))\n"
        "print(json.dumps([package.__file__, found]))\n"
    )
    done = python("-c", script, member.package, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    location, found = json.loads(done.stdout)
    assert Path(location).is_relative_to(python.executable.parents[1])
    assert found == sorted({members[0].distribution, member.distribution})


def test_installed_alone_its_demo_runs(
    method: Member, installed_alone: Callable[[Member], Python], tmp_path: Path
) -> None:
    python = installed_alone(method)
    listed = python.octavo("list", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert [(entry["slug"], entry["version"]) for entry in json.loads(listed.stdout)] == [
        (method.slug, method.project["version"])
    ]
    done = python.octavo(method.slug, "demo", "--quick", "--out", "report", cwd=tmp_path, timeout=300)
    assert done.returncode in {0, 1}, done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["method"] == method.slug
    page = html.unescape((tmp_path / "report" / "report.html").read_text())
    assert not [row["label"] for row in report["rows"] if row["label"] not in page]
    assert all((tmp_path / "report" / name).stat().st_size for name in report["artifacts"])


def test_core_alone_says_that_no_method_is_installed(
    installed_alone: Callable[[Member], Python], members: list[Member], tmp_path: Path
) -> None:
    python = installed_alone(members[0])
    for words in (["list"], ["demo"]):
        done = python.octavo(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "no methods installed; install one with" in done.stdout
    missing = python.octavo("config-grad", "demo", cwd=tmp_path)
    assert missing.returncode == 2
    assert "pip install octavo-config-grad" in missing.stderr
    doctor = python.octavo("doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stderr
