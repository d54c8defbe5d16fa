"""What every operation must compute, written plainly in NumPy; give it float64.

Arrays are (batch, channels, height, width) or (batch, features), weights in PyTorch's shapes. Windows are pairs
(height, width). A function `f_backward` gives the gradients of sum(grad_output * f(...)). Slow and obvious on purpose.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[int, int]


def window_output(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil: bool = False) -> int:
    """PyTorch's output size along one axis."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    output = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (output - 1) * stride >= size + padding:  # a last window that would start in the right padding
        output -= 1
    return output


# ---- convolution and linear


def _taps(kernel: Pair, stride: Pair, dilation: Pair, output: Pair):
    """For each element of the kernel the slices of the padded input that it meets, one value an output."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (output[0] - 1) + 1, stride[0])
            columns = slice(left, left + stride[1] * (output[1] - 1) + 1, stride[1])
            yield i, j, rows, columns


def _pad(x: Array, padding: Pair) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])))


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Array:
    kernel = weight.shape[2:]
    out = tuple(window_output(x.shape[2 + a], kernel[a], stride[a], padding[a], dilation[a]) for a in (0, 1))
    padded = _pad(x, padding)
    y = np.zeros((len(x), len(weight), *out), x.dtype)
    ins, outs = x.shape[1] // groups, len(weight) // groups
    for g in range(groups):
        source, target = slice(g * ins, (g + 1) * ins), slice(g * outs, (g + 1) * outs)
        for i, j, rows, columns in _taps(kernel, stride, dilation, out):
            y[:, target] += np.einsum("nchw,oc->nohw", padded[:, source, rows, columns], weight[target, :, i, j])
    return y if bias is None else y + bias[:, None, None]


def conv2d_backward(
    x: Array,
    weight: Array,
    grad: Array,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias."""
    padded = _pad(x, padding)
    grad_padded, grad_weight = np.zeros_like(padded), np.zeros_like(weight)
    ins, outs = x.shape[1] // groups, len(weight) // groups
    for g in range(groups):
        source, target = slice(g * ins, (g + 1) * ins), slice(g * outs, (g + 1) * outs)
        for i, j, rows, columns in _taps(weight.shape[2:], stride, dilation, grad.shape[2:]):
            grad_padded[:, source, rows, columns] += np.einsum(
                "nohw,oc->nchw", grad[:, target], weight[target, :, i, j]
            )
            grad_weight[target, :, i, j] = np.einsum("nohw,nchw->oc", grad[:, target], padded[:, source, rows, columns])
    height, width = x.shape[2:]
    grad_input = grad_padded[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return grad_input, grad_weight, grad.sum((0, 2, 3))


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T + (0 if bias is None else bias)


def linear_backward(x: Array, weight: Array, grad: Array) -> tuple[Array, Array, Array]:
    return grad @ weight, grad.T @ x, grad.sum(0)


# ---- pooling


def _windows(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil: bool):
    """Each output (row, column) with the rows and the columns of the input in its window, and the window's size when
    the padding counts: clipped at the padding's edge."""
    out = [window_output(size[a], kernel[a], stride[a], padding[a], dilation[a], ceil) for a in (0, 1)]
    inside: list[list[list[int]]] = [[], []]
    extent: list[list[int]] = [[], []]
    for a in (0, 1):
        for o in range(out[a]):
            places = [o * stride[a] - padding[a] + k * dilation[a] for k in range(kernel[a])]
            inside[a].append([p for p in places if 0 <= p < size[a]])
            extent[a].append(sum(p < size[a] + padding[a] for p in places))
    for h in range(out[0]):
        for w in range(out[1]):
            yield h, w, inside[0][h], inside[1][w], extent[0][h] * extent[1][w]


def _pooled(x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil: bool) -> Array:
    size = [window_output(x.shape[2 + a], kernel[a], stride[a], padding[a], dilation[a], ceil) for a in (0, 1)]
    return np.zeros((*x.shape[:2], *size), x.dtype)


def max_pool2d(
    x: Array,
    kernel: Pair,
    stride: Pair,
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    ceil: bool = False,
) -> tuple[Array, Array]:
    """The output, and the place row * width + column of each winner: the first of equals; a later NaN beats all."""
    y = _pooled(x, kernel, stride, padding, dilation, ceil)
    winner = np.full(y.shape, -1, np.int64)
    for h, w, rows, columns, _ in _windows(x.shape[2:], kernel, stride, padding, dilation, ceil):
        for r in rows:
            for c in columns:
                value = x[:, :, r, c]
                wins = (winner[:, :, h, w] < 0) | (value > y[:, :, h, w]) | np.isnan(value)
                y[:, :, h, w] = np.where(wins, value, y[:, :, h, w])
                winner[:, :, h, w] = np.where(wins, r * x.shape[3] + c, winner[:, :, h, w])
    return y, winner


def max_pool2d_backward(x: Array, winner: Array, grad: Array) -> Array:
    flat = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), grad.dtype)
    n, c = np.indices(winner.shape[:2])
    for h in range(winner.shape[2]):
        for w in range(winner.shape[3]):
            flat[n, c, winner[:, :, h, w]] += grad[:, :, h, w]
    return flat.reshape(x.shape)


def avg_pool2d(
    x: Array,
    kernel: Pair,
    stride: Pair,
    padding: Pair = (0, 0),
    ceil: bool = False,
    count_include_pad: bool = True,
) -> Array:
    y = _pooled(x, kernel, stride, padding, (1, 1), ceil)
    for h, w, rows, columns, extent in _windows(x.shape[2:], kernel, stride, padding, (1, 1), ceil):
        divisor = extent if count_include_pad else len(rows) * len(columns)
        y[:, :, h, w] = x[:, :, rows][:, :, :, columns].sum((2, 3)) / divisor
    return y


def avg_pool2d_backward(
    x: Array,
    grad: Array,
    kernel: Pair,
    stride: Pair,
    padding: Pair = (0, 0),
    ceil: bool = False,
    count_include_pad: bool = True,
) -> Array:
    grad_input = np.zeros(x.shape, grad.dtype)
    for h, w, rows, columns, extent in _windows(x.shape[2:], kernel, stride, padding, (1, 1), ceil):
        divisor = extent if count_include_pad else len(rows) * len(columns)
        for r in rows:
            for c in columns:
                grad_input[:, :, r, c] += grad[:, :, h, w] / divisor
    return grad_input


# ---- element by element; backward passes start from the output


def relu(x: Array) -> Array:
    return np.where(x < 0, 0, x)  # NaN stays NaN


def relu_backward(y: Array, grad: Array) -> Array:
    return np.where(y > 0, grad, 0)


def tanh(x: Array) -> Array:
    return np.tanh(x)


def tanh_backward(y: Array, grad: Array) -> Array:
    return grad * (1 - y * y)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def sigmoid_backward(y: Array, grad: Array) -> Array:
    return grad * y * (1 - y)


# ---- attention


def attention(
    x: Array, heads: int, causal: bool = False, lengths: Array | None = None, mask: Array | None = None
) -> tuple[Array, Array]:
    """Packed queries, keys and values (n, T, 3C) to (n, T, C), and the weights (n, heads, T, T). mask: factors of the
    weights, as dropout has them."""
    n, positions, features = x.shape
    query, key, value = x.reshape(n, positions, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    hidden = np.zeros(scores.shape, bool)
    if causal:
        hidden |= np.triu(np.ones((positions, positions), bool), 1)
    if lengths is not None:
        hidden |= np.arange(positions) >= np.reshape(lengths, (n, 1, 1, 1))
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = (weights if mask is None else weights * mask) @ value
    return y.transpose(0, 2, 1, 3).reshape(n, positions, features // 3), weights


def attention_backward(x: Array, weights: Array, grad: Array, mask: Array | None = None) -> Array:
    n, heads, positions, _ = weights.shape
    query, key, value = x.reshape(n, positions, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    error = grad.reshape(n, positions, heads, -1).transpose(0, 2, 1, 3)
    used = weights if mask is None else weights * mask
    d = error @ value.swapaxes(-1, -2) * (1 if mask is None else mask)
    d = weights * (d - (weights * d).sum(-1, keepdims=True)) / np.sqrt(query.shape[-1])
    parts = np.stack([d @ key, d.swapaxes(-1, -2) @ query, used.swapaxes(-1, -2) @ error])
    return parts.transpose(1, 3, 0, 2, 4).reshape(x.shape)


# ---- LSTM


def _lstm_layer(x: Array, weights: Sequence[Array], state: Array, cell: Array) -> dict[str, Array]:
    """One layer over (n, T, I) with weight_ih, weight_hh, bias_ih, bias_hh: everything of every step."""
    weight_ih, weight_hh, bias = weights[0], weights[1], weights[2] + weights[3]
    n, positions, hidden = x.shape[0], x.shape[1], weight_hh.shape[1]
    gates, cells, states = np.zeros((n, positions, 4, hidden)), np.zeros((n, positions, hidden)), None
    states = np.zeros_like(cells)
    before = (np.zeros_like(cells), np.zeros_like(cells))
    for t in range(positions):
        before[0][:, t], before[1][:, t] = state, cell
        i, f, g, o = np.split(x[:, t] @ weight_ih.T + state @ weight_hh.T + bias, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        cell = f * cell + i * g
        state = o * np.tanh(cell)
        gates[:, t] = np.stack([i, f, g, o], axis=1)
        cells[:, t], states[:, t] = cell, state
    return dict(x=x, gates=gates, cells=cells, states=states, states_before=before[0], cells_before=before[1])


def lstm(
    x: Array, parameters: Sequence[Array], layers: int, first: Array, masks: Sequence[Array] | None = None
) -> list[dict[str, Array]]:
    """Every layer's steps; parameters in PyTorch's order; first: (n, layers, 2, H), states and cells; masks: factors of
    what layers 1... read, as dropout has them."""
    made: list[dict[str, Array]] = []
    for k in range(layers):
        made.append(_lstm_layer(x, parameters[4 * k : 4 * k + 4], first[:, k, 0], first[:, k, 1]))
        x = made[-1]["states"] * (1 if masks is None or k == layers - 1 else masks[k])
    return made


def lstm_backward(
    made: Sequence[dict[str, Array]],
    parameters: Sequence[Array],
    grad: Array,
    masks: Sequence[Array] | None = None,
) -> tuple[Array, list[Array]]:
    """Gradients of the input and of the parameters."""
    gradients: list[Array] = [np.zeros_like(p) for p in parameters]
    for k in reversed(range(len(made))):
        at, (weight_ih, weight_hh) = made[k], parameters[4 * k : 4 * k + 2]
        n, positions, hidden = at["states"].shape
        later, cell_error, errors = np.zeros((n, hidden)), np.zeros((n, hidden)), np.zeros((n, positions, 4 * hidden))
        for t in reversed(range(positions)):
            i, f, g, o = at["gates"][:, t].transpose(1, 0, 2)
            squashed = np.tanh(at["cells"][:, t])
            dh = grad[:, t] + later
            dc = cell_error + dh * o * (1 - squashed**2)
            parts = [dc * g * i * (1 - i), dc * at["cells_before"][:, t] * f * (1 - f), dc * i * (1 - g * g)]
            errors[:, t] = np.concatenate([*parts, dh * squashed * o * (1 - o)], axis=1)
            later, cell_error = errors[:, t] @ weight_hh, dc * f
        flat = errors.reshape(-1, 4 * hidden)
        gradients[4 * k] = flat.T @ at["x"].reshape(len(flat), -1)
        gradients[4 * k + 1] = flat.T @ at["states_before"].reshape(len(flat), -1)
        gradients[4 * k + 2] = gradients[4 * k + 3] = flat.sum(0)
        grad = errors @ weight_ih * (1 if masks is None or k == 0 else masks[k - 1])
    return grad, gradients


# ---- losses: sum over samples, samples right, gradient of the mean


def cross_entropy(x: Array, classes: Array) -> tuple[float, int, Array]:
    n = np.arange(len(x))
    shifted = x - x.max(1, keepdims=True)
    total = np.exp(shifted).sum(1)
    losses = np.log(total) - shifted[n, classes]
    grad = np.exp(shifted) / total[:, None]
    others = np.exp(shifted)
    others[n, classes] = 0
    grad[n, classes] = -others.sum(1) / total  # p - 1 without the difference
    return float(losses.sum()), int((x.argmax(1) == classes).sum()), grad / len(x)


@dataclasses.dataclass
class Loss:
    loss: float  # weighted sum; the mean is loss / divisor
    correct: int
    gradient: Array  # of the mean
    divisor: float
    counted: int
    magnitude: Array  # the sum of the absolute values of what a gradient is the sum of


def cross_entropy_of_positions(
    x: Array,
    classes: Array,
    class_weights: Array | None = None,
    sample_weights: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Loss:
    """PyTorch's formulas: x (n, positions, classes); classes (n, positions), some of them ignore_index."""
    n, positions, count = x.shape
    weight = np.ones(count) if class_weights is None else class_weights
    out = Loss(0.0, 0, np.zeros_like(x), 0.0, 0, np.zeros_like(x))
    for i in range(n):
        for t in range(positions):
            target = classes[i, t]
            if target == ignore_index:
                continue
            shifted = x[i, t] - x[i, t].max()
            log_p = shifted - np.log(np.exp(shifted).sum())
            wanted = (1 - label_smoothing) * weight[target] * np.eye(count)[target] + label_smoothing / count * weight
            wanted = wanted * (1 if sample_weights is None else sample_weights[i])
            out.loss -= float((wanted * log_p).sum())
            out.gradient[i, t] = wanted.sum() * np.exp(log_p) - wanted
            out.magnitude[i, t] = wanted.sum() * np.exp(log_p) + wanted
            out.divisor += float(weight[target])
            out.counted += 1
            out.correct += int(x[i, t].argmax() == target)
    out.gradient /= out.divisor or math.inf  # nothing counts
    out.magnitude /= out.divisor or 1.0
    return out


def binary_cross_entropy(x: Array, targets: Array) -> tuple[float, int, Array]:
    """Of logits. A sample's loss is the mean over its values; it is right if all of them are on the right side."""
    losses = np.maximum(x, 0) - x * targets + np.log1p(np.exp(-np.abs(x)))
    right = ((x > 0) == (targets > 0.5)).reshape(len(x), -1).all(1)
    return float(losses.reshape(len(x), -1).mean(1).sum()), int(right.sum()), (sigmoid(x) - targets) / x.size


def mean_squared_error(x: Array, targets: Array) -> tuple[float, int, Array]:
    difference = x - targets
    return float((difference**2).reshape(len(x), -1).mean(1).sum()), 0, 2 * difference / x.size


def adaptive_matrix(size: int, out: int) -> Array:
    """(out, size): the share of each element in each window's mean."""
    rows = np.zeros((out, size))
    for i in range(out):
        first, last = i * size // out, -(-(i + 1) * size // out)
        rows[i, first:last] = 1 / (last - first)
    return rows


def adaptive_avg_pool2d(x: Array, height: int, width: int) -> Array:
    return adaptive_matrix(x.shape[2], height) @ x @ adaptive_matrix(x.shape[3], width).T


def adaptive_avg_pool2d_backward(x: Array, grad: Array) -> Array:
    height, width = grad.shape[2:]
    return adaptive_matrix(x.shape[2], height).T @ grad @ adaptive_matrix(x.shape[3], width)


def embedding(weight: Array, tokens: Array) -> Array:
    """(numbers, C) at tokens of any shape: (..., C)."""
    return weight[tokens]


def embedding_backward(weight: Array, tokens: Array, grad: Array) -> Array:
    result = np.zeros(weight.shape)
    np.add.at(result, tokens.ravel(), grad.reshape(-1, weight.shape[1]).astype(np.float64))
    return result


# ---- normalisation


def _channels(values: Array, like: Array) -> Array:
    """One value a channel, to compute with a batch (N, C, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 2))


def _but_channels(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def batch_norm(x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, eps: float) -> Array:
    """(N, C, ...) with the statistics given, (C,) each; the variance is the biased one."""
    y = (x - _channels(mean, x)) / np.sqrt(_channels(var, x) + eps)
    return y if weight is None else y * _channels(weight, x) + _channels(bias, x)


def batch_moments(x: Array) -> tuple[Array, Array]:
    """Mean and biased variance of each channel of a batch."""
    return x.mean(_but_channels(x)), x.var(_but_channels(x))


def batch_norm_backward(x: Array, weight: Array | None, grad: Array, eps: float) -> tuple[Array, Array, Array]:
    """Gradients of x, weight and bias, with the batch's own statistics."""
    axes = _but_channels(x)
    mean, var = batch_moments(x)
    inverse = _channels(1 / np.sqrt(var + eps), x)
    normal = (x - _channels(mean, x)) * inverse
    grad_weight, grad_bias = (grad * normal).sum(axes), grad.sum(axes)
    n = x.size // x.shape[1]
    inner = grad - _channels(grad_bias, x) / n - normal * _channels(grad_weight, x) / n
    return inner * inverse * (1 if weight is None else _channels(weight, x)), grad_weight, grad_bias


def statistics_gradient(x: Array, running_mean: Array, running_var: Array, momentum: float) -> tuple[Array, Array]:
    """What is to be subtracted from the running mean and variance after a batch."""
    mean, var = batch_moments(x)
    n = x.size // x.shape[1]
    return momentum * (running_mean - mean), momentum * (running_var - var * n / (n - 1))


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float, axes: tuple[int, ...]) -> Array:
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    return (y if weight is None else y * weight) + (0 if bias is None else bias)


def layer_norm_backward(
    x: Array, weight: Array | None, grad: Array, eps: float, axes: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Gradients of x, weight and bias."""
    normal = layer_norm(x, None, None, eps, axes)
    inner = grad if weight is None else grad * weight
    means = [one.mean(axes, keepdims=True) for one in (inner, inner * normal)]
    over = tuple(range(x.ndim - len(axes)))
    inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + eps)
    return inverse * (inner - means[0] - normal * means[1]), (grad * normal).sum(over), grad.sum(over)


def rms_norm(x: Array, weight: Array | None, eps: float, axes: tuple[int, ...]) -> Array:
    y = x / np.sqrt((x * x).mean(axes, keepdims=True) + eps)
    return y if weight is None else y * weight


def rms_norm_backward(
    x: Array, weight: Array | None, grad: Array, eps: float, axes: tuple[int, ...]
) -> tuple[Array, Array]:
    """Gradients of x and weight."""
    normal = rms_norm(x, None, eps, axes)
    inner = grad if weight is None else grad * weight
    inverse = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + eps)
    along = normal * (inner * normal).mean(axes, keepdims=True)
    return inverse * (inner - along), (grad * normal).sum(tuple(range(x.ndim - len(axes))))


def group_norm(x: Array, groups: int, weight: Array | None, bias: Array | None, eps: float) -> Array:
    y = layer_norm(x.reshape(len(x), groups, -1), None, None, eps, (2,)).reshape(x.shape)
    return (y if weight is None else y * _channels(weight, x)) + (0 if bias is None else _channels(bias, x))


def group_norm_backward(
    x: Array, groups: int, weight: Array | None, grad: Array, eps: float
) -> tuple[Array, Array, Array]:
    """Gradients of x, weight and bias."""
    inner = grad if weight is None else grad * _channels(weight, x)
    rows = (len(x), groups, -1)
    dx = layer_norm_backward(x.reshape(rows), None, inner.reshape(rows), eps, (2,))[0].reshape(x.shape)
    over = _but_channels(x)
    return dx, (grad * group_norm(x, groups, None, None, eps)).sum(over), grad.sum(over)


def _channel_windows(channels: int, size: int) -> Array:
    """(channels, channels): 1 where the second is in the window of the first."""
    first, second = np.ogrid[:channels, :channels]
    return ((second >= first - size // 2) & (second <= first + (size - 1) // 2)).astype(np.float64)


def local_response_norm(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    squares = np.einsum("cd,nd...->nc...", _channel_windows(x.shape[1], size), x**2)
    return x / (k + alpha / size * squares) ** beta


def local_response_norm_backward(x: Array, grad: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    windows = _channel_windows(x.shape[1], size)
    sums = k + alpha / size * np.einsum("cd,nd...->nc...", windows, x**2)
    inner = np.einsum("cd,nc...->nd...", windows, grad * x * sums ** (-beta - 1))
    return grad * sums**-beta - 2 * beta * alpha / size * x * inner


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax_backward(y: Array, grad: Array, axis: int) -> Array:
    return y * (grad - (grad * y).sum(axis, keepdims=True))


def leaky_relu(x: Array, slope: float) -> Array:
    return np.where(x < 0, slope * x, x)


def leaky_relu_backward(x: Array, grad: Array, slope: float) -> Array:
    return np.where(x <= 0, slope * grad, grad)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * _erfc(-x / math.sqrt(2)) / 2


def gelu_backward(x: Array, grad: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        share = 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return grad * (share + x * share * (1 - share) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2))
    return grad * (_erfc(-x / math.sqrt(2)) / 2 + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


LOSSES: dict[str, Callable[[Array, Array], tuple[float, int, Array]]] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "mean_squared_error": mean_squared_error,
}


# ---- stochastic gradient descent, PyTorch's form


def sgd(
    weight: Array,
    grad: Array,
    momentum: Array,
    lr: float,
    mu: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Array, Array]:
    """The new weight and momentum; momentum starts as zeros."""
    d = grad + weight_decay * weight
    momentum = mu * momentum + d
    return weight - lr * (d + mu * momentum if nesterov else momentum), momentum


# ---- a network, described as gossipgrad.Model.config() does


def _pair(value: Any) -> Pair:
    return (value[0], value[1])


class Network:
    """Forward and backward passes of any graph of layers; dropout is left out."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.layers: Sequence[Mapping[str, Any]] = config["layers"]

    def forward(self, weights: Mapping[str, Array], x: Array, *, training: bool = False) -> list[Array]:
        """The output of every layer."""
        values: list[Array] = []
        self._training = training
        self._winners: dict[int, Array] = {}
        for at, layer in enumerate(self.layers):
            inputs = [values[i] for i in layer["inputs"]]
            values.append(x if layer["layer"] == "Input" else self._layer(at, layer, weights, inputs))
        return values

    @staticmethod
    def _last_axes(x: Array, options: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(range(x.ndim - len(options["normalized_shape"] or [1]), x.ndim))

    def _layer(self, at: int, layer: Mapping[str, Any], weights: Mapping[str, Array], inputs: list[Array]) -> Array:
        kind, name, options = layer["layer"], layer["name"], layer["options"]
        x = inputs[0]
        if kind == "Conv2d":
            places = (_pair(options["stride"]), _pair(options["padding"]), _pair(options["dilation"]))
            return conv2d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), *places, options["groups"])
        if kind == "Linear":
            return linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
        if kind == "MaxPool2d":
            window = [_pair(options[key]) for key in ("kernel", "stride", "padding", "dilation")]
            y, self._winners[at] = max_pool2d(x, *window, options["ceil_mode"])
            return y
        if kind == "AvgPool2d":
            window = [_pair(options[key]) for key in ("kernel", "stride", "padding")]
            return avg_pool2d(x, *window, options["ceil_mode"], options["count_include_pad"])
        if kind in ("ReLU", "Tanh", "Sigmoid"):
            return {"ReLU": relu, "Tanh": tanh, "Sigmoid": sigmoid}[kind](x)
        if kind == "LayerNorm":
            axes = self._last_axes(x, options)
            return layer_norm(x, weights.get(f"{name}.weight"), weights.get(f"{name}.bias"), options["eps"], axes)
        if kind == "RMSNorm":
            return rms_norm(x, weights.get(f"{name}.weight"), options["eps"], self._last_axes(x, options))
        if kind == "GroupNorm":
            affine = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
            return group_norm(x, options["groups"], *affine, options["eps"])
        if kind == "LocalResponseNorm":
            return local_response_norm(x, *(options[key] for key in ("size", "alpha", "beta", "k")))
        if kind == "Softmax":
            return softmax(x, options["dim"])
        if kind == "LeakyReLU":
            return leaky_relu(x, options["negative_slope"])
        if kind == "GELU":
            return gelu(x, options["approximate"])
        if kind in ("AdaptiveAvgPool2d", "GlobalAvgPool2d"):
            sizes = options.get("output_size", (1, 1))
            return adaptive_avg_pool2d(x, sizes[0] or x.shape[2], sizes[1] or x.shape[3])
        if kind in ("BatchNorm1d", "BatchNorm2d"):
            affine = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
            moments = batch_moments(x)
            if not self._training and options["track_running_stats"]:
                moments = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
            return batch_norm(x, *affine, *moments, options["eps"])
        if kind in ("Flatten", "Reshape"):
            return x.reshape(len(x), *options.get("shape", [-1]))
        if kind == "Add":
            return sum(inputs[1:], inputs[0])
        if kind == "Concat":
            return np.concatenate(inputs, 1)
        assert kind == "Dropout" and options["p"] == 0, kind
        return x

    def gradients(self, weights: Mapping[str, Array], x: Array, targets: Array, loss: str) -> tuple[float, int, dict]:
        """The mean loss, samples right, and the gradient of each weight."""
        values = self.forward(weights, x, training=True)
        total, right, grad = LOSSES[loss](values[-1], targets)
        grads = [np.zeros_like(v) for v in values]
        grads[-1] = grads[-1] + grad.reshape(values[-1].shape)
        result: dict[str, Array] = {}
        for at in reversed(range(len(self.layers))):
            layer = self.layers[at]
            if layer["layer"] == "Input":
                continue
            inputs = [values[i] for i in layer["inputs"]]
            parts = self._backward(at, layer, weights, inputs, values[at], grads[at], result)
            for i, part in zip(layer["inputs"], parts, strict=True):
                grads[i] = grads[i] + part
        return total / len(x), right, result

    def _backward(self, at, layer, weights, inputs, y, grad, result) -> list[Array]:
        kind, name, options = layer["layer"], layer["name"], layer["options"]
        x = inputs[0]
        if kind in ("Conv2d", "Linear"):
            weight = weights[f"{name}.weight"]
            if kind == "Conv2d":
                places = (_pair(options["stride"]), _pair(options["padding"]), _pair(options["dilation"]))
                grad_input, result[f"{name}.weight"], bias = conv2d_backward(
                    x, weight, grad, *places, options["groups"]
                )
            else:
                grad_input, result[f"{name}.weight"], bias = linear_backward(x, weight, grad)
            if f"{name}.bias" in weights:
                result[f"{name}.bias"] = bias
            return [grad_input]
        if kind == "MaxPool2d":
            return [max_pool2d_backward(x, self._winners[at], grad)]
        if kind == "AvgPool2d":
            window = [_pair(options[key]) for key in ("kernel", "stride", "padding")]
            return [avg_pool2d_backward(x, grad, *window, options["ceil_mode"], options["count_include_pad"])]
        if kind in ("ReLU", "Tanh", "Sigmoid"):
            return [{"ReLU": relu_backward, "Tanh": tanh_backward, "Sigmoid": sigmoid_backward}[kind](y, grad)]
        if kind == "LayerNorm":
            weight, axes = weights.get(f"{name}.weight"), self._last_axes(x, options)
            grad_input, *affine = layer_norm_backward(x, weight, grad, options["eps"], axes)
            for suffix, one in zip(("weight", "bias"), affine, strict=True):
                if f"{name}.{suffix}" in weights:
                    result[f"{name}.{suffix}"] = one
            return [grad_input]
        if kind == "RMSNorm":
            weight, axes = weights.get(f"{name}.weight"), self._last_axes(x, options)
            grad_input, affine = rms_norm_backward(x, weight, grad, options["eps"], axes)
            result |= {} if weight is None else {f"{name}.weight": affine}
            return [grad_input]
        if kind == "GroupNorm":
            weight = weights.get(f"{name}.weight")
            grad_input, *affine = group_norm_backward(x, options["groups"], weight, grad, options["eps"])
            result |= {} if weight is None else {f"{name}.weight": affine[0], f"{name}.bias": affine[1]}
            return [grad_input]
        if kind == "LocalResponseNorm":
            window = (options[key] for key in ("size", "alpha", "beta", "k"))
            return [local_response_norm_backward(x, grad, *window)]
        if kind == "Softmax":
            return [softmax_backward(y, grad, options["dim"])]
        if kind == "LeakyReLU":
            return [leaky_relu_backward(x, grad, options["negative_slope"])]
        if kind == "GELU":
            return [gelu_backward(x, grad, options["approximate"])]
        if kind in ("AdaptiveAvgPool2d", "GlobalAvgPool2d"):
            return [adaptive_avg_pool2d_backward(x, grad)]
        if kind in ("BatchNorm1d", "BatchNorm2d"):
            weight = weights.get(f"{name}.weight")
            grad_input, *affine = batch_norm_backward(x, weight, grad, options["eps"])
            if weight is not None:
                result[f"{name}.weight"], result[f"{name}.bias"] = affine
            if options["track_running_stats"]:
                running = [weights[f"{name}.running_{one}"] for one in ("mean", "var")]
                found = statistics_gradient(x, *running, options["momentum"])
                result[f"{name}.running_mean"], result[f"{name}.running_var"] = found
            return [grad_input]
        if kind in ("Flatten", "Reshape"):
            return [grad.reshape(x.shape)]
        if kind == "Add":
            return [grad] * len(inputs)
        if kind == "Concat":
            return np.split(grad, np.cumsum([one.shape[1] for one in inputs])[:-1], 1)
        return [grad]
