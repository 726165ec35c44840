"""The Universal Transformer: one block, applied repeatedly for fixed or adaptive depth."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_count
from hopfax.nn.attention import Key, Mask, Tokens
from hopfax.nn.encoder import Encoder, Encoding, TokenTypes, as_number, embedding
from hopfax.nn.precision import linear

_THRESHOLD = 0.99  # below 1, so that a token can halt at the first step


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
        vocab_size: See `Encoder`.
        num_outputs: See `Encoder`.
        num_steps: Applications of the block, at least 1; the maximum with `halting`.
        halting: Whether tokens halt independently. `Encoding.num_steps` is then N and
            `Encoding.ponder` N + R, whose mean should be part of the loss.
        rngs: Random keys of the initial parameters.
        **options: Options of `Encoder` except `num_layers` and `stop_gradient_keys`.

    Raises:
        TypeError, ValueError: `num_steps` is not an integer >= 1, or as in `Encoder`.

    References:
        Dehghani et al. (2019), Universal Transformers, whose program has the mixture; Graves
        (2016), Adaptive Computation Time, for the remainder at the last step.
    """

    def __init__(
        self,
        vocab_size: int,
        num_outputs: int,
        *,
        num_steps: int = 2,
        halting: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        check_count(1, num_steps=num_steps)
        if options.get("stop_gradient_keys"):
            raise ValueError(
                "stop_gradient_keys must be False: the steps share their keys' weights"
            )
        super().__init__(vocab_size, num_outputs, num_layers=1, rngs=rngs, **options)
        arguments = json.loads(self.config)
        del arguments["num_layers"]
        arguments |= {"num_steps": num_steps, "halting": halting}
        self.config = json.dumps(arguments, default=as_number)
        width = self.tokens.features
        self.num_steps = num_steps
        self.steps = embedding(num_steps, width, rngs=rngs) if num_steps > 1 else None
        self.halt = linear(width, 1, rngs=rngs) if halting else None

    def encode(
        self, embeddings: Tokens, mask: Mask, types: TokenTypes = None, *, key: Key = None
    ) -> Encoding:
        """Runs the block `num_steps` times, with the arguments of `Encoder.encode`."""

        def apply(x: Tokens, number: Array) -> tuple[Tokens, Tokens, tuple[Array, ...]]:
            start = self._add_step(x, number)
            return start, *self._layer(mask, key, self.blocks[0], start, number)

        x = self._start(embeddings, mask, types)
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
        values, block = self._start(embeddings, mask, types), self.blocks[0]
        for number in range(self.num_steps):
            x = self._add_step(values, number)
            values = block(x, mask).values
            yield block, x, values

    def _add_step(self, x: Tokens, number: int | Array) -> Tokens:
        """Adds the vector of a step."""
        return x if self.steps is None else x + self.steps(jnp.asarray(number)).astype(x.dtype)

    def _repeat(self, step: Callable[..., Any], start: Any) -> tuple[Any, tuple[Array, ...]]:
        step = jax.checkpoint(step) if self.remat else step
        return jax.lax.scan(step, start, jnp.arange(self.num_steps))


class _Halting(NamedTuple):
    """State of each token's adaptive computation."""

    x: Tokens
    mixed: Tokens
    running: Bool[Array, "batch tokens"]
    total: Float[Array, "batch tokens"]
    ponder: Float[Array, "batch tokens"]
    taken: Int[Array, "batch tokens"]
