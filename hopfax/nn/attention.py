"""Self-attention layers: softmax attention and Hopfield attention."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax import hopfield
from hopfax.checks import check_count, check_range, check_shapes, full_mask
from hopfax.cpu import by_groups, fast_key, group_size
from hopfax.fixed_point import Gradient, Stop, check_stopping, fixed_point
from hopfax.hopfield.attend import STATIC
from hopfax.nn.functional import Layer
from hopfax.nn.precision import linear

Scope = Literal["query", "text", "batch"]
Tokens = Float[Array, "batch tokens width"]
Heads = Float[Array, "batch heads tokens head_width"]
Weights = Float[Array, "batch heads queries tokens"]
Mask = Bool[Array, "batch tokens"]
AnyMask = Mask | Bool[Array, "batch queries keys"]
Seen = Bool[Array, "batch #queries keys"]  # the keys that all queries, or each query, may see
Key = PRNGKeyArray | None


def dropout(key: Key, x: Array, rate: float) -> Array:
    """Zeroes entries with probability `rate` and scales up the rest; without a key, none.

    Args:
        key: Random key, or None.
        x: Entries.
        rate: Dropout rate in [0, 1), rounded to a multiple of 1/65536; the kept entries are
            rescaled by the rounded rate.

    Raises:
        ValueError: The rate is out of range.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be in [0, 1), got {rate}")
    if key is None or rate == 0:
        return x
    dropped = min(round(rate * 65536), 65535)
    kept = jax.random.bits(fast_key(key), x.shape, jnp.uint16) >= dropped
    return jnp.where(kept, x * (65536 / (65536 - dropped)), 0)


class AttentionOutput(NamedTuple):
    """The output of an attention layer.

    Attributes:
        values: New token vectors.
        keys: Keys, concatenated over heads.
        num_steps: Hopfield updates of each query; 0 in softmax attention.
        converged: Whether each query converged; True in softmax attention.
    """

    values: Tokens
    keys: Tokens
    num_steps: Int[Array, "batch heads tokens"]
    converged: Bool[Array, "batch heads tokens"]


class SoftmaxAttention(Layer):
    """Multi-head softmax self-attention with scores scaled by 1/sqrt(head width).

    Masks are True at real tokens, or where a query may see a key: (batch, queries, keys).

    Args:
        width: Token width, a multiple of `num_heads`.
        num_heads: Number of heads.
        causal: Whether each token attends only to itself and earlier tokens.
        dropout: Dropout rate of the attention weights, in [0, 1).
        rngs: Random keys of the initial parameters.

    Raises:
        ValueError: If `num_heads` does not divide `width`, or `dropout` is out of range.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int = 2,
        causal: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        _check_heads(width, num_heads)
        check_range(0, 1, ends="[)", dropout=dropout)
        self.num_heads, self.causal, self.dropout = num_heads, causal, dropout
        project = partial(linear, width, width, rngs=rngs)
        self.query, self.key, self.value, self.out = (project() for _ in range(4))

    def __call__(self, x: Tokens, mask: AnyMask | None = None, *, key: Key = None) -> Tokens:
        """Returns new token vectors, with dropout if a key is given."""
        return self.attend(x, mask, key=key).values

    def attend(self, x: Tokens, mask: AnyMask | None = None, *, key: Key = None) -> AttentionOutput:
        """Returns new token vectors and the keys, with dropout if a key is given."""
        x, _, seen = _inputs(x, mask, causal=self.causal)
        stored = _zero_unseen(x, seen)
        keys, values = self.key(stored), _split(self.value(stored), self.num_heads)
        weights = self._weights(x, keys, seen).astype(values.dtype)
        mixed = _weighted_sums(dropout(key, weights, self.dropout), values)
        counts = jnp.zeros(values.shape[:-1], jnp.int32)
        return AttentionOutput(self.out(_join(mixed)), keys, counts, counts == 0)

    def weights(self, x: Tokens, mask: AnyMask | None = None) -> Weights:
        """Returns the attention weights; uniform for a query that sees no key."""
        x, _, seen = _inputs(x, mask, causal=self.causal)
        return self._weights(x, self.key(_zero_unseen(x, seen)), seen)

    def _weights(self, x: Tokens, keys: Tokens, seen: Seen) -> Weights:
        queries, stored = _split(self.query(x), self.num_heads), _split(keys, self.num_heads)
        logits = stored.shape[-1] ** -0.5 * _scores(queries, stored)
        # Finite, so that a query that sees no key does not become nan.
        return jax.nn.softmax(jnp.where(seen[:, None], logits, jnp.finfo(logits.dtype).min))


class HopfieldAttention(Layer):
    r"""Multi-head attention whose queries are first iterated to attractors of the keys.

    $$\xi \leftarrow K^\top \mathrm{softmax}(\beta K \xi / \sqrt{d_h}), \qquad
    o = V^\top \mathrm{softmax}(\beta K \xi^* / \sqrt{d_h})$$

    With `gradient="implicit"` and `max_steps > 1`, the query projection gets a zero gradient: an
    attractor does not depend on the start. This gradient is wrong for queries that have not
    converged: if `max_steps` is small, use `"unrolled"`. With `max_steps=1`, both settings
    differentiate the single step.

    Masks are as in `SoftmaxAttention`: a query iterates over the keys that it may see.

    Args:
        width: Token width, a multiple of `num_heads`.
        num_heads: Number of heads.
        beta: Inverse temperature before the factor 1/sqrt(head width), > 0.
        scale_beta: Whether the iteration has that factor (Algorithm 2), or not (Eq. 7).
        tol: Convergence tolerance of each query, >= 0.
        max_steps: Maximum number of steps; 0 for none. Also bounds the terms of the implicit
            gradient's series: otherwise, queries between two attractors would slow down a batch.
        min_steps: Steps before this one never count as converged, at least 1; 1 in the papers.
        stop: Measure of the change, `"relative"` or `"absolute"`.
        scope: Which queries stop together. `"query"`: none. `"text"`: all heads and real queries of
            a text, by the Frobenius norm of their change (Algorithm 2, which has one head).
            `"batch"`: those of all texts.
        causal: Whether each token sees only itself and earlier tokens.
        gradient: `"implicit"` or `"unrolled"`.
        mask_keys: Whether the stored patterns exclude padding; ignored with a mask per query.
        query_projection: Whether queries are W_Q x, or x itself.
        output_projection: Whether the heads are mixed by W_O.
        bias: Whether the projections have biases.
        readout_beta: Whether the read-out uses `beta` (Algorithm 2), or 1 (Eq. 13), before scaling.
        rngs: Random keys of the initial parameters.

    Raises:
        TypeError, ValueError: If an option is out of range, or a count is not an integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from hopfax.nn import HopfieldAttention
        >>> rngs = nnx.Rngs(0)
        >>> model = nnx.Sequential(nnx.Linear(3, 8, rngs=rngs), HopfieldAttention(8, rngs=rngs))
        >>> model(jnp.ones((2, 5, 3))).shape  # `attend` also returns keys and convergence
        (2, 5, 8)

    References:
        Robertha, Eqs. 4, 7, 8 and Algorithms 1, 2.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int = 2,
        beta: float = 15.0,
        scale_beta: bool = True,
        tol: float = 1e-4,
        max_steps: int = 50,
        min_steps: int = 2,
        stop: Stop = "relative",
        scope: Scope = "query",
        causal: bool = False,
        gradient: Gradient = "implicit",
        mask_keys: bool = True,
        query_projection: bool = True,
        output_projection: bool = True,
        bias: bool = True,
        readout_beta: bool = True,
        rngs: nnx.Rngs,
    ):
        _check_heads(width, num_heads)
        check_range(0, ends="()", beta=beta)
        check_stopping(tol, max_steps, 1, stop=stop, gradient=gradient, least=0)
        check_count(1, min_steps=min_steps)
        if scope not in ("query", "text", "batch"):
            raise ValueError(f'scope must be "query", "text" or "batch", got {scope!r}')
        scale = (width // num_heads) ** -0.5
        self.beta = beta * scale if scale_beta else beta
        self.readout_beta = beta * scale if readout_beta else scale
        self.num_heads, self.mask_keys, self.causal = num_heads, mask_keys, causal
        self.tol, self.max_steps, self.min_steps = tol, max_steps, min_steps
        self.stop, self.scope, self.gradient = stop, scope, gradient
        project = partial(linear, width, width, use_bias=bias, rngs=rngs)
        self.query = project() if query_projection else None
        self.key, self.value = project(), project()
        self.out = project() if output_projection else None

    def weights(self, x: Tokens, mask: AnyMask | None = None) -> Weights:
        """Returns the weights of the read-out; zero for a query that sees no key."""
        x, *masks = self._inputs(x, mask)
        key = _split(self.key(_zero_unseen(x, masks[-1])), self.num_heads)
        # With the identity as values, the output is the weights.
        identity = jnp.broadcast_to(jnp.eye(x.shape[1]), (*key.shape[:3], x.shape[1]))
        return self.attend_heads(self._queries(x), key, identity, *masks).values

    def __call__(self, x: Tokens, mask: AnyMask | None = None) -> Tokens:
        """Returns new token vectors."""
        return self.attend(x, mask).values

    def attend(self, x: Tokens, mask: AnyMask | None = None) -> AttentionOutput:
        """Returns new token vectors, the keys, and each query's step count and convergence."""
        x, *masks = self._inputs(x, mask)
        stored = _zero_unseen(x, masks[-1])
        keys, value = self.key(stored), _split(self.value(stored), self.num_heads)
        key = _split(keys, self.num_heads)
        heads = self.attend_heads(self._queries(x), key, value, *masks)
        # Retrieval is in float32 at least.
        values = _join(heads.values.astype(keys.dtype))
        values = values if self.out is None else self.out(values)
        return AttentionOutput(values, keys, heads.num_steps, heads.converged)

    def retrieve(
        self, x: Tokens, mask: AnyMask | None = None, *, steps: int | None = None
    ) -> tuple[Heads, Heads]:
        """Returns each head's queries, and their states after up to `steps` updates (Eq. 7).

        Args:
            x: Token vectors.
            mask: As in `attend`.
            steps: Maximum number of updates, at least 1; None for `max_steps`, and 1 if that is 0.

        Raises:
            ValueError: The number of steps is below 1.

        Example:
            >>> import jax.numpy as jnp
            >>> from flax import nnx
            >>> from hopfax.nn import HopfieldAttention
            >>> layer = HopfieldAttention(8, rngs=nnx.Rngs(0))
            >>> [each.shape for each in layer.retrieve(jnp.ones((2, 5, 8)))]  # of two heads
            [(2, 2, 5, 4), (2, 2, 5, 4)]
        """
        steps = max(1, self.max_steps) if steps is None else steps
        check_count(1, steps=steps)
        x, *masks = self._inputs(x, mask)
        query, key = self._queries(x), _split(self.key(_zero_unseen(x, masks[-1])), self.num_heads)
        # The read-out of the keys themselves is the last update.
        options = {"readout_beta": self.beta, "max_steps": steps - 1}
        return query, self.attend_heads(query, key, key, *masks, **options).values

    def _inputs(self, x: Tokens, mask: AnyMask | None) -> tuple[Tokens, Mask, Seen]:
        return _inputs(x, mask, causal=self.causal, store_padding=not self.mask_keys)

    def _queries(self, x: Tokens) -> Heads:
        return _split(x if self.query is None else self.query(x), self.num_heads)

    def attend_heads(
        self, query: Heads, key: Heads, value: Heads, real: Mask, seen: Seen, **changes: Any
    ) -> hopfield.Attention:
        """Computes attention of projected queries over `seen` keys; padding takes one step."""
        names = "beta", "readout_beta", "tol", "max_steps", "min_steps", "gradient", "stop", "scope"
        options = {name: getattr(self, name) for name in names} | changes
        options["adjoint_max_steps"] = max(1, self.max_steps)
        size = group_size(len(key), elements=key.shape[1] * key.shape[2] ** 2)
        return _attend_heads(query, key, value, seen, real, size=size, **options)


# Outside jit, it is compiled once per shape.
@partial(jax.jit, static_argnames=(*STATIC, "scope", "size"))
def _attend_heads(
    query: Heads,
    key: Heads,
    value: Heads,
    seen: Seen,
    real: Mask,
    *,
    tol: float,
    max_steps: int,
    scope: Scope,
    size: int,
    **options: Any,
) -> hopfield.Attention:
    options["max_steps"] = max_steps
    if scope == "query" or max_steps == 0:
        # The output at padding is not used, so one step is enough.
        arrays = (query, key, value, seen, jnp.where(real, tol, jnp.inf))
        return by_groups(_each_head(partial(hopfield.attend, **options)), *arrays, size=size)
    together = partial(_attend_together, tol=tol, **options)
    if scope == "batch":
        return together(query, key, value, seen, real)
    texts = (x[:, None] for x in (query, key, value, seen, real))  # batches of one text
    return jax.tree.map(lambda x: x[:, 0], jax.vmap(together)(*texts))


def _attend_together(
    query: Heads,
    key: Heads,
    value: Heads,
    seen: Seen,
    real: Mask,
    *,
    beta: float,
    readout_beta: float,
    **options: Any,
) -> hopfield.Attention:
    """Iterates all queries until the norm of the real ones' joint change is within `tol`."""
    # The changes would not reach the tolerance in bfloat16.
    wide = jnp.promote_types(key.dtype, jnp.float32)
    params = (key.astype(wide), jnp.asarray(beta, wide), seen, real)
    start = jnp.where(real[:, None, :, None], query, 0).astype(wide)
    attractors, *counts = fixed_point(_update_all, params, start, **options)
    read_out = _each_head(partial(hopfield.attend, beta=readout_beta, max_steps=0))
    values = read_out(attractors, key, value, seen, jnp.zeros(real.shape)).values
    return hopfield.Attention(values, *(jnp.broadcast_to(x, query.shape[:-1]) for x in counts))


def _each_head(fn: Callable[..., hopfield.Attention]) -> Callable[..., hopfield.Attention]:
    """Maps a function of one head over the heads and texts of a batch."""

    def one(query: Array, key: Array, value: Array, seen: Array, tol: Array) -> hopfield.Attention:
        return fn(query, key, value, mask=seen[0] if len(seen) == 1 else seen, tol=tol)

    return jax.vmap(jax.vmap(one, in_axes=(0, 0, 0, None, None)))


def _update_all(params: tuple[Heads, Array, Seen, Mask], query: Heads) -> Heads:
    key, beta, seen, real = params

    @partial(jnp.vectorize, signature="(d),(k,d),(k)->(d)")
    def update(query: Array, key: Array, mask: Array) -> Array:
        return hopfield.update(query, key, beta=beta, mask=mask)

    return jnp.where(real[:, None, :, None], update(query, key[:, :, None], seen[:, None]), 0)


def _scores(queries: Heads, keys: Heads) -> Weights:
    """Returns inner products in float32 at least."""
    wide = jnp.promote_types(keys.dtype, jnp.float32)
    return jnp.einsum("bhqd,bhkd->bhqk", queries, keys, preferred_element_type=wide)


def _weighted_sums(weights: Weights, values: Heads) -> Heads:
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values)


def _zero_unseen(x: Tokens, seen: Seen) -> Tokens:
    """Zeroes tokens that no query sees: 0 * nan in them would reach others."""
    return jnp.where(seen.any(1)[..., None], x, 0) if seen.shape[1] > 1 else x


def _split(x: Tokens, num_heads: int) -> Heads:
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).swapaxes(1, 2)


def _join(x: Heads) -> Tokens:
    batch, heads, tokens, head_width = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * head_width)


def _check_heads(width: int, num_heads: int) -> None:
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"width must be a multiple of num_heads >= 1, got {width} and {num_heads}")


def _inputs(
    x: Tokens, mask: AnyMask | None, *, causal: bool, store_padding: bool = False
) -> tuple[Tokens, Mask, Seen]:
    """Returns the tokens, zeros for padding, which are real, and which keys are seen.

    With a mask per query, a token is real if it sees or is seen.
    """
    check_shapes(x=(x, "batch tokens width"))
    batch, tokens = x.shape[:2]
    if mask is not None and np.ndim(mask) == 3:
        seen = full_mask(mask, (batch, tokens, tokens))
        real = seen.any(1) | seen.any(2)
    else:
        real = full_mask(mask, (batch, tokens)) | store_padding
        seen = real[:, None]
    if causal:
        seen = seen & jnp.tri(tokens, dtype=bool)
    # 0 * nan in padding would reach real tokens.
    return jnp.where(real[..., None] | jnp.isfinite(x), x, 0), real, seen
