"""Attention's retrieval as a Pallas kernel for GPUs: opt-in, and not yet run on a GPU.

`HopfieldAttention(implementation="pallas")` uses `retrieve_head`. Without a GPU, Pallas's
interpreter runs it, slowly; tests compare it with XLA.
"""

from hopfax.experimental.retrieval import retrieve_head as retrieve_head
