"""Robertha's train step in both programs, as calls that return when the work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.speed.forward import SIZES, model_of
from experiments.speed.workload import VOCAB_SIZE
from hopfax.data.batching import Bucket
from hopfax.hopfield import Entropy
from hopfax.train.objectives import Batch, classification
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

if TYPE_CHECKING:
    import torch

BATCH_SIZE = 32
ESR_WEIGHT = 0.05
LEARNING_RATE = 2e-5  # Table 15
TOTAL_STEPS = 60_000


class Hopfax:
    """Training state of some seeds, and compiled chunks of steps on each bucket.

    Args:
        buckets: Training rows.
        seeds: One run each, all at once.
        params: Where to start, stacked over seeds; None draws fresh ones.
        learning_rate: Peak rate.
        esr_weight: Of ESR in the loss; 0 for none.
        entropy: What ESR takes, see `hopfax.hopfield.eigen_entropy`.
        size: Of the model, of `experiments.speed.forward.SIZES`.
        batch_size: Rows of a step.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        seeds: Sequence[int] = (23,),
        params: Mapping[str, Any] | None = None,
        learning_rate: float = LEARNING_RATE,
        esr_weight: float = ESR_WEIGHT,
        entropy: Entropy = "shannon",
        size: str = "base",
        batch_size: int = BATCH_SIZE,
    ):
        self.model = model_of(SIZES[size])
        self.batch_size = batch_size
        optimizer = adamw(learning_rate, total_steps=TOTAL_STEPS)
        objective = classification(self.model, esr_weight=esr_weight, esr_entropy=entropy)
        self._chunk = make_chunk(objective, optimizer)
        self._rows = [
            Batch(*map(jnp.asarray, (b.ids, b.lengths, b.labels, np.ones(len(b.labels), "f"))))
            for b in buckets
        ]
        self._keys = seed_keys(seeds)
        self._rng = np.random.default_rng(0)
        self.states = init_states(self.model, optimizer, seeds)
        if params is not None:
            self.states = self.states._replace(params=jax.tree.map(jnp.array, params))
        self.num_steps: dict[int, list[float]] = {number: [] for number in range(len(buckets))}

    def run(self, bucket: int, steps: int) -> None:
        """Takes `steps` steps on random rows of one bucket."""
        rows = self._rows[bucket]
        shape = (steps, len(self._keys), self.batch_size)
        picks = self._rng.integers(0, len(rows.labels), shape, dtype=np.int32)
        weights = np.ones(shape, np.float32)
        self.states, found = self._chunk(self.states, rows, picks, weights, self._keys)
        jax.block_until_ready(self.states)
        self.num_steps[bucket].append(float(found.num_steps.mean()))

    def trips(self, bucket: int) -> float:
        """Loop trips of a forward pass, summed over layers: as many as its slowest query makes."""
        rows = self._rows[bucket]
        picks = self._rng.integers(0, len(rows.labels), self.batch_size)
        mask = jnp.arange(rows.ids.shape[-1]) < rows.lengths[picks]

        @jax.jit
        def count(params: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
            encoding = self.model.bind(params)(ids, mask, key=jax.random.key(0)).encoding
            return encoding.num_steps.max((1, 2, 3)).sum()

        params = jax.tree.map(lambda leaf: leaf[0], self.states.params)
        return float(count(params, rows.ids[picks, 0], mask))


class Torch:
    """The PyTorch peer, on a GPU where there is one.

    Args:
        bucket: Rows, all padded to one length.
        params: Of one hopfax seed, to start from.
        size: As in `Hopfax`.
        batch_size: As in `Hopfax`.
        compiled: Whether by `torch.compile`, or eager.
    """

    def __init__(
        self,
        bucket: Bucket,
        params: Mapping[str, Any],
        *,
        size: str = "base",
        batch_size: int = BATCH_SIZE,
        compiled: bool = False,
    ):
        import torch

        from experiments.speed.torch_robertha import Robertha, Trainer, state_dict_of

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = Robertha(VOCAB_SIZE, **SIZES[size])
        model.load_state_dict(state_dict_of(params))
        self.trainer = Trainer(
            model.to(self.device),
            learning_rate=LEARNING_RATE,
            total_steps=TOTAL_STEPS,
            compiled=compiled,
        )
        self.batch_size = batch_size
        ids, lengths, labels = (torch.from_numpy(np.asarray(field)) for field in bucket[:3])
        self._ids, self._labels = ids[:, 0].to(self.device), labels.long().to(self.device)
        self._mask = (torch.arange(ids.shape[-1]) < lengths).to(self.device)
        self._rng = np.random.default_rng(0)
        self.num_steps: list[float] = []
        self.trips: list[float] = []

    def run(self, steps: int) -> None:
        """Takes `steps` steps on random rows."""
        import torch

        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(steps):
            picks = torch.from_numpy(self._rng.integers(0, len(self._labels), self.batch_size))
            picks = picks.to(self.device)
            losses = self.trainer.step(self._ids[picks], self._mask[picks], self._labels[picks])
            found.append((losses.num_steps, losses.trips))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.num_steps += [float(mean) for mean, _ in found]
        self.trips += [float(trips) for _, trips in found]
