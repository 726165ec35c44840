r"""Entropy of the eigenvalues of a Gram matrix or covariance, with and without computing them.

The matrix $G$ is symmetric and positive semidefinite; its eigenvalues, as shares of its trace, are
$p_j$. Functions take one matrix; use `jax.vmap` for a batch.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hopfax.hopfield.retrieval import matmul

Entropy = Literal["shannon", "renyi2", "shannon_matmul"]
Matrix = Float[Array, "side side"]

# `_surprisal` takes X_{k+1} = a X_k - b X_k^2, and c times X_{k+1} for its sum: rows (a, b, c).
# They minimize the largest deviation from -1 of dg/d(log x) on [5e-6, 1] (L-BFGS over a and b,
# least squares reweighted towards the maximum for c), which leaves 0.9972 %.
_STEPS = (
    (2.426319, 1.369943, -0.859194),
    (2.463660, 1.447816, -0.936669),
    (2.490875, 1.506978, -0.954962),
    (2.510511, 1.555503, -0.971090),
    (2.523623, 1.590867, -0.984539),
    (2.531882, 1.616384, -0.993485),
    (2.536411, 1.634856, -1.001645),
    (2.537845, 1.648705, -1.008884),
    (2.536416, 1.659909, -1.017100),
    (2.531814, 1.670167, -1.027371),
    (2.523379, 1.681229, -1.042532),
    (2.509406, 1.695732, -1.082588),
    (2.487606, 1.729408, -0.828829),
    (2.450000, 1.530939, -0.848510),
)
_FIRST = -1.137934  # for X_0
_CONSTANT = 13.911165925589  # makes g(1) = 0


def spectral_entropy(matrix: Matrix, *, entropy: Entropy = "shannon") -> Float[Array, ""]:
    r"""Returns the entropy of the eigenvalue shares of a matrix, in nats.

    $$H = -\sum_j p_j \log p_j, \qquad
    H_2 = -\log \sum_j p_j^2 = -\log \frac{\operatorname{tr} G^2}{(\operatorname{tr} G)^2} \le H$$

    Args:
        matrix: Symmetric, positive semidefinite; its scale does not matter.
        entropy: `"shannon"` or `"shannon_matmul"`, $H$; or `"renyi2"`, $H_2$. See
            `hopfax.hopfield.eigen_entropy`.

    Returns:
        A number in [0, log side]; 0 where the matrix is zero.

    Raises:
        ValueError: If `entropy` is not one of these.

    Differentiation:
        `"shannon"` uses eigenvectors but never divides by differences of eigenvalues, so equal
        eigenvalues are safe. The gradient of `"shannon_matmul"` is the same approximation of
        $-(\log p_j + H) / \operatorname{tr} G$: close to the true gradient, but not the exact
        gradient of its own value.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.hopfield.entropy import spectral_entropy
        >>> round(float(spectral_entropy(jnp.eye(3))), 3)  # log 3
        1.099
    """
    matrix = matrix.astype(jnp.promote_types(matrix.dtype, jnp.float32))
    if entropy == "shannon":
        return shannon(eigenvalue_shares(matrix))
    if entropy == "renyi2":
        return _renyi2(matrix)
    if entropy == "shannon_matmul":
        return _shannon_matmul(matrix)
    raise ValueError(f"entropy must be one of {get_args(Entropy)}, got {entropy!r}")


def eigenvalue_shares(matrix: Matrix) -> Float[Array, " side"]:
    """Eigenvalues as shares of the trace, descending, >= 0; all zero if the matrix is."""
    eigenvalues = jnp.maximum(_eigenvalues(matrix)[::-1], 0)
    # Rounding errors of this size remain where the exact eigenvalue is zero. The comparison
    # keeps nan, so that keys that are not finite do not look like constant keys.
    floor = jnp.finfo(matrix.dtype).eps * eigenvalues[0]
    eigenvalues = jnp.where(eigenvalues <= floor, 0, eigenvalues)
    total = jnp.sum(eigenvalues)
    return eigenvalues / jnp.where(total == 0, 1, total)


def shannon(shares: Float[Array, " side"]) -> Float[Array, ""]:
    """Shannon entropy of shares, in nats."""
    # p log p has the limit 0, but an infinite slope: neither branch may evaluate log(0).
    none = shares == 0
    return jnp.sum(jnp.where(none, 0, -shares * jnp.log(jnp.where(none, 1, shares))))


@jax.custom_jvp
def _eigenvalues(matrix: Matrix) -> Float[Array, " side"]:
    return jnp.linalg.eigvalsh(matrix)


@_eigenvalues.defjvp
def _eigenvalues_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # One product; the rule in jax, which also covers eigenvectors, takes two.
    eigenvalues, vectors = jnp.linalg.eigh(primals[0])
    turned = matmul(tangents[0], vectors)
    return eigenvalues, jnp.sum(vectors * turned, axis=0)


def _of_unit_trace(matrix: Matrix) -> tuple[Matrix, Float[Array, ""]]:
    trace = jnp.trace(matrix)
    trace = jnp.where(trace == 0, 1, trace)
    return matrix / trace, trace


def _renyi2(matrix: Matrix) -> Float[Array, ""]:
    shares, _ = _of_unit_trace(matrix)
    concentration = jnp.sum(jnp.square(shares))
    # In [1/side, 1] up to rounding, or 0 for a zero matrix.
    entropy = -jnp.log(jnp.where(concentration == 0, 1, concentration))
    return jnp.where(entropy < 0, 0, entropy)


@jax.custom_jvp
def _shannon_matmul(matrix: Matrix) -> Float[Array, ""]:
    return _approximate(matrix)[0]


@_shannon_matmul.defjvp
def _shannon_matmul_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    entropy, slope = _approximate(primals[0])
    return entropy, jnp.sum(slope * tangents[0])


def _approximate(matrix: Matrix) -> tuple[Float[Array, ""], Matrix]:
    r"""Entropy and its gradient from $g(x) \approx -\log x$ at the eigenvalues.

    $$H \approx \sum_j p_j (g(p_j / s) - \log s), \qquad
    \nabla H \approx (g(P / s) - \operatorname{tr}(P g(P / s)) I) / \operatorname{tr} G$$

    For eigenvalues $x \ge 5 \cdot 10^{-6}$ the slope of $g$ in $\log x$ is $-1$ within 1 %, and
    $g(1) = 0$. Hence $g$ and $H$ are accurate to 1 %. So is $\log p_j + H$, whose $p$-weighted
    norm is that of the gradient in the keys. Smaller eigenvalues count by their share only.
    """
    shares, trace = _of_unit_trace(matrix)
    squared = matmul(shares, shares)
    # At least the largest eigenvalue, since its fourth power is one term of the trace's.
    scale = jnp.sqrt(jnp.sqrt(jnp.sum(jnp.square(squared))))
    scale = jnp.where(scale == 0, 1, scale)
    surprisal = _surprisal(shares / scale, squared / scale**2)
    mean = jnp.sum(shares * surprisal)
    # The constant cancels in the gradient. Without it, empty rows stay exactly zero.
    slope = (surprisal - mean * jnp.eye(*matrix.shape, dtype=matrix.dtype)) / trace
    entropy = mean + (_CONSTANT - jnp.log(scale)) * jnp.trace(shares)
    return jnp.clip(entropy, 0, np.log(matrix.shape[0])), slope


def _surprisal(matrix: Matrix, squared: Matrix) -> Matrix:
    r"""$g(X) - g(0)$ for eigenvalues in [0, 1]: a sum of iterates, each of one product.

    Each iterate is a saturating function of $\log x$, 2.5 times as steep at zero as the previous
    one; on a logarithmic scale they add up to a straight line.
    """
    first, *rest = np.asarray(_STEPS)
    start = first[0] * matrix - first[1] * squared
    total = _FIRST * matrix + first[2] * start

    def step(carry: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        x, total = carry
        x = row[0] * x - row[1] * matmul(x, x)
        return (x, total + row[2] * x), None

    # On a CPU, a scan whose iterates stay in the cache is faster than fused sums.
    (_, total), _ = jax.lax.scan(step, (start, total), jnp.asarray(np.array(rest), matrix.dtype))
    return total
