"""Tokenization: vocabularies and padded arrays."""

import functools
import itertools
import os
import reprlib
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.batching import Encoded
from hopfax.data.raw import numbered_lines, read_text
from hopfax.data.tasks import Example, check_integer
from hopfax.hub import local_path, optional_import

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


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
    """Returns the tokens of a `vocab.txt`, or of a folder with one: the line number is the id."""
    path = local_path(path)
    if path.is_dir():
        path = path / "vocab.txt"
    if not path.is_file():
        hint = "pass a vocab.txt, or None to train one on the training texts"
        raise FileNotFoundError(f"no vocabulary at {path}: {hint}")
    tokens = [token for _, token in numbered_lines(read_text(path))]
    if missing := [token for token in SPECIAL if token not in tokens]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    numbers: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if not token:
            raise ValueError(f"{path}, line {number}: empty token")
        if (first := numbers.setdefault(token, number)) != number:
            raise ValueError(f"{path}, line {number}: {token!r} is already on line {first}")
    return WordPiece(tokens=tuple(tokens))


def encode(examples: Sequence[Example], vocabulary: WordPiece, *, max_length: int = 128) -> Encoded:
    """Tokenizes examples: ``[CLS] a [SEP]``, or ``[CLS] a [SEP] b [SEP]``, in lower case.

    Vocabularies of `read_tokenizer` use their own special tokens and case. Texts of more than
    `max_length` tokens are truncated at the end; in a pair, the longer text first. Arrays are
    padded to the longest row.

    Args:
        examples: One or more rows, all with the same number of choices.
        vocabulary: Tokens and their ids.
        max_length: Longest row in tokens, including special tokens; at least 5.

    Raises:
        ValueError: If there are no examples, the numbers of choices differ, a text is not valid
            Unicode or has no tokens, or `max_length` is below 5.

    Example:
        >>> from hopfax.data import Example, WordPiece, encode
        >>> tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film")
        >>> vocabulary = WordPiece(tokens=tokens)
        >>> encode([Example("A film", 1, 0)], vocabulary).ids.tolist()
        [[[2, 4, 5, 3]]]
    """
    return _encode(examples, vocabulary, max_length)[0]


def encode_splits(
    splits: Sequence[Sequence[Example]], vocabulary: WordPiece, max_length: int, *, stacklevel: int
) -> list[Encoded]:
    """Tokenizes splits, and warns how many of their texts are truncated."""
    results = [_encode(split, vocabulary, max_length) for split in splits]
    if count := sum(truncated for _, truncated in results):
        shares = f"{count} of {sum(map(len, splits))} texts"
        message = f"{shares} have more than {max_length} tokens and are truncated"
        warnings.warn(message, stacklevel=stacklevel + 1)
    return [encoded for encoded, _ in results]


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


def _encode(
    examples: Sequence[Example], vocabulary: WordPiece, max_length: int
) -> tuple[Encoded, int]:
    """Returns arrays, and how many examples are truncated."""
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
    texts = [text if len(text) == 2 else text[0] for row in examples for text in row.texts]
    tokenizer = _kept_tokenizer(vocabulary)
    try:
        encodings = tokenizer.encode_batch(texts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of `tokenizers` is no Exception
        raise ValueError(f"the tokenizer cannot read the texts: {error}") from None
    lengths = np.array(list(map(len, encodings)), np.int32).reshape(-1, choices)
    if len(empty := np.flatnonzero(lengths.min(axis=1) == 0)):
        row = examples[empty[0]]
        raise ValueError(f"text {row.index} has no tokens: {reprlib.repr(row.texts)}")
    ids = np.full((lengths.size, min(lengths.max(), max_length)), vocabulary.pad_id, np.int32)
    for row, encoding in zip(ids, encodings, strict=True):
        tokens = _truncate(encoding, max_length)
        row[: len(tokens)] = tokens
    scores = any(isinstance(example.label, float | np.floating) for example in examples)
    encoded = Encoded(
        ids=ids.reshape(*lengths.shape, -1),
        lengths=np.minimum(lengths, max_length),
        labels=np.asarray([row.label for row in examples], np.float32 if scores else np.int32),
        index=np.asarray([row.index for row in examples], np.int32),
    )
    return encoded, int((lengths > max_length).any(axis=1).sum())


def _truncate(encoding: Any, max_length: int) -> list[int]:
    """Token ids, truncated as "longest_first" does, which keeps all pairs of what it cuts off."""
    if len(encoding) <= max_length:
        return encoding.ids
    owners = encoding.sequence_ids  # None for special tokens
    first, second = ([i for i, owner in enumerate(owners) if owner == text] for text in (0, 1))
    room = max_length - owners.count(None)
    short = min(len(first), len(second), room // 2)
    ends = (short, room - short) if len(first) <= len(second) else (room - short, short)
    dropped = {*first[ends[0] :], *second[ends[1] :]}
    return [token for place, token in enumerate(encoding.ids) if place not in dropped]
