"""Attention and multi-head attention: every instruction set against float64, and PyTorch's."""

from __future__ import annotations

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import close, float32, isas, same, seeded

import gossipgrad as gg

ATTENTION = {
    "one-of-everything": (1, 1, 1, 1, {}),
    "batch-1": (1, 5, 2, 3, {}),
    "one-position": (7, 1, 3, 8, dict(causal=True)),
    "causal": (3, 17, 2, 5, dict(causal=True)),
    "nanogpt": (2, 64, 4, 32, dict(causal=True)),
    "a-block-and-one": (2, 65, 2, 16, dict(causal=True)),
    "blocks": (1, 150, 1, 7, {}),
    "blocks-causal": (2, 130, 3, 33, dict(causal=True, threads=2)),
    "lengths": (5, 9, 2, 4, dict(lengths=True)),
    "lengths-causal": (4, 70, 2, 6, dict(lengths=True, causal=True)),
    "extreme": (2, 12, 2, 4, dict(scale=30.0)),
    "dropout": (3, 10, 2, 4, dict(probability=0.3)),
    "dropout-causal": (2, 67, 2, 5, dict(probability=0.5, causal=True, threads=3)),
    "dropout-lengths": (3, 13, 2, 5, dict(probability=0.2, lengths=True)),
}


def attention_case(name):
    n, positions, heads, size, how = ATTENTION[name]
    rng = seeded(ATTENTION[name])
    x = float32(rng, n, positions, 3 * heads * size) * np.float32(how.get("scale", 1))
    lengths = rng.integers(1, positions + 1, (n, 1)).astype(np.int32) if how.get("lengths") else None
    return x, lengths, float32(rng, n, positions, heads * size), heads, how


def run_attention(backend, isa, name, **more):
    x, lengths, grad, heads, how = attention_case(name)
    options = {k: v for k, v in how.items() if k not in ("lengths", "scale")} | more
    inputs = [x] if lengths is None else [x, lengths]
    return operations.run_op(
        backend, isa, "attention", inputs, grad.shape[1:], grad_output=grad, heads=heads, seed=3, step=5, **options
    )


def attention_mask(name):
    """What dropout multiplies the weights by, found from the output: with values that are unit vectors it is shown."""
    x, lengths, _, heads, how = attention_case(name)
    if not how.get("probability"):
        return None
    n, positions = x.shape[:2]
    size = x.shape[2] // 3 // heads
    mask = np.zeros((n, heads, positions, positions))
    for begin in range(0, positions, size):
        shown = x.reshape(n, positions, 3, heads, size).copy()
        shown[:, :, 2] = 0
        for j in range(begin, min(begin + size, positions)):
            shown[:, j, 2, :, j - begin] = 1
        inputs = [shown.reshape(x.shape)] + ([] if lengths is None else [lengths])
        options = {k: v for k, v in how.items() if k != "lengths"}
        y = operations.run_op(
            "native", None, "attention", inputs, (positions, heads * size), heads=heads, seed=3, step=5, **options
        )["output"]
        part = y.reshape(n, positions, heads, size).transpose(0, 2, 1, 3)
        mask[..., begin : begin + size] = part[..., : min(size, positions - begin)]
    _, weights = ref.attention(x.astype(np.float64), heads, how.get("causal", False), lengths)
    factor = mask / np.where(weights > 0, weights, 1)
    kept = 1 / (1 - how["probability"])
    assert np.all((np.abs(factor) < 1e-3) | (np.abs(factor - kept) < 1e-3 * kept))
    share = (factor > kept / 2).sum() / (weights > 0).sum()
    assert abs(share - (1 - how["probability"])) < 0.1
    return np.where(factor > kept / 2, kept, 0)


@isas
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(isa, name):
    x, lengths, grad, heads, how = attention_case(name)
    found = run_attention("native", isa, name)
    wide, mask = x.astype(np.float64), attention_mask(name)
    y, weights = ref.attention(wide, heads, how.get("causal", False), lengths, mask)
    # A score is a sum of products; what it is off by is a factor of its weight, and so of all that follows.
    far = how.get("scale", 1) ** 2
    size = ref.attention(np.abs(wide) * 0 + np.abs(wide), heads)[0] * 0 + np.abs(wide).max() * 4 * far
    close("output", found["output"], y, size, x.shape[1])
    back = ref.attention_backward(wide, weights, grad.astype(np.float64), mask)
    size = np.abs(back).max() + np.abs(wide).max() * np.abs(grad).max() * far * 4
    close("grad_input", found["grad_inputs"][0], back, size, x.shape[1])


def test_attention_agrees_with_its_own_differences():
    x, lengths, grad, heads, how = attention_case("dropout-lengths")
    wide, mask, step = x.astype(np.float64), attention_mask("dropout-lengths"), 1e-6
    _, weights = ref.attention(wide, heads, False, lengths, mask)
    back = ref.attention_backward(wide, weights, grad.astype(np.float64), mask)
    rng = np.random.default_rng(0)
    for _ in range(20):
        at = tuple(int(rng.integers(size)) for size in x.shape)
        up, down = wide.copy(), wide.copy()
        up[at] += step
        down[at] -= step
        both = [(ref.attention(z, heads, False, lengths, mask)[0] * grad).sum() for z in (up, down)]
        assert (both[0] - both[1]) / (2 * step) == pytest.approx(back[at], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", ["blocks-causal", "dropout-causal", "lengths"])
def test_attention_is_the_same_for_any_threads(name):
    one, three = run_attention("native", None, name, threads=1), run_attention("native", None, name, threads=3)
    same("output", one["output"], three["output"])
    same("grad_input", one["grad_inputs"][0], three["grad_inputs"][0])


def test_no_dropout_in_evaluation():
    x, _, _, heads, _ = attention_case("dropout")
    y = operations.run_op(
        "native", None, "attention", [x], (10, 8), heads=heads, probability=0.3, evaluate=True, training=True
    )["output"]
    without = operations.run_op("native", None, "attention", [x], (10, 8), heads=heads, training=False)["output"]
    same("output", y, without)


@pytest.mark.parametrize("length", [0, -1, 10])
def test_a_wrong_length_is_named(length):
    lengths = np.array([[9], [length], [3]], np.int32)
    with pytest.raises(ValueError, match=f"the length of sample 1 of the batch is {length}; allowed: 1 to 9"):
        operations.run_op("native", None, "attention", [np.zeros((3, 9, 6), np.float32), lengths], (9, 2), heads=1)


@pytest.mark.parametrize("made", [gg.Attention(2), gg.MultiHeadAttention(12, 2)], ids=lambda one: type(one).__name__)
def test_lengths_are_checked_before_the_first_step(made):
    """The error names the first bad sample. Lengths behind a view and lengths of validation are checked too."""
    x, lengths = gg.Input((5, 12), name="x"), gg.Input((1, 1), dtype="int32", name="lengths")
    layer = type(made)(2) if isinstance(made, gg.Attention) else type(made)(12, 2)
    net = gg.Model([x, lengths], gg.Linear(3)(layer(x, gg.Reshape((1,))(lengths))))
    given = {"x": np.ones((40, 5, 12), np.float32), "lengths": np.full((40, 1, 1), 5)}
    targets = np.zeros((40, 5), np.int32)
    for wrong, allowed in ((0, False), (6, False), (1, True)):
        given["lengths"][33] = wrong
        with gg.Trainer(net) as trainer:
            if allowed:
                trainer.fit(gg.Dataset(given, targets), batch_size=10, progress=False)
                continue
            message = f"input 1: sample 33 has number {wrong}; allowed are 1 to 5"
            with pytest.raises(ValueError, match=message):
                trainer.fit(gg.Dataset(given, targets), batch_size=10, progress=False)
            with pytest.raises(ValueError, match=f"samples: number {wrong}; the network has numbers 1 to 5"):
                trainer.train_step(given, targets)
            assert trainer.step == 0


@pytest.mark.parametrize("name", ["one-position", "nanogpt", "a-block-and-one", "blocks", "lengths", "lengths-causal"])
def test_attention_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, lengths, grad, heads, how = attention_case(name)
    n, positions = x.shape[:2]
    packed = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    query, key, value = packed.reshape(n, positions, 3, heads, -1).permute(2, 0, 3, 1, 4)
    allowed = torch.ones(n, 1, positions, positions, dtype=torch.bool)
    if how.get("causal"):
        allowed = allowed.tril()
    if lengths is not None:
        allowed = allowed & (torch.arange(positions) < torch.tensor(lengths).reshape(n, 1, 1, 1))
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value, allowed)
    y = y.permute(0, 2, 1, 3).reshape(n, positions, -1)
    y.backward(torch.tensor(grad, dtype=torch.float64))
    found = run_attention("native", None, name)
    np.testing.assert_allclose(found["output"], y.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["grad_inputs"][0], packed.grad.numpy(), rtol=1e-4, atol=1e-5)


@isas
@pytest.mark.parametrize(
    "case",
    [(1, 1, 1, 1, {}), (3, 9, 2, 5, {}), (2, 66, 3, 4, dict(causal=True, threads=2)), (4, 7, 2, 3, dict(bias=False)),
     (5, 8, 2, 4, dict(lengths=True)), (2, 5, 1, 6, dict(input_grad=False)), (3, 6, 2, 5, dict(embed=20)),
     (2, 4, 3, 8, dict(embed=7))],
    ids=str,
)  # fmt: skip
def test_multi_head_attention(isa, case):
    n, positions, heads, size, how = case
    rng, inner = seeded(case), heads * size
    embed = how.get("embed", inner)
    x, grad = float32(rng, n, positions, embed), float32(rng, n, positions, embed)
    lengths = rng.integers(1, positions + 1, (n, 1)).astype(np.int32) if how.get("lengths") else None
    sizes = [(3 * inner, embed), (3 * inner,), (embed, inner), (embed,)]
    given = [float32(rng, *one) / np.float32(np.sqrt(embed)) for one in sizes]
    wide = [p.astype(np.float64) * (how.get("bias", True) or p.ndim == 2) for p in given]
    options = dict(bias=True) | {k: v for k, v in how.items() if k not in ("lengths", "embed")}
    found = operations.run_op(
        "native",
        isa,
        "multi_head",
        [x] if lengths is None else [x, lengths],
        grad.shape[1:],
        parameters=[p for p in given if options["bias"] or p.ndim == 2],
        grad_output=grad,
        heads=heads,
        head_size=size,
        **options,
    )
    packed = x.astype(np.float64) @ wide[0].T + wide[1]
    mixed, weights = ref.attention(packed, heads, how.get("causal", False), lengths)
    close("output", found["output"], mixed @ wide[2].T + wide[3], np.abs(mixed).max() * size + 4, 8 * positions)
    error = grad.astype(np.float64)
    back = ref.attention_backward(packed, weights, error @ wide[2])
    flat = [a.reshape(-1, a.shape[-1]) for a in (back, x.astype(np.float64), error, mixed)]
    wanted = [flat[0].T @ flat[1], flat[0].sum(0), flat[2].T @ flat[3], flat[2].sum(0)]
    scale = max(np.abs(w).max() for w in wanted) + np.abs(packed).max() ** 2
    for one, w in zip(found["gradients"], [w for w in wanted if options["bias"] or w.ndim == 2], strict=True):
        close("gradient", one, w, scale, 8 * positions * n)
    if options.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], back @ wide[0], scale, 8 * positions)


def test_multi_head_attention_is_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    net = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    tokens = gg.Input((7, 12))
    model = gg.Model(tokens, gg.MultiHeadAttention(12, 3, causal=True, name="attn")(tokens))
    named = list(net.named_parameters())
    assert [name for name, *_ in model.graph.parameters()] == [f"attn.{name}" for name, _ in named]
    x, grad = float32(rng, 4, 7, 12), float32(rng, 4, 7, 12)
    z = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y, _ = net(z, z, z, attn_mask=torch.ones(7, 7).triu(1).bool(), need_weights=False)
    y.backward(torch.tensor(grad, dtype=torch.float64))
    given = [own.detach().numpy().astype(np.float32) for _, own in named]
    found = operations.run_op(
        "native", None, "multi_head", [x], (7, 12), parameters=given, bias=True, grad_output=grad, heads=3, causal=True,
        head_size=4,
    )  # fmt: skip
    np.testing.assert_allclose(found["output"], y.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found["grad_inputs"][0], z.grad.numpy(), rtol=1e-4, atol=1e-5)
    for one, (_, own) in zip(found["gradients"], named, strict=True):
        np.testing.assert_allclose(one, own.grad.numpy(), rtol=1e-4, atol=1e-5)
