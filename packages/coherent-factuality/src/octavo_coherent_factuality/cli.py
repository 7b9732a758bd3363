"""``octavo coherent-factuality``: calibrate, filter, draw curves, annotate and report on the user's traces."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError, MissingFileError
from octavo_core.options import JsonOption, QuietOption, SeedOption, add_report_commands

if TYPE_CHECKING:
    from octavo_coherent_factuality.method import FilteringMethod
    from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep the steps of an answer that are safe, with a guarantee: conformal filtering over a deducibility graph.",
)
add_report_commands(app, "octavo_coherent_factuality")

_TIES = ("jitter", "strict", "randomized")

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

    _choice("--ties", ties, _TIES)
    with _plain_warnings():
        traces = _read(data, repair)
        method = _method(traces, score, lower_is_safer, samples, beta, family, annotation)
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

    with _plain_warnings():
        outputs = load_filter(fitted).predict(_read(data, repair))
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
    _choice("--protocol", protocol, ("loo", "split"))
    _choice("--ties", ties, _TIES)
    if not levels or not names:
        raise InvalidValueError("give at least one level and one family")
    with _plain_warnings():
        traces = _read(data, repair)
        curves = {
            name: calibration_curve(
                traces,
                levels,
                method=_method(traces, score, lower_is_safer, samples, beta, name, annotation),
                evaluator=_annotator(evaluation),
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

        atomic_write(plot, _png(plot_curves(curves)))
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
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for the equations of a claim.")] = 2.0,
    repair: RepairOption = "error",
    quiet: QuietOption = False,
) -> None:
    """Annotate traces; an interrupted session goes on where it stopped, from the same --out."""
    from octavo_coherent_factuality.annotate import annotate_claims, annotate_subsets
    from octavo_coherent_factuality.arithmetic import annotate_arithmetic
    from octavo_coherent_factuality.io import write_traces

    _choice("--by", by, ("hand", "equations"))
    if not time_limit > 0:
        raise InvalidValueError(f"--time-limit {time_limit} is out of range; give seconds above 0")
    with _plain_warnings():
        traces = _resumed(_read(data, repair), out)
    if by == "equations":
        found = annotate_arithmetic(traces, time_limit=time_limit)
        write_traces(out, found)
    else:

        def save(work: list[ReasoningTrace]) -> None:
            write_traces(out, work)

        try:
            if subsets:
                method = _method(traces, score, lower_is_safer, samples, beta, "subgraph", "auto")
                found = annotate_subsets(traces, method.scorer, _ask, save)
            else:
                found = annotate_claims(traces, _ask, save)
            write_traces(out, found)
        except (typer.Abort, EOFError, KeyboardInterrupt):
            print(f"stopped; what was answered is in {out}, and the same command goes on from there")
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

    with _plain_warnings():
        chosen = _pick(_read(data, repair), trace)
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
    """The cheapest claims to check by hand so that enough can be kept; one JSON object a line."""
    from octavo_coherent_factuality.persist import load_filter
    from octavo_coherent_factuality.verification import plan_verification

    with _plain_warnings():
        loaded = load_filter(fitted)
        for entry in _read(data, repair):
            plan = plan_verification(entry, loaded, keep_fraction=keep)
            fields = {"id": entry.id, "verify": plan.verify, "kept": plan.kept, "certified": plan.certified}
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

    entries = [_json_line(line, number, questions) for number, line in _lines(questions)]
    if sum((model is not None, local is not None, offline)) != 1:
        raise InvalidValueError("give one of --model, --local and --offline")
    if out.exists() and not resume:
        raise InvalidValueError(f"{str(out)!r} exists; give --resume to go on, or another --out")
    with _plain_warnings():
        if offline:
            from octavo_coherent_factuality.heuristics import trace_from_text
            from octavo_coherent_factuality.io import write_traces

            for number, entry in enumerate(entries):
                if not isinstance(entry.get("answer"), str):
                    raise InvalidValueError(f"question {number} has no answer; --offline needs one for each")
            made = [
                trace_from_text(
                    entry["answer"],
                    question=entry.get("question"),
                    alternatives=entry.get("alternatives") or (),
                    id=None if entry.get("id") is None else str(entry["id"]),
                )
                for entry in entries
            ]
            write_traces(out, made)
        else:
            from octavo_coherent_factuality.llm import CachedLLM, OpenAICompatible, TransformersLLM
            from octavo_coherent_factuality.pipeline import ReasoningPipeline

            llm: Any = (
                TransformersLLM.load(local)
                if local
                else OpenAICompatible(str(model), base_url=base_url, max_retries=retries)
            )
            llm = CachedLLM(llm, cache) if cache is not None else llm
            with console_progress(quiet=quiet) as progress:
                made = ReasoningPipeline(llm, num_samples=samples).run(entries, out, resume=resume, progress=progress)
    if not quiet:
        print(f"{len(made)} traces, {sum(entry.num_claims for entry in made)} claims; saved to {out}")


@contextmanager
def _plain_warnings() -> Generator[None, None, None]:
    """Print warnings as one line each on standard error, without file names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(entry.message) for entry in caught):
                typer.echo(f"warning: {text}", err=True)


def _read(path: Path, repair: str) -> list[ReasoningTrace]:
    from octavo_coherent_factuality.io import read_traces

    _choice("--repair", repair, ("error", "break", "chain"))
    traces = read_traces(path, repair=repair)  # ty: ignore[invalid-argument-type]
    for trace in traces:
        if trace.graph.dropped_edges or trace.graph.fallback:
            done = "replaced by a chain" if trace.graph.fallback else f"mended: dropped {trace.graph.dropped_edges}"
            warnings.warn(f"the graph of {trace.name} was {done}", stacklevel=2)
    return traces


def _method(
    traces: list[ReasoningTrace],
    score: str,
    lower_is_safer: bool,
    samples: int,
    beta: float,
    family: str,
    annotation: str,
) -> FilteringMethod:
    from octavo_coherent_factuality.method import FilteringMethod
    from octavo_coherent_factuality.scorers import (
        DescendantWeighted,
        FrequencyScorer,
        LogProb,
        ScoreColumn,
        SelfConfidence,
    )

    _choice("--family", family, ("subgraph", "independent", "posthoc", "prefix", "greedy"))
    if score == "auto":
        there = traces[0].claims[0].scores
        score = next((name for name in ("frequency", "self_confidence", "logprob", "score") if name in there), "")
        if not score:
            raise InvalidValueError(
                f"the claims have the scores {', '.join(sorted(there)) or 'none'}; name one with --score"
            )
    known: dict[str, Any] = {
        "frequency": FrequencyScorer(samples),
        "self_confidence": SelfConfidence(),
        "logprob": LogProb(),
    }
    scorer = known.get(score) or ScoreColumn(score, higher_is_safer=not lower_is_safer)
    if beta:
        scorer = DescendantWeighted(scorer, beta)
    return FilteringMethod(scorer, family, _annotator(annotation))  # ty: ignore[invalid-argument-type]


def _annotator(name: str) -> Any:
    from octavo_coherent_factuality.annotators import Gold, Independent, Silver

    known = {
        "auto": None,
        "silver": Silver(),
        "independent": Independent(),
        "gold": Gold(),
        "gold-or-silver": Gold("silver"),
    }
    _choice("--annotation", name, tuple(known))
    return known[name]


def _choice(option: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InvalidValueError(f"{option} {value!r} is unknown; give one of {', '.join(accepted)}")


def _ask(trace: ReasoningTrace, mask: Any) -> bool | None:
    """Show the question and the claims, and read y, n or s (skip); q stops."""
    print(f"\n{trace.question or trace.id or ''}")
    single = int(mask.sum()) == 1
    for index, claim in enumerate(trace.claims):
        if mask[index]:
            print(f"  [{index}] {claim.text or '(no text)'}")
    what = "Is this claim true by itself?" if single else "Are these claims right and complete as a derivation?"
    while True:
        answer = typer.prompt(f"{what} y/n/s/q").strip().lower()
        if answer in ("y", "n", "s"):
            return {"y": True, "n": False, "s": None}[answer]
        if answer == "q":
            raise typer.Abort


def _resumed(traces: list[ReasoningTrace], out: Path) -> list[ReasoningTrace]:
    """Take over the annotations of an earlier session, if the file holds the same traces."""
    from octavo_coherent_factuality.io import read_traces

    if not out.exists():
        return traces
    earlier = read_traces(out)
    if [trace.content_digest for trace in earlier] != [trace.content_digest for trace in traces]:
        raise InvalidValueError(f"{str(out)!r} exists and holds other traces; give another --out")
    return earlier


def _pick(traces: list[ReasoningTrace], wanted: str) -> ReasoningTrace:
    for trace in traces:
        if trace.id == wanted:
            return trace
    if wanted.isdigit() and int(wanted) < len(traces):
        return traces[int(wanted)]
    raise InvalidValueError(f"no trace {wanted!r}; give an id, or a number from 0 to {len(traces) - 1}")


def _lines(path: Path) -> list[tuple[int, str]]:
    if not path.is_file():
        raise MissingFileError(f"no file at {str(path)!r}; give a JSONL file with one question a line")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(path)!r} is not UTF-8 text: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _json_line(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidValueError(f"line {number} of {str(path)!r} is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise InvalidValueError(f"line {number} of {str(path)!r} is not an object")
    return entry


def _png(figure: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()
