"""Vulnerability of tokens by norm: groups, flips, verdicts and the page."""

from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest

from experiments import cells, report, runner, tidy
from experiments.robertha import norms
from experiments.settings import Data, Training
from hopfax.train.state import seed_keys


def untrained(predictor, *_, seeds, **__):
    return SimpleNamespace(steps=1, params=jax.vmap(predictor.model.init)(seed_keys(seeds)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data = Data(task=("sentiment",), train_size=64, test_size=40, vocab_size=200)
    sizes = Training(seeds=(1, 2, 3), width=16)
    runs = str(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "fit", untrained)
        patch.setattr(norms, "TESTS", norms.TESTS[3:5])
        return norms.run(norms.Config(budget="smoke", runs=runs, data=data, training=sizes))


@pytest.fixture(scope="module")
def cell(folder):
    return runner.open_trained(folder, model=None, task=None)[0]


def test_a_run_measures_every_group_and_has_a_page(folder):
    frame = tidy.read(folder)
    hit = frame[frame.metric == "words hit"].pivot_table(
        "score", ["protocol", "seed"], "corruption"
    )
    np.testing.assert_allclose(hit["low norm"], hit["random"])
    assert set(norms.claims(frame).verdict) == {"not learned"}
    page = norms.page(folder)
    assert [*page.pictures] == ["flips", "norms"] and all(table.rows for table in page.tables)
    assert (folder / "flips.png").exists()


@pytest.mark.parametrize("tests", [norms.TESTS[0], norms.TESTS[-1]])
def test_groups_are_the_words_with_the_lowest_and_highest_norms(cell, tests):
    low, high, random = (each.chosen(cell)[:, :, 0] for each in tests)
    table = np.linalg.norm(cell.params["tokens"]["embedding"], axis=-1)
    ids, lengths = cell.data.train.ids[:, 0], cell.data.train.lengths
    known = np.unique(np.concatenate([row[1 : n - 1] for row, (n,) in zip(ids, lengths)]))  # noqa: B905
    cuts = np.quantile(table[:, known], [0.011, 1 - 0.287], axis=1)
    for seed, row in np.ndindex(low.shape[:2]):
        length = cell.data.test.lengths[row, 0]
        words = table[seed][cell.data.test.ids[row, 0, 1 : length - 1]]
        order, count = np.sort(words), max(round(0.25 * len(words)), 1)
        expected = order[:count], order[-count:]
        if tests[0].protocol == "sigma":
            expected = order[order <= cuts[0, seed]], order[order >= cuts[1, seed]]
        for chosen, norms_of_group in zip((low, high), expected, strict=True):
            np.testing.assert_array_equal(
                np.sort(words[chosen[seed, row, 1 : length - 1]]), norms_of_group
            )
            assert chosen[seed, row].sum() == len(norms_of_group)
        assert random[seed, row].sum() == len(expected[0])


def test_a_group_without_tokens_is_refused(cell):
    table = np.ones((3, cell.data.vocabulary.size, 4))
    table[:, np.unique(cell.data.test.ids)] = 2
    empty = cell._replace(params={"tokens": {"embedding": table}})
    with pytest.raises(ValueError, match="sentiment must have tokens of low norm, got 40 rows"):
        norms.TESTS[0][0].chosen(empty)


def test_flips_count_predictions_that_were_right():
    clean = np.array([[True, True, True, True, False]])
    wrong = np.array([[[True, True, False, False, True]], [[True] + [False] * 4], [[False] * 5]])
    measured = norms.rates(clean, wrong)
    assert [float(each[0]) for each in measured.values()] == [50, 25, 0, 25, 50, np.log(2)]


def test_verdicts_compare_with_the_paper_and_few_flips_have_no_ratio(tmp_path):
    noisy = {"corruption": norms.GAP, "metric": "flips", "level": 2.0, "site": "token"}
    ratio = {"corruption": norms.RATIO, "protocol": "sigma", "low": 1.4, "high": 1.6}
    rows = [
        {"metric": "score", "score": 90.0},
        {"metric": "constant", "score": 50.0},
        {**noisy, "protocol": "sigma", "score": 8.0, "low": 7.0, "high": 9.0},
        {**noisy, "protocol": "per-token", "score": 0.0, "low": -1.0, "high": 1.0},
        {**noisy, **ratio, "score": 1.5},
    ]
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
