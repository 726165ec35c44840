"""The stability of trained encoders: what is measured, what is read, and what is written."""

import base64
import json
import re
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.__main__ import main
from experiments.noise_stability import encoder
from experiments.noise_stability import encoder_page as page
from experiments.noise_stability import encoder_response as response
from experiments.noise_stability.encoder_response import RHOS, Network, Texts
from experiments.rundir import read_csv
from hopfax.data import Encoded

KEY = jax.random.key(0)
NET = page.Net("tinybert", "trained", 23)
LENGTHS = np.array([2, 3, 4, 2])
TEXTS = Texts(
    ids=jnp.arange(16).reshape(4, 1, 4),
    mask=jnp.asarray(np.arange(4) < LENGTHS[:, None])[:, None],
    index=jnp.array([7, 3, 11, 5]),
)

ROWS = Encoded(
    ids=np.arange(80).reshape(4, 1, 20),
    lengths=np.array([[3], [20], [5], [9]]),
    labels=np.zeros(4, int),
    index=np.array([9, 4, 6, 1]),
)


def embed(params, ids):
    """Tokens along the first axis, of norm 2 and more: none of it along the second."""
    return jnp.stack([2.0 + ids, jnp.zeros(ids.shape)], axis=-1)


def along_second(params, embeddings, mask):
    """Linear in the noise, and 0 without; times a parameter, to the power of another."""
    total = jnp.sum(jnp.where(mask, embeddings[..., 1], 0), axis=(1, 2))[:, None]
    return params["scale"] * total ** params["power"]


LINEAR = Network(embed, along_second)


def sigmas():
    """Deviation at 0 dB: the root mean square over both coordinates of the real tokens."""
    rows = np.asarray(TEXTS.ids[:, 0] + 2.0)
    return np.array([np.sqrt(np.mean(r[:n] ** 2) / 2) for r, n in zip(rows, LENGTHS, strict=True)])


def gaussian(network, params=None, *, texts=TEXTS, snr_db=0.0, draws=400, key=KEY):
    clean = network.respond(params, network.embed(params, texts.ids), texts.mask)
    return response.gaussian_response(
        network, params, texts, key, clean=clean, snr_db=snr_db, draws=draws
    )


def values(rows, metric) -> dict[Any, Any]:
    """Rows of one metric by where they are measured."""
    return {row.x: row for row in rows if row.metric == metric}


def test_a_linear_response_has_the_correlation_of_its_noise_and_the_variance_of_its_weights():
    rows = response.response_rows(NET, gaussian(LINEAR, {"scale": 3.0, "power": 1}))
    for rho, row in values(rows, "correlation").items():
        assert abs(row.value - rho) <= 5 * row.noise_error + 1e-6 and row.noise_error < 0.05
    variance = values(rows, "variance")[None]
    exact = np.mean(9 * sigmas() ** 2 * LENGTHS)
    assert abs(variance.value - exact) < 5 * variance.noise_error < 0.35 * exact
    assert all(row.snr_db == pytest.approx(0, abs=0.3) for row in rows)


@pytest.mark.parametrize("power", [1, 2])
def test_a_power_of_the_noise_has_its_level(power):
    """Each call of the meter reads its own parameters, though both are one program."""
    meter = response.level_meter(
        Network(embed, lambda p, e, m: along_second(p | {"power": power}, e, m)),
        TEXTS,
        KEY,
        snr_db=0.0,
        num_samples=512,
    )
    variances = {1: sigmas() ** 2 * LENGTHS, 2: 2 * (sigmas() ** 2 * LENGTHS) ** 2}[power]
    mean = {1: 0 * sigmas(), 2: sigmas() ** 2 * LENGTHS}[power]
    for scale in (1.0, 3.0):
        found = meter(
            {"scale": jnp.float32(scale)}, jnp.asarray(scale * mean, jnp.float32)[:, None]
        )
        rows = response.level_rows(NET, found, 4, 0.0)
        shares = values(rows, "level share")
        assert shares[power].value > 0.8
        assert shares[power].low <= 1 <= shares[power].high + 0.1
        assert sum(row.value for row in shares.values()) == pytest.approx(1)
        total = sum(row.value for row in values(rows, "level weight").values())
        assert total == pytest.approx(scale**2 * np.mean(variances), rel=0.35)


def test_both_halves_of_a_pair_have_the_same_text():
    """Without noise to speak of, a row's product is its own squared norm at every correlation."""
    first = Network(embed, lambda params, embeddings, mask: embeddings[:, 0, :1, 0])
    found = gaussian(first, snr_db=200.0, draws=2)
    own = (2.0 + np.asarray(TEXTS.ids[:, 0, 0])) ** 2
    np.testing.assert_allclose(found.products, np.broadcast_to(own[:, None, None], (4, 2, 6)))


def test_padding_gets_no_noise():
    padding = Network(
        embed, lambda params, e, mask: jnp.sum(jnp.where(mask[..., None], 0, e), (1, 2))
    )
    assert not np.any(gaussian(padding, draws=3).changes)
    scale = response.noise_scale(embed(None, TEXTS.ids), TEXTS.mask, 6.0)[..., 0]
    expected = np.where(TEXTS.mask, sigmas()[:, None, None] * 10 ** (-6 / 20), 0)
    np.testing.assert_allclose(scale, expected, rtol=1e-5)


def test_the_noise_of_a_text_does_not_depend_on_its_batch():
    turned = Texts(*(part[::-1] for part in TEXTS))
    params = {"scale": 1.0, "power": 1}
    one, other = gaussian(LINEAR, params, draws=3), gaussian(LINEAR, params, texts=turned, draws=3)
    np.testing.assert_allclose(one.products, other.products[::-1], rtol=1e-5)


def test_the_same_seed_gives_the_same_bits():
    def numbers(seed):
        key, params = jax.random.key(seed), {"scale": jnp.float32(1), "power": 1}
        meter = response.level_meter(LINEAR, TEXTS, key, snr_db=0.0, num_samples=128)
        levels = response.level_rows(NET, meter(params, jnp.zeros((4, 1))), 4, 0.0)
        found = gaussian(LINEAR, params, draws=2, key=key)
        chosen = encoder.choose(ROWS, 3, seed).index
        return repr([levels, response.response_rows(NET, found), chosen])

    assert numbers(0) == numbers(0) != numbers(1)


def test_texts_are_chosen_without_repetition_and_padded_without_loss():
    chosen = encoder.choose(ROWS, 9, 0)
    assert sorted(chosen.index) == sorted(ROWS.index)
    calls = encoder.padded(chosen, 0, lengths=2, rows=3)
    assert all(texts.ids.shape[0] == 3 for texts, _ in calls)
    real = {
        int(row): np.asarray(texts.ids[at])[np.asarray(texts.mask[at])].tolist()
        for texts, count in calls
        for at, row in enumerate(texts.index[:count])
    }
    for ids, length, row in zip(ROWS.ids, ROWS.lengths, ROWS.index, strict=True):
        assert real[row] == ids[0, : length[0]].tolist()


def test_tokens_are_kept_at_their_rate_and_special_ones_always():
    """The product of one-hot codes counts equal tokens; one of each text's four is special."""

    def codes(params, embeddings, mask):
        real = jnp.where(mask[..., None], embeddings, 0)
        return real.reshape(len(real), -1) / jnp.sqrt(jnp.sum(mask, (1, 2)))[:, None]

    network = Network(lambda params, ids: jax.nn.one_hot(ids, 20), codes)
    texts = TEXTS._replace(mask=jnp.ones_like(TEXTS.mask))
    found = response.token_response(
        network, None, texts, KEY, num_tokens=20, special=(0, 4, 8, 12), draws=300
    )
    rows = values(response.token_rows(NET, found), "stability")
    for rho, row in rows.items():
        kept = (1 + rho) / 2 + (1 - rho) / 2 / 20
        assert abs(row.value - (1 + 3 * kept) / 4) <= 5 * row.noise_error + 1e-6
        assert row.noise_error < 0.02
    assert np.all(np.asarray(found.same)[..., -1] == 1)
    np.testing.assert_allclose(found.clean, codes(None, jax.nn.one_hot(texts.ids, 20), texts.mask))


def test_errors_of_a_ratio_are_its_spread_over_repetitions():
    rng = np.random.default_rng(0)
    repeats = []
    for _ in range(300):
        size = rng.normal(2.0, 0.3, (20, 1, 1))
        bottom = size + rng.normal(0, 0.2, (20, 5, 1))
        repeats.append(response.ratio(0.5 * bottom + rng.normal(0, 0.1, (20, 5, 1)), bottom))
    value, error, noise_error = (np.ravel(part) for part in zip(*repeats, strict=True))
    assert value.mean() == pytest.approx(0.5, abs=0.01)
    assert error.mean() == pytest.approx(value.std(), rel=0.15)
    assert noise_error.mean() == pytest.approx(value.std(), rel=0.15)  # texts have one ratio here


@pytest.fixture(scope="module")
def finished(untrained_run, tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("robustness"), ("sentiment",))


def command(folder, runs, *flags):
    line = ("encoder-stability", "--run", str(folder), "--runs", str(runs), "--budget", "smoke")
    return main([*line, "--texts", "4", *flags])


def test_a_run_writes_its_numbers_its_picture_and_its_page(finished, tmp_path, capsys):
    assert command(finished, tmp_path) == 0
    assert "TinyBERT, trained" in capsys.readouterr().out
    (folder,) = (tmp_path / "encoder-stability").iterdir()
    rows = read_csv(folder / "results.csv")
    needed = {"task", "model", "corruption", "level", "site", "seed", "metric", "score"}
    assert needed | {"num_examples", "snr_db"} <= set(rows[0])
    assert {row["arm"] for row in rows} == {"fresh", "trained"}
    assert all(np.isfinite(float(row["score"])) for row in rows)
    ends = [row for row in rows if row["metric"] == "normalised stability"]
    assert {float(row["level"]) for row in ends} == set(RHOS)
    assert all(float(row["score"]) == 1 for row in ends if float(row["level"]) == 1)
    assert {row["score"] for row in rows if row["metric"] == "score"} == {"73.0"}
    html = (folder / "report.html").read_text()
    image = base64.b64decode(re.findall(r"base64,([^\"]+)", html)[0])
    assert image == (folder / "encoder_stability.png").read_bytes()
    assert len(read_csv(folder / "encoder_stability.csv")) == 2 * (4 * len(RHOS) + 5)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--task", "cola"), "--task sentiment"),
        (("--model", "robertha"), "--model tinybert"),
        (("--draws", "1"), "--draws must be at least 2"),
        (("--level-texts", "0"), "--level-texts at least 1"),
    ],
)
def test_a_wrong_flag_is_one_clear_error(finished, tmp_path, capsys, flags, told):
    assert command(finished, tmp_path, *flags) == 1
    assert told in capsys.readouterr().err


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resize(folder):
    config = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", config=config["config"] | {"width": 32})


CELL = "cells/sentiment-tinybert"
DAMAGE = {
    "no run": (shutil.rmtree, "not a run's folder"),
    "another experiment": (lambda f: edit(f / "config.json", experiment="theory"), "--run runs/"),
    "not tested": (lambda f: (f / "results.csv").unlink(), "no finished tinybert"),
    "no checkpoint": (lambda f: shutil.rmtree(f / CELL / "best"), "--no-resume"),
    "other data": (lambda f: edit(f / CELL / "config.json", rows=31), "rows: 31 → 32"),
    "other sizes": (resize, "does not fit"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_cell_that_cannot_be_read_is_one_clear_error(finished, tmp_path, capsys, name):
    harm, told = DAMAGE[name]
    folder = shutil.copytree(finished, tmp_path / "copy")
    harm(folder)
    assert command(folder, tmp_path / "runs") == 1
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error


def test_a_regression_has_no_class_probabilities(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "copy")
    plan = json.loads((folder / "config.json").read_text())["plan"]
    edit(folder / "config.json", plan=plan | {"tasks": ["stsb"]})
    assert command(folder, tmp_path / "runs") == 1
    assert "stsb has scores, not classes" in capsys.readouterr().err
