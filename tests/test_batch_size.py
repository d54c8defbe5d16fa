"""Batches of another size in the middle of an epoch: what is left of it is trained on once; and resumes within it."""

import itertools
import json
import math

import numpy as np
import pytest
from conftest import ROOT
from test_reshape import Rows, everything, trainer_of

import gossipgrad as gg
from gossipgrad import _core

COUNT = 61


class Change(gg.Callback):
    """Other sizes after these steps of training."""

    every = 1

    def __init__(self, sizes):
        self.sizes = sizes

    def on_step(self, trainer, step):
        if step in self.sizes:
            trainer.set_batch_size(self.sizes[step])


class Save(gg.Callback):
    """A checkpoint after some step."""

    every = 1

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_step(self, trainer, step):
        if step == self.step:
            trainer.save(self.path)


def numbered(count=COUNT, first=0):
    """Sample i has a one in column i, so the gradient of a weight says whether it was trained on."""
    x = np.zeros((count, COUNT + 40), np.float32)
    x[np.arange(count), first + np.arange(count)] = 1
    return x, np.full((count, 1), -1, np.float32)


class Counted(gg.Callback):
    """What each step has trained on, from the gradients of a network whose output stays 0."""

    every = 1

    def __init__(self):
        self.seen, self.sizes = {}, []

    def note(self, trainer):
        found = []
        for rank in range(trainer.size):
            gradient = trainer.gradients(rank)["fc1.weight"][0]
            found.append(np.flatnonzero(gradient))
            for sample in found[-1]:
                self.seen[int(sample)] = self.seen.get(int(sample), 0) + 1
        self.sizes.append([len(one) for one in found])

    def on_step(self, trainer, step):
        self.note(trainer)

    def on_epoch_end(self, trainer, record):
        self.record = record
        self.epochs = [*getattr(self, "epochs", []), (dict(self.seen), list(self.sizes))]
        self.seen.clear(), self.sizes.clear()


def counting(ranks, strategy=None):
    net = gg.Sequential([gg.Linear(1, bias=False)], input=(COUNT + 40,))
    made = gg.Trainer(
        net,
        loss="mean_squared_error",
        optimizer=gg.SGD(lr=0.0, momentum=0.0),
        strategy=strategy or gg.NoExchange(),
        comm=gg.VirtualCluster(ranks),
    )
    made.load_weights({"fc1.weight": np.zeros((1, COUNT + 40), np.float32)})
    return made


@pytest.mark.parametrize("how", ["interleaved", "contiguous", "shuffled", "read", "moved", "own"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_sample_is_seen_once(how, ranks):
    """Whatever the shards, their sizes and where samples are."""
    strategy = gg.GossipGraD(shuffle_samples=True, staleness=0) if how in ("shuffled", "moved") else None
    trainer, seen = counting(ranks, strategy), Counted()
    options = {"shard": how} if how == "contiguous" else {}
    x, y = numbered()
    data = (gg.Dataset(Rows(x, y)),) if how in ("read", "moved") else (x, y)
    if how == "own":
        ends = [0, 19, 41, COUNT][: ranks + 1] if ranks > 1 else [0, COUNT]
        parts = list(itertools.pairwise(ends))
        data = [[x[a:b] for a, b in parts], [y[a:b] for a, b in parts]]
        options = {"sharded": True}
    sizes = {1: 3, 2: 2, 3: 7, 4: 9}
    history = trainer.fit(*data, epochs=2, batch_size=4, callbacks=[Change(sizes), seen], progress=False, **options)
    for found, steps in seen.epochs:
        assert found == dict.fromkeys(range(COUNT), 1)
        assert all(size >= 1 for one in steps for size in one)
    changed, whole = seen.epochs[0][1], seen.epochs[1][1]
    shards = [len(trainer.sample_ids(r)) for r in range(ranks)]
    if how != "own":  # full, but for the last ones
        assert [max(one) for one in changed[:4]] == [4, 3, 2, 7]
        assert len(changed) == 4 + math.ceil((max(shards) - 16) / 9)
    assert len(whole) == math.ceil(max(shards) / 9)
    assert [one["steps"] for one in history.epochs] == [len(changed), len(whole)]
    assert [one["samples"] for one in history.epochs] == [COUNT, COUNT]
    assert history.settings["batch_size"] == 4 and history.settings["batch_size_changes"] == [
        {"step": step, "batch_size": size} for step, size in sizes.items()
    ]
    assert trainer.batch_size == 9
    if how in ("shuffled", "moved"):
        assert trainer.audit_samples()["ok"]


def test_full_batches_alone():
    """Where no batch of the new size is left, the epoch ends."""
    x, y = numbered(41)
    for steps, wanted in (({2: 7}, [(3, 30), (2, 28)]), ({2: 19}, [(2, 16), (1, 38)])):
        trainer, seen = counting(2), Counted()
        options = {"epochs": 2, "batch_size": 4, "drop_last": True, "progress": False}
        history = trainer.fit(x, y, callbacks=[Change(steps), seen], **options)
        assert [(one["steps"], one["samples"]) for one in history.epochs] == wanted
        assert [len(found) for found, _ in seen.epochs] == [samples for _, samples in wanted]


def run(strategy, x, y, ranks=3, callbacks=(), resume=None, batch=4, epochs=3, **options):
    """(what is left of it, the history) of some epochs."""
    trainer = trainer_of(strategy, ranks, optimizer=gg.Adam(lr=0.01, schedule=gg.schedules.Cosine()), seed=3, **options)
    history = trainer.fit(
        x, y, epochs=epochs, batch_size=batch, callbacks=list(callbacks), resume=resume, progress=False
    )
    found = everything(trainer)
    trainer.close()
    return found, history


def images(count=COUNT):
    generator = np.random.default_rng(5)
    return generator.standard_normal((count, 1, 8, 8), np.float32), generator.integers(0, 3, count).astype(np.int32)


COMPARED = ("epoch", "steps", "samples", "train_loss", "train_accuracy", "learning_rate", "consensus_distance")
SENT = ("bytes_sent", "messages_sent", "sample_bytes_sent", "compression")


@pytest.mark.parametrize(
    "name", ["allreduce", "gossip", "shuffled", "overlapped", "server", "diloco", "compressed", "own"]
)
def test_a_resume_in_such_an_epoch_is_as_if_it_had_never_stopped(name, tmp_path):
    """Saved after steps of several sizes, in the middle of the second epoch: bits, counts, rates and later epochs."""
    strategy = {
        "allreduce": gg.AllReduce(),
        "gossip": gg.GossipGraD(staleness=1),
        "shuffled": gg.GossipGraD(shuffle_samples=True),
        "overlapped": gg.OverlappedAveraging(),
        "server": gg.ParameterServer(dedicated=True),
        "diloco": gg.DiLoCo(period=3, fragments=2, delay=3, outer_momentum=0.5),
    }.get(name, gg.AllReduce())
    options = {"compression": gg.AdaComp(bin_size=5, dense_below=0)} if name == "compressed" else {}
    x, y = images()
    if name == "own":
        x, y = [x[:11], x[11:40], x[40:]], [y[:11], y[11:40], y[40:]]
    whole = run_own if name == "own" else run
    path, sizes = tmp_path / "a.gg", {3: 5, 9: 2, 10: 3}
    for step in (8, 11):
        plain = whole(strategy, x, y, callbacks=[Save(path, step), Change(sizes)], **options)
        assert plain[1].epochs[0]["steps"] < step
        resumed = whole(strategy, x, y, callbacks=[Change(sizes)], resume=path, **options)
        assert resumed[0] == plain[0]
        assert resumed[1].weights_sha256 == plain[1].weights_sha256
        for before, after in zip(plain[1].epochs, resumed[1].epochs, strict=True):
            for key in (*COMPARED, *(SENT if name != "server" else ())):  # which asks when its clock says so
                assert before.get(key) == after.get(key), key
        assert plain[1].settings["batch_size_changes"] == resumed[1].settings["batch_size_changes"]


def run_own(strategy, x, y, callbacks=(), resume=None, **options):
    trainer = trainer_of(strategy, 3, optimizer=gg.Adam(lr=0.01, schedule=gg.schedules.Cosine()), seed=3, **options)
    keywords = {"epochs": 3, "batch_size": 4, "callbacks": list(callbacks), "resume": resume, "progress": False}
    history = trainer.fit(x, y, sharded=True, **keywords)
    found = everything(trainer)
    trainer.close()
    return found, history


def test_saving_in_the_middle_changes_nothing_else(tmp_path):
    x, y = images()
    plain = run(gg.AllReduce(), x, y)
    saving = run(gg.AllReduce(), x, y, callbacks=[gg.Checkpoint(tmp_path / "a.gg", every=4)])
    assert saving[0] == plain[0]
    assert [{key: one[key] for key in COMPARED + SENT[:2]} for one in saving[1].epochs] == [
        {key: one[key] for key in COMPARED + SENT[:2]} for one in plain[1].epochs
    ]


def test_the_schedule_ends_where_training_does():
    """total="auto" counts the steps that there are now."""
    x, y = images()
    _, history = run(gg.AllReduce(), x, y, callbacks=[Change({7: 10})])
    steps = [one["steps"] for one in history.epochs]
    assert steps == [6, 1 + math.ceil((21 - 4) / 10), 3]
    last = gg.Adam(lr=0.01, schedule=gg.schedules.Cosine()).rate(sum(steps) - 1, total=sum(steps))
    assert history.epochs[-1]["learning_rate"] == last


def test_between_epochs_and_events():
    """From on_epoch_begin and on_epoch_end as fit with this batch_size begins the epoch; from on_shrink within one."""
    x, y = images()

    class Between(gg.Callback):
        def on_epoch_begin(self, trainer, epoch):
            if epoch == 2:
                trainer.set_batch_size(10)

        def on_epoch_end(self, trainer, record):
            if record["epoch"] == 2:
                trainer.set_batch_size(3)

    trainer = trainer_of(gg.AllReduce())
    trainer.fit(x, y, epochs=3, batch_size=4, callbacks=[Between()], progress=False)
    other = trainer_of(gg.AllReduce())
    for size in (4, 10, 3):
        other.fit(x, y, epochs=1, batch_size=size, progress=False)
    assert everything(trainer) == everything(other)

    class Events(gg.Callback):
        def on_shrink(self, trainer, event):
            if event["step"] == 4:
                trainer.set_batch_size(7)

    shrinking = trainer_of(gg.AllReduce(), apoptosis=gg.Apoptosis(every=4, budget=0.1, stop=9))
    history = shrinking.fit(x, y, epochs=2, batch_size=4, callbacks=[Events()], progress=False)
    assert [one["steps"] for one in history.epochs] == [4 + 1, 3]
    assert [one["samples"] for one in history.epochs] == [COUNT, COUNT]


@pytest.mark.parametrize("every", [1, 2, 3, 6, 12])
def test_on_step_is_called_after_the_last_step_of_an_epoch_too(every):
    """Between it and on_epoch_end."""
    seen = []

    class Seen(gg.Callback):
        def on_step(self, trainer, step):
            assert step == trainer.step
            seen.append(step)

        def on_epoch_end(self, trainer, record):
            seen.append(f"end {record['epoch']}")

    callback = Seen()
    callback.every = every
    x, y = images()
    run(gg.AllReduce(), x, y, callbacks=[callback])
    wanted = []
    for epoch in (1, 2, 3):
        wanted += [step for step in range(6 * epoch - 5, 6 * epoch + 1) if step % every == 0] + [f"end {epoch}"]
    assert seen == wanted


STRATEGIES_AT_THE_END = {
    "allreduce": (gg.AllReduce(), {}),
    "gossip": (gg.GossipGraD(staleness=1), {}),
    "shuffled": (gg.GossipGraD(shuffle_samples=True), {}),
    "overlapped": (gg.OverlappedAveraging(), {}),
    "diloco": (gg.DiLoCo(period=3, fragments=2, delay=3, outer_momentum=0.5), {}),
    "compressed": (gg.AllReduce(), {"compression": gg.AdaComp(bin_size=5, dense_below=0)}),
    "apoptosis": (gg.AllReduce(), {"apoptosis": gg.Apoptosis(every=4, budget=0.1, stop=15)}),
}


@pytest.mark.parametrize("name", STRATEGIES_AT_THE_END)
def test_what_is_done_after_the_last_step_of_an_epoch(name, tmp_path):
    """A save there changes nothing, is no harm to the epoch's own one, and a resume is as if it had never stopped."""
    strategy, options = STRATEGIES_AT_THE_END[name]
    x, y = images()
    path, own = tmp_path / "a.gg", tmp_path / "own.gg"
    plain = run(strategy, x, y, **options)
    save = Save(path, 12)
    save.every = 6  # after each epoch's last step alone: others complete what is in flight
    saving = run(strategy, x, y, callbacks=[save, gg.Checkpoint(own, every=6)], **options)
    resumed = run(strategy, x, y, resume=path, **options)
    for other in (saving, resumed):
        assert other[0] == plain[0] and other[1].weights_sha256 == plain[1].weights_sha256
        for before, after in zip(plain[1].epochs, other[1].epochs, strict=True):
            for key in (*COMPARED, *SENT):
                assert before.get(key) == after.get(key), key
    trainer = gg.Trainer.load(own)
    assert (trainer.epoch, trainer.step, trainer.fit_state.position) == (3, 18, None)
    assert trainer.weights_sha256() == plain[1].weights_sha256


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_size_after_the_last_step_is_of_the_next_epoch(drop_last, tmp_path):
    """As set in on_epoch_end; saved there too."""
    x, y = images()
    size = 7

    class Between(gg.Callback):
        def on_epoch_end(self, trainer, record):
            if record["epoch"] == 1:
                trainer.set_batch_size(size)

    def found(callbacks=(), resume=None):
        trainer = trainer_of(gg.AllReduce(), 3, optimizer=gg.Adam(lr=0.01, schedule=gg.schedules.Cosine()))
        keywords = {"epochs": 3, "batch_size": 4, "progress": False, "drop_last": drop_last}
        history = trainer.fit(x, y, callbacks=list(callbacks), resume=resume, **keywords)
        return everything(trainer), history

    steps = 5 if drop_last else 6
    path = tmp_path / "a.gg"
    wanted = found([Between()])
    saved = found([Change({steps: size}), gg.Checkpoint(tmp_path / "b.gg", every=steps), Save(path, steps)])
    resumed = found(resume=path)
    for other in (saved, resumed):
        assert other[0] == wanted[0] and other[1].settings["batch_size_changes"] == [
            {"step": steps, "batch_size": size}
        ]
        for before, after in zip(wanted[1].epochs, other[1].epochs, strict=True):
            for key in COMPARED:
                assert before.get(key) == after.get(key), key
    assert [one["steps"] for one in wanted[1].epochs] == [steps, *[2 if drop_last else 3] * 2]


def test_a_rate_set_after_the_last_step_is_of_the_next_epoch(tmp_path):
    x, y = images()
    path = tmp_path / "a.gg"

    class Lower(gg.Callback):
        every = 6

        def on_step(self, trainer, step):
            if step == 6:
                trainer.learning_rate = 0.001

    first = run(gg.AllReduce(), x, y, callbacks=[Lower(), Save(path, 6)])
    again = run(gg.AllReduce(), x, y, resume=path)
    assert first[0] == again[0]
    rates = [one["learning_rate"] for one in first[1].epochs]
    assert rates == [one["learning_rate"] for one in again[1].epochs] and rates[0] > rates[1] == rates[2] == 0.001


def test_a_resume_with_another_batch_goes_on_with_what_is_left(tmp_path):
    x, y = numbered()
    trainer, seen = counting(2), Counted()
    path = tmp_path / "a.gg"
    trainer.fit(x, y, epochs=1, batch_size=4, callbacks=[Save(path, 3), Change({2: 6})], progress=False)
    trainer = counting(2)
    with pytest.warns(UserWarning, match="batch_size 4 -> 5"):
        history = trainer.fit(x, y, epochs=1, batch_size=5, callbacks=[seen], resume=path, progress=False)
    assert len(seen.epochs[0][0]) == COUNT - 2 * 14 and set(seen.epochs[0][0].values()) == {1}
    assert history.epochs[0]["steps"] == 3 + math.ceil((31 - 14) / 5) and history.epochs[0]["samples"] == COUNT


def test_what_is_refused(tmp_path):
    x, y = images()
    trainer = trainer_of(gg.AllReduce())
    with pytest.raises(RuntimeError, match="set_batch_size: there is no epoch to go on with; allowed: within fit"):
        trainer.set_batch_size(3)
    said = []

    class Wrong(gg.Callback):
        every = 2

        def on_step(self, trainer, step):
            for size, kind in ((0, ValueError), (21, ValueError), (2.5, TypeError), ("4", TypeError)):
                with pytest.raises(kind) as error:
                    trainer.set_batch_size(size)
                said.append(str(error.value))

    path = tmp_path / "a.gg"
    trainer.fit(x, y, epochs=1, batch_size=4, callbacks=[Wrong(), Save(path, 2)], progress=False)
    assert "batch_size" in said[0] and "smallest shard has 20 samples" in said[1] and "allowed: 1..20" in said[1]
    with pytest.raises(gg.CheckpointError, match="in the middle of epoch 1; to go on there, train_samples must be 61"):
        trainer_of(gg.AllReduce()).fit(x[:50], y[:50], epochs=1, batch_size=4, resume=path, progress=False)
    with pytest.raises(gg.CheckpointError, match="shuffle must be True, here it is False"):
        trainer_of(gg.AllReduce()).fit(x, y, epochs=1, batch_size=4, shuffle=False, resume=path, progress=False)
    served = trainer_of(gg.ParameterServer(dedicated=True))  # two of three ranks train: they share what is left
    assert served.fit(x, y, epochs=1, batch_size=4, resume=path, progress=False).last["samples"] == 61
    with pytest.raises(ValueError, match=r"Odd.every=-1: allowed: an integer of at least 0"):
        trainer.fit(x, y, batch_size=4, callbacks=[type("Odd", (Wrong,), {"every": -1})()], progress=False)
    with pytest.raises(ValueError, match="every=3: allowed with save_last=True"):
        gg.Checkpoint(path, save_last=False, every=3)
    core = trainer_of(gg.AllReduce()).core
    with pytest.raises(RuntimeError, match="batch=4, but there is no data"):
        core.reshape(batch=4)
    with pytest.raises(RuntimeError, match="no data"):
        core.position()


def test_pieces_of_sequences_stay_as_they_are_within_an_epoch():
    words = gg.data.text("abcd efgh\n" * 30, 4, windows="streams", validation=None)
    ids = gg.Input((4,), dtype="int32", name="ids")
    net = gg.Model(ids, gg.Linear(10)(gg.LSTM(5, stateful=True)(gg.Embedding(10, 3)(ids))))
    trainer = gg.Trainer(net, strategy=gg.AllReduce(), comm=gg.VirtualCluster(2))
    with pytest.raises(ValueError, match="in the middle of an epoch of pieces of sequences"):
        trainer.fit(words, epochs=1, batch_size=4, callbacks=[Change({2: 2})], progress=False)


def test_a_strategy_whose_ranks_have_no_such_batch_changes_nothing():
    """Fewer ranks that train have larger shards, more have smaller ones: refused before anything changes."""
    trainer = trainer_of(gg.ParameterServer(dedicated=True), 2)
    x, y = images(20)
    data = gg.Dataset(x, y).for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape)
    steps = trainer.core.begin(data, 15)
    before = everything(trainer)
    with pytest.raises(ValueError, match="batch=15: 20 samples on 2 ranks allow 1 to 10"):
        trainer.core.reshape(strategy=gg.AllReduce().options())
    assert everything(trainer) == before
    trainer.core.epoch(0)
    assert trainer.core.run(9) == steps == 2
    trainer.core.reshape(strategy=gg.AllReduce().options(), batch=10)
    trainer.core.epoch(1)
    assert trainer.core.run(9) == 1


def test_steps_of_another_size_allocate_nothing():
    trainer = trainer_of(gg.AllReduce(), 3)
    x, y = images()
    data = gg.Dataset(x, y).for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape)
    trainer.core.begin(data, 4)
    trainer.core.epoch(0)
    trainer.core.run(2)
    for size in (7, 3):
        trainer.core.reshape(batch=size)
        assert trainer.core.run(1) == trainer.core.position()["step"]
        warm = _core.memory()[1]
        trainer.core.run(2)
        assert _core.memory()[1] == warm
    trainer.core.run(100)
    for epoch in range(1, 4):  # a device may record a smaller last batch when a rank meets it again
        trainer.core.epoch(epoch)
        trainer.core.run(100)
    trainer.core.epoch(4)
    warm = _core.memory()[1]
    assert trainer.core.run(100) == 7 and _core.memory()[1] == warm


# ---- under MPI

SCRIPT_CASES = {
    "allreduce": gg.AllReduce(),
    "gossip": gg.GossipGraD(staleness=0, shuffle_samples=True),
    "overlapped": gg.OverlappedAveraging(),
}


def under(ranks, folder):
    """Digests, losses and counts of runs that change their batches, save in the middle and go on; on any ranks."""
    found = []
    x, y = images()
    for name, strategy in SCRIPT_CASES.items():
        path = f"{folder}/{name}.gg"
        sizes = {2: 7, 5: 3, 9: 5}
        _, plain = run(strategy, x, y, ranks, callbacks=[Save(path, 8), Change(sizes)], epochs=2)
        _, again = run(strategy, x, y, ranks, callbacks=[Change(sizes)], resume=path, epochs=2)
        assert plain.weights_sha256 == again.weights_sha256
        found.append([plain.weights_sha256, [[one[key] for key in COMPARED[:-1]] for one in again.epochs]])
        at_the_end = [Change({6: 7}), Save(f"{folder}/{name}.end.gg", 6)]
        for callback in at_the_end:
            callback.every = 6  # the steps of the first epoch
        _, plain = run(strategy, x, y, ranks, callbacks=at_the_end, epochs=2)
        _, again = run(strategy, x, y, ranks, resume=at_the_end[1].path, epochs=2)
        assert plain.weights_sha256 == again.weights_sha256 and [one["steps"] for one in again.epochs] == [6, 3]
        found.append([plain.weights_sha256, [[one[key] for key in COMPARED[:-1]] for one in again.epochs]])
    return found


@pytest.mark.full
def test_mpi_gives_the_bits_of_the_virtual_cluster(mpirun, tmp_path):
    (tmp_path / "mpi").mkdir(), (tmp_path / "virtual").mkdir()
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport test_batch_size as t\n"
        f"import gossipgrad as gg\n"
        f"found = t.under(0, {str(tmp_path / 'mpi')!r})\n"
        "class Odd(gg.Callback):\n"
        "    every = 3\n"
        "    def on_step(self, trainer, step): trainer.set_batch_size(5 + trainer.rank)\n"
        "x, y = t.images()\n"
        "try: t.trainer_of(gg.AllReduce(), 0).fit(x, y, batch_size=4, callbacks=[Odd()], progress=False)\n"
        "except ValueError as error: said = str(error)\n"
        "class Alone(gg.Callback):\n"
        "    steps = []\n"
        "    def __init__(self, every): self.every = every\n"
        "    def on_step(self, trainer, step): self.steps.append(step)\n"
        "one = t.trainer_of(gg.AllReduce(), 0)\n"
        "one.fit(x, y, batch_size=4, callbacks=[Alone(2 * one.rank)], progress=False)\n"
        "steps = one.gather(json.dumps(Alone.steps).encode())\n"
        "if one.rank == 0: print(json.dumps([found, said, [json.loads(s) for s in steps]]))\n"
    )
    done = mpirun(3, script)
    assert done.returncode == 0, done.stderr
    found, said, steps = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == json.loads(json.dumps(under(3, str(tmp_path / "virtual"))))
    assert "batch_size: 5 on rank 0; 6 on rank 1; 7 on rank 2" in said
    assert steps == [[], [2, 4, 6], [4]]
