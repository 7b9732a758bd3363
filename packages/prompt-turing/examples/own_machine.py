"""A Turing machine of your own, compiled into a prompt and run by the fixed Transformer."""

from __future__ import annotations

from octavo_prompt_turing import TuringMachine, compile_tm, run_prompt, verify

# Accepts 0^n 1^n: cross off a 0 and a 1 until nothing is left.
machine = TuringMachine.single_tape(
    {
        "start": {"0": ("right", "x", "R"), "y": ("check", "y", "R"), "_": ("yes", "_", "N")},
        "right": {"0": ("right", "0", "R"), "y": ("right", "y", "R"), "1": ("left", "y", "L")},
        "left": {"0": ("left", "0", "L"), "y": ("left", "y", "L"), "x": ("start", "x", "R")},
        "check": {"y": ("check", "y", "R"), "_": ("yes", "_", "N")},
    },
    initial="start",
    final=["yes"],
    blank="_",
    input_symbols="01",
)
compiled = compile_tm(machine, missing="reject")
for word in ("0011", "0101", "", "000111"):
    result = run_prompt(compiled.program, compiled.encode(word))
    accepted, _ = compiled.decode(result.output or "")
    print(f"{word or '(empty)':<8} {'accepted' if accepted else 'rejected'} after {len(result.tokens):,} tokens")
assert all(outcome.ok for outcome in verify(compiled.program, ["0011", "10", "0101"]))
