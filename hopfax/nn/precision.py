"""Models whose blocks compute in bfloat16, their parameters kept in float32."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from hopfax.cpu import flat_dot_general
from hopfax.nn.functional import Functional, Module, functional

Precision = Literal["float32", "bfloat16"]


class Linear(nnx.Linear):
    """`nnx.Linear` in its kernel's precision, with the bias added in the bias's own.

    The gradient of a bias is a sum over all tokens of a batch, and a sum in bfloat16 stops growing.
    """

    def __init__(self, *sizes: int, **options: Any):
        super().__init__(*sizes, promote_dtype=_promote_matrices, **options)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Maps the last axis."""
        dtype = self.dtype or jnp.promote_types(inputs.dtype, self.kernel.dtype)
        return super().__call__(inputs, out_sharding).astype(dtype)


@partial(jax.jit, static_argnums=(1, 2))
def normal(key: Array, shape: tuple[int, ...], dtype: Any, out_sharding: Any = None) -> Array:
    """Draws initial parameters from N(0, 0.02^2), with one compilation for each shape."""
    return 0.02 * jax.random.normal(key, shape, dtype)


linear = partial(
    Linear,
    kernel_init=normal,
    dot_general=flat_dot_general,  # pyright: ignore[reportArgumentType]
)


class LayerNorm(nnx.LayerNorm):
    """`nnx.LayerNorm` that computes in float32 at least and keeps its input's dtype."""

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalizes the last axis."""
        return super().__call__(x, mask=mask).astype(x.dtype)


layer_norm = partial(LayerNorm, epsilon=1e-5, use_fast_variance=False)  # PyTorch's epsilon


def _promote_matrices(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    inputs, kernel, bias = arrays
    dtype = dtype or jnp.promote_types(inputs.dtype, kernel.dtype)
    return inputs.astype(dtype), kernel.astype(dtype), bias


def with_precision(model: Functional[Module], precision: Precision) -> Functional[Module]:
    """Returns the model with its blocks in another precision.

    With `"bfloat16"`, inside the blocks:

    | in bfloat16 | in float32 |
    |---|---|
    | projections, feed-forward, residual sums, dropout | LayerNorm, addition of biases |
    | the mixing of values | scores, their matrix K Kᵀ, softmax, retrieval and its adjoint |
    | the returned keys | their spectrum, and so ESR |

    Parameters, gradients and everything outside the blocks are in float32.

    Args:
        model: An `Encoder` or `Decoder` as functions.
        precision: `"bfloat16"`, or `"float32"` for the model itself.

    Raises:
        ValueError: `precision` is not an allowed value.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.nn import tinybert, with_precision
        >>> model = with_precision(tinybert(10, 2, width=8, num_layers=1), "bfloat16")
        >>> params = model.init(jax.random.key(0))
        >>> output = model.apply(params, jnp.ones((1, 4), int), jnp.ones((1, 4), bool))
        >>> output.encoding.keys.dtype.name, output.logits.dtype.name
        ('bfloat16', 'float32')
    """
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision must be float32 or bfloat16, got {precision!r}")
    if precision == "float32":
        return model
    assert model.build
    return functional(partial(_in_bfloat16, model.build))._replace(init=model.init)


def _in_bfloat16(build: Callable[..., Module], *, rngs: nnx.Rngs) -> Module:
    module: Any = build(rngs=rngs)
    for _, part in nnx.iter_modules(module.blocks):
        if isinstance(part, nnx.Linear):
            part.dtype = jnp.dtype(jnp.bfloat16)
    return module
