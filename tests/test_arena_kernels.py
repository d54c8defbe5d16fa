"""Kernels on arenas of every instruction set: updates, mixes, sums, bfloat16."""

from __future__ import annotations

import itertools
import math

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import bfloat16, close, float32, isas, seeded

SIZES = [16, 48, 1040, 4096 + 16]


def kernel(isa, name, arrays, numbers=()):
    return operations.run_kernel(isa, name, arrays, list(numbers))


RULES = ("plain", "momentum", "nesterov", "adam", "adam mean", "lion")
# rule, bfloat16 wire, then grad_scale lr mu weight_decay d_share beta2 square_share keep root_scale eps mean_share
UPDATE = [0.5, 0.1, 0.9, 0.01, 0.1, 0.99, 0.01, 0.97, 1.5, 1e-3, 0.3]


def test_bfloat16_of_the_reference():
    given, wanted = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 5 * 2**-9, 0.0], [1.0, 1 + 2**-6, -1 - 2**-7, 0.0]
    assert bfloat16(np.float32(given)).tolist() == wanted


@pytest.mark.core(24)
@isas
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("received", [0, 1, 2, 7])
@pytest.mark.parametrize("rule", RULES)
def test_update(isa, rule, received, narrow):
    for n in SIZES[:3]:
        rng = seeded((n, received, rule))
        grad, weight, m, s, *came = (float32(rng, n) for _ in range(7))
        s, came[2] = np.abs(s), np.abs(came[2])
        keeps, adam = rule != "plain", rule.startswith("adam")
        given = [came[i] if received >> i & 1 and (True, keeps, adam)[i] else None for i in range(3)]
        arrays = [grad, weight, m if keeps else None, s if adam else None, *given]
        found = kernel(isa, "update", arrays, [RULES.index(rule), narrow, *UPDATE])
        scale, lr, mu, decay, d_share, beta2, square_share, keep, root_scale, eps, mean = map(float, np.float32(UPDATE))
        sent = bfloat16 if narrow else np.asarray
        w = weight.astype(np.float64)
        owns = zip(given, (weight, m, s), strict=True)
        displaced = [0 if there is None else (np.float64(sent(there)) - sent(own)) / 2 for there, own in owns]
        if adam:
            d = scale * grad.astype(np.float64) + decay * w
            m_out = mu * (m + displaced[1]) + d_share * d
            of_mean = mean * m_out * m_out if rule == "adam mean" else 0
            s_out = np.maximum(beta2 * (s + displaced[2]) + square_share * d * d + of_mean, 0)
            w_out = keep * w - lr * m_out / (np.sqrt(s_out) * root_scale + eps)
            close("second moment", found[2], s_out, s + d * d + m_out * m_out + np.abs(came[2]), 4)
            assert np.array_equal(found[5], sent(found[2]))
        elif rule == "lion":
            d = scale * grad.astype(np.float64) + decay * w
            w_out = keep * w - lr * np.sign(mu * (m + displaced[1]) + d_share * d)
            m_out = beta2 * (m + displaced[1]) + square_share * d
        else:
            start = m + displaced[1] if keeps else np.zeros(n)
            w_out, m_out = ref.sgd(w, scale * grad, start, lr, mu if keeps else 0.0, decay, rule == "nesterov")
            assert found[2] is None and found[5] is None
        size = sum(np.abs(a.astype(np.float64)) for a in arrays if a is not None)
        w_out = w_out + displaced[0]
        close("weight", found[0], w_out, size, 4)
        assert np.array_equal(found[3], sent(found[0]))
        if not keeps:
            assert found[1] is None and found[4] is None
            continue
        close("momentum", found[1], m_out, size, 4)
        assert np.array_equal(found[4], sent(found[1]))


@isas
@pytest.mark.parametrize("rule", RULES)
def test_what_pads_a_layer_stays_zero(isa, rule):
    zero = np.zeros(16, np.float32)
    arrays = [zero, zero, None if rule == "plain" else zero, zero if rule.startswith("adam") else None, *[None] * 3]
    found = kernel(isa, "update", arrays, [RULES.index(rule), 0, *UPDATE[:-2], 2.0**-126, 0.3])
    assert not any(np.any(array) for array in found if array is not None)


@isas
def test_adam_is_torchs(isa):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.999, 1e-8, 0.1
    for decoupled in (False, True):
        weight, m, s = float32(rng, 48), np.zeros(48, np.float32), np.zeros(48, np.float32)
        tensor = torch.tensor(weight.astype(np.float64), requires_grad=True)
        make = torch.optim.AdamW if decoupled else torch.optim.Adam
        theirs = make([tensor], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        for t in range(1, 6):
            grad = float32(rng, 48)
            tensor.grad = torch.tensor(grad.astype(np.float64))
            theirs.step()
            numbers = [1, lr / (1 - beta1**t), beta1, 0 if decoupled else decay, 1 - beta1, beta2, 1 - beta2]
            numbers += [1 - lr * decay if decoupled else 1, 1 / math.sqrt(1 - beta2**t), eps]
            weight, m, s, *_ = kernel(isa, "update", [grad, weight, m, s, None, None, None], [3, 0, *numbers])
        np.testing.assert_allclose(weight, tensor.detach(), rtol=2e-6, atol=2e-7)


@isas
def test_the_sign_of_lion(isa):
    """That of 0 is 0, of NaN NaN, and of the smallest normal number 1."""
    grad, nothing = np.zeros(16, np.float32), np.zeros(16, np.float32)
    grad[:6] = [0.0, -0.0, np.nan, np.inf, 2.0**-126, -(2.0**-126)]
    arrays = [grad, np.ones(16, np.float32), nothing, None, None, None, None]
    weight, m, *_ = kernel(isa, "update", arrays, [RULES.index("lion"), 0, 1, 0.5, 0, 0, 1, 0, 1, 1, 1, 1])
    assert np.array_equal(weight[:6], [1, 1, np.nan, 0.5, 0.5, 1.5], equal_nan=True) and np.all(weight[6:] == 1)
    assert np.array_equal(m[:6], grad[:6], equal_nan=True)


@isas
@pytest.mark.parametrize("n", SIZES)
def test_bfloat16_kernels(isa, n):
    arrays = [float32(seeded((n, i)), n) for i in range(5)]
    assert np.array_equal(kernel(isa, "narrow", arrays[:1]), bfloat16(arrays[0]))
    base, received, sent = arrays[0].astype(np.float64), *(np.float64(bfloat16(a)) for a in arrays[1:3])
    size = np.abs(base) + np.abs(received) + np.abs(sent)
    close("mix", kernel(isa, "mix", arrays[:3], [0.5, 1]), base + (received - sent) / 2, size)
    assert np.array_equal(kernel(isa, "mix", [arrays[0], arrays[0], arrays[0]], [1, 1]), arrays[0])
    scale = np.float32([0.5, 0.2, -0.1, 0.7, 0.3])
    wanted = np.sum([np.float64(f) * bfloat16(a) for f, a in zip(scale, arrays, strict=True)], 0)
    plain, found, narrow = kernel(isa, "narrow_sum", arrays, scale.tolist())
    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(found, bfloat16(plain)) and np.array_equal(narrow, found)
    narrow, added = kernel(isa, "narrow_difference", arrays[:2])
    assert np.array_equal(narrow, bfloat16(arrays[0] - bfloat16(arrays[1])))
    assert np.array_equal(added, arrays[0] + narrow)


@isas
@pytest.mark.parametrize("n", SIZES)
def test_mix_and_sums(isa, n):
    arrays = [float32(seeded(n), n) for _ in range(1)] + [float32(seeded((n, i)), n) for i in range(7)]
    base, received, snapshot = (a.astype(np.float64) for a in arrays[:3])
    size = np.abs(base) + np.abs(received) + np.abs(snapshot)
    close("mix", kernel(isa, "mix", arrays[:3], [0.5]), base + (received - snapshot) / 2, size)
    for count in range(1, 9):
        scale = [0.5 - 0.3 * i for i in range(count)]
        parts = [np.float64(np.float32(s)) * a for s, a in zip(scale, arrays, strict=False)]
        found = kernel(isa, "weighted_sum", arrays[:count], scale)
        close("weighted_sum", found, np.sum(parts, 0), np.abs(parts).sum(0), count)
    wanted = float((base**2).sum())
    assert kernel(isa, "sum_squares", [arrays[0], None]) == pytest.approx(wanted, rel=1e-12)
    # The difference is one rounding of float32 at most.
    wanted = float(((base - received) ** 2).sum())
    assert kernel(isa, "sum_squares", arrays[:2]) == pytest.approx(wanted, rel=2e-7)


@isas
def test_equal_replicas_are_exact(isa):
    a, b = (float32(seeded(i), 1040) for i in range(2))
    assert kernel(isa, "mix", [a, b, b], [0.5]).tobytes() == a.tobytes()
    assert kernel(isa, "sum_squares", [a, a]) == 0


@isas
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite(isa, n, bad):
    a = 3e38 * np.sign(float32(seeded(n), n))
    assert kernel(isa, "all_finite", [a]) is True
    for place in {0, 7, 15, n // 2, n - 1}:
        one = a.copy()
        one[place] = bad
        assert kernel(isa, "all_finite", [one]) is False


@isas
@pytest.mark.parametrize("turn", [1, 16, 333])
def test_an_element_does_not_depend_on_its_place(isa, turn):
    """Else a bucket cut elsewhere, or another number of ranks, would give other bits."""
    n = 1040
    arrays = [float32(seeded(("place", i)), n) for i in range(7)]
    turned = [np.roll(a, turn) for a in arrays]
    for rule, narrow in itertools.product(range(len(RULES)), (0, 1)):
        both = [kernel(isa, "update", [np.abs(a) for a in some], [rule, narrow, *UPDATE]) for some in (arrays, turned)]
        for one, other in zip(*both, strict=True):
            assert one is other is None or np.roll(one, turn).tobytes() == other.tobytes()
    for name, count, numbers in [
        ("mix", 3, [0.5]),
        ("mix", 3, [0.5, 1]),
        ("narrow", 1, []),
        ("weighted_sum", 5, [0.1, 0.2, 0.3, 0.4, 0.5]),
    ]:
        one, other = kernel(isa, name, arrays[:count], numbers), kernel(isa, name, turned[:count], numbers)
        assert np.roll(one, turn).tobytes() == other.tobytes(), name
    # Neither on how much is done in one call.
    whole, part = kernel(isa, "mix", arrays[:3], [0.5]), kernel(isa, "mix", [a[:48] for a in arrays[:3]], [0.5])
    assert whole[:48].tobytes() == part.tobytes()
