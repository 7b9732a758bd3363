"""Evaluation in RULER's style and by next-token loss, of sampled attention and of what it is compared with.

Tasks and texts need nothing. What runs a model needs the extra ``transformers`` and is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo_magicpig.evaluation.tasks import TASKS, Example, load_examples, make_examples, score

if TYPE_CHECKING:
    from octavo_magicpig.evaluation._results import Outcome, summarise
    from octavo_magicpig.evaluation._runner import load_model, run_tasks, run_text_losses
    from octavo_magicpig.evaluation._study import METHODS, Method, capture, make_method

__all__ = [
    "METHODS",
    "TASKS",
    "Example",
    "Method",
    "Outcome",
    "capture",
    "load_examples",
    "load_model",
    "make_examples",
    "make_method",
    "run_tasks",
    "run_text_losses",
    "score",
    "summarise",
]

_HOME = {
    "METHODS": "_study",
    "Method": "_study",
    "Outcome": "_results",
    "capture": "_study",
    "load_model": "_runner",
    "make_method": "_study",
    "run_tasks": "_runner",
    "run_text_losses": "_runner",
    "summarise": "_results",
}


def __getattr__(name: str) -> Any:
    """Import a name that needs transformers from its module."""
    if name in _HOME:
        return getattr(importlib.import_module(f"octavo_magicpig.evaluation.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
