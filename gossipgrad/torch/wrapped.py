"""One rank's module, whose parameters lie in the core's arenas: hooks that exchange layers while autograd runs."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from gossipgrad.errors import LARGEST, CommunicationError, number
from gossipgrad.exchange.survivor import Survivor, View, collective
from gossipgrad.launch import agreement, stall
from gossipgrad.state import outputs, trace
from gossipgrad.team import Team
from gossipgrad.torch import device, second_moment
from gossipgrad.torch.consensus import mean_arenas, mean_optimizer, mean_state_dict
from gossipgrad.torch.device import DeviceStep
from gossipgrad.torch.group import Group
from gossipgrad.torch.modules import (
    Recorder,
    device_of,
    hook,
    is_compiled,
    is_scripted,
    load_tensors,
    original,
    owners,
    unhook,
)
from gossipgrad.torch.optimizers import mark_states, ranks_of_processes, unwatch, watch
from gossipgrad.torch.samplers import watch_samplers
from gossipgrad.torch.step import Step, listed
from gossipgrad.torch.synchronised import synchronise
from gossipgrad.torch.training_state import arrays_of, checked, checksums_of, copies_of, rank_of, state_of
from gossipgrad.training import mixing

# The order of layers is checked again after this many steps, and after each power of two below.
_LOOK_EVERY = 1024
_UNEQUAL = (
    "If no rank has failed, ranks make unequal numbers of steps, as where their loaders have unequal lengths, or one "
    "rank alone makes a collective call. Allowed: loaders of one length, as DistributedSampler gives, calls by all"
)


class _Announcement:
    """The hook before a module's forward pass. A copy of the module, or its pickle, announces nothing."""

    def __init__(self, wrapped: Wrapped | None) -> None:
        self._wrapped = wrapped
        self.layers: Sequence[int] = ()  # the layers that own tensors of the module

    def __call__(self, part: Any, _: Any) -> None:
        if self._wrapped is not None:
            self._wrapped._before_forward(self.layers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Announcement, (None,)


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    """The result of gossipgrad.torch.wrap: the module, called as it is, and `step()` in place of an optimiser's.

    One rank of a group. `module` is the wrapped module; its trainable parameters are views of the core's memory.
    """

    def __init__(self, module: Any, group: Group, rank: int, overlap: bool, optimizer: Any) -> None:
        super().__init__()
        self.module = module
        self._group, self._local, self._optimizer = group, rank, optimizer
        self._overlap = overlap
        group.members.append(self)
        trained = {id(tensor) for layer in group.layers[rank] for _, tensor in layer.parameters}
        self._frozen = [one for one in original(module).named_parameters() if id(one[1]) not in trained]
        self._identities = [id(tensor) for tensor in original(module).parameters()]
        self._done = 0  # steps of this rank
        self._handles: list[Any] = []
        self._gradient_hooks: list[Any] = []
        self._closed = False
        self._copies = device.copies_of(device_of(group.layers[rank]))
        self._announcements: dict[Any, _Announcement] = {}
        self._bind()
        hook(self, list(self._announcements))
        if not is_compiled(module):
            hooked = {part: one for part, one in self._announcements.items() if not is_scripted(part)}
            self._handles += [part.register_forward_pre_hook(one) for part, one in hooked.items()]
        self._handles += synchronise(module, group.team)
        watch(self)
        if group.team.local < group.team.size or group.grows:
            stall.advise("Ranks whose loaders have unequal lengths make unequal numbers of steps")
            watch_samplers(ranks_of_processes)
        if optimizer is not None:
            self._handles += mark_states(self, optimizer) + second_moment.of_mean(optimizer, group)

    def _bind(self) -> None:
        """Point parameters at the core's arenas, which hold their values."""
        group = self._group
        self._layers = group.layers[self._local]
        keywords = {
            "polls": group.team.size > 1 or group.grows,
            "overlap": self._overlap,
            "optimizer": self._optimizer,
            "next_rates": group.next_rates,
            "frozen": self._frozen,
        }
        place = group.core, self._local, self._layers
        copies = self._copies
        self._step = Step(*place, **keywords) if copies is None else DeviceStep(*place, copies=copies, **keywords)
        self._step.bind()
        self._gradient_hooks = self._step.hooks()
        for part, layers in owners(self.module, self._layers).items():
            self._announcements.setdefault(part, _Announcement(self)).layers = layers

    def _unhook_gradients(self) -> None:
        while self._gradient_hooks:
            self._gradient_hooks.pop().remove()

    # ---- a step

    def _rest(self) -> None:
        """Make all weights of this rank current, without others' help."""
        step = self._step
        step.check_unwritten()
        if self._group.resting():
            if step.open:
                self.settle()
            elif not step.rested:
                members = self._members()
                for one in members:
                    one._step.check_unwritten()
                self._group.core.wait()
                for one in members:
                    one._step.publish_all()
        elif step.open:
            for layer in range(len(self._layers)):
                step.need(layer)
        elif not step.rested:
            self._group.core.wait(self._local)
            step.publish_all()

    def _before_forward(self, layers: Sequence[int]) -> None:
        step = self._step
        if step.recorder is not None:
            step.recorder.enter(layers)
        if not torch.is_grad_enabled():
            if step.open or not step.rested:
                self._rest()
            return
        if not step.open:
            self._begin_step()
        for layer in layers:
            if not step.needed[layer]:
                step.need(layer)
        if step.polls:
            self._group.core.poll(self._local)

    def _begin_step(self) -> None:
        if self._survivor is not None:
            self._survivor.begins()
        self._step.begin()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward pass, with current weights. One training step may have several forward passes.

        RuntimeError: parameters were added after wrapping; or the step's gradients are exchanged.
        """
        step = self._step
        if step.exchanged():
            done = [one.name for one, ready in zip(self._layers, step.ready, strict=True) if ready]
            left = [one.name for one, ready in zip(self._layers, step.ready, strict=True) if not ready]
            if left:
                raise RuntimeError(
                    f"forward pass in the middle of step {self._done}: the gradients of {listed(done)} are "
                    f"exchanged, those of {listed(left)} not, because the backward pass did not reach them (an "
                    "exception?). Allowed: model.step(), for which these count as zero"
                )
            raise RuntimeError(
                f"forward pass in the middle of step {self._done}: its gradients are exchanged. Allowed: "
                "model.step() after each backward pass; `with model.no_sync():` around all passes but the last, to "
                "accumulate gradients"
            )
        if self._closed:
            return self.module(*args, **kwargs)
        step.check_held()
        if not torch.is_grad_enabled():
            self._rest()
            try:
                return self.module(*args, **kwargs)
            finally:
                step.written_by_module()
        if not step.open:
            self._check_parameters()
            self._begin_step()
        if step.polls and step.recorder is None and self._looks():
            step.recorder = Recorder(self._layers)
            with step.recorder, _reason():
                result = self.module(*args, **kwargs)
        else:
            with _reason():
                result = self.module(*args, **kwargs)
        step.hold()
        return result

    def _looks(self) -> bool:
        """True if the current step records the order of layers."""
        after = self._done + 1
        due = self._step.early is None or after & (after - 1) == 0 or after % _LOOK_EVERY == 0
        return self.size > 1 and due and not is_compiled(self.module) and self._survivor is None

    def step(self) -> None:
        """End the training step: all layers are updated and on their way.

        After the backward pass, on every rank, once a step. A parameter whose gradient is missing or None gets a zero
        gradient, so momentum and decay still move it; an optimizer of torch leaves it out. A warning names it.
        Gradients can be read until the next forward pass, which sets them to zero. They are this rank's own, not the
        mean; with an optimizer of torch they are None.

        When step() returns, a partner's message may still be in flight. With GossipGraD(), OverlappedAveraging() and
        servers the module's parameters are not current before the next forward pass. To read them in between (an
        average over steps, AveragedModel(net)): state_dict(), which waits. To write them (to clip weights): settle()
        first, on all ranks; a write without it is a RuntimeError in the next call that names the parameter.

        RuntimeError: there was no backward pass since the last step, or gradients were changed, replaced or removed
        after they had been exchanged.
        """
        if self._closed:
            raise RuntimeError("step() of a model that is closed; allowed: to wrap the module again")
        if not self._step.open:
            raise RuntimeError("step() without a forward and a backward pass since the last one")
        with _reason():
            self._step.end()
        self._done += 1
        if self._survivor is not None:  # the order of layers stays: its change needs all ranks
            self._step.recorder = None
            self._survivor.stepped()
        elif self._step.polls:
            self._look()

    def _check_parameters(self) -> None:
        """RuntimeError if a parameter was added or replaced after the module was wrapped: it would not train."""
        module = original(self.module)
        if [id(tensor) for tensor in module.parameters()] == self._identities:
            return
        known = set(self._identities)
        new = [name for name, tensor in module.named_parameters() if id(tensor) not in known]
        if new:
            raise RuntimeError(
                f"{listed(new)}: not in the module when it was wrapped, so not trained; allowed: close(), and to wrap "
                "the module again"
            )

    def _average_gradients(self) -> None:
        """Make gradients the mean over the ranks, if the strategy sums them. Under MPI collective, before step()."""
        group = self._group
        if group.strategy.replicas_differ or agreement.alone(group.team):
            return
        tensors = [tensor for layer in self._layers for _, tensor in layer.parameters]
        flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in tensors])
        mean = torch.from_numpy(Team.around(group.team).allreduce(flat.cpu().numpy(), "mean")).to(flat.device)
        for one, part in zip(tensors, mean.split([one.numel() for one in tensors]), strict=True):
            if one.grad is not None:
                one.grad.copy_(part.view_as(one))
            elif bool(part.any()):  # of other ranks
                one.grad = part.view_as(one).clone()

    # ---- the order of layers

    def _look(self) -> None:
        """After a step that recorded the order: rank 0's becomes that of the arenas."""
        recorder, self._step.recorder = self._step.recorder, None
        step = self._done
        if recorder is not None:
            self._step.early = recorder.early()
        if not (self.size > 1 and (step & (step - 1) == 0 or step % _LOOK_EVERY == 0)) or is_compiled(self.module):
            return
        if self._group.virtual is not None:  # its messages cost the same in any order
            return
        own = recorder.order() if recorder is not None else list(range(len(self._layers)))
        self._lay_out(self._group.agreed_order(own))

    def _lay_out(self, order: Sequence[int]) -> None:
        """Give the arenas another order of layers, unless they have it. Collective, between two steps, outside of run.

        Where ranks may die or join it stays: a death needs the arenas, and newcomers have that of the module.
        order: of all layers, their current places.
        """
        if order == list(range(len(self._layers))) or self._survivor is not None:
            return
        self.settle()
        members = self._members()
        former = [one._leave_arenas() for one in members]
        self._group.reorder(order)
        for one, (early, synchronised, warned, pending) in zip(members, former, strict=True):
            one._bind()
            one._step.rested = False
            one._step.synchronised, one._step.warned, one._step.pending = synchronised, warned, pending
            if early is not None:
                one._step.early = {order.index(layer) for layer in early}

    def _leave_arenas(self) -> tuple[set[int] | None, bool, bool, dict[str, list[Any]]]:
        """Remove all views of the arenas; returns the state to keep: early, synchronised, warned, pending."""
        step = self._step
        self._unhook_gradients()
        step.unbind()
        del self._step
        return step.early, step.synchronised, step.warned, step.pending

    # ---- beside training

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add gradients up; the first one outside, or step(), exchanges them."""
        before, self._step.synchronised = self._step.synchronised, False
        try:
            yield
        finally:
            self._step.synchronised = before  # `_step` is a new object if step() was called inside

    @property
    def rank(self) -> int:
        """The rank in the group, from 0."""
        return self._group.team.rank + self._local

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._group.team.size

    @property
    def view(self) -> View:
        """The ranks of the group that live: epoch, members, rank, size and changes, as of gossipgrad.Exchange.view."""
        if self._survivor is not None:
            return self._survivor.view()
        return View(0, tuple(range(self.size)), self.rank, self.size, ())

    @property
    def _survivor(self) -> Survivor | None:
        return self._group.survivor

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self._done

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. Set it between two steps, to one value on all ranks; it then stays."""
        if self._group.unfused:  # not an AttributeError, because torch.nn.Module would replace it by another
            raise RuntimeError("learning_rate: is that of the torch optimizer's param_groups")
        return self._group.optimizer.rate(self._done)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self._group.unfused:
            raise AttributeError("learning_rate: is that of the torch optimizer's param_groups")
        self._check_outside_of_run("learning_rate = ...")
        rate = number("learning_rate", value, 0.0, LARGEST)
        self._end_unused_step("learning_rate")
        self._group.set_rate(rate)

    def counts(self) -> dict[str, Any]:
        """Totals of this rank: exposed_seconds, bytes_sent, messages_sent, skipped, clock_seconds, residue.

        As of gossipgrad.Exchange.counts.
        """
        return self._group.counts(self._local)

    def _end_unused_step(self, call: str) -> None:
        """Leave a step that only a forward pass has begun: the next one begins it again."""
        if not self._step.open:
            return
        if self._step.exchanged():
            raise RuntimeError(f"{call} in the middle of step {self._done}; allowed: after model.step()")
        self._step.leave()

    def _check_outside_of_run(self, call: str) -> None:
        """RuntimeError if replicas train, because the call is one of all of them."""
        if self._group.running:
            raise RuntimeError(f"{call} in the function that run calls; allowed: outside of run, between two of them")

    def _members(self) -> list[Wrapped]:
        """The models of this process's ranks that are not closed."""
        return [one for one in self._group.members if not one._closed]

    def _together(self) -> list[Wrapped]:
        """The models that a collective call of this one is made for."""
        return self._members() if self._group.resting() else [self]

    @collective
    def settle(self) -> None:
        """Complete and mix all exchanges in flight. Collective, between two steps.

        ValueError, on all ranks: they have made unequal numbers of steps. RuntimeError after close().
        """
        self._settle("settle")

    def _settle(self, call: str) -> None:
        """settle() for this collective call."""
        if self._closed:
            raise RuntimeError("this model is closed; allowed: state_dict(), or to wrap the module again")
        group = self._group
        together = self._together()
        with _reason(), agreement.agreed(group.team, call, f"step {self._done}") as one:
            for each in together:
                each._end_unused_step(f"{call}()")
                each._step.check_unwritten()
            one.facts, one.hints = {"steps": self._done}, {"steps": _UNEQUAL}
        with stall.within(call) if group.virtual is None else contextlib.nullcontext(), _reason():
            group.settle(self._local)
        for each in together:
            each._step.settled()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, without a prefix: this rank's weights. Not collective; rank 0 alone may save it."""
        self._rest()
        return original(self.module).state_dict(*args, **kwargs)

    @collective
    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The module's own. Collective; ValueError: ranks load states that differ.

        Moments of the optimiser stay. Residues of compression and the copies of partners begin at zero.
        """
        self._check_outside_of_run("load_state_dict()")
        with agreement.agreed(self._group.team, "load_state_dict") as one:
            one.facts = {"state_dict": lambda: checksums_of(state_dict)}
        self._settle("load_state_dict")
        result = original(self.module).load_state_dict(state_dict, *args, **kwargs)
        self._group.load_module(self._local)
        mixing.forget(self._group.core)
        self._step.pending.clear()
        self._step.rested = False
        self._rest()
        return result

    @collective
    def consensus_state_dict(self) -> dict[str, Any]:
        """state_dict of the mean of all ranks' weights, or of the strategy's centre; copies. Collective.

        Buffers other than the running mean and variance of batch normalisation are rank 0's.
        """
        self._check_outside_of_run("consensus_state_dict()")
        self._settle("consensus_state_dict")
        return mean_state_dict(self)

    @collective
    def consensus_distance(self) -> float:
        """The mean over ranks of |w_r - w_mean| / |w_mean|. Collective."""
        self._check_outside_of_run("consensus_distance()")
        self._settle("consensus_distance")
        return float(self._group.core.consensus_distance())

    @collective
    def training_state(self) -> dict[str, Any]:
        """The state that this rank needs to continue to the bit: for torch.save, a file a rank. Collective.

        This state loads on this rank, with as many ranks, under the same strategy; consensus_training_state() on all.
        RuntimeError, on all ranks, if a rank has summed gradients that no step has taken: the state lacks them.
        """
        self._begin_state("training_state")
        return self._own_state()

    def _own_state(self) -> dict[str, Any]:
        own = {"optimizer": copy.deepcopy(self._optimizer.state_dict())} if self._group.unfused else {}
        return state_of(self, rank_of(self), self._group.state(self._local), copies_of(self.state_dict()), own)

    @collective
    def consensus_training_state(self) -> dict[str, Any]:
        """One state for all ranks, in one file: for any number of ranks, under any strategy. Collective.

        The state has the consensus of weights and the means of the optimizer's moments, equal on all ranks. If replicas
        and moments are equal on all ranks, training continues to the bit; otherwise as from a common start. Not in the
        state: unsent values of compression, and the copies that partners have in common.
        """
        self._begin_state("consensus_training_state")
        return self._state_of_all()

    def _state_of_all(self) -> dict[str, Any]:
        own = {}
        if self._group.unfused:
            states = [one._optimizer.state_dict() for one in self._together()]
            own["optimizer"] = mean_optimizer(self._group, states)
        means = mean_arenas(self._group)
        return state_of(self, {"rank": None, "size": self.size}, means, self.consensus_state_dict(), own)

    def _begin_state(self, call: str) -> None:
        self._check_outside_of_run(f"{call}()")
        with agreement.agreed(self._group.team, call):
            self._check_no_gradients(call)
        self._settle(call)

    def _check_no_gradients(self, call: str) -> None:
        added = self._step.added_up()
        if added and not self._step.exchanged():
            raise RuntimeError(
                f"{call}(): {listed(added)}: gradients that were added up in step {self._done}, which are no "
                "part of it; allowed: after model.step(), or after model.zero_grad()"
            )

    @collective
    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the training_state of this rank, or the consensus_training_state of any. Collective.

        Gradients summed here are forgotten. A learning_rate that was set stays, unless the optimizer here has another
        lr or schedule. ValueError, on all ranks, if a rank's state is damaged or steps differ, and nothing has changed
        then. So for a state of another rank, number of ranks, strategy, module, kind of optimizer with moments, or of
        other partners with copies for them, and for a step before that in which ranks have last died or joined.
        """
        self._check_outside_of_run("load_training_state()")
        self._settle("load_training_state")
        with agreement.agreed(self._group.team, "load_training_state") as one:
            step, order = checked(state, self)
            if self._survivor is not None:
                self._survivor.check_step(step)
            rate = self._group.rate_of(state.get("settings", self._group.settings()), state.get("learning_rate"))
            of_all = state.get("rank", 0) is None
            one.facts = {"step": step, "learning_rate": rate, "order": order, "of all ranks": of_all}
        self._lay_out(order)
        core = self._group.core
        load_tensors(self.module, {**state["module"], **state.get("buffers", {})})
        consensus = arrays_of(state["consensus"])
        if self._local == 0:  # for all ranks, and before their arenas, since it sets outer weights too
            core.load_consensus(consensus)
        zeros = {name: np.zeros_like(array) for name, array in consensus.items()}
        for name, kind in core.arenas().items():
            if kind != "gradient":
                given = state["arenas"].get(name)  # None: on all ranks, if another strategy had none
                core.load_arena(
                    name, (consensus if kind == "outer" else zeros) if given is None else arrays_of(given), self._local
                )
        if self._group.unfused:
            self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would keep its tensors
        core.step = self._done = step
        core.push_sum_since = step if of_all else int(state.get("push_sum_since", 0))
        self._group.set_rate(rate)
        self._step.forget_gradients()
        self._step.note_pending(range(len(self._layers)))
        self._step.rested = False
        self._rest()

    @property
    def strategy_name(self) -> str:
        """The strategy's name, as on the command line."""
        return self._group.strategy.name

    @property
    def decision(self) -> str:
        """Which strategy was chosen, and why; "": the given one, or GossipGraD()."""
        return self._group.decision

    def _joined(self) -> None:
        """Go on from a donor's state, which the arenas have."""
        self._done = self._group.core.step
        self._step.settled()

    def _go_on_at(self, step: int) -> None:
        """Continue schedules at this step, with zero moments. Collective, between two steps."""
        self._settle("load_checkpoint")
        core = self._group.core
        core.step = self._done = step
        core.moments_since = step

    @collective
    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of all ranks (trace= of wrap) for chrome://tracing or Perfetto. Collective.

        Between two steps; for replicas outside of run, for all of them. gossipgrad.state.trace describes the file. A
        rank with more spans than trace= keeps the newest; the file counts the lost ones ("spans_lost", by rank).
        A new order of layers in the arenas, usually in the first steps, discards earlier records.
        RuntimeError after close().
        """
        self._settle("write_trace")
        group = self._group
        with agreement.agreed(group.team, "write_trace", f"step {self._done}") as one:
            one.facts = {"path": outputs.check_path("path", path)}
        trace.write(group.core, group.team, (), [layer.name for layer in self._layers], path)

    def close(self) -> None:
        """Remove the hooks and give the parameters memory of their own: the module is plain, and can be wrapped again.

        Between two steps. Collective.
        """
        if self._closed:
            return
        try:
            self._settle("close")
            if self._survivor is not None:
                self._survivor.end()
        except RuntimeError:
            if not self._group.failed:
                raise
        self._detach()

    def _detach(self, patience: float | None = None) -> None:
        """The work of close, without other ranks and also in the middle of a step; exchanges in flight stay so.

        patience   seconds that the group waits for other ranks at its end, which settles as well; None: those of its
                   team, after a completed settle.
        """
        if patience is not None:
            self._group.team.timeout = patience
        self._closed = True
        unhook(list(self._announcements))
        unwatch(self)
        while self._handles:
            self._handles.pop().remove()
        self._unhook_gradients()
        self._step.unbind()
        self._step.forget()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a wrapped module cannot be copied or pickled, since it is a rank of a group; allowed: model.state_dict(), "
            "copy.deepcopy(model.module), model.training_state()"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            text = str(error)
            if name == "param_groups":
                text += (
                    "; it is no optimizer of torch's, as a GradScaler or a scheduler wants. Allowed: autocast with "
                    "bfloat16, which needs no scaler; schedule= of gossipgrad's optimizer, or model.learning_rate = ..."
                )
            elif name != "module" and hasattr(self.module, name):
                text += f"; the module has: model.module.{name}"
            raise AttributeError(text) from None

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


class _reason:
    """Adds advice to the error of a wait that does not end: why a user's loop makes others wait."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, CommunicationError) and _UNEQUAL not in str(error):
            raise type(error)(f"{error}. {_UNEQUAL}") from None
