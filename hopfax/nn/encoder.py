"""A text encoder and classifier whose stages can be called separately.

`embed_tokens` -> *token site* -> `embed` -> *embedding site* -> `encode` -> `classify`: noise is
added at the sites.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_count, check_mask, check_range, is_traced
from hopfax.nn.attention import Heads, HopfieldAttention, Key, Mask, Tokens, dropout
from hopfax.nn.block import ACTIVATIONS, Attention, Block, embedding
from hopfax.nn.functional import Layer, scan_modules
from hopfax.nn.precision import layer_norm, linear

Pooling = Literal["mean", "cls"]
Site = Literal["token", "embedding"]
TokenTypes = Int[Array, "batch tokens"] | None


class Recall(Protocol):
    """A memory: a module that removes noise at a site, see `hopfax.nn.with_memory`."""

    site: Site

    def __call__(self, network: "Encoder", x: Tokens, types: TokenTypes) -> Tokens:
        """Returns the vectors of the site without noise."""
        ...


class Encoding(NamedTuple):
    """The output of the blocks.

    Attributes:
        hidden: Final token vectors.
        keys: Keys of every layer.
        num_steps: See `AttentionOutput`, as for `converged`.
        ponder: Ponder cost of each token; None in a model of fixed depth.
    """

    hidden: Tokens
    keys: Float[Array, "layers batch tokens width"]
    num_steps: Int[Array, "layers batch heads tokens"]
    converged: Bool[Array, "layers batch heads tokens"]
    ponder: Float[Array, "batch tokens"] | None = None


class Classification(NamedTuple):
    """Logits and the encoding from which they are computed."""

    logits: Float[Array, "batch outputs"]
    encoding: Encoding


class Perturbation(NamedTuple):
    """Perturbation of a model's inputs at its two sites; None for no perturbation.

    Attributes:
        token: Added to the token vectors, before positions and LayerNorm.
        embedding: Added to the output of that LayerNorm.
    """

    token: Tokens | None = None
    embedding: Tokens | None = None


CLEAN = Perturbation()


_KEYS = 4  # of the second pass's dropout; a block uses the numbers below


def mean_of_real(hidden: Tokens, mask: Mask) -> Float[Array, "batch width"]:
    """Returns the mean over a text's real tokens, zero for a text without any."""
    count = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.sum(jnp.where(mask[..., None], hidden, 0), axis=-2) / count


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Settings of an `Encoder`.

    Attributes:
        vocab_size: Number of token ids.
        num_outputs: Classes, or 1 for regression and for scoring choices; None for no classifier.
        attention: Name of the attention's class, and its options.
        width: Token width.
        embedding_width: Width of the vectors of tokens, positions and types, at both sites; a
            linear layer then maps them to `width`, as in ELECTRA. None for `width`.
        num_layers: Number of blocks.
        ff_width: Width of the feed-forward's hidden layer.
        max_length: Maximum number of tokens of a text.
        norm_first: Pre-LN blocks if True, else post-LN.
        activation: Activation of the feed-forward: a name in `ACTIVATIONS`.
        pooling: `"mean"` over real tokens, or `"cls"`: the first token through a layer.
        pooler_activation: Activation of that layer, as `activation`: tanh in BERT, relu in
            DistilBERT, gelu in ELECTRA.
        dropout: Dropout rate, in [0, 1), of the embeddings, the attention's and the feed-forward's
            outputs.
        drop_hidden: Whether the feed-forward's hidden layer has dropout, too.
        drop_pooled: Whether the classifier's input has dropout, too.
        stop_gradient_keys: Whether a penalty on a layer's keys trains no layer below (see
            `Block`). The first layer's keys still depend on the embeddings. In training, the keys
            are then those of a second pass, from embeddings without dropout.
        padding_idx: Token id whose embedding has no gradient; None for none.
        embedding_norm: Whether a LayerNorm follows the sum of token and position vectors.
        epsilon: Epsilon of all norms.
        embedding_scale: Factor on token and position vectors, > 0. The norm after them undoes it,
            but noise on the tokens is weaker by this factor.
        num_types: Number of token types, whose vectors are added with the positions'; 0 for none.
        separator: Token id after which tokens have type 1, such as BERT's [SEP] between two texts;
            None gives all tokens type 0.
        position_offset: Position of the first token; 2 in RoBERTa.
        remat: Whether the backward pass recomputes each block (gradient checkpointing); excludes
            `stop_gradient_keys`.
        memory: Site of the memory that `with_memory` adds; None for none.
    """

    vocab_size: int
    num_outputs: int | None
    attention: Mapping[str, Any] = field(hash=False)
    width: int = 128
    embedding_width: int | None = None
    num_layers: int = 2
    ff_width: int = 512
    max_length: int = 128
    norm_first: bool = True
    activation: str = "gelu"
    pooling: Pooling = "mean"
    pooler_activation: str = "tanh"
    dropout: float = 0.1
    drop_hidden: bool = False
    drop_pooled: bool = True
    stop_gradient_keys: bool = False
    padding_idx: int | None = None
    embedding_norm: bool = True
    epsilon: float = 1e-5
    embedding_scale: float = 1.0
    num_types: int = 0
    separator: int | None = None
    position_offset: int = 0
    remat: bool = False
    memory: Site | None = None

    def __post_init__(self) -> None:
        outputs = 1 if self.num_outputs is None else self.num_outputs
        check_count(1, num_outputs=outputs, num_layers=self.num_layers)
        check_range(0, 1, ends="[)", dropout=self.dropout)
        check_range(0, ends="()", embedding_scale=self.embedding_scale)
        if self.pooling not in ("mean", "cls"):
            raise ValueError(f'pooling must be "mean" or "cls", got {self.pooling!r}')
        for name in ("activation", "pooler_activation"):
            if (got := getattr(self, name)) not in ACTIVATIONS:
                allowed = ", ".join(ACTIVATIONS)
                raise ValueError(f"{name} must be one of {allowed}, got {got!r}")
        if self.remat and self.stop_gradient_keys:
            raise ValueError("remat requires identical blocks, so stop_gradient_keys must be False")

    @property
    def token_width(self) -> int:
        """Width of the vectors at both sites."""
        return self.embedding_width or self.width

    @property
    def stores_padding(self) -> bool:
        """Whether padding takes part in attention: texts should then be padded to one length."""
        return not self.attention.get("mask_keys", True)


class Encoder(Layer):
    """Text classifier: embeddings, blocks, pooling and a linear read-out.

    Padding must follow the text, since positions count from the first token.

    Args:
        vocab_size: Number of token ids.
        num_outputs: See `EncoderConfig`.
        attention: Called as `attention(width, rngs=rngs)` for each attention layer; for instance
            `functools.partial(HopfieldAttention, beta=15.0)`.
        rngs: Random keys of the initial parameters.
        **options: Other settings of `EncoderConfig`, except `memory`.

    Attributes:
        config: These arguments as an `EncoderConfig`.

    Raises:
        TypeError, ValueError: An option is out of range, `width` is not a multiple of `num_heads`,
            or `remat` and `stop_gradient_keys` are both set.
    """

    settings: type[EncoderConfig] = EncoderConfig

    def __init__(
        self,
        vocab_size: int,
        num_outputs: int | None,
        *,
        attention: Callable[..., Attention],
        rngs: nnx.Rngs,
        **options: Any,
    ):
        layer = getattr(attention, "func", attention)
        described = {"name": layer.__name__, **getattr(attention, "keywords", {})}
        config = self.settings(
            vocab_size=vocab_size, num_outputs=num_outputs, attention=described, **options
        )
        if config.memory:
            raise ValueError(f"memory must be added by with_memory, got {config.memory!r}")
        self.config, width, narrow = config, config.width, config.token_width
        self.memory: Recall | None = None
        self.tokens = embedding(vocab_size, narrow, rngs=rngs)
        self.positions = embedding(config.max_length + config.position_offset, narrow, rngs=rngs)
        self.types = embedding(config.num_types, narrow, rngs=rngs) if config.num_types else None
        norm = partial(layer_norm, narrow, epsilon=config.epsilon, rngs=rngs)
        self.norm = norm() if config.embedding_norm else None
        self.project = linear(narrow, width, rngs=rngs) if config.embedding_width else None
        self.blocks = nnx.List([
            Block(
                width,
                attention=attention,
                ff_width=config.ff_width,
                norm_first=config.norm_first,
                dropout=config.dropout,
                activation=ACTIVATIONS[config.activation],
                drop_hidden=config.drop_hidden,
                epsilon=config.epsilon,
                stop_gradient_keys=config.stop_gradient_keys and number > 0,
                rngs=rngs,
            )
            for number in range(config.num_layers)
        ])  # fmt: skip
        self.pooler = linear(width, width, rngs=rngs) if config.pooling == "cls" else None
        self.classifier = linear(width, num_outputs, rngs=rngs) if num_outputs else None

    def remember(self, memory: "Recall") -> None:
        """Adds a memory, see `hopfax.nn.with_memory`."""
        self.memory = nnx.data(memory)  # a module, where None was
        self.config = replace(self.config, memory=memory.site)

    def embed_tokens(self, ids: Int[Array, "batch tokens"]) -> Tokens:
        """Returns the token embeddings: the *token* site; nan for ids outside the vocabulary."""
        # By default, negative ids count from the end.
        ids = jnp.where(ids < 0, self.tokens.num_embeddings, ids)
        tokens = self.config.embedding_scale * self.tokens(ids)
        if self.config.padding_idx is None:
            return tokens
        padding = (ids == self.config.padding_idx)[..., None]
        return jnp.where(padding, jax.lax.stop_gradient(tokens), tokens)

    def token_types(self, ids: Int[Array, "batch tokens"]) -> Int[Array, "batch tokens"]:
        """Returns 1 for tokens after the first separator of a model with two types, else 0."""
        if self.config.num_types < 2 or self.config.separator is None:
            return jnp.zeros_like(ids)
        ends = ids == self.config.separator
        return jnp.minimum(jnp.cumsum(ends, axis=-1) - ends, 1)

    def embed(
        self,
        tokens: Tokens,
        types: TokenTypes = None,
        *,
        positions: Int[Array, "batch tokens"] | None = None,
        key: Key = None,
    ) -> Tokens:
        """Adds positions and token types (default: 0), and normalizes: the *embedding* site.

        Raises:
            ValueError: There are more than `max_length` tokens.
        """
        longest, length = self.config.max_length, tokens.shape[-2]
        if length > longest:
            raise ValueError(f"texts must have at most max_length={longest} tokens, got {length}")
        if self.memory and self.memory.site == "token":
            tokens = self.memory(self, tokens, types)
        embeddings = tokens + self.offsets(tokens.shape[:-1], types, positions)
        embeddings = embeddings if self.norm is None else self.norm(embeddings)
        return dropout(key, embeddings, self.config.dropout)

    def offsets(
        self,
        shape: tuple[int, ...],
        types: TokenTypes = None,
        positions: Int[Array, "batch tokens"] | None = None,
    ) -> Float[Array, "#batch tokens width"]:
        """Returns the scaled vectors of positions and token types, for a batch of this shape."""
        if positions is None:
            positions = self.config.position_offset + jnp.arange(shape[-1])[None]
        offsets = self.positions(positions)
        if self.types is not None:
            offsets += self.types(jnp.zeros(shape, int) if types is None else types)
        return self.config.embedding_scale * offsets

    def encode(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None, *, key: Key = None
    ) -> Encoding:
        """Runs the blocks, in their own precision.

        Args:
            embeddings: From `embed`, with or without noise.
            mask: True at real tokens.
            types: As for `embed`; only `with_memory` at the embedding site uses them.
            key: Key for dropout; None disables it.
        """
        hidden = self.start(embeddings, mask, types)
        if self.config.remat and is_traced(hidden):
            hidden, layers = scan_modules(partial(self._layer, mask, key), self.blocks, hidden)
        else:
            outputs = []
            for number, block in enumerate(self.blocks):
                hidden, output = self._layer(mask, key, block, hidden, number)
                outputs.append(output)
            layers = jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)
        return Encoding(hidden.astype(embeddings.dtype), *layers)

    def hidden_states(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None
    ) -> Float[Array, "layers batch tokens width"]:
        """Returns every layer's output, with the arguments of `encode`."""
        return jnp.stack([values for *_, values in self._walk(embeddings, mask, types)])

    def attention_maps(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None
    ) -> Float[Array, "layers batch heads queries tokens"]:
        """Returns every layer's attention weights, at the attractors in Hopfield attention."""
        maps = []
        for block, entry, _ in self._walk(embeddings, mask, types):
            maps.append(block.attention.weights(entry, mask))
        return jnp.stack(maps)

    def retrieve(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None, *, steps: int | None = None
    ) -> tuple[Heads, Heads]:
        """Returns the first layer's queries and states, see `HopfieldAttention.retrieve`.

        Raises:
            ValueError: As there, or the attention is softmax.
        """
        block, entry, _ = next(self._walk(embeddings, mask, types))
        if not isinstance(block.attention, HopfieldAttention):
            raise ValueError("retrieve requires Hopfield attention, got softmax attention")
        return block.attention.retrieve(entry, mask, steps=steps)

    def _walk(self, embeddings: Tokens, mask: Mask, types: TokenTypes) -> Any:
        """Yields every layer with its attention's input and its output."""
        values = self.start(embeddings, mask, types)
        for block in self.blocks:
            entry = block.attention_norm(values) if block.norm_first else values
            values = block(values, mask).values
            yield block, entry, values

    def start(self, embeddings: Tokens, mask: Mask, types: TokenTypes = None) -> Tokens:
        """Returns the blocks' input, in their dtype, with the arguments of `encode`."""
        if self.memory and self.memory.site == "embedding":
            embeddings = self.memory(self, embeddings, types)
        embeddings = self._finite(embeddings, mask)
        embeddings = embeddings if self.project is None else self.project(embeddings)
        return embeddings.astype(self.blocks[0].dtype)

    def _finite(self, x: Tokens, mask: Mask) -> Tokens:
        """Zeroes padding that is not finite, unless it is stored: 0 * nan would reach gradients."""
        if self.config.stores_padding:
            return x
        return jnp.where(mask[..., None] | jnp.isfinite(x), x, 0)

    def _layer(
        self, mask: Mask, key: Key, block: Block, x: Tokens, number: int | Array
    ) -> tuple[Tokens, tuple[Array, Array, Array]]:
        """Runs a block, with the dropout of its number."""
        attended = block(x, mask, key=None if key is None else jax.random.fold_in(key, number))
        return attended.values, (attended.keys, attended.num_steps, attended.converged)

    def classify(
        self, hidden: Tokens, mask: Mask, *, key: Key = None
    ) -> Float[Array, "batch outputs"]:
        """Pools the real tokens and computes the logits."""
        if self.pooler is None:
            pooled = mean_of_real(hidden, mask)
        else:
            pooled = ACTIVATIONS[self.config.pooler_activation](self.pooler(hidden[:, 0]))
        if self.classifier is None:
            raise ValueError("this encoder has no classifier: num_outputs is None")
        return self.classifier(dropout(key, pooled, self.config.dropout * self.config.drop_pooled))

    def __call__(
        self,
        ids: Int[Array, "batch tokens"],
        mask: Mask,
        *,
        key: Key = None,
        added: Perturbation = CLEAN,
    ) -> Classification:
        """Runs all stages, with dropout if a key is given, and with the perturbation `added`."""
        keys = (None, None, None) if key is None else jax.random.split(key, 3)
        check_mask(mask, ids.shape)
        # Padding may have ids outside the vocabulary.
        tokens = self._finite(self.embed_tokens(ids), mask)
        tokens = tokens if added.token is None else tokens + added.token
        types = self.token_types(ids)

        def run(for_embeddings: Key, for_blocks: Key) -> Encoding:
            embeddings = self.embed(tokens, types, key=for_embeddings)
            embeddings = embeddings if added.embedding is None else embeddings + added.embedding
            return self.encode(embeddings, mask, types, key=for_blocks)

        encoding = run(*keys[:2])
        if key is not None and self.config.stop_gradient_keys:
            encoding = encoding._replace(keys=run(None, jax.random.fold_in(key, _KEYS)).keys)
        return Classification(self.classify(encoding.hidden, mask, key=keys[2]), encoding)
