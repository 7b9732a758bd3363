"""The embedded example: four programs on seeded inputs, each chain of thought checked against the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from octavo_core.device import num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_prompt_turing.decoding import default_model, run_prompt
from octavo_prompt_turing.engine_config import EngineConfig
from octavo_prompt_turing.experiments import cot_exponent, first_failure, precision_law
from octavo_prompt_turing.library import LIBRARY, library_program
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.model import PromptTuringModel
from octavo_prompt_turing.trace import trace_to_html

__all__ = ["run"]

_SIZES = {"parity": (8, 40, 200), "dyck": (8, 40, 200), "reverse": (4, 16, 64), "palindrome-tm": (4, 16, 48)}
_QUICK_SIZES = {"parity": (8, 80), "dyck": (8, 60), "reverse": (4, 12), "palindrome-tm": (4, 12)}
_DENSE_LENGTH = 3_500
_DYCK_INPUTS = ("01010101", "00110101", "00001111", "0101010101", "001100110011")


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the example.

    Args:
        quick: Smaller inputs and a coarser precision law, for the tour.
        seed: Seed of the inputs.
        device: Device of the dense passes that check whole sequences at once; where it has no float64, the CPU.
        progress: Called with what is being done and the share done.

    Returns:
        The report: rows per program, the claims, and an HTML trace.
    """
    target = resolve_device(device)
    target = target if target.type != "mps" else resolve_device("cpu")
    report = Report("prompt-turing", "demo", seed=seed, title="prompt-turing: one Transformer, four programs")
    steps: list[Callable[[], None]] = [
        lambda: _programs(report, seed, quick),
        lambda: _naive_fails(report, target),
        lambda: _precision(report, quick),
        lambda: _length(report, quick),
        lambda: _trace(report),
    ]
    # Its matrices are small: more threads only wait for each other.
    with num_threads(1):
        for done, step in enumerate(steps):
            progress("demo", done / len(steps))
            step()
    progress("demo", 1.0)
    return report.finish()


def _programs(report: Report, seed: int, quick: bool) -> None:
    model = default_model()
    generator = np.random.default_rng(seed)
    agree, checked, longest = True, 0, 0
    for name, sizes in (_QUICK_SIZES if quick else _SIZES).items():
        program = library_program(name)
        tokens, seconds = 0, 0.0
        lengths, margins = [], []
        for size in sizes:
            bits = _input(name, size, generator)
            truth = Machine(program).run(bits)
            result = run_prompt(program, bits, model=model, engine="exact")
            right = list(result.tokens) == truth.tokens and result.output == LIBRARY[name].expected(bits)
            lengths.append(result.length)
            tokens, seconds, checked = tokens + len(result.tokens), seconds + result.seconds, checked + 1
            if result.length <= (_DENSE_LENGTH if not quick else 600):
                dense = run_prompt(program, bits, model=model, engine="deficit64")
                right &= dense.tokens == result.tokens
                margins.append(f"{dense.margin:.0f} at {dense.length:,} tokens")
                checked += 1
            agree &= right
            longest = max(longest, result.length)
        report.add(
            f"tokens_{name.replace('-', '_')}",
            f"{name}: tokens of the longest run ({LIBRARY[name].description})",
            max(lengths),
            note=f"inputs of {', '.join(map(str, sizes))} bits, {len(program)} instructions; exact engine "
            f"{tokens / seconds:,.0f} tokens/s; bits to spare of deficit64: {', '.join(margins) or 'not run'}",
        )
    report.add(
        "all_runs_match_simulator",
        "every chain of thought and output equals the simulator's, token by token",
        agree,
        target="value == 1",
        note=f"{checked} runs, the longest of {longest:,} tokens; engines exact and deficit64 (up to "
        f"{600 if quick else _DENSE_LENGTH:,} tokens); one set of weights: {model.num_parameters:,} parameters, "
        f"{len(model.blocks)} blocks, SHA-256 {model.state_hash()[:12]}",
    )


def _input(name: str, size: int, generator: np.random.Generator) -> str:
    if name == "dyck":
        return "01" * (size // 2)
    half = "".join(map(str, generator.integers(0, 2, size // 2)))
    return (
        half + half[::-1] if name == "palindrome-tm" else half + "".join(map(str, generator.integers(0, 2, size // 2)))
    )


def _naive_fails(report: Report, device: object) -> None:
    program = library_program("dyck")
    model = PromptTuringModel().to(str(device))
    first, fooled = [], 0
    for bits in _DYCK_INPUTS:
        prompt, tokens = program.to_prompt(bits), Machine(program).run(bits).tokens
        naive = first_failure(prompt, tokens, EngineConfig("float64"), model=model)
        ours = first_failure(prompt, tokens, EngineConfig("deficit64"), model=model)
        fooled += naive is not None and ours is None
        first.append(f"{naive} of {len(prompt) + len(tokens)}")
    report.add(
        "naive_float64_fails_on_dyck",
        "inputs of the paper's Dyck program on which float64 as written fails and the deficit form does not",
        fooled,
        target="value == 5",
        note=f"of {len(_DYCK_INPUTS)}, 8 to 12 bits; ties within 4e-15; first wrong token {', '.join(first)}; "
        f"on {device}",
    )


def _precision(report: Report, quick: bool) -> None:
    started = time.perf_counter()
    slope, points = precision_law(bits=()) if quick else precision_law()
    report.add(
        "precision_law_slope",
        "growth of log2 of the first failing length with the bits of a comparison; 1/6 by the precision law",
        slope,
        target="0.1333 <= value <= 0.2",
        note="first failures "
        + ", ".join(f"{length} at {bits:.0f} bits" for bits, length in points)
        + f"; naive float64 and fixed point; {time.perf_counter() - started:.0f} s",
    )


def _length(report: Report, quick: bool) -> None:
    sizes = (8, 16, 32, 64) if quick else (8, 16, 32, 64, 128, 256)
    families = {
        "dyck": ["01" * size for size in sizes],
        "parity": ["1" * size for size in sizes],
    }
    for name, inputs in families.items():
        exponent, within = cot_exponent(library_program(name), inputs)
        report.add(
            f"cot_exponent_{name}",
            f"growth of the chain of thought with the machine's steps, {name}",
            exponent,
            target="0.97 <= value <= 1.03",
            note=f"all runs within (max|k| + 2) steps + |output| + 2 tokens: {'yes' if within else 'NO'}",
        )


def _trace(report: Report) -> None:
    entry, program = LIBRARY["not"], library_program("not")
    page = trace_to_html(program, "0110", run_prompt(program, "0110"), source=entry.source)
    report.attach("trace.html", page.encode())
