"""A transformer block: attention and a feed-forward, with residual connections and norms."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from hopfax.nn.attention import AttentionOutput, Key, Mask, Tokens, Weights, dropout
from hopfax.nn.functional import Layer
from hopfax.nn.precision import layer_norm, linear, normal

# Keys of dropout; those of `jax.random.split` are 0 and 1.
WEIGHTS, HIDDEN = 2, 3


class Attention(Protocol):
    """The attention layer of a block."""

    key: Callable[[Tokens], Tokens]

    def weights(self, x: Tokens, mask: Mask | None = None) -> Weights:
        """Returns the attention weights."""
        ...

    def attend(self, *args: Any, **kwargs: Any) -> AttentionOutput:
        """Called as `attend(x, mask)`, in training with `key=` if its `dropout` is above 0."""
        ...


def _unchanged(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    return arrays


embedding = partial(
    nnx.Embed,
    embedding_init=normal,
    promote_dtype=_unchanged,  # flax's default would round the vectors to their initial dtype
)


def gelu(x: Array) -> Array:
    """Computes BERT's activation by erf, as PyTorch in float32.

    It costs less than half of `jax.nn.gelu`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.nn.block import gelu
        >>> gelu(jnp.float32(0)).item()
        0.0
    """
    return 0.5 * x * (1 + jax.lax.erf(x * 0.5**0.5))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu, "gelu_new": jax.nn.gelu, "gelu_pytorch_tanh": jax.nn.gelu, "relu": jax.nn.relu,
    "silu": jax.nn.silu, "tanh": jnp.tanh,
}  # fmt: skip


class Block(Layer):
    """Attention and feed-forward, each with a residual connection and a norm.

    Args:
        width: See `EncoderConfig`, as for all not listed here.
        dropout: Rate on the attention's output and in the feed-forward, in [0, 1). An attention
            layer with its own `dropout` is called with a key.
        activation: Activation of the feed-forward.
        drop_hidden: Whether the feed-forward's dropout applies to its hidden layer.
        drop_output: Whether dropout applies to the output.
        stop_gradient_keys: Whether the returned keys depend on this layer's parameters only: a
            penalty on them then trains its key projection (and norm) but nothing below.
    """

    def __init__(
        self,
        width: int,
        *,
        attention: Callable[..., Attention],
        ff_width: int,
        norm_first: bool,
        dropout: float,
        activation: Callable[[Array], Array] = gelu,
        drop_hidden: bool = False,
        drop_output: bool = True,
        epsilon: float = 1e-5,
        stop_gradient_keys: bool = False,
        rngs: nnx.Rngs,
    ):
        self.activation, self.norm_first = activation, norm_first
        self.dropout = dropout
        self.drop_hidden, self.drop_output = drop_hidden, drop_output
        self.stop_gradient_keys = stop_gradient_keys
        self.attention_norm = layer_norm(width, epsilon=epsilon, rngs=rngs)
        self.attention = attention(width, rngs=rngs)
        self.ff_norm = layer_norm(width, epsilon=epsilon, rngs=rngs)
        self.ff_in = linear(width, ff_width, rngs=rngs)
        self.ff_out = linear(ff_width, width, rngs=rngs)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the matrices and activations."""
        return jnp.dtype(self.ff_in.dtype or self.ff_in.kernel.dtype)

    def __call__(self, x: Tokens, mask: Mask, *, key: Key = None) -> AttentionOutput:
        """Returns new token vectors (`values`), and the attention's keys and counts."""
        first, second = (None, None) if key is None else jax.random.split(key)
        third = second if key is None or not self.drop_output else jax.random.fold_in(key, HIDDEN)
        entry = self.attention_norm(x) if self.norm_first else x
        if key is None or not getattr(self.attention, "dropout", 0):
            attended = self.attention.attend(entry, mask)
        else:
            attended = self.attention.attend(entry, mask, key=jax.random.fold_in(key, WEIGHTS))
        if self.stop_gradient_keys:
            isolated = jax.lax.stop_gradient(x)
            isolated = self.attention_norm(isolated) if self.norm_first else isolated
            attended = attended._replace(keys=self.attention.key(isolated))
        x = x + dropout(first, attended.values, self.dropout)
        x = x if self.norm_first else self.attention_norm(x)
        entry = self.ff_norm(x) if self.norm_first else x
        hidden = self.activation(self.ff_in(entry))
        hidden = dropout(third, hidden, self.dropout * self.drop_hidden)
        x = x + dropout(second, self.ff_out(hidden), self.dropout * self.drop_output)
        return attended._replace(values=x if self.norm_first else self.ff_norm(x))
