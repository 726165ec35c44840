import functools
import itertools
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers

from hopfax.data import Example, WordPiece, encode, train_vocabulary
from hopfax.data.tokenize import is_blank, read_vocabulary, text_tokenizer
from hopfax.data.vocabulary import _merge

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "run", "##ning", "!", "[", "]", "sep")
VOCABULARY = WordPiece(tokens=WORDS)
TEXTS = ["low lower lowest", "new newer newest", "low new wide wider", "Café, wide!"] * 2


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
    special = encode(examples("a [SEP] é?"), VOCABULARY)  # is text
    assert special.ids.tolist() == [[[2, 4, 10, 12, 11, 1, 1, 3]]]
    long = encode(examples(("a " * 9999, "b " * 9999)), VOCABULARY, max_length=5)
    assert long.ids.tolist() == [[[2, 4, 3, 5, 3]]]  # not found by trying all pairs of lengths


def test_an_example_has_choices():
    for texts, choices in (("a b", (("a b",),)), (["a", "b"], (("a", "b"),))):
        row = Example("", 0, 0)._replace(texts=texts)
        assert row == Example(texts, 0, 0) and row.texts == choices
    assert Example([["a"], ["b"]], 0, 0).texts == (("a",), ("b",))


def test_one_score_makes_all_labels_scores():
    for score in (2.5, np.float32(2.5)):
        labels = encode(examples("a", "b", labels=[0, score]), VOCABULARY).labels
        assert labels.tolist() == [0.0, 2.5] and labels.dtype == np.float32


@pytest.mark.parametrize(
    "template", ["", "[CLS] $A [SEP] [SEP] $B [SEP]", "[CLS] $A [CLS]:1 $B:1", "[SEP] $B [CLS] $A"]
)
def test_threads_truncate_as_the_tokenizer_does(template):
    tokenizer, special = text_tokenizer(VOCABULARY), [("[CLS]", 2), ("[SEP]", 3)]
    processor = functools.partial(tokenizers.processors.TemplateProcessing, "[CLS] $A")
    tokenizer.post_processor = processor(template, special) if template else None
    vocabulary = WordPiece(tokens=WORDS, serialized=tokenizer.to_str())
    sizes = itertools.product((1, 2, 7, 8, 30), (0, 1, 2, 7, 8, 30))
    texts = [("a " * first, "b " * second) if second else "a " * first for first, second in sizes]
    encoded = functools.partial(encode, examples(*texts), vocabulary)
    lengths = range(5, 40)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda length: encoded(max_length=length), lengths))
    for length, rows in zip(lengths, results, strict=True):
        tokenizer.enable_truncation(length, strategy="longest_first")
        for row, ids in zip(tokenizer.encode_batch(texts), rows.ids[:, 0].tolist(), strict=True):
            assert ids == row.ids + [0] * (len(ids) - len(row.ids))


def test_vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(("\ufeff" + WORDS[0], *WORDS[1:], "", "")).encode())
    assert read_vocabulary(path).tokens == read_vocabulary(tmp_path).tokens == WORDS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a", r"vocab\.txt lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        ("\n".join([*WORDS, "b"]).encode(), r"line 14: 'b' is already on line 6"),
        ("\n".join([*WORDS[:5], "", "c"]).encode(), r"line 6: empty token"),
        (b"caf\xe9\n", r"vocab\.txt must be encoded in UTF-8"),
    ],
)
def test_malformed_vocabulary(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_vocabulary(tmp_path)


def test_texts_that_cannot_be_read():
    tokenizer = text_tokenizer(VOCABULARY)
    tokenizer.post_processor = None
    bare = WordPiece(tokens=VOCABULARY.tokens, serialized=tokenizer.to_str())
    with pytest.raises(ValueError, match=r"text 8 has no tokens: \(\('\\x00',\),\)"):
        encode(examples("a", "\0"), bare)
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


def slow_oracle(words, size):
    """Byte-pair merges that count all pairs in every step."""
    pieces = {word: (word[0], *("##" + letter for letter in word[1:])) for word in words}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokens += sorted({piece for word in pieces.values() for piece in word})
    while len(tokens) < size:
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1].removeprefix("##")
        if merged not in tokens:
            tokens.append(merged)
        pieces = {word: _merge(piece, best, merged) for word, piece in pieces.items()}
    return tuple(tokens)


@pytest.mark.parametrize("size", [25, 30, 60])
def test_equals_the_slow_oracle(size):
    words = Counter(re.findall(r"\w+|[,!]", " ".join(TEXTS).lower().replace("é", "e")))
    assert train_vocabulary(TEXTS, vocab_size=size).tokens == slow_oracle(words, size)


def test_repeated_letters_merge_from_the_left():
    assert _merge(("a", "##a", "##a", "##a"), ("##a", "##a"), "##aa") == ("a", "##aa", "##a")
