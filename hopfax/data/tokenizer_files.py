"""Reads the tokenizer of a Hugging Face folder."""

import functools
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopfax.data.tokenize import WordPiece, read_vocabulary
from hopfax.hub import model_folder, optional_import, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Name in tokenizer_config.json, then part, type and name in tokenizer.json.
_SETTINGS = (
    ("do_lower_case", "normalizer", "BertNormalizer", "lowercase"),
    ("strip_accents", "normalizer", "BertNormalizer", "strip_accents"),
    ("tokenize_chinese_chars", "normalizer", "BertNormalizer", "handle_chinese_chars"),
    ("add_prefix_space", "pre_tokenizer", "ByteLevel", "add_prefix_space"),
)
_MAX_TOKENS = 1 << 22
_BYTE_LEVEL_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")


def read_tokenizer(folder: str | os.PathLike) -> WordPiece:
    r"""Returns a model's tokenizer, with its special tokens, for `encode` and `load_task`.

    Reads the first of these that exists:

    - `tokenizer.json`, without its truncation and padding;
    - `vocab.txt` of BERT;
    - `vocab.json` and `merges.txt`: byte-level BPE, with ``<s> a </s></s> b </s>`` if the
      vocabulary has <s> and </s> (RoBERTa), otherwise without special tokens: the two texts of a
      pair are concatenated (GPT-2).

    As in `transformers`, the settings of `tokenizer_config.json` on case, accents, Chinese
    characters and prefix spaces apply, and `added_tokens.json` adds tokens to the second and third
    formats. Special tokens in a text are split like other text, unless `tokenizer.json` has them
    and `additional_special_tokens` or `extra_special_tokens` lists them. The padding token is the
    one that the folder names, otherwise ``[PAD]``, ``<pad>`` or the end-of-text token.

    Args:
        folder: A folder that `save_pretrained` of `transformers` wrote, or a name on the Hugging
            Face hub.

    Raises:
        FileNotFoundError: If the folder has no tokenizer.
        ValueError: If a file is broken or does not fit `config.json`, there is no padding token, or
            the model requires a `tokenizer.json`.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import Example, encode, read_tokenizer
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nfilm\n")
        >>> encode([Example("A film", 1, 0)], read_tokenizer(folder)).ids.tolist()
        [[[2, 4, 5, 3]]]
    """
    folder = model_folder(folder)
    files = ("tokenizer_config.json", "special_tokens_map.json", "config.json")
    contents = [read_json(path) if (path := folder / file).is_file() else {} for file in files]
    settings, config = contents[0] | contents[1], contents[2]
    formats = (row for row in _FORMATS if all((folder / name).is_file() for name in row[0]))
    names, read, families = next(formats, ((), None, ()))
    if read is None:
        missing = "no tokenizer.json, no vocab.txt, and not both vocab.json and merges.txt"
        raise FileNotFoundError(f"{folder} has {missing}")
    files, family = " and ".join(names), config.get("model_type")
    if family and families and family not in families:
        allowed = f"{files} can be read for {', '.join(families)}, got {family}"
        raise ValueError(f"{folder} requires a tokenizer.json: {allowed}")
    try:
        tokenizer = read(folder, settings)
    except (KeyboardInterrupt, SystemExit, ModuleNotFoundError, ValueError):
        raise
    except BaseException as error:  # `tokenizers` raises no narrower type, and panics
        raise ValueError(f"cannot read {files} in {folder}: {error}") from None
    added = folder / "added_tokens.json"
    if names != ("tokenizer.json",) and added.is_file():
        entries = sorted(
            read_json(added).items(), key=lambda each: isinstance(each[1], int) and each[1]
        )
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_tokens([token for token, _ in entries if token not in special])
        for token, number in entries:
            if tokenizer.token_to_id(token) != number:
                got = f"{number!r} for {token!r}"
                raise ValueError(f"{added} must continue the ids of {files}, got {got}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    highest, size = max(by_id, default=-1), config.get("vocab_size")
    limit = min(size, _MAX_TOKENS) if isinstance(size, int) else _MAX_TOKENS
    if highest >= limit:
        raise ValueError(
            f"token ids must be below {limit} (vocab_size of {folder / 'config.json'}: {size}), "
            f"but {by_id[highest]!r} of {files} has id {highest}"
        )
    tokens = [by_id.get(number, "") for number in range(highest + 1)]
    if isinstance(size, int):
        count = f"{len(tokens)} tokens, fewer than the vocab_size {size} of config.json"
        if len(tokens) < fewest_tokens(size):
            raise ValueError(f"{files} in {folder} has {count}")
        # Models pad their size to a multiple of a power of two.
        if len(tokens) <= size - (1 if size % 8 else 128):
            warnings.warn(f"{files} in {folder} has {count}", stacklevel=2)
    return WordPiece(
        tokens=tuple(tokens),
        serialized=tokenizer.to_str(),
        pad_token=_pad_token(folder, tokens, settings, config),
    )


def fewest_tokens(vocab_size: int) -> float:
    """Returns the least size of a model's tokenizer: some models round their own size up."""
    return max(0.9 * vocab_size, vocab_size - 1024)


def tokenizer_settings(tokenizer: "Tokenizer") -> dict[str, Any]:
    """Returns the settings that `transformers` reads from `tokenizer_config.json` only."""
    document = json.loads(tokenizer.to_str())
    return {
        name: document[part][key]
        for name, part, kind, key in _SETTINGS
        if (document[part] or {}).get("type") == kind
    }


def _tokenizer_json(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    document = read_json(folder / "tokenizer.json")
    for name, part, kind, key in _SETTINGS:
        matches = (document.get(part) or {}).get("type") == kind
        if matches and settings.get(name) is not None:
            document[part][key] = settings[name]
    markers = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.get(name) or ()
        listed = listed.values() if isinstance(listed, Mapping) else listed
        markers += map(_content, listed)
    for token in document.get("added_tokens") or ():
        if token["content"] in markers:
            token["special"] = False  # special tokens are not looked for in a text
    return optional_import("tokenizers").Tokenizer.from_str(json.dumps(document))


def _word_piece(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    return optional_import("tokenizers").BertWordPieceTokenizer(
        {token: number for number, token in enumerate(read_vocabulary(folder).tokens)},
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )


def _byte_level(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    tokenizers = optional_import("tokenizers")
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    prefix = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    ids = tokenizer.get_vocab()
    if {"<s>", "</s>"} <= ids.keys():
        tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
            ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), add_prefix_space=prefix
        )
    # RoBERTa's mask token includes the space before it.
    special = [token for token in _BYTE_LEVEL_SPECIAL if token in ids]
    token = functools.partial(tokenizers.AddedToken, normalized=False)
    tokenizer.add_special_tokens([token(each, lstrip=each == "<mask>") for each in special])
    return tokenizer


def _content(token: Any) -> Any:  # of a token that may have settings
    return token.get("content") if isinstance(token, Mapping) else token


# Files, their reader, and the model families that they are sufficient for (empty: all).
_FORMATS = (
    (("tokenizer.json",), _tokenizer_json, ()),
    (("vocab.txt",), _word_piece, ("bert", "distilbert", "electra")),
    (("vocab.json", "merges.txt"), _byte_level, ("roberta", "gpt2")),
)


def _pad_token(
    folder: Path, tokens: list[str], settings: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    """The padding token: by name, by id, by convention, or the end-of-text token."""

    def token_of(role: str) -> Any:
        value, number = settings.get(role), config.get(f"{role}_id")
        if value is None and isinstance(number, int) and 0 <= number < len(tokens):
            return tokens[number]
        return _content(value)

    for token in (token_of("pad_token"), "[PAD]", "<pad>", token_of("eos_token"), "<|endoftext|>"):
        if token and token in tokens:
            return token
    raise ValueError(f"{folder} has no padding token: set pad_token in special_tokens_map.json")
