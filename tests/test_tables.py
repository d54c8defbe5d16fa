"""Tables from CSV and NPZ files: the numbers they hold, standardisation, and every way in which they can be wrong."""

from __future__ import annotations

import gzip
import io
import re
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import tables

GOOD = "a,b,label\n1,2,0\n3.5,-4e1,1\n5,6,0\n"


@pytest.fixture
def file(tmp_path):
    def make(text, name="t.csv"):
        path = tmp_path / name
        content = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return make


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "gzip-by-its-content"])
def test_numbers_and_label_by_name(file, name):
    path = file(GOOD, name)
    if "content" in name:
        path.write_bytes(gzip.compress(path.read_bytes()))
    for label in ("label", 2, -1):
        one = gg.data.csv(path, label)
        assert one.samples.dtype == np.float32 and one.samples.tolist() == [[1, 2], [3.5, -40], [5, 6]]
        assert one.targets.tolist() == [0, 1, 0] and one.classes is None
    assert gg.data.csv(path, "a", features=["label", "b"]).samples.tolist() == [[0, 2], [1, -40], [0, 6]]
    assert gg.data.csv(path, ["b", "a"]).targets.tolist() == [[2, 1], [-40, 3.5], [6, 5]]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (GOOD.replace("\n", "\r\n"), {}),
        (GOOD.replace(",", ";"), {}),
        (GOOD.replace(",", "\t"), {}),
        (GOOD.replace(",", " , "), {}),
        (GOOD.replace(",", "|"), {"delimiter": "|"}),
        ("\ufeff" + GOOD, {}),
        ("\n\n" + GOOD + "\n\n", {}),
        (GOOD[:-1], {}),
        (GOOD.replace("3.5", '"3.5"').replace("a,", '"a",'), {}),
        (GOOD.partition("\n")[2], {"label": 2}),
        (GOOD.replace("a,b,label", "1,2,3"), {"label": "3", "header": True}),
    ],
)
def test_forms_of_the_same_table(file, text, how):
    one = gg.data.csv(file(text), **{"label": "label", **how})
    assert one.samples.tolist() == [[1, 2], [3.5, -40], [5, 6]] and one.targets.tolist() == [0, 1, 0]


def test_text_labels_become_classes(file):
    iris = "5.1,3.5,setosa\n7,3.2,versicolor\n6.3,3.3,virginica\n4.9,3,setosa\n"
    train, test = gg.data.csv(file(iris), -1, test=file("1,2,virginica\n1,2,setosa\n", "other.csv"))
    assert train.targets.tolist() == [0, 1, 2, 0] and train.targets.dtype == np.int32
    assert train.classes == test.classes == ["setosa", "versicolor", "virginica"]
    assert test.targets.tolist() == [2, 0] and train.shape == (2,)
    quoted = iris.replace("setosa", '"the, first"')
    assert gg.data.csv(file(quoted), -1).classes == ["the, first", "versicolor", "virginica"]
    with pytest.raises(gg.DataError, match="other.csv: line 2 has the label 'tulip', which is none of the classes"):
        gg.data.csv(file(iris), -1, test=file("1,2,setosa\n1,2,tulip\n", "other.csv"))


def test_the_label_of_the_other_file_is_the_same_column_and_of_the_same_kind(file):
    first = file("a,b,label\n1,2,0\n3,4,1\n")
    other = file("label,b,a,more\n1,6,5,9\n", "other.csv")
    test = gg.data.csv(first, -1, test=other)[1]
    assert test.targets.tolist() == [1] and test.samples.tolist() == [[5, 6]]
    with pytest.raises(gg.DataError, match="other.csv: label='label' is text, as 'no'; allowed: numbers"):
        gg.data.csv(first, "label", test=file("a,b,label\n1,2,yes\n3,4,no\n", "other.csv"))


@pytest.mark.parametrize("begin", ["", "\n", "\ufeff", "a,b,label\n", "\na,b,label\r\n\n"])
def test_the_only_row_wants_no_line_end(file, begin):
    one = gg.data.csv(file(f"{begin}1,2,0"), -1)
    assert one.samples.tolist() == [[1, 2]] and one.targets.tolist() == [0]


def test_a_part_to_test_on(file):
    rows = "\n".join(f"{i},{i % 2}" for i in range(20))
    train, test = gg.data.csv(file("x,y\n" + rows), "y", test=0.25, seed=3)
    assert len(train) == 15 and len(test) == 5
    assert sorted([*train.samples[:, 0], *test.samples[:, 0]]) == list(range(20))
    again = gg.data.csv(file("x,y\n" + rows), "y", test=0.25, seed=3)[1]
    assert np.array_equal(again.samples, test.samples)
    for share in (0, 1, 1.5):
        with pytest.raises(ValueError, match="test="):
            gg.data.csv(file("x,y\n" + rows), "y", test=share)


def test_standardisation_is_of_the_training_part(file):
    generator = np.random.default_rng(0)
    table = generator.normal([5, -300, 0.001], [2, 50, 1e-4], (500, 3)).astype(np.float32)
    table[:, 2] = 7  # a constant feature
    text = "\n".join(",".join(map(repr, row.tolist())) + f",{i % 2}" for i, row in enumerate(table))
    train, test = gg.data.csv(file(text), -1, test=0.4, standardize=True)
    raw, raw_test = gg.data.csv(file(text), -1, test=0.4)
    mean, deviation = raw.samples.astype(np.float64).mean(0), raw.samples.astype(np.float64).std(0)
    deviation[2] = 1
    for found, of in ((train, raw), (test, raw_test)):
        np.testing.assert_allclose(found.samples, (of.samples - mean) / deviation, atol=2e-5)
        np.testing.assert_allclose(found.standardization[0], mean, rtol=1e-6)
        np.testing.assert_allclose(found.standardization[1], deviation, rtol=1e-5)
    assert abs(test.samples[:, 0].mean()) > 1e-4  # it is not standardised by itself
    third = gg.data.csv(file(text), -1, standardize=train)
    np.testing.assert_allclose(third.samples, (table - mean) / deviation, atol=2e-5)
    with pytest.raises(ValueError, match="is not standardised"):
        gg.data.csv(file(text), -1, standardize=raw)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("a,b,label\n", "no rows, only the names"),
        (GOOD + "7,8\n", "line 5: 2 fields; wanted 3"),
        (GOOD + "\n7,8,1,9\n", "line 6: 4 fields; wanted 3"),
        (GOOD.replace("3.5", "nan"), "line 3: column 'a' is 'nan', not a number"),
        (GOOD.replace("3.5", ""), "line 3: column 'a' is missing"),
        (GOOD.replace("3.5", "inf"), "line 3: column 'a' is 'inf', not a finite number"),
        (GOOD.replace("3.5", "1e300"), "line 3: column 'a' is 1e300, too large for float32"),
        (GOOD.replace("3.5", "x"), "line 3: column 'a' is 'x', not a number"),
        (GOOD.replace("3.5", "1_0"), "line 3: column 'a' is '1_0', not a number"),
        (GOOD.replace(",1\n", ",\n"), "line 3: column 'label' is missing"),
        (GOOD.replace("a,", "b,"), "line 1: several columns have the name 'b'"),
        (GOOD.replace("\n1,", "\nx,"), "line 2: column 'a' is 'x', not a number; features=.* chooses columns"),
        (GOOD.encode() + b"\xff,1,1\n", "line 5: no utf-8 text"),
        (GOOD + '"7,8,1\n', "line 5: "),
    ],
)
def test_rows_that_are_wrong_are_named_by_line(file, text, words):
    for name in ("t.csv", "t.csv.gz"):
        with pytest.raises(gg.DataError, match=words) as caught:
            gg.data.csv(file(text, name), "label")
        assert name in str(caught.value)


def test_lines_are_right_in_every_piece(file, monkeypatch):
    """Rows that are longer than a piece, line ends between quotes, and a wrong row in any place."""
    monkeypatch.setattr(tables, "FIELDS", 7)
    rows = [f"{i},{2 * i},{i % 3}" for i in range(100)]
    one = gg.data.csv(file("a,b,label\n" + "\n".join(rows)), "label")
    assert one.samples.tolist() == [[i, 2 * i] for i in range(100)]
    for at in (0, 1, 37, 99):
        broken = [*rows[:at], "1,2", *rows[at + 1 :]]
        with pytest.raises(gg.DataError, match=rf"line {at + 2}: 2 fields"):
            gg.data.csv(file("a,b,label\n" + "\n".join(broken)), "label")
    words = [f'{i},{i},"two\nlines of {"x" * (i % 90)}"' for i in range(30)]
    one = gg.data.csv(file("a,b,label\n" + "\n".join(words)), "label")
    assert len(one) == 30 and one.samples[:, 0].tolist() == list(range(30)) and len(one.classes) == 30
    with pytest.raises(gg.DataError, match=r"line 62: column 'a' is 'y'"):
        gg.data.csv(file("a,b,label\n" + "\n".join([*words, 'y,1,"z"'])), "label")


def test_rows_that_are_skipped_are_counted(file):
    text = GOOD + "7,8\n,1,1\n9,10,1\nnan,1,1\n" + "x,1,0\n" * 9
    with pytest.warns(UserWarning, match=r"12 rows skipped: line 5: 2 fields; .*line 6: column 'a' is miss.* 7 more"):
        one = gg.data.csv(file(text), "label", strict=False)
    assert one.samples.tolist() == [[1, 2], [3.5, -40], [5, 6], [9, 10]] and one.targets.tolist() == [0, 1, 0, 1]
    with pytest.warns(UserWarning, match="2 rows skipped"):
        one = gg.data.csv(file("a,b,label\n1,2,cat\n1,dog\n3,4,\n5,6,dog\n"), "label", strict=False)
    assert one.samples.tolist() == [[1, 2], [5, 6]] and one.classes == ["cat", "dog"]
    with pytest.warns(UserWarning), pytest.raises(gg.DataError, match="no rows, all were skipped"):
        gg.data.csv(file("a,b,label\n1,,0\n"), "label", strict=False)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"label": "lable"}, gg.DataError, "label='lable': .* has no such column; it has a, b, label; did you mean"),
        ({"label": 3}, gg.DataError, r"label=3: .* has columns 0..2"),
        ({"label": None}, TypeError, "label"),
        ({"label": 1.5}, TypeError, "label"),
        ({"label": "label", "features": ["a", "c"]}, gg.DataError, "features='c'"),
        ({"label": "label", "features": ["a", "label"]}, ValueError, "'label' is the label too"),
        ({"label": "label", "features": ["a", "a"]}, ValueError, "each once"),
        ({"label": ["a", "b", "label"]}, gg.DataError, "no column beside the label"),
        ({"label": "label", "delimiter": ",,"}, ValueError, "delimiter=',,'"),
        ({"label": "label", "strict": 1}, TypeError, "strict=1"),
        ({"label": "label", "standardize": "yes"}, TypeError, "standardize='yes'"),
    ],
)
def test_bad_arguments(file, how, error, words):
    with pytest.raises(error, match=words):
        gg.data.csv(file(GOOD), **how)


def test_files_that_cannot_be_read(tmp_path, file):
    with pytest.raises(gg.DataError, match="none.csv: No such file"):
        gg.data.csv(tmp_path / "none.csv", "label")
    with pytest.raises(gg.DataError, match="is a folder; allowed: a file$"):
        gg.data.csv(tmp_path, "label")
    path = file(GOOD * 50, "t.csv.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(gg.DataError, match="t.csv.gz: truncated or damaged"):
        gg.data.csv(path, "label")


def test_standardised_samples_have_no_scale():
    x = np.random.default_rng(0).normal(3, 2, (50, 2)).astype(np.float32)
    (found,) = gg.data.standardize(gg.Dataset(x, np.arange(50) % 2, 1 / 255, [0.5, 2.0], name="mine"))
    assert found.scale == 1 and found.shift == 0 and found.name == "mine"
    np.testing.assert_allclose(found.samples, (x - x.mean(0)) / x.std(0), atol=1e-5)


def test_several_inputs_or_targets_are_not_standardised():
    x, y = np.zeros((4, 2), np.float32), np.arange(4)
    one = gg.Dataset(x, y)
    refused = [(gg.Dataset((x, x), y), "2 inputs and 1 array of"), (gg.Dataset(x, (y, y)), "1 input and 2 arrays")]
    for several, words in refused:
        for sets in ((several,), (one, several)):
            with pytest.raises(ValueError, match=f"standardize: arrays has {words}.*; allowed: one of each"):
                gg.data.standardize(*sets)


def test_names_of_digits_mean_the_same_columns_in_the_other_file(file):
    text = "id,0,1,said\n10,20,30,0\n11,21,31,1\n"
    train, test = gg.data.csv(file(text), "said", header=True, features=["1", "0"], test=file(text, "other.csv"))
    assert train.samples.tolist() == test.samples.tolist() == [[30, 20], [31, 21]]


@pytest.mark.parametrize("label", [-1, [2, 0], "c"])
def test_a_label_by_its_number_is_the_same_column_in_the_other_file(file, label):
    """By its name, as the features are: the other file may have another order."""
    one, other = file("a,b,c\n1,2,5\n3,4,6\n"), file("c,b,a\n5,2,1\n6,4,3\n", "other.csv")
    train, test = gg.data.csv(one, label, test=other, features=["b"])
    assert train.targets.tolist() == test.targets.tolist() and train.samples.tolist() == test.samples.tolist()


@pytest.mark.parametrize(
    "text", ["a,b,said\r1,2,0\r3,4,1\r", 'a,"b\rc",said\n1,2,0\n3,4,1\n', 'a,"b\n\rc",said\r\n1,2,0\r\n3,4,1\r\n']
)
def test_every_end_of_a_line_ends_the_names(file, text):
    assert gg.data.csv(file(text), "said").samples.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("said", ["None", "nan", "?"])
def test_all_fields_of_a_label_say_what_it_is(file, place, said):
    """Wherever a word stands that marks what is missing among numbers: among words it is one of them."""
    labels = ["cat", "dog"]
    labels.insert(place, said)
    one = gg.data.csv(file("a,said\n" + "".join(f"1,{label}\n" for label in labels)), "said")
    assert one.classes == sorted(labels) and [one.classes[i] for i in one.targets] == labels
    numbers = ["1", "2"]
    numbers.insert(place, said)
    with pytest.raises(gg.DataError, match=rf"line {place + 2}: column 'said' is '{re.escape(said)}', not a number"):
        gg.data.csv(file("a,said\n" + "".join(f"1,{label}\n" for label in numbers)), "said")


def test_a_label_of_numbers_and_text_is_an_error_in_any_order(file):
    for rows, numbers, texts in (("1,7\n1,a\n1,8\n", ("7", 2), ("a", 3)), ("1,a\n1,7\n1,8\n", ("7", 3), ("a", 2))):
        path = file("x,said\n" + rows)
        words = "numbers, as '{}' in line {}, and text, as '{}' in line {}; allowed: one of both, or classes="
        with pytest.raises(gg.DataError, match=words.format(*numbers, *texts)):
            gg.data.csv(path, "said")
        one = gg.data.csv(path, "said", classes=["a", "8", "7"])
        assert [one.classes[i] for i in one.targets] == [row[2:] for row in rows.split()]
        with pytest.warns(UserWarning, match=f"1 row skipped: line {texts[1]}: column 'said' is 'a', not a number"):
            assert gg.data.csv(path, "said", strict=False).targets.tolist() == [7, 8]
    with pytest.warns(UserWarning, match="1 row skipped: line 3: column 'said' is missing"):
        many = gg.data.csv(file("x,said\n1,a\n1,\n1,7\n1,b\n"), "said", strict=False)
    assert many.classes == ["7", "a", "b"] and many.targets.tolist() == [1, 0, 2]


@pytest.mark.parametrize("classes", ["ab", [], ["a", "a"], 3])
def test_classes_that_are_no_list_of_names(file, classes):
    with pytest.raises((TypeError, ValueError), match="classes"):
        gg.data.csv(file(GOOD), "label", classes=classes)


def test_features_far_from_0_keep_their_differences(file):
    """float32 holds one in 128 of these seconds, so every reader standardises times before it rounds them."""
    x = 1.7e9 + np.arange(1000.0)[:, None]
    wanted = (x - x.mean()) / x.std()
    lines = "".join(f"{value:.0f},0\n" for value in x[:, 0])
    np.savez(file("", "t.npz"), x=x, y=np.zeros(1000))
    np.save(file("", "x.npy"), x)
    plain = gg.Dataset(x, np.zeros(1000))
    mapped = gg.Dataset(np.load(file("", "t.csv").with_name("x.npy"), mmap_mode="r"), np.zeros(1000))
    batches = gg.data.from_iterable([(x[i : i + 10], np.zeros(10)) for i in range(0, 1000, 10)], progress=False)
    path = file(lines)
    sets = [gg.data.csv(path, 1), gg.data.npz(path.with_name("t.npz")), plain, mapped, batches, plain[np.arange(1000)]]
    sets = [gg.data.standardize(one)[0] for one in [*sets, plain[0:][:]]]
    sets += [gg.data.csv(path, 1, standardize=True), gg.data.npz(path.with_name("t.npz"), standardize=True)]
    sets += [gg.data.csv(path, 1, standardize=sets[0])]
    for one in sets:
        assert one.dtype == np.float32 and len(np.unique(one.samples)) == 1000
        np.testing.assert_allclose(one.samples, wanted, atol=1e-6)
    mean, deviation = sets[0].standardization
    np.testing.assert_allclose((x - mean) / deviation, wanted, rtol=1e-12, atol=1e-9)


def test_targets_are_read_as_they_are(file):
    assert gg.data.csv(file("1,16777217\n2,3\n"), -1).targets.tolist() == [16777217, 3]
    assert gg.data.csv(file("1,16777217,0.1\n2,3,4\n"), [1, 2]).targets.tolist() == [[16777217, 0.1], [3, 4]]


class _Reading:
    """Python's reader of rows, which counts the characters that it is given, and how often names are compared."""

    def __init__(self, monkeypatch):
        self.characters = self.compared = 0
        reading, plain = self, tables.csv_module.reader

        class Name(str):
            __slots__ = ()

            def __eq__(self, other):
                reading.compared += 1
                return str.__eq__(self, other)

            def __hash__(self):
                return str.__hash__(self)

            def strip(self):
                return Name(str.strip(self))

        class Rows:
            def __init__(self, lines, delimiter):
                self.rows = plain(self.counted(lines), delimiter=delimiter)

            def counted(self, lines):
                for line in lines:
                    reading.characters += len(line)
                    yield line

            @property
            def line_num(self):
                return self.rows.line_num

            def __iter__(self):
                return ([Name(field) for field in row] for row in self.rows)

        monkeypatch.setattr(tables.csv_module, "reader", Rows)


@pytest.mark.parametrize("rows", [1000, 10_000])
def test_each_character_is_read_once(file, monkeypatch, rows):
    """A quote that is not closed ends the reading at a field that is too long."""
    monkeypatch.setattr(tables, "FIELDS", 100)
    reading = _Reading(monkeypatch)
    text = "a,b\n" + "1,2\n" * rows
    gg.data.csv(file(text), 1)
    assert reading.characters == len(text)
    reading.characters = 0
    with pytest.raises(gg.DataError, match=r"line 3: field larger than field limit.*is a quote not closed"):
        gg.data.csv(file('a,b\n1,2\n"' + "1,2\n" * 5 * rows * 10), 1)
    assert reading.characters < 140_000 + 10


def test_names_of_many_columns_are_compared_once(file, monkeypatch):
    reading, width = _Reading(monkeypatch), 2000
    names = [f"c{i}" for i in range(width)]
    path = file(",".join(names) + "\n" + ",".join("1" * width) + "\n")
    for features in (None, names[1:]):
        reading.compared = 0
        assert gg.data.csv(path, "c0", features=features, test=path)[1].shape == (width - 1,)
        assert reading.compared <= 10 * width


class _Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, columns):
        self.held, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self.held[name]


def test_a_data_frame_is_a_table():
    frame = _Frame({"a": np.array([0.1, 2]), "b": np.array([True, False]), "said": np.array(["x", "y"], object)})
    one, other = gg.data.csv(frame, "said", test=frame)
    assert one.samples.tolist() == [[np.float32(0.1), 1], [2, 0]] and one.classes == ["x", "y"]
    assert one.name == "_Frame" and np.array_equal(one.samples, other.samples) and other.targets.tolist() == [0, 1]
    frame.held["a"][1] = np.nan
    with pytest.raises(gg.DataError, match="the _Frame: row 2: column 'a' is 'nan', not a number"):
        gg.data.csv(frame, "said")


def test_a_table_without_a_header_wants_numbers_of_columns(file):
    with pytest.raises(gg.DataError, match="no line of names: a column is a number"):
        gg.data.csv(file("1,2\n3,4\n"), "label")


def test_a_network_learns_from_a_table(file):
    generator = np.random.default_rng(1)
    x = generator.normal(100, 30, (400, 4))
    rows = "\n".join(",".join(f"{v:.4f}" for v in row) + f",{'yes' if row[0] > row[1] else 'no'}" for row in x)
    train, test = gg.data.csv(file("a,b,c,d,said\n" + rows), "said", test=0.25, standardize=True)
    net = gg.Sequential([gg.Linear(16), gg.ReLU(), gg.Linear(2)], input=(4,))
    with gg.Trainer(net, optimizer=gg.SGD(lr=0.1, momentum=0.9), comm=gg.VirtualCluster(2)) as trainer:
        last = trainer.fit(train, validation=test, epochs=10, batch_size=20, progress=False).last
    assert last["validation"]["accuracy"] > 0.9


# ---- NPZ


@pytest.mark.parametrize("names", [("x", "y"), ("samples", "targets"), ("data", "labels"), ("images", "labels")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, names, save):
    x, y = np.arange(12, dtype=np.uint8).reshape(4, 3), np.array([0, 1, 1, 0])
    save(tmp_path / "t.npz", **dict(zip(names, (x, y), strict=True)), other=np.zeros(2))
    one = gg.data.npz(tmp_path / "t.npz", scale=0.5)
    assert np.array_equal(one.samples, x) and np.array_equal(one.targets, y) and one.scale == 0.5 and one.name == "t"
    one = gg.data.npz(tmp_path / "t.npz", names[1], names[0])
    assert np.array_equal(one.samples, y) and np.array_equal(one.targets, x)


def test_npz_in_the_form_of_keras(tmp_path):
    x = np.random.default_rng(0).normal(3, 2, (10, 2)).astype(np.float32)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(10), x_test=x[:4], y_test=np.arange(4))
    train, test = gg.data.npz(tmp_path / "t.npz", standardize=True)
    assert len(train) == 10 and len(test) == 4
    np.testing.assert_allclose(train.samples.mean(0), 0, atol=1e-6)
    np.testing.assert_array_equal(test.samples, train.samples[:4])


class _Runs:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


@pytest.mark.parametrize(
    ("arrays", "how", "words"),
    [
        ({"a": np.zeros(2)}, {}, "it has a; samples= and targets= name the arrays"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, {}, "x has 2 samples, y 3 targets"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, {}, "x has 0 samples"),
        ({"x": np.zeros(2), "y": np.array(1)}, {}, "y is a single number"),
        ({"x": np.array([[1, 2], [3, np.nan]]), "y": np.zeros(2)}, {}, r"x\[1\] has NaN at \[1\]"),
        ({"x": np.array([_Runs(), 1], object), "y": np.zeros(2)}, {}, "x holds Python objects, which are not read"),
        ({"x": np.zeros(2), "y": np.zeros(2)}, {"samples": "z", "targets": "y"}, "samples='z': .* has x, y"),
    ],
)
def test_npz_that_are_wrong(tmp_path, arrays, how, words):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(gg.DataError, match=words) as caught:
        gg.data.npz(tmp_path / "t.npz", **how)
    assert "t.npz" in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10, 'a')}",
        "{'descr': 'V0', 'fortran_order': False, 'shape': (10,)}",
        "{'descr': [('a', [])], 'fortran_order': 3, 'shape': ()}",
        "[" * 3000,
        "{[]: 1}",
        "{'descr': '<f8'",
        "7",
    ],
    ids=range(9),
)
def test_a_forged_header_is_not_believed(tmp_path, header):
    import zipfile

    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(80)
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        for name in "xy":
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(gg.DataError, match="t.npz"):
        gg.data.npz(tmp_path / "t.npz")


@pytest.mark.parametrize("dtype", ["<f8", ">i2", "?", "<f2", "u1"])
def test_npz_of_every_type_and_order(tmp_path, dtype):
    x = (np.arange(24).reshape(4, 3, 2) % 5).astype(dtype)
    np.savez(tmp_path / "t.npz", x=np.asfortranarray(x), y=x[:, 0, 0])
    one = gg.data.npz(tmp_path / "t.npz")
    assert np.array_equal(one.samples, x) and np.array_equal(one.targets, x[:, 0, 0])


def test_a_progress_bar_on_a_large_npz(tmp_path, monkeypatch, capsys):
    from gossipgrad.launch import terminal

    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    x = np.random.default_rng(0).random((3000, 100))
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(3000))
    one = gg.data.npz(tmp_path / "t.npz")
    out = capsys.readouterr().out
    assert "t.npz: 1 of 2 MB read, 4" in out and "t.npz: 2 of 2 MB read, 100 %" in out
    np.testing.assert_array_equal(one.samples, x.astype(np.float32))
    gg.data.npz(tmp_path / "t.npz", progress=False)
    assert capsys.readouterr().out == ""


def test_npz_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "t.npz"
    with pytest.raises(gg.DataError, match="No such file"):
        gg.data.npz(path)
    np.savez(path, x=np.zeros(100), y=np.zeros(100))
    whole = path.read_bytes()
    for content in (whole[:200], b"", b"no zip", whole[:400] + bytes(64) + whole[464:]):
        path.write_bytes(content)
        if content != whole:
            with pytest.raises(gg.DataError, match="t.npz"):
                gg.data.npz(path)
    for place in (6, 8):  # flags that say encrypted, and an unknown compression
        spoilt = bytearray(whole)
        for begin in (0, whole.index(b"PK\x01\x02") + 2):
            spoilt[begin + place] |= 0x41
        path.write_bytes(spoilt)
        with pytest.raises(gg.DataError, match="t.npz: truncated or damaged"):
            gg.data.npz(path)
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    path.write_bytes(file.getvalue())
    with pytest.raises(gg.DataError, match="one array"):
        gg.data.npz(path)
    with pytest.raises(ValueError, match="both arrays, or none"):
        gg.data.npz(path, samples="x")


def test_a_progress_bar_on_what_takes_long(file, monkeypatch, capsys):
    from gossipgrad.launch import terminal

    monkeypatch.setattr(tables, "FIELDS", 90)
    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    rows = "\n".join(f"{i},{i},0" for i in range(500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gg.data.csv(file(rows), -1)
        out = capsys.readouterr().out
        assert "t.csv: " in out and "MB read, 100 %" in out
        gg.data.csv(file(rows), -1, progress=False)
    assert capsys.readouterr().out == ""
