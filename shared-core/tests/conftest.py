"""Fixtures of the core's tests."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo_core import plugins

DEMO = """
    from octavo_core.report import Report

    def run(*, quick, seed, device, progress):
        progress("measuring", 1.0)
        report = Report({slug!r}, "demo", seed=seed)
        report.add("speed", "Time of a step", 1.0, "ms", peer="peer 1.0", peer_value=3.0, target={target!r})
        report.attach("notes.txt", f"quick={{quick}} device={{device}}".encode())
        return report
"""

CLI = """
    import typer
    from octavo_core.options import add_report_commands

    app = typer.Typer(no_args_is_help=True, help="A method of the tests.")
    add_report_commands(app, {package!r})

    @app.command()
    def fail(kind: str) -> None:
        from octavo_core.errors import InvalidValueError

        raise {{"input": InvalidValueError("bad\\nvalue 3; give 1 or 2"), "defect": KeyError("inner")}}[kind]
"""


@pytest.fixture
def add_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install made-up methods on ``sys.path``; the group's name is changed so that only these are found."""
    monkeypatch.setattr(plugins, "GROUP", "octavo.methods.of-the-tests")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    packages: list[str] = []

    def add(
        slug: str,
        *,
        cli: str = CLI,
        demo: str | None = DEMO,
        target: str = "ratio >= 2",
        metadata: str = "",
        body: str | None = None,
    ) -> Path:
        package = f"octavo_{slug.replace('-', '_')}"
        packages.append(package)
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
        (site / package / "cli.py").write_text(textwrap.dedent(cli).format(package=package))
        if demo is not None:
            (site / package / "demo.py").write_text(textwrap.dedent(demo).format(slug=slug, target=target))
        info = site / f"{package}-1.2.3.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.4\nName: octavo-{slug}\nVersion: 1.2.3\nSummary: The {slug} of the tests\n"
        (info / "METADATA").write_text(body if body is not None else f"{head}{textwrap.dedent(metadata)}")
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{slug} = {package}.cli:app\n")
        return site / package

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
