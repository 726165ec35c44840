"""The certificates experiment: attacks stay in their ball, certificates and bounds hold."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.memory import attacks, certificates, pipeline
from hopfax import hopfield

WIDTH, VOCAB = 8, 20


def forward(vectors, mask, *, params):
    """An encoder that mixes its tokens, in place of a transformer."""
    mean = jnp.sum(jnp.where(mask[..., None], vectors, 0), axis=1, keepdims=True)
    return SimpleNamespace(output=jnp.tanh(vectors @ params["own"] + mean @ params["mixed"]))


@pytest.fixture(scope="module")
def reader():
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(WIDTH, WIDTH)).astype("f") / 4 for name in ("own", "mixed")}
    table = rng.normal(size=(VOCAB, WIDTH)).astype("f")
    prior = np.log(rng.dirichlet(np.ones(VOCAB))).astype("f")
    model: Any = SimpleNamespace(forward=forward, params=params)
    return attacks.reader_of(model, table, prior)


@pytest.fixture(scope="module")
def batch(reader):
    rng = np.random.default_rng(1)
    first, second = ([rng.integers(0, VOCAB, rng.integers(3, 7)) for _ in range(8)] for _ in "ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks, "MAX_TOKENS", 6)
        unit = pipeline.rms_norm(reader.table[np.concatenate([*first, *second])])
        return attacks.batch_of(reader, first, second, np.arange(8.0), unit)


def gains(reader, batch, vectors):
    return batch.sign * attacks.cosines(reader, batch, vectors)


def test_neighbors_are_sorted_and_start_with_the_token(reader, batch):
    np.testing.assert_array_equal(batch.near[..., 0], batch.ids)
    apart = np.linalg.norm(reader.table[batch.near] - reader.table[batch.ids][:, :, None], axis=-1)
    assert (np.diff(apart, axis=-1) > -1e-4).all()
    np.testing.assert_allclose(apart[..., 1] / 2, reader.radius[batch.ids], rtol=1e-4)


@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_attacks_raise_the_gain_within_their_ball(reader, batch, radius):
    clean = reader.table[batch.ids]
    perturbed = attacks.attacks(reader, batch, radius, 8)
    length = np.linalg.norm(perturbed - clean, axis=-1)
    assert length.max() <= radius * (1 + 1e-5) and not length[:, ~batch.mask].any()
    as_it_is, substitution = perturbed[0], perturbed[-1]
    assert (gains(reader, batch, as_it_is) > gains(reader, batch, clean)).all()
    moved = attacks.retrieved(reader, substitution, batch.mask)["nearest"]
    assert gains(reader, batch, moved).sum() >= gains(reader, batch, clean).sum()


def test_slopes_are_central_differences(reader, batch):
    rng = np.random.default_rng(2)
    x = reader.table[batch.ids] + 0.3 * rng.normal(size=(*batch.ids.shape, WIDTH)).astype("f")
    near, bias = reader.table[batch.near], reader.log_prior[batch.near]

    def gain(x, surrogate):
        apart = np.square(x[..., None, :] - near).sum(-1)
        scores = -surrogate.square * apart - surrogate.log * np.log(apart) + surrogate.prior * bias
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        soft = (weights[..., None] * near).sum(-2)
        return gains(reader, batch, surrogate.keep * x + (1 - surrogate.keep) * soft).sum()

    for surrogate in (
        attacks.Surrogate(keep=1.0),
        attacks.Surrogate(square=0.4),
        attacks.Surrogate(log=WIDTH / 2, prior=1.0),
    ):
        slope = np.asarray(reader.slope(x, batch, surrogate))
        size = float(np.linalg.norm(slope))
        step = 1e-2 * slope / size
        difference = float(gain(x + step, surrogate) - gain(x - step, surrogate))
        assert size > 1e-3 and size == pytest.approx(difference / 2e-2, rel=0.05)


def test_certificates_hold_and_violations_raise(reader, batch):
    small = 0.5 * reader.radius[batch.ids[batch.mask]].min() / batch.unit
    rows = certificates.attacked(reader, batch, small, 4)
    scores = {row["model"]: row["score"] for row in rows}
    assert scores["nearest"] == scores["clean"] > scores["none"]
    with pytest.raises(ArithmeticError, match="inside the certified radius"):
        certificates.attacked(reader._replace(radius=100 * reader.radius), batch, 3.0, 4)


def test_certified_share_is_the_minimum_over_tokens():
    table = np.array([[3.0, 0], [0, 4.0], [0, 4.6]])
    assert pipeline.rms_norm(table) == pytest.approx(np.sqrt((9 + 16 + 4.6**2) / 3))
    radius = np.asarray(hopfield.certified_radius(table)) / 10
    rows = certificates.certified({"stsb": [np.array([0]), np.array([0, 1])]}, radius)
    for row in rows:  # 0.03 of the second text is the smaller radius
        expected = 50 * (row["level"] < 0.03) + 50 * (row["level"] < 0.25)
        assert row["score"] == pytest.approx(expected)
    assert [row["level"] for row in rows[:2]] == [0.02, 0.04] and rows[-1]["level"] == 0.6


def test_texts_under_noise_are_read_at_least_as_often_as_guaranteed(reader, batch):
    rows = certificates.under_noise(reader, batch, 8.0, 60)
    values = {row["metric"]: row["score"] for row in rows}
    assert 5 < values["bound"] <= values["unchanged"] + 3
