"""Opt-in code that has not run on the hardware it is for: attention's retrieval as a GPU kernel.

`retrieve_head` is written in Pallas. `HopfieldAttention(implementation="pallas")` uses it; without
a GPU Pallas's interpreter runs it, slowly, and the tests compare it with XLA's results.
"""

from hopfax.experimental.retrieval import by_devices as by_devices
from hopfax.experimental.retrieval import retrieve_head as retrieve_head
