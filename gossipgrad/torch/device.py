"""Modules on a GPU: gradients and weights move between its memory and the arenas through pinned host memory.

`Copies`, one small object, does all calls of the device; `DeviceStep` decides the time of each copy. This has not run
on a GPU: the tests run it with stand-ins for a device's copies, which are late on purpose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gossipgrad.torch.step import NONE, Step, check_dense


class Moment(Protocol):
    """A point in the sequence of a device's work."""

    def query(self) -> bool:
        """True if the device has reached it."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""


class Copies(Protocol):
    """Copies between a device's memory and pinned memory of the host, which run beside the device's computing."""

    def pinned(self, like: Any) -> Any:
        """A host tensor of this shape and dtype, for copies from and to the device."""

    def computed(self) -> Moment:
        """The moment after all computations given to the device so far."""

    def copied(self) -> Moment:
        """The moment after all copies requested so far."""

    def down(self, source: Any, host: Any) -> None:
        """Begin to copy a tensor of the device to pinned memory, after its computation. `source` may be freed."""

    def up(self, host: Any, target: Any, after: Moment) -> None:
        """Begin to copy pinned memory to a tensor of the device, after the moment `after`."""

    def compute_after_copies(self) -> None:
        """Let later computations of the device begin after all copies requested so far."""


class CudaCopies:
    """Copies of torch.cuda, on a stream of their own. One object a device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def pinned(self, like: Any) -> Any:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def _event(self, stream: Any) -> Moment:
        event: Moment = torch.cuda.Event()
        event.record(stream)  # type: ignore[attr-defined]
        return event

    def computed(self) -> Moment:
        return self._event(torch.cuda.current_stream(self._device))

    def copied(self) -> Moment:
        return self._event(self._stream)

    def down(self, source: Any, host: Any) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(source.detach(), non_blocking=True)
        source.record_stream(self._stream)  # its memory is not given away before the copy is done

    def up(self, host: Any, target: Any, after: Any) -> None:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream), torch.no_grad():
            target.copy_(host, non_blocking=True)

    def compute_after_copies(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def copies_of(device: Any) -> Copies | None:
    """The copies of modules on this device; None: their tensors are in the host's memory."""
    if device.type == "cpu":
        return None
    return CudaCopies(device)


class DeviceStep(Step):
    """The current step, with tensors on a device: they and their gradients stay there, autograd's as ever.

    The hook of a parameter begins to copy its gradient down. Later hooks and step() check for arrivals. When a layer is
    complete, its gradients are written to the arena and its exchange begins. The exchanged weights are copied up when
    the next forward pass needs the layer; the device waits for the copy, the host does not.
    """

    def __init__(self, *args: Any, copies: Copies, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._copies = copies
        tensors = [pair for layer in self.layers for pair in layer.parameters + layer.statistics]
        self._from_device = {name: copies.pinned(tensor) for name, tensor in tensors}
        self._to_device = {name: copies.pinned(tensor) for name, tensor in tensors}
        self._coming: deque[tuple[int, Moment]] = deque()  # layers whose gradients are on their way, in order
        self._sent: list[Moment | None] = [None] * len(self.layers)  # the last copy up of each layer
        self._free = copies.computed()  # the last reader of the old weights is before this moment

    def bind(self) -> None:
        """Leave parameters where they are."""

    def _check_memory(self) -> None:
        """No check: their memory is their own."""

    def unbind(self) -> None:
        for _, _, tensor in self._parameters:
            tensor.grad = None

    def _lies_elsewhere(self, place: int) -> bool:
        return True

    def _sender(self, place: int, tensor: Any) -> Callable[[], None]:
        host = self._from_device[self._parameters[place][1]]
        return lambda: self._copies.down(tensor.grad, host)

    def _poller(self) -> Callable[[], None]:
        poll = super()._poller()

        def arrive_and_poll() -> None:
            self._arrive(wait=False)
            if poll is not None:
                poll()

        return arrive_and_poll

    def _layer_is_there(self, layer: int) -> None:
        """Note that all gradients of a layer are on their way; its statistics follow them."""
        for name, buffer in self.layers[layer].statistics:
            self._copies.down(buffer, self._from_device[name])
        self._coming.append((layer, self._copies.copied()))

    def _arrive(self, wait: bool) -> None:
        """Write arrived layers to the arenas, and begin their exchange."""
        while self._coming:
            layer, moment = self._coming[0]
            if wait:
                moment.synchronize()
            elif not moment.query():
                return
            self._coming.popleft()
            if self._optimizer is None:
                for name, _ in self.layers[layer].parameters:
                    self.gradients[name].copy_(self._from_device[name])
            self._finish(layer)

    def _clear_gradients(self) -> None:
        """A no-op: gradients are autograd's own."""

    def begin(self) -> None:
        if not self.open:
            self._free = self._copies.computed()
        super().begin()

    def publish(self, layer: int) -> None:
        """Copy weights and statistics of a layer up; later computations see them."""
        before = self._sent[layer]
        if before is not None:
            before.synchronize()  # the pinned memory is free
        place = self.layers[layer]
        for name, tensor in place.parameters + place.statistics:
            self._to_device[name].copy_(self.weights[name])
            self._copies.up(self._to_device[name], tensor, self._free)
        self._sent[layer] = self._copies.copied()
        self._copies.compute_after_copies()
        for at, (own, _, tensor) in enumerate(self._parameters):
            if own == layer and self._held[at] != NONE:
                self._held[at] = tensor._version  # that copy was no write of the caller's

    def _publish_statistics(self) -> None:
        """A no-op: they come with the layer's weights, when the next forward pass needs it."""

    def note_pending(self, layers: Sequence[int]) -> None:
        """Statistics of an abandoned step are those before it."""

    def publish_all(self) -> None:
        self._free = self._copies.computed()
        super().publish_all()

    def _differences(self, layer: int) -> None:
        for name, _ in self.layers[layer].statistics:
            torch.sub(self.weights[name], self._from_device[name], out=self.gradients[name])

    def exchanged(self) -> bool:
        self._arrive(wait=True)
        return super().exchanged()

    def end(self) -> None:
        self._arrive(wait=True)
        super().end()
        for _, _, tensor in self._parameters:
            tensor.grad = None

    def _is_missing(self, name: str, tensor: Any) -> bool:
        return tensor.grad is None

    def _complete(self, layer: int) -> None:
        if self._optimizer is None:
            for name, tensor in self.layers[layer].parameters:
                if tensor.grad is None:
                    self._from_device[name].zero_()
                else:
                    check_dense(name, tensor.grad)
                    self._copies.down(tensor.grad, self._from_device[name])
        self._layer_is_there(layer)
        self._arrive(wait=True)

    def _step_of_optimizer(self) -> None:
        for layer in range(len(self.layers)):
            self.need(layer)
        self._optimizer.step()
        for _, name, tensor in self._parameters:
            self._copies.down(tensor, self._from_device[name])
        self._copies.copied().synchronize()
        for _, name, _ in self._parameters:
            torch.sub(self.weights[name], self._from_device[name], out=self.gradients[name])
