"""Rows of the three synthetic tasks, without overlap between splits."""

import hashlib
import zlib

import numpy as np

from hopfax.data import grammar
from hopfax.data.tasks import Example, check_integer, named, task

# Far fewer rows than each grammar can generate, so that rejection sampling is fast.
MAX_ROWS = {"train": 100_000, "validation": 20_000, "test": 20_000}
_DRAW = {name: getattr(grammar, name) for name in ("sentiment", "entailment", "paraphrase")}
# Split by the last digit of a text's hash.
_SPLITS = (*["train"] * 6, *["validation"] * 2, *["test"] * 2)


def synthetic_split(name: str, split: str, *, size: int, seed: int) -> list[Example]:
    """Generates one split of a synthetic task.

    A hash of its text assigns each row to a split, so splits never overlap, whatever their seeds.
    Labels are balanced up to rounding. A smaller split has the first rows of a larger split with
    the same seed.

    Args:
        name: ``"sentiment"``, ``"entailment"`` or ``"paraphrase"``.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        size: Number of rows, at most 100,000 for training and 20,000 otherwise; no two are equal.
        seed: Seed, >= 0.

    Raises:
        ValueError: If the task or split is unknown, or `size` is out of its range.

    Example:
        >>> from hopfax.data import synthetic_split
        >>> synthetic_split("sentiment", "test", size=1, seed=0)[0].texts
        (('the music was quite moving',),)
    """
    draw = named("synthetic task", name, _DRAW)
    check_integer("size", size, 1, named("split", split, MAX_ROWS))
    rng = np.random.default_rng([seed, zlib.crc32(f"{name}/{split}".encode())])
    seen: set[grammar.Row] = set()
    rows: list[Example] = []
    while len(rows) < size:
        for label in rng.permutation(len(task(name).labels)).tolist():
            texts = draw(rng, label)
            while texts in seen or _split_of(texts) != split:
                texts = draw(rng, label)
            seen.add(texts)
            rows.append(Example((texts,), label, len(rows)))
    return rows[:size]


def _split_of(texts: grammar.Row) -> str:
    digest = hashlib.blake2b("\t".join(texts).encode(), digest_size=8).digest()
    return _SPLITS[int.from_bytes(digest, "little") % 10]
