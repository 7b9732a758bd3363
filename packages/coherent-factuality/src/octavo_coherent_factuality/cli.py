"""``octavo coherent-factuality``: calibrate, filter, draw curves, annotate and report on the user's traces."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError
from octavo_core.options import JsonOption, QuietOption, SeedOption, add_report_commands

from octavo_coherent_factuality.cli_support import (
    FAMILIES,
    annotator_of,
    ask_user,
    check_choice,
    check_output,
    check_plot,
    method_of,
    pick_trace,
    plain_warnings,
    png_of,
    question_entries,
    read_file,
    resumed_traces,
)

if TYPE_CHECKING:
    from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep the steps of an answer that are safe, with a guarantee: conformal filtering over a deducibility graph.",
)
add_report_commands(app, "octavo_coherent_factuality")

_TIES = ("jitter", "strict", "randomized")
_SAVE_SECONDS = 2.0

DataArgument = Annotated[Path, typer.Argument(help="Traces: JSONL, or the official JSON layout.", show_default=False)]
ScoreOption = Annotated[
    str, typer.Option("--score", help="Score of the claims: auto, frequency, self_confidence, logprob, or any name.")
]
LowerOption = Annotated[
    bool, typer.Option("--lower-is-safer", help="For a score of another name: a lower one is safer.")
]
SamplesOption = Annotated[int, typer.Option("--samples", help="Alternative answers behind frequency scores.", min=1)]
BetaOption = Annotated[float, typer.Option("--beta", help="Weight of the descendants, 0 to 1.")]
FamilyOption = Annotated[str, typer.Option("--family", help="subgraph, independent, posthoc, prefix or greedy.")]
AnnotationOption = Annotated[
    str,
    typer.Option("--annotation", help="What counts as right: auto, silver, independent, gold, or gold-or-silver."),
]
TiesOption = Annotated[str, typer.Option("--ties", help="jitter, strict or randomized.")]
RepairOption = Annotated[str, typer.Option("--repair", help="For cyclic graphs: error, break or chain.")]


@app.command()
def fit(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the calibrated filter.")] = Path("filter.json"),
    alpha: Annotated[str, typer.Option("--alpha", help="Error level, e.g. 0.1 or 1/48.")] = "0.1",
    delta: Annotated[
        str | None, typer.Option("--delta", help="Share of calibration sets that may miss the level.")
    ] = None,
    score: ScoreOption = "auto",
    lower_is_safer: LowerOption = False,
    samples: SamplesOption = 5,
    beta: BetaOption = 0.0,
    family: FamilyOption = "subgraph",
    annotation: AnnotationOption = "auto",
    ties: TiesOption = "jitter",
    repair: RepairOption = "error",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Calibrate a filter on annotated traces and say what it guarantees."""
    from octavo_coherent_factuality.filter import SplitConformalFilter
    from octavo_coherent_factuality.guarantee import guarantee_report
    from octavo_coherent_factuality.persist import save_filter

    check_choice("--ties", ties, _TIES)
    check_output("--out", out, data)
    with plain_warnings():
        traces = read_file(data, repair)
        method = method_of(traces, score, lower_is_safer, samples, beta, family, annotation)
        fitted = SplitConformalFilter(
            alpha,
            scorer=method.scorer,
            family=method.family,
            annotator=method.annotator,
            ties=ties,  # ty: ignore[invalid-argument-type]
            delta=delta,
            seed=seed,
        ).fit(traces)
        save_filter(out, fitted, traces=traces)
    report = guarantee_report(fitted)
    if as_json:
        print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    elif not quiet:
        print(f"{report.text}\nsaved to {out}")


@app.command("filter")
def filter_traces(
    data: DataArgument,
    fitted: Annotated[Path, typer.Option("--filter", "-f", help="The calibrated filter.")] = Path("filter.json"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSONL file for the outputs; standard output if left out.")
    ] = None,
    repair: RepairOption = "error",
    quiet: QuietOption = False,
) -> None:
    """Keep what is safe of each trace; one JSON object a line."""
    from octavo_core.files import atomic_write

    from octavo_coherent_factuality.persist import load_filter

    check_output("--out", out, data, fitted)
    with plain_warnings():
        outputs = load_filter(fitted).predict(read_file(data, repair))
    text = "".join(json.dumps(output.to_json(), ensure_ascii=False) + "\n" for output in outputs)
    if out is None:
        print(text, end="")
        return
    atomic_write(out, text)
    if not quiet:
        kept = sum(len(output.kept) for output in outputs)
        total = sum(output.trace.num_claims for output in outputs)
        abstained = sum(output.abstained for output in outputs)
        print(f"{len(outputs)} traces, {kept} of {total} claims kept, {abstained} abstained; saved to {out}")


@app.command()
def curve(
    data: DataArgument,
    alphas: Annotated[str, typer.Option("--alphas", help="Error levels, with commas.")] = "0.05,0.1,0.15,0.2,0.25,0.3",
    protocol: Annotated[str, typer.Option("--protocol", help="loo or split.")] = "loo",
    repeats: Annotated[int, typer.Option("--repeats", help="Random splits.", min=1)] = 100,
    families: Annotated[
        str, typer.Option("--families", help="Families to compare, with commas.")
    ] = "subgraph,posthoc,independent,prefix",
    score: ScoreOption = "auto",
    lower_is_safer: LowerOption = False,
    samples: SamplesOption = 5,
    beta: BetaOption = 0.0,
    annotation: AnnotationOption = "auto",
    evaluation: Annotated[str, typer.Option("--evaluation", help="What counts as right in the test.")] = "silver",
    ties: TiesOption = "jitter",
    plot: Annotated[Path | None, typer.Option("--plot", help="PNG file for a figure.")] = None,
    repair: RepairOption = "error",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Realised coherence and claims kept over levels."""
    from octavo_coherent_factuality.curve import calibration_curve

    levels = [entry.strip() for entry in alphas.split(",") if entry.strip()]
    names = [entry.strip() for entry in families.split(",") if entry.strip()]
    check_choice("--protocol", protocol, ("loo", "split"))
    check_choice("--ties", ties, _TIES)
    for name in names:
        check_choice("--families", name, FAMILIES)
    evaluator = annotator_of(evaluation, "--evaluation")
    check_output("--plot", plot, data)
    check_plot(plot)
    if not levels or not names:
        raise InvalidValueError("give at least one level and one family")
    with plain_warnings():
        traces = read_file(data, repair)
        curves = {
            name: calibration_curve(
                traces,
                levels,
                method=method_of(traces, score, lower_is_safer, samples, beta, name, annotation),
                evaluator=evaluator,
                protocol=protocol,  # ty: ignore[invalid-argument-type]
                ties=ties,  # ty: ignore[invalid-argument-type]
                repeats=repeats,
                seed=seed,
            )
            for name in names
        }
    if plot is not None:
        from octavo_core.files import atomic_write

        from octavo_coherent_factuality.render import plot_curves

        atomic_write(plot, png_of(plot_curves(curves)))
    if as_json:
        print(json.dumps({name: found.to_rows() for name, found in curves.items()}, indent=2, allow_nan=False))
        return
    event = next(iter(curves.values())).event
    print(f"right: {event}")
    print(f"{'family':<12} {'target':>8} {'realised':>9} {'95 % range':>17} {'kept':>7} {'abstained':>10}")
    for name, found in curves.items():
        for point in found:
            print(
                f"{name:<12} {point.target:>8.4f} {point.realised:>9.4f} {point.low:>8.4f} {point.high:>8.4f} "
                f"{point.retained:>7.4f} {point.abstained:>10.4f}"
            )


@app.command()
def annotate(
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file for the annotated traces.", show_default=False)],
    by: Annotated[str, typer.Option("--by", help="hand, or equations (checked by sympy).")] = "hand",
    subsets: Annotated[
        bool, typer.Option("--subsets", help="By hand: judge whole outputs, not single claims.")
    ] = False,
    score: ScoreOption = "auto",
    lower_is_safer: LowerOption = False,
    samples: SamplesOption = 5,
    beta: BetaOption = 0.0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds for the equations of a claim; inf for no limit.")
    ] = 2.0,
    repair: RepairOption = "error",
    quiet: QuietOption = False,
) -> None:
    """Annotate traces; an interrupted session goes on where it stopped, from the same --out.

    Claims that are annotated already are left as they are; those that --by equations could not decide are tried again.
    """
    from octavo_coherent_factuality.annotate import annotate_claims, annotate_subsets
    from octavo_coherent_factuality.arithmetic import annotate_arithmetic
    from octavo_coherent_factuality.io import write_traces

    check_choice("--by", by, ("hand", "equations"))
    if not time_limit > 0:
        raise InvalidValueError(f"--time-limit {time_limit} is out of range; give seconds above 0")
    check_output("--out", out, data)
    with plain_warnings():
        traces = resumed_traces(read_file(data, repair), out)
    found = traces
    saved = time.monotonic()

    def save(work: list[ReasoningTrace]) -> None:
        nonlocal found, saved
        found = list(work)
        # Answers of a human are saved at once, and what a machine found every few seconds.
        if by == "hand" or time.monotonic() - saved > _SAVE_SECONDS:
            write_traces(out, found)
            saved = time.monotonic()

    try:
        if by == "equations":
            found = annotate_arithmetic(traces, time_limit=time_limit, save=save)
        elif subsets:
            method = method_of(traces, score, lower_is_safer, samples, beta, "subgraph", "auto")
            found = annotate_subsets(traces, method.scorer, ask_user, save)
        else:
            found = annotate_claims(traces, ask_user, save)
        write_traces(out, found)
    except (typer.Abort, EOFError, KeyboardInterrupt):
        if found is not traces:
            write_traces(out, found)
        done = f"what was answered is in {out}, and the same command goes on from there"
        print(f"stopped; {done if out.exists() else 'nothing was answered, and nothing is saved'}")
        raise typer.Exit(130) from None
    if not quiet:
        claims = [claim for trace in found for claim in trace.claims]
        known = sum(claim.factual is not None for claim in claims)
        judged = sum(len(trace.subset_annotations) for trace in found)
        print(f"{known} of {len(claims)} claims annotated, {judged} subsets judged; saved to {out}")


@app.command()
def report(
    data: DataArgument,
    fitted: Annotated[Path, typer.Option("--filter", "-f", help="The calibrated filter.")] = Path("filter.json"),
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file.")] = Path("trace.html"),
    trace: Annotated[str, typer.Option("--trace", help="Id of the trace, or its number from 0.")] = "0",
    repair: RepairOption = "error",
    quiet: QuietOption = False,
) -> None:
    """One HTML page about one trace: graph, kept and cut claims, and what is guaranteed."""
    from octavo_core.files import atomic_write

    from octavo_coherent_factuality.guarantee import guarantee_report
    from octavo_coherent_factuality.persist import load_filter
    from octavo_coherent_factuality.render import trace_page

    check_output("--out", out, data, fitted)
    with plain_warnings():
        chosen = pick_trace(read_file(data, repair), trace)
        loaded = load_filter(fitted)
        (output,) = loaded.predict([chosen])
    atomic_write(out, trace_page(output, loaded, guarantee_report(loaded)))
    if not quiet:
        print(f"{len(output.kept)} of {chosen.num_claims} claims kept; saved to {out}")


@app.command()
def verify(
    data: DataArgument,
    fitted: Annotated[
        Path, typer.Option("--filter", "-f", help="A filter calibrated with --family independent.")
    ] = Path("filter.json"),
    keep: Annotated[float, typer.Option("--keep", help="Share of the claims to keep.")] = 0.9,
    repair: RepairOption = "error",
) -> None:
    """The cheapest claims to check by hand so that enough can be kept; one JSON object a line.

    No plan is cheaper where "exact" is true, as for answers of up to 1,000 claims; for longer ones it is a good one.
    """
    from octavo_coherent_factuality.persist import load_filter
    from octavo_coherent_factuality.verification import plan_verification

    with plain_warnings():
        loaded = load_filter(fitted)
        for entry in read_file(data, repair):
            plan = plan_verification(entry, loaded, keep_fraction=keep)
            fields: dict[str, Any] = {
                "id": entry.id,
                "verify": plan.verify,
                "kept": plan.kept,
                "certified": plan.certified,
            }
            fields |= {"cost": plan.cost, "exact": plan.exact}
            print(json.dumps(fields))


@app.command("trace")
def make_traces(
    questions: Annotated[Path, typer.Argument(help="JSONL: objects with question, and id and answer if known.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file for the traces.")] = Path("traces.jsonl"),
    model: Annotated[str | None, typer.Option("--model", help="Model at the server.")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="OpenAI-compatible server.")] = None,
    local: Annotated[str | None, typer.Option("--local", help="Local model: smollm2, or a folder.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="No model: answers must be given.")] = False,
    cache: Annotated[Path | None, typer.Option("--cache", help="SQLite file for the model's answers.")] = None,
    samples: SamplesOption = 5,
    retries: Annotated[int, typer.Option("--retries", help="Attempts at a server after the first.", min=0)] = 5,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the traces that --out has already.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Make traces from questions, with a language model or from given answers alone."""
    from octavo_core.progress import console_progress

    if sum((model is not None, local is not None, offline)) != 1:
        raise InvalidValueError("give one of --model, --local and --offline")
    check_output("--out", out, questions, cache)
    entries = question_entries(questions, offline=offline)
    if out.exists() and not resume:
        raise InvalidValueError(f"{str(out)!r} exists; give --resume to go on, or another --out")
    with plain_warnings():
        if offline:
            from octavo_coherent_factuality.heuristics import trace_from_text
            from octavo_coherent_factuality.io import storable, write_traces
            from octavo_coherent_factuality.pipeline import check_ids, finished_traces

            finished = finished_traces(out)
            check_ids(finished, [(entry["id"], entry.get("question")) for entry in entries], out)
            earlier: dict[Any, list[ReasoningTrace]] = {}
            for trace in finished:
                earlier.setdefault(_identity(trace.id, trace.question, trace.answer), []).append(trace)
            made = []
            for entry in entries:
                name = None if entry["id"] is None else storable(entry["id"])
                question = None if entry.get("question") is None else storable(entry["question"])
                answer, others = storable(entry["answer"]), [storable(text) for text in entry.get("alternatives") or ()]
                there = earlier.get(_identity(name, question, answer))
                made.append(
                    there.pop(0) if there else trace_from_text(answer, question=question, alternatives=others, id=name)
                )
            # What the file has beyond these questions stays too.
            write_traces(out, [*(trace for left in earlier.values() for trace in left), *made])
        else:
            from octavo_coherent_factuality.llm import CachedLLM, OpenAICompatible, TransformersLLM
            from octavo_coherent_factuality.pipeline import ReasoningPipeline

            llm: Any = (
                TransformersLLM.load(local, quiet=quiet)
                if local
                else OpenAICompatible(str(model), base_url=base_url, max_retries=retries)
            )
            llm = CachedLLM(llm, cache) if cache is not None else llm
            with console_progress(quiet=quiet) as progress:
                made = ReasoningPipeline(llm, num_samples=samples).run(entries, out, resume=resume, progress=progress)
    if not quiet:
        print(f"{len(made)} traces, {sum(entry.num_claims for entry in made)} claims; saved to {out}")


def _identity(name: str | None, question: str | None, answer: str | None) -> tuple[str | None, ...]:
    """By id and question, as the pipeline resumes; by the answer where there is neither."""
    return (name, question) if name or question else (None, None, answer)
