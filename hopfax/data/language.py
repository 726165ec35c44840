"""Next-word prediction, in the words, lines (`<eos>`) and unknown words (`<unk>`) of WikiText-2."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hopfax.data.raw import read_text
from hopfax.data.tasks import check_integer
from hopfax.hub import local_path

UNKNOWN, END = "<unk>", "<eos>"
SPLITS = ("train", "validation", "test")


class NextWords(NamedTuple):
    """Rows of word numbers, and the numbers of the words that follow them."""

    ids: Int[np.ndarray, "rows tokens"]
    labels: Int[np.ndarray, "rows tokens"]


class LanguageData(NamedTuple):
    """Rows of the three splits, and words by number; `<unk>` is 0."""

    train: NextWords
    validation: NextWords
    test: NextWords
    vocabulary: tuple[str, ...]


def next_words(
    texts: Mapping[str, Iterable[str]],
    seed: int,
    *,
    num_tokens: int = 20,
    vocab_size: int = 500,
    rows: Mapping[str, int],
) -> LanguageData:
    """Cuts texts into consecutive rows and returns a random subset.

    Numbers out of range, and splits with too few words, raise a ValueError.

    Args:
        texts: Lines of `"train"`, `"validation"` and `"test"`.
        seed: Seed of the subset, >= 0.
        num_tokens: Words per row, >= 1.
        vocab_size: Size of the vocabulary, >= 2: `<unk>` and the most frequent training words.
        rows: Number of rows of each split, >= 1.

    Example:
        >>> from hopfax.data import next_words
        >>> texts = dict.fromkeys(("train", "validation", "test"), ["a b a c", "a b d"])
        >>> data = next_words(texts, 0, num_tokens=3, vocab_size=3, rows=dict.fromkeys(texts, 2))
        >>> data.vocabulary, data.train.ids.shape
        (('<unk>', 'a', 'b'), (2, 3))
    """
    check_integer("num_tokens", num_tokens, 1)
    check_integer("vocab_size", vocab_size, 2)
    streams = {
        split: [word for line in texts[split] if line.strip() for word in [*line.split(), END]]
        for split in SPLITS
    }
    counts = Counter(word for word in streams["train"] if word != UNKNOWN)
    # Counter breaks ties by first occurrence.
    vocabulary = (UNKNOWN, *(word for word, _ in counts.most_common(vocab_size - 1)))
    numbers = {word: number for number, word in enumerate(vocabulary)}
    splits = {}
    for place, (split, words) in enumerate(streams.items()):
        ids = np.array([numbers.get(word, 0) for word in words], np.int32)
        starts = np.arange(0, len(ids) - num_tokens, num_tokens)
        check_integer(f"rows[{split!r}]", rows[split], 1, len(starts))
        order = np.random.default_rng([seed, place]).permutation(starts)
        chosen = order[: rows[split], None] + np.arange(num_tokens)
        splits[split] = NextWords(ids[chosen], ids[chosen + 1])
    return LanguageData(**splits, vocabulary=vocabulary)


def read_wikitext2(data_dir: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Returns the lines of `wikitext-2/wiki.{train,valid,test}.tokens`, by split.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import read_wikitext2
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "wikitext-2").mkdir()
        >>> for split in ("train", "valid", "test"):
        ...     _ = (folder / "wikitext-2" / f"wiki.{split}.tokens").write_text("a film\n")
        >>> read_wikitext2(folder)["validation"]
        ['a film']
    """
    texts = {}
    for split, name in zip(SPLITS, ("train", "valid", "test"), strict=True):
        path = local_path(data_dir) / "wikitext-2" / f"wiki.{name}.tokens"
        if not path.is_file():
            raise FileNotFoundError(
                f"no {path}: put wikitext-2-v1 (word level, three files) into {path.parent}"
            )
        texts[split] = read_text(path).splitlines()
    return texts
