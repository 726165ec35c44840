"""Tokenization: vocabularies, padded arrays, and a cache of the arrays."""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import reprlib
import tempfile
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.batching import Encoded
from hopfax.data.raw import numbered_lines
from hopfax.data.tasks import Example, check_integer
from hopfax.hub import optional_import

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_VERSION = "3"  # increase it when encoding changes


@dataclass(frozen=True, kw_only=True)
class WordPiece:
    """A vocabulary: WordPiece, or any tokenizer that `read_tokenizer` reads.

    Attributes:
        tokens: All tokens; the position of a token is its id.
        serialized: Contents of a `tokenizer.json`; None for BERT's lower-cased WordPiece.
        pad_token: Padding token, one of `tokens`.
    """

    tokens: tuple[str, ...]
    serialized: str | None = field(default=None, repr=False)
    pad_token: str = "[PAD]"

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return self.tokens.index(self.pad_token)

    @property
    def sep_id(self) -> int | None:
        """Id of the token after a text, [SEP] or </s>; None if there is neither."""
        separators = (token for token in ("[SEP]", "</s>") if token in self.tokens)
        return next(map(self.tokens.index, separators), None)


def read_vocabulary(path: str | os.PathLike) -> WordPiece:
    r"""Reads a `vocab.txt`: one token per line; the line number is the id.

    Args:
        path: The file, or a folder with a `vocab.txt`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not UTF-8, a special token is missing, or a token is empty or
            occurs twice.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import read_vocabulary
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "vocab.txt"
        >>> _ = path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nfilm\n")
        >>> read_vocabulary(path).size
        5
    """
    path = Path(os.path.expanduser(path))  # unlike Path.expanduser, keeps names such as ~data
    if path.is_dir():
        path = path / "vocab.txt"
    if not path.is_file():
        raise FileNotFoundError(
            f"no vocabulary at {path}: pass a vocab.txt (bert-base-uncased has one of 30,522 "
            "lines), or None to train one on the training texts"
        )
    tokens = [token for _, token in numbered_lines(path)]
    if missing := [token for token in SPECIAL if token not in tokens]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    numbers: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if not token:
            raise ValueError(f"{path}, line {number}: empty token")
        if (first := numbers.setdefault(token, number)) != number:
            raise ValueError(f"{path}, line {number}: {token!r} is already on line {first}")
    return WordPiece(tokens=tuple(tokens))


def encode(
    examples: Sequence[Example],
    vocabulary: WordPiece,
    *,
    max_length: int = 128,
    cached: bool = True,
) -> Encoded:
    """Tokenizes examples: ``[CLS] a [SEP]``, or ``[CLS] a [SEP] b [SEP]``, in lower case.

    Vocabularies of `read_tokenizer` use their own special tokens and case. Texts of more than
    `max_length` tokens are truncated at the end; in a pair, the longer text first.

    Args:
        examples: One or more rows, all with the same number of choices.
        vocabulary: Tokens and their ids.
        max_length: Longest row in tokens, including special tokens; at least 5.
        cached: Whether to keep the arrays in `$HOPFAX_CACHE` (default `~/.cache/hopfax`).
            Damaged files are replaced; without a folder that can be written, nothing is kept.

    Returns:
        The arrays, padded to the longest row.

    Raises:
        ModuleNotFoundError: If `tokenizers` is not installed.
        ValueError: If there are no examples, the numbers of choices differ, a text is not valid
            Unicode or has no tokens, special tokens included, or `max_length` is below 5.

    Example:
        >>> from hopfax.data import Example, WordPiece, encode
        >>> tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film")
        >>> vocabulary = WordPiece(tokens=tokens)
        >>> encode([Example("A film", 1, 0)], vocabulary, cached=False).ids.tolist()
        [[[2, 4, 5, 3]]]
    """
    if not examples:
        raise ValueError("examples must not be empty")
    choices = len(examples[0].texts)
    if odd := [example for example in examples if len(example.texts) != choices]:
        raise ValueError(
            f"all examples must have as many choices as the first, {choices}, but the example with "
            f"index {odd[0].index} has {len(odd[0].texts)}"
        )
    check_integer("max_length", max_length, 5)
    for example in examples:
        check_unicode(f"text {example.index}", itertools.chain(*example.texts))
    path = _cache_file(examples, vocabulary, max_length) if cached else None
    if not (arrays := path and _read_cached(path)):
        arrays = _tokenize(examples, vocabulary, max_length)
        if path:
            _write_cached(path, arrays)
    scores = any(isinstance(example.label, float | np.floating) for example in examples)
    labels = np.asarray([row.label for row in examples], np.float32 if scores else np.int32)
    return Encoded(*arrays, labels, np.asarray([row.index for row in examples], np.int32))


def warn_truncated(
    examples: Sequence[Example],
    lengths: np.ndarray,
    vocabulary: WordPiece,
    *,
    max_length: int,
    stacklevel: int,
) -> None:
    """Warns how many examples `encode` truncated; `lengths` are those of its result."""
    full = [row for row, counts in zip(examples, lengths, strict=True) if max_length in counts]
    if not full:
        return
    untruncated = np.array(list(map(len, _encodings(full, vocabulary)))).reshape(len(full), -1)
    if count := (untruncated > max_length).any(axis=1).sum():
        warnings.warn(
            f"{count} of {len(examples)} texts have more than {max_length} tokens and are "
            "truncated",
            stacklevel=stacklevel + 1,
        )


def text_tokenizer(vocabulary: WordPiece) -> "Tokenizer":
    """Returns the `tokenizers` object that `encode` uses, without truncation."""
    tokenizers = optional_import("tokenizers")
    if vocabulary.serialized is not None:
        tokenizer = tokenizers.Tokenizer.from_str(vocabulary.serialized)
        tokenizer.encode_special_tokens = True  # a text's "[SEP]" is text, not a separator
        return tokenizer
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return tokenizer


def is_blank(text: str) -> bool:
    """Returns whether a text has only whitespace, control and format characters."""
    return all(each.isspace() or unicodedata.category(each) in ("Cc", "Cf") for each in text)


def check_unicode(name: str, texts: Iterable[str]) -> None:
    """Raises a ValueError if texts have lone surrogates, which tokenizers cannot read."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has a character that is not valid Unicode") from None


_kept_tokenizer = functools.lru_cache(maxsize=2)(text_tokenizer)  # shared by threads, unchanged


def _encodings(examples: Sequence[Example], vocabulary: WordPiece) -> list[Any]:
    texts = [text if len(text) == 2 else text[0] for row in examples for text in row.texts]
    tokenizer = _kept_tokenizer(vocabulary)
    try:
        return tokenizer.encode_batch(texts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of `tokenizers` is no Exception
        raise ValueError(f"the tokenizer cannot read the texts: {error}") from None


def _truncated(encoding: Any, max_length: int) -> list[int]:
    """Token ids, truncated as "longest_first" does, but without changing the tokenizer."""
    if len(encoding) <= max_length:
        return encoding.ids
    owners = encoding.sequence_ids  # None for special tokens
    first, second = ([i for i, owner in enumerate(owners) if owner == text] for text in (0, 1))
    room = max_length - owners.count(None)
    short = min(len(first), len(second), room // 2)
    ends = (short, room - short) if len(first) <= len(second) else (room - short, short)
    dropped = {*first[ends[0] :], *second[ends[1] :]}
    return [token for place, token in enumerate(encoding.ids) if place not in dropped]


def _tokenize(
    examples: Sequence[Example], vocabulary: WordPiece, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = [_truncated(row, max_length) for row in _encodings(examples, vocabulary)]
    lengths = np.asarray(list(map(len, rows)), np.int32)
    if len(empty := np.flatnonzero(lengths == 0)):
        row = examples[empty[0] // len(examples[0].texts)]
        raise ValueError(f"text {row.index} has no tokens: {reprlib.repr(row.texts)}")
    ids = np.full((len(rows), int(lengths.max())), vocabulary.pad_id, np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return ids.reshape(len(examples), -1, ids.shape[1]), lengths.reshape(len(examples), -1)


def _cache_file(examples: Sequence[Example], vocabulary: WordPiece, max_length: int) -> Path | None:
    folder = os.path.expanduser(os.environ.get("HOPFAX_CACHE") or "~/.cache/hopfax")
    if folder.startswith("~"):  # there is no home directory
        return None
    texts = [example.texts for example in examples]
    tokenizer = vocabulary.serialized or vocabulary.tokens, vocabulary.pad_token
    content = json.dumps([_VERSION, max_length, tokenizer, texts], separators=(",", ":"))
    return Path(folder) / hashlib.sha256(content.encode()).hexdigest()


def _read_cached(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if content[:32] == hashlib.sha256(content[32:]).digest():
            with np.load(io.BytesIO(content[32:]), allow_pickle=False) as stored:
                return stored["ids"], stored["lengths"]


def _write_cached(path: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """Moves a complete file, a checksum and an archive, to its place, if it can be written."""
    np.savez_compressed(stream := io.BytesIO(), ids=arrays[0], lengths=arrays[1])
    content = stream.getvalue()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder) / path.name
            file.write_bytes(hashlib.sha256(content).digest() + content)
            file.replace(path)
