"""Replacements of tokens with the greatest estimated change of the loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Table = Float[Array, "vocab width"]
_TOKENS = 16  # the number of tokens is padded to a multiple of this, to compile few shapes
# The tokens that a token may replace: none, words, or pieces within words.
NEVER, WORD, PIECE = 0, 1, 2


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
    projected = gradient @ table.T
    gains = projected - jnp.take_along_axis(projected, ids[:, None], axis=1)
    allowed = (replaceable_by[:, None] == kinds) & (jnp.arange(len(table)) != ids[:, None])
    return jax.lax.top_k(jnp.where(allowed, gains, -jnp.inf).reshape(-1), count)


def best_flips(
    table: Table,
    ids: Int[np.ndarray, " tokens"],
    gradient: Float[np.ndarray, "tokens width"],
    *,
    kinds: Int[np.ndarray, " vocab"],
    count: int,
) -> list[tuple[float, int, int]]:
    r"""Returns the flips with the greatest estimated gain, best first.

    $$\mathrm{gain}_{iv} = (E_v - E_{x_i}) \cdot g_i$$

    It is exact if the loss is linear in the embeddings. See Ebrahimi et al., HotFlip (ACL 2018),
    Eq. 2 to 4, here in embeddings instead of one-hot vectors.

    Args:
        table: Embeddings E of the vocabulary.
        ids: One or more tokens x to replace.
        gradient: g, the gradient of the loss with respect to each token's embedding.
        kinds: `WORD`, `PIECE` or `NEVER` for each vocabulary entry. Pieces replace pieces; words
            replace words and `NEVER` tokens.
        count: Maximum number of flips.

    Returns:
        Gain, position of the token, and id of its replacement.
    """
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
