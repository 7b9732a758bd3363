"""One fixed Transformer that runs any program given in its prompt.

R. Qiu, Z. Xu, W. Bao, H. Tong, "Ask, and it shall be given: On the Turing completeness of prompting", ICLR 2025,
arXiv 2411.01992.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_prompt_turing.assembler import assemble
    from octavo_prompt_turing.dataset import generate_examples, random_program
    from octavo_prompt_turing.decoding import CoTResult, default_model, run_prompt
    from octavo_prompt_turing.engine_config import EngineConfig
    from octavo_prompt_turing.library import LIBRARY, library_program
    from octavo_prompt_turing.loading import load_program
    from octavo_prompt_turing.machine import Machine, RunResult
    from octavo_prompt_turing.model import PromptTuringModel
    from octavo_prompt_turing.precision import PrecisionError, max_length, precision_bound
    from octavo_prompt_turing.program import Instruction, Program
    from octavo_prompt_turing.python_compiler import compile_py
    from octavo_prompt_turing.tm_compiler import CompiledMachine, compile_tm
    from octavo_prompt_turing.trace import trace_to_html, trace_to_text
    from octavo_prompt_turing.turing import TuringMachine
    from octavo_prompt_turing.verification import verify

__version__ = "0.1.0"

__all__ = [
    "LIBRARY",
    "CoTResult",
    "CompiledMachine",
    "EngineConfig",
    "Instruction",
    "Machine",
    "PrecisionError",
    "Program",
    "PromptTuringModel",
    "RunResult",
    "TuringMachine",
    "assemble",
    "compile_py",
    "compile_tm",
    "default_model",
    "generate_examples",
    "library_program",
    "load_program",
    "max_length",
    "precision_bound",
    "random_program",
    "run_prompt",
    "trace_to_html",
    "trace_to_text",
    "verify",
]

# Names are loaded when they are first used: the command line must answer without loading torch.
_HOMES = {
    "assembler": ("assemble",),
    "dataset": ("generate_examples", "random_program"),
    "decoding": ("CoTResult", "default_model", "run_prompt"),
    "engine_config": ("EngineConfig",),
    "library": ("LIBRARY", "library_program"),
    "loading": ("load_program",),
    "machine": ("Machine", "RunResult"),
    "model": ("PromptTuringModel",),
    "precision": ("PrecisionError", "max_length", "precision_bound"),
    "program": ("Instruction", "Program"),
    "python_compiler": ("compile_py",),
    "tm_compiler": ("CompiledMachine", "compile_tm"),
    "trace": ("trace_to_html", "trace_to_text"),
    "turing": ("TuringMachine",),
    "verification": ("verify",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
