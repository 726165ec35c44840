from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.checkpoints import VOCAB, save_random

from hopfax import hopfield, nn

IDS = jnp.array([[4, 7, 2, 9, 9, 1], [3, 3, 8, 5, 0, 0]])
MASK = jnp.arange(6) < jnp.array([[6], [4]])
START = 5
FREQUENCIES = jax.nn.log_softmax(jnp.sin(jnp.arange(20.0)))
OPTIONS: dict[str, Any] = {"start": START, "num_candidates": VOCAB, "sigma": 0.3}


@pytest.fixture(scope="module", params=["gpt2", "gemma2", "llama"])
def model(request, tmp_path_factory):
    return nn.load_pretrained(save_random(tmp_path_factory.mktemp("model"), request.param))


def test_a_step_with_a_cache_gives_the_probabilities_of_the_whole_text(model):
    step, cache = nn.language_prior(model, 6, start=START)
    step, steps = jax.jit(step), []
    for token in (-1, *IDS[0, :-1].tolist()):
        cache, log_probs = step(cache, jnp.int32(token))
        steps.append(log_probs)
    whole = jnp.concatenate([jnp.array([START]), IDS[0, :-1]])[None]
    logits = model.forward(model.embed(whole), jnp.ones((1, 6), bool)).output[0]
    np.testing.assert_allclose(jnp.stack(steps), jax.nn.log_softmax(logits), atol=1e-5)


def test_the_prior_is_mixed_with_frequencies(model):
    (pure, cache), (mixed, _) = (
        nn.language_prior(model, 2, start=START, mixture=share, log_prior=FREQUENCIES)
        for share in (0.0, 0.25)
    )
    own, both = (jnp.exp(jax.jit(step)(cache, jnp.int32(-1))[1]) for step in (pure, mixed))
    np.testing.assert_allclose(both, 0.75 * own + 0.25 * jnp.exp(FREQUENCIES), rtol=1e-4)


def test_clean_texts_come_back_with_their_vectors_and_padding_changes_nothing(model):
    clean = jnp.where(MASK[..., None], model.embed(IDS), jnp.nan)
    found = nn.recall_text(model, clean, MASK, **OPTIONS | {"sigma": 0.01})
    np.testing.assert_array_equal(found.index, jnp.where(MASK, IDS, 0))
    np.testing.assert_allclose(found.value[MASK], model.embed(IDS)[MASK])
    alone = nn.recall_text(model, clean[1:, :4], **OPTIONS | {"sigma": 0.01})
    np.testing.assert_allclose(found.log_probability[1], alone.log_probability[0], rtol=1e-5)


def test_with_frequencies_alone_each_token_is_that_of_denoise(model):
    noisy = model.embed(IDS) + 0.5 * jax.random.normal(jax.random.key(0), (*IDS.shape, 8))
    options = OPTIONS | {"beam": 1, "mixture": 1.0, "log_prior": FREQUENCIES}
    sigma, table = jnp.array([0.3, 0.6]), model.embed(jnp.arange(VOCAB)[None])[0]
    found = nn.recall_text(model, noisy, **options | {"sigma": sigma}).index
    for text, level, index in zip(noisy, sigma, found, strict=True):
        alone = jax.vmap(
            lambda x, s=level: hopfield.denoise(x, table, sigma=s, log_prior=FREQUENCIES).index
        )(text)
        np.testing.assert_array_equal(index, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": 1.5}, r"mixture must be in \[0, 1\]"),
        ({"sigma": -1.0}, "sigma must be > 0"),
        ({"sigma": np.ones(3)}, "sigma must be a number or have shape"),
        ({"start": VOCAB}, r"start must be in \[0, 19\]"),
        ({"start": None}, "start is required"),
        ({"log_prior": jnp.zeros(3)}, r"log_prior must have shape \(20,\)"),
        ({"noisy": jnp.zeros((1, 17, 8))}, r"num_tokens must be in \[1, 16\]"),
        ({"noisy": jnp.zeros((1, 3, 7))}, r"noisy must have shape \(batch, tokens, 8\)"),
    ],
)
def test_bad_arguments_are_errors(tmp_path, options, message):
    model = nn.load_pretrained(save_random(tmp_path, "llama"))
    with pytest.raises(ValueError, match=message):
        nn.recall_text(model, **{"noisy": model.embed(IDS), **OPTIONS, **options})


def test_an_encoder_is_no_language_model(tmp_path):
    model = nn.load_pretrained(save_random(tmp_path, "bert"))
    with pytest.raises(ValueError, match=r"must be causal .* got bert"):
        nn.language_prior(model, 3)
