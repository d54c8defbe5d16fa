"""The trainer: a network, a loss, an optimiser and a strategy on the ranks of a group.

Collective means: all ranks of an MPI group call it, in the same order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core, cluster, compression, heads, optim, strategies, summary
from gossipgrad.apoptosis import Apoptosis, Least, chosen, least_units, leasts
from gossipgrad.apoptosis import from_settings as apoptosis_from
from gossipgrad.callbacks import Callback, Checkpoint
from gossipgrad.data import given
from gossipgrad.data.arrays import Dataset, as_dataset
from gossipgrad.data.checks import samples_array, shape_hint, targets_array
from gossipgrad.data.classes import check_alike
from gossipgrad.errors import CheckpointError, flag, integer, named_keywords, not_finite, number, warn
from gossipgrad.history import History, Record
from gossipgrad.launch import agreement, surviving
from gossipgrad.launch.interrupts import Noted
from gossipgrad.launch.origin import launcher_world_size
from gossipgrad.literals import Backend, ConvAlgorithm, DType, Precision
from gossipgrad.metrics import Metrics, named
from gossipgrad.model import Model
from gossipgrad.state import checkpoint_files, outputs, trace
from gossipgrad.training import (
    algorithms,
    checkpoint,
    evaluation,
    events,
    fingerprint,
    loop,
    mixing,
    notices,
    survival,
    tuning,
)
from gossipgrad.training.fitting import HINTS, Fit
from gossipgrad.training.progress import ProgressBar
from gossipgrad.training.replicas import CARRIED, Arrays, Replicas, collective
from gossipgrad.weights import opened


@named_keywords
class Trainer(Replicas):
    """Trains a network on the ranks of a group. Five arguments say how:

    net        the network, a gossipgrad.Model: gossipgrad.models.lenet(), gossipgrad.Sequential([...], input=...).
    loss       "cross_entropy" (integer classes), "binary_cross_entropy" or "mean_squared_error".
    optimizer  gossipgrad.SGD(...), Adam(...) or LARS(...).
    strategy   how ranks exchange weights or gradients: gossipgrad.GossipGraD(), AllReduce(), ... "auto": chosen by
               the samples of a rank.
    comm       the ranks: None: those of mpiexec, else one; gossipgrad.VirtualCluster(4): four in this process.

        trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.02), comm=gg.VirtualCluster(4))
        history = trainer.fit(train, validation=test, epochs=2)

    Then evaluate(test) measures, predict(x) computes outputs, save(PATH) writes a checkpoint, and Trainer.load(PATH) or
    fit(..., resume=PATH) continues from it. All other arguments: help(gossipgrad.Trainer.__init__).

    Collective calls: creating a trainer, fit, evaluate, predict, save, load, train_step and all that shows weights. All
    ranks make them in the same order with the same arguments. If arguments differ, ValueError on every rank names the
    difference. An argument that is wrong on one rank is an error on all. threads, backend, the number of a device,
    progress and callbacks of your own may differ.
    """

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- training

    @collective
    def fit(
        self,
        train: Any,
        y: Any = None,
        *,
        validation: Any = None,
        validation_split: float | int | None = None,
        epochs: int = 1,
        batch_size: int | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        validate_replicas: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        final_mix: bool = False,
        progress: bool = True,
        resume: str | os.PathLike[str] | None = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        shard: Literal["interleaved", "contiguous"] = "interleaved",
        sharded: bool = False,
    ) -> History:
        """Train for `epochs` epochs and return the history (all epochs of this trainer).

        train, y           fit(x, y) with two arrays, fit((x, y)), or fit(data) with a gossipgrad.data.Dataset. Every
                           rank gives the whole set and trains on its shard of it; see `shard`.
                           uint8 samples are not scaled, and a warning says so, unless their Dataset has a scale.
                           Pixels want gg.data.Dataset(x, y, scale=1/255).
        validation         (x, y) or a Dataset, split over the ranks. The measured model is the consensus: the replicas'
                           mean, or the centre of ElasticAveraging and ParameterServer. It may also be the second
                           positional argument, after a pair or a Dataset. Only its own weights weight its loss.
        validation_split   instead of validation: a share in 0..1, or a number of samples, of train. The trainer's seed
                           draws them; of text as streams the end is set aside. Samples are not copied. The Dataset's
                           own weights weight its loss, sample_weight does not.
        sample_weight      factor of each sample's loss, (n,), at least 0. The loss of a batch is
                           sum(weight * loss) / samples. PyTorch's weighted cross-entropy divides by the sum of the
                           weights; here the grouping of samples into batches and ranks does not matter.
        class_weight       factor of each class: {class: weight}, where others have 1; an array of one number a class;
                           or "balanced", inversely to how often classes occur, with a mean of 1. Multiplied with
                           sample_weight. Both apply to training alone. If all are 0, it is an error.
        shard              "interleaved": among p ranks, each group of p successive samples gives every rank one. The
                           seed draws which, so sorted or repeating data harm no rank.
                           "contiguous": each rank has a run of the samples; a warning says when they look sorted by
                           class.
        sharded            True: every rank brings its own part of train and of validation, of at least one sample. In a
                           virtual cluster train, y and validation are lists with one entry a rank. All ranks make the
                           steps that the largest part needs. A smaller part is divided evenly among these steps, so
                           every sample is seen once an epoch. A rank with fewer samples than steps repeats them as
                           evenly as possible. Not with shuffle_samples, nor with ranks that only serve.
        batch_size         samples a rank and step; None: 64, or all samples of a rank if it has fewer. Every rank makes
                           the steps that the largest shard needs. The last batch may be smaller; an empty one gets a
                           sample of the batch before.
        drop_last          True: full batches alone, as many on every rank as the smallest shard has. The rest is not
                           trained on in this epoch; with `shuffle` each epoch leaves out other samples.
        shuffle            another order of each rank's samples in each epoch.
        final_mix          True: at the end all replicas become the consensus model, by one all-reduce of float32
                           weights and statistics. It is for strategies that leave replicas apart: GossipGraD, most of
                           all with slices, the asynchronous ones, NoExchange. It comes after the last epoch's record
                           and checkpoint and before on_fit_end, so a resume continues as if training had never stopped.
                           Weights that EarlyStopping restores there become one as well. The optimiser's moments stay
                           each rank's.
        validate_replicas  validates every rank's own weights as well.
        resume             a checkpoint: continue from it, up to `epochs` epochs in all, as if training had never
                           stopped. On another number of ranks all begin with the consensus weights and
                           the mean of the ranks' moments, and share what is left of the epoch.
        callbacks          one or several (gossipgrad.callbacks). StopOnNaN and, with `progress`, a ProgressBar are
                           added. EarlyStopping, Checkpoint, ReduceOnPlateau compare the epochs of this fit alone; with
                           `resume` also those of the fit that saved the checkpoint.

        ValueError, TypeError: data that do not fit the network or the ranks. FloatingPointError: the loss is NaN.
        CheckpointError: `resume` does not fit. KeyboardInterrupt: SIGINT; under MPI all ranks raise it after the same
        step, whichever rank the signal reached. SavedOnSignal: as Checkpoint(save_on_signal=True) asks. Collective.
        """
        given_arguments = {name: value for name, value in locals().items() if name != "self"}
        surviving.check(self.team, "Trainer.fit")
        with self.agreed() as one:
            surviving.check(self.team, "Trainer.fit", begun=True)
            if self.fitting:
                raise RuntimeError(
                    "fit was called within fit, by a callback or another thread; allowed: after fit has returned"
                )
            call = Fit.checked(self, **given_arguments)
            one.hints, one.facts = HINTS, call.facts(self)
            if self.may_grow:
                one.facts = self.facts_of_call = agreement.flat(one.facts)
        saving = any(isinstance(one, Checkpoint) and one.save_on_signal for one in call.callbacks)
        with Noted(not agreement.alone(self.team), saving) as interrupts:
            return self._fit(call, interrupts)

    def _fit(self, call: Fit, interrupts: Noted) -> History:
        batches = call.batches(self)
        call.weigh(self)
        call.warn(self)
        self.see_samples(batches.size)
        self.fit_settings = call.settings(self, batches.sizes)
        if call.resume is None:
            notices.epoch_begins_anew(self.rank, self.epoch, self.fit_state.position)
            self.fit_began = self.epoch
        self.set_batch, self.batch_changes, self.fit_state.position = None, [], None
        if call.resume is not None:
            checkpoint.restore(self, call.resume)
            step = None if self.fit_state.position is None else self.step
            notices.nothing_to_train(self.rank, call.resume, self.epoch, call.epochs, step)
        notices.other_classes(self.rank, self.class_names, call.train.first)
        self.class_names = call.train.first.class_names
        if self.set_batch is not None:
            batches.check(self.set_batch)
            batches.size = self.set_batch
        self.batches = batches
        self.last_epoch = call.epochs if call.resume is not None else self.epoch + call.epochs
        shown = any(isinstance(one, ProgressBar) for one in call.callbacks)
        self.choose_algorithms(batches.size, steps=self.steps_left(), shown=shown)
        self.describe()
        self.stop = False
        self.resumed = call.resume is not None and self.fit_state.position is None
        self.validating = call.validation is not None
        self.core.begin(call.train_core, batches.size, call.shuffle, call.shard, call.drop_last)
        self.check_survival()
        self.set_total(self.step + self.steps_left())
        measure = partial(self._measure, call.validation, call.batch_size)
        shrinking = None if self.apoptosis is None else events.Events(self, self.apoptosis, call.train)
        sets = call.validation_core, call.validate_replicas
        with survival.survivable(self):
            loop.Loop(self, call.callbacks, call.batch_size, *sets, measure, interrupts, shrinking).run(call.final_mix)
            self.history.weights_sha256 = self.weights_sha256()
            self.history.time_by_rank = self._time_by_rank()
            with self.agreed("end of fit") as one:
                one.number = int(interrupts.came)
        if any(one.numbers):
            raise agreement.interrupt("fit was interrupted after its last step")
        return self.history

    def _measure(self, data: given.Given | None, batch_size: int) -> Record:
        """The trainer's metrics of a set; {} without a set."""
        return {} if data is None else evaluation.measure(self, data.parts, data.sharded, batch_size, self.metrics)

    @collective
    def train_step(self, x: Any, y: Any) -> Any:
        """One step on this rank's batch (x, y); returns its mean loss. For tests and research.

        The first call chooses algorithms for batches of its size, as fit does (tune= of the constructor).
        In a virtual cluster x and y are lists with one batch a rank, and a list comes back. RuntimeError: within fit,
        whose epochs, schedule and checkpoints count fit's own steps. Collective.
        """
        with self.agreed() as one:
            if self.fitting:
                raise RuntimeError(
                    "train_step was called within fit, by a callback or another thread; allowed: after fit has returned"
                )
            if self.team.survives:
                raise RuntimeError("train_step: not where ranks may die; allowed: fit, which goes on without them")
            if self.virtual:
                self._check_list("x", x)
                self._check_list("y", y)
                pairs = list(zip(x, y, strict=True))
            else:
                pairs = [(x, y)]
            samples: list[Any] = []
            targets: list[Any] = []
            for inputs, answers in pairs:
                samples.append(self._batch(inputs, "x"))
                targets.append(self._targets(answers, "y"))
                if len(samples[-1][0]) != len(targets[-1][0]):
                    raise ValueError(f"x has {len(samples[-1][0])} samples, y {len(targets[-1][0])}")
            one.facts = {"steps done": self.step}
            one.number = min(len(batch[0]) for batch in samples)
        self.see_samples(min(one.numbers))
        if not any(purpose == "training" for _, purpose in self.algorithms_chosen):
            self.choose_algorithms(len(samples[0][0]))
        self.follow_step()
        self.prepare_rates(1, agree=False)
        losses = self.core.train_step(samples, targets)
        return losses if self.virtual else losses[0]

    @collective
    def shrink(
        self,
        budget: float = 0.0,
        *,
        layers: str | Sequence[str] = "*",
        least: Least = 1,
        probe: Any = None,
        epsilon: float | None = None,
    ) -> Record:
        """Remove units from the network now, on all ranks, as an event of gossipgrad.Apoptosis; returns the event.

        budget   0 to 1: the share that it may remove from each layer. 0: units that are exactly parallel to others,
                 constant, or read by nobody; the network's outputs then change by rounding alone.
        layers, least  as of gossipgrad.Apoptosis.
        probe    (x, y) or a Dataset, the same on all ranks. If the smaller network's loss on it is higher by more than
                 epsilon, a share, 0.01 if None, the event is undone. Exchanges in flight have then been completed and
                 mixed; nothing else has changed. None: the event stays.

        The history has the event as well; docs/report.md lists its fields. Here it also has "indices": by layer, the
        units that left. Within fit: from on_epoch_begin, on_step and on_epoch_end; RuntimeError from on_shrink.
        ValueError: `layers` names layers that cannot shrink, with the reason. Collective.
        """
        with self.agreed() as one:
            if self.fit_state.shrinking:
                raise RuntimeError("shrink was called within an event, by on_shrink; allowed: between epochs")
            budget, kept = number("budget", budget, 0.0, 1.0), leasts("shrink", least_units(least), self.net)
            if probe is None and epsilon is not None:
                raise ValueError(f"epsilon={epsilon!r}: allowed only with probe=, on which losses are compared")
            epsilon = 0.01 if epsilon is None else number("epsilon", epsilon)
            names = chosen("shrink", layers, self.net)
            given_set = None if probe is None else as_dataset(probe, "probe")
            core_set = None if given_set is None else events.core_probe(self, given_set)
            one.facts = {"budget": budget, "layers": names, "least": kept, "epsilon": epsilon, "step": self.step}
            one.facts |= {"probe": lambda: fingerprint.data(given_set), "network": self.net.units}
        self.describe_apoptosis()
        wanted = events.Wanted(dict.fromkeys(names, budget), kept, core_set, epsilon, None, budget, by_hand=True)
        event, indices = events.make(self, wanted)
        if self.fit_state.watcher is not None:
            self.fit_state.watcher.shrunk(event)
        return event | {"indices": indices}

    @collective
    def set_batch_size(self, batch_size: int) -> None:
        """Train in batches of `batch_size` samples a rank and step from here on, within fit. Collective.

        Call it from a callback that all ranks have: on_fit_begin, on_epoch_begin, on_step, on_shrink, on_epoch_end.

        In the middle of an epoch training continues with the samples not yet trained on, each once, whatever their
        order, shard and rank. The number of the epoch's steps then changes. (In batches of one, a rank with fewer
        samples than others repeats some in the last steps.) Schedules with total="auto" end with the new last step. The
        learning rate stays; trainer.learning_rate sets it. Validation keeps fit's batches. Convolutions whose algorithm
        was measured for another size use fixed rules. Checkpoints hold the size. A resume keeps it, unless its fit has
        another batch_size than the fit that saved.

        RuntimeError: outside of fit, and in on_fit_end. ValueError: a batch larger than the shards; in the middle of an
        epoch of pieces of sequences, because their rows continue from batch to batch.
        """
        with self.agreed() as one:
            watcher = self.fit_state.watcher
            if watcher is None or self.batches is None or not self.fit_state.more_batches:
                raise RuntimeError(
                    "set_batch_size: there is no epoch to go on with; allowed: within fit, by callbacks, in "
                    "on_fit_begin, on_epoch_begin, on_step, on_shrink, on_epoch_end. fit(..., batch_size=) sets it "
                    "from the beginning"
                )
            size = integer("batch_size", batch_size, 1)
            self.batches.check(size)
            if self.batches.streams and self.fit_state.within and size != self.batches.size:
                raise ValueError(
                    f"batch_size={size}: in the middle of an epoch of pieces of sequences, whose rows go on from one "
                    f"batch to the next, it stays {self.batches.size}; allowed: between epochs"
                )
            one.facts = {"batch_size": size, "step": self.step}
        if size == self.batches.size:
            return
        self.core.reshape(batch=size)
        self.rebatch(size)
        watcher.rebatched()

    @collective
    def reset_state(self) -> None:
        """Zero the state that layers carry from batch to batch, for the beginning of sequences. Collective.

        fit does so at the beginning of each epoch, and train_step never.
        """
        with self.agreed():
            pass
        self.core.reset_carried()

    def _check_list(self, argument: str, value: Any) -> None:
        """One batch a virtual rank."""
        if not isinstance(value, (list, tuple)) or len(value) != self.size:
            found = f"{len(value)} of them" if isinstance(value, (list, tuple)) else type(value).__name__
            raise ValueError(f"{argument}: a virtual cluster wants a list of {self.size} batches; got {found}")

    def _batch(self, x: Any, what: str) -> tuple[NDArray[Any], ...]:
        """An array for each input of the network, all with the same number of samples."""
        fields = self.net.inputs
        parts = heads.separate(what, x, [one.name for one in fields])
        places = [what if len(fields) == 1 else f"{what}[{one.name!r}]" for one in fields]
        made = tuple(self._input(part, one, place) for part, one, place in zip(parts, fields, places, strict=True))
        for array, place in zip(made, places, strict=True):
            if len(array) != len(made[0]):
                raise ValueError(f"{place} has {len(array)} samples, {places[0]} {len(made[0])}")
        return made

    def _input(self, x: Any, field: heads.Field, what: str) -> NDArray[Any]:
        if field.dtype == "int32":
            return heads.tokens(x, field.shape, what)
        array = samples_array(x, what)
        if array.shape[1:] != field.shape or not len(array):
            hint = shape_hint(array.shape[1:], field.shape)
            if array.shape == field.shape:
                hint = "; a single sample is x[None]"
            elif array.shape[1:] == field.shape:
                hint = ", n at least 1"
            raise ValueError(
                f"{what}: shape {array.shape}, but the network wants {heads.of_samples(field.shape)}{hint}"
            )
        return np.ascontiguousarray(array, np.float32)

    def _targets(self, y: Any, what: str) -> tuple[NDArray[Any], ...]:
        """An array for each target that outputs are trained on."""
        names = self.net.target_names
        parts = heads.separate(what, y, names)
        made = []
        for target, (part, name) in enumerate(zip(parts, names, strict=True)):
            place = what if len(names) == 1 else f"{what}[{name!r}]"
            wanted = [one for one in self.heads if one.target == target]
            found = [targets_array(part, one.kind, one.shape, place, one.ignored) for one in wanted]
            made.append(found[0])
            if len(made[-1]) != len(made[0]):
                raise ValueError(f"{place} has {len(made[-1])} entries, {what}[{names[0]!r}] {len(made[0])}")
        return tuple(made)

    # ---- using the network

    @collective
    def evaluate(
        self, data: Any, y: Any = None, *, batch_size: int | None = None, replicas: bool = False, sharded: bool = False
    ) -> Any:
        """{"loss": ..., "accuracy": ...} of the consensus model; with `replicas` a list, an entry for each rank's own.

        Accuracy is 0 to 1, and missing for "mean_squared_error". The trainer's metrics are there as well (not with
        `replicas`). With several outputs, each one that is not for training only has NAME_loss and NAME_accuracy.
        evaluate(x, y), evaluate((x, y)) or evaluate(data) with a Dataset; if the Dataset has weights, they weight the
        loss. All ranks give the whole set, which is split over them (not with `replicas`). sharded: every rank gives
        its own part, as for fit; not with `replicas`. ValueError, TypeError: data that do not fit the network.
        Collective.

        batch_size: for text as streams, the rows on each rank along which layers carry their state; it changes the
        result.
        None: that of the last fit, or of the checkpoint's. For other sets None is 256.
        """
        with self.agreed() as one:
            replicas = flag("replicas", replicas)
            sharded = flag("sharded", sharded)
            if replicas and sharded:
                raise ValueError("replicas=True: every rank wants the whole set; not with sharded=True")
            arity = given.Arity(len(self.net.inputs), len(self.net.target_names))
            whole = given.one(data, y, "data", sharded, self.team.local, arity)
            check_alike("data", whole.first.class_names, "what was trained on", self.class_names)
            batch_size = self._evaluated_batch(batch_size, whole.first)
            data_set = whole.core(self.net.inputs, self.heads, self.net.target_names)
            one.hints = {"data, ": "Every rank gives the same whole set, or its own part with sharded=True"}
            one.facts = {"data": lambda: fingerprint.data(whole.first, sharded), "replicas": replicas}
            one.facts |= {"batch_size": batch_size}
        self._choose_for_evaluation(0 if sharded else len(whole.first), batch_size, 1 if replicas else self.size)
        results = self.core.evaluate(data_set, batch_size, replicas)
        found = [heads.measured(self.heads, one) for one in results]
        return found if replicas else found[0] | self._measure(whole, batch_size)

    def _evaluated_batch(self, batch_size: int | None, data: Any) -> int:
        """The batch size of an evaluation or prediction: as given; None: by the set and the last fit."""
        if batch_size is not None:
            return integer("batch_size", batch_size, 1)
        if isinstance(data, Dataset) and data.streams:
            return int(self.batch_size or self.fit_settings.get("batch_size", _EVALUATED))
        return _EVALUATED

    def choose_algorithms(
        self, batch: int, evaluated: int | None = None, steps: int | None = None, shown: bool = False
    ) -> None:
        """Measure the algorithms of the convolutions of a training step with this batch, for all ranks. Collective.

        A no-op unless rank 0 is to tune; then the core's cost model chooses. Rank 0's batch counts. evaluated: measure
        an evaluation of this many batches a rank instead; all ranks then give the same numbers. Each batch size is
        measured once, and algorithms from a checkpoint are kept. steps: of the run, if known. shown: name on the screen
        the algorithms being measured.
        """
        pays = evaluated is None or evaluated >= algorithms.PAYS
        done = {(batch, "training"), (batch, "evaluation" if pays else "cache")}
        if self.algorithms_saved or (evaluated is not None and done & self.algorithms_chosen):
            return
        text = b""
        with self.agreed("algorithms"):
            if self.team.rank == 0 and self.tune and self.conv_algorithm == "auto":
                timeout = 0.0 if agreement.alone(self.team) else self.team.timeout
                foreseen = steps if self.device == "cpu" else None  # only there is a step timed beforehand
                budget = algorithms.Budget(timeout, foreseen, partial(self.core.measure_step, batch))
                text = json.dumps(tuning.measured(self, batch, evaluated is None, pays, budget, shown)).encode()
        found = self.gather(text)[0]
        self.algorithms_chosen |= {(batch, "training")} if evaluated is None else done - {(batch, "training")}
        if found and json.loads(found) != self.algorithms:
            self.set_algorithms(json.loads(found))

    def _choose_for_evaluation(self, samples: int, batch_size: int, ranks: int) -> None:
        """choose_algorithms for `samples` divided among `ranks`, if each rank has a full batch. Collective."""
        if samples // ranks >= batch_size:
            self.choose_algorithms(batch_size, samples // ranks // batch_size)

    @collective
    def predict(self, x: Any, batch_size: int | None = None) -> Any:
        """The consensus model's outputs (n, ...) for samples (n, ...) or a Dataset; equal on every rank. Collective.

        x: with several inputs, an array each, in a list or by name in a dict. With several outputs that are not for
        training only, a dict with an array each comes back. float32. ValueError, TypeError: samples of another shape or
        type than the network's.

        Scores: for "cross_entropy" and "binary_cross_entropy" no softmax or sigmoid is applied. batch_size: as of
        evaluate; layers carry their state along the rows of text as streams here, too.
        """
        with self.agreed() as one:
            batch_size = self._evaluated_batch(batch_size, x)
            samples = x if isinstance(x, Dataset) else self._batch(x, "x")
            if isinstance(samples, Dataset):
                data_set = samples.inputs_for_model(self.net.inputs)
            else:
                pairs = zip(samples, self.net.inputs, strict=True)
                data_set = _core.Dataset([{"array": part, "tokens": field.dtype == "int32"} for part, field in pairs])
            one.hints = {"x, ": "Every rank gives the same samples, and gets all outputs"}
            one.facts = {"x": lambda: fingerprint.inputs(samples), "batch_size": batch_size}
        self._choose_for_evaluation(len(samples if isinstance(samples, Dataset) else samples[0]), batch_size, self.size)
        outputs = self.core.predict(data_set, batch_size)
        names = [head.name for head in self.heads if not head.training_only]
        return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))

    # ---- state, at rest

    def _trained(self, arrays: Arrays) -> Arrays:
        """The arrays that the optimiser updates; statistics are left out."""
        roles = self.net.parameter_roles()
        return {name: array for name, array in arrays.items() if roles[name] != summary.STATISTIC}

    def _local(self, rank: int) -> int:
        """Index of `rank` among the ranks of this process."""
        return integer("rank", rank, 0, self.team.local - 1)

    @collective
    def settle(self) -> None:
        """Complete and mix all exchanges in flight. Collective."""
        with self.agreed():
            pass
        self.core.exchange.settle()

    @collective
    def audit_samples(self) -> Record:
        """Count the samples of fit's training set, to prove that each is on one rank and none is missing. Collective.

        Returns {"ok": bool, "samples": held by all ranks, "missing": ids on no rank, "duplicate": ids too many,
        "altered": samples whose bits differ from those of the set with their ids, "first_missing", "first_duplicate",
        "first_altered": the first such id, or None}. An id is the number of a sample in the set. All ranks call it at
        the same step, which may be any. RuntimeError before fit.
        """
        with self.agreed() as one:
            one.facts = {"step": self.step}
        found = self.core.audit_samples()
        return {"ok": not (found["missing"] or found["duplicate"] or found["altered"]), **found}

    @collective
    def sample_ids(self, rank: int = 0) -> NDArray[np.int32]:
        """Ids of the samples of fit's training set that this rank holds now, in the order of its shard. Collective.

        `rank`: the rank in a virtual cluster. Without shuffle_samples the ids never change. RuntimeError before fit.
        """
        with self.agreed():
            local = self._local(rank)
        return self.core.sample_ids(local)

    @collective
    def weights(self, rank: int = 0) -> Arrays:
        """Copies of this rank's weights by name. `rank`: the rank in a virtual cluster. Collective."""
        with self.agreed():
            local = self._local(rank)
        self.core.exchange.settle()
        return self.core.exchange.arena("weight", local)

    @collective
    def consensus_weights(self) -> Arrays:
        """The mean of all replicas' weights by name, or the strategy's centre, if it has one. Collective.

        With push_sum=True each replica counts by its scalar, so that mixing alone does not move the mean.
        """
        with self.agreed():
            pass
        return self.core.exchange.consensus_weights()

    @collective
    def gradients(self, rank: int = 0) -> Arrays:
        """Copies of the last step's gradients by name; statistics have none. Collective.

        If the strategy sums gradients over ranks, this is their sum, weighted by samples. With
        AdaComp(local_momentum=True) the summands include momentum. RuntimeError if no array has the sum: AllReduce and
        LayerwiseAllReduce with AdaComp's local choice update piece by piece from the messages, except in warmup steps.
        An optimiser that needs the norm keeps the array: clip_norm=1e9 does, and clips nothing.
        """
        with self.agreed():
            local = self._local(rank)
        self.core.exchange.settle()
        self.core.exchange.check_arena("gradient")
        return self._trained(self.core.exchange.arena("gradient", local))

    @collective
    def momentum(self, rank: int = 0) -> Arrays:
        """Copies of SGD's momentum or Adam's first moment by name; empty without momentum. Collective."""
        with self.agreed():
            local = self._local(rank)
        exchange = self.core.exchange
        exchange.settle()
        return self._trained(exchange.arena("momentum", local)) if "momentum" in exchange.arenas() else {}

    @collective
    def optimizer_state(self, rank: int = 0) -> dict[str, Any]:
        """{"step": updates done, "momentum": arrays by name, "second_moment": likewise, Adam's}. Collective.

        Moments that the optimiser lacks are empty. Per-parameter state of the strategy or the compression ("residue",
        "outer", "outer_momentum", copies of partners) is there by its name, too.
        """
        with self.agreed():
            local = self._local(rank)
        self.core.exchange.settle()
        others = ("weight", CARRIED)
        moments = {key: self._trained(value) for key, value in self.rank_state(local).items() if key not in others}
        return {"step": self.step, "momentum": {}, "second_moment": {}, **moments}

    @collective
    def consensus_distance(self) -> float:
        """The mean over ranks of |w_r - w_mean| / |w_mean|; statistics are left out. Collective."""
        with self.agreed():
            pass
        return self.core.exchange.consensus_distance()

    @collective
    def load_weights(self, weights: Any) -> None:
        """Give every rank, and a centre, these weights, in any form that Model.load_weights reads. Collective.

        Momentum, step, learning rate and the state that layers carry stay. Residues of compression and copies of
        partners begin at zero, scalars of push-sum at 1, and outer weights are these.

        CheckpointError: they do not fit the network, or one is NaN or infinite; net.load_weights loads these, too.
        """
        with self.agreed() as one:
            given, what = opened(weights)
            checked = self.net.check_weights(given, what)
            for name, array in checked.items():
                if found := not_finite(array):
                    raise CheckpointError(
                        f"{what}: {name}{found}: nothing can be trained from there; allowed: finite numbers of "
                        "float32. net.load_weights loads others, too"
                    )
            one.facts = {"weights": lambda: fingerprint.weights(checked)}
        self.core.exchange.settle()
        self.core.exchange.load_arena("weight", checked)
        mixing.forget(self.core.exchange)

    # ---- checkpoints

    @collective
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the consensus weights to `path` (safetensors) and all ranks' state to `path`.state/. Collective.

        The folder of `path` must exist. Even if interrupted, `path` and its state are those of one complete save.
        CheckpointError: not written.
        """
        with self.agreed() as one:
            one.facts = {"path": outputs.check_path("path", path), "step": self.step}
        checkpoint.save(self, path)

    @classmethod
    @collective
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        comm: Any = None,
        threads: int | None = None,
        backend: Backend | None = None,
        conv_algorithm: ConvAlgorithm | None = None,
        dtype: DType | None = None,
        device: str | None = None,
        precision: Precision = "exact",
        metrics: Metrics | None = None,
        apoptosis: Apoptosis | None = None,
    ) -> Trainer:
        """The trainer of a checkpoint: network, loss, optimiser, strategy, compression, every rank's state. Collective.

        The network is the checkpoint's, also if units have left it.

        fit(resume=path) continues at the step of the save. Without resume= fit begins an epoch; if the checkpoint was
        saved within an epoch, a warning says so.
        On another number of ranks it begins as fit(resume=) does. comm None makes the virtual cluster of a checkpoint
        that was saved by one.
        threads, backend, device, precision: those of this run, not the checkpoint's; device None as of Trainer. graphs,
        timeout and trace have their defaults, and so have straggler and network if the ranks are MPI's.
        conv_algorithm, dtype: None: those of the checkpoint. With dtype="float32" a run in bfloat16 continues on
        machines without bfloat16.
        tune: if it was False on a GPU it stays so. Otherwise it is as of Trainer, and without effect if the checkpoint
        names the algorithms.
        A strategy with collectives="mpi" gets its own collectives if the ranks are not MPI's.
        metrics: None: those of the checkpoint that have names of gossipgrad.metrics; it holds no functions.
        apoptosis: None: as in the checkpoint. A probe of the user's own samples is not in the checkpoint; the same
        number of the training set's samples replaces it.
        CheckpointError: not a checkpoint, or damaged.
        """
        try:
            _, description = checkpoint_files.read(path)
            checkpoint.Saved.of(os.fspath(path), description)
            try:
                settings = description["settings"]
                net = Model.from_config(description["model"])
                strategy, optimizer = strategies.from_settings(settings), optim.from_settings(settings)
                if comm is None and settings["virtual_cluster"] is not None and launcher_world_size() is None:
                    comm = cluster.VirtualCluster.from_settings(settings["virtual_cluster"])
                if getattr(strategy, "collectives", "own") != "own" and not cluster.by_mpi(comm):
                    strategy = replace(strategy, collectives="own")  # type: ignore[call-arg]
                how = {**heads.losses_of(settings), "seed": settings["seed"], "device": device, "precision": precision}
                how["conv_algorithm"] = (
                    settings.get("conv_algorithm", "auto") if conv_algorithm is None else conv_algorithm
                )
                how["dtype"] = settings.get("dtype", "float32") if dtype is None else dtype
                # "False" may have been a CPU's default.
                how["tune"] = False if settings.get("tune") is False and settings.get("device") != "cpu" else None
                how["compression"] = compression.from_settings(settings.get("compression"))
                how["apoptosis"] = apoptosis_from(settings.get("apoptosis")) if apoptosis is None else apoptosis
                how["metrics"] = named(settings.get("metrics", ())) if metrics is None else metrics
            except Exception as error:  # a forged one may lead anywhere
                raise CheckpointError(f"{os.fspath(path)}: its description cannot be understood ({error!r})") from error
        except (OSError, CheckpointError) as error:
            cluster.refuse(comm, "Trainer", error)
        trainer = cls(net, optimizer=optimizer, strategy=strategy, comm=comm, threads=threads, backend=backend, **how)
        trainer.fit_settings = {key: settings[key] for key in _FIT_SETTINGS if key in settings}
        checkpoint.restore(trainer, path)
        return trainer

    # ---- traces

    @collective
    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of all ranks (trace= of the constructor) for chrome://tracing or Perfetto. Collective.

        gossipgrad.state.trace describes the file. A rank with more spans than trace= keeps the newest. A warning then
        says so, and "spans_lost" of the file counts them by rank.
        """
        with self.agreed() as one:
            one.facts = {"path": outputs.check_path("path", path)}
        nodes = self.net.graph.nodes()
        layers = [node["name"] for node in nodes if node["parameters"]]
        lost = trace.write(self.core.exchange, self.team, [node["name"] for node in nodes], layers, path)
        if self.rank == 0 and any(lost):
            warn(
                f"trace={self.trace} spans a rank: rank {lost.index(max(lost))} had {max(lost)} more; "
                f"the oldest are not in {os.fspath(path)}"
            )


_EVALUATED = 256  # the usual batch of an evaluation

_FIT_SETTINGS = (
    "dataset",
    "train_samples",
    "validation_samples",
    "epochs",
    "batch_size",
    "shuffle",
    "drop_last",
    "final_mix",
    "validate_replicas",
    "shard",
    "weighted",
)
