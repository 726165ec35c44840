"""The Universal Transformer: one block, applied repeatedly for fixed or adaptive depth."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_count, is_traced
from hopfax.nn.attention import Key, Mask, Tokens
from hopfax.nn.block import embedding
from hopfax.nn.encoder import Encoder, EncoderConfig, Encoding, TokenTypes
from hopfax.nn.precision import linear

_THRESHOLD = 0.99  # below 1, so that a token can halt at the first step


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(EncoderConfig):
    """Settings of a `UniversalEncoder`.

    Attributes:
        num_steps: Applications of the block, at least 1; the maximum with `halting`.
        halting: Whether tokens halt independently. `Encoding.num_steps` is then N and
            `Encoding.ponder` N + R, whose mean should be part of the loss.
    """

    num_layers: int = 1
    num_steps: int = 2
    halting: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(1, num_steps=self.num_steps)
        check_count(1, 1, num_layers=self.num_layers)
        if self.stop_gradient_keys:
            raise ValueError(
                "stop_gradient_keys must be False: the steps share their keys' weights"
            )


class UniversalEncoder(Encoder):
    r"""An `Encoder` whose layers share their parameters.

    Step t adds a learned vector $v_t$ to every token and applies the block. With `halting`
    (adaptive computation time), a token has a halting probability
    $h_t = \sigma(w^\top (x_t + v_t) + b)$ before every step: it halts at the first N where
    $\sum_{t \le N} h_t$ reaches 0.99, or at the last step. The output is a running mixture of the
    block's results $x_{t+1}$, $y \leftarrow p_t\, x_{t+1} + (1 - p_t)\, y$ from $y = 0$, with
    $p_t = h_t$ for $t < N$, the remainder $p_N = R = 1 - \sum_{t<N} h_t$, and 0 for $t > N$. The
    block still updates halted tokens, and other tokens attend to them.

    Unlike in Dehghani et al., vectors of positions and steps are learned, and positions are added
    once.

    Args:
        vocab_size: See `Encoder`, as for `num_outputs`, `attention` and `rngs`.
        **options: Other settings of `UniversalConfig`, except `memory`.

    Raises:
        TypeError, ValueError: `num_steps` is not an integer >= 1, or as in `Encoder`.

    References:
        Dehghani et al. (2019), Universal Transformers, whose program has the mixture; Graves
        (2016), Adaptive Computation Time, for the remainder at the last step.
    """

    settings = UniversalConfig

    def __init__(self, vocab_size: int, num_outputs: int, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(vocab_size, num_outputs, rngs=rngs, **options)
        config: Any = self.config
        self.num_steps: int = config.num_steps
        steps = partial(embedding, config.num_steps, config.width, rngs=rngs)
        self.steps = steps() if config.num_steps > 1 else None
        self.halt = linear(config.width, 1, rngs=rngs) if config.halting else None

    def encode(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None, *, key: Key = None
    ) -> Encoding:
        """Runs the block `num_steps` times, with the arguments of `Encoder.encode`."""

        def apply(x: Tokens, number: Array) -> tuple[Tokens, Tokens, tuple[Array, ...]]:
            start = self._add_step(x, number)
            return start, *self._layer(mask, key, self.blocks[0], start, number)

        x = self.start(embeddings, mask, types)
        if self.halt is None:
            end, layers = self._repeat(lambda x, number: apply(x, number)[1:], x)
            return Encoding(end.astype(embeddings.dtype), *layers)
        halt = self.halt

        def adaptive(state: _Halting, number: Array) -> tuple[_Halting, tuple[Array, ...]]:
            start, after, layer = apply(state.x, number)
            chance = jax.nn.sigmoid(halt(start.astype(embeddings.dtype))[..., 0])
            at_end = (state.total + chance >= _THRESHOLD) | (number == self.num_steps - 1)
            last = state.running & at_end
            share = jnp.where(last, 1 - state.total, jnp.where(state.running, chance, 0))
            return _Halting(
                x=after,
                mixed=state.mixed + share[..., None] * (after - state.mixed),
                running=state.running & ~last,
                total=state.total + share,
                ponder=state.ponder + state.running + jnp.where(last, share, 0),
                taken=state.taken + state.running,
            ), layer

        zeros, counts = jnp.zeros(mask.shape, embeddings.dtype), jnp.zeros(mask.shape, jnp.int32)
        start = _Halting(x, jnp.zeros_like(embeddings), zeros == 0, zeros, zeros, counts)
        end, layers = self._repeat(adaptive, start)
        taken = end.taken[None, :, None, :]
        return Encoding(end.mixed, layers[0], taken, jnp.ones_like(taken, bool), end.ponder)

    def hidden_states(self, embeddings: Tokens, mask: Mask, types: TokenTypes = None) -> Any:
        """Returns the final output, as a single layer."""
        return self.encode(embeddings, mask, types).hidden[None]

    def _walk(self, embeddings: Tokens, mask: Mask, types: TokenTypes) -> Any:
        values, block = self.start(embeddings, mask, types), self.blocks[0]
        for number in range(self.num_steps):
            x = self._add_step(values, number)
            values = block(x, mask).values
            yield block, block.attention_norm(x) if block.norm_first else x, values

    def _add_step(self, x: Tokens, number: int | Array) -> Tokens:
        """Adds the vector of a step."""
        return x if self.steps is None else x + self.steps(jnp.asarray(number)).astype(x.dtype)

    def _repeat(self, step: Callable[..., Any], start: Any) -> tuple[Any, tuple[Array, ...]]:
        if is_traced(start):
            step = jax.checkpoint(step) if self.config.remat else step
            return jax.lax.scan(step, start, jnp.arange(self.num_steps))
        layers = []  # outside of traces, a scan compiles at every call
        for number in range(self.num_steps):
            start, layer = step(start, number)
            layers.append(layer)
        return start, jax.tree.map(lambda *parts: jnp.stack(parts), *layers)


class _Halting(NamedTuple):
    """State of each token's adaptive computation."""

    x: Tokens
    mixed: Tokens
    running: Bool[Array, "batch tokens"]
    total: Float[Array, "batch tokens"]
    ponder: Float[Array, "batch tokens"]
    taken: Int[Array, "batch tokens"]
