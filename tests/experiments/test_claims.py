"""What the claims compute from results, on made-up scores whose answer is known."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments import gaussian, report, scorecard, tidy
from experiments.memory import trained
from experiments.models import VARIANTS
from experiments.noise_stability import arms, encoder, grokking, training
from experiments.robertha import adversarial, attribution, fine_tuning, hyperparameters, robustness
from experiments.runs import Job

SEEDS = (1, 2, 3)


def made_up(score):
    """Scores of every model, place and level from `score(model, site, protocol, level)`."""
    places = itertools.product(("token", "embedding"), ("sigma", "matched"), (0.5, 2.0))
    conditions = [("none", "", "", 0.0), *(("gaussian", *place) for place in places)]
    models = sorted({*attribution.MODELS, "robertha", "tinybert"})
    rows = [
        ("sst2", model, *condition, seed, score(model, *condition[1:]) + 0.1 * seed, 900)
        for model, condition, seed in itertools.product(models, conditions, SEEDS)
    ]
    frame = pd.DataFrame(rows, columns=[*tidy.CELL, "seed", "score", "num_examples"])
    return frame.assign(snr_db=-20 * np.log10(frame.level.where(frame.level > 0)))


def site_matters(model, site, protocol, level):
    """Noise on the tokens at the same σ costs 30 points, Robertha has a lead of 2 under noise."""
    if not level:
        return 80.0
    lead = 2.0 if model == "robertha" else 0.0
    return (50.0 if (site, protocol) == ("token", "sigma") else 80.0 - level) + lead


def test_the_gap_is_taken_apart_by_site():
    table = gaussian.gap(made_up(site_matters)).set_index("comparison")
    assert table["mean"].round(6).to_dict() == {
        gaussian.ACROSS: 79.5 - 50 + 2,
        "both on the tokens, same σ": 2.0,
        "both after the LayerNorm": 2.0,
        "both on the tokens, same SNR": 2.0,
    }
    assert set(table.paper.round(1)) == {24.9}


def test_contrasts_are_means_over_levels_with_clean_first():
    table = gaussian.differences(made_up(site_matters), over=["level"])
    ours = table[table.model == "robertha"]
    assert ours.panel.iloc[0] == "clean"
    assert dict(zip(ours.panel, ours["mean"].round(6), strict=True))["clean"] == 0
    assert set(ours["mean"].round(6)) == {0.0, 2.0}
    # After the LayerNorm the two protocols are one measurement, shown once.
    assert len(ours) == 4


def test_fine_tuned_models_are_compared_with_the_first():
    scores = tidy.select(made_up(site_matters), model=["tinybert", "robertha"])
    scores.loc[scores.model == "robertha", "score"] += 0.1 * scores.seed  # seeds that differ
    scores = scores.replace({"model": {"tinybert": "pretrained", "robertha": "pretrained-esr"}})
    scores["model"] = pd.Categorical(scores.model, ["pretrained", "pretrained-esr"])
    ordered = scores.sort_values("model").astype({"model": str})
    titles = gaussian.titles(["sst2"])
    text = fine_tuning.answer(ordered, titles, {"sst2": 50.9})
    assert "**Higher scores**: ESR (+" in text
    elsewhere = ordered[ordered.site != "token"]  # the page then has the answer of robustness
    assert fine_tuning.answer(elsewhere, titles, {"sst2": 50.9}) == ""
    text = fine_tuning.answer(ordered, titles, {"sst2": 78.0})
    assert text == "**On SST-2, no verdict**: no model has learned the task."
    noisy = ordered.score.where(ordered.level == 0, 50.0)
    text = fine_tuning.answer(ordered.assign(score=noisy), titles, {"sst2": 60.0})
    assert text.startswith("**On SST-2, no verdict**: under noise, no model that learned it is")
    clean = (ordered.level == 0) & (ordered.model == "pretrained-esr")
    forgot = ordered.assign(score=ordered.score.mask(clean, 60.0))
    text = fine_tuning.answer(forgot, titles, {"sst2": 60.0})
    assert "**Not learned**: ESR." in text
    clean = ordered[ordered.level == 0].groupby("model").score.mean()
    table = fine_tuning.clean_scores(ordered, titles, {"sst2": 50.9})
    for row, (model, title) in zip(
        table.rows, [("pretrained", ""), ("pretrained-esr", " + ESR")], strict=True
    ):
        assert row[0] == f"SST-2, fine-tuned encoder{title}" and row[2] == "50.9"
        assert float(row[1].split()[0]) == pytest.approx(clean[model], abs=0.051)
    metrics = pd.DataFrame({
        "task": "mrpc", "model": "pretrained", "level": [0.0, 0.0, 0.0, 1.0],
        "metric": ["accuracy", "f1", "f1", "f1"], "score": [0.8, 0.84, 0.86, 0.1],
    })  # fmt: skip
    measured = gaussian.Measured(metrics, ordered, {**titles, "mrpc": "MRPC"}, "", [])
    assert fine_tuning.metrics_note(measured) == [
        f"Without noise, × 100, {titles['pretrained']}: accuracy 80.0 and F1 85.0 (MRPC)."
    ]
    assert not fine_tuning.metrics_note(measured._replace(frame=metrics[:1]))  # is the score
    assert not fine_tuning.answer(ordered[ordered.model == "pretrained"], titles, {"sst2": 50.9})
    assert not fine_tuning.level_table(
        ordered[ordered.model == "pretrained"], titles, {"sst2": 50.9}
    )
    ours = ordered.model == "pretrained-esr"
    noise = np.random.default_rng(0).normal(size=len(ordered))
    crossing = np.where(ordered.level == 0.5, -8.2, 3.8)  # with the lead of 2.2: -6 and 6
    ordered.loc[ours, "score"] += (crossing + 0.1 * noise)[ours]
    text = fine_tuning.answer(ordered, titles, {"sst2": 50.9})
    assert "**A difference that depends on the noise**: ESR (−" in text
    (table,) = fine_tuning.level_table(ordered, titles, {"sst2": 50.9})
    line = table.rows[0]
    assert line[1].startswith("**−") and line[2].startswith("**+")
    weaker = ordered.assign(score=ordered.score.where(ordered.level != 2, ordered.score - 30))
    (table,) = fine_tuning.level_table(weaker, titles, {"sst2": 60.0})
    assert [cell[:3] for cell in table.rows[0][1:3]] == ["**−", line[2][2:5]]  # not bold
    # Nor where only a third model still does the task.
    third = ordered[ours].assign(model="pretrained-1e-4", score=80.0)
    (table,) = fine_tuning.level_table(pd.concat([weaker, third]), titles, {"sst2": 60.0})
    assert [cell[:3] for cell in table.rows[0][1:3]] == ["**−", line[2][2:5]]
    unlearned = ordered.assign(score=ordered.score.mask(ours & (ordered.level == 0), 52.0))
    (table,) = fine_tuning.level_table(unlearned, titles, {"sst2": 50.9})
    assert not any("**" in cell for cell in table.rows[0])
    clean = ours & (ordered.level == 0)
    harmed = ordered.assign(score=ordered.score.mask(clean, ordered.score - 9))
    harmed.loc[ours & (ordered.level > 0), "score"] += 9  # a lead at all levels
    text = fine_tuning.answer(harmed, titles, {"sst2": 50.9})
    assert "**A difference that depends on the noise**: ESR (+" in text
    assert "] without noise)" in text


def test_averages_leave_out_noise_at_which_no_model_does_the_task():
    scores = made_up(site_matters)
    matched = (scores.protocol == "matched") & (scores.site == "token")
    strongest = scores.level.max()
    lost = scores.assign(score=scores.score.mask(matched & (scores.level == strongest), 47.0))
    constants = {"sst2": 44.0}
    kept = gaussian.informative(lost, constants)
    dropped = lost.drop(kept.index)
    assert set(dropped.level) == {strongest} and (matched & (lost.level == strongest)).sum() == len(
        dropped
    )
    (note,) = gaussian.left_out_note(lost, kept, gaussian.titles(["sst2"]))
    label = gaussian.noise_label("matched", strongest)
    assert note.endswith(f"Left out: noise on token embeddings, same SNR for each text: {label}.")
    # One model that still does it keeps the level; one that never learned it does not.
    able = lost.score.mask(matched & (lost.model == "robertha"), 70.0)
    assert len(gaussian.informative(lost.assign(score=able), constants)) == len(lost)
    forgot = able.mask((lost.model == "robertha") & (lost.level == 0), 44.0)
    assert len(gaussian.informative(lost.assign(score=forgot), constants)) == len(kept)
    # Every level is left out if no model has learned the task.
    assert (gaussian.informative(lost, {"sst2": 95.0}).level == 0).all()


@pytest.mark.parametrize(
    ("quieter", "title"),
    [
        ({"tinybert": 0, "robertha": 0}, "same σ, so same SNR"),
        ({"tinybert": 0, "robertha": 8}, "same σ"),
        ({"tinybert": 8, "robertha": 8}, "same σ, so same SNR"),  # models of one pretrained encoder
    ],
)
def test_protocols_are_shown_once_where_all_signals_have_unit_size(quieter, title):
    scores = tidy.select(made_up(site_matters), model=["tinybert", "robertha"])
    nominal = -20 * np.log10(scores.level.where(scores.level > 0, 1))
    below = scores.model.map(quieter).where(scores.protocol == "sigma", 0)
    titles = gaussian.panels(scores.assign(snr_db=nominal - below))
    assert titles["embedding", "sigma"].endswith(title)
    assert (("embedding", "matched") in titles) == below.any()


def test_a_missing_majority_baseline_is_an_error():
    with pytest.raises(KeyError, match="sst2"):
        gaussian.not_learned(made_up(site_matters), {})


def test_attribution_adds_up_changes():
    table = attribution.steps(made_up(site_matters).drop(columns="task"))
    means = tidy.summarize(tidy.average(table, "level")).set_index(["change", "protocol"])["mean"]
    moved = attribution.STEPS[0].change
    assert means[moved, "sigma"] == pytest.approx(78.75 - 50)
    assert means[moved, "matched"] == pytest.approx(0)
    assert means["ESR", "matched"] == pytest.approx(2)
    assert means["mean pooling", "sigma"] == pytest.approx(0)


def test_models_that_did_not_learn_their_task_are_named():
    scores, titles = made_up(site_matters), gaussian.titles(["sst2"])

    def note(scores, constant):
        unlearned = gaussian.not_learned(scores, {"sst2": constant})
        return "".join(gaussian.unlearned_note(scores, unlearned, titles)).partition(": ")[2]

    assert note(scores, 51.0) == note(scores, 70.0) == ""
    all_models = "SST-2 (all models: at most 80.2; majority baseline 78.0)."
    assert note(scores, 78.0) == all_models
    assert note(scores.assign(num_examples=64), 70.0)  # few rows
    alone = scores.assign(score=scores.score.where(scores.model != "robertha", 70.0))
    assert note(alone, 70.0) == "SST-2 (Robertha: 70.0; majority baseline 70.0)."
    text = robustness.answer(alone, alone, titles, "tinybert", {"robertha"})
    assert text.startswith(
        "**No verdict on a lead: Robertha did not learn SST-2.** Robertha against"
    )


@pytest.mark.parametrize(("parameter", "value"), [("esr_target", 0.1), ("beta", 100.0)])
def test_names_of_settings_are_read_back(parameter, value):
    assert hyperparameters.setting(hyperparameters.name(parameter, value)) == (parameter, value)


def test_noise_has_a_short_label():
    levels = 0.0, 0.5, 1.0, 1.02, 5.0
    labels = [gaussian.noise_label("matched", level) for level in levels]
    assert labels == ["clean", "+6 dB", "0 dB", "−0.2 dB", "−14 dB"]
    assert gaussian.noise_label("sigma", 0.5) == "σ 0.5"


def test_figures_that_our_data_contradict_have_a_verdict():
    lines = {line[0]: line[1:4] for line in scorecard.noise_stability()}
    _, measured, said = lines["Transformers with γ = 1 dampen stability weakly (from 0.5)"]
    assert measured.startswith("0.0013 ") and said == "does not hold"
    paper, measured, said = lines["A few tokens have at least a tenth of the influence"]
    assert paper.startswith("5 to 10 of 256") and measured.startswith("0 on uniform tokens")
    assert said == "does not hold"


def test_adversarial_sets_are_judged_on_unseen_texts_and_comparable_scores(tmp_path):
    folder = scorecard.RESULTS / "adversarial/minilm_mnli"
    frame = pd.read_csv(folder / "results.csv")
    shutil.copy(folder / "config.json", tmp_path)
    for known, below in ((0, 2), (1, 0)):  # share of the rows in the training file
        overlap = np.where(frame.metric == "train_overlap", known * frame.num_examples, frame.score)
        frame.assign(score=overlap).to_csv(tmp_path / "results.csv", index=False)
        assert f"{below} significantly below it" in adversarial.page(tmp_path).answer
    page = adversarial.page(scorecard.RESULTS / "adversarial/qqp")
    papers = {line[0]: line[-1] for line in page.tables[0].rows if line[1] == "Robertha"}
    assert papers == {"QQP": "", "AdvQQP": "51.8", "PAWS": ""}


def test_few_test_rows_widen_the_interval_of_a_claim():
    few = scorecard.claims()[-1]
    ours, by_seeds = scorecard.measured(few), scorecard.measured(replace(few, num_rows=None))
    assert ours.high - ours.low > by_seeds.high - by_seeds.low > 0


@pytest.mark.parametrize(
    ("clean", "noisy", "expected"),
    [(80, 60, "no interval"), (80, 51, scorecard.AT_BASELINE), (51, 51, scorecard.NOT_LEARNED)],
)
def test_scores_at_the_majority_baseline_give_no_verdict(monkeypatch, clean, noisy, expected):
    scores = made_up(lambda model, site, protocol, level: noisy if level else clean)
    constant = scores[:1].assign(metric="constant", score=50.0)
    of_run = (pd.concat([scores.assign(metric="score"), constant]), scores, {}, "", [])
    monkeypatch.setattr(scorecard, "results", lambda folder: gaussian.Measured(*of_run))
    claim = scorecard.lead("sst2", "SST-2", "folder")
    assert scorecard.row(claim)[3] == expected


def test_arms_save_steps_and_cost_compute(tmp_path):
    """A baseline that takes 100 steps, and a regularizer that takes 80, each in three runs."""
    rows = [
        {
            "task": "addition", "model": model, "corruption": "none", "level": 0.0, "site": "token",
            "seed": seed, "metric": "steps", "score": steps, "gamma": 0.0, "rho": 0.5, "epochs": 20,
        }
        for model, steps in (("baseline", 100.0), ("stability_reg", 80.0))
        for seed in SEEDS
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    curves = {"task": "addition", "arm": "baseline", "step": 10, "accuracy": [0.5]}
    curves |= {"train_accuracy": 1.0, "agreement": 0.5, "confidence": 1.0}
    pd.DataFrame(curves).to_csv(tmp_path / "curves.csv", index=False)
    plan = {
        "target": 0.95,
        "arms": {"baseline": {}, "stability_reg": {"penalized": True, "every": 4}},
        "settings": {"addition": {"batch_size": 10, "rows": 100}},
    }
    document = {"experiment": "grokking", "config": {}, "plan": plan, "provenance": []}
    (tmp_path / "config.json").write_text(json.dumps(document))
    baseline, regularized = arms.read_arms(tmp_path)
    assert (baseline.rows_per_step, regularized.rows_per_step) == (10, 12.5)
    assert arms.saved(regularized, baseline) == pytest.approx((20, 20, 20))
    assert arms.saved(regularized, baseline, compute=True) == (0, 0, 0)
    page = arms.page(tmp_path, title="x")
    assert (
        "saving of training steps is 20 [20, 20] % (the paper: 27 %): as the paper reports"
        in page.answer
    )


def test_encoder_responses_are_shown_by_task(tmp_path):
    """One task responds linearly, the other does not."""
    rows = [
        {
            "task": task, "model": "tinybert", "corruption": "gaussian", "seed": seed,
            "metric": metric, "level": level, "score": share * level, "arm": "trained",
            "num_examples": 8, "standard_error": 0.1 if metric == "correlation" else np.nan,
            "low": share - 0.05, "high": share + 0.05,
        }
        for task, share in (("sst2", 0.9), ("cola", 0.2))
        for metric, level in (("level share", 1.0), ("correlation", 0.5), ("correlation", 1.0))
        for seed in SEEDS
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    (tmp_path / "config.json").write_text('{"config": {}}')
    page = encoder.page(tmp_path)
    lines = {line[0]: line[1] for line in page.tables[0].rows}
    assert lines == {
        "SST-2, TinyBERT, after training": "0.90 [n/a]",
        "CoLA, TinyBERT, after training": "0.20 [n/a]",
    }
    assert "90 % [n/a] (TinyBERT, SST-2) and 20 % [n/a] (TinyBERT, CoLA)" in page.answer
    labels = [axes.get_ylabel().strip() for axes in page.pictures["encoder_stability"].draw().axes]
    assert labels == ["SST-2, after training", "CoLA, after training"]


def test_trained_encoders_are_compared_seed_by_seed(tmp_path):
    """Seeds differ by 10 points each, models by 2 to 4."""
    rows = [
        {
            "task": "sst2", "model": model, "corruption": "gaussian", "seed": seed,
            "arm": "trained", "metric": metric, "level": level, "num_examples": 8,
            "score": 0.1 * seed + gap * (2 + 0.1 * seed),
            "standard_error": np.nan, "low": 0.0, "high": 1.0,
        }
        for model, gap in (("tinybert", 0), ("robertha", 0.01))
        for metric, level in (("level share", 1.0), ("correlation", 0.5), ("points lost", np.nan))
        for seed in SEEDS
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    (tmp_path / "config.json").write_text('{"config": {}}')
    page = encoder.page(tmp_path)
    *_, table = page.tables
    ((name, share, correlation, lost),) = table.rows
    assert name == "Robertha" and share == correlation and share.startswith("**+")
    assert lost.startswith("**+0.0")
    assert "Robertha is more stable than TinyBERT, and loses more points" in page.answer
    lower = pd.DataFrame(rows)
    lower.loc[lower.metric == "points lost", "score"] *= -1
    lower.to_csv(tmp_path / "results.csv", index=False)
    words = "Robertha is more stable than TinyBERT, and loses fewer points"
    assert words in encoder.page(tmp_path).answer


def test_intervals_include_the_error_that_seeds_share():
    frame = pd.DataFrame({"model": "x", "seed": SEEDS, "score": [1.0, 2.0, 3.0]})
    own = frame.assign(standard_error=0.0, low=np.nan, high=np.nan)
    over_seeds = tidy.summarize(frame)
    for each in (
        own.assign(standard_error=1.0),
        own.assign(standard_error=np.nan, low=0, high=3.92),
    ):
        (got,) = encoder.intervals(each, ["model"]).itertuples()
        half = np.hypot(over_seeds.high - 2, 1.96).item()
        np.testing.assert_allclose([got.low, got.high], [2 - half, 2 + half])


def test_variants_that_differ_in_training_alone_share_the_arm_before_it():
    names = (
        "tinybert",
        "noise-trained",
        "robertha",
        "robertha-no-iteration-no-esr",
        "robertha-freelb",
    )
    jobs = [Job(task, name, VARIANTS[name], ()) for task in ("sst2", "cola") for name in names]
    both, trained = ("fresh", "trained"), ("trained",)
    assert encoder.arms_of(jobs) == 2 * [both, trained, both, both, trained]


def test_stability_is_not_measured_behind_memory(tmp_path):
    config = encoder.Config(budget="smoke", model=("tinybert-memory",), runs=str(tmp_path))
    with pytest.raises(ValueError, match="--model must not include tinybert-memory"):
        encoder.run(config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seeds": 2}, "--seeds must be >= 3"),
        ({"epochs": 0}, "--epochs must be >= 1, got 0"),
        ({"task": ("parity",), "modulus": 7}, "--modulus requires --task addition, got parity"),
        ({"num_train": 5}, "--num-train must be at least a batch, 240, got 5"),
        ({"budget": "smoke", "task": ("parity",)}, "--budget smoke requires --task addition"),
    ],
)
def test_wrong_flags_of_grokking(flags, message):
    with pytest.raises(ValueError, match=message):
        grokking.resolved(grokking.Config(**flags))


@pytest.mark.parametrize(
    ("generalized", "delay"), [([0, 0, 0, 1], 20), ([1, 1, 1, 1], 0.5), ([0, 0, 0, 0], 0)]
)
def test_grokking_is_late_generalization(generalized, delay):
    curves = {"step": [10, 20, 30, 400], "train_accuracy": [0, 1, 1, 1], "accuracy": generalized}
    assert grokking.delay(pd.DataFrame(curves)) == delay


def test_a_resumed_run_gives_the_same_bits(tmp_path, monkeypatch):
    setting = replace(grokking.BUDGETS["smoke"].settings["addition"], epochs=30)
    problem = grokking.make_problem("addition", setting, np.arange(2))
    job = grokking.make_job(problem, setting, "baseline", {})
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    whole, _ = training.train_arm(tmp_path / "whole", job)

    def stop(share, **fields):
        raise KeyboardInterrupt

    calls = []
    with pytest.raises(KeyboardInterrupt):
        training.train_arm(tmp_path / "cut", job, on_progress=stop)
    resumed, _ = training.train_arm(
        tmp_path / "cut", job, on_progress=lambda share, **fields: calls.append(share)
    )
    assert len(calls) == 2, "the first call is not repeated"
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_arm_is_read_from_its_cell(tmp_path, monkeypatch):
    config = grokking.Config(budget="smoke", runs=str(tmp_path))
    folder = grokking.run(config)
    results = (folder / "results.csv").read_bytes()
    assert "untested in a grokking regime" in (folder / "report.html").read_text()
    assert len(list((tmp_path / "cells").iterdir())) == 2
    monkeypatch.setattr(training, "train_runs", None)  # would fail
    monkeypatch.setattr(report, "write_report", lambda *_: None)
    assert grokking.run(config) == folder
    assert (folder / "results.csv").read_bytes() == results


def test_memory_is_compared_with_the_best_model_without_it(tmp_path):
    def score(model, noise, seed):
        if model == "robertha":  # always the constant answer
            return 50.0
        cost = 0.0 if model.endswith("-memory") and noise < 10 else 2.0 * max(noise, 0)
        return 90.0 - cost + 0.1 * seed + (1.0 if model == "noise-trained" and noise > 0 else 0.0)

    models = "tinybert", "noise-trained", "tinybert-memory", "robertha"
    levels = 0.5, 2.0, 20.0
    rows = [
        {
            "task": "sst2", "model": model, "corruption": "gaussian" if level else "none",
            "level": level, "site": "token", "protocol": "per-token", "seed": seed,
            "metric": metric, "score": value, "num_examples": 900,
        }
        for model, level, seed in itertools.product(models, (0.0, *levels), SEEDS)
        for metric, value in (
            ("score", score(model, 20 * np.log10(level) if level else -np.inf, seed)),
            ("capacity_snr_db", -12.0),
            ("constant", 50.0),
            *[("gain", 3.0)] * (model.endswith("-memory") and level > 0),
        )
    ]  # fmt: skip
    frame = pd.DataFrame(rows).assign(draw=0)
    frame.loc[frame.metric == "gain", ["low", "high"]] = 2.0, 4.0
    frame.to_csv(tmp_path / "results.csv", index=False)
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "memory-trained"}))
    page = trained.page(tmp_path)
    text = report.markdown(page, tmp_path)
    assert "| TinyBERT + memory | **+3.0 [+2.0, +4.0]** |" in text
    assert "baseline for a verdict on robustness: SST-2 (Robertha: 50.0;" in text
    # Below 10 dB of noise, memory undoes it; at 26 dB, the constant answer is better.
    assert "| TinyBERT | +6.0 dB |" in text and "| TinyBERT + memory | −6.0 dB |" in text
    frame = tidy.scores(tidy.read(tmp_path))
    gains = trained.leads(frame[frame.level > 0])
    assert gains["mean"].round(3).tolist() == [0.0, 11.041, -11.841]
    (best,) = (note for note in page.notes if note.startswith("Best"))
    assert best == (
        "Best without memory on SST-2: TinyBERT + noise training (+6.0 to −6.0 dB) and Robertha "
        "(−26.0 dB)."
    )


def test_training_through_memory_is_compared_with_memory_at_test_time():
    scores = pd.DataFrame(
        [
            {
                "task": "sst2", "protocol": "matched", "model": model, "level": level, "seed": seed,
                "corruption": "gaussian", "site": "token", "snr_db": -level,
                "score": 80 + 10 * seed + gain * (level - 2) * (1 + 0.01 * seed),
            }
            for model, gain in (("tinybert-memory", 0), ("noise-through-memory", 1))
            for level in (1.0, 3.0, 4.0)
            for seed in SEEDS
        ]
    )  # fmt: skip
    gaps = trained.adapted(scores, "tinybert-memory")
    assert gaps["mean"].round(2).tolist() == [-1.02, 1.02, 2.04]
    sentence = trained.lead_sentence(gaps, "Ours", "theirs")
    assert "higher than theirs at 2 of 3 SNRs, and lower at 1; 3 remain after Holm" in sentence
    same = trained.lead_sentence(gaps.assign(low=-9, high=9), "Ours", "theirs")
    assert same == "Ours and theirs do not differ significantly at any of 3 SNRs."
    assert trained.adapted(scores[:3], "tinybert-memory").empty


def test_a_model_with_memory_is_named_if_it_alone_has_not_learned():
    names = ["pretrained", "pretrained-memory", "noise-trained-memory"]
    table = pd.DataFrame(
        {"task": "sst2", "model": names, "level": 0.0, "score": [90.0, 90.0, 50.0]}
    )
    scores = table.assign(num_examples=900)
    unlearned = gaussian.not_learned(scores, {"sst2": 50.0})
    titles = {name: name for name in names} | {"sst2": "SST-2"}
    (note,) = gaussian.unlearned_note(scores, unlearned, titles)
    assert "SST-2 (noise-trained-memory: 50.0; majority baseline 50.0)" in note


def test_pages_say_how_far_few_test_rows_can_move_an_accuracy():
    scores = pd.DataFrame({"task": ["sst2", "adv-sst2"], "num_examples": [872, 100]})
    titles = {"sst2": "SST-2", "adv-sst2": "AdvSST-2"}
    measured = gaussian.Measured(scores, scores, titles, "", [])
    (note,) = gaussian.few_rows_note(measured)
    assert "AdvSST-2 100 (±10 points)" in note and " SST-2" not in note
    assert not gaussian.few_rows_note(measured._replace(scores=scores[:1]))
