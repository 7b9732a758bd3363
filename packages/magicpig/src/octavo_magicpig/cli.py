"""The ``octavo magicpig`` command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.device import available_cores, resolve_device
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write
from octavo_core.options import DeviceOption, JsonOption, QuietOption, SeedOption, add_report_commands, check_out
from octavo_core.progress import console_progress
from octavo_core.report import figure_png

if TYPE_CHECKING:
    from octavo_magicpig.config import LSHConfig

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="LSH-sampled attention: long-context decoding on a CPU.")
add_report_commands(app, "octavo_magicpig")

ModelOption = Annotated[
    str, typer.Option("--model", help="smollm2, a folder, a .gguf file, or a Hugging Face hub name (downloads).")
]
BitsOption = Annotated[int, typer.Option("--bits", help="Hash bits of a table (K).")]
TablesOption = Annotated[int, typer.Option("--tables", help="Hash tables (L).")]
FolderOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results and figures.")]


@app.command()
def info(as_json: JsonOption = False) -> None:
    """Tell which kernel runs here, and why."""
    from octavo_magicpig.kernels import describe

    found = describe()
    if as_json:
        print(json.dumps(vars(found), indent=2))
        return
    print(f"active: {found.active}" + (f" ({found.instruction_set})" if found.instruction_set else ""))
    for name, reason in found.reasons.items():
        print(f"  {name}: {reason}")
    print(f"threads: {found.threads}")


@app.command("time")
def time_steps(
    heads: Annotated[str, typer.Option("--heads", help="Query heads / kv heads.")] = "32/8",
    dim: Annotated[int, typer.Option("--dim", help="Size of a head.", min=1)] = 128,
    lengths: Annotated[str, typer.Option("--lengths", help="Keys in the cache, e.g. 4k,16k,64k.")] = "4k,16k,64k",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1",
    bits: BitsOption = 10,
    tables: TablesOption = 150,
    threads: Annotated[int, typer.Option("--threads", help="Threads, at most the cores.", min=1)] = 1,
    gqa: Annotated[bool, typer.Option("--enable-gqa", help="Time SDPA with enable_gqa=True too; slow.")] = False,
    out: FolderOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time a decode step and the build of the tables at your model's head shape."""
    check_out(out)
    # More threads than cores only wait for one another, and thousands of them end the process.
    if threads > (cores := available_cores()):
        raise InvalidValueError(f"--threads {threads} is more than this machine has cores; give 1 to {cores}")
    query_heads, kv_heads = _pair(heads)
    sizes, batches = [_number(text) for text in lengths.split(",")], [_number(text) for text in batch.split(",")]
    _check_memory(lengths, max(sizes) * max(batches) * kv_heads, dim)
    from octavo_magicpig.bench import Shape, measure_steps

    rows: list[dict[str, Any]] = []
    jobs = [(size, count) for count in batches for size in sizes]
    with console_progress(quiet=quiet or as_json) as progress:
        for done, (size, count) in enumerate(jobs):
            progress("timing", done / len(jobs))
            steps = measure_steps(
                size,
                shape=Shape(query_heads, kv_heads, dim, count),
                config=_config(bits, tables, seed),
                enable_gqa=gqa,
                seed=seed,
                threads=threads,
            )
            rows.append(
                {"keys": size, "batch": count}
                | {f"{name}_ms": timing.median * 1e3 for name, timing in steps.timings.items()}
                | {"sampled": steps.fraction, "bytes_read": steps.touched, "build_s": steps.build_seconds}
            )
        progress("timing", 1.0)
    _deliver({"heads": heads, "dim": dim, "threads": threads, "steps": rows}, rows, out, "timing", as_json, quiet)
    if out is not None:
        from octavo_magicpig import plots

        first = [row for row in rows if row["batch"] == batches[0]]
        names = [name for name in first[0] if name.endswith("_ms")]
        figure = plots.plot_time_against_length(sizes, {name[:-3]: [row[name] for row in first] for name in names})
        atomic_write(out / "timing.png", figure_png(figure))


@app.command("eval")
def evaluate(
    task: Annotated[str, typer.Argument(help="niah, vt, cwe, fwe, nll, or a RULER file (.jsonl).")],
    model: ModelOption = "smollm2",
    methods: Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")] = "dense,lsh,window",
    protocol: Annotated[str, typer.Option("--protocol", help="A, B or AB: is the question processed exactly?")] = "AB",
    examples: Annotated[int, typer.Option("--examples", help="Examples, or texts for nll.", min=1)] = 4,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of a prompt.", min=16)] = 1500,
    new_tokens: Annotated[int, typer.Option("--new-tokens", help="Tokens of an answer, or scored ones.", min=2)] = 24,
    text: Annotated[Path | None, typer.Option("--text", help="Text file for nll; English prose by default.")] = None,
    bits: BitsOption = 10,
    tables: TablesOption = 150,
    window: Annotated[int, typer.Option("--window", help="Last prompt tokens that stay exact.", min=0)] = 64,
    budget: Annotated[float, typer.Option("--budget", help="Share of keys for topk, quest, uniform, hybrid.")] = 0.03,
    out: FolderOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue results.jsonl in --out.")] = False,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model under sampled attention and its rivals."""
    if resume and out is None:
        raise InvalidValueError("--resume needs --out, the folder of the run to continue")
    check_out(out)
    place = resolve_device(device)
    import hashlib
    from dataclasses import replace

    from octavo_magicpig.evaluation import _runner as runner
    from octavo_magicpig.evaluation import _study as study
    from octavo_magicpig.evaluation import summarise, tasks

    config = replace(_config(bits, tables, seed), window_tokens=window, min_context=0)
    names = dict.fromkeys(name.strip() for name in methods.split(","))
    chosen = [study.make_method(name, config, budget=budget, seed=seed) for name in names]
    protocols = runner.check_protocols(protocol)
    results = None if out is None else out / "results.jsonl"
    if task not in (*tasks.TASKS, "nll") and not task.endswith(".jsonl"):
        raise InvalidValueError(f"unknown task {task!r}; give {', '.join(tasks.TASKS)}, nll, or a RULER file (.jsonl)")
    prompts = tasks.load_examples(task)[:examples] if task.endswith(".jsonl") else []
    content = tasks.read_text(text) if task == "nll" or text is not None else ""
    read = Path(task).read_bytes() if prompts else content.encode()
    network, tokenizer = runner.load_model(model)
    network.to(place)
    # What decides a result beside what its line names: task, example, method and protocol.
    settings = {
        "task": task, "model": model, "weights": runner.fingerprint(network), "tokens": tokens,
        "new_tokens": new_tokens, "budget": budget, "text": hashlib.sha256(read).hexdigest()[:16],
        "texts": examples if task == "nll" else None, "config": config.to_dict(),
    }  # fmt: skip
    with console_progress(quiet=quiet or as_json) as progress:
        if task == "nll":
            ids = tokenizer(content, return_tensors="pt").input_ids
            outcomes = runner.run_text_losses(
                network, ids, chosen, texts=examples, prefix_tokens=tokens, scored_tokens=new_tokens,
                results=results, resume=resume, settings=settings, progress=progress,
            )  # fmt: skip
        else:
            prompts = prompts or tasks.make_examples(
                task, examples, tokens, lambda part: len(tokenizer(part).input_ids), seed=seed
            )
            outcomes = runner.run_tasks(
                network, tokenizer, prompts, chosen, protocols=protocols, new_tokens=new_tokens,
                results=results, resume=resume, settings=settings, progress=progress,
            )  # fmt: skip
    rows = summarise(outcomes)
    _deliver({"task": task, "model": model, "summary": rows}, rows, out, "summary", as_json, quiet)


@app.command()
def tune(
    model: ModelOption = "smollm2",
    budget: Annotated[float, typer.Option("--budget", help="Largest share of the keys.")] = 0.02,
    memory: Annotated[float | None, typer.Option("--bytes", help="Most table bytes of a token and kv head.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of the sample.", min=256)] = 2000,
    layer: Annotated[int | None, typer.Option("--layer", help="Layer to look at; a quarter of the depth.")] = None,
    text: Annotated[Path | None, typer.Option("--text", help="Text file; English prose by default.")] = None,
    out: FolderOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rank pairs of bits and tables for a model by their error within a budget."""
    check_out(out)
    from octavo_magicpig.evaluation import _runner as runner
    from octavo_magicpig.evaluation import _study as study
    from octavo_magicpig.evaluation import tasks
    from octavo_magicpig.tuning import check_budget, check_sample
    from octavo_magicpig.tuning import tune as rank

    check_budget(budget, memory)
    content = tasks.read_text(text)
    network, tokenizer = runner.load_model(model)
    ids = tokenizer(content[: 12 * tokens], return_tensors="pt").input_ids[:, :tokens]
    config = _config(10, 150, seed)
    check_sample(ids.shape[1], config)
    depth = network.config.get_text_config().num_hidden_layers
    chosen = depth // 4 if layer is None else layer
    if not 0 <= chosen < depth:
        raise InvalidValueError(f"layer {chosen} does not exist; the model has layers 0 to {depth - 1}")
    (seen,) = study.capture(network, ids, [chosen])
    rows = [
        vars(result)
        for result in rank(seen.queries, seen.keys, seen.values, budget=budget, max_table_bytes=memory, config=config)
    ]
    _deliver({"model": model, "layer": chosen, "budget": budget, "pairs": rows}, rows, out, "tuning", as_json, quiet)


def _config(bits: int, tables: int, seed: int) -> LSHConfig:
    from octavo_magicpig.config import LSHConfig

    return LSHConfig(key_bits=bits, num_tables=tables, seed=seed)


def _check_memory(lengths: str, rows: int, dim: int) -> None:
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return
    # Keys and values in bfloat16, and one of them in float32 while they are drawn.
    needed = rows * dim * 8
    if needed > there:
        raise InvalidValueError(
            f"--lengths {lengths} needs {needed / 2**30:,.0f} GiB for keys and values, and this machine has "
            f"{there / 2**30:,.0f} GiB of memory; give shorter lengths, fewer heads or a smaller batch"
        )


def _number(text: str) -> int:
    scale = 1024 if text.strip().lower().endswith("k") else 1
    digits = text.strip().lower().removesuffix("k")
    if not re.fullmatch("[0-9]{1,12}", digits) or int(digits) == 0:
        raise InvalidValueError(f"{text!r} is not a positive number of at most 12 digits; write for example 512 or 16k")
    return int(digits) * scale


def _pair(text: str) -> tuple[int, int]:
    first, slash, second = text.partition("/")
    pair = _number(first), _number(second if slash else first)
    if pair[0] % pair[1]:
        raise InvalidValueError(f"--heads {text}: {pair[0]} is not a multiple of {pair[1]}; write for example 32/8")
    return pair


def _deliver(
    document: dict[str, Any], rows: list[dict[str, Any]], out: Path | None, name: str, as_json: bool, quiet: bool
) -> None:
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if out is not None:
        atomic_write(out / f"{name}.json", text)
        atomic_write(out / f"{name}.md", _markdown(rows))
    if as_json:
        print(text, end="")
    elif not quiet:
        print(_markdown(rows), end="")


def _markdown(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0]) if rows else []
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
