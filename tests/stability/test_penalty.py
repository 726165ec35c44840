import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.stability import bonami_beckner_pair, stability_penalty, stability_regularizer

PROBS, NOISY = jnp.array([0.7, 0.2, 0.1]), jnp.array([0.5, 0.1, 0.4])


def test_penalties_are_the_definition_one_per_example():
    certain = jnp.array([0.0, 1.0, 0.0])
    first = jnp.stack([PROBS, certain, certain])
    second = jnp.stack([NOISY, certain, jnp.roll(certain, 1)])
    agreement = [0.7 * 0.5 + 0.2 * 0.1 + 0.1 * 0.4, 1, 0]
    for stabilize, sign in ((True, -1), (False, 1)):
        penalty = stability_penalty(first, second, stabilize=stabilize)
        np.testing.assert_allclose(penalty, np.multiply(sign, agreement), rtol=1e-6)


@pytest.mark.parametrize(
    "wrong", [[9.0, -4.0, 5.0], [0.5, 0.5, 0.002], [1.2, -0.1, -0.1], [jnp.nan] * 3]
)
@pytest.mark.parametrize("first", [True, False])
def test_logits_give_nan(wrong, first):
    args = (jnp.array(wrong), PROBS) if first else (PROBS, jnp.array(wrong))
    slopes = jax.jit(jax.value_and_grad(stability_penalty, argnums=(0, 1)))(*args)
    assert all(np.isnan(part).all() for part in jax.tree.leaves(slopes))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rounded_probabilities_are_taken(dtype):
    probs = jax.nn.softmax(jax.random.normal(jax.random.key(0), (8, 1000), dtype))
    for penalty in (stability_penalty, jax.jit(stability_penalty)):
        assert np.isfinite(penalty(probs, probs)).all()


TABLE = jnp.array([[0.7, 0.3], [0.1, 0.9], [0.5, 0.5]])
TOKENS = jnp.array([[0, 1], [2, 2], [1, 0], [0, 0]])


def model(tokens):
    return TABLE[tokens].mean(axis=1)


def regularized(key=None, **options):
    key = jax.random.key(0) if key is None else key
    options = {"rho": 0.2, "num_tokens": 3, "tokens": TOKENS, "probs": model(TOKENS)} | options
    return stability_regularizer(model, key, **options)


def test_the_regularizer_is_the_mean_penalty_of_noisy_copies():
    key = jax.random.key(3)
    _, noisy = bonami_beckner_pair(key, TOKENS, rho=0.2, num_tokens=3)
    for sign in (True, False):
        expected = stability_penalty(model(TOKENS), model(noisy), stabilize=sign).mean()
        np.testing.assert_allclose(regularized(key, stabilize=sign), expected, rtol=1e-6)


def test_noise_never_replaces_tokens_outside_the_mask():
    mask = jnp.array([[True, False], [False, False], [True, True], [False, True]])
    draw = {"key": jax.random.key(0), "tokens": TOKENS, "rho": -1.0, "num_tokens": 10**6}
    (_, noisy), (_, every) = (bonami_beckner_pair(**draw, mask=each) for each in (mask, None))
    np.testing.assert_array_equal(noisy, jnp.where(mask, every, TOKENS))
    kept = regularized(rho=-1.0, mask=jnp.zeros(TOKENS.shape, bool), share=0.5)
    np.testing.assert_allclose(kept, regularized(rho=1.0, share=0.5), rtol=1e-6)


@pytest.mark.parametrize(("share", "rows"), [(0.5, 2), (0.01, 1)])
def test_a_share_uses_the_first_rows(share, rows):
    expected = -jnp.sum(model(TOKENS[:rows]) ** 2, axis=-1).mean()
    np.testing.assert_allclose(regularized(rho=1.0, share=share), expected, rtol=1e-6)


@pytest.mark.parametrize("jitted", [True, False])
def test_every_third_step_weighs_three_times_as_much(jitted):
    def at(step):
        probs = model(TOKENS).astype(jnp.bfloat16)
        return regularized(rho=1.0, probs=probs, step=step, every=3)

    found = [(jax.jit(at) if jitted else at)(step) for step in range(6)]
    assert {each.dtype for each in found} == {jnp.dtype(jnp.float32)}
    whole = float(regularized(rho=1.0))
    np.testing.assert_allclose(found, [3 * whole, 0, 0] * 2, rtol=1e-2)


def test_gradients_pass_through_both_outputs():
    def loss(table, both):
        def fn(tokens):
            return table[tokens].mean(axis=1)

        probs = fn(TOKENS) if both else jax.lax.stop_gradient(fn(TOKENS))
        return stability_regularizer(fn, jax.random.key(2), TOKENS, probs, rho=0.2, num_tokens=3)

    slope = jax.grad(loss)(TABLE, True)
    eps = 1e-2
    # Rows keep their sum.
    direction = jax.random.normal(jax.random.key(1), (3, 1)) * jnp.array([[1.0, -1.0]])
    high, low = (loss(TABLE + sign * eps * direction, True) for sign in (1, -1))
    np.testing.assert_allclose((high - low) / (2 * eps), jnp.sum(slope * direction), rtol=1e-3)
    assert not jnp.allclose(slope, jax.grad(loss)(TABLE, False))
