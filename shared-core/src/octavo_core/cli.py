"""The ``octavo`` command: a host for the installed methods. Nothing here imports torch until a command needs it."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

import octavo_core
from octavo_core.errors import InvalidValueError, OctavoError
from octavo_core.options import (
    BenchQuickOption,
    DemoQuickOption,
    DeviceOption,
    JsonOption,
    OutOption,
    QuietOption,
    SeedOption,
    check_out,
    deliver,
    print_error,
    run_report,
)
from octavo_core.plugins import Method, find_method, installed_methods, unknown_method

if TYPE_CHECKING:
    from octavo_core.report import Report

__all__ = ["app", "main"]

_DEFECT = 70  # EX_SOFTWARE of sysexits.h: the program is wrong, not its input
_INTERRUPTED = 130  # what shells report for an interrupt, and what Typer returns for one


class _MethodGroup(TyperGroup):
    """Group that lists plug-ins by their metadata and imports one only when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(method.slug for method in installed_methods())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        method = next((method for method in installed_methods() if method.slug == cmd_name), None)
        return method and TyperGroup(name=method.slug, help=method.summary, rich_help_panel="Methods")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        slug = args[0]
        if not slug.startswith("-") and self.get_command(ctx, slug) is None:
            raise InvalidValueError(unknown_method(slug, [method.slug for method in installed_methods()]))
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and super().get_command(ctx, name) is None:
            command = typer.main.get_command(find_method(name).load())
        return name, command, rest


app = typer.Typer(cls=_MethodGroup, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
assets_app = typer.Typer(no_args_is_help=True, help="Real models and data that are published as packages.")
app.add_typer(assets_app, name="assets")


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"octavo-core {octavo_core.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def octavo(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; accepted anywhere.")] = False,
) -> None:
    """Research methods as software: each installed method is a command."""


@app.command("list")
def list_methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the installed methods."""
    methods = installed_methods()
    if as_json:
        fields = ("slug", "version", "paper", "summary")
        print(json.dumps([{name: getattr(method, name) for name in fields} for method in methods], indent=2))
        return
    if not methods:
        print("no methods installed; install one with, for example: pip install octavo-config-grad")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("version", no_wrap=True)
    table.add_column("paper", no_wrap=True)
    table.add_column("what it does")
    for method in methods:
        table.add_row(method.slug, method.version, method.paper, method.summary)
    _print(table)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Describe the machine, the methods, and what is missing for which."""
    from octavo_core.assets import ASSETS, is_installed
    from octavo_core.device import describe

    machine = describe(["octavo-core", "numpy", "torch", "transformers", "accelerate"])
    methods = [_examine(method) for method in installed_methods()]
    assets = {name: is_installed(name) for name in ASSETS}
    if as_json:
        print(json.dumps({"machine": machine, "methods": methods, "assets": assets}, indent=2))
    else:
        versions = ", ".join(f"{name} {version}" for name, version in machine.pop("packages").items())
        machine["cuda"] = ", ".join(machine["cuda"]) or "none"
        for name, value in machine.items():
            print(f"{name:<12}{value}")
        print(f"{'packages':<12}{versions}")
        for method in methods:
            print(f"\n{method['slug']} {method['version']}: {method['problem'] or 'ok'}")
            for extra, missing in method["extras"].items():
                wanted = f"missing {', '.join(missing)}: pip install '{method['distribution']}[{extra}]'"
                print(f"  [{extra}] {wanted if missing else 'complete'}")
        absent = [name for name, present in assets.items() if not present]
        print(f"\nassets: {len(assets) - len(absent)} of {len(assets)} installed", end="")
        print(f"; missing {', '.join(absent)}; see: octavo assets list" if absent else "")
    if any(method["problem"] for method in methods):
        raise typer.Exit(1)


@app.command()
def demo(
    slugs: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD]...", help="All methods, quickly, if left out.")
    ] = None,
    quick: DemoQuickOption = False,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tour all installed methods in seconds, or run the full example of some."""
    if slugs:
        _run_methods("demo", slugs, quick=quick, device=device, seed=seed, out=out, quiet=quiet, as_json=as_json)
    else:
        _tour(device=device, seed=seed, out=out, quiet=quiet, as_json=as_json)


@app.command()
def bench(
    slugs: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="All methods, if left out.")] = None,
    quick: BenchQuickOption = False,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Benchmark methods against named peers."""
    chosen = slugs or [method.slug for method in installed_methods()]
    _run_methods("bench", chosen, quick=quick, device=device, seed=seed, out=out, quiet=quiet, as_json=as_json)


@assets_app.command("list")
def list_assets(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the known assets and whether they are installed."""
    from octavo_core.assets import ASSETS, is_installed

    entries = [
        {
            "name": asset.name,
            "installed": is_installed(asset.name),
            "install": asset.install,
            "licence": asset.licence,
            "description": asset.description,
        }
        for asset in ASSETS.values()
    ]
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    for entry in entries:
        state = "installed" if entry["installed"] else f"missing: {entry['install']}"
        print(f"{entry['name']:<20} {entry['description']} ({entry['licence']}); {state}")


@assets_app.command("convert")
def convert_asset(name: Annotated[str, typer.Argument(help="Name from: octavo assets list.")]) -> None:
    """Convert an asset to the form that loads fast, once, into the cache folder."""
    from octavo_core.assets import convert

    print(convert(name))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after ``octavo``; those of the process by default.

    Returns:
        Exit status: 0 done, 1 a claim or a check did not hold, 2 bad input, 70 a defect, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    debug = len(words) < len(given) or os.environ.get("OCTAVO_DEBUG", "") not in {"", "0"}
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            if not debug:
                # What libraries say to those who program with them; the user of a command can do nothing about it.
                for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
            status = command.main(words, prog_name="octavo", standalone_mode=False)
    except OctavoError as error:
        if debug:
            traceback.print_exc()
        print_error(error)
        return 2
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0
        print_error(RuntimeError(error.format_message()))
        return 2
    except typer.Abort:
        status = _INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("error: this is a defect of the program, not of your input; please report it", file=sys.stderr)
        return _DEFECT
    if status == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _examine(method: Method) -> dict[str, Any]:
    try:
        method.load()
        problem = None
    except OctavoError as error:
        problem = str(error)
    return {
        "slug": method.slug,
        "distribution": method.distribution,
        "version": method.version,
        "problem": problem,
        "extras": method.missing_by_extra(),
    }


def _run_methods(
    kind: str, slugs: list[str], *, quick: bool, device: str, seed: int, out: Path | None, quiet: bool, as_json: bool
) -> None:
    methods = [find_method(slug) for slug in dict.fromkeys(slugs)]
    several = len(methods) > 1
    check_out(out)
    reports: list[Report] = []
    for method in methods:
        method.load()
        report = run_report(method.package, kind, quick=quick, device=device, seed=seed, quiet=quiet)
        reports.append(report)
        folder = out / method.slug if out is not None and several else out
        deliver(report, out=folder, as_json=as_json and not several, quiet=quiet or (as_json and several))
    if as_json and several:
        print(json.dumps([report.to_json() for report in reports], indent=2, allow_nan=False))
    if not all(report.holds for report in reports):
        raise typer.Exit(1)


def _tour(*, device: str, seed: int, out: Path | None, quiet: bool, as_json: bool) -> None:
    """Run every method's quick demo; one that fails is told and the others go on."""
    from octavo_core.device import resolve_device

    check_out(out)
    resolve_device(device)
    documents, failed = [], False
    for method in installed_methods():
        try:
            method.load()
            report = run_report(method.package, "demo", quick=True, device=device, seed=seed, quiet=quiet or as_json)
        except Exception as error:
            failed = True
            if not isinstance(error, OctavoError):
                traceback.print_exc()
            print_error(error)
            continue
        documents.append(report.to_json())
        failed = failed or not report.holds
        deliver(report, out=out and out / method.slug, as_json=False, quiet=True)
        if not quiet and not as_json:
            print(_headline(method, report), flush=True)
    if as_json:
        print(json.dumps(documents, indent=2, allow_nan=False))
    elif not documents and not failed:
        print("no methods installed; install one with, for example: pip install octavo-config-grad")
    if failed:
        raise typer.Exit(1)


def _headline(method: Method, report: Report) -> str:
    """Return one line: the first claim that fails, else the first claim, else the first row, of a report."""
    row = min(report.rows, key=lambda row: (row.holds is not False, row.target is None))
    verdict = {True: "holds", False: "DOES NOT HOLD", None: ""}[row.holds]
    figures = row.summary()
    return f"{method.slug:<20} {row.label}: {figures} {verdict} ({report.seconds:.1f} s)"


def _print(renderable: Any) -> None:
    from rich.console import Console

    # A pipe has no width: do not fold what another program reads.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(renderable)


if __name__ == "__main__":
    sys.exit(main())
