"""Gaussian noise on embeddings, its signal-to-noise ratio, and the choice of tokens it is added to.

Functions take one sequence, one token per row, and a mask that is True where a token is real; None
means all. Use `jax.vmap` for a batch. Wrong shapes raise a ValueError, wrong types (a complex
signal) a TypeError, and numbers out of range a ValueError unless traced.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from hopfax.checks import (
    check_key,
    check_mask,
    check_range,
    check_shapes,
    compile_once,
    full_mask,
    real_type,
)
from hopfax.cpu import fast_key

Signal = Float[Array, "tokens width"]
Mask = Bool[Array, " tokens"] | None


def _check_noise(key: Any, signal: Any, *, sigma: Any, mask: Any = None) -> None:
    check_key(key)
    check_shapes(signal=(signal, "tokens width"))
    of_token = "tokens" if np.ndim(sigma) else ""
    check_shapes(signal=(signal, "tokens width"), sigma=(sigma, of_token))
    check_range(0, sigma=sigma)


@compile_once(check=_check_noise)
def gaussian_noise(
    key: PRNGKeyArray,
    signal: Signal,
    *,
    sigma: float | Float[Array, ""] | Float[Array, " tokens"],
    mask: Mask = None,
) -> Signal:
    r"""Draws white noise with standard deviation `sigma` for every coordinate of every real token.

    The noise of a token has expected squared norm $d\sigma^2$. It depends only on the key and the
    token's position (up to rounding), not on padding.

    Args:
        key: Random key.
        signal: The signal to perturb; only its shape and dtype are used.
        sigma: Standard deviation, >= 0, in the signal's units; one for all tokens or one for each.
        mask: True where a token is real; other tokens get zero. None means all.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> noise = hopfield.gaussian_noise(jax.random.key(0), jnp.zeros((500, 8)), sigma=2.0)
        >>> round(float(noise.std()), 1)
        2.0

    References:
        Robertha, section 3, Eqs. 5 and 6 (which omits the dimension).
    """
    signal, sigma = jnp.asarray(signal), jnp.asarray(sigma)
    mask = check_mask(mask, signal.shape[:1])
    dtype = signal.dtype if jnp.issubdtype(signal.dtype, jnp.floating) else jnp.float32
    # Draws of bfloat16 take only 128 values, with a mean of -0.01.
    wide = real_type(signal)
    draws = jax.random.normal(fast_key(key), signal.shape, wide)
    sigma = jnp.broadcast_to(sigma.astype(wide), signal.shape[:1])
    noise = (sigma[:, None] * draws).astype(dtype)
    return noise if mask is None else jnp.where(mask[:, None], noise, 0)


@compile_once("per_token")
def matched_sigma(
    signal: Signal, *, snr_db: float | Float[Array, ""], mask: Mask = None, per_token: bool = False
) -> Float[Array, ""] | Float[Array, " tokens"]:
    r"""Returns the standard deviation of noise with a given signal-to-noise ratio.

    $$\sigma = \mathrm{rms}(e) \cdot 10^{-SNR/20}$$

    Args:
        signal: One token per row.
        snr_db: The expected signal-to-noise ratio in dB.
        mask: True where a token is real; None means all.
        per_token: Whether each token has this ratio, instead of the sequence.

    Returns:
        The standard deviation for `gaussian_noise`, of each token if `per_token`; 0 in silence.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> signal = jnp.array([[3.0, 4.0], [4.0, 3.0]])  # root mean square 5 / sqrt(2)
        >>> round(float(hopfield.matched_sigma(signal, snr_db=20.0)), 4)
        0.3536
    """
    signal = jnp.asarray(signal)
    check_shapes(signal=(signal, "tokens width"))
    squares, mean = _squared_norms(signal, mask)
    power = (squares if per_token else mean) / signal.shape[-1]
    # The root has an infinite slope at 0, where no token is real.
    silent = power == 0
    rms = jnp.where(silent, 0, jnp.sqrt(jnp.where(silent, 1, power)))
    return rms * 10 ** (-jnp.asarray(snr_db, power.dtype) / 20)


def _check_share(scores: Any, *, share: Any, mask: Any = None) -> None:
    check_shapes(scores=(scores, "tokens"), share=(share, ""))
    check_range(0, 1, share=share)


@compile_once(check=_check_share)
def select_tokens(
    scores: Float[Array, " tokens"], *, share: float | Float[Array, ""], mask: Mask = None
) -> Bool[Array, " tokens"]:
    r"""Returns a mask of the real tokens with the highest scores, for `gaussian_noise`.

    Scores are for instance norms, negative norms (lowest norm first) or uniform draws. Of tokens
    with the same score, the first are selected.

    Args:
        scores: Score of each token, floating-point and not nan.
        share: Share of the real tokens, in [0, 1]. The count is rounded, and at least one if
            `share` > 0.
        mask: True where a token is real; other tokens are never selected. None means all.

    Returns:
        True where a token is selected.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> norms = jnp.linalg.norm(jnp.array([[3.0, 4.0], [0.6, 0.8], [0.0, 2.0]]), axis=1)
        >>> hopfield.select_tokens(-norms, share=0.5).tolist()
        [False, True, True]

    References:
        Robertha, section 3.2, where tokens are chosen by the norm of their embeddings.
    """
    mask = full_mask(mask, jnp.shape(scores))
    share = jnp.asarray(share, real_type(share))
    count = jnp.round(share * jnp.sum(mask).astype(share.dtype))
    count = jnp.where(share > 0, jnp.maximum(count, 1), 0).astype(int)
    order = jnp.lexsort((-jnp.asarray(scores, real_type(scores)), ~mask))
    return mask & (jnp.argsort(order) < count)


@compile_once()
def snr_db(signal: Signal, noise: Signal, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Returns the realized signal-to-noise ratio over the real tokens, in dB; +inf without noise.

    $$10 \log_{10} \frac{\mathrm{mean}\, \|e_i\|^2}{\mathrm{mean}\, \|n_i\|^2}$$

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> signal = jnp.ones((3, 4))
        >>> round(float(hopfield.snr_db(signal, 0.1 * signal)), 3)
        20.0

    References:
        Robertha, Eq. 6, whose ratio omits the dimension: it is $10 \log_{10}$ `width` dB higher.
    """
    signal, noise = jnp.asarray(signal), jnp.asarray(noise)
    check_shapes(signal=(signal, "tokens width"), noise=(noise, "tokens width"))
    return 10 * jnp.log10(_squared_norms(signal, mask)[1] / _squared_norms(noise, mask)[1])


def _squared_norms(rows: Array, mask: Mask) -> tuple[Array, Array]:
    """Squared norms of the real tokens, and their mean."""
    mask = full_mask(mask, rows.shape[:1])
    rows = rows.astype(real_type(rows))
    # Before the squares: the gradient of a nan row would be 0 * nan.
    rows = jnp.where(mask[:, None], rows, 0)
    squares = jnp.square(rows)
    count = jnp.maximum(jnp.sum(mask), 1).astype(rows.dtype)
    return jnp.sum(squares, axis=1), jnp.sum(squares) / count
