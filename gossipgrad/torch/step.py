"""A training step of one rank: calls from hooks of autograd and `step()` into the core, layer by layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gossipgrad.errors import warn
from gossipgrad.torch.modules import Layer, Recorder

_MAX_NAMES = 8
# Marks of a gradient in a step, in place of its version at the exchange.
NONE, ADDED = -2, -1
# Advice if a loss, as a GAN's, leads to the parameters of two models.
_THROUGH = "A loss that goes through another wrapped model: loss.backward(inputs=list(the_one_to_train.parameters()))"
# Alignment of an address that the core reads.
_ALIGNMENT = 64


def listed(names: Sequence[str]) -> str:
    """The first few names, quoted."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(repr(name) for name in names[:_MAX_NAMES]) + more


def check_dense(name: str, gradient: Any) -> None:
    """RuntimeError for a sparse gradient."""
    if gradient.is_sparse:
        raise RuntimeError(f"{name}: a sparse gradient; allowed: dense ones, as of Embedding(sparse=False)")


class Step:
    """The current step, with tensors in the host's memory: parameters and their gradients are views of the arenas.

    Autograd adds to the gradient's view. If it, or zero_grad(), has replaced the view by another tensor, the hook
    copies that tensor once, and the view takes its place again. A new step first sets the last step's gradients to
    zero. Gradients of large parameters are autograd's own tensors, and the core reads them in place: adding to a view
    costs as much as a copy. They are None when a step begins.

    The hooks run for every parameter in every step. So their variables are bound when they are made, and with one rank,
    which has no messages, they do not poll.

    optimizer  of torch, whose step precedes the exchange: gradients are then autograd's alone, and no hooks exist;
               None: the core's.
    frozen     parameters, by name, that must not train.
    """

    in_place = True  # True if gradients of large parameters are read in place

    def __init__(
        self,
        core: Any,
        local: int,
        layers: Sequence[Layer],
        *,
        polls: bool,
        overlap: bool,
        optimizer: Any = None,
        next_rates: Callable[[], None],
        frozen: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._core, self._local, self.layers, self._next_rates = core, local, layers, next_rates
        self._optimizer, self._frozen = optimizer, frozen
        self.overlap = overlap and optimizer is None
        self._exchanges = self.overlap  # True if the next backward pass exchanges gradients; otherwise it only adds
        self._synchronised = True
        self.polls = polls
        self.open = False  # True if the core's step has begun
        self.rested = True  # True if all weights are current, between two steps
        self.early: set[int] | None = None  # layers without an announcing hook; None: not known yet, so all
        self.recorder: Recorder | None = None
        self.warned = False
        self.of_optimizer = False  # True during the optimizer's own step
        self._stale = True  # True if gradients hold values of a finished step
        self.weights, self.gradients = (
            {
                name: torch.from_numpy(arena[name]).view(tensor.shape)
                for layer in layers
                for name, tensor in layer.parameters + layer.statistics
            }
            for arena in (core.weights(local), core.gradients(local))
        )
        # For each parameter its layer, its name and the tensor; for each layer its statistics.
        self._parameters = [(i, *one) for i, layer in enumerate(layers) for one in layer.parameters]
        large = set(core.large()) if self.in_place and optimizer is None else set()
        self._large = [name in large for _, name, _ in self._parameters]
        # For each layer with large parameters: these, and the core's tensors in its order, None: in the arena.
        self._elsewhere = [
            [(name, tensor) if name in large else None for name, tensor in layer.parameters + layer.statistics]
            if any(name in large for name, _ in layer.parameters)
            else None
            for layer in layers
        ]
        self._statistics = [
            [(buffer, self.weights[name], self.gradients[name]) for name, buffer in layer.statistics]
            for layer in layers
        ]
        self._addresses = [self.weights[name].data_ptr() for _, name, _ in self._parameters]
        self._counts = [len(layer.parameters) for layer in layers]
        # By the layer's key: unexchanged changes of statistics by forward passes of an abandoned step.
        self.pending: dict[str, list[Any]] = {}
        self.needed = [False] * len(layers)
        self.ready = [False] * len(layers)
        self._left = [0] * len(layers)  # gradients missing before the layer's exchange begins
        self._seen = [NONE] * len(self._parameters)
        self._exchanged: list[Any] = [None] * len(self._parameters)  # the tensors of these versions
        # For each parameter the version at its last forward pass, or its gradient; NONE: neither.
        self._held = [NONE] * len(self._parameters)
        # Parameters that their module writes in each forward pass, as Embedding(max_norm=...).
        self._rewritten = [getattr(layers[i].module, "max_norm", None) is not None for i, _, _ in self._parameters]
        # For weights in flight between two steps: the versions of parameters at the end of the last step.
        self._in_flight = not core.current_at_end()
        self._ended: list[int] | None = None

    @property
    def synchronised(self) -> bool:
        """False: backward passes only add gradients up."""
        return self._synchronised

    @synchronised.setter
    def synchronised(self, value: bool) -> None:
        self._synchronised = value
        self._exchanges = value and self.overlap

    # ---- the module's tensors

    def bind(self) -> None:
        """Point parameters at the arenas, which hold their values."""
        for _, name, tensor in self._parameters:
            tensor.data = self.weights[name]

    def unbind(self) -> None:
        """Give parameters memory of their own."""
        for _, _, tensor in self._parameters:
            tensor.data = tensor.data.clone()
            tensor.grad = None

    def forget(self) -> None:
        """Leave the arenas: no call of a step is allowed from here on."""
        self.weights.clear()
        self.gradients.clear()
        self._statistics = [[] for _ in self.layers]
        self.leave()
        self.rested = True

    def hooks(self) -> list[Any]:
        """Put a hook on each parameter; the handles that remove them."""
        if self._optimizer is not None:
            return []
        return [
            tensor.register_post_accumulate_grad_hook(self._hook(place, layer, tensor, self.gradients[name]))
            for place, (layer, name, tensor) in enumerate(self._parameters)
        ]

    def _hook(self, place: int, layer: int, tensor: Any, own: Any) -> Callable[[Any], None]:
        poll, send, complete = self._poller(), self._sender(place, tensor), self._layer_is_there
        elsewhere = self._lies_elsewhere(place)

        def after_gradient(_: Any) -> None:
            if elsewhere:
                check_dense(self._parameters[place][1], tensor.grad)
            elif tensor.grad is not own:
                self._adopt(place)
            self._held[place] = tensor._version
            if self._exchanges:
                if self._left[layer] == 0 or self._seen[place] >= 0:
                    self._refuse(place)
                self._seen[place], self._exchanged[place] = tensor.grad._version, tensor.grad
                if send is not None:
                    send()
                self._left[layer] -= 1
                if self._left[layer] == 0:
                    complete(layer)
                if poll is not None:
                    poll()
            elif not self.open or self.ready[layer]:
                self._refuse(place)
            else:
                self._seen[place] = ADDED

        return after_gradient

    # Actions of hooks are bound before the first step; these choose them.

    def _lies_elsewhere(self, place: int) -> bool:
        """True if the parameter's gradient is in memory of autograd's own, not in the arena."""
        return self._large[place]

    def _sender(self, place: int, tensor: Any) -> Callable[[], None] | None:
        """The function called with each gradient to exchange, before its layer is complete; None: not needed."""
        return None

    def _poller(self) -> Callable[[], None] | None:
        """The function called at the end of each hook; None: not needed."""
        return functools.partial(self._core.poll, self._local) if self.polls else None

    def _layer_is_there(self, layer: int) -> None:
        """Handle a layer with all of its gradients."""
        self._finish(layer)

    def _refuse(self, place: int) -> None:
        name = self._parameters[place][1]
        if not self.open:
            raise RuntimeError(
                f"{name}: a gradient outside of a step: this backward pass belongs to a forward pass before the last "
                f"model.step(). {_THROUGH}"
            )
        raise RuntimeError(
            f"{name}: a second gradient in step {self._core.step}, after its layer was exchanged. Allowed: all "
            "backward passes of a step but the last under `with model.no_sync():`, or wrap(..., overlap=False). "
            f"{_THROUGH}"
        )

    def _adopt(self, place: int) -> None:
        """Copy a tensor that replaced the parameter's gradient view into the view, which takes its place again."""
        _, name, tensor = self._parameters[place]
        own, given = self.gradients[name], tensor.grad
        with torch.no_grad():
            if given is None:
                own.zero_()
            else:
                check_dense(name, given)
                own.copy_(given)
        tensor.grad = own

    def _clear_gradients(self) -> None:
        """Make gradients views again, and zero except for additions since the last step."""
        if self._stale:
            self._core.zero_gradients(self._local)
            if not self.in_place:
                for name in self._core.large():
                    self.gradients[name].zero_()
        for place, (_, name, tensor) in enumerate(self._parameters):
            own = self.gradients[name]
            if self._large[place]:
                if self._stale:
                    tensor.grad = None
            elif tensor.grad is None and self._stale:
                tensor.grad = own
            elif tensor.grad is not own:
                self._adopt(place)
        self._stale = False

    def added_up(self) -> list[str]:
        """Parameters with gradients that no step has taken."""
        if self._stale and self._optimizer is None:
            return []
        return [name for _, name, tensor in self._parameters if tensor.grad is not None and bool(tensor.grad.any())]

    def forget_gradients(self) -> None:
        """Let the next step begin without gradients."""
        self._stale = True
        if self._optimizer is not None:
            for _, _, tensor in self._parameters:
                tensor.grad = None

    def publish(self, layer: int) -> None:
        """After the arena's weights of a layer are current: write the mixed values into buffers."""
        for buffer, weight, _ in self._statistics[layer]:
            buffer.copy_(weight)
        for (buffer, _, _), change in zip(
            self._statistics[layer], self.pending.get(self.layers[layer].key, ()), strict=False
        ):
            buffer.add_(change)

    def publish_all(self) -> None:
        """publish for all layers."""
        for layer in range(len(self.layers)):
            self.publish(layer)
        self.rested = True
        self.written_by_module()  # publishing may write parameters

    def _publish_statistics(self) -> None:
        """At a step's end weights are current, and so are the buffers of statistics."""
        for layer, statistics in enumerate(self._statistics):
            if statistics:
                self.publish(layer)

    def written_by_module(self) -> None:
        """Accept writes to parameters by their module, not the caller, as of Embedding(max_norm=...) in an
        evaluation."""
        if self._ended is not None:
            self._ended = self._versions()
        if self.open:
            self.hold()

    def settled(self) -> None:
        """Nothing is in flight: all weights are current, and may be written. The number of ranks may be another one."""
        self.publish_all()
        self._in_flight = not self._core.current_at_end()
        self._ended = None

    # ---- a step

    def begin(self) -> None:
        """Begin the step, unless it has begun."""
        if self.open:
            return
        for _, name, tensor in self._parameters:
            if not tensor.requires_grad:
                raise RuntimeError(
                    f"{name}: was trained when the module was wrapped; allowed: close(), and to wrap the module "
                    "again without it"
                )
        for name, tensor in self._frozen:
            if tensor.requires_grad:
                raise RuntimeError(
                    f"{name}: was frozen when the module was wrapped; allowed: close(), and to wrap the module again "
                    "with it"
                )
        self._check_memory()
        self.check_unwritten()
        self._next_rates()
        self._core.begin(self._local)
        self.open, self.rested, self._ended = True, False, None
        count = len(self.layers)
        self.needed, self.ready = [False] * count, [False] * count
        self._left = list(self._counts)
        self._seen = [NONE] * len(self._parameters)
        self._held = [NONE] * len(self._parameters)
        if self._optimizer is None:
            self._clear_gradients()
        for layer in range(count) if self.early is None else sorted(self.early):
            self.need(layer)

    def _check_memory(self) -> None:
        """RuntimeError if a parameter is no view of the arena any more."""
        for address, (_, name, tensor) in zip(self._addresses, self._parameters, strict=True):
            if tensor.data_ptr() != address:
                raise RuntimeError(
                    f"{name}: its memory was replaced after the module was wrapped, as by module.to(), .half() or an "
                    "assignment to .data; allowed: before wrap, or after close()"
                )

    def _versions(self) -> list[int]:
        return [tensor._version for _, _, tensor in self._parameters]

    def check_unwritten(self) -> None:
        """RuntimeError if a parameter was written while in flight: the write or the exchange is lost."""
        if self._ended is None:
            return
        for version, (_, name, tensor) in zip(self._ended, self._parameters, strict=True):
            if tensor._version != version:
                raise RuntimeError(
                    f"{name}: was written between model.step() and the next forward pass, while an exchange was in "
                    "flight, which would mix it with what a partner sent, or lose it. Allowed: model.settle() first, "
                    "on all ranks, or model.load_state_dict()"
                )

    def hold(self) -> None:
        """After a forward pass: accept the parameters' values as the module's own."""
        self._held = self._versions()

    def check_held(self) -> None:
        """RuntimeError if a parameter was written between the forward pass and the end of the step."""
        if not self.open:
            return
        for place, (_, name, tensor) in enumerate(self._parameters):
            if self._held[place] not in (NONE, tensor._version) and not self._rewritten[place]:
                raise RuntimeError(
                    f"{name}: was written between the forward pass and model.step(), as another optimizer would do; "
                    "what was written would reach no other rank, or be lost. Allowed: model.step() alone; of your own, "
                    "as to clip weights, between two steps after model.settle()"
                )

    def leave(self) -> None:
        """Abandon a step in which no layer is ready; it will begin again. Summed gradients stay.

        Changes of statistics by its forward passes stay as well: the next exchange includes them.
        """
        if self.open:
            self.note_pending([layer for layer, needed in enumerate(self.needed) if needed])
            self._core.leave(self._local)
        self.open = False
        self._left = [0] * len(self.layers)

    def note_pending(self, layers: Sequence[int]) -> None:
        """Note that the buffers of these layers hold changes of statistics still to be exchanged."""
        for layer in layers:
            changes = [buffer - weight for buffer, weight, _ in self._statistics[layer]]
            self.pending.pop(self.layers[layer].key, None)
            if any(bool(one.any()) for one in changes):
                self.pending[self.layers[layer].key] = changes

    def need(self, layer: int) -> None:
        """Wait until the layer's weights are current."""
        if not self.needed[layer]:
            self._core.need(self._local, layer)
            self.needed[layer] = True
            self.publish(layer)

    def _finish(self, layer: int) -> None:
        """Handle a layer whose gradients are final."""
        if not self.needed[layer]:
            self.need(layer)
        self._differences(layer)
        elsewhere = self._elsewhere[layer]
        addresses = None if elsewhere is None else [0 if one is None else self._address(*one) for one in elsewhere]
        self.ready[layer] = True
        self._core.ready(self._local, layer, addresses)

    def _differences(self, layer: int) -> None:
        """Make the changes to subtract from statistics their gradient."""
        for buffer, weight, difference in self._statistics[layer]:
            torch.sub(weight, buffer, out=difference)
        if self.pending:
            self.pending.pop(self.layers[layer].key, None)

    def exchanged(self) -> bool:
        """True if the exchange of some layer has begun in the current step."""
        return self.open and True in self.ready

    def _address(self, name: str, tensor: Any) -> int:
        """Address at which the core can read a large parameter's gradient; 0: in the arena."""
        gradient, own = tensor.grad, self.gradients[name]
        if gradient is own:
            return 0
        with torch.no_grad():
            if gradient is None:
                own.zero_()
                return 0
            check_dense(name, gradient)
            address = int(gradient.data_ptr())
            if gradient.is_contiguous() and address % _ALIGNMENT == 0:
                return address
            own.copy_(gradient)
        return 0

    def end(self) -> None:
        """End the step: all layers are made ready. RuntimeError: no gradient came, or one changed too late."""
        self.check_held()
        if self._optimizer is not None:
            self._check_gradients([name for _, name, tensor in self._parameters if tensor.grad is None])
            self.of_optimizer = True
            try:
                self._step_of_optimizer()
            finally:
                self.of_optimizer = False
        elif NONE in self._seen or ADDED in self._seen:
            self._check_gradients(self._without())
        self._check_exchanged()
        for layer in reversed(range(len(self.layers))):
            if not self.ready[layer]:
                self._complete(layer)
        self._core.end(self._local)
        self.open = False
        self._left = [0] * len(self.layers)
        self._exchanged = [None] * len(self._parameters)
        self._stale = True
        if self._in_flight:
            self._ended = self._versions()
        elif self.polls:
            self._publish_statistics()
        if self._optimizer is not None:
            for _, _, tensor in self._parameters:
                tensor.grad = None

    def _without(self) -> list[str]:
        """Parameters without a gradient, from a backward pass or by hand."""
        return [
            name
            for seen, (_, name, tensor) in zip(self._seen, self._parameters, strict=True)
            if seen == NONE and self._is_missing(name, tensor)
        ]

    def _is_missing(self, name: str, tensor: Any) -> bool:
        return tensor.grad is None or (tensor.grad is self.gradients[name] and not bool(tensor.grad.any()))

    def _check_gradients(self, without: Sequence[str]) -> None:
        if len(without) == len(self._parameters) and not any(self.ready):
            raise RuntimeError("step() without a backward pass since the last one: no parameter has a gradient")
        if without and not self.warned:
            self.warned = True
            then = "it counts as zero" if self._optimizer is None else "the optimizer leaves it out, on this rank"
            warn(
                f"{listed(without)}: no gradient in step {self._core.step}; {then}. What is never to train is frozen "
                "before wrap, by requires_grad_(False)"
            )

    def _check_exchanged(self) -> None:
        for seen, exchanged, (_, name, tensor) in zip(self._seen, self._exchanged, self._parameters, strict=True):
            if seen >= 0 and (tensor.grad is not exchanged or tensor.grad._version != seen):
                what = "removed" if tensor.grad is None else "changed" if tensor.grad is exchanged else "replaced"
                raise RuntimeError(
                    f"{name}: its gradient was {what} after it had been exchanged, while the backward pass ran. "
                    "Allowed: wrap(..., overlap=False), which exchanges in step(); to clip, clip_norm= of the "
                    "optimizer"
                )

    def _complete(self, layer: int) -> None:
        """Make a layer ready if gradients are missing, or if it waits for step()."""
        if self._optimizer is None:
            for place, (own, name, tensor) in enumerate(self._parameters):
                if own == layer and tensor.grad is not self.gradients[name] and not self._large[place]:
                    self._adopt(place)
        self._finish(layer)

    def _step_of_optimizer(self) -> None:
        """Make the optimiser's own step; its changes are the gradient of an SGD with a rate of 1."""
        for layer in range(len(self.layers)):
            self.need(layer)
        with torch.no_grad():
            for _, name, _ in self._parameters:
                self.gradients[name].copy_(self.weights[name])
            self._optimizer.step()
            for _, name, _ in self._parameters:
                before, after = self.gradients[name], self.weights[name]
                difference = before - after
                after.copy_(before)
                before.copy_(difference)
