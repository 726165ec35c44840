from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.nn.encoder import Classification, Encoding
from hopfax.nn.functional import Functional
from hopfax.nn.models import universal_bert
from hopfax.train.adversarial import Ball, freelb, pgd, with_noise
from hopfax.train.objectives import Batch, classification, per_example, task_loss, texts_of

KEY = jax.random.key(0)
ESR = {"esr_weight": 0.7, "esr_target": 0.2}


def labeled(labels, weights, lengths=3, tokens=3):
    ids = jnp.ones((len(labels), 1, tokens), jnp.int32)
    lengths = jnp.broadcast_to(jnp.asarray(lengths), len(labels))[:, None]
    return Batch(ids, lengths, jnp.asarray(labels), jnp.asarray(weights, jnp.float32))


def value_and_grad(objective, params, batch):
    (loss, parts), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(
        params, batch, KEY
    )
    return loss, parts, gradient


@pytest.mark.parametrize("regression", [False, True])
def test_task_loss_is_the_mean_over_real_rows(rng, regression):
    logits = rng.normal(size=(5, 1 if regression else 3)).astype(np.float32) * 4
    labels = np.array([0, 2, 1, 1, 0], np.float32 if regression else np.int32)
    if regression:
        losses = (logits[:, 0] - labels) ** 2
    else:
        exponentials = np.exp(logits.astype(np.float64))
        losses = -np.log(exponentials[np.arange(5), labels] / exponentials.sum(1))
    batch = labeled(labels, [1, 1, 0, 1, 0])
    loss = task_loss(jnp.asarray(logits), batch, regression=regression)
    np.testing.assert_allclose(loss, losses[[0, 1, 3]].mean(), rtol=1e-6)


def test_cross_entropy_at_its_limits():
    loss = jax.value_and_grad(partial(task_loss, regression=False))
    huge = jnp.array([[1e4, -1e4], [1e4, -1e4]])
    for weights, expected in ([1, 1], 1e4), ([0, 0], 0):
        np.testing.assert_allclose(loss(huge, labeled([0, 1], weights))[0], expected)
    # A padding row may have any label; a class that the model lacks gives nan.
    value, slope = loss(jnp.zeros((2, 2)), labeled([1, -1], [1, 0]))
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    assert slope.tolist() == [[0.5, -0.5], [0, 0]]
    for label in -1, 2:
        assert jnp.isnan(loss(jnp.zeros((1, 2)), labeled([label], [1]))[0])


def test_choice_loss_equals_texts_scored_one_by_one():
    model = tiny.softmax(1)
    params, rows = tiny.lively(model), tiny.batch(3, choices=2, weights=[1, 0, 1])
    ids, mask = texts_of(rows)
    assert ids.shape == (6, 12) and np.array_equal(mask.sum(1), rows.lengths.ravel())
    assert per_example(jnp.arange(6.0)[:, None], rows).tolist() == [[0, 1], [2, 3], [4, 5]]
    loss, parts = jax.jit(classification(model))(params, rows, None)
    network, total = jax.jit(lambda text: model.apply(params, text, text > 0)), 0.0
    for example in (0, 2):
        scores = [float(network(text[None]).logits[0, 0]) for text in rows.ids[example]]
        total += np.log(np.exp(scores).sum()) - scores[int(rows.labels[example])]
    np.testing.assert_allclose(loss, total / 2, rtol=1e-5)
    np.testing.assert_allclose(parts.task, loss)
    assert (parts.esr, parts.num_steps) == (0, 0)


@pytest.fixture
def encoding(rng):
    keys = rng.normal(size=(2, 3, 6, 4)).astype(np.float32)
    steps = rng.integers(1, 9, (2, 3, 2, 6)).astype(np.int32)
    return Encoding(jnp.zeros((3, 6, 4)), jnp.asarray(keys), jnp.asarray(steps), steps < 6)


def parts_of(encoding, weights, lengths, **options):
    """The parts of the loss of a model with this encoding."""
    model = Functional(None, lambda *_, **__: Classification(jnp.zeros((3, 2)), encoding))
    batch = labeled([0, 1, 0], weights, lengths, tokens=6)
    return classification(model, **options)({}, batch, KEY)[1]


@pytest.mark.parametrize(
    ("entropy", "oracle"), [("shannon", oracles.eigen_entropy), ("renyi2", oracles.renyi2_entropy)]
)
def test_esr_sums_layers_and_averages_texts_as_numpy_does(encoding, entropy, oracle):
    lengths, options = (6, 3, 4), ESR | {"esr_entropy": entropy}
    keys = [layer[text, : lengths[text]] for layer in np.asarray(encoding.keys) for text in (0, 2)]
    expected = sum((oracle(each) - 0.2) ** 2 for each in keys) / 2
    esr = parts_of(encoding, [1, 0, 1], lengths, **options).esr
    np.testing.assert_allclose(esr, expected, rtol=1e-4)
    in_nats = parts_of(encoding, [1, 0, 1], lengths, esr_in_nats=True, **options).esr
    np.testing.assert_allclose(in_nats, esr * np.log(4) ** 2, rtol=1e-6)


def test_convergence_is_of_real_queries_only(encoding):
    parts = parts_of(encoding, [1, 0, 1], (6, 3, 4))
    mask = np.arange(6) < np.array([6, 0, 4])[:, None]
    steps = np.moveaxis(np.asarray(encoding.num_steps), 2, 3)[:, mask]
    np.testing.assert_allclose(parts.num_steps, steps.mean(), rtol=1e-6)
    np.testing.assert_allclose(parts.unconverged, (steps >= 6).mean(), rtol=1e-6)
    assert parts_of(encoding, [0, 0, 0], (6, 3, 4)).num_steps == 0


MODELS = {
    "softmax": (tiny.softmax, {}),
    "paper-esr": (partial(tiny.hopfield, preset="paper", max_steps=4), ESR),
    "hopfield-esr": (tiny.hopfield, ESR),
}


@pytest.mark.parametrize("name", MODELS)
def test_longer_padding_and_padding_rows_change_nothing(name):
    build, options = MODELS[name]
    model = build(dropout=0.0)
    params, objective = tiny.lively(model), classification(model, **options)
    rows = tiny.batch(5, weights=[1, 1, 1, 0, 0])
    # Tokens 1 to 9 occur in padding rows alone, positions 12 to 15 in padding alone.
    ids = jnp.where((rows.ids > 0) & (rows.ids < 10), 20, rows.ids)
    ids = ids.at[3:].set(ids[3:] % 9 + 1)
    alone = jax.tree.map(lambda field: field[:3], rows._replace(ids=ids))
    ids = jnp.pad(ids, ((0, 0), (0, 0), (0, 4)), constant_values=9)
    loss, parts, gradient = value_and_grad(objective, params, rows._replace(ids=ids))
    expected = value_and_grad(objective, params, alone)
    tiny.assert_close(expected, (loss, parts, gradient), rtol=2e-4, atol=2e-5)
    table = np.asarray(gradient["tokens"]["embedding"])
    assert table[20].any()
    assert not table[:10].any()  # exactly zero
    assert not np.asarray(gradient["positions"]["embedding"])[12:].any()
    assert (parts.esr > 0.01) == bool(options)
    np.testing.assert_allclose(loss, parts.task + 0.7 * parts.esr, rtol=1e-6)


def test_released_esr_is_of_all_tokens_in_nats_and_not_of_padding_rows():
    model = tiny.hopfield(preset="released", dropout=0.0, max_steps=4, num_layers=2)
    options = ESR | {"esr_in_nats": True, "esr_masked": False}
    params, alone = tiny.lively(model), tiny.batch(3)
    objective = classification(model, **options)
    loss, parts, gradient = value_and_grad(objective, params, alone)
    ids, mask = texts_of(alone)
    keys = np.asarray(jax.jit(lambda: model.apply(params, ids, mask).encoding.keys)())
    entropies = [oracles.entropy(oracles.key_spectrum(text)) for layer in keys for text in layer]
    penalties = np.square(np.array(entropies) - 0.2 * np.log(16))
    np.testing.assert_allclose(parts.esr, penalties.sum() / 3, rtol=1e-3)
    # All queries stop together, so a padding row must not iterate for longer.
    rows = jax.tree.map(lambda field: jnp.concatenate([field, field[:2]]), alone)
    rows = rows._replace(weights=jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    filled = value_and_grad(objective, params, rows)
    tiny.assert_close((loss, parts, gradient), filled, rtol=2e-4, atol=2e-5)


UNIVERSAL = universal_bert(
    tiny.VOCAB, 2, halting=True, num_steps=4, dropout=0.0, width=16, ff_width=16, max_length=16
)


def test_tokens_that_halt_pay_for_their_steps():
    """0.01 times N + R, the mean over a text's real tokens and over the real rows."""
    model = UNIVERSAL
    params, rows = tiny.lively(model), tiny.batch(3, weights=(1, 0, 1))
    objective = classification(model)
    loss, parts, gradient = value_and_grad(objective, params, rows)
    ids, mask = map(np.asarray, texts_of(rows))
    ponder = np.asarray(jax.jit(lambda: model.apply(params, ids, mask).encoding.ponder)())
    assert ponder[~mask].any() and np.ptp(ponder[mask]) > 0.1
    costs = [ponder[text][mask[text]].astype(np.float64).mean() for text in (0, 2)]
    np.testing.assert_allclose(loss - parts.task, 0.01 * np.mean(costs), rtol=1e-3)
    unpaid = jax.jit(jax.grad(lambda params: objective(params, rows, KEY)[1].task))(params)
    differences = jax.tree.map(lambda one, other: np.abs(one - other).max(), unpaid, gradient)
    assert max(jax.tree.leaves(differences)) > 1e-4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("model", "method"),
    [
        (tiny.hopfield(), None),
        (UNIVERSAL, None),
        *((tiny.bag(), partial(method, ball=Ball())) for method in (freelb, pgd)),
        (tiny.bag(), partial(with_noise, sigma=0.1)),
    ],
)
def test_with_x64_float32_parameters_have_float32_gradients(model, method):
    objective = classification(model, **ESR) if method is None else method(classification(model))
    loss, _, gradient = value_and_grad(objective, tiny.lively(model), tiny.batch(2))
    assert {leaf.dtype for leaf in (loss, *jax.tree.leaves(gradient))} == {np.dtype("float32")}
