"""The decoder: its formula by hand, who sees whom, padding, and how it starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.nn import decoder
from hopfax.nn.decoder import sinusoids

SIZES = {"width": 6, "num_layers": 2}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = IDS > 0


def test_sinusoids_by_hand():
    output = sinusoids(3, 5)
    assert output.shape == (3, 5)
    for t in range(3):
        for i in range(5):
            angle = t / 10000 ** (2 * (i // 2) / 5)
            np.testing.assert_allclose(
                output[t, i], (np.cos if i % 2 else np.sin)(angle), rtol=1e-6
            )


@pytest.mark.parametrize("norm_first", [True, False])
def test_one_layer_is_the_formula(x64, redraw, norm_first):
    model = decoder(10, 3, width=4, num_layers=1, norm_first=norm_first)
    params = redraw(model, dtype=np.float64)
    own = jax.tree.map(np.asarray, params)["blocks"][0]
    x = np.asarray(params["tokens"]["embedding"])[IDS[0]] * 2 + sinusoids(5, 4)

    def linear(part, x):
        return x @ part["kernel"] + part["bias"]

    def norm(part, x):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / scale * np.asarray(part["scale"]) + np.asarray(part["bias"])

    def attend(x):
        heads = []
        for part in (slice(0, 2), slice(2, 4)):
            query, key, value = (
                linear(own["attention"][name], x)[:, part] for name in ("query", "key", "value")
            )
            rows = []
            for t in range(5):
                seen = range(t + 1)
                weights = np.exp([query[t] @ key[s] / 2**0.5 for s in seen])
                rows.append(sum(w * value[s] for w, s in zip(weights, seen, strict=True)))
                rows[-1] = rows[-1] / weights.sum()
            heads.append(np.stack(rows))
        return linear(own["attention"]["out"], np.concatenate(heads, axis=1))

    def feed_forward(x):
        return linear(own["ff_out"], np.maximum(linear(own["ff_in"], x), 0))

    if norm_first:
        x = x + attend(norm(own["attention_norm"], x))
        x = norm(params["norm"], x + feed_forward(norm(own["ff_norm"], x)))
    else:
        x = norm(own["attention_norm"], x + attend(x))
        x = norm(own["ff_norm"], x + feed_forward(x))
    expected = linear(jax.tree.map(np.asarray, params["reader"]), x.mean(0))
    output = model.apply(params, jnp.asarray(IDS[:1]))
    np.testing.assert_allclose(output[0], expected, rtol=1e-9)


def test_tokens_see_what_comes_before_them(redraw):
    """By gradient: of each token's first logit with respect to every embedding."""
    model = decoder(10, 10, reading="each", **SIZES)
    network = model.apply(redraw(model), method=lambda module: module)
    ids = jnp.asarray(IDS[:1])

    def logits(embeddings):
        mask = jnp.ones((1, 5), bool)
        return network.read_out(network.decode(embeddings, mask), mask)[0, :, 0]

    slopes = jax.jacrev(logits)(network.embed(network.embed_tokens(ids)))
    reached = np.abs(np.asarray(slopes)).max(axis=(1, 3)) > 0
    assert reached.tolist() == np.tri(5, dtype=bool).tolist()


def test_padding_changes_nothing(redraw):
    model = decoder(10, 3, **SIZES)
    params = redraw(model)
    network = model.apply(params, method=lambda module: module)
    padded = network(jnp.asarray(IDS), MASK)
    np.testing.assert_allclose(
        network(jnp.asarray(IDS[1:, :3]))[0], padded[1], rtol=1e-5, atol=1e-6
    )

    def loss(embeddings):
        hidden = network.decode(embeddings, MASK)
        return jnp.sum(jnp.square(network.read_out(hidden, MASK)))

    slopes = jax.grad(loss)(network.embed(network.embed_tokens(jnp.asarray(IDS))))
    assert np.all(np.asarray(slopes)[~MASK] == 0)
    assert np.all(np.abs(np.asarray(slopes)[MASK]).max(axis=-1) > 0)


def test_it_starts_as_the_paper_says():
    model = decoder(200, 50, width=64)
    params = model.init(jax.random.key(0))
    kernel = params["blocks"][0]["ff_in"]["kernel"]
    assert kernel.shape == (64, 256), "four times the width inside"
    assert abs(float(kernel.std()) - 0.02) < 5 * 0.02 / (2 * kernel.size) ** 0.5
    assert not params["reader"]["bias"].any()
    bound = (6 / (200 + 64)) ** 0.5
    table = params["tokens"]["embedding"]
    assert bound > float(jnp.abs(table).max()) > 0.99 * bound
    assert "positions" not in params, "sinusoids are not trained"


def test_dropout_is_for_training():
    model = decoder(10, 3, dropout=0.5, **SIZES)
    network = model.apply(model.init(jax.random.key(0)), method=lambda module: module)
    ids, key = jnp.asarray(IDS), jax.random.key(1)
    assert network(ids).tolist() == network(ids).tolist()
    assert network(ids, key=key).tolist() == network(ids, key=key).tolist()
    assert network(ids, key=key).tolist() != network(ids).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reading": "last"}, "mean.*each.*'last'"),
        ({"num_heads": 4}, "width 6 does not divide into 4 heads"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        decoder(10, 3, **SIZES | options)
