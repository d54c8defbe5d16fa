"""Networks of several inputs and heads: what is trained is the weighted sum of the heads' losses."""

import json

import numpy as np
import pytest

import gossipgrad as gg

RANDOM = np.random.default_rng(3)
N = 7  # no multiple of the lanes


def network(only=("class", "aux", "size"), **options):
    """Two inputs; a trunk with heads for classes, for classes in training only, and for numbers."""
    image, facts = gg.Input((2, 5, 6), name="image"), gg.Input((3,), name="facts")
    trunk = gg.ReLU()(gg.Conv2d(4, 3, padding=1, name="conv")(image))
    joined = gg.Concat()(gg.Flatten()(trunk), gg.Linear(5, name="embed")(facts))
    ends = {
        "class": lambda: gg.Linear(4, name="class")(joined),
        "aux": lambda: gg.Linear(4, name="aux.fc")(gg.Flatten()(gg.AvgPool2d(2)(trunk))),
        "size": lambda: gg.Tanh()(gg.Linear(2, name="size")(joined)),
    }
    return gg.Model([image, facts], {name: ends[name]() for name in only}, **options)


LOSS = {"class": "cross_entropy", "aux": "cross_entropy", "size": "mean_squared_error"}
X = [RANDOM.standard_normal((N, 2, 5, 6)).astype(np.float32), RANDOM.standard_normal((N, 3)).astype(np.float32)]
Y = {"class": RANDOM.integers(4, size=N), "size": RANDOM.standard_normal((N, 2)).astype(np.float32)}


def step(only, weights=None, batch=N, backend=None):
    """A network with some of the heads, from the same initial weights: (loss, gradients)."""
    net = network(only, training_only=[name for name in only[1:] if name == "aux"])
    start = network().weights(seed=5)
    net.load_weights({name: start[name] for name in net.parameter_shapes()})
    loss = {name: LOSS[name] for name in only}
    trainer = gg.Trainer(net, loss=loss, loss_weights=weights, optimizer=gg.SGD(lr=0.1), backend=backend)
    y = {"class": Y["class"], "aux": Y["class"], "size": Y["size"]}
    found = trainer.train_step(
        {"image": X[0][:batch], "facts": X[1][:batch]}, {name: y[name][:batch] for name in net.target_names}
    )
    return found, trainer.gradients()


@pytest.mark.parametrize("batch", [1, N])
@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_gradients_are_the_weighted_sum(batch, backend):
    weights = {"class": 1.0, "aux": 0.3, "size": 2.0}
    loss, gradients = step(("class", "aux", "size"), weights, batch, backend)
    alone = {
        name: step(only, None, batch, backend)
        for name, only in [("class", ("class",)), ("size", ("size",)), ("both", ("class", "aux"))]
    }
    # "aux" cannot be the main head with one target shared, so its part is what it adds to the main head's.
    aux_loss = alone["both"][0] - alone["class"][0]
    assert loss == pytest.approx(alone["class"][0] + 0.3 * aux_loss + 2 * alone["size"][0], rel=1e-6)
    for name, array in gradients.items():
        zero = np.zeros_like(array)
        own = {key: found[1].get(name, zero).astype(np.float64) for key, found in alone.items()}
        wanted = own["class"] + 0.3 * (own["both"] - own["class"]) + 2 * own["size"]
        assert np.abs(array - wanted).max() <= 1e-6 * max(1e-3, np.abs(wanted).max()) * 10, name


def test_a_training_only_head_falls_away():
    net = network(("class", "aux"), training_only=["aux"], loss_weights={"aux": 0.3})
    plain = network(("class",))
    start = net.weights(seed=1)
    plain.load_weights({name: start[name] for name in plain.parameter_shapes()})
    both = [gg.Trainer(one, seed=1, optimizer=gg.SGD(lr=0.0)) for one in (net, plain)]
    for trainer in both:
        trainer.train_step(X, Y["class"])  # both heads have the data's one target
    outputs = [trainer.predict(X, batch_size=4) for trainer in both]
    assert outputs[0].shape == (N, 4)
    assert np.array_equal(*outputs)
    assert "aux.fc.weight" in both[0].weights()  # its parameters stay


@pytest.mark.parametrize("ranks", [1, 2])
def test_fit_with_one_target_for_two_heads(ranks, tmp_path):
    """As an image network with an auxiliary head: one input, one target; evaluation is of the main head."""

    def made():
        image = gg.Input((1, 6, 6))
        trunk = gg.ReLU()(gg.Conv2d(4, 3, name="conv")(image))
        aux = gg.Linear(3, name="aux")(gg.Flatten()(trunk))
        main = gg.Linear(3, name="main")(gg.Tanh()(gg.Linear(8, name="fc")(gg.Flatten()(trunk))))
        return gg.Model(image, [main, aux], "two", training_only=["aux"], loss_weights=[1, 0.3])

    train, test = gg.data.synthetic((1, 6, 6), 3, 90, 31)
    loss = [gg.CrossEntropy(label_smoothing=0.0, ignore_index=7), "cross_entropy"]
    trainer = gg.Trainer(made(), loss=loss, comm=gg.VirtualCluster(ranks), optimizer=gg.SGD(lr=0.05, momentum=0.9))
    history = trainer.fit(train, validation=test, epochs=2, batch_size=8, progress=False)
    assert set(history.epochs[-1]["validation"]) == {"loss", "accuracy"}
    assert history.epochs[-1]["train_loss"] < history.epochs[0]["train_loss"]
    scores = trainer.predict(test).astype(np.float64)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wanted = -scores[np.arange(31), test.targets].mean()
    assert trainer.evaluate(test)["loss"] == pytest.approx(wanted, rel=1e-5)
    trainer.save(tmp_path / "two")
    again = gg.Trainer.load(tmp_path / "two")
    assert again.net.same_network(trainer.net) and again.settings() == trainer.settings()
    for one in (trainer, again):
        one.fit(train, epochs=1, batch_size=8, progress=False)
    assert trainer.weights_sha256() == again.weights_sha256()
    json.dumps(history.epochs)


def pair(*names, **options):
    """A network of two heads for the same classes."""
    image = gg.Input((4,))
    trunk = gg.Tanh()(gg.Linear(6, name="fc")(image))
    ends = {name: gg.Linear(3, name=layer)(trunk) for name, layer in zip(names, "xy", strict=True)}
    return gg.Model(image, ends, **{"targets": [0, 0]} | options)


def test_a_metric_is_not_called_as_what_is_measured_of_a_head():
    """It would stand in the record in place of the loss."""

    def b_loss(outputs, targets):
        return outputs[:, 0]

    loss = ["cross_entropy", "cross_entropy"]
    for net, metrics, name in (
        (pair("a", "b"), b_loss, "b_loss"),
        (pair("a", "b"), {"a_accuracy": b_loss}, "a_accuracy"),
        (pair("top_2", "b"), "top_2_accuracy", "top_2_accuracy"),
    ):
        with pytest.raises(ValueError, match=f"metrics: '{name}': what is measured of an output has this name; allo"):
            gg.Trainer(net, loss=loss, metrics=metrics)
    alone = gg.Trainer(pair("a", "b", training_only=["b"], targets=None), loss=loss, metrics=b_loss)
    assert [one.name for one in alone.metrics] == ["b_loss"]  # nothing else has this name


def test_heads_of_their_own_are_reported_by_name():
    net = pair("a", "b")
    x, y = RANDOM.standard_normal((20, 4)).astype(np.float32), RANDOM.integers(3, size=20)
    trainer = gg.Trainer(net, loss=["cross_entropy", "cross_entropy"])
    history = trainer.fit(x, y, validation=(x, y), epochs=1, batch_size=6, progress=False)
    found = trainer.evaluate(x, y)
    assert list(found) == ["loss", "accuracy", "a_loss", "a_accuracy", "b_loss", "b_accuracy"]
    assert found["loss"] == found["a_loss"] != found["b_loss"]
    assert history.epochs[0]["validation"].keys() == found.keys()
    outputs = trainer.predict(x)
    assert list(outputs) == ["a", "b"]
    for name, scores in outputs.items():
        assert found[f"{name}_accuracy"] == pytest.approx((scores.argmax(axis=1) == y).mean())


def test_the_description_makes_the_same_network():
    net = network(training_only=["aux"], loss_weights={"aux": 0.3})
    again = gg.Model.from_config(json.loads(json.dumps(net.config())))
    assert again.same_network(net) and again.heads == net.heads and again.inputs == net.inputs
    assert not again.same_network(network(training_only=["aux"]))
    assert net.target_names == ["class", "size"]
    assert [one.name for one in net.inputs] == ["image", "facts"]
    assert "input (2, 5, 6) and (3,), output (4,) and (4,) and (2,)" in str(net)


def test_refusals():
    x = gg.Input((3,))
    a, b = gg.Linear(2, name="a")(x), gg.Linear(2, name="b")(x)
    for options, text in [
        ({"training_only": ["a"]}, "'a' is the first output, which is the main one"),
        ({"training_only": ["c"]}, "'c' is no output of the network; allowed: 'a', 'b'"),
        ({"targets": [0, 2]}, r"targets=\[0, 2\]: allowed: numbers from 0 on"),
        ({"loss_weights": [1]}, "loss_weights: 1 of them; the network has 2 outputs: a, b"),
        ({"loss_weights": {"b": -1}}, r"loss_weights\['b'\]=-1: allowed: a finite number >= 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            gg.Model(x, [a, b], **options)
    with pytest.raises(ValueError, match="outputs: a node is there twice"):
        gg.Model(x, [a, a])
    net = gg.Model(x, [a, b])
    with pytest.raises(ValueError, match="loss has nothing for the output 'b'"):
        gg.Trainer(net, loss={"a": "cross_entropy"})
    with pytest.raises(ValueError, match=r"loss\['b'\]='nothing': allowed"):
        gg.Trainer(net, loss=["cross_entropy", "nothing"])
    with pytest.raises(ValueError, match="loss_weights: all 0"):
        gg.Trainer(net, loss_weights=[0, 0])
    trainer = gg.Trainer(net)
    samples = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="y: ndarray; wanted an array for each of a, b"):
        trainer.train_step(samples, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"y\['b'\] has 1 entries, y\['a'\] 2"):
        trainer.train_step(samples, [[0, 1], [1]])
    with pytest.raises(ValueError, match="y: no 'b'; unknown: 'c'; allowed: a, b"):
        trainer.train_step(samples, {"a": [0, 1], "c": [0, 1]})


@pytest.mark.cpu("the words of its memory")
def test_a_batch_that_does_not_fit_is_refused():
    """Before anything is allocated, with the figures; the trainer goes on with smaller ones."""
    x = gg.Input((1,))
    net = gg.Model(x, gg.Linear(2)(gg.Tanh()(gg.Linear(1 << 18)(x))))
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.1))
    count = 1 << 22
    samples, targets = np.zeros((count, 1), np.float32), np.zeros(count, np.int32)
    said = r"batch_size: 4194304 samples: .* needs \d+\.\d TiB \(\d+ bytes\) of memory, but .* are available; smaller"
    with pytest.raises(MemoryError, match=said):
        trainer.fit(samples, targets, batch_size=count, progress=False)
    with pytest.raises(MemoryError, match=said):
        trainer.predict(samples, batch_size=count)
    assert np.isfinite(trainer.train_step(samples[:2], targets[:2]))
    assert trainer.predict(samples[:2]).shape == (2, 2)


def test_a_missing_target_is_named():
    x = gg.Input(4)
    net = gg.Model(x, {"kind": gg.Linear(3)(x), "size": gg.Linear(1)(x)})
    with gg.Trainer(net, loss={"kind": "cross_entropy", "size": "mean_squared_error"}) as trainer:
        samples, kinds = np.zeros((6, 4), np.float32), {"kind": np.zeros(6, int)}
        for given in ((samples, kinds), (gg.Dataset(samples, kinds),)):
            with pytest.raises(ValueError, match="(train|arrays): targets: no 'size'; allowed: kind, size"):
                trainer.fit(*given, batch_size=3)
            with pytest.raises(ValueError, match="(data|arrays): targets: no 'size'; allowed: kind, size"):
                trainer.evaluate(*given)
        with pytest.raises(ValueError, match="train: targets: unknown: 'c'; allowed: kind, size"):
            trainer.fit(samples, kinds | {"size": np.zeros(6), "c": np.zeros(6)}, batch_size=3)
