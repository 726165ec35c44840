"""Bounds on weight of high degree: the function of bits, unbiased estimates, the page."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from nn import checkpoints

from experiments.noise_stability import tail_mass
from hopfax.nn import load_pretrained, tinybert
from hopfax.stability import spectral_tail_bound


def test_the_function_of_an_embedding_is_the_cosine_to_the_unchanged_text(tmp_path):
    rng = np.random.default_rng(0)
    # Without biases the tokens decide more.
    tensors = {
        name: (0.3 * rng.normal(size=shape) * ("bias" not in name)).astype("f")
        for name, shape in checkpoints.shapes("bert").items()
    }
    model = load_pretrained(checkpoints.save(tmp_path, checkpoints.CONFIGS["bert"], tensors))
    ids, others = jnp.array([5, 6, 7, 8]), jnp.array([9, 10, 11, 4])

    def unit(ids):
        embeddings = model.embed(jnp.array([[1, *ids, 2]]))
        states = model.forward(embeddings, jnp.ones((1, 6), bool)).output[0]
        mean = np.asarray(states, float).mean(0)
        return mean / np.linalg.norm(mean)

    bits = np.array([[[1, 1, 1, 1], [1, -1, 1, -1]], [[-1, -1, -1, -1], [1, 1, 1, -1]]])
    expected = [[unit(np.where(x > 0, ids, others)) @ unit(ids) for x in of] for of in bits]
    output = tail_mass.embedding(model)
    values = tail_mass.agreement(output, ((1,), (2,)), model.params, ids, others, bits)
    assert expected[0][0] == pytest.approx(1) and np.min(expected) < 0.95
    np.testing.assert_allclose(values, expected, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "llama"])
def test_the_function_of_a_causal_model_is_the_correlation_of_next_logits(family, tmp_path):
    model = load_pretrained(checkpoints.save_random(tmp_path, family, scale=0.3))
    ids, others, bits = jnp.array([5, 6, 7]), jnp.array([9, 8, 4]), jnp.array([[[1, 1, -1]]])

    def logits(*ids):
        return model.forward(model.embed(jnp.array([ids])), jnp.ones((1, 4), bool)).output[0, -1]

    output = tail_mass.embedding(model)
    ((value,),) = tail_mass.agreement(output, ((1,), ()), model.params, ids, others, bits)
    expected = np.corrcoef(logits(1, 5, 6, 7), logits(1, 5, 6, 4))[0, 1]
    assert value == pytest.approx(expected, abs=1e-5) and abs(expected) < 0.95


def test_a_classifier_of_a_causal_model_is_refused(tmp_path):
    folder = checkpoints.save_random(tmp_path, "llama")
    config = tail_mass.Config(pretrained=str(folder), data_dir=".", run=".")
    with pytest.raises(ValueError, match="must be a BERT or RoBERTa, got a llama"):
        tail_mass.run(config)


def test_the_function_of_a_classifier_is_the_probability_of_its_class():
    model = tinybert(12, 3, width=8, num_layers=1, ff_width=8, max_length=8)
    params = jax.tree.map(lambda leaf: 9 * leaf, model.init(jax.random.key(0)))
    ids, others, bits = jnp.array([5, 6]), jnp.array([7, 8]), jnp.array([[[1.0, -1.0]]])
    output = tail_mass.probability(model)
    agreement = jax.jit(tail_mass.agreement, static_argnums=(0, 1))
    ((value,),) = agreement(output, ((1,), (2,)), params, ids, others, bits)
    texts, mask = jnp.array([[1, 5, 6, 2], [1, 5, 8, 2]]), jnp.ones((2, 4), bool)
    before, after = jax.nn.softmax(jax.jit(model.apply)(params, texts, mask).logits)
    assert value == pytest.approx(float(after[before.argmax()]), abs=1e-5)


def test_estimates_are_unbiased_with_right_errors():
    coefficients = {(): 0.3, (0,): 1.0, (1, 2): 0.5, (0, 3, 4): 0.4, (1, 2, 4, 5): 0.2}
    bits = tail_mass.draw(np.random.default_rng(0), 20_000, 6)
    values = sum(c * bits[..., list(each)].prod(-1) for each, c in coefficients.items())
    frame = tail_mass.estimates(np.asarray(values), 6).fillna({"level": -1})
    frame = frame.set_index(["metric", "level"])
    weights = np.bincount([len(each) for each in coefficients],
                          [c**2 for c in coefficients.values()], minlength=7)  # fmt: skip
    k = np.arange(7)
    expected = {
        ("influence", -1): weights @ k,
        ("pairs", -1): weights @ (k * (k - 1)),
        ("variance", -1): weights[1:].sum(),
        **{("distance", rho): weights @ (1 - rho**k) for rho in tail_mass.RHOS},
    }
    assert set(expected) == set(frame.index)
    for key, value in expected.items():
        score, error = frame.loc[key, "score"], frame.loc[key, "standard_error"]
        assert abs(score - value) < 4 * error < 0.4 * value, key


def test_the_draws_flip_every_bit_once():
    x, *_, flips = np.split(tail_mass.draw(np.random.default_rng(0), 6, 24),
                            [1, 1 + len(tail_mass.RHOS)], axis=1)  # fmt: skip
    changed = (flips != x)[:, : -tail_mass.PAIRS]
    assert (changed.sum((0, 1)) == 1).all() and (changed.sum(2) == 1).all()
    pairs = (flips != x)[:, -tail_mass.PAIRS :]
    assert (pairs == changed[:, :3:2] | changed[:, 1:4:2]).all()


def test_the_variance_of_few_draws_is_unbiased():
    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        frame = tail_mass.estimates(tail_mass.draw(rng, 3, 5)[..., 0], 5)
        found.append(frame[frame.metric == "variance"].score.item())
    assert np.mean(found) == pytest.approx(1, abs=5 * np.std(found) / 1000**0.5)


def test_bounds_are_shares_of_the_variance():
    """Of texts with known weights, estimated without error."""
    texts = np.array([[0.5, 1 + 0.1 * extra, 0.1, 0, 0, 0, 0.2] for extra in range(5)])
    weights, k = texts.mean(0), np.arange(7)
    parts = {("variance", np.nan): k > 0, ("influence", np.nan): k, ("pairs", np.nan): k * (k - 1)}
    parts |= {("distance", rho): 1 - rho**k for rho in tail_mass.RHOS}
    tables = [
        pd.DataFrame({"seed": range(5), "metric": metric, "level": level, "score": texts @ factor})
        for (metric, level), factor in parts.items()
    ]
    frame = pd.concat(tables).assign(model="trained", num_examples=12)
    table = tail_mass.bounds(frame)
    claims = tail_mass.claims(frame)  # of a function of degree 6: 60 copies flip a bit 15 times
    assert claims.rho.tolist() == list(tail_mass.RHOS)
    assert claims.verdict.tolist() == ["reversed"] * 2 + ["too weak to tell"] * 3
    table = table.set_index(["quantity", "rho"])["mean"]
    variance, stability = weights[1:].sum(), weights[1:] @ 0.5 ** k[1:]
    bound = spectral_tail_bound(stability, variance, rho=0.5, degree=15)
    expected = {
        (tail_mass.MARKOV, 1.0): weights @ k / 15 / variance,
        (tail_mass.LEMMA, 0.5): bound / variance,
        ("D", 1.0): weights @ k**2 / (weights @ k),
    }
    lemma, markov = (expected[key] for key in ((tail_mass.LEMMA, 0.5), (tail_mass.MARKOV, 1.0)))
    expected[tail_mass.MARGIN, 0.5] = lemma / markov - 1
    for key, value in expected.items():
        assert table[key] == pytest.approx(float(value), rel=1e-3), key
