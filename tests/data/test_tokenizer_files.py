import contextlib
import json

import pytest
import tokenizers

from hopfax.data import Example, encode, read_tokenizer

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "film", "##s", "!", "e", "é")
# "Ġ" is the byte-level blank.
LETTERS = ("a", "b", "Ġ", "Ġa", "Ġb", "ab", "Ġab", "Ã", "©")
MERGES = "#version: 0.2\nĠ a\nĠ b\na b\nĠ ab\n"
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", *LETTERS, "<mask>")
GPT2 = (*LETTERS, "<|endoftext|>")
CASED = {"do_lower_case": False}


def write(folder, **files):
    """Writes files, named with _ for the dot: text as it is, other values as JSON."""
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.{ending}").write_text(text, encoding="utf-8")


BERT_FILES = {"vocab_txt": "\n".join(BERT) + "\n"}


def byte_level(tokens, **files):
    ids = {token: number for number, token in enumerate(tokens)}
    return {"vocab_json": ids, "merges_txt": MERGES, **files}


def tokens_of(vocabulary, *texts, **options):
    rows = encode([Example(text, 0, 0) for text in texts], vocabulary, **options)
    return [" ".join(vocabulary.tokens[number] for number in row[0]) for row in rows.ids]


def test_tokenizer_json_without_its_truncation_and_padding(tmp_path):
    write(tmp_path, **BERT_FILES)
    stored = tokenizers.Tokenizer.from_str(read_tokenizer(tmp_path).serialized)
    stored.enable_truncation(6)
    stored.enable_padding(length=40, pad_id=5, pad_token="a")
    stored.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_text("not read")
    vocabulary = read_tokenizer(tmp_path)
    assert (vocabulary.tokens, vocabulary.pad_id, vocabulary.sep_id) == (BERT, 0, 3)
    tokens = tokens_of(vocabulary, ("a films! " * 3, "a film"))
    assert tokens == [f"[CLS] {'a film ##s ! ' * 3}[SEP] a film [SEP]"]
    assert tokenizers.Tokenizer.from_str(vocabulary.serialized).truncation is None


@pytest.mark.parametrize(
    ("files", "settings", "text", "tokens"),
    [
        (BERT_FILES, {}, "A é films a那", "[CLS] a e film ##s a [UNK] [SEP]"),
        (BERT_FILES, CASED, "A é films a那", "[CLS] A é film ##s a [UNK] [SEP]"),
        (BERT_FILES, CASED | {"strip_accents": True}, "A é", "[CLS] A e [SEP]"),
        (BERT_FILES, {"tokenize_chinese_chars": False}, "a a那", "[CLS] a [UNK] [SEP]"),
        (byte_level(GPT2), {"add_prefix_space": False}, "b", "b"),
        (byte_level(GPT2), {}, "ab b é", "ab Ġb Ġ Ã ©"),
        (byte_level(GPT2), {}, ("a", " b"), "a Ġb"),
        (byte_level(ROBERTA), {}, "ab é", "<s> ab Ġ Ã © </s>"),
        (byte_level(ROBERTA), {}, ("a", "b"), "<s> a </s> </s> b </s>"),
        (byte_level(ROBERTA), {"add_prefix_space": True}, "ab", "<s> Ġa b </s>"),
        (byte_level(GPT2), {"add_prefix_space": True}, "b", "Ġb"),
    ],
)
def test_settings_apply_to_all_formats(tmp_path, files, settings, text, tokens):
    write(tmp_path, **files)
    plain = read_tokenizer(tmp_path).serialized
    write(tmp_path, tokenizer_config_json=settings)
    assert tokens_of(read_tokenizer(tmp_path), text) == [tokens]
    write(tmp_path, tokenizer_json=plain)
    assert tokens_of(read_tokenizer(tmp_path), text) == [tokens]


@pytest.mark.parametrize(
    ("added", "text", "tokens"),
    [
        ({"qq": 13, "xyz": 12}, "a xyz qq", "a xyz qq"),  # continue the vocab.txt
        ({}, "a [SEP] a [MASK]", f"a {'[UNK] ' * 3}a{' [UNK]' * 3}"),  # special tokens are text
        ({"[SEP]": 3, "[MASK]": 4}, "a [SEP]", f"a{' [UNK]' * 3}"),
        ({"[E1]": 12}, "[E1] a", "[E1] a"),
    ],
)
def test_added_tokens_are_read_in_a_text(tmp_path, added, text, tokens):
    write(tmp_path, **BERT_FILES, added_tokens_json=added)
    assert tokens_of(read_tokenizer(tmp_path), text) == [f"[CLS] {tokens} [SEP]"]


@pytest.mark.parametrize(
    "listed",
    [
        {"additional_special_tokens": [{"content": "[E1]", "lstrip": False}]},
        {"extra_special_tokens": ["[E1]"]},
        {"extra_special_tokens": {"entity": "[E1]"}, "do_lower_case": None},
    ],
)
def test_additional_special_tokens_are_read_in_a_text(tmp_path, listed):
    write(tmp_path, **BERT_FILES)
    stored = tokenizers.Tokenizer.from_str(read_tokenizer(tmp_path).serialized)
    stored.add_special_tokens(["[E1]"])
    write(tmp_path, tokenizer_json=stored.to_str(), tokenizer_config_json=listed)
    tokens = tokens_of(read_tokenizer(tmp_path), "[E1] film [SEP]")
    assert tokens == [f"[CLS] [E1] film {'[UNK] ' * 3}[SEP]"]


def test_special_tokens_and_truncation(tmp_path):
    write(tmp_path, **byte_level(ROBERTA))
    vocabulary = read_tokenizer(tmp_path)
    assert (vocabulary.pad_token, vocabulary.pad_id, vocabulary.sep_id) == ("<pad>", 1, 2)
    cut = tokens_of(vocabulary, ("a a a a", "b"), max_length=7)
    assert cut == ["<s> a Ġa </s> </s> b </s>"]
    write(tmp_path, **byte_level(GPT2))
    vocabulary = read_tokenizer(tmp_path)
    assert (vocabulary.pad_token, vocabulary.sep_id) == ("<|endoftext|>", None)


def test_the_published_files_of_gpt2(shared, tmp_path):
    for name, source in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / name).symlink_to(shared / "data" / "vocab" / "gpt2" / source)
    vocabulary = read_tokenizer(tmp_path)
    assert (vocabulary.size, vocabulary.pad_id) == (50257, 50256)
    assert tokens_of(vocabulary, "Hello world, it's!") == ["Hello Ġworld , Ġit 's !"]


@pytest.mark.parametrize(
    ("files", "pad_token"),
    [
        ({"special_tokens_map_json": {"pad_token": {"content": "a", "lstrip": False}}}, "a"),
        ({"tokenizer_config_json": {"pad_token": "a"}, "config_json": {"pad_token_id": 1}}, "a"),
        ({"config_json": {"pad_token_id": 1, "eos_token_id": 0}}, "b"),
        ({"config_json": {"pad_token_id": None, "eos_token_id": 0}}, "a"),
        ({"special_tokens_map_json": {"pad_token": "not a token"}}, "<|endoftext|>"),
    ],
)
def test_the_padding_token(tmp_path, files, pad_token):
    write(tmp_path, **byte_level(GPT2, **files))
    assert read_tokenizer(tmp_path).pad_token == pad_token


WORD_LEVEL = {"type": "WordLevel", "vocab": {"[PAD]": 0, "a": 2**31}, "unk_token": "[PAD]"}
NO_TOKENIZER = r"has no tokenizer\.json, no vocab\.txt, and not both vocab\.json and merges\.txt"


def of_size(tokens, size):
    return {"vocab_txt": "\n".join(tokens), "config_json": {"vocab_size": size}}


@pytest.mark.parametrize(("size", "warns"), [(3013, True), (3016, False), (3144, True)])
def test_missing_tokens_that_are_not_padding_are_a_warning(tmp_path, size, warns):
    write(tmp_path, **of_size([*BERT, *map(str, range(3000))], size))
    message = f"has 3012 tokens, fewer than the vocab_size {size}"
    with pytest.warns(UserWarning, match=message) if warns else contextlib.nullcontext():
        assert len(read_tokenizer(tmp_path).tokens) == 3012


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, NO_TOKENIZER),
        ({"vocab_json": {"a": 0}}, NO_TOKENIZER),
        ({"tokenizer_json": '{"version": "1.0"'}, r"tokenizer\.json is not a JSON file"),
        ({"tokenizer_json": {"version": "1.0"}}, r"cannot read tokenizer\.json in .*: Model"),
        ({"tokenizer_json": {"model": WORD_LEVEL}}, r"below 4194304 .*, but 'a' .* id 2147483648"),
        ({"vocab_json": {"a": 0}, "merges_txt": MERGES}, r"cannot read vocab\.json and merges"),
        ({"vocab_json": {"a": 0}, "merges_txt": "#version: 0.2\n"}, "has no padding token: set"),
        ({"config_json": "{"}, r"config\.json is not a JSON file: Expecting"),
        (of_size(BERT, 11), r"below 11 \(.*config\.json: 11\), but 'é' of vocab\.txt has id 11"),
        (of_size(BERT, 20), "has 12 tokens, fewer than the vocab_size 20 of con"),
        (BERT_FILES | {"config_json": {"model_type": "mpnet"}}, r"a tokenizer\.json: .* mpnet"),
        (BERT_FILES | {"added_tokens_json": {"xyz": 20}}, "must continue the ids .* 20 for 'xyz'"),
        (BERT_FILES | {"added_tokens_json": {"xyz": "12"}}, "must continue .* got '12' for 'xyz'"),
    ],
)
def test_broken_folders(tmp_path, files, message):
    write(tmp_path, **files)
    error = FileNotFoundError if message == NO_TOKENIZER else ValueError
    with pytest.raises(error, match=message) as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
