"""Codes, hits, selections and outputs of the reference implementation.

The vectors were computed with Infini-AI-Lab/MagicPIG at commit ac9aa36 (Apache-2.0) on a CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from magicpig_helpers import DATA, GOLDEN, from_bfloat16
from octavo_magicpig import LSHConfig, LSHIndex, dense_decode_attention, lsh_attention, simhash_codes


@pytest.fixture(params=GOLDEN)
def case(request: pytest.FixtureRequest) -> dict:
    with np.load(DATA / f"{request.param}.npz") as stored:
        found = {name: stored[name] for name in stored.files}
    for name in list(found):
        if name in ("q_bf16", "k_bf16", "v_bf16", "k_new_bf16", "v_new_bf16", "planes_bf16"):
            found[name.removesuffix("_bf16")] = from_bfloat16(found[name])
    return found


def settings(case: dict, **options) -> LSHConfig:
    return LSHConfig(
        key_bits=int(case["K"]), num_tables=int(case["L"]), sink_tokens=int(case["sink"]),
        window_tokens=int(case["local"]), **options,
    )  # fmt: skip


def build(case: dict, **options) -> LSHIndex:
    keys = case["k"]
    index = LSHIndex(settings(case, **options), keys.shape[0], keys.shape[2], planes=case["planes"])
    index.build(keys[None], case["v"][None])
    index.append(case["k_new"][None], case["v_new"][None])
    return index


def test_golden_codes(case: dict) -> None:
    bits, tables = int(case["K"]), int(case["L"])
    middle = case["k"][:, int(case["sink"]) : -int(case["local"])]
    mean = middle.mean(1, keepdim=True)
    assert torch.allclose(mean, torch.from_numpy(case["key_mean"]), atol=1e-6)
    codes = simhash_codes(middle - torch.from_numpy(case["key_mean"]), case["planes"], bits, tables)
    assert np.array_equal(codes.numpy(), case["key_codes"])
    assert np.array_equal(simhash_codes(case["q"], case["planes"], bits, tables).numpy(), case["query_codes"])


def test_golden_selection(case: dict, kernel: str) -> None:
    (selected,) = build(case, kernel=kernel).select(case["q"][None])
    for head, positions in enumerate(selected):
        expected = np.nonzero(case["hits"][head] >= 2)[0] + int(case["sink"])
        assert positions.tolist() == expected.tolist()
        assert len(positions) == case["nnz"][head]


def test_golden_outputs(case: dict, kernel: str) -> None:
    index = build(case, kernel=kernel)
    out, _, _ = index.attend(case["q"][None])
    assert torch.allclose(out[0], torch.from_numpy(case["out_sparse"]), atol=5e-5)
    full, _ = dense_decode_attention(case["q"][None], index.keys, index.values, kernel=kernel)
    assert torch.allclose(full[0], torch.from_numpy(case["out_full"]), atol=5e-5)


def test_golden_sampled_part(case: dict, kernel: str) -> None:
    # The reference's bfloat16 kernel is itself 1.7 % off, and its log-sum-exp is that of centred scores.
    index = build(case, kernel=kernel)
    query = case["q"]
    out, lse, stats = index.attend(query[None], with_dense=False)
    mean = torch.from_numpy(case["key_mean"])[:, 0].repeat_interleave(len(query) // len(case["k"]), dim=0)
    centred = lse[0] - (query * mean).sum(1) / query.shape[1] ** 0.5
    assert torch.allclose(centred, torch.from_numpy(case["middle_lse"]), atol=2e-2)
    assert torch.allclose(out[0], torch.from_numpy(case["middle_out_bf16"].astype(np.float32)), atol=2e-2)
    assert torch.equal(stats.sampled_lse, lse)


def test_golden_estimator_agrees(case: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library's estimator computes weights and sum without the kernels.
    import octavo_magicpig.estimators as module

    monkeypatch.setattr(
        module, "LSHIndex", lambda *args, layer=0, **kw: LSHIndex(*args, layer=layer, planes=case["planes"], **kw)
    )
    keys, values = (torch.cat([case[name], case[f"{name}_new"]], 1)[None] for name in ("k", "v"))
    # One more dense token at the end, as the reference has it; the mean then comes from the same middle.
    config = settings(case)
    wider = LSHConfig.from_dict(config.to_dict() | {"window_tokens": config.window_tokens + 1})
    found = lsh_attention(case["q"][None, :, None], keys, values, config=wider)
    assert torch.allclose(found.out[0, :, 0], torch.from_numpy(case["out_sparse"]), atol=5e-5)
