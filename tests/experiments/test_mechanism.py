"""Norms and spectra against direct computations, and claims on made-up scores."""

from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import oracles
import pandas as pd
import pytest

from experiments import cells, conditions, report, runner, tidy
from experiments.models import variant
from experiments.robertha import norms, spectra
from experiments.runner import Trial
from experiments.settings import Data, Noise, Training, resolved
from hopfax.train.state import seed_keys

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


def test_spectra_are_those_of_each_text(flags, cell):
    found = spectra.Spectra(**flags).rows(cell, conditions.Gaussian(), model="robertha")
    rows = {(row["metric"], row["seed"]): row["score"] for row in found}
    lengths = cell.data.test.lengths
    mask = np.arange(cell.data.test.ids.shape[-1]) < lengths
    for seed, number in enumerate(cell.spec.seeds):
        params = jax.tree.map(lambda leaf, seed=seed: leaf[seed], cell.params)
        encoding = cell.model.apply(params, cell.data.test.ids[:, 0], mask).encoding
        measures = oracles.effective_rank, oracles.eigen_entropy, oracles.gini
        keys = [np.asarray(encoding.keys[0, row, :n]) for row, n in enumerate(lengths[:, 0])]
        values = np.array([[measure(each) for measure in measures] for each in keys])
        expected = *values.mean(0), np.abs(values[:, 1] - 0.35).mean()
        measured = [rows[each, number] for each in spectra.METRICS]
        np.testing.assert_allclose(measured, expected, rtol=1e-2)


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


def test_groups_without_tokens_are_refused(cell):
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
    ],
    ids=["norms", "spectra"],
)
def test_a_suite_writes_its_page_and_claims(flags, cell, run, monkeypatch):
    monkeypatch.setattr(norms, "TESTS", norms.TESTS[3:5])
    folder = run(flags)
    assert {*tidy.read(folder).model} == {"robertha"}
    assert "comparisons" in (folder / "report.html").read_text()
