import csv
import itertools
import json
import os
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from nn import checkpoints
from safetensors.numpy import load_file, save_file

from hopfax import command, measure, stability, text_model
from hopfax.classifier import Classifier
from hopfax.data import train_vocabulary
from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.nn import load_pretrained, robertha, tinybert, with_memory
from hopfax.text_model import NativeModel, load_text_model

WORDS = "abcdefghijklmnop"
VOCABULARY = train_vocabulary([" ".join(WORDS)])
SIZES = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": 16}


def tiny_folder(path, family, labels=()):
    """Writes a tiny random model with a tokenizer; with labels, one for sequence classification."""
    checkpoints.save_random(path, family, labels=labels)
    vocabulary = WordPiece(tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))
    text_tokenizer(vocabulary).save(str(path / "tokenizer.json"))
    (path / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("hub") / "bert", "bert")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "classifier"
    model = robertha(VOCABULARY.size, 2, **SIZES)
    Classifier(model, model.init(jax.random.key(0)), VOCABULARY, ("bad", "good")).save(path)
    return path


@pytest.fixture
def remembering(tmp_path):
    """A saved classifier with memory."""
    types = {"num_types": 2, "separator": VOCABULARY.sep_id}
    model = with_memory(tinybert(VOCABULARY.size, 2, **SIZES, **types), site="embedding")
    params = jax.tree.map(lambda leaf: 20 * leaf, model.init(jax.random.key(0)))
    Classifier(model, params, VOCABULARY, ("bad", "good")).save(tmp_path / "remembering")
    return tmp_path / "remembering"


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def pairs(tmp_path):
    lines = (f"{a} {b},{b} {a},{i % 5}" for i, (a, b) in enumerate(itertools.pairwise(WORDS)))
    return write(tmp_path / "pairs.csv", "first,second,score", *lines)


@pytest.fixture
def films(tmp_path):
    lines = (f"{letter} b,{('bad', 'good')[i % 2]}" for i, letter in enumerate(WORDS))
    return write(tmp_path / "films.csv", "review,label", *lines)


def run(out, name, model, *arguments):
    assert command.main([name, str(model), *map(str, arguments), "--out", str(out)]) == 0
    with (out / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_robustness_of_an_encoder_is_a_rank_correlation(encoder, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SNR_DB", (60, 20, -30))
    columns = ("--text", "first", "--pair", "second", "--label", "score", "--memory")
    rows = run(tmp_path / "out", "robustness", encoder, "--dev", pairs, *columns)
    scores = {(row["site"], row["snr_db"]): float(row["score"]) for row in rows}
    assert len(rows) == 10 and {row["num_examples"] for row in rows} == {"15"}
    assert all(float(row["low"]) <= float(row["score"]) <= float(row["high"]) for row in rows)
    clean = scores["clean", "inf"]
    for site in measure.SITES.values():
        assert scores[site, "60"] == pytest.approx(clean, abs=8) and scores[site, "-30"] != clean
    noisy, recalled = (scores[measure.SITES[site], "20"] for site in ("token", "memory"))
    assert recalled == pytest.approx(clean, abs=0.1) and noisy != recalled
    assert {"README.md", "figure.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    texts = ((f"{a} {b}", f"{b} {a}") for a, b in itertools.pairwise(WORDS))
    first, second = map(load_text_model(encoder).outputs, zip(*texts, strict=True))
    labels = np.arange(len(first)) % 5
    ranks = scipy.stats.spearmanr(np.sum(first * second, axis=1), labels).statistic
    assert clean == pytest.approx(100 * ranks, abs=0.01)


@pytest.mark.parametrize("saved_by", ["hopfax", "transformers"])
def test_robustness_of_a_classifier_is_accuracy(saved_by, classifier, films, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SNR_DB", (6,))
    model, names = classifier, ("--label-map", "poor=bad,fine=GOOD")
    if saved_by == "hopfax":
        films.write_text(films.read_text().replace("bad", "poor").replace("good", "fine"))
    else:  # with labels by number, as in its data sets
        names = ()
        model = tiny_folder(tmp_path / "hub", "bert", ("bad", "good"))
        films.write_text(films.read_text().replace("bad", "0").replace("good", "1"))
    options = ("--dev", films, "--text", "review", "--rows", 9, *names)
    clean = run(tmp_path / "out", "robustness", model, *options)[0]
    picks = np.linspace(0, len(WORDS) - 1, 9).round().astype(int)
    predicted = Classifier.load(model).predict([f"{WORDS[i]} b" for i in picks]).labels
    correct = np.mean([a == ("bad", "good")[i % 2] for i, a in zip(picks, predicted, strict=True)])
    assert clean["metric"] == "accuracy" and clean["num_examples"] == "9"
    assert float(clean["score"]) == pytest.approx(100 * correct, abs=0.01)


def test_robustness_of_a_regression_is_the_correlation_of_its_scores(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SNR_DB", (6,))
    model = tiny_folder(tmp_path / "hub", "roberta", ("score",))
    columns = ("--text", "first", "--pair", "second", "--label", "score")
    clean = run(tmp_path / "out", "robustness", model, "--dev", pairs, *columns)[0]
    texts = [(f"{a} {b}", f"{b} {a}") for a, b in itertools.pairwise(WORDS)]
    predicted = load_text_model(model).outputs(texts)[:, 0]
    ranks = scipy.stats.spearmanr(predicted, np.arange(len(texts)) % 5).statistic
    assert float(clean["score"]) == pytest.approx(100 * ranks, abs=0.01)
    assert command.main(["stability", str(model), "--texts", str(pairs)]) == 1


@pytest.fixture
def reviews(tmp_path):
    """Ten texts of long words, so that all can be misspelled."""
    words = ["wonderful", "terrible", "charming", "dreadful", "delicate"]
    lines = (f"{a} {b} story,{'GOOD' if a < b else 'bad'}" for a in words for b in words[:2])
    return write(
        tmp_path / "reviews.csv", "review;label", *(each.replace(",", ";") for each in lines)
    )


@pytest.fixture
def sensitive(tmp_path):
    """A saved classifier of words, whose outputs depend on single letters."""
    vocabulary = train_vocabulary(["wonderful terrible charming dreadful delicate story"] * 3)
    model = robertha(vocabulary.size, 2, **SIZES | {"max_length": 64})
    params = jax.tree.map(lambda leaf: 9 * leaf, model.init(jax.random.key(3)))
    Classifier(model, params, vocabulary, ("bad", "good")).save(tmp_path / "sensitive")
    return tmp_path / "sensitive"


def test_typos_cost_points_of_the_same_texts(sensitive, reviews, tmp_path, capsys):
    options = ("--dev", reviews, "--text", "review")
    rows = run(tmp_path / "out", "typos", sensitive, *options)
    shown = capsys.readouterr().err
    assert f"{reviews}: separator ';', UTF-8" in shown and shown.count("GOOD is good") == 1
    texts = [line.partition(";") for line in reviews.read_text().splitlines()[1:]]
    labels, texts = np.array([label == "GOOD" for *_, label in texts]), [text for text, *_ in texts]
    predict = load_text_model(sensitive).outputs
    clean, changed = predict(texts).argmax(1), set()
    assert [float(row["rate"]) for row in rows] == [0, 0.05, 0.05, 0.1, 0.1, 0.2, 0.2]
    for row in rows[1:]:
        change = measure.TYPOS[row["typos"]]
        edits = [change(t, rate=float(row["rate"]), seed=(0, n)).text for n, t in enumerate(texts)]
        predicted = predict(edits).argmax(1)
        changed |= set(np.flatnonzero(predicted != clean).tolist())
        lost, gained = (
            np.sum(right & (clean != predicted)) for right in (clean == labels, clean != labels)
        )
        assert float(row["score"]) == pytest.approx(10 * np.sum(predicted == labels))
        assert float(row["loss"]) == pytest.approx(10 * (lost - gained))
        mean = (lost - gained) / 12  # Agresti and Min (2005): half a text more in each cell
        half = 1.96 * ((lost + gained + 1) / 12 - mean**2) ** 0.5 / 12**0.5
        ends = [float(row[name]) for name in ("loss_low", "loss_high")]
        np.testing.assert_allclose(ends, [100 * (mean - half), 100 * (mean + half)], atol=0.01)
    with (tmp_path / "out" / "examples.csv").open() as file:
        examples = list(csv.DictReader(file))
    assert changed and {int(each["row"]) for each in examples} == changed
    for each in examples:
        old, _, new = each["words"].partition(" → ")
        assert each["clean"] != each["with typos"] and old in each["text"].split() and new != old


def test_typos_of_pairs_cost_rank_correlation(encoder, pairs, tmp_path):
    columns = ("--text", "first", "--pair", "second", "--label", "score")
    rows = run(tmp_path / "out", "typos", encoder, "--dev", pairs, *columns)
    assert len(rows) == 7 and not (tmp_path / "out" / "examples.csv").exists()
    # Words of one letter do not change.
    assert {(row["changed"], row["loss"]) for row in rows} == {("0.0", "0.0")}


def test_seeds_draw_anew_and_batches_do_not_matter(encoder, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SNR_DB", (0,))
    columns = ("--text", "first", "--pair", "second", "--label", "score", "--dev", pairs)
    runs = [
        run(tmp_path / f"{n}", "robustness", encoder, *columns, *flags)
        for n, flags in enumerate([(), ("--batch-size", 3), ("--seed", 7), ("--seed", 2**31 - 1)])
    ]
    clean, noisy = ([float(rows[at]["score"]) for rows in runs] for at in (0, 1))
    assert len(set(clean)) == 1 and noisy[0] == noisy[1] and len(set(noisy)) == 3
    assert json.loads((tmp_path / "2" / "config.json").read_text())["seed"] == 7


def test_influence_of_a_pair_is_signed_toward_the_label(remembering, tmp_path, capsys):
    rows = run(tmp_path / "out", "influence", remembering, "a b", "c", "--format", "html")
    measured = load_text_model(remembering).influence(("a b", "c"))
    toward = [float(row["toward"]) for row in rows if row["layer"] == "output"]
    np.testing.assert_allclose(toward, measured.toward, rtol=1e-3)
    assert [row["token"] for row in rows[1::2]] == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    first = f"predicted label {measured.label}: [CLS] ({'-+'[toward[0] > 0]}"
    assert capsys.readouterr().out.startswith(first)
    page = (tmp_path / "out" / "page.html").read_text()
    assert f"predicted label {measured.label}" in page and f"toward {measured.label}" in page


def test_force_replaces_another_run_but_no_other_folder(classifier, films, tmp_path, capsys):
    out, options = tmp_path / "out", ("--dev", films, "--text", "review", "--rows", 9)
    run(out, "influence", classifier, "a")
    write(out / "mine.txt", "mine")
    run(out, "robustness", classifier, *options, "--format", "json", "--force")
    names = {"config.json", "results.csv", "results.json", "mine.txt"}
    assert {path.name for path in out.iterdir()} == names
    document = json.loads((out / "results.json").read_text())
    assert document["rows"][0]["snr_db"] is None and "Majority baseline" in document["note"]
    arguments = ["influence", str(classifier), "a", "--out", str(tmp_path), "--force"]
    assert command.main(arguments) == 1 and "--out must be new" in capsys.readouterr().err


def test_outputs_are_the_probabilities_of_the_classifier(classifier, remembering):
    """In the order of the texts; with memory, token types reach it."""
    for folder, texts in (
        (classifier, ["a b c d e f g h i j", "a", "b c d e f g h i j k", "b"]),
        (remembering, [("a b", "c d e"), ("f g h", "i")]),
    ):
        outputs = load_text_model(folder).outputs(texts)
        expected = Classifier.load(folder).predict(texts).probabilities
        np.testing.assert_allclose(outputs, expected, rtol=1e-4)
        assert len(set(outputs[:, 0].tolist())) == len(texts)


def test_influence_is_the_gradients_norm_for_every_token(classifier, tmp_path):
    rows = run(tmp_path / "out", "influence", classifier, "a b c")
    assert [row["layer"] for row in rows] == ["1", "output"] * 5
    rows = rows[1::2]
    assert [row["token"] for row in rows] == ["[CLS]", "a", "b", "c", "[SEP]"]
    loaded = NativeModel(classifier)
    ids = np.array([[loaded.vocabulary.tokens.index(row["token"]) for row in rows]])
    tokens = loaded.apply(loaded.params, ids, method="embed_tokens")
    types = loaded.apply(loaded.params, ids, method="token_types")

    def probabilities(x):
        embeddings = loaded.apply(loaded.params, x[None], types, method="embed")
        return loaded.output(loaded.params, embeddings, np.ones((1, 5), bool), types)[0]

    slopes = jax.jit(partial(stability.geometric_influence, probabilities, per_token=True))(tokens)
    measured = np.array([float(row["influence"]) for row in rows])
    size = np.sqrt(np.square(tokens).sum(-1).mean())
    np.testing.assert_allclose(measured, slopes * size, rtol=0.2)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gemma2"])
def test_influence_on_a_layers_mean_hidden_state(family, tmp_path, monkeypatch):
    monkeypatch.setattr(text_model, "_DRAWS", 2)
    monkeypatch.setattr(text_model, "_DRAWS_DB", 200.0)  # all copies are the same
    folder = tiny_folder(tmp_path / family, family)
    model, mask = load_pretrained(folder), np.ones((1, 5), bool)
    tokens = model.embed(np.array([[2, 4, 5, 6, 3]]))
    size = np.sqrt(np.square(tokens).sum(-1).mean())
    rows = run(tmp_path / "out", "influence", folder, "a b c")
    for layer in (1, 2):

        def embedding(x, layer=layer):
            mean = model.forward(x[None], mask).hidden_states[layer, 0].mean(0)
            return mean / jnp.linalg.norm(mean)

        slopes = jax.jit(partial(stability.geometric_influence, embedding, per_token=True))(tokens)
        measured = [float(row["influence"]) for row in rows if row["layer"] == str(layer)]
        np.testing.assert_allclose(measured, slopes * size, rtol=1e-2)


def test_random_directions_estimate_the_derivative_with_an_error(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(text_model, "_DRAWS_DB", 200.0)  # all copies are the same
    values = []
    for count in (4, 4096):  # four directions, and all eight coordinates
        monkeypatch.setattr(text_model, "_PROJECTIONS", count)
        rows = run(tmp_path / str(count), "influence", encoder, "a b c")[1::2]  # of two layers
        values.append([float(row["influence"]) for row in rows])
        relative = [float(row["standard_error"]) / float(row["influence"]) for row in rows]
        assert min(relative) > 0.01 if count == 4 else max(relative) < 1e-4
    np.testing.assert_allclose(*values, rtol=0.3)


@pytest.mark.parametrize("special", [True, False])
def test_replacement_changes_all_tokens_but_the_special_ones(special, tmp_path, monkeypatch):
    folder, replaced = tiny_folder(tmp_path / "model", "bert"), []
    if not special:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))

    def count(keys, ids, mask, *_):
        replaced.append(int(mask.sum(1).max()))
        return ids

    monkeypatch.setattr(text_model, "_replaced", count)
    with jax.disable_jit():
        load_text_model(folder).outputs(["a b a", "a"], "replacement", 0.5)
    assert max(replaced) == 3


def test_replacement_keeps_what_the_mask_excludes():
    mask = jnp.array([[False, True, True, False], [False, True, False, False]])
    keys = jax.random.split(jax.random.key(0), 2)
    ids = text_model._replaced(keys, jnp.zeros((2, 4), int), mask, jnp.float32(-1.0), 10**6)
    assert ((np.asarray(ids) > 0) == mask).all()


def test_token_types_are_those_of_the_clean_text(encoder, monkeypatch):
    """A separator that replaces a token does not start a second text."""
    model, loaded, ids = NativeModel(encoder), load_pretrained(encoder), [[2, 3, 5, 4, 3]]
    monkeypatch.setattr(
        text_model, "_replaced", lambda *_: jnp.pad(jnp.array(ids), ((0, 0), (0, 3)))
    )
    (output,) = model.outputs(["a b a"], "replacement", 0.5)
    mean = loaded.forward(loaded.embed(np.array(ids)), np.ones((1, 5))).output[0].mean(0)
    np.testing.assert_allclose(output, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)


def test_lines_end_at_newlines_only(encoder, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_bytes("\ufeffa b\x0cc\r\nd\u2028e\n\n\u200b\n".encode())
    rows = run(tmp_path / "out", "stability", encoder, "--texts", texts)
    assert {row["num_examples"] for row in rows} == {"2"}


def test_foreign_folders_and_files_are_not_overwritten(encoder, tmp_path, capsys, monkeypatch):
    page, earlier = write(tmp_path / "README.md", "mine"), tmp_path / "earlier"
    first = run(earlier, "influence", encoder, "a")
    monkeypatch.chdir(encoder.parent)  # the same model by another name
    assert run(earlier, "influence", encoder.name, "a") == first
    another = "must be new, or hold results of the same command"
    for out, message in (
        (tmp_path, another),
        (earlier, another),
        (page, "must be a folder"),
        (page / "below", "must be a folder"),
    ):
        assert command.main(["influence", str(encoder), "a b", "--out", str(out)]) == 1
        assert message in capsys.readouterr().err
    assert page.read_text() == "mine\n"


def test_errors_are_one_line_and_leave_nothing(
    encoder, classifier, remembering, films, pairs, tmp_path, capsys
):
    out, line = tmp_path / "out", write(tmp_path / "line.txt", "one line")
    weights = (broken := tiny_folder(tmp_path / "bert", "bert")) / "model.safetensors"
    save_file(load_file(weights) | {"embeddings.LayerNorm.bias": np.full(8, np.nan, "f")}, weights)
    tokens = (*("[PAD]", "[UNK]", "[CLS]", "[SEP]"), *WORDS, *(f"x{n}" for n in range(99)), "zz")
    large = tiny_folder(tmp_path / "large", "bert")
    text_tokenizer(WordPiece(tokens=tokens)).save(str(large / "tokenizer.json"))
    (foreign := tmp_path / "foreign").mkdir()
    write(foreign / "config.json", '{"model_type": "mpnet"}')
    same = write(tmp_path / "same.csv", "review,label", "a,good", "b,good")
    scores = write(tmp_path / "scores.csv", "first,second,score", "a,b,4", "b,c,nan")
    columns = "--text first --label score"
    for name, model, arguments, message in (
        ("robustness", tmp_path, f"--dev {films}", "config.json"),
        ("robustness", encoder, f"--dev {films} --text review", "has no labels"),
        ("robustness", classifier, f"--dev {pairs} {columns}", "--label has 0, 1, 2, 3, 4, but"),
        ("robustness", encoder, f"--dev {scores} {columns} --pair second", "numbers .* got nan in"),
        ("robustness", encoder, f"--dev {pairs} --text first --pair first", "must differ, got fir"),
        ("robustness", remembering, f"--dev {films} --text review --memory", "already has memory"),
        ("typos", encoder, f"--dev {films} --text review", "has no labels: for text similarity"),
        ("typos", classifier, f"--dev {films} --text review --device tpu", "device: Unknown .*cpu"),
        ("typos", foreign, f"--dev {films}", r"got .mpnet..*hopfax\[torch\]|cannot load"),
        ("typos", large, f"--dev {films}", "token ids must be below .* 'zz' of .* has id"),
        ("robustness", classifier, f"--dev {same} --text review", "--label must have two or more"),
        ("influence", classifier, "", "SENTENCE must not be empty"),
        ("influence", broken, "a", "error: the model's outputs are not finite"),
        ("stability", encoder, f"--texts {line}", "two or more lines of text, got 1"),
        ("stability", encoder, f"--texts {tmp_path}/none.txt", "none.txt"),
    ):
        assert command.main([name, str(model), *arguments.split(" "), "--out", str(out)]) == 1
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ") and re.search(message, error)
    assert not out.exists()


@pytest.mark.parametrize("broken", ["matplotlib.figure.Figure.savefig", "pathlib.Path.rename"])
def test_a_picture_that_fails_leaves_the_results(broken, encoder, tmp_path, monkeypatch):
    """Results that cannot be written leave no folder."""

    def fails(*_, **__):
        raise OSError("no picture, or no space left")

    monkeypatch.setattr(broken, fails)
    out = tmp_path / "out"
    assert command.main(["influence", str(encoder), "a b", "--out", str(out)]) == 1
    assert out.exists() == broken.startswith("matplotlib")
    assert not out.exists() or {"results.csv", "README.md"} <= {x.name for x in out.iterdir()}


def test_sentence_transformers_embed_texts_with_a_prompt_and_a_maximum_length(tmp_path):
    folder, kind = tiny_folder(tmp_path / "bert", "bert"), "sentence_transformers.models."
    modules = {"": f"{kind}Transformer", "p": f"{kind}Pooling"}
    (folder / "p").mkdir()
    for name, content in (
        ("modules", [{"path": path, "type": kind} for path, kind in modules.items()]),
        ("p/config", {"pooling_mode": "cls", "include_prompt": False}),
        ("sentence_bert_config", {"max_seq_length": 6}),
        ("config_sentence_transformers", {"prompts": {"q": "a b "}, "default_prompt_name": "q"}),
    ):
        write(folder / f"{name}.json", json.dumps(content))
    model, ids = load_pretrained(folder), np.array([[2, 4, 5, 6, 7, 3]])  # [CLS] a b c d [SEP]
    with pytest.warns(UserWarning, match="more than 6 tokens"):
        (output,) = load_text_model(folder).outputs(["c d e f"])
    expected = model.forward(model.embed(ids), np.ones(ids.shape)).output[0, 3]  # of c
    np.testing.assert_allclose(output, expected / np.linalg.norm(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["classifier", "encoder"])
def test_stability_is_the_mean_cosine_of_the_outputs(model, tmp_path, request):
    folder, lines = request.getfixturevalue(model), [f"{a} b c" for a in WORDS]
    texts = write(tmp_path / "texts.txt", *lines)
    rows = run(tmp_path / "out", "stability", folder, "--texts", texts, "--rows", 4)
    outputs, kept = load_text_model(folder).outputs, [lines[i] for i in (0, 5, 10, 15)]
    for row, rho in zip(rows, measure.RHO, strict=True):
        pairs = zip(outputs(kept), outputs(kept, "replacement", rho), strict=True)
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
        mean, half = np.mean(cosines), 1.96 * scipy.stats.sem(cosines)
        measured = [float(row[name]) for name in ("score", "low", "high", "replaced")]
        expected = [mean, max(mean - half, -1), min(mean + half, 1), (1 - rho) / 2]
        np.testing.assert_allclose(measured, expected, atol=1e-4)


def test_ctrl_c_and_a_closed_pipe_end_the_command_quietly(encoder, tmp_path, monkeypatch, capsys):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(text_model, "encode_texts", pressed)
    assert command.main(["influence", str(encoder), "a", "--out", str(tmp_path / "out")]) == 130
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:  # as in `hopfax --help | head -1`
        monkeypatch.setattr(sys, "stdout", closed)
        assert command.main(["influence", "--help"]) == 1
    assert capsys.readouterr().err == ""
