from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield, nn
from hopfax.nn.encoder import Perturbation

IDS = jnp.array([[3, 9, 4, 0], [7, 7, 1, 2]])
MASK = jnp.array([[True, True, True, False], [True] * 4])
SIZES = {"width": 32, "ff_width": 16}
SMALL = SIZES | {"num_layers": 1, "embedding_scale": 5.0}
MODELS = {
    "tinybert": nn.tinybert(40, 2, **SMALL),
    "universal": nn.universal_bert(40, 2, **SIZES),
    "token types": nn.tinybert(40, 2, num_types=2, separator=7, position_offset=2, **SMALL),
}


def lively(model):
    """Parameters with embeddings large enough to matter."""
    params = model.init(jax.random.key(0))
    for number, name in enumerate(sorted({"tokens", "types"} & params.keys()), start=1):
        shape = params[name]["embedding"].shape
        params[name] = {"embedding": jax.random.normal(jax.random.key(number), shape)}
    return params


@pytest.mark.parametrize("site", ["token", "embedding"])
@pytest.mark.parametrize("name", MODELS)
def test_memory_removes_noise_and_changes_no_clean_output(name, site):
    plain, model = MODELS[name], nn.with_memory(MODELS[name], site=site)
    params = lively(model)
    encoder = {name: value for name, value in params.items() if name != "memory"}

    def hidden(model, params, **options):
        return model.apply(params, IDS, MASK, **options).encoding.hidden[MASK]

    clean = hidden(plain, encoder)
    rtol, atol = (1e-5, 1e-6) if site == "token" else (1e-3, 1e-4)
    np.testing.assert_allclose(hidden(model, params), clean, rtol=rtol, atol=atol)
    scaled = site == "token" and name in ("tinybert", "token types")
    scale = 0.4 * (5.0 if scaled else 1.0)
    noise = Perturbation(**{site: scale * jax.random.normal(jax.random.key(2), (2, 4, 32))})
    recalled, noisy = (
        np.abs(hidden(each, weights, added=noise) - clean).max()
        for each, weights in ((model, params), (plain, encoder))
    )
    assert recalled < 0.1 * noisy


def test_hidden_states_use_the_memory_in_bfloat16_too():
    model = nn.with_precision(MODELS["token types"], "bfloat16")
    model = nn.with_memory(model, site="embedding")
    params = lively(model)

    run = partial(model.apply, params)
    tokens, types = run(IDS, method="embed_tokens"), run(IDS, method="token_types")
    embeddings = run(tokens, types, method="embed")
    states = run(embeddings, MASK, types, method="hidden_states")
    hidden = model.apply(params, IDS, MASK).encoding.hidden[MASK]
    np.testing.assert_allclose(states[-1][MASK], hidden, rtol=1e-2)


@pytest.mark.parametrize("sigma", [None, 0.7, np.linspace(0.5, 1.0, 6).reshape(2, 3)])
def test_recall_is_denoise_of_every_token_with_its_prior_and_scale(x64, sigma):
    keys = jax.random.split(jax.random.key(0), 4)
    table, noise = jax.random.normal(keys[0], (30, 8)), jax.random.normal(keys[1], (2, 3, 8))
    log_scale, log_prior = jax.random.normal(keys[2], (8,)), jax.random.normal(keys[3], (30,))
    tokens = table[:6].reshape(2, 3, 8) + jnp.exp(log_scale) * noise
    options = {"log_prior": log_prior}
    got = nn.recall(tokens, table, sigma=sigma, log_scale=log_scale, **options)
    scale, sigmas = np.exp(log_scale), [sigma] * 6 if np.ndim(sigma) == 0 else sigma.ravel()
    for row, token, each in zip(got.reshape(-1, 8), tokens.reshape(-1, 8), sigmas, strict=True):
        known = {"sigma": each, **options}
        want = hopfield.denoise(token / scale, table / scale, **known).value * scale
        np.testing.assert_allclose(row, want, rtol=1e-9)


@pytest.mark.parametrize("site", ["token", "embedding"])
def test_the_padding_embedding_has_no_gradient(site):
    plain = nn.tinybert(40, 2, padding_idx=0, num_layers=1, **SIZES)
    model = nn.with_memory(plain, site=site, sigma=8.0)
    loss = jax.jit(jax.grad(lambda params: model.apply(params, IDS, MASK).logits[:, 0].sum()))
    # At this sigma, the posterior mean depends on all tokens.
    norms = jnp.linalg.norm(loss(lively(model))["tokens"]["embedding"], axis=1)
    assert norms[0] == 0 and (norms[1:] > 0).all()


def test_prior_scale_and_noise_level_are_trained():
    model = nn.with_memory(MODELS["tinybert"], sigma=8.0)
    noise = Perturbation(8.0 * jax.random.normal(jax.random.key(2), (2, 4, 32)))
    loss = jax.jit(jax.grad(lambda p: model.apply(p, IDS, MASK, added=noise).logits[:, 0].sum()))
    gradients = loss(lively(model))["memory"]
    assert sorted(gradients) == ["log_prior", "log_scale", "log_sigma"]
    for gradient in gradients.values():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-8
