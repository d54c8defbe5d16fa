"""Ranks that do not do the same: an error on all of them that names what differs. And waits that last are said."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT, own_lines
from gossip_reference import small_net

import gossipgrad as gg
from gossipgrad.launch import agreement, stall
from gossipgrad.training import fingerprint

HEAD = f"""import sys, os, time; sys.path[:0] = [{str(ROOT / "tests")!r}]
import numpy as np
import gossipgrad as gg
from gossip_reference import small_net
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
data = np.arange(60 * 64, dtype=np.float32).reshape(60, 1, 8, 8) / 4000, np.arange(60) % 4
"""


def reports(*facts, call="Trainer.fit"):
    return [agreement.report_of(call, one) for one in facts]


# ---- comparing, without any process


def test_a_difference_names_the_fact_its_values_and_the_ranks():
    same = {"epochs": 3, "batch_size": 32}
    given = reports(same, {**same, "batch_size": 64}, same)
    for rank in range(3):
        error = agreement.disagreement(given, rank)
        assert type(error) is ValueError
        text = "Trainer.fit: ranks differ in what must be equal on all. batch_size: 32 on ranks 0 and 2; 64 on rank 1"
        assert str(error) == text
    assert agreement.disagreement(reports(same, same), 0) is None


def test_only_what_differs_is_listed():
    names = {f"weight{i}": i for i in range(20)}
    other = names | {"weight7": -1, "weight11": -2}
    assert agreement.differences([report["facts"] for report in reports(names, other)]) == [
        "weight7: 7 on rank 0; -1 on rank 1",
        "weight11: 11 on rank 0; -2 on rank 1",
    ]


def test_what_one_rank_lacks_is_absent():
    found = agreement.differences([one["facts"] for one in reports({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}})])
    assert found == ["a, y: absent on rank 0; 2 on rank 1"]
    given = reports({"b": "none", "a": 1}, {"b": {"x": 1, "y": {"z": 2}}, "a": 1})
    assert agreement.differences([one["facts"] for one in given]) == ["b: none on rank 0; given on rank 1"]


def test_long_lists_are_cut():
    many = reports(*({"seed": rank} for rank in range(100)))
    text = str(agreement.disagreement(many, 3))
    assert "seed: 0 on rank 0; 1 on rank 1;" in text and "and 92 more values" in text and len(text) < 400
    text = str(agreement.disagreement(reports({str(i): 0 for i in range(50)}, {}), 0))
    assert "and 45 more differences" in text
    long = str(agreement.disagreement(reports({"topology": [1] * 1000}, {"topology": [1] * 999 + [2]}), 0))
    assert len(long) < 400
    first, second = re.findall(r"\(checksum (\w+)\)", long)
    assert first != second


def test_a_value_that_is_not_equal_to_itself_is_no_difference():
    assert agreement.disagreement(reports({"lr": math.nan}, {"lr": math.nan}), 0) is None


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([4], "rank 4"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2, 5], "ranks 0-2 and 5"),
        ([*range(64)], "ranks 0-63"),
        ([0, 2, 4, 5], "ranks 0, 2, 4 and 5"),
        ([*range(0, 64, 2)], "ranks 0, 2, 4, 6, 8, 10, 12 and others, 32 in all"),
    ],
)
def test_lists_of_ranks(ranks, text):
    assert stall.ranks_text(ranks) == text


def test_an_error_of_one_rank_is_raised_by_all():
    """Of its own type where that can be made, else of the nearest one."""

    class Own(FloatingPointError):
        def __init__(self, a, b):
            super().__init__(f"{a} {b}")

    for error, kind, text in [
        (FloatingPointError("the loss is nan"), FloatingPointError, "the loss is nan"),
        (gg.CheckpointError("damaged"), gg.CheckpointError, "damaged"),
        (Own("two", "words"), FloatingPointError, "two words"),
        (ValueError(), ValueError, "ValueError"),
        (KeyError("name"), KeyError, "'rank 1: name'"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), UnicodeError, "bad"),
    ]:
        given = [agreement.report_of("Trainer.fit", {}), agreement.report_of("Trainer.fit", {}, error)]
        assert agreement.disagreement(given, 1, error) is error
        other = agreement.disagreement(given, 0)
        assert type(other) is kind and str(other).strip("'").startswith("rank 1: ") and text in str(other)


def test_different_calls_are_named_both():
    given = [agreement.report_of("Trainer.evaluate", {}), *reports({"epochs": 1}, {"epochs": 1})]
    for rank in range(3):
        text = str(agreement.disagreement(given, rank))
        assert text.startswith("ranks make different calls: Trainer.evaluate on rank 0; Trainer.fit on ranks 1 and 2.")


# ---- fingerprints


def facts_of(*arguments, **keywords):
    return agreement.flat({"train": fingerprint.data(gg.Dataset(*arguments, **keywords))})


def changed(before, after):
    return {name.removeprefix("train, ") for name in before if before[name] != after[name]}


def test_a_fingerprint_of_data():
    x, y = np.random.default_rng(0).standard_normal((500, 3), np.float32), np.arange(500) % 7
    first = facts_of(x, y)
    assert facts_of(x.copy(), y.astype(np.int16)) == first
    assert changed(first, facts_of(x, np.roll(y, 1))) == {"targets"}
    for i in (0, 250, 499):
        other = y.copy()
        other[i] += 1
        assert changed(first, facts_of(x, other)) == {"targets"}
    assert changed(first, facts_of(x[::-1], y)) == {"some of the samples"}
    wide = np.random.default_rng(1).standard_normal((500, 1000), np.float32)  # in several pieces
    whole = facts_of(x, wide)
    assert whole == facts_of(x, wide.astype(np.float64)) and changed(whole, facts_of(x, -wide)) == {"targets"}
    wide[-1, -1] += 1
    assert changed(whole, facts_of(x, wide)) == {"targets"}
    assert changed(first, facts_of(x, y, scale=0.5)) == {"scale"}
    assert changed(first, facts_of(x[:-1], y[:-1])) >= {"number of samples", "targets"}
    assert changed(first, facts_of(x, y, sample_weight=np.ones(500))) == {"sample_weight"}
    nan = np.where(x > 1, np.nan, x)
    assert facts_of(nan, y) == facts_of(nan.copy(), y)
    shifted = facts_of(x, np.where(y == 3, np.nan, y))
    assert changed(first, shifted) == {"targets"} and facts_of(x, np.where(y == 3, np.nan, y)) == shifted


def test_few_samples_are_looked_at():
    """Of a set of any size the cost is that of some rows."""
    for count, row in ((1, 4), (10, 4), (10**9, 3 * 224 * 224), (10**9, 1 << 30)):
        rows = fingerprint.spread(count, row)
        assert rows[0] == 0 and len(set(rows)) == len(rows) <= fingerprint.ROWS
        assert rows[-1] == count - 1 or len(rows) == 1
        assert len(rows) * row <= fingerprint.BYTES or len(rows) == 1
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    part = gg.Dataset(x, np.arange(1000))[np.arange(1000)[::-2]]
    assert fingerprint.inputs(part)["some of the samples"]() == fingerprint.inputs((x[::-2],))["some of the samples"]()


def test_of_shards_the_shapes_alone_are_compared():
    x, y = np.zeros((9, 3), np.float32), np.arange(9)
    parts = [gg.Dataset(x[:5], y[:5]), gg.Dataset(x[5:] + 1, y[5:]), gg.Dataset(x[:, :2], y)]
    facts = [agreement.flat({"train": fingerprint.data(one, sharded=True)}) for one in parts]
    assert agreement.differences(facts[:2]) == []
    found = agreement.differences(facts)
    assert found == ["train, shape of a sample: (3,) on ranks 0 and 1; (2,) on rank 2"]
    assert agreement.differences([facts[0], agreement.flat({"train": fingerprint.data(parts[0])})])


def test_a_fingerprint_of_weights_is_for_each_tensor():
    net = small_net()
    first = fingerprint.weights(net.weights(1))
    other = net.weights(1)
    other["fc1.bias"][0] = np.nan
    second = fingerprint.weights(other)
    assert [name for name in first if first[name] != second[name]] == ["fc1.bias"]


def test_a_fingerprint_of_a_network_names_the_layer():
    def net(width):
        return gg.Sequential([gg.Flatten(), gg.Linear(width), gg.ReLU(), gg.Linear(4)], input=(1, 8, 8))

    found = agreement.differences([agreement.flat(fingerprint.network(net(width))) for width in (8, 9)])
    assert found == ["layer 'fc1', out: 8 on rank 0; 9 on rank 1"]


# ---- the same under MPI: many disagreements in one job, which goes on after each


TRIES = (
    HEAD
    + """
def attempt(name, work):
    try:
        work()
    except Exception as error:
        print(f"{name}|{type(error).__name__}|{' '.join(str(error).split())}|", flush=True)
    else:
        print(f"{name}|fine||", flush=True)

def fit(**changes):
    given = {"train": data, "batch_size": 5, "progress": False} | changes
    trainer.fit(given.pop("train"), **given)

odd = rank == 1
class Fails(gg.Callback):
    def __init__(self, where): setattr(self, where, self.fail)
    def fail(self, *_):
        if odd: raise RuntimeError("on purpose")
class Evaluates(gg.Callback):
    def on_epoch_end(self, trainer, record):
        if rank == 0: trainer.evaluate(data)
"""
)

# name: (what all ranks try, the error's type, words of it); of rank 1, and of the others where they differ.
CASES = {
    "seed": (
        "lambda: gg.Trainer(small_net(), seed=rank)",
        "ValueError",
        r"seed: 0 on rank 0; 1 on rank 1; 2 on rank 2",
    ),
    "lr": (
        "lambda: gg.Trainer(small_net(), optimizer=gg.SGD(lr=.1 + odd))",
        "ValueError",
        r"lr: 0.1 on ranks 0 and 2; 1.1 on rank 1$",
    ),
    "staleness": (
        "lambda: gg.Trainer(small_net(), strategy=gg.GossipGraD(staleness=int(odd)))",
        "ValueError",
        "staleness: 0 on ranks 0 and 2; 1 on rank 1$",
    ),
    "strategy": (
        "lambda: gg.Trainer(small_net(), strategy=gg.AllReduce() if odd else gg.NoExchange())",
        "ValueError",
        r"strategy: no-exchange on ranks 0 and 2; allreduce on rank 1",
    ),
    "timeout": (
        "lambda: gg.Trainer(small_net(), timeout=30.0 * odd)",
        "ValueError",
        "timeout: 0.0 on ranks 0 and 2; 30.0 on rank 1$",
    ),
    "network": (
        "lambda: gg.Trainer(small_net(), network=gg.Network(latency=1e-4) if odd else None)",
        "ValueError",
        r"slow network: None on ranks 0 and 2; Network\(latency=0.0001",
    ),
    "model": (
        "lambda: gg.Trainer(gg.models.lenet() if odd else small_net())",
        "ValueError",
        "layers: input conv tanh1 .* on ranks 0 and 2; input conv1 pool1",
    ),
    "bad argument": (
        "lambda: gg.Trainer(small_net(), loss='none' if odd else 'cross_entropy')",
        "ValueError",
        "(rank 1: )?loss='none': allowed",
    ),
    "no network": ("lambda: gg.Trainer(3 if odd else small_net())", "TypeError", "(rank 1: )?net is a int"),
    "apoptosis": (
        "lambda: gg.Trainer(small_net(), apoptosis=gg.Apoptosis(budget=0.1 + odd / 10))",
        "ValueError",
        "apoptosis, budget: 0.1 on ranks 0 and 2; 0.2 on rank 1$",
    ),
    "probe": (
        "lambda: gg.Trainer(small_net(), apoptosis=gg.Apoptosis(probe=(data[0][odd:9 + odd], data[1][odd:9 + odd])))",
        "ValueError",
        "on all. probe, targets: checksum .* on ranks 0 and 2",
    ),
    "shrink": (
        "lambda: trainer.shrink(0.1, least=1 + odd)",
        "ValueError",
        "least, conv: 1 on ranks 0 and 2; 2 on rank 1",
    ),
    "bad shrink": (
        "lambda: trainer.shrink(layers='fc9' if odd else '*')",
        "ValueError",
        "(rank 1: )?shrink: layers='fc9': no layer with units",
    ),
    "batch": ("lambda: fit(batch_size=5 + odd)", "ValueError", "batch_size: 5 on ranks 0 and 2; 6 on rank 1$"),
    "epochs": ("lambda: fit(epochs=1 + odd)", "ValueError", "epochs: 1 on ranks 0 and 2; 2 on rank 1$"),
    "validation": (
        "lambda: fit(validation=data if odd else None)",
        "ValueError",
        "validation: none on ranks 0 and 2; given on rank 1$",
    ),
    "size": (
        "lambda: fit(train=(data[0][odd:], data[1][odd:]))",
        "ValueError",
        "train, number of samples: 60 on ranks 0 and 2; 59 on rank 1.*the same whole sets",
    ),
    "own shards": (
        "lambda: fit(train=(data[0][rank::3], data[1][rank::3]))",
        "ValueError",
        r"train, targets: checksum \w+ on rank 0; checksum \w+ on rank 1.*train, some of the samples",
    ),
    "targets": (
        "lambda: fit(train=(data[0], (data[1] + (np.arange(60) == 31) * odd) % 4))",
        "ValueError",
        r"on all. train, targets: checksum (\w+) on ranks 0 and 2; checksum (?!\1)\w+ on rank 1. Every rank",
    ),
    "wrong dtype": (
        "lambda: fit(train=(data[0].astype(str) if odd else data[0], data[1]))",
        "TypeError",
        "(rank 1: )?train: samples: dtype",
    ),
    "checkpoint on one": (
        "lambda: fit(callbacks=[gg.Checkpoint('/tmp/none.safetensors')] if odd else [])",
        "ValueError",
        "callbacks: none on ranks 0 and 2; Checkpoint on rank 1$",
    ),
    "patience on one": (
        "lambda: fit(validation=data, callbacks=[gg.EarlyStopping(patience=2 + odd)])",
        "ValueError",
        "callbacks, EarlyStopping, patience: 2 on ranks 0 and 2; 3 on rank 1$",
    ),
    "evaluate": ("lambda: trainer.evaluate((data[0], data[1][::1 - 2 * odd]))", "ValueError", "data, targets"),
    "predict": ("lambda: trainer.predict(data[0][:10 - odd])", "ValueError", r"x, shape: \(10, 1, 8, 8\) on ranks 0"),
    "bad predict": ("lambda: trainer.predict(data[0][:, :, :7 if odd else 8])", "ValueError", "(rank 1: )?x: shape"),
    "train_step": (
        "lambda: trainer.train_step(data[0][:4], data[1][:4] + 10 * odd)",
        "ValueError",
        r"(rank 1: )?y\[0\] is 10",
    ),
    "save": ("lambda: trainer.save(f'{folder}/{rank}')", "ValueError", "path: .*/0 on rank 0; .*/1 on rank 1"),
    "load_weights": (
        "lambda: trainer.load_weights({k: v + odd * k.endswith('bias') for k, v in weights.items()})",
        "ValueError",
        r"on all. weights, conv.bias: checksum",
    ),
    "loaded": ("lambda: gg.Trainer(loaded(odd))", "ValueError", r"on all. loaded weights, conv.bias: checksum"),
    "evaluate on one": (
        "lambda: trainer.evaluate(data) if odd else fit()",
        "ValueError",
        "different calls: Trainer.fit on ranks 0 and 2; Trainer.evaluate on rank 1",
    ),
    "evaluate in a callback": (
        "lambda: fit(callbacks=[Evaluates()])",
        "ValueError",
        "different calls: Trainer.evaluate on rank 0; Trainer.fit, end of epoch \\d on ranks 1 and 2",
    ),
    **{
        where: (f"lambda: fit(callbacks=[Fails('{where}')])", "RuntimeError", "(rank 1: )?on purpose")
        for where in ("on_fit_begin", "on_epoch_begin", "on_progress", "on_epoch_end", "on_fit_end")
    },
    "resume": (
        "lambda: fit(epochs=5, resume='gone')",
        "CheckpointError",
        "(rank 1: )?gone",
    ),
    "resume of two": (
        "lambda: fit(epochs=5, resume=f'{folder}/there' if not odd else f'{folder}/other')",
        "ValueError",
        "resume: .*/there on ranks 0 and 2; .*/other on rank 1",
    ),
    "resume of one": (
        "lambda: fit(epochs=5, resume=f'{folder}/there' if not odd else None)",
        "ValueError",
        "resume: .*/there on ranks 0 and 2; None on rank 1$",
    ),
    "a file unlike": (
        "lambda: fit(epochs=5, resume='there')",
        "ValueError",
        r"on all. description of there: checksum \w+ on ranks 0 and 2; checksum",
    ),
    "load of one": (
        "lambda: gg.Trainer.load(f'{folder}/there' if not odd else f'{folder}/gone')",
        "CheckpointError",
        "(rank 1: )?.*/gone",
    ),
}


def test_ranks_that_disagree_all_fail_and_go_on(mpirun, tmp_path):
    text = (
        TRIES
        + f"""
def loaded(odd):
    net = small_net()
    net.load_weights({{k: v + odd * k.endswith('bias') for k, v in weights.items()}})
    return net
folder = {str(tmp_path)!r}
trainer = gg.Trainer(small_net())
weights = small_net().weights()
trainer.save(f"{{folder}}/there")
fit()
trainer.save(f"{{folder}}/other")
os.makedirs(f"{{folder}}/of{{rank}}", exist_ok=True)
os.chdir(f"{{folder}}/of{{rank}}")
for name in ("there", "there.state"):
    os.symlink(f"{{folder}}/{{'other' if odd else 'there'}}{{name[5:]}}", name)
    if not odd: os.symlink(f"{{folder}}/{{name}}", name.replace("there", "gone"))
"""
    )
    for name, (work, _, _) in CASES.items():
        text += f"attempt({name!r}, {work})\n"
    # callbacks that act on one rank alone may differ, and so may progress, threads and backend
    text += "attempt('none', lambda: fit(callbacks=[Fails('on_x')] if odd else [], progress=False if rank else True))\n"
    text += "hardware = {'device': 'cpu', 'backend': 'native' if odd else None, 'threads': 1 + odd}\n"
    text += "attempt('hardware', lambda: gg.Trainer(small_net(), **hardware))\n"
    text += (
        "attempt('at last', lambda: print(f'bits|{trainer.weights_sha256()[0]}||', trainer.predict(data[0]).shape))\n"
    )
    done = mpirun(3, text, env={"GOSSIPGRAD_STALL_SECONDS": "20"})
    lines = Counter(line for line in done.stdout.splitlines() if line.count("|") >= 3)
    for name, (_, kind, words) in CASES.items():
        found = {line: count for line, count in lines.items() if line.startswith(name + "|")}
        assert sum(found.values()) == 3, (name, found, done.stderr)
        for line in found:
            assert line.split("|")[1] == kind and re.search(words.removesuffix("$"), line.split("|")[2]), line
            assert not words.endswith("$") or re.search(words, line.split("|")[2]), line
        if words.startswith("(rank 1: )?"):
            told = [count for line, count in found.items() if line.split("|")[2].startswith("rank 1: ")]
            assert told == [2], (name, found)
        else:
            assert len(found) == 1, found
    assert lines["none|fine||"] == lines["hardware|fine||"] == lines["at last|fine||"] == 3, done.stdout


def test_a_loss_that_is_no_number_on_one_rank_can_be_caught(mpirun):
    """In the middle of an epoch, at other steps on each rank; the next fit works."""
    text = (
        HEAD
        + """
train, _ = gg.data.synthetic((1, 8, 8), classes=4, train=600, test=1)
net = gg.Sequential([gg.Flatten(), gg.Linear(8), gg.Linear(4)], input=(1, 8, 8))
for lr in (1e25, 0.01):
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=lr), strategy=gg.NoExchange())
    try:
        trainer.fit(train, epochs=2, batch_size=5, progress=False)
        print("trained", lr, flush=True)
    except FloatingPointError as error:
        print("caught", lr, flush=True)
class Nan(gg.Callback):
    def on_progress(self, trainer, progress):
        if rank == 1: raise FloatingPointError("the loss is nan on rank 1 alone")
trainer = gg.Trainer(small_net())
try: trainer.fit(data, epochs=3, batch_size=5, progress=False, callbacks=[Nan()])
except FloatingPointError as error: print(error, trainer.epoch, flush=True)
trainer.fit(data, epochs=1, batch_size=5, progress=False)
print("after", trainer.epoch, flush=True)
"""
    )
    done = mpirun(2, text, env={"GOSSIPGRAD_STALL_SECONDS": "20"})
    lines = Counter(done.stdout.splitlines())
    assert lines["caught 1e+25"] == lines["trained 0.01"] == lines["after 1"] == 2, done.stdout
    assert lines["the loss is nan on rank 1 alone 0"] == lines["rank 1: the loss is nan on rank 1 alone 0"] == 1


def test_samples_that_one_rank_cannot_read_are_an_error_on_all(mpirun):
    """They are read to be compared: that belongs to the agreement, and the ranks go on together."""
    text = (
        HEAD
        + """
class Lost(gg.data.Source):
    shape, dtype, targets = (1, 8, 8), np.dtype("float32"), data[1]
    def __len__(self): return 60
    def read(self, rows, epoch, samples, targets):
        if rank == 1: raise FileNotFoundError("gone")
        samples[...] = data[0][rows]
trainer = gg.Trainer(small_net())
try: trainer.fit(gg.data.Dataset(Lost()), batch_size=10, progress=False)
except FileNotFoundError as error: print(f"{rank}|{error}|", flush=True)
trainer.fit(data, batch_size=10, progress=False)
"""
    )
    out = mpirun(2, text).stdout
    assert "0|rank 1: gone|" in out and "1|gone|" in out


@pytest.mark.full
def test_an_error_does_not_wait_for_ever_for_ranks_that_wait_elsewhere(mpirun):
    """Said after the usual time; after six times as long it ends the job, as an error does that nobody catches."""
    text = (
        HEAD
        + """
class Bad(gg.Callback):
    def on_epoch_end(self, trainer, record):
        if rank == 1: raise RuntimeError("on purpose")
        time.sleep(1000)
gg.Trainer(small_net()).fit(data, batch_size=5, progress=False, callbacks=[Bad()])
"""
    )
    done = mpirun(3, text, env={"GOSSIPGRAD_STALL_SECONDS": "0.5"}, check=False)
    assert done.returncode != 0
    said = "rank 1 has waited for .* end of epoch 1, with an error .*, RuntimeError: on purpose, for rank 2"
    assert re.search(said, done.stderr), done.stderr
    assert "RuntimeError: on purpose" in done.stderr.splitlines(), done.stderr


def test_a_group_of_mpi4py_agrees_too(mpirun):
    pytest.importorskip("mpi4py")
    text = (
        HEAD
        + """
from mpi4py import MPI
half = MPI.COMM_WORLD.Split(rank // 2, rank)
for seed in (rank, rank // 2):
    try: print("made", gg.Trainer(small_net(), comm=half, seed=seed).size, flush=True)
    except ValueError as error: print(error, flush=True)
try: gg.Trainer(small_net(), comm=half, seed=-rank)
except ValueError as error: print("range", str(error).startswith("rank 1: "), flush=True)
"""
    )
    done = mpirun(4, text)
    lines = Counter(done.stdout.splitlines())
    assert lines["made 2"] == 4
    for first, second in ((0, 1), (2, 3)):
        assert sum(f"seed: {first} on rank 0; {second} on rank 1" in line for line in lines.elements()) == 2
    assert lines["range True"] == 1 and lines["range False"] == 3


# ---- waits that last


def wait(rank, call="Trainer.fit", peer=1, seconds=10.0, size=4, place="x.py, line 3", own=""):
    return stall.Wait(rank, size, peer, call, place, 100.0 - seconds, own)


def test_a_line_names_who_waits_where_and_for_whom():
    assert stall.line([wait(0), wait(2, seconds=9.0)], 100.0, False) == (
        "gossipgrad: ranks 0 and 2 have waited for 10 s in Trainer.fit (x.py, line 3) for rank 1. Waiting goes on"
    )
    both = stall.line([wait(0, "Trainer.evaluate", 1), wait(1, "Trainer.fit", 0, place="")], 100.0, True)
    assert "rank 0 has waited for 10 s in Trainer.evaluate (x.py, line 3) for rank 1; " in both
    assert "rank 1 has waited for 10 s in Trainer.fit for rank 0; " in both
    assert "ranks 2 and 3 do not wait so long: they compute, or do not make this call" in both
    assert "for other ranks" in stall.line([wait(0, peer=-1)], 100.0, False)
    assert "line 3) for its device. Waiting" in stall.line([wait(2, peer=2, own="its device")], 100.0, False)


@pytest.mark.parametrize("text", ["-1", "nan", "soon", "inf"])
def test_seconds_that_are_none(text, monkeypatch):
    monkeypatch.setenv(stall.VARIABLE, text)
    with pytest.raises(ValueError, match=f"{stall.VARIABLE}='{text}': allowed"):
        stall.patience()


def test_seconds_until_a_wait_is_said(monkeypatch):
    for text, value in (("", 10.0), ("0", 0.0), ("2.5", 2.5)):
        monkeypatch.setenv(stall.VARIABLE, text)
        assert stall.patience() == value


STALLS = (
    HEAD.replace("import numpy", "late = os.environ['OMPI_COMM_WORLD_RANK'] == '1'\nimport numpy")
    + "import pathlib, re\nfrom gossipgrad.launch import stall; from gossipgrad.training import loop\n"
    + """
def pause(place):  # rank 1 comes when all others have waited at this place so long that it was said
    said = not late
    while not said:
        time.sleep(0.02)
        there = [one for one in stall._waits_here() if re.search(place, one.call)]
        written = [stall._modified(f"rank-{one.rank}") for one in there]
        said = len(there) == 3 and stall._modified("said") >= max(written)
pause("MPI_Init")
trainer = gg.Trainer(small_net())
class Late(gg.Callback):
    def on_epoch_begin(self, trainer, epoch): pause("begin of epoch 1")
train = loop.Loop._train
def train_late(self, done):
    pause("fit, step")
    train(self, done)
loop.Loop._train = train_late
trainer.fit(data, batch_size=5, progress=False, callbacks=[Late()])
while late and not list(pathlib.Path(gg.launch.origin.variable("PMIX_SERVER_TMPDIR")).glob("*waits-at-end*")):
    time.sleep(0.02)
"""
)


@pytest.mark.full
def test_waits_that_last_are_said(mpirun):
    """In MPI's start and end, between calls, in a step. Each goes on when rank 1, which all wait for, comes."""
    done = mpirun(4, STALLS, env={"GOSSIPGRAD_STALL_SECONDS": "0.7"})
    lines = own_lines(done.stderr)
    ranks = r"(rank|ranks)( \d( and|,)?)+ (has|have) waited for \d+(\.\d+)? s in "
    for place in (
        "MPI_Init",
        "Trainer.fit, begin of epoch 1",
        r"Trainer.fit, step \d, layers '\w+'",
    ):
        found = [line for line in lines if re.search(ranks + place, line)]
        assert all(re.search("for (other ranks|ranks? [0-9])", line) for line in found), done.stderr
        # A busy machine may add lines about others; one is about rank 1 alone.
        alone = "; rank 1 does not wait so long: it computes, or does not make this call"
        assert any(alone in line and "rank 1 has" not in line for line in found), (place, done.stderr)
    speakers = [line.split(" has waited")[0] for line in lines if "in MPI_Finalize for other ranks" in line]
    assert len(set(speakers)) == 1 and "rank 1" not in speakers[0], done.stderr


@pytest.mark.parametrize("others", [False, True])
def test_one_rank_of_a_host_speaks_for_all(others, tmp_path, monkeypatch, capsys):
    """What another rank has said since a wait was written down is not said again."""
    for name, value in (
        ("PMIX_SERVER_TMPDIR", str(tmp_path)),
        ("PMIX_NAMESPACE", "job"),
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stall.time, "sleep", lambda seconds: stall._write("said", "") if others else None)
    stall._say(wait(0, size=2), 0.5)
    said = capsys.readouterr().err
    assert (said == "") if others else ("rank 0 has waited for" in said and "rank 1 does not wait so long" in said)


@pytest.mark.full
def test_nothing_is_said_of_short_or_simulated_waits(mpirun):
    text = (
        HEAD
        + """
trainer = gg.Trainer(small_net(), straggler=gg.Straggler(0.4, 2.0), network=gg.Network(latency=0.05))
trainer.fit(data, batch_size=10, progress=False)
"""
    )
    done = mpirun(2, text, env={"GOSSIPGRAD_STALL_SECONDS": "1.5"})
    # On a busy machine the start of two processes is a true wait, which may be said.
    assert "waited" not in re.sub(r"waited for \S+ s in MPI_Init", "", done.stderr), done.stderr
    done = mpirun(2, HEAD + "gg.Trainer(small_net()); time.sleep(2 * rank)\n", env={"GOSSIPGRAD_STALL_SECONDS": "0"})
    assert "waited" not in done.stderr


@pytest.mark.full
def test_a_rank_that_is_elsewhere_is_an_error_at_last(mpirun):
    """One rank in a call that the other never makes: said, and ended only because timeout= is given."""
    text = (
        HEAD
        + """
trainer = gg.Trainer(small_net(), timeout=4.0)
if rank == 0: trainer.evaluate(data)
else: time.sleep(1000)
"""
    )
    done = mpirun(2, text, env={"GOSSIPGRAD_STALL_SECONDS": "1"}, check=False)
    assert done.returncode != 0
    assert re.search(r"rank 0 has waited for \d+(\.\d+)? s in Trainer.evaluate for rank 1", done.stderr), done.stderr
    said = r"Trainer.evaluate: .*rank 0: waited \d+\.\d+ s for \d+ bytes from rank 1"
    assert re.search(said, done.stderr), done.stderr
