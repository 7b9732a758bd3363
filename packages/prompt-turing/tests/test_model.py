from __future__ import annotations

import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_prompt_turing import EngineConfig, Machine, PrecisionError, Program, PromptTuringModel, library_program
from octavo_prompt_turing.cache import HardmaxCache
from octavo_prompt_turing.tokens import TOKEN_IDS, token_ids

ENGINES = ["deficit64", "exact", "reference", "float64"]


def sequence(name: str = "parity", bits: str = "01") -> list[int]:
    program = library_program(name)
    return token_ids([*program.to_prompt(bits), *Machine(program).run(bits).tokens[:-1]])


@pytest.mark.parametrize("engine", ENGINES)
def test_cached_steps_equal_the_full_forward(model: PromptTuringModel, engine: str) -> None:
    ids = torch.tensor([sequence("increment-lsb", "01")[:80]])
    config = EngineConfig(engine, strict=False)
    full = model(ids, config=config).logits
    cache = HardmaxCache()
    pieces = [
        model(piece, cache=cache, config=config).logits for piece in ids.split([40, 1, 1, ids.shape[1] - 42], dim=1)
    ]
    assert torch.equal(torch.cat(pieces, dim=1), full)
    assert cache.length == ids.shape[1]


def test_exact_engine_equals_the_oracle_at_every_position_of_the_prompt_too(model: PromptTuringModel) -> None:
    last_is_a_jump = Program.parse("A?+4 A1 A?+1 # AR A!-2")
    jumping = token_ids([*last_is_a_jump.to_prompt("01"), *Machine(last_is_a_jump).run("01").tokens[:-1]])
    for read in (sequence("not", "10"), sequence("increment-lsb", "1"), jumping):
        ids = torch.tensor([read])
        oracle = model(ids, config=EngineConfig("reference")).logits
        for engine in ("exact", "deficit64"):
            assert (model(ids, config=EngineConfig(engine)).logits - oracle).abs().max() <= 1e-12


@pytest.mark.parametrize("engine", ["deficit64", "exact"])
def test_a_batch_with_left_padding_equals_single_runs(model: PromptTuringModel, engine: str) -> None:
    config = EngineConfig(engine)
    rows = [sequence("parity", "01"), sequence("dyck", ""), sequence("not", "1")]
    width = max(map(len, rows))
    ids = torch.tensor([[TOKEN_IDS["$"]] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    together = model(ids, mask, config=config)
    for number, row in enumerate(rows):
        alone = model(torch.tensor([row]), config=config)
        assert torch.equal(together.logits[number, -len(row) :], alone.logits[0])
        if together.hidden is not None and alone.hidden is not None:
            assert torch.equal(together.hidden[number, -len(row) :], alone.hidden[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_last_scores_can_be_asked_for(model: PromptTuringModel, engine: str) -> None:
    ids = torch.tensor([sequence("not", "1")[:40]])
    config = EngineConfig(engine)
    last = model(ids, config=config, logits_to_keep=2).logits
    assert torch.equal(last, model(ids, config=config).logits[:, -2:])


def test_later_tokens_change_nothing_before(model: PromptTuringModel) -> None:
    ids = torch.tensor([sequence()])
    whole = model(ids)
    changed = ids.clone()
    changed[0, 120:] = TOKEN_IDS["B1"]
    other = model(changed)
    assert torch.equal(whole.hidden[0, :120], other.hidden[0, :120])
    assert not torch.equal(whole.hidden[0, 120:], other.hidden[0, 120:])


def test_decoding_can_continue_after_padding(model: PromptTuringModel) -> None:
    ids = sequence()
    mask = torch.tensor([[0, 0, 0] + [1] * 100])
    output = model(torch.tensor([[1, 1, 1, *ids[:100]]]), mask)
    step = model(torch.tensor([ids[100:101]]), torch.tensor([[0, 0, 0] + [1] * 101]), output.cache)
    alone = model(torch.tensor([ids[:101]]))
    assert torch.equal(step.logits[0, -1], alone.logits[0, -1])


@pytest.mark.parametrize("engine", ["deficit64", "exact"])
def test_cache_can_be_cropped_and_reordered(model: PromptTuringModel, engine: str) -> None:
    config = EngineConfig(engine)
    ids = torch.tensor([sequence()[:130]])
    full = model(ids, config=config).logits
    cache = model(ids, config=config).cache
    assert cache is not None
    cache.crop(100)
    cache.select(torch.tensor([0, 0]))
    again = model(ids[:, 100:].expand(2, -1), cache=cache, config=config).logits
    assert torch.equal(again, full[:, 100:].expand(2, -1, -1))


@pytest.mark.parametrize(
    ("first", "second"), [("exact", "reference"), ("deficit64", "exact"), ("deficit64", "float64")]
)
def test_a_cache_is_of_one_engine(model: PromptTuringModel, first: str, second: str) -> None:
    ids = torch.tensor([sequence("not", "1")[:20]])
    cache = model(ids[:, :10], config=EngineConfig(first)).cache
    assert cache is not None
    with pytest.raises(InvalidStateError, match=f"filled by engine '{first}', and engine '{second}'"):
        model(ids[:, 10:], cache=cache, config=EngineConfig(second))
    assert cache.length == 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_are_refused_with_the_bound(dtype: torch.dtype) -> None:
    model = PromptTuringModel().to(dtype)
    with pytest.raises(InvalidTypeError, match=r"right for at most 8 tokens; keep them in float64"):
        model(torch.tensor([[0, 2, 1]]))


def test_an_engine_stops_before_its_first_wrong_token(model: PromptTuringModel) -> None:
    ids = torch.tensor([sequence("dyck", "0101")[:300]])
    config = EngineConfig("float64")
    assert model(ids[:, :223], config=config).logits.shape[1] == 223
    with pytest.raises(PrecisionError, match=r"300 tokens are more than the 223 that engine 'float64'"):
        model(ids, config=config)
    cache = model(ids[:, :223], config=config).cache
    assert cache is not None
    with pytest.raises(PrecisionError, match="224 tokens"):
        model(ids[:, 223:224], cache=cache, config=config)
    assert cache.length == 223


def test_bad_batches_are_refused(model: PromptTuringModel) -> None:
    for strange in (23, -1):
        with pytest.raises(InvalidValueError, match=f"from 0 to 22, got {strange}"):
            model(torch.tensor([[0, strange]]))
    with pytest.raises(InvalidValueError, match="pad on the left"):
        model(torch.tensor([[0, 2, 1]]), torch.tensor([[1, 1, 0]]))
    with pytest.raises(InvalidValueError, match="attention_mask has shape"):
        model(torch.tensor([[0, 2, 1]]), torch.tensor([[1, 1]]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_same_tokens(model: PromptTuringModel) -> None:
    ids = torch.tensor([sequence("dyck", "0101")])
    there = model.to("cuda")(ids.to("cuda")).logits.cpu()
    assert torch.equal(there, PromptTuringModel()(ids).logits)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(model: PromptTuringModel, threads: int) -> None:
    ids = torch.tensor([sequence()])
    baseline = model(ids)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(model(ids).hidden, baseline.hidden)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("engine", ["deficit64", "exact"])
def test_the_shape_of_ids_is_checked(model: PromptTuringModel, engine: str) -> None:
    with pytest.raises(InvalidValueError, match=r"input_ids has shape \(1, 0\); give \(batch, positions\)"):
        model(torch.zeros((1, 0), dtype=torch.long), config=EngineConfig(engine))
    ids = torch.tensor([[0, 2, 1]])
    assert torch.equal(model(ids.to(torch.int8), config=engine).logits, model(ids, config=engine).logits)


@pytest.mark.parametrize("engine", ENGINES)
def test_scores_of_chosen_positions_can_be_asked_for(model: PromptTuringModel, engine: str) -> None:
    ids = torch.tensor([sequence("not", "1")[:20]])
    whole = model(ids, config=engine).logits
    chosen = torch.tensor([3, 1, -1])
    assert torch.equal(model(ids, config=engine, logits_to_keep=chosen).logits, whole[:, chosen])
    assert torch.equal(model(ids, config=engine, logits_to_keep=99).logits, whole)
    with pytest.raises(InvalidValueError, match="logits_to_keep=-1 is negative; give 0 for all"):
        model(ids, config=engine, logits_to_keep=-1)


def test_the_engine_can_be_named() -> None:
    ids = torch.tensor([[0, 2, 1]])
    named = PromptTuringModel("exact")
    assert named.config == EngineConfig("exact")
    assert torch.equal(named(ids).logits, PromptTuringModel()(ids, config="exact").logits)
    with pytest.raises(InvalidValueError, match="unknown engine 'fast'"):
        PromptTuringModel("fast")
    with pytest.raises(InvalidTypeError, match="'exact' and 'reference' have no residual stream"):
        named.feature("after_delim", named(ids).hidden)
