"""Self-attention layers: softmax, and Hopfield attention that iterates its queries first."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax import experimental, hopfield
from hopfax.fixed_point import Gradient, Stop, check_stopping, fixed_point
from hopfax.hopfield.retrieval import check_mask
from hopfax.nn.groups import by_devices, by_groups
from hopfax.nn.linear import linear
from hopfax.random import quick

Scope = Literal["query", "batch"]
Implementation = Literal["xla", "pallas"]
Tokens = Float[Array, "batch tokens width"]
Heads = Float[Array, "batch heads tokens head_width"]
Mask = Bool[Array, "batch tokens"]
Key = PRNGKeyArray | None
Layer = TypeVar("Layer", bound=nnx.Module)


def dropout(key: Key, x: Array, rate: float) -> Array:
    """Zeroes entries with probability `rate`, in [0, 1), and scales up the rest; see `key`.

    Args:
        key: Random key; None drops nothing.
        x: Entries.
        rate: Met to 1/65536, since sixteen random bits an entry are enough; the rest is scaled by
            the rate as it is met, so that the mean stays.
    """
    if key is None or rate == 0:
        return x
    dropped = min(round(rate * 65536), 65535)
    kept = jax.random.bits(quick(key), x.shape, jnp.uint16) >= dropped
    return jnp.where(kept, x * (65536 / (65536 - dropped)), 0)


class AttentionOutput(NamedTuple):
    """What an attention layer returns.

    Attributes:
        values: New token vectors.
        keys: The layer's keys, heads side by side, for their spectrum.
        num_steps: Hopfield updates made per query, 0 in softmax attention.
        converged: Whether each query converged; True in softmax attention.
    """

    values: Tokens
    keys: Tokens
    num_steps: Int[Array, "batch heads tokens"]
    converged: Bool[Array, "batch heads tokens"]


def _signed(layer: type[Layer]) -> type[Layer]:
    """Gives a module its constructor's signature, which flax hides behind (*args, **kwargs)."""
    signature = inspect.signature(layer.__init__)
    _, *parameters = signature.parameters.values()
    layer.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore
    return layer


@_signed
class SoftmaxAttention(nnx.Module):
    """Multi-head self-attention of the transformer, scores scaled by 1/sqrt(head width).

    Args:
        width: Token width, a multiple of `num_heads`.
        num_heads: Number of heads.
        causal: Whether a token sees only itself and those before it.
        dropout: Rate on the attention weights in training, in [0, 1).
        rngs: Source of the initial parameters.
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
        _check_layer(width, num_heads, rngs)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = dropout
        self.query = linear(width, width, rngs=rngs)
        self.key = linear(width, width, rngs=rngs)
        self.value = linear(width, width, rngs=rngs)
        self.out = linear(width, width, rngs=rngs)

    def keys(self, x: Tokens) -> Tokens:
        """The keys alone."""
        return self.key(x)

    def __call__(self, x: Tokens, mask: Mask | None = None, *, key: Key = None) -> AttentionOutput:
        """Attends from every token to the real ones, with dropout if a key is given.

        `mask` is True at real tokens.
        """
        x, mask = _inputs(x, mask, self.key.in_features)
        x = _emptied(x, mask)
        keys = self.keys(x)
        queries, stored, values = (
            _split(part, self.num_heads) for part in (self.query(x), keys, self.value(x))
        )
        # Scores, and so the softmax, are in float32 at least.
        wide = jnp.promote_types(x.dtype, jnp.float32)
        scores = jnp.einsum("bhqd,bhkd->bhqk", queries, stored, preferred_element_type=wide)
        visible = mask[:, None, None, :]
        if self.causal:
            visible = visible & jnp.tri(scores.shape[-1], dtype=bool)
        # Finite, so that a text without a single real token stays finite too.
        logits = jnp.where(visible, stored.shape[-1] ** -0.5 * scores, jnp.finfo(wide).min)
        weights = dropout(key, jax.nn.softmax(logits).astype(values.dtype), self.dropout)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, values)
        counts = queries.shape[:-1]
        return AttentionOutput(
            self.out(_join(mixed)), keys, jnp.zeros(counts, jnp.int32), jnp.ones(counts, bool)
        )


@_signed
class HopfieldAttention(nnx.Module):
    r"""Attention whose queries first fall into attractors of the keys.

    Each query is iterated, $\xi \leftarrow K^\top \mathrm{softmax}(\beta K \xi / \sqrt{d_h})$, to
    a fixed point $\xi^*$; the output is $V^\top \mathrm{softmax}(\beta K \xi^* / \sqrt{d_h})$.

    Since the start does not move the attractor, the query projection of an iterated layer is not
    trained: its gradient is exactly zero with `gradient="implicit"`, and vanishes with the change
    per step (1e-7 of the other projections' in the released program) with `"unrolled"`.

    Args:
        width: Token width, a multiple of `num_heads`.
        num_heads: Number of heads.
        beta: Inverse temperature before the 1/sqrt(head width), > 0.
        tol: A query stops once a step changes it by at most this.
        max_steps: Most steps; 0 reads out with the query itself (no iteration). Also the most terms
            of the implicit gradient's series, which bounds the gradient of queries that converge
            slowly: those near a ridge between two attractors would dominate a batch.
        stop: Measure of the change, `"relative"` or `"absolute"`.
        scope: Whether each `"query"` stops by itself, or the whole `"batch"` at once by its one
            norm, as the released program has it.
        gradient: `"implicit"` or `"unrolled"`.
        mask_keys: Whether padding is kept out of the stored patterns.
        query_projection: Whether queries are W_Q x, or x itself.
        output_projection: Whether the heads are mixed by W_O.
        bias: Whether the projections have biases.
        readout_beta: Whether the read-out is at `beta` (Algorithm 2), or at 1 (Eq. 13).
        implementation: `"xla"`, or `"pallas"`, the GPU kernel of `hopfax.experimental`. XLA
            iterates scores, or states from twice the head width tokens on, whichever step is less
            work; the stop rule and the implicit gradient are the same. The kernel takes at most
            512 tokens in heads of width at most 128, in float32 or bfloat16; devices that share a
            batch each run it on their texts if their mesh is in context.
        rngs: Source of the initial parameters.

    Raises:
        ValueError: If an option is out of range, or the layer is beyond what `"pallas"` supports.

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
        implementation: Implementation = "xla",
        rngs: nnx.Rngs,
    ):
        _check_layer(width, num_heads, rngs)
        if not beta > 0:
            raise ValueError(f"beta is an inverse temperature and must be > 0, got {beta}")
        check_stopping(tol=tol, max_steps=max_steps, stop=stop, gradient=gradient, least=0)
        if scope not in ("query", "batch"):
            raise ValueError(f'scope must be "query" or "batch", got {scope!r}')
        if implementation not in ("xla", "pallas"):
            raise ValueError(f'implementation must be "xla" or "pallas", got {implementation!r}')
        fusible = gradient == "implicit" and scope == "query" and max_steps > 0 and readout_beta
        if implementation == "pallas" and not fusible:
            raise ValueError(
                'implementation="pallas" needs gradient="implicit", scope="query", max_steps >= 1 '
                f"and readout_beta=True, got {gradient!r}, {scope!r}, {max_steps} and "
                f"{readout_beta}"
            )
        self.implementation: Implementation = implementation
        self.num_heads = num_heads
        scale = (width // num_heads) ** -0.5
        self.beta = beta * scale
        self.readout_beta = self.beta if readout_beta else scale
        self.tol = tol
        self.max_steps = max_steps
        self.stop: Stop = stop
        self.scope: Scope = scope
        self.gradient: Gradient = gradient
        self.mask_keys = mask_keys
        project = partial(linear, width, width, use_bias=bias, rngs=rngs)
        self.query = project() if query_projection else None
        self.key = project()
        self.value = project()
        self.out = project() if output_projection else None

    def keys(self, x: Tokens) -> Tokens:
        """The keys alone."""
        return self.key(x)

    def __call__(self, x: Tokens, mask: Mask | None = None) -> AttentionOutput:
        """Retrieves from every token, then reads the values out. `mask` is True at real tokens."""
        x, mask = _inputs(x, mask, self.key.in_features)
        if self.mask_keys:
            x = _emptied(x, mask)
        keys = self.keys(x)
        query = x if self.query is None else self.query(x)
        query, key, value = (_split(part, self.num_heads) for part in (query, keys, self.value(x)))
        attention = self.attend(query, key, value, mask)
        # Retrieval is in float32 at least; the layer keeps its inputs' dtype.
        mixed = _join(attention.values.astype(value.dtype))
        values = mixed if self.out is None else self.out(mixed)
        return AttentionOutput(values, keys, attention.num_steps, attention.converged)

    def attend(self, query: Heads, key: Heads, value: Heads, mask: Mask) -> hopfield.Attention:
        """Retrieval and read-out alone, between the projections."""
        key_mask = mask if self.mask_keys else jnp.ones_like(mask)
        if self.scope == "batch" and self.max_steps > 0:
            return self._attend_together(query, key, value, key_mask)
        # Where keys are masked, nobody reads what padding retrieves: it stops after one step and
        # holds nobody up. Elsewhere it is a stored pattern of the next layer.
        tol = jnp.where(mask | (not self.mask_keys), self.tol, jnp.inf)
        options = {"beta": self.beta, "max_steps": self.max_steps, "stop": self.stop}
        options["adjoint_max_steps"] = max(self.max_steps, 1)
        arrays = (query, key, value, key_mask, tol)
        if self.implementation == "pallas":
            return by_devices(_each_head(partial(experimental.retrieve_head, **options)), *arrays)
        options |= {"readout_beta": self.readout_beta, "gradient": self.gradient}
        _, heads, tokens, _ = key.shape
        attend = _each_head(partial(hopfield.attend, **options))
        return by_groups(attend, *arrays, elements=max(1, heads * tokens**2))

    def _attend_together(
        self, query: Heads, key: Heads, value: Heads, key_mask: Mask
    ) -> hopfield.Attention:
        # In bfloat16 no change would ever be as small as the tolerance.
        wide = jnp.promote_types(key.dtype, jnp.float32)
        found = fixed_point(
            _update_all,
            (key.astype(wide), jnp.asarray(self.beta, wide), key_mask),
            # Padding has no part in the norm.
            jnp.where(key_mask[:, None, :, None], query, 0).astype(wide),
            tol=self.tol,
            max_steps=self.max_steps,
            gradient=self.gradient,
            stop=self.stop,
            adjoint_max_steps=self.max_steps,
        )
        read_out = _each_head(partial(hopfield.attend, beta=self.readout_beta, max_steps=0))
        attention = read_out(found.value, key, value, key_mask, jnp.zeros(key_mask.shape))
        counts = attention.num_steps.shape
        return attention._replace(
            num_steps=jnp.broadcast_to(found.num_steps, counts),
            residual=jnp.broadcast_to(found.residual, counts),
            converged=jnp.broadcast_to(found.converged, counts),
        )


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


def _split(x: Tokens, num_heads: int) -> Heads:
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).swapaxes(1, 2)


def _join(x: Heads) -> Tokens:
    batch, heads, tokens, head_width = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * head_width)


def _check_layer(width: int, num_heads: int, rngs: nnx.Rngs) -> None:
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"width {width} does not divide into {num_heads} heads")
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"rngs must be a flax.nnx.Rngs, for instance nnx.Rngs(0), got {rngs!r}")


def _inputs(x: Tokens, mask: Mask | None, width: int) -> tuple[Tokens, Mask]:
    x = jnp.asarray(x)
    if x.ndim != 3 or x.shape[-1] != width:
        raise ValueError(f"x must have shape (batch, tokens, {width}), got {x.shape}")
    mask = check_mask(mask, x.shape[:2])
    return x, jnp.ones(x.shape[:2], bool) if mask is None else mask


def _emptied(x: Tokens, mask: Mask) -> Tokens:
    """Zeros in place of padding, whose nan would reach real tokens as 0 * nan."""
    return jnp.where(mask[..., None], x, 0)
