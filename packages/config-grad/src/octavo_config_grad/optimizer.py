"""A wrapper that makes any torch optimizer descend along the conflict-free direction of several losses."""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from itertools import chain
from typing import Any

import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_config_grad._compile import outside_graphs
from octavo_config_grad.arguments import parameters_by_id
from octavo_config_grad.backward import (
    all_finite,
    check_choice,
    check_distinct,
    evaluate_loss,
    is_scaling,
    loss_gradient,
    ordered_losses,
    parameter_names,
    scaled_loss,
)
from octavo_config_grad.distributed import Reducer, as_gradient, average_gradients, local_tensor
from octavo_config_grad.gramian import autocast_off, coarsest_dtype, gramian, scaled_gramian, weighted_sum
from octavo_config_grad.info import UpdateInfo
from octavo_config_grad.moments import to_float64
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.overflow import SAFE_REACH, overflow_error, overflows
from octavo_config_grad.saved_state import check_wrapped_state, load_or_restore
from octavo_config_grad.solution import Solution, checked_aggregator

__all__ = ["ConFIGOptimizer"]

# Gradients of fewer numbers than this are copied to one matrix.
_PACKED_ELEMENTS = 2**18


class ConFIGOptimizer(torch.optim.Optimizer):
    """Gives a torch optimizer the combined update of several losses in place of a gradient.

    A step back-propagates each loss on its own, combines the gradients, writes the result to ``.grad`` and lets the
    wrapped optimizer step. Only parameters that a loss reaches get a ``.grad``; frozen ones are left alone. Learning
    rate schedulers, hooks, ``add_param_group`` and checkpoints work as on the wrapped optimizer, whose parameter groups
    and state this one shows as its own.

    Example::

        optimizer = ConFIGOptimizer(torch.optim.Adam(net.parameters(), lr=1e-3))
        for _ in range(steps):
            optimizer.step([pde_loss(net), boundary_loss(net)])

    With micro-batches, the gradients of each loss are summed apart, and combined once::

        for batch in micro_batches:
            optimizer.accumulate([loss / len(micro_batches) for loss in losses(batch)])
        optimizer.step()

    With ``torch.amp.GradScaler``, ``optimizer.step(losses, scaler=scaler)`` scales all losses alike, unscales once,
    clips, and skips the step if a gradient overflowed; ``scaler.update()`` stays with the caller. In a loop that calls
    the scaler itself: ``accumulate`` the scaled losses, ``combine()``, then ``scaler.step(optimizer)``, with
    ``ConFIG(nonfinite="skip")``.

    With DDP, compute the losses under ``model.no_sync()``: the gradients of each loss are averaged over the processes
    here, before they are combined. With FSDP, use ``gradients_by="backward"`` and ``reduction="sharded"``.

    Args:
        optimizer: The optimizer to wrap; any that needs no closure.
        aggregator: Combines the gradients; ``ConFIG()`` by default. Its ``nonfinite`` policy says what happens when a
            gradient or the update is not finite: ``"raise"``, or ``"skip"`` the step. Parameters and state stay
            untouched then.
        shared: Parameters, or a module, whose gradients are combined without conflict; all others are heads. None: all
            that are not heads.
        heads: Parameters, or a module, that get the plain gradient of the summed losses. None: all that are not shared.
        clip: Largest norm of the whole update, applied after combining (and unscaling); or a function that is called
            with the parameters and clips their ``.grad``.
        reduction: Work over processes: ``"auto"``, ``"average"``, ``"sharded"`` or ``"none"``; see ``Reducer``.
        process_group: Process group of the reduction, None for all processes.
        gradients_by: ``"autograd"`` (``torch.autograd.grad``) or ``"backward"`` (``loss.backward()``, then collecting
            ``.grad``), which fires the hooks that FSDP needs.

    Attributes:
        optimizer: The wrapped optimizer.
        aggregator: The aggregator; may be replaced between steps.
        skipped_steps: Number of steps skipped because a gradient or the update was not finite.

    Raises:
        InvalidTypeError: If ``optimizer`` is not a torch optimizer or needs a closure (LBFGS), or an argument is of
            another type than named above.
        InvalidValueError: If an option is unknown, or shared and heads overlap, leave out a parameter, or name one that
            is not in the optimizer.

    Source: Sections 3.1 and 4 of the paper: ConFIG on the shared parameters, then the optimizer's rule.
    """

    def __init__(
        self,
        optimizer: Any,
        aggregator: Any = None,
        *,
        shared: Any = None,
        heads: Any = None,
        clip: Any = None,
        reduction: Any = "auto",
        process_group: Any = None,
        gradients_by: Any = "autograd",
    ) -> None:
        if isinstance(optimizer, ConFIGOptimizer | MConFIG):
            raise InvalidTypeError(
                f"{type(optimizer).__name__} combines losses already; use it alone, or wrap a plain optimizer such as "
                "torch.optim.Adam"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidTypeError(f"ConFIGOptimizer wraps a torch.optim.Optimizer, not a {type(optimizer).__name__}")
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise InvalidTypeError(
                f"{type(optimizer).__name__} evaluates a closure of one loss several times a step, which a combined "
                "update does not have; wrap an optimizer that works on .grad, such as Adam"
            )
        check_choice("gradients_by", gradients_by, ("autograd", "backward"))
        if not (clip is None or callable(clip)):
            if not isinstance(clip, int | float) or isinstance(clip, bool):
                raise InvalidTypeError(
                    f"clip is a {type(clip).__name__}; give a norm, a function of the parameters, or None"
                )
            if not 0.0 < clip < math.inf:
                raise InvalidValueError(f"clip={clip!r}; give a finite norm > 0, a function of the parameters, or None")
        self.optimizer = optimizer
        self.aggregator = checked_aggregator(aggregator)
        self.clip = clip
        self.gradients_by = gradients_by
        self._info: UpdateInfo | Solution | None = None
        self.skipped_steps = 0
        self._reducer = Reducer(reduction, process_group)
        self._shared = parameters_by_id("shared", shared)
        self._heads = parameters_by_id("heads", heads)
        self._check_roles()
        self._overflowed = False
        # The base class's __init__ would make parameter groups of its own; __setstate__ makes only the hooks.
        self.__setstate__({})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the wrapped optimizer."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """State of the wrapped optimizer."""
        return self.optimizer.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """Default options of the wrapped optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def last_info(self) -> UpdateInfo | None:
        """What the last combination does to each loss, worked out on demand; None before the first."""
        return self._info.info if isinstance(self._info, Solution) else self._info

    @outside_graphs
    def accumulate(self, losses: Any, *, scaler: Any = None) -> list[Tensor]:
        """Add the gradients of each loss to what was accumulated since the last step, as ``backward`` would for one.

        Args:
            losses: Scalar tensors with a graph or functions without arguments that return one: a sequence, a mapping
                {0: ..., 1: ...} in any order, a vector (m,), or a function that returns one of these. Functions are
                called and differentiated one after the other, so that only one graph lives at a time.
            scaler: ``torch.amp.GradScaler`` that scales the losses.

        Returns:
            The losses, detached and unscaled.

        Raises:
            InvalidValueError: If there is no loss, their number differs from what was accumulated, a mapping has other
                keys than 0 to m - 1, a loss is not a scalar or has no graph, or two are the same object.
            InvalidTypeError: If a loss is neither a tensor nor a function, a gradient is sparse, or the scaler none.
        """
        items = ordered_losses(losses)
        if self._rows and len(items) != len(self._rows):
            raise InvalidValueError(
                f"got {len(items)} losses after {len(self._rows)} were accumulated; give the same ones until "
                "step() or zero_grad()"
            )
        check_distinct(items)
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if not parameters:
            raise InvalidStateError("every parameter of the optimizer is frozen; set requires_grad on those to train")
        heads = [self._is_head(parameter) for parameter in parameters]
        values: list[Tensor] = []
        rows: list[dict[int, Tensor]] = []
        head_gradients = dict(self._head_gradients)
        for index, item in enumerate(items):
            loss = evaluate_loss(item, index)
            values.append(loss.detach())
            gradients = loss_gradient(
                scaled_loss(loss, scaler),
                index,
                parameters,
                by=self.gradients_by,
                retain_graph=index < len(items) - 1,
            )
            row = dict(self._rows[index]) if self._rows else {}
            for parameter, gradient, is_head in zip(parameters, gradients, heads, strict=True):
                if gradient is not None:
                    total = head_gradients if is_head else row
                    # Not in place: autograd may hand out one tensor for several parameters.
                    total[id(parameter)] = total[id(parameter)] + gradient if id(parameter) in total else gradient
            rows.append(row)
        # Taken over only now, so that an error in a loss leaves what was accumulated before as it was.
        self._values = [old + new for old, new in zip(self._values, values, strict=True)] if self._rows else values
        self._rows, self._head_gradients = rows, head_gradients
        return values

    @outside_graphs
    @torch.no_grad()
    def combine(self) -> UpdateInfo | None:
        """Combine what was accumulated and write the update to ``.grad``; :meth:`step` does it where needed.

        For loops that work on ``.grad`` before the step: their own clipping, or a GradScaler. Under the aggregator's
        ``nonfinite="skip"``, gradients that are not finite leave a ``.grad`` that is not finite, and no step is made.

        Returns:
            What the update does to each loss; None if no loss reaches a shared parameter or a gradient is not finite.

        Raises:
            InvalidStateError: If nothing was accumulated.
            InvalidValueError: If a gradient or the update is not finite under ``nonfinite="raise"``. What was
                accumulated is dropped then.
        """
        if not self._rows:
            raise InvalidStateError("nothing to combine; call accumulate(losses) or step(losses)")
        self._combine(overflow_allowed=self.aggregator.nonfinite == "skip")
        return self.last_info

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Any = None, *, scaler: Any = None) -> Any:
        """Combine the gradients of the losses, and of what was accumulated, and let the wrapped optimizer step.

        Args:
            closure: The losses, as for :meth:`accumulate`; None, or a function that returns None, to step on what was
                accumulated or combined.
            scaler: ``torch.amp.GradScaler``: the losses are scaled, the update is unscaled once, then clipped, and the
                step is skipped if it is not finite. Call ``scaler.update()`` afterwards as usual.

        Returns:
            The losses given, a list of detached tensors; None if none were.

        Raises:
            InvalidStateError: If there is nothing to step on.
            InvalidValueError: As for :meth:`accumulate`, after which what was accumulated before is kept, and as for
                :meth:`combine`, after which it is dropped: a step that fails must not fail again with the next losses.
            InvalidTypeError: As for :meth:`accumulate`.
        """
        losses = closure
        if callable(losses) and not isinstance(losses, Tensor):
            with torch.enable_grad():
                losses = losses()
        scaling = is_scaling(scaler)
        values = None if losses is None else self.accumulate(losses, scaler=scaler)
        if self._rows:
            self._combine(overflow_allowed=scaling or self.aggregator.nonfinite == "skip")
        elif not self._combined:
            raise InvalidStateError("nothing to step on; give step(losses), or call accumulate(losses) before")
        self._combined = False
        if scaling:
            scaler.unscale_(self.optimizer)
            self._clip_update()
            scaler.step(self.optimizer)
        elif not self._overflowed:
            self._clip_update()
            self.optimizer.step()
        return values

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad`` and drop what was accumulated.

        Args:
            set_to_none: Whether ``.grad`` becomes None instead of zeros.
        """
        self._clear()
        self._combined = False
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the wrapped optimizer.

        Args:
            param_group: As for the wrapped optimizer. Its parameters are heads if ``shared`` was given, else shared.
        """
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, and under ``"config"`` that of the aggregator.

        Returns:
            A dict that the wrapped optimizer could load, too. What was accumulated since the last step is not in it.
        """
        own = {"aggregator": dict(self.aggregator.state_dict()), "skipped_steps": self.skipped_steps}
        return {**self.optimizer.state_dict(), "config": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, or a state of the wrapped optimizer alone.

        Args:
            state_dict: The state.

        Raises:
            InvalidValueError: If it is not the state of an optimizer with these parameter groups, or that of another
                type of optimizer or another aggregator. Nothing is changed then.
        """
        check_wrapped_state(state_dict, self.optimizer)
        own = state_dict.get("config")
        before = copy.deepcopy(self.aggregator.state_dict())
        if own is not None:
            load_or_restore(self.aggregator, own["aggregator"], "the aggregator")
        try:
            self.optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != "config"})
        except Exception as error:
            self.aggregator.load_state_dict(before)
            kind = type(self.optimizer).__name__
            raise InvalidValueError(f"{kind} cannot load the saved state ({error}); give that of a {kind}") from error
        if own is not None:
            self.skipped_steps = own["skipped_steps"]
        self._clear()
        self._combined = False

    def __getstate__(self) -> dict[str, Any]:
        # "step" is where learning rate schedulers hang their bound wrapper.
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # The keys are the ids of the original's parameters.
        self._shared = parameters_by_id("shared", self._shared and self._shared.values())
        self._heads = parameters_by_id("heads", self._heads and self._heads.values())
        self._clear()
        self._combined = False

    def _combine(self, *, overflow_allowed: bool) -> None:
        rows, values, head_gradients = self._rows, self._values, self._head_gradients
        self._clear()
        trainable = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        reached = [p for p in trainable if any(id(p) in row for row in rows)]
        heads = [p for p in trainable if id(p) in head_gradients]
        gradients = [
            [row[id(p)] if id(p) in row else torch.zeros_like(local_tensor(p)) for p in reached] for row in rows
        ]
        for_heads = [head_gradients[id(p)] for p in heads]
        device = trainable[0].device
        with autocast_off(device):
            if self._reducer.active() == "average":
                flat = iter(average_gradients([*chain.from_iterable(gradients), *for_heads], group=self._reducer.group))
                gradients = [[next(flat) for _ in reached] for _ in rows]
                for_heads = list(flat)
            self._overflowed = overflow_allowed and self._reducer.agree(
                not all_finite([*for_heads, *chain.from_iterable(gradients)]), device
            )
            if self._overflowed:
                self.skipped_steps += 1
                self._info = None
                update = [torch.stack(column).sum(0) for column in zip(*gradients, strict=True)]
            else:
                self._check_finite(heads, for_heads, device)
                update, reach = self._aggregate(gradients, values) if reached else ([], 0.0)
                # All processes know the same reach, so that all of them ask for agreement, or none.
                if not reach <= SAFE_REACH and self._reducer.agree(overflows(update, reach), device):
                    if not overflow_allowed:
                        raise overflow_error()
                    self._overflowed = True
                    self.skipped_steps += 1
                    self._info = None
        # That of a frozen parameter, too: left from an earlier step, it would go on moving the parameter.
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter, gradient in zip(reached + heads, [*update, *for_heads], strict=True):
            parameter.grad = as_gradient(gradient, parameter)
        self._combined = True

    def _aggregate(self, gradients: list[list[Tensor]], values: list[Tensor]) -> tuple[list[Tensor], float]:
        """The update, and a bound on its numbers (see :class:`Solution`)."""
        losses = [float(value) for value in values]
        packed = _pack(gradients)
        precision = packed.dtype if isinstance(packed, Tensor) else coarsest_dtype(gradients)
        if self.aggregator.needs_gradients:
            if self._reducer.active() == "sharded":
                raise InvalidStateError(
                    f"{self.aggregator} works on the coordinates of whole gradients, which no process has when the "
                    "parameters are sharded; use an aggregator that works on their Gramian"
                )
            update, self._info = self.aggregator.aggregate(packed, losses)
            return _unpack(update, gradients[0]), self._info.length
        if isinstance(packed, Tensor) and precision != torch.float64:
            packed = to_float64(packed)  # products of smaller types cannot overflow there
            products, unit = packed @ packed.T, 1.0
        elif self._reducer.active() == "sharded":
            products, unit = gramian(packed), 1.0
        else:
            products, unit = scaled_gramian(packed)
        products = self._reducer.sum_shards(products).cpu()
        solution = Solution(self.aggregator, products, losses, gradient_dtype=precision, unit=unit)
        self._info = solution
        alpha = self._reducer.share_weights(solution.alpha, gradients[0][0].device)
        update = (
            alpha.to(packed) @ packed
            if isinstance(packed, Tensor)
            else weighted_sum(packed, alpha, accumulate=solution.accumulate)
        )
        return _unpack(update, gradients[0]), solution.reach

    def _check_finite(self, heads: list[Tensor], gradients: list[Tensor], device: torch.device) -> None:
        if not heads or not self._reducer.agree(not all_finite(gradients), device):
            return
        for parameter, gradient in zip(heads, gradients, strict=True):
            if not all_finite([gradient]):
                name = parameter_names(self.param_groups)[id(parameter)]
                raise InvalidValueError(
                    f"the gradient of the summed losses with respect to {name} is not finite; lower the learning rate, "
                    "or give the aggregator nonfinite='skip'"
                )
        raise InvalidValueError("the gradient of a head is not finite on another process; its own error names it")

    def _clip_update(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if callable(self.clip):
            self.clip(parameters)
        elif self.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, float(self.clip))

    def _clear(self) -> None:
        self._rows: list[dict[int, Tensor]] = []
        self._head_gradients: dict[int, Tensor] = {}
        self._values: list[Tensor] = []

    def _is_head(self, parameter: Tensor) -> bool:
        if self._heads is not None:
            return id(parameter) in self._heads
        return self._shared is not None and id(parameter) not in self._shared

    def _check_roles(self) -> None:
        names = parameter_names(self.param_groups)
        for role, given in (("shared", self._shared), ("heads", self._heads)):
            for key, parameter in (given or {}).items():
                if key not in names and parameter.requires_grad:
                    raise InvalidValueError(
                        f"{role} holds a parameter of shape {tuple(parameter.shape)} that the optimizer does not have; "
                        "build the optimizer with it"
                    )
        if self._shared is None or self._heads is None:
            return
        for key, name in names.items():
            if key in self._shared and key in self._heads:
                raise InvalidValueError(f"{name} is in shared and in heads; give it to one")
            if key not in self._shared and key not in self._heads:
                raise InvalidValueError(f"{name} is neither in shared nor in heads; give only one of the two, or all")


def _pack(gradients: list[list[Tensor]]) -> Tensor | list[list[Tensor]]:
    """Join small gradients to one matrix (m, N): calls per parameter would cost more than the copy."""
    first = gradients[0]
    total = len(gradients) * sum(gradient.numel() for gradient in first)
    alike = all(gradient.dtype == first[0].dtype and gradient.device == first[0].device for gradient in first)
    if total > _PACKED_ELEMENTS or not alike:
        return gradients
    flat = torch.cat([gradient.reshape(-1) for row in gradients for gradient in row])
    return flat.view(len(gradients), -1)


def _unpack(update: Tensor | list[Tensor], like: list[Tensor]) -> list[Tensor]:
    if not isinstance(update, Tensor):
        return update
    if len(like) == 1:
        return [update.to(like[0]).view(like[0].shape)]
    parts = update.to(like[0]).split([gradient.numel() for gradient in like])
    return [part.view(gradient.shape) for part, gradient in zip(parts, like, strict=True)]
