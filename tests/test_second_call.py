"""Outside jit, a second call of a public function with other values compiles nothing."""

from functools import partial
from inspect import isfunction
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from nn.checkpoints import save_random
from nn.released_program import TINY

from hopfax import hopfield, nn, stability
from hopfax.fixed_point import at_fixed_point, fixed_point
from hopfax.stability import theory

LOWERING = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # also where a cache on disk has it
IDS, MASK = jnp.arange(10).reshape(2, 5), jnp.arange(5) < jnp.array([[5], [3]])
SEEN = jnp.array([True, True, False, True, True, True])
SIZES: dict[str, Any] = {"width": 8, "ff_width": 8, "max_length": 8, "num_layers": 1}


def drawn(key, *shape):
    return jax.random.normal(key, shape)


def level(key):
    return jax.random.uniform(key, minval=0.1, maxval=0.9)


def half(params, x):
    return x / 2 + params


@jax.jit
def network(x):
    return jnp.tanh(x.sum()) + x[0]


def plain(x):
    return jnp.sin(x[0]) * x[1]


def retrieval(function, **options):
    return lambda key: function(drawn(key, 4), drawn(key, 6, 4), beta=8.0, **options)


def attention(key, **options):
    return hopfield.attend(
        drawn(key, 3, 4), drawn(key, 6, 4), drawn(key, 6, 2), beta=8.0, **options
    )


def gradient(function, *shape):
    return lambda key: jax.grad(lambda x: jnp.sum(function(x)))(drawn(key, *shape))


def of_keys(function, **options):
    return lambda key: function(drawn(key, 6, 4), mask=SEEN, **options)


def denoising(function, **options):
    return lambda key: function(drawn(key, 4), drawn(key, 50, 4), **options)


CORE = {
    "fixed_point": lambda key: fixed_point(half, drawn(key, 3), jnp.zeros(3)),
    "fixed_point unrolled": lambda key: fixed_point(
        half, drawn(key, 3), jnp.zeros(3), gradient="unrolled"
    ),
    "at_fixed_point": lambda key: at_fixed_point(half, drawn(key, 3), 2 * drawn(key, 3)),
    "energy": retrieval(hopfield.energy),
    "update": retrieval(hopfield.update, mask=SEEN),
    "retrieve": retrieval(hopfield.retrieve),
    "retrieve masked": retrieval(hopfield.retrieve, mask=SEEN, gradient="unrolled"),
    "retrieve gradient": gradient(lambda x: hopfield.retrieve(x[0], x, beta=8.0).value, 6, 4),
    "trajectory": retrieval(hopfield.trajectory, num_steps=3),
    "attend": attention,
    "attend many keys": lambda key: hopfield.attend(
        drawn(key, 3, 4), drawn(key, 20, 4), drawn(key, 20, 2), beta=8.0
    ),
    "attend masked": partial(attention, mask=jnp.ones((3, 6), bool), gradient="unrolled"),
    "attend gradient": gradient(lambda x: hopfield.attend(x, x, x, beta=8.0).values, 6, 4),
    **{
        name: of_keys(getattr(hopfield, name))
        for name in ("key_spectrum", "eigen_entropy", "effective_rank", "participation_ratio")
    },
    "gini": of_keys(hopfield.gini),
    "esr_penalty": of_keys(hopfield.esr_penalty),
    "esr_penalty gradient": gradient(hopfield.esr_penalty, 6, 4),
    "gaussian_noise": lambda key: hopfield.gaussian_noise(key, drawn(key, 6, 4), sigma=level(key)),
    "select_tokens": lambda key: hopfield.select_tokens(drawn(key, 6), share=0.5, mask=SEEN),
    "matched_sigma": of_keys(hopfield.matched_sigma, snr_db=3.0),
    "snr_db": lambda key: hopfield.snr_db(drawn(key, 6, 4), level(key) * drawn(key, 6, 4)),
    "denoise": denoising(hopfield.denoise, block_size=7),
    "denoise with sigma": lambda key: denoising(hopfield.denoise, sigma=level(key))(key),
    "denoise gradient": gradient(lambda x: hopfield.denoise(x[0], x, sigma=0.5).value, 6, 4),
    "denoise_normalized": denoising(
        hopfield.denoise_normalized,
        offset=jnp.ones(4),
        scale=jnp.ones(4),
        bias=jnp.zeros(4),
        epsilon=1e-5,
    ),
    "candidates": denoising(hopfield.candidates, count=3),
    "estimate_sigma": lambda key: hopfield.estimate_sigma(drawn(key, 5, 4), drawn(key, 50, 4)),
    "capacity_snr_db": lambda key: hopfield.capacity_snr_db(9 * level(key), width=4),
    "reconstruction_bound": of_keys(hopfield.reconstruction_bound, beta=2.0, delta=0.1),
    "certified_radius": of_keys(hopfield.certified_radius),
    "recovery_bound": lambda key: hopfield.recovery_bound(drawn(key, 6, 4), sigma=level(key)),
    "recovery_rate": lambda key: hopfield.recovery_rate(drawn(key, 6, 4), sigma=level(key)),
}


def estimate(function, fn, **options):
    return lambda key: function(fn, key, num_samples=128, **options)


def own_pair(key, shape, *, rho):
    first, fresh = jax.random.normal(key, (2, *shape))
    return first, rho * first + jnp.sqrt(1 - rho**2) * fresh


def probabilities(tokens):
    return jax.nn.softmax(jnp.sin(tokens[..., None] * jnp.arange(3.0)))


STABILITY = {
    "gaussian_pair": lambda key: stability.gaussian_pair(key, (5,), rho=level(key)),
    "bit_pair": lambda key: stability.bit_pair(key, (5,), rho=level(key)),
    "bonami_beckner_pair": lambda key: stability.bonami_beckner_pair(
        key, IDS, rho=level(key), num_tokens=10
    ),
    "noise_stability": lambda key: estimate(
        stability.noise_stability, network, shape=(5,), rho=level(key), batch_size=16
    )(key),
    "noise_stability of a plain function": estimate(
        stability.noise_stability, plain, shape=(5,), rho=jnp.array([0.2, 0.5])
    ),
    "noise_stability of your own pair": estimate(
        stability.noise_stability, plain, shape=(5,), rho=0.5, pair=own_pair
    ),
    "noise_stability on arcs": estimate(
        stability.noise_stability, network, shape=(5,), rho=0.5, arc_points=4, per_output=True
    ),
    "total_influence": estimate(
        stability.total_influence, lambda bits: jnp.tanh(bits.sum()), num_bits=4
    ),
    "geometric_influence": lambda key: stability.geometric_influence(network, drawn(key, 9, 4)),
    "level_weights": estimate(stability.level_weights, network, shape=(5,), degree=3),
    "walsh_weights": lambda key: stability.walsh_weights(
        lambda bits: network(bits * level(key)), num_bits=4
    ),
    "spectral_tail_bound": lambda key: stability.spectral_tail_bound(
        level(key), 1.0, rho=0.5, degree=3
    ),
    "stability_penalty": lambda key: stability.stability_penalty(
        *(jax.nn.softmax(drawn(each, 3, 4)) for each in jax.random.split(key))
    ),
    "stability_regularizer": lambda key: stability.stability_regularizer(
        probabilities, key, IDS, probabilities(IDS), rho=level(key), num_tokens=10
    ),
    "relu_stability": lambda key: stability.relu_stability(level(key)),
    "attention_stability": lambda key: stability.attention_stability(level(key), num_tokens=5),
    "transformer_recurrence": lambda key: theory.transformer_recurrence(level(key), num_layers=3),
    "relu_process_stability": lambda key: theory.relu_process_stability(level(key), mean=0.5),
}


def of_model(model, *inputs, **options):
    """Calls a model with other parameters each time."""
    params = model.init(jax.random.key(0))
    return lambda key: model.apply(
        jax.tree.map(lambda leaf: leaf * (1 + level(key)), params), *inputs, **options
    )


def of_layer(layer):
    layer = layer(8, rngs=nnx.Rngs(0))
    return lambda key: (layer(drawn(key, 2, 5, 8), MASK), layer.weights(drawn(key, 2, 5, 8), MASK))


def of_pretrained(family, folder, change=lambda model: model):
    model = change(nn.load_pretrained(save_random(folder, family)))
    maps = (model.attention_maps,) * (family != "gemma2")
    return lambda key: [fn(model.embed(IDS) * level(key), MASK) for fn in (model.forward, *maps)]


def released(_):
    program = nn.load_released(TINY)
    with np.load(TINY) as file:
        ids, mask, noise = file["ids"], file["mask"], file["noise"]
    return lambda key: program.classify(ids, mask, noise=level(key) * noise)


NN = {
    "SoftmaxAttention": lambda _: of_layer(nn.SoftmaxAttention),
    "HopfieldAttention": lambda _: of_layer(nn.HopfieldAttention),
    "HopfieldAttention of texts": lambda _: of_layer(partial(nn.HopfieldAttention, scope="text")),
    "recall": lambda _: lambda key: nn.recall(drawn(key, 2, 5, 4), drawn(key, 50, 4)),
    "tinybert": lambda _: of_model(nn.tinybert(10, 2, **SIZES), IDS, MASK),
    "robertha": lambda _: of_model(nn.robertha(10, 2, **SIZES), IDS, MASK),
    "universal_bert": lambda _: of_model(
        nn.universal_bert(10, 2, num_steps=3, halting=True, width=8, ff_width=8), IDS, MASK
    ),
    "decoder": lambda _: of_model(nn.decoder(10, 10, width=8), IDS),
    "with_memory": lambda _: of_model(nn.with_memory(nn.tinybert(10, 2, **SIZES)), IDS, MASK),
    "functional": lambda _: of_model(nn.functional(partial(nnx.Linear, 3, 2)), jnp.ones(3)),
    "text_classifier": lambda folder: of_model(
        nn.text_classifier(nn.load_pretrained(save_random(folder, "bert")), 2), IDS, MASK
    ),
    "replace_attention": lambda folder: of_pretrained(
        "bert", folder, lambda model: nn.replace_attention(model, nn.HopfieldAttention, beta=2.0)
    ),
    "load_released": released,
    **{
        f"load_pretrained {family}": partial(of_pretrained, family)
        for family in ("bert", "roberta", "gpt2", "gemma2", "llama")
    },
}


@pytest.mark.parametrize("name", [*CORE, *STABILITY, *NN])
def test_a_second_call_compiles_nothing(name, tmp_path):
    call = NN[name](tmp_path) if name in NN else (CORE | STABILITY)[name]
    events = []

    def listen(event, *_, **__):
        events.append(event)

    first, second = jax.random.split(jax.random.key(0))
    one = jax.block_until_ready(call(first))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        other = jax.block_until_ready(call(second))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert events.count(LOWERING) == 0
    if name in STABILITY:  # traced, its loops over batches are another program
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), jax.jit(call)(second), other
        )
    assert any(
        (np.asarray(x) != np.asarray(y)).any()
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_every_public_function_is_in_the_table():
    public = {
        name
        for module in (hopfield, stability, nn)
        for name, value in vars(module).items()
        if isfunction(value) and not name.startswith("_")
    }
    calls = {name.split()[0] for name in (CORE | STABILITY | NN)}
    assert not public - calls - {"with_precision", "find_preset"}  # neither computes
