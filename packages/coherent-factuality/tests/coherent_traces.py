"""Random traces for property tests: any acyclic graph, with premises before or after the claims that use them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.trace import ReasoningTrace, claims_from_arrays


@st.composite
def traces(draw: st.DrawFn, max_claims: int = 10, ties: bool = True) -> ReasoningTrace:
    size = draw(st.integers(1, max_claims))
    density = draw(st.floats(0, 1))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lower = np.tril(generator.random((size, size)) < density, -1)
    names = generator.permutation(size)
    claims, premises = np.nonzero(lower)
    graph = DeducibilityGraph.from_edges(size, names[claims], names[premises])
    frequency = generator.integers(-5, 6, size) if ties else generator.normal(size=size)
    factual = generator.random(size) < draw(st.floats(0, 1))
    return ReasoningTrace(claims_from_arrays(factual=factual, frequency=frequency), graph)


def random_traces(count: int, seed: int, *, ties: bool = True, error_rate: float = 0.15) -> list[ReasoningTrace]:
    """Exchangeable traces whose scores say something about their claims."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(count):
        size = int(generator.integers(2, 8))
        claims, premises = np.nonzero(np.tril(generator.random((size, size)) < 0.4, -1))
        graph = DeducibilityGraph.from_edges(size, claims, premises)
        factual = generator.random(size) > error_rate
        frequency = np.clip(generator.normal(np.where(factual, 3.0, 0.0), 2.0), -5, 5)
        made.append(
            ReasoningTrace(
                claims_from_arrays(factual=factual, frequency=frequency.round() if ties else frequency),
                graph,
                id=f"{seed}-{index}",
            )
        )
    return made
