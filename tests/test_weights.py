"""Weights from outside: PyTorch's files read without PyTorch and without running them, and what does not fit."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.state import pickled, safetensors, torch_file


def net():
    return gg.Sequential([gg.Conv2d(2, 3), gg.Flatten(), gg.Linear(3)], input=(1, 4, 4), name="small")


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def sizes(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(key, count, shape, strides, offset=0, storage="FloatStorage"):
    """The instructions with which torch.save writes a tensor, from PyTorch's description of its format."""
    persistent = b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"\n" + text(key) + text("cpu")
    persistent += number(count) + b"tQ"
    end = b"\x89ccollections\nOrderedDict\n)Rt"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + persistent
        + number(offset)
        + sizes(shape)
        + sizes(strides)
        + end
        + b"R"
    )


def dictionary(entries):
    pairs = b"".join(text(name) + value for name, value in entries.items())
    return b"ccollections\nOrderedDict\n)R(" + pairs + b"u"


def archive(path, program, storages, compression=zipfile.ZIP_STORED, **others):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("net/data.pkl", b"\x80\x02" + program + b".")
        for key, content in storages.items():
            file.writestr(f"net/data/{key}", content)
        for name, content in others.items():
            file.writestr(f"net/{name}", content)
    return path


def one_by_one(path, arrays, prefix=""):
    """A file as torch.save makes it, of float32 arrays."""
    entries, storages = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        strides = [s // 4 for s in array.strides]
        entries[prefix + name] = tensor(str(key), array.size, array.shape, strides)
        storages[str(key)] = array.astype("<f4").tobytes()
    return archive(path, dictionary(entries), storages)


def test_a_file_of_torch_save_is_read_without_torch(tmp_path):
    weights = net().weights(3)
    model = net()
    assert not model.load_weights(one_by_one(tmp_path / "a.pt", weights))
    assert all(np.array_equal(model.weights()[name], array) for name, array in weights.items())


def test_views_and_types(tmp_path):
    whole = np.arange(12, dtype=np.float32)
    program = dictionary(
        {
            "turned": tensor("0", 12, (4, 2), (1, 4), 4),
            "same": tensor("0", 12, (2, 2), (0, 1)),
            "half": tensor("1", 3, (3,), (1,), storage="HalfStorage"),
            "brain": tensor("2", 2, (2,), (1,), storage="BFloat16Storage"),
            "number": tensor("3", 1, (), (), storage="LongStorage"),
            "empty": tensor("0", 12, (0, 5), (5, 1), 12),
        }
    )
    half = np.float16([1.5, -2, 3]).tobytes()
    brain = (np.float32([1, -2.5]).view(np.uint32) >> 16).astype("<u2").tobytes()
    storages = {"0": whole.tobytes(), "1": half, "2": brain, "3": struct.pack("<q", 1 << 40)}
    found = gg.read_weights(archive(tmp_path / "a.pt", program, storages))
    assert np.array_equal(found["turned"], whole.reshape(3, 4)[1:].T)
    assert np.array_equal(found["same"], [[0, 1], [0, 1]])
    assert np.array_equal(found["half"], [1.5, -2, 3]) and np.array_equal(found["brain"], np.float32([1, -2.5]))
    assert found["number"] == 1 << 40 and found["number"].shape == () and found["empty"].shape == (0, 5)
    big = archive(tmp_path / "b.pt", tensor("0", 2, (2,), (1,)), {"0": b"\x3f\x80\0\0\x40\0\0\0"}, byteorder=b"big")
    assert np.array_equal(torch_file.read("b.pt", big.read_bytes()), [1, 2])


class Bad:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_in_a_file_is_run(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("bad.pt", "w") as file:
        file.writestr("net/data.pkl", pickle.dumps({"fc1.weight": Bad()}, protocol))
    with pytest.raises(gg.CheckpointError, match=r"bad.pt: it holds '(posix|nt).system', which is not read"):
        net().load_weights("bad.pt")
    stream = torch_file.STREAM + b"".join(
        pickle.dumps(one, protocol) for one in (1001, {"little_endian": True}, {"fc1.weight": Bad()})
    )
    (tmp_path / "bad.pth").write_bytes(stream)
    with pytest.raises(gg.CheckpointError, match="system.*is not read"):
        net().load_weights("bad.pth")
    assert not os.path.exists("executed")


NUMBERS = {
    "double": np.float64(-1.1),
    "single": np.float32(1.5),
    "half": np.float16(2),
    "step": np.int64(-(1 << 40)),
    "large": np.uint64((1 << 64) - 1),
    "small": np.int8(-128),
    "best": np.bool_(True),
    "complex": np.complex64(1 - 2j),
}


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
@pytest.mark.parametrize("protocol", range(2, 6))
def test_numbers_of_numpy_beside_the_weights(tmp_path, protocol, module):
    """As a loop has its best loss and its step: they are read as Python's. Of NumPy 1 and 2."""
    content = pickle.dumps(NUMBERS, protocol)
    assert b"scalar" in content
    if protocol < 4:  # else the name's length stands before it
        content = content.replace(b"numpy._core.multiarray", module).replace(b"numpy.core.multiarray", module)
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("net/data.pkl", content)
    found = gg.read_weights(tmp_path / "a.pt")
    assert found == {name: one.item() for name, one in NUMBERS.items()}
    assert {name: type(one) for name, one in found.items()} == {name: type(one.item()) for name, one in NUMBERS.items()}


@pytest.mark.parametrize("value", [np.str_("abc"), np.datetime64("2020-01-01"), np.zeros(3), np.dtype("f4,f4")])
def test_other_things_of_numpy_are_refused_by_name(tmp_path, value):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("net/data.pkl", pickle.dumps({"value": value}, 2))
    with pytest.raises(gg.CheckpointError, match="numpy.*not read|NumPy value of type .*not read; allowed: numbers"):
        gg.read_weights(tmp_path / "a.pt")


SCALAR, F4 = b"cnumpy.core.multiarray\nscalar\n", b"cnumpy\ndtype\n" + text("f4") + b"\x85R"
CODED = b"c_codecs\nencode\n" + text("abc")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"cbuiltins\neval\n(" + text("1+1") + b"tR", "'builtins.eval', which is not read"),
        (b"ctorchvision.models.resnet\nResNet\n)\x81", "'torchvision.models.resnet.ResNet'.*state_dict"),
        (text("torch") + text("load") + b"\x93)R", "'torch.load'"),
        (text("OrderedDict") + b")R", "a call of what is no function"),
        (b"ctorch\nfloat32\n)R", "a call of what is no function"),
        (b"(" + text("storage") + text("FloatStorage") + text("0") + text("cpu") + number(4) + b"tQ", "is no storage"),
        (tensor("0", 4, (5,), (1,)), "reaches over the end"),
        (tensor("0", 4, (2, 2), (1 << 30, 1)), "reaches over the end"),
        (tensor("0", 4, (-1,), (1,)), "sizes"),
        (tensor("0", 4, (0, *[1 << 30] * 3), (1, 1, 1, 1)), r"damaged: a tensor of shape \(0, 1073741824"),
        (tensor("0", 4, (2, 2), (2,)), "without a storage"),
        (tensor("0", 5, (4,), (1,)), "16 bytes; wanted 20"),
        (tensor("9", 4, (4,), (1,)), "data/9"),
        (b"R", "the stack is empty"),
        (b"h\x07", "damaged"),
        (b"u", "no mark"),
        (b"]]a" * 2 + b"u", "damaged"),
        (b"}" + b"]" + number(1) + b"s", "damaged: unhashable"),
        (b"})" + b"\x85" * 1_000_000 + number(1) + b"s", "a key of tuples in a tuple"),
        (b"\x8f()" + b"\x85" * 1_000_000 + b"\x90", "a key of tuples in a tuple"),
        (b"(" + number(1) + b"d", "a key without a value"),
        (b"\x8a\x04", "damaged"),
        (b"P7\n", "PERSID"),
        (SCALAR + F4 + CODED + text("latin1") + b"\x86R\x86R", "damaged: a NumPy number of another size"),
        (SCALAR + text("f4") + CODED + text("latin1") + b"\x86R\x86R", "damaged: a NumPy number of another size"),
        (SCALAR + F4 + b"\x85R", "damaged: a NumPy number of another size"),
        (CODED + text("rot13") + b"\x86R", "damaged: bytes in the code 'rot13'"),
        (F4 + number(3) + text("!") + b"\x86b", "damaged: a NumPy number without an order"),
        (b"cnumpy\ndtype\n" + text("O8") + b"\x85R", "a NumPy value of type 'O8', which is not read; allowed: numbers"),
        (b"cnumpy\ndtype\n]\x85R", r"a NumPy value of type \[\], which is not read"),
    ],
)
def test_damaged_and_foreign_pickles(tmp_path, program, words):
    path = archive(tmp_path / "a.pt", program, {"0": bytes(16)})
    with pytest.raises(gg.CheckpointError, match=words):
        net().load_weights(path)


def test_containers_in_each_other_without_end(tmp_path):
    path = archive(tmp_path / "a.pt", b"}q\x01" + text("self") + b"h\x01s", {})
    with pytest.raises(gg.CheckpointError, match="16 containers"):
        gg.read_weights(path)


def _tangled(depth, kind=list):
    """A container in which each refers twice to the one inside it: 2**depth when copied at each reference."""
    inside = kind()
    for _ in range(depth):
        inside = kind((inside, inside))
    return inside


def test_shared_containers_are_copied_once(tmp_path):
    from gossipgrad.data import pickled_arrays

    content = pickle.dumps(_tangled(12), protocol=2)
    archive(tmp_path / "a.pt", content[2:-1], {})
    with pytest.raises(gg.CheckpointError, match="holds a list"):
        gg.read_weights(tmp_path / "a.pt")
    for found in (torch_file.read("a.pt", (tmp_path / "a.pt").read_bytes()), pickled_arrays.read(content, "a")):
        for _ in range(12):
            assert found[0] is found[1]
            found = found[0]
    looped = []
    looped.append(looped)
    with pytest.raises(gg.DataError, match="more than 16 containers"):
        pickled_arrays.read(pickle.dumps(looped), "a")


@pytest.mark.parametrize(
    "call",
    [
        b"ctorch\ndevice\n%s\x85R",
        b"ccollections\nOrderedDict\n]%s\x86R",
        b"ctorch\nSize\n%s\x85R",
        b"cnumpy\ndtype\n%s\x85R",
        b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R(K\x03%stb",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00a%stR",
        b"%sX\x01\x00\x00\x00a\x93",
        b"%sQ",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n%sK\x00K\x00tQ",
    ],
)
def test_tangled_arguments_are_neither_hashed_nor_written_out(call, tmp_path):
    """A repr, a str or a hash of 2**60 references has no end."""
    tangle = pickle.dumps(_tangled(60, tuple), protocol=2)[2:-1]
    archive(tmp_path / "a.pt", call.replace(b"%s", tangle), {})
    with pytest.raises(gg.CheckpointError):
        gg.read_weights(tmp_path / "a.pt")


def test_names_of_a_file_leave_the_terminal_alone(tmp_path):
    entries = {f"\x1b[2Jname{i}\u202e": np.zeros(1, np.float32) for i in range(30_000)}
    safetensors.write(tmp_path / "a.safetensors", entries)
    with pytest.raises(gg.CheckpointError) as caught:
        net().load_weights(tmp_path / "a.safetensors")
    words = str(caught.value)
    assert words.isprintable() and len(words) < 2500 and "29,980 more" in words and r"\x1b[2Jname0\u202e" in words


def test_a_tensor_of_a_type_that_numpy_lacks_refuses_no_file(tmp_path):
    """Complex numbers and those of 8 bits, beside weights that are loaded."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    codes = torch.arange(256).to(torch.uint8)
    weights = {name: torch.from_numpy(array) for name, array in net().weights().items()}
    others = {
        "f4": codes.view(torch.float8_e4m3fn),
        "f5": codes.clone().view(torch.float8_e5m2),
        "c": torch.complex(torch.ones(3), torch.arange(3.0)),
    }
    torch.save(weights | others | {"conj": others["c"].conj()}, tmp_path / "a.pt")
    save_file(weights | others, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        found = gg.read_weights(tmp_path / name)
        for key in ("f4", "f5"):
            np.testing.assert_array_equal(found[key], others[key].float().numpy())
        np.testing.assert_array_equal(found["c"], others["c"].numpy())
        np.testing.assert_array_equal(found.get("conj", [1, 1 - 1j, 1 - 2j]), [1, 1 - 1j, 1 - 2j])
        loaded = net()
        assert set(loaded.load_weights(tmp_path / name, strict=False).extra) <= {"f4", "f5", "c", "conj"}


def test_other_archives_and_truncated_ones(tmp_path):
    weights = net().weights()
    whole = one_by_one(tmp_path / "a.pt", weights).read_bytes()
    for length in (10, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "short.pt").write_bytes(whole[:length])
        with pytest.raises(gg.CheckpointError, match="short.pt: (damaged or )?truncated|short.pt: damaged"):
            net().load_weights(tmp_path / "short.pt")
    place = whole.index(weights["fc1.weight"].tobytes())
    (tmp_path / "short.pt").write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    with pytest.raises(gg.CheckpointError, match="damaged"):
        net().load_weights(tmp_path / "short.pt")
    np.savez(tmp_path / "a.npz", **weights)
    with pytest.raises(gg.CheckpointError, match="without a data.pkl"):
        net().load_weights(tmp_path / "a.npz")
    model = net()
    model.load_weights(np.load(tmp_path / "a.npz"))
    assert np.array_equal(model.weights()["fc1.bias"], weights["fc1.bias"])
    path = archive(tmp_path / "b.pt", b"}", {}, **{"constants.pkl": b"", "code/a.py": b""})
    with pytest.raises(gg.CheckpointError, match="TorchScript"):
        net().load_weights(path)
    path = archive(tmp_path / "b.pt", b"}", {"0": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(gg.CheckpointError, match="is compressed"):
        net().load_weights(path)
    path = archive(tmp_path / "b.pt", b"]", {})
    with pytest.raises(gg.CheckpointError, match="holds a list; wanted a dictionary"):
        net().load_weights(path)


def test_any_changed_byte_in_an_archives_directory_is_told(tmp_path):
    whole = one_by_one(tmp_path / "a.pt", net().weights()).read_bytes()
    spoilt = [whole[:9] + whole[10:]]  # a file that begins a byte late
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        spoilt += [whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :] for flip in (0x08, 0xFF)]
    for content in spoilt:
        (tmp_path / "a.pt").write_bytes(content)
        with contextlib.suppress(gg.CheckpointError):
            gg.read_weights(tmp_path / "a.pt")


def test_all_that_does_not_fit_is_named_in_one_message():
    weights = net().weights()
    odd = {f"extra{i}": np.zeros(2) for i in range(9)} | {k: v for k, v in weights.items() if k.startswith("fc1")}
    odd["fc1.weight"] = odd["fc1.weight"].T
    with pytest.raises(gg.CheckpointError) as error:
        net().load_weights(odd)
    words = str(error.value)
    assert words.startswith("weights is of another model than 'small': it has no conv1.weight, conv1.bias; it has ext")
    assert all(f"extra{i}" in words for i in range(9))
    assert words.endswith("which the network lacks; fc1.weight has shape (8, 3), in the network (3, 8)")
    with pytest.raises(gg.CheckpointError, match=r"than 'small': fc1.bias has shape \(1,\), in the network \(3,\)$"):
        net().load_weights(weights | {"fc1.bias": np.zeros(1)})
    with pytest.raises(gg.CheckpointError, match="conv1.bias; it has extra0.*; fc1.weight has shape"):
        gg.Trainer(net()).load_weights(odd)
    with pytest.raises(TypeError, match=r"a Module; .*of a file; of a module: its state_dict\(\)$"):
        net().load_weights(type("Module", (), {"state_dict": dict})())
    with pytest.raises(TypeError, match="a list; allowed: arrays by name, or the path of a file$"):
        net().load_weights([1])
    with pytest.raises(TypeError, match="fc1.bias is of dtype <U1; wanted numbers"):
        net().load_weights(weights | {"fc1.bias": np.array(list("abc"))})


def test_not_strict_loads_what_fits_and_says_the_rest():
    weights = net().weights(8)
    given = {"conv1.weight": weights["conv1.weight"], "fc1.weight": np.zeros((9, 8)), "other": np.zeros(1)}
    model = net()
    misfit = model.load_weights(given, strict=False)
    assert misfit.missing == ("conv1.bias", "fc1.bias") and misfit.extra == ("other",)
    assert misfit.shapes == {"fc1.weight": ((9, 8), (3, 8))}
    trainer = gg.Trainer(model, seed=5)
    want = net().weights(5) | {"conv1.weight": weights["conv1.weight"]}
    assert list(trainer.weights()) == list(want)
    assert all(np.array_equal(trainer.weights()[name], array) for name, array in want.items())
    with pytest.raises(gg.CheckpointError, match="has no conv1.weight"):
        net().load_weights({"other": np.zeros(1)}, strict=False)
    assert not net().load_weights(weights)


def test_prefixes_of_wrappers_and_counters(tmp_path):
    weights = net().weights(4)
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        model = net()
        model.load_weights(one_by_one(tmp_path / "a.pt", weights, prefix))
        assert all(np.array_equal(model.weights()[name], array) for name, array in weights.items())
    renamed = {name.replace("conv1.", "conv1._orig_mod."): array for name, array in weights.items()}
    net().load_weights(renamed | {"bn1.num_batches_tracked": np.int64(7)})
    with pytest.raises(gg.CheckpointError, match="has module.fc1.bias, which"):
        some = dict(weights)
        some["module.fc1.bias"] = some.pop("fc1.bias")
        net().load_weights(some)
    inner = gg.Sequential([gg.Linear(2, name="module.fc")], input=(2,))
    assert not inner.load_weights(inner.weights())


def test_a_file_with_more_than_weights(tmp_path):
    weights = net().weights(4)
    of = {
        name: tensor(str(i), a.size, a.shape, [s // 4 for s in a.strides])
        for i, (name, a) in enumerate(weights.items())
    }
    storages = {str(i): array.tobytes() for i, array in enumerate(weights.values())}
    optimizer = b"}(" + text("state") + b"}" + text("step") + number(3) + b"u"
    program = b"}(" + text("net") + dictionary(of) + text("optimizer") + optimizer + text("epoch") + number(7)
    model = net()
    model.load_weights(archive(tmp_path / "a.pt", program + b"u", storages))
    assert np.array_equal(model.weights()["fc1.bias"], weights["fc1.bias"])
    path = archive(tmp_path / "a.pt", program + text("ema") + dictionary(of) + b"u", storages)
    with pytest.raises(gg.CheckpointError, match=r"2 dictionaries of weights \('net', 'ema'\).*read_weights"):
        net().load_weights(path)
    content = gg.read_weights(path)
    assert content["epoch"] == 7 and content["optimizer"] == {"state": {}, "step": 3}
    assert not net().load_weights(content["ema"])


def test_saved_weights_are_read_again(tmp_path):
    model = net()
    model.save_weights(tmp_path / "w.safetensors", seed=6)
    assert all(
        np.array_equal(safetensors.read(tmp_path / "w.safetensors")[0][k], v) for k, v in net().weights(6).items()
    )
    with pytest.raises(gg.CheckpointError, match=r"missing/w: "):
        model.save_weights(tmp_path / "missing" / "w")


def test_pickles_that_python_writes_are_read():
    """All containers, numbers and texts, by every protocol but those of text."""
    value = {
        "a": [1, -5, 300, 70000, 1 << 70, -(1 << 40), 2.5],
        ("t", "u"): (),
        "n": (None, True, False),
        "s": "ä",
        "b": b"x" * 300,
    }
    value["e"] = {1, 2}, [1], (1, 2, 3, 4)
    shared = [value["a"], value["a"]]
    for protocol in range(2, 6):
        known = {"builtins.set": lambda values=(): set(values), "__builtin__.set": lambda values=(): set(values)}
        encode = {"_codecs.encode": lambda t, coding: t.encode(coding)}
        assert pickled.read(pickle.dumps(value, protocol), known | encode) == value
        first, second = pickled.read(pickle.dumps(shared, protocol), known)
        assert first is second
    with pytest.raises(pickled.Unreadable, match="it has no end|damaged"):
        pickled.read(pickle.dumps(shared, 2)[:-1], {})


def test_a_file_is_read_from_its_place():
    file = io.BytesIO(pickle.dumps([1], 2) + pickle.dumps("b", 2) + b"rest")
    assert pickled.read(file, {}) == [1] and pickled.read(file, {}) == "b" and file.read() == b"rest"


# ---- PyTorch itself


def test_files_that_torch_writes(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential()
    module.add_module("conv1", torch.nn.Conv2d(1, 2, 3))
    module.add_module("flat", torch.nn.Flatten())
    module.add_module("fc1", torch.nn.Linear(8, 3))
    state = module.state_dict()
    wide = torch.randn(4, 6)
    many = {
        "state": state,
        "parameters": {k: torch.nn.Parameter(v) for k, v in state.items()},
        "types": [torch.ones(3, dtype=getattr(torch, name)) for name in torch_file._TYPES],
        "view": wide.t()[1:3, ::2],
        "negative": torch.complex(wide, -wide).conj().imag,
        "size": wide.shape,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "numbers": NUMBERS,
    }
    for new in (True, False):
        torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
        model = net()
        model.load_weights(tmp_path / "a.pt")
        assert all(np.array_equal(model.weights()[k], v.numpy()) for k, v in state.items())
        torch.save(many, tmp_path / "b.pt", _use_new_zipfile_serialization=new)
        found = gg.read_weights(tmp_path / "b.pt")
        assert np.array_equal(found["view"], many["view"].numpy()) and found["size"] == (4, 6)
        assert np.array_equal(found["negative"], wide.numpy())
        assert found["numbers"] == {name: one.item() for name, one in NUMBERS.items()}
        assert all(np.array_equal(one, np.ones(3)) for one in found["types"])
        assert all(np.array_equal(found["parameters"][k], v.numpy()) for k, v in state.items())
        torch.save(module, tmp_path / "c.pt", _use_new_zipfile_serialization=new)
        with pytest.raises(gg.CheckpointError, match="torch.nn.modules.container.Sequential.*state_dict"):
            net().load_weights(tmp_path / "c.pt")
    model = net()
    model.load_weights({k: v.to(torch.bfloat16).requires_grad_() for k, v in state.items()})
    assert np.array_equal(model.weights()["fc1.bias"], state["fc1.bias"].bfloat16().float().numpy())
    # and back
    trainer = gg.Trainer(model)
    trainer.save(tmp_path / "t.safetensors")
    back = {k: torch.from_numpy(v.copy()) for k, v in gg.read_weights(tmp_path / "t.safetensors").items()}
    module.load_state_dict(back)
