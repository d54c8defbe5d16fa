"""Packed messages (exchange/codec/packed.h): which elements AdaComp chooses, what a message says, and what is left.

Two references: AdaComp in float64, written from the paper, and the same rules with every product and sum in float32, as
the header defines them, so that ties and last bits agree as well. The format is read by a decoder of its own.
"""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from operations import MODES, move_choice, pack, pack_marked, unpack_add

from gossipgrad import _core

ISAS = _core.info()["isas"]
CONV, LINEAR, RECURRENT, OTHER = range(4)
VARIANTS = [("strict", "float32"), ("safe", "float32"), ("exact", "bfloat16"), ("exact", "float32")]
variants = pytest.mark.parametrize(("mode", "values"), VARIANTS, ids=["-".join(v) for v in VARIANTS])


def extent(segments):
    return max(offset + count for offset, count, _, _ in segments)


def inside(segments, n):
    mask = np.zeros(n, dtype=bool)
    for offset, count, _, _ in segments:
        mask[offset : offset + count] = True
    return mask


def bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    up = np.where((up & 0x7F800000) == 0x7F800000, bits & 0xFFFF0000, up)  # never to infinity
    return up.astype(np.uint32).view(np.float32)


def bins_of(x, width):
    """Rows of `width`, the last one filled up with zeros."""
    rows = -(-len(x) // width)
    return np.pad(x, (0, rows * width - len(x))).reshape(rows, width)


# ------------------------------------------------------------------------------------------------ references


def paper_step(residue, dw, width, factor):
    """One step of the paper's algorithm in float64: the sent values, and how close the closest decision was."""
    g = bins_of(residue + dw, width)
    h = g + (factor - 1) * bins_of(dw, width)
    greatest = np.abs(g).max(axis=1, keepdims=True)
    scale = float(np.float32(greatest.mean()))  # the format carries float32
    difference = np.abs(h) - greatest
    chosen = (difference >= 0) & (greatest > 0)
    sent = np.where(chosen, np.sign(g) * scale, 0).ravel()[: len(dw)]
    # an element without a gradient that is its bin's greatest is a tie, and one in any arithmetic
    close = (
        np.abs(difference)[(difference != 0) & (greatest > 0)]
        / np.broadcast_to(greatest, g.shape)[(difference != 0) & (greatest > 0)]
    )
    return sent, close.min()


def float32_step(segments, g, dw, mode, factor):
    """By the header's rules on float32: of each packed segment the chosen elements, in order, and the scale. g: residue
    and gradient together; dw: the gradient."""
    found = {}
    for i, (offset, count, width, _) in enumerate(segments):
        if width == 0:
            continue
        own = bins_of(g[offset : offset + count], width)
        h = own + np.float32(factor - 1) * bins_of(dw[offset : offset + count], width)
        greatest = np.abs(own).max(axis=1, keepdims=True)
        scale = np.float32(sum(float(x) for x in greatest[:, 0]) / len(greatest))
        chosen = (np.abs(h) >= greatest) & (greatest > 0) & (own != 0)
        if mode == "safe":
            chosen &= np.abs(own) >= scale / np.float32(2)
        found[i] = np.flatnonzero(chosen.ravel()[:count]), scale
    return found


def decode(segments, message):
    """Reads a message by the description in packed.h: form, and of each segment (elements, signs, scale or values)."""
    magic, version, form, _, size = struct.unpack_from("<2sBBIQ", message)
    assert (magic, version, size) == (b"gP", 1, len(message))
    at, parts = 16, []
    for _, count, width, _ in segments:
        if width == 0:
            if form != 1:
                parts.append(np.frombuffer(message, np.float32, count, at))
                at += 4 * count
            else:
                parts.append(None)
            continue
        size, word = struct.unpack_from("<I4s", message, at)
        codes = np.frombuffer(message, np.uint8 if width < 64 else np.uint16, size // (1 if width < 64 else 2), at + 8)
        at += 8 + -(-size // 4) * 4
        shift = 6 if width < 64 else 14
        mark = (1 << shift) - 1
        places, signs, begin, following, k = [], [], None, 0, 0
        while k < len(codes):
            place, flags = int(codes[k]) & mark, int(codes[k]) >> shift
            k += 1
            if place == mark:
                if flags == 0:
                    following += 1
                elif flags == 1:
                    following += 2 + int(codes[k])
                    k += 1
                else:
                    following += int.from_bytes(codes[k : k + 4 // codes.itemsize].tobytes(), "little")
                    k += 4 // codes.itemsize
                continue
            if flags & 2:
                begin, following = following, following + 1
            places.append(begin * width + place)
            signs.append(-1 if flags & 1 else 1)
        assert following <= -(-count // width)
        if form == 0:
            parts.append((np.array(places, int), np.array(signs), np.frombuffer(word, np.float32)[0]))
            continue
        n = int.from_bytes(word, "little")
        assert n == len(places) and (not signs or min(signs) > 0)
        moved = None
        if form == 2:
            moved = (np.frombuffer(message, np.uint16, n, at).astype(np.uint32) << 16).view(np.float32)
            at += -(-2 * n // 4) * 4
        elif form == 3:
            moved = np.frombuffer(message, np.float32, n, at)
            at += 4 * n
        parts.append((np.array(places, int), np.array(signs), moved))
    assert at == len(message)
    return form, parts


def random_segments(rng):
    """In the order of the arenas, with gaps; every kind of width, bins longer than the segment, last bins of one."""
    segments, at = [], int(rng.integers(0, 5))
    for _ in range(int(rng.integers(1, 6))):
        width = int(rng.choice([0, 1, 2, 7, 16, 50, 63, 64, 65, 100, 500, 16383]))
        count = int(rng.integers(1, 1500))
        if width and rng.random() < 0.3:
            count = width * int(rng.integers(1, 4)) % 3000 + 1
        segments.append((at, count, width, int(rng.integers(0, 4))))
        at += count + int(rng.integers(0, 40))
    return segments


def random_values(rng, n):
    """With zeros, equal magnitudes (ties), and runs of zeros that are whole bins."""
    x = rng.standard_normal(n).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 3))
    if rng.random() < 0.5:
        x = np.round(x * 4) / np.float32(4)
    x[rng.random(n) < 0.2] = 0
    begin = int(rng.integers(0, n))
    x[begin : begin + int(rng.integers(0, n))] = 0
    return x.astype(np.float32)


# ------------------------------------------------------------------------------------------------ the choice


@pytest.mark.parametrize(("width", "count", "seed"), [(50, 1210, 3), (500, 4001, 1)], ids=["conv", "linear"])
def test_fifty_steps_choose_what_the_paper_says_in_float64(width, count, seed):
    rng = np.random.default_rng(seed)
    factor, segments = 2.0, [(0, count, width, CONV)]
    own, reference = np.zeros(count, np.float32), np.zeros(count)
    direction = rng.standard_normal(count)
    closest, chosen = 1.0, 0
    for _ in range(50):
        dw = (rng.standard_normal(count) + 0.3 * direction).astype(np.float32)
        dw[rng.random(count) < 0.1] = 0
        sent, close = paper_step(reference, dw.astype(np.float64), width, factor)
        reference += dw.astype(np.float64) - sent
        message, own, _ = pack("pack", segments, dw, own, factor=factor)
        got = unpack_add(segments, message, np.zeros(count, np.float32))
        assert np.array_equal(np.sign(got), np.sign(sent))
        np.testing.assert_allclose(got, sent, rtol=1e-5)
        closest, chosen = min(closest, close), chosen + np.count_nonzero(sent)
    np.testing.assert_allclose(own, reference, rtol=1e-3, atol=2e-5)
    # float32 has not decided differently because no decision was that close
    assert closest > 2e-6 and 100 < chosen < 50 * count / 8


@pytest.mark.parametrize("seed", range(12))
def test_all_instruction_sets_send_the_same_bytes_and_the_rules_choice(seed):
    rng = np.random.default_rng(seed)
    for mode, values in VARIANTS:
        segments = random_segments(rng)
        n = extent(segments) + 9
        gradient, residue = random_values(rng, n), random_values(rng, n)
        factor, scale = float(rng.choice([1.0, 1.5, 2.0, 3.0])), float(rng.choice([1.0, 0.5, 0.3]))
        options = {"mode": mode, "values": values, "factor": factor, "scale": scale}
        made = [pack("pack", segments, gradient, residue, isa=isa, **options) for isa in ISAS]
        made += [pack("pack", segments, gradient, residue, threads=3, **options)]
        for message, left, counts in made[1:]:
            assert message == made[0][0] and left.tobytes() == made[0][1].tobytes() and counts == made[0][2]
        message, left, counts = made[0]
        dw = np.float32(scale) * gradient
        g = residue + dw
        expected = float32_step(segments, g, dw, mode, factor)
        form, parts = decode(segments, message)
        assert form == (0 if mode != "exact" else 2 if values == "bfloat16" else 3)
        sent, after, histogram = np.zeros(n, np.float32), residue.copy(), [0] * 17
        for i, (offset, count, width, _) in enumerate(segments):
            own = slice(offset, offset + count)
            after[own] = g[own]
            if width == 0:
                assert np.array_equal(parts[i], g[own])
                sent[own], after[own] = g[own], 0
                continue
            elements, size = expected[i]
            places, signs, word = parts[i]
            assert np.array_equal(places, elements)
            at = offset + elements
            if form == 0:
                assert word == size and np.array_equal(signs, np.sign(g[at]))
                sent[at] = np.sign(g[at]) * size
            else:
                sent[at] = bfloat16(g[at]) if form == 2 else g[at]
                assert word.tobytes() == sent[at].tobytes()
            after[at] -= sent[at]
            for k in np.bincount(elements // width, minlength=-(-count // width)):
                histogram[min(k, 16)] += 1
        assert np.array_equal(left, after)
        into = rng.standard_normal(n).astype(np.float32)
        assert np.array_equal(unpack_add(segments, message, into, 0.3), into + np.float32(0.3) * sent)
        assert list(counts["bins_with"]) == histogram
        assert counts["elements_sent"] == sum(len(e) for e, _ in expected.values())
        assert counts["elements"] == sum(count for _, count, width, _ in segments if width)
        assert sum(counts["sent_bytes"]) == len(message)
        for family in range(4):
            dense = sum(4 * count for _, count, _, f in segments if f == family)
            assert counts["dense_bytes"][family] == dense


@pytest.mark.parametrize("mode", ["strict", "safe"])
@pytest.mark.parametrize("isa", ISAS)
def test_what_is_marked_leaves_the_residue_in_the_next_pass_by_the_rules(isa, mode):
    """Widths that end within, with and behind vectors and the short bins' registers, each with a last bin of some
    elements; a step whose gradient is half zeros, and one without a gradient."""
    rng = np.random.default_rng(9)
    widths = (1, 2, 7, 8, 15, 16, 17, 31, 33, 50, 63, 64, 65, 80, 100, 500, 2000)
    segments, at = [], 3
    for width in widths:
        segments += [(at, 3 * width + 1027 % width + 1, width, LINEAR), (at + 4 * width + 1, 3, 0, OTHER)]
        at += 4 * width + 7
    n, factor, scale = extent(segments) + 5, 2.0, 0.7
    gradients = [(rng.standard_normal(n) ** 3).astype(np.float32) for _ in range(6)]
    gradients[2][rng.random(n) < 0.5] = 0
    gradients[4] = None
    first = rng.standard_normal(n).astype(np.float32)
    residue, sent, again = first.copy(), [], 0
    chosen = np.zeros(n, bool)
    for gradient in gradients:
        dw = np.float32(scale) * (gradient if gradient is not None else np.zeros(n, np.float32))
        g = residue + dw
        step, before, chosen = np.zeros(n, np.float32), chosen, np.zeros(n, bool)
        expected = float32_step(segments, g, dw, mode, factor)
        for i, (offset, count, width, _) in enumerate(segments):
            if width == 0:
                step[offset : offset + count] = g[offset : offset + count]
                residue[offset : offset + count] = 0
                continue
            elements, size = expected[i]
            chosen[offset + elements] = True
            own = slice(offset, offset + count)
            step[offset + elements] = np.copysign(size, g[offset + elements])
            residue[own] = g[own] - step[own]
        sent.append(step)
        again += np.count_nonzero(before & chosen)
    assert again > 20  # elements that are marked and sent at once
    for settled, clear in ((False, False), (False, True), (True, False)):
        options = {"isa": isa, "mode": mode, "factor": factor, "scale": scale}
        messages, left = pack_marked(segments, gradients, first, settled=settled, clear=clear, **options)
        for step, message in zip(sent, messages, strict=True):
            assert np.array_equal(unpack_add(segments, message, np.zeros(n, np.float32)), step)
        assert np.array_equal(left, residue)


@variants
def test_what_was_sent_and_what_is_left_add_up_to_the_gradients(mode, values):
    rng = np.random.default_rng(5)
    segments = [(0, 430, 50, CONV), (432, 10, 0, OTHER), (448, 2003, 500, LINEAR), (2464, 1, 1, RECURRENT)]
    n = extent(segments)
    mask = inside(segments, n)
    residue, given, sent = np.zeros(n, np.float32), np.zeros(n), np.zeros(n)
    for step in range(40):
        gradient = rng.standard_normal(n).astype(np.float32)
        share = [0.5, 0.25, 1.0][step % 3]
        if step % 7 == 6:  # a step without samples
            message, residue, _ = pack("pack", segments, None, residue, mode=mode, values=values)
        else:
            given += share * gradient.astype(np.float64)
            message, residue, _ = pack("pack", segments, gradient, residue, mode=mode, values=values, scale=share)
        sent += unpack_add(segments, message, np.zeros(n, np.float32)).astype(np.float64)
        error = np.abs(sent + residue - given)[mask].max()
        assert error < 1e-6 * (step + 1) * 4, (step, error)
        assert not residue[~mask].any()
    assert np.abs(sent[mask]).max() > 1 and (residue[432:442] == 0).all()


def test_threads_give_the_same_message():
    rng = np.random.default_rng(2)
    segments = [(3, 70001, 50, CONV), (70100, 150000, 500, LINEAR), (220100, 40000, 16383, OTHER)]
    gradient, residue = (rng.standard_normal(extent(segments)).astype(np.float32) for _ in range(2))
    made = [pack("pack", segments, gradient, residue, threads=threads)[:2] for threads in (1, 2, 3, 8)]
    assert all(m == made[0][0] and np.array_equal(r, made[0][1]) for m, r in made[1:])


# ------------------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("isa", ISAS)
@variants
def test_zero_gradients_send_nothing(isa, mode, values):
    for width, count in itertools.product((1, 50, 63, 64, 500), (1, 63, 64, 50000)):
        segments = [(0, count, width, CONV)]
        zero = np.zeros(count, np.float32)
        zero[::2] *= -1
        message, left, counts = pack("pack", segments, zero, zero, mode=mode, values=values, isa=isa)
        assert len(message) == 16 + 8 and counts["elements_sent"] == 0 and not left.any()
        out = np.full(count, -0.0, np.float32)
        assert unpack_add(segments, message, out).tobytes() == out.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [50, 500])
def test_runs_of_empty_bins_are_cheap(isa, width):
    for run in (1, 2, 3, 256, 257, 258, 5000, 65537, 65538, 70000 if width == 50 else 66000):
        if width * run > 4_000_000:
            run_width = 64 if width > 63 else 2
        else:
            run_width = width
        count = run_width * (run + 2) + 1
        x = np.zeros(count, np.float32)
        x[0], x[-1] = 3, -5  # the first bin, and the last one, of one element
        segments = [(0, count, run_width, CONV)]
        message, _, counts = pack("pack", segments, x, np.zeros_like(x), mode="exact", isa=isa)
        assert len(message) <= 16 + 8 + 12 + 8, (run, len(message))
        assert np.array_equal(unpack_add(segments, message, np.zeros_like(x)), x)
        assert counts["bins_with"][0] == run + 1 and counts["bins_with"][1] == 2
        (places, _, _), *_ = decode(segments, message)[1]
        assert list(places) == [0, count - 1]


def test_an_element_without_sign_is_not_sent():
    """G = 0 and H = -dW: |H| reaches the bin's greatest."""
    residue, gradient = np.array([1, 0.5, 0], np.float32), np.array([-1, 0, 0], np.float32)
    for mode in MODES:
        message, left, counts = pack("pack", [(0, 3, 3, CONV)], gradient, residue, mode=mode)
        assert counts["elements_sent"] == 1 and left[0] == 0 and left[1] == 0
        assert unpack_add([(0, 3, 3, CONV)], message, np.zeros(3, np.float32)).tolist() == [0, 0.5, 0]


def test_ties_are_sent():
    x = np.array([2, -2, 2, 1.9999999, 0, -2], np.float32)
    message, left, _ = pack("pack", [(0, 6, 6, CONV)], None, x)
    assert unpack_add([(0, 6, 6, CONV)], message, np.zeros(6, np.float32)).tolist() == [2, -2, 2, 0, 0, -2]
    assert left.tolist() == [0, 0, 0, x[3], 0, 0]


@pytest.mark.parametrize("isa", ISAS)
def test_products_are_rounded_before_they_are_added(isa):
    """Bins of two: |H| of the second is the first's |G| to the last bit, or the number below it."""
    rng = np.random.default_rng(4)
    factor, scale = 2.3, 0.7
    gradient, residue = rng.standard_normal((2, 4000)).astype(np.float32)
    dw = np.float32(scale) * gradient
    h = np.abs((residue + dw) + (np.float32(factor) - np.float32(1)) * dw)
    larger = h > np.abs(residue + dw)
    n = int(larger.sum())
    both, old = np.zeros((2, n, 2), np.float32)
    both[:, 1], old[:, 1] = gradient[larger], residue[larger]
    segments = [(0, 2 * n, 2, CONV)]
    for first, wanted in ((h[larger], True), (np.nextafter(h, np.float32(np.inf))[larger], False)):
        old[:, 0] = first
        message, _, _ = pack("pack", segments, both.ravel(), old.ravel(), factor=factor, scale=scale, isa=isa)
        sent = unpack_add(segments, message, np.zeros(2 * n, np.float32)).reshape(n, 2)
        assert sent[:, 0].all() and ((sent[:, 1] != 0) == wanted).all()
    assert n > 1000


def test_one_scale_a_tensor_and_safe_omits_what_is_small():
    """Bins with gmax 8 and 1: the scale is 4.5, and the quiet bin's element is sent 4.5 times too large by 'strict'."""
    x = np.array([8, 0, 1, 0], np.float32)
    segments = [(0, 4, 2, CONV)]
    message, left, _ = pack("pack", segments, None, x, mode="strict")
    assert unpack_add(segments, message, np.zeros(4, np.float32)).tolist() == [4.5, 0, 4.5, 0]
    assert left.tolist() == [3.5, 0, -3.5, 0]
    message, left, _ = pack("pack", segments, None, x, mode="safe")
    assert unpack_add(segments, message, np.zeros(4, np.float32)).tolist() == [4.5, 0, 0, 0]
    assert left.tolist() == [3.5, 0, 1, 0]
    x[2] = 8.0 / 3  # scale = (8 + 8/3)/2; half of it is 8/3: a tie is sent
    message, _, counts = pack("pack", segments, None, x, mode="safe")
    assert counts["elements_sent"] == 2


@pytest.mark.parametrize("isa", ISAS)
@variants
def test_the_longest_messages_fit(isa, mode, values):
    """All elements tie, so all are chosen, in all widths."""
    segments, at = [], 0
    for width in (1, 2, 63, 64, 500, 16383):
        segments += [(at, 33000, width, LINEAR), (at + 33000, 3, 0, OTHER), (at + 33003, 1, width, CONV)]
        at += 33005
    x = np.where(np.arange(at) % 3 == 0, np.float32(-2), np.float32(2))
    message, left, counts = pack("pack", segments, x, np.zeros(at, np.float32), mode=mode, values=values, isa=isa)
    mask = inside(segments, at)
    assert counts["elements_sent"] == counts["elements"] and not left.any()
    assert np.array_equal(unpack_add(segments, message, np.zeros(at, np.float32)), x * mask)


@pytest.mark.parametrize("isa", ISAS)
def test_denormal_numbers(isa):
    """In the core's mode they count as zero."""
    segments = [(0, 100, 50, CONV)]
    tiny = np.full(100, 1e-40, np.float32)
    for mode in MODES:
        message, left, counts = pack("pack", segments, tiny, tiny, mode=mode, isa=isa)
        assert len(message) == 24 and counts["elements_sent"] == 0
        # the mean of the greatest is denormal, although one bin's is not
        small = np.zeros(100, np.float32)
        small[3] = 1.2e-38
        message, left, _ = pack("pack", segments, None, small, mode=mode, isa=isa)
        sent = unpack_add(segments, message, np.zeros(100, np.float32))
        np.testing.assert_array_equal(sent + left, small)
        assert (sent[3] != 0) == (mode == "exact")


@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_the_greatest_numbers(values):
    segments = [(0, 4, 2, CONV)]
    x = np.array([3.4e38, 1, -3.4e38, 3.4028235e38], np.float32)
    for mode in MODES:
        message, left, _ = pack("pack", segments, None, x, mode=mode, values=values)
        sent = unpack_add(segments, message, np.zeros(4, np.float32))
        assert np.isfinite(sent).all() and np.isfinite(left).all() and sent[0] > 3e38
    # H is infinite, G is not
    message, left, _ = pack("pack", segments, x / 2, np.zeros(4, np.float32), factor=1e30, mode="exact")
    assert np.isfinite(left).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["pack", "difference", "choice", "accumulate"])
def test_nan_is_an_error_that_names_the_place(isa, bad, what):
    segments = [(0, 30, 0, OTHER), (32, 130, 50, CONV), (176, 1000, 500, LINEAR)]
    for i, element in ((0, 29), (1, 0), (1, 129), (2, 17), (2, 999)):
        x = np.ones(1200, np.float32)
        x[segments[i][0] + element] = bad
        place = (
            rf"parameter {i} of the message \('tensor', {segments[i][1]} elements\): element {element} of .* is {bad};"
        )
        with pytest.raises(FloatingPointError, match=place):
            pack(what, segments, x, np.zeros_like(x), isa=isa)
    x = np.full(1200, 3e38, np.float32)  # their sum is infinite
    if what != "difference":
        with pytest.raises(FloatingPointError, match="element 0 of what is to be sent is inf; a lower lr, or"):
            pack(what, segments, x, x, isa=isa)


def test_nothing_between_segments_is_read_or_written():
    segments = [(5, 40, 50, CONV), (60, 3, 0, OTHER), (77, 130, 64, LINEAR)]
    n = 230
    mask = inside(segments, n)
    gradient = np.where(mask, np.float32(1), np.float32(np.nan))
    for mode in MODES:
        message, left, _ = pack("pack", segments, gradient, gradient, mode=mode)
        assert np.isnan(left[~mask]).all() and np.isfinite(left[mask]).all()
        out = unpack_add(segments, message, gradient)
        assert np.isnan(out[~mask]).all() and np.isfinite(out[mask]).all()


# ------------------------------------------------------------------------------------------------ other forms


@variants
def test_a_difference_leaves_both_copies_with_the_same_bits(mode, values):
    rng = np.random.default_rng(8)
    segments = random_segments(rng) + [(20000, 900, 50, CONV)]
    n = extent(segments)
    mask = inside(segments, n)
    value = rng.standard_normal(n).astype(np.float32)
    known = there = np.zeros(n, np.float32)
    first = np.abs(value)[mask].max()
    for _ in range(150):
        results = [pack("difference", segments, value, known, isa=isa, mode=mode, values=values) for isa in ISAS]
        assert all(r[0] == results[0][0] for r in results)
        message, known, _ = results[0]
        there = unpack_add(segments, message, there)
        assert there.tobytes() == known.tobytes()
    if mode == "exact":  # at least each bin's greatest difference is sent
        assert np.abs(value - known)[mask].max() < 1e-3 * first


def test_a_difference_sends_what_is_not_small_in_its_bin():
    value = np.array([4, 2, 1.9, -2, -4, 0], np.float32)
    _, known, _ = pack("difference", [(0, 6, 6, CONV)], value, np.zeros(6, np.float32), mode="exact", factor=2)
    assert known.tolist() == [4, 2, 0, -2, -4, 0]
    _, known, _ = pack("difference", [(0, 6, 6, CONV)], value, np.zeros(6, np.float32), mode="exact", factor=1)
    assert known.tolist() == [4, 0, 0, 0, -4, 0]


@pytest.mark.parametrize("values", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(4))
def test_one_rank_chooses_for_all(values, seed):
    rng = np.random.default_rng(seed)
    segments = random_segments(rng) + [(9000, 12, 0, OTHER), (9100, 800, 50, CONV)]
    n = extent(segments)
    mask = inside(segments, n)
    for mode in ("strict", "safe"):
        gradients, residues = ([random_values(rng, n) for _ in range(3)] for _ in range(2))
        choice, first, counts = pack("choice", segments, gradients[0], residues[0], scale=0.5, mode=mode)
        again = [pack("choice", segments, gradients[0], residues[0], scale=0.5, mode=mode, isa=isa) for isa in ISAS]
        assert all(a[0] == choice for a in again)
        g = residues[0] + np.float32(0.5) * gradients[0]
        expected = float32_step(segments, g, np.float32(0.5) * gradients[0], mode, 2.0)
        form, parts = decode(segments, choice)
        assert form == 1 and all(np.array_equal(parts[i][0], e) for i, (e, _) in expected.items())
        assert np.array_equal(first[mask], g[mask]) and sum(counts["sent_bytes"]) == len(choice)
        assert not any(counts["dense_bytes"])
        chosen = np.zeros(n, bool)
        for i, (offset, count, width, _) in enumerate(segments):
            chosen[offset + expected[i][0] if width else slice(offset, offset + count)] = True
        for r in range(3):
            what = "choice" if r == 0 else "accumulate"
            left = pack(what, segments, gradients[r], residues[r], scale=0.5, mode=mode)[1]
            whole = left.copy()
            number, moved, left, out, counts = move_choice(
                segments, choice, left, np.zeros(n, np.float32), values=values, factor=2.0
            )
            assert number == chosen.sum() and len(moved) == number * (4 if values == "float32" else 2)
            sent = (bfloat16(whole) if values == "bfloat16" else whole) * chosen
            assert np.array_equal(out, 2 * sent) and np.array_equal(left, whole - sent)
            assert sum(counts["sent_bytes"]) == len(moved)
            assert sum(counts["dense_bytes"]) == 4 * sum(count for _, count, _, _ in segments)


# ------------------------------------------------------------------------------------------------ wrong messages

EXAMPLE = [(0, 60, 20, CONV), (64, 3, 0, OTHER), (80, 700, 100, LINEAR)]


def example(what="pack", mode="strict", values="float32"):
    x = np.random.default_rng(0).standard_normal(780).astype(np.float32)
    x[100:420] = 0
    return pack(what, EXAMPLE, x, np.zeros(780, np.float32), mode=mode, values=values)[0]


def read(message):
    out = np.zeros(800, np.float32)
    if message[3:4] == b"\x01":
        return move_choice(EXAMPLE, message, out, out)[3]
    return unpack_add(EXAMPLE, message, out)


def with_bytes(message, at, new):
    return message[:at] + new + message[at + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        (0, b"x", "begins with the bytes 78 50, expected 67 50"),
        (2, b"\x02", "version 2, known is 1"),
        (3, b"\x04", "form 4, known are 0 to 3"),
        (3, b"\x01", r"form 1, expected 0, 2 or 3"),
        (5, b"\xff\xff", "of other parameters or bins"),
        (8, b"\x01\x00", "bytes have arrived of 1"),
        (16, b"\xff\xff\xff\xff", r"parameter 0 \('tensor'\): its codes are cut off"),
        (16, b"\x40", r"parameter 0 \('tensor'\): the length of its codes is impossible"),
        (20, struct.pack("<f", np.nan), "its scale is not a size"),
        (20, struct.pack("<f", -1), "its scale is not a size"),
        (24, b"\x00", "a code names none of its elements"),  # in no bin
        (24, b"\x94", "a code names none of its elements"),  # place 20 of a bin of 20
        (24, b"\xff", "a code names none of its elements"),  # a mark with flags 3
        (24, b"\x7f\xff", "a code names none of its elements"),  # 257 empty bins of three
        (24, b"\xbf\xff\xff\xff\xff", "a code names none of its elements"),
        (24, b"\x85\x05", "a code names none of its elements"),  # twice the same place
    ],
)
def test_wrong_messages_say_what_is_wrong(at, new, words):
    message = example()
    read(message)
    if message[3] == 0 and at == 3 and new == b"\x01":
        with pytest.raises(RuntimeError, match=words):
            unpack_add(EXAMPLE, with_bytes(message, at, new), np.zeros(800, np.float32))
        return
    with pytest.raises(RuntimeError, match="packed message: .*" + words):
        read(with_bytes(message, at, new))


def test_empty_bins_behind_the_last_are_refused():
    segments = [(0, 60, 20, CONV)]
    zero = np.zeros(60, np.float32)
    empty = pack("pack", segments, None, zero)[0]
    for codes, fits in ((b"\x3f\x3f\x3f", 1), (b"\x7f\x01", 1), (b"\x7f\x02", 0), (b"\x3f\x7f\x01", 0)):
        message = empty[:16] + struct.pack("<I", len(codes)) + empty[20:24] + codes.ljust(4, b"\0")
        message = with_bytes(message, 8, struct.pack("<Q", len(message)))
        if fits:
            assert not unpack_add(segments, message, zero).any()
            continue
        with pytest.raises(RuntimeError, match="a code names none of its elements"):
            unpack_add(segments, message, zero)


def test_messages_of_other_segments_are_refused():
    for i, column, more in itertools.product(range(3), range(3), (1, -1)):
        if (i, column) == (0, 0):
            continue
        other = [list(s) for s in EXAMPLE]
        other[i][column] += more
        if other[i][2] < 0:
            continue
        with pytest.raises(RuntimeError, match="of other parameters or bins"):
            unpack_add(other, example(), np.zeros(900, np.float32))
    moved = [(o + 16, c, w, f) for o, c, w, f in EXAMPLE]  # the same elsewhere is the same
    assert np.array_equal(unpack_add(moved, example(), np.zeros(816, np.float32))[16:], read(example()))


MESSAGES = [*(("pack", *v) for v in VARIANTS), ("choice", "strict", "float32")]


@pytest.mark.parametrize(("what", "mode", "values"), MESSAGES)
def test_cut_off_and_changed_messages(what, mode, values):
    """All are refused, or read without a byte outside of the segments (guards of the test module)."""
    message = example(what, mode, values)
    read(message)
    for size in range(len(message)):
        with pytest.raises(RuntimeError, match="packed message"):
            read(message[:size])
        whole = with_bytes(message[:size], 8, struct.pack("<Q", size)) if size >= 16 else message[:size]
        with pytest.raises(RuntimeError, match="packed message"):
            read(whole[:size])
    with pytest.raises(RuntimeError, match="bytes behind its last parameter"):
        read(with_bytes(message, 8, struct.pack("<Q", len(message) + 4)) + bytes(4))
    rng = np.random.default_rng(1)
    refused = 0
    for at in range(len(message)):
        for bit in rng.choice(8, 3, replace=False):
            changed = with_bytes(message, at, bytes([message[at] ^ (1 << int(bit))]))
            try:
                out = read(changed)
            except RuntimeError as error:
                refused += "packed message" in str(error)
            else:
                assert not out[~inside(EXAMPLE, 800)].any()
    assert refused > 50


@pytest.mark.parametrize("width", [20, 50, 63, 64])
@pytest.mark.parametrize(("mode", "values"), [("strict", "float32"), ("exact", "bfloat16")])
def test_each_wrong_code_of_a_long_message_is_found(mode, values, width):
    """By what checks a message as by what adds it (operations.unpack_add asks both). Codes are read in blocks of 64."""
    segments = [(0, 40 * width, width, CONV)]
    x = np.random.default_rng(2).standard_normal(40 * width).astype(np.float32)
    x[30 * width : 33 * width] = 0  # bins without a code
    if mode == "exact":
        x = np.abs(x)
    message = pack("pack", segments, x, np.zeros_like(x), factor=9, mode=mode, values=values)[0]
    out = unpack_add(segments, message, np.zeros_like(x))
    size, unit = struct.unpack("<I", message[16:20])[0], 1 if width < 64 else 2
    assert size > 300 * unit and np.count_nonzero(out) > 300
    refused = 0
    for at in range(24, 24 + size):
        for new in {message[at] ^ 1 << bit for bit in range(8)} | {0, 0x3F, width, message[at - unit]}:
            try:
                unpack_add(segments, with_bytes(message, at, bytes([new])), np.zeros_like(x))
            except RuntimeError as error:
                assert "a code names none of its elements" in str(error)
                refused += 1
    assert refused > size


@pytest.mark.full
def test_the_fuzzer_of_messages_runs():
    """Under the sanitizers, for a second; CONTRIBUTING.md says how it runs for ten minutes."""
    tool = Path(__file__).parent.parent / "tools" / "fuzz_packed.py"
    words = [sys.executable, str(tool), "--minutes", "0.01", "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "messages read whole" in done.stdout
