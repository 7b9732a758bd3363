"""The ``octavo pearl-pe`` command line."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write, ensure_folder
from octavo_core.options import DeviceOption, JsonOption, QuietOption, SeedOption, add_report_commands, check_out
from octavo_core.progress import console_progress

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Positional encodings for graphs, without eigenvectors.")
add_report_commands(app, "octavo_pearl_pe")

FolderOption = Annotated[Path | None, typer.Option("--out", help="Folder for results, figures and checkpoints.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="edges, graphml, graph6, npz, pt, smiles, csv or tu; by the suffix.")
]
SmilesOption = Annotated[
    str | None, typer.Option("--smiles-col", help="Column of SMILES in a CSV; 'smiles' by default.")
]
UndirectedOption = Annotated[bool, typer.Option("--make-undirected", help="Take directed graphs as undirected ones.")]
RowsOption = Annotated[bool, typer.Option("--resume", help="Keep the rows that --out holds already.")]


@app.command()
def encode(
    graphs: Annotated[list[Path], typer.Argument(help="Graph files, or folders in TU format.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write, .npz.")],
    dim: Annotated[int | None, typer.Option("--dim", help="Width of the encoding.  [default: 16]")] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="random, basis or auto.  [default: auto]")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Random inputs M.  [default: 256]")] = None,
    taps: Annotated[int | None, typer.Option("--taps", help="Taps K of the filter.  [default: 4]")] = None,
    encoder_file: Annotated[Path | None, typer.Option("--encoder", help="A trained encoder, from train --out.")] = None,
    format: FormatOption = None,
    smiles_column: SmilesOption = None,
    make_undirected: UndirectedOption = False,
    device: DeviceOption = "auto",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the weights and inputs.  [default: 0]", min=0, max=2**32 - 1)
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Encode graphs with a trained encoder, or with seeded random weights (a structural fingerprint)."""
    if output.suffix != ".npz":
        raise InvalidValueError(f"output {str(output)!r} must end in .npz")
    given = {"--dim": dim, "--variant": variant, "--samples": samples, "--taps": taps, "--seed": seed}
    if encoder_file is not None and (named := [word for word, value in given.items() if value is not None]):
        raise InvalidValueError(f"{', '.join(named)} beside --encoder, whose file says it already; leave it out")
    check_out(output.parent)
    import numpy as np
    import torch
    from octavo_core.device import resolve_device

    from octavo_pearl_pe.encoder import PEARL
    from octavo_pearl_pe.readers import read_graphs

    target = resolve_device(device)
    if encoder_file is not None:
        encoder = PEARL.load(encoder_file)
    else:
        number = seed or 0
        torch.manual_seed(number)
        count = 256 if samples is None else samples
        options: dict[str, Any] = {"num_samples": count, "eval_samples": count, "eval_seed": number}
        options |= {"filter_taps": 4 if taps is None else taps, "variant": "auto" if variant is None else variant}
        encoder = PEARL(16 if dim is None else dim, **options).eval()
    encoder.to(target)
    found = [
        graph
        for path in graphs
        for graph in read_graphs(path, format, smiles_column=smiles_column, make_undirected=make_undirected)
    ]
    rows = []
    with torch.no_grad(), console_progress(quiet=quiet or as_json) as progress, _plain_warnings(quiet=quiet):
        for index, graph in enumerate(found, start=1):
            rows.append(encoder(graph.to(str(target))).cpu().numpy())
            progress("encoding", index / len(found))
    starts = np.cumsum([0, *map(len, rows)])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, pe=np.concatenate(rows), ptr=starts)
    atomic_write(output, buffer.getvalue())
    summary = {"graphs": len(rows), "nodes": int(starts[-1]), "channels": encoder.out_channels, "output": str(output)}
    if as_json:
        print(json.dumps(summary, indent=2))
    elif not quiet:
        print(f"{summary['graphs']} graphs, {summary['nodes']:,} nodes, {summary['channels']} channels: {output}")


@app.command()
def train(
    data: Annotated[
        str, typer.Option("--data", help="csl, cycles, threads, moses, nci, freesolv, mutag, a PyG name, or a path.")
    ],
    pe: Annotated[
        str, typer.Option("--pe", help="r-pearl, b-pearl, auto, lappe, rwse, signnet, spe, peg, random or none.")
    ] = "r-pearl",
    model: Annotated[str, typer.Option("--model", help="gin or gps.")] = "gin",
    inject: Annotated[str, typer.Option("--inject", help="add, concat, per_layer or edge_distance.")] = "per_layer",
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the training graphs.")] = 20,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Graphs a step.")] = 32,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak learning rate.")] = 1e-3,
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the model.")] = 64,
    layers: Annotated[int, typer.Option("--layers", help="Layers of the model.")] = 3,
    dim: Annotated[int, typer.Option("--dim", help="Width of the encoding.")] = 16,
    samples: Annotated[int, typer.Option("--samples", help="M in training; four times as many in evaluation.")] = 32,
    count: Annotated[int | None, typer.Option("--count", help="Graphs to generate or draw.  [default: 500]")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Folder of a PyG data set.")] = None,
    smiles_column: SmilesOption = None,
    target: Annotated[str | None, typer.Option("--target", help="Column of the target in a CSV.")] = None,
    format: FormatOption = None,
    make_undirected: UndirectedOption = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the same run from its last checkpoint in --out.")
    ] = False,
    out: FolderOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a graph model with an encoding, 80 : 10 : 10, and test it."""
    if resume and out is None:
        raise InvalidValueError("--resume needs --out, the folder of the run to continue")
    check_out(out)
    from octavo_pearl_pe import experiment

    options = experiment.Options(
        data, pe, model, inject, epochs, batch_size, learning_rate, hidden, layers, dim, samples, count,
        None if root is None else str(root), smiles_column, target, format, make_undirected, device, seed,
    )  # fmt: skip
    with console_progress(quiet=quiet or as_json) as progress, _plain_warnings(quiet=quiet):
        summary = experiment.run(options, folder=out, resume=resume, progress=progress)
    _show(summary, as_json, quiet)


@app.command()
def expressivity(
    encodings: Annotated[str, typer.Option("--encodings", help="Names, separated by commas; all by default.")] = "",
    repeats: Annotated[int, typer.Option("--repeats", help="Evaluations of random encodings.", min=2)] = 48,
    atlas_nodes: Annotated[int, typer.Option("--atlas-nodes", help="Largest graphs of the atlas.", min=2, max=7)] = 7,
    resume: RowsOption = False,
    out: FolderOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell which pairs of graphs each encoding separates, untrained."""
    _check_resume(resume, out)
    check_out(out)
    from octavo_core.device import resolve_device

    from octavo_pearl_pe.expressivity import ENCODINGS, make_encoding
    from octavo_pearl_pe.expressivity import expressivity as measure
    from octavo_pearl_pe.results import RowFile

    target = resolve_device(device)
    names = encodings.split(",") if encodings else list(ENCODINGS)
    if unknown := [name for name in names if name not in ENCODINGS]:
        raise InvalidValueError(f"unknown encoding {', '.join(unknown)}; give some of {', '.join(ENCODINGS)}")
    settings = {"repeats": repeats, "atlas_nodes": atlas_nodes, "seed": seed}
    kept = RowFile(out, "expressivity", settings, ("encoding",), resume=resume)
    with console_progress(quiet=quiet or as_json) as progress:
        for index, name in enumerate(names):
            progress(f"expressivity of {name}", index / len(names))
            if not kept.has(name):
                encoder = make_encoding(name, seed).double()
                (row,) = measure({name: encoder}, repeats=repeats, atlas_nodes=atlas_nodes, device=target)
                kept.add(dataclasses.asdict(row))
        progress("expressivity", 1.0)
    document = kept.chosen((name,) for name in names)
    if as_json:
        print(json.dumps(document, indent=2))
    elif not quiet:
        for row in document:
            pairs = ", ".join(name for name, yes in row["wl_pairs"].items() if yes) or "none"
            cospectral, atlas = ("/".join(map(str, row[name])) for name in ("cospectral", "atlas"))
            separated = f"CSL {row['csl_classes']}/10; SRG {'yes' if row['srg'] else 'no'}; cospectral {cospectral}"
            alarms = f"false alarms {row['false_alarms']}/{row['controls']}; {row['seconds']:.1f} s"
            print(f"{row['encoding']:<16} pairs: {pairs}; {separated}; atlas {atlas}; {alarms}")


@app.command()
def stability(
    graph: Annotated[Path | None, typer.Option("--data", help="A file of one graph; the cycle C20 by default.")] = None,
    variant: Annotated[str, typer.Option("--variant", help="random or basis.")] = "random",
    constrain: Annotated[bool, typer.Option("--constrain", help="Bound the filters, for a certified bound.")] = False,
    format: FormatOption = None,
    make_undirected: UndirectedOption = False,
    out: FolderOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change two edge weights by the share eps and compare the encoding's change with the eigenvectors'."""
    check_out(out)
    if variant not in {"random", "basis"}:
        raise InvalidValueError(f"--variant {variant!r} is not accepted here; give random or basis")
    if graph is None and (format is not None or make_undirected):
        raise InvalidValueError(
            "--format and --make-undirected are about the file of --data; give it, or leave them out"
        )
    plot = importlib.util.find_spec("matplotlib") is not None
    if out is not None and not plot:
        print(
            "note: no figure, since matplotlib is not installed: pip install 'octavo-pearl-pe[plot]'", file=sys.stderr
        )
    import torch
    from octavo_core.device import resolve_device

    from octavo_pearl_pe.encoder import PEARL
    from octavo_pearl_pe.readers import read_graphs
    from octavo_pearl_pe.stability import spread_edges, stability_curve

    target = resolve_device(device)
    torch.manual_seed(seed)
    options: dict[str, Any] = {"gnn": "filter", "layers": 2, "filter_taps": 3, "hidden": 16, "norm": None}
    encoder = PEARL(8, variant=variant, constrain="beta" if constrain else None, **options).double().eval().to(target)
    graphs = [_ring(20)] if graph is None else read_graphs(graph, format, make_undirected=make_undirected)
    if len(graphs) > 1:
        raise InvalidValueError(f"{str(graph)!r} holds {len(graphs)} graphs; give a file of one")
    with _plain_warnings(quiet=quiet):
        points = stability_curve(encoder, graphs[0], spread_edges(graphs[0], 2), (1e-1, 1e-2, 1e-3, 1e-4), seed=seed)
    document = [dataclasses.asdict(point) for point in points]
    if out is not None:
        atomic_write(ensure_folder(out) / "stability.json", json.dumps(document, indent=2) + "\n")
    if out is not None and plot:
        from octavo_core.report import figure_png

        from octavo_pearl_pe.plots import plot_stability

        atomic_write(out / "stability.png", figure_png(plot_stability({"PEARL": points})))
    if as_json:
        print(json.dumps(document, indent=2))
    elif not quiet:
        for p in points:
            bound = "" if p.bound is None else f"   certified {p.bound:.2e}"
            print(
                f"eps {p.eps:.0e}   |S - S~| {p.shift_change:.2e}   PEARL {p.change:.2e} "
                f"(absolute {p.absolute_change:.2e}{bound})   eigenvectors {p.eigenvector_change:.2e}"
            )


@app.command()
def scaling(
    sizes: Annotated[str, typer.Option("--n", help="Numbers of nodes, separated by commas.")] = "1e3,4e3,1e4",
    families: Annotated[
        str, typer.Option("--family", help="tree, grid, er, sbm, circulant; separated by commas.")
    ] = "tree",
    peers: Annotated[str, typer.Option("--peers", help="pearl, eigh, eigsh16, rwpe; separated by commas.")] = "pearl",
    samples: Annotated[int, typer.Option("--samples", help="M.", min=1)] = 32,
    resume: RowsOption = False,
    out: FolderOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time the encoding, and its alternatives (on the CPU), against the size of the graph."""
    _check_resume(resume, out)
    check_out(out)
    from octavo_core.device import resolve_device

    from octavo_pearl_pe.datasets import FAMILIES
    from octavo_pearl_pe.results import RowFile
    from octavo_pearl_pe.scaling import PEERS, check_peers, time_peers

    target = resolve_device(device)
    numbers = _numbers(sizes)
    chosen, kinds = peers.split(","), families.split(",")
    for given, accepted in ((chosen, PEERS), (kinds, FAMILIES)):
        if unknown := [name for name in given if name not in accepted]:
            raise InvalidValueError(f"unknown {', '.join(unknown)}; give some of {', '.join(accepted)}")
    for n in numbers:
        check_peers(n, chosen)
    settings = {"peers": chosen, "samples": samples, "seed": seed, "device": target.type}
    kept = RowFile(out, "scaling", settings, ("family", "n"), resume=resume)
    cases = [(family, n) for family in kinds for n in numbers]
    with console_progress(quiet=quiet or as_json) as progress:
        for index, (family, n) in enumerate(cases):
            progress("timing", index / len(cases))
            if not kept.has(family, n):
                times = time_peers(family, n, chosen, seed=seed, num_samples=samples, device=target)
                plain = {name: None if value != value else value for name, value in times.items()}
                kept.add({"family": family, "n": n} | plain)
        progress("timing", 1.0)
    rows = kept.chosen(cases)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not quiet:
        for row in rows:
            times = "   ".join(f"{p} {'fails' if row[p] is None else format(row[p], '.4g') + ' s'}" for p in chosen)
            print(f"{row['family']:<10} n = {row['n']:>9,}   {times}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of results, searched with the folders below it.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write instead, .md or .json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")] = False,
) -> None:
    """Join the results of trainings, measurements, demos and benchmarks into one table."""
    from octavo_pearl_pe.results import collect_results, markdown_table

    if output is not None and output.suffix not in {".md", ".json"}:
        raise InvalidValueError(f"output {str(output)!r} must end in .md or .json")
    rows = collect_results(folder)
    json_wanted = as_json if output is None else output.suffix == ".json"
    text = json.dumps(rows, indent=2, allow_nan=False) + "\n" if json_wanted else markdown_table(rows)
    if output is None:
        print(text, end="")
    else:
        atomic_write(ensure_folder(output.parent) / output.name, text)


def _check_resume(resume: bool, out: Path | None) -> None:
    if resume and out is None:
        raise InvalidValueError("--resume needs --out, the folder of the rows to keep")


@contextlib.contextmanager
def _plain_warnings(*, quiet: bool) -> Generator[None]:
    """Say warnings of this package in a line each, without the place in the source, and only if nothing failed."""
    from octavo_pearl_pe.checks import GraphWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [str(entry.message) for entry in caught if issubclass(entry.category, GraphWarning)]
    for text in dict.fromkeys(ours) if not quiet else ():
        print(f"warning: {text}", file=sys.stderr)


def _ring(n: int) -> Data:
    import torch
    from torch_geometric.data import Data

    node = torch.arange(n)
    ring = torch.stack([node, (node + 1) % n])
    return Data(edge_index=torch.cat([ring, ring.flip(0)], dim=1), num_nodes=n)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(float(part)) for part in text.split(",")]
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"--n {text!r} is not a list of numbers; write for example 1e3,1e4") from error
    if min(numbers) < 4 or max(numbers) > 10**7:
        raise InvalidValueError(f"--n {text!r} is out of range; give 4 to 1e7 nodes")
    return numbers


def _show(summary: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2, allow_nan=False))
    elif not quiet:
        print(
            "   ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in summary.items()
            )
        )
