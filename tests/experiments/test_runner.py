"""Cells and runs: trained once, resumed, tested once, gathered whole."""

import itertools
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import __main__ as command_line
from experiments import cells, conditions, gaussian, predict, report, rundir, runner, tidy
from experiments.models import VARIANTS, variant, with_flags
from experiments.robertha import suites
from experiments.robertha.demo import Demo
from experiments.settings import Data, Training, resolved
from hopfax import Classifier
from hopfax.data import Encoded, task
from hopfax.train.metrics import scores


def config(folder, **training):
    sizes = {"seeds": (1, 2, 3), "epochs": 2, "width": 16, "patience": 2} | training
    data = Data(task=("sentiment",), train_size=64, test_size=40, vocab_size=200)
    options = {"budget": "smoke", "runs": str(folder), "data": data, "training": Training(**sizes)}
    return resolved(suites.Robustness(**options))


CLEAN = (conditions.Gaussian(),)


def trial(name="tinybert", tests=CLEAN, denoisers=("none",)):
    return runner.Trial("sentiment", name, variant(name), tests, denoisers)


def fill(flags, *trials, page=gaussian.page):
    return runner.fill("robustness", flags, runner.jobs(flags, trials), page)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    return config(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def cell(flags):
    return runner.open_cell(flags, trial(), runner.load(flags, "sentiment"))


def test_a_cell_is_trained_once_and_complete(flags, cell, monkeypatch):
    monkeypatch.setattr(cells, "fit", lambda *_, **__: pytest.fail("trained again"))
    # As after kills of two processes, one of which came too late.
    late = cell.folder.with_suffix(".partial")
    for left in (cell.folder / cells.RESUMPTION, late):
        left.mkdir()
    for left in (cell.folder, late):
        (left / rundir.LOCK).touch()
    again = runner.open_cell(flags, trial(), cell.data)
    jax.tree.map(np.testing.assert_array_equal, again.params, cell.params)
    assert again.folder == cell.folder
    assert not list(cell.folder.parent.glob("*.partial"))
    assert not {cells.RESUMPTION, rundir.LOCK} & {path.name for path in cell.folder.iterdir()}


def test_each_pretrained_model_has_its_own_learning_rate(flags, cell):
    """It is part of the spec, not of the model's settings, and a flag replaces it."""
    each = replace(VARIANTS["pretrained-freelb"], kind="tinybert")
    assert "learning_rate" not in each.settings()
    for rate, expected in ((None, each.learning_rate), (1e-4, 1e-4)):
        config = replace(flags, training=replace(flags.training, learning_rate=rate))
        spec = runner.spec_of(config, runner.Trial("sentiment", "any", each, CLEAN), cell.data)
        assert spec.learning_rate == expected


def test_memory_and_its_baselines_denoise_the_same_trained_model(cell):
    memory = cells.with_denoiser(cell, "memory")
    assert np.exp(memory.params["memory"]["log_prior"][0]).argmax() in cell.data.train.ids[0]
    noise = conditions.Gaussian(site="token", protocol="matched", level=1.0)
    (plain, noisy), (clean, recalled) = (
        [conditions.predictions(each, condition).logits for condition in (*CLEAN, noise)]
        for each in (cell, memory)
    )
    np.testing.assert_allclose(clean, plain, rtol=1e-4, atol=1e-5)
    baselines = (cells.with_denoiser(cell, name) for name in ("nearest", "linear"))
    for logits in (recalled, *(conditions.predictions(each, noise).logits for each in baselines)):
        assert np.abs(logits - plain).mean() < 0.9 * np.abs(noisy - plain).mean()
    inner = trial(tests=[replace(noise, site="embedding")], denoisers=("none", "linear"))
    with pytest.raises(ValueError, match="--denoiser linear requires --sites token"):
        runner.check([inner], {"sentiment": cell.data})


def test_an_attack_on_a_model_with_memory_follows_the_gradient_without_it(cell):
    """At clean tokens, memory hides the gradient; the function of texts is the same."""
    attack, texts = conditions.Typos(corruption="hotflip", rate=0.1), [("a fine film",)]
    plain, defended = (
        attack.victim(each, 0).gradients.linearize(texts, [1])[0]
        for each in (cell, cells.with_denoiser(cell, "memory"))
    )
    assert np.abs(plain.gradient).max() > 1e-6
    np.testing.assert_array_equal(defended.gradient, plain.gradient)


def test_baselines_of_memory_are_the_nearest_vector_and_the_best_linear_estimate(rng):
    width, sigma = 64, 0.8
    table = rng.normal(size=(50, width)) @ np.diag(np.linspace(0.1, 2, width))
    prior = rng.dirichlet(np.ones(50))
    rows = rng.choice(50, size=4000, p=prior)
    noisy = table[rows] + sigma * rng.normal(size=(4000, width))
    distances = np.linalg.norm(noisy[:100, None] - table, axis=-1)
    one = partial(cells.nearest, table=jnp.asarray(table), log_prior=jnp.log(prior))
    np.testing.assert_allclose(jax.vmap(one)(noisy[:100]), table[distances.argmin(1)], rtol=1e-5)
    one = partial(cells.wiener, table=jnp.asarray(table), log_prior=jnp.log(prior))
    error = np.mean(np.square(jax.vmap(one)(noisy) - table[rows]))
    # Least squares on the sample, which knows the clean vectors.
    inputs = np.c_[noisy, np.ones(4000)]
    fitted = inputs @ np.linalg.lstsq(inputs, table[rows], rcond=None)[0]
    best = np.mean(np.square(fitted - table[rows]))
    assert best < error < 1.1 * best < 0.8 * sigma**2


def test_tokens_that_tell_classes_apart_are_louder(cell):
    loud = cells.with_loud_tokens(cell)
    before, after = (each.params["tokens"]["embedding"] for each in (cell, loud))
    gains = np.linalg.norm(after, axis=-1) / np.linalg.norm(before, axis=-1)
    train = cell.data.train
    token, ids, lengths = int(gains[0].argmax()), train.ids[:, 0], train.lengths[:, 0]
    zero, one = (
        (np.sum(ids[of] == token) + 5) / (np.sum(lengths[of]) + 5 * cell.data.vocabulary.size)
        for of in (train.labels == 0, train.labels == 1)
    )
    np.testing.assert_allclose(gains[:, token], 1 + abs(np.log(one / zero)), rtol=1e-4)
    assert gains.min() > 0.999 and gains.max() > 1.2
    logits = [conditions.predictions(each, *CLEAN).logits for each in (cell, loud)]
    assert not np.allclose(*logits)


def test_the_gain_of_memory_has_an_interval_over_rows(cell):
    noise = conditions.Gaussian(site="token", protocol="matched", level=2.0)
    memory = cells.with_denoiser(cell, "memory")
    parts = [pd.DataFrame(conditions.rows(each, noise, model="m")) for each in (cell, memory)]
    without, with_memory = (part[part.metric == "score"].score.to_numpy() for part in parts)
    gains = parts[1][parts[1].metric == "gain"]
    np.testing.assert_allclose(gains.score, with_memory - without, atol=1e-3)
    assert gains.low.iloc[0] <= gains.score.mean() <= gains.high.iloc[0]
    assert gains.low.iloc[0] < gains.high.iloc[0]
    clean = pd.DataFrame(conditions.rows(memory, conditions.Gaussian(level=0.0), model="m"))
    of_data = ["constant", "capacity_snr_db"]  # once, and not under noise
    assert clean.metric[clean.metric.isin(of_data)].tolist() == of_data
    assert not parts[1].metric.isin(of_data).any()


def test_the_interval_of_a_gain_is_over_rows_of_the_mean_over_seeds():
    draw, labels = np.random.default_rng(0), np.tile([0, 1], 200)
    right = np.eye(2)[labels]
    # Seeds err on opposite halves of the rows: each loses 50 points, their mean on every row.
    halves = np.arange(400) < 200
    ours = np.stack([right, right])
    theirs = np.stack([np.where(half[:, None], right, 1 - right) for half in (halves, ~halves)])
    of = {"labels": labels, "snr_db": draw.normal(size=2), "num_steps": np.zeros(2)}
    both = (conditions.CellPredictions(logits=logits, **of) for logits in (ours, theirs))
    gains, low, high = conditions.with_interval(("accuracy",), *both)
    assert gains == [50, 50] and low == high == 50


def test_a_spec_is_what_training_depends_on(flags, cell):
    spec = cell.spec
    for name, value in {"seeds": (1, 2), "epochs": 3, "learning_rate": 1e-4}.items():
        assert replace(spec, **{name: value}).id != spec.id
    # Rows to test on are no part of it.
    fewer = cell.data._replace(test=cell.data.train)
    assert cells.digest(fewer) == spec.data
    assert cells.digest(cell.data._replace(train=cell.data.test)) != spec.data
    assert runner.spec_of(flags, trial(), cell.data) == spec
    halved = replace(flags, training=replace(flags.training, precision="bfloat16"))
    assert runner.spec_of(halved, trial(), cell.data).model["precision"] == "bfloat16"


def test_training_that_breaks_off_resumes_to_the_same_bits(cell, tmp_path, monkeypatch):
    flags, fit = config(tmp_path), cells.fit

    def broken(*args, score, **options):
        calls = itertools.count()

        def flaky(*outputs):
            if next(calls) >= 3:  # in the second epoch, with a checkpoint of the first
                raise OSError("no space left")
            return score(*outputs)

        return fit(*args, score=flaky, **options)

    monkeypatch.setattr(cells, "fit", broken)
    with pytest.raises(OSError, match="no space"):
        runner.open_cell(flags, trial(), cell.data)
    left = [path.name for path in (tmp_path / "cells").iterdir()]
    assert left == [f"{cell.spec.id}.partial"]
    monkeypatch.setattr(cells, "fit", fit)
    with monkeypatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.raises(ValueError, match=r"another configuration.*\n.*device: cpu → gpu"):
            runner.open_cell(flags, trial(), cell.data)
    resumed = runner.open_cell(flags, trial(), cell.data)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, cell.params)


def test_a_second_process_trains_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "usable_cores", lambda: 2)
    models = ("tinybert-mean", "tinybert")
    flags = replace(config(tmp_path), budget="laptop", model=models, denoiser=("none",))
    jobs = runner.jobs(flags, [trial(each) for each in models])
    with runner.start_workers(flags, jobs, tmp_path) as workers:
        while not (workers.poll() or workers.tables):
            time.sleep(0.05)
        assert not workers.has(1)
    assert {*workers.tables} == {1} and (tmp_path / "cells" / jobs[1].cell).is_dir()
    data = runner.load(flags, "sentiment")
    here = runner.open_cell(replace(flags, runs=str(tmp_path / "here")), trial(), data)
    monkeypatch.setattr(cells, "fit", lambda *_, **__: pytest.fail("trained again"))
    again = runner.open_cell(flags, trial(), data)
    jax.tree.map(np.testing.assert_array_equal, again.params, here.params)


def test_another_process_keeps_a_cell(cell, tmp_path):
    flags = config(tmp_path)
    locked = rundir.locked(tmp_path / "cells" / f"{cell.spec.id}.partial")
    with locked, pytest.raises(BlockingIOError, match="is in use by process"):
        runner.open_cell(flags, trial(), cell.data)


def test_padded_lengths_are_those_of_the_training_rows(cell):
    data = cell.data
    rows = cells.buckets(data, 128, data.train, data.validation, data.test)
    longest = max(data.train.lengths.max(), data.validation.lengths.max())
    assert 0 <= rows[0][0].ids.shape[-1] - longest < 4
    long = Encoded(np.ones((1, 1, 60), int), np.array([[60]]), np.zeros(1, int), np.zeros(1, int))
    train, test = cells.buckets(data._replace(test=long), 128, data.train, long)
    np.testing.assert_array_equal(train[0].ids, rows[0][0].ids)
    assert [bucket.ids.shape[-1] for bucket in test] == [128]
    # Models that store padding read texts of one length.
    for name, one_length in (("robertha", False), ("robertha-released", True)):
        spec = replace(cell.spec, model=variant(name).settings())
        assert spec.stores_padding == one_length
    (train,) = cells.buckets(data, 128, data.train, one_length=True)
    assert train[0].ids.shape[-1] == 128


def test_a_condition_is_predicted_and_scored_by_seed(cell):
    noise = conditions.Gaussian(site="token", protocol="matched", level=1.0)
    predicted = conditions.predictions(cell, noise)
    # Seeds meet noise of their own, of the same strength.
    assert len(set(np.round(predicted.snr_db, 6))) == 3
    np.testing.assert_allclose(predicted.snr_db, 0, atol=0.2)
    rows = pd.DataFrame(conditions.rows(cell, noise, model="tinybert"))
    rows = rows[rows.metric == "score"].set_index("seed")
    for seed, logits in zip((1, 2, 3), predicted.logits, strict=True):
        wanted = scores(("accuracy",), logits, predicted.labels)["score"]
        assert (rows.score[seed], rows.num_examples[seed]) == (pytest.approx(wanted), 40)
    own = cell._replace(data=cell.data._replace(spec=replace(cell.data.spec, suite="own")))
    f1 = [row["score"] for row in conditions.rows(own, noise, model="a") if row["metric"] == "f1"]
    chosen, labels = predicted.logits.argmax(-1), predicted.labels
    expected = 2 * (chosen & labels).sum(-1) / (chosen.sum(-1) + labels.sum())
    np.testing.assert_allclose(f1, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("metrics", "labels", "outputs", "best"),
    [
        (("accuracy",), [0, 1, 1, 1], 2, 75.0),
        (("f1", "accuracy"), [0, 1, 1, 1], 2, 50 * (0.75 + 6 / 7)),
        (("mcc",), [0, 1, 1, 1], 2, 50.0),
        (("pearson", "spearman"), [0.0, 1.0, 2.5], 1, 50.0),
    ],
)
def test_the_best_constant_prediction(metrics, labels, outputs, best):
    assert conditions.constant_score(metrics, np.array(labels), outputs) == pytest.approx(best)


def test_random_typos_are_the_same_for_all_models(cell):
    typos = conditions.Typos(corruption="misspelling", rate=0.5, num_texts=8)
    predicted = conditions.predictions(cell, typos)
    assert predicted.logits.shape == (3, 8, 2), "all seeds"
    assert len(set(predicted.words_changed)) == 1 and predicted.words_changed[0] > 0.3
    edits = [json.loads(str(each)) for each in predicted.edits]
    assert edits[0] == edits[1] and any(edits[0])


def test_sets_that_do_not_fit_are_named(tmp_path):
    sentences = {"sst2": [{"sentence": "good", "label": 1, "idx": 0}]}
    (tmp_path / "advglue").mkdir()
    (tmp_path / "advglue" / "dev.json").write_text(json.dumps(sentences))
    sets = partial(conditions.evaluation_sets, data_dir=str(tmp_path), num_rows=None)
    assert [each.name for each in sets("sst2", names=None)] == ["", "adv-sst2"]
    with pytest.raises(ValueError, match="no evaluation set for cola"):
        sets("cola", names=None)
    with pytest.raises(FileNotFoundError):
        sets("qqp", names=("paws",))


def test_a_run_gathers_every_row_once(flags, monkeypatch):
    noise = {"levels": (1.0,), "sites": ("token",), "protocols": ("sigma",), "noise_draws": 2}
    both = trial(tests=conditions.gaussian_grid(**noise), denoisers=("none", "memory"))
    folder = fill(flags, both)
    frame = tidy.read(folder)
    assert not frame.duplicated([*tidy.CELL, "seed", "draw", "metric"]).any()
    counts = frame[frame.metric == "score"].groupby("denoiser").size().to_dict()
    assert counts == {"none": 3 * (1 + 2), "memory": 3 * (1 + 2)}
    assert (folder / "report.html").exists() and (folder / "scores.png").exists()
    assert "1 of 1 models trained" in command_line.earlier(folder.parents[1])
    before = (folder / "results.csv").read_bytes()
    monkeypatch.setattr(cells, "fit", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(conditions, "predict", lambda *_, **__: pytest.fail("predicted again"))
    assert fill(flags, both) == folder
    assert (folder / "results.csv").read_bytes() == before


def test_repeating_a_finished_run_loses_no_rows_and_sees_damage(flags, cell, monkeypatch):
    again = partial(fill, flags, trial(), trial(), page=lambda _: report.Page(title="a"))
    path = again() / "results.csv"
    before, rows, calls = path.read_bytes(), conditions.rows, iter([cell])
    with monkeypatch.context() as killed:  # in the second job
        killed.setattr(conditions, "rows", lambda *a, **model: next(calls) and rows(*a, **model))
        with pytest.raises(StopIteration):
            again()
    assert path.read_bytes() == before
    path.write_bytes(before[: before.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(ValueError, match="differs from its checksum: repeat the run's command"):
        tidy.read(path.parent)
    for stored in cell.folder.glob("predictions/*.npz"):
        stored.write_bytes(stored.read_bytes()[:-30])
    with pytest.warns(UserWarning, match=r"predictions/gaussian-\w+\.npz is damaged .*computing"):
        again()
    assert path.read_bytes() == before and len(tidy.read(path.parent)) == before.count(b"\n") - 1


def test_a_wrong_option_fails_before_anything_is_trained(tmp_path):
    wrong = trial()._replace(variant=with_flags(variant("robertha"), beta=-1.0))
    with pytest.raises(ValueError, match="beta"):
        fill(config(tmp_path), wrong)
    assert not list(tmp_path.iterdir())


def test_files_with_named_columns_are_a_task(tmp_path):
    for name, count in (("films", 60), ("dev", 8)):
        lines = [f"{('dull', 'fine')[row % 2]} film {row},{row % 2 + 3}" for row in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["review,stars", *lines]))
    files = {"train": str(tmp_path / "films.csv"), "dev": str(tmp_path / "dev.csv")}
    own = Data(**files, text="review", label="stars", vocab_size=60)
    flags = resolved(replace(config(tmp_path / "runs", seeds=(1, 2), epochs=1), data=own))
    (name,) = flags.data.task
    data = runner.load(flags, name)
    assert data.spec.labels == ("3", "4") and data.test.labels.tolist() == [0, 1] * 4
    assert len(data.train.labels) == 54  # fewer than the 128 of a smoke run
    films = runner.Trial(name, "tinybert", variant("tinybert"), CLEAN)
    frame = tidy.read(fill(flags, films, page=lambda _: report.Page(title="a")))
    assert set(frame.task) == {"films"} and set(frame.num_examples) == {8}
    with pytest.raises(ValueError, match=r"--train \(films\) can be tested under Gaussian noise"):
        runner.check([films._replace(conditions=[conditions.Typos()])], {name: data})
    loud = films._replace(model="pretrained-loud", variant=replace(films.variant, loud=True))
    three = data._replace(spec=replace(data.spec, labels=("3", "4", "5")))
    with pytest.raises(ValueError, match="pretrained-loud requires a task with two classes, got"):
        runner.check([loud], {name: three})


def test_a_run_predicts_labels_of_texts(flags, cell, capsys, monkeypatch):
    monkeypatch.setattr(cells, "fit", lambda *_, **__: pytest.fail("trained again"))
    two = replace(flags, model=("tinybert", "robertha"))
    path = str(rundir.open_run("robustness", two))
    texts, words = ["a wonderful film", "the story drags"], ["--run", path, "--model", "tinybert"]
    assert command_line.main(["predict", *words, *texts]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    models = predict.load(predict.Config(run=path, texts=tuple(texts), model="tinybert"))
    answers = [model.predict(texts).probabilities[0] for model in models.values()]
    best, labels = np.mean(answers, axis=0).argmax(), cell.data.spec.labels
    numbers = [of([each[best] for each in answers]) for of in (np.mean, min, max)]
    numbers = "{:.3f} [{:.3f}, {:.3f}]".format(*numbers)
    assert (lines[0], lines[1], lines[3]) == (texts[0], f"  {numbers} {labels[best]}", texts[1])
    params = jax.tree.map(lambda leaf: leaf[0], cell.params)
    first = Classifier(cell.model, params, cell.data.vocabulary, labels).predict(texts)
    save = ["predict", *words, "--save", str(Path(path).parent / "saved")]
    assert command_line.main(save) == 0
    assert command_line.main(save) == 1 and "saved exists" in capsys.readouterr().err
    for model in (models[1], Classifier.load(Path(path).parent / "saved" / "1")):
        np.testing.assert_array_equal(model.predict(texts).probabilities, first.probabilities)
    memory = predict.Config(run=path, texts=tuple(texts), model="tinybert", memory=True)
    assert len(predict.load(memory)[1].predict(texts).labels) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "robertha"], "robertha is not trained on sentiment: there is no "),
        (["--model", "bert"], "unknown --model 'bert': did you mean "),
        (["--model", "tinybert", "--pair", "b"], "sentiment is on single texts: leave out --pair"),
        (["--model", "tinybert", "--pair", "b", "c"], "--pair must have 1 texts, got 2"),
        ([], "--model is required: the run has tinybert, robertha"),
        (["--run", "nowhere"], "--run must be the folder of a run, got nowhere"),
    ],
)
def test_predictions_of_what_a_run_lacks_are_errors(flags, cell, capsys, words, message):
    path = rundir.open_run("robustness", replace(flags, model=("tinybert", "robertha")))
    assert command_line.main(["predict", "a", "--run", str(path), *words]) == 1
    assert message in capsys.readouterr().err
    other = str(rundir.open_run("theory", {"runs": flags.runs}))
    assert command_line.main(["predict", "a", "--run", other]) == 1
    assert "of an experiment that trains encoders, got theory" in capsys.readouterr().err


def test_an_evaluation_set_has_the_labels_of_its_task(tmp_path):
    path, rows = tmp_path / "labeled_final" / "test.tsv", "1\ta\tb\t1\n2\ta\tc\t0\n"
    path.parent.mkdir()
    path.write_text("id\tsentence1\tsentence2\tlabel\n" + rows)
    paws = conditions.EvaluationSet(name="paws", data_dir=str(tmp_path))
    cell = SimpleNamespace(data=SimpleNamespace(spec=replace(task("mrpc"), labels=("1", "0"))))
    assert paws.columns(cell)["task"] == "paws:mrpc"
    assert [row.label for row in paws.rows(cell)] == [0, 1]
    assert len(replace(paws, num_rows=1).rows(cell)) == 1


def test_capacity_leaves_out_padding():
    test = SimpleNamespace(ids=np.array([[[1, 2, 0, 0]]]), lengths=np.array([[2]]))
    memory, tokens = {"log_prior": np.log([[0.5, 0.25, 0.25]])}, {"embedding": np.zeros((1, 3, 8))}
    params = {"memory": memory, "tokens": tokens}
    cell = SimpleNamespace(data=SimpleNamespace(test=test), params=params)
    expected = 10 * np.log10(2 ** (2 * 2 / 8) - 1)  # two bits a token
    np.testing.assert_allclose(cells.capacity(cell), expected, rtol=1e-5)


def test_a_search_scores_every_rate_on_the_rows_that_training_selects_on(tmp_path):
    flags = config(tmp_path)
    few = {"data": flags.data, "training": flags.training, "learning_rates": (1e-5, 3e-2)}
    folder = suites.LearningRates(runs=flags.runs, model=("tinybert",), **few).run()
    frame = tidy.read(folder)
    stored = {}
    for cell in (tmp_path / "cells").iterdir():
        lines = map(json.loads, (cell / "metrics.jsonl").read_text().splitlines())
        rate = json.loads((cell / "config.json").read_text())["learning_rate"]
        stored[rate] = [line["best"] for line in lines if "best" in line][-1]
    scored = frame[frame.metric == "score"].groupby("model").score.apply(list)
    names = {1e-5: "tinybert-rate-1e-5", 3e-2: "tinybert-rate-3e-2"}
    for rate, name in names.items():
        np.testing.assert_allclose(scored[name], stored[rate], atol=1e-5)


def test_the_demo_scores_noise_without_and_with_memory(tmp_path):
    flags, default = config(tmp_path, epochs=1), Demo(runs=str(tmp_path))
    noise = replace(default.noise, levels=(0.5, 4.0))
    demo = replace(default, data=flags.data, training=flags.training, noise=noise)
    folder = demo.run()
    measured = tidy.scores(tidy.read(folder))
    measured = measured[measured.level > 0]
    conditions = {(row.denoiser, round(row.snr_db)) for row in measured.itertuples()}
    assert conditions == {(name, snr_db) for name in ("none", "memory") for snr_db in (6, -12)}
    assert {path.name for path in folder.iterdir()} >= {"results.csv", "demo.png", "report.html"}
    assert [row[0] for row in demo.page(folder).tables[0].rows] == ["+6 dB", "−12 dB"]
