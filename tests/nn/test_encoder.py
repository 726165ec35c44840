import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn import slow

from hopfax import hopfield, nn
from hopfax.nn import Encoder, SoftmaxAttention, decoder, functional, robertha, tinybert
from hopfax.nn.attention import dropout
from hopfax.nn.block import HIDDEN, WEIGHTS, Block
from hopfax.nn.decoder import sinusoids
from hopfax.nn.encoder import Perturbation

SMALL = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}
SIZES = {"width": 6, "num_layers": 2, "ff_width": 10, "max_length": 8}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = IDS > 0


def encoder(attention=None, **options):
    attention = attention or partial(nn.HopfieldAttention, beta=3.0)
    options = SIZES | options
    return functional(lambda rngs: Encoder(10, 3, attention=attention, rngs=rngs, **options))


@pytest.fixture
def bind(redraw):
    """Returns a model's module with random parameters."""
    return lambda model: slow.bind(model, redraw(model))


def test_the_call_is_its_stages_with_a_perturbation_of_each_site(bind):
    network = bind(encoder())
    tokens = network.embed_tokens(jnp.asarray(IDS))
    noise = 0.3 * jax.random.normal(jax.random.key(0), tokens.shape)
    embeddings = network.embed(tokens + noise) + 2 * noise
    encoding = network.encode(embeddings, MASK)
    logits = network.classify(encoding.hidden, MASK)
    output = network(jnp.asarray(IDS), MASK, added=Perturbation(noise, 2 * noise))
    assert output.logits.tolist() == logits.tolist()
    assert logits.shape == (2, 3) and encoding.keys.shape == (2, 2, 5, 6)
    assert encoding.num_steps.shape == encoding.converged.shape == (2, 2, 2, 5)
    jax.tree.map(np.testing.assert_array_equal, output.encoding, encoding)
    states = network.hidden_states(embeddings, MASK)
    np.testing.assert_allclose(states[-1], encoding.hidden, atol=1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_the_formula(x64, redraw, rng, norm_first):
    model = encoder(SoftmaxAttention, norm_first=norm_first, num_layers=1)
    params = redraw(model, dtype=np.float64)
    block, own = slow.bind(model, params).blocks[0], params["blocks"][0]
    x = rng.normal(size=(2, 5, 6))
    expected = slow.block(own, x, MASK, norm_first=norm_first)
    np.testing.assert_allclose(block(x, MASK).values[MASK], expected[MASK], rtol=1e-9)


def test_mean_pooling_excludes_padding_and_cls_pooling_reads_the_first_token(bind, rng):
    mean, cls = bind(encoder()), bind(encoder(pooling="cls"))
    hidden = jnp.where(MASK[..., None], rng.normal(size=(2, 5, 6)), jnp.nan)
    expected = mean.classifier(jnp.stack([hidden[0].mean(0), hidden[1, :3].mean(0)]))
    np.testing.assert_allclose(mean.classify(hidden, MASK), expected, rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(mean.classify(hidden, np.zeros_like(MASK))))
    expected = cls.classifier(jnp.tanh(cls.pooler(hidden[:, 0])))
    np.testing.assert_allclose(cls.classify(hidden, MASK), expected, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.875])
def test_dropout_has_its_rate_and_keeps_the_mean(rate):
    count = 200_000
    dropped = np.asarray(dropout(jax.random.key(5), 3 * jnp.ones(count), rate))
    share = np.mean(dropped == 0)
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / count) + 2**-16
    np.testing.assert_allclose(dropped[dropped != 0], 3 / (1 - rate), rtol=2**-13)
    standard_error = 3 * np.sqrt(rate / (1 - rate) / count)
    assert standard_error < 0.02
    assert abs(dropped.mean() - 3) < 5 * standard_error


def test_dropout_without_a_key_or_rate_and_with_extreme_rates():
    x = jnp.ones((40, 5))
    assert dropout(None, x, 0.5) is x
    assert dropout(jax.random.key(0), x, 0.0) is x
    assert dropout(jax.random.key(0), x.astype(jnp.bfloat16), 0.5).dtype == jnp.bfloat16
    # Rounded to 16 bits, this rate must not become 0.
    kept = dropout(jax.random.key(0), jnp.ones(2**17), 1 - 1e-7) != 0
    assert kept.sum() < 20


@pytest.mark.parametrize(
    ("model", "hidden", "output"),
    [
        (tinybert(10, 3, **SMALL), 0.0, 0.1),
        (decoder(10, 3, width=8, num_layers=1), 0.1, 0.0),  # Appendix J.1
        (tinybert(10, 3, drop_hidden=True, **SMALL), 0.1, 0.1),
    ],
)
def test_sites_of_dropout_in_a_block(bind, model, hidden, output):
    block, key = bind(model).blocks[0], jax.random.key(3)
    assert block.attention.dropout == block.dropout == 0.1
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 8)), jnp.float32)
    first, second = jax.random.split(key)
    third = jax.random.fold_in(key, HIDDEN) if hidden and output else second
    attended = block.attention(x, MASK, key=jax.random.fold_in(key, WEIGHTS))
    entry = block.attention_norm(x + dropout(first, attended, 0.1))
    inner = dropout(third, block.activation(block.ff_in(entry)), hidden)
    expected = block.ff_norm(entry + dropout(second, block.ff_out(inner), output))
    values = block(x, MASK, key=key).values
    np.testing.assert_allclose(values[MASK], expected[MASK], rtol=1e-4, atol=1e-5)


def test_embeddings_and_the_pooled_vector_are_dropped(bind):
    network, x, key = bind(tinybert(10, 3, **SMALL)), jnp.ones((2, 5, 8)), jax.random.key(3)
    assert (network.embed(x, key=key) == 0).any()
    assert (network.classify(x, MASK, key=key) != network.classify(x, MASK)).any()
    assert "key" not in inspect.signature(nn.Decoder.embed).parameters


def test_the_released_program_trains_without_dropout_of_keys_and_pooled_vector(redraw):
    model = robertha(10, 3, preset="released", **SMALL | {"num_layers": 2})
    params, keys = redraw(model), (None, jax.random.key(0), jax.random.key(1))
    clean, one, other = (model.apply(params, jnp.asarray(IDS), MASK, key=key) for key in keys)
    # ESR's keys come from embeddings without dropout, through blocks with it.
    np.testing.assert_allclose(one.encoding.keys[0], clean.encoding.keys[0], atol=1e-5)
    assert np.abs(one.encoding.keys[1] - clean.encoding.keys[1]).max() > 1e-2
    logits = model.apply(params, one.encoding.hidden, MASK, method="classify")
    np.testing.assert_allclose(one.logits, logits, atol=1e-5)
    assert np.abs(one.logits - other.logits).max() > 1e-2


@pytest.mark.parametrize("make", [partial(encoder, SoftmaxAttention), partial(decoder, 10, 3)])
def test_every_layer_has_its_own_dropout(bind, monkeypatch, make):
    keys, call = [], Block.__call__

    def spied(block, x, mask, *, key=None):
        keys.append(jax.random.key_data(key).tolist())
        return call(block, x, mask, key=key)

    monkeypatch.setattr(Block, "__call__", spied)
    network = bind(make(width=6, num_layers=2))
    network(jnp.asarray(IDS), MASK, key=jax.random.key(0))
    assert len(keys) == 2 and keys[0] != keys[1]


MODELS = {
    "tinybert": tinybert(10, 3, **SMALL),
    "robertha": robertha(10, 3, **SMALL),
    "universal": nn.universal_bert(10, 3, width=8, ff_width=12, max_length=8),
    "decoder": decoder(10, 3, width=8, num_layers=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_in_padding_reaches_logits_or_gradients(redraw, name):
    """Embeddings of ids outside the vocabulary are nan."""
    model, mask = MODELS[name], jnp.asarray(MASK)

    def loss(params, ids):
        outputs = model.apply(params, ids, mask)
        return jnp.sum(jnp.sin(outputs if name == "decoder" else outputs.logits))

    step, ids = jax.jit(jax.value_and_grad(loss)), jnp.asarray(IDS)
    params = redraw(model)
    same = step(params, jnp.where(mask, ids, -1)), step(params, jnp.where(mask, ids, 1))
    jax.tree.map(np.testing.assert_array_equal, *same)


def test_ids_outside_the_vocabulary_have_nan_embeddings(redraw, bind):
    for model in (encoder(), decoder(10, 3, width=6, num_layers=1)):
        tokens = bind(model).embed_tokens(jnp.array([[3, 10, -1]]))
        assert np.isnan(tokens).all(-1).tolist() == [[False, True, True]]
    model = robertha(10, 3, preset="released", **SMALL)  # which stores padding
    logits = model.apply(redraw(model), np.where(MASK, IDS, -1), jnp.asarray(MASK)).logits
    assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()


def touched(gradient):
    """Parameters that got any gradient."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").rsplit("/", 1)[0]
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)
        if np.any(np.asarray(leaf) != 0)
    }


def trained_by_keys(model, params):
    """For each layer, the parameters that a penalty on its keys trains."""
    of_text = jax.vmap(lambda keys, mask: hopfield.esr_penalty(keys, mask=mask))

    def penalty(params, layer):
        network = slow.bind(model, params)
        keys = network(jnp.asarray(IDS), MASK).encoding.keys
        return jax.vmap(of_text, in_axes=(0, None))(keys, MASK).sum(-1)[layer]

    gradient = jax.jit(jax.grad(penalty))
    return [touched(gradient(params, layer)) for layer in range(2)]


@pytest.mark.parametrize("norm_first", [True, False])
def test_isolated_keys_train_only_their_layer(redraw, norm_first):
    build = partial(encoder, SoftmaxAttention, norm_first=norm_first)
    models = [build(stop_gradient_keys=isolated) for isolated in (True, False)]
    params = redraw(models[0])
    (first, second), (same, more) = (trained_by_keys(each, params) for each in models)
    own = {"attention/key", "attention_norm"} if norm_first else {"attention/key"}
    assert first == same == {"tokens", "positions", "norm"} | {f"blocks/0/{x}" for x in own}
    assert second == {f"blocks/1/{name}" for name in own}
    below = {name for name in touched(params) if not name.startswith(("blocks/1", "classifier"))}
    assert more == second | below


@pytest.mark.parametrize("layer", [SoftmaxAttention, partial(nn.HopfieldAttention, beta=3.0)])
def test_attention_maps_are_the_weights_of_the_values(layer, bind):
    network = bind(encoder(layer, norm_first=True))
    embeddings = network.embed(network.embed_tokens(jnp.asarray(IDS)))
    maps = network.attention_maps(embeddings, jnp.asarray(MASK))
    assert maps.shape == (2, 2, 2, 5, 5)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    assert not maps[..., ~MASK[1]][:, 1].any()
    attention, x = network.blocks[0].attention, network.blocks[0].attention_norm(embeddings)
    values = attention.value(jnp.where(MASK[..., None], x, 0)).reshape(2, 5, 2, 3)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", maps[0], values).reshape(2, 5, 6)
    expected = attention(x, jnp.asarray(MASK))
    np.testing.assert_allclose(attention.out(mixed)[MASK], expected[MASK], atol=1e-6)


def test_embeddings_add_positions_and_types_and_the_second_type_follows_the_separator(redraw):
    model, ids = encoder(num_types=2, separator=1, position_offset=2), jnp.asarray(IDS)
    params = redraw(model)
    network = slow.bind(model, params)
    types = network.token_types(ids)
    assert types.tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    tokens, positions, kinds = (params[n]["embedding"] for n in ("tokens", "positions", "types"))
    expected = slow.norm(params["norm"], np.asarray(tokens[ids] + positions[2:7] + kinds[types]))
    assert network.embed_tokens(ids).tolist() == tokens[ids].tolist()
    embeddings = network.embed(tokens[ids], types)
    np.testing.assert_allclose(embeddings, expected, rtol=1e-4, atol=1e-5)
    logits = network.classify(network.encode(embeddings, MASK).hidden, MASK)
    assert network(ids, MASK).logits.tolist() == logits.tolist()


def test_sinusoids_by_hand():
    t, i = np.mgrid[:3, :5]
    angle = t / 10000 ** (2 * (i // 2) / 5)
    np.testing.assert_allclose(sinusoids(3, 5), np.where(i % 2, np.cos(angle), np.sin(angle)), 1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_of_one_layer_is_the_formula(x64, redraw, norm_first):
    model = decoder(10, 3, width=4, num_layers=1, norm_first=norm_first)
    params = redraw(model, dtype=np.float64)
    own = params["blocks"][0]
    x = np.asarray(params["tokens"]["embedding"])[IDS] * 2 + sinusoids(5, 4)
    relu = partial(np.maximum, 0)
    x = slow.block(own, x, MASK, norm_first=norm_first, activation=relu, causal=True)
    if norm_first:
        x = slow.norm(params["norm"], x)
    expected = slow.linear(params["reader"], np.stack([x[0].mean(0), x[1, :3].mean(0)]))
    np.testing.assert_allclose(model.apply(params, jnp.asarray(IDS), MASK), expected, rtol=1e-9)


def test_initial_parameters_of_a_decoder_are_the_papers():
    model = decoder(200, 50, width=64)
    params = model.init(jax.random.key(0))
    kernel = params["blocks"][0]["ff_in"]["kernel"]
    assert kernel.shape == (64, 256)
    assert abs(float(kernel.std()) - 0.02) < 5 * 0.02 / (2 * kernel.size) ** 0.5
    assert not params["reader"]["bias"].any()
    bound = (6 / (200 + 64)) ** 0.5
    table = params["tokens"]["embedding"]
    assert bound > float(jnp.abs(table).max()) > 0.99 * bound
    assert "positions" not in params


plain = partial(encoder, partial(SoftmaxAttention, dropout=0.1))
DEFAULTS = {"norm_first": True, "pooling": "mean", "epsilon": 1e-5}  # those of Encoder


def universal(**options):
    sizes = {name: size for name, size in SIZES.items() if name != "num_layers"}
    return nn.universal_bert(10, 3, **DEFAULTS | sizes | options)


def run(model, params, **how):
    return jax.jit(lambda p: model.apply(p, jnp.asarray(IDS), jnp.asarray(MASK), **how))(params)


def test_steps_are_layers_of_the_same_parameters(redraw):
    model = universal(num_steps=3)
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
    model = universal(num_steps=4, halting=True)
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


@pytest.mark.parametrize("make", [plain, universal])
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
