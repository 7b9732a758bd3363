"""ConFIG on several processes: what has to be summed over them, and when.

Data parallel: each loss's gradient is averaged over the processes *before* the Gramian; the average of the processes'
Gramians is another, wrong matrix. Sharded parameters: the Gramian is the sum of the shards' Gramians. Either way rank
0's coefficients are broadcast, so that no rounding difference between machines lets the replicas drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float64
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_config_grad.gramian import gramian

__all__ = [
    "Reducer",
    "as_gradient",
    "average_gradients",
    "broadcast_weights",
    "local_tensor",
    "sharded_gramian",
]

_BUCKET_BYTES = 32 * 2**20


def average_gradients(gradients: Sequence[Tensor], *, group: Any = None) -> list[Tensor]:
    """Average gradients over the processes, in buckets of 32 MiB.

    Args:
        gradients: Tensors of any shapes; as many, in the same order, on every process. They are only read.
        group: Process group, None for all processes.

    Returns:
        The means, with the shapes and dtypes of ``gradients``.

    Raises:
        InvalidStateError: If torch.distributed is not initialised.

    Source: Section 2 of the paper defines the update for the full-batch gradients g_i, which the average estimates.
    """
    world = _world_size(group)
    if world == 1:
        return list(gradients)
    means = list(gradients)
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, gradient in enumerate(gradients):
        # A sum in half precision loses bits with every process: it travels as float32.
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        kinds.setdefault((gradient.device, dtype), []).append(position)
    for (_, dtype), positions in kinds.items():
        for bucket in _buckets(positions, [gradients[p].numel() * dtype.itemsize for p in positions]):
            flat = torch.cat([gradients[position].reshape(-1).to(dtype) for position in bucket])
            dist.all_reduce(flat, group=group)
            flat /= world
            parts = flat.split([gradients[position].numel() for position in bucket])
            for position, part in zip(bucket, parts, strict=True):
                means[position] = part.view(gradients[position].shape).to(gradients[position].dtype)
    return means


def sharded_gramian(gradients: Any, *, group: Any = None) -> Float64[Tensor, "losses losses"]:
    """Gramian of gradients of which each process holds a shard.

    Args:
        gradients: This process's shard: a matrix (m, n) or m lists of tensors, as for ``gramian``. DTensors count as
            their local shard.
        group: Process group over which the parameters are sharded, None for all processes.

    Returns:
        The Gramian of the full gradients, equal on every process.

    Raises:
        InvalidStateError: If torch.distributed is not initialised.

    Source: ``K = sum over shards of G_s G_s^T``, since dot products are sums over parameters.
    """
    _world_size(group)
    if not isinstance(gradients, Tensor):
        gradients = [[local_tensor(part) for part in row] for row in gradients]
    total = gramian(gradients)
    dist.all_reduce(total, group=group)
    return total


def broadcast_weights(alpha: Float64[Tensor, " losses"], *, group: Any = None) -> Float64[Tensor, " losses"]:
    """Overwrite the coefficients with those of the group's rank 0, in place.

    Args:
        alpha: Coefficients of the update, float64.
        group: Process group, None for all processes.

    Returns:
        ``alpha``.

    Raises:
        InvalidStateError: If torch.distributed is not initialised.
    """
    _world_size(group)
    dist.broadcast(alpha, group=group, group_src=0)
    return alpha


def local_tensor(tensor: Any) -> Tensor:
    """Return the local shard of a DTensor, and any other tensor itself.

    Args:
        tensor: A tensor, distributed or not.

    Returns:
        A plain tensor.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def as_gradient(gradient: Tensor, parameter: Any) -> Tensor:
    """Turn a gradient into what ``parameter.grad`` accepts: a DTensor, from its local shard, for a DTensor.

    Args:
        gradient: The gradient, or its local shard.
        parameter: The parameter it belongs to.

    Returns:
        The gradient, as a DTensor if the parameter is one.
    """
    if not hasattr(parameter, "to_local"):
        return gradient
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        gradient,
        device_mesh=parameter.device_mesh,
        placements=parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


class Reducer:
    """What an optimizer does over processes; nothing at all in a single process.

    Args:
        mode: ``"auto"`` averages gradients if torch.distributed runs with more than one process; ``"average"`` always
            does (data parallel); ``"sharded"`` sums Gramians instead (each process holds a shard of the parameters);
            ``"none"`` does nothing.
        group: Process group, None for all processes.

    Raises:
        InvalidValueError: If the mode is unknown.
        InvalidTypeError: If the mode is not a string, or the group not a process group.
    """

    def __init__(self, mode: Any = "auto", group: Any = None) -> None:
        if not isinstance(mode, str):
            raise InvalidTypeError(f"reduction is a {type(mode).__name__}; give 'auto', 'average', 'sharded' or 'none'")
        if mode not in ("auto", "average", "sharded", "none"):
            raise InvalidValueError(f"reduction={mode!r} is unknown; give 'auto', 'average', 'sharded' or 'none'")
        if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
            raise InvalidTypeError(
                f"process_group is a {type(group).__name__}; give what torch.distributed.new_group() returned, or None"
            )
        self.mode = mode
        self.group = group

    def active(self) -> str:
        """Return what applies at the moment: ``"average"``, ``"sharded"`` or ``"none"``."""
        if self.mode != "auto":
            return self.mode
        running = dist.is_available() and dist.is_initialized() and dist.get_world_size(self.group) > 1
        return "average" if running else "none"

    def average(self, rows: Sequence[Sequence[Tensor | None]]) -> list[list[Tensor | None]]:
        """Average lists of gradients over the processes in data-parallel mode; None stays None, on all of them."""
        if self.active() != "average":
            return [list(row) for row in rows]
        present = [gradient for row in rows for gradient in row if gradient is not None]
        means = iter(average_gradients(present, group=self.group))
        return [[None if gradient is None else next(means) for gradient in row] for row in rows]

    def sum_shards(self, entries: Tensor) -> Tensor:
        """Sum entries of a Gramian over the processes in sharded mode, in place."""
        if self.active() == "sharded":
            dist.all_reduce(entries, group=self.group)
        return entries

    def agree(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is raised on any process (``device``: where the gradients are).

        Averaged gradients are the same everywhere, and so is what follows from them: only shards need to agree.
        """
        if self.active() != "sharded":
            return flag
        raised = torch.tensor(float(flag), device=device)
        dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self.group)
        return bool(raised)

    def share_weights(self, alpha: Tensor, device: torch.device) -> Tensor:
        """Return rank 0's coefficients (``device``: where the gradients are)."""
        if self.active() == "none":
            return alpha
        return broadcast_weights(alpha.to(device), group=self.group).to(alpha.device)


def _world_size(group: Any) -> int:
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidStateError(
            "torch.distributed is not initialised; start the script with torchrun or accelerate launch and call "
            "torch.distributed.init_process_group() first"
        )
    return dist.get_world_size(group)


def _buckets(positions: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Cut positions into runs that are closed once they hold ``_BUCKET_BYTES``."""
    buckets: list[list[int]] = [[]]
    filled = 0
    for position, size in zip(positions, sizes, strict=True):
        if filled >= _BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(position)
        filled += size
    return buckets
