"""Norms, spectra, steps and recovery against direct computations, and claims on made-up scores."""

from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import oracles
import pandas as pd
import pytest
from nn import slow

from experiments import cells, conditions, report, runner, tidy
from experiments.models import variant
from experiments.robertha import convergence, norms, spectra
from experiments.runner import Trial
from experiments.settings import Data, Noise, Training, resolved
from hopfax.train.state import seed_keys

NOISY = conditions.Gaussian(site="token", protocol="matched", level=1.0)
FEW = Noise(levels=(2.0,), sites=("embedding", "token"), protocols=("sigma", "matched"))


def untrained(predictor, *_, seeds, **__):
    return SimpleNamespace(steps=1, params=jax.vmap(predictor.model.init)(seed_keys(seeds)))


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Of small, untrained models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "fit", untrained)
        yield {
            "budget": "smoke",
            "runs": str(tmp_path_factory.mktemp("runs")),
            "data": Data(task=("sentiment",), train_size=64, test_size=12, vocab_size=200),
            "training": Training(seeds=(1, 2, 3), width=16),
            "model": ("robertha",),
        }


@pytest.fixture(scope="module")
def cell(flags):
    config = resolved(spectra.Spectra(**flags))
    trial = Trial("sentiment", "robertha", variant("robertha"), ())
    return runner.open_cell(config, trial, runner.load(config, "sentiment"))


@pytest.mark.parametrize("tests", [norms.TESTS[0], norms.TESTS[-1]])
def test_groups_are_the_words_with_the_lowest_and_highest_norms(cell, tests):
    low, high, random = (each.selection(cell)[:, :, 0] for each in tests)
    table = np.linalg.norm(cell.params["tokens"]["embedding"], axis=-1)
    rows = zip(cell.data.train.ids[:, 0], cell.data.train.lengths[:, 0], strict=True)
    known = np.unique(np.concatenate([row[1 : length - 1] for row, length in rows]))
    cuts = np.quantile(table[:, known], [0.011, 1 - 0.287], axis=1)
    for seed, row in np.ndindex(low.shape[:2]):
        place = slice(1, cell.data.test.lengths[row, 0] - 1)
        words = table[seed][cell.data.test.ids[row, 0, place]]
        order, count = np.sort(words), max(round(0.25 * len(words)), 1)
        expected = order[:count], order[-count:]
        if tests[0].protocol == "sigma":
            expected = order[order <= cuts[0, seed]], order[order >= cuts[1, seed]]
        for chosen, of_group in zip((low, high), expected, strict=True):
            np.testing.assert_array_equal(np.sort(words[chosen[seed, row, place]]), of_group)
            assert chosen[seed, row].sum() == len(of_group)
        assert random[seed, row].sum() == len(expected[0])


def test_flips_count_predictions_that_were_right():
    clean = np.array([[True, True, True, True, False]])
    wrong = np.array([[[True, True, False, False, True]], [[True] + [False] * 4], [[False] * 5]])
    measured = norms.rates(clean, wrong)
    assert [float(each[0]) for each in measured.values()] == [50, 25, 0, 25, 50, np.log(2)]


def test_verdicts_compare_with_the_paper_and_few_flips_have_no_ratio(tmp_path):
    noisy = {"corruption": norms.GAP, "metric": "flips", "level": 2.0, "protocol": "sigma"}
    fair = {"protocol": "per-token", "score": 0.0, "low": -1.0, "high": 1.0}
    ratio = {"corruption": norms.RATIO, "score": 1.5, "low": 1.4, "high": 1.6}
    rows = [{"metric": "score", "score": 90.0}, {"metric": "constant", "score": 50.0}]
    rows += [{**noisy, "score": 8.0, "low": 7.0, "high": 9.0}, noisy | fair, noisy | ratio]
    models = {"tinybert": rows, "pretrained": rows, "robertha": rows[:-1]}
    clean = {"task": "sst2", "corruption": "none", "level": 0.0, "num_examples": 900}
    report.write_results(tmp_path, pd.DataFrame([
        {**clean, "model": model, "seed": seed, **row, "score": row["score"] + 0.01 * seed}
        for model, each in models.items() for row in each for seed in range(3)
    ]))  # fmt: skip
    found = norms.claims(tidy.read(tmp_path)).groupby("claim", sort=False)
    assert found.verdict.agg(list).to_dict() == {
        "low - high, same σ": ["holds"] * 3,
        "low - high, same SNR per token": ["no difference"] * 3,
        "low / high, same σ": ["holds", "holds", "undefined"],
        "TinyBERT / encoder": ["too weak to tell"],
    }
    assert found["mean"].first().iloc[2:].round(2).tolist() == [4.53, 1.0]


def test_spectra_and_counts_are_those_of_each_text(flags, cell):
    rows = {
        (row["metric"], row["seed"]): row["score"]
        for suite in (spectra.Spectra(**flags), convergence.Convergence(**flags))
        for row in suite.rows(cell, conditions.Gaussian(), model="robertha")
    }
    lengths = cell.data.test.lengths
    mask = np.arange(cell.data.test.ids.shape[-1]) < lengths
    for seed, number in enumerate(cell.spec.seeds):
        params = jax.tree.map(lambda leaf, seed=seed: leaf[seed], cell.params)
        encoding = cell.model.apply(params, cell.data.test.ids[:, 0], mask).encoding
        measures = oracles.effective_rank, oracles.eigen_entropy, oracles.gini
        keys = [np.asarray(encoding.keys[0, row, :n]) for row, n in enumerate(lengths[:, 0])]
        values = np.array([[measure(each) for measure in measures] for each in keys])
        counts, converged = (
            np.asarray(x)[0].swapaxes(1, 2)[mask] for x in (encoding.num_steps, encoding.converged)
        )
        counted = counts.mean(), counts.std(), counts.min(), counts.max(), 100 * (~converged).mean()
        expected = *values.mean(0), np.abs(values[:, 1] - 0.35).mean(), *counted
        measured = [rows[each, number] for each in (*spectra.METRICS, *convergence.METRICS)]
        np.testing.assert_allclose(measured, expected, rtol=1e-2)


def test_recovery_is_the_distance_of_the_retrieved_state(cell):
    inputs = lambda run, clean, noisy: [clean.embeddings, noisy.embeddings]  # noqa: E731
    (values,), (texts,) = (NOISY.collect(cell, fn) for fn in (convergence.measure, inputs))
    block = jax.tree.map(lambda leaf: leaf[0], cell.params["blocks"][0])
    texts = [x[0, 3].astype(np.float64)[values["real"][0, 3]] for x in texts]
    clean, noisy = (slow.norm(block["attention_norm"], x) for x in texts)
    length = len(clean)
    query, moved, keys = (
        slow.project(block["attention"], name, x).reshape(length, 2, -1)
        for name, x in (("query", clean), ("query", noisy), ("key", noisy))
    )
    state, once, beta = np.empty_like(moved), np.empty_like(moved), 15 / keys.shape[-1] ** 0.5
    for place in np.ndindex(length, 2):
        state[place] = oracles.retrieve(moved[place], keys[:, place[1]], beta)[0]
        once[place] = oracles.update(moved[place], keys[:, place[1]], beta)
    size = lambda x: np.linalg.norm((x - query).reshape(length, -1), axis=1)  # noqa: E731
    left = [size(each) / size(moved) for each in (state, once, 0 * state + state.mean(0))]
    measured = [values[name][0, 3, :length] for name in convergence.LEFT]
    np.testing.assert_allclose(measured, left, rtol=1e-2)


def test_groups_have_equal_numbers_in_each_text():
    norm, places = np.random.default_rng(0).permutation(36).reshape(1, 2, 18) * 1.0, np.arange(18)
    values = dict.fromkeys(convergence.LEFT, norm) | {"steps of tokens": -norm, "SNR": -norm}
    values |= {"norm": norm, "id": 0 * norm + places, "real": places < [[[11], [10]]]}
    means = convergence.recovery([values], 9)
    words = norm[0, 0, [*range(1, 9), 10]], norm[0, 1, 1:9]
    low, high = (np.mean([np.sort(x)[part] for x in words]) for part in (slice(2), slice(-2, None)))
    assert means["steps of tokens, low norm"] == -low
    assert means["distance left, converged, high norm"] == high
    assert means["distance left, one update, low SNR"] == high
    with pytest.raises(ValueError, match="at least 4 ordinary tokens, got 3"):
        convergence.recovery([values | {"real": places < np.full((1, 2, 1), 4)}], 9)


def made_up(scores, **columns):
    """Rows of three seeds, at σ = 2 after the LayerNorm, by metric."""
    shared = {"task": "sst2", "model": "robertha", "denoiser": "none", "num_examples": 1000}
    shared |= {"site": "embedding", "protocol": "sigma", "level": 2.0, "corruption": "gaussian"}
    rows = [(metric, score, seed) for metric, score in scores.items() for seed in range(3)]
    frame = pd.DataFrame(rows, columns=["metric", "score", "seed"])
    return frame.assign(**shared, **columns, score=frame.score * (1 + 0.01 * frame.seed))


def test_recovery_that_the_mean_state_shares_is_vacuous():
    pairs = [*product(convergence.SIDES, ("norm", "SNR"))]
    scores = {f"{name}, low {by}": 1.0 for name, by in pairs} | {"steps": 9.0, "failures, %": 0.0}
    scores |= {f"{name}, high {by}": 2.0 for name, by in pairs}
    scores["distance left, mean state, low SNR"] = 3.0
    found = convergence.claims(made_up(scores)).set_index("claim").verdict
    assert found["distance left, one update, low - high norm, same σ"] == "vacuous"
    assert found["distance left, one update, low - high SNR, same σ"] == "holds"
    assert found["steps of tokens, low - high norm, same σ"] == "reversed"
    assert found["failures, %, σ 2"] == "holds"


@pytest.mark.parametrize(("score", "verdict"), [(75.0, "holds"), (51.0, "at baseline")])
def test_points_gained_below_the_baseline_do_not_count(score, verdict):
    parts = [made_up({"score": score, "constant": 50.0}, T=20), made_up({"score": 40.0}, T=0)]
    parts.append(made_up({"time added, %": 150.0}, T=20, low=149.0, high=151.0).iloc[:1])
    found = convergence.claims_of_steps(pd.concat(parts)).set_index("claim").verdict
    assert found.iloc[0] == verdict and found["T = 20: time added, %"] == "holds"


def test_correlations_over_models_are_of_points_and_those_over_levels_may_be_vacuous():
    shared = {"task": "sst2", "denoiser": "none", "num_examples": 1000, "corruption": "gaussian"}
    shared |= {"site": "embedding", "protocol": "sigma"}
    rows = [{**shared, "model": "tinybert", "seed": 1, "metric": "constant", "score": 50.0}]
    models = enumerate(["tinybert", "robertha", "universal", "freelb", "pgd"])
    for (place, model), seed, level in product(models, (1, 2, 3), (0.0, 0.5, 1.0, 2.0)):
        rank = place + 0.1 * seed + 4 * level
        for metric, score in (("effective rank", rank), ("score", 90 - level * (1 + rank))):
            at = {"model": model, "seed": seed, "level": level, "metric": metric}
            rows.append({**shared, **at, "score": score})
    frame = pd.DataFrame(rows).fillna({"level": 0.0})
    frame.loc[frame.level == 0, tidy.CONDITION] = ["none", "", "", 0.0]
    claims = spectra.claims(frame).set_index("claim")
    assert claims["mean"]["kendall over models, same σ"] == pytest.approx(1)
    assert claims.verdict["kendall over models, same σ"] == "holds"
    assert claims.verdict["pearson over σ"] == "vacuous"


def test_other_steps_keep_the_weights_and_the_trained_number_the_bits(cell):
    same, fewer = (conditions.predictions(cells.with_steps(cell, n), NOISY) for n in (50, 0))
    trained = conditions.predictions(cell, NOISY)
    assert same.logits.tobytes() == trained.logits.tobytes() != fewer.logits.tobytes()
    assert np.array_equal(same.num_steps, trained.num_steps) and not fewer.num_steps.any()


def test_wrong_models_and_groups_without_tokens_are_refused_before_training(flags, cell):
    for model in ("tinybert", "robertha-no-iteration-no-esr", "robertha-algorithm"):
        with pytest.raises(ValueError, match=f"that iterate each query, got {model}"):
            convergence.Steps(**{**flags, "model": (model,)}).run()
    table = np.ones((3, cell.data.vocabulary.size, 4))
    table[:, np.unique(cell.data.test.ids)] = 2
    empty = cell._replace(params={"tokens": {"embedding": table}})
    with pytest.raises(ValueError, match="must have tokens of low norm, got none in 12 rows"):
        norms.TESTS[0][0].selection(empty)


@pytest.mark.parametrize(
    "run",
    [
        lambda flags: norms.run(norms.Config(**flags)),
        lambda flags: spectra.Spectra(**flags, noise=FEW).run(),
        lambda flags: convergence.Convergence(**flags, noise=FEW).run(),
        lambda flags: convergence.Steps(**flags, noise=FEW, steps=(1,)).run(),
    ],
    ids=["norms", "spectra", "convergence", "steps"],
)
def test_a_suite_writes_its_page_and_claims(flags, cell, run, monkeypatch):
    monkeypatch.setattr(norms, "TESTS", norms.TESTS[3:5])
    folder = run(flags)
    assert {*tidy.read(folder).model} == {"robertha"}
    assert "comparisons" in (folder / "report.html").read_text()
