"""Virtual ranks die while fit trains, and the others go on: no sample is lost, and every run repeats."""

from __future__ import annotations

import json
import pathlib
import random
import re
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

SAMPLES = 61

STRATEGIES = {
    "weights+momentum": lambda: gg.GossipGraD(exchange="weights+momentum"),
    "weights": lambda: gg.GossipGraD(exchange="weights"),
    "gradients": lambda: gg.GossipGraD(exchange="gradients"),
    "stale": lambda: gg.GossipGraD(exchange="weights+momentum", staleness=1),
    "slices": lambda: gg.GossipGraD(exchange="weights", slices=3),
    "push-sum": lambda: gg.GossipGraD(exchange="weights", push_sum=True),
    "ring": lambda: gg.GossipGraD(topology="ring"),
    "random": lambda: gg.GossipGraD(topology="random"),
    "pull": gg.PullGossip,
    "push": gg.PushGossip,
    "quasi-global": gg.QuasiGlobal,
    "none": gg.NoExchange,
}


def one_hot(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Sample i has input i alone, so weight i moves only if sample i is trained on."""
    return np.eye(samples, dtype=np.float32), np.ones((samples, 1), np.float32)


def linear(samples: int = SAMPLES) -> gg.Model:
    net = gg.Sequential([gg.Linear(1, bias=False)], input=(samples,))
    net.load_weights({name: np.zeros_like(value) for name, value in net.weights().items()})
    return net


@pytest.fixture(autouse=True)
def few_samples():
    """The notice that gossip wants more samples a rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* samples? a rank and step")
        yield


def trained(strategy, p, deaths, *, epochs=1, batch_size=3, momentum=0.0, samples=SAMPLES, **options):
    x, y = one_hot(samples)
    trainer = gg.Trainer(
        linear(samples),
        loss="mean_squared_error",
        optimizer=gg.SGD(lr=0.1, momentum=momentum),
        strategy=strategy,
        comm=gg.VirtualCluster(p, deaths=deaths, **options),
    )
    history = trainer.fit(x, y, epochs=epochs, batch_size=batch_size, progress=False)
    return trainer, history


def own_weights(trainer) -> np.ndarray:
    """A row a rank."""
    return np.stack([next(iter(trainer.weights(rank).values())).ravel() for rank in range(trainer.size)])


@pytest.mark.parametrize(
    "p, deaths", [(2, {0: 0}), (2, {1: 5}), (3, {1: 2}), (5, {0: 1, 3: 1}), (5, {4: 0, 2: 3, 1: 4})]
)
def test_each_sample_is_trained_on_by_one_survivor(p, deaths):
    """Without an exchange nothing of the dead reaches anyone: the survivors train on all samples, each once."""
    trainer, history = trained(gg.NoExchange(), p, deaths)
    moved = own_weights(trainer) != 0
    assert moved.shape[0] == p - len(deaths)
    assert (moved.sum(axis=0) == 1).all()
    assert sorted(rank for view in history.views for rank in view["died"]) == sorted(deaths)
    assert trainer.size == p - len(deaths) and history.ranks == trainer.size
    assert history.last["samples"] == SAMPLES


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_sample_is_lost(name):
    strategy = STRATEGIES[name]()
    for p, deaths in ((2, {1: 3}), (4, {1: 2, 3: 2}), (5, {0: gg.Death(step=1, after_messages=1)})):
        momentum = 0.9 if name == "quasi-global" else 0.0
        trainer, history = trained(strategy, p, deaths, momentum=momentum)
        assert (own_weights(trainer) != 0).any(axis=0).all(), (name, p)
        assert history.last["samples"] == SAMPLES
        assert history.views[-1]["ranks"] == [rank for rank in range(p) if rank not in deaths]


@pytest.mark.parametrize("seed", range(12))
def test_deaths_one_after_the_other_lose_no_sample(seed):
    """Each is known before the next. The second rank's samples from before the first death have reached nobody."""
    draw = random.Random(seed)
    p, batch = draw.randint(3, 6), draw.randint(2, 3)
    deaths = {
        rank: draw.randint(0, SAMPLES // p // batch) for rank in draw.sample(range(p), min(draw.randint(2, 3), p - 1))
    }
    options = {"batch_size": batch, "compute_time": 1.0, "detect": 0.4}
    trainer, history = trained(gg.NoExchange(), p, deaths, **options)
    assert ((own_weights(trainer) != 0).sum(axis=0) == 1).all()
    assert history.last["samples"] == SAMPLES


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_after_an_error_in_fit_other_clusters_train(error):
    class Fails(gg.Callback):
        def on_epoch_end(self, trainer, record):
            raise error("of a callback")

    x, y = one_hot()
    trainer = gg.Trainer(linear(), loss="mean_squared_error", comm=gg.VirtualCluster(3, deaths={1: 2}))
    with pytest.raises(error, match="of a callback"):
        trainer.fit(x, y, batch_size=3, progress=False, callbacks=[Fails()])
    assert trained(gg.GossipGraD(), 3, {1: 2})[1].last["samples"] == SAMPLES


def test_many_deaths_in_an_epoch():
    """Each recalls samples of all former parts, which are listed once each: 22 parts would else take 2^22 lists."""
    p, samples = 24, 1200
    deaths = {rank: rank for rank in range(1, p - 1)}
    options = {"batch_size": 1, "samples": samples, "compute_time": 1.0, "detect": 0.4}
    trainer, history = trained(gg.NoExchange(), p, deaths, **options)
    assert len(history.views) == len(deaths)
    assert ((own_weights(trainer) != 0).sum(axis=0) == 1).all()


@pytest.mark.parametrize(
    "name, p, deaths, detect",
    [
        ("weights+momentum", 3, {2: 1, 0: 3}, 1.5),
        ("quasi-global", 3, {0: 6, 1: gg.Death(step=4, after_messages=0)}, 1.5),
        ("pull", 3, {1: 5, 0: gg.Death(step=3, after_messages=1)}, 1.5),
        ("push", 4, {1: 0, 0: 1, 2: gg.Death(step=1, after_messages=0)}, 0.9),
    ],
)
def test_messages_before_the_last_change_count(name, p, deaths, detect):
    """The second rank's last messages before the first death met the dead: samples after the one before go back."""
    momentum = 0.9 if name == "quasi-global" else 0.0
    trainer, history = trained(STRATEGIES[name](), p, deaths, momentum=momentum, compute_time=1.0, detect=detect)
    first, last = history.views
    assert all(step < first["step"] for step in last["last_steps"]) and last["trained_again"] > 0
    assert (own_weights(trainer) != 0).any(axis=0).all() and history.last["samples"] == SAMPLES


@pytest.mark.parametrize("seed", range(8))
def test_recalled_samples_are_dealt_again(seed):
    """Divisions on p, p - 1 and p - 2 ranks; of one rank of each former part the last samples come back."""
    draw = random.Random(seed)
    p, count, shuffle = draw.randint(3, 5), draw.randint(60, 80), draw.random() < 0.7

    def shares(ranks, divisions):
        dealt = [_core.division(count, rank, ranks, 7, seed, shuffle, divisions) for rank in range(ranks)]
        return [one[0].tolist() for one in dealt]

    divisions: list[list[int]] = []
    counted = 0
    for ranks in (p, p - 1):
        orders = shares(ranks, divisions)
        read = [draw.randint(2, 6) for _ in range(ranks)]
        divisions.append(read)
        counted += sum(read)
        if len(divisions) == 1:
            gone, first = draw.randrange(ranks), orders
    kept = draw.randint(0, divisions[0][gone] - 1)
    back = first[gone][kept : divisions[0][gone]]
    left = sorted(one for share in shares(p - 2, divisions) for one in share)
    again = shares(p - 2, [*divisions, [-1, gone, kept]])
    assert sorted(one for share in again for one in share) == sorted(left + back)
    assert len(set(left + back)) == len(left + back) == count - counted + len(back)
    for wrong in ([-1, p, 0], [-1, gone, divisions[0][gone] + 1], [-1, gone, -1], [-2, 0, 0], [-9, 0, 0]):
        with pytest.raises(ValueError, match="go back; allowed: samples that it has read"):
            shares(p - 2, [*divisions, wrong])


@pytest.mark.parametrize("deaths", [{1: 4}, {1: gg.Death(step=3, after_messages=1)}, {0: 1, 1: 3}])
def test_losses_of_the_dead_are_in_the_record(deaths):
    """Every sample's loss is 1 as long as no sample is trained on twice; the mean over the epoch has all samples."""
    _, history = trained(gg.GossipGraD(exchange="gradients"), 4, deaths, momentum=0.0)
    record = history.last
    assert record["samples"] == SAMPLES and record["train_loss"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_runs_repeat(name):
    momentum = 0.9 if name == "quasi-global" else 0.0
    deaths = {2: gg.Death(step=2, after_messages=2), 0: 4}
    runs = [trained(STRATEGIES[name](), 4, deaths, epochs=2, momentum=momentum)[1] for _ in range(2)]
    assert runs[0].weights_sha256 == runs[1].weights_sha256
    assert runs[0].views == runs[1].views


COMPRESSION = gg.AdaComp(bin_size=8, dense_below=1, warmup=0)


def test_compressed_weights_go_on():
    """Copies that partners share begin anew after a death."""
    runs = []
    for _ in range(2):
        x, y = one_hot()
        trainer = gg.Trainer(
            linear(),
            loss="mean_squared_error",
            optimizer=gg.SGD(lr=0.1),
            strategy=gg.GossipGraD(exchange="weights", staleness=0),
            compression=COMPRESSION,
            comm=gg.VirtualCluster(4, deaths={2: 3}),
        )
        history = trainer.fit(x, y, epochs=3, batch_size=3, progress=False)
        assert trainer.size == 3 and history.last["train_loss"] < history.epochs[0]["train_loss"]
        runs.append(history.weights_sha256)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("deaths", [{0: 0}, {1: 0, 2: 1}, {2: 100}, {3: 5}, {0: 7, 1: 8, 2: 9}])
def test_epochs_and_history_go_on(deaths, recwarn):
    """In the first and in the last step of an epoch, long after the last one, and down to a single rank."""
    p, epochs, batch = 4, 3, 3
    seen = []

    class Watch(gg.Callback):
        def on_view(self, trainer, change):
            seen.append((change["view"], trainer.size, trainer.epoch + 1))

    x, y = one_hot()
    trainer = gg.Trainer(
        linear(),
        loss="mean_squared_error",
        optimizer=gg.SGD(lr=0.1),
        strategy=gg.GossipGraD(),
        comm=gg.VirtualCluster(p, deaths=deaths),
    )
    history = trainer.fit(x, y, validation=(x, y), epochs=epochs, batch_size=batch, progress=False, callbacks=[Watch()])
    died = [rank for rank, step in deaths.items() if step < 100]
    assert len(history) == epochs and trainer.size == p - len(died)
    assert [one["view"] for one in history.views] == [number for number, _, _ in seen]
    assert sorted(rank for one in history.views for rank in one["died"]) == sorted(died)
    for record in history:  # where fewer samples than ranks are left, each rank has one
        assert SAMPLES <= record["samples"] <= SAMPLES + p - 1
    steps = [one["step"] for one in history.views]
    assert steps == sorted(steps)
    assert len(history.weights_sha256) == trainer.size and len(history.time_by_rank) == trainer.size
    assert history.last["validation"]["loss"] < history.epochs[0]["validation"]["loss"]


class Written:
    """A writer for TensorBoard that remembers."""

    def __init__(self):
        self.scalars, self.texts = {}, {}

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, value))

    def add_text(self, tag, text, step):
        self.texts[tag] = text

    def flush(self):
        pass


def test_a_change_is_in_the_log_the_trace_and_the_page(tmp_path):
    x, y = one_hot()
    trainer = gg.Trainer(
        linear(),
        loss="mean_squared_error",
        optimizer=gg.SGD(lr=0.1),
        strategy=gg.GossipGraD(),
        comm=gg.VirtualCluster(4, deaths={1: 2}),
        trace=10_000,
    )
    log = Written()
    history = trainer.fit(x, y, epochs=2, batch_size=3, progress=False, callbacks=gg.TensorBoard(writer=log))
    (change,) = history.views
    assert log.scalars["ranks"] == [(change["step"], 3.0)]
    assert log.texts["views"].startswith(f"step {change['step']}: rank 1 has died; 3 ranks go on")
    trainer.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    marks = [one for one in events if one["name"] == "change of the view"]
    assert sorted(one["pid"] for one in marks) == [0, 1, 2]
    assert all(one["args"]["step"] == change["step"] and one["dur"] >= 0 for one in marks)
    pytest.importorskip("plotly")
    from gossipgrad.report import document

    page = document.page({"run": history.to_dict()})
    assert "<h2>Ranks that died</h2>" in page


def test_refusals(tmp_path):
    x, y = one_hot()
    cluster = gg.VirtualCluster(3, deaths={1: 2})
    for strategy, message in (
        (gg.OverlappedAveraging(), "not with the strategy overlapped-averaging.*allowed: .*gossipgrad"),
        (gg.GossipGraD(hierarchical=True, ranks_per_node=1), "hierarchical=True"),
        (gg.ElasticAveraging(), "elastic-averaging"),
    ):
        with pytest.raises(ValueError, match=message):
            gg.Trainer(linear(), loss="mean_squared_error", strategy=strategy, comm=cluster)
    trainer = gg.Trainer(
        linear(), loss="mean_squared_error", strategy=gg.GossipGraD(shuffle_samples=True), comm=cluster
    )
    with pytest.raises(ValueError, match="shuffle_samples"):
        trainer.fit(x, y, batch_size=3, progress=False)
    with pytest.raises(RuntimeError, match="train_step: not where ranks may die"):
        trainer.train_step([x[:2]] * 3, [y[:2]] * 3)
    with pytest.raises(ValueError, match="deaths=.*allowed for a gossipgrad.Trainer"):
        gg.Team(cluster)
    with pytest.raises(ValueError, match=r"rank in deaths=3: allowed: 0..2|rank in deaths"):
        gg.VirtualCluster(3, deaths={3: 1})
    with pytest.raises(ValueError, match="step=-1"):
        gg.VirtualCluster(3, deaths={1: gg.Death(step=-1)})
    again = gg.VirtualCluster.from_settings(cluster.settings())
    assert again == cluster


def goes_on(make, strategy) -> bool:
    try:
        make(strategy=strategy, comm=gg.VirtualCluster(3, deaths={1: 2}))
    except ValueError as error:
        assert f"not with the strategy {strategy.name}, which needs all ranks" in str(error)
        return False
    return True


def test_the_page_names_the_strategies_that_go_on():
    page = (pathlib.Path(__file__).parents[1] / "docs" / "survival.md").read_text()
    rows = {
        key: re.findall(r"\w+", text.split(";")[0]) for key, text in re.findall(r"^\| (.+?) \| (.+) \|$", page, re.M)
    }
    found: dict[str, list[str]] = {"strategies": [], "in `fit` alone": [], "refused": []}
    for strategy in (one() for one in gg.strategies.BY_NAME.values()):
        loops = goes_on(lambda **options: gg.Exchange({"w": np.zeros(3)}, **options), strategy)
        fit = goes_on(lambda **options: gg.Trainer(linear(), loss="mean_squared_error", **options), strategy)
        assert fit or not loops
        found["strategies" if loops else "in `fit` alone" if fit else "refused"].append(type(strategy).__name__)
    for key, names in found.items():
        assert sorted(names) == sorted(rows[key]), key


def test_a_cluster_without_deaths_is_as_before():
    """Transports of a group that may change have the bits of a group that cannot."""
    plain, _ = trained(gg.GossipGraD(), 3, None)
    late, _ = trained(gg.GossipGraD(), 3, {1: 10**6})
    assert plain.weights_sha256() == late.weights_sha256()
