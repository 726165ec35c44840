"""The encoder's stages, its dropout, its norms, and what its keys' gradients reach."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield
from hopfax.nn import (
    Decoder,
    Encoder,
    HopfieldAttention,
    SoftmaxAttention,
    decoder,
    functional,
    robertha,
    tinybert,
)
from hopfax.nn.attention import dropout
from hopfax.nn.models import universal_bert

SMALL = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}
SIZES = {"width": 6, "num_layers": 2, "ff_width": 10, "max_length": 8}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = IDS > 0


def encoder(attention=None, **options):
    attention = attention or partial(HopfieldAttention, beta=3.0)
    options = SIZES | options
    return functional(lambda rngs: Encoder(10, 3, attention=attention, rngs=rngs, **options))


def test_the_call_is_its_stages(redraw):
    model = encoder()
    network = model.apply(redraw(model), method=lambda module: module)
    tokens = network.embed_tokens(jnp.asarray(IDS))
    embeddings = network.embed(tokens)
    encoding = network.encode(embeddings, MASK)
    logits = network.classify(encoding.hidden, MASK)
    output = network(jnp.asarray(IDS), MASK)
    assert output.logits.tolist() == logits.tolist()
    assert tokens.shape == embeddings.shape == encoding.hidden.shape == (2, 5, 6)
    assert logits.shape == (2, 3)
    assert encoding.keys.shape == (2, 2, 5, 6)
    assert encoding.num_steps.shape == encoding.converged.shape == (2, 2, 2, 5)
    assert encoding.ponder is None
    for one, other in zip(jax.tree.leaves(output.encoding), jax.tree.leaves(encoding), strict=True):
        assert one.tolist() == other.tolist()


def test_sites_are_where_they_say(x64, redraw):
    model = encoder()
    params = redraw(model, dtype=np.float64)
    network = model.apply(params, method=lambda module: module)
    table = np.asarray(params["tokens"]["embedding"])
    tokens = network.embed_tokens(jnp.asarray(IDS))
    assert tokens.tolist() == table[IDS].tolist(), "not even rounded"
    x = table[IDS] + np.asarray(params["positions"]["embedding"])[:5]
    x = normalised(params["norm"], x)
    np.testing.assert_allclose(network.embed(tokens), x, rtol=1e-10)


def normalised(params, x):
    x = np.asarray(x)
    centred = x - x.mean(-1, keepdims=True)
    scale = np.asarray(params["scale"]) / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred * scale + np.asarray(params["bias"])


@pytest.mark.parametrize("norm_first", [True, False])
def test_norms_stand_before_or_after(x64, redraw, rng, norm_first):
    model = encoder(SoftmaxAttention, norm_first=norm_first, num_layers=1)
    params = redraw(model, dtype=np.float64)
    block, own = model.apply(params, method=lambda module: module).blocks[0], params["blocks"][0]
    x = rng.normal(size=(2, 5, 6))

    def linear(name, x):
        return x @ np.asarray(own[name]["kernel"]) + np.asarray(own[name]["bias"])

    def feed_forward(x):
        inner = linear("ff_in", x)
        return linear("ff_out", inner * jax.scipy.stats.norm.cdf(inner))

    def attend(x):
        return np.asarray(block.attention(x, MASK).values)

    if norm_first:
        y = x + attend(normalised(own["attention_norm"], x))
        expected = y + feed_forward(normalised(own["ff_norm"], y))
    else:
        y = normalised(own["attention_norm"], x + attend(x))
        expected = normalised(own["ff_norm"], y + feed_forward(y))
    np.testing.assert_allclose(block(x, MASK).values, expected, rtol=1e-9)


# -- Pooling and positions ----------------------------------------------------------------------


def test_mean_pooling_leaves_padding_out(redraw, rng):
    model = encoder()
    network = model.apply(redraw(model), method=lambda module: module)
    hidden = jnp.asarray(rng.normal(size=(2, 5, 6)), jnp.float32)
    nans = jnp.where(MASK[..., None], hidden, jnp.nan)
    logits = network.classify(hidden, MASK)
    assert network.classify(nans, MASK).tolist() == logits.tolist()
    mean = jnp.stack([hidden[0].mean(0), hidden[1, :3].mean(0)])
    np.testing.assert_allclose(network.classifier(mean), logits, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda h: network.classify(h, MASK).sum())(hidden)
    assert not np.any(gradient[~MASK])
    assert np.all(np.isfinite(network.classify(hidden, np.zeros_like(MASK))))


def test_cls_pooling_reads_the_first_token(redraw, rng):
    model = encoder(pooling="cls")
    network = model.apply(redraw(model), method=lambda module: module)
    hidden = jnp.asarray(rng.normal(size=(2, 5, 6)), jnp.float32)
    logits = network.classify(hidden, MASK)
    assert network.classify(hidden.at[:, 1:].set(7), MASK).tolist() == logits.tolist()
    np.testing.assert_allclose(
        network.classifier(jnp.tanh(network.pooler(hidden[:, 0]))), logits, rtol=1e-6
    )


def test_order_counts_by_positions_alone(redraw, rng):
    order = rng.permutation(5)
    ids, mask = np.array([[3, 1, 4, 1, 5]]), np.ones((1, 5), bool)
    model = encoder()
    params = redraw(model)
    run = jax.jit(lambda params, ids: model.apply(params, ids, mask))
    plain, shuffled = run(params, ids), run(params, ids[:, order])
    assert np.abs(plain.logits - shuffled.logits).max() > 1e-3
    params["positions"]["embedding"] *= 0
    plain, shuffled = run(params, ids), run(params, ids[:, order])
    np.testing.assert_allclose(shuffled.logits, plain.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        shuffled.encoding.hidden, plain.encoding.hidden[:, order], rtol=1e-4, atol=1e-4
    )


def test_texts_longer_than_the_model_are_refused(redraw):
    model = encoder()
    network = model.apply(redraw(model), method=lambda module: module)
    assert network(jnp.ones((1, 8), int), jnp.ones((1, 8), bool)).logits.shape == (1, 3)
    with pytest.raises(ValueError, match="at most max_length=8 tokens, got 9"):
        network(jnp.ones((1, 9), int), jnp.ones((1, 9), bool))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, '"mean" or "cls", got \'max\''),
        ({"remat": True, "stop_gradient_keys": True}, "remat requires identical blocks"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        encoder(**options)


# -- Dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.875])
def test_dropout_meets_its_rate_and_keeps_the_mean(rate):
    count = 200_000
    x = 3 * jnp.ones(count)
    dropped = np.asarray(dropout(jax.random.key(5), x, rate))
    share = np.mean(dropped == 0)
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / count) + 2**-16
    np.testing.assert_allclose(dropped[dropped != 0], 3 / (1 - rate), rtol=2**-13)
    standard_error = 3 * np.sqrt(rate / (1 - rate) / count)
    assert standard_error < 0.02
    assert abs(dropped.mean() - 3) < 5 * standard_error


def test_dropout_is_its_keys_and_off_without_one():
    x = jnp.ones((40, 5))
    one, again, other = (dropout(jax.random.key(seed), x, 0.5) for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    assert dropout(None, x, 0.5) is x
    assert dropout(jax.random.key(0), x, 0.0) is x
    assert dropout(jax.random.key(0), x.astype(jnp.bfloat16), 0.5).dtype == jnp.bfloat16
    # Rounded to sixteen bits, a rate this large must not become none.
    kept = dropout(jax.random.key(0), jnp.ones(2**17), 1 - 1e-7) != 0
    assert kept.sum() < 20
    for rate in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {rate}"):
            dropout(None, x, rate)


def test_dropout_in_the_encoder_follows_the_key(redraw):
    options = {"attention": SoftmaxAttention, "num_layers": 1}
    model = encoder(dropout=0.3, **options)
    params = redraw(model)
    run = jax.jit(lambda key: model.apply(params, IDS, MASK, key=key).logits)
    one, again, other = (run(jax.random.key(seed)) for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    plain = model.apply(params, IDS, MASK).logits
    assert np.abs(one - plain).max() > 1e-3
    # A rate of zero draws nothing, whatever the key.
    still = encoder(dropout=0.0, **options).apply(params, method=lambda module: module)
    np.testing.assert_allclose(
        still(IDS, MASK, key=jax.random.key(0)).logits, plain, rtol=1e-5, atol=1e-6
    )


def test_every_place_of_dropout_has_its_own_draws(redraw):
    """Embeddings, two per block, and the pooled vector: six places in two layers."""
    model = encoder(dropout=0.5, width=64, ff_width=8)
    network = model.apply(redraw(model, scale=1.0), method=lambda module: module)
    keys = jax.random.split(jax.random.key(0), 3)
    zero = np.asarray(network.embed(network.embed_tokens(jnp.asarray(IDS)), key=keys[0])) == 0
    masks = [zero]
    for number in range(2):
        key = jax.random.fold_in(keys[1], number)
        masks += [
            np.asarray(dropout(part, jnp.ones((2, 5, 64)), 0.5)) == 0
            for part in jax.random.split(key)
        ]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            # 640 coin flips agree in 320 +- 12.6.
            assert abs(np.sum(one == other) - 320) < 64


def test_where_dropout_is(redraw):
    """BERT drops what the feed-forward returns, the decoder its hidden layer (Appendix J.1)."""
    bert, reader = tinybert(10, 3, **SMALL), decoder(10, 3, width=8, num_layers=1)
    for model, hidden in ((bert, False), (reader, True)):
        block = model.apply(redraw(model), method=lambda module: module).blocks[0]
        assert block.attention.dropout == block.dropout == 0.1
        # Nothing else is dropped: with its attention's output zeroed the block is its second half.
        x, key = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 8))), jax.random.key(3)
        for part in (block.attention.out.kernel, block.attention.out.bias):
            part[...] = jnp.zeros_like(part)
        values = block(x, MASK, key=key).values
        entry = block.attention_norm(x)
        inner, drop = block.ff_in(entry), partial(dropout, jax.random.split(key)[1], rate=0.1)
        inner = block.activation(inner)
        change = block.ff_out(drop(inner)) if hidden else drop(block.ff_out(inner))
        np.testing.assert_allclose(values, block.ff_norm(entry + change), rtol=1e-5, atol=1e-6)
    x = jnp.ones((1, 3, 8))
    assert (bert.apply(redraw(bert), method=lambda module: module).embed(x, key=key) == 0).any()
    assert "key" not in inspect.signature(Decoder.embed).parameters


# -- Padding ------------------------------------------------------------------------------------


MODELS = {
    "tinybert": tinybert(10, 3, **SMALL),
    "robertha": robertha(10, 3, **SMALL),
    "universal": universal_bert(10, 3, width=8, ff_width=12, max_length=8),
    "decoder": decoder(10, 3, width=8, num_layers=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_in_padding_reaches_logits_or_gradients(redraw, name):
    model = MODELS[name]
    params = redraw(model)

    def logits(params, padding):
        network = model.apply(params, method=lambda module: module)
        x = network.embed(network.embed_tokens(jnp.asarray(IDS)))
        x = jnp.where(MASK[..., None], x, padding)
        if name == "decoder":
            return network.read_out(network.decode(x, jnp.asarray(MASK)), jnp.asarray(MASK))
        return network.classify(network.encode(x, jnp.asarray(MASK)).hidden, jnp.asarray(MASK))

    def loss(params, padding):
        return jnp.sum(jnp.sin(logits(params, padding)))

    step = jax.jit(jax.value_and_grad(loss))
    value, gradient = step(params, jnp.array([np.nan, np.inf] * 4))
    expected = step(params, jnp.zeros(8))
    assert np.isfinite(value)
    jax.tree.map(np.testing.assert_array_equal, (value, gradient), expected)


def test_an_unknown_id_is_nan(redraw):
    model = tinybert(10, 3, **SMALL)
    network = model.apply(redraw(model), method=lambda module: module)
    assert np.isnan(network.embed_tokens(jnp.array([[3, 10]]))[0, 1]).all()


# -- What gradients reach -----------------------------------------------------------------------


def touched(gradient):
    """Parameters that got any gradient."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").rsplit("/", 1)[0]
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)
        if np.any(np.asarray(leaf) != 0)
    }


def trained_by_keys(model, params):
    """For each layer, the parameters that a penalty on its keys trains."""

    def penalty(params, layer):
        network = model.apply(params, method=lambda module: module)
        embeddings = network.embed(network.embed_tokens(jnp.asarray(IDS)))
        keys = network.encode(embeddings, MASK).keys
        of_text = jax.vmap(lambda keys, mask: hopfield.esr_penalty(keys, mask=mask))
        return jax.vmap(of_text, in_axes=(0, None))(keys, MASK).sum(-1)[layer]

    gradient = jax.jit(jax.grad(penalty))
    return [touched(gradient(params, layer)) for layer in range(2)]


@pytest.mark.parametrize("norm_first", [True, False])
def test_isolated_keys_train_their_own_layer_alone(redraw, norm_first):
    model = encoder(SoftmaxAttention, stop_gradient_keys=True, norm_first=norm_first)
    for layer, trained in enumerate(trained_by_keys(model, redraw(model))):
        own = {f"blocks/{layer}/attention/key"}
        if norm_first:
            own |= {f"blocks/{layer}/attention_norm"}
        if layer == 0:  # no layer below: its keys are the embeddings' own
            own |= {"tokens", "positions", "norm"}
        assert trained == own


def test_other_keys_train_everything_below_them(redraw):
    model = encoder(SoftmaxAttention)
    _, trained = trained_by_keys(model, redraw(model))
    below = {
        "attention/query",
        "attention/key",
        "attention/value",
        "attention/out",
        "attention_norm",
    }
    below |= {"ff_norm", "ff_in", "ff_out"}
    expected = {"tokens", "positions", "norm"} | {f"blocks/0/{name}" for name in below}
    assert trained == expected | {"blocks/1/attention/key", "blocks/1/attention_norm"}


def test_isolating_keys_changes_gradients_only(redraw):
    params = redraw(encoder())
    plain, isolated = (
        encoder(stop_gradient_keys=isolate).apply(params, IDS, MASK) for isolate in (False, True)
    )
    assert plain.logits.tolist() == isolated.logits.tolist()
    real = (model.encoding.keys[:, MASK] for model in (plain, isolated))
    np.testing.assert_allclose(*real, rtol=1e-6)


def test_the_padding_embedding_is_read_and_not_trained(redraw):
    everything, options = np.ones_like(MASK), {"attention": SoftmaxAttention, "num_layers": 1}

    def logits(params, frozen):
        return encoder(padding_idx=frozen, **options).apply(params, IDS, everything).logits.sum()

    params = redraw(encoder(**options))
    assert logits(params, 0) == logits(params, None)
    gradient = jax.jit(jax.grad(logits), static_argnums=1)
    free, frozen = (gradient(params, token)["tokens"]["embedding"] for token in (None, 0))
    assert np.any(free[0])
    assert not np.any(frozen[0])
    assert frozen[1:].tolist() == free[1:].tolist()


@pytest.mark.parametrize("layer", [SoftmaxAttention, partial(HopfieldAttention, beta=3.0)])
def test_attention_maps_are_the_weights_of_the_values(layer, redraw):
    model = encoder(layer, norm_first=True)
    network = model.apply(redraw(model), method=lambda module: module)
    embeddings = network.embed(network.embed_tokens(jnp.asarray(IDS)))
    maps = network.attention_maps(embeddings, jnp.asarray(MASK))
    assert maps.shape == (2, 2, 2, 5, 5)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    assert not maps[..., ~MASK[1]][:, 1].any(), "padding has no weight"
    attention, x = network.blocks[0].attention, network.blocks[0].attention_norm(embeddings)
    values = attention.value(jnp.where(MASK[..., None], x, 0)).reshape(2, 5, 2, 3)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", maps[0], values).reshape(2, 5, 6)
    expected = attention(x, jnp.asarray(MASK)).values
    np.testing.assert_allclose(attention.out(mixed)[MASK], expected[MASK], atol=1e-6)


def test_tokens_after_the_separator_have_the_second_type(redraw):
    plain, model = encoder(), encoder(num_types=2, separator=1, position_offset=2)
    params = redraw(model)
    network = model.apply(params, method=lambda module: module)
    types = network.token_types(jnp.asarray(IDS))
    assert types.tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    # The same sums from a model without types, whose positions have those of each token.
    shifted = {name: leaf for name, leaf in params.items() if name != "types"}
    row = params["positions"]["embedding"][2:] + params["types"]["embedding"][0]
    shifted["positions"] = {"embedding": row}
    np.testing.assert_allclose(
        model.apply(params, jnp.asarray(IDS[1:]), MASK[1:]).logits,
        plain.apply(shifted, jnp.asarray(IDS[1:]), MASK[1:]).logits,
        atol=1e-5,
    )
    first = params["types"]["embedding"][0]
    changed = {**params, "types": {"embedding": jnp.stack([first, first])}}
    logits = [model.apply(p, jnp.asarray(IDS), MASK).logits for p in (params, changed)]
    assert abs(logits[0] - logits[1])[0].max() > 1e-3
    assert logits[0][1].tolist() == logits[1][1].tolist()
