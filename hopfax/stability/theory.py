r"""Closed forms and bounds of the noise-stability paper for ReLU and attention layers.

Inputs are standard normal pairs $(X, Y)$ with correlation $\rho$ in every coordinate, unless a
function says otherwise. All take scalars or arrays of $\rho$ in [-1, 1] and are differentiable in
(-1, 1). At the ends, the slope of `attention_overlap` is infinite, and its gradient is 0. Numbers
out of range raise a ValueError, and counts that are not integers a TypeError.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from hopfax.checks import check_count, check_range, is_traced

Numbers = float | Float[Array, "..."]


class Interval(NamedTuple):
    """A lower and an upper bound."""

    low: Float[Array, "..."]
    high: Float[Array, "..."]


def relu_stability(rho: Numbers) -> Float[Array, "..."]:
    r"""Computes the stability of a ReLU unit.

    $$R(\rho) = E[\mathrm{ReLU}(X)\,\mathrm{ReLU}(Y)] =
    \frac{\sqrt{1-\rho^2} + \rho(\pi - \arccos\rho)}{2\pi}$$

    Args:
        rho: Correlation, in [-1, 1]; a traced value outside gives nan.

    Returns:
        The stability, in [0, 1/2], to a relative error of a few units in the last place.

    Differentiation:
        The slope $(\pi - \arccos\rho)/2\pi$ is exact on [-1, 1]; the second derivative is infinite
        at the ends.

    Example:
        >>> from hopfax.stability import relu_stability
        >>> float(relu_stability(1.0))
        0.5

    References:
        Noise Stability of Transformer Models, Theorem 5.1; the arc-cosine kernel of Cho and Saul.
    """
    return _relu_stability(_rho(rho))


def relu_stability_quadratic(rho: Numbers) -> Float[Array, "..."]:
    r"""Computes the second-order part of `relu_stability`.

    $$\frac{1}{2\pi} + \frac\rho4 + \frac{\rho^2}{4\pi}$$

    Its coefficients are the first Hermite weights of the ReLU. The remainder is at most
    $\frac12 - \frac14 - \frac{3}{4\pi} \approx 0.011$, at $\rho = 1$.

    Example:
        >>> from hopfax.stability.theory import relu_stability_quadratic
        >>> round(float(relu_stability_quadratic(0.5)), 4)
        0.304
    """
    rho = _rho(rho)
    return 1 / (2 * jnp.pi) + rho / 4 + rho**2 / (4 * jnp.pi)


def linear_recurrence(
    rho: Numbers, *, num_layers: int, value_norm: float = 1.0
) -> Float[Array, "layers+1 ..."]:
    r"""Iterates Appendix H's proxy, $\rho_l = \frac{1}{2\pi} + \frac{\gamma^2 \rho_{l-1}}{4}$.

    Returns are as in `transformer_recurrence`. The limit is $\frac{2}{\pi(4 - \gamma^2)}$ for
    $\gamma < 2$, the paper's $2/(3\pi) = 0.2122$ at $\gamma = 1$ (Eq. 5). The proxy diverges for
    greater $\gamma$, and at $\gamma = 2$, where it grows by $1/(2\pi)$ a layer.

    Args:
        rho: Correlation of the inputs, in [-1, 1].
        num_layers: Number of layers, >= 0.
        value_norm: $\gamma = \|(W_V)_{:,j}\|$, >= 0.

    Example:
        >>> from hopfax.stability.theory import linear_recurrence
        >>> round(float(linear_recurrence(0.5, num_layers=20)[-1]), 4)
        0.2122
    """
    check_count(0, num_layers=num_layers)
    check_range(0, value_norm=value_norm)
    rho = _rho(rho)
    with np.errstate(over="ignore"):
        left = (value_norm**2 / 4) ** np.arange(num_layers + 1.0)
        added = np.append(0, np.cumsum(left[:-1])) / (2 * np.pi)
        parts = [np.reshape(each, (-1, *[1] * rho.ndim)) for each in (left, added)]
        left, added = (jnp.asarray(each.astype(rho.dtype)) for each in parts)
    return left * rho[None] + added


def transformer_recurrence(
    rho: Numbers, *, num_layers: int, value_norm: float = 1.0, num_tokens: int | None = None
) -> Float[Array, "layers+1 ..."]:
    r"""Iterates Eq. 8: attention, then ReLU, layer after layer.

    $$\rho_l = R\bigl(\gamma^2 \rho_{l-1}\bigr)$$

    $R$ is `relu_stability` (Theorem 5.1); attention with $W_Q W_K = I$ multiplies the stability by
    $\gamma^2$ (Theorem 5.2). $\gamma = 1$ gives Eq. 5, ReLU layers alone. With `num_tokens`, scores
    are unstructured, and $\rho_{l-1}$ is multiplied by `attention_overlap` (Theorem 5.3 instead of
    5.2); this variant is not in the paper. As in Eq. 5, *unnormalized* stability is iterated as if
    it were a correlation, so this is not the stability of a network with several layers. The limit
    of Eq. 8 is 0.2172 at $\gamma = 1$ (not the linear proxy's $2/(3\pi)$).

    Args:
        rho: Correlation of the inputs, in [-1, 1].
        num_layers: Number of layers, >= 0.
        value_norm: $\gamma = \|(W_V)_{:,j}\|$, in [0, 1].
        num_tokens: Tokens that unstructured scores attend to, >= 1; None: $W_Q W_K = I$.

    Returns:
        The input's correlation, then the stability after every layer.

    Example:
        >>> from hopfax.stability.theory import transformer_recurrence
        >>> [round(float(rho), 3) for rho in transformer_recurrence(0.5, num_layers=2)]
        [0.5, 0.304, 0.243]

    References:
        Noise Stability of Transformer Models, Eq. 5, Eq. 8, Theorem 5.3 and Appendix H.
    """
    check_count(0, num_layers=num_layers)
    check_count(1, num_tokens=1 if num_tokens is None else num_tokens)
    check_range(0, 1, value_norm=value_norm)
    return _recurrence(_rho(rho), value_norm, num_layers=num_layers, num_tokens=num_tokens)


@partial(jax.jit, static_argnames=("num_layers", "num_tokens"))
def _recurrence(
    rho: Array, value_norm: Numbers, *, num_layers: int, num_tokens: int | None
) -> Array:
    gain = jnp.square(jnp.asarray(value_norm, rho.dtype))

    def layer(rho: Array, _: None) -> tuple[Array, Array]:
        overlap = 1.0 if num_tokens is None else _overlaps(rho, num_tokens=num_tokens)
        following = _relu_stability(gain * rho * overlap)
        return following, following

    _, visited = jax.lax.scan(layer, rho, length=num_layers)
    return jnp.concatenate([rho[None], visited])


def attention_stability(rho: Numbers, *, num_tokens: int) -> Float[Array, "..."]:
    r"""Computes the stability of attention with unstructured scores: $\rho\, s(\rho)$, in [-1, 1].

    The layer is $\sigma(XWX^\top) X W_V$ with $W \sim \mathcal N(0, I)$; the theorem's statement
    leaves out the $W$. In wide layers, each token attends to one random token; under noise, it
    attends to the same one with probability $s$ (`attention_overlap`). At width $d$, the stability
    is higher by up to about $(E[M^2] - 1) / d$, where $M$ is the largest of as many standard normal
    numbers as tokens. The value projection adds the factor $\|(W_V)_{:,j}\|^2$. With $W = I$ or
    $UU^\top$ each token attends to itself, and the stability is $\rho$ (Theorem 5.2).

    Args:
        rho: Correlation, in [-1, 1].
        num_tokens: Number of tokens, >= 1.

    Example:
        >>> from hopfax.stability import attention_stability
        >>> round(float(attention_stability(0.0, num_tokens=4)), 3)
        0.0

    References:
        Noise Stability of Transformer Models, Theorems 5.2 and 5.3.
    """
    return _rho(rho) * attention_overlap(rho, num_tokens=num_tokens)


def attention_overlap(rho: Numbers, *, num_tokens: int) -> Float[Array, "..."]:
    r"""Computes the probability $s(\rho)$ that a token attends to the same token under noise.

    $$s(\rho) = n\, E\bigl[\Phi_2(G, G'; \rho^2)^{n-1}\bigr]$$

    A token's scores $x_i W x_j$ with and without noise are normal with correlation $\rho^2$, and
    independent for the $n$ tokens $j$; $(G, G')$ is such a pair and $\Phi_2$ its distribution
    function. In float64, the quadrature has five correct digits for up to ten thousand tokens.

    Args:
        rho: Correlation of the inputs, in [-1, 1].
        num_tokens: $n$, >= 1.

    Returns:
        A probability: $1/n$ at $\rho = 0$, and 1 at $|\rho| = 1$.

    Example:
        >>> from hopfax.stability.theory import attention_overlap
        >>> round(float(attention_overlap(0.0, num_tokens=4)), 3)
        0.25
    """
    check_count(1, num_tokens=num_tokens)
    return _overlaps(_rho(rho), num_tokens=num_tokens)


@partial(jax.jit, static_argnames="num_tokens")
def _overlaps(rho: Array, *, num_tokens: int) -> Array:
    one = partial(_overlap, num_tokens=num_tokens)
    # One correlation at a time: the quadrature of each takes 2.6 MB.
    inside = jax.lax.map(jax.checkpoint(one), jnp.square(rho).reshape(-1)).reshape(rho.shape)
    return jnp.where(jnp.abs(rho) < 1, inside, jnp.where(jnp.abs(rho) == 1, 1.0, jnp.nan))


def relu_process_stability(
    rho: Numbers, *, mean: Numbers = 0.0, std: Numbers = 1.0, scale: Numbers = 1.0
) -> Float[Array, "..."]:
    r"""Computes a ReLU unit's stability under a Bonami-Beckner Gaussian process (Lemma 11).

    $$E[\mathrm{ReLU}(X)\,\mathrm{ReLU}(Y)] = \rho\,\alpha\,E_2 + (1-\rho)\,E_1^2$$

    Here $Y = \alpha X$ with probability $\rho$, and otherwise an independent draw. Both draws are
    $N(\mu, \sigma^2)$, unlike the correlated Gaussians of `relu_stability`. The paper's text swaps
    the moments of the rectified draw,

    $$E_1 = E\,\mathrm{ReLU}(X) = \mu\,\Phi(\mu/\sigma) + \sigma\,\phi(\mu/\sigma), \qquad
    E_2 = E\,\mathrm{ReLU}(X)^2 = (\mu^2 + \sigma^2)\,\Phi(\mu/\sigma)
    + \mu\,\sigma\,\phi(\mu/\sigma)$$

    Args:
        rho: Probability that Y depends on X, in [0, 1].
        mean: $\mu$.
        std: $\sigma$, > 0.
        scale: $\alpha$, the scale of the noise, >= 0.

    Example:
        >>> from hopfax.stability.theory import relu_process_stability
        >>> print(relu_process_stability(1.0, scale=0.5))
        0.25
    """
    check_range(0, scale=scale)
    check_range(0, ends="(]", std=std)
    rho = _rho(rho, low=0)
    mean, std = (jnp.asarray(number, rho.dtype) for number in (mean, std))
    below, density = norm.cdf(mean / std), std * norm.pdf(mean / std)
    # If the mean is far below zero, rounding could make these differences negative.
    first = jnp.maximum(mean * below + density, 0)
    second = jnp.maximum((mean**2 + std**2) * below + mean * density, 0)
    return rho * scale * second + (1 - rho) * jnp.square(first)


def attention_interval(
    positive: Numbers,
    negative: Numbers,
    *,
    num_tokens: int,
    width: int,
    bound: float,
    weight_bound: float = 1.0,
) -> Interval:
    r"""Computes bounds on the stability of an attention layer with bounded inputs.

    $$\frac{S^+/E - E\,S^-}{n^2} \;\le\; E[f(X) f(Y)] \;\le\; \frac{E\,S^+ - S^-/E}{n^2},
    \qquad E = e^{4 d^2 B^2 \|W\|_{\max}}$$

    Here $f$ is one output of $\sigma(XWX^\top)XW_V$, $v(X)$ the matching column of $XW_V$, and

    $$S^\pm = \sum_{j,k} E\bigl[(v_j(X)\, v_k(Y))_\pm\bigr]$$

    are the positive and negative parts of all products of two tokens' values, for any joint
    distribution of X and Y. The bounds (Lemma 12, derived here) are wide unless $d^2 B^2$ is small,
    and infinite where $E$ overflows.

    The printed lemma is known here only as $R_\ell/E \le E[f(X) f(Y)] \le E R_r$, where $R_\ell$
    and $R_r$ bound all $E[v_j(X) v_k(Y)]$. In this form it is false: the ends can cross if
    $R_r < 0$, and if scores depend on the values, $R_\ell = R_r = 0$ does not make the stability 0.
    With $E[v_j^2] \le V$, what holds are the ends above at $S^\pm = n^2 (V \pm R)/2$:

    $$R_\ell \cosh\log E - V \sinh\log E \;\le\; E[f(X) f(Y)] \;\le\;
    R_r \cosh\log E + V \sinh\log E$$

    Args:
        positive: $S^+$, >= 0.
        negative: $S^-$, >= 0.
        num_tokens: $n$, >= 1.
        width: $d$, the width of the inputs, >= 1.
        bound: $B$, the largest absolute entry of the inputs, >= 0.
        weight_bound: $\|W\|_{\max}$, the largest absolute entry of $W = W_Q W_K^\top$, >= 0.

    Example:
        >>> from hopfax.stability.theory import attention_interval
        >>> low, high = attention_interval(4.0, 0.0, num_tokens=2, width=2, bound=0.0)
        >>> print(low, high)
        1.0 1.0
    """
    check_range(0, positive=positive, negative=negative, bound=bound, weight_bound=weight_bound)
    check_count(1, num_tokens=num_tokens, width=width)
    dtype = jnp.result_type(float)
    factor = jnp.exp(jnp.asarray(4 * width**2 * bound**2 * weight_bound, dtype))
    plus, minus = (jnp.asarray(part, dtype) / num_tokens**2 for part in (positive, negative))
    # 0, not nan, where the factor overflows.
    above = [jnp.where(part == 0, 0, factor * part) for part in (plus, minus)]
    return Interval(plus / factor - above[1], above[0] - minus / factor)


def propagate_interval(
    interval: tuple[Numbers, Numbers], *, num_layers: int, num_tokens: int
) -> Interval:
    r"""Propagates bounds on correlations through wide layers of attention and ReLU (section 5.3).

    $$[\rho_\ell, \rho_r] \mapsto [2 t\, R(\rho_\ell/t),\; 2 R(\rho_r)], \qquad
    t = \rho_\ell + (q - \rho_\ell)/n$$

    Attention averages tokens. If the correlations of all tokens of X with all of Y are in an
    interval, those of its outputs are too, whatever the scores, without the factor $E$ of
    `attention_interval`. $R$ is `relu_stability`; $q$, 1 at first and then $t$, is the least mean
    square of a token. The bounds, derived here, are for the limit of wide layers without residuals,
    whose weights $W_V \sim \mathcal N(0, 2/d)$ are independent of the scores.

    Args:
        interval: Bounds, in [0, 1], the lower one also within X; [0, rho] of independent tokens.
        num_layers: Number of layers, >= 0.
        num_tokens: $n$, >= 1; 1: ReLU layers alone.

    Returns:
        Bounds on the input's and every layer's stability per output, times $(\gamma^2/2)^l$ at
        layer $l$ if the columns of $W_V$ have norm $\gamma$.

    Example:
        >>> from hopfax.stability.theory import propagate_interval
        >>> low, high = propagate_interval((0.0, 0.5), num_layers=2, num_tokens=1)
        >>> [round(float(end[-1]), 3) for end in (low, high)]
        [0.494, 0.684]
    """
    low, high = (_rho(end, low=0) for end in interval)
    check_count(0, num_layers=num_layers)
    check_count(1, num_tokens=num_tokens)
    if not is_traced(low + high) and not jnp.all(low <= high):
        raise ValueError(f"interval must have low <= high, got {low} and {high}")
    return _propagated(Interval(low, high), num_tokens, num_layers=num_layers)


@partial(jax.jit, static_argnames="num_layers")
def _propagated(interval: Interval, num_tokens: Numbers, *, num_layers: int) -> Interval:
    def layer(before: tuple[Interval, Array], _: None) -> tuple[tuple[Interval, Array], Interval]:
        (low, high), square = before
        square = low + (square - low) / num_tokens
        ratio = jnp.minimum(low / square, 1)  # up to rounding
        ends = Interval(2 * square * _relu_stability(ratio), 2 * _relu_stability(high))
        return (ends, square), ends

    _, visited = jax.lax.scan(layer, (interval, jnp.ones_like(interval.low)), length=num_layers)
    return jax.tree.map(lambda end, ends: jnp.concatenate([end[None], ends]), interval, visited)


def moment_interval(rho: Numbers, *, mean: Numbers, second_moment: Numbers) -> Interval:
    r"""Computes bounds on $E[\varphi(X)\varphi(Y)]$ from the first two moments of $\varphi(X)$.

    $$(E\varphi)^2 \;\le\; E[\varphi(X)\varphi(Y)] \;\le\;
    \rho\, E[\varphi^2] + (1-\rho)(E\varphi)^2 \qquad (\rho \ge 0)$$

    The inequality follows from the Hermite expansion and is not in the paper. It is sharp: linear
    functions attain the upper bound, and functions of increasing degree approach the lower one. For
    $\rho < 0$ they are $(E\varphi)^2 + \rho V$ and $(E\varphi)^2 + \rho^2 V$, $V$ the variance.

    Args:
        rho: Correlation, in [-1, 1].
        mean: $E\varphi(X)$.
        second_moment: $E\varphi(X)^2$, at least the square of the mean.

    Example:
        >>> from hopfax.stability.theory import moment_interval
        >>> low, high = moment_interval(0.5, mean=1.0, second_moment=3.0)
        >>> print(low, high)
        1.0 2.0
    """
    rho = _rho(rho)
    squared = jnp.square(jnp.asarray(mean, rho.dtype))
    variance = jnp.asarray(second_moment, rho.dtype) - squared
    if not is_traced(variance) and not jnp.all(variance >= -1e-6 * squared):  # up to rounding
        numbers = f"{second_moment} and a mean of {mean}"
        raise ValueError(f"second_moment must be at least mean**2, got {numbers}")
    low, high = jnp.minimum(rho, 0), jnp.where(rho >= 0, rho, rho**2)
    return Interval(squared + low * variance, squared + high * variance)


def _rho(rho: Numbers, low: float = -1) -> Array:
    check_range(low, 1, rho=rho)
    return jnp.asarray(rho, jnp.result_type(float))


@jax.custom_jvp
@jax.jit
def _relu_stability(rho: Array) -> Array:
    # With φ = π - arccos ρ the numerator is sin φ - φ cos φ. Near ρ = -1, where the difference
    # cancels, it is a Taylor series with terms 2k φ^(2k+1) / (2k+1)!.
    angle = _angle(rho)
    series = jnp.zeros_like(angle)
    for k in range(9, 0, -1):
        series = 2 * k / math.factorial(2 * k + 1) - series * jnp.square(angle)
    direct = jnp.sin(angle) - angle * jnp.cos(angle)
    numerator = jnp.where(angle < 1, angle**3 * series, direct)
    return jnp.minimum(numerator / (2 * jnp.pi), 0.5)


@_relu_stability.defjvp
def _relu_stability_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # Differentiating through the angle would give 0 times infinity at both ends.
    (rho,), (tangent,) = primals, tangents
    return _relu_stability(rho), _angle(rho) / (2 * jnp.pi) * tangent


def _angle(rho: Array) -> Array:
    """Computes π - arccos ρ, without the rounding of 1 - ρ² near -1."""
    return 2 * jnp.arctan2(jnp.sqrt(1 + rho), jnp.sqrt(1 - rho))


def _overlap(r: Array, *, num_tokens: int) -> Array:
    """The probability s, by nested Gauss-Legendre rules over the pair's sum and difference."""
    reach = 8.5
    nodes, weights = np.polynomial.legendre.leggauss(128)
    # Above the cap, 1 - s grows with the square root of 1 - r.
    cap = 1 - 1e-6
    beyond = jnp.sqrt(jnp.where((r > cap) & (r < 1), (1 - r) / (1 - cap), 1))
    r = jnp.minimum(r, cap)
    # Independent standard normals u, v with G + G' = u sqrt(2(1+r)) and G - G' = v sqrt(2(1-r)).
    # The integrand is even in v: integrate over half.
    u, v = reach * nodes, reach / 2 * (nodes + 1)
    total, difference = u * jnp.sqrt((1 + r) / 2), v * jnp.sqrt((1 - r) / 2)
    ends = jnp.add.outer(total, difference), jnp.subtract.outer(total, difference)
    below = jnp.clip(_bivariate_cdf(*ends, r), 0, 1)
    densities = (reach * weights * np.exp(-np.square(each) / 2) for each in (u, v))
    weight = jnp.asarray(np.outer(*densities) / (2 * np.pi), below.dtype)
    overlap = num_tokens * jnp.sum(weight * below ** (num_tokens - 1))
    return 1 - (1 - overlap) * beyond


def _bivariate_cdf(a: Array, b: Array, r: Array) -> Array:
    r"""$P(G \le a, G' \le b)$ at correlation r >= 0, by Plackett's integral."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    end = jnp.arcsin(r)

    def term(node: Array, weight: Array) -> Array:
        angle = end / 2 * (node + 1)
        sine = jnp.sin(angle)
        exponent = (a**2 - 2 * a * b * sine + b**2) / (2 * jnp.square(jnp.cos(angle)))
        return weight * jnp.exp(-exponent)

    parts = jax.vmap(term)(jnp.asarray(nodes, a.dtype), jnp.asarray(weights, a.dtype))
    return norm.cdf(a) * norm.cdf(b) + end / 2 * jnp.sum(parts, axis=0) / (2 * jnp.pi)
