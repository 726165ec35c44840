"""The papers' models, and the presets of Robertha."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from hopfax.fixed_point import Gradient, Stop
from hopfax.nn.attention import HopfieldAttention, Scope, SoftmaxAttention
from hopfax.nn.encoder import Encoder, EncoderConfig
from hopfax.nn.functional import Functional, functional
from hopfax.nn.universal import UniversalEncoder


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Options in which the versions of Robertha differ.

    d is the width of a head.

    | point | `paper`: the text | `algorithm`: 1 and 2 | `released`: the program | `hopfax` |
    |---|---|---|---|---|
    | heads | 2 | 2 (one in Algorithm 2) | 1 | 2 |
    | embeddings | Tok + Pos | Tok + Pos | their LayerNorm | their LayerNorm |
    | embedding site of noise | Tok + Pos | Tok + Pos | after the LayerNorm | the same |
    | blocks | post-LN | post-LN | pre-LN | pre-LN |
    | W_Q, W_O | none | W_Q | both | both |
    | biases of the projections | none | none | all | all |
    | inverse temperature of the loop | β (Eq. 7) | β / √d | β / √d | β / √d |
    | inverse temperature of the read-out | 1 / √d (Eq. 13) | β / √d | β / √d | β / √d |
    | change of the states | absolute (Eq. 8) | absolute | relative | relative |
    | stopping | per query | per text | per batch | per query |
    | the first step may converge | yes | yes | yes | no |
    | gradient | unrolled | unrolled | unrolled | implicit |
    | padding keys | masked (not given) | masked (not given) | stored | masked |
    | padded length | any | any | `max_length` (128) | any |
    | noise on padding | without effect | without effect | yes | without effect |
    | ESR | (H / log d_model - α)² | the same | (H - α log d_model)², with padding | as the text |
    | keys of ESR in training | forward pass | forward pass | second pass (below) | forward pass |
    | trained by ESR | all below | all below | W_K and norm of the layer (below) | all below |
    | dropout rate | 0 (not given) | 0 (not given) | 0.3 | 0.3 |
    | dropped: embeddings, outputs of attention and feed-forward | - | - | yes | yes |
    | dropped: hidden layer of the feed-forward | - | - | yes | no |
    | dropped: input of the classifier | - | - | no | yes |
    | embedding of [PAD] | trained | trained | frozen | trained |
    | pooling | mean of real tokens | the same | the same | the same |

    In the released program, ESR uses the keys of a second pass, whose embeddings have no dropout;
    ESR of the first layer also trains these embeddings. Presets do not set epochs or the test
    batch size: 30 and 1 in the paper, 3 and 32 in the released script, which adds the same noise
    to every batch.

    Attributes:
        num_heads: See `HopfieldAttention`; attributes not listed are documented there, too.
        norm_first: See `Encoder`, as for `embedding_norm`, `padding_idx`, `stop_gradient_keys`,
            `dropout`, `drop_hidden` and `drop_pooled`.
        mask_keys: Whether the stored patterns and the ESR spectrum exclude padding. If not, pad
            texts to `max_length`.
        esr_in_nats: Whether ESR compares H with alpha log d, rather than H/log d with alpha.
    """

    num_heads: int = 2
    norm_first: bool = True
    query_projection: bool = True
    output_projection: bool = True
    embedding_norm: bool = True
    bias: bool = True
    scale_beta: bool = True
    readout_beta: bool = True
    mask_keys: bool = True
    stop: Stop = "relative"
    scope: Scope = "query"
    min_steps: int = 2
    gradient: Gradient = "implicit"
    stop_gradient_keys: bool = False
    padding_idx: int | None = None
    esr_in_nats: bool = False
    dropout: float = 0.3
    drop_hidden: bool = False
    drop_pooled: bool = True


_PAPER = Preset(
    norm_first=False, query_projection=False, output_projection=False, embedding_norm=False,
    bias=False, scale_beta=False, readout_beta=False, stop="absolute", min_steps=1,
    gradient="unrolled", dropout=0.0,
)  # fmt: skip
_ALGORITHM = replace(
    _PAPER, query_projection=True, scale_beta=True, readout_beta=True, scope="text"
)
_RELEASED = Preset(
    num_heads=1, mask_keys=False, scope="batch", min_steps=1, gradient="unrolled",
    stop_gradient_keys=True, padding_idx=0, esr_in_nats=True, drop_hidden=True, drop_pooled=False,
)  # fmt: skip
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"hopfax": Preset(), "paper": _PAPER, "algorithm": _ALGORITHM, "released": _RELEASED}
)


def find_preset(name: str) -> Preset:
    """Returns a preset by name; raises a ValueError for an unknown one.

    Example:
        >>> from hopfax.nn import find_preset
        >>> find_preset("released").num_heads
        1
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def tinybert(
    vocab_size: int, num_outputs: int, *, num_heads: int = 2, **options: Any
) -> Functional[Encoder]:
    """Returns a BERT of TinyBERT's shape: post-LN, [CLS] through a tanh layer.

    Args:
        vocab_size: Number of token ids.
        num_outputs: Classes, or 1 for regression and for scoring choices.
        num_heads: Number of attention heads.
        **options: Options of `Encoder`: sizes, `dropout` (0.1, on attention weights too),
            `epsilon` (1e-12), `pooling` ("cls").

    Raises:
        TypeError, ValueError: `init` raises those of `Encoder`.

    Example:
        >>> import jax
        >>> from hopfax.nn import tinybert
        >>> model = tinybert(10, 2, width=8, ff_width=16, num_layers=1, max_length=8)
        >>> jax.eval_shape(model.init, jax.random.key(0))["pooler"]["kernel"].shape
        (8, 8)
    """
    return _bert(Encoder, vocab_size, num_outputs, num_heads=num_heads, **options)


def universal_bert(
    vocab_size: int, num_outputs: int, *, num_heads: int = 2, **options: Any
) -> Functional[Encoder]:
    """Returns a Universal Transformer of TinyBERT's shape.

    Args are those of `tinybert`, with options of `UniversalEncoder`, which has no `num_layers`.

    Example:
        >>> import jax
        >>> from hopfax.nn import universal_bert
        >>> model = universal_bert(10, 2, width=8, ff_width=16, num_steps=4, max_length=8)
        >>> jax.eval_shape(model.init, jax.random.key(0))["steps"]["embedding"].shape
        (4, 8)
    """
    return _bert(UniversalEncoder, vocab_size, num_outputs, num_heads=num_heads, **options)


def _bert(
    kind: type[Encoder], vocab_size: int, num_outputs: int, *, num_heads: int, **options: Any
) -> Functional[Encoder]:
    options = {"norm_first": False, "pooling": "cls", "epsilon": 1e-12, "dropout": 0.1, **options}
    attention = partial(SoftmaxAttention, num_heads=num_heads, dropout=options["dropout"])
    # Not a lambda, so that a model can be pickled.
    return functional(partial(kind, vocab_size, num_outputs, attention=attention, **options))


def robertha(
    vocab_size: int,
    num_outputs: int,
    *,
    preset: Preset | str = "hopfax",
    beta: float = 15.0,
    tol: float = 1e-4,
    max_steps: int = 50,
    **sizes: Any,
) -> Functional[Encoder]:
    """Returns Robertha: Hopfield attention, mean pooling.

    ESR is a term of the training objective, not of the model.

    Args:
        vocab_size: Number of token ids.
        num_outputs: Classes, or 1 for regression and for scoring choices.
        preset: A name in `PRESETS`, or a `Preset`.
        beta: See `HopfieldAttention`, as for `tol` and `max_steps`.
        tol: Convergence tolerance, >= 0.
        max_steps: Maximum number of iterations T; 0 for Robertha without iteration.
        **sizes: `width`, `num_layers`, `ff_width`, `max_length` of `Encoder`.

    Raises:
        TypeError, ValueError: `init` raises those of `Encoder`.

    Example:
        >>> import jax
        >>> from hopfax.nn import robertha
        >>> model = robertha(10, 2, preset="paper", width=8, ff_width=16, max_length=8)
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sorted(params["blocks"][0]["attention"])  # the paper's text has no W_Q and no W_O
        ['key', 'value']
    """
    options = asdict(find_preset(preset) if isinstance(preset, str) else preset)
    del options["esr_in_nats"]  # of the objective
    encoder = {
        each.name: options.pop(each.name) for each in fields(EncoderConfig) if each.name in options
    }
    attention = partial(HopfieldAttention, beta=beta, tol=tol, max_steps=max_steps, **options)
    options = {"attention": attention, **encoder, **sizes}
    return functional(partial(Encoder, vocab_size, num_outputs, **options))
