"""Checks of argument values, skipped where values are traced."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(values: Any) -> bool:
    """Returns whether any array in a pytree is traced, so that its values are unknown."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def one_array(output: Any) -> Any:
    """Returns a function's output; raises a TypeError unless it is one real array."""
    if output is None or not jax.tree_util.treedef_is_leaf(jax.tree.structure(output)):
        raise TypeError(f"fn must return one array, got a {type(output).__name__}")
    if jnp.iscomplexobj(output):
        raise TypeError(f"fn must return real numbers, got {jnp.result_type(output)}")
    return output


def check_shapes(**arrays: tuple[Any, str]) -> None:
    """Raises a ValueError unless arrays have the axes named; axes of one name have one size.

    Args:
        **arrays: By argument name, an array and its axes, such as "tokens width" or "" for none.
    """
    shapes = [np.shape(array) for array, _ in arrays.values()]
    axes = [names.split() for _, names in arrays.values()]
    sizes: dict[str, int] = {}
    if [*map(len, shapes)] == [*map(len, axes)]:
        pairs = zip(itertools.chain(*axes), itertools.chain(*shapes), strict=True)
        if all(sizes.setdefault(name, size) == size for name, size in pairs):
            return
    wanted = [f"({', '.join(names)}{',' * (len(names) == 1)})" for names in axes]
    more = any(len(shape) > len(names) for shape, names in zip(shapes, axes, strict=True))
    raise ValueError(
        f"{_joined(arrays)} must have shape {_joined(wanted)}, got {_joined(map(str, shapes))}"
        f"{': use jax.vmap for more' if more else ''}"
    )


def check_mask(mask: Any, shape: tuple[int, ...]) -> jax.Array | None:
    """Returns a mask as an array; raises an error unless it is boolean with this shape."""
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(f"mask must be boolean, True where real, got {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(f"mask must have shape {shape}, got {mask.shape}")
    return mask


def full_mask(mask: Any, shape: tuple[int, ...]) -> jax.Array:
    """Returns a mask as `check_mask` does; None becomes True everywhere."""
    mask = check_mask(mask, shape)
    return jnp.ones(shape, bool) if mask is None else mask


def real_type(*arrays: Any) -> jnp.dtype:
    """Returns the common type of arrays, at least float32; complex arrays are a TypeError."""
    # Promoted by their own types: `jnp.result_type` narrows weakly typed arrays.
    dtypes = (jnp.asarray(array).dtype for array in arrays)
    with jax.numpy_dtype_promotion("standard"):  # it is explicit, and allowed where "strict" is set
        dtype = functools.reduce(jnp.promote_types, dtypes, jnp.dtype(jnp.float32))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"arrays must be real, got {dtype}")
    return dtype


def check_key(key: Any) -> None:
    """Raises a TypeError unless a value can be a random key, typed or raw."""
    typed = jnp.issubdtype(getattr(key, "dtype", None) or object, jax.dtypes.prng_key)
    if not typed and getattr(key, "dtype", None) != jnp.uint32:
        raise TypeError(f"key must be a random key, such as jax.random.key(0), got {key!r}")


def check_count(low: int, high: float = np.inf, **values: Any) -> None:
    """Raises a TypeError unless all numbers are integers, and a ValueError as `check_range`."""
    for name, value in values.items():
        if not is_traced(value) and not np.issubdtype(np.asarray(value).dtype, np.integer):
            raise TypeError(f"{name} must be an integer, got {value}")
    check_range(low, high, **values)


def check_range(low: float, high: float = np.inf, *, ends: str = "[]", **values: Any) -> None:
    """Raises a ValueError unless all numbers are in an interval; traced values are not checked.

    Args:
        low: Lower end.
        high: Upper end.
        ends: Brackets of the interval: "[" or "(", then "]" or ")".
        **values: Numbers or arrays, by argument name.
    """
    for name, value in values.items():
        if is_traced(value):
            continue
        entries = np.asarray(value)
        above = entries > low if ends[0] == "(" else entries >= low
        below = entries < high if ends[1] == ")" else entries <= high
        wrong = entries[~(above & below)]
        if wrong.size:
            sign = ">" if ends[0] == "(" else ">="
            allowed = f"in {ends[0]}{low:g}, {high:g}{ends[1]}"
            if high == np.inf:
                bounds = [f"{sign} {low:g}"] * (low > -np.inf) + ["finite"] * (ends[1] == ")")
                allowed = " and ".join(bounds)
            raise ValueError(f"{name} must be {allowed}, got {wrong[0]}")


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
