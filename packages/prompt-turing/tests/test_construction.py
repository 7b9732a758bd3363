from __future__ import annotations

import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidValueError
from octavo_prompt_turing import Machine, Program, PromptTuringModel, library_program
from octavo_prompt_turing.construction import ALIASES, build_construction
from octavo_prompt_turing.tokens import token_ids

MATRICES = ("query", "key", "value", "output")


def test_weights_are_small_numbers_and_the_model_has_five_blocks() -> None:
    built = build_construction()
    assert len(built.blocks) == 5
    arrays = [built.embedding, built.positional, built.unembedding]
    for block in built.blocks:
        arrays += [getattr(block, name) for name in (*MATRICES, "hidden", "hidden_bias", "projection")]
        arrays.append(block.projection_bias)
    assert {float(x) for array in arrays for x in np.unique(array)} <= {-2, -1, -0.5, 0, 0.5, 1, 2, 3}
    assert 100 <= built.layout.width <= 150


def test_state_is_the_same_for_every_model_and_use(model: PromptTuringModel) -> None:
    before = model.state_hash()
    for bits in ("", "0110"):
        model(model.encode(library_program("parity").to_prompt(bits)))
    assert model.state_hash() == before == PromptTuringModel().state_hash()
    assert model.num_parameters == sum(p.numel() for p in model.state_dict().values())


def test_feature_names(model: PromptTuringModel) -> None:
    hidden = model(model.encode(["^", "#", "$"])).hidden
    assert hidden is not None
    assert model.feature("prog_rec_norm_neg", hidden).equal(-model.feature("prog_rec_norm", hidden))
    assert set(ALIASES) < set(model.feature_names)
    with pytest.raises(InvalidValueError, match="similar names: prog_cur_move"):
        model.feature("prog_cur_mov", hidden)


def probe() -> tuple[torch.Tensor, torch.Tensor]:
    """Two runs, padded on the left, that use both tapes and all kinds of records."""
    both_tapes = Program.parse("B1 BR B!+2 A1 BL B?+2 A1 BR B0 BL B?+2 # B0 B1 B?+3 BR A1 AR A1 #")
    sequences = []
    for program, bits in ((both_tapes, "1"), (library_program("increment-lsb"), "11")):
        sequences.append(token_ids([*program.to_prompt(bits), *Machine(program).run(bits).tokens]))
    width = max(map(len, sequences))
    ids = torch.tensor([[0] * (width - len(s)) + s for s in sequences])
    return ids, torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences])


def test_every_head_and_layer_matters(model: PromptTuringModel) -> None:
    ids, mask = probe()
    baseline = model(ids, mask).logits

    def changes(tensor: torch.Tensor, perturbed: torch.Tensor, wanted: torch.Tensor = baseline) -> bool:
        kept = tensor.data.clone()
        tensor.data.copy_(perturbed)
        changed = not torch.equal(model(ids, mask).logits, wanted)
        tensor.data.copy_(kept)
        return changed

    silent = []
    for number, block in enumerate(model.blocks):
        for head, name in enumerate(block.head_names):
            for matrix in ("value", "output"):
                weights = getattr(block, matrix)[head]
                if not changes(weights, -weights):
                    silent.append((number, name, matrix))
            # Scores of a uniform head do not change with a factor; there, disfavour the tokens AR.
            query, key = block.query[head], block.key[head]
            biased = key.clone()
            biased[int(key.abs().sum(1).nonzero()[0, 0]), model.layout.index("[AR]")] -= 1.5
            if not changes(key, -key) and not changes(key, biased):
                silent.append((number, name, "key"))
            kept = key.data.clone()
            key.data.copy_(biased)
            favoured = model(ids, mask).logits
            key.data.copy_(kept)
            if not changes(query, -query) and torch.equal(favoured, baseline):
                silent.append((number, name, "query"))
        for name in ("hidden", "hidden_bias", "projection", "projection_bias"):
            weights = getattr(block, name)
            if weights.any() and not changes(weights, -weights):
                silent.append((number, name, ""))
    # The bias feature is kept for comparison by name; block 4 reads the excess that it is made of.
    assert silent == [(2, "projection_bias", "")]
    for weights in (model.embedding, model.positional, model.unembedding):
        assert changes(weights, -weights)
    assert torch.equal(model(ids, mask).logits, baseline)
