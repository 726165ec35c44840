"""The spectrum of a layer's keys, its entropy, and Eigenspectrum Regularization (ESR).

Written for the keys of one sequence; `jax.vmap` for more.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Keys = Float[Array, "tokens width"]
Mask = Bool[Array, " tokens"] | None


def key_spectrum(keys: Keys, *, mask: Mask = None) -> Float[Array, " width"]:
    r"""Eigenvalues of the keys' centred covariance, as shares of its trace.

    $$C = \tfrac{1}{n} \sum_i (k_i - \bar k)(k_i - \bar k)^\top, \qquad
    p_j = \lambda_j / \sum_l \lambda_l$$

    They come from whichever of $C$ and the Gram matrix of the centred keys is smaller: the two
    share their non-zero eigenvalues.

    Args:
        keys: One key a row.
        mask: True where a token is real; None takes all.

    Returns:
        `width` shares, descending, >= 0, sum 1, in float32 at least. All zero where the keys do
        not vary (constant, a single token, none real), since nothing can then be shared out.

    Differentiation:
        Only eigenvalues enter, so equal eigenvalues do no harm to any symmetric function of the
        result, such as `eigen_entropy`.

    References:
        Robertha, Eq. 9.
    """
    keys = keys.astype(jnp.promote_types(keys.dtype, jnp.float32))
    count, width = keys.shape
    if mask is not None:
        keys = jnp.where(mask[:, None], keys, 0)
        real = jnp.maximum(jnp.sum(mask), 1).astype(keys.dtype)
        centred = jnp.where(mask[:, None], keys - jnp.sum(keys, axis=0) / real, 0)
    else:
        centred = keys - jnp.mean(keys, axis=0)
    # Unit scale before squaring: keys of size 1e-30 must not underflow to "constant".
    scale = jnp.max(jnp.abs(jax.lax.stop_gradient(centred)), initial=0)
    centred = centred / jnp.where(scale > 0, scale, 1)
    gram = centred @ centred.T if count < width else centred.T @ centred
    eigenvalues = jnp.maximum(jnp.linalg.eigvalsh(gram)[::-1], 0)
    # Rounding leaves noise of this size where the exact eigenvalue is zero.
    floor = jnp.finfo(keys.dtype).eps * eigenvalues[0]
    eigenvalues = jnp.where(eigenvalues > floor, eigenvalues, 0)
    total = jnp.sum(eigenvalues)
    shares = eigenvalues / jnp.where(total > 0, total, 1)
    return jnp.pad(shares, (0, width - shares.shape[0]))


def eigen_entropy(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Normalised Shannon entropy of the key spectrum.

    $$H_{norm} = -\frac{1}{\log d} \sum_j p_j \log p_j$$

    Args:
        keys: One key a row, width $d$ at least 2.
        mask: True where a token is real; None takes all.

    Returns:
        A number in [0, 1]: 0 if the keys vary along one line or not at all, 1 if they vary
        equally along all $d$ directions.

    Raises:
        ValueError: If the width is below 2, where the normalisation is 0.

    Differentiation:
        Finite for constant, duplicate, zero and fully padded keys; padded rows get exactly zero.

    References:
        Robertha, Eq. 10.
    """
    width = keys.shape[-1]
    if width < 2:
        raise ValueError(f"entropy is normalised by log(width), so width must be >= 2, got {width}")
    return _entropy(key_spectrum(keys, mask=mask)) / np.log(width)


def effective_rank(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Exponential of the spectrum's entropy, $\exp(H) = d^{H_{norm}}$.

    Args:
        keys: One key a row.
        mask: True where a token is real; None takes all.

    Returns:
        A number in [1, width]; 1 also where the keys do not vary.

    References:
        Robertha, Eq. 11. Its Tables 27 to 29 list other values than this formula gives.
    """
    return jnp.exp(_entropy(key_spectrum(keys, mask=mask)))


def participation_ratio(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Number of directions that share the variance, $1 / \sum_j p_j^2$.

    Args:
        keys: One key a row.
        mask: True where a token is real; None takes all.

    Returns:
        A number in [1, width], at most `effective_rank`; 1 also where the keys do not vary.
    """
    concentration = jnp.sum(jnp.square(key_spectrum(keys, mask=mask)))
    return 1 / jnp.where(concentration > 0, concentration, 1)


def gini(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Gini coefficient of the key spectrum.

    $$G = \frac{1}{d} \sum_{j=1}^{d} (d + 1 - 2j)\, p_j, \qquad p_1 \ge \dots \ge p_d$$

    Args:
        keys: One key a row, width $d$.
        mask: True where a token is real; None takes all.

    Returns:
        A number in [0, 1 - 1/d]: 0 if all directions share equally (or none has any variance),
        1 - 1/d if one has it all.
    """
    shares = key_spectrum(keys, mask=mask)
    width = shares.shape[0]
    return jnp.sum((width - 1 - 2 * jnp.arange(width)) * shares) / width


def esr_penalty(
    keys: Keys, *, target: float | Float[Array, ""] = 0.35, mask: Mask = None
) -> Float[Array, ""]:
    r"""Squared distance of the keys' normalised entropy from a target.

    $$L_{ESR} = (H_{norm} - \alpha)^2$$

    Args:
        keys: One key a row, width at least 2.
        target: The entropy $\alpha$ to aim at, in [0, 1].
        mask: True where a token is real; None takes all.

    Returns:
        The penalty, >= 0.

    Raises:
        ValueError: If the width is below 2.

    Warns:
        UserWarning: If `target` lies outside [0, 1]. The paper's sweep has 5 and 50, where the
            penalty does nothing but push the entropy to its maximum.

    References:
        Robertha, Eq. 12.
    """
    if not isinstance(target, jax.core.Tracer) and not 0 <= float(target) <= 1:
        warnings.warn(
            f"ESR target {float(target):g} lies outside [0, 1], where normalised entropy lives: "
            "the penalty only pushes the entropy to the nearer end (the paper's sweep has 5 and "
            "50, which do nothing but maximise it)",
            stacklevel=2,
        )
    return jnp.square(eigen_entropy(keys, mask=mask) - target)


def _entropy(shares: Array) -> Array:
    # p log p has the limit 0, but an infinite slope at 0: neither branch may see log(0).
    positive = shares > 0
    return jnp.sum(jnp.where(positive, -shares * jnp.log(jnp.where(positive, shares, 1)), 0))
