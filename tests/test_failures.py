"""What goes wrong ends: on all ranks, soon, with one clear message, and nothing half-written."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import ROOT, own_lines, run_group
from gossip_reference import small_batches, small_net

import gossipgrad as gg

HEAD = f"import sys, time; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport numpy as np\nimport gossipgrad as gg\n"
HEAD += "from gossip_reference import small_batches, small_net\n"
TRAIN = ["-m", "gossipgrad", "train", "--dataset", "synthetic", "--batch-size", "50", "--lr", "0.005"]


def command(*arguments, env=None):
    return run_group([sys.executable, *arguments], env={**os.environ, **(env or {})})


def messages(done):
    """The lines of gossipgrad's own, without what mpiexec says of a rank's end."""
    return own_lines(done.stderr)


# ---- one rank fails


RAISES = {
    "before the first step": "if trainer.rank == 1: raise RuntimeError('on purpose')\n",
    "between steps": "for step in range(50):\n"
    "    if trainer.rank == 1 and step == 7: raise RuntimeError('on purpose')\n"
    "    trainer.train_step(x[0], y[0])\n",
    "between steps, in a with": "with trainer:\n"
    "    for step in range(50):\n"
    "        if trainer.rank == 1 and step == 7: raise RuntimeError('on purpose')\n"
    "        trainer.train_step(x[0], y[0])\n",
    "in a callback": "class Bad(gg.Callback):\n"
    "    def on_epoch_end(self, trainer, record):\n"
    "        if trainer.rank == 1: raise RuntimeError('on purpose')\n"
    "data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
    "trainer.fit(data, epochs=5, batch_size=5, callbacks=[Bad()], progress=False)\n",
}


@pytest.mark.core(3)
@pytest.mark.parametrize(("where", "staleness"), [*((where, 0) for where in RAISES), ("between steps", 1)])
def test_an_exception_on_one_rank_ends_all(where, staleness, mpirun):
    text = HEAD + (
        f"trainer = gg.Trainer(small_net(), strategy=gg.GossipGraD(staleness={staleness}))\n"
        "x, y = small_batches(np.random.default_rng(0), 1)\n"
    )
    done = mpirun(3, text + RAISES[where] + "trainer.evaluate((x[0], y[0]))\n", check=False)
    assert done.returncode != 0
    assert done.stderr.count("RuntimeError: on purpose") == 1 and done.stderr.count("Traceback") == 1, done.stderr


# How rank 1 ends -> (where, the exit code of all, what is on the screen)
ENDS = {
    "sys.exit(0)": ("in a callback", 1, "rank 0 waits for rank 1, which has ended"),
    "sys.exit()": ("between steps", 1, "rank 0 waits for rank 1, which has ended"),
    "sys.exit(3)": ("in a callback", 3, "gossipgrad: rank 1 ended with exit code 3: this ends all ranks"),
    "sys.exit('some text')": ("between calls", 1, "some text"),
    "os._exit(0)": ("at the very start", 1, "rank 1"),
    "os.kill(os.getpid(), signal.SIGKILL)": ("in a callback", 137, "rank 1"),
    "thread(RuntimeError('on purpose'))": ("in a callback", 1, "RuntimeError: on purpose"),
    "thread(SystemExit(5))": ("in a callback", 5, "rank 1: Thread-1 (train) left training by sys.exit"),
}


@pytest.mark.core(3)
@pytest.mark.parametrize("end", ENDS)
def test_however_one_rank_ends_all_end(end, mpirun):
    where, code, words = ENDS[end]
    text = (
        "import os, signal, sys, threading, time\n"
        f"where, threaded = {where!r}, {end.startswith('thread')}\n"
        "def thread(error): raise error\n"
        f"def end(): {end}\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1' and where == 'at the very start': end()\n"
        + HEAD
        + "class Ends(gg.Callback):\n"
        "    def on_epoch_end(self, trainer, record):\n"
        "        if trainer.rank == 1 and where == 'in a callback' and record['epoch'] == 2: end()\n"
        "    def on_progress(self, trainer, progress):\n"
        "        if trainer.rank == 1 and where == 'between steps': end()\n"
        "def train():\n"
        "    strategy = gg.PushGossip() if where == 'between steps' else None\n"
        "    trainer = gg.Trainer(small_net(), strategy=strategy)\n"
        "    data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
        "    trainer.fit(data, epochs=5, batch_size=5, callbacks=[Ends()], progress=False)\n"
        "    if trainer.rank == 1: end()\n"
        "    trainer.evaluate(data)\n"
        "threading.Thread(target=train).start() if threaded else train()\n"
    )
    done = mpirun(2, text, check=False)
    assert done.returncode == code and words in done.stderr, done.stderr


def test_ranks_may_end_at_different_times(mpirun):
    """Rank 2 has long ended when the others, who need it no more, exchange messages of their own."""
    text = HEAD + (
        "trainer = gg.Trainer(small_net())\n"
        "x, y = small_batches(np.random.default_rng(0), 1)\n"
        "trainer.train_step(x[0], y[0])\n"
        "trainer.weights_sha256()\n"
        "time.sleep(2.5 * (trainer.rank == 0))\n"
        "print('end of', trainer.rank)\n"
    )
    done = mpirun(3, text)
    assert sorted(done.stdout.split()) == ["0", "1", "2", "end", "end", "end", "of", "of", "of"] and not done.stderr


def test_all_ranks_may_leave_fit_alike(mpirun):
    text = HEAD + (
        "class Ends(gg.Callback):\n"
        "    def on_epoch_end(self, trainer, record): sys.exit()\n"
        "trainer = gg.Trainer(small_net(), strategy=gg.PushGossip())\n"
        "data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
        "trainer.fit(data, epochs=5, batch_size=5, callbacks=[Ends()], progress=False)\n"
    )
    assert not mpirun(3, text).stderr


def test_all_ranks_that_end_with_a_code_say_it_once(mpirun):
    done = mpirun(3, HEAD + "trainer = gg.Trainer(small_net())\nsys.exit(9)\n", check=False)
    assert done.returncode == 9 and len(messages(done)) == 1, done.stderr


def test_a_rank_that_ended_before_mpi_is_noticed():
    from gossipgrad.launch.failure import lost_ranks

    assert lost_ranks({0, 1, 2}, {0, 1, 2}, 3, True, True) == set()
    assert lost_ranks({0, 2}, {0}, 3, True, False) == {1}, "started in order: 1 was there before 2"
    assert lost_ranks({0, 1}, {0, 1}, 3, True, False) == set(), "2 may not have been started yet"
    assert lost_ranks({0, 1}, {0, 1}, 3, True, True) == {2}
    assert lost_ranks({0, 1}, {2}, 3, True, False) == {2}
    assert lost_ranks({4, 6}, {4}, 8, False, True) == set(), "which ranks are to be on this host is not known"
    assert lost_ranks({4, 6}, {4, 5}, 8, False, False) == {5}


def test_the_timeout_is_also_that_of_the_start(mpirun):
    """Rank 1 makes no trainer; MPI_Init of rank 0 would wait for ever."""
    text = (
        "import os, time\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1': time.sleep(1000)\n"
        "import gossipgrad as gg\n"
        "gg.Team(timeout=0.5)\n"
    )
    done = mpirun(2, text, check=False)
    text = "s in MPI_Init for other ranks, which have not come to a Trainer"
    assert done.returncode == 1 and text in done.stderr, done


# ---- a forked process

FORKS = (
    HEAD
    + """
import multiprocessing, os
data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)
trainer = gg.Trainer(small_net(), comm=COMM)
trainer.fit(data, batch_size=5, progress=False)
child = os.fork()
if child == 0:
    calls = [lambda: trainer.fit(data, progress=False), lambda: trainer.evaluate(data), trainer.weights]
    calls += [trainer.consensus_distance, lambda: trainer.team.barrier(), lambda: trainer.predict(data[0])]
    if COMM is None: calls += [lambda: gg.Trainer(small_net())]
    for call in calls:
        try: call()
        except RuntimeError as error: assert f"process {os.getppid()}" in str(error), error
        else: raise AssertionError("it used the trainer of its parent")
    gg.Trainer(small_net(), comm=gg.VirtualCluster(2)).fit(data, batch_size=5, progress=False)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(len, ["a", "bb"]) == [1, 2]
trainer.fit(data, batch_size=5, progress=False)
print("epochs", trainer.epoch)
"""
)


def test_a_forked_process_ends_alone(mpirun):
    for done in (
        mpirun(2, FORKS.replace("COMM", "None")),
        command("-c", FORKS.replace("COMM", "gg.VirtualCluster(3)")),
    ):
        assert done.returncode == 0 and "epochs 2" in done.stdout and not done.stderr, done.stderr


@pytest.mark.cpu("where a forked process can compute")
def test_a_forked_process_has_no_threads_of_its_parent():
    """It would wait for them for ever."""
    text = HEAD + (
        "import os\n"
        "data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
        "def trained(threads):\n"
        "    with gg.Trainer(small_net(), threads=threads) as trainer:\n"
        "        trainer.fit(data, batch_size=5, progress=False)\n"
        "trained(2)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    trained(1)\n"
        "    try: trained(2)\n"
        "    except RuntimeError as error: assert 'threads=2: this process was forked' in str(error), error\n"
        "    else: raise AssertionError('it computed with threads of its parent')\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "trained(2)\n"
        "print('trained')\n"
    )
    done = command("-c", text)
    assert done.returncode == 0 and done.stdout == "trained\n" and not done.stderr, done.stderr


@pytest.mark.full
def test_threads_that_start_mpi_at_once(mpirun):
    text = (
        "import threading\nfrom gossipgrad import _core\n"
        "together, done = threading.Barrier(4), []\n"
        "def start():\n    together.wait()\n    _core.mpi_start(2)\n    done.append(1)\n"
        "threads = [threading.Thread(target=start) for _ in range(4)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "assert len(done) == 4 and _core.info()['mpi']['size'] == 2\n"
    )
    assert not mpirun(2, text).stderr


def test_a_batch_that_is_wrong_on_one_rank(mpirun):
    text = HEAD + (
        "trainer = gg.Trainer(small_net())\n"
        "x, y = small_batches(np.random.default_rng(0), 1)\n"
        "for step in range(5): trainer.train_step(x[0], y[0] + 100 * (trainer.rank == 2 and step == 3))\n"
    )
    done = mpirun(3, text, check=False)
    assert done.returncode != 0 and done.stderr.count("Traceback") == 1
    assert "y[0] is 10" in done.stderr and "classes 0..3" in done.stderr


def test_ranks_that_fail_alike_say_it_once(mpirun):
    done = mpirun(3, [*TRAIN, "--lr", "1e20", "--epochs", "1", "--quiet"], check=False)
    assert done.returncode == 1
    assert len(messages(done)) == 1 and "the loss is" in messages(done)[0], done.stderr


def test_an_error_in_the_middle_of_a_run_leaves_no_files(mpirun, tmp_path):
    """The loss becomes NaN: no report, no checkpoint, no temporary file."""
    options = ["--lr", "1e20", "--report", str(tmp_path / "r.json"), "--checkpoint", str(tmp_path / "c.safetensors")]
    done = mpirun(2, [*TRAIN, *options, "--quiet"], check=False)
    assert done.returncode == 1 and list(tmp_path.iterdir()) == []


# ---- data that do not fit


def test_more_than_the_shard_holds():
    x, y = np.zeros((11, 1, 8, 8), np.float32), np.zeros(11, np.int64)
    trainer = gg.Trainer(small_net(), comm=gg.VirtualCluster(4))
    with pytest.raises(ValueError, match=r"batch_size=3.* 2 samples .*allowed: 1\.\.2"):
        trainer.fit((x, y), batch_size=3, progress=False)
    with pytest.raises(ValueError, match="3 samples for 4 ranks"):
        trainer.fit((x[:3], y[:3]), batch_size=1, progress=False)
    with pytest.raises(ValueError, match="batch_size=0"):
        trainer.fit((x, y), batch_size=0, progress=False)
    trainer.fit((x, y), batch_size=2, progress=False)  # and it is as good as new


def test_the_core_refuses_them_too():
    from gossipgrad import _core

    trainer = gg.Trainer(small_net(), comm=gg.VirtualCluster(4))
    data = _core.Dataset(np.zeros((11, 1, 8, 8), np.float32), np.zeros(11, np.int32))
    with pytest.raises(ValueError, match="batch=3.*1 to 2"):
        trainer.core.begin(data, 3)


WRONG = [
    (["--batch-size", "1001"], ["batch_size=1001", "1..1000"]),
    (["--batch-size", "0"], ["--batch-size 0", "at least 1"]),
    (["--strategy", "easgd"], ["--strategy", "'easgd'", "allreduce"]),
    (["--topology", "torus"], ["--topology", "'torus'", "cube"]),
    (["--topology", "missing.npy"], ["--topology", "missing.npy", "No such file"]),
    (["--strategy", "allreduce", "--topology", "cube"], ["topology", "allreduce"]),
    (["--model", "alexnetwork"], ["--model", "'alexnetwork'", "lenet"]),
    (["--speed", "9"], ["--speed"]),
    (["--lr", "-1"], ["lr=-1"]),
    (["--resume", "nowhere.safetensors"], ["nowhere.safetensors"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_one_line_says_it(options, words, capsys):
    from test_cli import cli_run

    code, _, err = cli_run(capsys, *TRAIN[2:], "--virtual-ranks", 2, "--epochs", "1", "--quiet", *options)
    assert code in (1, 2) and len(err.splitlines()) == 1 and err.startswith("gossipgrad: error: ")
    assert all(word in err for word in words), err


# When it is found: in the options, before MPI starts, on the data, in a file.
UNDER_MPI = [WRONG[2], (["--virtual-ranks", "2"], ["--virtual-ranks 2", "mpiexec"]), WRONG[0], WRONG[-1]]


@pytest.mark.core(1)
@pytest.mark.parametrize(("options", "words"), UNDER_MPI)
def test_one_line_says_it_under_mpi(options, words, mpirun):
    done = mpirun(2, [*TRAIN, "--epochs", "1", "--quiet", *options], check=False)
    assert done.returncode in (1, 2)
    assert len(messages(done)) == 1, done.stderr
    assert all(word in messages(done)[0] for word in words), messages(done)
    assert "Traceback" not in done.stderr


@pytest.mark.core(1)
@pytest.mark.parametrize("arguments", [["train", "--speed", "9"], ["train", "--resume", "nowhere"]])
def test_one_line_says_it_however_the_ranks_are_scheduled(arguments, mpirun):
    """All at the same moment, without the time that rank 0 has for being the first."""
    text = "import sys\nfrom gossipgrad import cli; from gossipgrad.launch import failure\nfailure.HEAD_START = 0\n"
    done = mpirun(4, text + f"sys.exit(cli.main({arguments}))\n", check=False)
    assert done.returncode in (1, 2) and len(messages(done)) == 1, done.stderr
    assert arguments[-1] in messages(done)[0] or "--speed" in messages(done)[0]


def test_who_tells(monkeypatch, tmp_path):
    """The first of a job; all where the launcher says nothing of a folder, or it is not to be written to."""
    from gossipgrad.launch.failure import first_to_report

    monkeypatch.setenv("PMIX_NAMESPACE", "a/job@1")
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", str(tmp_path))
    assert [first_to_report() for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("PMIX_NAMESPACE", "a/job@2")
    assert [first_to_report() for _ in range(2)] == [True, False]
    for folder in (str(tmp_path / "gone"), ""):
        monkeypatch.setenv("PMIX_SERVER_TMPDIR", folder)
        assert [first_to_report() for _ in range(2)] == [True, True]


def test_more_ranks_than_data(mpirun):
    x = "np.zeros((3, 1, 8, 8), np.float32), np.zeros(3, np.int64)"
    done = mpirun(4, HEAD + f"gg.Trainer(small_net()).fit(({x}), batch_size=1)\n", check=False)
    assert done.returncode != 0 and done.stderr.count("3 samples for 4 ranks") == 1


# ---- the loss is no number


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.GossipGraD(staleness=1), gg.AllReduce()])
def test_nan_is_an_error(strategy):
    train, _ = gg.data.synthetic((1, 8, 8), classes=4, train=90, test=1)
    net = gg.Sequential([gg.Flatten(), gg.Linear(8), gg.Linear(4)], input=(1, 8, 8))
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=1e25), strategy=strategy, comm=gg.VirtualCluster(3))
    with pytest.raises(FloatingPointError, match="the loss is"):
        trainer.fit(train, epochs=3, batch_size=6, progress=False)


def test_nan_on_the_command_line():
    done = command(*TRAIN, "--virtual-ranks", "3", "--lr", "1e20", "--quiet")
    assert done.returncode == 1 and len(messages(done)) == 1 and "the loss is" in messages(done)[0]


# ---- launcher and library


def test_a_launcher_of_another_mpi_is_refused():
    """The environment says 4 ranks, MPI sees 1: else four runs of one rank would overwrite each other."""
    text = "import gossipgrad as gg\ngg.Trainer(gg.models.lenet())\n"
    environ = {**os.environ, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
    with ThreadPoolExecutor(2) as pool:  # each waits a while for the words of other ranks
        runs = [[sys.executable, *TRAIN], [sys.executable, "-c", text]]
        for done in pool.map(lambda one: run_group(one, env=environ), runs):
            assert done.returncode != 0
            assert "the launcher started 4 ranks, but MPI sees 1" in done.stderr, done.stderr


# ---- a virtual rank


def test_a_batch_that_is_wrong_for_one_virtual_rank():
    trainer = gg.Trainer(small_net(), comm=gg.VirtualCluster(3))
    x, y = small_batches(np.random.default_rng(0), 3)
    with pytest.raises(ValueError, match="list of 3 batches"):
        trainer.train_step(x[:2], y[:2])
    with pytest.raises(ValueError, match=r"\(2, 1, 8, 7\)"):
        trainer.train_step([*x[:2], np.zeros((2, 1, 8, 7))], y)
    with pytest.raises(ValueError, match="x has 5 samples, y 4"):
        trainer.train_step(x, [*y[:2], y[2][:4]])
    with pytest.raises(ValueError, match=r"rank=3"):
        trainer.weights(3)
    assert len(trainer.train_step(x, y)) == 3
