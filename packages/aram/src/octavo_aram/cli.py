"""The ``octavo aram`` command line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError
from octavo_core.options import DeviceOption, JsonOption, QuietOption, SeedOption, add_report_commands, check_out
from octavo_core.progress import console_progress

from octavo_aram.json_text import json_text

if TYPE_CHECKING:
    from octavo_aram.config import ARAMConfig

__all__ = ["app", "constraints_app"]

app = typer.Typer(no_args_is_help=True, help="Reinforcement learning whose every action lies in a feasible set.")
add_report_commands(app, "octavo_aram")
constraints_app = typer.Typer(no_args_is_help=True, help="Known constraints, and checks of recorded actions.")
app.add_typer(constraints_app, name="constraints")

EnvOption = Annotated[str, typer.Option("--env", help="Gymnasium id, module:make_env or file.py:make_env.")]
ConstraintOption = Annotated[
    str,
    typer.Option(
        "--constraint", help="A known one (see constraints list), a YAML file, module:Class or file.py:Class."
    ),
]


def _folder(text: str) -> Path:
    # An unset variable of the shell; Path("") would be the working folder.
    if not text.strip():
        raise typer.BadParameter("the name is empty; give a folder, or . for the working folder")
    return Path(text)


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of ARAMConfig as name=value, e.g. --set penalty=2; may be repeated."),
]


@app.command()
def train(
    env: EnvOption = "Reacher-v5",
    constraint: ConstraintOption = "Re+L2",
    method: Annotated[str, typer.Option("--method", help="Method; --list names them.")] = "aram",
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            help="Environment steps, over all environments.",
            show_default="5000; with --paper 1500000",
        ),
    ] = None,
    num_envs: Annotated[int, typer.Option("--num-envs", help="Environments stepped side by side.")] = 1,
    evaluate_every: Annotated[int, typer.Option("--evaluate-every", help="Steps between evaluations.")] = 1000,
    episodes: Annotated[int, typer.Option("--episodes", help="Episodes of an evaluation.")] = 10,
    paper: Annotated[bool, typer.Option("--paper", help="Start from the published settings and length.")] = False,
    settings: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for settings, history and checkpoints.", parser=_folder, metavar="PATH"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Name the methods.")] = False,
    device: Annotated[str | None, typer.Option("--device", help="Device of the networks.", show_default="cpu")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of every random draw.", min=0, max=2**32 - 1, show_default="0")
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an agent under a constraint on its actions."""
    from octavo_aram.config import PAPER_STEPS
    from octavo_aram.methods import METHODS
    from octavo_aram.training import RunSettings
    from octavo_aram.training import train as run

    if show_list:
        for name, about in METHODS.items():
            print(f"{name:<12}{about}")
        return
    if resume and out is None:
        raise InvalidValueError("--resume needs --out, the folder of the run to continue")
    _check_folder(out)
    config = _config(settings or [], paper=paper, seed=seed, device=device)
    if steps is None:
        steps = PAPER_STEPS if paper else RunSettings.steps
    chosen = RunSettings(env, constraint, method, steps, config, num_envs, evaluate_every, episodes)
    # Standard output is for the result; what an environment prints goes elsewhere.
    with contextlib.redirect_stdout(sys.stderr), console_progress(quiet=quiet or as_json) as progress:
        result = run(chosen, folder=out, resume=resume, progress=progress)
    summary = result.summary()
    if as_json:
        print(json_text(summary))
    elif not quiet:
        _print_table([summary], _RUN_COLUMNS)
        if out is not None:
            print(f"saved to {out}")
        if result.stopped:
            advice = "continue with --resume" if out is not None else "nothing was saved: give --out to keep a run"
            print(f"stopped at step {summary['steps']:,}; {advice}")


@app.command("eval")
def evaluate_run(
    run: Annotated[Path, typer.Argument(help="Folder that train wrote.")],
    preference: Annotated[
        tuple[float, float] | None, typer.Option("--preference", help="Weights of reward and penalty.")
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", help="Episodes.")] = 10,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Draw actions instead of taking the mean.")] = False,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Evaluate the last checkpoint of a run: return, valid rate, projections, executed violations."""
    from octavo_aram.env_loading import load_env
    from octavo_aram.evaluation import evaluate
    from octavo_aram.training import load_run

    with contextlib.redirect_stdout(sys.stderr):
        settings, agent = load_run(run, device=device, predict_only=True)
        found = evaluate(
            agent,
            load_env(settings.env),
            episodes=episodes,
            preference=preference,
            deterministic=not stochastic,
            seed=seed,
        )
    document = {"env": settings.env, "constraint": settings.constraint, "method": settings.method, **found.to_json()}
    if as_json:
        print(json_text(document))
        return
    _print_table([document], _EVALUATION_COLUMNS)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, e.g. runs/*.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for comparison.json and figures.", parser=_folder, metavar="PATH"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: return, valid rate, projections, time for an action; tables and figures."""
    from octavo_core.files import atomic_write
    from octavo_core.report import figure_png

    from octavo_aram.compare import compare_runs, histories_by_label, load_records, summarise

    _check_folder(out)
    records = load_records(folders)
    rows = compare_runs(records)
    methods = summarise(rows)
    document = json_text({"runs": rows, "methods": methods})
    if out is not None:
        from octavo_aram.plots import plot_runs

        atomic_write(out / "comparison.json", document + "\n")
        histories = histories_by_label(records)
        for over in ("step", "seconds"):
            atomic_write(out / f"runs_over_{over}.png", figure_png(plot_runs(histories, over=over)))
    if as_json:
        print(document)
        return
    # Where runs differ by task, method and seed alone, the column would be empty.
    hidden = set() if any(row["settings"] for row in rows) else {"settings"}
    _print_table(rows, _RUN_COLUMNS, hidden)
    if any(entry["seeds"] > 1 for entry in methods):
        _print_table(methods, _METHOD_COLUMNS, hidden)
    if out is not None:
        print(f"saved to {out}")


@constraints_app.command("list")
def list_constraints(as_json: JsonOption = False) -> None:
    """Name the known constraints with their environments and formulas."""
    from octavo_aram.registry import CONSTRAINTS

    rows = [
        {"id": entry.id, "env": entry.env_id, "actions": entry.action_dim, "feasible": entry.formula}
        for entry in CONSTRAINTS.values()
    ]
    if as_json:
        print(json_text(rows))
        return
    _print_table(rows, {"id": "constraint", "env": "environment", "actions": "actions", "feasible": "besides the box"})


@constraints_app.command("check")
def check_actions(
    file: Annotated[Path, typer.Argument(help="CSV with columns a0, a1, ... and, where needed, o0, o1, ...")],
    constraint: ConstraintOption,
    env: Annotated[str | None, typer.Option("--env", help="Environment, to resolve indices and the range.")] = None,
    native: Annotated[bool, typer.Option("--native", help="Actions are in the environment's units.")] = False,
    project: Annotated[Path | None, typer.Option("--project", help="Write the projected actions to this CSV.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check recorded actions: how many are feasible, and by how much the others are not. Exit code 1 if any is not."""
    from octavo_aram.recorded import check_recorded

    found = check_recorded(file, constraint, env=env, native=native, project=project)
    if as_json:
        print(json_text(found))
    else:
        _print_table([found], {name: name.replace("_", " ") for name in found})
    if found["infeasible"]:
        raise typer.Exit(1)


_RUN_COLUMNS = {
    "env": "environment",
    "constraint": "constraint",
    "method": "method",
    "settings": "differs in",
    "seed": "seed",
    "step": "steps",
    "steps": "steps",
    "return": "return",
    "valid_rate": "valid rate",
    "acceptance_rate": "acceptance",
    "projections": "projections",
    "violations": "violations",
    "microseconds_per_action": "us/action",
    "seconds": "seconds",
    "buffer_memory": "buffers",
}
_EVALUATION_COLUMNS = {
    "env": "environment",
    "constraint": "constraint",
    "method": "method",
    "preference": "preference",
    "mean_return": "return",
    "valid_rate": "valid rate",
    "projections": "projections",
    "violations": "violations",
}
_METHOD_COLUMNS = {
    "env": "environment",
    "constraint": "constraint",
    "method": "method",
    "settings": "differs in",
    "seeds": "seeds",
    "return": "return",
    "valid_rate": "valid rate",
    "lowest_valid_rate": "lowest",
    "projections": "projections",
    "violations": "violations",
    "seconds": "seconds",
}


_LONGEST_SHOWN = 60


def _config(pairs: list[str], *, paper: bool, seed: int | None, device: str | None) -> ARAMConfig:
    import yaml

    from octavo_aram.config import ARAMConfig, config_from_json, config_to_json

    values: dict[str, Any] = {}
    for pair in pairs:
        name, found, text = pair.partition("=")
        if not (found and name.strip() and text.strip()):
            raise InvalidValueError(f"--set {pair!r} is no setting; write name=value, e.g. --set penalty=2")
        name = name.strip()
        if name in values:
            raise InvalidValueError(f"--set gives {name} twice; give it once")
        try:
            values[name] = yaml.safe_load(text)
        # Of ValueError are dates that do not exist, and integers of thousands of digits.
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split()).partition(";")[0]
            shown = pair if len(pair) <= _LONGEST_SHOWN else f"{pair[:_LONGEST_SHOWN]}..."
            raise InvalidValueError(
                f"the value of --set {shown!r} cannot be read: {reason}; write it as in YAML, e.g. --set penalty=2"
            ) from error
        # YAML reads 3e-4, without a point, as a word.
        if isinstance(values[name], str):
            with contextlib.suppress(ValueError):
                values[name] = float(values[name])
    for name, value in (("seed", seed), ("device", device)):
        if value is None:
            continue
        if name in values:
            raise InvalidValueError(f"--{name} and --set {name}=... are both given; give one of them")
        values[name] = value
    base = config_to_json(ARAMConfig.paper() if paper else ARAMConfig())
    try:
        return config_from_json(base | values)
    except OverflowError as error:
        raise InvalidValueError("a number of --set is too large for float64; give one below 1e308") from error


def _check_folder(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise InvalidValueError(f"--out {str(out)!r} is a file; give a folder")
    check_out(out)


def _print_table(rows: list[dict[str, Any]], columns: dict[str, str], hidden: Set[str] = frozenset()) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = [name for name in columns if name in rows[0] and name not in hidden]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(columns[name], justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in shown))
    # A pipe or a log has no width of its own.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table, markup=False)


def _cell(value: Any) -> Any:
    from rich.text import Text

    if value is None:
        return Text("-")
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    if isinstance(value, list):
        return Text(", ".join(f"{item:g}" for item in value))
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
