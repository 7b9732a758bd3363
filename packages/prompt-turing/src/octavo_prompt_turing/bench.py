"""Benchmarks behind ``octavo bench prompt-turing``: engines against a decimal port, speed, a million tokens."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from octavo_core.bench import Timing, compare, speed_row
from octavo_core.device import num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_prompt_turing.baselines.decimal_port import DecimalReader
from octavo_prompt_turing.decoding import default_model, run_prompt
from octavo_prompt_turing.engine_config import EngineConfig
from octavo_prompt_turing.library import counter_program, library_program
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.tokens import token_ids

__all__ = ["run"]

# The paper's parity program on ten bits: 608 tokens in all.
_PORT_INPUT = "1010001000"
# The paper's Dyck program on thirty bits: 2,316 tokens in all.
_DENSE_INPUT = "01" * 15


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the benchmarks, on one thread of the CPU; rates are per CPU second, which other processes do not change.

    Args:
        quick: Fewer repetitions; the decimal port runs a shorter input, and the long counter stops after 1e5 tokens.
        seed: Not used; nothing is drawn.
        device: Checked, but one sequence decodes on the CPU.
        progress: Called with what is being measured and the share done.

    Returns:
        The report.
    """
    resolve_device(device)
    report = Report("prompt-turing", "bench", seed=seed, title="prompt-turing: benchmarks")
    steps: list[Callable[[], None]] = [
        lambda: _decimal_port(report, quick),
        lambda: _dense_speed(report, quick),
        lambda: _fast_engine(report, quick),
        lambda: _million(report, quick),
    ]
    with num_threads(1):
        for done, step in enumerate(steps):
            progress("benchmarks", done / len(steps))
            step()
    progress("benchmarks", 1.0)
    return report.finish()


def _decimal_port(report: Report, quick: bool) -> None:
    program, bits = library_program("parity"), "101" if quick else _PORT_INPUT
    model = default_model()
    result = run_prompt(program, bits)
    whole = token_ids([*result.prompt, *result.tokens])

    def port() -> None:
        reader = DecimalReader(model)
        for position, token in enumerate(whole[:-1], start=1):
            reader.push(token)
            if position >= len(result.prompt) and reader.next_id() != whole[position]:
                raise AssertionError(f"the decimal port differs at position {position + 1}")

    started = time.perf_counter()
    port()
    seconds = time.perf_counter() - started
    label = f"a whole run of {len(whole)} tokens, prompt included"
    for engine, id, target in (
        ("exact", "vs_decimal_port_n600", "ratio >= 100"),
        ("deficit64", "deficit64_vs_decimal_port_n600", None),
    ):
        ours = compare({engine: lambda e=engine: run_prompt(program, bits, engine=e)}, repeats=3)[engine]
        report.append(
            speed_row(
                f"{id}_quick" if quick else id,
                f"{label}, engine {engine}",
                ours,
                Timing((seconds,)),
                "decimal port (40 digits)",
                target=target,
                note="one thread; the port reads the same weights, caches keys and values and skips zeros",
            )
        )


def _dense_speed(report: Report, quick: bool) -> None:
    program = library_program("dyck")
    prompt, tokens = program.to_prompt(_DENSE_INPUT), Machine(program).run(_DENSE_INPUT).tokens
    whole = token_ids([*prompt, *tokens])
    rates, right = [], True
    reader = default_model().new_reader(EngineConfig("deficit64"))
    for token in whole[:1900]:
        reader.push(token)
    block = 40 if quick else 80
    for start in range(1900, 1900 + 4 * block, block):
        started = time.process_time()
        for position in range(start, start + block):
            right &= reader.next_id() == whole[position]
            reader.push(whole[position])
        rates.append(block / (time.process_time() - started))
    report.add(
        "tokens_per_s_n2000",
        "decoding speed of the dense engine deficit64 at 2,000 tokens",
        statistics.median(rates),
        "tokens/s",
        better="higher",
        target="value >= 1000",
        spread=(min(rates), max(rates)),
        note=f"Dyck; CPU seconds of one thread; all tokens right: {'yes' if right else 'NO'}",
    )


def _fast_engine(report: Report, quick: bool) -> None:
    short, long = _reader_at(1_000), _reader_at(100_000)
    block, samples = 2_000, {"short": [], "long": []}
    for _ in range(5 if quick else 15):
        for name, reader in (("short", short), ("long", long)):
            samples[name].append(_seconds_of(reader.copy(), block) / block)
    times = {name: statistics.median(values) for name, values in samples.items()}
    rates = [1 / seconds for seconds in samples["long"]]
    report.add(
        "fast_engine_tokens_per_s_n1e5",
        "decoding speed of the exact engine at 100,000 tokens",
        1 / times["long"],
        "tokens/s",
        better="higher",
        target="value >= 20000",
        spread=(min(rates), max(rates)),
        note="a binary counter; CPU seconds of one thread; token by token",
    )
    report.add(
        "fast_engine_time_per_token_ratio_1e5_vs_1e3",
        "time a token at 100,000 tokens over that at 1,000, exact engine",
        times["long"] / times["short"],
        "x",
        target="value <= 2",
        note=f"{times['long'] * 1e6:.1f} and {times['short'] * 1e6:.1f} CPU microseconds; interleaved",
    )
    tracemalloc.start()
    kept = long.copy()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    report.add(
        "exact_state_bytes_per_token",
        "memory of the exact engine's state at 100,000 tokens",
        size / len(kept.ids),
        "B/token",
        target="value <= 1000",
        note="token ids and written cells; the dense engine keeps about 2 kB a token",
    )


def _reader_at(length: int) -> Any:
    """A reader in the middle of the counter's run."""
    program = counter_program(16)
    reader = default_model().new_reader(EngineConfig("exact"))
    for token in token_ids(program.to_prompt()):
        reader.push(token)
    for _ in reader.generate():
        if len(reader.ids) >= length:
            return reader
    raise AssertionError("unreachable: generate has no end")


def _seconds_of(reader: Any, block: int) -> float:
    started = time.process_time()
    for count, _ in enumerate(reader.generate(), start=1):
        if count == block:
            break
    return time.process_time() - started


def _million(report: Report, quick: bool) -> None:
    program = counter_program(11 if quick else 15)
    result = run_prompt(program, engine="exact", max_new_tokens=10**7)
    wrong = sum(a != b for a, b in zip(result.tokens, Machine(program).cot(), strict=True))
    report.add(
        "counter_1e6_tokens_exact" if not quick else "counter_exact_quick",
        "a counter that halts by itself after a million tokens, exact engine: all tokens right",
        wrong == 0 and result.ok and (quick or len(result.tokens) >= 10**6),
        target="value == 1",
        note=f"{result.length:,} tokens in {result.seconds:.1f} s",
    )
