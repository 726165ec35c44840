"""Thin Flax modules over the core: attention layers, an encoder, the papers' models.

Modules hold parameters and call pure functions; `functional` takes one apart into a plain dict of
parameters and a `bind`, so that everything outside is ordinary JAX.
"""

from hopfax.nn.attention import Attended as Attended
from hopfax.nn.attention import HopfieldAttention as HopfieldAttention
from hopfax.nn.attention import SoftmaxAttention as SoftmaxAttention
from hopfax.nn.encoder import Classification as Classification
from hopfax.nn.encoder import Encoder as Encoder
from hopfax.nn.encoder import Encoding as Encoding
from hopfax.nn.functional import Functional as Functional
from hopfax.nn.functional import Params as Params
from hopfax.nn.functional import functional as functional
from hopfax.nn.functional import num_params as num_params
from hopfax.nn.models import PRESETS as PRESETS
from hopfax.nn.models import Preset as Preset
from hopfax.nn.models import preset as preset
from hopfax.nn.models import robertha as robertha
from hopfax.nn.models import tinybert as tinybert
from hopfax.nn.released import load_released as load_released
