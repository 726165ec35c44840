"""PyTorch implementations to compare with: Robertha, BERT, retrieval and noise stability.

Robertha follows the `hopfax` preset; gradients go through the unrolled iterates. It is optimized:
no loop over examples, heads or tokens, an exit once every query has converged, ESR of all layers in
one call, fused AdamW. `torch.compile` was slower than eager in seven of eight settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from experiments.benchmarks import workloads
from experiments.benchmarks.workloads import BETA, ESR_WEIGHT, TOTAL_STEPS, Texts
from hopfax.data.batching import Bucket

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_device = partial(torch.tensor, device=DEVICE)  # a copy in PyTorch's alignment
Params = dict[Any, Any]  # hopfax's tree of one seed, of tensors with PyTorch's names
Model = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def model_of(size: str, params: Mapping[Any, Any], **options: Any) -> partial[Any]:
    """`robertha` of a size of `SIZES`, from hopfax's parameters."""
    heads = workloads.SIZES[size]["num_heads"]
    return partial(robertha, tensors(params), num_heads=heads, **options)


def tensors(params: Mapping[Any, Any]) -> Params:
    """Hopfax's parameters as tensors, with the names and the layout of PyTorch's functions."""
    result: Params = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            result[name] = tensors(value)
        elif name == "kernel":
            result["weight"] = on_device(np.ascontiguousarray(np.transpose(value)))
        else:
            result["weight" if name == "scale" else name] = on_device(np.asarray(value))
    return result


def robertha(
    params: Params, ids: Tensor, mask: Tensor, *, dropout: float = 0.0, **attention: Any
) -> tuple[Tensor, Tensor]:
    """Logits (batch, 2), and the keys of all layers (layers, batch, tokens, width)."""
    drop = partial(F.dropout, p=dropout, training=dropout > 0)
    tokens = F.embedding(ids, params["tokens"]["embedding"])
    x = drop(norm(tokens + params["positions"]["embedding"][: ids.shape[1]], params["norm"]))
    keys = []
    for _, block in sorted(params["blocks"].items()):
        normed = norm(x, block["attention_norm"])
        retrieved, layer_keys = attend(block["attention"], normed, mask, **attention)
        x = x + drop(retrieved)
        x = x + drop(feed_forward(norm(x, block["ff_norm"]), block))
        keys.append(layer_keys)
    return F.linear(drop(mean(x, mask)), **params["classifier"]), torch.stack(keys)


def attend(
    layers: Params,
    x: Tensor,
    mask: Tensor,
    *,
    num_heads: int,
    tol: float = 1e-4,
    max_steps: int = 50,
) -> tuple[Tensor, Tensor]:
    """Queries iterate to a fixed point of the keys (Eqs. 4, 7), then read the values out.

    Returns retrieved vectors and keys of every token (batch, tokens, width).
    """
    state, key, value = heads(layers, x, num_heads)
    scale = BETA * key.shape[-1] ** -0.5
    read = partial(F.scaled_dot_product_attention, attn_mask=bias_of(mask, x), scale=scale)
    state = attractors(lambda state: read(state, key, key), state, mask, tol, max_steps)
    return F.linear(joined(read(state, key, value)), **layers["out"]), joined(key)


def attractors(
    update: Callable[[Tensor], Tensor], state: Tensor, mask: Tensor, tol: float, max_steps: int
) -> Tensor:
    """Iterates each real query (batch, heads, tokens, width) until its relative change is small."""
    running = mask[:, None, :].expand(state.shape[:-1])
    for _ in range(max_steps):
        following = update(state)
        with torch.no_grad():
            change = torch.linalg.vector_norm(following - state, dim=-1)
            moving = change > tol * torch.linalg.vector_norm(state, dim=-1)
        state = torch.where(running[..., None], following, state)
        running = running & moving
        if not running.any():
            break
    return state


def bert(params: Params, ids: Tensor, mask: Tensor, *, dropout: float = 0.0) -> tuple[Tensor, None]:
    """Logits (batch, 2) of `text_classifier`'s parameters, single texts; no keys."""
    states = bert_states(params, F.embedding(ids, params["tokens"]["embedding"]), mask, dropout)
    pooled = F.dropout(mean(states, mask), dropout, dropout > 0)
    return F.linear(pooled, **params["classifier"]), None


def bert_states(params: Params, tokens: Tensor, mask: Tensor, dropout: float = 0.0) -> Tensor:
    """Last hidden states (batch, tokens, width) from token embeddings; post-LN, 12 heads."""
    drop = partial(F.dropout, p=dropout, training=dropout > 0)
    places = params["positions"]["embedding"][: tokens.shape[1]]
    x = tokens + places + params["types"]["embedding"][0]
    x = drop(norm(x, params["norm"], 1e-12))
    bias = None if bool(mask.all()) else bias_of(mask, x)
    for _, block in sorted(params["blocks"].items()):
        states = heads(block["attention"], x, num_heads=12)
        mixed = joined(F.scaled_dot_product_attention(*states, bias, dropout_p=dropout))
        x = x + drop(F.linear(mixed, **block["attention"]["out"]))
        x = norm(x, block["attention_norm"], 1e-12)
        x = norm(x + drop(feed_forward(x, block)), block["ff_norm"], 1e-12)
    return x


def feed_forward(x: Tensor, block: Params) -> Tensor:
    """The feed-forward part of a block."""
    return F.linear(F.gelu(F.linear(x, **block["ff_in"])), **block["ff_out"])


def norm(x: Tensor, layer: Params, eps: float = 1e-5) -> Tensor:
    """A LayerNorm."""
    return F.layer_norm(x, x.shape[-1:], **layer, eps=eps)


def heads(layers: Params, x: Tensor, num_heads: int) -> list[Tensor]:
    """Queries, keys and values (batch, heads, tokens, width)."""
    parts = (F.linear(x, **layers[name]) for name in ("query", "key", "value"))
    return [part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts]


def joined(states: Tensor) -> Tensor:
    """The heads' states (batch, heads, tokens, width) side by side."""
    return states.transpose(1, 2).flatten(2)


def bias_of(mask: Tensor, x: Tensor) -> Tensor:
    """A float mask, to which PyTorch would convert a boolean one in every iteration."""
    bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -math.inf)
    return bias[:, None, None].expand(-1, -1, mask.shape[1], -1)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean state of each text's real tokens."""
    real = mask[..., None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def eigen_entropy(keys: Tensor, mask: Tensor) -> Tensor:
    """Normalized entropy (Eq. 10) of the key covariance of each text, from (..., tokens, width)."""
    real = mask[..., None].to(keys.dtype)
    keys = keys * real
    centered = (keys - keys.sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp(min=1)) * real
    eigenvalues = torch.linalg.eigvalsh(centered.mT @ centered)
    # Rounding errors, where the covariance of a short text does not have full rank.
    floor = torch.finfo(keys.dtype).eps * eigenvalues[..., -1:]
    eigenvalues = torch.where(eigenvalues > floor, eigenvalues, 0)
    total = eigenvalues.sum(-1, keepdim=True)
    shares = eigenvalues / torch.where(total > 0, total, 1)
    logs = torch.where(shares > 0, shares, 1).log()
    return -(shares * logs).sum(-1) / math.log(keys.shape[-1])


def losses(model: Model, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss with ESR (Eq. 12, target 0.35) summed over layers, and its cross-entropy."""
    logits, keys = model(ids, mask)
    task = F.cross_entropy(logits, labels.long())
    if keys is None:
        return task, task.detach()
    esr = (eigen_entropy(keys, mask) - 0.35).square().sum(0).mean()
    return task + ESR_WEIGHT * esr, task.detach()


def train_steps(
    model: partial[Any], bucket: Bucket, *, batch_size: int = 32
) -> Callable[[int], list[float]]:
    """Table 15's training: AdamW, linear warm-up and decay, gradients clipped to norm 1.

    The first argument of `model` are its tensors. Returns a function that trains for some steps on
    random rows, and returns the cross-entropy before each.
    """
    leaves = [leaf.requires_grad_() for leaf in jax.tree.leaves(model.args[0])]
    options: Any = {"lr": workloads.LEARNING_RATE, "weight_decay": 0.01, "fused": True}
    optimizer = torch.optim.AdamW(leaves, **options)
    rising = round(0.1 * TOTAL_STEPS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / rising, (TOTAL_STEPS - step) / (TOTAL_STEPS - rising)),
    )
    rows = [on_device(each) for each in (*workloads.single_texts(bucket), bucket.labels)]
    rng = np.random.default_rng(0)

    def step() -> Tensor:
        picks = on_device(rng.integers(0, len(bucket.labels), batch_size))
        optimizer.zero_grad(set_to_none=True)
        total, task = losses(model, *(each[picks] for each in rows))
        total.backward()
        clip_grad_norm_(leaves, 1.0)
        optimizer.step()
        schedule.step()
        return task

    # The device works on all steps before the first loss is read.
    return lambda steps: [loss.item() for loss in [step() for _ in range(steps)]]


def forward(model: Model, texts: Texts) -> Callable[[], np.ndarray]:
    """Logits of the texts."""
    inputs = [on_device(each) for each in texts]

    @torch.inference_mode()
    def logits() -> np.ndarray:
        return model(*inputs)[0].cpu().numpy()

    return logits


def influence_bert(params: Mapping[Any, Any], embeddings: np.ndarray) -> Callable[[], np.ndarray]:
    """Mean over texts of the gradient's norm at each token, one text after the other."""
    weights, texts = tensors(params), on_device(embeddings)
    mask = torch.ones(1, texts.shape[1], dtype=torch.bool, device=DEVICE)

    def influences() -> np.ndarray:
        norms = []
        for text in texts.split(1):
            text = text.detach().requires_grad_()
            output = bert_states(weights, text, mask).mean(1).sum()
            norms.append(torch.autograd.grad(output, text)[0][0].norm(dim=-1))
        return torch.stack(norms).mean(0).cpu().numpy()

    return influences


def denoise(
    queries: np.ndarray, table: np.ndarray, sigma: float, *, block_size: int
) -> Callable[[], Tensor]:
    """Posterior means of the queries: product, softmax, product, over blocks of queries."""
    noisy, patterns = map(on_device, (queries, table))
    bias = -0.5 * patterns.square().sum(1) / sigma**2

    @torch.inference_mode()
    def means() -> Tensor:
        parts = noisy.split(block_size)
        scores = (torch.addmm(bias, part, patterns.mT, alpha=sigma**-2) for part in parts)
        return synchronized(torch.cat([each.softmax(1) @ patterns for each in scores]))

    return means


def retrieval(
    inputs: Sequence[np.ndarray],
    max_steps: int,
    gradient: bool = False,
    *,
    fused: bool,
    tol: float | None = None,
    mask: np.ndarray | None = None,
) -> Callable[[], Any]:
    """Products and softmax, or fused attention, `max_steps + 1` times, or up to a tolerance."""
    queries, keys, values = map(on_device, inputs)
    real = on_device(np.ones((len(queries), queries.shape[2]), bool) if mask is None else mask)
    bias = None if mask is None else bias_of(real, queries)
    scale = BETA * keys.shape[-1] ** -0.5
    keys.requires_grad_(gradient)
    values.requires_grad_(gradient)

    def read(state: Tensor, values: Tensor) -> Tensor:
        if fused:
            return F.scaled_dot_product_attention(state, keys, values, bias, scale=scale)
        scores = scale * (state @ keys.mT)
        return torch.softmax(scores if bias is None else scores + bias, -1) @ values

    def run() -> Any:
        with torch.inference_mode(not gradient):
            state = queries
            if tol is not None:
                state = attractors(lambda state: read(state, keys), state, real, tol, max_steps)
            else:
                for _ in range(max_steps):
                    state = read(state, keys)
            output = read(state, values)
            if gradient:
                cotangent = output.detach()
                output = cotangent, torch.autograd.grad(output, (keys, values), cotangent)
        return synchronized(output)

    return run


@torch.inference_mode()
def stability(
    hidden: np.ndarray, readout: np.ndarray, num_samples: int, rho: float, batch_size: int
) -> tuple[float, float]:
    """Noise stability of x -> relu(x @ hidden) @ readout: mean and standard error over pairs."""
    torch.manual_seed(0)
    size, products = min(batch_size, num_samples), []
    first, last = map(on_device, (hidden, readout))
    inputs = torch.empty(2, size, len(hidden), device=DEVICE)
    for _ in range(0, num_samples, size):
        inputs.normal_()
        inputs[1].mul_((1 - rho**2) ** 0.5).add_(inputs[0], alpha=rho)
        left, right = (inputs @ first).relu_() @ last
        products.append(left * right)
    values = torch.cat(products)[:num_samples].double()
    return values.mean().item(), values.std().item() / num_samples**0.5


def synchronized(output: Any) -> Any:
    """Waits for the GPU, if there is one."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return output


def beam_search(
    folder: str, noisy: np.ndarray, sigma: float, start: int, *, beam: int = 16, count: int = 256
) -> Callable[[], Tensor]:
    """Beam search over the `count` nearest tokens of each noisy vector, (texts, tokens)."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
    table, x = model.get_input_embeddings().weight.detach(), on_device(noisy)
    norms = table.square().sum(1) / 2

    @torch.no_grad()
    def search() -> Tensor:
        fit, near = ((x @ table.T - norms) / sigma**2).topk(count, -1)
        texts, cache = len(x), DynamicCache()
        last, scores = torch.full((texts, 1), start, device=DEVICE), x.new_zeros(texts, 1)
        found = last[:, :, None][:, :, :0]
        for place in range(x.shape[1]):
            output = model(last.reshape(-1, 1), past_key_values=cache, use_cache=True)
            log_probs = output.logits[:, -1].log_softmax(-1).view(texts, scores.shape[1], -1)
            allowed = near[:, None, place].expand(-1, scores.shape[1], -1)
            every = scores[..., None] + log_probs.gather(2, allowed) + fit[:, None, place]
            scores, choice = every.flatten(1).topk(min(beam, every[0].numel()), 1)
            parent, last = choice // count, near[:, place].gather(1, choice % count)
            rows = torch.arange(texts, device=DEVICE)[:, None]
            cache.reorder_cache((rows * every.shape[1] + parent).flatten())
            found = torch.cat([found[rows, parent], last[..., None]], 2)
        return found[:, 0]

    return search
