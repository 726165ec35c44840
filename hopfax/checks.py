"""Checks of argument values, skipped where values are traced."""

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
                allowed = f"{sign} {low:g}" + (" and finite" if ends[1] == ")" else "")
            raise ValueError(f"{name} must be {allowed}, got {wrong[0]}")
