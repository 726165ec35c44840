"""The spectrum of a layer's keys, its entropy, and Eigenspectrum Regularization (ESR).

Functions take the keys of one sequence, one per row, and a mask that is True where a token is real;
None means all. Use `jax.vmap` for a batch. All raise the errors of `key_spectrum`.
"""

import math
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hopfax.checks import check_range, check_shapes, compile_once, full_mask, real_type
from hopfax.hopfield.retrieval import matmul

Entropy = Literal["shannon", "renyi2"]
Keys = Float[Array, "tokens width"]
Mask = Bool[Array, " tokens"] | None
Matrix = Float[Array, "side side"]


@compile_once()
def key_spectrum(keys: Keys, *, mask: Mask = None) -> Float[Array, " width"]:
    r"""Computes the eigenvalues of the keys' centered covariance, as shares of its trace.

    $$C = \tfrac{1}{n} \sum_i (k_i - \bar k)(k_i - \bar k)^\top, \qquad
    p_j = \lambda_j / \sum_l \lambda_l$$

    They are computed from $C$ or from the Gram matrix of the centered keys, whichever is smaller;
    both have the same non-zero eigenvalues.

    Args:
        keys: One key per row.
        mask: True where a token is real; None means all.

    Returns:
        `width` shares, descending, >= 0, with sum 1, at least float32. All zero if the keys do not
        vary (constant keys, a single token, no real token); nan if a real key is not finite.

    Raises:
        TypeError: If the keys are complex, or `mask` is not boolean.
        ValueError: If the keys are not one sequence of one or more vectors, or `mask` does not fit.

    Differentiation:
        Symmetric functions of the result, such as `eigen_entropy`, have finite gradients even
        where eigenvalues are equal.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> keys = jnp.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> hopfield.key_spectrum(keys).round(1).tolist()  # variances 2 and 0.5
        [0.800000011920929, 0.20000000298023224]

    References:
        Robertha, Eq. 9.
    """
    keys = jnp.asarray(keys)
    shares = _eigenvalue_shares(_gram(keys, mask))
    return jnp.pad(shares, (0, keys.shape[1] - shares.shape[0]))


@compile_once("entropy")
def eigen_entropy(
    keys: Keys, *, mask: Mask = None, entropy: Entropy = "shannon"
) -> Float[Array, ""]:
    r"""Computes the normalized entropy of the key spectrum, in [0, 1]; 0 if the keys do not vary.

    $$H_{norm} = -\frac{1}{\log d} \sum_j p_j \log p_j, \qquad
    H_{2, norm} = -\frac{1}{\log d} \log \sum_j p_j^2$$

    Args:
        keys: One key per row, width $d$ at least 2.
        mask: True where a token is real; None means all.
        entropy: `"shannon"`, the paper's $H_{norm}$, from eigenvalues; or `"renyi2"`,
            $H_{2, norm} \le H_{norm}$, from sums of squares.

    Differentiation:
        Finite for duplicate keys, and 0 for keys that do not vary and for padded rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> corners = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> float(hopfield.eigen_entropy(corners))
        1.0

    References:
        Robertha, Eq. 10.
    """
    keys = jnp.asarray(keys)
    gram, width = _gram(keys, mask), keys.shape[1]
    check_range(2, width=width)
    if entropy not in get_args(Entropy):
        raise ValueError(f"entropy must be one of {get_args(Entropy)}, got {entropy!r}")
    nats = _shannon(_eigenvalue_shares(gram)) if entropy == "shannon" else _renyi2(gram)
    normalized = nats / math.log(width)
    # Rounding can take it above 1; the gradient stays.
    return normalized - jax.lax.stop_gradient(jnp.maximum(normalized - 1, 0))


@compile_once()
def effective_rank(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Computes the exponential of the spectrum's entropy, $\exp(H) = d^{H_{norm}}$.

    Returns:
        A number in [1, width]; 1 also where the keys do not vary.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> corners = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(float(hopfield.effective_rank(corners)), 3)
        2.0

    References:
        Robertha, Eq. 11. Its Tables 27 to 29 list other values than this formula gives.
    """
    return jnp.exp(_shannon(key_spectrum(keys, mask=mask)))


@compile_once()
def participation_ratio(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Computes the effective number of directions with variance, $1 / \sum_j p_j^2$.

    Returns:
        A number in [1, width], at most `effective_rank`; 1 also where the keys do not vary.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> keys = jnp.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(float(hopfield.participation_ratio(keys)), 3)  # 1 / (0.8^2 + 0.2^2)
        1.471
    """
    concentration = jnp.sum(jnp.square(key_spectrum(keys, mask=mask)))
    return 1 / jnp.where(concentration == 0, 1, concentration)


@compile_once()
def gini(keys: Keys, *, mask: Mask = None) -> Float[Array, ""]:
    r"""Computes the Gini coefficient of the spectrum of keys of width $d$.

    $$G = \frac{1}{d} \sum_{j=1}^{d} (d + 1 - 2j)\, p_j, \qquad p_1 \ge \dots \ge p_d$$

    Returns:
        A number in [0, 1 - 1/d]: 0 if all directions have equal variance (or none), 1 - 1/d if
        all variance is in one direction.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> keys = jnp.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(float(hopfield.gini(keys)), 3)  # (0.8 - 0.2) / 2
        0.3
    """
    shares = key_spectrum(keys, mask=mask)
    width = shares.shape[0]
    return jnp.sum((width - 1 - 2 * jnp.arange(width, dtype=shares.dtype)) * shares) / width


def _check_target(*_: Any, target: Any = 0.35, **__: Any) -> None:
    check_shapes(target=(target, ""))
    check_range(0, ends="[)", target=target)


@compile_once("entropy", check=_check_target)
def esr_penalty(
    keys: Keys,
    *,
    target: float | Float[Array, ""] = 0.35,
    mask: Mask = None,
    entropy: Entropy = "shannon",
) -> Float[Array, ""]:
    r"""Computes the squared distance of the keys' normalized entropy from a target.

    $$L_{ESR} = (H_{norm} - \alpha)^2$$

    Args:
        keys: One key per row, width at least 2.
        target: The entropy $\alpha$, >= 0. Entropies are in [0, 1]: above 1, as the 5 and 50 of
            the paper's sweep, the penalty only raises the entropy, with slope
            $2 (\alpha - H_{norm})$. The same target requires a flatter spectrum with
            `"renyi2"`, the smaller entropy.
        mask: True where a token is real; None means all.
        entropy: See `eigen_entropy`.

    Differentiation:
        As in `eigen_entropy`. Second derivatives of `"shannon"` differentiate eigenvectors and are
        nan where two eigenvalues are equal, as with fewer tokens than coordinates. Those of
        `"renyi2"` are exact everywhere.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> corners = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(float(hopfield.esr_penalty(corners, target=0.35)), 4)  # (1 - 0.35)^2
        0.4225

    References:
        Robertha, Eq. 12.
    """
    return jnp.square(eigen_entropy(keys, mask=mask, entropy=entropy) - target)


def _gram(keys: Keys, mask: Mask) -> Matrix:
    """The smaller of the Gram matrix and the covariance of the centered keys, up to a factor."""
    check_shapes(keys=(keys, "tokens width"))
    if not keys.size:
        raise ValueError(f"keys must have one or more vectors, got shape {keys.shape}")
    mask = full_mask(mask, keys.shape[:1])
    keys = keys.astype(real_type(keys))
    centered = _center(keys, mask)
    # Unit scale before squaring: keys of size 1e-30 must not underflow to "constant".
    scale = jnp.max(jnp.abs(jax.lax.stop_gradient(centered)))
    centered = centered / jnp.where(scale > 0, scale, 1)
    count, width = keys.shape
    rows = centered if count < width else centered.T
    return matmul(rows, rows.T)


def _center(keys: Array, mask: Array) -> Array:
    real = mask[:, None]
    keys = jnp.where(real, keys, 0)
    # Relative to a real key, equal keys are exactly zero. Relative to their mean, which is rounded,
    # they would seem to vary.
    shifted = jnp.where(real, keys - jax.lax.stop_gradient(keys[jnp.argmax(mask)])[None], 0)
    count = jnp.maximum(jnp.sum(mask), 1).astype(keys.dtype)
    return jnp.where(real, shifted - jnp.sum(shifted, axis=0, keepdims=True) / count, 0)


def _eigenvalue_shares(matrix: Matrix) -> Float[Array, " side"]:
    """Eigenvalues as shares of the trace, descending, >= 0; all zero if the matrix is."""
    eigenvalues = jnp.maximum(jnp.linalg.eigvalsh(matrix)[::-1], 0)
    # Rounding errors of this size remain where the exact eigenvalue is zero. The comparison
    # keeps nan, so that keys that are not finite do not look like constant keys.
    floor = jnp.finfo(matrix.dtype).eps * eigenvalues[0]
    eigenvalues = jnp.where(eigenvalues <= floor, 0, eigenvalues)
    total = jnp.sum(eigenvalues)
    return eigenvalues / jnp.where(total == 0, 1, total)


def _shannon(shares: Float[Array, " side"]) -> Float[Array, ""]:
    # p log p has the limit 0, but an infinite slope: neither branch may evaluate log(0).
    none = shares == 0
    return jnp.sum(jnp.where(none, 0, -shares * jnp.log(jnp.where(none, 1, shares))))


def _renyi2(matrix: Matrix) -> Float[Array, ""]:
    trace = jnp.trace(matrix)
    concentration = jnp.sum(jnp.square(matrix / jnp.where(trace == 0, 1, trace)))
    # In [1/side, 1] up to rounding, or 0 for a zero matrix.
    entropy = -jnp.log(jnp.where(concentration == 0, 1, concentration))
    return jnp.where(entropy < 0, 0, entropy)
