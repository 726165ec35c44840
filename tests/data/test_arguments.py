from functools import partial

import numpy as np
import pytest

from hopfax import data
from hopfax.data import Encoded, Example, WordPiece

VOCABULARY = WordPiece(tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"))
ROWS = [Example("a", 0, 0), Example("a", 1, 1)]
CHOICES = [ROWS[0], Example((("a",), ("a",)), 0, 8)]
ENCODED = Encoded(np.ones((2, 1, 3)), np.array([[3], [2]]), np.zeros(2), np.arange(2))
(BUCKET,) = data.to_buckets(ENCODED)
TEXTS = dict.fromkeys(("train", "validation", "test"), ["a b c d"] * 9)
batches = partial(data.eval_batches, BUCKET)
to_buckets = partial(data.to_buckets, ENCODED)
encode = partial(data.encode, ROWS, vocabulary=VOCABULARY)
addition, parity = partial(data.modular_addition, 0), partial(data.sparse_parity, 0)
words = partial(data.next_words, TEXTS, 0, num_tokens=2)
trial = partial(data.read_evaluation_set, data_dir=".")
raw = partial(data.read_split, data_dir="none")
split = partial(data.synthetic_split, name="sentiment", split="train", size=1, seed=0)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        *((addition, name) for name in ("modulus", "num_train", "num_validation", "num_test")),
        (parity, "num_relevant"),
        (lambda **options: list(batches(**options)), "batch_size"),
        (partial(data.load_task, "sentiment"), "train_size"),
        (encode, "max_length"),
    ],
)
def test_integers_have_a_range(function, name):
    for value in (-1, 2.5, True, "3", [3]):
        with pytest.raises(ValueError, match=rf"^{name} must be an integer (>=|from) .*, got "):
            function(**{name: value})


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (data.task, {"name": "sst-2"}, "unknown task 'sst-2': did you mean sst2"),
        (data.task, {"name": "zzzz"}, "unknown task 'zzzz': allowed: cola, sst2"),
        (trial, {"name": "adv-sst"}, "evaluation set 'adv-sst': did you mean adv-s"),
        (trial, {"name": "paws-x-de"}, r"no test file of PAWS-X-de .*x-final/de/test_2k"),
        (addition, {"modulus": 5}, "2400 distinct texts, only 25 exist"),
        (parity, {"num_bits": 3, "num_relevant": 4}, "from 1 to 3, got 4"),
        (parity, {"noise": 0.5}, r"noise must be in \[0, 0\.5\), got 0\.5"),
        (to_buckets, {"boundaries": (8, 8)}, r"boundaries must .* got \(8, 8\)"),
        (to_buckets, {"boundaries": (1, 2)}, "row 0 has 3 tokens, the last boundary is 2"),
        (data.encode, {"examples": [], "vocabulary": VOCABULARY}, "examples must not be empty"),
        (data.encode, {"examples": CHOICES, "vocabulary": VOCABULARY}, "1, but .* index 8 has 2"),
        (data.train_vocabulary, {"texts": "the film"}, "texts must be several strings, got one"),
        (data.train_vocabulary, {"texts": ["", " "]}, "texts must have at least one word"),
        (words, {"rows": dict.fromkeys(TEXTS, 30)}, r"rows\['train'\] .* from 1 to 22, got 30"),
        (split, {"name": "sst2"}, "unknown synthetic task"),
        (split, {"size": 0}, "from 1 to 100,000"),
        (raw, {"spec": "sst2", "split": "train"}, r"no train file of SST-2.*glue_data.*gluebench"),
        (raw, {"spec": "sentiment", "split": "train"}, "sentiment is synthetic"),
        (raw, {"spec": "sst2", "split": "dev"}, "split of SST-2 'dev': allowed: train, val"),
        (data.load_task, {"name": "sst2"}, "sst2 requires data_dir .* with SST-2"),
        # Names of files, not home directories.
        (data.load_task, {"name": "sst2", "data_dir": "~none"}, "~none itself does not exist"),
        (data.read_table, {"path": "~none.csv"}, r"no file ~none\.csv"),
        (data.load_task, {"name": "sentiment", "vocabulary": "~none"}, "no vocabulary at ~none"),
        (data.read_wikitext2, {"data_dir": "~none"}, "no ~none/wikitext-2.*put wikitext-2"),
    ],
)
def test_messages(call, arguments, message):
    with pytest.raises((OSError, ValueError, TypeError), match=message):
        call(**arguments)


@pytest.mark.parametrize("texts", [("a", "b", "c"), (), (("a",), "b"), b"a", ((1,),)])
def test_texts_of_an_example(texts):
    with pytest.raises(TypeError, match=r"texts must be a string, a pair .* got"):
        Example(texts, 0, 0)
