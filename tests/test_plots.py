"""Pictures: names beside their lines, numbers at axes, titles, colours that read on white and on black."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest

import gossipgrad as gg
from gossipgrad import History, drawing, plots, show

pytest.importorskip("matplotlib")

from matplotlib import image  # noqa: E402
from matplotlib.text import Text  # noqa: E402

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("#ffffff", "#131416")  # the brightest page, and that of the documentation's dark scheme


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def check_names(figure, wanted=None):
    """Names of lines are inside their panels, beside each other and on no line. A title is inside the picture."""
    count = 0
    figure.draw_without_rendering()
    for axes in figure.axes:
        box = axes.get_window_extent()
        boxes = [(text.get_text(), Text.get_window_extent(text)) for text in axes.texts]
        for name, one in boxes:
            assert box.x0 <= one.x0 and one.x1 <= box.x1 and box.y0 <= one.y0 and one.y1 <= box.y1, name
            for line in axes.lines:
                path = line.get_transform().transform_path(line.get_path())
                assert not path.intersects_bbox(one, filled=False), (name, line.get_label())
        for (name, one), (other, two) in itertools.combinations(boxes, 2):
            assert not one.overlaps(two), (name, other)
        if wanted is not None:
            assert sorted(name for name, _ in boxes) == sorted(wanted)
        count += len(boxes)
    title = figure._suptitle
    if title is not None:
        one = title.get_window_extent()
        assert one.x0 >= 0 and one.x1 <= figure.bbox.width and one.y1 <= figure.bbox.height
        assert all(one.y0 >= axes.get_tightbbox().y1 - 1 for axes in figure.axes)
    return count


def check_numbers(figure):
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            places = [place for place in axis.get_majorticklocs() if low <= place <= high]
            if axis.get_scale() in ("log", "symlog") and axis.get_label_text() != "ranks":
                words = [axis.get_major_formatter()(place) for place in places]
                shown = [
                    tick.label1.get_window_extent() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
                ]
                assert not any(one.overlaps(two) for one, two in itertools.combinations(shown, 2)), (
                    axis.get_label_text()
                )
                assert len(places) >= 4 and all(words) and len(set(words)) == len(words), axis.get_label_text()


def made_run(name, rank_count=4, seeds=3, points=6, failure=None):
    draw = random.Random(f"{name} {rank_count}")
    speed, level = draw.uniform(0.5, 3), draw.uniform(0.1, 0.4)
    by_seed = [
        {
            "seed": seed,
            "points": [
                {
                    "samples": 100 * (i + 1),
                    "virtual_seconds": speed * (i + 1),
                    "loss": level + 2.0**-i + seed / 50,
                    "accuracy": 0.95 - 0.3 * 2.0**-i - seed / 90,
                    "consensus_distance": 0.0 if "allreduce" in name else 10.0 ** (-i / 3) / (1 + seed),
                    "bytes_sent": level * 1e6 * (i + 1),
                }
                for i in range(points)
            ],
        }
        for seed in range(seeds)
    ]
    first = by_seed[0]["points"]
    mean = [{k: sum(one["points"][i][k] for one in by_seed) / seeds for k in first[i]} for i in range(points)]
    last = {**mean[-1], "exposed_share": level, "bytes_per_rank_step": level * 1e6}
    last["virtual_seconds_to_target"] = None if "no-" in name or "elastic" in name else speed
    ends = {f"{key}_{end}": value for key, value in last.items() for end in ("min", "max")}
    about = {"strategy": name, "ranks": rank_count, "failure": failure, "points": mean, "by_seed": by_seed}
    return {**last, **ends, **about}


ALL = list(gg.strategies.BY_NAME)


def test_lines_of_a_comparison_are_named():
    runs = [made_run(name) for name in ALL]
    figure = plots.comparison_curves(runs, title="lenet on mnist-10k; 10,000 samples\nlinks of 10 Gbit/s; seeds 0 to 2")
    assert check_names(figure, ALL) == 6 * len(ALL)
    check_numbers(figure)
    bands = [len(axes.collections) - 1 for axes in figure.axes]  # beside them: the grid
    assert bands[:4] == [len(ALL)] * 4 and bands[5] == 0


def test_lines_over_ranks_are_named():
    names = ["allreduce", "layerwise-allreduce", "allreduce:wire_dtype=bfloat16", "no-exchange"]
    figure = plots.comparison_scaling([made_run(name, p) for name in names for p in (2, 4, 8, 16)], 0.3)
    assert check_names(figure, names) == 6 * len(names)
    check_numbers(figure)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    highest = max(max(line.get_ydata()) for line in figure.axes[0].lines if line.get_marker() != "X")
    assert len(crosses) == 1 and min(crosses[0].get_ydata()) > highest


def test_a_diverged_line_says_so():
    runs = [made_run("gossipgrad"), made_run("parameter-server", points=2, failure="diverged after 3")]
    figure = plots.comparison_curves(runs)
    assert check_names(figure, ["gossipgrad", "parameter-server (diverged)"]) == 12
    assert "diverged (X): parameter-server" in figure._suptitle.get_text()


def test_missing_values_have_crosses_in_rows():
    rows = [
        {"strategy": name, "ranks": p, "virtual_seconds_to_target": None if p > 2 else 1.0}
        for name in ALL
        for p in (2, 4)
    ]
    (axes,) = plots.comparison_scaling(rows, 0.3).axes
    crosses = [line for line in axes.lines if line.get_marker() == "X"]
    assert len({tuple(line.get_ydata()) for line in crosses}) == len(crosses) == len(ALL)
    assert check_names(axes.figure, ALL) == len(ALL)


def test_a_table_of_one_column_is_one_panel():
    rows = [{"strategy": name, "ranks": p, "virtual_seconds_to_target": 9 / p} for name in ALL[:3] for p in (2, 4)]
    assert [axes.get_ylabel() for axes in plots.comparison_scaling(rows, 0.15).axes] == [
        "virtual seconds to a loss of 0.15"
    ]


def history(seed=0, strategy="gossipgrad", ranks=4, distance=1e-3):
    settings = {
        "dataset": "digits",
        "strategy": strategy,
        "lr": 0.02,
        "seed": seed,
        "latency": 5e-5,
        "bandwidth": 1.25e9,
    }
    epochs = [
        {
            "epoch": i + 1,
            "train_loss": 1 / (i + 1) + seed / 20,
            "validation": {"loss": 1.1 / (i + 1) + seed / 20, "accuracy": 0.9 + i / 100},
            "consensus_distance": distance * 2.0**-i,
        }
        for i in range(4)
    ]
    return History(settings=settings, ranks=ranks, model={"name": "lenet"}, epochs=epochs)


def test_histories_have_names_titles_and_bands():
    several = {"gossip": [history(s) for s in range(3)], "none": history(strategy="no-exchange", distance=10.0)}
    figure = plots.training(several)
    assert check_names(figure, several) == 6
    title = figure._suptitle.get_text().replace("\n", " ")
    facts = ("lenet on digits", "4 ranks", "gossipgrad, no-exchange", "links of 10 Gbit/s and 50 µs", "rate 0.02")
    for fact in (*facts, "seeds 0, 1, 2", "bands: least to most"):
        assert fact in title
    line = next(one for one in figure.axes[0].lines if one.get_label() == "gossip")
    assert list(line.get_ydata()) == pytest.approx([1 / (i + 1) + 1 / 20 for i in range(4)])
    assert len(figure.axes[0].collections) == 1 + 2, "the grid, and a band of each loss"
    alone = plots.training(history())
    assert sorted(text.get_text() for text in alone.axes[0].texts) == sorted(
        ["training", "validation"]
    ) and check_names(alone)
    assert "links of 10 Gbit/s and 50 µs; rate 0.02; seed 0" in plots.loss(history())._suptitle.get_text().replace(
        "\n", " "
    )
    assert check_names(plots.consensus(several), several) == 2
    with pytest.raises(TypeError, match="or a dict of them, or of lists of them"):
        plots.loss({"a": [history(), 3]})


@pytest.mark.parametrize("distances", [(1e-7, 10.0), (1e-3, 0.0), (0.2, 0.21)])
def test_small_distances_are_seen_beside_large_ones(distances):
    """On a linear axis all but the largest were one line at zero."""
    several = {str(i): history(distance=distance) for i, distance in enumerate(distances)}
    for axes in (plots.training(several).axes[2], plots.consensus(several).axes[0]):
        assert axes.get_yscale() == ("symlog" if 0.0 in distances else "log")
        ends = [axes.transAxes.inverted().transform(axes.transData.transform((4, d / 8)))[1] for d in distances]
        assert all(0 <= end <= 1 for end in ends)
        assert abs(ends[0] - ends[1]) > (0.2 if distances[1] != 0.21 else 0)
        check_numbers(axes.figure)


def test_numbers_of_logarithmic_axes():
    draw = random.Random(0)
    for _ in range(2000):
        low = 10 ** draw.uniform(-9, 9)
        high = low * 10 ** draw.choice([draw.uniform(0.02, 1), draw.uniform(1, 14)])
        places = drawing.numbers(low, high)
        assert 4 <= len(places) <= 11 and low <= places[0] and places[-1] <= high and places == sorted(set(places))
    assert drawing.numbers(1, 100) == [1, 3, 10, 30, 100] and drawing.number(0.2) == "0.2"
    assert (
        drawing.number(1e-6) == "$10^{-6}$" and drawing.number(0) == "0" and drawing.number(3e-6) == r"$3\cdot10^{-6}$"
    )
    assert drawing.number(2e5) == r"$2\cdot10^{5}$" and drawing.number(0.003) == "0.003"
    assert drawing.numbers(95, 470) == [100, 200, 300, 400], "not so many that they touch"
    for low, high in ((2e-8, 0.3), (1e-3, 10), (5e-9, 2e9)):  # every decade, or every second, ...
        steps = {round(math.log10(b / a), 6) for a, b in itertools.pairwise(drawing.numbers(low, high))}
        assert len(steps) == 1


def test_names_are_kept_apart():
    draw = random.Random(0)
    assert drawing.apart([], 1, 0, 1) == [] and drawing.apart([3, 9], 2, 0, 10) == [3, 9]
    assert drawing.apart([5, 5], 2, 0, 10) == [4, 6] and drawing.apart([9, 10], 2, 0, 10) == [8, 10]
    for _ in range(300):
        wanted = sorted(draw.uniform(-5, 25) for _ in range(draw.randrange(1, 12)))
        found = drawing.apart(wanted, 1.5, 0, 20)
        assert all(b - a >= 1.5 - 1e-9 for a, b in itertools.pairwise(found))
        assert found[0] >= -1e-9 and found[-1] <= 20 + 1e-9


def test_colours_read_on_white_and_on_black():
    colours = {colour for colour, _ in plots._STYLES.values()}
    assert len(colours) == len(gg.strategies.BY_NAME) and set(plots._STYLES) == set(gg.strategies.BY_NAME)
    for colour, page in itertools.product({*colours, *drawing.COLOURS}, PAGES):
        assert contrast(colour, page) >= 3.6, (colour, page)
    assert all(contrast(drawing.INK, page) >= 4.2 for page in PAGES)


def test_pictures_are_transparent(tmp_path):
    plots.partner_schedule(4, path=tmp_path / "one.png")
    shown = image.imread(tmp_path / "one.png")
    assert shown.shape[2] == 4 and shown[0, 0, 3] == 0 and shown[..., 3].max() == 1


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.png")), ids=lambda path: path.name)
def test_pictures_of_the_pages_are_transparent_and_legible(path):
    """A page shows 736 pixels at most: a picture of 1200 is still read there."""
    shown = image.imread(path)
    assert shown.shape[2] == 4 and shown[0, 0, 3] == 0 and shown.shape[1] <= 1200


@pytest.mark.parametrize(
    ("latency", "bandwidth", "words"),
    [
        (5e-5, 1.25e9, "links of 10 Gbit/s and 50 µs"),
        (0.25, 0, "links of 250 ms"),
        (0, 1e8, "links of 800 Mbit/s"),
        (None, None, "messages take no time"),
        (3e-10, 1, "links of 8 bit/s and 0.3 ns"),
    ],
)
def test_links_in_words(latency, bandwidth, words):
    assert show.links(latency, bandwidth) == words


def test_a_schedule_names_its_seed_if_it_has_one():
    assert plots.partner_schedule(8, seed=3).axes[0].get_title().startswith("dissemination, 8 ranks, seed 3: 3 steps")
    assert plots.partner_schedule(8, rotate=False).axes[0].get_title() == "dissemination, 8 ranks: 3 steps a cycle"
