"""Training objectives: task loss plus Eigenspectrum Regularization."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from hopfax import hopfield
from hopfax.checks import check_range
from hopfax.nn.encoder import CLEAN, Encoder, Perturbation, mean_of_real
from hopfax.nn.functional import Functional, Params

_PONDER_WEIGHT = 0.01


class Batch(NamedTuple):
    """Rows of one padded length. An example has one text per choice; most tasks have one choice.

    `lengths` counts real tokens, `labels` are classes, or scores for regression, and `weights` is 1
    for real rows and 0 for padding rows.
    """

    ids: Int[Array, "batch choices tokens"]
    lengths: Int[Array, "batch choices"]
    labels: Int[Array, " batch"] | Float[Array, " batch"]
    weights: Float[Array, " batch"]


class Losses(NamedTuple):
    """The parts of a loss, each a mean over real rows, and the convergence of retrieval.

    `num_steps` is the mean number of Hopfield updates per real query, `unconverged` the fraction of
    real queries that stopped at `max_steps`, in [0, 1].
    """

    task: Float[Array, ""]
    esr: Float[Array, ""]
    num_steps: Float[Array, ""]
    unconverged: Float[Array, ""]


# (params, batch, dropout key, added=CLEAN) -> (loss, parts), differentiable in params and added.
Objective = Callable[..., tuple[Array, Losses]]


def texts_of(batch: Batch) -> tuple[Int[Array, "texts tokens"], Bool[Array, "texts tokens"]]:
    """Returns ids and mask of the texts of a batch; choices of an example are consecutive."""
    tokens = batch.ids.shape[-1]
    mask = jnp.arange(tokens) < batch.lengths.reshape(-1, 1)
    return batch.ids.reshape(-1, tokens), mask


def per_example(logits: Float[Array, "texts outputs"], batch: Batch) -> Float[Array, "batch _"]:
    """Reshapes outputs of texts to outputs of examples: classes, or one score per choice."""
    return logits.reshape(batch.labels.shape[0], -1)


def task_loss(
    logits: Float[Array, "batch outputs"], batch: Batch, *, regression: bool
) -> Float[Array, ""]:
    """Returns the mean cross-entropy over real rows, or the mean squared error for regression."""
    return _weighted_mean(losses_of(logits, batch.labels, regression=regression), batch.weights)


def losses_of(
    logits: Float[Array, "batch outputs"], labels: Shaped[Array, " batch"], *, regression: bool
) -> Float[Array, " batch"]:
    """Returns the cross-entropy of each row, or the squared error for regression.

    The cross-entropy of a label outside [0, outputs) is nan.

    Raises:
        TypeError: The labels of a classification are not integers.
        ValueError: `regression` does not fit the number of outputs.
    """
    if (logits.shape[1] == 1) != regression:
        raise ValueError(
            f"regression must be {logits.shape[1] == 1} for {logits.shape[1]} output(s), got "
            f"{regression}"
        )
    if regression:
        return jnp.square(logits[:, 0] - labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels must be integers unless regression=True, got {labels.dtype}")
    # A negative index would count from the end; one out of range gives nan.
    index = jnp.where(labels < 0, logits.shape[1], labels)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), index[:, None], axis=1)[:, 0]


def classification(
    model: Functional[Encoder],
    *,
    regression: bool = False,
    esr_weight: float = 0.0,
    esr_target: float = 0.35,
    esr_in_nats: bool = False,
    esr_masked: bool = True,
    esr_entropy: hopfield.Entropy = "shannon",
) -> Objective:
    r"""Returns the papers' objective: task loss + `esr_weight` times ESR.

    Models with adaptive computation time add 0.01 times the steps of their tokens, as in the
    program of the Universal Transformer. Numbers out of range raise a ValueError.

    Args:
        model: The classifier.
        regression: Use squared error instead of cross-entropy.
        esr_weight: Lambda, >= 0; 0 computes no spectrum.
        esr_target: Alpha, >= 0. Above 1, ESR only raises the entropy H_norm of a layer, with slope
            2 `esr_weight` (alpha - H_norm).
        esr_in_nats: Use the released program's $(H - \alpha \log d)^2$: $(\log d)^2$ times Eq. 12.
        esr_masked: Whether the spectrum excludes padding.
        esr_entropy: The entropy of the spectrum; see `hopfield.eigen_entropy`.

    Example:
        >>> from hopfax.nn import robertha
        >>> from hopfax.train.objectives import classification
        >>> objective = classification(robertha(30522, 2), esr_weight=0.05)
        >>> # loss, parts = objective(params, batch, key)

    References:
        Robertha, Eq. 12 and Table 15.
    """
    check_range(0, ends="[)", esr_weight=esr_weight, esr_target=esr_target)

    def penalty(keys: Array, mask: Array) -> Array:
        return hopfield.esr_penalty(keys, target=esr_target, mask=mask, entropy=esr_entropy)

    def objective(
        params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation = CLEAN, /
    ) -> tuple[Array, Losses]:
        ids, mask = texts_of(batch)
        logits, encoding = model.apply(params, ids, mask, key=key, added=added)
        task = task_loss(per_example(logits, batch), batch, regression=regression)
        weights, esr = jnp.repeat(batch.weights, batch.ids.shape[1]), jnp.zeros_like(task)
        if esr_weight > 0:  # the penalty of each text's keys, summed over layers
            seen = mask if esr_masked else jnp.ones_like(mask)
            penalties = jax.vmap(jax.vmap(penalty), in_axes=(0, None))(encoding.keys, seen)
            scale = math.log(encoding.keys.shape[-1]) ** 2 if esr_in_nats else 1.0
            esr = scale * _weighted_mean(jnp.sum(penalties, axis=0), weights)
        loss = task + esr_weight * esr
        if encoding.ponder is not None:
            ponder = mean_of_real(encoding.ponder[..., None], mask)[:, 0]
            loss += _PONDER_WEIGHT * _weighted_mean(ponder, weights)
        real = (mask & (weights > 0)[:, None])[None, :, None, :]

        def mean(values: Array) -> Array:
            counted = jnp.broadcast_to(real, values.shape)
            return jnp.sum(jnp.where(counted, values, 0)) / jnp.maximum(jnp.sum(counted), 1)

        return loss, Losses(task, esr, mean(encoding.num_steps), mean(~encoding.converged))

    return objective


def _weighted_mean(values: Array, weights: Any) -> Array:
    values = jnp.where(weights > 0, values, 0)  # the label of a padding row may be any
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1)
