"""The ``octavo config-grad`` command line."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write
from octavo_core.options import DeviceOption, JsonOption, QuietOption, SeedOption, add_report_commands, check_out
from octavo_core.progress import console_progress
from octavo_core.report import figure_png

if TYPE_CHECKING:
    from octavo_config_grad.pinn.result import TrainingResult

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Conflict-free update directions for losses that disagree.")
add_report_commands(app, "octavo_config_grad")

FolderOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for result.json, solution.npz, figures and checkpoints.")
]


@app.command()
def train(
    problem: Annotated[str, typer.Argument(help="A built-in problem (see --list) or my_file.py:MyProblem.")] = "",
    method: Annotated[str, typer.Option("--method", help="Training method; --list names them.")] = "m-config",
    steps: Annotated[int | None, typer.Option("--steps", help="Budget in optimizer steps.")] = None,
    passes: Annotated[int | None, typer.Option("--passes", help="Budget in backward passes; 8000 by default.")] = None,
    seconds: Annotated[float | None, typer.Option("--budget-seconds", help="Budget in seconds of training.")] = None,
    losses: Annotated[
        int | None, typer.Option("--losses", help="Number of losses, where the problem has a choice.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 1e-3,
    final_learning_rate: Annotated[float, typer.Option("--lr-end", help="Learning rate at the end.")] = 1e-4,
    interior: Annotated[int, typer.Option("--interior", help="Points of each PDE residual.")] = 400,
    boundary: Annotated[int, typer.Option("--boundary", help="Points of each boundary condition.")] = 64,
    initial: Annotated[int, typer.Option("--initial", help="Points of each initial condition.")] = 64,
    hidden: Annotated[str, typer.Option("--hidden", help="Widths of the hidden layers.")] = "20,20,20,20",
    length: Annotated[str, typer.Option("--length", help="Length model of ConFIG, or a loss index.")] = "projection",
    rank_policy: Annotated[str, typer.Option("--rank-policy", help="lstsq, maxmin or error.")] = "lstsq",
    updates_per_step: Annotated[int, typer.Option("--updates-per-step", help="Losses an M- method refreshes.")] = 1,
    reference: Annotated[
        Path | None,
        typer.Option("--ref", help="Reference solution to use instead: .npz, .npy, .csv or .mat."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Name the problems and methods.")] = False,
    out: FolderOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a physics-informed network on a built-in problem or your own."""
    from octavo_config_grad import pinn
    from octavo_config_grad.pinn.reference import load_reference

    if show_list:
        print("problems: " + ", ".join(pinn.PROBLEMS))
        for name, line in pinn.METHODS.items():
            print(f"  {name:<14}{line}")
        return
    if not problem:
        raise InvalidValueError(f"no problem given; name one of {', '.join(pinn.PROBLEMS)} or my_file.py:MyProblem")
    if resume and out is None:
        raise InvalidValueError("--resume needs --out, the folder of the run to continue")
    _check_folder(out)
    no_budget = steps is None and passes is None and seconds is None
    config = pinn.TrainingConfig(
        steps=steps,
        backward_passes=8000 if no_budget else passes,
        seconds=seconds,
        seed=seed,
        points=pinn.PointCounts(interior, boundary, initial),
        hidden=_widths(hidden),
        lr=learning_rate,
        lr_end=final_learning_rate,
        length=_length(length),
        rank_policy=rank_policy,
        updates_per_step=updates_per_step,
        device=device,
        dtype=dtype,
    )
    checkpoints = None if out is None else out / "checkpoints"
    # Standard output is for the result; what a file of the user's prints goes elsewhere.
    with contextlib.redirect_stdout(sys.stderr), console_progress(quiet=quiet or as_json) as progress:
        task = pinn.load_problem(problem, **({} if losses is None else {"num_losses": losses}))
        known = None if reference is None else load_reference(reference, task.coordinates, task.fields)
        result = pinn.train(
            task,
            method,
            config,
            reference=known,
            folder=checkpoints,
            resume=resume,
            progress=lambda state: progress(f"{method} on {problem}", state.fraction),
        )
    if out is not None:
        _save(result, out)
    if as_json:
        print(json.dumps(result.summary(), indent=2, allow_nan=False))
    elif not quiet:
        _print_rows([result.summary()], [(result.problem, result.method)])
        if out is not None:
            print(f"saved to {out}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs, e.g. runs/*.")],
    baseline: Annotated[str, typer.Option("--baseline", help="Method the others are compared with.")] = "adam",
    as_json: JsonOption = False,
) -> None:
    """Compare finished runs: a table, and each method against the baseline on two or more seeds that both have."""
    from octavo_config_grad.pinn import compare_runs
    from octavo_config_grad.pinn.comparison import compare_methods, run_names

    rows = compare_runs(folders)
    comparisons, notes = compare_methods(rows, baseline)
    if as_json:
        print(json.dumps({"runs": rows, "comparisons": comparisons, "notes": notes}, indent=2, allow_nan=False))
        return
    _print_rows(rows, run_names(rows))
    for entry in comparisons:
        ratio = "" if entry["ratio"] is None else f"MSE ratio {entry['ratio']:.3g}, "
        print(
            f"{entry['label']}: {ratio}better on {entry['wins']} of {entry['seeds']} seeds "
            f"(sign test p = {entry['p_value']:.3g})"
        )
    for note in notes:
        print(note)


@app.command()
def mtl(
    data: Annotated[str, typer.Option("--data", help="attributes, pairs (both digits) or celeba.")] = "attributes",
    root: Annotated[Path | None, typer.Option("--root", help="Folder of CelebA in its original layout.")] = None,
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas; all by default.")] = "",
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds, counted from --seed.", min=1)] = 3,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the training examples.")] = 40,
    out: FolderOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on a multi-task study: F1 of each task, mean and rank."""
    from octavo_config_grad import mtl as study

    sets = {"attributes": study.digit_attributes, "pairs": study.digit_pairs}
    if data == "celeba":
        if root is None:
            raise InvalidValueError("--data celeba needs --root, the folder with Anno, Eval and Img")
        examples = study.load_celeba(root)
    elif data in sets:
        examples = sets[data]()
    else:
        raise InvalidValueError(f"unknown data {data!r}; give attributes, pairs or celeba")
    chosen = tuple(name.strip() for name in methods.split(",")) if methods else study.STUDY_METHODS
    _check_folder(out)
    config = study.StudyConfig(epochs=epochs, device=device)
    count = len(chosen) * seeds
    started: list[tuple[str, int]] = []
    with console_progress(quiet=quiet or as_json) as progress:

        def report(method: str, number: int) -> None:
            progress("multi-task study", len(started) / count)
            started.append((method, number))

        result = study.run_study(examples, chosen, config, seeds=range(seed, seed + seeds), progress=report)
    rows = result.table()
    document = json.dumps({"data": result.data, "tasks": result.tasks, "methods": rows}, indent=2, allow_nan=False)
    if out is not None:
        atomic_write(out / "study.json", document + "\n")
    if as_json:
        print(document)
    elif not quiet:
        for row in rows:
            print(
                f"{row['method']:<12} mean F1 {row['mean_f1']:.4f}   mean rank {row['mean_rank']:.2f}   "
                f"{row['backward_passes']:,} passes   {row['seconds']:.1f} s"
            )


def _check_folder(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise InvalidValueError(f"--out {str(out)!r} is a file; give a folder")
    check_out(out)


def _length(text: str) -> str | int:
    try:
        return int(text)
    except ValueError:
        return text


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError as error:
        raise InvalidValueError(f"--hidden {text!r} is not a list of widths; write for example 20,20,20") from error


def _save(result: TrainingResult, out: Path) -> None:
    from octavo_config_grad import plots

    result.save(out)
    histories = {result.method: result.history}
    figures = {
        "losses.png": plots.plot_losses(histories, result.loss_names),
        "cosines.png": plots.plot_cosines(histories),
    }
    if result.reference is not None:
        figures["errors.png"] = plots.plot_errors(histories)
    if result.reference is not None and result.prediction is not None and len(result.reference.coordinates) == 2:
        figures["solution.png"] = plots.plot_solution(result.reference, result.prediction)
    for name, figure in figures.items():
        atomic_write(out / name, figure_png(figure))


def _print_rows(rows: list[dict[str, Any]], names: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("problem", "method", "seed", "steps", "passes", "seconds", "final MSE", "best MSE", "conflicts"):
        table.add_column(name, justify="left" if name in {"problem", "method"} else "right")
    for row, (problem, method) in zip(rows, names, strict=True):
        table.add_row(
            problem,
            method,
            str(row["seed"]),
            f"{row['steps']:,}",
            f"{row['backward_passes']:,}",
            f"{row['seconds']:.1f}",
            *("-" if row[name] is None else f"{row[name]:.3g}" for name in ("final_mse", "best_mse")),
            f"{row['conflict_rate']:.0%}",
        )
    # A pipe or a log has no width of its own.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)
