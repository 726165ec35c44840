"""The report of a text model: its numbers, its verdicts, and one page in a real browser."""

import csv
import json
import re
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from nn import checkpoints

from experiments import report as explorer
from hopfax import command, measure, report, text
from hopfax.classifier import Classifier
from hopfax.data import train_vocabulary
from hopfax.data.tokenize import text_tokenizer
from hopfax.nn import tinybert
from hopfax.text_model import load_text_model

HACK = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
NAMES = (HACK, "$good_")
WORDS = ["wonderful", "dreadful", "film", "story", "acting", "music", "ending", "boring"]
SUFFIX = " <script>a</script>"
TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, 6)) + SUFFIX for n in range(40)]
VOCABULARY = train_vocabulary(TEXTS)
TSV = "--dev {} --text text --label label"


def save(folder):
    """Saves a random classifier with the most frequent label for half of the texts."""
    model = tinybert(VOCABULARY.size, 2, width=8, num_layers=1, ff_width=8, max_length=40)
    params = jax.tree.map(lambda leaf: 8 * leaf, model.init(jax.random.key(1)))
    odds = np.log(Classifier(model, params, VOCABULARY, NAMES).predict(TEXTS).probabilities)
    bias = [0, -200 * np.median(odds[:, 1] - odds[:, 0])]
    head = {"kernel": 200 * params["classifier"]["kernel"], "bias": np.array(bias, np.float32)}
    Classifier(model, {**params, "classifier": head}, VOCABULARY, NAMES).save(folder)
    return folder


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a report on a model that is right on every clean text; the file, the model."""
    folder = tmp_path_factory.mktemp("report")
    model, file = save(folder / "$model"), folder / "texts.jsonl"
    predicted = Classifier.load(model).predict(TEXTS).labels
    rows = ({"text": each, "label": label} for each, label in zip(TEXTS, predicted, strict=True))
    file.write_text("\n".join(map(json.dumps, rows)))
    arguments = ["report", str(model), *TSV.format(file).split(), "--out", str(folder / "out")]
    assert command.main(arguments) == 0
    return folder / "out", file, model


def test_scores_are_those_of_changed_texts(reported):
    folder, _, model = reported
    with (folder / "results.csv").open() as lines:
        rows = {(row["kind"], float(row["level"])): row for row in csv.DictReader(lines)}
    outputs = load_text_model(model).outputs
    typos = [text.misspell(each, rate=0.1, seed=(0, row)).text for row, each in enumerate(TEXTS)]
    clean = outputs(TEXTS).argmax(1)
    for key, changed in (
        ((report.NOISE, -6), outputs(TEXTS, "token", -6)),
        ((report.MEMORY, -6), outputs(TEXTS, "memory", -6)),
        (("misspelled words", 0.1), outputs(typos)),
    ):
        kept = 100 * np.mean(changed.argmax(1) == clean)
        numbers = [float(rows[key][name]) for name in ("score", "agreement", "loss")]
        np.testing.assert_allclose(numbers, [kept, kept, 100 - kept], atol=0.01)


def test_fragile_texts_flip_as_the_classifier_does(reported):
    folder, _, folder_of_model = reported
    (model,) = json.loads((folder / "report.json").read_text())["models"]
    parts = [each["parts"] for each in model["texts"]]
    before = ["".join(part for part, _ in each) for each in parts]
    after = ["".join(part if new is None else new for part, new in each) for each in parts]
    labels = iter(Classifier.load(folder_of_model).predict(before + after).labels)
    assert 0 < len(parts) <= report.MOST_TEXTS
    for each, clean, label in zip(model["texts"], before, labels, strict=False):
        assert clean == TEXTS[each["row"]] and label == each["label"] == each["predicted"][0]
        ids = text_tokenizer(VOCABULARY).encode(clean).ids
        assert [word for word, _ in each["tokens"]] == [VOCABULARY.tokens[n] for n in ids]
    for each, clean, changed, label in zip(model["texts"], before, after, labels, strict=False):
        assert each["predicted"][1] != each["label"]
        assert label == each["predicted"][clean != changed]  # noise leaves the text
    assert model["decibels"][0]["nearest"][0][1] == 0


@pytest.mark.parametrize(
    ("count", "flips", "verdict"),
    [(10, 0, "unclear"), (400, 0, "harmless"), (400, 4, "unclear"), (400, 40, "costly")],
)
def test_verdicts_need_enough_texts(count, flips, verdict):
    clean = np.tile([0.9, 0.1], (count, 1))
    changed = np.where(np.arange(count)[:, None] < flips, clean[:, ::-1], clean)
    task = measure.Task(None, [""] * count, np.zeros(count, int), "accuracy")  # pyright: ignore
    outputs = {("clean", 0.0): clean, (report.NOISE, 0): changed}
    row = report._row(task, outputs, report.NOISE, 0)
    assert row["verdict"] == verdict and row["loss"] == 100 * flips / count


def test_encoders_need_pairs_and_are_compared_by_rank(reported, tmp_path, capsys):
    _, file, model = reported
    checkpoints.save_random(tmp_path / "bert", "bert")
    vocabulary = type(VOCABULARY)(tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *"abcdefgh"))
    text_tokenizer(vocabulary).save(str(tmp_path / "bert" / "tokenizer.json"))
    (tmp_path / "bert" / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    lines = (f"{each[:40]},film {each[:9]},{n % 5}" for n, each in enumerate(TEXTS))
    (tmp_path / "pairs.csv").write_text("\n".join(["text,other,label", *lines]))
    encoder, out = str(tmp_path / "bert"), ["--out", str(tmp_path / "out")]
    for first, arguments, message in (
        (encoder, TSV.format(file), "has no labels"),
        (str(model), f"{TSV.format(file)} --compare {tmp_path}", "config.json"),
    ):
        assert command.main(["report", first, *arguments.split(), *out]) == 1
        assert re.search(message, capsys.readouterr().err) and not (tmp_path / "out").exists()
    arguments = [*TSV.format(tmp_path / "pairs.csv").split(), "--pair", "other"]
    assert command.main(["report", encoder, *arguments, "--compare", encoder, *out]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Spearman" in page and page.count("not measurably better than chance") == 2
    first, second = json.loads((tmp_path / "out" / "report.json").read_text())["models"]
    assert first["clean"]["metric"] == "spearman" and first["rows"] == second["rows"]


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in paths:
        pytest.skip("needs Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(executable_path=paths[1])
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


def test_a_browser_shows_the_report_without_scripts_or_requests(reported, browser):
    page = reported[0] / "report.html"
    content = page.read_text()
    assert len(content) < 500_000 and not re.search("<(script|img|link)", content)
    browser.set_window_size(420, 800)
    browser.get(page.as_uri())
    assert (
        browser.title == "How robust is $model?"
        and HACK in browser.find_element("tag name", "main").text
    )
    assert not browser.execute_script("return performance.getEntriesByType('resource')")
    assert not browser.get_log("browser")
    width, inner = browser.execute_script(
        "return [document.documentElement.scrollWidth, innerWidth]"
    )
    assert inner <= 420 and width <= inner


def test_keys_change_the_menu_the_slider_and_the_value_of_the_explorer(browser, tmp_path):
    keys = pytest.importorskip("selenium.webdriver").Keys
    values = [("a", 0, 60.25), ("a", 1, 61.75), ("b", 0, 50.25), ("b", 1, 51.75)]
    table = pd.DataFrame(values, columns=["noise", "level", "mean"])
    table = table.assign(model="m", low=None, high=None)
    chart = explorer.Explorer(table, x="level", hue="model", menus={"noise": "Noise"})
    page = tmp_path / "report.html"
    page.write_text(explorer.html(explorer.Page("Scores", explorer=chart), tmp_path))
    browser.get(page.as_uri())
    value = browser.find_element("css selector", "#models .score b")
    assert value.text == "61.8"
    browser.find_element("id", "slider").send_keys(keys.ARROW_LEFT)
    assert value.text == "60.3"
    browser.find_element("name", "noise").send_keys(keys.ARROW_DOWN)
    assert value.text == "50.3" and "noise=b&level=0" in browser.current_url
