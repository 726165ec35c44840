"""Self-attention layers: softmax attention and Hopfield attention."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax import hopfield
from hopfax.checks import check_range, check_shapes, full_mask
from hopfax.cpu import by_groups, prefers_sums, quick
from hopfax.fixed_point import Gradient, Stop, check_stopping, fixed_point
from hopfax.nn.precision import linear

Scope = Literal["query", "batch"]
Tokens = Float[Array, "batch tokens width"]
Heads = Float[Array, "batch heads tokens head_width"]
Weights = Float[Array, "batch heads queries tokens"]
Mask = Bool[Array, "batch tokens"]
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
    kept = jax.random.bits(quick(key), x.shape, jnp.uint16) >= dropped
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


class SoftmaxAttention(nnx.Module):
    """Multi-head softmax self-attention with scores scaled by 1/sqrt(head width).

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
        self.query = linear(width, width, rngs=rngs)
        self.key = linear(width, width, rngs=rngs)
        self.value = linear(width, width, rngs=rngs)
        self.out = linear(width, width, rngs=rngs)

    def __call__(self, x: Tokens, mask: Mask | None = None, *, key: Key = None) -> AttentionOutput:
        """Attends to real tokens (where `mask` is True), with dropout if a key is given."""
        x, mask = _inputs(x, mask)
        keys, values = self.key(x), _split(self.value(x), self.num_heads)
        weights = self._weights(self.query(x), keys, mask).astype(values.dtype)
        mixed = _weighted_sums(dropout(key, weights, self.dropout), values)
        counts = values.shape[:-1]
        return AttentionOutput(
            self.out(_join(mixed)), keys, jnp.zeros(counts, jnp.int32), jnp.ones(counts, bool)
        )

    def weights(self, x: Tokens, mask: Mask | None = None) -> Weights:
        """Returns the attention weights, which sum to 1 for each query."""
        x, mask = _inputs(x, mask)
        return self._weights(self.query(x), self.key(x), mask)

    def _weights(self, query: Tokens, keys: Tokens, mask: Mask) -> Weights:
        queries, stored = _split(query, self.num_heads), _split(keys, self.num_heads)
        scores = _scores(queries, stored)
        visible = mask[:, None, None, :]
        if self.causal:
            visible = visible & jnp.tri(scores.shape[-1], dtype=bool)
        # Finite, so that a text without real tokens does not become nan.
        logits = stored.shape[-1] ** -0.5 * scores
        return jax.nn.softmax(jnp.where(visible, logits, jnp.finfo(logits.dtype).min))


class HopfieldAttention(nnx.Module):
    r"""Multi-head attention whose queries are first iterated to attractors of the keys.

    $$\xi \leftarrow K^\top \mathrm{softmax}(\beta K \xi / \sqrt{d_h}), \qquad
    o = V^\top \mathrm{softmax}(\beta K \xi^* / \sqrt{d_h})$$

    With `gradient="implicit"` and `max_steps > 1`, the query projection gets a zero gradient: an
    attractor does not depend on the start. This gradient is wrong for queries that have not
    converged: if `max_steps` is small, use `"unrolled"`. With `max_steps=1`, both settings
    differentiate the single step.

    Args:
        width: Token width, a multiple of `num_heads`.
        num_heads: Number of heads.
        beta: Inverse temperature before the factor 1/sqrt(head width), > 0.
        tol: Convergence tolerance of each query, >= 0.
        max_steps: Maximum number of steps; 0 for none. Also bounds the terms of the implicit
            gradient's series: queries near a ridge between two attractors would dominate a batch.
        stop: Measure of the change, `"relative"` or `"absolute"`.
        scope: `"query"`: queries stop independently. `"batch"`: all stop together, by one norm.
        gradient: `"implicit"` or `"unrolled"`.
        mask_keys: Whether padding is left out of the stored patterns.
        query_projection: Whether queries are W_Q x, or x itself.
        output_projection: Whether the heads are mixed by W_O.
        bias: Whether the projections have biases.
        readout_beta: Whether the read-out uses `beta` (Algorithm 2), or 1 (Eq. 13), before scaling.
        rngs: Random keys of the initial parameters.

    Raises:
        TypeError, ValueError: If an option is out of range, or a count is not an integer.

    References:
        Robertha, Eqs. 4, 7, 8 and Algorithms 1, 2.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int = 2,
        beta: float = 15.0,
        tol: float = 1e-4,
        max_steps: int = 50,
        stop: Stop = "relative",
        scope: Scope = "query",
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
        if scope not in ("query", "batch"):
            raise ValueError(f'scope must be "query" or "batch", got {scope!r}')
        scale = (width // num_heads) ** -0.5
        self.beta = beta * scale
        self.readout_beta = self.beta if readout_beta else scale
        self.num_heads, self.mask_keys = num_heads, mask_keys
        self.tol, self.max_steps, self.stop = tol, max_steps, stop
        self.scope, self.gradient = scope, gradient
        project = partial(linear, width, width, use_bias=bias, rngs=rngs)
        self.query = project() if query_projection else None
        self.key, self.value = project(), project()
        self.out = project() if output_projection else None

    def weights(self, x: Tokens, mask: Mask | None = None) -> Weights:
        """Returns the weights of the read-out, which sum to 1 for each query."""
        x, mask = _inputs(x, mask, clear=self.mask_keys)
        key = _split(self.key(x), self.num_heads)
        # With the identity as values, the output is the weights.
        identity = jnp.broadcast_to(jnp.eye(x.shape[1]), (*key.shape[:3], x.shape[1]))
        return self.attend(self._queries(x), key, identity, mask).values

    def __call__(self, x: Tokens, mask: Mask | None = None) -> AttentionOutput:
        """Iterates every query, then reads the values out. `mask` is True at real tokens."""
        x, mask = _inputs(x, mask, clear=self.mask_keys)
        keys, value = self.key(x), _split(self.value(x), self.num_heads)
        key = _split(keys, self.num_heads)
        values, num_steps, _, converged = self.attend(self._queries(x), key, value, mask)
        # Retrieval is in float32 at least.
        values = _join(values.astype(keys.dtype))
        values = values if self.out is None else self.out(values)
        return AttentionOutput(values, keys, num_steps, converged)

    def _queries(self, x: Tokens) -> Heads:
        return _split(x if self.query is None else self.query(x), self.num_heads)

    def attend(self, query: Heads, key: Heads, value: Heads, mask: Mask) -> hopfield.Attention:
        """Retrieves from projected queries and keys, and reads projected values out."""
        key_mask = mask if self.mask_keys else jnp.ones_like(mask)
        # The output at padding is not used if keys are masked, so one step is enough.
        tol = jnp.where(mask | (not self.mask_keys), self.tol, jnp.inf)
        arrays = (query, key, value, key_mask, tol)
        options = {
            "readout_beta": self.readout_beta,
            "max_steps": self.max_steps,
            "gradient": self.gradient,
            "stop": self.stop,
            "adjoint_max_steps": max(1, self.max_steps),
        }
        if self.scope == "batch" and self.max_steps > 0:
            return _attend_together(*arrays[:-1], beta=self.beta, tol=self.tol, **options)
        heads = _each_head(partial(hopfield.attend, beta=self.beta, **options))
        tokens, width = key.shape[2:]
        # With many tokens the core iterates states, with fewer arrays of this size at once.
        elements = self.num_heads * tokens**2 // (4 if tokens >= 2 * width else 1)
        return by_groups(heads, *arrays, elements=max(1, elements))


def _attend_together(
    query: Heads,
    key: Heads,
    value: Heads,
    mask: Mask,
    *,
    beta: float,
    readout_beta: float,
    **options: Any,
) -> hopfield.Attention:
    """Iterates all queries until one norm over the batch converges, as the released program."""
    # The changes would not reach the tolerance in bfloat16.
    wide = jnp.promote_types(key.dtype, jnp.float32)
    params = (key.astype(wide), jnp.asarray(beta, wide), mask)
    # The norm excludes padding.
    start = jnp.where(mask[:, None, :, None], query, 0).astype(wide)
    attractors, *counts = fixed_point(_update_all, params, start, **options)
    read_out = _each_head(partial(hopfield.attend, beta=readout_beta, max_steps=0))
    values = read_out(attractors, key, value, mask, jnp.zeros(mask.shape)).values
    return hopfield.Attention(values, *(jnp.broadcast_to(x, query.shape[:-1]) for x in counts))


def _each_head(fn: Callable[..., hopfield.Attention]) -> Callable[..., hopfield.Attention]:
    """Maps a function of one head over the heads and texts of a batch."""

    def one(query: Array, key: Array, value: Array, mask: Array, tol: Array) -> hopfield.Attention:
        return fn(query, key, value, mask=mask, tol=tol)

    return jax.vmap(jax.vmap(one, in_axes=(0, 0, 0, None, None)))


def _update_all(params: tuple[Heads, Array, Mask], query: Heads) -> Heads:
    key, beta, mask = params

    def one(query: Array, key: Array, mask: Array) -> Array:
        return hopfield.update(query, key, beta=beta, mask=mask)

    tokens = jax.vmap(one, in_axes=(0, None, None))
    updated = jax.vmap(jax.vmap(tokens, in_axes=(0, 0, None)))(query, key, mask)
    return jnp.where(mask[:, None, :, None], updated, 0)


def _scores(queries: Heads, keys: Heads) -> Weights:
    """Returns inner products in float32 at least."""
    if prefers_sums(keys):
        return jnp.sum(queries[..., :, None, :] * keys[..., None, :, :], axis=-1)
    wide = jnp.promote_types(keys.dtype, jnp.float32)
    return jnp.einsum("bhqd,bhkd->bhqk", queries, keys, preferred_element_type=wide)


def _weighted_sums(weights: Weights, values: Heads) -> Heads:
    if prefers_sums(values):
        return jnp.sum(weights[..., None] * values[..., None, :, :], axis=-2)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values)


def _split(x: Tokens, num_heads: int) -> Heads:
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).swapaxes(1, 2)


def _join(x: Heads) -> Tokens:
    batch, heads, tokens, head_width = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * head_width)


def _check_heads(width: int, num_heads: int) -> None:
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"width must be a multiple of num_heads >= 1, got {width} and {num_heads}")


def _inputs(x: Tokens, mask: Mask | None, *, clear: bool = True) -> tuple[Tokens, Mask]:
    """Checks the shapes, and zeroes padding: 0 * nan would reach real tokens."""
    check_shapes(x=(x, "batch tokens width"))
    mask = full_mask(mask, x.shape[:2])
    return (jnp.where(mask[..., None], x, 0) if clear else jnp.asarray(x)), mask
