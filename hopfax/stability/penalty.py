"""The regularizer that keeps a model's outputs stable under noise on its tokens."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.checks import check_count, check_range, is_traced, real_type
from hopfax.stability.noise import Mask, Rho, bonami_beckner_pair

Probs = Float[Array, "... classes"]


def stability_penalty(
    probs: Probs, noisy_probs: Probs, *, stabilize: bool = True
) -> Float[Array, "..."]:
    r"""Returns one sample of the negative noise stability of a model's output distribution.

    $$R_{M,S,\rho}(X) = (-1)^S \sum_i M(X)_i\, M(Y)_i$$

    with $Y$ a noisy copy of the tokens $X$ (`bonami_beckner_pair`). Add it to the loss with a
    weight $\gamma$; it costs one more forward pass.

    Args:
        probs: $M(X)$, probabilities along the last axis, not logits.
        noisy_probs: $M(Y)$, of the same shape; otherwise a ValueError.
        stabilize: True is $S = 1$: the penalty decreases as outputs agree. False is $S = 0$.

    Returns:
        The penalty of each example: in [-1, 0], or [0, 1] with `stabilize=False`. It and its
        gradient are nan where an argument is not a distribution: numbers in [0, 1] that sum to 1
        within 0.001 (bfloat16: 0.03).

    Differentiation:
        With respect to both. The penalty also rewards confidence: one-hot outputs agree most.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.stability import stability_penalty
        >>> round(float(stability_penalty(jnp.array([0.9, 0.1]), jnp.array([0.6, 0.4]))), 2)
        -0.58

    References:
        Noise Stability of Transformer Models, Definition 6.1.
    """
    probs, noisy_probs = jnp.asarray(probs), jnp.asarray(noisy_probs)
    if probs.shape != noisy_probs.shape:
        shapes = f"{probs.shape} and {noisy_probs.shape}"
        raise ValueError(f"probs and noisy_probs must have the same shape, got {shapes}")
    # Adding nan to both makes the gradients of both nan; adding 0 changes nothing.
    dtype = real_type(probs, noisy_probs)
    wrong = (_nan_unless_probs(probs) + _nan_unless_probs(noisy_probs)).astype(dtype)
    agreement = jnp.sum((probs.astype(dtype) + wrong) * (noisy_probs.astype(dtype) + wrong), -1)
    return -agreement if stabilize else agreement


def stability_regularizer(
    fn: Callable[[Int[Array, "rows tokens"]], Float[Array, "rows ... classes"]],
    key: PRNGKeyArray,
    tokens: Int[Array, "batch tokens"],
    probs: Float[Array, "batch ... classes"],
    *,
    rho: Rho,
    num_tokens: int,
    mask: Mask = None,
    stabilize: bool = True,
    share: float = 1.0,
    step: Int[Array, ""] | int = 0,
    every: int = 1,
) -> Float[Array, ""]:
    r"""Returns a batch's mean `stability_penalty`, at the cost of at most one forward pass.

    With `share`, only the first rows of a batch are used. With `every`, only every k-th step has a
    penalty, multiplied by k. The expected gradient is the same, with more variance. It raises the
    errors of `bonami_beckner_pair`.

    Args:
        fn: Returns the model's output probabilities for token ids.
        key: Random key of the noise; use a new one in every step.
        tokens: Ids of the batch, in [0, num_tokens), shuffled if `share` is below 1.
        probs: `fn(tokens)`, already computed for the loss: probabilities, not logits.
        rho: Noise parameter, in [-1, 1], see `bonami_beckner_pair`.
        num_tokens: Size of the vocabulary.
        mask: False at tokens that noise keeps, such as padding; their outputs count all the same.
        stabilize: See `stability_penalty`.
        share: Fraction of the rows to use, in (0, 1]; at least one row is used.
        step: Index of the training step, not mapped by `vmap`, which would compute both branches.
        every: Interval in steps, >= 1. The penalty is 0 unless `step` is a multiple of it.

    Returns:
        The penalty; nan, with its gradient, if the outputs for these rows are not distributions.

    Differentiation:
        With respect to `probs` and through the noisy forward pass.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.stability import stability_regularizer
        >>> table = jnp.array([[0.9, 0.1], [0.2, 0.8]])
        >>> fn = lambda tokens: table[tokens[:, 0]]
        >>> tokens = jnp.array([[0], [1], [1]])
        >>> key = jax.random.key(0)
        >>> penalty = stability_regularizer(fn, key, tokens, fn(tokens), rho=1.0, num_tokens=2)
        >>> round(float(penalty), 4)  # without noise: minus the mean of 0.82, 0.68 and 0.68
        -0.7267

    References:
        Noise Stability of Transformer Models, Definition 6.1; `share` and `every` are not in it.
    """
    check_range(0, 1, ends="(]", share=share)
    check_count(1, every=every)
    tokens, probs = jnp.asarray(tokens), jnp.asarray(probs)
    if tokens.shape[:1] != probs.shape[:1]:
        shapes = f"{tokens.shape} and {probs.shape}"
        raise ValueError(f"tokens and probs must have the same number of rows, got {shapes}")
    rows = max(1, round(share * tokens.shape[0]))

    def penalty() -> Array:
        real = None if mask is None else mask[:rows]
        noisy = bonami_beckner_pair(key, tokens[:rows], rho=rho, num_tokens=num_tokens, mask=real)
        return every * jnp.mean(stability_penalty(probs[:rows], fn(noisy[1]), stabilize=stabilize))

    if every == 1:
        return penalty()
    zero = jnp.zeros((), jax.eval_shape(penalty).dtype)
    if is_traced(step):
        return jax.lax.cond(step % every == 0, penalty, lambda: zero)
    return penalty() if step % every == 0 else zero


def _nan_unless_probs(probs: Array) -> Float[Array, "... 1"]:
    tolerance = max(1e-3, 4 * float(jnp.finfo(probs.dtype).eps))
    total = jnp.sum(probs, axis=-1, keepdims=True, dtype=jnp.float32)
    low = jnp.min(probs, axis=-1, keepdims=True)
    valid = (jnp.abs(total - 1) <= tolerance) & (low >= -tolerance)
    return jnp.where(valid, 0.0, jnp.nan)
