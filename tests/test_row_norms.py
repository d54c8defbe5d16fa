"""RMSNorm and GroupNorm: every instruction set and layout against float64, networks against PyTorch and one rank."""

from __future__ import annotations

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import close, float32, isas, seeded

import gossipgrad as gg
from gossipgrad import apoptosis


def wide(arrays):
    return [np.asarray(one, np.float64) for one in arrays]


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize("shape", [(3, 7), (17, 5, 33), (1, 1), (2, 3, 128), (37, 4, 3, 5), (5, 4099)], ids=str)
def test_rms_norm(isa, layout, shape):
    for axis, affine in [(0, True), (len(shape) - 2, True), (len(shape) - 2, False)]:
        rng = seeded((shape, axis, "rms"))
        x, grad = float32(rng, *shape) + np.float32(3), float32(rng, *shape)
        parameters = [float32(rng, *shape[1 + axis :])] if affine else []
        found = operations.run_op(
            *("native", isa, "layer_norm", [x], shape[1:]),
            parameters=parameters,
            grad_output=grad,
            sample_axis=axis,
            eps=1e-3,
            affine=affine,
            bias=False,
            root_mean_square=True,
            layout=layout,
            threads=1 + axis,
        )
        wide_x, wide_grad, *known = wide([x, grad, *parameters])
        weight, axes = known[0] if affine else None, tuple(range(1 + axis, len(shape)))
        wanted = ref.rms_norm(wide_x, weight, 1e-3, axes)
        close("output", found["output"], wanted, np.abs(wanted), 4)
        dx, dweight = ref.rms_norm_backward(wide_x, weight, wide_grad, 1e-3, axes)
        normal = np.abs(ref.rms_norm(wide_x, None, 1e-3, axes))
        inner = np.abs(wide_grad) * (1 if weight is None else np.abs(weight))
        size = normal / np.abs(wide_x) * (inner + normal * (inner * normal).mean(axes, keepdims=True))
        close("grad_input", found["grad_inputs"][0], dx, size, 16 + np.prod(shape[1 + axis :]))
        if affine:
            over = tuple(range(1 + axis))
            close("weight", found["gradients"][0], dweight, (np.abs(wide_grad) * normal).sum(over), 16)


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
def test_rms_norm_passes_nan_on_in_its_row_alone(isa, layout):
    x = float32(seeded("nan rows"), 3, 4, 19)
    x[1, 2, 17] = np.nan
    how = dict(sample_axis=1, eps=1e-5, affine=False, root_mean_square=True, layout=layout)
    y = operations.run_op("native", isa, "layer_norm", [x], (4, 19), parameters=[], **how)["output"]
    assert np.isnan(y[1, 2]).all() and np.isnan(y).sum() == 19


def groups_run(isa, x, groups, parameters, grad=None, **options):
    how = dict(groups=groups, eps=1e-3, affine=len(parameters) > 0, bias=True) | options
    return operations.run_op(
        "native", isa, "layer_norm", [x], x.shape[1:], parameters=parameters, grad_output=grad, **how
    )


IMAGE_LAYOUTS = ("plain", "batch_last", "channels16", "channels8", "nhwc")
GROUPED = [
    *[((5, 6), 3), ((1, 8), 1), ((2, 5), 5), ((17, 12, 5), 4), ((3, 20, 4, 3), 5), ((1, 6, 7, 5), 2)],
    *[((37, 4, 2, 2), 1), ((2, 7, 3, 3), 7), ((40, 3, 33, 31), 3), ((2, 4, 65, 64), 2)],
]


@isas
@pytest.mark.parametrize("layout", IMAGE_LAYOUTS)
@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
def test_group_norm(isa, layout, shape, groups):
    if len(shape) < 4 and layout not in ("plain", "batch_last"):
        pytest.skip("no images")
    for affine in (True, False):
        rng = seeded((shape, groups))
        x, grad = float32(rng, *shape) + np.float32(3), float32(rng, *shape)
        parameters = [float32(rng, shape[1]), float32(rng, shape[1])] if affine else []
        found = groups_run(isa, x, groups, parameters, grad, layout=layout, threads=1 + affine)
        lies = "batch_last" if layout == "batch_last" else "plain"
        assert found["formats"] == ("float32", lies, "float32", lies)
        wide_x, wide_grad, *known = wide([x, grad, *parameters])
        weight, bias = known if affine else (None, None)

        def spread(each, by=np.mean, groups=groups):
            rows = each.reshape(len(each), groups, -1)
            return np.broadcast_to(by(rows, axis=2, keepdims=True), rows.shape).reshape(each.shape)

        size = np.ones(shape) if weight is None else np.broadcast_to(ref._channels(np.abs(weight), wide_x), shape)
        inverse = 1 / np.sqrt(spread(wide_x, np.var) + 1e-3)
        terms = size * inverse * (np.abs(wide_x) + spread(np.abs(wide_x)))
        terms = terms + (0 if bias is None else ref._channels(np.abs(bias), wide_x))
        close("output", found["output"], ref.group_norm(wide_x, groups, weight, bias, 1e-3), terms, 4)
        dx, dweight, dbias = ref.group_norm_backward(wide_x, groups, weight, wide_grad, 1e-3)
        normal, inner = np.abs(wide_x) * inverse, np.abs(wide_grad) * size
        bound = inverse * (inner + spread(inner) + normal * spread(inner * normal))
        close("grad_input", found["grad_inputs"][0], dx, bound, 16 + x[0].size // groups)
        if affine:
            over = ref._but_channels(wide_x)
            close("weight", found["gradients"][0], dweight, (np.abs(wide_grad) * normal).sum(over), 16)
            close("bias", found["gradients"][1], dbias, np.abs(wide_grad).sum(over), 16)


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
def test_group_norm_has_the_same_bits_on_any_number_of_threads(isa, layout):
    rng = seeded("threads of groups")
    x, grad, parameters = float32(rng, 70, 6, 5, 5), float32(rng, 70, 6, 5, 5), [float32(rng, 6), float32(rng, 6)]
    one, *others = (groups_run(isa, x, 3, parameters, grad, layout=layout, threads=n) for n in (1, 2, 5))
    for other in others:
        np.testing.assert_array_equal(one["output"], other["output"])
        np.testing.assert_array_equal(one["grad_inputs"][0], other["grad_inputs"][0])
        for a, b in zip(one["gradients"], other["gradients"], strict=True):
            np.testing.assert_array_equal(a, b)


@isas
@pytest.mark.parametrize("layout", ["plain", "batch_last"])
def test_group_norm_passes_nan_on_in_its_group_alone(isa, layout):
    x = float32(seeded("nan groups"), 3, 6, 5)
    x[1, 2, 3] = np.nan
    y = groups_run(isa, x, 3, [], layout=layout)["output"]
    assert np.isnan(y[1, 2:4]).all() and np.isnan(y).sum() == 10


def test_groups_that_do_not_divide_the_channels_are_refused():
    for groups in (4, -1):
        with pytest.raises(ValueError, match=f"groups is {groups}; allowed: 0, and divisors of 6"):
            groups_run(None, np.ones((2, 6, 3), np.float32), groups, [])


# ---- networks

# Kind: the layer, and torch's.
NORMS = {
    "group_norm": (lambda: gg.GroupNorm(3, name="norm"), lambda nn: nn.GroupNorm(3, 6)),
    "rms_norm": (lambda: gg.RMSNorm((5, 7), name="norm"), lambda nn: nn.RMSNorm((5, 7), eps=1e-5)),
}
norms = pytest.mark.parametrize("kind", NORMS)


def net_of(kind):
    layers = [gg.Conv2d(6, 3, padding=1, name="c"), NORMS[kind][0](), gg.ReLU(), gg.Flatten(), gg.Linear(3, name="out")]
    return gg.Sequential(layers, input=(2, 5, 7))


def module_of(kind):
    nn = pytest.importorskip("torch").nn
    if kind == "rms_norm" and not hasattr(nn, "RMSNorm"):
        pytest.skip("a torch without RMSNorm")
    return nn.ModuleDict({"c": nn.Conv2d(2, 6, 3, padding=1), "norm": NORMS[kind][1](nn), "out": nn.Linear(210, 3)})


def batch_of(n):
    rng = np.random.default_rng(n)
    return float32(rng, n, 2, 5, 7), rng.integers(0, 3, n).astype(np.int32)


def weights_of(net):
    """Weights that all differ, those of the normalisation too."""
    rng = np.random.default_rng(5)
    return {name: rng.normal(0.3, 0.5, one.shape).astype(np.float32) for name, one in net.weights().items()}


@norms
@pytest.mark.parametrize("n", [1, 5])
def test_a_network_is_torchs(kind, n):
    torch = pytest.importorskip("torch")
    module, net, (x, y) = module_of(kind), net_of(kind), batch_of(n)
    module.load_state_dict({name: torch.tensor(one) for name, one in weights_of(net).items()})
    net.load_weights({name: one.numpy() for name, one in module.state_dict().items()})
    module.double()
    hidden = torch.relu(module["norm"](module["c"](torch.tensor(x).double())))
    loss = torch.nn.functional.cross_entropy(module["out"](hidden.flatten(1)), torch.tensor(y).long())
    loss.backward()
    with gg.Trainer(net, optimizer=gg.SGD(lr=0.1)) as trainer:
        assert trainer.train_step(x, y) == pytest.approx(loss.item(), rel=2e-6)
        for name, tensor in module.named_parameters():
            wanted = tensor.grad.numpy()
            assert np.abs(trainer.gradients()[name] - wanted).max() < 4e-6 * np.abs(wanted).max(), name


@norms
def test_no_sample_sees_another(kind, tmp_path):
    """Three ranks compute what one rank does, batches of 1 what a whole one does, and a loaded file the same bits."""
    net, (x, y) = net_of(kind), batch_of(12)
    net.load_weights(weights_of(net))
    found = {}
    for ranks in (1, 3):
        team = gg.VirtualCluster(ranks) if ranks > 1 else None
        with gg.Trainer(net, optimizer=gg.SGD(lr=0.1), strategy=gg.AllReduce(), comm=team) as trainer:
            parts = [list(np.split(one, ranks)) if ranks > 1 else one for one in (x, y)]
            for _ in range(3):
                trainer.train_step(*parts)
            found[ranks] = trainer.weights()
            if ranks > 1:
                continue
            whole = trainer.predict(x)
            singles = np.concatenate([trainer.predict(x[i : i + 1]) for i in range(12)])
            np.testing.assert_allclose(singles, whole, rtol=1e-5, atol=1e-5)
            trainer.save(tmp_path / "net.safetensors")
            with gg.Trainer.load(tmp_path / "net.safetensors") as loaded:
                assert loaded.net.same_network(net) and loaded.weights_sha256() == trainer.weights_sha256()
                np.testing.assert_array_equal(loaded.predict(x), whole)
    for name, one in found[1].items():
        np.testing.assert_allclose(found[3][name], one, rtol=1e-4, atol=1e-5, err_msg=name)


@norms
def test_gradients_in_bfloat16_are_near_those_of_float32(kind):
    net, (x, y) = net_of(kind), batch_of(8)
    net.load_weights(weights_of(net))
    found = []
    for dtype in ("float32", "bfloat16"):
        with gg.Trainer(net, dtype=dtype, device="cpu") as trainer:
            trainer.train_step(x, y)
            found.append(trainer.gradients())
    for name, wanted in found[0].items():
        away = np.linalg.norm(found[1][name] - wanted) / np.linalg.norm(wanted)
        assert 0 < away < 0.2, (name, away)


@norms
def test_units_in_front_of_it_stay(kind):
    assert apoptosis.fixed(net_of(kind))["c"] == f"'norm' ({kind}) reads them, through which units are not followed"


@norms
def test_a_wrapped_module_has_its_roles(kind):
    pytest.importorskip("torch")
    from gossipgrad.torch import modules

    described = dict(one.described() for one in modules.layers_of(module_of(kind)))
    roles = {name.rpartition(".")[2]: role for name, _, role, *_ in described["norm"]}
    own = {name.rpartition(".")[2]: role for name, role in net_of(kind).parameter_roles().items() if "norm" in name}
    assert roles == own and roles["weight"] == "scale"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: gg.RMSNorm(0), ValueError, "normalized_shape=0"),
        (lambda: gg.RMSNorm(eps=-1), ValueError, "eps=-1"),
        (lambda: gg.RMSNorm(bias=True), TypeError, "bias"),
        (lambda: gg.GroupNorm(0), ValueError, "groups=0"),
        (lambda: gg.GroupNorm(3, 6), TypeError, "GroupNorm.3, 6.: allowed without a keyword: the number of groups"),
        (lambda: gg.GroupNorm(3, eps=float("nan")), ValueError, "eps=nan"),
        (
            lambda: gg.Sequential([gg.GroupNorm(4)], input=(6, 3, 5)),
            ValueError,
            r"groups is 4; allowed: divisors of 6, the channels of \(6, 3, 5\)",
        ),
        (
            lambda: gg.Sequential([gg.RMSNorm((4, 5))], input=(3, 5)),
            ValueError,
            r"normalized_shape is \(4, 5\).*\(3, 5\)",
        ),
    ],
)
def test_wrong_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
