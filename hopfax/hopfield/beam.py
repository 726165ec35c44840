"""Beam search: removing noise from a whole text, with a prior that reads what was decoded so far.

Functions take one text; use `jax.vmap` for more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_count, check_shapes, full_mask, is_tracing, real_type
from hopfax.hopfield.denoise import LogPrior, Sigma, candidates, check_values
from hopfax.hopfield.retrieval import Patterns

State = TypeVar("State")


class Decoded(NamedTuple):
    """The likeliest sequence of patterns that a search has found for a noisy text."""

    index: Int[Array, " tokens"]
    value: Float[Array, "tokens width"]  # the patterns of these indices
    log_probability: Float[Array, ""]  # of index and text, up to a constant
    margin: Float[Array, ""]  # log-probability minus that of the runner-up; inf if none


def beam_decode(
    noisy: Float[Array, "tokens width"],
    patterns: Patterns,
    step: Callable[[State, Int[Array, ""]], tuple[State, Float[Array, " patterns"]]],
    state: State,
    *,
    sigma: Sigma | Float[Array, " tokens"] = None,
    beam: int = 16,
    num_candidates: int = 256,
    log_prior: LogPrior = None,
    mask: Bool[Array, " tokens"] | None = None,
) -> Decoded:
    r"""Returns the sequence of patterns that maximizes prior times likelihood, by beam search.

    For a text $x_t = e_{v_t} + \sigma z_t$ with $z$ standard normal, it maximizes

    $$\sum_t \log p(v_t | v_1, \ldots, v_{t-1}) - \frac{\|x_t - e_{v_t}\|^2}{2 \sigma^2}$$

    where each $v_t$ is one of the `num_candidates` likeliest patterns of $x_t$. With a prior that
    ignores context, each token is the `index` of `denoise`, if that is among its candidates.
    Overconfident priors propagate errors: mix them with frequencies, see `hopfax.nn.recall_text`.
    A `step` may add a look-ahead $h_t(v_t) - h_{t-1}(v_{t-1})$ to steer the search: its terms
    cancel in the total if $h$ is 0 at the end.

    Args:
        noisy: One noisy pattern a row, at least one.
        patterns: Clean patterns $e_v$, one a row.
        step: `step(state, token)` returns the state after a token, and the log-probabilities of
            the next one, -inf where impossible. Before the text, `token` is -1. It is
            written for one sequence and mapped over the beam.
        state: The state before the text, a pytree of arrays.
        sigma: Standard deviation of the noise in each coordinate, > 0, for the text or for each
            token; None integrates it out for each token, as in `denoise`.
        beam: Number of sequences kept, >= 1. A beam of 1 is greedy.
        num_candidates: Candidates of each token, >= 1; all patterns, if there are fewer.
        log_prior: Log-probabilities of the patterns without context, such as their frequencies:
            they rank the candidates but are no part of the sum, and -inf excludes a pattern. None
            for uniform.
        mask: True where a token is real; None means all. Padding must come last.

    Returns:
        `Decoded`, in float32 at least. Padding has index 0 and value 0. If the prior excludes all
        candidates of a token, `log_probability` is -inf, `margin` 0, and `index` arbitrary.

    Raises:
        TypeError, ValueError: A shape, type or number is not as above.

    Differentiation:
        `log_probability` and `margin`, in all arrays, `sigma`, and what `step` closes over; `value`
        in `patterns`. The choice of tokens has no derivative.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (300, 32))
        >>> def step(state, token):  # after each pattern, the next one is likely
        ...     follows = jnp.arange(300) == token + 1
        ...     return state, jnp.log(jnp.where(follows, 0.9, 0.1 / 299))
        >>> noisy = patterns[7:12] + 1.5 * jax.random.normal(jax.random.key(1), (5, 32))
        >>> hopfield.beam_decode(noisy, patterns, step, (), sigma=1.5).index.tolist()
        [7, 8, 9, 10, 11]
    """
    noisy, patterns = jnp.asarray(noisy), jnp.asarray(patterns)
    check_shapes(noisy=(noisy, "tokens width"), patterns=(patterns, "patterns width"))
    if not len(noisy):
        raise ValueError(f"noisy must have one or more tokens, got shape {noisy.shape}")
    check_values(sigma=sigma, log_prior=log_prior)
    check_count(1, beam=beam)
    check_count(1, num_candidates=num_candidates)
    num_candidates = min(num_candidates, len(patterns))
    length, dtype = len(noisy), real_type(noisy, patterns)
    real = full_mask(mask, (length,))
    noisy = jnp.where(real[:, None], noisy, 0)  # padding may be nan
    if sigma is not None:
        least = jnp.finfo(dtype).tiny ** 0.4  # as in `candidates`
        sigma = jnp.where(real, jnp.asarray(sigma, dtype), 1)
        sigma = jnp.where(sigma > 0, jnp.clip(sigma, least, 1 / least), jnp.nan)
    options = {"patterns": patterns, "count": num_candidates, "log_prior": log_prior}
    index, likelihood = jax.vmap(lambda x, s: candidates(x, sigma=s, **options))(noisy, sigma)
    if sigma is not None:  # what `candidates` leaves out
        likelihood -= 0.5 * jnp.sum(jnp.square(noisy / sigma[:, None]), axis=1, keepdims=True)

    def extend(search: Any, each: tuple[Array, ...]) -> tuple[Any, None]:
        states, tokens, scores = search
        place, allowed, fit, is_real = each
        last = jnp.where(place > 0, tokens[:, place - 1], -1)
        states, prior = jax.vmap(step)(states, last)
        extended = scores[:, None] + prior.astype(dtype)[:, allowed] + fit[None]
        best, choice = jax.lax.top_k(extended.ravel(), beam)
        parent = jnp.where(is_real, choice // num_candidates, jnp.arange(beam))
        states, tokens = jax.tree.map(lambda leaf: leaf[parent], (states, tokens))
        chosen = jnp.where(is_real, allowed[choice % num_candidates], 0)
        scores = jnp.where(is_real, best, scores)
        return (states, tokens.at[:, place].set(chosen), scores), None

    # The first token has one parent: the others of the beam start at -inf.
    start = (
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (beam, *jnp.shape(leaf))), state),
        jnp.zeros((beam, length), index.dtype),
        jnp.where(jnp.arange(beam) > 0, -jnp.inf, 0).astype(dtype),
    )
    steps = jnp.arange(length, dtype=index.dtype), index, likelihood, real
    if is_tracing():
        start, _ = jax.lax.scan(extend, start, steps)
    else:  # a scan over a new function would be compiled in each call
        for place in range(length):
            start, _ = extend(start, tuple(each[place] for each in steps))
    _, tokens, scores = start
    possible = jnp.isfinite(scores[0])
    runner_up = scores[1] if beam > 1 else -jnp.inf
    margin = jnp.where(possible, scores[0] - jnp.where(possible, runner_up, 0), 0)
    value = jnp.where(real[:, None], patterns[tokens[0]], 0)
    return Decoded(tokens[0], value, scores[0], margin)
