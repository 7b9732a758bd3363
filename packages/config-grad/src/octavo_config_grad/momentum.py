"""M-ConFIG: conflict-free updates from momenta, for the price of about one backward pass a step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_config_grad._compile import outside_graphs
from octavo_config_grad.arguments import check_integer
from octavo_config_grad.backward import (
    all_finite,
    check_choice,
    check_distinct,
    evaluate_loss,
    is_scaling,
    loss_gradient,
    named_losses,
    parameter_names,
    scaled_loss,
    unscale_gradients,
)
from octavo_config_grad.distributed import Reducer
from octavo_config_grad.gramian import autocast_off
from octavo_config_grad.info import UpdateInfo
from octavo_config_grad.loss_history import LossHistory
from octavo_config_grad.moments import Moments, Stretch
from octavo_config_grad.momentum_checks import check_group, check_saved_state, common_betas
from octavo_config_grad.overflow import overflow_error
from octavo_config_grad.saved_state import load_or_restore
from octavo_config_grad.selection import LossSelector, loss_indices
from octavo_config_grad.solution import Solution, checked_aggregator

__all__ = ["MConFIG"]

# Coefficients beyond this may not fit float32 although their product with a moment does.
_LARGE = 2.0**100
# Gradients whose norm exceeds this share of the largest number count as not finite: an update is the sum of up to m
# vectors as long, whose partial sums can be a hundred times as large.
_HEADROOM = 2.0**-14


class MConFIG(torch.optim.Optimizer):
    """Adam-like optimizer that combines the first moments of all losses without conflict, refreshing a few per step.

    Each step back-propagates the losses that :meth:`next_losses` names (one, by default), moves their first moments
    ``m_i``, takes ``h = ConFIG(m_1 / (1 - beta1^t_1), ..., m_m / (1 - beta1^t_m))`` and subtracts
    ``lr h / (sqrt(V / (1 - beta2^t)) + eps)``, where V averages the squares of the pseudo gradient that would have
    moved Adam's first moment to h. Until every loss was refreshed once, updates are exactly zero and t stays 0. With
    one loss this is Adam. Memory: (m + 2) N numbers, float32 for half-precision parameters.

    The Gramian of the moments is kept: refreshing a loss changes one row and column of it, m dot products.

    Example::

        optimizer = MConFIG(net.parameters(), num_losses=3)
        for _ in range(steps):
            optimizer.step({i: losses[i]() for i in optimizer.next_losses()})

    Args:
        params: Parameters, named parameters or parameter groups, as for any torch optimizer. Groups may have their own
            ``lr``, ``eps`` and ``weight_decay``; ``betas`` must agree, since the Gramian couples all parameters. A
            group added later starts as if its gradients had been zero so far. Freezing a parameter drops its moments.
        num_losses: Number of losses m, at least 1.
        lr: Learning rate, >= 0.
        betas: Decays of the first and second moment, in [0, 1).
        eps: Added to the root of the second moment, > 0.
        weight_decay: Decoupled weight decay as in AdamW, >= 0: ``theta -= lr weight_decay theta`` with every update.
        updates_per_step: Number of losses k that ``next_losses`` selects.
        select: ``"round_robin"``, ``"random"`` or a function ``(selection_count, num_losses) -> indices``.
        seed: Seed of the random selection.
        aggregator: Combines the moments; ``ConFIG()`` by default. ``PCGrad()`` and ``IMTLG()`` give M-PCGrad, M-IMTL-G.
        second_moment: ``"pseudo"`` (the paper) or ``"separate"``, an ablation that the paper reports as worse: every
            loss has its own V, and the Adam directions of the losses are combined.
        nonfinite: What to do when a gradient is not finite, or so large (2e34 in float32) that the update may not be:
            ``"raise"``, or ``"skip"`` the step. Either way parameters and state stay untouched, and the same losses
            come up again. An update that a length function or ``IMTLG`` lets grow out of range is treated likewise, but
            the moments of its losses, which are finite, stay.
        recompute_every: Steps between recomputations of the whole Gramian, at least 1.
        reduction: Work over processes: ``"auto"``, ``"average"``, ``"sharded"`` or ``"none"``; see ``Reducer``. With
            DDP, compute the losses under ``model.no_sync()``; with FSDP, use ``"sharded"`` and
            ``gradients_by="backward"``.
        process_group: Process group of the reduction, None for all processes.
        gradients_by: ``"autograd"`` (``torch.autograd.grad``) or ``"backward"`` (``loss.backward()``, then collecting
            ``.grad``), which fires the hooks of FSDP.

    Attributes:
        aggregator: The aggregator; may be replaced between steps.
        skipped_steps: Number of steps skipped because a gradient or the update was not finite.

    Raises:
        InvalidValueError: If a number is out of range or an option unknown.
        InvalidTypeError: If an argument is of the wrong type.

    Source: Section 3.2 and Algorithm 1 of the paper; where its pseudocode and the official code differ (the start), as
    the official code.
    """

    def __init__(
        self,
        params: Any,
        num_losses: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        *,
        updates_per_step: Any = 1,
        select: Any = "round_robin",
        seed: Any = 0,
        aggregator: Any = None,
        second_moment: Any = "pseudo",
        nonfinite: Any = "raise",
        recompute_every: Any = 1000,
        reduction: Any = "auto",
        process_group: Any = None,
        gradients_by: Any = "autograd",
    ) -> None:
        self.num_losses = check_integer("num_losses", num_losses, 1)
        check_choice("second_moment", second_moment, ("pseudo", "separate"))
        check_choice("nonfinite", nonfinite, ("raise", "skip"))
        check_choice("gradients_by", gradients_by, ("autograd", "backward"))
        self.aggregator = checked_aggregator(aggregator)
        if self.aggregator.needs_gradients:
            raise InvalidTypeError(
                f"{self.aggregator} works on the coordinates of gradients, but M-ConFIG keeps only the Gramian of its "
                "momenta; use it in ConFIGOptimizer, or another aggregator here"
            )
        self.second_moment = second_moment
        self.nonfinite = nonfinite
        self.recompute_every = check_integer("recompute_every", recompute_every, 1)
        self.gradients_by = gradients_by
        self._solution: Solution | None = None
        self.skipped_steps = 0
        self._reducer = Reducer(reduction, process_group)
        self._selector = LossSelector(self.num_losses, updates_per_step=updates_per_step, select=select, seed=seed)
        self._step = 0
        self._history = LossHistory(self.num_losses)
        self._since_recompute = 0
        self._moments = Moments([], [], self.num_losses, second_moment)
        self._layout: list[tuple[int, torch.device]] | None = None
        self._positions: list[int] = []
        self._precision = torch.float64
        self._largest_reach = 0.0
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @property
    def steps(self) -> int:
        """Number of updates made so far, t."""
        return self._step

    @property
    def loss_steps(self) -> tuple[int, ...]:
        """Number of times each loss was refreshed, t_i."""
        return tuple(self._history.steps)

    @property
    def last_info(self) -> UpdateInfo | None:
        """What the last update did to the moments of each loss, worked out on demand; None before the first."""
        return None if self._solution is None else self._solution.info

    def next_losses(self) -> list[int]:
        """Return the losses to give to the next :meth:`step`.

        Returns:
            Indices; the same until a step is made.
        """
        return self._selector.peek()

    def add_loss(self, *, unseen: Any = "freeze") -> int:
        """Add a loss, with a zero moment.

        Args:
            unseen: Until the new loss is refreshed, ``"freeze"`` the parameters (updates are zero, as at the start) or
                ``"exclude"`` the loss (the others go on without it).

        Returns:
            The index of the new loss.

        Raises:
            InvalidValueError: If the option is unknown.
        """
        check_choice("unseen", unseen, ("freeze", "exclude"))
        self.num_losses += 1
        self._selector.grow()
        self._history.append(excluded=unseen == "exclude")
        self._build_moments(self._moments.parameters)
        return self.num_losses - 1

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; they start as if their gradients had been zero so far.

        Args:
            param_group: ``{"params": ..., "lr": ..., "eps": ..., "weight_decay": ...}``, all but the first optional.

        Raises:
            InvalidValueError: If an option is out of range, or ``betas`` differ from the other groups'.
            InvalidTypeError: If an option is not a number, or a parameter not a real floating-point tensor.
        """
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1], self.param_groups)
        except Exception:
            self.param_groups.pop()
            raise

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Any = None, *, scaler: Any = None) -> Any:
        """Refresh the moments of the given losses and update the parameters.

        Args:
            closure: The losses: a mapping from loss index to a scalar tensor with a graph, or to a function without
                arguments that returns one; a sequence of all m losses; a single loss if m = 1; or a function that
                returns any of these. Losses other than those of :meth:`next_losses` are allowed.
            scaler: ``torch.amp.GradScaler``: losses are scaled, gradients unscaled once, and the step is skipped if
                they are not finite. Call ``scaler.update()`` afterwards as usual.

        Returns:
            The refreshed losses, a dict from index to detached tensor.

        Raises:
            InvalidValueError: If an index is out of range or repeated, two losses are one object, a loss is not a
                scalar or has no graph, or a gradient or the update is not finite under ``nonfinite="raise"``.
            InvalidTypeError: If a loss is neither a tensor nor a function, a gradient is sparse, or the scaler none.
        """
        values, weights = self._refresh(closure, scaler)
        if weights is None:
            return values
        lrs = [float(group["lr"]) for group in self.param_groups]
        decays = [lr * group["weight_decay"] for lr, group in zip(lrs, self.param_groups, strict=True)]
        for stretch in self._updates(weights):
            targets = self._moments.targets(stretch, self._moments.parameters)
            if decays[stretch.group]:
                torch._foreach_mul_(targets, 1.0 - decays[stretch.group])
            torch._foreach_sub_(targets, stretch.parts, alpha=lrs[stretch.group])
        return values

    @outside_graphs
    @torch.no_grad()
    def direction(self, closure: Any, *, scaler: Any = None) -> list[Tensor]:
        """Advance the moments as :meth:`step` does, but return the update instead of making it.

        What comes back, times the learning rate, is what :meth:`step` would subtract (weight decay aside). Given to
        another optimizer as gradient it makes the ablations: with SGD the official formulation, with Adam the variant
        that the paper reports as worse.

        Args:
            closure: As for :meth:`step`.
            scaler: As for :meth:`step`.

        Returns:
            One tensor per parameter, in the order of the parameter groups; zero where there is no update.

        Raises:
            InvalidValueError: As for :meth:`step`.
            InvalidTypeError: As for :meth:`step`.
        """
        _, weights = self._refresh(closure, scaler)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        directions = [torch.zeros_like(parameter) for parameter in parameters]
        if weights is not None:
            place_of = {id(parameter): direction for parameter, direction in zip(parameters, directions, strict=True)}
            places = [place_of[id(parameter)] for parameter in self._moments.parameters]
            for stretch in self._updates(weights):
                torch._foreach_copy_(self._moments.targets(stretch, places), stretch.parts)
        return directions

    def _refresh(self, closure: Any, scaler: Any) -> tuple[dict[int, Tensor], np.ndarray | None]:
        """Move the moments and solve for the weights of the update: None while there is no update."""
        chosen = named_losses(closure, self.num_losses)
        indices = loss_indices(chosen, self.num_losses, "step")
        check_distinct(list(chosen.values()))
        trainable = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if not trainable:
            raise InvalidStateError("every parameter of MConFIG is frozen; set requires_grad on those to train")
        scaling = is_scaling(scaler)

        values: dict[int, Tensor] = {}
        gradients: list[list[Tensor | None]] = []
        for index, key in zip(indices, chosen, strict=True):
            loss = evaluate_loss(chosen[key], index)
            values[index] = loss.detach()
            gradients.append(
                loss_gradient(
                    scaled_loss(loss, scaler),
                    index,
                    trainable,
                    by=self.gradients_by,
                    retain_graph=index != indices[-1],
                )
            )

        with autocast_off(trainable[0].device):
            gradients = self._reducer.average(gradients)
            if scaling:
                gradients = unscale_gradients(scaler, self, trainable, gradients)
            self._sync_layout(trainable, gradients)
            flat = [self._moments.flatten([row[position] for position in self._positions]) for row in gradients]
            failed = [
                index
                for index, vectors in zip(indices, flat, strict=True)
                if not all_finite(vectors, headroom=_HEADROOM)
            ]
            if self._reducer.agree(bool(failed), trainable[0].device):
                self._report_nonfinite(failed, gradients, indices, trainable, raising=not scaling)
                return values, None
            weights = self._advance(indices, flat, values)
            if weights is not None and self._solution is not None and not self._solution.reach <= self._largest_reach:
                self._solution = None
                if self.nonfinite == "raise" and not scaling:
                    raise overflow_error()
                self.skipped_steps += 1
                return values, None
            self._step += weights is not None
            return values, weights

    def _advance(self, indices: list[int], flat: list[list[Tensor]], values: dict[int, Tensor]) -> np.ndarray | None:
        betas = self._betas()
        for index, vectors in zip(indices, flat, strict=True):
            self._moments.refresh(index, vectors, betas)
            self._history.record(index, float(values[index]))
        if self.second_moment == "pseudo":
            self._refresh_gramian(indices)
        self._selector.advance()
        if not self._history.ready():
            return None
        corrections = self._history.corrections(betas)
        if self.second_moment == "pseudo":
            scale = 1.0 / corrections[0]
            return scale * self._solve(self._history.gramian * scale * scale[:, None])
        return self._solve(self._sum_shards(self._moments.normalised_gramian(corrections, self._eps())))

    def _refresh_gramian(self, indices: list[int]) -> None:
        # The dot products are recomputed, not moved by increments, so rounding errors do not pile up; the occasional
        # full pass also heals a Gramian whose moments were edited from outside.
        self._since_recompute += 1
        if self._since_recompute >= self.recompute_every:
            indices = list(range(self.num_losses))
            self._since_recompute = 0
        self._history.set_products(indices, self._sum_shards(self._moments.dot_products(indices)))

    def _solve(self, gramian: np.ndarray) -> np.ndarray:
        """Coefficients of the aggregator, zero for excluded losses."""
        losses, active = self._history.values, self._history.active()
        if len(active) < self.num_losses:
            gramian, losses = gramian[np.ix_(active, active)], losses[active]
        self._solution = Solution(
            self.aggregator, torch.from_numpy(gramian), losses.tolist(), gradient_dtype=self._precision
        )
        weights = np.zeros(self.num_losses)
        weights[active] = self._reducer.share_weights(self._solution.alpha, self._device()).numpy(force=True)
        return weights

    def _updates(self, weights: np.ndarray) -> Iterator[Stretch]:
        betas, eps = self._betas(), self._eps()
        accumulate = None if self._solution is None else self._solution.accumulate
        if float(np.abs(weights).max()) > _LARGE:
            accumulate = torch.float64
        with autocast_off(self._device()):
            if self.second_moment == "pseudo":
                yield from self._moments.pseudo_updates(weights, betas, self._step, eps, accumulate=accumulate)
            else:
                corrections = self._history.corrections(betas)
                yield from self._moments.separate_updates(weights, corrections, eps, accumulate=accumulate)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as copies.

        Returns:
            ``"state"`` (per parameter ``exp_avgs`` (m, ...), ``pseudo_exp_avg``, ``exp_avg_sq``), ``"param_groups"``,
            and ``"mconfig"`` (t, t_i, Gramian, selection, aggregator, last losses): tensors, numbers, strings, lists
            and dicts only.
        """
        state = super().state_dict()
        state["state"] = {
            key: {name: tensor.clone() for name, tensor in entry.items()} for key, entry in state["state"].items()
        }
        state["mconfig"] = {
            "num_losses": self.num_losses,
            "second_moment": self.second_moment,
            "step": self._step,
            "history": self._history.state_dict(),
            "since_recompute": self._since_recompute,
            "skipped_steps": self.skipped_steps,
            "selector": self._selector.state_dict(),
            "aggregator": dict(self.aggregator.state_dict()),
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; a run resumed so equals the uninterrupted one bit for bit.

        Args:
            state_dict: The state; nothing is changed unless all of it fits.

        Raises:
            InvalidValueError: If the state is of another optimizer, another number of losses, other parameters, another
                kind of selection or another aggregator, or if a part of it is missing, out of range or NaN.
            InvalidTypeError: If a part of it is of another type.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        check_saved_state(state_dict, self.param_groups, num_losses=self.num_losses, second_moment=self.second_moment)
        own, moments = state_dict["mconfig"], state_dict["state"]
        selection = copy.deepcopy(self._selector.state_dict())
        self._selector.load_state_dict(own["selector"])
        try:
            load_or_restore(self.aggregator, own["aggregator"], "the aggregator")
        except InvalidValueError:
            self._selector.load_state_dict(selection)
            raise
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for group in self.param_groups:
            group["betas"] = tuple(group["betas"])
        self._step = own["step"]
        self._history.load_state_dict(own["history"])
        self._since_recompute = own["since_recompute"]
        self.skipped_steps = own["skipped_steps"]
        self._solution = None
        self._layout = None
        self._build_moments([parameters[key] for key in sorted(moments)])
        for key, views in zip(sorted(moments), self._moments.views, strict=True):
            for name, view in views.items():
                view.copy_(moments[key][name])

    def __getstate__(self) -> dict[str, Any]:
        # The base class would keep only groups and state; "step" is where schedulers hang their bound wrapper.
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def _sum_shards(self, entries: np.ndarray) -> np.ndarray:
        if self._reducer.active() != "sharded":
            return entries
        return self._reducer.sum_shards(torch.from_numpy(entries).to(self._device())).cpu().numpy()

    def _betas(self) -> tuple[float, float]:
        return common_betas(self.param_groups)

    def _eps(self) -> list[float]:
        return [group["eps"] for group in self.param_groups]

    def _device(self) -> torch.device:
        return self.param_groups[0]["params"][0].device

    def _report_nonfinite(
        self,
        failed: list[int],
        gradients: list[list[Tensor | None]],
        indices: list[int],
        trainable: list[Tensor],
        *,
        raising: bool,
    ) -> None:
        if self.nonfinite == "skip" or not raising:
            self.skipped_steps += 1
            return
        if not failed:
            raise InvalidValueError("a gradient on another process is not finite; its own error names the loss")
        row = gradients[indices.index(failed[0])]
        names = parameter_names(self.param_groups)
        culprits = [names[id(p)] for p, g in zip(trainable, row, strict=True) if g is not None and not all_finite([g])]
        reason = "is not finite" if culprits else "is so large that the update may not be finite"
        raise InvalidValueError(
            f"the gradient of loss {failed[0]} with respect to {culprits[0] if culprits else 'the parameters'} "
            f"{reason}; nothing was changed: lower the learning rate, or pass nonfinite='skip' to leave such steps out"
        )

    def _sync_layout(self, trainable: list[Tensor], gradients: list[list[Tensor | None]]) -> None:
        """Hold moments for exactly the trainable parameters that some loss has reached."""
        layout = [(id(parameter), parameter.device) for parameter in trainable]
        reached = {position for row in gradients for position, gradient in enumerate(row) if gradient is not None}
        if layout == self._layout and reached.issubset(self._positions):
            return
        tracked = {id(parameter) for parameter in self._moments.parameters}
        self._positions = [i for i, parameter in enumerate(trainable) if i in reached or id(parameter) in tracked]
        self._layout = layout
        self._precision = max({p.dtype for p in trainable}, key=lambda dtype: torch.finfo(dtype).eps)
        self._largest_reach = torch.finfo(torch.promote_types(self._precision, torch.float32)).max / 2
        lost = not tracked.issubset(id(parameter) for parameter in trainable)
        self._build_moments([trainable[position] for position in self._positions])
        if lost and self.second_moment == "pseudo":
            everything = list(range(self.num_losses))
            self._history.set_products(everything, self._sum_shards(self._moments.dot_products(everything)))

    def _build_moments(self, parameters: Sequence[Tensor]) -> None:
        group_of = {id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]}
        old = self._moments
        self._moments = Moments(
            parameters, [group_of[id(parameter)] for parameter in parameters], self.num_losses, self.second_moment
        )
        self._moments.adopt(old)
        for parameter in old.parameters:
            self.state.pop(parameter, None)
        for parameter, views in zip(self._moments.parameters, self._moments.views, strict=True):
            self.state[parameter] = views
