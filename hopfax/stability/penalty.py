"""The regularizer that keeps a model's outputs stable under noise on its tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def stability_penalty(
    probs: Float[Array, "... classes"],
    noisy_probs: Float[Array, "... classes"],
    *,
    stabilize: bool = True,
) -> Float[Array, "..."]:
    r"""One sample of the negative noise stability of a model's output distribution.

    $$R_{M,S,\rho}(X) = (-1)^S \sum_i M(X)_i\, M(Y)_i$$

    with $Y$ a noisy copy of the tokens $X$ (`bonami_beckner_pair`). Added to the loss with a weight
    $\gamma$, it costs one more forward pass.

    Args:
        probs: $M(X)$, probabilities along the last axis.
        noisy_probs: $M(Y)$, of the same shape.
        stabilize: $S = 1$: the penalty falls as the outputs agree. False ($S = 0$) makes it rise.

    Returns:
        The penalty of each example: in [-1, 0], or [0, 1] with `stabilize=False`.

    Raises:
        ValueError: If the shapes differ.

    Differentiation:
        Through both arguments. The largest agreement is that of two equal one-hot outputs: the
        penalty rewards confidence too, not agreement alone.

    References:
        Noise Stability of Transformer Models, Definition 6.1.
    """
    probs, noisy_probs = jnp.asarray(probs), jnp.asarray(noisy_probs)
    if probs.shape != noisy_probs.shape:
        raise ValueError(
            f"wanted the outputs for an input and its noisy copy, in one shape; got {probs.shape} "
            f"and {noisy_probs.shape}"
        )
    agreement = jnp.sum(probs * noisy_probs, axis=-1)
    return -agreement if stabilize else agreement
