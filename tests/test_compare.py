"""gossipgrad compare: what it trains, what it writes, and what it does where something fails."""

import csv
import dataclasses
import fcntl
import json
import os
import re
import sys

import pytest

import gossipgrad as gg
from gossipgrad import cli, compare
from gossipgrad.compare import processes

FEW = {"model": "mlp", "dataset": "synthetic", "samples": 900, "points": 3, "global_batch": 24, "seeds": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two strategies, one p that is no power of two, and a failure of one strategy on the way."""
    folder = tmp_path_factory.mktemp("compare") / "made"
    words = "compare --strategies allreduce,no-exchange:lr=1e30 --virtual-ranks 1,3 --model mlp --dataset synthetic"
    words += " --samples 900 --points 3 --global-batch 24 --lr 0.05 --compute-time 0.5 --latency 0.25 --bandwidth 0"
    words += " --jobs 2 --quiet --seeds 1"
    return cli.main([*words.split(), "--report-dir", str(folder)]), folder


def test_files(done):
    pytest.importorskip("matplotlib")
    code, folder = done
    assert code == cli.FAILURE
    names = {"compare.json", "compare.csv", "points.csv", "scaling.png", "curves-p1.png", "curves-p3.png", "reports"}
    assert {path.name for path in folder.iterdir()} == names  # no "finished": what diverged would do so again
    assert {path.name for path in (folder / "reports").iterdir()} == {"allreduce-p1.json", "allreduce-p3.json"}
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_failing_configuration_does_not_end_the_others(done):
    rows = json.loads((done[1] / "compare.json").read_text())["runs"]
    assert [(one["strategy"], one["ranks"], bool(one["failure"])) for one in rows] == [
        ("allreduce", 1, False),
        ("allreduce", 3, False),
        ("no-exchange:lr=1e30", 1, True),
        ("no-exchange:lr=1e30", 3, True),
    ]
    assert rows[2]["failure"].startswith("diverged after 0 to 300 samples: ") and rows[2]["loss"] is None


def test_the_same_samples_for_each(done):
    whole = json.loads((done[1] / "compare.json").read_text())
    alone, three = whole["runs"][:2]
    assert alone["samples"] == three["samples"] == 900 and alone["batch_size"] == 24 and three["batch_size"] == 8
    assert [point["samples"] for point in three["points"]] == [300, 600, 900]
    # 300 samples are 13 steps of 24. The all-reduce waits for 4 messages a step of 0.25 s each, the others not at all.
    assert alone["steps"] == three["steps"] == 39 and alone["virtual_seconds"] == pytest.approx(39 * 0.5)
    assert three["virtual_seconds"] == pytest.approx(39 * (0.5 + 2 * 0.25))
    assert three["exposed_share"] == pytest.approx(0.5)
    assert whole["settings"]["network"]["latency"] == 0.25 and whole["settings"]["compute_time"] == 0.5
    assert whole["target_loss"] == pytest.approx(1.5 * min(alone["loss"], three["loss"]))


def test_tables_are_the_data(done):
    runs = json.loads((done[1] / "compare.json").read_text())["runs"]
    rows = list(csv.DictReader((done[1] / "compare.csv").open()))
    assert [float(row["loss"]) for row in rows[:2]] == [one["loss"] for one in runs[:2]]
    assert rows[2]["loss"] == "" and "diverged" in rows[2]["failure"]
    points = list(csv.DictReader((done[1] / "points.csv").open()))
    assert [float(p["virtual_seconds"]) for p in points] == [
        p["virtual_seconds"] for one in runs for p in one["points"]
    ]
    report = gg.History.read(done[1] / "reports" / "allreduce-p3.json")
    assert report.ranks == 3 and len(report) == 3 and report.settings["latency"] == 0.25
    assert report.last["validation"]["loss"] == runs[1]["loss"]


def test_the_same_again():
    comparison = compare.Comparison(entries=compare.entries("gossipgrad"), ranks=(3,), **FEW)
    again = [compare.train(comparison, comparison.entries[0], 3) for _ in range(2)]
    assert again[0]["points"] == again[1]["points"]
    assert again[0]["report"]["weights_sha256"] == again[1]["report"]["weights_sha256"]


def test_all_are_those_there_are():
    names = [one.strategy.name for one in compare.entries("all")]
    assert sorted(names) == sorted(gg.strategies.BY_NAME) and names[:5] == [
        one.partition(":")[0] for one in compare.MAIN
    ]
    assert [one.label for one in compare.entries("main, no-exchange")] == [*compare.MAIN, "no-exchange"]
    late, plain = compare.entries("gossipgrad:staleness=1:rotate=false:lr=0.5,allreduce")
    assert late.strategy == gg.GossipGraD(staleness=1, rotate=False) and late.rates == (0.5,)
    assert plain == compare.Entry("allreduce", gg.AllReduce())


def test_an_unknown_option_lists_all_there_are():
    """Of the strategy, and those that every entry has; compression's only where it can be."""
    with pytest.raises(ValueError, match="foo: not an option of strategy='allreduce'; it has wire_dtype") as error:
        compare.entries("allreduce:foo=1")
    listed = str(error.value).partition("it has ")[2].split(", ")
    packed = [f"compression_{one.name}" for one in dataclasses.fields(gg.AdaComp)]
    shrinks = [f"apoptosis_{one.name}" for one in dataclasses.fields(gg.Apoptosis)]
    assert listed == ["wire_dtype", "collectives", "lr", "compression", *packed, "apoptosis", *shrinks]
    for words, what, there in (
        (
            "no-exchange:foo=1",
            "foo: not an option of strategy='no-exchange'; it has shuffle_samples, lr, apoptosis",
            shrinks,
        ),
        ("allreduce:compression=adacomp:compression-foo=1", "compression_foo: not an option of compression", packed),
        ("allreduce:apoptosis=true:apoptosis-foo=1", "apoptosis_foo: not an option of apoptosis", shrinks),
    ):
        with pytest.raises(ValueError, match=what) as error:
            compare.entries(words)
        assert str(error.value).endswith(", ".join(there))


def test_learning_rates_and_batches():
    def plan(**options):
        return compare.Comparison(entries=compare.entries("allreduce"), ranks=(1,), optimizer=gg.SGD(lr=0.1), **options)

    entry = compare.entries("allreduce:lr=0.3")[0]
    assert plan().rate(plan().entries[0], 64) == 0.1 and plan().batch(64) == 2 and plan().batch(3) == 43
    scaled = plan(global_batch=None, batch_size=8, lr_scaling="linear", lr_limit=1.0)
    assert scaled.batch(64) == 8 and scaled.rate(entry, 2) == 0.6 and scaled.rate(entry, 4) == 1.0
    assert plan(lr_scaling="sqrt").rate(entry, 4) == pytest.approx(0.6)
    assert plan(samples=1000, points=3).parts(200) == (5, 200)


def test_as_many_at_a_time_as_this_process_may_use_cores(tmp_path, monkeypatch):
    plan = compare.Comparison(entries=compare.entries("allreduce,no-exchange"), ranks=(1, 2), **FEW)
    under_way, counts = [], []

    class Fake:
        """A configuration that ends when it is looked at for the third time."""

        def __init__(self, comparison, entry, p, path):
            self.entry, self.p, self.looks, self.process = entry, p, 0, self
            under_way.append(self)
            counts.append(len(under_way))

        def poll(self):
            self.looks += 1
            return 0 if self.looks >= 3 else None

        def result(self):
            under_way.remove(self)
            about = {"strategy": self.entry.label, "ranks": self.p, "seed": 0, "lr": 0.1}
            return {**about, "points": [], "failure": "none"}

    monkeypatch.setattr(processes, "Process", Fake)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for cores in (1, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        counts.clear()
        assert len(compare.run(plan, tmp_path)) == 4 and max(counts) == cores


def test_an_interrupted_comparison_goes_on(tmp_path):
    plan = compare.Comparison(entries=compare.entries("allreduce,no-exchange"), ranks=(1, 2), **FEW)

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare.run(plan, tmp_path, jobs=1, said=interrupt)
    assert len(list(tmp_path.iterdir())) == 1
    lines = []
    resumed = compare.run(plan, tmp_path, jobs=1, said=lines.append)
    assert [line.split(":")[0] for line in lines] == ["2 of 4", "3 of 4", "4 of 4"]
    assert [(one["strategy"], one["ranks"]) for one in resumed] == [
        (name, p) for name in ("allreduce", "no-exchange") for p in (1, 2)
    ]
    assert resumed[1]["points"] == compare.train(plan, plan.entries[0], 2)["points"]


def test_two_comparisons_in_one_folder(tmp_path, capsys):
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)  # as another process has it
    (tmp_path / "finished").mkdir()
    words = f"compare --dataset synthetic --model mlp --strategies allreduce --virtual-ranks 2 --report-dir {tmp_path}"
    try:
        assert cli.main([*words.split(), "--samples", "40", "--points", "1", "--global-batch", "4"]) == 2
    finally:
        os.close(holder)
    assert f"--report-dir {tmp_path}: another comparison writes there; allowed: a folder" in capsys.readouterr().err
    assert (tmp_path / "finished").is_dir()  # the other one's


TINY = "compare --dataset synthetic --model mlp --virtual-ranks 2 --samples 40 --points 1 --global-batch 4 --lr 0.03"
TINY += " --seeds 1"


@pytest.fixture
def nothing_trained(monkeypatch):
    """Configurations end at once, with the same result for each."""
    point = dict.fromkeys(processes.POINT, 1.0)

    def run(comparison, folder, *_):
        os.makedirs(folder, exist_ok=True)
        shared = {"batch_size": 2, "lr": 0.1, "seconds": 1.0, "points": [point], "report": {}}
        return [{"strategy": e.label, "ranks": p, **shared} for e in comparison.entries for p in comparison.ranks]

    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # nor drawn


def test_without_a_folder_each_gets_one_with_a_date(nothing_trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(TINY.split()) == 0 and cli.main(TINY.split()) == 0
    first, second = sorted(path.name for path in tmp_path.iterdir())
    assert re.fullmatch(r"compare-\d{4}-\d\d-\d\d", first) and second == f"{first}-2"
    out = capsys.readouterr().out
    assert f"files: {first}\n" in out and f"files: {second}\n" in out and (tmp_path / first / "compare.csv").exists()
    assert cli.main([*TINY.split(), "--resume"]) == cli.USAGE and "--report-dir" in capsys.readouterr().err
    assert cli.main([*TINY.split(), "--lr-scaling", "none", "--lr", "-1"]) == cli.USAGE
    assert len(list(tmp_path.iterdir())) == 2  # a command that cannot be makes none


def test_a_used_folder_is_refused(nothing_trained, tmp_path, capsys):
    """Old and new are never in one folder; what is not compare's may be there."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "finished").mkdir()  # of an interrupted one that has finished nothing
    words = [*TINY.split(), "--report-dir", str(tmp_path)]
    assert cli.main([*words, "--strategies", "allreduce"]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    assert cli.main([*words, "--strategies", "no-exchange"]) == cli.USAGE
    err = capsys.readouterr().err
    assert f"--report-dir {tmp_path}: has files of another comparison (compare.json, " in err and "empty folder" in err
    assert "--resume" not in err and before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "finished").mkdir(exist_ok=True)
    (tmp_path / "finished" / "one.json").write_text("{}")
    assert cli.main([*words, "--strategies", "no-exchange"]) == cli.USAGE
    assert "--resume goes on with" in capsys.readouterr().err
    (tmp_path / "curves-p16.png").write_bytes(b"old")  # resumed: nothing older stays beside the new
    assert cli.main([*words, "--strategies", "no-exchange", "--resume"]) == 0
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["no-exchange-p2.json"]
    assert not (tmp_path / "curves-p16.png").exists() and (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.full
def test_what_failed_is_tried_again(tmp_path, capsys, monkeypatch):
    """By --resume, and nothing else is."""
    words = "compare --strategies no-exchange --virtual-ranks 1,2 --model mlp --dataset synthetic --jobs 1 --lr 0.03"
    words += f" --samples 40 --points 1 --global-batch 4 --seeds 1 --report-dir {tmp_path / 'made'}"
    train, tried = compare.Process.result, []

    def result(self):
        tried.append(self.p)
        done = train(self)
        if self.p == 2 and len(tried) < 3:  # as if the process had been killed: no file
            os.remove(self.path)
            about = {"strategy": self.entry.label, "ranks": 2, "seed": 0, "lr": self.lr}
            return {**about, "points": [], "failure": "killed"}
        return done

    monkeypatch.setattr(compare.Process, "result", result)
    words = words.split()
    assert cli.main(words) == cli.FAILURE and tried == [2, 1]
    assert "--resume" in capsys.readouterr().out and len(list((tmp_path / "made" / "finished").iterdir())) == 1
    assert cli.main([*words, "--resume"]) == 0 and tried == [2, 1, 2]
    assert "2 of 2: no-exchange, 2 ranks" in capsys.readouterr().out and not (tmp_path / "made" / "finished").exists()
    rows = json.loads((tmp_path / "made" / "compare.json").read_text())["runs"]
    assert [one["ranks"] for one in rows if one["failure"] is None] == [1, 2]


@pytest.mark.full
def test_a_table_is_compared_on(tmp_path, capsys):
    """By the options of the data set, which are part of what --resume compares and of compare.json."""
    table = tmp_path / "t.csv"
    lines = [f"{i % 7},{i % 5},{'good' if i % 3 else 'bad'}" for i in range(90)]
    table.write_text("a,b,kind\n" + "\n".join(lines) + "\n")
    words = f"compare --strategies no-exchange --virtual-ranks 1 --model speech_dnn --dataset csv --data {table}"
    words += f" --samples 40 --points 1 --global-batch 8 --jobs 1 --lr 0.03 --seeds 1 --report-dir {tmp_path / 'made'}"
    assert cli.main([*words.split(), "--label", "kind", "--no-standardize", "--test", "0.2"]) == 0
    made = json.loads((tmp_path / "made" / "compare.json").read_text())
    assert made["settings"]["data_options"] == {"label": "kind", "standardize": False, "test": 0.2}
    capsys.readouterr()
    assert cli.main(words.split()) == cli.FAILURE and "label: missing" in capsys.readouterr().err
    assert cli.main([*words.split(), "--sequence", "3"]) == cli.USAGE
    assert "--sequence 3: --dataset csv does not have it" in capsys.readouterr().err


@pytest.mark.full
def test_the_best_rate_is_kept(tmp_path):
    """One of them ends in NaN."""
    comparison = compare.Comparison(
        entries=compare.entries("allreduce:lr=1e30/0.001/0.05,no-exchange"), ranks=(2,), lr_grid=(0.02,), **FEW
    )
    lines = []
    swept, fixed = compare.run(comparison, tmp_path, jobs=2, said=lines.append)
    assert len(lines) == 4 and lines[-1].startswith("4 of 4: ") and sum("FAILED" in line for line in lines) == 1
    assert swept["lr"] == 0.05 and fixed["lr"] == 0.02 and "tried" not in fixed
    assert [one["lr"] for one in swept["tried"]] == [0.001, 0.05, 1e30] and swept["tried"][2]["loss"] is None
    assert "diverged" in swept["tried"][2]["failure"] and swept.get("failure") is None and compare.complete([swept])
    assert swept["points"][-1]["loss"] == swept["tried"][1]["loss"] < swept["tried"][0]["loss"]


def test_the_default_cluster_and_rates(tmp_path):
    """A plausible network, and rates that suit the strategy; --lr and --lr-grid are used as given."""
    parsed = cli.parser().parse_args(["compare", "--report-dir", "x"])
    assert (parsed.latency, parsed.bandwidth) == (50e-6, 1.25e9) == tuple(vars(compare.LINKS).values())

    def rates(*words):
        from gossipgrad.cli.compare import plan_of

        plan = plan_of(cli.parser().parse_args(["compare", "--report-dir", "x", *words]))
        found = {}
        for entry in plan.entries:
            for p in plan.ranks:
                found[entry.label, p] = [plan.rate(one, p) for one in plan.variants(entry, p)]
        return found

    usual = rates("--strategies", "all", "--virtual-ranks", "4,16")
    assert len(usual) == 2 * len(gg.strategies.BY_NAME)
    for (label, p), found in usual.items():
        share = p if label == "parameter-server" else 1
        assert found == pytest.approx([0.01 / share, 0.03 / share], rel=1e-2), label
    dedicated = rates("--strategies", "parameter-server:dedicated=true", "--virtual-ranks", "4")
    assert list(dedicated.values()) == [[0.00333, 0.01]]
    words = ("--strategies", "parameter-server,gossipgrad:lr=0.5", "--virtual-ranks", "4")
    assert list(rates(*words, "--lr", "0.02").values()) == [[0.02], [0.5]]
    assert list(rates(*words, "--lr-grid", "0.02,0.04").values()) == [[0.02, 0.04], [0.5]]
    assert list(
        rates("--strategies", "allreduce", "--virtual-ranks", "4", "--lr", "0.3", "--lr-grid", "auto").values()
    ) == [[0.1, 0.3]]
    adam = rates("--strategies", "allreduce", "--virtual-ranks", "2", "--optimizer", "adam")
    assert list(adam.values()) == [[0.000333, 0.001]]


@pytest.mark.full
def test_the_sum_of_sixteen_ranks_updates_does_not_diverge():
    """The rate that suits one rank does, where a server adds up what all ranks send."""
    plan = compare.Comparison(
        entries=compare.entries("parameter-server"), ranks=(16,), samples=2048, points=2, lr_grid="auto", seeds=1
    )
    entry = plan.entries[0]
    found = [compare.train(plan, one, 16) for one in [*plan.variants(entry, 16), compare.Entry("x", entry.strategy)]]
    assert [one.get("failure") is None for one in found] == [True, True, False] and len(found[1]["points"]) == 2
    assert found[2]["failure"].startswith("diverged after ") and len(found[2]["points"]) < 2


@pytest.mark.full
def test_a_damaged_result_is_named_and_trained_again(tmp_path):
    plan = compare.Comparison(entries=compare.entries("allreduce,no-exchange"), ranks=(1,), **FEW)
    whole = compare.run(plan, tmp_path, jobs=2)
    cut, empty = sorted(tmp_path.iterdir())
    cut.write_bytes(cut.read_bytes()[:100])
    empty.write_text("{}")
    lines = []
    with pytest.warns(UserWarning) as warned:
        again = compare.run(plan, tmp_path, jobs=2, said=lines.append)
    assert len(lines) == 2 and [one["points"] for one in again] == [one["points"] for one in whole]
    for path in (cut, empty):
        assert any(str(path) in str(one.message) and "trained again" in str(one.message) for one in warned)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("points",), 3),
        (("points",), []),
        (("points", 0), None),
        (("points", 0, "steps"), "1"),
        (("points", 0, "accuracy"), []),
        (("ranks",), None),
        (("seed",), "0"),
        (("report",), "x"),
        (("failure",), {}),
        (("strategy",), 7),
    ],
)
def test_what_is_no_result_is_trained_again(tmp_path, place, value):
    """A result that lacks something ended the comparison after all others had been trained."""
    from gossipgrad.compare import processes

    keys = [key for key in processes.POINT]
    result = {"strategy": "x", "ranks": 2, "seed": 0, "batch_size": 8, "lr": 0.1, "seconds": 1.0, "report": {}}
    result["points"] = [dict.fromkeys(keys, 1.0)]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(result))
    assert processes._finished(str(path)) == result
    of = result
    for key in place[:-1]:
        of = of[key]
    of[place[-1]] = value
    path.write_text(json.dumps(result))
    with pytest.warns(UserWarning, match="r.json: damaged, its configuration is trained again"):
        assert processes._finished(str(path)) is None


def test_files_that_are_no_results(tmp_path):
    from gossipgrad.compare import processes

    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in tmp_path.iterdir():
        with pytest.warns(UserWarning, match="damaged, its configuration is trained again"):
            assert processes._finished(str(path)) is None
    assert processes._finished(str(tmp_path / "none")) is None


def test_a_long_label_has_a_file_of_its_own():
    from gossipgrad.compare import report

    labels = ["allreduce:lr=0.1", "x" * 300 + "a", "x" * 300 + "b", "é" * 200]
    names = [report._file_name(label) for label in labels]
    assert len(set(names)) == 4 and max(map(len, names)) <= 200 and names[0] == "allreduce_lr_0.1"


# ---- pictures


def made_run(name, losses, failure=None, seconds=1.0):
    points = [
        {
            "samples": 100 * (i + 1),
            "virtual_seconds": seconds * (i + 1),
            "loss": loss,
            "accuracy": 0.5,
            "consensus_distance": 0.0 if name == "allreduce" else 10.0**-i,
            "bytes_sent": 1e6 * (i + 1),
        }
        for i, loss in enumerate(losses)
    ]
    rest = {"virtual_seconds_to_target": None, "virtual_seconds": 1.0, "accuracy": 0.5, "loss": losses[-1]}
    rest |= {"exposed_share": 0.5, "bytes_per_rank_step": 1e6} if failure is None else {"loss": None}
    rest = dict.fromkeys(("accuracy", "virtual_seconds", "exposed_share", "bytes_per_rank_step")) | rest
    return {"strategy": name, "ranks": 4, "points": points, "failure": failure, **rest}


def drawn(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def test_a_strategy_has_one_colour_and_marker():
    """Wherever it stands and whatever else is there; options change the dashes."""
    pytest.importorskip("matplotlib")
    runs = [made_run(name, [2.0, 1.0 + i / 9]) for i, name in enumerate(gg.strategies.BY_NAME)]
    looks = []
    for some in (runs, runs[::-1], runs[3:7]):
        axes = gg.plots.comparison_curves(some).axes[0]
        looks.append({run["strategy"]: (drawn(axes, run["strategy"])) for run in some})
    for name in gg.strategies.BY_NAME:
        found = {(one[name].get_color(), one[name].get_marker()) for one in looks if name in one}
        assert len(found) == 1
    all_ = {(line.get_color(), line.get_marker()) for line in looks[0].values()}
    assert len(all_) == len(runs) == len({colour for colour, _ in all_})
    both = [made_run("gossipgrad", [2.0, 1.0]), made_run("gossipgrad:staleness=1", [2.0, 1.5])]
    one, other = (drawn(gg.plots.comparison_curves(both).axes[0], run["strategy"]) for run in both)
    assert one.get_color() == other.get_color() and one.get_linestyle() != other.get_linestyle()


def test_lines_on_each_other_are_all_to_be_seen():
    pytest.importorskip("matplotlib")
    runs = [made_run(name, [2.0, 1.0]) for name in ("allreduce", "layerwise-allreduce")]
    axes = gg.plots.comparison_curves([*runs, made_run("gossipgrad", [2.0, 0.5])]).axes[0]
    wide, narrow = (drawn(axes, run["strategy"]) for run in runs)
    assert wide.get_linewidth() > narrow.get_linewidth() and wide.get_zorder() < narrow.get_zorder()
    assert {text.get_text() for text in axes.texts} == {"allreduce", "layerwise-allreduce", "gossipgrad"}


def test_what_diverges_flattens_nothing_and_is_marked():
    pytest.importorskip("matplotlib")
    runs = [made_run("gossipgrad", [2.0, 0.5]), made_run("allreduce", [2.0, 0.4])]
    lost = made_run("parameter-server", [3.0, 1e6], failure="diverged after 200 to 300 samples: ...")
    figure = gg.plots.comparison_curves([*runs, lost])
    axes = figure.axes[0]
    assert axes.get_ylim()[1] < 10
    line = drawn(axes, "parameter-server")
    ends = [one for one in axes.lines if one.get_marker() == "X"]
    arrows = [one for one in axes.lines if one.get_marker() == 6]
    assert len(ends) == len(arrows) == 1 and ends[0].get_color() == arrows[0].get_color() == line.get_color()
    assert max(line.get_ydata()) <= axes.get_ylim()[1] and "parameter-server" in figure._suptitle.get_text()
    plain = gg.plots.comparison_curves(runs)
    assert not [one for one in plain.axes[0].lines if one.get_marker() in ("X", 6)]
    assert plain.axes[0].get_ylim()[1] > 2  # nothing is cut off
    scaling = gg.plots.comparison_scaling([*runs, lost], 0.1)
    for axes, crosses in ((scaling.axes[0], 3), (scaling.axes[3], 1)):  # nobody reached the target; one has no loss
        assert len([one for one in axes.lines if one.get_marker() == "X"]) == crosses


@pytest.mark.parametrize("strategies", [None, "main", "all"])
def test_every_strategy_exchanges_several_times(strategies):
    """DiLoCo and NoLoCo made one outer step in 80 steps of the default."""
    from gossipgrad.cli.compare import plan_of

    words = ["compare", "--report-dir", "x", *(["--strategies", strategies] if strategies else [])]
    plan = plan_of(cli.parser().parse_args(words))
    assert plan.seeds == 3 and not plan.few_periods(10_000)
    assert strategies == "all" or [one.label for one in plan.entries] == list(compare.MAIN)
    for entry in plan.entries:
        period, steps = getattr(entry.strategy, "period", 1), plan.steps(10_000, entry, 8)
        assert period == "log2" or steps // period >= 8
    usual = dataclasses.replace(plan, entries=compare.entries("diloco,allreduce,noloco:period=26"))
    assert usual.few_periods(10_000) == [
        "diloco: 80 steps of a rank are less than 3 periods of 50; diloco:period=N shortens it, --samples N trains "
        "longer"
    ]


def test_a_title_says_how_it_was_made():
    straggler = gg.Straggler(0.1, 0.3)
    plan = compare.Comparison(
        entries=compare.entries("allreduce,parameter-server"), ranks=(2, 4), lr_grid="auto", straggler=straggler
    )
    assert plan.title() == (
        "lenet on mnist-10k; 10,000 samples; 128 a step\nlinks of 10 Gbit/s and 50 µs; 10 % of steps 300 ms late; "
        "best of 6 rates from 0.0025 to 0.03; seeds 0 to 2 (bands: least to most)"
    )
    alone = dataclasses.replace(plan, lr_grid=(), seeds=1, seed=4, network=None, straggler=None)
    alone = dataclasses.replace(alone, global_batch=None, batch_size=8)
    assert alone.title().startswith("lenet on mnist-10k; 10,000 samples; 8 of a rank a step\n")
    assert alone.title().endswith("messages take no time; rate 0.03; seed 4")


def seed_result(seed, losses, lr=0.1, failure=None):
    point = dict.fromkeys(processes.POINT, 2)
    points = [{**point, "loss": loss, "samples": 10 * (i + 1)} for i, loss in enumerate(losses)]
    about = {"strategy": "x", "ranks": 2, "seed": seed, "batch_size": 8, "lr": lr, "seconds": 1.5, "points": points}
    return about | ({"report": {}} if failure is None else {"failure": failure})


def test_seeds_are_one_result_with_means():
    swept = [seed_result(s, [4.0, 2.0 + s], lr) for lr in (0.1, 0.3) for s in (2, 0, 1)]
    swept[4] = seed_result(0, [4.0, 0.0], 0.3)  # in the mean, 0.3 has the lower loss
    best = processes._best(swept)
    assert best["lr"] == 0.3 and [one["loss"] for one in best["tried"]] == [3.0, pytest.approx(7 / 3)]
    assert [one["seed"] for one in best["by_seed"]] == [0, 1, 2] and best["seed"] == 0 and best["seconds"] == 4.5
    assert [point["loss"] for point in best["points"]] == [4.0, pytest.approx(7 / 3)]
    assert [point["samples"] for point in best["points"]] == [10, 20] and compare.complete([best])
    line = compare.row(best, 3.5)
    assert (line["seeds"], line["loss_min"], line["loss_max"]) == (3, 0.0, 4.0)
    assert line["virtual_seconds_to_target"] is None, "a seed did not reach it"
    assert "2.3333 ±2.0000" in compare.table([line], 3.5)
    single = compare.row(seed_result(0, [4.0, 2.0]), 3.0)
    assert single["seeds"] == 1 and "±" not in compare.table([single], 3.0)
    assert single["loss_min"] == single["loss"] == single["loss_max"] == 2.0


def test_a_seed_that_fails_is_named():
    lost = seed_result(1, [9.0], failure="diverged after 10 to 20 samples: x")
    killed = {**seed_result(2, []), "failure": "killed"}
    found = processes._best([seed_result(0, [4.0, 2.0]), lost])
    assert found["failure"] == "diverged after 10 to 20 samples: x (seed 1)" and "report" not in found
    assert [point["loss"] for point in found["points"]] == [6.5] and compare.complete([found])
    both = processes._best([seed_result(0, [4.0, 2.0]), lost, killed])
    assert both["failure"] == "killed (seed 2)" and not both["points"] and not compare.complete([both])


def test_seeds_are_trained_and_stored_one_by_one(tmp_path):
    plan = compare.Comparison(entries=compare.entries("no-exchange"), ranks=(1,), **{**FEW, "seeds": 2, "seed": 5})
    lines = []
    (result,) = compare.run(plan, tmp_path / "finished", jobs=2, said=lines.append)
    assert len(lines) == 2 and len(list((tmp_path / "finished").iterdir())) == 2
    assert {line.split(": ")[1].split(", ")[-1] for line in lines} == {"seed 5", "seed 6"}
    alone = [compare.train(one, plan.entries[0], 1) for one in plan.of_each_seed()]
    assert [one["points"] for one in result["by_seed"]] == [one["points"] for one in alone]
    assert alone[0]["points"] != alone[1]["points"]
    assert result["report"]["weights_sha256"] == alone[0]["report"]["weights_sha256"]
    compare.write(plan, [result], tmp_path / "made")
    points = list(csv.DictReader((tmp_path / "made" / "points.csv").open()))
    assert [(one["seed"], float(one["loss"])) for one in points] == [
        (str(one["seed"]), point["loss"]) for one in alone for point in one["points"]
    ]
    with pytest.raises(ValueError, match="seed=18446744073709551615"):
        dataclasses.replace(plan, seed=2**64 - 1)


def test_distances_have_a_scale_with_zero():
    pytest.importorskip("matplotlib")
    runs = [made_run("gossipgrad", [2.0, 0.5]), made_run("allreduce", [2.0, 0.4])]
    axes = gg.plots.comparison_curves(runs).axes[4]
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] <= 0
    assert list(drawn(axes, "allreduce").get_ydata()) == [0, 0]


def test_time_to_a_loss():
    points = [{"virtual_seconds": t, "loss": loss} for t, loss in ((1.0, 4.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0))]
    assert compare.time_to(points, 5.0) == 1.0 and compare.time_to(points, 3.0) == 1.5
    assert compare.time_to(points, 2.0) == 2.0 and compare.time_to(points, 0.5) is None


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--strategies gossip", "strategy='gossip'"),
        ("--strategies allreduce:period=2", "period: not an option of strategy='allreduce'"),
        ("--strategies gossipgrad:rotate", "'rotate' is no option"),
        ("--strategies allreduce,allreduce", "is there twice"),
        ("--strategies allreduce:lr=0.1/x", "lr='x'"),
        ("--strategies allreduce --lr-grid 0.1,-1", "lr_grid=-1"),
        ("--virtual-ranks 2,0", "virtual_ranks=0"),
        ("--virtual-ranks 2,x", "--virtual-ranks: '2,x': allowed: integers of at least 1 with commas"),
        ("--lr-grid a", "--lr-grid: 'a': allowed: numbers with commas, as 0.01,0.03, or auto"),
        ("--virtual-ranks 64 --global-batch 32", "at least 64"),
        ("--samples 900 --points 10", "90 samples a point"),
        ("--batch-size 8 --global-batch 32", "not allowed with"),
        ("--lr 0.03 --lr-grid 0.1,0.2", "--lr 0.03: not with the rates of --lr-grid"),
        ("--report-dir /dev/null/x", "--report-dir"),
    ],
)
def test_what_cannot_be(words, what, capsys, tmp_path):
    common = ["compare", "--dataset", "synthetic", "--model", "mlp", "--report-dir", str(tmp_path)]
    assert cli.main([*common, *words.split()]) == cli.USAGE
    assert what in capsys.readouterr().err
