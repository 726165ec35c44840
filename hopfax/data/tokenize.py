"""WordPiece tokenisation: a vocabulary, texts to padded arrays, and a cache of the arrays."""

import hashlib
import json
import os
import reprlib
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.batching import Encoded
from hopfax.data.optional import optional_import
from hopfax.data.tasks import Example, check_number

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_VERSION = "1"  # raise it whenever the same texts would give other arrays


@dataclass(frozen=True, kw_only=True)
class WordPiece:
    """A WordPiece vocabulary and what is known of it.

    Attributes:
        tokens: Every token; its position is its id.
        source: Where the vocabulary comes from, for reports.
    """

    tokens: tuple[str, ...]
    source: str

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.tokens.index("[PAD]")

    def decode(self, ids: Iterable[int]) -> str:
        """Tokens of ids with word pieces joined and padding left out, to look at examples."""
        words = (self.tokens[number] for number in ids)
        return " ".join(word for word in words if word != "[PAD]").replace(" ##", "")


def read_vocabulary(path: str | os.PathLike) -> WordPiece:
    """Reads a `vocab.txt`: one token a line, the line number is the id.

    Args:
        path: The file, or a folder that holds a `vocab.txt`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A special token is missing, or a token is empty or there twice.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path = path / "vocab.txt"
    if not path.is_file():
        raise FileNotFoundError(
            f"no vocabulary at {path}: give a vocab.txt (that of bert-base-uncased has 30,522 "
            "lines), or none to train one on the training texts"
        )
    tokens = path.read_text(encoding="utf-8").split("\n")
    if not tokens[-1]:
        tokens.pop()
    tokens = [token.removesuffix("\r") for token in tokens]
    _check_vocabulary(tokens, path)
    return WordPiece(tokens=tuple(tokens), source=f"{path.name} ({len(tokens):,} tokens)")


def _check_vocabulary(tokens: Sequence[str], path: Path) -> None:
    missing = [token for token in SPECIAL if token not in tokens]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: a BERT vocab.txt has {', '.join(SPECIAL)}"
        )
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if not token:
            raise ValueError(f"{path}, line {number}: empty token")
        if token in first:
            raise ValueError(
                f"{path}, line {number}: {token!r} is there already, on line {first[token]}"
            )
        first[token] = number


def encode(
    examples: Sequence[Example],
    vocabulary: WordPiece,
    *,
    max_length: int = 128,
    cache_dir: str | os.PathLike | None = None,
    cached: bool = True,
) -> Encoded:
    """Tokenises examples: ``[CLS] a [SEP]``, or ``[CLS] a [SEP] b [SEP]``, lower case.

    Texts beyond `max_length` tokens are cut at the end, of a pair the longer one first.

    Args:
        examples: Rows, at least one, with the same number of choices each.
        vocabulary: Tokens and their ids.
        max_length: Longest row in tokens, special ones included; at least 5.
        cache_dir: Where arrays are kept between runs; default `$HOPFAX_CACHE`, else
            `~/.cache/hopfax`. A file that cannot be read is made anew; a folder that cannot be
            written is done without.
        cached: False keeps nothing: for texts that are met once.

    Returns:
        Arrays as wide as the longest row.

    Raises:
        TypeError: `examples` or `vocabulary` is something else.
        ValueError: No examples, a label or index that is no number, unequal numbers of choices, or
            `max_length` below 5.
    """
    if not examples:
        raise ValueError("there are no examples to tokenise")
    if wrong := [row for row in examples if not isinstance(row, Example)]:
        raise TypeError(f"examples must be hopfax.data.Example rows, got {reprlib.repr(wrong[0])}")
    if not isinstance(vocabulary, WordPiece):
        raise TypeError(f"vocabulary must be a WordPiece, got {reprlib.repr(vocabulary)}")
    choices = len(examples[0].texts)
    if odd := [example for example in examples if len(example.texts) != choices]:
        raise ValueError(
            f"examples must have the same number of choices: the first has {choices}, that with "
            f"index {odd[0].index} has {len(odd[0].texts)}"
        )
    check_number("max_length", max_length, 5)
    path = cache_folder(cache_dir) / f"{_content_hash(examples, vocabulary, max_length)}.npz"
    arrays = _read_cached(path) if cached else None
    if arrays is None:
        arrays = _tokenise(examples, vocabulary, max_length)
        if cached:
            _write_cached(path, arrays)
    ids, lengths = arrays
    scores = any(isinstance(example.label, float) for example in examples)
    labels = _numbers("label", [row.label for row in examples], np.float32 if scores else np.int32)
    index = _numbers("index", [example.index for example in examples], np.int32)
    return Encoded(ids, lengths, labels, index)


def _numbers(name: str, values: list[Any], kind: type) -> np.ndarray:
    try:
        return np.asarray(values, kind).reshape(len(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"the {name} of an example must be a number that fits {kind.__name__}: {error}"
        ) from None


def text_tokenizer(vocabulary: WordPiece) -> "Tokenizer":
    """Returns the `tokenizers` object behind `encode`, without truncation."""
    tokenizers = optional_import("tokenizers")
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return tokenizer


def _tokenise(
    examples: Sequence[Example], vocabulary: WordPiece, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    tokenizer = text_tokenizer(vocabulary)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    choices = len(examples[0].texts)
    texts = [text if len(text) == 2 else text[0] for row in examples for text in row.texts]
    rows = tokenizer.encode_batch(texts)
    lengths = np.asarray([len(row.ids) for row in rows], np.int32)
    ids = np.full((len(rows), int(lengths.max())), vocabulary.pad_id, np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
    return ids.reshape(len(examples), choices, -1), lengths.reshape(len(examples), choices)


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """Returns the folder of cached arrays: as given, `$HOPFAX_CACHE`, or `~/.cache/hopfax`."""
    given = cache_dir or os.environ.get("HOPFAX_CACHE") or "~/.cache/hopfax"
    return Path(given).expanduser()


def _content_hash(examples: Sequence[Example], vocabulary: WordPiece, max_length: int) -> str:
    texts = [example.texts for example in examples]
    content = json.dumps([_VERSION, max_length, vocabulary.tokens, texts], separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _read_cached(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Arrays of an earlier run, or None where there are none that can be read."""
    try:
        # Opened here, since np.load leaves a file open that turns out to be no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            ids, lengths = stored["ids"], stored["lengths"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        return None
    whole = ids.dtype == lengths.dtype == np.int32 and ids.ndim == 3
    return (ids, lengths) if whole and ids.shape[:2] == lengths.shape else None


def _write_cached(path: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """Writes beside the target and renames, so that a reader sees all of a file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    except OSError:
        return  # a cache is a convenience: a read-only home must not stop a run
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, ids=arrays[0], lengths=arrays[1])
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
