"""Spectra, steps and recovery against direct computations, and claims on made-up scores."""

from functools import partial
from itertools import product

import numpy as np
import oracles
import pandas as pd
import pytest

from experiments import cells, conditions, runner, tidy
from experiments.models import variant
from experiments.robertha import convergence, spectra
from experiments.runner import Trial
from experiments.settings import Data, Noise, Training, resolved

NOISY = conditions.Gaussian(site="token", protocol="matched", level=1.0)
FEW = Noise(levels=(2.0,), sites=("embedding", "token"), protocols=("sigma", "matched"))


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    return {
        "budget": "smoke",
        "runs": str(tmp_path_factory.mktemp("runs")),
        "data": Data(task=("sentiment",), train_size=64, test_size=12, vocab_size=200),
        "training": Training(seeds=(1, 2, 3), epochs=1, width=16),
        "model": ("robertha",),
    }


@pytest.fixture(scope="module")
def cell(flags):
    config = resolved(convergence.Convergence(**flags))
    trial = Trial("sentiment", "robertha", variant("robertha"), ())
    return runner.open_cell(config, trial, runner.load(config, "sentiment"))


def real_keys(cell, seed):
    """Keys, steps and convergence of every text of the first layer, without padding."""
    params = cells.jax.tree.map(lambda leaf: leaf[seed], cell.params)
    ids, lengths = cell.data.test.ids[:, 0], cell.data.test.lengths
    mask = np.arange(ids.shape[1]) < lengths
    encoding = cell.model.apply(params, ids, mask).encoding
    parts = (encoding.keys, *(x.swapaxes(2, 3) for x in (encoding.num_steps, encoding.converged)))
    return [
        [np.asarray(part)[0, row, :length] for part in parts]
        for row, length in enumerate(lengths[:, 0])
    ]


def test_spectra_and_counts_are_those_of_each_text(flags, cell):
    rows = {
        (row["metric"], row["seed"]): row["score"]
        for suite in (spectra.Spectra(**flags), convergence.Convergence(**flags))
        for row in suite.rows(cell, conditions.Gaussian(), model="robertha")
    }
    for seed, number in enumerate(cell.spec.seeds):
        texts = real_keys(cell, seed)
        for name in ("effective rank", "entropy", "Gini"):
            measure = getattr(
                oracles, name.lower().replace(" ", "_").replace("entropy", "eigen_entropy")
            )
            expected = np.mean([measure(keys) for keys, *_ in texts])
            assert rows[name, number] == pytest.approx(expected, rel=1e-3)
        distance = np.mean([abs(oracles.eigen_entropy(keys) - 0.35) for keys, *_ in texts])
        assert rows["distance from α", number] == pytest.approx(distance, rel=1e-3)
        counts, converged = (np.concatenate([text[at] for text in texts]) for at in (1, 2))
        measured = [rows[name, number] for name in convergence.METRICS]
        ends = counts.mean(), counts.std(), counts.min(), counts.max()
        expected = *ends, 100 * (~converged).mean(), 2 * counts.mean(), counts.size
        np.testing.assert_allclose(measured, expected, rtol=1e-2)


def test_recovery_is_the_distance_of_the_retrieved_state(cell):
    def inputs(run, clean, noisy):
        return [each.embeddings for each in (clean, noisy)]

    (values,), ((clean, noisy),) = (
        NOISY.collect(cell, fn) for fn in (convergence.recovery, inputs)
    )
    block = cells.jax.tree.map(lambda leaf: leaf[0], cell.params["blocks"][0])
    row, length = 3, int(values["real"][0, 3].sum())

    def project(x, name):
        centered = x - x.mean(-1, keepdims=True)
        normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        normed = normed * block["attention_norm"]["scale"] + block["attention_norm"]["bias"]
        layer = block["attention"][name]
        return np.asarray(normed @ layer["kernel"] + layer["bias"]).reshape(length, 2, -1)

    clean, noisy = (x[0, row, :length].astype(np.float64) for x in (clean, noisy))
    query, moved, keys = project(clean, "query"), project(noisy, "query"), project(noisy, "key")
    state = [
        [
            oracles.retrieve(q, keys[:, h], 15 / keys.shape[-1] ** 0.5)[0]
            for h, q in enumerate(token)
        ]
        for token in moved
    ]
    left = np.linalg.norm((state - query).reshape(length, -1), axis=1)
    left /= np.linalg.norm((moved - query).reshape(length, -1), axis=1)
    measured = values["distance left, converged"][0, row, :length]
    np.testing.assert_allclose(measured, left, rtol=1e-2)


def test_groups_have_equal_numbers_in_each_text():
    rng = np.random.default_rng(0)
    norm = rng.permutation(17).astype(float)
    text = np.repeat([0, 1], [9, 8])
    table = pd.DataFrame({"text": text, "norm": norm, "SNR": norm, "steps": -norm})
    table = table.assign(**dict.fromkeys(convergence.DISTANCES, 1.0))
    values = convergence.recovered(table)
    low, high = (
        [*np.sort(norm[:9])[part], *np.sort(norm[9:])[part]] for part in (slice(2), slice(-2, None))
    )
    assert values["steps, low norm"] == -np.mean(low)
    assert values["steps, high norm"] == -np.mean(high)
    assert values["steps by norm"] == pytest.approx(-1)
    with pytest.raises(ValueError, match="at least 4 tokens, without special ones, got 3"):
        convergence.recovered(table[:3])


def made_up(models, rank, score, seeds=(1, 2, 3)):
    """Results of models whose effective rank and score are functions of model, seed and level."""
    shared = {"task": "sst2", "denoiser": "none", "num_examples": 1000}
    rows = [
        {**shared, "model": models[0], "seed": 1, "metric": "constant", "score": 50.0, "level": 0}
    ]
    for model, seed, level in product(models, seeds, (0.0, 0.5, 1.0, 2.0)):
        at = {"model": model, "seed": seed, "level": level, "corruption": "gaussian"}
        at |= {"site": "embedding", "protocol": "sigma"}
        values = {"effective rank": rank(model, seed, level), "score": score(model, seed, level)}
        rows += [{**shared, **at, "metric": name, "score": v} for name, v in values.items()]
    frame = pd.DataFrame(rows).fillna({"corruption": "none", "site": "", "protocol": ""})
    frame.loc[frame.level == 0, tidy.CONDITION] = ["none", "", "", 0.0]
    return frame


def test_a_correlation_over_levels_of_unrelated_models_is_vacuous():
    rng = np.random.default_rng(0)
    frame = made_up(
        ["tinybert", "robertha", "universal", "freelb"],
        lambda model, seed, level: 6 + 4 * level + rng.normal(),
        lambda model, seed, level: 90 - 3 * level + 0.3 * rng.normal(),
    )
    claims = spectra.claims(frame).set_index("claim")
    assert claims.verdict["pearson over σ"] == "vacuous"
    assert claims["mean"]["pearson over σ, drop of other models"] > 0.9
    assert claims.verdict["pearson over models, same σ"] in ("no difference", "too weak to tell")
    ((_, _, ranks, drops),) = spectra.noise_tables(frame)
    with pytest.raises(ValueError, match="at least 4, got 3"):
        spectra.over_models(ranks[:, :3], drops[:, :3], "kendall")


def test_a_correlation_over_models_is_that_of_their_points():
    offset = {"tinybert": 0.0, "robertha": 1.0, "universal": 2.0, "freelb": 3.0, "pgd": 4.0}
    frame = made_up(
        [*offset],
        lambda model, seed, level: offset[model] + 0.1 * seed + level,
        lambda model, seed, level: 90 - level * (1 + offset[model] + 0.1 * seed),
    )
    claims = spectra.claims(frame).set_index("claim").loc["kendall over models, same σ"]
    assert claims["mean"] == pytest.approx(1) and claims.verdict == "holds"


def test_other_steps_keep_the_weights_and_the_trained_number_the_bits(cell):
    same, fewer = (conditions.predictions(cells.with_steps(cell, n), NOISY) for n in (50, 0))
    trained = conditions.predictions(cell, NOISY)
    assert same.logits.tobytes() == trained.logits.tobytes()
    assert np.array_equal(same.num_steps, trained.num_steps) and not fewer.num_steps.any()
    assert not np.array_equal(fewer.logits, trained.logits)


@pytest.mark.parametrize("suite", [convergence.Convergence, convergence.Steps])
@pytest.mark.parametrize(
    "model", ["tinybert", "robertha-no-iteration-no-esr", "robertha-algorithm"]
)
def test_a_model_without_own_iterations_is_refused_before_training(flags, suite, model):
    with pytest.raises(ValueError, match=f"whose queries iterate alone, got {model}"):
        suite(**{**flags, "model": (model,)}).run()


@pytest.mark.parametrize(
    "suite",
    [spectra.Spectra, convergence.Convergence, partial(convergence.Steps, steps=(0, 1))],
    ids=["spectra", "convergence", "steps"],
)
def test_a_suite_writes_its_page_and_claims(flags, cell, suite):
    folder = suite(**flags, noise=FEW).run()
    assert {*tidy.read(folder).model} == {"robertha"}
    assert "comparisons" in (folder / "report.html").read_text()
