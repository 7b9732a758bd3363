"""In transformers: caches and attention in five architectures, with padding, beams, assistants and cropping."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

transformers = pytest.importorskip("transformers", minversion="5.24")

from octavo_magicpig import LSHCache, LSHConfig, sparse, use_magicpig  # noqa: E402
from octavo_magicpig._cache import LSHLayer, cache_layer_of  # noqa: E402
from octavo_magicpig._integration import magicpig_attention  # noqa: E402

COMMON: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 8192, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"] * 2
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": None}),
    "mistral-sliding": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 32}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"head_dim": 256, "sliding_window": 16, "query_pre_attn_scalar": 64, "layer_types": MIXED},
    ),
}
EVERY_KEY = LSHConfig(min_context=0, min_hits=0, dense_layers=(), window_tokens=8, segment_min=8)
SAMPLED = LSHConfig(min_context=0, key_bits=3, num_tables=20, dense_layers=(), window_tokens=8, segment_min=8)


def make(name: str = "llama", **options: Any) -> Any:
    model, config, extra = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, model)(getattr(transformers, config)(**COMMON | extra | options)).eval()


def padded_batch(tokens: int = 90) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 128, (3, tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :17] = mask[1, :40] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generate(model: Any, batch: dict[str, torch.Tensor], new_tokens: int = 24, **options: Any) -> torch.Tensor:
    options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": new_tokens} | options
    return model.generate(**batch, **options)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_a_padded_batch_are_those_of_the_stock_cache(name: str) -> None:
    model, batch = make(name), padded_batch()
    expected = generate(model, batch)
    for config in (LSHConfig(min_context=10**9), EVERY_KEY):
        with sparse(model, config) as session:
            assert torch.equal(generate(model, batch), expected)
        assert isinstance(session.cache, LSHCache)
    assert model.config._attn_implementation == "sdpa"
    use_magicpig(model)
    assert torch.equal(generate(model, batch, cache=LSHCache(model.config)), expected)
    assert torch.equal(generate(model, batch), expected), "the attention alone changes nothing"


def test_sampling_happens_where_it_should() -> None:
    model = make("gemma3")
    with sparse(model, dataclasses.replace(SAMPLED, dense_layers=(3,))) as session:
        generate(model, padded_batch())
    cache = session.cache
    assert cache is not None
    assert set(cache.sampled_fraction()) == {1}
    assert 0 < cache.sampled_fraction()[1] < 1
    assert cache.index_bytes() > 0
    layers = [type(layer).__name__ for layer in cache.layers]
    assert layers == ["DynamicSlidingWindowLayer", "LSHLayer"] * 2


def test_a_padded_row_is_sampled_as_it_is_alone() -> None:
    model, batch = make(), padded_batch()
    config = dataclasses.replace(SAMPLED, segment_min=1024)
    with sparse(model, config):
        together = generate(model, batch)
        alone = [
            generate(model, {"input_ids": row[mask.bool()][None]})[0]
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
    for row, single in zip(together, alone, strict=True):
        assert row[-24:].tolist() == single[-24:].tolist()


def test_beam_search_and_assisted_decoding() -> None:
    model, assistant, batch = make(), make(num_hidden_layers=1), padded_batch()
    beams, assisted = generate(model, batch, num_beams=3), {name: tensor[2:] for name, tensor in batch.items()}
    plain = generate(model, assisted)
    with sparse(model, EVERY_KEY):
        assert torch.equal(generate(model, batch, num_beams=3), beams)
        assert torch.equal(generate(model, assisted, assistant_model=assistant), plain)


@pytest.mark.slow
def test_long_generation_stays_sampled() -> None:
    model = make(num_hidden_layers=2)
    config = dataclasses.replace(SAMPLED, segment_min=128, window_tokens=32)
    with sparse(model, config) as session:
        out = generate(model, {"input_ids": torch.arange(3, 103)[None]}, 1600)
    assert out.shape[1] == 1700
    assert session.cache is not None
    for layer in session.cache.layers:
        assert len(layer.index) == 1699
        assert layer.index.hashed_tokens >= 1699 - 4 - 32 - 128
        assert layer.index.num_segments <= 6


def test_forward_passes_without_generate() -> None:
    model, batch = make(), padded_batch()
    with torch.no_grad(), sparse(model, EVERY_KEY) as session:
        before = (batch["attention_mask"].cumsum(1) - 1).clamp_min(0)
        first = model(**batch, position_ids=before, use_cache=True)
        assert first.cache is session.cache
        mask = torch.cat([batch["attention_mask"], torch.ones(3, 1, dtype=torch.int64)], 1)
        positions = mask.sum(1, keepdim=True) - 1
        step = model(torch.full((3, 1), 5), attention_mask=mask, position_ids=positions, cache=first.cache)
        several = model(torch.full((3, 4), 5), cache=first.cache)
    assert several.logits.shape == (3, 4, 128)
    with torch.no_grad():
        ids = torch.cat([batch["input_ids"], torch.full((3, 1), 5)], 1)
        position_ids = (mask.cumsum(1) - 1).clamp_min(0)
        expected = model(ids, attention_mask=mask, position_ids=position_ids).logits[:, -1:]
    assert torch.allclose(step.logits, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_inference_mode(dtype: torch.dtype) -> None:
    model, batch = make().to(dtype), padded_batch()
    with torch.inference_mode(), sparse(model, SAMPLED) as session:
        out = generate(model, batch)
    assert out.shape == (3, 114)
    assert session.cache is not None
    assert session.cache.layers[0].index.dtype == dtype


def test_autocast() -> None:
    model, batch = make(), padded_batch()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), sparse(model, SAMPLED):
        assert generate(model, batch).shape == (3, 114)


def test_holes_in_the_mask_are_exact() -> None:
    model, batch = make(), padded_batch()
    batch["attention_mask"][2, 30:40] = 0
    expected = generate(model, batch)
    with sparse(model, SAMPLED) as session:
        assert torch.equal(generate(model, batch), expected)
    assert session.cache is not None
    assert session.cache.sampled_fraction() == {}


def test_heavy_tokens_and_tolerance() -> None:
    model, batch = make(), {"input_ids": padded_batch()["input_ids"][2:]}
    expected = generate(model, batch)
    with sparse(model, dataclasses.replace(SAMPLED, heavy_tokens=10)) as session:
        generate(model, batch)
    assert session.cache is not None
    assert session.cache.layers[0].index._heavy.shape == (1, 2, 10)
    with sparse(model, dataclasses.replace(SAMPLED, tolerance=1e-9)) as session:
        assert torch.equal(generate(model, batch), expected)
    assert all(error > 0 for error in session.cache.estimated_error().values())


def test_two_models_in_two_threads() -> None:
    batch = padded_batch()
    models = [make(), make("qwen2")]
    expected = [generate(model, batch) for model in models]

    def work(number: int) -> bool:
        with sparse(models[number], EVERY_KEY):
            return all(torch.equal(generate(models[number], batch), expected[number]) for _ in range(2))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_cache_operations() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 2, 100, 16, generator=generator) for _ in range(2))
    layer = LSHLayer(SAMPLED)
    with pytest.raises(InvalidStateError, match="empty"):
        layer.attend(torch.zeros(2, 4, 16), None, None)
    returned, _ = layer.update(keys, values)
    assert cache_layer_of(returned) is layer
    assert cache_layer_of(keys) is None
    assert layer.get_seq_length() == 100
    assert layer.get_mask_sizes(3) == (103, 0)
    assert layer.get_max_length() == -1
    layer.attend(torch.randn(2, 4, 16, generator=generator), None, None)
    layer.crop(-20)
    assert layer.get_seq_length() == 80
    with pytest.raises(InvalidValueError, match="crop"):
        layer.crop(5)
    layer.batch_repeat_interleave(2)
    assert torch.equal(layer.keys[1], keys[0, :, :80])
    layer.batch_select_indices(torch.tensor([3]))
    assert torch.equal(layer.keys[0], keys[1, :, :80])
    layer.reorder_cache(torch.tensor([0, 0]))
    assert layer.batch_size == 2
    layer.offload()
    layer.prefetch()
    layer.reset()
    assert layer.get_seq_length() == 0


def test_what_is_refused() -> None:
    t5 = transformers.T5Config(vocab_size=32, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=16)
    with pytest.raises(InvalidValueError, match="encoder-decoder"):
        LSHCache(t5)
    with pytest.raises(InvalidValueError, match="encoder-decoder"):
        use_magicpig(transformers.T5ForConditionalGeneration(t5))
    with pytest.raises(InvalidValueError, match="not a transformers model"):
        use_magicpig(torch.nn.Linear(2, 2))
    linear = transformers.LlamaConfig(**COMMON)
    linear.layer_types = ["linear_attention"] * 4
    with pytest.raises(InvalidValueError, match="'linear_attention' are not supported"):
        LSHCache(linear)
    with pytest.raises(InvalidValueError, match="layer 4"), sparse(make(), LSHConfig(dense_layers=(4,))):
        pass
    layer = LSHLayer(SAMPLED)
    with pytest.raises(InvalidValueError, match="one size"):
        layer.update(torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, 4, 8))


def test_an_error_in_the_block_restores_the_model() -> None:
    model: Any = make()
    before: Callable[..., Any] = model._prepare_cache_for_generation
    with pytest.raises(RuntimeError, match="mine"), sparse(model):
        raise RuntimeError("mine")
    assert model.config._attn_implementation == "sdpa"
    assert model._prepare_cache_for_generation == before
    assert not model._forward_pre_hooks


def gpt_oss() -> Any:
    extra = {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 32}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**COMMON | extra)).eval()


def test_attention_with_sinks_or_soft_caps_is_refused() -> None:
    model = gpt_oss()
    before = model.config._attn_implementation
    with pytest.raises(InvalidValueError, match="GptOssForCausalLM.*scaled_dot_product_attention"):
        use_magicpig(model)
    with pytest.raises(InvalidValueError, match="GptOssForCausalLM"), sparse(model):
        pass
    assert model.config._attn_implementation == before
    model.set_attn_implementation("magicpig")
    with pytest.raises(InvalidValueError, match="s_aux"):
        model(torch.tensor([[5, 6, 7]]))
    tensors = [torch.zeros(1, 2, 3, 16)] * 3
    with pytest.raises(InvalidValueError, match="softcap"):
        magicpig_attention(torch.nn.Identity(), *tensors, None, softcap=50.0)


def test_architectures_without_the_attention_interface_are_refused() -> None:
    sizes = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    falcon = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes))
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=2))
    for model in (falcon, bloom):
        before = model.config._attn_implementation
        with pytest.raises(InvalidValueError, match=type(model).__name__):
            use_magicpig(model)
        with pytest.raises(InvalidValueError, match=type(model).__name__), sparse(model):
            pass
        assert model.config._attn_implementation == before


def test_keys_that_never_come_back_are_told() -> None:
    extra = {"kv_channels": 16, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    sizes = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "intermediate_size")}
    model = transformers.JetMoeForCausalLM(transformers.JetMoeConfig(num_hidden_layers=2, **sizes, **extra)).eval()
    with pytest.warns(UserWarning, match="never reached"), sparse(model, EVERY_KEY):
        generate(model, {"input_ids": torch.arange(3, 30)[None]}, 4)
    plain = make()
    with pytest.warns(UserWarning, match="use_magicpig"):
        generate(plain, padded_batch(), 4, cache=LSHCache(plain.config, EVERY_KEY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for config in (EVERY_KEY, LSHConfig()):
            with sparse(plain, config):
                generate(plain, padded_batch(), 4)


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16", "auto"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_keys_are_stored_in_any_type(kv_dtype: str, dtype: torch.dtype) -> None:
    model, batch = make().to(dtype), padded_batch()
    with torch.no_grad():
        expected = model(**batch).logits.float()
    for options in ({}, {"min_context": 10**9}):
        with sparse(model, dataclasses.replace(EVERY_KEY, kv_dtype=kv_dtype, **options)) as session, torch.no_grad():
            out = generate(model, batch, 6, return_dict_in_generate=True, output_logits=True)
        assert out.logits[0].dtype in (dtype, torch.float32)
        stored = {"auto": torch.float32 if dtype == torch.float64 else dtype}.get(
            kv_dtype, getattr(torch, kv_dtype, None)
        )
        assert session.cache.layers[0].index.dtype == stored
        tolerance = 1e-4 if {stored, dtype} <= {torch.float32, torch.float64} else 3e-2
        assert torch.allclose(out.logits[0].float(), expected[:, -1], atol=tolerance)


def logits_of(model: Any, batch: dict[str, torch.Tensor], cache: Any) -> torch.Tensor:
    out = generate(model, batch, 5, cache=cache, return_dict_in_generate=True, output_logits=True)
    return torch.stack(out.logits)


@pytest.mark.parametrize("kept", [0, 3])
def test_a_cropped_cache_forgets_the_padding(kept: int) -> None:
    model, first = use_magicpig(make()), padded_batch()
    second = {name: tensor.flip(0) for name, tensor in first.items()}
    config = dataclasses.replace(EVERY_KEY, heavy_tokens=3)
    cache = LSHCache(model.config, config)
    logits_of(model, first, cache)
    cache.crop(kept - cache.get_seq_length())
    if kept:
        second = {name: torch.cat([first[name][:, :kept], second[name]], 1) for name in second}
    expected = logits_of(model, second, transformers.DynamicCache(config=model.config))
    assert torch.allclose(logits_of(model, second, cache), expected, atol=1e-4)


def test_another_padding_than_that_of_the_tables_is_honoured() -> None:
    model, batch = use_magicpig(make()), padded_batch()
    mine, stock = LSHCache(model.config, EVERY_KEY), transformers.DynamicCache(config=model.config)
    masks = [
        torch.cat([batch["attention_mask"], torch.ones(3, 1, dtype=torch.int64)], 1),
        None,
        torch.ones(3, 93, dtype=torch.int64),
    ]
    masks[2][2, :30] = 0
    with torch.no_grad():
        for cache in (mine, stock):
            model(**batch, cache=cache)
        for mask in masks:
            steps = [model(torch.full((3, 1), 5), attention_mask=mask, cache=cache).logits for cache in (mine, stock)]
            assert torch.allclose(*steps, atol=1e-4)
    assert mine.sampled_fraction()


def test_sparse_can_be_nested() -> None:
    model: Any = make()
    batch = padded_batch()
    model._prepare_cache_for_generation = before = model._prepare_cache_for_generation
    with sparse(model, SAMPLED) as outer:
        generate(model, batch, 4)
        mine = outer.cache
        with sparse(model, EVERY_KEY) as inner:
            generate(model, batch, 4)
        assert inner.cache.lsh == EVERY_KEY
        assert outer.cache is mine
        generate(model, batch, 4)
        assert outer.cache is not mine
        assert outer.cache.lsh == SAMPLED
    assert model.config._attn_implementation == "sdpa"
    assert model._prepare_cache_for_generation is before
    assert not model._forward_pre_hooks


def test_one_model_in_two_threads() -> None:
    model, batch = make(), padded_batch()
    configs = [EVERY_KEY, dataclasses.replace(EVERY_KEY, seed=7, key_bits=4)]
    expected = generate(model, batch)
    barrier = threading.Barrier(2)

    def work(number: int) -> bool:
        right = True
        for _ in range(3):
            barrier.wait()
            with sparse(model, configs[number]) as session:
                right &= torch.equal(generate(model, batch), expected)
                right &= session.cache is not None and session.cache.lsh == configs[number]
        return right

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))
    assert model.config._attn_implementation == "sdpa"
    assert "_prepare_cache_for_generation" not in vars(model)
    assert not model._forward_pre_hooks


def test_a_block_serves_the_threads_that_it_starts() -> None:
    model, batch = make(), padded_batch()
    with sparse(model, EVERY_KEY) as session, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(generate, model, batch).result()
    assert session.cache is not None
    assert session.cache.sampled_fraction()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])  # noqa: S301
def test_a_copied_prefix_is_used_again(copied: Callable[..., Any]) -> None:
    model, batch = use_magicpig(make()), padded_batch()
    with torch.no_grad():
        prefix = LSHCache(model.config, EVERY_KEY)
        model(**batch, cache=prefix)
        step = torch.full((3, 1), 5)
        mask = torch.cat([batch["attention_mask"], torch.ones_like(step)], 1)
        for hashed in (False, True):
            expected = model(step, attention_mask=mask, cache=copied(prefix)).logits
            again = copied(prefix)
            assert again.get_seq_length() == prefix.get_seq_length()
            assert torch.equal(model(step, attention_mask=mask, cache=again).logits, expected)
            assert again.layers[0].keys.data_ptr() == again.layers[0].index.keys.data_ptr()
            assert not hashed or prefix.layers[0].index.is_built
            model(step, attention_mask=mask, cache=prefix)
            mask = torch.cat([mask, torch.ones_like(step)], 1)
    assert copied(LSHCache(model.config, EVERY_KEY)).get_seq_length() == 0


def test_tokens_of_another_batch_are_refused() -> None:
    layer = LSHLayer(SAMPLED)
    layer.update(torch.zeros(2, 2, 5, 16), torch.zeros(2, 2, 5, 16))
    for shape in ((1, 2, 1, 16), (2, 1, 1, 16), (2, 2, 1, 8)):
        with pytest.raises(InvalidValueError, match=r"do not fit.*\(2, 2, any, 16\)"):
            layer.update(torch.zeros(shape), torch.zeros(shape))
    assert layer.get_seq_length() == 5


def test_a_cache_is_made_from_a_configuration() -> None:
    model = make()
    for config in (None, model, {"num_hidden_layers": 2}):
        with pytest.raises(InvalidTypeError, match="configuration of the model"):
            LSHCache(config)
    with pytest.raises(InvalidTypeError, match="LSHConfig"):
        LSHCache(model.config, {"key_bits": 4})
    with pytest.raises(InvalidTypeError, match="LSHConfig"), sparse(model, {"key_bits": 4}):
        pass


def test_a_prompt_in_inference_mode_is_continued_outside_of_it() -> None:
    model, ids = make(), padded_batch()["input_ids"][2:]
    with sparse(model, SAMPLED):
        tokens = []
        for context in (torch.inference_mode, torch.no_grad):
            cache = LSHCache(model.config, SAMPLED)
            with context():
                model(ids, cache=cache)
            with torch.no_grad():
                tokens.append([model(ids[:, i : i + 1], cache=cache).logits for i in range(20)])
    assert torch.equal(torch.stack(tokens[0]), torch.stack(tokens[1]))


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_go_through_the_cached_tokens(frozen: bool) -> None:
    ids, gradients = padded_batch()["input_ids"][2:], []
    for own in (True, False):
        model = make()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not frozen or "q_proj" in name)
        with sparse(model, EVERY_KEY) if own else contextlib.nullcontext():
            cache = LSHCache(model.config, EVERY_KEY) if own else transformers.DynamicCache(config=model.config)
            model(ids, cache=cache)
            model(ids[:, :1], cache=cache)
            model(ids[:, 1:2], cache=cache).logits.square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for found, expected in zip(*gradients, strict=True):
        assert torch.allclose(found, expected, atol=1e-6, rtol=1e-4)


def test_keys_that_the_storage_cannot_hold_are_told() -> None:
    layer = LSHLayer(dataclasses.replace(SAMPLED, kv_dtype="float16"))
    tokens = torch.full((1, 2, 3, 32), 1e6)
    with pytest.raises(InvalidValueError, match="keys .* kv_dtype"):
        layer.update(tokens, tokens)
