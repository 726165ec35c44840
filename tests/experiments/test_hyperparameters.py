"""The sweeps of Robertha's hyperparameters: their cells, their page, a run of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import __main__ as command
from experiments import rundir
from experiments.robertha import hyperparameters, robustness
from experiments.robertha import hyperparameters_page as page
from experiments.robertha.hyperparameters import Config, sweeps, variants
from experiments.robertha.measurements import load
from experiments.robertha.models import VARIANTS, trainable
from experiments.robertha.paper import paper_setting
from hopfax.data import task
from hopfax.train.objectives import Batch

TWO = Config(esr_target=(0.1,), esr_weight=(), beta=(30.0,))


def test_the_default_is_the_papers_grid_around_one_centre():
    settings = sweeps(Config())
    for parameter, values in hyperparameters.GRIDS.items():
        assert tuple(each.value for each in settings if each.parameter == parameter) == values
    assert [each.value for each in settings if each.model == "robertha"] == [0.35, 0.05, 15.0]
    models = variants(settings)
    assert len(models) == 18 and next(iter(models)) == "robertha"
    assert models["robertha-esr-target-0.1"].title == "Robertha, α 0.1"
    # Every point the paper has of a parameter, MRPC's and BoolQ's together.
    has = {
        (each.parameter, each.value)
        for each in settings
        if any(paper_setting(name, *each[:2], 5) is not None for name in ("MRPC", "BoolQ"))
    }
    assert has == {each[:2] for each in settings}


def test_a_sweep_has_the_centre_in_its_place_and_an_empty_one_is_left_out():
    assert sweeps(TWO) == [
        ("esr_target", 0.1, "robertha-esr-target-0.1"),
        ("esr_target", 0.35, "robertha"),
        ("beta", 15.0, "robertha"),
        ("beta", 30.0, "robertha-beta-30"),
    ]


def test_the_smoke_budget_takes_the_ends_of_each_grid():
    assert [each.value for each in sweeps(Config(budget="smoke"))] == [
        *(0.1, 0.35, 1.0),
        *(0.0, 0.05, 1.0),
        *(1.0, 15.0, 100.0),
    ]


@pytest.fixture(scope="module")
def losses():
    """Of a layer of Robertha with one thing changed: all from the same parameters and one row."""
    sizes = {"width": 8, "ff_width": 16, "max_length": 8, "num_layers": 1}
    models = variants(sweeps(Config(esr_target=(0.9,), esr_weight=(2.0,), beta=(1.0,))))
    batch = Batch(jnp.array([[[2, 3, 4, 5]]]), jnp.array([[4]]), jnp.array([1]), jnp.ones(1))
    found = {}
    for name in models:
        built = trainable(name, task("sst2"), vocab_size=9, variants=models, dropout=0.0, **sizes)
        params = built.model.init(jax.random.key(0))
        # Keys far apart, so that β shows.
        params = jax.tree.map(lambda leaf: 10 * leaf, params)
        loss = jax.jit(built.objective)
        found[name] = jax.device_get(loss(params, batch, jax.random.key(0)))
    return found


def test_each_value_reaches_the_model_or_its_loss(losses):
    total, parts = losses["robertha"]
    np.testing.assert_allclose(total, parts.task + 0.05 * parts.esr, rtol=1e-6)
    heavy, same = losses["robertha-esr-weight-2"]
    np.testing.assert_allclose(heavy, parts.task + 2 * parts.esr, rtol=1e-6)
    assert same.task == parts.task
    # The penalties are (H - target)² of the same entropy H.
    other = losses["robertha-esr-target-0.9"][1]
    entropy = (0.9 + 0.35 - (other.esr - parts.esr) / (0.9 - 0.35)) / 2
    np.testing.assert_allclose(parts.esr, (entropy - 0.35) ** 2, atol=1e-5)
    assert other.task == parts.task and parts.esr > 1e-3
    cold = losses["robertha-beta-1"][1]
    assert abs(cold.task - parts.task) > 1e-6


def fill_with_made_up_rows(monkeypatch, fake):
    """Has cells made up in place of trained; returns the names of those that were."""
    made = []

    def run_cell(folder, built, rows, *, name, grid, **_):
        assert built.iterates
        monkeypatch.setattr(fake, "MODELS", grid.models)
        shape = {"levels": grid.levels, "sites": grid.sites, "protocols": grid.protocols}
        shape |= {"models": (name,), "seeds": grid.seeds, "draws": 1}
        found = fake.fake_rows(tasks=("sst2",), **shape)
        here = {"task": rows.spec.name, "num_train": len(rows.train.labels)}
        here |= {"num_examples": len(rows.test.labels)}
        rundir.add_results(folder, [row | here for row in found])
        made.append(name)

    monkeypatch.setattr(robustness, "run_cell", run_cell)
    return made


def test_a_run_trains_the_centre_once_and_is_continued(tmp_path, monkeypatch, fake):
    made = fill_with_made_up_rows(monkeypatch, fake)
    flags = ["--budget", "smoke", "--esr-target", "0.1", "--esr-weight", "--beta", "15", "30"]
    line = ["hyperparameters", *flags, "--levels", "1.0", "2.0", "--runs", str(tmp_path)]
    assert command.main(line) == command.OK
    assert made == ["robertha", "robertha-esr-target-0.1", "robertha-beta-30"]
    (folder,) = (tmp_path / "hyperparameters").iterdir()
    for name in ("config.json", "hyperparameters_entailment.png", "report.html"):
        assert (folder / name).stat().st_size > 0
    before = (folder / "results.csv").read_bytes()
    lines = before.decode().splitlines(keepends=True)
    kept = [row for row in lines if "robertha-esr-target-0.1" not in row]
    (folder / "results.csv").write_text("".join(kept))
    assert command.main(line) == command.OK
    assert made[3:] == ["robertha-esr-target-0.1"]
    assert sorted((folder / "results.csv").read_text().splitlines(keepends=True)) == sorted(lines)


@pytest.fixture
def partial(tmp_path, fake, monkeypatch):
    """A folder in which β 30 is missing, its settings and its models."""
    settings = sweeps(TWO)
    models = variants(settings)
    monkeypatch.setattr(fake, "MODELS", tuple(models))
    monkeypatch.setattr(fake, "TASKS", ("mrpc",))
    rows = fake.fake_rows(tasks=("mrpc",), models=tuple(models)[:2])
    plan = {"tasks": ["mrpc"], "models": list(models), "seeds": list(fake.SEEDS)}
    return fake.write_fake_run(tmp_path / "run", rows, plan), settings, models


def test_differences_are_to_the_centre_with_the_seeds_paired(partial):
    folder, settings, _ = partial
    found = load(folder)
    rows = page.measured(found, settings)
    here = found.at("mrpc", "robertha-esr-target-0.1", "embedding", "matched", 2.0)
    there = found.at("mrpc", "robertha", "embedding", "matched", 2.0)
    gaps = np.array([here[seed] - there[seed] for seed in here])
    wanted = {"parameter": "esr_target", "site": "embedding", "protocol": "matched", "level": 2.0}
    first, centre = (row for row in rows if wanted.items() <= row.items())
    assert first["difference"] == pytest.approx(gaps.mean())
    half = 2.776 * gaps.std(ddof=1) / 5**0.5  # Student's t for four degrees of freedom
    assert first["difference_high"] - gaps.mean() == pytest.approx(half, rel=1e-3)
    assert first["mean"] == pytest.approx(np.mean(list(here.values())))
    assert centre["model"] == "robertha" and centre["difference"] is None
    # The paper has σ alone, no SNR.
    assert first["paper"] is None
    wanted |= {"protocol": "sigma", "value": 0.1}
    (row,) = (row for row in rows if wanted.items() <= row.items())
    assert row["paper"] == 72.6


def test_the_page_of_a_partial_run(partial):
    folder, settings, models = partial
    tables = page.write_page(folder, settings, models)
    assert [line[0] for line in tables[0][1:]] == ["α 0.1", "α 0.35 (centre)", "β 15 (centre)"]
    assert "paper 75.9" in tables[0][1][1]
    html = (folder / "report.html").read_text()
    assert "Missing: MRPC: Robertha, β 30 (seed 23" in html
    assert "differences to the centre have a 95 % interval without 0" in html
    rows = rundir.read_csv(folder / "hyperparameters.csv", page.COLUMNS)
    assert len(rows) == 3 * (1 + 2 * 2 * 4)


def test_the_finding_is_the_largest_difference():
    noise = {"task": "boolq", "site": "embedding", "protocol": "sigma", "level": 5.0}
    plain = dict.fromkeys(("difference", "difference_low", "difference_high"))
    names = ("parameter", "value", "model", "paper")
    rows = [
        noise | plain | dict(zip(names, ("beta", 15.0, "robertha", 57.5), strict=True)),
        noise
        | {"difference": -0.5, "difference_low": -0.9, "difference_high": -0.1}
        | dict(zip(names, ("beta", 5.0, "robertha-beta-5", 57.3), strict=True)),
        noise
        | {"difference": 0.75, "difference_low": -0.25, "difference_high": 1.75}
        | dict(zip(names, ("beta", 30.0, "robertha-beta-30", 57.7), strict=True)),
        noise
        | {"difference": 0.25, "difference_low": 0.25, "difference_high": 0.25}
        | dict(zip(names, ("beta", 50.0, "robertha-beta-50", None), strict=True)),
    ]
    counts, largest, paper = page.findings(rows)
    assert counts.startswith("1 of 2 differences") and "1 more have no interval" in counts
    assert "+0.8 [−0.2, +1.8] points: BoolQ, β 30, noise after the embedding" in largest
    assert paper.endswith("the largest is −0.2: BoolQ, β 5, σ 5.")
    assert page.findings(rows[:1]) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--esr-target", "0.5", "1.5"], "--esr-target must be an entropy in [0, 1], got 1.5"),
        (["--esr-target", "nan"], "got nan"),
        (["--esr-weight", "-1"], "--esr-weight must be >= 0 and finite, got -1.0"),
        (["--beta", "0"], "--beta must be > 0 and finite, got 0.0"),
        (["--beta", "2", "2.0"], "--beta wants different values"),
        (["--beta", "--esr-weight", "--esr-target"], "nothing to vary"),
        (["--sites", "tokn"], "did you mean token"),
        (["--levels", "-1"], "--levels must be >= 0"),
        (["--epochs", "0"], "--epochs must be >= 1, got 0"),
    ],
)
def test_flags_out_of_range_are_named(flags, words, tmp_path, capsys):
    line = ["hyperparameters", "--budget", "smoke", *flags, "--runs", str(tmp_path)]
    assert command.main(line) == command.FAILED
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_robertha_itself_is_left_as_it_is():
    assert variants(sweeps(TWO))["robertha"] is VARIANTS["robertha"]
    assert not VARIANTS["robertha"].options
