"""First-order estimates of the change of the loss when tokens are replaced."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hopfax.text.victim import check_positive

Table = Float[Array, "vocab width"]
_TOKENS = 16  # numbers of tokens are padded to a multiple, for few shapes to compile
# The tokens that a token may replace: none, words, or pieces within words.
NEVER, WORD, PIECE = 0, 1, 2


def flip_gains(
    table: Table, ids: Int[Array, " tokens"], gradient: Float[Array, "tokens width"]
) -> Float[Array, "tokens vocab"]:
    r"""Returns the estimated change of the loss for every token and every replacement.

    $$\mathrm{gain}_{iv} = (E_v - E_{x_i}) \cdot g_i$$

    It is exact if the loss is linear in the embeddings.

    Args:
        table: Embeddings E of the vocabulary.
        ids: Tokens x of the text; the row of an id outside the table is NaN.
        gradient: g, the gradient of the loss in each token's embedding.

    Returns:
        One row per token, one column per vocabulary entry; 0 for the token itself.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import text
        >>> text.flip_gains(jnp.eye(3), jnp.array([0]), jnp.array([[1.0, 2.0, 4.0]])).tolist()
        [[0.0, 1.0, 3.0]]

    References:
        Ebrahimi et al., HotFlip (ACL 2018), Eq. 2 to 4, in embeddings instead of one-hot vectors.
    """
    projected = gradient @ table.T
    return projected - jnp.take_along_axis(projected, ids[:, None], axis=1)


@partial(jax.jit, static_argnames="count")
def _best(
    table: Table,
    ids: Int[Array, " tokens"],
    gradient: Float[Array, "tokens width"],
    replaceable_by: Int[Array, " tokens"],
    kinds: Int[Array, " vocab"],
    *,
    count: int,
) -> tuple[Array, Array]:
    allowed = (replaceable_by[:, None] == kinds) & (kinds != NEVER)
    allowed &= jnp.arange(len(table)) != ids[:, None]
    gains = jnp.where(allowed, flip_gains(table, ids, gradient), -jnp.inf)
    return jax.lax.top_k(gains.reshape(-1), count)


def best_flips(
    table: Table,
    ids: np.ndarray,
    gradient: np.ndarray,
    *,
    kinds: Int[Array, " vocab"] | np.ndarray,
    count: int,
) -> list[tuple[float, int, int]]:
    """Returns the flips with the greatest estimated gain, best first.

    Words replace words, and pieces within words replace such pieces.

    Args:
        table: Embeddings of the vocabulary.
        ids: `(tokens,)` tokens to replace.
        gradient: `(tokens, width)` gradient of the loss.
        kinds: `WORD`, `PIECE` or `NEVER` for each vocabulary entry; words replace tokens that are
            `NEVER`.
        count: Maximum number of flips, >= 1.

    Returns:
        Gain, position of the token, and id of its replacement.

    Raises:
        ValueError: If `kinds` has another length than the table, or `count` is below 1.

    Example:
        >>> import numpy as np
        >>> from hopfax import text
        >>> kinds = np.full(3, text.WORD)
        >>> gradient = np.array([[1.0, 2.0, 4.0]])
        >>> text.best_flips(np.eye(3), np.array([0]), gradient, kinds=kinds, count=1)
        [(3.0, 0, 2)]
    """
    kinds = np.asarray(kinds)
    if kinds.shape != (len(table),):
        raise ValueError(f"kinds must have shape ({len(table)},), got {kinds.shape}")
    check_positive(count=count)
    if not len(ids):
        return []
    spare = -len(ids) % _TOKENS
    replaceable_by = np.where(kinds[ids] == NEVER, WORD, kinds[ids])
    gains, places = _best(
        table,
        np.pad(ids, (0, spare)),
        np.pad(gradient, ((0, spare), (0, 0))),
        np.pad(replaceable_by, (0, spare), constant_values=-1),
        kinds,
        count=min(count, (len(ids) + spare) * len(kinds)),
    )
    positions, tokens = np.divmod(np.asarray(places), len(kinds))
    flips = zip(np.asarray(gains).tolist(), positions.tolist(), tokens.tolist(), strict=True)
    return [flip for flip in flips if flip[0] > -np.inf]
