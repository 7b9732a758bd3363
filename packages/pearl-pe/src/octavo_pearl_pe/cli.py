"""The ``octavo pearl-pe`` command line."""

from __future__ import annotations

import dataclasses
import io
import json
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


@app.command()
def encode(
    graphs: Annotated[list[Path], typer.Argument(help="Graph files, or folders in TU format.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write, .npz.")],
    dim: Annotated[int, typer.Option("--dim", help="Width of the encoding.")] = 16,
    variant: Annotated[str, typer.Option("--variant", help="random, basis or auto.")] = "auto",
    samples: Annotated[int, typer.Option("--samples", help="Number of random inputs M.")] = 256,
    taps: Annotated[int, typer.Option("--taps", help="Taps K of the filter.")] = 4,
    encoder_file: Annotated[Path | None, typer.Option("--encoder", help="A trained encoder, from train --out.")] = None,
    format: FormatOption = None,
    make_undirected: Annotated[bool, typer.Option("--make-undirected", help="Symmetrise directed graphs.")] = False,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Encode graphs with a trained encoder, or with seeded random weights (a structural fingerprint)."""
    if output.suffix != ".npz":
        raise InvalidValueError(f"output {str(output)!r} must end in .npz")
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
        torch.manual_seed(seed)
        options: dict[str, Any] = {"num_samples": samples, "eval_samples": samples, "filter_taps": taps}
        encoder = PEARL(dim, variant=variant, eval_seed=seed, make_undirected=make_undirected, **options).eval()
    encoder.to(target)
    found = [graph for path in graphs for graph in read_graphs(path, format)]
    rows = []
    with torch.no_grad(), console_progress(quiet=quiet or as_json) as progress:
        for index, graph in enumerate(found):
            progress("encoding", index / len(found))
            rows.append(encoder(graph.to(str(target))).cpu().numpy())
        progress("encoding", 1.0)
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
    count: Annotated[int, typer.Option("--count", help="Graphs to generate or draw.")] = 500,
    root: Annotated[Path | None, typer.Option("--root", help="Folder of a PyG data set.")] = None,
    smiles_column: Annotated[str, typer.Option("--smiles-col", help="Column of SMILES in a CSV.")] = "smiles",
    target: Annotated[str | None, typer.Option("--target", help="Column of the target in a CSV.")] = None,
    format: FormatOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")] = False,
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
        None if root is None else str(root), smiles_column, target, format, device, seed,
    )  # fmt: skip
    with console_progress(quiet=quiet or as_json) as progress:
        summary = experiment.run(options, folder=out, resume=resume, progress=progress)
    _show(summary, as_json, quiet)


@app.command()
def expressivity(
    encodings: Annotated[str, typer.Option("--encodings", help="Names, separated by commas; all by default.")] = "",
    repeats: Annotated[int, typer.Option("--repeats", help="Evaluations of random encodings.", min=2)] = 48,
    atlas_nodes: Annotated[int, typer.Option("--atlas-nodes", help="Largest graphs of the atlas.", min=2, max=7)] = 7,
    out: FolderOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell which pairs of graphs each encoding separates, untrained."""
    check_out(out)
    from octavo_pearl_pe.expressivity import ENCODINGS, make_encoding
    from octavo_pearl_pe.expressivity import expressivity as measure

    names = encodings.split(",") if encodings else list(ENCODINGS)
    if unknown := [name for name in names if name not in ENCODINGS]:
        raise InvalidValueError(f"unknown encoding {', '.join(unknown)}; give some of {', '.join(ENCODINGS)}")
    with console_progress(quiet=quiet or as_json) as progress:
        rows = measure(
            {name: make_encoding(name, seed).double() for name in names},
            repeats=repeats,
            atlas_nodes=atlas_nodes,
            progress=progress,
        )
    document = [dataclasses.asdict(row) for row in rows]
    _save(out, "expressivity.json", document)
    if as_json:
        print(json.dumps(document, indent=2))
    elif not quiet:
        for row in rows:
            pairs = ", ".join(name for name, yes in row.wl_pairs.items() if yes) or "none"
            print(
                f"{row.encoding:<16} pairs: {pairs}; CSL {row.csl_classes}/10; SRG {'yes' if row.srg else 'no'}; "
                f"cospectral {row.cospectral[0]}/{row.cospectral[1]}; atlas {row.atlas[0]}/{row.atlas[1]}; "
                f"false alarms {row.false_alarms}/{row.controls}; {row.seconds:.1f} s"
            )


@app.command()
def stability(
    graph: Annotated[Path | None, typer.Option("--data", help="A graph file; the cycle C20 by default.")] = None,
    variant: Annotated[str, typer.Option("--variant", help="random or basis.")] = "random",
    constrain: Annotated[bool, typer.Option("--constrain", help="Bound the filters, for a certified bound.")] = False,
    out: FolderOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change two edge weights by eps and compare the encoding's change with the eigenvectors'."""
    check_out(out)
    import torch

    from octavo_pearl_pe.encoder import PEARL
    from octavo_pearl_pe.readers import read_graphs
    from octavo_pearl_pe.stability import stability_curve

    torch.manual_seed(seed)
    options: dict[str, Any] = {"gnn": "filter", "layers": 2, "filter_taps": 3, "hidden": 16, "norm": None}
    encoder = PEARL(8, variant=variant, constrain="beta" if constrain else None, **options).double().eval()
    data = _ring(20) if graph is None else read_graphs(graph)[0]
    ends = [] if data.edge_index is None else data.edge_index.T.tolist()
    if not ends:
        raise InvalidValueError("the graph has no edges whose weights could change; give one with edges")
    edges = [tuple(ends[0]), tuple(ends[len(ends) // 3])]
    points = stability_curve(encoder, data, edges, (1e-1, 1e-2, 1e-3, 1e-4), seed=seed)
    document = [dataclasses.asdict(point) for point in points]
    _save(out, "stability.json", document)
    if out is not None:
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
    out: FolderOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time the encoding, and its alternatives, against the size of the graph."""
    check_out(out)
    from octavo_pearl_pe.datasets import FAMILIES
    from octavo_pearl_pe.scaling import PEERS, time_peers

    numbers = _numbers(sizes)
    chosen, kinds = peers.split(","), families.split(",")
    for given, accepted in ((chosen, PEERS), (kinds, FAMILIES)):
        if unknown := [name for name in given if name not in accepted]:
            raise InvalidValueError(f"unknown {', '.join(unknown)}; give some of {', '.join(accepted)}")
    rows = []
    with console_progress(quiet=quiet or as_json) as progress:
        for index, (family, n) in enumerate((f, n) for f in kinds for n in numbers):
            progress("timing", index / (len(kinds) * len(numbers)))
            rows.append({"family": family, "n": n} | time_peers(family, n, chosen, seed=seed, num_samples=samples))
    rows = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    _save(out, "scaling.json", rows)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not quiet:
        for row in rows:
            times = "   ".join(f"{p} {'fails' if row[p] is None else format(row[p], '.4g') + ' s'}" for p in chosen)
            print(f"{row['family']:<10} n = {row['n']:>9,}   {times}")


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
    if min(numbers) < 2 or max(numbers) > 10**7:
        raise InvalidValueError(f"--n {text!r} is out of range; give 2 to 1e7 nodes")
    return numbers


def _save(out: Path | None, name: str, document: Any) -> None:
    if out is not None:
        atomic_write(ensure_folder(out) / name, json.dumps(document, indent=2) + "\n")


def _show(summary: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2, allow_nan=False))
    elif not quiet:
        print(
            "   ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in summary.items()
            )
        )
