"""benchmarks/step_vs_peers.py: the networks are the same, the table says what was measured, and the script runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gossipgrad as gg

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import step_vs_peers as script  # noqa: E402

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", script.NETWORKS)
def test_the_networks_have_the_same_parameters(name):
    torch = pytest.importorskip("torch")
    import peers_torch

    with torch.device("meta"):
        module = peers_torch.MAKE[name]()
    net = gg.models.by_name(name).make(**script.OPTIONS.get(name, {}))
    statistics = sum(one.numel() for one in module.buffers() if one.dim())
    assert sum(one.numel() for one in module.parameters()) == net.parameters
    assert {tuple(one.shape) for one in module.parameters() if one.dim() == 4} == {
        shape for _, shape, *_ in net.graph.parameters() if len(shape) == 4
    }
    assert net.input_shape == script.NETWORKS[name].shape and (statistics > 0) == name.startswith("resnet")


def result(name="lenet", threads=1, ours=2.0, peer=5.0, others=0.0, dtype="float32"):
    records = [{"who": who, "others_busy": others} for who in ("ours", "torch")]
    ratio = None if peer is None else peer / ours
    about = {"network": name, "batch": 64, "threads": threads, "dtype": dtype, "floor": 2.1, "contestants": records}
    return about | {"ours": ours, "peer": peer, "best_peer": "torch", "ratio": ratio}


def test_a_line_says_whether_the_floor_is_met():
    assert script.line_of(result()).split()[4:] == ["5", "2", "2.50", "2.10", "met,", "torch"]
    assert script.line_of(result(ours=4.0)).endswith("missed by 40%, torch")
    assert script.line_of(result(others=0.5)).endswith("others used 0.5 cores")
    assert script.line_of(result(peer=None)).split()[4:] == ["none", "2"]


def test_scaling_is_of_networks_with_both_numbers_of_threads():
    results = [result(), result(threads=2, ours=1.0, peer=4.0), result("mlp"), result("alexnet", 2, peer=None)]
    (line,) = script.scaling(results)
    assert line.startswith("lenet") and line.endswith("2 threads over 1: ours 2.00, the best peer 1.25")


def test_the_allocator_is_found_by_any_user(monkeypatch):
    found = script.tcmalloc()
    monkeypatch.setenv("PATH", os.defpath)
    assert script.tcmalloc() == found
    monkeypatch.setattr(script.shutil, "which", lambda *args, **how: None)
    assert script.tcmalloc() is None


def test_who_competes():
    def who(name, tcmalloc, device="cpu", peers=None):
        how = argparse.Namespace(tcmalloc=tcmalloc, compiled=["resnet20"], device=device, peers=peers)
        return script.contestants(name, how)

    assert who("lenet", "file") == ["ours", "torch", "torch tcmalloc"] and who("vgg16", "file") == [
        "ours",
        "torch tcmalloc",
    ]
    assert who("lenet", "file", "cuda") == ["ours", "torch", "torch graphs"]
    assert who("resnet20", None, "cuda")[3:] == ["torch compile", "torch compile graphs"]
    some = ["torch compile graphs", "torch"]
    assert who("resnet20", None, "cuda:1", some) == ["ours", "torch", "torch compile graphs"]
    assert who("lenet", None, "cuda", some) == ["ours", "torch"]
    assert who("resnet20", None) == ["ours", "torch", "torch compile"] and who("mlp", None) == ["ours", "torch", "jax"]


def test_a_device_with_a_number(monkeypatch):
    """PyTorch computes on that one, and autocast is told its type."""
    torch = pytest.importorskip("torch")
    import peers_torch

    # It would last, and other tests of this process want denormal numbers.
    monkeypatch.setattr(torch, "set_flush_denormal", bool)
    x, y = script.a_batch("lenet", "cpu")
    how = {"threads": 1, "bfloat16": True, "compiled": False, "evaluate": False}
    step, _ = peers_torch.torch_step("lenet", x[:2], y[:2], device="cpu:0", **how)
    step()
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with contextlib.suppress(Exception):  # where there is no such GPU
        peers_torch.torch_step("lenet", x[:2], y[:2], device="cuda:1", **how)
    assert current == [torch.device("cuda", 1)]


@pytest.mark.parametrize(
    ("words", "network"),
    [([], "mlp"), (["--evaluate"], "mlp"), (["--memory"], "mlp"), (["--device", "strict"], "lenet")],
)
def test_it_runs_without_peers(tmp_path, words, network):
    """Who cannot be imported is left out, and said."""
    for name in ("torch", "jax"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    command = [sys.executable, str(BENCHMARKS / "step_vs_peers.py"), "--networks", network, "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "j"), *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert f"{network}: torch is left out: ImportError: not here" in done.stderr
    assert ("jax is left out" in done.stderr) == (network == "mlp")
    assert ("torch graphs is left out" in done.stderr) == ("--device" in words)
    found = json.loads((tmp_path / "j").read_text())
    figure = "grown_mib" if words == ["--memory"] else "ms_min"
    assert found["what"] == (words[0][2:] if len(words) == 1 else "step") and found["network"] == network
    (ours,) = found["contestants"]
    assert ours["who"] == "ours" and found["ours"] == ours[figure] > 0 and found["peer"] is None
    assert done.stdout.splitlines()[-1].startswith(network)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--tcmalloc /nodir/x.so", "--tcmalloc /nodir/x.so: cannot be preloaded"),
        ("--compiled nosuch", "argument --compiled: invalid choice: 'nosuch'"),
        ("--compiled vgg16", "--compiled vgg16: not one of --networks"),
        ("--rounds 0", "argument --rounds: 0: allowed: an integer of at least 1"),
        ("--rounds two", "argument --rounds: two: allowed: an integer of at least 1"),
        ("--threads 1 0", "argument --threads: 0: allowed: an integer of at least 1"),
        ("--json {tmp}/no/x.json", "--json {tmp}/no/x.json: cannot be written"),
        ("--precision exact", "--precision exact: only with --device cuda"),
        ("--peers torch", "--peers torch: only with --device cuda"),
        ("--device cuda --peers jax", "argument --peers: invalid choice: 'jax'"),
        ("--device cuda", "--networks mlp: with --device cuda allowed are lenet, resnet20,"),
        ("--device cuda --memory", "--memory: of the CPU; not with --device cuda"),
        ("--json {tmp}", "--json {tmp}: cannot be written"),
    ],
)
def test_what_is_refused_before_it_measures(words, what, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "compare", lambda *_: pytest.fail("it is measured"))
    monkeypatch.setattr(sys, "argv", ["step_vs_peers.py", "--networks", "mlp", *words.format(tmp=tmp_path).split()])
    with pytest.raises(SystemExit) as error:
        script.main()
    assert error.value.code == 2 and what.format(tmp=tmp_path) in capsys.readouterr().err


def test_the_networks_that_are_compiled(monkeypatch):
    found = []
    monkeypatch.setattr(script, "compare", lambda *given: found.append(given[-1].compiled) or result())
    for words in ([], ["--compiled"], ["--compiled", "mlp"]):
        monkeypatch.setattr(sys, "argv", ["step_vs_peers.py", "--networks", "mlp", *words])
        script.main()
    assert found == [["resnet20"], [], ["mlp"]]
