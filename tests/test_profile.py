"""gossipgrad bench --profile: every pass of every operation, its products and bytes, and that it fits the step."""

import json
import subprocess
import sys

import pytest

import gossipgrad as gg
from gossipgrad import _core, bench, cli, plots, profile

PEAKS = {"product_peak": 100.0, "copy_peak": 10.0}


@pytest.fixture
def peaks(monkeypatch):
    for name, value in PEAKS.items():
        monkeypatch.setattr(profile, name, lambda *_, value=value: value)


def network():
    layers = [
        gg.Conv2d(16, 3, padding=1, name="conv"),
        gg.BatchNorm2d(name="norm"),
        gg.ReLU(name="relu"),
        gg.MaxPool2d(2, name="pool"),
        gg.Flatten(),
        gg.Linear(3, name="fc"),
    ]
    return gg.Sequential(layers, input=(5, 8, 8))


@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_products_and_bytes(peaks, backend):
    batch = 32
    found = profile.step("mine", batch, steps=3, warmup=1, backend=backend, net=network())
    passes = {}
    for one in found["operations"]:
        if one["operation"] != "reorder":
            passes.setdefault(one["name"], {})[one["pass"]] = one
    assert [name.split("+")[0] for name in passes] == ["conv", "norm", "pool", "fc"]
    conv, fc = passes["conv"], passes["fc"]
    assert next(own.keys() for name, own in passes.items() if name.startswith("pool")) == {"forward", "data"}
    assert conv.keys() == {"forward", "weights"}  # nobody wants the gradient of the samples
    macs = {"conv": 16 * 5 * 9 * 64, "fc": 16 * 16 * 3}
    for name, own in (("conv", conv), ("fc", fc)):
        products = {what: one["gflops"] * one["ms"] * 1e6 for what, one in own.items()}
        assert sum(products.values()) == pytest.approx(2 * batch * macs[name] * (2 if name == "conv" else 3))
    numbers = {"conv": batch * (5 + 16) * 64 + 16 * 45 + 16, "fc": batch * (256 + 3) + 3 * 256 + 3}
    if backend == "native":  # channels are not padded
        assert conv["forward"]["mbytes"] == pytest.approx(4e-6 * numbers["conv"])
    assert fc["forward"]["mbytes"] >= 0.99 * 4e-6 * numbers["fc"]
    for one in found["operations"]:
        assert one["of_product"] == pytest.approx(one["gflops"] / 100) and one["ms"] > 0
        assert one["of_copy"] == pytest.approx(one["mbytes"] / one["ms"] / 10) and one["backend"] in (
            "native",
            "onednn",
        )
        assert one["share"] == pytest.approx(one["ms"] / found["ms"])
    whole = sum(one["ms"] for one in found["operations"]) + found["loss_ms"] + found["update_ms"] + found["other_ms"]
    assert whole == pytest.approx(found["ms"]) and found["update_ms"] > 0 and found["loss_ms"] > 0


def test_a_gradient_that_the_update_computes(peaks):
    """No product is counted where none is; the layer below is too small for that."""
    net = gg.Sequential([gg.Linear(700, name="large"), gg.ReLU(), gg.Linear(4, name="small")], input=(500,))
    found = profile.step("mine", 8, steps=2, warmup=1, net=net)
    by_update = {one["name"].split("+")[0]: one for one in found["operations"] if one["with_update"]}
    assert by_update.keys() == {"large"} and by_update["large"]["pass"] == "weights"
    assert by_update["large"]["gflops"] == by_update["large"]["mbytes"] == 0
    (line,) = (one for one in profile.table(found).splitlines() if "with the update" in one)
    assert line.startswith("large") and line.endswith("%")


def test_the_shortest_time_of_each_pass_counts():
    def run(*seconds):
        return [{"nodes": [0], "passes": {"forward": {"seconds": seconds[0]}, "data": {"seconds": seconds[1]}}}]

    (found,) = profile._fastest([run(3.0, 1.0), run(2.0, 4.0)])
    assert [one["seconds"] for one in found["passes"].values()] == [2.0, 1.0]


def test_the_table_and_the_picture(peaks, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = ["bench", "--model", "lenet", "--batch-size", "4", "--steps", "2", "--warmup", "1", "--profile"]
    picture = tmp_path / "profile.png"
    assert cli.main([*words, "--profile-plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "product of matrices 100.0 GFLOP/s, a copy 10.0 GB/s" in lines[0] and lines[-1].startswith("step ")
    assert any(line.startswith("conv1 ") and " forward " in line for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mode"] == "profile" and found["batch"] == 4 and found["dtype"] == "float32"
    figure = plots.profile(found)
    bars = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert bars[0].startswith("conv1") and bars[-3:] == ["losses", "update", "other"]
    few = {**found, "operations": found["operations"] * 30}
    for number, one in enumerate(few["operations"]):
        few["operations"][number] = {**one, "number": number}
    assert "more operations" in plots.profile(few).axes[0].get_yticklabels()[-4].get_text()


def test_peaks_are_measured(monkeypatch):
    monkeypatch.setattr(profile, "_SIZE", 64)
    monkeypatch.setattr(profile, "_COPIED", 2**16)
    assert profile.product_peak(1) > 0 and profile.copy_peak(2) > 0


@pytest.mark.skipif(
    not _core.info()["onednn"] or _core.info()["isa"] not in ("avx512", "amx"),
    reason="bfloat16 needs oneDNN and AVX-512",
)
@pytest.mark.filterwarnings("ignore:dtype")  # of processors that convert
def test_bfloat16(monkeypatch):
    monkeypatch.setattr(profile, "_SIZE", 64)
    monkeypatch.setattr(profile, "_COPIED", 2**16)
    found = profile.step("lenet", 16, steps=1, warmup=1, dtype="bfloat16")
    whole = profile.step("lenet", 16, steps=1, warmup=1)
    assert found["dtype"] == "bfloat16" and found["product_gflops"] > 0
    narrow, wide = (
        next(one["mbytes"] for one in each["operations"] if (one["operation"], one["pass"]) == ("conv2d", "data"))
        for each in (found, whole)
    )
    assert narrow < wide  # activations of half the size


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--json", "--json: only with --profile"),
        ("--profile --exchange", "--exchange: not with --profile"),
        ("--profile --latency 1", "--latency: not with --profile"),
        ("--profile-plot .", "--profile-plot .: is a folder"),
        ("--profile-plot x.xyz", "--profile-plot x.xyz: a picture of format 'xyz' cannot be written; allowed: "),
    ],
)
def test_what_cannot_be(words, what, capsys, monkeypatch):
    if ".xyz" in words:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(profile, "step", lambda **_: pytest.fail("it is refused before anything is measured"))
    assert cli.main(["bench", "--model", "mlp", *words.split()]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("time_a_step", [bench.step, profile.step])
def test_arguments_are_checked(time_a_step):
    for size in (0, -1):
        with pytest.raises(ValueError, match=rf"batch_size={size}: allowed: an integer of at least 1"):
            time_a_step("mlp", batch_size=size)


def test_a_network_is_no_name():
    with pytest.raises(TypeError, match=r"net='lenet': allowed: a gossipgrad.Model; .* is model='lenet'"):
        profile.step(net="lenet")
    with pytest.raises(ValueError, match="batch_size=0"):
        profile.step(net=network(), batch_size=0)


def test_both_are_there_after_importing_the_package():
    script = "import gossipgrad as gg; print(gg.profile.step.__module__, gg.bench.step.__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["gossipgrad.profile", "gossipgrad.bench"], done.stderr
