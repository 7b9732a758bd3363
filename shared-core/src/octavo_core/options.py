"""What the command lines of all methods share: the common options, and the ``demo`` and ``bench`` commands."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer

from octavo_core.errors import InvalidStateError
from octavo_core.progress import console_progress
from octavo_core.report import Report

__all__ = [
    "BenchQuickOption",
    "DemoQuickOption",
    "DeviceOption",
    "JsonOption",
    "OutOption",
    "QuietOption",
    "SeedOption",
    "add_report_commands",
    "check_out",
    "deliver",
    "print_error",
    "run_report",
]

DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:<index> or mps.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of every random draw.", min=0, max=2**32 - 1)]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for report.json, report.html and figures.", show_default=False)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON, and nothing else, on stdout.")]
DemoQuickOption = Annotated[bool, typer.Option("--quick", help="The ten-second version of the tour.")]
BenchQuickOption = Annotated[bool, typer.Option("--quick", help="Smaller sizes and fewer repetitions.")]


def add_report_commands(app: typer.Typer, package: str) -> None:
    """Add the ``demo`` and ``bench`` commands to a method's command line.

    Args:
        app: The method's Typer app.
        package: Import name of the method, e.g. ``"octavo_config_grad"``. Its modules ``demo`` and ``bench`` each have
            ``run(*, quick, seed, device, progress) -> Report``.
    """

    @app.command()
    def demo(
        quick: DemoQuickOption = False,
        device: DeviceOption = "auto",
        seed: SeedOption = 0,
        out: OutOption = None,
        quiet: QuietOption = False,
        as_json: JsonOption = False,
    ) -> None:
        """Run the method on its embedded example and check its claims."""
        _run_and_exit(package, "demo", quick=quick, device=device, seed=seed, out=out, quiet=quiet, as_json=as_json)

    @app.command()
    def bench(
        quick: BenchQuickOption = False,
        device: DeviceOption = "auto",
        seed: SeedOption = 0,
        out: OutOption = None,
        quiet: QuietOption = False,
        as_json: JsonOption = False,
    ) -> None:
        """Measure speed, memory and accuracy against named peers."""
        _run_and_exit(package, "bench", quick=quick, device=device, seed=seed, out=out, quiet=quiet, as_json=as_json)


def run_report(package: str, kind: str, *, quick: bool, device: str, seed: int, quiet: bool) -> Report:
    """Run a method's demo or benchmark with progress on standard error.

    Args:
        package: Import name of the method.
        kind: ``"demo"`` or ``"bench"``.
        quick: The short version.
        device: Device name, see :func:`octavo_core.device.resolve_device`.
        seed: Seed.
        quiet: Show no progress.

    Returns:
        The finished report.

    Raises:
        InvalidStateError: If the method has no such module.
    """
    try:
        module = importlib.import_module(f"{package}.{kind}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{kind}":
            raise
        raise InvalidStateError(
            f"{package} has no {kind}; update it with: pip install -U {_dashed(package)}"
        ) from error
    with _stdout_to_stderr(), console_progress(quiet=quiet) as progress:
        report: Report = module.run(quick=quick, seed=seed, device=device, progress=progress)
    return report.finish()


def deliver(report: Report, *, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Save and show a report.

    Args:
        report: The report.
        out: Folder to save to, if any.
        as_json: Print the JSON object alone.
        quiet: Print no table.

    Raises:
        InvalidStateError: If the folder cannot be written to.
    """
    try:
        if out is not None:
            report.save(out)
    finally:
        # The measurement is worth more than the file: show it even if saving fails.
        if as_json:
            print(json.dumps(report.to_json(), indent=2, allow_nan=False))
        elif not quiet:
            from rich.console import Console

            # A pipe or a log has no width of its own.
            console = Console() if sys.stdout.isatty() else Console(width=160)
            console.print(report.table())
    if out is not None and not as_json and not quiet:
        print(f"saved to {out}")


def check_out(out: Path | None) -> None:
    """Fail before the work starts if the result could not be saved.

    Args:
        out: Folder to save to, if any.

    Raises:
        InvalidStateError: If the folder cannot be written to.
    """
    if out is not None:
        from octavo_core.files import ensure_folder

        ensure_folder(out)


def print_error(error: BaseException) -> None:
    """Print an error's message as one line on standard error.

    Args:
        error: The error.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}", file=sys.stderr)


def _run_and_exit(
    package: str, kind: str, *, quick: bool, device: str, seed: int, out: Path | None, quiet: bool, as_json: bool
) -> None:
    check_out(out)
    report = run_report(package, kind, quick=quick, device=device, seed=seed, quiet=quiet)
    deliver(report, out=out, as_json=as_json, quiet=quiet)
    if not report.holds:
        raise typer.Exit(1)


def _dashed(package: str) -> str:
    return package.replace("_", "-")


@contextlib.contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Send what a method and the native libraries below it print to standard error: stdout is for the result.

    Libraries such as MKL write to the descriptor, past ``sys.stdout``, so the descriptor itself is turned.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)  # what C holds back must not come out after the turn back
        os.dup2(kept, 1)
        os.close(kept)
