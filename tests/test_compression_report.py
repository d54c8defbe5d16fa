"""What compression sent, in the record of an epoch: the sums are those of what was counted, and the plot shows them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.history import History, compressed, flat, number_names
from gossipgrad.training.progress import epoch_line

BINS = [4, 6, *[0] * 14, 2]
COUNTS = {
    "dense_bytes": {"other": 0, "conv": 8000, "linear": 40000},
    "sent_bytes": {"other": 0, "conv": 200, "linear": 100},
    "bins_with": BINS,
    "elements": 12000,
    "elements_sent": 60,
    "residue": 0.25,
}


def sent(**families):
    return {**dict.fromkeys(COUNTS["sent_bytes"], 0), **families}


def record(epoch=1, **changes):
    ones = "train_loss learning_rate samples_per_second seconds exposed_communication_seconds consensus_distance"
    return {"epoch": epoch, **dict.fromkeys(ones.split(), 1.0), "compression": compressed({**COUNTS, **changes})}


def test_ratios_are_of_the_sums():
    found = compressed(COUNTS)
    assert found["ratio"] == 48000 / 300
    assert found["by_kind"] == {"conv2d": 40.0, "linear": 400.0, "other": None}
    assert (found["dense_bytes"], found["packed_bytes"]) == (48000, 300)
    assert found["elements_sent"] == 60 / 12000
    assert found["bins"] == BINS and found["residue"] == 0.25


def test_what_was_not_sent_has_no_ratio():
    nothing = sent()
    found = compressed({**COUNTS, "dense_bytes": nothing, "sent_bytes": nothing, "elements": 0, "elements_sent": 0})
    assert found["ratio"] is None and found["elements_sent"] is None
    assert found["by_kind"] == {"conv2d": None, "linear": None, "other": None}
    one = record(dense_bytes=nothing, sent_bytes=nothing)
    assert "ratio" not in epoch_line(one, 1)


def test_what_servers_were_told_alone_has_no_ratio():
    counts = {"dense_bytes": {"conv": 0}, "sent_bytes": {"conv": 40}, "bins_with": [0] * 17}
    one = compressed({**counts, "elements": 0, "elements_sent": 0, "residue": 0.0})
    assert one["ratio"] is None and one["by_kind"] == {"conv2d": None} and one["packed_bytes"] == 40


def test_the_numbers_are_known_before():
    families = list(COUNTS["sent_bytes"])
    names = [name for name in number_names(False, True, families, [], []) if name.startswith("compression")]
    assert sorted(names) == sorted(flat({"compression": compressed(COUNTS)}))
    assert not [name for name in number_names(False, True, [], [], []) if name.startswith("compression")]


def test_the_line_of_an_epoch_says_the_ratio():
    assert ", ratio 160x, " in epoch_line(record(), 1)
    assert ", ratio 2.5x, " in epoch_line(record(sent_bytes=sent(linear=19200)), 1)


def test_the_plot_shows_ratios_residue_and_bins(tmp_path):
    pytest.importorskip("matplotlib")
    last = [1, 0, 3, *[0] * 14]
    one = History(epochs=[record(1), record(2, sent_bytes=sent(conv=100, linear=500), bins_with=last, residue=0.5)])
    figure = gg.plots.compression(one, tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 5000
    ratios, residue, bins = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in ratios.get_lines()}
    assert drawn == {"ratio": [160.0, 80.0], "conv2d": [40.0, 80.0], "linear": [400.0, 80.0]}
    assert [list(line.get_ydata()) for line in residue.get_lines()] == [[0.25, 0.5]]
    assert [bar.get_height() for bar in bins.patches] == [count / 4 for count in last]

    other = copy.deepcopy(one)
    figure = gg.plots.compression({"strict": one, "safe": other, "dense": History(epochs=[{"epoch": 1}])})
    assert len(figure.axes[2].patches) == 2 * len(BINS)
    labels = {text.get_text() for text in figure.axes[0].texts}
    assert labels == {f"{name} {what}" for name in ("strict", "safe") for what in ("ratio", "conv2d", "linear")}


def test_the_plot_of_a_run_that_did_not_compress():
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing was compressed"):
        gg.plots.compression(History(epochs=[{"epoch": 1}]))


@pytest.mark.parametrize("given", [None, 5, "x", [History(epochs=[])], {"dense": 5}])
def test_plots_say_what_they_are_of(given):
    pytest.importorskip("matplotlib")
    for draw in (gg.plots.compression, gg.plots.loss, gg.plots.consensus):
        with pytest.raises(TypeError, match=r"histories is a \w+; allowed: a gossipgrad.History, or a dict of them"):
            draw(given)


def test_plots_of_histories_whose_names_are_no_text():
    pytest.importorskip("matplotlib")
    with pytest.raises(TypeError, match="histories: the name 4; allowed: a str"):
        gg.plots.loss({4: History(epochs=[{"epoch": 1, "train_loss": 1.0}])})


@pytest.fixture(scope="module", params=["local", "cyclic"])
def trained(request):
    data = gg.data.synthetic((1, 8, 8), 4, 96, 24)
    layers = [gg.Conv2d(8, 3), gg.ReLU(), gg.Flatten(), gg.Linear(16), gg.ReLU(), gg.Linear(4)]
    trainer = gg.Trainer(
        gg.Sequential(layers, input=(1, 8, 8)),
        strategy=gg.AllReduce(),
        compression=gg.AdaComp(bin_size={"conv": 10, "linear": 15}, dense_below=0, selection=request.param),
        comm=gg.VirtualCluster(3),
    )
    trainer.fit(*data, epochs=2, batch_size=8, progress=False)
    yield trainer
    trainer.close()


def test_what_a_run_reports(trained):
    """The sums are those of the network, the messages and the residues."""
    sent = trained.net.parameters * 4 * 3 * 4  # float32, ranks, steps
    sizes = {name: array.size for name, array in trained.weights(0).items()}  # biases are compressed, too
    bins = sum(-(-size // (10 if name.startswith("conv") else 15)) for name, size in sizes.items())
    cyclic = trained.compression.selection == "cyclic"
    for record in trained.history:
        one = record["compression"]
        assert one["dense_bytes"] == sent and one["ratio"] == sent / one["packed_bytes"] > 1
        assert set(one["by_kind"]) == {"conv2d", "linear"}
        assert sum(one["bins"]) == bins * 4 * (1 if cyclic else 3)
        least = sum(i * count for i, count in enumerate(one["bins"]))
        share = least * (3 if cyclic else 1) / (sum(sizes.values()) * 12)
        assert one["elements_sent"] == pytest.approx(share) != 0
        if not cyclic:  # each message goes to the two other ranks
            assert record["bytes_sent"] == 2 * one["packed_bytes"]
    residues, weights = (
        [np.concatenate([a.ravel() for a in trained.core.exchange.arena(what, rank).values()]) for rank in range(3)]
        for what in ("residue", "weight")
    )
    norms = [np.linalg.norm(r) / np.linalg.norm(w) for r, w in zip(residues, weights, strict=True)]
    assert trained.history.last["compression"]["residue"] == pytest.approx(np.mean(norms), rel=1e-5) != 0


def test_the_numbers_of_a_run_are_known_before(trained):
    assert sorted(trained.record_names) == sorted(flat(trained.history.last))
