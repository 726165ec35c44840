"""A small causal transformer, to classify a text or predict each next token.

`embed_tokens` -> *token site* -> `embed` -> *embedding site* -> `decode` -> `read_out`, as in
`hopfax.nn.encoder`.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from hopfax.checks import check_count, full_mask
from hopfax.nn.attention import Key, Mask, SoftmaxAttention, Tokens
from hopfax.nn.block import Block, embedding
from hopfax.nn.encoder import mean_of_real
from hopfax.nn.functional import Functional, Layer, functional
from hopfax.nn.precision import layer_norm, linear

Reading = Literal["mean", "each"]


def sinusoids(num_tokens: int, width: int) -> Float[np.ndarray, "tokens width"]:
    r"""Returns fixed position vectors: sines and cosines of increasing wavelengths.

    $$p_{t,2i} = \sin(t / 10000^{2i/d}), \qquad p_{t,2i+1} = \cos(t / 10000^{2i/d})$$

    Example:
        >>> from hopfax.nn.decoder import sinusoids
        >>> sinusoids(2, 2).round(2).tolist()
        [[0.0, 1.0], [0.8399999737739563, 0.5400000214576721]]

    References:
        Vaswani et al. (2017), Attention Is All You Need, section 3.5.
    """
    angles = np.arange(num_tokens)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(num_tokens, -1)
    return waves[:, :width].astype(np.float32)


class Decoder(Layer):
    """Causal transformer with ReLU feed-forwards and sinusoidal positions.

    Linear layers are initialized with N(0, 0.02^2) and zero biases, embeddings with Xavier's
    uniform distribution; token embeddings are multiplied by the root of the width.

    Args:
        vocab_size: Number of token ids.
        num_outputs: Classes, or the vocabulary's size for a language model.
        width: Token width, a multiple of `num_heads`; the feed-forward is four times as wide.
        num_layers: Number of blocks.
        num_heads: Number of attention heads.
        reading: `"mean"`: one output from the mean over real tokens; `"each"`: one per token.
        norm_first: Pre-LN blocks if True, else post-LN.
        dropout: Dropout rate of attention weights, attention output and the feed-forward's hidden
            layer, in [0, 1).
        rngs: Random keys of the initial parameters.

    Raises:
        TypeError, ValueError: An option is out of range, or a count is not an integer.

    References:
        Noise Stability of Transformer Models, Appendix J.1 and Table 2.
    """

    def __init__(
        self,
        vocab_size: int,
        num_outputs: int,
        *,
        width: int = 128,
        num_layers: int = 2,
        num_heads: int = 2,
        reading: Reading = "mean",
        norm_first: bool = False,
        dropout: float = 0.1,
        rngs: nnx.Rngs,
    ):
        check_count(1, num_outputs=num_outputs, num_layers=num_layers)
        if reading not in ("mean", "each"):
            raise ValueError(f'reading must be "mean" or "each", got {reading!r}')
        self.width = width
        self.reading: Reading = reading
        xavier = nnx.initializers.xavier_uniform()
        self.tokens = embedding(vocab_size, width, embedding_init=xavier, rngs=rngs)
        block = partial(
            Block,
            width,
            attention=partial(SoftmaxAttention, num_heads=num_heads, causal=True, dropout=dropout),
            ff_width=4 * width,
            norm_first=norm_first,
            dropout=dropout,
            activation=jax.nn.relu,
            drop_hidden=True,
            drop_output=False,
            rngs=rngs,
        )
        self.blocks = nnx.List([block() for _ in range(num_layers)])
        self.norm = layer_norm(width, rngs=rngs) if norm_first else None
        self.reader = linear(width, num_outputs, rngs=rngs)

    def embed_tokens(self, ids: Int[Array, "batch tokens"]) -> Tokens:
        """Returns the token embeddings: the *token* site; nan for ids outside the vocabulary."""
        # By default, negative ids count from the end.
        ids = jnp.where(ids < 0, self.tokens.num_embeddings, ids)
        return self.tokens(ids) * self.width**0.5

    def embed(self, tokens: Tokens) -> Tokens:
        """Adds positions: the *embedding* site."""
        return tokens + jnp.asarray(sinusoids(tokens.shape[-2], self.width), tokens.dtype)

    def decode(self, embeddings: Tokens, mask: Mask, *, key: Key = None) -> Tokens:
        """Runs the blocks, in their own precision. `mask` is True at real tokens."""
        # 0 * nan in padding would reach the gradients of shared weights.
        x = jnp.where(mask[..., None], embeddings, 0).astype(self.blocks[0].dtype)
        for number, block in enumerate(self.blocks):
            x = block(x, mask, key=None if key is None else jax.random.fold_in(key, number)).values
        x = x.astype(embeddings.dtype)
        return x if self.norm is None else self.norm(x)

    def read_out(self, hidden: Tokens, mask: Mask) -> Float[Array, "batch *tokens outputs"]:
        """Computes the logits of each text, or of each of its tokens."""
        return self.reader(mean_of_real(hidden, mask) if self.reading == "mean" else hidden)

    def __call__(
        self, ids: Int[Array, "batch tokens"], mask: Mask | None = None, *, key: Key = None
    ) -> Float[Array, "batch *tokens outputs"]:
        """Runs all stages, with dropout if a key is given; by default every token is real."""
        mask = full_mask(mask, ids.shape)
        embeddings = self.embed(self.embed_tokens(ids))
        return self.read_out(self.decode(embeddings, mask, key=key), mask)


def decoder(vocab_size: int, num_outputs: int, **options: Any) -> Functional[Decoder]:
    """Returns a `Decoder` with these arguments as pure functions `init` and `apply`.

    Raises:
        TypeError, ValueError: `init` raises those of `Decoder`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.nn import decoder
        >>> model = decoder(vocab_size=10, num_outputs=10, width=8, reading="each")
        >>> params = model.init(jax.random.key(0))
        >>> model.apply(params, jnp.ones((3, 5), int)).shape
        (3, 5, 10)
    """
    return functional(partial(Decoder, vocab_size, num_outputs, **options))
