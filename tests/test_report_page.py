"""The page of reports: what it holds is the reports', it loads nothing, texts stay texts, and a browser draws it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from conftest import DEADLINE
from test_cli import cli_run

import gossipgrad as gg
from gossipgrad import _core, cli
from gossipgrad.compare.plan import Comparison, entries
from gossipgrad.report import command, page, write
from gossipgrad.report.pictures import looks

EVIL = "</script><script>alert('x')</script><b>&amp;"
PARTS = ("compute_seconds", "exposed_communication_seconds", "data_wait_seconds")


class Parsed(HTMLParser):
    """Attributes of all elements, texts by element, and the JSON of the page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.json, self._open = [], [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if attributes.get("type") == "application/json":
            self.json[attributes["id"]] = json.loads(data)
        elif tag not in ("script", "style"):
            self.texts.append(data)

    def tags(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]

    def traces(self, name):
        """The traces of all pictures whose names have this text."""
        return [one for figure in self.json["figures"] for one in figure["data"] if name in one.get("name", "")]


@pytest.fixture
def parsed(monkeypatch):
    """parsed(reports, comparison): the page, without Plotly's script."""
    monkeypatch.setattr("gossipgrad.report.document.bundle", lambda: "")
    return lambda reports, comparison=None: Parsed(page(reports, comparison))


def train(name="tiny", strategy=None, p=3, epochs=2, **how):
    train_set, test = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,), name=name)
    how = {"strategy": strategy or gg.GossipGraD(), "comm": gg.VirtualCluster(p, latency=1e-5), "seed": 3, **how}
    with gg.Trainer(net, optimizer=gg.SGD(lr=0.05), **how) as trainer:
        return trainer.fit(train_set, test, epochs=epochs, batch_size=8, progress=False)


@pytest.fixture(scope="module")
def history():
    return train()


@pytest.fixture(scope="module")
def other():
    return train(EVIL, gg.AllReduce(), 2, 3)


def test_the_page_holds_the_reports(history, parsed, tmp_path):
    history.write(tmp_path / "r")
    report = json.loads((tmp_path / "r").read_text())
    found = parsed({"a": history.to_dict()})
    assert found.json["runs"] == {"a": report}
    for key, name in (("validation.loss", "validation"), ("train_loss", "training")):
        loss = next(one for one in found.traces(name) if one["y"] == history[key])
        assert loss["x"] == [1, 2]
    seconds = history["virtual_seconds"]
    assert any(one["x"] == [seconds[0], sum(seconds)] for one in found.traces("validation"))
    assert any(one["y"] == history["consensus_distance"] for one in found.traces("distance"))
    for key, meaning in zip(PARTS, ("computing", "waiting for messages", "waiting for samples"), strict=True):
        (bars,) = found.traces(meaning)
        assert bars["y"] == [one[key] for one in report["time_by_rank"]] and bars["x"] == [0, 1, 2]
    sent = history["bytes_sent"]
    assert any(one["y"] == [sent[0] / 1e3, sum(sent) / 1e3] for one in found.traces("all ranks"))
    texts = "".join(found.texts)
    assert "tiny on 3 ranks with gossipgrad" in texts and report["environment"]["cpu"] in texts
    assert all(key in texts for key in report["settings"] if key != "virtual_cluster")


def test_it_loads_nothing(history, other, tmp_path):
    """No element names another file; the policy forbids the rest."""
    pytest.importorskip("plotly")
    history.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    found = Parsed(text)
    for tag, attributes in found.elements:
        assert not {"src", "href", "srcset", "data", "action"} & set(attributes), tag
    assert "@import" not in text.partition("</style>")[0] and "url(" not in text.partition("</style>")[0]
    (policy,) = (one["content"] for one in found.tags("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy and "http" not in policy
    assert "Plotly" in text and len(text) > 1e6
    assert [one.name for one in tmp_path.iterdir()] == ["r.html"]


def test_texts_stay_texts(other, parsed):
    """Names may hold tags, in all places: title, tables, pictures, JSON."""
    report = other.to_dict()
    report["settings"] = report["settings"] | {"dataset": EVIL, EVIL: EVIL}
    failed = {"settings": {}, "runs": [{"strategy": EVIL, "ranks": 2, "failure": EVIL}]}
    for comparison in (None, failed):
        found = parsed({EVIL: report, "b": report}, comparison)
        plain = parsed({"a": report | {"settings": {}, "model": {}}, "b": report}, comparison)
        assert found.json["runs"] == {EVIL: json.loads(json.dumps(report)), "b": json.loads(json.dumps(report))}
        assert len(found.tags("script")) == len(plain.tags("script")) == 4
        assert not found.tags("b") and "alert" in "".join(found.texts)
        for figure in found.json["figures"]:
            for one in figure["data"]:
                assert "<" not in one.get("name", "")


def test_several_runs(history, other, parsed):
    found = parsed({"one": history.to_dict(), "two": other.to_dict()})
    assert [one["data-run"] for one in found.tags("input")] == ["0", "1"]
    texts = found.texts
    differ, equal = texts.index("What differs"), texts.index("Equal in all runs")
    assert "topology" in texts[differ:equal] and "seed" in texts[equal:]
    assert {one["meta"] for one in found.traces("validation")} == {0, 1}
    (bars,) = (one for one in found.traces("computing") if one.get("orientation") == "h")
    assert bars["x"] == [sum(one["compute_seconds"]) for one in (history, other)]
    assert len(found.traces("computing")) == 3


def test_a_comparison_has_a_colour_a_strategy(history, other):
    names = ["allreduce-p2", "allreduce-p3", "gossip-p2", "gossip-p3"]
    one, two = other.to_dict(), history.to_dict()
    found = looks(dict(zip(names, (one, two, one, two), strict=True)))
    assert found[0][0] == found[1][0] != found[2][0] == found[3][0]
    assert found[0][1] == found[2][1] != found[1][1] == found[3][1]
    assert len(set(looks({str(i): one for i in range(20)}))) == 20


def test_equal_replicas_have_no_place_on_a_log_axis(parsed):
    found = parsed({"a": train(p=1).to_dict()})
    assert not found.traces("distance") and "equal replicas" in "".join(found.texts)
    assert all(value > 0 for one in found.traces("distance") for value in one["y"])


def test_what_a_report_lacks_is_left_out(history, parsed):
    """Old reports have no time by rank; some have no validation, no epochs, no settings."""
    old = history.to_dict() | {"time_by_rank": []}
    (bars,) = parsed({"a": old}).traces("computing")
    assert bars["x"] == [sum(history["compute_seconds"])]
    assert bars["customdata"] == [sum(history["compute_seconds_max"])]
    bare = gg.History(epochs=[{"epoch": 1, "train_loss": 1.0}, {"epoch": 2, "train_loss": None}]).to_dict()
    found = parsed({"a": bare})
    assert [one["y"] for one in found.traces("training")] == [[1.0], [1.0]]
    assert not parsed({"a": gg.History().to_dict()}).json["figures"]
    with pytest.raises(ValueError, match="reports: there is none"):
        parsed({})


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.GossipGraD(topology="cube", slices=2)])
def test_partners_are_those_of_training(strategy, parsed):
    history = train(strategy=strategy, p=4, epochs=1)
    (matrix,) = (one for figure in parsed({"a": history.to_dict()}).json["figures"] for one in figure["data"]
                 if one["type"] == "heatmap")  # fmt: skip
    slices = strategy.slices or 1
    for rank, row in enumerate(matrix["z"]):
        assert row[rank] is None and any(row)
        for to, step in enumerate(row):
            if step is not None:
                turn = (step - 1) // slices
                name = strategy.topology
                assert _core.partners(name, 4, turn, rank, True, 3, 0)[0] == to
                assert all(_core.partners(name, 4, t, rank, True, 3, 0)[0] != to for t in range(turn))


def test_a_table_of_partners_has_facts_alone(parsed):
    found = parsed({"a": train(strategy=gg.GossipGraD(topology=[[1, 2, 0]]), epochs=1).to_dict()})
    assert all(one["type"] != "heatmap" for figure in found.json["figures"] for one in figure["data"])
    assert "table, 3 ranks" in found.texts


QUICK = "--model mlp --dataset synthetic --epochs 1 --batch-size 64 --quiet".split()
RUNS = [
    "--virtual-ranks 3 --topology cube --no-rotate --staleness 1 --exchange weights --seed 4 --no-shuffle",
    "--virtual-ranks 2 --optimizer adam --decoupled --weight-decay 0.01 --no-decay none --clip-norm 2 --drop-last",
    "--schedule step --every 3 --gamma 0.5 --warmup 2 --momentum 0 --lr 0.1",
    "--virtual-ranks 2 --strategy allreduce --compression adacomp --compression-bin-size linear=20,other=0 "
    "--latency 1e-3 --bandwidth 1e6 --compute-time 0.1 --straggler-probability 0.5 --straggler-delay 0.3",
    "--apoptosis --apoptosis-every 4 --apoptosis-least fc1=20 --optimizer lars --metrics auc",
]


@pytest.mark.core(5)
@pytest.mark.parametrize("options", RUNS)
def test_the_command_repeats_the_run(options, capsys, tmp_path):
    """Its weights, and its settings, that no rank's clock moves."""
    first, again = tmp_path / "first", tmp_path / "again"
    assert cli_run(capsys, "train", *QUICK, *options.split(), "--report", first)[0] == 0
    words = command.of_run(json.loads(first.read_text()))
    assert words is not None and words[:2] == ["gossipgrad", "train"]
    code, _, err = cli_run(capsys, *words[1:], "--quiet", "--report", again)
    assert code == 0, err
    one, two = (json.loads(path.read_text()) for path in (first, again))
    assert one["weights_sha256"] == two["weights_sha256"] and one["settings"] == two["settings"]


def test_commands_of_ranks_and_of_python(history):
    assert command.of_run(history.to_dict()) is None  # its network has no name of the command line
    assert command.of_run(gg.History().to_dict()) is None
    settings = history.settings | {"model": "lenet", "dataset": "mnist-10k", "comm": "mpi", "virtual_cluster": None}
    words = command.of_run({"settings": settings, "ranks": 3})
    assert words[:5] == ["gossipgrad", "run", "-n", "3", "train"]
    assert cli.parser().parse_args(words[4:]).lr == 0.05
    for python in ({"weighted": True}, {"dataset": "mine"}, {"schedule": "function"}, {"topology": [[1, 0]]}):
        assert command.of_run({"settings": settings | python, "ranks": 3}) is None


def test_the_command_of_a_comparison():
    from gossipgrad.cli.compare import plan_of

    made = Comparison(
        entries=entries("gossipgrad:staleness=1,parameter-server:lr=0.01/0.003"),
        ranks=(2, 4),
        samples=512,
        straggler=gg.Straggler(0.5, 0.1),
        network=None,
        optimizer=gg.SGD(lr=0.02, momentum=0.5),
        seed=4,
    )
    settings = json.loads(json.dumps(made.settings()))
    words = command.of_comparison(settings)
    arguments = cli.parser().parse_args([*words[1:], "--report-dir", "x"])
    found = json.loads(json.dumps(plan_of(arguments).settings()))
    assert found | {"network": None, "lr_grid": []} == settings
    assert found["network"] == {"latency": 0.0, "bandwidth": 0.0}


# ---- the command report


@pytest.fixture
def folder(history, other, tmp_path):
    (tmp_path / "reports").mkdir()
    history.write(tmp_path / "reports" / "one-p3.json")
    other.write(tmp_path / "reports" / "two-p2.json")
    (tmp_path / "compare.json").write_text('{"settings": {}, "runs": []}')
    return tmp_path


def test_reports_and_folders(folder, capsys, monkeypatch):
    monkeypatch.setattr("gossipgrad.report.document.bundle", lambda: "")
    monkeypatch.chdir(folder)
    one = "reports/one-p3.json"
    shutil.copy("reports/two-p2.json", "reports/two-p10.json")
    for runs, names in (
        ([one], ["one-p3"]),
        ([folder], ["one-p3", "two-p2", "two-p10"]),
        ([one, folder], ["reports/one-p3 (1)", "reports/one-p3 (2)", "reports/two-p2 (3)", "reports/two-p10 (4)"]),
    ):
        assert cli_run(capsys, "report", *runs, "-o", "p.html") == (0, f"p.html: {', '.join(names)}\n", "")
        assert list(Parsed((folder / "p.html").read_text()).json["runs"]) == names
    shutil.copy(one, folder / "one-p3.json")
    assert cli_run(capsys, "report", "one-p3.json", one)[1] == f"report.html: {folder.name}/one-p3, reports/one-p3\n"


def test_what_is_no_report(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    for words, wanted, said in (
        (["compare.json"], 1, "compare.json: no report"),
        (["nowhere.json"], 1, "nowhere.json"),
        (["empty"], 2, r"empty: no reports/\*.json in it; allowed: reports, and folders of gossipgrad compare"),
        (["reports/one-p3.json", "-o", "reports/one-p3.json"], 2, "would overwrite RUN 1="),
        (["reports/one-p3.json", "-o", "nowhere/x.html"], 2, "no such folder: .*nowhere"),
        ([], 2, "RUN"),
    ):
        code, out, err = cli_run(capsys, "report", *words)
        assert code == wanted and not out and re.search(said, err), err
    (folder / "compare.json").write_text("{")
    assert "compare.json: no comparison" in cli_run(capsys, "report", ".")[2]


def test_without_plotly(folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    monkeypatch.chdir(folder)
    hint = "pages want Plotly: pip install 'gossipgrad[report]'"
    assert cli_run(capsys, "report", "reports/one-p3.json") == (1, "", f"gossipgrad: error: {hint}\n")
    code, out, err = cli_run(capsys, "train", *QUICK, "--report", "run.html")
    assert (code, out) == (2, "") and err == f"gossipgrad: error: --report run.html: {hint}\n"
    with pytest.raises(ImportError, match="pages want Plotly"):
        gg.History().to_html("x.html")
    assert not list(folder.glob("*.html"))


def test_train_writes_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("gossipgrad.report.document.bundle", lambda: "")
    monkeypatch.setattr("gossipgrad.report.bundle", lambda: "")
    path = tmp_path / "run.HTML"
    assert cli_run(capsys, "train", *QUICK, "--report", path)[0] == 0
    (report,) = Parsed(path.read_text()).json["runs"].values()
    assert report["settings"]["model"] == "mlp" and len(report["epochs"]) == 1


# ---- in a browser

# Shows the page in a frame, hovers, turns a run off, and says what came of it. Windows may not be as narrow.
FRAME = """<iframe src="p.html" style="width: WIDTHpx; height: 900px"></iframe><pre></pre>
<script>onload = () => {
  const page = frames[0], root = page.document, plots = [...root.querySelectorAll(".js-plotly-plot")];
  page.Plotly.Fx.hover(plots[0], [{curveNumber: 0, pointNumber: 1}]);
  const said = plots[0].querySelector(".hoverlayer").textContent;
  const lines = () => plots[0].querySelectorAll(".scatterlayer .trace").length, before = lines();
  root.querySelector("[data-run='1']").click();
  const wide = plots.filter(one => one.querySelector(".main-svg").clientWidth > one.clientWidth).length;
  document.querySelector("pre").textContent = JSON.stringify({
    plots: plots.length, drawn: plots.filter(one => one.querySelector(".trace, .hm")).length,
    said, lines: [before, lines()], wide, over: root.documentElement.scrollWidth - page.innerWidth});
};</script>"""


@pytest.mark.full
@pytest.mark.parametrize("width", [400, 1600])
def test_a_browser_draws_it(width, history, other, tmp_path):
    pytest.importorskip("plotly")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    write({"one": history.to_dict(), EVIL: other.to_dict()}, tmp_path / "p.html")
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    words = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --allow-file-access-from-files"
    words += f" --virtual-time-budget=20000 --window-size=1700,1000 --user-data-dir={tmp_path / 'browser'} --dump-dom"
    file = (tmp_path / "frame.html").as_uri()
    done = subprocess.run([browser, *words.split(), file], capture_output=True, text=True, timeout=DEADLINE)
    assert "CONSOLE" not in done.stderr, done.stderr
    found = json.loads(html.unescape(re.search("<pre>(.*?)</pre>", done.stdout, re.DOTALL).group(1)))
    figures = len(Parsed((tmp_path / "p.html").read_text()).json["figures"])
    assert found["plots"] == found["drawn"] == figures > 8
    assert found["said"].startswith("one, validation") and "epoch 2" in found["said"]
    assert found["lines"] == [4, 2] and found["wide"] == 0 and found["over"] <= 0
