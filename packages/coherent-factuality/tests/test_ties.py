"""Validity does not rest on ids: traces that nothing identifies lose their ties instead of winning all of them."""

from __future__ import annotations

import numpy as np
import pytest
from coherent_traces import random_traces
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.groups import GroupConformalFilter, WeightedConformalFilter
from octavo_coherent_factuality.learned import CrossFittedFilter
from octavo_coherent_factuality.online import OnlineFilter
from octavo_coherent_factuality.outcomes import tie_numbers
from octavo_coherent_factuality.trace import ReasoningTrace, claims_from_arrays

FILTERS = {
    "jitter": lambda seed: SplitConformalFilter(0.1, seed=seed),
    "randomized": lambda seed: SplitConformalFilter(0.1, ties="randomized", seed=seed),
    "group": lambda seed: GroupConformalFilter(0.1, group_by=lambda trace: "all", seed=seed),
    "weighted": lambda seed: WeightedConformalFilter(0.1, weight=lambda trace: 1.0, seed=seed),
}


def repeated(generator: np.random.Generator, count: int, contents: int, question: str | None) -> list[ReasoningTrace]:
    """Traces of a few contents, wrong with probability 0.3 whatever the content."""
    return [
        ReasoningTrace(
            claims_from_arrays(factual=[bool(generator.random() > 0.3)], frequency=[int(generator.integers(contents))]),
            question=question,
        )
        for _ in range(count)
    ]


@pytest.mark.claim
@pytest.mark.parametrize(
    ("kind", "contents", "question"),
    [
        ("jitter", 1, None),
        ("jitter", 3, "the same for all"),
        ("randomized", 1, "the same for all"),
        ("group", 1, None),
        ("weighted", 3, None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*share")
def test_coverage_with_repeated_contents(kind: str, contents: int, question: str | None) -> None:
    """Each seed by itself must cover: its numbers are the same in all repetitions."""
    generator = np.random.default_rng(contents)
    covered = []
    for seed in range(3):
        right = []
        for _ in range(20):
            made = repeated(generator, 21, contents, question)
            fitted = FILTERS[kind](seed).fit(made[:19])
            for trace in made[19:]:
                (output,) = fitted.predict([trace])
                right.append(output.abstained or bool(trace.factual[0]))
        covered.append(np.mean(right))
    # Within a repetition outputs share a threshold: 20 independent ones and some.
    assert min(covered) >= 0.9 - 3 * np.sqrt(0.09 / 24)
    assert np.mean(covered) >= 0.9 - 3 * np.sqrt(0.09 / 72)


def test_who_is_identified() -> None:
    bare, other = (ReasoningTrace(claims_from_arrays(frequency=[n])) for n in (1, 2))
    asked, again, named = (
        ReasoningTrace(t.claims, question="q", id=i) for t, i in ((bare, None), (bare, None), (bare, "a"))
    )
    single = ReasoningTrace(bare.claims, question="another")
    numbers = tie_numbers([bare, other, asked, again, named, single], 0, "prediction")
    assert np.isinf(numbers).tolist() == [True, True, True, True, False, False]
    assert (tie_numbers([bare, named], 0, "calibration") < 0).tolist() == [True, False]


def test_traces_without_identity_follow_the_strict_rule() -> None:
    made = random_traces(80, 3)
    bare = [ReasoningTrace(t.claims, t.graph) for t in made[40:]]
    strict = SplitConformalFilter(0.2, ties="strict").fit(made[:40]).predict(bare)
    for ties in ("jitter", "randomized"):
        outputs = SplitConformalFilter(0.2, ties=ties).fit(made[:40]).predict(bare)  # type: ignore[arg-type]
        assert [output.kept for output in outputs] == [output.kept for output in strict]
    bare_calibration = SplitConformalFilter(0.2).fit([ReasoningTrace(t.claims, t.graph) for t in made[:40]])
    named = SplitConformalFilter(0.2, ties="strict").fit(made[:40]).predict(made[40:])
    assert [o.kept for o in bare_calibration.predict(made[40:])] == [o.kept for o in named]
    online = OnlineFilter(0.2)
    for trace in made[:40]:
        online.update(trace)
    assert [online.filter(trace).kept for trace in bare] == [output.kept for output in strict]


def test_folds_of_traces_without_identity_are_not_drawn_from_their_contents() -> None:
    made = random_traces(40, 5, error_rate=0.3)
    fitted = CrossFittedFilter(0.2, folds=2, scores=("frequency",), steps=4, hidden=2).fit(made)
    bare = [ReasoningTrace(t.claims, t.graph) for t in random_traces(20, 6)]
    assert fitted.predict(bare) == fitted.filters_[0].predict(bare)
