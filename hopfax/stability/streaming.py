"""Means and variances of samples that are drawn, used and forgotten, batch by batch."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.random import quick


class Moments(NamedTuple):
    """First two moments of a sample.

    Attributes:
        count: How many samples.
        mean: Their mean.
        squares: Sum of the squared deviations from it.
        first_bad: Number of the first sample that was not finite, -1 if all were.
        bad_row: Its first entry along the leading axis that was not.
    """

    count: Float[Array, ""]
    mean: Float[Array, "..."]
    squares: Float[Array, "..."]
    first_bad: Int[Array, ""]
    bad_row: Int[Array, ""]

    @property
    def variance(self) -> Float[Array, "..."]:
        """Unbiased variance of one sample."""
        return self.squares / (self.count - 1)

    @property
    def standard_error(self) -> Float[Array, "..."]:
        """Standard error of the mean."""
        return jnp.sqrt(self.variance / self.count)


def stream(
    sample: Callable[[PRNGKeyArray], Float[Array, "..."]],
    key: PRNGKeyArray,
    *,
    num_samples: int,
    batch_size: int,
) -> Moments:
    """Draws `num_samples` samples and keeps their moments only.

    Args:
        sample: One sample from a key.
        key: Random key; sample i depends on it and on i and `batch_size` alone.
        num_samples: How many, >= 2.
        batch_size: How many side by side.

    References:
        Chan, Golub and LeVeque (1983), for the merging of batches.
    """
    key, batch_size = quick(key), min(batch_size, num_samples)
    shape = jax.eval_shape(sample, key)
    zeros = jnp.zeros(shape.shape, shape.dtype)
    start = Moments(
        jnp.zeros((), shape.dtype), zeros, zeros, jnp.full((), -1, int), jnp.full((), -1, int)
    )

    def merge(moments: Moments, number: Array) -> tuple[Moments, None]:
        values = jax.vmap(sample)(jax.random.split(jax.random.fold_in(key, number), batch_size))
        index = number * batch_size + jnp.arange(batch_size)
        counts = index < num_samples
        weights = counts.astype(values.dtype).reshape(-1, *[1] * len(shape.shape))
        count = jnp.sum(counts).astype(values.dtype)
        mean = jnp.sum(jnp.where(weights > 0, values, 0), axis=0) / count
        squares = jnp.sum(weights * jnp.square(jnp.where(weights > 0, values - mean, 0)), axis=0)
        total = moments.count + count
        change = mean - moments.mean
        rows = jnp.isfinite(values).reshape(batch_size, len(jnp.atleast_1d(zeros)), -1).all(-1)
        bad = counts & ~rows.all(-1)
        place = jnp.argmax(bad)
        new = (moments.first_bad < 0) & bad.any()
        return Moments(
            count=total,
            mean=moments.mean + change * (count / total),
            squares=moments.squares
            + squares
            + jnp.square(change) * (moments.count * (count / total)),
            first_bad=jnp.where(new, index[place], moments.first_bad),
            bad_row=jnp.where(new, jnp.argmin(rows[place]), moments.bad_row),
        ), None

    moments, _ = jax.lax.scan(merge, start, jnp.arange(-(-num_samples // batch_size)))
    # An infinite sample could leave an infinite mean, which looks like an answer.
    return moments._replace(mean=jnp.where(moments.first_bad >= 0, jnp.nan, moments.mean))


def check_finite(moments: Moments, rhos: Float[Array, " rhos"] | None = None) -> None:
    """Raises a FloatingPointError if a sample was not finite; inside `jit` nobody can know yet."""
    if isinstance(moments.first_bad, Tracer):
        return
    if moments.first_bad < 0:
        if not (isinstance(moments.squares, Tracer) or np.all(np.isfinite(moments.squares))):
            raise FloatingPointError(
                "the products of fn's outputs are finite, but their squares overflow "
                f"{moments.mean.dtype}: scale fn down"
            )
        return
    where = f"in sample {int(moments.first_bad)}"
    if rhos is not None:
        # A moment vector that is not one a rho says nothing about which.
        row = min(int(moments.bad_row), len(rhos) - 1)
        where += f", at rho {np.asarray(rhos)[row]:g}"
    raise FloatingPointError(
        f"fn, or a product of its outputs, is not finite {where}: it must be for every input "
        "drawn; if fn is only large, scale it down"
    )


def check_sizes(*, num_samples: int = 2, batch_size: int = 1) -> None:
    """Raises a ValueError unless a standard error can be had, from whole batches."""
    if not isinstance(num_samples, int | np.integer):
        raise ValueError(f"num_samples must be a whole number >= 2, got {num_samples!r}")
    if num_samples < 2:
        raise ValueError(f"a standard error needs num_samples >= 2, got {num_samples}")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
