"""Thin Flax modules over the core: attention layers, encoders, a decoder, pretrained models.

Modules hold parameters and call pure functions; `functional` takes one apart into a plain dict of
parameters and its `init` and `apply`, so that everything outside is ordinary JAX.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from hopfax import hopfield, nn
    >>> model = nn.robertha(vocab_size=100, num_outputs=2, width=16, ff_width=32)
    >>> params = model.init(jax.random.key(0))
    >>> ids, mask = jnp.ones((3, 12), int), jnp.arange(12) < jnp.array([[12], [7], [5]])
    >>> output = model.apply(params, ids, mask)
    >>> output.logits.shape, output.encoding.keys.shape  # keys: (layers, batch, tokens, width)
    ((3, 2), (2, 3, 12, 16))
    >>> esr = jax.vmap(lambda keys, real: hopfield.esr_penalty(keys, target=0.35, mask=real))
    >>> penalties = jax.vmap(esr, in_axes=(0, None))(output.encoding.keys, mask)
    >>> penalties.shape  # one for each layer and text, to add to your own loss
    (2, 3)
"""

from hopfax.nn.attention import AttentionOutput as AttentionOutput
from hopfax.nn.attention import HopfieldAttention as HopfieldAttention
from hopfax.nn.attention import SoftmaxAttention as SoftmaxAttention
from hopfax.nn.decoder import Decoder as Decoder
from hopfax.nn.decoder import decoder as decoder
from hopfax.nn.encoder import Classification as Classification
from hopfax.nn.encoder import Encoder as Encoder
from hopfax.nn.encoder import EncoderConfig as EncoderConfig
from hopfax.nn.encoder import Encoding as Encoding
from hopfax.nn.encoder import Perturbation as Perturbation
from hopfax.nn.functional import Functional as Functional
from hopfax.nn.functional import Params as Params
from hopfax.nn.functional import functional as functional
from hopfax.nn.memory import recall as recall
from hopfax.nn.memory import with_memory as with_memory
from hopfax.nn.models import PRESETS as PRESETS
from hopfax.nn.models import Preset as Preset
from hopfax.nn.models import find_preset as find_preset
from hopfax.nn.models import robertha as robertha
from hopfax.nn.models import tinybert as tinybert
from hopfax.nn.models import universal_bert as universal_bert
from hopfax.nn.precision import Precision as Precision
from hopfax.nn.precision import with_precision as with_precision
from hopfax.nn.pretrained import Pretrained as Pretrained
from hopfax.nn.pretrained import PretrainedOutput as PretrainedOutput
from hopfax.nn.pretrained import load_pretrained as load_pretrained
from hopfax.nn.pretrained import replace_attention as replace_attention
from hopfax.nn.pretrained import text_classifier as text_classifier
from hopfax.nn.prior import language_prior as language_prior
from hopfax.nn.prior import recall_text as recall_text
from hopfax.nn.released import load_released as load_released
