"""Where the Robertha paper's equations do not hold, and what this library does.

Numbers are typed from the paper's tables.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hopfax import hopfield


def test_eq_6_leaves_out_the_dimension():
    width, sigma = 768, 0.5
    signal = jnp.ones((200, width))
    noise = hopfield.gaussian_noise(jax.random.key(0), signal, sigma=sigma)
    norms = jnp.linalg.norm(noise, axis=-1)
    np.testing.assert_allclose(norms.mean(), sigma * width**0.5, rtol=0.01)
    as_printed = 10 * np.log10(float(jnp.sum(signal[0] ** 2)) / sigma**2)
    below = as_printed - hopfield.snr_db(signal, noise)
    np.testing.assert_allclose(below, 10 * np.log10(width), atol=0.1)
    assert round(float(below)) == 29


def test_eq_11_does_not_give_the_effective_ranks_of_the_tables():
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
