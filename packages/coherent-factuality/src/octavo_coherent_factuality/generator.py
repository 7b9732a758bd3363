"""Generated derivations with a known graph: arithmetic in steps, with injected errors and sampled alternatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from octavo_core.errors import InvalidValueError

from octavo_coherent_factuality._checks import check_whole
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.trace import Claim, ReasoningTrace

__all__ = ["DerivationGenerator", "generate_traces", "random_graph"]

_OPERATIONS = (("+", "plus"), ("-", "minus"), ("*", "times"))


@dataclass(frozen=True)
class DerivationGenerator:
    """What derivations look like and how often they go wrong.

    A question gives a few numbers and defines further ones from them. The answer restates the given numbers and works
    out the others step by step. Errors are a wrong operation, a wrong result, a dropped operand, and a given number
    that is misread; later steps use the wrong value. A claim is factual if every equation in it holds for the question.

    Args:
        min_steps: Fewest derived numbers.
        max_steps: Most derived numbers.
        num_given: Given numbers.
        error_rate: Mean chance that a step goes wrong by itself; it varies between questions.
        num_samples: Alternative answers behind the frequency score.
        branching: Chance that an operand is any earlier number instead of the latest one.

    Raises:
        InvalidValueError: If a setting is out of range.
    """

    min_steps: int = 3
    max_steps: int = 8
    num_given: int = 3
    error_rate: float = 0.05
    num_samples: int = 5
    branching: float = 0.75

    def __post_init__(self) -> None:
        if not (1 <= self.min_steps <= self.max_steps and self.num_given >= 2 and self.num_samples >= 1):
            raise InvalidValueError(
                "give 1 <= min_steps <= max_steps, two given numbers or more, and one sample or more"
            )
        if not (0 <= self.error_rate <= 0.5 and 0 <= self.branching <= 1):
            raise InvalidValueError("give an error rate in [0, 0.5] and branching in [0, 1]")

    def trace(self, generator: np.random.Generator, id: str | None = None) -> ReasoningTrace:
        """Draw one question with its answer.

        Args:
            generator: Source of randomness.
            id: Name of the trace.

        Returns:
            An annotated trace with the scores ``frequency`` and ``self_confidence``.
        """
        steps = int(generator.integers(self.min_steps, self.max_steps + 1))
        size = self.num_given + steps
        # Hard questions have more errors and less agreement between samples.
        difficulty = float(generator.beta(1.0, 3.0))
        error_rate = min(0.5, 4.0 * self.error_rate * difficulty)
        truth = generator.integers(2, 10, self.num_given).tolist()
        stated: list[int] = []
        texts, parents, factual, sources = [], [], [], []
        for index in range(self.num_given):
            value = truth[index]
            if generator.random() < error_rate / 2:
                value = value + int(generator.choice([-1, 1]))
            stated.append(value)
            texts.append(f"t{index} = {value}")
            parents.append([])
            factual.append(value == truth[index])
            sources.append(f"t{index} = {truth[index]}")
        for index in range(self.num_given, size):
            a, b = self._operands(generator, index)
            sign = int(generator.integers(3))
            if abs(truth[a] * truth[b]) > 5000 and sign == 2:
                sign = 0
            truth.append(_apply(sign, truth[a], truth[b]))
            text, value, right = self._step(generator, index, a, b, sign, stated, truth, error_rate)
            stated.append(value)
            texts.append(text)
            parents.append(sorted({a, b}))
            factual.append(right)
            sources.append(f"t{index} = t{a} {_OPERATIONS[sign][0]} t{b}")
        frequency, confidence = self._scores(generator, np.array(factual), difficulty)
        claims = tuple(
            Claim(text, {"frequency": f, "self_confidence": c}, bool(verdict))
            for text, f, c, verdict in zip(texts, frequency.tolist(), confidence.tolist(), factual, strict=True)
        )
        question = f"Let {'; '.join(sources)}. What is t{size - 1}?"
        return ReasoningTrace(
            claims,
            DeducibilityGraph.from_parents(parents),
            question,
            "\n".join(texts),
            id,
            group="hard" if difficulty > 0.25 else "easy",
        )

    def _operands(self, generator: np.random.Generator, index: int) -> tuple[int, int]:
        first = int(generator.integers(index)) if generator.random() < self.branching else index - 1
        second = int(generator.integers(index - 1))
        return first, second + (second >= first)

    def _step(
        self,
        generator: np.random.Generator,
        index: int,
        a: int,
        b: int,
        sign: int,
        stated: list[int],
        truth: list[int],
        error_rate: float,
    ) -> tuple[str, int, bool]:
        symbol = _OPERATIONS[sign][0]
        terms, value = f"{_signed(stated[a])} {symbol} {_signed(stated[b])}", _apply(sign, stated[a], stated[b])
        shown = value
        if generator.random() < error_rate:
            kind = int(generator.integers(3))
            if kind == 0:
                other = (sign + 1 + int(generator.integers(2))) % 3
                terms = f"{_signed(stated[a])} {_OPERATIONS[other][0]} {_signed(stated[b])}"
                value = shown = _apply(other, stated[a], stated[b])
            elif kind == 1:
                shown = value + int(generator.choice([-10, -2, -1, 1, 2, 10]))
            else:
                terms, value = _signed(stated[a]), stated[a]
                shown = value
        right = value == truth[index] == shown
        return f"t{index} = {terms} = {shown}", shown, right

    def _scores(
        self, generator: np.random.Generator, factual: np.ndarray, difficulty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Votes of sampled answers, and a stated confidence that tells a little of its own."""
        support = np.where(factual, 1.0 - 0.55 * difficulty, 0.15 + 0.35 * (1 - difficulty))
        noise = generator.beta(4.0, 4.0, len(factual)) - 0.5
        support = np.clip(support + 0.5 * noise, 0.02, 0.98)
        contradict = (1.0 - support) * np.where(factual, 0.4, 0.7)
        votes = generator.random((self.num_samples, len(factual)))
        frequency = (votes < support).sum(0) - (votes > 1.0 - contradict).sum(0)
        confidence = np.clip(generator.normal(np.where(factual, 0.92, 0.72), 0.12), 0.0, 1.0).round(2)
        return frequency, confidence


def generate_traces(count: int, *, seed: int = 0, settings: DerivationGenerator | None = None) -> list[ReasoningTrace]:
    """Draw independent annotated traces.

    Args:
        count: How many.
        seed: Seed, 0 or more; the first traces of a longer list are those of a shorter one.
        settings: What they look like.

    Returns:
        The traces, with ids.

    Raises:
        InvalidValueError: If the count is below 1 or the seed negative.
        InvalidTypeError: If one of them is not a whole number.
    """
    check_whole(count, "count", 1)
    check_whole(seed, "seed", 0)
    settings = DerivationGenerator() if settings is None else settings
    streams = np.random.SeedSequence(seed).spawn(count)
    return [
        settings.trace(np.random.default_rng(stream), id=f"generated-{seed}-{index}")
        for index, stream in enumerate(streams)
    ]


def random_graph(num_claims: int, num_edges: int, *, seed: int = 0, forward: bool = False) -> DeducibilityGraph:
    """Draw a random acyclic graph.

    Args:
        num_claims: Number of claims, at least 2.
        num_edges: Edges drawn; repetitions count once.
        seed: Seed.
        forward: Whether claims are renumbered at random, so that premises may have larger numbers.

    Returns:
        The graph.

    Raises:
        InvalidValueError: If there are fewer than two claims.
    """
    if num_claims < 2:
        raise InvalidValueError(f"num_claims={num_claims} is below 2")
    generator = np.random.default_rng(seed)
    claims = generator.integers(1, num_claims, num_edges)
    premises = (generator.random(num_edges) * claims).astype(np.int64)
    if forward:
        names = generator.permutation(num_claims)
        claims, premises = names[claims], names[premises]
    return DeducibilityGraph.from_edges(num_claims, claims, premises)


def _apply(sign: int, a: int, b: int) -> int:
    return (a + b, a - b, a * b)[sign]


def _signed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)
