"""Decoding speed of the engines over the length of the sequence: one file to run, ``python bench_lengths.py``."""

from __future__ import annotations

import time

from octavo_core.device import num_threads
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report
from octavo_prompt_turing import EngineConfig, default_model
from octavo_prompt_turing.library import counter_program
from octavo_prompt_turing.tokens import token_ids

__all__ = ["run"]

_LENGTHS = {"exact": (1_000, 10_000, 100_000, 1_000_000), "deficit64": (1_000, 2_000, 4_000, 8_000)}
_BLOCK = {"exact": 20_000, "deficit64": 100}


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Measure tokens a second at several lengths of a binary counter's chain of thought.

    Args:
        quick: Only the two shorter lengths.
        seed: Not used; nothing is drawn.
        device: Not used; one sequence decodes on the CPU.
        progress: Called with what is being measured and the share done.

    Returns:
        One row an engine and length.
    """
    report = Report("prompt-turing", "bench", seed=seed, title="prompt-turing: speed over length")
    prompt = token_ids(counter_program(16).to_prompt())
    with num_threads(1):
        for engine, lengths in _LENGTHS.items():
            reader = default_model().new_reader(EngineConfig(engine))
            for token in prompt:
                reader.push(token)
            for length in lengths[:2] if quick else lengths:
                while len(reader.ids) < length:
                    reader.push(reader.next_id())
                started = time.perf_counter()
                for _ in range(_BLOCK[engine]):
                    reader.push(reader.next_id())
                rate = _BLOCK[engine] / (time.perf_counter() - started)
                report.add(f"{engine}_n{length}", f"{engine} at {length:,} tokens", rate, "tokens/s", better="higher")
                progress(engine, length / lengths[-1])
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    Console().print(run().table())
