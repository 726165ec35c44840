"""The peer in PyTorch: Robertha, written from the paper, retrieval and noise stability.

Robertha follows hopfax's preset (2 heads, pre-LN behind an embedding LayerNorm, W_Q and W_O, masked
keys, mean pooling, queries that stop independently) and the released program where that decides
how PyTorch is used: texts padded to 128, autograd through the unrolled iterates. It is written to
be fast: no loop over examples, heads or tokens, one exit once every query has converged, ESR of all
layers in one call, fused AdamW. `torch.compile` was slower than eager in seven of eight settings.

Needs PyTorch: `pip install -e '.[benchmarks]'`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.benchmarks.programs import (
    BATCH_SIZES,
    ESR_WEIGHT,
    LEARNING_RATE,
    MAX_LENGTH,
    SIZES,
    TOTAL_STEPS,
    VOCAB_SIZE,
    Rows,
)
from hopfax.data.batching import Bucket


class HopfieldAttention(nn.Module):
    """Queries iterate to a fixed point of the keys (Eqs. 4, 7), then read the values out."""

    def __init__(self, width: int, *, num_heads: int, beta: float, tol: float, max_steps: int):
        super().__init__()
        self.num_heads, self.tol, self.max_steps = num_heads, tol, max_steps
        self.scale = beta / math.sqrt(width // num_heads)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Retrieved vectors and keys of every token (batch, tokens, width); mask: real tokens."""
        keys = self.key(x)
        state, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query(x), keys, self.value(x))
        )
        # A float mask: PyTorch would turn a boolean one into this in every iteration.
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -math.inf)[:, None, None]
        bias = bias.expand(-1, -1, mask.shape[1], -1)
        running = mask[:, None, :].expand(state.shape[:-1])
        for _ in range(self.max_steps):
            following = self._read(state, key, key, bias)
            with torch.no_grad():
                change = torch.linalg.vector_norm(following - state, dim=-1)
                moving = change > self.tol * torch.linalg.vector_norm(state, dim=-1)
            state = torch.where(running[..., None], following, state)
            running = running & moving
            if not running.any():
                break
        mixed = self._read(state, key, value, bias)
        return self.out(mixed.transpose(1, 2).flatten(2)), keys

    def _read(self, state: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(state, key, value, attn_mask=bias, scale=self.scale)


class Block(nn.Module):
    """Pre-LN attention and feed-forward."""

    def __init__(self, width: int, ff_width: int, dropout: float, attention: HopfieldAttention):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = attention
        self.ff_norm = nn.LayerNorm(width)
        self.ff_in = nn.Linear(width, ff_width)
        self.ff_out = nn.Linear(ff_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """New token vectors, and the attention's keys."""
        retrieved, keys = self.attention(self.attention_norm(x), mask)
        x = x + self.dropout(retrieved)
        return x + self.dropout(self.ff_out(F.gelu(self.ff_in(self.ff_norm(x))))), keys


class Robertha(nn.Module):
    """The classifier of two classes with a hopfax seed's parameters."""

    def __init__(
        self,
        params: Mapping[str, Any],
        *,
        width: int,
        num_layers: int,
        ff_width: int,
        num_heads: int,
        vocab_size: int = VOCAB_SIZE,
        max_length: int = MAX_LENGTH,
        tol: float = 1e-4,
        max_steps: int = 50,
        dropout: float = 0.3,
    ):
        super().__init__()
        attention: Any = {"num_heads": num_heads, "beta": 15.0, "tol": tol, "max_steps": max_steps}
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, ff_width, dropout, HopfieldAttention(width, **attention))
            for _ in range(num_layers)
        )
        self.classifier = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)
        self.load_state_dict(state_dict_of(params))
        self.to(device())

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (batch, 2), and the keys of all layers (layers, batch, tokens, width)."""
        positions = self.positions.weight[: ids.shape[1]]
        x = self.dropout(self.norm(self.tokens(ids) + positions))
        keys = []
        for block in self.blocks:
            x, layer_keys = block(x, mask)
            keys.append(layer_keys)
        real = mask[..., None]
        pooled = (x * real).sum(1) / real.sum(1).clamp(min=1)
        return self.classifier(self.dropout(pooled)), torch.stack(keys)


def eigen_entropy(keys: Tensor, mask: Tensor) -> Tensor:
    """Normalised entropy (Eq. 10) of the key covariance of each text, from (..., tokens, width)."""
    real = mask[..., None].to(keys.dtype)
    keys = keys * real
    centred = (keys - keys.sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)) * real
    eigenvalues = torch.linalg.eigvalsh(centred.mT @ centred)
    # Rounding errors, where the covariance of a short text does not have full rank.
    floor = torch.finfo(keys.dtype).eps * eigenvalues[..., -1:]
    eigenvalues = torch.where(eigenvalues > floor, eigenvalues, 0)
    total = eigenvalues.sum(-1, keepdim=True)
    shares = eigenvalues / torch.where(total > 0, total, 1)
    logs = torch.where(shares > 0, shares, 1).log()
    return -(shares * logs).sum(-1) / math.log(keys.shape[-1])


def losses(
    model: Robertha, ids: Tensor, mask: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its cross-entropy, and ESR (Eq. 12, target 0.35) summed over layers."""
    logits, keys = model(ids, mask)
    task = F.cross_entropy(logits, labels)
    esr = (eigen_entropy(keys, mask) - 0.35).square().sum(0).mean()
    return task + ESR_WEIGHT * esr, task.detach(), esr.detach()


class TrainSteps:
    """Table 15's training: AdamW, linear warm-up and decay, gradients clipped to norm 1.

    Args:
        size: Size of the model, of `SIZES`.
        params: Of one hopfax seed.
        bucket: Rows, all padded to one length.
    """

    def __init__(self, size: str, params: Any, bucket: Bucket):
        self._model, self._batch_size = Robertha(params, **SIZES[size]).train(), BATCH_SIZES[size]
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True
        )
        rising = round(0.1 * TOTAL_STEPS)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            lambda step: min((step + 1) / rising, (TOTAL_STEPS - step) / (TOTAL_STEPS - rising)),
        )
        ids, lengths, labels = (torch.from_numpy(np.asarray(field)) for field in bucket[:3])
        self._ids, self._labels = ids[:, 0].to(device()), labels.long().to(device())
        self._mask = (torch.arange(ids.shape[-1]) < lengths).to(device())
        self._rng = np.random.default_rng(0)

    def run(self, steps: int) -> None:
        """Takes some steps on random rows."""
        for _ in range(steps):
            picks = torch.from_numpy(self._rng.integers(0, len(self._labels), self._batch_size))
            loss = self.step(picks.to(device()))
        float(loss)  # waits for the device

    def step(self, picks: Tensor) -> Tensor:
        """One step on the rows of these numbers; returns the cross-entropy before it."""
        self._optimizer.zero_grad(set_to_none=True)
        rows = self._ids[picks], self._mask[picks], self._labels[picks]
        total, task, _ = losses(self._model, *rows)
        total.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        return task


def forward(
    size: str, params: Any, rows: Rows, *, tol: float, max_steps: int
) -> Callable[[], np.ndarray]:
    """Logits of the rows."""
    length = params["positions"]["embedding"].shape[0]
    model = Robertha(params, tol=tol, max_steps=max_steps, max_length=length, **SIZES[size]).eval()
    ids = torch.from_numpy(rows.ids).long().to(device())
    mask = (torch.arange(ids.shape[1]) < torch.from_numpy(rows.lengths)[:, None]).to(device())

    def logits() -> np.ndarray:
        with torch.inference_mode():
            return model(ids, mask)[0].cpu().numpy()

    return logits


def retrieval(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    beta: float,
    max_steps: int,
    gradient: bool = False,
    *,
    fused: bool,
) -> Callable[[], Any]:
    """Products and softmax, or fused attention, `max_steps + 1` times; `beta` as in the paper."""
    queries, keys, values = (torch.from_numpy(each).to(device()) for each in (query, key, value))
    scale = beta * key.shape[-1] ** -0.5
    keys.requires_grad_(gradient)
    values.requires_grad_(gradient)

    def read(state: Tensor, values: Tensor) -> Tensor:
        if fused:
            return F.scaled_dot_product_attention(state, keys, values, scale=scale)
        return torch.softmax(scale * (state @ keys.mT), -1) @ values

    def run() -> Any:
        with torch.inference_mode(not gradient):
            state = queries
            for _ in range(max_steps):
                state = read(state, keys)
            output = read(state, values)
            if gradient:
                cotangent = output.detach()
                output = cotangent, torch.autograd.grad(output, (keys, values), cotangent)
        if device().type == "cuda":
            torch.cuda.synchronize()
        return output

    return run


def stability(
    hidden: np.ndarray, readout: np.ndarray, num_samples: int, rho: float, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Noise stability of x -> relu(x @ hidden) @ readout: mean and standard error over pairs."""
    torch.manual_seed(0)
    size = min(batch_size, num_samples)
    with torch.inference_mode():
        first, last = (torch.from_numpy(array).to(device()) for array in (hidden, readout))
        inputs = torch.empty(2, size, len(hidden), device=device())
        # On the device too, so that no batch waits for the one before.
        total = torch.zeros((), dtype=torch.float64, device=device())
        squares = torch.zeros_like(total)
        for start in range(0, num_samples, size):
            inputs.normal_()
            inputs[1].mul_((1 - rho**2) ** 0.5).add_(inputs[0], alpha=rho)
            left, right = (inputs @ first).relu_() @ last
            products = (left * right)[: num_samples - start].double()
            total += products.sum()
            squares += products @ products
    mean = total.item() / num_samples
    error = ((squares.item() / num_samples - mean**2) / (num_samples - 1)) ** 0.5
    return np.asarray(mean), np.asarray(error)


def device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def state_dict_of(params: Mapping[Any, Any]) -> dict[str, Tensor]:
    """A hopfax parameter tree of one seed, for `load_state_dict`."""
    state = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            state |= {f"{name}.{rest}": array for rest, array in state_dict_of(value).items()}
        else:
            array = np.array(value.T if name == "kernel" else value)
            state["bias" if name == "bias" else "weight"] = torch.from_numpy(array)
    return state
