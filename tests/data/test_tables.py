import csv
import gzip
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from hopfax.data import WordPiece, from_rows, read_table

FILMS = [f"film {number}" for number in range(40)]
STARS = [1, 2, 4, 10] * 10
VOCABULARY = WordPiece(tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"))


def splits(data):
    return data.train, data.validation, data.test


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["good", "bad"] * 20, ("bad", "good")),
        (np.array(STARS), ("1", "2", "4", "10")),
        (np.array([True, False] * 20), ("False", "True")),
    ],
)
def test_strings_and_integers_are_classes(labels, names):
    data = from_rows(FILMS, labels)
    assert data.spec.labels == names and data.spec.num_outputs == len(names)
    assert data.spec.metrics == ("accuracy",) and not data.spec.regression
    for part in splits(data):
        expected = [names.index(str(labels[number])) for number in part.index]
        assert part.labels.tolist() == expected and part.labels.dtype == np.int32


def test_floats_are_scores():
    labels = [0, 0.5, 2.5, 1] * 10
    data = from_rows(FILMS, labels, test=(["a film"], [7]))
    assert data.spec.regression and data.spec.num_outputs == 1
    assert data.spec.metrics == ("pearson", "spearman") and data.spec.label_range == (0, 2.5)
    assert data.train.labels.tolist() == [labels[number] for number in data.train.index]
    assert data.test.labels.tolist() == [7] and data.test.labels.dtype == np.float32


def test_held_out_rows_do_not_depend_on_train_size():
    data, most = (from_rows(FILMS, STARS, train_size=size) for size in (None, 100))
    with pytest.warns(UserWarning, match="no training row has the label 10"):
        few = from_rows(FILMS, STARS, train_size=9)
    assert [len(part.index) for part in splits(data)] == [32, 4, 4]
    assert sorted(np.concatenate([part.index for part in splits(data)])) == list(range(40))
    assert few.test.index.tolist() == data.test.index.tolist()
    assert data.test.index.tolist() == [23, 2, 3, 34]  # on every machine
    assert len(few.train.index) == 9 and set(few.train.index) < set(data.train.index)
    assert most.train.index.tolist() == data.train.index.tolist()


def test_pairs_in_other_splits_and_a_vocabulary():
    dev = [("b", "a"), ["A", "b"]], ["y", "x"]
    rows = [("a", "b")] * 20, ["x", "y"] * 10
    options = {"name": "pairs", "vocabulary": VOCABULARY, "max_length": 5}
    data = from_rows(*rows, validation=dev, test=dev, **options)
    assert [len(part.index) for part in splits(data)] == [20, 2, 2]
    for part in (data.validation, data.test):
        assert part.ids.tolist() == [[[2, 5, 3, 4, 3]], [[2, 4, 3, 5, 3]]]
        assert part.labels.tolist() == [1, 0]
    assert data.vocabulary is VOCABULARY and data.spec.name == "pairs" and not data.is_partial


def test_long_rows_are_truncated_with_a_warning():
    rows = ["a b a", "a b a b", "a", "a b a b b"] * 10, [0, 1] * 20
    test = ["a b a b", "a"], [0, 1]
    options = {"vocabulary": VOCABULARY, "validation": test, "test": test}
    with pytest.warns(UserWarning) as caught:
        data = from_rows(*rows, **options, max_length=5)
    messages = [(str(each.message), each.filename) for each in caught]
    expected = "22 of 44 texts have more than 5 tokens and are truncated"
    assert messages == [(expected, __file__)]
    assert data.test.ids.tolist() == [[[2, 4, 5, 4, 3]], [[2, 4, 3, 0, 0]]]
    from_rows(*rows, **options, max_length=7)  # without a warning


ONES = {"texts": ["a", "b"], "labels": pd.Series([1, 1], index=[5, 6])}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": ["a"]}, "training: got 1 texts, but 40 labels"),
        (ONES, r"training: labels must have two or more values, got \[1, 1\]"),
        ({"test": tuple(ONES.values())}, r"test: labels must have two or more .* \[1, 1\]"),
        ({"labels": [1, "1"] * 20}, r"labels must be all strings or all numbers, got \[1, '1'"),
        ({"texts": [("b", "c", "d")] * 40}, "training, row 0: text must be .* a pair of strings"),
        ({"texts": ["\u200b \0"] * 40}, "training, row 0: text must .* none empty"),
        ({"texts": ["\ud800"] * 40}, "training, row 0 has a character that is not valid Unicode"),
        ({"labels": [0.0, float("nan")] * 20}, "row 1: score must be finite in float32, got nan"),
        ({"labels": [0.5, 10**400] * 20}, "training, row 1: score .* in float32, got 1000"),
        ({"texts": ["a", "b"], "labels": [0, 1]}, "2 rows are too few .* validation and test"),
        ({"test": (["a"], [3])}, "test, row 0: label 3 is not one of 1, 2, 4, 10"),
        ({"validation": ["a"]}, r"validation: expected \(texts, labels\), got \['a'\]"),
        ({"validation": ("ab", STARS[:2])}, "validation: texts must be a list, .*, got str: 'ab'"),
        ({"texts": pd.DataFrame({"text": FILMS})}, "training: texts .* one column .* DataFrame: "),
    ],
)
def test_wrong_rows(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        from_rows(**{"texts": FILMS, "labels": STARS} | options)


ROWS = [("good, long", "yes", 4), ('a "dull" film', "no", 1)]
CSV = '\ufeffreview,reply,stars\r\n"good, long",yes,4\r\n\r\n"a ""dull"" film",no,1\r\n'
TSV = 'review\treply\tstars\ngood, long\tyes\t4\na "dull" film\tno\t1\n'
JSONL = """{"review": "good, long", "reply": "yes", "stars": 4}
{"review": "a \\"dull\\" film", "reply": "no", "stars": 1}
"""


SPACED = CSV.replace("\r\n\r\n", "\r\n \r\n,,\r\n,no,1\r\n") + "\r\n"
QUOTED = '"review"\t"reply"\t"stars"\n"good, long"\t"yes"\t4\n"a ""dull"" film"\t"no"\t1\n'
ARRAY = "[" + JSONL.strip().replace("\n", ",") + "]"


@pytest.mark.parametrize(
    ("name", "content", "notes"),
    [
        ("a.csv", CSV, "separator ',', UTF-8, skipped rows without text: 1"),
        ("a.txt", SPACED, "separator ',', UTF-8, skipped rows without text: 3"),
        ("a.TSV", TSV, "separator tab, UTF-8"),
        ("a.csv", QUOTED, "separator tab, UTF-8"),
        ("a.tsv", TSV.replace("\t", " | "), "separator '|', UTF-8"),
        ("a.csv", TSV.replace("\t", ";").encode("utf-16"), "separator ';', UTF-16"),
        ("a.csv.gz", gzip.compress(TSV.encode(), mtime=0), "separator tab, UTF-8"),
        ("a.jsonl", JSONL, "JSON, UTF-8"),
        ("a.json.GZ", gzip.compress(JSONL.encode(), mtime=0), "JSON, UTF-8"),
        ("a.txt", ARRAY, "JSON, UTF-8"),
    ],
)
def test_columns_of_a_file(tmp_path, name, content, notes):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(content)
    table = read_table(tmp_path / name, text="review", label="stars")
    assert ", ".join(table.notes) == notes
    assert [text.strip() for text in table.texts] == [row[0] for row in ROWS]
    assert table.labels == [4, 1]
    texts, labels = read_table(tmp_path / name, text="review", pair="reply", label="reply")
    assert [pair[1].strip() for pair in texts] == labels == ["yes", "no"]


def test_standard_input_in_latin_1_and_nested_keys(monkeypatch):
    def read(content, **columns):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return read_table("-", **columns)

    table = read("text|label\nIt’s a café|1".encode("cp1252"))
    assert table == (["It’s a café"], [1])
    assert table.notes == ("separator '|'", "Latin-1, as byte 0x92 at 13 is not UTF-8")
    rows = b'{"a": {"b": "c", "d": null}, "a.d": 0.5}'
    assert read(rows, text="a.b", label="a.d") == (["c"], [0.5])
    with pytest.raises(
        ValueError, match=r"^standard input, line 1: no column 'a\.b\.c'; columns: "
    ):
        read(rows, text="a.b.c")


@pytest.mark.parametrize(
    ("ending", "content", "labels"),
    [
        ("csv", "text,label\na,4\na,2.5\n", [4.0, 2.5]),
        ("csv", "text,label\na,4\na,many\n", ["4", "many"]),
        ("csv", "\n\ntext,label\na, good\na,good \n", ["good", "good"]),
        ("jsonl", '{"text": "a", "label": " good"}', [" good"]),
        ("csv", "text,label\na,01\na,1_000\n", ["01", "1_000"]),
        ("csv", "text,label\na,.5\na,NaN\n", [0.5, float("nan")]),
        ("tsv", "text\tlabel\na\rb\t4\r\n\n", [4]),
        ("jsonl", '{"text": "a", "label": "4"}', ["4"]),
        ("jsonl", '{"text": "a", "label": 4.0}\n{"text": "a", "label": 2}', [4.0, 2]),
        ("jsonl", '{"text": "a", "label": false}', [False]),
    ],
)
def test_types_of_labels(tmp_path, ending, content, labels):
    path = tmp_path / f"rows.{ending}"
    path.write_text(content)
    assert repr(read_table(path)[1]) == repr(labels)


def test_long_cells_in_threads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limit = csv.field_size_limit()
    path = "~rows.csv"  # a name, not a home directory
    (tmp_path / path).write_text(f"text,label\n{'a' * 200_000},1\n")
    with ThreadPoolExecutor(8) as pool:
        for texts, _ in pool.map(read_table, [path] * 16):
            assert list(map(len, texts)) == [200_000]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,stars\na,1\n", r"a\.csv, line 2: no .* columns: 'text', 'stars'$"),
        ("a.csv", "review;stars\na, b;4\n", r"line 2: no .* columns: 'review', 'stars'$"),
        ("a.json", '[{"text": {"a": "b"}, "label": 1}]', r"row 1: 'text' must be a string, got {"),
        ("a.json", '[{"text": "a", "label": 1}, 2]', "row 2: expected an object, got 2$"),
        ("a.json", '[{"text": "a"', r"a\.json: not JSON \(Expecting"),
        ("a.jsonl", '\n{"text": "a"}\n', r"a\.jsonl, line 2: no column 'label'; columns: 'text'$"),
        ("a.csv", "text,label\n\u200b,1\n", r"a\.csv has no rows with a text$"),
        ("a.csv", "text,label\na,\n", r"a\.csv, line 2: 'label' is empty"),
        (
            "a.csv",
            "sentence,label\na,-1\nb,-1\n",
            "no column 'text'; columns: 'sentence', 'label'$",
        ),
        ("a.csv", "text,label\na,-1\nb,-1\n", "all labels are -1, as in GLUE's test"),
        ("a.jsonl", '{"text": 5, "label": 0}\n', r"line 1: 'text' must be a string, got 5"),
        ("a.csv", "text,label\n", r"a\.csv has no rows"),
        ("a.csv", "text,label\ngood, long,1\n", r"line 2: expected 2 columns, got 3"),
        ("a.csv", 'text,label\na,1\n"b,1\n', r"a\.csv, after line 2: a quote is not closed"),
        ("a.csv", 'text,label\n"a"b,1\n', r"a\.csv, after line 1: ',' expected after"),
        ("a.csv", "text,label\na,1\n".encode("utf-16-le"), "is not text, or in UTF-16 without a"),
        (
            "a.csv.gz",
            gzip.compress(b"text,label\n", mtime=0)[:-9],
            "not a complete gzip file: Compressed",
        ),
        ("a.csv", "text,label,label\na,1,0\n", r"line 1: column names .* got 'label' twice"),
        ("a.jsonl", '\n{"te', r"a\.jsonl, line 2, column 2: not JSON \(Unterminated .* at\)$"),
        ("a.txt", "", r"a\.txt has no rows"),
        ("a.xlsx", "", r"must end in \.csv, \.tsv, .*\.json, or so and \.gz, got .*a\.xlsx$"),
        (
            "a.parquet",
            b"PAR1",
            r"a\.parquet is in Parquet; run python -c 'import pandas",
        ),
    ],
)
def test_wrong_files(tmp_path, name, content, message):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)
