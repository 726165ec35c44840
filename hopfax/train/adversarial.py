"""Training on perturbed inputs: Gaussian augmentation, PGD and FreeLB, around any objective.

Each function takes an `Objective` and returns another, so it applies to every model. Perturbations
are added to the token embeddings, before positions and LayerNorm. Numbers out of range raise a
ValueError, and counts that are not integers a TypeError.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from hopfax.checks import check_count, check_range
from hopfax.cpu import fast_key
from hopfax.hopfield import matched_sigma
from hopfax.nn.encoder import CLEAN, Perturbation
from hopfax.nn.functional import Params
from hopfax.train.objectives import Batch, Losses, Objective, texts_of

Deltas = Float[Array, "texts tokens width"]
Mask = Bool[Array, "texts tokens"]

# Distinct from each other and from the keys that objectives derive with `split`.
_NOISE, _PGD, _FREELB, _RATIO = 2**31, 2**31 + 1, 2**31 + 2, 2**31 + 3


class Ball(NamedTuple):
    """The l2 ball of adversarial perturbations of a text, and its search parameters.

    The defaults are those of the FreeLB program on GLUE, where token embeddings have a norm of
    about 1.4. A model initialized with N(0, 0.02^2), with norms of 0.23 at width 128, learns only
    with a much smaller ball: see `experiments/models.py`.

    Attributes:
        num_steps: K, the number of ascent steps of PGD, or of forward and backward passes of
            FreeLB; at least 1.
        step_size: Length of an ascent step, > 0.
        max_norm: Radius of the ball, > 0; inf for none.
        initial_norm: Half the diagonal, >= 0, of the cube from which the first perturbation is
            drawn uniformly. The norm of the perturbation is about 0.6 times this for any text
            length.
    """

    num_steps: int = 3
    step_size: float = 0.1
    max_norm: float = 0.3
    initial_norm: float = 0.2


def with_noise(objective: Objective, *, sigma: float) -> Objective:
    """Adds fresh Gaussian noise to the token embeddings in every training step.

    Args:
        objective: Loss to minimize.
        sigma: Standard deviation of the noise, >= 0.

    References:
        Robertha, Table 2, DataAugment.
    """
    check_range(0, ends="[)", sigma=sigma)

    def noise(params: Params, batch: Batch, key: PRNGKeyArray, _: Perturbation) -> Deltas:
        # Splits in two as the published results did, for the same draws.
        for_noise, _ = jax.random.split(jax.random.fold_in(key, _NOISE))
        return sigma * jax.random.normal(fast_key(for_noise), *_like(params, batch))

    return _perturb(objective, noise)


def with_noise_range(objective: Objective, *, snr_db: tuple[float, float]) -> Objective:
    """Adds noise with a random signal-to-noise ratio for each text in every training step.

    The noise scales with the text's token embeddings: larger embeddings do not reduce its effect.

    Args:
        objective: Loss to minimize, of a model whose `embedding_scale` is 1.
        snr_db: Lowest and highest ratio in dB, finite; the ratios are uniform between them.
    """
    low, high = snr_db
    if not -float("inf") < low <= high < float("inf"):
        raise ValueError(f"snr_db must be a finite range, low to high, got {snr_db}")

    def noise(params: Params, batch: Batch, key: PRNGKeyArray, _: Perturbation) -> Deltas:
        ids, mask = texts_of(batch)
        tokens = jax.lax.stop_gradient(params["tokens"]["embedding"][ids])
        for_ratio, for_noise = map(fast_key, jax.random.split(jax.random.fold_in(key, _RATIO)))
        ratios = jax.random.uniform(for_ratio, mask.shape[:1], minval=low, maxval=high)
        sigma = jax.vmap(lambda x, db, m: matched_sigma(x, snr_db=db, mask=m))(tokens, ratios, mask)
        return sigma[:, None, None] * jax.random.normal(for_noise, tokens.shape, tokens.dtype)

    return _perturb(objective, noise)


def pgd(objective: Objective, ball: Ball) -> Objective:
    r"""Trains on the perturbation that K steps of projected gradient ascent find.

    $$\delta_{t+1} = \Pi_{\|\delta\| \le \epsilon}\left(\delta_t
    + \alpha\, g_t / \|g_t\|\right), \qquad g_t = \nabla_\delta L(\theta, \delta_t)$$

    and $L(\theta, \delta_K)$ is minimized: K + 1 forward and backward passes per step.

    Differentiation:
        With respect to the parameters, with a fixed perturbation. Dropout is the same in all
        passes.

    References:
        Madry et al. (2018), Towards Deep Learning Models Resistant to Adversarial Attacks.
    """
    _check_ball(ball)

    def worst(params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation) -> Deltas:
        fixed, (_, mask) = jax.lax.stop_gradient(params), texts_of(batch)
        loss = lambda delta: objective(fixed, batch, key, _plus(added, delta))[0]  # noqa: E731

        def climb(delta: Deltas, _: None) -> tuple[Deltas, None]:
            return _ascend(delta, jax.grad(loss)(delta), mask, ball), None

        start = _initial(jax.random.fold_in(key, _PGD), params, batch, ball)
        return jax.lax.stop_gradient(jax.lax.scan(climb, start, length=ball.num_steps)[0])

    return _perturb(objective, worst)


def freelb(objective: Objective, ball: Ball) -> Objective:
    r"""Trains with FreeLB: averages the gradients of K ascent steps.

    $$g = \frac1K \sum_{t=0}^{K-1} \nabla_\theta L(\theta, \delta_t), \qquad
    \delta_{t+1} = \Pi_{\|\delta\| \le \epsilon}\left(\delta_t
    + \alpha\, \nabla_\delta L(\theta, \delta_t) / \|\cdot\|\right)$$

    One backward pass gives both gradients: K forward and backward passes per step.
    The value is the mean loss over the K perturbations.

    Differentiation:
        First order, reverse mode, of the loss only, with respect to the parameters and `added`,
        with fixed perturbations. Dropout is the same in all K passes, as published.

    Example:
        >>> from hopfax.nn import tinybert
        >>> from hopfax.train.adversarial import Ball, freelb
        >>> from hopfax.train.objectives import classification
        >>> objective = freelb(classification(tinybert(30522, 2)), Ball(num_steps=2))

    References:
        Zhu et al. (2020), FreeLB: Enhanced Adversarial Training for Natural Language Understanding,
        Algorithm 1; initial perturbations as in its program.
    """
    _check_ball(ball)

    def forward(*inputs: Any) -> tuple[tuple[Array, Losses], tuple[Params, Perturbation]]:
        params, batch, key, added = inputs
        mask = texts_of(batch)[1]

        def loss(params: Params, added: Perturbation, delta: Deltas) -> tuple[Array, Losses]:
            return objective(params, batch, key, _plus(added, delta))

        gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)

        def body(carry: Any, _: None) -> tuple[Any, tuple[Array, Losses]]:
            delta, total = carry
            losses, (*gradient, slope) = gradients(params, added, delta)
            total = jax.tree.map(jnp.add, total, tuple(gradient))
            return (_ascend(delta, slope, mask, ball), total), losses

        start = _initial(jax.random.fold_in(key, _FREELB), params, batch, ball)
        zeros = jax.tree.map(jnp.zeros_like, (params, added))
        (_, total), losses = jax.lax.scan(body, (start, zeros), length=ball.num_steps)
        mean = jax.tree.map(lambda part: jnp.mean(part, axis=0), losses)
        return mean, jax.tree.map(lambda part: part / ball.num_steps, total)

    # The forward pass already computes the gradient, so it is the residual of the rule.
    @jax.custom_vjp
    def free(
        params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation = CLEAN, /
    ) -> tuple[Array, Losses]:
        return forward(params, batch, key, added)[0]

    def backward(gradients: tuple[Params, Perturbation], cotangent: tuple[Array, Losses]) -> Any:
        params, added = jax.tree.map(lambda part: cotangent[0] * part, gradients)
        return params, None, None, added

    free.defvjp(forward, backward)
    return free


def _perturb(objective: Objective, draw: Callable[..., Deltas]) -> Objective:
    """Adds `draw(params, batch, key, added)` to the token embeddings of real tokens."""

    def perturbed(
        params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation = CLEAN, /
    ) -> tuple[Array, Losses]:
        real = texts_of(batch)[1][..., None]
        delta = jnp.where(real, draw(params, batch, key, added), 0)
        return objective(params, batch, key, _plus(added, delta))

    return perturbed


def _initial(key: PRNGKeyArray, params: Params, batch: Batch, ball: Ball) -> Deltas:
    r"""Perturbations uniform in $\pm m / \sqrt{n d}$ for texts of n tokens of width d."""
    mask, (shape, dtype) = texts_of(batch)[1], _like(params, batch)
    entries = jnp.maximum(jnp.sum(mask, axis=-1), 1) * shape[-1]
    scale = (ball.initial_norm / jnp.sqrt(entries)[:, None, None]).astype(dtype)
    draws = jax.random.uniform(fast_key(key), shape, dtype, minval=-1)
    return jnp.where(mask[..., None], scale * draws, 0)


def _ascend(delta: Deltas, slope: Deltas, mask: Mask, ball: Ball) -> Deltas:
    """One step along each text's normalized gradient, projected into its ball."""
    slope = jnp.where(mask[..., None], slope, 0)
    delta = delta + ball.step_size * slope / jnp.maximum(_norms(slope), 1e-30)
    return delta * jnp.minimum(1, ball.max_norm / jnp.maximum(_norms(delta), 1e-30))


def _norms(delta: Deltas) -> Float[Array, "texts 1 1"]:
    # Unit scale first: the squares of a gradient of size 1e-25 would underflow.
    size = jnp.max(jnp.abs(delta), axis=(1, 2), keepdims=True)
    safe = jnp.where(size > 0, size, 1)
    return size * jnp.sqrt(jnp.sum(jnp.square(delta / safe), axis=(1, 2), keepdims=True))


def _like(params: Params, batch: Batch) -> tuple[tuple[int, ...], jnp.dtype]:  # of embeddings
    table, (ids, _) = params["tokens"]["embedding"], texts_of(batch)
    return (*ids.shape, table.shape[-1]), table.dtype


def _plus(added: Perturbation, delta: Deltas) -> Perturbation:
    return added._replace(token=delta if added.token is None else added.token + delta)


def _check_ball(ball: Ball) -> None:
    check_count(1, num_steps=ball.num_steps)
    check_range(0, ends="(]", step_size=ball.step_size, max_norm=ball.max_norm)
    check_range(0, initial_norm=ball.initial_norm)
