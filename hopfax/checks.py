"""Checks and placement of arguments: chex checks shapes and types, this module other values.

`chex.disable_asserts` disables the checks by chex.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jax.extend.core import get_opaque_trace_state
from jax.sharding import Mesh, NamedSharding, get_abstract_mesh

Fn = TypeVar("Fn", bound=Callable[..., Any])
_COPIES: dict[int, jax.Array] = {}  # on all local devices, by the identity of the original


def is_traced(values: Any) -> bool:
    """Returns whether any array in a pytree is traced, so that its values are unknown."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def is_tracing() -> bool:
    """Returns whether the caller runs under `jit`, `vmap`, `grad`, `shard_map` or their like."""
    state = get_opaque_trace_state(convention="hopfax")
    with eval_context():
        return state != get_opaque_trace_state(convention="hopfax")


def instead(kind: type[Exception], message: str) -> dict[str, Any]:
    """Options of a chex assertion that raises this error; a `custom_message` is only appended."""
    return {"exception_type": lambda _: kind(message)}


def share(rows: Any, common: Any) -> tuple[Any, Any]:
    """Returns `rows`, split along the first axis over all local devices, and `common`, replicated.

    Both are unchanged while tracing, if the number of devices does not divide a first axis, and if
    the caller has chosen devices: by `jax.default_device`, a mesh or committed arrays.
    """
    count, leaves = jax.local_device_count(), jax.tree.leaves(rows)
    if count == 1 or is_tracing() or any(not np.ndim(x) or len(x) % count for x in leaves):
        return rows, common
    chosen = jax.config.values["jax_default_device"] or not get_abstract_mesh().empty
    if chosen or any(getattr(x, "committed", False) for x in jax.tree.leaves((leaves, common))):
        return rows, common
    mesh = Mesh(np.asarray(jax.local_devices()), ("devices",))
    everywhere, split = NamedSharding(mesh, jax.P()), NamedSharding(mesh, jax.P("devices"))
    for leaf in jax.tree.leaves(common):
        if isinstance(leaf, jax.Array) and id(leaf) not in _COPIES:
            _COPIES[id(leaf)] = jax.device_put(leaf, everywhere)
            weakref.finalize(leaf, _COPIES.pop, id(leaf), None)
    copies = jax.tree.map(lambda leaf: _COPIES.get(id(leaf), leaf), common)
    return jax.device_put((rows, copies), (split, everywhere))


def compile_once(*static: str, check: Any = None, split: bool = False) -> Callable[[Fn], Fn]:
    """Returns a decorator that jits a function; `static` are names of hashable options.

    `check(*args, **options)` runs before each call, outside the trace. It may return options that
    replace those of the call. With `split`, local devices share the rows of the first argument.
    """

    def decorate(fn: Any) -> Any:
        jitted = jax.jit(fn, static_argnames=static)

        @functools.wraps(fn)
        def call(*args: Any, **options: Any) -> Any:
            options |= (check and check(*args, **options)) or {}
            if split and args and np.ndim(args[0]) > 1:
                first, (rest, options) = share(args[:1], (args[1:], options))
                args = first + rest
            return jitted(*args, **options)

        return call

    return decorate


def one_array(output: Any) -> Any:
    """Returns a function's output; raises a TypeError unless it is one real array."""
    if output is None or not jax.tree_util.treedef_is_leaf(jax.tree.structure(output)):
        raise TypeError(f"fn must return one array, got a {type(output).__name__}")
    if jnp.iscomplexobj(output):
        raise TypeError(f"fn must return real numbers, got {jnp.result_type(output)}")
    return output


def check_shapes(**arrays: tuple[Any, str]) -> None:
    """Raises a ValueError unless arrays have these axes, each name of one size.

    An argument is an array and its axes, such as `keys=(keys, "tokens width")`; "" for a number.
    """
    # chex takes what has no shape, such as a list, for a number.
    values = [x if hasattr(x, "shape") else np.asarray(x) for x, _ in arrays.values()]
    axes, sizes = [names.split() for _, names in arrays.values()], {}
    for names, value in zip(axes, values, strict=True):
        sizes = dict(zip(names, value.shape, strict=False)) | sizes

    def error(_: str) -> ValueError:
        wanted = [f"({', '.join(names)}{',' * (len(names) == 1)})" for names in axes]
        more = any(value.ndim > len(names) for value, names in zip(values, axes, strict=True))
        given = _joined(str(value.shape) for value in values) + ": use jax.vmap for more" * more
        return ValueError(f"{_joined(arrays)} must have shape {_joined(wanted)}, got {given}")

    chex.assert_shape(
        values, [tuple(map(sizes.get, names)) for names in axes], exception_type=error
    )


def check_shape(shape: tuple[int, ...], **arrays: Any) -> None:
    """Raises a ValueError unless all arrays have this shape."""
    for name, array in arrays.items():
        error = instead(ValueError, f"{name} must have shape {shape}, got {np.shape(array)}")
        chex.assert_shape(jnp.asarray(array), shape, **error)


def check_mask(mask: Any, shape: tuple[int, ...]) -> jax.Array | None:
    """Returns a mask as an array; raises an error unless it is boolean with this shape."""
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    error = instead(TypeError, f"mask must be boolean, True where real, got {mask.dtype}")
    chex.assert_type(mask, bool, **error)
    check_shape(shape, mask=mask)
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
        if not is_traced(value):
            error = instead(TypeError, f"{name} must be an integer, got {value}")
            chex.assert_type(np.asarray(value), int, **error)
    check_range(low, high, **values)


def check_range(low: float, high: float = np.inf, *, ends: str = "[]", **values: Any) -> None:
    """Raises a ValueError unless all numbers are in an interval; `ends` are its brackets."""
    for name, value in values.items():
        entries = np.empty(0) if is_traced(value) else np.asarray(value)
        above = entries > low if ends[0] == "(" else entries >= low
        below = entries < high if ends[1] == ")" else entries <= high
        if (wrong := entries[~(above & below)]).size:
            allowed = f"in {ends[0]}{low:g}, {high:g}{ends[1]}"
            if high == np.inf:
                sign = ">" if ends[0] == "(" else ">="
                bounds = [f"{sign} {low:g}"] * (low > -np.inf) + ["finite"] * (ends[1] == ")")
                allowed = " and ".join(bounds)
            raise ValueError(f"{name} must be {allowed}, got {wrong[0]}")


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
