"""Arrays of a caller: wrong arguments, calls at the wrong time, exceptions and ranks that leave."""

from __future__ import annotations

import _thread
import copy
import gc
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exchange_cases import SHAPES, all_step, assert_same, made, pulled, start

import gossipgrad as gg
from gossipgrad import _core


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("arrays", "options", "error", "text"),
    [
        ([1.0], {}, TypeError, "arrays is a list; wanted a mapping"),
        ({}, {}, ValueError, "arrays: none"),
        ({1: np.ones(2)}, {}, TypeError, "the name 1"),
        ({"w": np.ones(2, int)}, {}, TypeError, "dtype int64; allowed: floating"),
        ({"w": np.ones((2, 0))}, {}, ValueError, "at least one element"),
        ({"w": [[0, np.nan]]}, {}, ValueError, r"arrays\['w'\]\[0, 1\] is nan; allowed: finite numbers of float32"),
        ({"w": np.full(2, 1e39)}, {}, ValueError, r"arrays\['w'\]\[0\] is inf; allowed: finite"),
        ({"w": np.array(-np.inf)}, {}, ValueError, r"arrays\['w'\] is -inf; allowed: finite"),
        ({"w": np.ones(2)}, {"strategy": "ring"}, TypeError, "strategy="),
        ({"w": np.ones(2)}, {"strategy": gg.GossipGraD(shuffle_samples=True)}, ValueError, "shuffle_samples"),
        ({"w": np.ones(2)}, {"layers": {"a": []}}, ValueError, "layers"),
        ({"w": np.ones(2)}, {"layers": {"a": ["w", "w"]}}, ValueError, "'w' is in two layers"),
        ({"w": np.ones(2), "b": np.ones(1)}, {"layers": {"a": ["w"]}}, ValueError, "'b' in none"),
        ({"w": np.ones(2)}, {"layers": {"a": ["v"]}}, ValueError, "no array is named 'v'"),
        ({"w": np.ones(2)}, {"roles": {"w": "wait"}}, ValueError, "did you mean 'weight'"),
        ({"w": np.ones(2)}, {"families": {"u": "conv"}}, ValueError, "no array is named 'u'"),
        ({"w": np.ones(2)}, {"comm": gg.VirtualCluster(2, straggler=gg.Straggler(1, 1))}, ValueError, "straggler"),
        ({"w": np.ones(2)}, {"optimizer": gg.SGD(lr=1, schedule=gg.schedules.Cosine())}, ValueError, "total="),
        ({"w": np.ones(2)}, {"optimizer": gg.SGD(lr=1, schedule=gg.schedules.Plateau())}, ValueError, "'plateau'"),
        ({"w": np.ones(2)}, {"treads": 2}, TypeError, "did you mean 'threads'"),
    ],
)
def test_wrong_arguments(arrays: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        gg.Exchange(arrays, **options)


def test_what_is_not_finite_is_not_loaded() -> None:
    x = made(gg.AllReduce(), 2)
    given = x.consensus_weights()
    given["one"][...] = np.nan
    state = x.state_dict()
    state["ranks"][1]["momentum"]["k"][0, 1, 2, 0] = np.inf
    for call, text in (
        (lambda: x.load_weights(given), r"weights: 'one' is nan; allowed: finite numbers of float32"),
        (lambda: x.load_state_dict(state), r"state, momentum: 'k'\[0, 1, 2, 0\] is inf; allowed: finite"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    for name, array in x.replicas[0].weights.items():
        np.testing.assert_array_equal(array, np.float32(start()[name]))


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied_or_pickled(of: Any) -> None:
    x = made(gg.AllReduce(), 2)
    with pytest.raises(TypeError, match=r"an Exchange cannot be copied or pickled.*allowed: x\.state_dict\(\)"):
        of(x)
    with pytest.raises(TypeError, match=r"a Replica of an Exchange cannot be copied or pickled.*state_dict\(\)"):
        of(x.replicas[0])


def test_wrong_gradients_change_nothing() -> None:
    x = made(p=2)
    all_step(x, 1)
    good = [pulled(replica.weights, replica.rank, 1) for replica in x.replicas]
    before = x.replicas[1].weights["w"].copy()
    for one, error, text in (
        ({"w": np.zeros((7, 30))}, ValueError, r"gradient of 'w' has shape \(7, 30\); the array's is \(30, 7\)"),
        ({"w": np.full((30, 7), np.nan)}, FloatingPointError, "rank 1: step 1: the gradient of 'w' has a NaN"),
        ({"b": np.full(7, np.inf)}, FloatingPointError, "'b' has a NaN or an infinity"),
        ({"v": np.zeros(7)}, ValueError, "no array is named 'v'"),
        ({"w": np.zeros((30, 7), complex)}, TypeError, "complex128"),
    ):
        with pytest.raises(error, match=text):
            x.step([good[0], good[1] | one])
    with pytest.raises(ValueError, match="'one' missing"):
        x.step([{name: g for name, g in good[0].items() if name != "one"}, good[1]])
    with pytest.raises(ValueError, match="of 1 ranks; this process has 2"):
        x.step(good[0])
    with pytest.raises(ValueError, match="samples="):
        x.step(good, samples=[1, 2, 3])
    with pytest.raises(RuntimeError, match=r"replicas\[r\].gradients"):
        _ = x.gradients
    with pytest.raises(KeyError, match="no array is named 'x'"):
        x.replicas[0].gradients["x"] = 1
    assert x.steps == 1
    np.testing.assert_array_equal(x.replicas[1].weights["w"], before)
    x.step(good)
    y = made(p=2)
    all_step(y, 2)
    assert_same(x, y)


def test_calls_at_the_wrong_time() -> None:
    x = made(p=2)
    for call in ("begin", "poll", "end", "wait", "settle"):
        with pytest.raises(RuntimeError, match="a call of rank 1 outside of its thread"):
            getattr(x.replicas[1], call)()
    found: list[str] = []

    def train(replica: Any) -> None:
        def refused(call: Any, *words: Any) -> None:
            with pytest.raises((RuntimeError, ValueError)) as raised:
                call(*words)
            found.append(str(raised.value))

        if replica.rank == 0:
            refused(replica.need, "w")
            refused(replica.end)
            refused(x.replicas[1].begin)
            refused(x.step)
            refused(x.settle)
        for step in range(2):
            replica.begin()
            for name in SHAPES:
                replica.need(name)
            for name, gradient in pulled(replica.weights, replica.rank, step).items():
                replica.gradients[name] = gradient
            for name in list(SHAPES)[:-1]:
                replica.ready(name)
            if replica.rank == 0 and step == 0:
                refused(replica.ready, "w")
                refused(replica.need, "b")
                refused(replica.end)
                refused(replica.begin)
                refused(replica.settle)
                refused(replica.wait)
                refused(replica.ready, "wbk")
            replica.ready("one")
            replica.end()

    x.run(train)
    wanted = [
        *("need of layer 'w': step 0 has not begun", "end: step 0 has not begun", "rank 1 outside of its thread"),
        *("a call of all ranks while `run` is under way", "a call of all ranks while `run` is under way"),
        *("ready of layer 'w': it is ready already in step 0", "need of layer 'b': it is ready already"),
        "end: 3 of 4 layers are ready in step 0; 'one' is not",
        *("begin: 3 of 4 layers are ready", "settle: 3 of 4 layers are ready", "wait: 3 of 4 layers are ready"),
        "layer='wbk': allowed: w, b, k, one",
    ]
    assert len(found) == len(wanted)
    for text, part in zip(found, wanted, strict=True):
        assert part in text
    y = made(p=2)
    all_step(y, 2)
    assert_same(x, y)


def test_an_exception_of_a_rank_is_raised() -> None:
    x = made(p=3)
    after: list[int] = []

    def train(replica: Any) -> None:
        for step in range(5):
            if replica.rank == 1 and step == 2:
                raise LookupError("no more samples here")
            replica.step(pulled(replica.weights, replica.rank, step))
        after.append(replica.rank)

    with pytest.raises(LookupError, match="no more samples here"):
        x.run(train)
    assert after == []
    with pytest.raises(RuntimeError):
        x.run(train)


def run_until_interrupted(x: gg.Exchange) -> None:
    def train(replica: Any) -> None:
        while True:
            replica.step({name: np.zeros(shape) for name, shape in SHAPES.items()})
            if replica.rank == 1 and x.steps == 5:
                _thread.interrupt_main()

    x.run(train)


def test_a_run_can_be_interrupted() -> None:
    x = made(p=2)
    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(x)
    assert x.steps >= 5


def test_an_exchange_that_was_interrupted_is_freed() -> None:
    def interrupt() -> bool:
        try:
            run_until_interrupted(made(p=2))
        except KeyboardInterrupt:
            return True
        return False

    gc.collect()
    before, _ = _core.memory()
    assert interrupt()
    gc.collect()
    assert _core.memory()[0] <= before


def test_a_rank_that_leaves_a_step_out_is_named() -> None:
    x = made(gg.AllReduce(), 2)

    def train(replica: Any) -> None:
        for step in range(3 - replica.rank):
            replica.step(pulled(replica.weights, replica.rank, step))

    with pytest.raises(gg.CommunicationError, match="rank 0.*rank 1"):
        x.run(train)


def test_under_mpi_a_rank_that_leaves_a_step_out(mpirun: Any) -> None:
    text = (
        "import time\nimport numpy as np\nimport gossipgrad as gg\n"
        "x = gg.Exchange({'w': np.ones(3)}, strategy=gg.AllReduce(), timeout=2)\n"
        "for step in range(3):\n"
        "    if x.rank == 1 and step == 1:\n"
        "        time.sleep(60)\n"
        "    x.step({'w': np.ones(3)})\n"
    )
    done = mpirun(2, text, check=False)
    assert done.returncode != 0
    assert "CommunicationError" in done.stderr and "rank 1" in done.stderr and "step 1" in done.stderr


def test_under_mpi_a_rank_that_ends_early_is_named_with_both_numbers_of_steps(mpirun: Any) -> None:
    """It ends without an error, as where its loader is shorter. Another group's steps do not count."""
    text = (
        "import numpy as np\nimport gossipgrad as gg\n"
        "x, other = (gg.Exchange({'w': np.ones(3)}, strategy=gg.GossipGraD()) for _ in range(2))\n"
        "for step in range(2):\n"
        "    other.step({'w': np.ones(3)})\n"
        "for step in range(3 if x.rank == 1 else 9):\n"
        "    x.step({'w': np.ones(3)})\n"
    )
    done = mpirun(2, text, check=False)
    assert done.returncode != 0
    wanted = r"step 3, .*: rank 0 waits for rank 1, which has ended \(steps begun: 4 on rank 0; 3 on rank 1\)"
    assert re.search(wanted, done.stderr), done.stderr


def test_what_is_run_is_a_function() -> None:
    with pytest.raises(TypeError, match="^function is a NoneType; allowed: what can be called with a replica$"):
        made(p=2).run(None)


def test_names_of_a_layer_may_come_one_by_one():
    made = gg.Exchange({"w": np.ones(2), "b": np.ones(1)}, layers={"a": iter(["w", "b"])})
    made.step({"w": np.ones(2), "b": np.ones(1)})
    assert made.steps == 1


def test_close_goes_on_without_ranks_that_die_meanwhile():
    """Callbacks see the view; an end that fails can be repeated."""
    x = gg.Exchange({"w": np.ones(2)})
    view, seen = object(), []

    def end():
        seen.append(x.view)
        if len(seen) == 1:
            raise ValueError("other ranks make another call")

    x._survivor = SimpleNamespace(end=end, view=lambda: view)
    with pytest.raises(ValueError, match="another call"):
        x.close()
    x.close()
    x.close()
    assert seen == [view, view]


def test_a_list_of_samples_is_refused_where_new_ranks_may_join():
    """The group may grow when the step begins: the list is then one of the former ranks."""
    x = gg.Exchange({"w": np.ones(2)})
    x._survivor = SimpleNamespace(grows=True, begins=lambda: None, stepped=lambda: None)
    (replica,) = x.replicas
    words = r"^samples=\[3\]: not where new ranks may join \(--respawn\), .*allowed: Exchange.step\(samples=n\)"
    for call in (replica.begin, lambda samples: replica.step({"w": np.ones(2)}, samples=samples)):
        with pytest.raises(ValueError, match=words):
            call(samples=[3])
    assert x.steps == 0
    x.step({"w": np.ones(2)}, samples=3)
    x._survivor.grows = False
    replica.step({"w": np.ones(2)}, samples=[3])
    assert x.steps == 2
