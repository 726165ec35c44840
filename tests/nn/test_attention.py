"""Attention layers against loops over single queries."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import nnx
from nn import slow
from nn.slow import attend, project

from hopfax import hopfield, nn
from hopfax.nn import PRESETS, HopfieldAttention, SoftmaxAttention, robertha

WIDTH, BETA = 6, 3.0
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


@pytest.fixture
def x(rng):
    return rng.normal(size=(*MASK.shape, WIDTH))


def functional(build):
    """Returns a layer as functions, with its counts."""
    layer = nn.functional(build)
    return layer._replace(apply=partial(layer.apply, method="attend"))


def softmax_layer(**options):
    return functional(lambda rngs: SoftmaxAttention(WIDTH, rngs=rngs, **options))


def hopfield_layer(**options):
    options = {"beta": BETA} | options
    return functional(lambda rngs: HopfieldAttention(WIDTH, rngs=rngs, **options))


def preset_layer(name):
    """Returns the attention of a model with that preset."""
    model = robertha(3, 2, preset=name, beta=BETA, width=WIDTH, num_layers=1, ff_width=4)
    return functional(lambda rngs: model.build(rngs=rngs).blocks[0].attention)


@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_softmax_attention_is_the_formula(x64, x, redraw, num_heads):
    layer = softmax_layer(num_heads=num_heads)
    params = redraw(layer, dtype=np.float64)
    output = layer.apply(params, x, MASK)
    expected = attend(params, x, MASK, num_heads=num_heads)
    np.testing.assert_allclose(output.values[MASK], expected[MASK], rtol=1e-10)
    np.testing.assert_allclose(output.keys[MASK], project(params, "key", x)[MASK], rtol=1e-12)
    assert output.num_steps.shape == output.converged.shape == (2, num_heads, 5)


@pytest.mark.parametrize(("causal", "tokens"), [(False, 1), (True, 4), (True, 20)])
def test_short_heads_are_the_same_on_all_devices(monkeypatch, causal, tokens):
    layer = softmax_layer(causal=causal)
    params = layer.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, tokens, WIDTH))
    mask = jnp.arange(tokens) < jnp.array([[tokens], [1], [max(1, tokens // 2)]])
    results = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)

        def program(x):
            values = layer.apply(params, x, mask).values
            return jnp.sum(jnp.where(mask[..., None], values, 0) ** 2)

        results.append(jax.jit(jax.value_and_grad(program))(x))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_softmax_attention_drops_weights(x, redraw):
    layer = softmax_layer(dropout=0.5)
    params = redraw(layer)
    keys = jax.random.split(jax.random.key(0), 2000)
    output = jax.vmap(lambda key: layer.apply(params, x, MASK, key=key).values[MASK])(keys)
    error = jnp.std(output, axis=0) / len(keys) ** 0.5
    # The read-out is linear in the weights, so that their mean is kept.
    plain = layer.apply(params, x, MASK).values[MASK]
    assert np.all(np.abs(output.mean(0) - plain) < 5 * error + 1e-6) and np.all(error > 0)


@pytest.mark.parametrize("name", ["hopfax", "paper"])
def test_queries_are_retrieved_independently(x64, x, redraw, name):
    layer = preset_layer(name)
    params = redraw(layer, dtype=np.float64)
    assert ("query" in params, "out" in params) == ((name == "hopfax"),) * 2
    counts = np.zeros((2, 2, 5), int)
    converged = np.zeros(counts.shape, bool)

    def move(b, h, t, query, keys):
        beta, relative = (BETA / np.sqrt(WIDTH / 2), True) if name == "hopfax" else (BETA, False)
        state, counts[b, h, t], converged[b, h, t] = oracles.retrieve(
            query, keys, beta, relative=relative
        )
        return state

    # In the paper, Eq. 7 has no factor 1/sqrt(d), and Eq. 13, the read-out, has no beta.
    expected = attend(params, x, MASK, beta=BETA if name == "hopfax" else 1.0, move=move)
    output = layer.apply(params, x, MASK)
    np.testing.assert_allclose(output.values[MASK], expected[MASK], rtol=1e-9)
    real = np.broadcast_to(MASK[:, None], counts.shape)
    assert output.num_steps[real].tolist() == counts[real].tolist()
    assert output.converged[real].tolist() == converged[real].tolist()
    assert len(set(counts[real].tolist())) > 2


LAYERS = {
    "softmax": softmax_layer(),
    "unrolled": hopfield_layer(gradient="unrolled"),
    "no-iteration": hopfield_layer(max_steps=0),
    **{name: preset_layer(name) for name in PRESETS},
}


def evaluation(layer, mask=MASK):
    """Returns a function of the layer's output, and gradients of its outputs at real tokens."""

    def run(params, x):
        output = layer.apply(params, x, mask)
        weights = jnp.cos(jnp.arange(x.size).reshape(x.shape))
        return jnp.sum(jnp.where(MASK[..., None], weights * output.values, 0)), output

    both = jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))

    def evaluated(params, x):
        (_, output), slopes = both(params, x)
        return output, slopes

    return evaluated


@pytest.mark.parametrize("name", LAYERS)
def test_padding_changes_nothing_but_in_the_released_program(x, redraw, name):
    layer = LAYERS[name]
    params = redraw(layer)
    x = jnp.asarray(x, jnp.float32)
    filler = jnp.array([7.0] * WIDTH if name == "released" else [7.0, np.nan, np.inf] * 2)
    other = jnp.where(MASK[..., None], x, 100 * x[:, ::-1] + filler)
    evaluated = evaluation(layer)
    output, (slopes, content) = evaluated(params, x)
    moved, moved_slopes = evaluated(params, other)
    assert np.isfinite(output.values[MASK]).all()
    if name == "released":
        assert not np.allclose(output.values[MASK], moved.values[MASK], atol=1e-3)
        assert np.abs(content[~MASK]).max() > 1e-6
        return
    jax.tree.map(np.testing.assert_array_equal, (slopes, content), moved_slopes)
    assert output.values[MASK].tolist() == moved.values[MASK].tolist()
    real = np.broadcast_to(MASK[:, None], output.num_steps.shape)
    assert output.num_steps[real].tolist() == moved.num_steps[real].tolist()
    assert not np.any(content[~MASK])
    assert np.abs(content[MASK]).max() > 1e-3


def test_the_gradient_has_as_many_terms_as_there_are_updates(rng):
    query, key, value = rng.normal(size=(3, 2, 2, 5, 3)).astype("f")
    layer = HopfieldAttention(6, num_heads=2, beta=BETA, max_steps=2, rngs=nnx.Rngs(0))
    mask = jnp.ones((2, 5), bool)

    def slope(key, attend):
        return jax.grad(lambda key: jnp.sum(jnp.sin(attend(query, key, value).values)))(key)

    def by_core(terms):
        head = partial(hopfield.attend, beta=layer.beta, max_steps=2, adjoint_max_steps=terms)
        return jax.vmap(jax.vmap(head))

    by_layer = slope(key, lambda *qkv: layer.attend_heads(*qkv, mask, mask[:, None]))
    two, many = (slope(key, by_core(terms)) for terms in (2, 1000))
    np.testing.assert_allclose(by_layer, two, rtol=1e-4, atol=1e-6)
    assert np.abs(two - many).max() > 1e-3


@pytest.mark.parametrize("name", ["softmax", "hopfax", "unrolled"])
def test_a_text_without_real_tokens_is_finite(x, redraw, name):
    run, mask = LAYERS[name].apply, jnp.array([[True] * 5, [False] * 5])
    total = jax.value_and_grad(lambda params: jnp.sum(run(params, x.astype("f"), mask).values))
    for leaf in jax.tree.leaves(jax.jit(total)(redraw(LAYERS[name]))):
        assert np.all(np.isfinite(leaf))


def test_without_iteration_it_is_one_read_out(x64, x, redraw):
    layer = hopfield_layer(max_steps=0)
    params = redraw(layer, dtype=np.float64)
    output = layer.apply(params, x, MASK)
    expected = attend(params, x, MASK, beta=BETA)
    np.testing.assert_allclose(output.values[MASK], expected[MASK], rtol=1e-10)
    assert not output.num_steps.any()
    assert output.converged.all()
    plain = softmax_layer().apply(params, x, MASK)
    unit = hopfield_layer(max_steps=0, beta=1.0).apply(params, x, MASK)
    np.testing.assert_allclose(unit.values, plain.values, rtol=1e-12)
    assert np.abs(output.values - plain.values).max() > 1e-3
    assert np.abs(slopes(layer, x)(params)["query"]["kernel"]).max() > 1e-2


def sum_of_squares(layer, x):
    return jax.jit(lambda params: jnp.sum(layer.apply(params, x, MASK).values[MASK] ** 2))


def slopes(layer, x):
    return jax.jit(jax.grad(sum_of_squares(layer, x)))


def test_gradient_three_ways(x64, x, redraw):
    # Not so cold that a query is on the ridge between two basins.
    options = {"beta": 1.0, "tol": 1e-13, "max_steps": 400}
    layer = hopfield_layer(**options)
    params = redraw(layer, dtype=np.float64)
    assert layer.apply(params, x, MASK).converged.all()
    implicit, direction = slopes(layer, x)(params), redraw(layer, dtype=np.float64)
    loss = sum_of_squares(layer, x)
    up, down = (
        loss(jax.tree.map(lambda p, d, h=h: p + h * d, params, direction)) for h in (1e-6, -1e-6)
    )
    along = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, implicit, direction)))
    np.testing.assert_allclose(along, (up - down) / 2e-6, rtol=1e-6)
    unrolled = slopes(hopfield_layer(gradient="unrolled", **options), x)(params)
    assert not any(np.any(leaf) for leaf in implicit.pop("query").values())
    assert np.abs(unrolled.pop("query")["kernel"]).max() < 1e-9
    close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-9)
    jax.tree.map(close, implicit, unrolled)


@pytest.mark.parametrize("name", ["softmax", "hopfax", "paper", "released"])
def test_jit_equals_eager_and_texts_are_independent(x, redraw, name):
    params, run = redraw(LAYERS[name]), LAYERS[name].apply
    x = jnp.asarray(x, jnp.float32)
    eager, compiled = run(params, x, MASK), jax.jit(run)(params, x, MASK)
    np.testing.assert_allclose(compiled.values, eager.values, rtol=1e-5, atol=1e-6)
    assert compiled.num_steps.tolist() == eager.num_steps.tolist()
    alone = run(params, x[1:], MASK[1:])
    if name == "released":
        assert alone.num_steps.ravel()[0] != eager.num_steps.ravel()[0]
    else:
        np.testing.assert_allclose(alone.values[0], eager.values[1], rtol=1e-5, atol=1e-6)
        assert alone.num_steps[0].tolist() == eager.num_steps[1].tolist()


@pytest.mark.parametrize(
    ("layer", "relative", "groups"),
    [
        (preset_layer("algorithm"), False, [[0], [1], [2]]),
        (preset_layer("released"), True, [[0, 1, 2]]),
        (hopfield_layer(scope="batch", min_steps=1), True, [[0, 1, 2]]),
    ],
    ids=["algorithm", "released", "batch"],
)
def test_queries_that_stop_together_do_so_by_one_norm(x64, rng, redraw, layer, relative, groups):
    """Over all heads, and over real tokens unless padding is stored."""
    module = slow.bind(layer, redraw(layer))
    heads = module.num_heads
    mask = np.arange(5) < np.array([[2], [3], [2]])
    real = mask | (not module.mask_keys)
    run = jax.jit(lambda params, x: layer.apply(params, x, mask))
    for _ in range(5):  # in a third of the draws, padding would change the count
        params, x = redraw(layer, scale=1.0, dtype=np.float64), rng.normal(size=(3, 5, WIDTH))
        split = (3, 5, heads, WIDTH // heads)
        state, keys = (project(params, name, x).reshape(split) for name in ("query", "key"))
        output, beta = run(params, x), BETA / (WIDTH // heads) ** 0.5
        for group in groups:
            moved, rows = state[group], real[group]
            for count in range(1, 51):  # noqa: B007
                before = moved.copy()
                for place, text in enumerate(group):
                    for t, h in np.ndindex(5, heads):
                        own = keys[text, real[text], h]
                        moved[place, t, h] = oracles.update(before[place, t, h], own, beta)
                change = np.linalg.norm((moved - before)[rows])
                if change <= 1e-4 * (np.linalg.norm(before[rows]) if relative else 1):
                    break
            assert set(np.asarray(output.num_steps[np.array(group)]).ravel().tolist()) == {count}
            state[group] = moved
        move = partial(lambda state, b, h, t, *_: state[b, t, h], state)
        expected = attend(params, x, real, num_heads=heads, beta=BETA, move=move)
        np.testing.assert_allclose(output.values[real], expected[real], rtol=1e-8)


CAUSAL = {
    "softmax": softmax_layer,
    "query": hopfield_layer,
    "text": partial(hopfield_layer, scope="text", max_steps=4),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_layers_are_the_same_on_a_prefix_and_with_a_mask_per_query(x64, x, redraw, name):
    causal, free = CAUSAL[name](causal=True), CAUSAL[name]()
    params = redraw(causal, dtype=np.float64)
    output, slopes = evaluation(causal)(params, x)
    assert np.abs(output.values - free.apply(params, x, MASK).values)[MASK].max() > 1e-3
    real = np.broadcast_to(MASK[:, None], output.num_steps.shape)
    filled = np.where(MASK[..., None], x, [7.0, np.nan, np.inf] * 2)
    pairs = np.tri(5, dtype=bool) & MASK[:, None] & MASK[..., None]
    for layer, mask in ((causal, MASK), (free, pairs)):
        other, others = evaluation(layer, mask)(params, filled)
        np.testing.assert_allclose(other.values[MASK], output.values[MASK], rtol=1e-12)
        assert other.num_steps[real].tolist() == output.num_steps[real].tolist()
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-12), others, slopes)
        assert not others[1][~MASK].any()
    if name == "text":  # all of a text count for its stop rule
        return
    for length in (1, 3):
        prefix = causal.apply(params, x[:, :length], MASK[:, :length])
        np.testing.assert_allclose(prefix.values, output.values[:, :length], rtol=1e-10)
        assert prefix.num_steps.tolist() == output.num_steps[..., :length].tolist()


@pytest.mark.parametrize("name", ["softmax", "query"])
def test_a_token_that_no_query_sees_changes_nothing(x, redraw, name):
    """The usual mask: padding is not seen, but sees."""
    layer = CAUSAL[name]()
    params, seen = redraw(layer), jnp.broadcast_to(MASK[:, None], (*MASK.shape, MASK.shape[1]))
    padded = jnp.where(MASK[..., None], x, jnp.nan)
    got = layer.apply(params, padded, seen)
    np.testing.assert_array_equal(got.values[MASK], layer.apply(params, x, seen).values[MASK])


@pytest.mark.parametrize("layer", [SoftmaxAttention, HopfieldAttention])
def test_layers_take_and_return_arrays_and_without_a_mask_all_tokens_are_real(x, layer):
    layer = layer(WIDTH, rngs=nnx.Rngs(0))
    first, last = (nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(seed)) for seed in (1, 2))
    output = nnx.Sequential(first, layer, last)(x, rngs=nnx.Rngs(3))
    np.testing.assert_array_equal(output, last(layer.attend(first(x), np.ones_like(MASK)).values))
    assert layer(x[:, :0], MASK[:, :0]).shape == (2, 0, WIDTH)
