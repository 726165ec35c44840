"""BERT and Robertha as they grow: the sizes, the page, a run of the smallest."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import __main__ as command
from experiments import rundir
from experiments.robertha import robustness, scaling
from experiments.robertha import scaling_page as page
from experiments.robertha.labels import signed
from experiments.robertha.measurements import load
from experiments.robertha.models import trainable
from experiments.robertha.paper import paper_score
from experiments.robertha.scaling import SIZES, Config, chosen, variants
from experiments.speed.memory import abstract_step
from hopfax.data import task
from hopfax.nn.functional import num_params
from hopfax.train.objectives import Batch

TABLE_5 = Config(budget="paper", task=("cola", "mrpc"))


def built(name, entrants, *, recompute_from=8, **options):
    models = variants(entrants, recompute_from=recompute_from)
    return trainable(name, task("mrpc"), variants=models, **options)


@pytest.mark.parametrize(("kind", "pooler"), [("tinybert", 1), ("robertha", 0)])
@pytest.mark.parametrize("size", ["tiny", "base"])
def test_the_papers_sizes_can_be_built_and_trained(kind, pooler, size):
    """Traced, not run: the parameters are those of the architecture, counted by hand."""
    found = built(f"{kind}-{size}", chosen(TABLE_5), vocab_size=30522, max_length=128)
    params = jax.eval_shape(found.model.init, jax.random.key(0))
    layers, width = SIZES[size]
    attention, feed_forward = 4 * width**2, 2 * width * 4 * width
    biases = sum(leaf.size for leaf in jax.tree.leaves(params["blocks"]) if leaf.ndim == 1)
    count = (30522 + 128) * width + 2 * width  # embeddings and their norm
    count += layers * (attention + feed_forward) + biases
    count += pooler * (width**2 + width) + 2 * width + 2  # read-out of two classes
    assert num_params(params) == count
    assert count == pytest.approx(110e6 if size == "base" else 4.4e6, rel=0.02)
    if (kind, size) == ("robertha", "base"):
        step, arguments = abstract_step(found.model, found.objective, batch_size=32)
        after, metrics = jax.eval_shape(step, *arguments)
        assert metrics.loss.shape == ()
        assert jax.tree.map(jnp.shape, after.params) == jax.tree.map(jnp.shape, params)


def test_the_large_robertha_recomputes_its_blocks_and_has_heads_of_64():
    models = variants(chosen(Config(size=("mini", "medium", "base"))), recompute_from=8)
    assert [each.options["recompute"] for each in models.values()] == [False] * 2 + [True] * 4
    assert [each.options["num_heads"] for each in models.values()] == [4, 4, 8, 8, 12, 12]
    text = str(jax.make_jaxpr(_loss("robertha-nano", recompute_from=1)[0])(*_loss_arguments()))
    assert "remat" in text or "checkpoint" in text
    text = str(jax.make_jaxpr(_loss("robertha-nano", recompute_from=2)[0])(*_loss_arguments()))
    assert "remat" not in text and "checkpoint" not in text


def _loss(name, **options):
    found = built(name, chosen(Config(size=("nano",))), vocab_size=9, max_length=8, **options)
    return found.objective, found.model


def _loss_arguments():
    batch = Batch(jnp.array([[[2, 3, 4, 5]]]), jnp.array([[4]]), jnp.array([1]), jnp.ones(1))
    _, model = _loss("robertha-nano")
    return model.init(jax.random.key(0)), batch, jax.random.key(1)


def test_names_of_the_paper_have_its_figures():
    models = variants(chosen(TABLE_5), recompute_from=8)
    found = {
        name: [paper_score(title, each.paper, 2.0).mean for title in ("CoLA", "MRPC", "WNLI")]
        for name, each in models.items()
    }
    assert found["tinybert-base"] == [50.6, 29.3, 54.9]
    assert found["robertha-base"] == [54.9, 74.8, 63.4]
    assert found["robertha-tiny"][1] == paper_score("MRPC", "robertha", 2.0).mean
    assert variants(chosen(Config()), recompute_from=8)["robertha-mini"].paper is None


def test_a_run_of_the_smallest_size(tmp_path, monkeypatch):
    # A compilation each: what is planned is tested with the benchmark that does the same.
    asked = []
    monkeypatch.setattr(scaling, "temporary_bytes", lambda step, *_: asked.append(step) or 2e6)
    flags = ["--budget", "smoke", "--size", "nano", "--train-size", "32"]
    flags += ["--sites", "embedding", "--protocols", "matched", "--runs", str(tmp_path)]
    assert command.main(["scaling", *flags]) == command.OK
    (folder,) = (tmp_path / "scaling").iterdir()
    rows = rundir.read_csv(folder / "scaling.csv", page.COLUMNS)
    assert [(row["model"], float(row["level"])) for row in rows] == [
        (f"{kind}-nano", level) for kind in ("tinybert", "robertha") for level in (0.0, 2.0)
    ]
    assert all(0 <= float(row["mean"]) <= 100 for row in rows)
    assert float(rows[1]["snr_db"]) == pytest.approx(-6.02, abs=0.1)
    models = rundir.read_csv(folder / "models.csv", page.MODEL_COLUMNS)
    assert not asked and {each["recomputed_mb"] for each in models} == {""}
    assert {row["parameters"] for row in rows} == {each["parameters"] for each in models}
    html = (folder / "report.html").read_text()
    assert "Robertha minus BERT at nano, Entailment: clean" in html and "Megabytes" not in html
    # Memory that is asked for later is planned once and stays; nothing is trained again.
    before = (folder / "results.csv").read_bytes()
    monkeypatch.setattr(robustness, "run_cell", lambda *_, **__: pytest.fail("trained again"))
    for line in (["--memory"], ["--memory"], []):
        assert command.main(["scaling", *flags, *line]) == command.OK
        models = rundir.read_csv(folder / "models.csv", page.MODEL_COLUMNS)
        assert len(asked) == 4 and {each["recomputed_mb"] for each in models} == {"2.0"}
        assert "Megabytes are" in (folder / "report.html").read_text()
    assert (folder / "results.csv").read_bytes() == before


@pytest.fixture
def partial(tmp_path, fake, monkeypatch):
    """A folder of Table 5 in which MRPC's large Robertha is missing."""
    entrants = chosen(TABLE_5)
    models = variants(entrants, recompute_from=8)
    monkeypatch.setattr(fake, "MODELS", tuple(models))
    monkeypatch.setattr(fake, "TASKS", TABLE_5.task)
    rows = fake.fake_rows(tasks=TABLE_5.task, models=tuple(models), levels=(2.0,))
    rows = [row for row in rows if (row["task"], row["model"]) != ("mrpc", "robertha-base")]
    plan = {"tasks": TABLE_5.task, "models": list(models), "seeds": list(fake.SEEDS)}
    folder = fake.write_fake_run(tmp_path / "run", rows, json.loads(json.dumps(plan)))
    described = [
        {"task": name, **each._asdict(), **SIZES[each.size]._asdict(), "vocabulary": 30522}
        | {"parameters": SIZES[each.size].width * 10**5, "recompute": False}
        | {"stored_mb": None, "recomputed_mb": None}
        for name in TABLE_5.task
        for each in entrants
    ]
    rundir.write_csv(folder / "models.csv", page.MODEL_COLUMNS, described)
    return folder, entrants, models


def test_the_page_of_a_partial_run(partial):
    folder, entrants, models = partial
    tables = page.write_page(folder, entrants, models)
    assert [line[0] for line in tables[1]] == [
        *("MRPC", "BERT tiny", "Robertha tiny", "BERT base", "Robertha base")
    ]
    assert tables[1][4][3:] == ["–"] * 5
    assert tables[1][3][4].endswith("; paper 29.3")
    html = (folder / "report.html").read_text()
    assert "Missing: MRPC: Robertha base (seed 23" in html
    # Not all tasks have the large one: what is found is of the small.
    assert "Robertha minus BERT at tiny, mean over CoLA, MRPC: clean" in html
    assert "MB" not in tables[0][0][3]


def test_a_page_of_clean_scores_alone(partial):
    folder, entrants, models = partial
    clean = [row for row in rundir.read_results(folder) if row["level"] == "0.0"]
    rundir.write_csv(folder / "results.csv", rundir.RESULT_COLUMNS, clean)
    tables = page.write_page(folder, entrants, models)
    assert tables[0][0][3:] == ["clean"]
    assert (folder / "scaling.png").stat().st_size > 0


def test_the_gap_is_paired_by_seed_and_has_the_papers_beside_it(partial, fake):
    folder, _, models = partial
    found = load(folder)
    names = ("robertha-tiny", "tinybert-tiny")
    noise = ("embedding", "sigma", 2.0)
    here, there = (
        [[found.at(each, name, *noise)[seed] for seed in fake.SEEDS] for each in TABLE_5.task]
        for name in names
    )
    gaps = np.mean(here, axis=0) - np.mean(there, axis=0)
    half = 2.776 * gaps.std(ddof=1) / 5**0.5  # Student's t for four degrees of freedom
    shown = [signed(each) for each in (gaps.mean(), gaps.mean() - half, gaps.mean() + half)]
    text = page.gap(found, names, models, *noise)
    assert gaps.mean() > 0.1
    assert text.startswith("embedding site, σ 2 {} [{}, {}]".format(*shown))
    theirs = [
        paper_score(title, "robertha", 2.0).mean - paper_score(title, "tinybert", 2.0).mean
        for title in ("CoLA", "MRPC")
    ]
    assert text.endswith(f"(the paper's {np.mean(theirs):+.1f})")
    assert "paper" not in page.gap(found, names, models, "token", "matched", 2.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--size", "bas"], "did you mean base"),
        (["--size"], "--size wants one or more different sizes"),
        (["--size", "tiny", "tiny"], "--size wants one or more different sizes"),
        (["--recompute-from", "0"], "number of layers >= 1, got 0"),
        (["--levels", "-1"], "must be >= 0"),
        (["--task", "mrpc"], "needs data_dir"),
    ],
)
def test_flags_out_of_range_are_named(flags, words, tmp_path, capsys):
    line = ["scaling", "--budget", "smoke", *flags, "--runs", str(tmp_path)]
    assert command.main(line) == command.FAILED
    assert words in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))
