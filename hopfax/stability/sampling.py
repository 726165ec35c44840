"""One sample of an estimate: correlated inputs drawn, outputs multiplied."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray

from hopfax.stability.noise import (
    bit_copies,
    bit_pair,
    gaussian_arc,
    gaussian_copies,
    gaussian_pair,
)

Fn = Callable[[Array], Array]
Pair = Callable[..., tuple[Array, Array]]

# What JAX raises where Python asks for a value that only the running program has.
_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

# Samplers whose noise is a semigroup, with their conditionally independent copies.
COPIES = {gaussian_pair: gaussian_copies, bit_pair: bit_copies}


class Settings(NamedTuple):
    """What is compiled in."""

    fn: Fn
    shape: tuple[int, ...]
    num_samples: int
    pair: Pair
    copies: int | None
    arc: int | None
    per_output: bool
    batch_size: int


def check_shape(shape: Any) -> tuple[int, ...]:
    """The shape as a tuple, or a ValueError that says what one looks like."""
    if not isinstance(shape, tuple | list):
        raise ValueError(f"shape is that of one input, a tuple such as (5,), got {shape!r}")
    return tuple(shape)


def check_same(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Raises a ValueError if a function's outputs differ in shape."""
    if one != other:
        raise ValueError(
            f"fn returned the shapes {one} and {other} for inputs of one shape: it must always "
            "return the same"
        )


def check_copies(copies: int | None, pair: Pair, rho: Any) -> None:
    """Raises a ValueError where groups of so many copies cannot be drawn."""
    if copies is None or copies == 2:
        return
    if copies < 2:
        raise ValueError(f"copies must be at least 2 (a pair), got {copies}")
    if pair not in COPIES:
        known = " and ".join(known.__name__ for known in COPIES)
        raise ValueError(f"groups of {copies} copies exist for {known} only: take copies=2 (pairs)")
    if not isinstance(rho, Tracer) and np.any(np.asarray(rho) < 0):
        raise ValueError(
            f"groups of {copies} copies cannot have the negative correlation "
            f"{np.min(np.asarray(rho))}: take copies=2 (pairs)"
        )


def pair_products(settings: Settings, rhos: Array) -> Callable[[PRNGKeyArray], Array]:
    """Products at one X and its partners, one for each rho."""

    def sample(key: PRNGKeyArray) -> Array:
        first, second = _draw(settings, key, rhos)
        left = evaluate(settings.fn, first)
        right = jax.vmap(partial(evaluate, settings.fn))(second)
        check_same(left.shape, right.shape[1:])
        products = left * right
        return products if settings.per_output else over_outputs(products, axis=1)

    return sample


def _draw(settings: Settings, key: PRNGKeyArray, rhos: Array) -> tuple[Array, Array]:
    def draw(rho: Array) -> tuple[Array, Array]:
        return settings.pair(key, settings.shape, rho=rho)

    try:
        return jax.vmap(draw, out_axes=(None, 0))(rhos)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError(
            "the first array of a pair must depend on the key alone, not on rho: estimates at "
            "several rho share it"
        ) from error


def group_values(settings: Settings, rhos: Array, copies: int) -> Callable[..., Array]:
    """Outputs (rhos, copies, ...) of a group of copies for each rho."""
    draw = COPIES[settings.pair]

    def values(key: PRNGKeyArray) -> Array:
        inputs = jax.vmap(lambda rho: draw(key, settings.shape, rho=rho, copies=copies))(rhos)
        return jax.vmap(jax.vmap(partial(evaluate, settings.fn)))(inputs)

    return values


def check_arc(arc: int | None, copies: int | None, pair: Pair) -> None:
    """Raises a ValueError where arcs of so many points cannot be drawn."""
    if arc is None:
        return
    if arc < 2:
        raise ValueError(f"an arc has at least 2 points (a pair), got {arc}")
    if copies is not None:
        raise ValueError("samples are arcs or groups of copies: leave one of the two out")
    if pair is not gaussian_pair:
        raise ValueError("arcs exist for gaussian_pair only: leave arc out")


def arc_values(settings: Settings, rhos: Array, points: int) -> Callable[..., Array]:
    """Outputs (rhos, points, ...) along an arc for each rho, the first point shared by all."""

    def values(key: PRNGKeyArray) -> Array:
        inputs = jax.vmap(lambda rho: gaussian_arc(key, settings.shape, rho=rho, points=points))(
            rhos
        )
        first = evaluate(settings.fn, inputs[0, 0])
        rest = jax.vmap(jax.vmap(partial(evaluate, settings.fn)))(inputs[:, 1:])
        check_same(first.shape, rest.shape[2:])
        first = jnp.broadcast_to(first, (len(rhos), 1, *first.shape))
        return jnp.concatenate([first, rest], axis=1)

    return values


def arc_products(settings: Settings, rhos: Array, points: int) -> Callable[[PRNGKeyArray], Array]:
    """Mean product of the neighbours along one arc, for each rho."""
    values = arc_values(settings, rhos, points)

    def sample(key: PRNGKeyArray) -> Array:
        products = neighbours(values(key), axis=1)
        return products if settings.per_output else over_outputs(products, axis=1)

    return sample


def neighbours(values: Array, *, axis: int) -> Array:
    """Mean product of neighbours, for each output."""
    count = values.shape[axis]
    left = jax.lax.slice_in_dim(values, 0, count - 1, axis=axis)
    return jnp.mean(left * jax.lax.slice_in_dim(values, 1, count, axis=axis), axis=axis)


def group_products(settings: Settings, rhos: Array, copies: int) -> Callable[[PRNGKeyArray], Array]:
    """Mean product of the pairs in one group of copies, for each rho."""
    values = group_values(settings, rhos, copies)

    def sample(key: PRNGKeyArray) -> Array:
        products = u_statistic(values(key), axis=1)
        return products if settings.per_output else over_outputs(products, axis=1)

    return sample


def u_statistic(values: Array, *, axis: int) -> Array:
    """Mean product of two different copies, for each output."""
    copies = values.shape[axis]
    total = jnp.square(jnp.sum(values, axis=axis)) - jnp.sum(jnp.square(values), axis=axis)
    return total / (copies * (copies - 1))


def over_outputs(products: Array, *, axis: int) -> Array:
    """Sums all axes from `axis` on."""
    return jnp.sum(products.reshape(*products.shape[:axis], -1), axis=-1)


def call(fn: Fn, x: Array) -> Any:
    """What the function returns.

    Raises:
        ValueError: If it is not jittable.
    """
    try:
        return fn(x)
    except _CONCRETE as error:
        raise ValueError(
            "fn must be jittable: an output of the same shape for every input, and nothing in "
            "Python that depends on values (if, float(), NumPy, x[x > 0]): see jax.numpy.where"
        ) from error


def evaluate(fn: Fn, x: Array) -> Array:
    """The function's output, in float32 at least.

    Raises:
        ValueError: If it is not one array of real numbers, or `fn` is not jittable.
    """
    found = call(fn, x)
    if not hasattr(found, "dtype") or not hasattr(found, "shape"):
        raise ValueError(f"fn must return one array of numbers, got {type(found).__name__}")
    if not is_real(found.dtype):
        raise ValueError(
            f"fn must return real numbers, got {found.dtype}: of complex ones, stack .real and "
            ".imag as two outputs"
        )
    return jnp.asarray(found, jnp.promote_types(found.dtype, jnp.float32))


def is_real(dtype: Any) -> bool:
    """Whether products of such numbers are what stability averages."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def outputs(settings: Settings, key: PRNGKeyArray, rho: Array) -> tuple[Array, Array]:
    """Both outputs for one pair."""
    left, right = (evaluate(settings.fn, x) for x in settings.pair(key, settings.shape, rho=rho))
    check_same(left.shape, right.shape)
    return left, right
