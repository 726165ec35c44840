"""Which inputs a function depends on: influences of bits, coordinates and tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hopfax.checks import check_count, check_range, one_array, real_type
from hopfax.stability.batches import map_batches
from hopfax.stability.estimators import Estimate, Fn, estimator
from hopfax.stability.noise import flip_pair
from hopfax.stability.theory import Numbers


def total_influence(
    fn: Fn, key: PRNGKeyArray, *, num_bits: int, num_samples: int, per_bit: bool = False
) -> Estimate:
    r"""Estimates the total influence, or average sensitivity, of a function of uniform ±1 bits.

    $$I(f) = \sum_i E\Bigl[\Bigl(\frac{f(x) - f(x^{\oplus i})}{2}\Bigr)^2\Bigr] = \sum_k k\,W^k(f)$$

    For ±1-valued functions it is the expected number of bits whose flip changes the value.

    Args:
        fn: A jittable function of `num_bits` floats, each 1 or -1, with one or several outputs
            (their squares are summed).
        key: Random key.
        num_bits: >= 1; numbers out of range raise a ValueError, other types a TypeError.
        num_samples: Number of inputs, >= 2; each is evaluated with every bit flipped in turn.
        per_bit: Return one influence per bit, $\mathrm{Inf}_i(f)$, instead of their sum.

    Example:
        >>> import jax
        >>> from hopfax.stability import total_influence
        >>> parity, key = lambda x: x[0] * x[1], jax.random.key(0)
        >>> float(total_influence(parity, key, num_bits=3, num_samples=9).mean)
        2.0

    References:
        O'Donnell, Analysis of Boolean Functions, Definition 2.27 and Theorem 2.38.
    """
    check_count(1, num_bits=num_bits)

    # A sample evaluates num_bits copies of num_bits bits: bound their product.
    batch_size, bits = max(2, min(256, 2**22 // num_bits**2)), np.arange(num_bits)
    statistic = _changes if per_bit else _total_change
    return estimator(fn, statistic, flip_pair, (num_bits,), bits, num_samples, batch_size)(key)


def geometric_influence(
    fn: Fn, inputs: Float[Array, "samples ..."], *, per_token: bool = False, batch_size: int = 32
) -> Float[Array, "..."]:
    r"""Returns the mean absolute gradient at each coordinate, $E|\partial_i f|$.

    Args:
        fn: A differentiable function of one input, as for `noise_stability`; for several outputs,
            the norm over outputs replaces the absolute value.
        inputs: One or more samples of the input, along the first axis.
        per_token: Take the norm over the input's last axis (a token's embedding) before the mean.
        batch_size: Inputs evaluated at a time, >= 1; memory grows with it.

    Returns:
        One influence for every coordinate or token of an input; not finite where a gradient is not.
        For a standard error, split the samples over several calls.

    Raises:
        TypeError: If `inputs` are not floating, or `fn` returns something other than one array.
        ValueError: If there are no samples, or `batch_size < 1`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.stability import geometric_influence
        >>> geometric_influence(lambda x: 3 * x[0] - x[1], jnp.ones((4, 3))).tolist()
        [3.0, 1.0, 0.0]

    References:
        Keller, Mossel and Sen (2012); Noise Stability of Transformer Models, section 3.
    """
    check_count(1, batch_size=batch_size)
    inputs = jnp.asarray(inputs)
    if inputs.ndim < 1 + per_token or not len(inputs):
        axes = "(samples, ..., width)" if per_token else "(samples, ...)"
        raise ValueError(f"inputs must have shape {axes}, samples >= 1, got {inputs.shape}")
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise TypeError(f"inputs must be floating, got {inputs.dtype}")

    def sizes(x: Array) -> Array:
        slopes = jax.jacrev(lambda x: one_array(fn(x)))(x)
        return _norms(slopes.reshape(-1, *x.shape), axes=(0, -1) if per_token else (0,))

    return jnp.mean(map_batches(sizes, inputs, batch_size), axis=0)


def junta_bound(influence: Numbers, *, epsilon: Numbers) -> Float[Array, "..."]:
    r"""Bounds the number of bits that suffice to approximate a ±1-valued function of ±1 bits.

    $$|J| \le \frac{I^3}{\varepsilon^2}\, 9^{I/\varepsilon}, \qquad
    J = \{i : \mathrm{Inf}_i \ge (\varepsilon/I)^2\, 9^{-I/\varepsilon}\}$$

    A function of the bits $J$ alone differs from $f$ on at most a share $\varepsilon$ in (0, 1] of
    the inputs. The paper states $2^{O(I/\varepsilon)}$; its 1024 is $2^{I/\varepsilon}$ at
    $\varepsilon = I/10$. At most $I/\tau$ bits have influence $\ge \tau$.

    Example:
        >>> from hopfax.stability import junta_bound
        >>> round(float(junta_bound(1.0, epsilon=0.5)))
        324

    References:
        O'Donnell, Analysis of Boolean Functions, Theorem 9.28; the paper's Theorem 3.1 (Friedgut).
    """
    check_range(0, influence=influence)
    check_range(0, 1, ends="(]", epsilon=epsilon)
    degree = jnp.asarray(influence, jnp.result_type(float)) / epsilon
    return degree**2 * influence * 9**degree


def _changes(outputs: Array) -> tuple[Array, Array]:
    changes = jnp.square(outputs[:, 1] - outputs[:, 0]) / 4
    return jnp.sum(changes.reshape(len(outputs), -1), axis=1), jnp.sum(jnp.square(outputs[0, 0]))


def _total_change(outputs: Array) -> tuple[Array, Array]:
    changes, size = _changes(outputs)
    return jnp.sum(changes), len(outputs) * size


@partial(jax.jit, static_argnames="axes")
def _norms(slopes: Array, *, axes: tuple[int, ...]) -> Array:
    """Norms over some axes, without overflow or underflow, with a gradient of 0 at 0."""
    slopes = slopes.astype(real_type(slopes))
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(slopes)), axes, keepdims=True, initial=0)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    squares = jnp.sum(jnp.square(slopes / scale), axes)
    none = squares == 0
    return jnp.squeeze(scale, axes) * jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, squares)))
