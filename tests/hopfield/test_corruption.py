from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax import hopfield

SILENT = jnp.zeros((6, 4))


@pytest.fixture
def signal(rng):
    return rng.normal(size=(6, 4)) * np.linspace(0.5, 3, 6)[:, None] + 1


def draws(signal, *, count, sigma, mask=None):
    keys = jax.random.split(jax.random.key(0), count)
    return jax.vmap(lambda k: hopfield.gaussian_noise(k, signal, sigma=sigma, mask=mask))(keys)


def test_noise_has_the_asked_deviation_mean_and_shape():
    sigma, noise = 0.7, draws(jnp.zeros((25, 40)), count=100, sigma=0.7)
    assert noise.shape == (100, 25, 40)
    count = noise.size
    # Five standard errors, themselves small: of the mean sigma/sqrt(n), of the square sqrt(2/n).
    assert sigma / count**0.5 < 0.003
    assert abs(noise.mean()) < 5 * sigma / count**0.5
    assert abs((noise**2).mean() / sigma**2 - 1) < 5 * (2 / count) ** 0.5
    # Gaussian: fourth moment 3, with standard error sqrt(96/n).
    assert abs((noise**4).mean() / sigma**4 - 3) < 5 * (96 / count) ** 0.5
    # White: no two coordinates or tokens go together.
    flat = np.asarray(noise[:, :2, :3]).reshape(100, 6) / sigma
    assert np.abs(np.corrcoef(flat.T) - np.eye(6)).max() < 5 / 100**0.5


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_noise_of_any_dtype_is_that_of_float32(dtype):
    key = jax.random.key(3)
    exact = hopfield.gaussian_noise(key, jnp.zeros((2000, 50)), sigma=2.0)
    noise = hopfield.gaussian_noise(key, jnp.zeros((2000, 50), dtype), sigma=2.0)
    np.testing.assert_array_equal(noise, exact.astype(dtype))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_tokens_draws_do_not_depend_on_the_padded_length(dtype):
    key = jax.random.key(3)
    long = hopfield.gaussian_noise(key, jnp.zeros((9, 5), dtype), sigma=1.0)
    assert long.dtype == dtype
    assert len(np.unique(long)) > 30
    for length in (1, 4, 8):
        short = hopfield.gaussian_noise(key, jnp.zeros((length, 5), dtype), sigma=1.0)
        # The same random bits; vector lanes may round the normal made of them differently.
        np.testing.assert_allclose(
            *(a.astype(jnp.float32) for a in (short, long[:length])),
            rtol=float(jnp.finfo(dtype).eps) * 4,
        )


def test_padding_gets_no_noise_and_changes_nothing():
    key, mask = jax.random.key(3), jnp.array([True, False, True, True, False, False])
    bare = hopfield.gaussian_noise(key, SILENT, sigma=1.0)
    noise = hopfield.gaussian_noise(key, jnp.full((6, 4), jnp.nan), sigma=1.0, mask=mask)
    np.testing.assert_array_equal(noise, jnp.where(mask[:, None], bare, 0))


def test_vmapped_keys_are_separate_runs():
    together = draws(SILENT, count=4, sigma=1.0)
    for i, key in enumerate(jax.random.split(jax.random.key(0), 4)):
        alone = jax.jit(hopfield.gaussian_noise)(key, SILENT, sigma=1.0)
        np.testing.assert_allclose(together[i], alone, rtol=1e-6)
    assert len(np.unique(together)) == together.size


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("bfloat16", 1e-5)])
def test_ratio_is_the_oracles(signal, rng, dtype, rtol):
    with jax.enable_x64(dtype == "float64"):
        pair = jnp.asarray(signal, dtype), jnp.asarray(rng.normal(size=signal.shape), dtype)
        ratio, sigma = hopfield.snr_db(*pair), hopfield.matched_sigma(pair[0], snr_db=0.0)
        assert ratio.dtype == sigma.dtype == ("float32" if dtype == "bfloat16" else dtype)
        exact = (np.asarray(each, np.float64) for each in pair)
        np.testing.assert_allclose(ratio, oracles.snr_db(*exact), rtol=rtol)


@pytest.mark.parametrize("wanted", [-20.0, 6.02])
def test_matched_noise_has_the_asked_ratio(signal, wanted):
    sigma = hopfield.matched_sigma(signal, snr_db=wanted)
    # Exactly so for its expected power, d sigma^2 a token...
    power = oracles.snr_db(signal, np.full(signal.shape, float(sigma)))
    np.testing.assert_allclose(power, wanted, atol=1e-4)
    # ...and on average over draws.
    realized = hopfield.snr_db(
        jnp.tile(signal, (500, 1)), draws(signal, count=500, sigma=sigma).reshape(-1, 4)
    )
    standard_error = 10 / np.log(10) * (2 / (500 * signal.size)) ** 0.5
    assert standard_error < 0.06
    assert abs(realized - wanted) < 5 * standard_error


@pytest.mark.parametrize("filler", [1e6, np.nan])
def test_padding_counts_for_nothing(signal, rng, filler):
    rows, mask = np.concatenate([signal, np.full((3, 4), filler)]), jnp.arange(9) < 6
    noise = rng.normal(size=rows.shape)
    expected = hopfield.snr_db(signal, noise[:6])
    np.testing.assert_allclose(hopfield.snr_db(rows, noise, mask=mask), expected, rtol=1e-5)
    sigma = jax.jit(jax.value_and_grad(partial(hopfield.matched_sigma, snr_db=3.0)))
    value, gradient = sigma(rows, mask=mask)
    wanted, bare = sigma(signal)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient[:6], bare, rtol=1e-5)
    np.testing.assert_array_equal(gradient[6:], 0)


def test_gradient_of_the_matched_deviation(x64, signal):
    sigma = jax.jit(lambda s: hopfield.matched_sigma(s, snr_db=3.0))
    expected = oracles.central_difference(sigma, signal)
    np.testing.assert_allclose(jax.grad(sigma)(signal), expected, rtol=1e-6)


def test_silence_has_no_noise_to_match():
    sigma = jax.value_and_grad(partial(hopfield.matched_sigma, snr_db=3.0))
    for mask in (None, jnp.zeros(6, bool)):
        value, gradient = sigma(SILENT, mask=mask)
        assert value == 0
        np.testing.assert_array_equal(gradient, 0)
    assert hopfield.snr_db(SILENT + 1, SILENT) == np.inf
    assert hopfield.snr_db(SILENT, SILENT + 1) == -np.inf
    assert np.isnan(hopfield.snr_db(SILENT, SILENT))


def test_each_token_may_have_its_own_ratio(signal):
    mask = jnp.arange(6) < 4
    sigma = hopfield.matched_sigma(signal, snr_db=3.0, mask=mask, per_token=True)
    alone = [float(hopfield.matched_sigma(token[None], snr_db=3.0)) for token in signal[:4]]
    np.testing.assert_allclose(sigma, [*alone, 0, 0], rtol=1e-6)
    noise = hopfield.gaussian_noise(jax.random.key(0), signal, sigma=sigma)
    unit = hopfield.gaussian_noise(jax.random.key(0), signal, sigma=1.0)
    np.testing.assert_allclose(noise, sigma[:, None] * unit, rtol=1e-6)


def test_eq_6_of_the_paper_leaves_out_the_dimension():
    width, sigma = 768, 0.5
    signal = jnp.ones((200, width))
    noise = hopfield.gaussian_noise(jax.random.key(0), signal, sigma=sigma)
    norms = jnp.linalg.norm(noise, axis=-1)
    np.testing.assert_allclose(norms.mean(), sigma * width**0.5, rtol=0.01)
    as_printed = 10 * np.log10(float(jnp.sum(signal[0] ** 2)) / sigma**2)
    below = as_printed - hopfield.snr_db(signal, noise)
    np.testing.assert_allclose(below, 10 * np.log10(width), atol=0.1)
    assert round(float(below)) == 29


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_selected_tokens_have_the_highest_scores(rng, share):
    """Of a batch; equal scores are common, and padding has the highest one."""
    scores, lengths = rng.integers(0, 4, (50, 9)).astype(float), rng.integers(0, 10, (50, 1))
    mask = np.arange(9) < lengths
    scores[~mask] = np.inf
    select = jax.vmap(lambda scores, mask: hopfield.select_tokens(scores, share=share, mask=mask))
    for row, length, selected in zip(scores, lengths[:, 0], select(scores, mask), strict=True):
        count = max(round(share * length), 1) if share else 0
        best = sorted(range(length), key=lambda place, row=row: (-row[place], place))[:count]
        assert np.flatnonzero(selected).tolist() == sorted(best)
