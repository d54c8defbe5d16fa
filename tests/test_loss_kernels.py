"""Losses of every instruction set, and their gradients, against float64 and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import ROUNDING, close, float32, isas, seeded

LAYOUTS = ["plain", "batch_last"]
LOSS_SHAPES = [(1, 1), (1, 10), (3, 2), (16, 17), (37, 10), (64, 10), (17, 3), (5, 1000), (33, 1)]


def loss_batch(kind: str, n: int, features: int, scale: float = 3.0):
    rng = seeded((kind, n, features))
    x = scale * float32(rng, n, features)
    if kind == "cross_entropy":
        return x, rng.integers(0, features, n).astype(np.int32)
    if kind == "binary_cross_entropy":
        return x, rng.integers(0, 2, (n, features)).astype(np.float32)
    return x, float32(rng, n, features)


def check_loss(isa, kind, layout, x, targets):
    total, right, grad, divisor, counted = operations.run_loss(isa, kind, layout, x, targets)
    assert (divisor, counted) == (len(x), len(x))
    wide = targets if kind == "cross_entropy" else targets.astype(np.float64)
    wanted, count, gradient = ref.LOSSES[kind](x.astype(np.float64), wide)
    size = np.abs(gradient)
    if kind == "cross_entropy":
        # x - max(x) is rounded to float32 before the exponential; p - 1 is a difference in double.
        far = wide_spread(x, targets)
        size = size * (1 + far) + 2.0**-52 / ROUNDING / len(x) * (np.arange(x.shape[1]) == targets[:, None])
    # cross-entropy's exponentials are float32, the rest is double
    assert total == pytest.approx(wanted, rel=2e-7, abs=2e-7 * len(x) if kind == "cross_entropy" else 1e-13)
    assert right == count
    close("gradient", grad, gradient, size, 16)


def wide_spread(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """How far each exponent is below the largest; for the target, whose gradient is the others' sum, their mean."""
    below = x.max(1, keepdims=True).astype(np.float64) - x
    share = np.exp(-below)
    n = np.arange(len(x))
    share[n, classes] = 0
    with np.errstate(invalid="ignore"):
        below[n, classes] = np.where(share > 0, share * below, 0).sum(1) / np.maximum(share.sum(1), 1e-300)
    return np.where(np.isfinite(below), below, 0)


@pytest.mark.core(24)
@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", LOSS_SHAPES, ids=str)
@pytest.mark.parametrize("kind", ref.LOSSES)
def test_loss(isa, kind, layout, shape):
    check_loss(isa, kind, layout, *loss_batch(kind, *shape))


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ref.LOSSES)
@pytest.mark.parametrize("scale", [1e-6, 30.0, 100.0, 1e4, 1e15])
def test_loss_of_extreme_scores(isa, kind, layout, scale):
    check_loss(isa, kind, layout, *loss_batch(kind, 37, 10, scale))


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy_of_the_largest_numbers(isa, layout):
    x = np.array([[3e38, -3e38, 0], [-3e38, -3e38, -3e38], [3e38, 3e38, 0], [0, -np.inf, 0]], np.float32)
    check_loss(isa, "cross_entropy", layout, x, np.array([0, 1, 1, 2], np.int32))
    total, _, grad, *_ = operations.run_loss(isa, "cross_entropy", layout, x[:1], np.array([1], np.int32))
    assert total == pytest.approx(6e38, rel=1e-6)
    assert grad.tolist() == [[1, -1, 0]]


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_lowest_class_wins_ties(isa, layout):
    x = np.zeros((37, 20), np.float32)
    x[:, 3] = x[:, 7] = x[:, 19] = 1
    for target, right in [(3, 37), (7, 0), (19, 0), (0, 0)]:
        assert operations.run_loss(isa, "cross_entropy", layout, x, np.full(37, target, np.int32))[1] == right


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ref.LOSSES)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_nan_reaches_the_loss(isa, kind, layout, place):
    x, targets = loss_batch(kind, 5, 10)
    x[3, place] = np.nan
    total, _, grad, *_ = operations.run_loss(isa, kind, layout, x, targets)
    assert math.isnan(total)
    assert np.isnan(grad[3, place])
    assert np.isfinite(np.delete(grad, 3, 0)).all()


POSITIONS = {
    "a-sequence": (3, 5, 7, {}),
    "one-position": (5, 1, 11, dict(label_smoothing=0.1)),
    "batch-1": (1, 4, 3, dict(label_smoothing=0.3, weights=True)),
    "ignored": (17, 3, 20, dict(ignored=0.4)),
    "ignored-and-weights": (37, 2, 5, dict(ignored=0.3, weights=True)),
    "everything": (16, 6, 33, dict(ignored=0.2, weights=True, label_smoothing=0.2, samples=True, threads=3)),
    "nothing-counts": (3, 2, 4, dict(ignored=1.0, label_smoothing=0.2)),
    "weights": (19, 1, 9, dict(weights=True)),
    "a-class-of-weight-0": (19, 1, 2, dict(weights=True, zero=True)),
    "smoothed-and-a-class-of-weight-0": (19, 2, 3, dict(weights=True, zero=True, label_smoothing=0.2, ignored=0.2)),
    "only-weight-0": (5, 1, 3, dict(weights=True, zero=True, only=0, label_smoothing=0.2)),
    "only-weight-0-and-ignored": (17, 3, 4, dict(weights=True, zero=True, only=0, label_smoothing=0.2, ignored=0.5)),
    "vocabulary": (2, 40, 1000, dict(label_smoothing=0.1, threads=2)),
}


NOTHING = {"nothing-counts", "only-weight-0", "only-weight-0-and-ignored"}  # PyTorch divides by 0 there


def positions_case(name):
    """Scores, targets, options of run_loss and of the reference."""
    n, positions, classes, how = POSITIONS[name]
    rng = seeded(POSITIONS[name])
    x, targets = 3 * float32(rng, n, positions, classes), rng.integers(0, classes, (n, positions)).astype(np.int32)
    if "only" in how:
        targets[:] = how["only"]
    options = {key: how[key] for key in ("label_smoothing",) if key in how}
    if how.get("ignored"):
        options["ignore_index"] = -100
        targets[rng.random(targets.shape) < how["ignored"]] = -100
    if how.get("weights"):
        options["class_weights"] = rng.uniform(0.1, 3, classes).astype(np.float32)
        options["class_weights"][0] *= not how.get("zero")
    if how.get("samples"):
        options["sample_weights"] = rng.uniform(0, 2, n).astype(np.float32)
    return x, targets, options, how.get("threads", 1)


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", POSITIONS)
def test_cross_entropy_of_positions(isa, layout, name):
    x, targets, options, threads = positions_case(name)
    total, right, grad, divisor, counted = operations.run_loss(
        isa, "cross_entropy", layout, x, targets, threads=threads, **options
    )
    wide = {k: v.astype(np.float64) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    wanted = ref.cross_entropy_of_positions(x.astype(np.float64), targets, **wide)
    assert (right, counted) == (wanted.correct, wanted.counted)
    assert divisor == pytest.approx(wanted.divisor, rel=1e-12)
    assert total == pytest.approx(wanted.loss, rel=4e-7, abs=1e-12)
    below = x.max(-1, keepdims=True) - x  # is rounded before the exponential
    close("gradient", grad, wanted.gradient, wanted.magnitude * (1 + below), 16)
    assert divisor > 0 or not grad.any()


def test_positions_agree_with_their_own_differences():
    x, targets, options, _ = positions_case("everything")
    x, step = x.astype(np.float64), 1e-6
    given = ref.cross_entropy_of_positions(x, targets, **options)
    for at in [(0, 0, 0), (3, 5, 32), (15, 2, 7), (8, 1, int(max(targets[8, 1], 0)))]:
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        difference = [ref.cross_entropy_of_positions(y, targets, **options).loss for y in (up, down)]
        slope = (difference[0] - difference[1]) / (2 * step) / given.divisor
        assert slope == pytest.approx(given.gradient[at], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", [one for one in POSITIONS if one not in NOTHING | {"everything"}])
def test_cross_entropy_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, targets, options, _ = positions_case(name)
    weights = options.get("class_weights")
    scores = torch.tensor(x.reshape(-1, x.shape[-1]), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(
        scores,
        torch.tensor(targets.ravel(), dtype=torch.int64),
        weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        ignore_index=options.get("ignore_index", -100),
        label_smoothing=options.get("label_smoothing", 0.0),
    )
    loss.backward()
    total, _, grad, divisor, _ = operations.run_loss(None, "cross_entropy", "plain", x, targets, **options)
    assert total / divisor == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(grad.reshape(scores.shape), scores.grad.numpy(), rtol=1e-5, atol=1e-7)
