"""The index of one layer: a key-value cache with hash tables over its middle, for one query token at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from octavo_core.device import resolve_device
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_magicpig import persistence
from octavo_magicpig.config import LSHConfig
from octavo_magicpig.hashing import Planes, layer_planes
from octavo_magicpig.heavy import distinct_positions
from octavo_magicpig.kernels import DecodeState, Segment, resolve
from octavo_magicpig.segments import (
    hash_tokens,
    largest_norm,
    last_boundary,
    left_out,
    mean_key,
    merge_small,
    sampleable,
    truncate,
)
from octavo_magicpig.stats import CACHE_LINE, AttendStats
from octavo_magicpig.store import KeyValueStore, in_plain_memory
from octavo_magicpig.validation import (
    check_build_options,
    check_count,
    check_integer,
    check_query,
    check_rows,
    check_scale,
    check_tensor,
    check_tokens,
)

__all__ = ["LSHIndex"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_HEAD_DIM = 4096
_TINY = 1e-6
_MOST_SHIFT = 100


class LSHIndex:
    """Key-value cache of one layer with SimHash tables over all but its first and last tokens.

    Args:
        config: Settings.
        num_kv_heads: Key-value heads.
        head_dim: Size of a key.
        batch_size: Batch rows.
        dtype: Type of the keys and values that will come; ``kv_dtype`` of the configuration goes before it.
        device: Where they live. Away from the CPU everything is computed by torch.
        layer: Index of the layer, which has planes of its own.
        planes: Planes to use instead of drawing them, (head_dim, key_bits * num_tables).

    Raises:
        InvalidValueError: If a size or the device is not possible, or the planes have another shape.
        InvalidTypeError: If an argument is of another type, or the dtype is not floating-point.
        InvalidStateError: If this machine does not have the device.

    Source:
        Algorithm 1 and section 5 of the paper; segments for generated tokens are beyond it (see
        :mod:`octavo_magicpig.segments`).
    """

    @in_plain_memory
    def __init__(
        self,
        config: LSHConfig | Any,
        num_kv_heads: int | Any,
        head_dim: int | Any,
        batch_size: int | Any = 1,
        dtype: torch.dtype | Any = torch.float32,
        device: str | torch.device = "cpu",
        *,
        layer: int | Any = 0,
        planes: Float[Tensor, "dim planes"] | Any = None,
    ) -> None:
        if not isinstance(config, LSHConfig):
            raise InvalidTypeError(f"config={config!r} is no LSHConfig; give LSHConfig() or LSHConfig.from_dict(...)")
        self.num_kv_heads = num_kv_heads = check_count("num_kv_heads", num_kv_heads)
        self.head_dim = head_dim = check_count("head_dim", head_dim)
        self.batch_size = check_count("batch_size", batch_size)
        self.layer = layer = check_count("layer", layer, 0)
        # The transform adds a coordinate to what is hashed.
        most = _MAX_HEAD_DIM - (config.transform is not None)
        if head_dim > most:
            raise InvalidValueError(f"head_dim={head_dim} is too large; give {most} or less")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InvalidTypeError(f"dtype={dtype!r} is no floating-point torch.dtype; give torch.float32 or bfloat16")
        self.config = config
        self.dtype = _DTYPES.get(config.kv_dtype, dtype if dtype in _DTYPES.values() else torch.float32)
        self.device = resolve_device(device)
        self._kernel = resolve(config.kernel, self.device)
        given = None if planes is None else check_tensor("planes", planes)
        self._key_planes = layer_planes(config, head_dim, num_kv_heads, layer=layer, given=given, device=self.device)
        # The transform's extra coordinate is zero for queries.
        self._planes = self._key_planes if config.transform is None else self._key_planes.without_last_row()
        self._clear()

    def __getstate__(self) -> dict[str, Any]:
        # The kernel is a module, which cannot be copied, and depends on the machine.
        return {name: value for name, value in vars(self).items() if name != "_kernel"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._kernel = resolve(self.config.kernel, self.device)

    def __len__(self) -> int:
        return self._store.length

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """The keys in the cache, a view."""
        return self._store.keys

    @property
    def values(self) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """The values in the cache, a view."""
        return self._store.values

    @property
    def is_built(self) -> bool:
        """Whether :meth:`build` was called, and not forgotten since."""
        return self._built

    @property
    def num_segments(self) -> int:
        """Segments with hash tables."""
        return len(self._segments)

    @property
    def hashed_tokens(self) -> int:
        """Tokens under the hash tables."""
        return sum(segment.limit for segment in self._segments)

    def build(
        self,
        keys: Float[Tensor, "batch kv_heads tokens head_dim"] | Any,
        values: Float[Tensor, "batch kv_heads tokens head_dim"] | Any,
        *,
        padding: Int[Tensor, " batch"] | Any = None,
        heavy: Int[Tensor, "batch kv_heads heavy"] | Any = None,
        mean: Float[Tensor, "batch kv_heads head_dim"] | Any = None,
    ) -> LSHIndex:
        """Fill the index with a prompt, forgetting what it held. A refused prompt changes nothing.

        Args:
            keys: Keys after rotary embedding, (batch, kv_heads, tokens, head_dim).
            values: Values, the same shape and dtype.
            padding: Padded tokens at the beginning of each row, which take part in nothing.
            heavy: Positions of keys that stay exact, (batch, kv_heads, n), -1 for none; one given twice counts once.
            mean: What to centre by, (batch, kv_heads, head_dim); by default the mean of the keys that are hashed. It
                stays fixed for the tokens that come later: scores are not affected, only the directions that are
                hashed.

        Returns:
            The index itself.

        Raises:
            InvalidValueError: If a shape or position does not fit, or a key, value or mean is not finite.
            InvalidTypeError: If something is no tensor of the right dtype, or keys and values differ in theirs.
        """
        check_tokens(keys, values, self.batch_size, self.num_kv_heads, self.head_dim, self.dtype)
        check_build_options(padding, heavy, mean, keys.shape[2], tuple(self._mean.shape))
        self._clear()
        self._store.append(keys, values)
        self._build_tables(padding, heavy, mean)
        return self

    def build_tables(
        self,
        *,
        padding: Int[Tensor, " batch"] | Any = None,
        heavy: Int[Tensor, "batch kv_heads heavy"] | Any = None,
        mean: Float[Tensor, "batch kv_heads head_dim"] | Any = None,
    ) -> None:
        """Hash what the cache holds; :meth:`build` without the filling.

        Args:
            padding: Padded tokens at the beginning of each row.
            heavy: Positions of keys that stay exact, (batch, kv_heads, n), -1 for none.
            mean: What to centre by, (batch, kv_heads, head_dim).

        Raises:
            InvalidValueError: If the padding, the heavy positions or the mean do not fit.
            InvalidTypeError: If one is no tensor of the right dtype.
        """
        check_build_options(padding, heavy, mean, len(self), tuple(self._mean.shape))
        self._build_tables(padding, heavy, mean)

    def forget_tables(self) -> None:
        """Forget padding, exact positions and tables, and keep the tokens: :meth:`build_tables` may begin anew."""
        store = self._store
        self._clear()
        self._store = store

    @in_plain_memory
    def _build_tables(self, padding: Tensor | None, heavy: Tensor | None, mean: Tensor | None) -> None:
        length = len(self)
        if padding is not None:
            self._first = padding.to(self.device, torch.int64).contiguous()
        if heavy is not None:
            self._heavy = distinct_positions(heavy.to(self.device))
        self._segments = []
        self._tail = min(self.config.sink_tokens, length)
        self._norms = self._norms.new_empty(self.batch_size, self.num_kv_heads, self._store.capacity)
        end = max(self._tail, length - self.config.window_tokens)
        middle = self._store.keys[:, :, self._tail : end]
        visible = sampleable(self._first, self.config.sink_tokens, self._tail, end)
        if mean is not None:
            self._mean = mean.detach().to(self._mean).contiguous()
        elif self.config.center and end > self._tail:
            self._mean = mean_key(middle, visible)
        if self.config.transform is not None and end > self._tail:
            self._radius = largest_norm(middle, self._mean, visible)
        self._built = True
        self._hash_until(end)

    def append(
        self,
        keys: Float[Tensor, "batch kv_heads tokens head_dim"] | Any,
        values: Float[Tensor, "batch kv_heads tokens head_dim"] | Any,
    ) -> None:
        """Add tokens at the end; they are exact until enough of them form a segment.

        Args:
            keys: (batch, kv_heads, tokens, head_dim).
            values: The same shape and dtype.

        Raises:
            InvalidStateError: If the index was not built.
            InvalidValueError: If a shape does not fit, or a key or value is not finite, as given or as stored.
            InvalidTypeError: If they are no tensors, or differ in dtype.
        """
        self._require_built("append")
        check_tokens(keys, values, self.batch_size, self.num_kv_heads, self.head_dim, self.dtype)
        self.extend(keys, values)

    def extend(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens without looking at them; for callers that have checked, and before the index is built.

        Args:
            keys: (batch, kv_heads, tokens, head_dim).
            values: The same shape.
        """
        self._store.append(keys, values)
        if not self._built:
            return
        if self._store.capacity > self._norms.shape[2]:
            self._grow_norms()
        self._hash_until(last_boundary(len(self) - self.config.window_tokens, self.layer, self.config))

    def crop(self, length: int | Any) -> None:
        """Keep the first tokens only.

        Args:
            length: Tokens to keep, 0 to the present number. The last ``window_tokens`` of them become exact again.
                With 0 the padding and the exact positions are forgotten too: what comes is another prompt, to be built.

        Raises:
            InvalidValueError: If the length is out of range.
            InvalidTypeError: If it is no integer.
        """
        length = check_integer("length", length, f"0 to {len(self)} tokens to keep")
        if not 0 <= length <= len(self):
            raise InvalidValueError(f"cannot crop to {length} tokens; the index holds {len(self)}")
        self._store.truncate(length)
        if length == 0:
            self.forget_tables()
        elif self._built:
            self._tail = min(self._tail, max(min(self.config.sink_tokens, length), length - self.config.window_tokens))
            self._segments = truncate(self._segments, self._tail)

    @in_plain_memory
    def reorder(self, index: Int[Tensor, " rows"] | Any) -> None:
        """Rearrange the batch: for beam search, repetition and selection of rows.

        Args:
            index: For each new row the old one it copies.

        Raises:
            InvalidValueError: If an entry is no row of the batch.
            InvalidTypeError: If they are no integers in a tensor.
        """
        check_rows(index, self.batch_size)
        index = index.to(self.device)
        self._store.take_rows(index)
        self._first, self._heavy, self._mean, self._norms, self._radius = (
            tensor.index_select(0, index)
            for tensor in (self._first, self._heavy, self._mean, self._norms, self._radius)
        )
        for segment in self._segments:
            segment.ids = segment.ids.index_select(0, index)
            segment.offsets = segment.offsets.index_select(0, index)
        self.batch_size = len(index)

    def select(self, query: Float[Tensor, "batch heads head_dim"] | Any) -> list[list[Int64[Tensor, " _"]]]:
        """List the positions that a query samples.

        Args:
            query: (batch, heads, head_dim).

        Returns:
            For each batch row and head the rising positions; exact keys are not among them.

        Raises:
            InvalidStateError: If the index was not built.
            InvalidValueError: If the query does not fit or is not finite.
        """
        self._require_built("select")
        check_query(query, self.batch_size, self.num_kv_heads, self.head_dim)
        return self._kernel.select(self._state(), query.float().contiguous())

    def attend(
        self,
        query: Float[Tensor, "batch heads head_dim"] | Any,
        scale: float | Any = None,
        *,
        with_error: bool = False,
        with_dense: bool = True,
    ) -> tuple[Float[Tensor, "batch heads dim"], Float[Tensor, "batch heads"], AttendStats]:
        """Attend with one query token: exactly over the first and last tokens, by sampling over the others.

        Args:
            query: (batch, heads, head_dim); ``heads`` is a multiple of the kv heads.
            scale: Factor of the scores; ``1 / sqrt(head_dim)`` by default.
            with_error: Estimate the standard error of the output; always done when ``tolerance`` is set.
            with_dense: Whether the exact tokens take part; without them the sampled part is returned alone.

        Returns:
            Output in the dtype of the query, float32 log-sum-exp of the scores, and what was done. Where no key takes
            part the output is 0 and the log-sum-exp ``-inf``.

        Raises:
            InvalidStateError: If the index was not built.
            InvalidValueError: If the query does not fit, or it or the scale is not finite.
            InvalidTypeError: If the query is no floating-point tensor, or the scale no number.

        Source:
            Equation 7 of the paper; the error estimate and the fallback are beyond it.
        """
        self._require_built("attend")
        check_query(query, self.batch_size, self.num_kv_heads, self.head_dim)
        factor = check_scale(scale, self.head_dim)
        return self.attend_unchecked(query, factor, with_error=with_error, with_dense=with_dense)

    def attend_unchecked(
        self, query: Tensor, scale: float | int | None = None, *, with_error: bool = False, with_dense: bool = True
    ) -> tuple[Tensor, Tensor, AttendStats]:
        """Attend without looking at the query; for callers that know it fits. See :meth:`attend`.

        Args:
            query: (batch, heads, head_dim).
            scale: Factor of the scores.
            with_error: Estimate the standard error.
            with_dense: Whether the exact tokens take part.

        Returns:
            Output, log-sum-exp and what was done.
        """
        factor = 1 / math.sqrt(self.head_dim) if scale is None else float(scale)
        tolerance = self.config.tolerance
        state, raised = self._state(), query.float().contiguous()
        # Products with a tiny query underflow, and its cosines with them: a power of two changes no digit.
        if float(raised.max()) < _TINY and 0 < (largest := float(raised.abs().max())) < _TINY:
            shift = 2.0 ** -max(math.frexp(largest)[1], -_MOST_SHIFT)
            raised, factor = raised * shift, factor / shift
        out, lse, stats = self._kernel.attend(
            state, raised, factor, with_error=with_error or tolerance is not None, with_dense=with_dense
        )
        error, missed = stats[..., 4], stats[..., 4] > math.inf
        if with_error or tolerance is not None:
            error = error / out.norm(dim=-1).clamp_min(1e-30)
        if tolerance is not None and with_dense:
            missed = error > tolerance
            if bool(missed.any()):
                exact, exact_lse = self._kernel.dense(raised, state.keys, state.values, self._first, None, factor)
                out, lse = torch.where(missed[..., None], exact, out), torch.where(missed, exact_lse, lse)
        return out.to(query.dtype), lse, self._describe(stats, error, missed)

    def dense_unchecked(self, query: Tensor, scale: float | int, first: Tensor | None = None) -> Tensor:
        """Attend to all tokens exactly without looking at the query; for callers that know it fits.

        Args:
            query: (batch, heads, head_dim).
            scale: Factor of the scores.
            first: First token of each row that takes part, int64, (batch,); all do by default.

        Returns:
            Output in the dtype of the query.
        """
        begin = self._first.new_zeros(self.batch_size) if first is None else first
        raised = query.float().contiguous()
        return self._kernel.dense(raised, self.keys, self.values, begin, None, float(scale))[0].to(query.dtype)

    @in_plain_memory
    def to(self, device: str | torch.device) -> LSHIndex:
        """Move everything to a device.

        Args:
            device: Where to.

        Returns:
            The index itself.
        """
        self.device = resolve_device(device)
        self._kernel = resolve(self.config.kernel, self.device)
        self._store.to(self.device)
        self._key_planes, self._planes = (
            Planes(planes.matrix.to(self.device), planes.key_bits, planes.num_tables)
            for planes in (self._key_planes, self._planes)
        )
        self._first, self._heavy, self._mean, self._norms, self._radius = (
            tensor.to(self.device) for tensor in (self._first, self._heavy, self._mean, self._norms, self._radius)
        )
        for segment in self._segments:
            segment.ids, segment.offsets = segment.ids.to(self.device), segment.offsets.to(self.device)
        return self

    def memory_bytes(self) -> dict[str, int]:
        """Count the bytes held.

        Returns:
            Bytes of ``kv`` (used tokens), ``ids``, ``offsets``, ``norms`` (hashed tokens), ``spare`` (room for more
            tokens) and ``index``, the sum of ids, offsets and norms.
        """
        per_token = 2 * self.head_dim * self._store.keys.element_size() * self.num_kv_heads * self.batch_size
        ids = sum(segment.ids.nbytes for segment in self._segments)
        offsets = sum(segment.offsets.nbytes for segment in self._segments)
        norms = 4 * self.hashed_tokens * self.num_kv_heads * self.batch_size
        kv = per_token * len(self)
        spare = self._store.nbytes - kv + (self._norms.nbytes - norms if self._built else 0)
        return {
            "kv": kv,
            "ids": ids,
            "offsets": offsets,
            "norms": norms,
            "spare": spare,
            "index": ids + offsets + norms,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything that :meth:`load_state_dict` needs, as nested plain values and tensors."""
        return persistence.pack(self)

    @in_plain_memory
    def load_state_dict(self, state: Mapping[str, Any] | Any) -> None:
        """Take over a state.

        Args:
            state: What :meth:`state_dict` returned, of an index with the same shapes and settings.

        Raises:
            InvalidValueError: If it belongs to another configuration, shape, version or other planes.
            InvalidStateError: If its tensors do not fit together.
        """
        persistence.unpack(self, state)

    def save(self, path: str | Path) -> Path:
        """Write the index to a file, atomically and without pickle.

        Args:
            path: The file, ending in ``.safetensors``.

        Returns:
            The path.
        """
        return persistence.save(self, path)

    @classmethod
    @in_plain_memory
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> LSHIndex:
        """Read an index that :meth:`save` wrote.

        Args:
            path: The file.
            device: Where to put it.

        Returns:
            The index, with the settings it was saved with.

        Raises:
            MissingFileError: If there is no such file.
            InvalidStateError: If it is damaged.
            InvalidValueError: If it was written by another version or is no index.
        """
        return persistence.load(cls, path, device=device)

    @in_plain_memory
    def _clear(self) -> None:
        shape, device = (self.batch_size, self.num_kv_heads), self.device
        self._store = KeyValueStore(*shape, self.head_dim, dtype=self.dtype, device=device)
        self._segments: list[Segment] = []
        self._first = torch.zeros(self.batch_size, dtype=torch.int64, device=device)
        self._heavy = torch.empty((*shape, 0), dtype=torch.int32, device=device)
        self._mean = torch.zeros((*shape, self.head_dim), dtype=torch.float32, device=device)
        self._norms = torch.empty((*shape, 0), dtype=torch.float32, device=device)
        self._radius = torch.zeros(shape, dtype=torch.float32, device=device)
        self._tail = 0
        self._built = False

    def _state(self) -> DecodeState:
        config = self.config
        return DecodeState(
            keys=self._store.keys,
            values=self._store.values,
            norms=self._norms,
            mean=self._mean,
            segments=self._segments,
            first=self._first,
            sink=config.sink_tokens,
            tail=self._tail,
            heavy=self._heavy,
            planes=self._planes,
            min_hits=config.min_hits,
            weight_eps=float(config.weight_eps),
        )

    @in_plain_memory
    def _grow_norms(self) -> None:
        grown = self._norms.new_empty(self.batch_size, self.num_kv_heads, self._store.capacity)
        grown[:, :, : self._norms.shape[2]] = self._norms
        self._norms = grown

    def _hash_until(self, end: int) -> None:
        if end > self._tail:
            self._hash(end)

    @in_plain_memory
    def _hash(self, end: int) -> None:
        added = hash_tokens(
            self._kernel,
            self._store.keys[:, :, self._tail : end],
            self._tail,
            mean=self._mean,
            radius=None if self.config.transform is None else self._radius,
            skip=left_out(self._first, self._heavy, self.config.sink_tokens, self._tail, end),
            planes=self._key_planes,
            norms=self._norms,
            config=self.config,
        )
        self._segments = merge_small(self._kernel, self._segments + added, self.config)
        self._tail = end

    def _require_built(self, action: str) -> None:
        if not self._built:
            raise InvalidStateError(f"cannot {action} before build; call build(keys, values) with the prompt first")

    def _describe(self, raw: Tensor, error: Tensor, missed: Tensor) -> AttendStats:
        exact = len(self) - self._tail + min(self.config.sink_tokens, self._tail) + self._heavy.shape[-1]
        row = 2 * self.head_dim * self._store.keys.element_size()
        fixed = self.batch_size * self.num_kv_heads * exact * row
        if self._segments:
            bounds = raw.shape[0] * raw.shape[1] * self.config.num_tables * len(self._segments)
            fixed += bounds * 2 * CACHE_LINE + self._planes.matrix.nbytes
        return AttendStats(raw, error, missed, self.hashed_tokens, exact, fixed, row)
