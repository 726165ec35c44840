r"""The Ornstein-Uhlenbeck operator, its kernel, and its eigenfunctions, the Hermite polynomials.

Polynomials are the probabilists', orthonormal under N(0, 1). Numbers out of range or not finite
raise a ValueError; outputs of `fn` that are not finite give results that are not. References are to
Noise Stability of Transformer Models, whose Appendix C uses the physicists' polynomials.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hopfax.checks import check_count, check_range, one_array, real_type
from hopfax.stability.batches import map_batches
from hopfax.stability.estimators import Estimate, Fn, estimator
from hopfax.stability.noise import Rho, gaussian_pair
from hopfax.stability.theory import Numbers


def hermite(degree: int, x: Numbers) -> Float[Array, "..."]:
    r"""Returns the Hermite polynomial $h_n(x)$ of degree $n \ge 0$ (Definition C.1, Lemma 4).

    $$\sqrt{n+1}\, h_{n+1}(x) = x\, h_n(x) - \sqrt n\, h_{n-1}(x), \quad h_0(x) = 1,\ h_1(x) = x$$

    Example:
        >>> from hopfax.stability import hermite
        >>> round(float(hermite(2, 3.0)), 3)  # (x**2 - 1) / sqrt(2)
        5.657
    """
    check_count(0, degree=degree)
    check_range(-np.inf, ends="()", x=x)
    return _polynomials(degree, jnp.asarray(x, real_type(x)))[-1]


def hermite_coefficients(fn: Fn, *, degree: int, num_points: int = 64) -> Float[Array, "n+1 ..."]:
    r"""Computes the Hermite coefficients of a function of one number, up to degree $n$.

    $$\tilde f(k) = E[f(X)\, h_k(X)], \qquad X \sim N(0, 1)$$

    Squared, these are the level weights (Eq. 3). `fn` is jittable, with an output of any shape; $n$
    is less than `num_points`, the points of Gauss-Hermite quadrature. It is exact for polynomials
    of degree up to `2 * num_points - 1 - degree`, and converges slowly for functions with kinks.

    Example:
        >>> from hopfax.stability import hermite_coefficients
        >>> [round(float(c), 4) for c in hermite_coefficients(lambda x: x**2, degree=2)]
        [1.0, 0.0, 1.4142]
    """
    check_count(1, num_points=num_points)
    check_count(0, num_points - 1, degree=degree)
    points, weights = _rule(num_points)
    # In double precision: far from 0, weights underflow where polynomials overflow.
    table = weights * np.stack(_polynomials(degree, points))
    kept = (abs(table) > jnp.finfo(jnp.result_type(float)).tiny).any(axis=0)
    values = map_batches(lambda x: one_array(fn(x)), jnp.asarray(points[kept], float), 4096)
    return jnp.tensordot(jnp.asarray(table[:, kept], float), values, axes=1)


def ornstein_uhlenbeck(
    fn: Fn, key: PRNGKeyArray, x: Float[Array, "..."], *, rho: Rho, num_samples: int
) -> Estimate:
    r"""Estimates a function smoothed by noise, at one input, by Monte Carlo.

    $$T_\rho f(x) = E\, f\bigl(\rho x + \sqrt{1 - \rho^2}\, Z\bigr), \qquad Z \sim N(0, I)$$

    This is Mehler's formula; the paper's $T_t$ (Definition C.5) has $\rho = e^{-t}$. `x` is not
    empty, `rho` is in [-1, 1], and the jittable `fn` has an output of any shape. Each of
    `num_samples` >= 2 averages `fn` at Z and -Z, which is exact for functions of degree 1.

    Example:
        >>> import jax
        >>> from hopfax.stability import ornstein_uhlenbeck
        >>> key, fn = jax.random.key(0), lambda x: 3 * x
        >>> round(float(ornstein_uhlenbeck(fn, key, 2.0, rho=0.5, num_samples=9).mean), 4)
        3.0
    """
    smoothed, shape = _smoothed(fn, x, rho)
    return estimator(smoothed, _mean, gaussian_pair, shape, -1.0, num_samples, 1024)(key)


def ornstein_uhlenbeck_grid(
    fn: Fn, x: Float[Array, "..."], *, rho: Rho, num_points: int = 16
) -> Float[Array, "..."]:
    """Computes `ornstein_uhlenbeck` by Gauss-Hermite quadrature, for few coordinates.

    It evaluates `fn` at `num_points**x.size` points, at most 2**20, and is exact for polynomials of
    degree up to `2 * num_points - 1` in each coordinate.

    Example:
        >>> from hopfax.stability import ornstein_uhlenbeck_grid
        >>> round(float(ornstein_uhlenbeck_grid(lambda x: x**2, 2.0, rho=0.5)), 4)
        1.75
    """
    check_count(1, num_points=num_points)
    check_range(0, 20 / max(1, np.log2(num_points)), coordinates=np.size(x))
    return _expectation(*_smoothed(fn, x, rho), num_points)


def mehler_kernel(x: Numbers, y: Numbers, *, rho: Numbers) -> Float[Array, "..."]:
    r"""Returns Mehler's kernel (Theorem C.6), the density of $T_\rho$ with respect to N(0, 1).

    $$M_\rho(x, y) = \frac{1}{\sqrt{1-\rho^2}}
    \exp\frac{2\rho x y - \rho^2 (x^2 + y^2)}{2(1 - \rho^2)} = \sum_n \rho^n\, h_n(x)\, h_n(y)$$

    $T_\rho f(x) = E[M_\rho(x, Y) f(Y)]$ with $Y \sim N(0, 1)$. Multiply the kernels of coordinates.
    $\rho$ is in (-1, 1): at the ends, the operator has no density, and within 1e-6 of them the
    result is not exact.

    Example:
        >>> from hopfax.stability import mehler_kernel
        >>> float(mehler_kernel(1.0, 2.0, rho=0.0))
        1.0
    """
    check_range(-1, 1, ends="()", rho=rho)
    check_range(-np.inf, ends="()", x=x, y=y)
    # M at (-rho, x, y) is M at (rho, x, -y). The exponent has no difference of large numbers.
    sign = jnp.where(rho < 0, -1, 1)
    rho, y = sign * rho, sign * y
    rest = (1 - rho) * (1 + rho)
    exponent = rho * x * y / (1 + rho) - jnp.square(rho * (x - y)) / (2 * rest)
    return jnp.exp(exponent) / jnp.sqrt(rest)


def _polynomials(degree: int, x: Any) -> list[Any]:
    polynomials = [x * 0 + 1, x]
    for n in range(1, degree):
        following = x * polynomials[n] - n**0.5 * polynomials[n - 1]
        polynomials.append(following / (n + 1) ** 0.5)
    return polynomials[: degree + 1]


def _smoothed(fn: Fn, x: Array, rho: Rho) -> tuple[Fn, tuple[int, ...]]:
    """The function whose mean over noise of this shape is T_rho f(x)."""
    check_range(-1, 1, rho=rho)
    check_range(-np.inf, ends="()", x=x)
    x, rho = jnp.asarray(x, real_type(x)), jnp.asarray(rho, real_type(x))
    return lambda noise: fn(rho * x + jnp.sqrt(1 - jnp.square(rho)) * noise), x.shape


def _mean(outputs: Array) -> tuple[Array, Array]:
    """The mean of one sample's outputs, and their bound, for `estimator`."""
    return jnp.mean(outputs, axis=1), jnp.max(jnp.abs(outputs), axis=(0, 1))


def _rule(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of Gauss-Hermite quadrature for N(0, 1), in double precision."""
    from scipy.special import roots_hermitenorm

    points, weights = roots_hermitenorm(num_points)
    return points, weights / sum(weights)


def _expectation(fn: Fn, shape: tuple[int, ...], num_points: int) -> Array:
    """The mean of a function of standard normal numbers, by quadrature."""
    points, weights = (jnp.asarray(part, float) for part in _rule(num_points))
    size, count = int(np.prod(shape)), len(points)

    def term(number: Array) -> Array:
        picked = number // count ** np.arange(size) % count
        return jnp.prod(weights[picked]) * one_array(fn(points[picked].reshape(shape)))

    return jnp.sum(map_batches(term, jnp.arange(count**size), 4096), axis=0)
