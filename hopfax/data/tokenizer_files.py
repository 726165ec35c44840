"""Reads the tokenizer of a Hugging Face folder."""

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

# Names in tokenizer_config.json, and in tokenizer.json.
_BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
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

    As in `transformers`, `do_lower_case`, `strip_accents`, `tokenize_chinese_chars` and
    `add_prefix_space` of `tokenizer_config.json` apply, and the tokens of `added_tokens.json` are
    added in the second and third formats. Special tokens that occur in a text are split like other
    text, unless `tokenizer.json` has them and `additional_special_tokens` or `extra_special_tokens`
    lists them, such as markers of entities.

    The padding token is the one that `special_tokens_map.json`, `tokenizer_config.json` or
    `config.json` names, otherwise ``[PAD]`` or ``<pad>`` if the vocabulary has it, or the
    end-of-text token.

    Args:
        folder: A folder that `save_pretrained` of `transformers` wrote, or a name on the Hugging
            Face hub.

    Raises:
        FileNotFoundError: If the folder has no tokenizer.
        ValueError: If a file is broken, there is no padding token, a token id is not below
            `vocab_size` of `config.json`, or the model requires a `tokenizer.json`.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import Example, encode, read_tokenizer
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nfilm\n")
        >>> encode([Example("A film", 1, 0)], read_tokenizer(folder), cached=False).ids.tolist()
        [[[2, 4, 5, 3]]]
    """
    folder = model_folder(folder)
    files = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
    present = (path for file in files if (path := folder / file).is_file())
    contents = {path.name: read_json(path) for path in present}
    config = contents.pop("config.json", {})
    settings = {key: value for each in contents.values() for key, value in each.items()}
    formats = (row for row in _FORMATS if all((folder / name).is_file() for name in row[0]))
    names, read, families = next(formats, ((), None, ()))
    if read is None:
        raise FileNotFoundError(
            f"no tokenizer in {folder}: it has no tokenizer.json, no vocab.txt, and not both "
            "vocab.json and merges.txt"
        )
    files, family = " and ".join(names), config.get("model_type")
    if family and families and family not in families:
        raise ValueError(
            f"{folder} requires a tokenizer.json: {files} can be read for {', '.join(families)}, "
            f"got {family}"
        )
    try:
        tokenizer = read(folder, settings)
    except (KeyboardInterrupt, SystemExit, ModuleNotFoundError, ValueError):
        raise
    except BaseException as error:  # `tokenizers` raises no narrower type, and panics
        raise ValueError(f"cannot read {files} in {folder}: {error}") from None
    added = folder / "added_tokens.json"
    if names != ("tokenizer.json",) and added.is_file():
        entries = read_json(added).items()
        if wrong := [each for each in entries if not isinstance(each[1], int)]:
            token, number = wrong[0]
            raise ValueError(f"{added} must map tokens to integers, got {number!r} for {token!r}")
        more = sorted(entries, key=lambda item: item[1])
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_tokens([token for token, _ in more if token not in special])
        for token, number in more:
            if tokenizer.token_to_id(token) != number:
                raise ValueError(
                    f"{added} must continue the ids of {files}, got {number} for {token!r}"
                )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids, size = tokenizer.get_vocab(), config.get("vocab_size")
    limit = min(size, _MAX_TOKENS) if isinstance(size, int) else _MAX_TOKENS
    highest, last = max(((number, token) for token, number in ids.items()), default=(-1, ""))
    if highest >= limit:
        raise ValueError(
            f"token ids must be below {limit} (vocab_size of {folder / 'config.json'}: {size}), "
            f"but {last!r} of {files} has id {highest}"
        )
    tokens = [""] * (highest + 1)
    for token, number in ids.items():
        tokens[number] = token
    if isinstance(size, int) and len(tokens) < fewest_tokens(size):
        raise ValueError(
            f"{files} in {folder} has {len(tokens)} tokens, too few for the vocab_size {size} of "
            "config.json"
        )
    # Models pad their size to a multiple of a power of two.
    if isinstance(size, int) and len(tokens) <= size - (1 if size % 8 else 128):
        warnings.warn(
            f"{files} in {folder} has {len(tokens)} tokens, fewer than the vocab_size {size} of "
            "config.json",
            stacklevel=2,
        )
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
    normalizer, splitter = (document[part] or {} for part in ("normalizer", "pre_tokenizer"))
    settings = {}
    if normalizer.get("type") == "BertNormalizer":
        settings = {ours: normalizer[theirs] for ours, theirs in _BERT_SETTINGS.items()}
    if splitter.get("type") == "ByteLevel":
        settings["add_prefix_space"] = splitter["add_prefix_space"]
    return settings


def _tokenizer_json(folder: Path, settings: Mapping[str, Any]) -> "Tokenizer":
    document = read_json(folder / "tokenizer.json")
    normalizer, splitter = (document.get(part) or {} for part in ("normalizer", "pre_tokenizer"))
    if normalizer.get("type") == "BertNormalizer":
        for ours, theirs in _BERT_SETTINGS.items():
            if settings.get(ours) is not None:
                normalizer[theirs] = settings[ours]
    if splitter.get("type") == "ByteLevel" and settings.get("add_prefix_space") is not None:
        splitter["add_prefix_space"] = settings["add_prefix_space"]
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
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(token, lstrip=token == "<mask>", normalized=False)
            for token in _BYTE_LEVEL_SPECIAL
            if token in ids
        ]
    )
    return tokenizer


def _content(token: Any) -> Any:
    """A token of `tokenizer_config.json`, which may have settings."""
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

    def named(role: str) -> Any:
        value, number = settings.get(role), config.get(f"{role}_id")
        if value is None and isinstance(number, int) and 0 <= number < len(tokens):
            return tokens[number]
        return _content(value)

    for token in (named("pad_token"), "[PAD]", "<pad>", named("eos_token"), "<|endoftext|>"):
        if token and token in tokens:
            return token
    raise ValueError(f"{folder} has no padding token: set pad_token in special_tokens_map.json")
