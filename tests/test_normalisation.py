"""Normalisations: every instruction set and layout against float64, PyTorch as a second opinion."""

from __future__ import annotations

import itertools

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import close, float32, isas, seeded

import gossipgrad as gg

LAYOUTS = ("plain", "channels16", "channels8", "nhwc", "batch_last")


def batch_norm_run(isa, x, parameters, grad=None, *, affine=True, track=True, threads=1, **options):
    options = dict(eps=1e-3, momentum=0.2) | options
    return operations.run_op(
        "native",
        isa,
        "batch_norm",
        [x],
        x.shape[1:],
        parameters=parameters,
        grad_output=grad,
        threads=threads,
        affine=affine,
        track_running_stats=track,
        **options,
    )


def parameters_of(rng, channels, affine=True, track=True):
    weights = [float32(rng, channels), float32(rng, channels)] if affine else []
    return weights + ([float32(rng, channels), rng.uniform(0.5, 2, channels).astype(np.float32)] if track else [])


def wide(arrays):
    return [np.asarray(one, np.float64) for one in arrays]


def check_batch_norm(isa, shape, layout, seed="", relu=False, affine=True, track=True, shift=0.0, threads=1):
    rng = seeded((shape, layout, seed))
    x, grad = float32(rng, *shape) * 2 + np.float32(shift), float32(rng, *shape)
    parameters = parameters_of(rng, shape[1], affine, track)
    options = dict(layout=layout, affine=affine, track=track, activation="relu" if relu else "none", threads=threads)
    found = batch_norm_run(isa, x, parameters, grad, **options)
    x64, grad64, *known = wide([x, grad, *parameters])
    weight, bias = known[:2] if affine else (None, None)
    mean, var = ref.batch_moments(x64)
    y = ref.batch_norm(x64, weight, bias, mean, var, 1e-3)
    # x*scale + offset: each term has its rounding, and where they cancel they are larger than the sum.
    scale = (1 if weight is None else np.abs(weight)) / np.sqrt(var + 1e-3)
    terms = ref._channels(scale, x64) * (np.abs(x64) + np.abs(ref._channels(mean, x64)))
    terms = terms + (0 if bias is None else np.abs(ref._channels(bias, x64)))
    if relu:
        # Which values pass is the core's business where y is within a rounding of 0.
        assert (found["output"] >= 0).all()
        sure = np.abs(y) > 1e-5 * terms
        assert ((found["output"] > 0) == (y > 0))[sure].all()
        grad64 = np.where(found["output"] > 0, grad64, 0)
        y = np.maximum(y, 0)
    close("output", found["output"], y, terms, 4)
    n = x.size // shape[1]
    dx, dweight, dbias = ref.batch_norm_backward(x64, weight, grad64, 1e-3)
    normal = ref.batch_norm(x64, None, None, mean, var, 1e-3)
    axes = ref._but_channels(x64)
    size = (np.abs(grad64) * (np.abs(normal) + ref._channels(np.abs(mean) / np.sqrt(var + 1e-3), x64))).sum(axes)
    sizes = ref._channels(np.abs(grad64).sum(axes) / n, x64) + np.abs(normal) * ref._channels(size / n, x64)
    close("grad_input", found["grad_inputs"][0], dx, ref._channels(scale, x64) * (np.abs(grad64) + sizes), n)
    gradients = found["gradients"]
    if affine:
        close("weight", gradients[0], dweight, size, n)
        close("bias", gradients[1], dbias, np.abs(grad64).sum(axes), n)
    if track:
        running = known[-2:]
        wanted = ref.statistics_gradient(x64, *running, np.float64(np.float32(0.2)))
        close("running_mean", gradients[-2], wanted[0], np.abs(running[0]) + np.abs(x64).mean(axes))
        close("running_var", gradients[-1], wanted[1], np.abs(running[1]) + var + 1e-6 * mean**2)


IMAGES = [(3, 5, 4, 3), (17, 3, 5, 5), (1, 20, 3, 7), (16, 16, 2, 2), (37, 8, 1, 3), (2, 33, 7, 7), (5, 24, 1, 1)]


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_batch_norm_of_images(isa, layout, shape):
    check_batch_norm(isa, shape, layout)
    check_batch_norm(isa, shape, layout, relu=True, shift=0.3, threads=2)


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_norm_of_few_channels_in_blocks(isa, layout):
    """Threads share the samples of a channel, or of sixteen; a block is less than full."""
    check_batch_norm(isa, (70, 5, 24, 24), layout, relu=True, shift=0.3, threads=3)
    check_batch_norm(isa, (70, 20, 24, 24), layout, shift=-2.0, threads=1)


def cut(y, values):
    """values where a ReLU of y passes them: a NaN passes."""
    return np.where(y <= 0, np.float32(0), values)


@isas
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_with_a_sum_has_the_bits_of_separate_operations(isa, relu):
    """Normalising, adding and cutting in one pass, and their way back, in every layout; NaN passes in its place."""
    for layout, shape in itertools.product(LAYOUTS, [*IMAGES, (40, 5), (1, 17, 19)]):
        rng = seeded((shape, relu, "sum"))
        x, added, grad = (float32(rng, *shape) for _ in range(3))
        if relu and len(shape) == 4:
            added[0, 0, 0, 0] = np.nan
        parameters = parameters_of(rng, shape[1])
        options = dict(eps=1e-3, momentum=0.2, affine=True, track_running_stats=True, layout=layout)
        options["activation"] = "relu" if relu else "none"
        alone = batch_norm_run(isa, x, parameters, layout=layout)
        y = alone["output"] + added
        y = cut(y, y) if relu else y
        passed = cut(y, grad) if relu else grad
        wanted = batch_norm_run(isa, x, parameters, passed, layout=layout)
        for threads in (1, 3):
            options["over_output"] = threads == 3 and relu  # the plan writes them there where nobody reads it later
            found = operations.run_op(
                "native",
                isa,
                "batch_norm",
                [x, added],
                shape[1:],
                parameters=parameters,
                grad_output=grad,
                threads=threads,
                **options,
            )
            if not options["over_output"]:
                np.testing.assert_array_equal(found["output"], y)
            np.testing.assert_array_equal(found["grad_inputs"][1], passed)
            np.testing.assert_array_equal(found["grad_inputs"][0], wanted["grad_inputs"][0])
            for one, other in zip(found["gradients"], wanted["gradients"], strict=True):
                np.testing.assert_array_equal(one, other)


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("shape", [(2, 1), (3, 7), (17, 40), (64, 16), (1, 5, 9), (19, 3, 300), (33, 17, 1)], ids=str)
def test_batch_norm_of_vectors_and_sequences(isa, layout, shape):
    check_batch_norm(isa, shape, layout)
    check_batch_norm(isa, shape, layout, relu=True)


@pytest.mark.parametrize(("affine", "track"), list(itertools.product([True, False], repeat=2)))
def test_batch_norm_without_some_parameters(affine, track):
    check_batch_norm(None, (7, 5, 3, 3), "batch_last", affine=affine, track=track)
    check_batch_norm(None, (7, 5), "plain", affine=affine, track=track, relu=True)


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_norm_sums_many_values_far_from_zero(isa, layout):
    """A mean of a thousand deviations, and 200,000 values a channel: plain float32 sums would lose the variance."""
    check_batch_norm(isa, (50, 3, 64, 63), layout, shift=2000)


@isas
def test_batch_norm_evaluates_with_the_running_statistics(isa):
    rng = seeded("evaluation")
    x, parameters = float32(rng, 5, 6, 3, 3), parameters_of(rng, 6)
    weight, bias, mean, var = wide(parameters)
    wanted = ref.batch_norm(x.astype(np.float64), weight, bias, mean, var, 1e-3)
    for options in (dict(training=False), dict(evaluate=True), dict(training=False, layout="nhwc")):
        found = batch_norm_run(isa, x, parameters, **options)["output"]
        close("output", found, wanted, 5 * (1 + np.abs(wanted)))
    one = batch_norm_run(isa, x[:1, :, 0, 0], parameters, training=False)["output"]
    close("one value a channel", one, wanted[:1, :, 0, 0], 5 * (1 + np.abs(wanted[:1, :, 0, 0])))


def test_batch_norm_evaluates_a_variance_a_rounding_below_zero_as_zero():
    x, zeros = float32(seeded("below"), 5, 3), np.zeros(3, np.float32)
    parameters = [zeros + 1, zeros, zeros, np.array([-1e-3, 0, np.nan], np.float32)]
    y = batch_norm_run(None, x, parameters, training=False, eps=1e-4)["output"]
    np.testing.assert_allclose(y[:, :2], 100 * x[:, :2], rtol=1e-5)
    assert np.isnan(y[:, 2]).all()


def test_batch_norm_without_statistics_evaluates_with_those_of_the_batch():
    x = float32(seeded("batch"), 5, 6)
    found = batch_norm_run(None, x, [], affine=False, track=False, training=False)["output"]
    np.testing.assert_array_equal(found, batch_norm_run(None, x, [], affine=False, track=False)["output"])


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_passes_nan_on_in_its_channel_alone(isa, layout, relu):
    rng = seeded("nan")
    x = float32(rng, 3, 18, 3, 5)
    x[1, 17, 2, 2] = np.nan
    activation = "relu" if relu else "none"
    found = batch_norm_run(isa, x, parameters_of(rng, 18), np.ones_like(x), layout=layout, activation=activation)
    for array in (found["output"], found["grad_inputs"][0]):
        assert np.isnan(array[:, 17]).all() and np.isfinite(array[:, :17]).all()
    for gradient in (found["gradients"][0], *found["gradients"][2:]):
        assert np.isnan(gradient[17]) and np.isfinite(gradient[:17]).all()


@pytest.mark.parametrize("shape", [(1, 5), (1, 5, 1), (1, 5, 1, 1)])
def test_batch_norm_of_one_value_is_an_error_in_training(shape):
    x = np.ones(shape, np.float32)
    with pytest.raises(ValueError, match=r"more than one value.*drop_last=True"):
        batch_norm_run(None, x, parameters_of(seeded(1), 5))


def test_a_cluster_survives_a_batch_that_is_refused():
    net = gg.Sequential([gg.BatchNorm1d(), gg.Linear(2)], input=(3,))
    x, y = np.ones((2, 3), np.float32), np.zeros(2, np.int32)
    with gg.Trainer(net, comm=gg.VirtualCluster(2)) as trainer:
        with pytest.raises(ValueError, match="more than one value"):
            trainer.train_step([x[:1], x], [y[:1], y])
        assert np.isfinite(trainer.train_step([x, x], [y, y])).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_norm_has_the_same_bits_on_any_number_of_threads(layout):
    """Also where threads share a channel, and where each has its own."""
    rng = seeded("threads")
    x, grad, parameters = float32(rng, 70, 5, 32, 32), float32(rng, 70, 5, 32, 32), parameters_of(rng, 5)
    one, *more = [batch_norm_run(None, x, parameters, grad, layout=layout, threads=n) for n in (1, 3, 5)]
    for other in more:
        for name in ("output", "grad_inputs", "gradients"):
            for a, b in zip(one[name], other[name], strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 7), (17, 4, 5, 6)], ids=str)
def test_batch_norm_is_torchs(shape):
    torch = pytest.importorskip("torch")
    rng = seeded(shape)
    x, grad, parameters = float32(rng, *shape), float32(rng, *shape), parameters_of(rng, 4)
    found = batch_norm_run(None, x, parameters, grad)
    module = (torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d)(4, eps=1e-3, momentum=0.2)
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {name: torch.tensor(one) for name, one in zip(names, parameters, strict=True)}
    module.load_state_dict(tensors, strict=False)
    given = torch.tensor(x, requires_grad=True)
    y = module(given)
    y.backward(torch.tensor(grad))
    near = dict(rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["output"], y.detach().numpy(), **near)
    np.testing.assert_allclose(found["grad_inputs"][0], given.grad.numpy(), **near)
    np.testing.assert_allclose(found["gradients"][0], module.weight.grad.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["gradients"][1], module.bias.grad.numpy(), rtol=1e-4, atol=1e-4)
    moved = [parameters[i] - found["gradients"][i] for i in (2, 3)]
    np.testing.assert_allclose(moved[0], module.running_mean.numpy(), **near)
    np.testing.assert_allclose(moved[1], module.running_var.numpy(), **near)


def test_batch_norm_in_a_network_of_vectors():
    """In front of all, behind a layer, and with running statistics in evaluation."""
    rng = seeded("vectors")
    layers = [gg.BatchNorm1d(name="first"), gg.Linear(7, name="fc"), gg.BatchNorm1d(name="bn"), gg.ReLU()]
    net = gg.Sequential([*layers, gg.Linear(3, name="out")], input=(5,))
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.1, momentum=0.9, weight_decay=0.01))
    network = ref.Network(net.config())
    for _ in range(3):
        x, y = float32(rng, 19, 5) + 1, rng.integers(0, 3, 19).astype(np.int32)
        weights = {name: one.astype(np.float64) for name, one in trainer.weights().items()}
        loss, _, gradients = network.gradients(weights, x.astype(np.float64), y, "cross_entropy")
        assert trainer.train_step(x, y) == pytest.approx(loss, rel=1e-5)
        after = trainer.weights()
        for name in ("first.running_mean", "first.running_var", "bn.running_mean", "bn.running_var"):
            np.testing.assert_allclose(after[name], weights[name] - gradients[name], rtol=1e-5, atol=1e-6)
    weights = {name: one.astype(np.float64) for name, one in trainer.weights().items()}
    wanted = network.forward(weights, x.astype(np.float64))[-1]
    np.testing.assert_allclose(trainer.predict(x), wanted, rtol=1e-5, atol=1e-5)  # the plan that trained
    np.testing.assert_allclose(trainer.predict(x[:1]), wanted[:1], rtol=1e-5, atol=1e-5)  # one for evaluation


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (gg.BatchNorm2d(), (5,), "channels, height, width"),
        (gg.BatchNorm1d(), (5, 4, 3), "channels, length"),
    ],
)
def test_batch_norm_of_a_wrong_shape(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        gg.Sequential([layer, gg.Flatten(), gg.Linear(2)], input=shape)


@pytest.mark.parametrize("options", [dict(eps=-1), dict(momentum=1.5), dict(momentum=None), dict(affine=1.5)])
def test_batch_norm_of_wrong_options(options):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(options))}=.*allowed"):
        gg.BatchNorm2d(**options)


# ---- adaptive pooling


@isas
@pytest.mark.parametrize("n", [1, 17])
@pytest.mark.parametrize(
    ("size", "out"), [((7, 5), (3, 2)), ((6, 8), (3, 4)), ((3, 2), (5, 7)), ((1, 9), (1, 1)), ((32, 33), (6, 6))]
)
def test_adaptive_pooling(isa, n, size, out):
    rng = seeded((n, size, out))
    x, grad = float32(rng, n, 5, *size), float32(rng, n, 5, *out)
    found = operations.run_op(
        "native", isa, "adaptive_avg_pool2d", [x], (5, *out), parameters=[], grad_output=grad, threads=1 + n % 2
    )
    wide_x, wide_grad = wide([x, grad])
    values = -(-size[0] // out[0] + 1) * -(-size[1] // out[1] + 1)
    wanted, all_of_it = [ref.adaptive_avg_pool2d(one, *out) for one in (wide_x, np.abs(wide_x))]
    close("output", found["output"], wanted, all_of_it, values)
    wanted, all_of_it = [ref.adaptive_avg_pool2d_backward(wide_x, one) for one in (wide_grad, np.abs(wide_grad))]
    close("grad_input", found["grad_inputs"][0], wanted, all_of_it, values)


def test_adaptive_pooling_of_a_nan_is_nan_in_its_windows_alone():
    x = np.ones((2, 3, 5, 5), np.float32)
    x[1, 2, 2, 2] = np.nan  # in the windows of rows and columns 0..1 and 1..2 of 3
    y = operations.run_op("native", None, "adaptive_avg_pool2d", [x], (3, 4, 1), parameters=[])["output"]
    assert [tuple(at) for at in np.argwhere(np.isnan(y))] == [(1, 2, 1, 0), (1, 2, 2, 0)]


@pytest.mark.parametrize(("size", "message"), [(0, "output_size"), ((1, 2, 3), "height, width"), (1.5, "output_size")])
def test_adaptive_pooling_to_a_wrong_size(size, message):
    with pytest.raises((TypeError, ValueError), match=message):
        gg.AdaptiveAvgPool2d(size)


# ---- layer normalisation and softmax

VECTORS = [(3, 7), (17, 5, 33), (1, 1), (2, 3, 128), (37, 4, 3, 5), (16, 16), (5, 4099)]


@isas
def test_layer_norm_of_any_threads(isa):
    """Gradients of the parameters are sums over rows in parts that do not depend on the threads."""
    rng = seeded("threads")
    x, grad = float32(rng, 709, 130), float32(rng, 709, 130)
    parameters = [float32(rng, 130), float32(rng, 130)]
    found = [
        operations.run_op(
            *("native", isa, "layer_norm", [x], x.shape[1:]),
            parameters=parameters, grad_output=grad, sample_axis=0, affine=True, bias=True, layout="plain", threads=n,
        )
        for n in (1, 2, 5)
    ]  # fmt: skip
    for other in found[1:]:
        for a, b in zip(found[0]["gradients"], other["gradients"], strict=True):
            assert np.array_equal(a, b)
        assert np.array_equal(found[0]["grad_inputs"][0], other["grad_inputs"][0])
    normal = (x - x.mean(1, keepdims=True, dtype=np.float64)) / np.sqrt(x.var(1, keepdims=True, dtype=np.float64))
    exact = (normal * grad).sum(0)
    assert np.max(np.abs(found[0]["gradients"][0] - exact)) < 1e-4 * np.max(np.abs(exact))


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("shape", VECTORS, ids=str)
def test_layer_norm(isa, layout, shape):
    for axis, affine, bias in itertools.product(range(len(shape) - 1), [True, False], [True, False]):
        rng = seeded((shape, axis))
        x, grad = float32(rng, *shape) + np.float32(3), float32(rng, *shape)
        sizes = shape[1 + axis :]
        parameters = [float32(rng, *sizes) for _ in range(1 + bias)] if affine else []
        found = operations.run_op(
            *("native", isa, "layer_norm", [x], shape[1:]),
            parameters=parameters,
            grad_output=grad,
            sample_axis=axis,
            eps=1e-3,
            affine=affine,
            bias=bias,
            layout=layout,
            threads=1 + axis,
        )
        wide_x, wide_grad, *known = wide([x, grad, *parameters])
        weight, offset = [*known, None, None][:2]
        axes = tuple(range(1 + axis, len(shape)))
        size = np.prod(sizes)
        wanted = ref.layer_norm(wide_x, weight, offset, 1e-3, axes)
        inverse = 1 / np.sqrt(wide_x.var(axes, keepdims=True) + 1e-3)
        # The mean is rounded: of a row's few values at 3 that is felt.
        scale = (1 if weight is None else np.abs(weight)) * inverse
        terms = scale * (np.abs(wide_x) + np.abs(wide_x).mean(axes, keepdims=True))
        close("output", found["output"], wanted, terms + (0 if offset is None else np.abs(offset)), 4)
        dx, dweight, dbias = ref.layer_norm_backward(wide_x, weight, wide_grad, 1e-3, axes)
        normal = np.abs(wide_x) * inverse
        inner = np.abs(wide_grad) * (1 if weight is None else np.abs(weight))
        means = [one.mean(axes, keepdims=True) for one in (inner, inner * normal)]
        close("grad_input", found["grad_inputs"][0], dx, inverse * (inner + means[0] + normal * means[1]), 16 + size)
        over = tuple(range(1 + axis))
        if affine:
            close("weight", found["gradients"][0], dweight, (np.abs(wide_grad) * normal).sum(over), 16)
        if affine and bias:
            close("bias", found["gradients"][1], dbias, np.abs(wide_grad).sum(over), 16)


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("shape", VECTORS, ids=str)
def test_softmax(isa, layout, shape):
    for axis in range(len(shape) - 1):
        rng = seeded((shape, axis))
        x, grad = float32(rng, *shape) * 10, float32(rng, *shape)
        x[0, ...] += 3000  # no overflow
        found = operations.run_op(
            *("native", isa, "softmax", [x], shape[1:]),
            parameters=[],
            grad_output=grad,
            sample_axis=axis,
            layout=layout,
            threads=1 + axis,
        )
        wanted = ref.softmax(x.astype(np.float64), axis + 1)
        below = x.max(axis + 1, keepdims=True) - x  # whose rounding is one of its size in the exponent
        close("output", found["output"], wanted, wanted * (1 + below), 16)
        y, wide_grad = wide([found["output"], grad])
        all_of_it = np.abs(y * wide_grad).sum(axis + 1, keepdims=True)
        dx = ref.softmax_backward(y, wide_grad, axis + 1)
        close("grad_input", found["grad_inputs"][0], dx, y * (np.abs(wide_grad) + all_of_it), shape[axis + 1])


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("kind", ["layer_norm", "softmax"])
def test_rows_with_nan_are_nan_and_no_others(isa, layout, kind):
    x = float32(seeded("nan rows"), 3, 4, 19)
    x[1, 2, 17] = np.nan
    how = {} if kind == "softmax" else {"eps": 1e-5, "affine": False}
    y = operations.run_op(*("native", isa, kind, [x], (4, 19)), parameters=[], sample_axis=1, layout=layout, **how)[
        "output"
    ]
    assert np.isnan(y[1, 2]).all() and np.isnan(y).sum() == 19


# ---- GELU and LeakyReLU


@isas
@pytest.mark.parametrize(
    ("layout", "shape"), [("plain", (3, 7)), ("batch_last", (17, 5)), ("channels16", (3, 5, 3, 3))]
)
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu(isa, layout, shape, tanh):
    rng = seeded((shape, tanh))
    x, grad = float32(rng, *shape) * 4, float32(rng, *shape)
    x.reshape(-1)[:6] = [0, -0.0, 12, -12, 1e-20, 80]
    found = operations.run_op(
        *("native", isa, "gelu", [x], shape[1:]), parameters=[], grad_output=grad, layout=layout, tanh_form=tanh
    )
    wide_x, wide_grad = wide([x, grad])
    form = "tanh" if tanh else "none"
    wanted = ref.gelu(wide_x, form)
    # An exponent of size e is off by a rounding of e, so exp(e) is off by e roundings of itself.
    close("output", found["output"], wanted, np.abs(wanted) * (2 + wide_x**2 * (1 + tanh * wide_x**2 * 0.05)), 9)
    wanted = ref.gelu_backward(wide_x, wide_grad, form)
    close("grad_input", found["grad_inputs"][0], wanted, np.abs(wide_grad) * (2 + np.abs(wide_x)), 9)


@isas
@pytest.mark.parametrize("slope", [0.0, 0.01, -0.5])
def test_leaky_relu(isa, slope):
    rng = seeded(slope)
    x, grad = float32(rng, 17, 5), float32(rng, 17, 5)
    x[3] = np.nan
    found = operations.run_op(
        *("native", isa, "leaky_relu", [x], (5,)), parameters=[], grad_output=grad, negative_slope=slope
    )
    slope = np.float32(slope)
    np.testing.assert_array_equal(found["output"], np.where(x <= 0, slope * x, x))
    assert np.isnan(found["output"][3]).all()
    np.testing.assert_array_equal(found["grad_inputs"][0], np.where(x <= 0, slope * grad, grad))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gg.GELU("erf"), "approximate"),
        (lambda: gg.Softmax(0), "dim=0"),
        (lambda: gg.Sequential([gg.Softmax(3)], input=(5,)), "dim is 3"),
        (lambda: gg.LayerNorm(0), "normalized_shape"),
        (lambda: gg.Sequential([gg.LayerNorm((4, 5))], input=(3, 5)), "normalized_shape is"),
        (lambda: gg.LeakyReLU(float("nan")), "negative_slope"),
    ],
)
def test_wrong_words_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- local response normalisation


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("shape", [(3, 5, 4, 3), (17, 96, 3, 5), (1, 2, 7, 11), (2, 7, 130)], ids=str)
@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.75), (3, 1.5), (1, 0.5)])
def test_local_response_norm(isa, layout, shape, size, beta):
    rng = seeded((shape, size))
    x, grad = float32(rng, *shape) * 2, float32(rng, *shape)
    options = dict(size=size, alpha=0.5, beta=beta, k=2.0)
    found = operations.run_op(
        *("native", isa, "local_response_norm", [x], shape[1:]),
        parameters=[],
        grad_output=grad,
        layout=layout,
        threads=1 + shape[0] % 2,
        **options,
    )
    wide_x, wide_grad = wide([x, grad])
    wanted = ref.local_response_norm(wide_x, *options.values())
    close("output", found["output"], wanted, np.abs(wanted), 16)
    wanted = ref.local_response_norm_backward(wide_x, wide_grad, *options.values())
    bound = [np.abs(one) for one in (wide_x, wide_grad)]
    plus = ref.local_response_norm_backward(bound[0], -bound[1], *options.values())  # its second term, positive
    direct = bound[1] * np.abs(ref.local_response_norm(wide_x, *options.values())) / np.maximum(bound[0], 1e-30)
    close("grad_input", found["grad_inputs"][0], wanted, 2 * direct + np.abs(plus), 16)


def test_local_response_norm_of_a_nan_is_nan_in_its_windows():
    x = np.ones((2, 9, 2, 2), np.float32)
    x[1, 4, 0, 1] = np.nan
    options = dict(size=5, alpha=0.5, beta=0.75, k=1.0)
    y = operations.run_op("native", None, "local_response_norm", [x], (9, 2, 2), parameters=[], **options)["output"]
    assert [tuple(at) for at in np.argwhere(np.isnan(y))] == [(1, c, 0, 1) for c in range(2, 7)]
