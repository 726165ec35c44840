"""The papers' models, and the three presets of Robertha."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from hopfax.fixed_point import Gradient, Stop
from hopfax.nn.attention import HopfieldAttention, Scope, SoftmaxAttention
from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, functional
from hopfax.nn.universal import UniversalEncoder


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The differences between the paper's text, the released program and hopfax on Robertha.

    | point | `paper`: the text | `released`: the program | `hopfax` |
    |---|---|---|---|
    | heads | 2 | 1 | 2 |
    | embeddings | Tok + Pos (Algorithm 1) | their LayerNorm | their LayerNorm |
    | embedding site of noise | Tok + Pos | after the LayerNorm | after the LayerNorm |
    | blocks | post-LN | pre-LN | pre-LN |
    | W_Q, W_O | none (the text; Algorithm 1 has a W_Q) | both | both |
    | biases of the projections | none | all | all |
    | read-out | softmax(K ξ / √d) (Eq. 13) | with β (Algorithm 2) | with β |
    | padding keys | masked (the text is silent) | stored patterns | masked |
    | stop rule | absolute, per query (Eq. 8) | relative, whole batch | relative, per query |
    | gradient | unrolled | unrolled | implicit |
    | ESR | (H / log d - α)² | (H - α log d)², pads counted, no layer below trained | as the text |
    | dropout | 0 (not given) | 0.3 | 0.3 |
    | embedding of [PAD] | trained | frozen | trained |

    Attributes:
        num_heads: See `HopfieldAttention`, as for all not listed here.
        norm_first: See `Encoder`, as for `embedding_norm`, `padding_idx`, `dropout` and
            `stop_gradient_keys`.
        mask_keys: Whether the stored patterns and the ESR spectrum exclude padding.
        esr_in_nats: Whether ESR compares H with alpha log d, rather than H/log d with alpha.
    """

    num_heads: int = 2
    norm_first: bool = True
    query_projection: bool = True
    output_projection: bool = True
    embedding_norm: bool = True
    bias: bool = True
    readout_beta: bool = True
    mask_keys: bool = True
    stop: Stop = "relative"
    scope: Scope = "query"
    gradient: Gradient = "implicit"
    stop_gradient_keys: bool = False
    padding_idx: int | None = None
    esr_in_nats: bool = False
    dropout: float = 0.3


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "hopfax": Preset(),
        "paper": Preset(
            norm_first=False,
            query_projection=False,
            output_projection=False,
            embedding_norm=False,
            bias=False,
            readout_beta=False,
            stop="absolute",
            gradient="unrolled",
            dropout=0.0,
        ),
        "released": Preset(
            num_heads=1,
            mask_keys=False,
            scope="batch",
            gradient="unrolled",
            stop_gradient_keys=True,
            padding_idx=0,
            esr_in_nats=True,
        ),
    }
)
_OF_ENCODER = ("norm_first", "embedding_norm", "stop_gradient_keys", "padding_idx", "dropout")


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

    Args:
        vocab_size: Number of token ids.
        num_outputs: Classes, or 1 for regression and for scoring choices.
        num_heads: Number of attention heads.
        **options: Options of `UniversalEncoder`, which has no `num_layers`.

    Raises:
        TypeError, ValueError: `init` raises those of `UniversalEncoder`.

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
    return functional(
        lambda rngs: kind(vocab_size, num_outputs, attention=attention, rngs=rngs, **options)
    )


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
    encoder = {name: options.pop(name) for name in _OF_ENCODER}
    attention = partial(HopfieldAttention, beta=beta, tol=tol, max_steps=max_steps, **options)
    return functional(
        lambda rngs: Encoder(
            vocab_size, num_outputs, attention=attention, rngs=rngs, **encoder, **sizes
        )
    )
