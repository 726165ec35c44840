"""Errors name the argument, what was given and what is allowed."""

import numpy as np
import pytest

from hopfax import data
from hopfax.data import Encoded, Example, WordPiece

VOCABULARY = WordPiece(tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"))
ROWS = [Example("a", 0, 0), Example("a", 1, 1)]
ENCODED = Encoded(np.ones((2, 1, 3)), np.array([[3], [2]]), np.zeros(2), np.arange(2))
(BUCKET,) = data.bucketed(ENCODED)
TEXTS = dict.fromkeys(("train", "validation", "test"), ["a b c d"] * 9)
# A function, valid arguments, and the names of its integers.
NUMBERS = [
    (data.modular_addition, {"seed": 0}, "modulus num_train num_validation num_test"),
    (data.sparse_parity, {"seed": 0}, "num_relevant num_train"),
    (lambda **k: list(data.eval_batches(BUCKET, **k)), {}, "batch_size"),
    (data.load_task, {"name": "sentiment"}, "train_size"),
    (data.encode, {"examples": ROWS, "vocabulary": VOCABULARY, "cached": False}, "max_length"),
]


@pytest.mark.parametrize(("function", "arguments", "names"), NUMBERS)
def test_integers_have_a_range(function, arguments, names):
    for name in names.split():
        for value in (-1, 2.5, True, "3", [3]):
            with pytest.raises(ValueError, match=rf"^{name} must be an integer (>=|from) .*, got "):
                function(**arguments | {name: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.task(None), "unknown task None"),
        (lambda: data.task("sst-2"), "unknown task 'sst-2': did you mean sst2"),
        (lambda: data.task("STS_B"), "did you mean stsb"),
        (lambda: data.task("zzzz"), "unknown task 'zzzz': allowed: cola, sst2"),
        (lambda: data.evaluation_set("adv-sst"), "evaluation set 'adv-sst': did you mean adv-sst2"),
        (lambda: data.modular_addition(0, modulus=5), "2400 distinct texts, only 25 exist"),
        (lambda: data.sparse_parity(0, num_bits=5), "1400 distinct texts, only 32 exist"),
        (lambda: data.sparse_parity(0, num_bits=3, num_relevant=4), "from 1 to 3, got 4"),
        (lambda: data.sparse_parity(0, noise=0.5), r"noise must be in \[0, 0\.5\), got 0\.5"),
        (lambda: data.bucketed(ENCODED, boundaries=(8, 8)), r"boundaries must .* got \(8, 8\)"),
        (
            lambda: data.bucketed(ENCODED, boundaries=(1, 2)),
            "row 0 has 3 tokens, the last boundary is 2",
        ),
        (lambda: data.encode([], VOCABULARY), "examples must not be empty"),
        (
            lambda: data.encode([ROWS[0], Example((("a",), ("a",)), 0, 8)], VOCABULARY),
            "as many choices as the first, 1, but the example with index 8 has 2",
        ),
        (lambda: data.train_vocabulary("the film"), "texts must be several strings, got one"),
        (lambda: data.train_vocabulary(["", " "]), "texts must have at least one word"),
        (
            lambda: data.next_words(TEXTS, 0, num_tokens=2, rows=dict.fromkeys(TEXTS, 30)),
            r"rows\['train'\] .* from 1 to 22, got 30",
        ),
        (lambda: data.synthetic_split("sst2", "train", size=1, seed=0), "unknown synthetic task"),
        (lambda: data.synthetic_split("sentiment", "dev", size=1, seed=0), "unknown split 'dev'"),
        (lambda: data.synthetic_split("sentiment", "train", size=0, seed=0), "from 1 to 100,000"),
        (lambda: data.load_task("sst2"), "sst2 requires data_dir .* with SST-2"),
        # Names of files, not home directories.
        (lambda: data.read_table("~none.csv"), r"no file ~none\.csv"),
        (lambda: data.read_vocabulary("~none"), "no vocabulary at ~none"),
        (lambda: data.read_wikitext2("~none"), "no ~none/wikitext-2"),
        (lambda: data.read_evaluation_set("paws", "~none"), "~none itself does not exist"),
        (lambda: data.load_task("sst2", data_dir="~none"), "~none itself does not exist"),
    ],
)
def test_messages(call, message):
    with pytest.raises((OSError, ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    "texts", [("a", "b", "c"), (), ((),), (("a",), "b"), b"a", None, ((1,),), {"a"}]
)
def test_texts_of_an_example(texts):
    with pytest.raises(TypeError, match=r"texts must be a string, a pair .* got"):
        Example(texts, 0, 0)
