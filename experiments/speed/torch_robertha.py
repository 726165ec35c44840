"""Base Robertha and its training step in PyTorch, written from the paper: the peer to measure by.

It follows hopfax's preset (2 heads, pre-LN behind an embedding LayerNorm, W_Q and W_O, masked keys
and mean pooling, each query stops by itself) and the released program where that one decides how
PyTorch is used: texts padded to 128, autograd through the unrolled iterates. It is meant to be
fast: no loop over examples, heads or tokens, one exit as soon as every query has come to rest,
ESR of all layers in one call, fused AdamW.

Needs PyTorch: `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    raise ImportError(
        "experiments.speed.torch_robertha is written in PyTorch, which is an optional extra: "
        "pip install -e '.[speed]'"
    ) from error


class Attended(NamedTuple):
    """Token vectors, keys (batch, tokens, width) and updates a query (batch, heads, tokens)."""

    values: Tensor
    keys: Tensor
    num_steps: Tensor


class Losses(NamedTuple):
    """Parts of a loss, mean updates per real query, and loop trips summed over layers."""

    total: Tensor
    task: Tensor
    esr: Tensor
    num_steps: Tensor
    trips: Tensor


class HopfieldAttention(nn.Module):
    """Queries iterate to a fixed point of the keys (Eqs. 4, 7), then read the values out."""

    def __init__(self, width: int, *, num_heads: int, beta: float, tol: float, max_steps: int):
        super().__init__()
        self.num_heads = num_heads
        self.scale = beta / math.sqrt(width // num_heads)
        self.tol = tol
        self.max_steps = max_steps
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Attended:
        """Retrieves from every token (batch, tokens, width); mask is True at real tokens."""
        keys = self.key(x)
        state, key, value = (self._split(part) for part in (self.query(x), keys, self.value(x)))
        # A float mask: PyTorch would turn a boolean one into this in every iteration.
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -math.inf)[:, None, None]
        bias = bias.expand(-1, -1, mask.shape[1], -1)
        running = mask[:, None, :].expand(state.shape[:-1])
        num_steps = torch.zeros_like(running, dtype=torch.int32)
        for _ in range(self.max_steps):
            following = self._read(state, key, key, bias)
            with torch.no_grad():
                change = torch.linalg.vector_norm(following - state, dim=-1)
                moving = change > self.tol * torch.linalg.vector_norm(state, dim=-1)
                num_steps += running
            state = torch.where(running[..., None], following, state)
            running = running & moving
            if not running.any():
                break
        mixed = self._read(state, key, value, bias)
        return Attended(self.out(mixed.transpose(1, 2).flatten(2)), keys, num_steps)

    def _read(self, state: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(state, key, value, attn_mask=bias, scale=self.scale)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


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

    def forward(self, x: Tensor, mask: Tensor) -> Attended:
        """New token vectors, with the attention's keys and counts."""
        attended = self.attention(self.attention_norm(x), mask)
        x = x + self.dropout(attended.values)
        x = x + self.dropout(self.ff_out(F.gelu(self.ff_in(self.ff_norm(x)))))
        return attended._replace(values=x)


class Robertha(nn.Module):
    """The classifier, base size unless told otherwise."""

    def __init__(
        self,
        vocab_size: int = 30522,
        num_outputs: int = 2,
        *,
        width: int = 128,
        num_layers: int = 2,
        ff_width: int = 512,
        num_heads: int = 2,
        max_length: int = 128,
        beta: float = 15.0,
        tol: float = 1e-4,
        max_steps: int = 50,
        dropout: float = 0.3,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(
                width,
                ff_width,
                dropout,
                HopfieldAttention(
                    width, num_heads=num_heads, beta=beta, tol=tol, max_steps=max_steps
                ),
            )
            for _ in range(num_layers)
        )
        self.classifier = nn.Linear(width, num_outputs)
        self.dropout = nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, list[Attended]]:
        """Logits (batch, outputs), and what every layer attended."""
        positions = self.positions.weight[: ids.shape[1]]
        x = self.dropout(self.norm(self.tokens(ids) + positions))
        layers = []
        for block in self.blocks:
            layers.append(block(x, mask))
            x = layers[-1].values
        real = mask[..., None]
        pooled = (x * real).sum(1) / real.sum(1).clamp(min=1)
        return self.classifier(self.dropout(pooled)), layers


def eigen_entropy(keys: Tensor, mask: Tensor) -> Tensor:
    """Normalised entropy (Eq. 10) of the key covariance of each text, from (..., tokens, width)."""
    real = mask[..., None].to(keys.dtype)
    keys = keys * real
    centred = (keys - keys.sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)) * real
    eigenvalues = torch.linalg.eigvalsh(centred.mT @ centred)
    # Rounding leaves as much where the covariance of a short text has no rank.
    floor = torch.finfo(keys.dtype).eps * eigenvalues[..., -1:]
    eigenvalues = torch.where(eigenvalues > floor, eigenvalues, 0)
    total = eigenvalues.sum(-1, keepdim=True)
    shares = eigenvalues / torch.where(total > 0, total, 1)
    logs = torch.where(shares > 0, shares, 1).log()
    return -(shares * logs).sum(-1) / math.log(keys.shape[-1])


def losses(
    model: Robertha,
    ids: Tensor,
    mask: Tensor,
    labels: Tensor,
    *,
    esr_weight: float = 0.05,
    esr_target: float = 0.35,
) -> Losses:
    """Cross-entropy plus ESR (Eq. 12), summed over layers and averaged over texts."""
    logits, layers = model(ids, mask)
    task = F.cross_entropy(logits, labels)
    entropy = eigen_entropy(torch.stack([layer.keys for layer in layers]), mask)
    esr = (entropy - esr_target).square().sum(0).mean()
    counts = torch.stack([layer.num_steps for layer in layers])
    mean = counts.sum() / (mask.sum() * counts.shape[0] * counts.shape[2])
    trips = counts.amax((1, 2, 3)).sum()
    return Losses(task + esr_weight * esr, task.detach(), esr.detach(), mean, trips)


class Trainer:
    """Table 15's training step: AdamW, linear warm-up and decay, gradients clipped to norm 1.

    Args:
        model: What to train.
        learning_rate: Peak rate.
        total_steps: Of the schedule.
        warmup: Share of them over which the rate rises.
        weight_decay: Of AdamW.
        compiled: Whether the losses, and so their gradient, go through `torch.compile`.
    """

    def __init__(
        self,
        model: Robertha,
        *,
        learning_rate: float = 2e-5,
        total_steps: int = 60_000,
        warmup: float = 0.1,
        weight_decay: float = 0.01,
        compiled: bool = False,
    ):
        self.model = model.train()
        self._losses: Any = torch.compile(losses) if compiled else losses
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
        )
        rising = max(1, round(warmup * total_steps))

        def rate(step: int) -> float:
            falling = (total_steps - step) / max(1, total_steps - rising)
            return max(0.0, min((step + 1) / rising, falling))

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)

    def step(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Losses:
        """One step; returns the losses before it."""
        self.optimizer.zero_grad(set_to_none=True)
        found = self._losses(self.model, ids, mask, labels)
        found.total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return found._replace(total=found.total.detach())


def state_dict_of(params: Mapping[Any, Any]) -> dict[str, Tensor]:
    """A hopfax parameter tree of one seed under this model's names, for `load_state_dict`."""
    found = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{rest}": array for rest, array in state_dict_of(value).items()}
        else:
            array = np.array(value.T if name == "kernel" else value)
            found["bias" if name == "bias" else "weight"] = torch.from_numpy(array)
    return found
