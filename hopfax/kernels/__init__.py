"""Kernels for GPUs, written in Pallas: what XLA would do in many passes over memory, in one.

`retrieve_head` is the retrieval of an attention head. `HopfieldAttention` uses it by itself on a
GPU, and anywhere with `implementation="pallas"`: off a GPU Pallas's interpreter runs it, slowly,
which is how the tests prove it equal to what XLA computes.
"""

from hopfax.kernels.retrieval import Retrieved as Retrieved
from hopfax.kernels.retrieval import available as available
from hopfax.kernels.retrieval import beyond_limits as beyond_limits
from hopfax.kernels.retrieval import retrieve_head as retrieve_head
