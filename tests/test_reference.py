"""The float64 reference itself: finite differences of everything, and PyTorch as a second opinion."""

from __future__ import annotations

import numpy as np
import pytest
import reference as ref

CONVOLUTIONS = [
    # batch, channels, size, outputs, kernel, stride, padding, dilation, groups
    (1, 1, (1, 1), 1, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, 3, (6, 5), 4, (3, 2), (1, 1), (0, 0), (1, 1), 1),
    (1, 4, (7, 5), 6, (2, 3), (2, 3), (1, 2), (1, 1), 2),
    (3, 3, (7, 8), 3, (3, 3), (1, 2), (2, 1), (2, 1), 3),
    (2, 2, (3, 2), 2, (5, 5), (2, 1), (2, 2), (1, 1), 1),  # the kernel is larger than the input
    (1, 2, (9, 9), 4, (2, 2), (3, 3), (0, 0), (3, 2), 2),
]
POOLS = [
    # size, kernel, stride, padding, ceil, count_include_pad
    ((4, 4), (2, 2), (2, 2), (0, 0), False, True),
    ((5, 7), (2, 3), (2, 2), (0, 0), False, True),
    ((5, 7), (2, 3), (2, 2), (0, 0), True, True),
    ((5, 7), (3, 3), (2, 2), (1, 1), False, True),
    ((6, 7), (3, 2), (2, 3), (1, 1), True, True),
    ((6, 7), (3, 2), (2, 3), (1, 1), True, False),
    ((5, 5), (4, 4), (3, 3), (2, 2), True, False),
    ((5, 5), (4, 4), (3, 3), (2, 2), True, True),
    ((4, 3), (2, 2), (3, 3), (1, 0), True, True),  # a last window would start in the padding
    ((1, 1), (1, 1), (1, 1), (0, 0), False, True),
    ((3, 8), (3, 3), (1, 1), (1, 1), False, False),
]


def differences(f, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient of the number f() by the elements of x, which f reads."""
    grad = np.zeros_like(x)
    flat, out = x.reshape(-1), grad.reshape(-1)
    for i in range(flat.size):
        kept = flat[i]
        flat[i] = kept + step
        up = f()
        flat[i] = kept - step
        out[i] = (up - f()) / (2 * step)
        flat[i] = kept
    return grad


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def convolution(rng, case):
    n, c, size, outputs, kernel, *places, groups = case
    x = rng.standard_normal((n, c, *size))
    weight = rng.standard_normal((outputs, c // groups, *kernel))
    return x, weight, rng.standard_normal(outputs), (*places, groups)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d(rng, case):
    x, weight, bias, options = convolution(rng, case)
    grad = rng.standard_normal(ref.conv2d(x, weight, bias, *options).shape)

    def value():
        return float((grad * ref.conv2d(x, weight, bias, *options)).sum())

    for found, by in zip(ref.conv2d_backward(x, weight, grad, *options), (x, weight, bias), strict=True):
        near(found, differences(value, by))


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d_is_torchs(rng, case):
    torch = pytest.importorskip("torch")
    x, weight, bias, options = convolution(rng, case)
    tensors = [torch.tensor(one, requires_grad=True) for one in (x, weight, bias)]
    theirs = torch.nn.functional.conv2d(*tensors, *options)
    near(ref.conv2d(x, weight, bias, *options), theirs.detach())
    grad = rng.standard_normal(theirs.shape)
    theirs.backward(torch.tensor(grad))
    for found, tensor in zip(ref.conv2d_backward(x, weight, grad, *options), tensors, strict=True):
        near(found, tensor.grad)


@pytest.mark.parametrize(("n", "ins", "outs"), [(1, 1, 1), (1, 5, 3), (4, 3, 7)])
def test_linear(rng, n, ins, outs):
    x, weight, bias = rng.standard_normal((n, ins)), rng.standard_normal((outs, ins)), rng.standard_normal(outs)
    grad = rng.standard_normal((n, outs))

    def value():
        return float((grad * ref.linear(x, weight, bias)).sum())

    for found, by in zip(ref.linear_backward(x, weight, grad), (x, weight, bias), strict=True):
        near(found, differences(value, by))


@pytest.mark.parametrize("case", POOLS)
def test_pooling(rng, case):
    size, kernel, stride, padding, ceil, include = case
    x = rng.standard_normal((2, 3, *size))
    y, winner = ref.max_pool2d(x, kernel, stride, padding, (1, 1), ceil)
    grad = rng.standard_normal(y.shape)
    near(
        ref.max_pool2d_backward(x, winner, grad),
        differences(lambda: float((grad * ref.max_pool2d(x, kernel, stride, padding, (1, 1), ceil)[0]).sum()), x),
    )
    options = (kernel, stride, padding, ceil, include)
    near(
        ref.avg_pool2d_backward(x, grad, *options),
        differences(lambda: float((grad * ref.avg_pool2d(x, *options)).sum()), x),
    )


def agree_with_torch_max(torch, x, grad_of, *options):
    tensor = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.max_pool2d(tensor, *options)
    y, winner = ref.max_pool2d(x, *options)
    np.testing.assert_array_equal(y, theirs.detach())
    grad = grad_of(y.shape)
    theirs.backward(torch.tensor(grad))
    near(ref.max_pool2d_backward(x, winner, grad), tensor.grad)


@pytest.mark.parametrize("case", POOLS)
def test_pooling_is_torchs(rng, case):
    torch = pytest.importorskip("torch")
    size, kernel, stride, padding, ceil, include = case
    x = rng.standard_normal((2, 3, *size))
    agree_with_torch_max(torch, x, rng.standard_normal, kernel, stride, padding, (1, 1), ceil)
    tensor = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.avg_pool2d(tensor, kernel, stride, padding, ceil, include)
    near(ref.avg_pool2d(x, kernel, stride, padding, ceil, include), theirs.detach())
    grad = rng.standard_normal(theirs.shape)
    theirs.backward(torch.tensor(grad))
    near(ref.avg_pool2d_backward(x, grad, kernel, stride, padding, ceil, include), tensor.grad)


@pytest.mark.parametrize("ceil", [False, True])
def test_max_pooling_with_dilation_ties_and_nan_is_torchs(rng, ceil):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 9, 8))
    agree_with_torch_max(torch, x, rng.standard_normal, (3, 2), (2, 2), (1, 1), (2, 3), ceil)
    ties = rng.integers(0, 2, (3, 2, 7, 7)).astype(float)
    agree_with_torch_max(torch, ties, rng.standard_normal, (3, 3), (2, 2), (1, 1), (1, 1), ceil)
    ties[rng.random(ties.shape) < 0.2] = np.nan
    agree_with_torch_max(torch, ties, rng.standard_normal, (3, 3), (2, 2), (1, 1), (1, 1), ceil)
    low = np.full((1, 1, 4, 4), -np.inf)
    agree_with_torch_max(torch, low, rng.standard_normal, (2, 2), (2, 2), (0, 0), (1, 1), ceil)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid"])
def test_activations(rng, name):
    forward, backward = getattr(ref, name), getattr(ref, f"{name}_backward")
    x, grad = 2 * rng.standard_normal((3, 11)), rng.standard_normal((3, 11))
    near(backward(forward(x), grad), differences(lambda: float((grad * forward(x)).sum()), x))


# Of each operation the shapes of inputs, with its options.
ROWWISE = {
    "leaky_relu": [((3, 11), {"slope": 0.1}), ((2, 3, 4, 5), {"slope": 0.0})],
    "gelu": [((3, 11), {}), ((3, 11), {"approximate": "tanh"})],
    "softmax": [((3, 7), {"axis": 1}), ((2, 4, 5), {"axis": 1}), ((2, 3, 1), {"axis": 2})],
    "local_response_norm": [
        ((2, 7, 3, 2), {"size": 5, "alpha": 0.3, "beta": 0.75, "k": 1.5}),
        ((1, 4, 1, 1), {"size": 2, "alpha": 2.0, "beta": 1.3, "k": 0.5}),
        ((3, 2, 2, 3), {"size": 9, "alpha": 1e-2, "beta": 0.5, "k": 2.0}),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(name, i) for name in ROWWISE for i in range(len(ROWWISE[name]))])
def test_operations_without_parameters(rng, name, case):
    shape, options = ROWWISE[name][case]
    forward, backward = getattr(ref, name), getattr(ref, f"{name}_backward")
    x, grad = 2 * rng.standard_normal(shape), rng.standard_normal(shape)
    from_output = name == "softmax"
    found = backward(forward(x, **options) if from_output else x, grad, **options)
    near(found, differences(lambda: float((grad * forward(x, **options)).sum()), x))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 1), (3, 2, 4), (2, 3, 3, 2)], ids=str)
def test_batch_norm(rng, shape, affine):
    """The moments of the batch depend on x as well."""
    x, grad, eps = 3 + rng.standard_normal(shape), rng.standard_normal(shape), 0.01
    weight, bias = (rng.standard_normal(shape[1]) if affine else None for _ in range(2))

    def value():
        return float((grad * ref.batch_norm(x, weight, bias, *ref.batch_moments(x), eps)).sum())

    found = ref.batch_norm_backward(x, weight, grad, eps)
    for mine, by in zip(found, (x, weight, bias) if affine else (x,), strict=affine):
        near(mine, differences(value, by))


def test_the_running_statistics_approach_those_of_the_batch(rng):
    x, mean, var = rng.standard_normal((4, 3, 2)), rng.standard_normal(3), rng.random(3) + 1
    by_mean, by_var = ref.statistics_gradient(x, mean, var, 0.25)
    near(mean - by_mean, 0.75 * mean + 0.25 * x.mean((0, 2)))
    near(var - by_var, 0.75 * var + 0.25 * x.var((0, 2), ddof=1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("shape", "axes"), [((3, 5), (1,)), ((2, 3, 4), (2,)), ((2, 3, 4), (1, 2)), ((1, 2), (1,))])
def test_layer_norm(rng, shape, axes, bias):
    x, grad, eps = rng.standard_normal(shape), rng.standard_normal(shape), 0.01
    weight, shift = (rng.standard_normal([shape[axis] for axis in axes]) for _ in range(2))

    def value():
        return float((grad * ref.layer_norm(x, weight, shift if bias else None, eps, axes)).sum())

    found = ref.layer_norm_backward(x, weight, grad, eps, axes)
    for mine, by in zip(found, (x, weight, shift) if bias else (x, weight), strict=bias):
        near(mine, differences(value, by))


@pytest.mark.parametrize(("shape", "axes"), [((3, 5), (1,)), ((2, 3, 4), (2,)), ((2, 3, 4), (1, 2)), ((1, 2), (1,))])
def test_rms_norm(rng, shape, axes):
    x, grad, eps = rng.standard_normal(shape), rng.standard_normal(shape), 0.01
    weight = rng.standard_normal([shape[axis] for axis in axes])

    def value():
        return float((grad * ref.rms_norm(x, weight, eps, axes)).sum())

    for mine, by in zip(ref.rms_norm_backward(x, weight, grad, eps, axes), (x, weight), strict=True):
        near(mine, differences(value, by))


@pytest.mark.parametrize(("shape", "groups"), [((3, 6), 2), ((2, 4, 3), 1), ((2, 6, 2, 3), 3), ((1, 4, 2, 2), 4)])
def test_group_norm(rng, shape, groups):
    x, grad, eps = rng.standard_normal(shape), rng.standard_normal(shape), 0.01
    weight, bias = rng.standard_normal(shape[1]), rng.standard_normal(shape[1])

    def value():
        return float((grad * ref.group_norm(x, groups, weight, bias, eps)).sum())

    for mine, by in zip(ref.group_norm_backward(x, groups, weight, grad, eps), (x, weight, bias), strict=True):
        near(mine, differences(value, by))


@pytest.mark.parametrize(("size", "out"), [((5, 7), (2, 3)), ((3, 2), (3, 2)), ((2, 3), (5, 4)), ((4, 6), (1, 1))])
def test_adaptive_pooling(rng, size, out):
    x, grad = rng.standard_normal((2, 3, *size)), rng.standard_normal((2, 3, *out))
    found = ref.adaptive_avg_pool2d_backward(x, grad)
    near(found, differences(lambda: float((grad * ref.adaptive_avg_pool2d(x, *out)).sum()), x))


def test_embedding(rng):
    tokens, weight = np.array([[0, 2, 2], [4, 0, 2]]), rng.standard_normal((5, 3))
    grad = rng.standard_normal((2, 3, 3))
    found = ref.embedding_backward(weight, tokens, grad)
    near(found, differences(lambda: float((grad * ref.embedding(weight, tokens)).sum()), weight))


def loss_batch(rng, name, n, features):
    x = 3 * rng.standard_normal((n, features))
    if name == "cross_entropy":
        return x, rng.integers(0, features, n)
    return x, rng.random((n, features)) if name == "mean_squared_error" else rng.integers(0, 2, (n, features)) * 1.0


@pytest.mark.parametrize(("n", "features"), [(1, 1), (1, 5), (7, 3)])
@pytest.mark.parametrize("name", ref.LOSSES)
def test_losses(rng, name, n, features):
    x, targets = loss_batch(rng, name, n, features)
    near(ref.LOSSES[name](x, targets)[2], differences(lambda: ref.LOSSES[name](x, targets)[0] / n, x))


@pytest.mark.parametrize("name", ref.LOSSES)
def test_losses_are_torchs(rng, name):
    torch = pytest.importorskip("torch")
    x, targets = loss_batch(rng, name, 6, 4)
    theirs = {
        "cross_entropy": torch.nn.functional.cross_entropy,
        "binary_cross_entropy": torch.nn.functional.binary_cross_entropy_with_logits,
        "mean_squared_error": torch.nn.functional.mse_loss,
    }[name]
    tensor = torch.tensor(x, requires_grad=True)
    value = theirs(tensor, torch.tensor(targets))
    value.backward()
    total, _, grad = ref.LOSSES[name](x, targets)
    near(total / len(x), float(value.detach()))
    near(grad, tensor.grad)


@pytest.mark.parametrize(
    ("mu", "decay", "nesterov"), [(0, 0, False), (0.9, 0, False), (0.9, 0.1, True), (0, 0.1, False)]
)
def test_sgd_is_torchs(rng, mu, decay, nesterov):
    torch = pytest.importorskip("torch")
    weight, momentum = rng.standard_normal(9), np.zeros(9)
    tensor = torch.tensor(weight, requires_grad=True)
    theirs = torch.optim.SGD([tensor], lr=0.1, momentum=mu, weight_decay=decay, nesterov=nesterov)
    for _ in range(4):
        grad = rng.standard_normal(9)
        tensor.grad = torch.tensor(grad)
        theirs.step()
        weight, momentum = ref.sgd(weight, grad, momentum, 0.1, mu, decay, nesterov)
    near(weight, tensor.detach())


def described(kind, name, inputs, **options):
    return {"layer": kind, "name": name, "inputs": inputs, "options": options}


def test_network(rng):
    """A graph with every kind of layer, branches and a shared input, against finite differences."""
    one = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    config = {
        "layers": [
            described("Input", "x", [], shape=[2, 5, 5]),
            described("Conv2d", "a", [0], padding=(1, 1), **one),
            described("Conv2d", "b", [0], padding=(0, 0), **one),
            described("Tanh", "t", [1]),
            described("Add", "sum", [1, 3]),
            described("Concat", "both", [4, 2, 4]),
            described(
                "MaxPool2d", "m", [5], kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=True
            ),
            described(
                "AvgPool2d",
                "v",
                [6],
                kernel=(2, 2),
                stride=(1, 1),
                padding=(1, 0),
                ceil_mode=False,
                count_include_pad=True,
            ),
            described("Sigmoid", "s", [7]),
            described("Dropout", "d", [8], p=0),
            described("Flatten", "f", [9]),
            described("Linear", "l", [10]),
            described("ReLU", "r", [11]),
            described("Linear", "o", [12]),
        ]
    }
    weights = {
        "a.weight": rng.standard_normal((3, 2, 3, 3)),
        "a.bias": rng.standard_normal(3),
        "b.weight": rng.standard_normal((2, 2, 1, 1)),
        "l.weight": rng.standard_normal((6, 64)),
        "l.bias": rng.standard_normal(6),
        "o.weight": rng.standard_normal((3, 6)),
    }
    x, targets = rng.standard_normal((2, 2, 5, 5)), rng.integers(0, 3, 2)
    network = ref.Network(config)
    _, _, grads = network.gradients(weights, x, targets, "cross_entropy")
    assert grads.keys() == weights.keys()
    for name, weight in weights.items():

        def value():
            return network.gradients(weights, x, targets, "cross_entropy")[0]

        near(grads[name], differences(value, weight))
