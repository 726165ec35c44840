"""The key spectrum, its summaries and its gradient, degenerate keys above all."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax import hopfield

SUMMARIES = {
    "eigen_entropy": (hopfield.eigen_entropy, oracles.eigen_entropy),
    "effective_rank": (hopfield.effective_rank, oracles.effective_rank),
    "participation_ratio": (hopfield.participation_ratio, oracles.participation_ratio),
    "gini": (hopfield.gini, oracles.gini),
    "esr_penalty": (hopfield.esr_penalty, partial(oracles.esr_penalty, target=0.35)),
    "renyi2": (partial(hopfield.eigen_entropy, entropy="renyi2"), oracles.renyi2_entropy),
    "penalty of renyi2": (
        partial(hopfield.esr_penalty, entropy="renyi2"),
        lambda keys: (oracles.renyi2_entropy(keys) - 0.35) ** 2,
    ),
}
NAMES = list(SUMMARIES)
ENTROPIES = ("eigen_entropy", "renyi2")


@jax.jit
def measure(keys, mask=None):
    """All summaries at once: one compilation serves them all."""
    return jnp.stack([fn(keys, mask=mask) for fn, _ in SUMMARIES.values()])


spectrum = jax.jit(hopfield.key_spectrum)
slopes = jax.jit(jax.jacrev(measure))


def assert_is_the_oracles(measured, keys, *, rtol):
    for got, (name, (_, oracle)) in zip(measured, SUMMARIES.items(), strict=True):
        np.testing.assert_allclose(got, oracle(keys), rtol=rtol, err_msg=name)


# More directions than tokens (Gram matrix), as many, and fewer (covariance).
@pytest.fixture(params=[(3, 6), (5, 5), (9, 4)], ids=str)
def keys(request, rng):
    return rng.normal(size=request.param) * np.linspace(0.3, 2, request.param[1]) + 5


def simplex(width):
    """Keys that vary equally along every direction."""
    return np.concatenate([np.eye(width), -np.eye(width)])


# Few shapes, for fewer compilations.
DEGENERATE = {
    "constant": np.full((6, 4), 0.1),
    "constant, each coordinate another": np.tile([0.1, -3.3, 1e4, 0.7], (6, 1)),
    "zero": np.zeros((6, 4)),
    "single token": np.array([[0.3, -1.0, 2.0, 0.5]]),
    "duplicates": np.tile([1.0, 2.0, 3.0, 4.0], (3, 1)),
    "two values": np.repeat([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]], 3, axis=0),
    "one direction": np.outer(np.arange(6.0), [1.0, -2.0, 0.5, 3.0]),
    "repeated eigenvalues": simplex(4),
    "repeated eigenvalues, fewer tokens": np.eye(3, 4),
}


def test_a_target_above_one_only_raises_the_entropy(x64, rng):
    keys = jnp.asarray(rng.normal(size=(9, 4)))
    entropy, slope = jax.value_and_grad(hopfield.eigen_entropy)(keys)
    for target in (1.5, 50):  # all warnings are errors
        raised = jax.grad(hopfield.esr_penalty)(keys, target=target)
        np.testing.assert_allclose(raised, -2 * (target - entropy) * slope, rtol=1e-9)


def test_spectrum_and_summaries_are_the_papers(x64, keys):
    assert_is_the_oracles(measure(keys), keys, rtol=1e-9)
    shares = spectrum(keys)
    assert shares.shape == (keys.shape[1],)
    np.testing.assert_allclose(shares, oracles.key_spectrum(keys), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(jnp.sum(shares), 1, rtol=1e-12)
    assert (np.diff(shares) <= 0).all()
    assert (shares[keys.shape[0] - 1 :] < 1e-15).all()  # centring costs one direction


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_low_precision_keys_are_measured_in_float32(keys, dtype):
    keys = jnp.asarray(keys, dtype)
    assert measure(keys).dtype == spectrum(keys).dtype == jnp.float32
    assert_is_the_oracles(measure(keys), np.asarray(keys, np.float64), rtol=1e-4)


def test_unequal_spread_by_hand():
    # Variances 3 : 1 along the first two of three axes.
    keys = np.array([[3**0.5, 0, 0], [-(3**0.5), 0, 0], [0, 1, 0], [0, -1, 0]])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(hopfield.key_spectrum(keys), [0.75, 0.25, 0], atol=1e-6)
    expected = [entropy / np.log(3), np.exp(entropy), 1.6, 0.5]
    np.testing.assert_allclose(measure(keys)[:4], expected, rtol=1e-5)


def test_one_direction_has_all_the_variance_without_rounding():
    keys = DEGENERATE["one direction"]
    np.testing.assert_array_equal(hopfield.key_spectrum(keys), [1, 0, 0, 0])
    found = dict(zip(NAMES, measure(keys), strict=True))
    assert found["eigen_entropy"] == 0
    assert all(0 <= found[name] < 1e-5 for name in ENTROPIES)
    np.testing.assert_allclose(found["gini"], 3 / 4, rtol=1e-6)


@pytest.mark.parametrize("name", ["constant", "constant, each coordinate another", "zero", "nan"])
def test_keys_that_do_not_vary_have_no_spectrum(name):
    # A rounded mean would give them one.
    keys = DEGENERATE.get(name, np.full((6, 4), np.nan))
    for mask in (jnp.zeros(6, bool),) if name == "nan" else (None, jnp.arange(6) < 3):
        np.testing.assert_array_equal(hopfield.key_spectrum(keys, mask=mask), 0)
        expected = [0, 1, 1, 0, np.float32(0.35) ** 2, 0, np.float32(0.35) ** 2]
        np.testing.assert_array_equal(measure(keys, mask), expected)
        np.testing.assert_array_equal(slopes(keys, mask), 0)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_scale_does_not_matter(keys, scale):
    keys = jnp.asarray(keys)
    scaled = keys * scale
    np.testing.assert_allclose(spectrum(scaled), spectrum(keys), rtol=1e-3, atol=1e-6)
    got, wanted = slopes(scaled) * np.float32(scale), slopes(keys)
    np.testing.assert_allclose(got, wanted, atol=1e-3 * np.abs(wanted).max())


def test_gradients_are_central_differences(x64, keys):
    for got, (name, (_, oracle)) in zip(slopes(keys), SUMMARIES.items(), strict=True):
        expected = oracles.central_difference(oracle, keys)
        assert np.abs(expected).max() > 1e-3
        error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        assert error < 1e-6, name


@pytest.mark.parametrize("width", [4, 9])
def test_gradient_at_repeated_eigenvalues(x64, width):
    # Through the covariance (4 wide) and, with empty directions, through the Gram matrix.
    keys = simplex(4)
    keys[0] *= 1.5
    keys = np.concatenate([keys, np.zeros((8, width - 4))], axis=1)
    shares = np.asarray(spectrum(keys))[:4]
    assert (np.abs(np.diff(shares)) < 1e-12).any()
    got = slopes(keys)[:, :, :4]
    for i, name in enumerate(NAMES[:3]):  # gini sorts: it has a corner here
        measured = oracles.central_difference(lambda k, i=i: measure(k)[i], keys)[:, :4]
        assert np.abs(measured).max() > 1e-3
        np.testing.assert_allclose(got[i], measured, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_keys_have_finite_entropy_and_gradient(name, precision):
    with jax.enable_x64(precision == "float64"):
        keys = jnp.asarray(DEGENERATE[name], precision)
        assert measure(keys).dtype == precision
        assert np.isfinite(measure(keys)).all()
        assert np.isfinite(slopes(keys)).all()


@pytest.mark.parametrize("filler", [1e6, np.nan])
def test_padding_changes_nothing_and_gets_no_gradient(x64, keys, filler):
    rows = np.concatenate([np.full((4, keys.shape[1]), filler), keys])
    mask = jnp.arange(len(rows)) >= 4
    # Four more rows change which matrix is the smaller one, too.
    np.testing.assert_allclose(spectrum(rows, mask=mask), spectrum(keys), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(measure(rows, mask), measure(keys), rtol=1e-9)
    got = slopes(rows, mask)
    np.testing.assert_allclose(got[:, 4:], slopes(keys), rtol=1e-6, atol=1e-9)
    assert (np.asarray(got[:, :4]) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_keys_do_not_pass_for_constant_ones(rng, bad):
    keys = rng.normal(size=(6, 4))
    keys[1, 2] = bad
    assert np.isnan(measure(keys)).all()


def test_rounding_does_not_take_the_entropy_out_of_its_range(rng):
    measured = dict(zip(NAMES, measure(simplex(16).astype(np.float32)), strict=True))
    assert all(0.99 < measured[name] <= 1 for name in ENTROPIES)
    lines = rng.normal(size=(100, 9, 1)) * rng.normal(size=(100, 1, 4))
    measured = dict(zip(NAMES, jax.vmap(measure)(jnp.asarray(lines)).T, strict=True))
    assert all((np.abs(measured[name] - 5e-6) <= 5e-6).all() for name in ENTROPIES)


def test_eq_11_does_not_give_the_effective_ranks_of_the_papers_tables():
    # MRPC, clean (Table 28): entropy 0.351 at width 128, effective rank printed as 1.94.
    width, entropy, printed = 128, 0.351, 1.94
    # The same on keys of that entropy: one direction above a faint even rest.
    share = 0.76177
    root = np.diag(np.sqrt([share] + [(1 - share) / (width - 1)] * (width - 1)))
    keys = jnp.asarray(np.concatenate([root, -root]))
    np.testing.assert_allclose(hopfield.eigen_entropy(keys), entropy, atol=1e-3)
    np.testing.assert_allclose(hopfield.effective_rank(keys), width**entropy, rtol=1e-2)
    # A participation ratio could be as low as the printed value; an effective rank could not.
    assert hopfield.participation_ratio(keys) < printed
