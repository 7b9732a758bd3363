"""Language models behind one small protocol: an OpenAI-compatible server, a local model, a cache, a recording."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError, MissingFileError
from octavo_core.files import atomic_write, ensure_folder

from octavo_coherent_factuality.io import storable

__all__ = ["LLM", "CachedLLM", "Message", "OpenAICompatible", "ReplayLLM", "TransformersLLM", "request_key"]

Message = Mapping[str, str]
"""A chat message: ``{"role": "user", "content": "..."}``."""


@runtime_checkable
class LLM(Protocol):
    """A chat model."""

    @property
    def name(self) -> str:
        """Name of the model, as part of the key of cached answers."""
        ...

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        """Return the model's answer; ``sample`` numbers repeated draws of the same request."""
        ...


class OpenAICompatible:
    """Any server that speaks the OpenAI chat protocol, through the official client.

    The client repeats requests that time out, are refused for their rate (429, after the time the server asks for) or
    fail on the server's side. Answers that are not JSON, or hold no text, are repeated too.

    Args:
        model: Name of the model at the server.
        base_url: Address, e.g. ``"http://localhost:8000/v1"``; OpenAI's own if left out.
        api_key: Key; the environment's ``OPENAI_API_KEY`` if left out, which a local server may not need.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first.
        structured: Whether the server takes JSON schemas; they are left out otherwise, or once it refuses one.

    Raises:
        MissingDependencyError: If openai is not installed.
        InvalidValueError: If the timeout or the number of retries is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | int = 60.0,
        max_retries: int = 5,
        structured: bool = True,
    ) -> None:
        # Compared the positive way round, so that NaN is refused too.
        if not (isinstance(timeout, Real) and timeout > 0 and isinstance(max_retries, Integral) and max_retries >= 0):
            raise InvalidValueError(
                f"timeout={timeout!r} and max_retries={max_retries!r}; give seconds > 0 and a whole number >= 0"
            )
        try:
            import openai
        except ImportError as error:
            raise MissingDependencyError.for_extra("openai", "octavo-coherent-factuality", "openai") from error
        key = api_key or os.environ.get("OPENAI_API_KEY") or ("unused" if base_url else None)
        if key is None:
            raise InvalidValueError("no API key; set OPENAI_API_KEY, or give api_key or the base_url of a local server")
        self.model = model
        self.max_retries = max_retries
        self.structured = structured
        self._client = openai.OpenAI(base_url=base_url, api_key=key, timeout=float(timeout), max_retries=max_retries)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        """Ask the server.

        Args:
            messages: The conversation.
            temperature: Sampling temperature.
            max_tokens: Longest answer.
            schema: JSON schema of the answer.
            sample: Number of the draw; sent as the seed.

        Returns:
            The text of the answer.

        Raises:
            InvalidStateError: If the server gives no usable answer after all attempts.
        """
        import openai

        problem: Exception | str = "no attempt was made"
        for _ in range(self.max_retries + 1):
            request: dict[str, Any] = {
                "model": self.model,
                "messages": [dict(message) for message in messages],
                "temperature": temperature,
                "max_tokens": max_tokens,
                "seed": sample,
            }
            if schema is not None and self.structured:
                form = {"name": "answer", "schema": dict(schema), "strict": True}
                request["response_format"] = {"type": "json_schema", "json_schema": form}
            try:
                answer = self._client.chat.completions.create(**request)
                text = answer.choices[0].message.content
                if text:
                    return storable(text)
                problem = "an answer without text"
            except openai.BadRequestError as error:
                if "response_format" not in request:
                    raise InvalidStateError(f"the server refused the request: {error}") from error
                self.structured = False
                problem = error
            except (openai.APIStatusError, openai.APIConnectionError) as error:
                # The client has repeated it already.
                raise InvalidStateError(
                    f"no answer from {self._client.base_url} for model {self.model!r}: {error}"
                ) from error
            except (openai.OpenAIError, ValueError, AttributeError, IndexError, TypeError) as error:
                problem = f"a malformed answer ({error or type(error).__name__})"
        raise InvalidStateError(f"{self._client.base_url} gave no usable answer for model {self.model!r}: {problem}")


class TransformersLLM:
    """A local causal language model with a chat template. Calls from several threads take turns.

    Args:
        model: Model of transformers.
        tokenizer: Its tokenizer.
        name: Name for cached answers.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str = "local") -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._name = name
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name: str = "smollm2", *, device: str = "cpu", quiet: bool = False) -> TransformersLLM:
        """Load a model.

        Args:
            name: ``"smollm2"`` (see ``octavo assets list``) or a local folder in Hugging Face's layout.
            device: Where it runs.
            quiet: Whether the bars that transformers draws while it loads are left out.

        Returns:
            The model.

        Raises:
            MissingDependencyError: If transformers or the asset is not installed.
            InvalidValueError: If the name is neither an asset nor a folder.
        """
        from octavo_core.assets import causal_lm

        try:
            from transformers.utils import logging
        except ImportError as error:
            raise MissingDependencyError.for_extra(
                "transformers", "octavo-coherent-factuality", "transformers"
            ) from error
        shown = logging.is_progress_bar_enabled()
        if quiet:
            logging.disable_progress_bar()
        try:
            model, tokenizer = causal_lm(name)
        finally:
            if shown:
                logging.enable_progress_bar()
        return cls(model.to(device), tokenizer, name=name)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._name

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        """Generate an answer.

        Args:
            messages: The conversation.
            temperature: Sampling temperature; 0 takes the likeliest token.
            max_tokens: Longest answer.
            schema: Not enforced; the request should describe it.
            sample: Number of the draw, and its seed.

        Returns:
            The text of the answer.
        """
        return self.complete_many(
            messages, 1, temperature=temperature, max_tokens=max_tokens, schema=schema, first_sample=sample
        )[0]

    def complete_many(
        self,
        messages: Sequence[Message],
        count: int,
        *,
        temperature: float = 1.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        first_sample: int = 0,
    ) -> list[str]:
        """Generate several answers: as one batch on an accelerator, one by one on a CPU, where that is faster.

        Args:
            messages: The conversation.
            count: How many.
            temperature: Sampling temperature.
            max_tokens: Longest answer.
            schema: Not enforced.
            first_sample: Number of the first draw, and its seed.

        Returns:
            The texts.
        """
        import torch

        if count > 1 and self._model.device.type == "cpu":
            return [
                self.complete(
                    messages, temperature=temperature, max_tokens=max_tokens, schema=schema, sample=first_sample + draw
                )
                for draw in range(count)
            ]
        with self._lock, torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(first_sample)
            inputs = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            ).to(self._model.device)
            sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
            tokens = self._model.generate(
                **inputs,
                max_new_tokens=max_tokens,
                num_return_sequences=count,
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
                **sampling,
            )
            start = inputs["input_ids"].shape[1]
            return [text.strip() for text in self._tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)]


class CachedLLM:
    """Keeps every answer in an SQLite file, so that work that was killed goes on where it stopped.

    Each answer is committed before it is returned. Several threads and processes may share the file.

    Args:
        llm: The model that is asked for what is not there.
        path: The file; created if missing.

    Raises:
        InvalidStateError: If the file is not a cache.
    """

    def __init__(self, llm: LLM, path: str | os.PathLike[str]) -> None:
        self._llm = llm
        self._path = Path(path)
        self._local = threading.local()
        self.hits = 0
        self.misses = 0
        ensure_folder(self._path.parent)
        try:
            self._connection().execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, request TEXT NOT NULL, answer TEXT NOT NULL)"
            )
        except sqlite3.DatabaseError as error:
            raise InvalidStateError(
                f"{str(self._path)!r} is not an SQLite cache: {error}; give another path"
            ) from error

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._llm.name

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        """Return the stored answer, or ask for it and store it.

        Args:
            messages: See :class:`LLM`.
            temperature: See :class:`LLM`.
            max_tokens: See :class:`LLM`.
            schema: See :class:`LLM`.
            sample: See :class:`LLM`.

        Returns:
            The text of the answer.
        """
        request = _request(self.name, messages, temperature, max_tokens, schema, sample)
        key = _hash(request)
        connection = self._connection()
        row = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        if row is not None:
            self.hits += 1
            return row[0]
        answer = self._llm.complete(
            messages, temperature=temperature, max_tokens=max_tokens, schema=schema, sample=sample
        )
        self.misses += 1
        row = (key, storable(request), storable(answer))
        connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)
        # Two workers may have asked at once: both get what was stored first.
        return connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()[0]

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all answers as JSON Lines for :class:`ReplayLLM`.

        Args:
            path: The file.

        Returns:
            The path.
        """
        rows = self._connection().execute("SELECT key, request, answer FROM answers ORDER BY rowid").fetchall()
        lines = [
            json.dumps({"key": key, "request": json.loads(request), "answer": answer}, ensure_ascii=False)
            for key, request, answer in rows
        ]
        return atomic_write(path, "".join(f"{line}\n" for line in lines))

    def _connection(self) -> sqlite3.Connection:
        if getattr(self._local, "connection", None) is None:
            connection = sqlite3.connect(self._path, timeout=60.0, isolation_level=None)
            self._local.connection = connection
            connection.execute("PRAGMA journal_mode=WAL")
        return self._local.connection


class ReplayLLM:
    """Answers from a recording, without any model.

    Args:
        path: A file that :meth:`CachedLLM.export` wrote.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is not a recording.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(path)
        if not file.is_file():
            raise MissingFileError(f"no recording at {str(file)!r}; make one with CachedLLM.export")
        try:
            entries = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
            self._answers = {entry["key"]: str(entry["answer"]) for entry in entries}
            names = {entry["request"]["model"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidValueError(f"{str(file)!r} is not a recording: {error}") from error
        if len(names) != 1:
            raise InvalidValueError(f"{str(file)!r} holds answers of the models {sorted(names)}; one is needed")
        self._name = names.pop()

    @property
    def name(self) -> str:
        """Name of the recorded model."""
        return self._name

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        max_tokens: int = 1000,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> str:
        """Return the recorded answer.

        Args:
            messages: See :class:`LLM`.
            temperature: See :class:`LLM`.
            max_tokens: See :class:`LLM`.
            schema: See :class:`LLM`.
            sample: See :class:`LLM`.

        Returns:
            The text of the answer.

        Raises:
            InvalidStateError: If the request was not recorded.
        """
        key = _hash(_request(self.name, messages, temperature, max_tokens, schema, sample))
        if key not in self._answers:
            raise InvalidStateError(f"the recording has no answer to {str(messages[-1].get('content'))[:80]!r}")
        return self._answers[key]


def request_key(
    name: str,
    messages: Sequence[Message],
    *,
    temperature: float = 0.0,
    max_tokens: int = 1000,
    schema: Mapping[str, Any] | None = None,
    sample: int = 0,
) -> str:
    """Hash a request: model, messages, parameters and the number of the draw.

    Args:
        name: Name of the model.
        messages: The conversation.
        temperature: Sampling temperature.
        max_tokens: Longest answer.
        schema: JSON schema of the answer.
        sample: Number of the draw.

    Returns:
        SHA-256 in hexadecimal.
    """
    return _hash(_request(name, messages, temperature, max_tokens, schema, sample))


def _request(
    name: str,
    messages: Sequence[Message],
    temperature: float | int,
    max_tokens: int,
    schema: Mapping[str, Any] | None,
    sample: int,
) -> str:
    fields = {
        "model": name,
        "messages": [dict(message) for message in messages],
        "temperature": float(temperature),
        "max_tokens": max_tokens,
        "schema": None if schema is None else dict(schema),
        "sample": sample,
    }
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _hash(request: str) -> str:
    return hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest()
