"""Shapes that the core infers, and the errors of graphs whose shapes do not fit or whose layers lead nowhere."""

from __future__ import annotations

import itertools

import pytest
import reference as ref

import gossipgrad as gg
from gossipgrad import _core


def wrong_graphs():
    x = (3, 8, 8)
    image = "(3, 8, 8)|3 x 8 x 8|[3, 8, 8]"
    return [
        ("attention on an image", lambda: gg.Sequential([gg.Attention(2, name="bad")], input=x), image),
        ("conv on features", lambda: gg.Sequential([gg.Conv2d(3, 3, name="bad")], input=(7,)), "(7)|(7,)|[7]"),
        ("kernel too large", lambda: gg.Sequential([gg.Conv2d(3, 9, name="bad")], input=x), image),
        ("pool too large", lambda: gg.Sequential([gg.MaxPool2d(9, name="bad")], input=x), image),
        ("groups", lambda: gg.Sequential([gg.Conv2d(4, 3, groups=2, name="bad")], input=x), "3"),
    ]


@pytest.mark.parametrize(("make", "words"), [w[1:] for w in wrong_graphs()], ids=[w[0] for w in wrong_graphs()])
def test_shape_errors_name_the_layer_and_the_shape(make, words):
    with pytest.raises(ValueError, match="'bad'") as caught:
        make()
    assert any(word in str(caught.value) for word in words.split("|")), str(caught.value)


def check_window_shapes(size, kernel, stride, padding):
    """The shapes that the core infers are the reference's, which are PyTorch's."""
    graph = _core.Graph()
    image = graph.input((2, *size))
    window = dict(kernel=kernel, stride=stride, padding=padding)
    for ceil in (False, True):
        for kind in ("max_pool2d", "avg_pool2d"):
            node = graph.layer(kind, f"{kind}{ceil}", [image], ceil_mode=ceil, **window)
            wanted = [ref.window_output(size[a], kernel[a], stride[a], padding[a], 1, ceil) for a in (0, 1)]
            assert graph.shape(node) == (2, *wanted), (size, window, kind, ceil)
    node = graph.layer("conv2d", "conv", [image], outputs=5, **window)
    wanted = [ref.window_output(size[a], kernel[a], stride[a], padding[a]) for a in (0, 1)]
    assert graph.shape(node) == (5, *wanted), (size, window)


@pytest.mark.parametrize("turned", [False, True])
def test_window_shapes(turned):
    for size, kernel, stride in itertools.product(range(1, 8), range(1, 6), range(1, 5)):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding >= kernel:
                both = [(size, 9), (kernel, 3), (stride, 2), (padding, 1)]
                check_window_shapes(*[pair[::-1] if turned else pair for pair in both])


@pytest.mark.parametrize(
    ("join", "other"), [(gg.Add, 5), (gg.Concat, None)], ids=["channels of a sum", "sizes of a concatenation"]
)
def test_join_errors_name_the_layer_and_both_shapes(join, other):
    x = gg.Input((3, 8, 8))
    a = gg.Conv2d(4, 3, name="left")(x)
    b = gg.Conv2d(other or 4, 3 if other else 5, name="right")(x)
    with pytest.raises(ValueError, match="'bad'") as caught:
        gg.Model(x, join(name="bad")(a, b))
    text = str(caught.value).replace(" x ", ", ")
    assert "4, 6, 6" in text and ("5, 6, 6" if other else "4, 4, 4") in text, text


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        ("linear", {"outputs": 2, "kernel": (1, 1)}, TypeError, "'bad' (linear): unknown option 'kernel'"),
        ("layer_norm", {"groups": 2}, TypeError, "'bad' (layer_norm): unknown option 'groups'"),
        ("conv2d", {"outputs": 2, "kernel": (1, 0)}, ValueError, "'bad' (conv2d): kernel=0: must be at least 1"),
        ("conv2d", {"outputs": 2, "kernel": (1,)}, ValueError, "kernel: (1,); must be 2 numbers"),
        ("permute", {"order": (2, 1, 0, 3, 4, 5)}, ValueError, "order: (2, 1, 0, 3, 4, 5); must be 1 to 5 numbers"),
        ("permute", {"order": ()}, ValueError, "order: (); must be 1 to 5 numbers"),
        ("permute", {"order": (1, 0)}, ValueError, "each of the axes 0 to 2"),
        ("leaky_relu", {"negative_slope": float("nan")}, ValueError, "negative_slope=nan: must be finite"),
        ("dropout", {"probability": 1.0}, ValueError, "probability=1: must be at least 0 and below 1"),
        ("slice", {"end": 1, "step": 0}, ValueError, "step=0: must be at least 1"),
        ("pad", {"pads": (0, -1)}, ValueError, "pads=-1: must be at least 0"),
    ],
)
def test_options_of_another_kind_or_out_of_bounds_are_refused(kind, options, error, words):
    graph = _core.Graph()
    with pytest.raises(error) as caught:
        graph.layer(kind, "bad", [graph.input((3, 4, 4))], **options)
    assert words in str(caught.value)


def test_a_layer_that_leads_nowhere_is_an_error():
    graph = _core.Graph()
    x = graph.input((4,))
    a = graph.layer("linear", "a", [x], outputs=3)
    graph.layer("linear", "dangling", [x], outputs=3)
    with pytest.raises(ValueError, match="'dangling'"):
        graph.finish(a)
