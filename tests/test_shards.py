"""Which rank trains on which samples: shards that sorted data do not harm, and parts that every rank brings itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core, cli


def net():
    return gg.Sequential([gg.Linear(6), gg.Tanh(), gg.Linear(3)], input=(5,), name="small")


def arrays(count, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, 5)).astype(np.float32), generator.integers(0, 3, count)


def trained(data, p, strategy=None, **options):
    """(hashes of the replicas, the last record) after two epochs."""
    strategy = strategy or gg.GossipGraD()
    with gg.Trainer(net(), strategy=strategy, comm=gg.VirtualCluster(p), seed=options.pop("seed", 1)) as trainer:
        history = trainer.fit(data, epochs=2, progress=False, **{"batch_size": 4} | options)
        assert trainer.audit_samples()["ok"]
        return history.weights_sha256, history.last


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_sorted_samples_are_divided_evenly(p):
    """Of a run of n samples of one class a rank has n / p, but for at most one round at each end of the run."""
    labels = np.repeat(np.arange(4), [100, 37, 250, 13])
    for seed in range(3):
        for rank in range(p):
            found = np.bincount(labels[_core.shard(len(labels), rank, p, seed)], minlength=4)
            assert (np.abs(found - np.bincount(labels) / p) < 2).all()


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_period_in_the_order_is_no_period_of_a_rank(p):
    """The classes come in turns, with a period that the number of ranks divides: a plain stride would give each one."""
    for period in (p, 2 * p):
        labels = np.arange(4000) % period
        for rank in range(p):
            found = np.bincount(labels[_core.shard(len(labels), rank, p, 1)], minlength=period)
            wanted = len(labels) / p / period
            assert (found > 0.5 * wanted).all() and (found < 1.6 * wanted).all()


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_left_of_an_epoch_is_divided_among_other_ranks(shuffle):
    def orders(size, divisions):
        found = [_core.division(23, rank, size, 5, 2, shuffle, divisions) for rank in range(size)]
        assert len({left for _, left in found}) == 1
        return [order.tolist() for order, _ in found]

    whole = orders(3, [])
    assert sorted(sum(whole, [])) == list(range(23))
    assert shuffle or whole == [_core.shard(23, rank, 3, 5).tolist() for rank in range(3)]
    rest = orders(4, [[5, 4, 5]])
    unread = whole[0][5:] + whole[1][4:] + whole[2][5:]
    assert sorted(sum(rest, [])) == sorted(unread) and max(map(len, rest)) - min(map(len, rest)) <= 1
    assert shuffle or rest == [sorted(unread)[rank::4] for rank in range(4)]
    last = orders(2, [[5, 4, 5], [2, 2, 2, 1]])
    assert sorted(sum(last, [])) == sorted(rest[0][2:] + rest[1][2:] + rest[2][2:] + rest[3][1:])
    with pytest.raises(ValueError, match="division 0, rank 1: 9 samples read; allowed: 0 to 8"):
        orders(2, [[5, 9, 5]])
    with pytest.raises(ValueError, match="rank: 0 of 24 ranks with 23 samples"):
        orders(24, [])


def test_shards_are_a_function_of_the_seed():
    def shards(seed):
        return [_core.shard(1001, rank, 4, seed).tolist() for rank in range(4)]

    assert shards(5) == shards(5) and shards(5) != shards(6)
    assert _core.shard(1001, 0, 1, 5).tolist() == list(range(1001))
    assert _core.shard(10, 1, 3, 5, True).tolist() == [4, 5, 6]


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.GossipGraD(shuffle_samples=True)], ids=str)
@pytest.mark.parametrize("p", [1, 3])
def test_a_part_is_trained_on_like_a_set_of_its_samples(p, strategy):
    x, y = arrays(80)
    weights = np.random.default_rng(1).uniform(0, 2, 80).astype(np.float32)
    rows = np.random.default_rng(2).permutation(80)[:37]
    part = gg.Dataset(x, y, sample_weight=weights)[rows]
    copy = gg.Dataset(x[rows], y[rows], sample_weight=weights[rows])
    found, last = trained(part, p, strategy, validation=part)
    assert (found, last["validation"]) == (
        (wanted := trained(copy, p, strategy, validation=copy))[0],
        wanted[1]["validation"],
    )
    unweighted = trained(gg.Dataset(x[rows], y[rows]), p, strategy)
    assert unweighted[0] != found


# ---- what fit trains on


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.GossipGraD(shuffle_samples=True)], ids=str)
@pytest.mark.parametrize(("count", "p", "steps"), [(17, 1, 4), (17, 2, 2), (19, 3, 1), (16, 2, 2)])
def test_drop_last_leaves_out_what_fills_no_batch(strategy, count, p, steps):
    """On every rank, whose batches are then all full: as many as the smallest shard has."""
    x, y = arrays(count)
    _, last = trained((x, y), p, strategy, drop_last=True)
    assert (last["steps"], last["samples"]) == (steps, steps * 4 * p)


def test_drop_last_is_the_same_as_to_give_fewer_samples():
    x, y = arrays(19)
    whole, fewer = (trained(data, 1, shuffle=False, drop_last=True) for data in ((x, y), (x[:16], y[:16])))
    assert whole[0] == fewer[0] == trained((x[:16], y[:16]), 1, shuffle=False)[0]
    assert whole[0] != trained((x, y), 1, shuffle=False)[0]


def test_drop_last_of_parts_of_the_ranks_own():
    x, y = arrays(30)
    parts = [(x[:9], y[:9]), (x[9:], y[9:])]
    _, last = trained(parts, 2, gg.AllReduce(), sharded=True, drop_last=True)
    assert (last["steps"], last["samples"]) == (2, 16)
    with pytest.raises(ValueError, match=r"batch_size=10: the smallest shard has 9 samples .*drop_last"):
        trained(parts, 2, gg.AllReduce(), sharded=True, drop_last=True, batch_size=10)


@pytest.mark.parametrize("p", [1, 2])
def test_a_last_batch_of_one_sample_can_be_left_out(p, tmp_path):
    """BatchNorm of one value a channel is an error in training, before the first step, that says what helps."""
    made = gg.Sequential([gg.Linear(4), gg.BatchNorm1d(), gg.Linear(3)], input=(5,))
    data = arrays(9 * p)
    with gg.Trainer(made, comm=gg.VirtualCluster(p)) as trainer:
        with pytest.raises(ValueError, match=r"more than one value in a batch.*drop_last=True"):
            trainer.fit(data, batch_size=4, progress=False)
        history = trainer.fit(data, batch_size=4, progress=False, drop_last=True)
        assert history.last["steps"] == 2 and history.settings["drop_last"] is True
    words = "train --dataset synthetic --model mlp --epochs 1 --batch-size 1999 --quiet --drop-last --report".split()
    assert cli.main([*words, str(tmp_path / "r")]) == 0
    report = json.loads((tmp_path / "r").read_text())
    assert report["settings"]["drop_last"] is True and report["epochs"][0]["steps"] == 1


# ---- what fit trains on without it


def batches_of(counts, batch):
    """Where each rank's batches begin and end, from the definition: full batches, or as many even ones as steps."""
    steps = -(-max(counts) // batch)
    found = []
    for count in counts:
        if count >= (steps - 1) * batch:
            ends = [min(step * batch, count - 1) for step in range(steps)] + [count]
        else:
            ends = [step * count // steps for step in range(steps + 1)]
        found.append([(begin, max(end, begin + 1)) for begin, end in zip(ends[:-1], ends[1:], strict=True)])
    return found


@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.GossipGraD(), gg.NoExchange(), gg.LayerwiseAllReduce()], ids=str
)
@pytest.mark.parametrize("counts", [(9, 9, 9), (12, 5, 3), (1, 20, 8)], ids=str)
def test_parts_of_the_ranks_own_are_trained_on_in_the_batches_that_are_said(strategy, counts):
    """Bit for bit the steps that a loop by hand makes, of full batches or even ones; each sample once an epoch."""
    x, y = arrays(sum(counts))
    cuts = np.cumsum(counts)[:-1]
    parts = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    by_hand = gg.Trainer(net(), strategy=strategy, comm=gg.VirtualCluster(3), seed=1)
    for _ in range(2):
        for bounds in zip(*batches_of(counts, 4), strict=True):
            rows = [part[0][begin:end] for part, (begin, end) in zip(parts, bounds, strict=True)]
            labels = [part[1][begin:end] for part, (begin, end) in zip(parts, bounds, strict=True)]
            by_hand.train_step(rows, labels)
    for given in (parts, [gg.Dataset(*part) for part in parts]):
        found, last = trained(given, 3, strategy, sharded=True, shuffle=False)
        assert found == by_hand.weights_sha256()
        assert last["samples"] >= sum(counts) and last["steps"] == -(-max(counts) // 4)
    xs, ys = zip(*parts, strict=True)
    with gg.Trainer(net(), strategy=strategy, comm=gg.VirtualCluster(3), seed=1) as trainer:
        trainer.fit(list(xs), list(ys), sharded=True, shuffle=False, epochs=2, batch_size=4, progress=False)
        assert trainer.weights_sha256() == found
        ids = np.concatenate([trainer.sample_ids(rank) for rank in range(3)])
        assert ids.tolist() == list(range(sum(counts))) and trainer.audit_samples()["samples"] == sum(counts)


@pytest.mark.parametrize("shard", ["interleaved", "contiguous"])
def test_parts_that_are_the_shards_give_the_bits_of_the_whole_set(shard):
    x, y = arrays(45)
    rows = [_core.shard(45, rank, 4, 1, shard == "contiguous") for rank in range(4)]
    for shuffle in (False, True):
        options = {"shuffle": shuffle, "batch_size": 5, "validation": (x, y)}
        whole, last = trained((x, y), 4, shard=shard, **options)
        options["validation"] = [(x[part], y[part]) for part in rows]
        parts, of_parts = trained([(x[part], y[part]) for part in rows], 4, sharded=True, **options)
        assert whole == parts
        assert of_parts["validation"]["accuracy"] == last["validation"]["accuracy"]
        assert of_parts["validation"]["loss"] == pytest.approx(last["validation"]["loss"], rel=1e-6)


def test_evaluation_of_the_ranks_own_parts():
    x, y = arrays(30)
    trainer = gg.Trainer(net(), comm=gg.VirtualCluster(3))
    parts = [(x[:1], y[:1]), (x[1:22], y[1:22]), (x[22:], y[22:])]
    whole, found = trainer.evaluate(x, y), trainer.evaluate(parts, sharded=True)
    assert found["accuracy"] == whole["accuracy"] and found["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert trainer.evaluate((x, y), batch_size=7)["accuracy"] == whole["accuracy"]
    assert trainer.evaluate(gg.Dataset(x, y)) == trainer.evaluate((x, y)) == whole


def test_what_does_not_go_with_own_parts():
    x, y = arrays(30)
    parts = [(x[:10], y[:10]), (x[10:20], y[10:20]), (x[20:], y[20:])]

    def fit(data=parts, strategy=None, **options):
        with gg.Trainer(net(), strategy=strategy or gg.GossipGraD(), comm=gg.VirtualCluster(3)) as trainer:
            trainer.fit(data, **{"sharded": True, "progress": False, "batch_size": 4} | options)

    cases = [
        (lambda: fit(strategy=gg.GossipGraD(shuffle_samples=True)), ValueError, "not with shuffle_samples=True"),
        (
            lambda: fit(strategy=gg.ParameterServer(dedicated=True)),
            ValueError,
            "allowed where all ranks train; here 2 of 3",
        ),
        (lambda: fit(shard="contiguous"), ValueError, "shard='contiguous': not with sharded=True"),
        (lambda: fit(shard="strided"), ValueError, "shard='strided': allowed: 'interleaved', 'contiguous'"),
        (lambda: fit(sharded="yes"), TypeError, "sharded='yes': allowed: True or False"),
        (lambda: fit(parts[:2]), ValueError, "wants a list of 3 parts, one a rank; got 2 of them"),
        (lambda: fit((x, y)), ValueError, "wants a list of 3 parts"),
        (lambda: fit(gg.Dataset(x, y)), ValueError, "wants a list of 3 parts, one a rank; got Dataset"),
        (lambda: fit(batch_size=11), ValueError, "the largest shard has 10 samples"),
        (lambda: fit(validation=parts, validate_replicas=True), ValueError, "not with sharded=True"),
        (lambda: fit(validation_split=5), TypeError, "a share, of each rank's own part"),
        (lambda: fit([*parts[:2], (x[:2], [0, 7])]), ValueError, r"train\[2\]: targets\[1\] is 7"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()


def test_a_virtual_cluster_of_one_rank_has_a_list_of_one_part():
    x, y = arrays(12)
    wanted = trained((x, y), 1)[0]
    for data in ((x, y), [(x, y)], [gg.Dataset(x, y)]):
        assert trained(data, 1, sharded=True)[0] == wanted
    with gg.Trainer(net(), comm=gg.VirtualCluster(1), seed=1) as trainer:
        trainer.fit([x], [y], sharded=True, epochs=2, batch_size=4, progress=False)
        assert trainer.weights_sha256() == wanted


def test_ranks_that_never_meet_learn_all_classes_of_sorted_data():
    """Of two classes, one after the other, a rank with a contiguous part knows one alone."""
    train, test = gg.data.synthetic((6,), 2, 400, 100, noise=0.5)
    data = train[np.argsort(train.targets, kind="stable")]
    one = gg.Sequential([gg.Linear(2)], input=(6,))

    def worst(shard):
        trainer = gg.Trainer(one, strategy=gg.NoExchange(), comm=gg.VirtualCluster(4), optimizer=gg.SGD(lr=0.1))
        trainer.fit(data, epochs=3, batch_size=10, shard=shard, progress=False)
        return min(found["accuracy"] for found in trainer.evaluate(test, replicas=True))

    assert worst("interleaved") > 0.95
    with pytest.warns(UserWarning, match="sorted by class"):
        assert worst("contiguous") < 0.7


# ---- the forms in which data are given


def test_the_forms_of_fit_are_the_same():
    x, y = arrays(40)
    xv, yv = arrays(12, 1)
    train, validation = gg.Dataset(x, y), gg.Dataset(xv, yv)
    forms = [
        (((x, y), (xv, yv)), {}),
        (((x, y),), {"validation": (xv, yv)}),
        ((x, y), {"validation": (xv, yv)}),
        ((x, y), {"validation": validation}),
        ((train, validation), {}),
        ((train, [xv, yv]), {}),
        ((train,), {"validation": validation}),
        ((x.tolist(), y.tolist()), {"validation": (xv.tolist(), yv.tolist())}),
    ]
    found = []
    for arguments, options in forms:
        trainer = gg.Trainer(net(), comm=gg.VirtualCluster(2))
        history = trainer.fit(*arguments, batch_size=5, progress=False, **options)
        found.append((history.weights_sha256, history.last["validation"]))
    assert all(one == found[0] for one in found)


def test_what_was_meant_is_asked():
    x, y = arrays(40)
    trainer = gg.Trainer(net())
    data = gg.Dataset(x, y)
    cases = [
        ((x,), {}, TypeError, r"train is a ndarray of shape \(40, 5\), without targets"),
        (((x, y), y), {}, TypeError, "train is samples with targets already, and the second argument a ndarray"),
        ((data, y), {}, TypeError, "train is samples with targets already"),
        ((data, 5), {}, TypeError, "train is samples with targets already, and the second argument a int"),
        (([[1, 2], [3, 4]], [0, 1]), {}, TypeError, "train is samples with targets already"),
        ((x, (x, y)), {}, TypeError, "and the second argument a pair"),
        ((x, data), {}, TypeError, "y is a Dataset; wanted the targets"),
        ((x, 5), {}, TypeError, "y is a int; wanted the targets"),
        ((data, data), {"validation": data}, TypeError, "given twice"),
        ((x, y[:-1]), {}, ValueError, "train: 40 samples but 39 targets"),
        ((x, y), {"validation": x}, TypeError, r"validation is a ndarray of shape \(40, 5\), without targets"),
        ((7,), {}, TypeError, "train is a int"),
    ]
    for arguments, options, error, words in cases:
        with pytest.raises(error, match=words):
            trainer.fit(*arguments, progress=False, **options)
    with pytest.raises(TypeError, match="y is a int"):
        trainer.evaluate((x), 5)


def test_validation_split_is_drawn_by_the_seed_and_shares_the_samples():
    x, y = arrays(50)
    for split, size in ((0.2, 10), (7, 7)):
        drawn = _core.permutation(3, "validation", 50)
        parts = gg.Dataset(x, y)[np.sort(drawn[size:])], gg.Dataset(x, y)[np.sort(drawn[:size])]
        wanted = trained(parts[0], 2, seed=3, validation=parts[1])
        found = trained((x, y), 2, seed=3, validation_split=split)
        assert (found[0], found[1]["validation"]) == (wanted[0], wanted[1]["validation"])
    trainer = gg.Trainer(net())
    for split in (0.0, 1.0, -0.1, 0, 50, 0.001, float("nan")):
        with pytest.raises(ValueError, match="validation_split="):
            trainer.fit(x, y, validation_split=split, progress=False)
    with pytest.raises(ValueError, match="validation_split=0.1: allowed without validation data"):
        trainer.fit(x, y, validation=(x, y), validation_split=0.1, progress=False)


@pytest.mark.parametrize("which", ["train", "validation"])
def test_what_is_not_finite_is_named_before_training(which):
    x, y = arrays(40)
    bad = x.copy()
    bad[3, 2] = np.nan
    trainer = gg.Trainer(net())
    before = trainer.weights_sha256()
    with pytest.raises(ValueError, match=rf"{which}: samples\[3\] has NaN at \[2\]"):
        trainer.fit(*((bad, y) if which == "train" else (x, y)), validation=(bad, y), progress=False)
    assert trainer.weights_sha256() == before and trainer.step == 0
    with pytest.raises(ValueError, match=r"data: samples\[3\] has NaN"):
        trainer.evaluate(bad, y)


# ---- weights of samples and classes


def gradient_by_hand(x, y, weights, trainer):
    """The gradient of sum(w * cross-entropy) / n of a linear network, in float64."""
    matrix, bias = (np.float64(array) for array in trainer.weights().values())
    scores = x @ matrix.T + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y])
    error = (p - np.eye(len(bias))[y]) * weights[:, None] / len(y)
    return (weights * loss).sum() / len(y), error.T @ x, error.sum(axis=0)


@pytest.mark.parametrize("form", ["sample_weight", "dataset", "class_weight", "both", "balanced"])
def test_weights_scale_each_samples_loss(form):
    """One step with rate 1 moves the weights by the gradient of sum(w * loss) / n, in float64 by hand."""
    x, y = arrays(23)
    w = np.random.default_rng(5).uniform(0, 3, 23)
    by_class = np.array([0.5, 1.0, 4.0])
    counts = np.bincount(y, minlength=3)
    wanted = {"class_weight": by_class[y], "both": by_class[y] * w, "balanced": (23 / 3 / counts)[y]}.get(form, w)
    options = {
        "sample_weight": {"sample_weight": w},
        "dataset": {},
        "class_weight": {"class_weight": {0: 0.5, 2: 4}},
        "both": {"class_weight": by_class, "sample_weight": w},
        "balanced": {"class_weight": "balanced"},
    }[form]
    data = gg.Dataset(x, y, sample_weight=w if form == "dataset" else None)
    one = gg.Sequential([gg.Linear(3)], input=(5,))
    trainer = gg.Trainer(one, optimizer=gg.SGD(lr=1.0), strategy=gg.NoExchange())
    before = trainer.weights()
    loss, *gradients = gradient_by_hand(np.float64(x), y, wanted, trainer)
    record = trainer.fit(data, batch_size=23, progress=False, shuffle=False, **options).last
    assert record["train_loss"] == pytest.approx(loss, rel=1e-5)
    for (name, array), gradient in zip(trainer.weights().items(), gradients, strict=True):
        np.testing.assert_allclose(before[name] - array, gradient, rtol=2e-5, atol=2e-6)
    # Validation is weighted by the set's own weights alone.
    plain = trainer.evaluate(x, y)["loss"]
    again = gradient_by_hand(np.float64(x), y, w if form == "dataset" else np.ones(23), trainer)[0]
    assert trainer.evaluate(data)["loss"] == pytest.approx(again, rel=1e-5)
    assert (trainer.evaluate(data)["loss"] == plain) == (form != "dataset")


def test_weights_agree_with_finite_differences():
    x, y = arrays(6)
    w = np.array([0, 1, 2, 0.5, 3, 1], np.float32)
    data = gg.Dataset(x, y, sample_weight=w)
    trainer = gg.Trainer(net(), optimizer=gg.SGD(lr=1.0), strategy=gg.NoExchange())
    start = trainer.weights()
    trainer.fit(data, batch_size=6, progress=False)
    gradient = {name: start[name] - array for name, array in trainer.weights().items()}
    for name, array in start.items():
        place = np.unravel_index(array.size // 2, array.shape)
        around = []
        for step in (-1e-2, 1e-2):
            moved = {key: value.copy() for key, value in start.items()}
            moved[name][place] += step
            trainer.load_weights(moved)
            around.append(trainer.evaluate(data)["loss"])
        assert (around[1] - around[0]) / 2e-2 == pytest.approx(gradient[name][place], rel=2e-2, abs=2e-4)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.GossipGraD(), gg.OverlappedAveraging()], ids=str)
def test_weights_of_one_change_no_bit(strategy, p):
    x, y = arrays(40)
    plain = trained((x, y), p, strategy)
    assert trained((x, y), p, strategy, sample_weight=np.ones(40))[0] == plain[0]
    assert trained((x, y), p, strategy, class_weight={1: 1.0})[0] == plain[0]
    assert trained((x, y), p, strategy, class_weight={1: 2.0})[0] != plain[0]


def test_balanced_classes_are_counted_over_all_parts():
    x, y = arrays(30)
    y[:20] = 0
    rows = [_core.shard(30, rank, 3, 1) for rank in range(3)]
    parts = [(x[part], y[part]) for part in rows]
    assert trained((x, y), 3, class_weight="balanced")[0] == trained(parts, 3, class_weight="balanced", sharded=True)[0]


def test_class_weights_leave_ignored_targets_out():
    x, y = arrays(20)[0], np.arange(20) % 3
    y[:6] = -100
    net = gg.Sequential([gg.Linear(3)], input=(5,))

    def loss(**options):
        with gg.Trainer(net, loss=gg.CrossEntropy(ignore_index=-100), strategy=gg.NoExchange()) as trainer:
            return trainer.fit(x, y, batch_size=20, progress=False, **options).last["train_loss"]

    seen = np.bincount(y[6:], minlength=3)
    balanced = {c: len(y[6:]) / (3 * n) for c, n in enumerate(seen)}
    assert len(set(seen)) > 1  # else "balanced" would say nothing
    for given, weights in (({1: 3.0}, {0: 1, 1: 3, 2: 1}), ("balanced", balanced)):
        by_sample = np.array([weights.get(int(c), 7.0) for c in y], np.float32)  # 7: without effect
        assert loss(class_weight=given) == pytest.approx(loss(sample_weight=by_sample), rel=1e-6) != loss()


def test_class_weights_of_a_binary_loss():
    x, y = arrays(20)
    y = y % 2
    one = gg.Sequential([gg.Linear(1)], input=(5,))

    def loss(**options):
        trainer = gg.Trainer(one, loss="binary_cross_entropy", strategy=gg.NoExchange())
        return trainer.fit(x, y, batch_size=20, progress=False, **options).last["train_loss"]

    by_class = [loss(sample_weight=y == label) for label in (0, 1)]
    assert loss(class_weight={1: 3.0}) == pytest.approx(by_class[0] + 3 * by_class[1], rel=1e-6)
    trainer = gg.Trainer(one, loss="binary_cross_entropy")
    with pytest.raises(ValueError, match=r"train: targets\[0\] is 0.5; class_weight wants targets that are 0 or 1"):
        trainer.fit(x, np.full(20, 0.5), class_weight={0: 2.0}, batch_size=4, progress=False)
    other = gg.Trainer(one, loss="mean_squared_error")
    with pytest.raises(ValueError, match="class_weight: allowed where targets are classes"):
        other.fit(x, y, class_weight={0: 2.0}, batch_size=4, progress=False)
    with pytest.raises(ValueError, match="train has weights of its own"):
        gg.Trainer(net()).fit(gg.Dataset(x, y, sample_weight=y, name="train"), sample_weight=y, progress=False)


def test_weights_that_are_all_zero():
    """Nothing would be trained. A batch of zeros, and a rank's own part of them, are samples that do not count."""
    x, y = arrays(24)
    none, some = np.zeros(24), y == 1

    def fit(x, y, **options):
        trainer = gg.Trainer(net(), comm=gg.VirtualCluster(2), seed=3)
        trainer.fit(x, y, batch_size=4, shuffle=False, shard="contiguous", progress=False, **options)

    for what, options in (
        ("sample_weight", {"sample_weight": none}),
        ("sample_weight", {"sample_weight": none, "class_weight": "balanced"}),
        ("class_weight", {"class_weight": dict.fromkeys(range(3), 0)}),
        ("class_weight", {"class_weight": {1: 0}, "sample_weight": some}),
    ):
        with pytest.raises(ValueError, match=f"{what}: 0 for all samples to train on; allowed: above 0 for one"):
            fit(x, y, **options)
    with pytest.raises(ValueError, match="sample_weight: 0 for all"):
        fit(gg.Dataset(x, y, sample_weight=none), None)
    fit(x, y, sample_weight=some)


def test_weights_of_parts_that_are_all_zero():
    x, y = arrays(24)
    halves = [x[:12], x[12:]], [y[:12], y[12:]]
    trainer = gg.Trainer(net(), comm=gg.VirtualCluster(2), seed=3)
    with pytest.raises(ValueError, match="sample_weight: 0 for all samples to train on"):
        trainer.fit(*halves, batch_size=4, progress=False, sharded=True, sample_weight=[np.zeros(12)] * 2)
    trainer.fit(*halves, batch_size=4, progress=False, sharded=True, sample_weight=[np.zeros(12), np.ones(12)])


def test_shard_on_the_command_line(tmp_path):
    words = ["train", "--model", "mlp", "--dataset", "synthetic", "--epochs", "1", "--batch-size", "500", "--quiet"]
    found = {}
    for shard in ("interleaved", "contiguous"):
        path = tmp_path / shard
        assert cli.main([*words, "--virtual-ranks", "2", "--shard", shard, "--report", str(path)]) == 0
        report = gg.History.read(path)
        found[report.settings["shard"]] = report.weights_sha256
    assert set(found) == {"interleaved", "contiguous"} and found["interleaved"] != found["contiguous"]


# ---- under MPI

MPI_PROGRAM = """
import json, sys
import numpy as np, gossipgrad as gg

def arrays(count, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, 5)).astype(np.float32), generator.integers(0, 3, count)

def net():
    return gg.Sequential([gg.Linear(6), gg.Tanh(), gg.Linear(3)], input=(5,), name="small")

def runs(comm=None):
    x, y = arrays(47)
    w = np.random.default_rng(3).uniform(0, 2, 47)
    cuts = np.cumsum([20, 3])
    parts = list(zip(np.split(x, cuts), np.split(y, cuts)))
    found = []

    def add(*arguments, strategy=None, **options):
        with gg.Trainer(net(), comm=comm, seed=4, strategy=strategy or gg.GossipGraD()) as trainer:
            history = trainer.fit(*arguments, epochs=2, batch_size=5, progress=False, **options)
            audit = trainer.audit_samples()
            assert audit["ok"] and audit["samples"] == history.settings["train_samples"], audit
            own = parts if comm else parts[trainer.rank]
            evaluated = trainer.evaluate(own, sharded=True)
            found.append([history.weights_sha256, history.last.get("validation"), history.last["samples"], evaluated])
        return trainer

    add(x, y, validation_split=0.2, class_weight="balanced", sample_weight=w)
    add(gg.Dataset(x, y, sample_weight=w), strategy=gg.GossipGraD(shuffle_samples=True), validation=(x, y))
    add(x, y, strategy=gg.AllReduce(), shard="contiguous", shuffle=False)
    rank = add(x, y).rank
    own = parts if comm else parts[rank]
    add(own, sharded=True, validation=own, class_weight="balanced")
    if comm:
        add([one for one, _ in own], [one for _, one in own], sharded=True, strategy=gg.AllReduce(), shuffle=False)
    else:
        add(*own, sharded=True, strategy=gg.AllReduce(), shuffle=False)
    return found, rank
"""


def test_the_same_bits_under_mpi(mpirun):
    """Interleaved and contiguous shards, own parts, weights, what is set aside: as in the virtual cluster."""
    program = MPI_PROGRAM + (
        "\nfound, rank = runs()\nif rank == 0: print(json.dumps(found))\n"
        "x, y = arrays(9 + rank)\n"
        "try: gg.Trainer(net()).fit(x, y, batch_size=2, progress=False)\n"
        "except ValueError as error: assert 'sharded=True' in str(error), error\n"
        "else: raise AssertionError('accepted')\n"
        "bad = x.copy()\n"
        "if rank == 1: bad[2, 3] = np.nan\n"
        "try: gg.Trainer(net()).fit(bad, y, batch_size=2, sharded=True, progress=False)\n"
        "except ValueError as error: assert 'train: samples[2] has NaN at [3]' in str(error), error\n"
        "else: raise AssertionError('accepted')\n"
    )
    done = mpirun(3, program)
    space: dict = {}
    exec(MPI_PROGRAM, space)
    wanted, _ = space["runs"](gg.VirtualCluster(3))
    assert json.loads(done.stdout.splitlines()[0]) == json.loads(json.dumps(wanted))
