"""Running tasks and next-token loss over methods, one line for each finished example, so that a run can be resumed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from octavo_core import assets
from octavo_core.errors import InvalidValueError, MissingDependencyError, MissingFileError
from octavo_core.progress import ProgressCallback, no_progress
from torch import Tensor

from octavo_magicpig.evaluation._results import Outcome, ResultLog
from octavo_magicpig.evaluation.tasks import Example, score

try:
    from octavo_magicpig.evaluation._study import Method, Prefix, decode, prefill, running
except ImportError as error:
    raise MissingDependencyError.for_extra("transformers", "octavo-magicpig", "transformers") from error

__all__ = ["check_protocols", "fingerprint", "load_model", "next_token_losses", "run_tasks", "run_text_losses"]


def load_model(name: str = "smollm2", *, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name: ``"smollm2"`` (the installed asset), a folder, a ``.gguf`` file, or a model name on the Hugging Face hub,
            which is downloaded.
        dtype: Type of the weights.

    Returns:
        Model, in evaluation mode, and tokenizer.

    Raises:
        MissingDependencyError: If transformers, or what it needs for the file, is not installed.
        MissingFileError: If a file or the model does not exist.
        InvalidValueError: If what is there is no model of a kind that transformers knows.
    """
    if name == "smollm2":
        return assets.causal_lm(name, dtype=dtype)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise MissingFileError(f"no model in the folder {name!r}: it has no config.json; give a model's folder")
    import importlib.util

    from transformers import AutoModelForCausalLM, AutoTokenizer

    location: str = name
    options: dict[str, Any] = {"local_files_only": True} if Path(name).is_dir() else {}
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise MissingFileError(f"no file {name!r}; give a .gguf file, a folder, smollm2 or a hub name")
        for module in ("gguf", "accelerate"):
            if importlib.util.find_spec(module) is None:
                raise MissingDependencyError.for_extra(module, "octavo-magicpig", "transformers")
        location, options = str(Path(name).parent), {"gguf_file": Path(name).name}
    elif not Path(name).is_dir() and (name.count("/") != 1 or name.startswith(("/", "."))):
        raise MissingFileError(f"no model at {name!r}; give a folder, a .gguf file, smollm2, or a hub name owner/model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        model = AutoModelForCausalLM.from_pretrained(location, dtype=dtype, **options)
    except OSError as error:
        raise MissingFileError(f"model {name!r} cannot be loaded: {error}") from error
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InvalidValueError(f"{name!r} is no model that transformers can load: {error}") from error
    return model.eval(), tokenizer


def fingerprint(model: Any) -> str:
    """Tell models of one name apart: a digest of their shapes and of numbers from all over their weights.

    Args:
        model: The model.

    Returns:
        Sixteen hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        numbers = weight.detach().reshape(-1)
        sample = numbers[:: max(1, len(numbers) // 16)].double().cpu()
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def check_protocols(protocols: Sequence[str]) -> tuple[str, ...]:
    """Check protocols.

    Args:
        protocols: ``"A"`` and/or ``"B"``.

    Returns:
        Each once, in the order given.

    Raises:
        InvalidValueError: If there is none, or one is unknown.
    """
    if unknown := sorted(set(protocols) - {"A", "B"}):
        raise InvalidValueError(f"unknown protocol {unknown[0]!r}; give A, B or both")
    if not protocols:
        raise InvalidValueError("no protocol was given; give A, B or both")
    return tuple(dict.fromkeys(protocols))


def run_tasks(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    methods: Sequence[Method],
    *,
    protocols: Sequence[str] = ("A", "B"),
    new_tokens: int = 16,
    results: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
) -> list[Outcome]:
    """Answer every example by every method.

    The context is processed once, exactly, for all methods.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        examples: Examples.
        methods: Methods.
        protocols: ``"A"`` and/or ``"B"``.
        new_tokens: Tokens of an answer.
        results: File for the results, one JSON line each, written as they come.
        resume: Keep the results in the file and compute the missing ones.
        settings: What decides the results, by name; kept beside the file, and compared when it is continued.
        progress: Called with the task and the share done.

    Returns:
        All outcomes, those of the file included.

    Raises:
        InvalidValueError: If a protocol is unknown, two methods have one name, or an example lacks the context that
            protocol B needs.
        InvalidStateError: If the file exists and ``resume`` is not set, or it was made with other settings.
    """
    protocols = check_protocols(protocols)
    _check_names(methods)
    if "B" in protocols and (bare := [example for example in examples if not example.context]):
        raise InvalidValueError(
            f"example {bare[0].index} of {bare[0].task} has no context before its question, which begins at the last "
            "line break of the input; put a line break between them, or run protocol A alone"
        )
    log = ResultLog(results, resume, settings)
    total = max(1, len(examples))
    for number, example in enumerate(examples):
        progress(example.task, number / total)
        # Tokenizers turn an empty text into an empty tensor of floats.
        context = tokenizer(example.context, return_tensors="pt").input_ids.long()
        question = tokenizer(example.question, return_tensors="pt", add_special_tokens=False).input_ids.long()
        everything = torch.cat([context, question], 1)
        for protocol in protocols:
            missing = [m for m in methods if (example.task, example.index, m.name, protocol) not in log.keys]
            if not missing:
                continue
            prefix = prefill(model, everything if protocol == "A" else context)
            fed = question[:, :0] if protocol == "A" else question
            for method in missing:
                began = time.perf_counter()
                with running(model, method, prefix) as cache:
                    _, generated = decode(
                        model, cache, fed, new_tokens=new_tokens, first=prefix.logits if protocol == "A" else None
                    )
                answer = tokenizer.decode(generated, skip_special_tokens=True)
                log.add(
                    Outcome(
                        example.task,
                        example.index,
                        method.name,
                        protocol,
                        score(example, answer),
                        everything.shape[1],
                        time.perf_counter() - began,
                        answer,
                    )
                )
    progress(examples[0].task if examples else "tasks", 1.0)
    return log.outcomes


def next_token_losses(model: Any, method: Method, prefix: Prefix, tokens: Tensor) -> Tensor:
    """Loss of each token that follows a prefix, fed one at a time.

    Args:
        model: The model.
        method: The method.
        prefix: The prompt.
        tokens: The tokens that follow it, (1, n), n of 2 or more: the first is given, the others are predicted.

    Returns:
        Losses in nats, (n - 1,).
    """
    with running(model, method, prefix) as cache:
        logits, _ = decode(model, cache, tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float(), tokens[0, 1:].to(logits.device), reduction="none")


def run_text_losses(
    model: Any,
    tokens: Tensor,
    methods: Sequence[Method],
    *,
    texts: int = 4,
    prefix_tokens: int = 2000,
    scored_tokens: int = 64,
    results: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
) -> list[Outcome]:
    """Mean loss of tokens that follow an exactly processed prefix, over pieces of a text.

    Args:
        model: The model.
        tokens: Token ids of the text, (1, n).
        methods: Methods.
        texts: Pieces, spread evenly.
        prefix_tokens: Tokens of a prefix.
        scored_tokens: Tokens that are predicted.
        results: File for the results.
        resume: Keep the results in the file.
        settings: What decides the results, by name; kept beside the file, and compared when it is continued.
        progress: Called with what is done and the share.

    Returns:
        All outcomes; ``value`` is the mean loss in nats.

    Raises:
        InvalidValueError: If the text is too short, or two methods have one name.
        InvalidStateError: If the file exists and ``resume`` is not set, or it was made with other settings.
    """
    _check_names(methods)
    piece = prefix_tokens + scored_tokens + 1
    if tokens.shape[1] < texts * piece:
        raise InvalidValueError(
            f"the text has {tokens.shape[1]} tokens, {texts} pieces of {piece} are wanted; give a longer text or less"
        )
    log = ResultLog(results, resume, settings)
    step = tokens.shape[1] // texts
    for number in range(texts):
        progress("next-token loss", number / texts)
        missing = [m for m in methods if ("nll", number, m.name, "B") not in log.keys]
        if not missing:
            continue
        chosen = tokens[:, number * step : number * step + piece]
        prefix = prefill(model, chosen[:, :prefix_tokens])
        for method in missing:
            began = time.perf_counter()
            losses = next_token_losses(model, method, prefix, chosen[:, prefix_tokens:])
            seconds = time.perf_counter() - began
            log.add(Outcome("nll", number, method.name, "B", float(losses.mean()), prefix_tokens, seconds))
    progress("next-token loss", 1.0)
    return log.outcomes


def _check_names(methods: Sequence[Method]) -> None:
    """Results are told apart by the names of the methods."""
    names = [method.name for method in methods]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidValueError(f"two methods are named {repeated[0]!r}; give each method once")
