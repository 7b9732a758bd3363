"""What the integration tests share: the members of the workspace, their built distributions, and empty environments."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / ".github" / "scripts"


def load_module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Member:
    """A distribution of the workspace, known by its folder.

    Args:
        folder: ``shared-core`` or ``packages/<slug>``.
    """

    folder: Path

    @property
    def slug(self) -> str:
        return "core" if self.folder.parent == ROOT else self.folder.name

    @property
    def distribution(self) -> str:
        return f"octavo-{self.slug}"

    @property
    def package(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.package

    @cached_property
    def project(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]

    @property
    def is_compiled(self) -> bool:
        """Whether its build may compile something: then it does not use uv's own back-end."""
        build = tomllib.loads((self.folder / "pyproject.toml").read_text())["build-system"]
        return build["build-backend"] != "uv_build"

    @property
    def readme(self) -> str:
        return (self.folder / "README.md").read_text()

    def python_files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.py"))


MEMBERS = [Member(ROOT / folder) for folder in load_module(SCRIPTS / "touched.py").members()]
CORE, *METHODS = MEMBERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, members in {"member": MEMBERS, "method": METHODS}.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, members, ids=[member.slug for member in members], scope="session")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def members() -> list[Member]:
    return MEMBERS


@pytest.fixture(scope="session")
def methods() -> list[Member]:
    return METHODS


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Import a script of .github/scripts by its name."""
    return lambda name: load_module(SCRIPTS / f"{name}.py")


def clean_environment(**variables: str) -> dict[str, str]:
    """Environment of a subprocess without what would leak from the workspace's virtual environment."""
    leaks = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "OCTAVO_DEBUG"}
    kept = {name: value for name, value in os.environ.items() if name not in leaks and not name.startswith("PYTEST_")}
    # Wide, colourless output, so that no test depends on the terminal.
    return {**kept, "MPLBACKEND": "Agg", "NO_COLOR": "1", "COLUMNS": "200", **variables}


def run(
    command: list[str], *, cwd: Path, timeout: float, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a clean environment; one that takes too long goes with all its worker processes."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@dataclass(frozen=True)
class Python:
    """An interpreter to run things with, as a user would: in a folder and a process of their own.

    Args:
        executable: Path of the interpreter.
    """

    executable: Path

    def __call__(
        self, *arguments: str, cwd: Path, timeout: float = 120.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return run([str(self.executable), *arguments], cwd=cwd, timeout=timeout, variables=variables)

    def octavo(
        self, *arguments: str, cwd: Path, timeout: float = 120.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the installed ``octavo`` command."""
        script = shutil.which("octavo", path=str(self.executable.parent))
        assert script is not None, f"no octavo command beside {self.executable}"
        return run([script, *arguments], cwd=cwd, timeout=timeout, variables=variables)


@pytest.fixture(scope="session")
def workspace_python() -> Python:
    """The interpreter that runs the tests, with the whole workspace installed."""
    return Python(Path(sys.executable))


@pytest.fixture(scope="session")
def uv() -> Callable[..., str]:
    """Run uv and return its output; uv's own complaint is the failure message."""
    # uv names itself to what it runs; a plain pytest finds it on the path.
    executable = os.environ.get("UV") or shutil.which("uv")
    assert executable is not None, "uv is not installed; install it with: pip install uv"

    def call(*arguments: str | Path, cwd: Path = ROOT, timeout: float = 600.0, **variables: str) -> str:
        done = run([executable, *map(str, arguments)], cwd=cwd, timeout=timeout, variables=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="session")
def dist(uv: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist of every member and the wheel built from that sdist: what a release uploads."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--all-packages", "--out-dir", folder)
    return folder


@pytest.fixture(scope="session")
def find_wheel(dist: Path) -> Callable[[Member], Path]:
    def find(member: Member) -> Path:
        (wheel,) = dist.glob(f"{member.package}-*.whl")
        return wheel

    return find


@pytest.fixture(scope="session")
def installed_alone(
    uv: Callable[..., str], find_wheel: Callable[[Member], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Member], Python]]:
    """Install a member's wheel with core's, and nothing else of the workspace, in an empty environment.

    The dependencies come at their locked versions, without extras, from uv's cache, which the workspace's own
    installation has filled: hard links, no download.
    """
    base = tmp_path_factory.mktemp("environments")
    skeleton = base / "workspace"
    for relative in [
        "pyproject.toml",
        "uv.lock",
        *(str(m.folder.relative_to(ROOT) / "pyproject.toml") for m in MEMBERS),
    ]:
        target = skeleton / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / relative, target)
    # Where hard links are impossible, copying gigabytes of torch per member would be the alternative.
    cache = Path(uv("cache", "dir").strip())
    linked = cache.exists() and cache.stat().st_dev == base.stat().st_dev
    settings = {"UV_LINK_MODE": "hardlink" if linked else "symlink"}
    ready: dict[str, Python] = {}

    def install(member: Member) -> Python:
        if member.distribution not in ready:
            environment = base / member.slug
            uv(
                *("sync", "--frozen", "--package", member.distribution, "--no-default-groups"),
                *("--no-install-workspace", "--no-compile-bytecode", "--python", sys.executable),
                cwd=skeleton,
                UV_PROJECT_ENVIRONMENT=str(environment),
                **settings,
            )
            executable = environment / "bin" / "python"
            wheels = {find_wheel(CORE), find_wheel(member)}
            uv("pip", "install", "--no-deps", "--python", executable, *sorted(wheels), cwd=base, **settings)
            # The wheels' own metadata must ask for nothing that the lock did not bring.
            uv("pip", "check", "--python", executable, cwd=base)
            ready[member.distribution] = Python(executable)
        return ready[member.distribution]

    yield install
    with contextlib.suppress(OSError):
        shutil.rmtree(base)
