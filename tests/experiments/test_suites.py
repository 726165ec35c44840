"""Suites: what their flags mean, and the tables and figures of their pages."""

import itertools

import pandas as pd
import pytest

from experiments import gaussian, report, tidy
from experiments.models import variant
from experiments.robertha import contrasts
from experiments.robertha.contrasts import Contrast
from experiments.robertha.suites import SUITES

SHARED = {"task": "sst2", "corruption": "none", "level": 0.0, "site": "", "protocol": ""}


def write(folder, rows):
    table = pd.DataFrame(
        [{**SHARED, "metric": "score", "num_examples": 100, **row} for row in rows]
    )
    report.write_results(folder, table)


def test_a_change_is_paired_within_its_denoiser_site_and_seed(tmp_path):
    gains = {("none", "token"): 1.0, ("none", "embedding"): 2.0, ("memory", "token"): 4.0}
    noisy = {"corruption": "gaussian", "level": 0.5, "protocol": "matched"}
    baseline = {"model": "tinybert", "seed": 0, "metric": "constant", "score": 50.0}
    write(
        tmp_path,
        [
            baseline,
            *({"model": model, "denoiser": denoiser, "site": site, "seed": seed, **noisy,
             "score": 60 + 10 * seed + gain * (model == "robertha")}
            for (denoiser, site), gain in gains.items()
            for model, seed in itertools.product(("robertha", "tinybert"), range(3))),
        ],
    )  # fmt: skip
    pairs = [Contrast("all", "robertha", "tinybert")]
    found = contrasts.differences(tidy.scores(tidy.read(tmp_path)), pairs)
    means = found.groupby(["change", "site"]).score.agg(["mean", "size"])
    assert means["mean"].to_dict() == {
        ("all", "token"): 1.0, ("all", "embedding"): 2.0, ("all + memory", "token"): 4.0,
    }  # fmt: skip
    assert set(means["size"]) == {3}
    assert len(contrasts.page(tmp_path, pairs).tables[0].rows) == 3
    # Without a measured contrast, the page shows the models.
    assert "scores" in contrasts.page(tmp_path, [Contrast("none", "a", "b")]).pictures


def test_a_page_of_evaluation_sets_subtracts_the_majority_baseline(tmp_path):
    names = ("sst2", "adv-sst2:sst2")
    rows = [
        {"task": task, "model": model, "seed": seed, "score": 70.0 + seed}
        for task, model, seed in itertools.product(names, ("tinybert", "robertha"), range(3))
    ]
    rows += [{"task": task, "model": "tinybert", "seed": 0, "score": 60.0, "metric": "constant"}
             for task in names]  # fmt: skip
    write(tmp_path, rows)
    (picture,) = gaussian.page(tmp_path).pictures.values()
    axes = picture.figure.axes[0]
    assert {float(line.get_xdata()[0]) for line in axes.lines[1:]} == {11.0}
    (ends, *_) = axes.collections[0].get_segments()
    assert ends[1, 0] - ends[0, 0] > 2 * 1.96 * 4  # the error of an accuracy on 100 rows


def test_weights_and_targets_that_vary_together_have_a_figure(tmp_path):
    names = ["robertha", "robertha-esr-target-5", "robertha-esr-weight-1",
             "robertha-esr-weight-1-esr-target-5", "robertha-beta-5", "tinybert"]  # fmt: skip
    variants = {name: variant(name) for name in names}
    rows = [{"model": name, "seed": seed, "score": 70.0 + place}
            for place, name in enumerate(names) for seed in range(3)]  # fmt: skip
    write(tmp_path, [*rows, {**rows[0], "metric": "constant", "score": 50.0}])
    assert (
        len(contrasts.sweep(tmp_path, {each: variants[each] for each in names[:3]}).pictures) == 1
    )
    axes = contrasts.sweep(tmp_path, variants).pictures["grid"].figure.axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines[:4:2]] == [[70, 71], [72, 73]]


def test_averages_leave_out_noise_under_which_no_model_does_the_task(tmp_path):
    scores = pd.DataFrame(
        [
            {**SHARED, "model": model, "seed": seed, "level": level, "num_examples": 1000,
             "site": "token" if level else "", "protocol": "sigma" if level else "", "score": score}
            for level, score in ((0.0, 90.0), (0.5, 70.0), (2.0, 52.0))
            for model, seed in itertools.product(("tinybert", "robertha"), range(3))
        ]
    )  # fmt: skip
    kept = gaussian.informative(scores, {"sst2": 50.0})
    assert set(kept.level) == {0.0, 0.5}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tinybert-esr-weight-1", "λ requires a model with ESR"),
        ("tinybert-beta-5", "β requires Hopfield attention"),
        ("robertha-rate-0", "a learning rate must be > 0 and finite"),
    ],
)
def test_a_suffix_that_changes_nothing_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        variant(name)


def test_suffixes_add_up():
    both = variant("robertha-mini-rate-1e-4", beta=3.0, num_layers=9)
    assert both.fixed_rate == 1e-4 and both.options["beta"] == 3.0
    shape = [both.options[name] for name in ("num_layers", "width", "num_heads")]
    assert shape == [4, 256, 4]
    names = SUITES["learning-rates"](model=("pretrained",), learning_rates=(1e-4, 0.03, 1.5e-5))
    assert [*names.names()] == [f"pretrained-rate-{rate}" for rate in ("1e-4", "3e-2", "1.5e-05")]
