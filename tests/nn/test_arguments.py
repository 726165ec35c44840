from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax import nn

SIZES = {"width": 6, "num_layers": 1, "ff_width": 8, "max_length": 8}
X, MASK = jnp.ones((2, 5, 6)), np.ones((2, 5), bool)
tinybert = partial(nn.tinybert, 10, 3, **SIZES)
decoder = partial(nn.decoder, 10, 3, width=6, num_layers=1)


def encoder(**options):
    options = {"attention": nn.SoftmaxAttention} | SIZES | options
    return nn.functional(lambda rngs: nn.Encoder(10, 3, rngs=rngs, **options))


def attention(layer=nn.HopfieldAttention, x=X, mask=MASK, **options):
    return layer(6, rngs=nnx.Rngs(0), **options)(x, mask)


def embed(tokens):
    params = tinybert().init(jax.random.key(0))
    return tinybert().apply(params, jnp.ones((1, tokens, 6)), method="embed")


def forget():
    params = tinybert().init(jax.random.key(0))
    return nn.with_memory(tinybert()).apply(params, jnp.ones((1, 3), int))


def retrieve(model, **options):
    return model.apply(model.init(jax.random.key(0)), X, MASK, method="retrieve", **options)


softmax = partial(attention, nn.SoftmaxAttention)
universal = partial(nn.universal_bert, 10, 3)
recall = partial(nn.recall, tokens=jnp.eye(4), table=jnp.eye(4))
memory = partial(nn.with_memory, model=tinybert())
precision = partial(nn.with_precision, tinybert())


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (attention, {"num_heads": 4}, "multiple of num_heads >= 1, got 6 and 4"),
        (softmax, {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (attention, {"beta": np.nan}, "beta must be > 0 and finite, got nan"),
        (attention, {"tol": -1.0}, "tol must be >= 0, got -1.0"),
        (attention, {"scope": "token"}, r'"query", "text" or "batch", got \'token\''),
        (attention, {"min_steps": 0}, "min_steps must be >= 1, got 0"),
        (retrieve, {"model": tinybert()}, "requires Hopfield attention, got softmax attention"),
        (retrieve, {"model": nn.robertha(10, 3, **SIZES), "steps": 0}, "steps must be >= 1, got 0"),
        (encoder, {"embedding_scale": 0}, "embedding_scale must be > 0 and finite, got 0"),
        (encoder, {"num_layers": 0}, "num_layers must be >= 1, got 0"),
        (encoder, {"pooling": "max"}, '"mean" or "cls", got \'max\''),
        (encoder, {"remat": True, "stop_gradient_keys": True}, "remat requires identical blocks"),
        (embed, {"tokens": 9}, "at most max_length=8 tokens, got 9"),
        (decoder, {"reading": "last"}, "mean.*each.*'last'"),
        (universal, {"num_steps": 0}, "num_steps must be .* 1, got 0"),
        (universal, {"stop_gradient_keys": True}, "stop_gradient_keys must be False"),
        (nn.find_preset, {"name": "Paper"}, "one of hopfax, paper, algorithm, released, got 'Pap"),
        (precision, {"precision": "float16"}, "bfloat16, got 'float16"),
        (recall, {"tokens": jnp.ones((2, 3))}, r"got \(2, 3\) and \(4, 4\)"),
        (recall, {"log_scale": jnp.zeros(3)}, r"log_scale must have shape \(4,\), got \(3,\)"),
        (recall, {"log_scale": jnp.full(4, jnp.nan)}, "log_scale must be finite, got nan"),
        (recall, {"sigma": jnp.ones(3)}, r"sigma must be a number or have shape \(4,\), got \(3,"),
        (recall, {"sigma": jnp.zeros(4)}, "sigma must be > 0 and finite, got 0.0"),
        (memory, {"site": "tokens"}, 'site must be "token" or "embedding", got \'tokens\''),
        (memory, {"model": nn.with_memory(tinybert())}, "already has memory"),
        (memory, {"model": tinybert(embedding_norm=False), "site": "embedding"}, "a.* LayerNorm"),
        (memory, {"model": {}}, r"must be a Functional, .* got a dict"),
        (memory, {"model": decoder()}, "model must be an Encoder, got one with config None"),
        (forget, {}, "the model's names, got no memory.log_prior"),
        (memory, {"sigma": 0}, "sigma must be > 0 and finite, got 0"),
    ],
)
def test_options(call, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(**options)


@pytest.mark.parametrize("call", [attention, softmax])
@pytest.mark.parametrize(
    ("x", "mask", "error", "words"),
    [
        (X[0], MASK[0], ValueError, r"x must have shape \(batch, tokens, width\), got"),
        (X, MASK[:, None, None], ValueError, r"mask must have shape \(2, 5\), got"),
        (X, MASK[:, None], ValueError, r"mask must have shape \(2, 5, 5\), got \(2, 1, 5\)"),
        (X, np.ones((2, 5)), TypeError, "mask must be boolean, True where real, got float"),
    ],
)
def test_inputs_of_attention(call, x, mask, error, words):
    with pytest.raises(error, match=words):
        call(x=x, mask=mask)
