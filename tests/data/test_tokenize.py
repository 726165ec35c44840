import dataclasses
import io

import numpy as np
import pytest

from hopfax.data import Example, WordPiece, encode, read_vocabulary
from hopfax.data.tokenize import is_blank, text_tokenizer

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "run", "##ning", "!", "[", "]", "sep")
VOCABULARY = WordPiece(tokens=WORDS)


def examples(*rows, labels=None):
    labels = labels or range(len(rows))
    pairs = zip(rows, labels, strict=True)
    return [Example(texts, label, 7 + number) for number, (texts, label) in enumerate(pairs)]


def test_texts_pairs_and_choices():
    rows = encode(examples("a Running!", ("b", "c c")), VOCABULARY)
    assert rows.ids.tolist() == [[[2, 4, 7, 8, 9, 3]], [[2, 5, 3, 6, 6, 3]]]
    assert rows.lengths.tolist() == [[6], [6]]
    assert rows.labels.tolist() == [0, 1] and rows.index.tolist() == [7, 8]
    two = encode(examples((("a", "b"), ("a", "b c"))), VOCABULARY)
    assert two.ids.tolist() == [[[2, 4, 3, 5, 3, 0], [2, 4, 3, 5, 6, 3]]]
    assert two.lengths.tolist() == [[5, 6]]
    assert {field.dtype for field in two} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("texts", "choices"),
    [
        ("run b", (("run b",),)),
        (("run b",), (("run b",),)),
        (["run", "b"], (("run", "b"),)),
        ([["run"], ["b"]], (("run",), ("b",))),
    ],
)
def test_an_example_has_choices(texts, choices):
    row = Example("", 0, 0)._replace(texts=texts)
    assert row == Example(texts, 0, 0) and row.texts == choices


def test_one_score_makes_all_labels_scores():
    for score in (2.5, np.float32(2.5)):
        labels = encode(examples("a", "b", labels=[0, score]), VOCABULARY).labels
        assert labels.tolist() == [0.0, 2.5] and labels.dtype == np.float32


@pytest.mark.parametrize(
    ("texts", "max_length", "ids"),
    [
        (("a a a a a a", "b c"), 8, [2, 4, 4, 4, 3, 5, 6, 3]),
        (("a b", "c c c c c c c"), 8, [2, 4, 5, 3, 6, 6, 6, 3]),
        ("a a a a a a", 5, [2, 4, 4, 4, 3]),
    ],
)
def test_the_longer_text_is_cut_first(texts, max_length, ids):
    assert encode(examples(texts), VOCABULARY, max_length=max_length).ids[0, 0].tolist() == ids


def test_special_tokens_in_a_text_are_text():
    ids = encode(examples("a [SEP] é?"), VOCABULARY).ids
    assert ids.tolist() == [[[2, 4, 10, 12, 11, 1, 1, 3]]]


def test_arrays_are_cached_by_content(cache):
    rows = encode(examples("a b"), VOCABULARY)
    (file,) = cache.iterdir()
    np.savez(file, ids=rows.ids + 1, lengths=rows.lengths)  # marks what is read from the file
    again = encode(examples("a b", labels=[5]), VOCABULARY)
    assert again.ids.tolist() == (rows.ids + 1).tolist() and again.labels.tolist() == [5]
    encode(examples("a b"), WordPiece(tokens=(*WORDS, "new")))
    encode(examples("a c"), VOCABULARY)
    encode(examples("a b"), VOCABULARY, max_length=16)
    encode(examples("c c"), VOCABULARY, cached=False)
    encode(examples("a b"), dataclasses.replace(VOCABULARY, pad_token="b"))
    assert len(list(cache.iterdir())) == 5


def test_a_damaged_cache_file_is_replaced(cache):
    rows = encode(examples("a b"), VOCABULARY)
    (file,) = cache.iterdir()
    content, middle = file.read_bytes(), file.read_bytes().index(b"ids.npy") + 40
    flipped = bytes(255 - byte for byte in content[middle : middle + 30])
    flipped = content[:middle] + flipped + content[middle + 30 :]
    np.savez(without_lengths := io.BytesIO(), ids=rows.ids)
    others = (b"", b"not an archive", without_lengths.getvalue())
    for damaged in (content[: len(content) // 2], flipped, *others):
        file.write_bytes(damaged)
        assert encode(examples("a b"), VOCABULARY).ids.tolist() == rows.ids.tolist()
        with np.load(file, allow_pickle=False) as stored:
            np.testing.assert_array_equal(stored["ids"], rows.ids)
        assert list(cache.iterdir()) == [file]


def test_the_folder_of_the_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOPFAX_CACHE", str(tmp_path / "file" / "cache"))  # cannot be written
    assert encode(examples("a"), VOCABULARY).ids.tolist() == [[[2, 4, 3]]]
    monkeypatch.delenv("HOPFAX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    encode(examples("a"), VOCABULARY)
    assert list((tmp_path / ".cache" / "hopfax").iterdir())


def test_vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    with pytest.raises(FileNotFoundError, match=r"no vocabulary at .*vocab\.txt"):
        read_vocabulary(path)
    path.write_bytes("\r\n".join((*WORDS, "")).encode())
    assert read_vocabulary(path).tokens == read_vocabulary(tmp_path).tokens == WORDS


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], r"vocab\.txt lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        ([*WORDS, "b"], r"line 14: 'b' is already on line 6"),
        ([*WORDS[:5], "", "c"], r"line 6: empty token"),
    ],
)
def test_malformed_vocabulary(tmp_path, lines, message):
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        read_vocabulary(tmp_path)


def test_files_and_texts_that_cannot_be_read(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"vocab\.txt is not UTF-8"):
        read_vocabulary(tmp_path)
    tokenizer = text_tokenizer(VOCABULARY)
    tokenizer.post_processor = None
    bare = WordPiece(tokens=VOCABULARY.tokens, serialized=tokenizer.to_str())
    with pytest.raises(ValueError, match=r"'\\x00' has no tokens"):
        encode(examples("a", "\0"), bare, cached=False)
    with pytest.raises(ValueError, match="text 8 has a character that is not valid Unicode"):
        encode(examples("a", ("b", "\ud800")), VOCABULARY)


@pytest.mark.parametrize("text", ["", " \n\u2028", "\u200b", "\x00", "\ufeff\u00ad"])
def test_texts_without_a_visible_character_are_blank(text):
    assert is_blank(text)
    for visible in ("a", "👍🏽", "👨\u200d👩", "\u0301", "क्", "\ue000", "\ud800"):
        assert not is_blank(text + visible + text)


def test_bert_vocabulary(shared):
    vocabulary = read_vocabulary(shared / "data" / "vocab" / "bert-base-uncased")
    assert vocabulary.size == 30522 and vocabulary.tokens[2025] == "not"
    rows = encode(examples(("It is not unaffable.", "Naïve!")), vocabulary)
    tokens = [vocabulary.tokens[number] for number in rows.ids[0, 0]]
    words = "[CLS] it is not una ##ffa ##ble . [SEP] naive ! [SEP]"
    assert tokens == words.split() and rows.ids[0, 0].tolist()[:4] == [101, 2009, 2003, 2025]
