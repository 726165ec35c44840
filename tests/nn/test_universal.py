from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn import slow

from hopfax.nn import Encoder, SoftmaxAttention, functional
from hopfax.nn.encoder import Perturbation
from hopfax.nn.models import universal_bert

SIZES = {"width": 6, "ff_width": 10, "max_length": 8}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = jnp.asarray(IDS > 0)
ATTENTION = partial(SoftmaxAttention, num_heads=2, dropout=0.1)
DEFAULTS = {"norm_first": True, "pooling": "mean", "epsilon": 1e-5}  # those of Encoder


def shared(**options):
    return universal_bert(10, 3, **DEFAULTS | SIZES | options)


def plain(**options):
    options = SIZES | options
    return functional(lambda rngs: Encoder(10, 3, attention=ATTENTION, rngs=rngs, **options))


def run(model, params, **how):
    return jax.jit(lambda p: model.apply(p, jnp.asarray(IDS), MASK, **how))(params)


def test_steps_are_layers_of_the_same_parameters(redraw):
    model = shared(num_steps=3)
    params = redraw(model)
    params["steps"]["embedding"] = jnp.zeros((3, 6))
    tied = dict(params, blocks=dict.fromkeys(range(3), params["blocks"][0]))
    del tied["steps"]
    expected, output = run(plain(num_layers=3), tied), run(model, params)
    np.testing.assert_allclose(output.logits, expected.logits, rtol=1e-5)
    assert output.encoding.keys.shape == (3, 2, 5, 6)
    assert output.encoding.ponder is None
    tokens = model.apply(params, jnp.asarray(IDS), method="embed_tokens")
    first = model.apply(params, tokens, method="embed")
    states = model.apply(params, first, MASK, method="hidden_states")
    np.testing.assert_allclose(states[-1], output.encoding.hidden, atol=1e-6)
    expected, maps = (
        each.apply(weights, first, MASK, method="attention_maps")
        for each, weights in ((plain(num_layers=3), tied), (model, params))
    )
    assert maps.shape == (3, 2, 2, 5, 5)
    np.testing.assert_allclose(maps, expected, rtol=1e-4, atol=1e-6)
    marked = model.apply(redraw(model), first, MASK, method="attention_maps")
    assert np.abs(marked[1] - maps[1])[0].max() > 1e-3  # the vectors of steps are used


def halted(model, params, enough=0.99):
    """Returns states, N and N + R, token by token."""
    network = slow.bind(model, params)
    x = np.array(network.embed(network.embed_tokens(jnp.asarray(IDS))), np.float64)
    vectors = np.asarray(params["steps"]["embedding"], np.float64)
    kernel, bias = (np.asarray(params["halt"][name], np.float64) for name in ("kernel", "bias"))
    total, count, ponder = np.zeros((2, 5)), np.zeros((2, 5), int), np.zeros((2, 5))
    mixed = np.zeros_like(x)
    for step in range(len(vectors)):
        start = x + vectors[step]
        after = np.asarray(network.blocks[0](jnp.asarray(start, jnp.float32), MASK).values)
        for token in np.ndindex(2, 5):
            if ponder[token]:
                continue
            chance = 1 / (1 + np.exp(-(start[token] @ kernel + bias)[0]))
            count[token] += 1
            if total[token] + chance >= enough or step == len(vectors) - 1:
                chance = 1 - total[token]
                ponder[token] = count[token] + chance
            total[token] += chance
            mixed[token] = chance * after[token] + (1 - chance) * mixed[token]
        x = after.astype(np.float64)
    return mixed, count, ponder


def test_halting_is_adaptive_computation_time(redraw):
    model = shared(num_steps=4, halting=True)
    params = redraw(model)
    # Probabilities of about a third: some tokens halt early, some late.
    params["halt"] = {"kernel": params["halt"]["kernel"], "bias": jnp.full(1, -4.5)}
    hidden, count, ponder = halted(model, params)
    encoding = run(model, params).encoding
    assert encoding.num_steps.shape == (1, 2, 1, 5)
    assert encoding.num_steps[0, :, 0][MASK].tolist() == count[MASK].tolist()
    assert len(set(count[MASK])) > 1
    np.testing.assert_allclose(encoding.hidden[MASK], hidden[MASK], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoding.ponder[MASK], ponder[MASK], rtol=1e-4)
    for bias, steps in ((9.0, 1), (-9.0, 4)):  # at the first and the last step
        params["halt"] = {"kernel": jnp.zeros((6, 1)), "bias": jnp.full(1, bias)}
        encoding = run(model, params).encoding
        assert np.all(np.asarray(encoding.num_steps) == steps)
        np.testing.assert_allclose(encoding.ponder, steps + 1, rtol=1e-3)


@pytest.mark.parametrize("make", [plain, shared])
def test_recomputed_blocks_have_the_same_gradients(redraw, make):
    params, key = redraw(make()), jax.random.key(0)
    one, other = (
        jax.grad(lambda params, model=model: jnp.sum(run(model, params, key=key).logits ** 2))
        for model in (make(), make(remat=True))
    )
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, one(params), other(params))


def test_scaled_embeddings_are_the_same_function_with_weaker_noise(redraw):
    one, other = plain(), plain(embedding_scale=50.0)
    params = redraw(one)
    noise = 0.5 * jax.random.normal(jax.random.key(1), (2, 5, 6))
    for scale in (0, 1):
        strong = run(other, params, added=Perturbation(token=50 * scale * noise)).logits
        weak = run(one, params, added=Perturbation(token=scale * noise)).logits
        np.testing.assert_allclose(strong, weak, rtol=1e-3, atol=1e-5)
