"""LSH-sampled attention: long-context decoding of transformers models on a CPU.

Zhuoming Chen, Ranajoy Sadhukhan, Zihao Ye, Yang Zhou, Jianyu Zhang, Niklas Nolte, Yuandong Tian, Matthijs Douze, Léon
Bottou, Zhihao Jia, Beidi Chen, "MagicPIG: LSH Sampling for Efficient LLM Generation", ICLR 2025, arXiv 2410.16179.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_magicpig._cache import LSHCache
    from octavo_magicpig._integration import sparse, use_magicpig
    from octavo_magicpig.attention import dense_decode_attention, merge_states
    from octavo_magicpig.baselines import (
        h2o_attention,
        quest_attention,
        snapkv_attention,
        streaming_attention,
        topk_attention,
    )
    from octavo_magicpig.collision import collision_probability, expected_fraction
    from octavo_magicpig.config import LSHConfig
    from octavo_magicpig.estimators import (
        Estimate,
        exact_attention,
        hybrid_attention,
        lsh_attention,
        oracle_sampling_attention,
        uniform_sampling_attention,
    )
    from octavo_magicpig.hashing import draw_planes, simhash_codes
    from octavo_magicpig.heavy import heavy_positions
    from octavo_magicpig.index import LSHIndex
    from octavo_magicpig.stats import AttendStats
    from octavo_magicpig.tuning import tune

__version__ = "0.1.0"

__all__ = [
    "AttendStats",
    "Estimate",
    "LSHCache",
    "LSHConfig",
    "LSHIndex",
    "collision_probability",
    "dense_decode_attention",
    "draw_planes",
    "exact_attention",
    "expected_fraction",
    "h2o_attention",
    "heavy_positions",
    "hybrid_attention",
    "lsh_attention",
    "merge_states",
    "oracle_sampling_attention",
    "quest_attention",
    "simhash_codes",
    "snapkv_attention",
    "sparse",
    "streaming_attention",
    "topk_attention",
    "tune",
    "uniform_sampling_attention",
    "use_magicpig",
]

# Nothing is imported before it is asked for: the command line starts without torch, and transformers is an extra.
_HOME = {
    "AttendStats": "stats",
    "Estimate": "estimators",
    "LSHCache": "_cache",
    "LSHConfig": "config",
    "LSHIndex": "index",
    "collision_probability": "collision",
    "dense_decode_attention": "attention",
    "draw_planes": "hashing",
    "exact_attention": "estimators",
    "expected_fraction": "collision",
    "h2o_attention": "baselines",
    "heavy_positions": "heavy",
    "hybrid_attention": "estimators",
    "lsh_attention": "estimators",
    "merge_states": "attention",
    "oracle_sampling_attention": "estimators",
    "quest_attention": "baselines",
    "simhash_codes": "hashing",
    "snapkv_attention": "baselines",
    "sparse": "_integration",
    "streaming_attention": "baselines",
    "topk_attention": "baselines",
    "tune": "tuning",
    "uniform_sampling_attention": "estimators",
    "use_magicpig": "_integration",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name in _HOME:
        return getattr(importlib.import_module(f"octavo_magicpig.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
