"""Predictions of all seeds, with or without noise at a named site, and scores against noise."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from hopfax import hopfield
from hopfax.checks import (
    check_count,
    check_key,
    check_mask,
    check_range,
    check_shape,
    check_shapes,
    one_array,
)
from hopfax.data.batching import Bucket, eval_batches
from hopfax.nn.encoder import Encoder, Site
from hopfax.nn.functional import Functional, Params
from hopfax.train import interrupt
from hopfax.train.metrics import with_interval
from hopfax.train.objectives import Batch, per_example, texts_of
from hopfax.train.sharding import Sharding, fetch

Protocol = Literal["sigma", "matched", "per-token"]
SITES: tuple[Site, ...] = get_args(Site)
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
_TOKENS = 8192  # of a call, including padding
_CPU_ROWS = 64


class Noise(NamedTuple):
    """Gaussian noise on a model's inputs.

    Attributes:
        site: `"token"`, on the token embeddings before positions and LayerNorm, or
            `"embedding"`, on the output of that LayerNorm.
        protocol: `"sigma"`: `level` is the standard deviation. `"matched"`: `level` is in units of
            the root mean square of the text's signal at the site, so that every model has the
            same SNR, -20 log10(level) dB. `"per-token"`: in units of each token's own root mean
            square, so that every token has the same SNR.
        level: Noise level, >= 0; see `protocol` for its unit.
        draw: Index of the draw. Levels and models share draws, which depend on the row but not on
            its batch, so that differences between models are paired.
        seeds: One number per stacked model, such as its training seed; the models then have
            independent draws. None: they share draws.
    """

    site: Site
    protocol: Protocol
    level: float
    draw: int = 0
    seeds: tuple[int, ...] | None = None


class Predictions(NamedTuple):
    """Predictions of all seeds for every row, in the order of the rows' `index`.

    Attributes:
        logits: `(seeds, examples, outputs)`.
        labels: `(examples,)`.
        snr_db: `(seeds,)` realized signal-to-noise ratio over all real tokens; +inf when clean.
        num_steps: `(seeds,)` mean Hopfield updates per real query; 0 in softmax models.
    """

    logits: np.ndarray
    labels: np.ndarray
    snr_db: np.ndarray
    num_steps: np.ndarray


class Predictor(NamedTuple):
    """A model, its devices (None for one) and its compiled prediction; see `make_predictor`."""

    model: Functional[Encoder]
    sharding: Sharding | None
    run: Callable[..., tuple[Array, Array]]


class Texts(NamedTuple):
    """A batch of texts; `tokens` and `embeddings` are the vectors at the two sites of noise."""

    ids: Int[Array, "texts tokens"]  # choices of an example are consecutive texts
    mask: Bool[Array, "texts tokens"]
    types: Int[Array, "texts tokens"]
    tokens: Float[Array, "texts tokens width"]
    embeddings: Float[Array, "texts tokens width"]


class NoisyScore(NamedTuple):
    """A score at one noise level in dB (+inf: no noise), with its 95 % interval over the examples.

    Scores are 100 times the metric; for correlations 100 r, not the 50 (1 + r) of `scores`.
    """

    snr_db: float
    score: float
    low: float
    high: float


def robustness(
    fn: Callable[[Array, Array], Array],
    embeddings: Float[Array, "batch tokens width"],
    mask: Bool[Array, "batch tokens"],
    labels: Shaped[Array, " batch"],
    *,
    key: PRNGKeyArray,
    metric: str = "accuracy",
    snr_db: float | Sequence[float] = (6, 0, -6, -12),
    per_token: bool = False,
    batch_size: int = 64,
) -> list[NoisyScore]:
    """Returns the score of any JAX function of embeddings, without noise and by noise level.

    Gaussian noise is added to the embeddings at the same signal-to-noise ratio for each example or
    each token. All levels share draws.

    Args:
        fn: `fn(embeddings, mask)` returns `(batch, outputs)`: an output per class, or one for
            correlations. It is jitted.
        embeddings: Embeddings of all examples.
        mask: True at real tokens.
        labels: Class numbers, or real numbers for correlations.
        key: Random key of the noise.
        metric: See `hopfax.train.metrics.scores`.
        snr_db: Signal-to-noise ratios in dB.
        per_token: Whether each token has this ratio, instead of each example. Compare models with
            both: scaling up important tokens helps only if False.
        batch_size: Number of examples per call, >= 1.

    Returns:
        A score without noise, then one for each of `snr_db`, with intervals over the examples.

    Raises:
        TypeError, ValueError: An argument has another type, shape or range, there are no examples,
            or the outputs or labels do not fit the metric.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.train.evaluate import robustness
        >>> inputs = jax.random.normal(jax.random.key(0), (90, 4, 8))
        >>> mask, model = jnp.ones((90, 4), bool), lambda inputs, mask: inputs.sum(axis=1)
        >>> labels = model(inputs, mask).argmax(axis=1)
        >>> scores = robustness(model, inputs, mask, labels, key=jax.random.key(1), snr_db=[-12])
        >>> scores[0].score, scores[1].snr_db, scores[1].high < 50
        (100.0, -12, True)
    """
    check_shapes(
        embeddings=(embeddings, "batch tokens width"),
        mask=(mask, "batch tokens"),
        labels=(labels, "batch"),
    )
    check_mask(mask, np.shape(mask))
    check_key(key)
    check_count(1, batch_size=batch_size)
    check_range(-np.inf, ends="()", snr_db=snr_db)
    embeddings, mask, truth = jnp.asarray(embeddings), jnp.asarray(mask), np.asarray(labels)
    if not jnp.issubdtype(embeddings.dtype, jnp.floating):
        raise TypeError(f"embeddings must be floating-point, got {embeddings.dtype}")
    if truth.dtype.kind in "OSU":
        raise TypeError(
            f"labels must be class numbers, or real numbers for correlations, got {truth.dtype}"
        )
    if not len(truth):
        raise ValueError("embeddings must have one or more examples")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(truth)))

    @jax.jit
    def outputs(keys: Array, signal: Array, mask: Array, level: Array) -> Array:
        return one_array(fn(add_noise(keys, signal, mask, level, per_token), mask))

    results, size = [], min(batch_size, len(truth))
    # The last batch repeats the last example: one shape compiles.
    batches = np.minimum(np.arange(-(-len(truth) // size) * size), len(truth) - 1).reshape(-1, size)
    for level in (np.inf, *np.atleast_1d(snr_db).tolist()):  # at infinity, the noise is zero
        inputs = ([x[rows] for x in (keys, embeddings, mask)] for rows in batches)
        parts = [np.asarray(outputs(*batch, np.float32(level))) for batch in inputs]
        logits = np.concatenate(parts)[: len(truth)]
        results.append(NoisyScore(level, *with_interval(metric, logits, truth)))
    return results


def add_noise(
    keys: PRNGKeyArray,
    signal: Float[Array, "batch tokens width"],
    mask: Bool[Array, "batch tokens"],
    snr_db: float | Float[Array, ""],
    per_token: bool = False,
) -> Float[Array, "batch tokens width"]:
    """Adds Gaussian noise to each example, with its own key, at a signal-to-noise ratio in dB.

    The ratio is that of the example or, if `per_token`, of each token.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.train.evaluate import add_noise
        >>> keys, mask = jax.random.split(jax.random.key(0), 3), jnp.ones((3, 100), bool)
        >>> noise = add_noise(keys, jnp.ones((3, 100, 8)), mask, -20.0) - 1
        >>> bool((abs(noise.std(axis=(1, 2)) - 10) < 1).all())
        True
    """

    def one(key: Array, signal: Array, mask: Array) -> Array:
        options = {"snr_db": snr_db, "mask": mask, "per_token": per_token}
        sigma = hopfield.matched_sigma(signal, **options)
        return signal + hopfield.gaussian_noise(key, signal, sigma=sigma, mask=mask)

    return jax.vmap(one)(keys, signal, mask)


def check_noise(noise: Noise) -> None:
    """Raises a ValueError for an unknown site or protocol, or a level out of range."""
    for field, known in (("site", SITES), ("protocol", PROTOCOLS)):
        if getattr(noise, field) not in known:
            raise ValueError(
                f"{field} must be one of {', '.join(known)}, got {getattr(noise, field)!r}"
            )
    check_range(0, ends="[)", level=noise.level)


def make_predictor(model: Functional[Encoder], *, sharding: Sharding | None = None) -> Predictor:
    """Returns a model for `predict` and `fit`, which compile once per padded length and batch size.

    Predictors of the same model share programs.
    """
    return Predictor(model, sharding, _program(model.apply, sharding))


@lru_cache(maxsize=8)
def _program(apply: Callable[..., Any], sharding: Sharding | None) -> Callable[..., Any]:
    all_seeds = jax.vmap(partial(_predict_batch, apply), in_axes=(0, 0, None, None, None, 0))
    # XLA partitions this one by the shardings of its arguments, see `Sharding.put`.
    unsplit = jax.jit(all_seeds)
    if sharding is None:
        return unsplit
    seeds, shared = sharding.over("seeds"), sharding.over()
    inputs = seeds, seeds, shared, shared, shared, seeds
    split = sharding.jit(all_seeds, inputs, (seeds, seeds))

    def run(params: Params, roots: Array, *inputs: Any) -> tuple[Array, Array]:
        by_seeds = sharding.axis == "seeds" and len(roots) % sharding.mesh.size == 0
        return (split if by_seeds else unsplit)(params, roots, *inputs)

    return run


def _predict_batch(
    apply: Callable[..., Any],
    params: Params,
    root: PRNGKeyArray,
    batch: Batch,
    index: Int[Array, " batch"],
    noise: tuple[Array, Array, Array],  # whether the site is "token", level, protocol
    chosen: Bool[Array, "batch choices tokens"] | None,  # where noise is added; None means all
) -> tuple[Float[Array, "batch outputs"], Float[Array, "4"]]:
    """Logits of one seed, and sums over real tokens: squared signal and noise, steps, queries."""
    run = partial(apply, params)
    # In the dtype of the parameters, also with x64 enabled.
    table = params["tokens"]["embedding"]
    texts, counted, powers = _disturb(run, table, root, batch, index, noise, chosen)
    encoding = run(texts.embeddings, texts.mask, texts.types, method="encode")
    logits = per_example(run(encoding.hidden, texts.mask, method="classify"), batch)
    real = jnp.broadcast_to(counted[None, :, None, :], encoding.num_steps.shape)
    counts = jnp.sum(jnp.where(real, encoding.num_steps, 0)), jnp.sum(real)
    return logits, jnp.concatenate([powers, jnp.stack(counts).astype("float32")])


def _disturb(
    run: Callable[..., Any],
    table: Array,
    root: PRNGKeyArray,
    batch: Batch,
    index: Int[Array, " batch"],
    noise: tuple[Array, Array, Array],
    chosen: Array | None,
) -> tuple[Texts, Bool[Array, "texts tokens"], Float[Array, "2"]]:
    """Texts of a batch with noise, which tokens count, and their squared signal and noise."""
    at_token, level, protocol = noise
    ids, mask = texts_of(batch)
    counted = mask & (jnp.repeat(batch.weights, batch.ids.shape[1]) > 0)[:, None]
    zeros = jnp.zeros((*ids.shape, table.shape[-1]), table.dtype)
    # Draws take a few percent of the time; clean inputs need none.
    draws = jax.lax.cond(level > 0, lambda: _draw(root, batch, index, zeros[0]), lambda: zeros)

    def disturb(signal: Array) -> tuple[Array, Array]:
        rms = partial(hopfield.matched_sigma, snr_db=0.0)
        of_text = jax.vmap(lambda signal, mask: rms(signal, mask=mask))(signal, mask)
        of_token = jax.vmap(partial(rms, per_token=True))(signal)
        scales = jnp.ones_like(of_token), jnp.broadcast_to(of_text[:, None], mask.shape), of_token
        sigma = level * jax.lax.select_n(protocol, *scales)
        sigma = sigma if chosen is None else jnp.where(chosen.reshape(mask.shape), sigma, 0)
        noise = sigma[..., None] * draws  # on padding too, for models that store it
        powers = jnp.stack([jnp.square(signal), jnp.square(noise)])
        return signal + noise, jnp.sum(jnp.where(counted[..., None], powers, 0), axis=(1, 2, 3))

    def keep(signal: Array) -> tuple[Array, Array]:
        return signal, jnp.zeros(2, signal.dtype)

    # A branch rather than zero noise, so that the other site costs nothing.
    tokens = run(ids, method="embed_tokens")
    tokens, of_tokens = jax.lax.cond(at_token, disturb, keep, tokens)
    types = run(ids, method="token_types")
    embeddings = run(tokens, types, method="embed")
    embeddings, of_embeddings = jax.lax.cond(at_token, keep, disturb, embeddings)
    return Texts(ids, mask, types, tokens, embeddings), counted, of_tokens + of_embeddings


def _draw(root: PRNGKeyArray, batch: Batch, index: Int[Array, " batch"], like: Array) -> Array:
    """Standard normal noise for every text, by the index of its row and its choice."""

    def draw(row: Array, choice: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(root, row), choice)
        return hopfield.gaussian_noise(key, like, sigma=1.0)

    choices = batch.ids.shape[1]
    return jax.vmap(draw)(jnp.repeat(index, choices), jnp.tile(jnp.arange(choices), len(index)))


def predict(
    predictor: Predictor,
    params: Params,
    buckets: Sequence[Bucket],
    *,
    noise: Noise | None = None,
    chosen: Bool[np.ndarray, "seeds examples choices tokens"] | None = None,
    batch_size: int | None = None,
) -> Predictions:
    """Predicts every row of a set exactly once.

    Args:
        predictor: From `make_predictor`.
        params: Parameters stacked over any number of seeds.
        buckets: The set, from `hopfax.data.to_buckets`.
        noise: The noise to add; None for clean inputs.
        chosen: True where noise is added, such as from `hopfax.hopfield.select_tokens`. Rows are
            sorted by `index`; tokens beyond the array get no noise. Chosen tokens get the same
            noise as without this argument: `"matched"` still refers to the whole text. None means
            all tokens.
        batch_size: Rows per call; None for a size that suits the device, at most 8,192 tokens.
            With the `released` preset, which stops all queries by one norm over the batch,
            predictions depend on it: use that of the released program, which however has no
            padding rows in the last batch. That preset also depends on the padded length: pad all
            texts to `max_length`.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, see `hopfax.train.interrupt`.
        ValueError: The noise is invalid, there are no rows, or `noise.seeds` or `chosen` does not
            fit the models or rows.

    Example:
        >>> import jax
        >>> import hopfax
        >>> import numpy as np
        >>> from hopfax.data import Encoded, to_buckets
        >>> from hopfax.train.evaluate import Noise, make_predictor, predict
        >>> ids = np.arange(1, 33, dtype=np.int32).reshape(8, 1, 4)
        >>> rows = Encoded(ids, np.full((8, 1), 4, np.int32), np.arange(8) % 2, np.arange(8))
        >>> model = hopfax.nn.tinybert(40, 2, width=8, ff_width=8, num_layers=1, max_length=4)
        >>> params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
        >>> noise = Noise("token", "matched", level=1.0)
        >>> buckets = to_buckets(rows, boundaries=(4,))
        >>> predictions = predict(make_predictor(model), params, buckets, noise=noise)
        >>> predictions.logits.shape, bool((abs(predictions.snr_db) < 2).all())
        ((3, 8, 2), True)
    """
    params = predictor.sharding.put(params, "seeds") if predictor.sharding else params
    calls = _calls(params, buckets, noise, batch_size, predictor.sharding, chosen)
    pending = [(real, *predictor.run(params, *inputs)) for real, inputs in calls]
    order = np.argsort(np.concatenate([bucket.index for bucket in buckets]), kind="stable")
    logits = [fetch(part)[:, real] for real, part, _ in pending]
    counts = np.sum([fetch(part).astype(np.float64) for *_, part in pending], axis=0)
    signal, noise_power, steps, queries = counts.T
    with np.errstate(divide="ignore"):
        snr_db = 10 * np.log10(signal / noise_power)
    return Predictions(
        logits=np.concatenate(logits, axis=1)[:, order],
        labels=np.concatenate([bucket.labels for bucket in buckets])[order],
        snr_db=snr_db,
        num_steps=steps / queries,
    )


def collect(
    model: Functional[Encoder],
    params: Params,
    buckets: Sequence[Bucket],
    fn: Callable[..., Any],
    *,
    noise: Noise | None = None,
    batch_size: int | None = None,
) -> list[Any]:
    """Applies a function to every text, with the noise that `predict` adds.

    Args:
        model: The encoder.
        params: Parameters stacked over any number of seeds.
        buckets: The set, see `predict`.
        fn: `fn(run, clean, noisy)` returns a pytree of arrays `(texts, ...)`. `clean` and `noisy`
            are `Texts` without and with noise, and `run(*inputs, method=name)` calls a method of
            the model. `fn` is compiled once per padded length and batch size.
        noise: The noise to add; None for none.
        batch_size: Rows per call.

    Returns:
        The arrays of each batch, `(seeds, texts, ...)` without padding rows, in the order of
        `buckets`.

    Example:
        >>> import jax
        >>> import hopfax
        >>> import numpy as np
        >>> from hopfax.data import Bucket
        >>> from hopfax.train.evaluate import collect
        >>> ids = np.ones((8, 1, 4), int)
        >>> rows = Bucket(ids, ids.sum(2), np.arange(8) % 2, np.arange(8))
        >>> model = hopfax.nn.tinybert(40, 2, width=8, ff_width=8, num_layers=1, max_length=4)
        >>> params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
        >>> def keys(run, clean, noisy):
        ...     return run(noisy.embeddings, noisy.mask, method="encode").keys[0]
        >>> [batch.shape for batch in collect(model, params, [rows], keys)]
        [(3, 8, 4, 8)]
    """
    results = []
    for real, inputs in _calls(params, buckets, noise, batch_size):
        texts = np.repeat(real, inputs[1].ids.shape[1])
        output = _collector(model.apply, fn)(params, *inputs)
        results.append(jax.tree.map(lambda x, texts=texts: np.asarray(x)[:, texts], output))
    return results


@lru_cache(maxsize=8)
def _collector(apply: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    def one(params: Params, root: Array, batch: Batch, index: Array, noise: Any, _: None) -> Any:
        run, table = partial(apply, params), params["tokens"]["embedding"]
        none = (noise[0], 0 * noise[1], noise[2])
        clean, noisy = (_disturb(run, table, root, batch, index, n, None)[0] for n in (none, noise))
        return fn(run, clean, noisy)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None, None, None, None)))


def _calls(
    params: Params,
    buckets: Sequence[Bucket],
    noise: Noise | None,
    batch_size: int | None,
    sharding: Sharding | None = None,
    chosen: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, tuple[Any, ...]]]:
    """Yields which rows of a batch are real, and arguments of `_predict_batch` after `params`."""
    if not buckets:
        raise ValueError("buckets must have at least one row, got none")
    noise = noise or Noise("embedding", "sigma", 0.0)
    check_noise(noise)
    at_token, protocol = noise.site == "token", np.int32(PROTOCOLS.index(noise.protocol))
    added = tuple(map(jnp.asarray, (at_token, np.float32(noise.level), protocol)))
    roots = _roots(noise, len(jax.tree.leaves(params)[0]))
    index = np.sort(np.concatenate([bucket.index for bucket in buckets]))
    if chosen is not None:
        sizes = len(roots), len(index), buckets[0].ids.shape[1]
        check_shape((*sizes, *np.shape(chosen)[-1:]), chosen=chosen)
        beyond = max(0, max(bucket.ids.shape[2] for bucket in buckets) - chosen.shape[3])
        chosen = np.pad(chosen, ((0, 0), (0, 0), (0, 0), (0, beyond)))
    for bucket in buckets:
        for rows, weights in eval_batches(bucket, batch_size=batch_size or rows_per_call(bucket)):
            interrupt.check()
            batch = Batch(*map(jnp.asarray, (rows.ids, rows.lengths, rows.labels, weights)))
            batch = sharding.put(batch, "batch") if sharding else batch
            part = None
            if chosen is not None:
                places = np.searchsorted(index, rows.index)
                part = jnp.asarray(chosen[:, places, :, : rows.ids.shape[2]])
            yield weights > 0, (roots, batch, rows.index, added, part)


def _roots(noise: Noise, count: int) -> Array:
    seeds = np.zeros(count) if noise.seeds is None else np.asarray(noise.seeds)
    if len(seeds) != count:
        raise ValueError(f"noise.seeds must have one seed per model ({count}), got {noise.seeds}")
    return _fold_in(noise.draw, seeds.astype(np.uint32), noise.seeds is None)


@partial(jax.jit, static_argnums=2)
def _fold_in(draw: Array, seeds: Array, shared: bool) -> Array:
    root = jax.random.fold_in(jax.random.key(0), draw)
    if shared:
        return jnp.broadcast_to(root, seeds.shape)
    return jax.vmap(jax.random.fold_in, (None, 0))(root, seeds)


def rows_per_call(bucket: Bucket) -> int:
    """Returns the batch size of a padded length: the same for most, so that few shapes compile."""
    tokens = bucket.ids.shape[1] * bucket.ids.shape[2]
    limit = 2 ** max(0, (_TOKENS // tokens).bit_length() - 1)
    if jax.default_backend() != "cpu":
        return limit  # compilation is slow and padding cheap: one shape for all sets of a length
    # Small enough for the caches, and also one shape. Padding rows cost as much as real ones.
    return min(limit, _CPU_ROWS, -(-len(bucket.labels) // 8) * 8)
