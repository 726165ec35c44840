"""Models whose blocks compute in bfloat16, their parameters kept in float32."""

from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from hopfax.cpu import flat_dot_general
from hopfax.nn.functional import Functional, Module, Params

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Linear(nnx.Linear):
    """`nnx.Linear` in its kernel's precision, with the bias added in the bias's own.

    The gradient of a bias is a sum over all tokens of a batch, and a sum in bfloat16 stops growing:
    8192 ones make 2048 on CPU. Products do not need this, they are summed in float32.
    """

    def __init__(self, *sizes: int, **options: Any):
        super().__init__(*sizes, promote_dtype=_promote_matrices, **options)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Maps the last axis."""
        dtype = jnp.promote_types(inputs.dtype, self.kernel.dtype)
        return super().__call__(inputs, out_sharding).astype(dtype)


linear = partial(
    Linear,
    kernel_init=nnx.initializers.normal(0.02),
    dot_general=flat_dot_general,  # pyright: ignore[reportArgumentType]
)


class LayerNorm(nnx.LayerNorm):
    """`nnx.LayerNorm` that keeps its input's dtype; inside it computes in float32 at least."""

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalises the last axis."""
        return super().__call__(x, mask=mask).astype(x.dtype)


def _promote_matrices(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    inputs, kernel, bias = arrays
    dtype = jnp.promote_types(inputs.dtype, kernel.dtype)
    return inputs.astype(dtype), kernel.astype(dtype), bias


def with_precision(model: Functional[Module], precision: Precision) -> Functional[Module]:
    """The same model with its blocks in another precision; `init` is untouched.

    With `"bfloat16"`, inside the blocks:

    | in bfloat16 | in float32 |
    |---|---|
    | projections, feed-forward, residual sums, dropout | LayerNorm, the adding of biases |
    | the mixing of values | scores, their matrix K Kᵀ, softmax, retrieval and its adjoint |
    | keys as they are reported | their spectrum, and so ESR |

    Before and after the blocks everything is in float32: embeddings (noise on them too), their
    LayerNorm, pooling, logits, loss. So are parameters, gradients and the optimizer's state:
    `apply` casts the blocks' matrices on their way in, and their gradients are cast back.

    Args:
        model: An `Encoder` or `Decoder` taken apart.
        precision: `"float32"` returns the model as it is.

    Raises:
        ValueError: If `precision` is neither of the two.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.nn import tinybert
        >>> model = with_precision(tinybert(10, 2, width=8, num_layers=1), "bfloat16")
        >>> params = model.init(jax.random.key(0))
        >>> output = model.apply(params, jnp.ones((1, 4), int), jnp.ones((1, 4), bool))
        >>> output.encoding.keys.dtype.name, output.logits.dtype.name
        ('bfloat16', 'float32')
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be {' or '.join(PRECISIONS)}, got {precision!r}")
    if precision == "float32":
        return model

    def apply(params: Params, *inputs: Any, **options: Any) -> Any:
        narrow = params | {"blocks": jax.tree.map(_narrow, params["blocks"])}
        return model.apply(narrow, *inputs, **options)

    return Functional(model.init, apply)


def _narrow(leaf: Array) -> Array:
    return leaf.astype(jnp.bfloat16) if leaf.ndim == 2 else leaf
