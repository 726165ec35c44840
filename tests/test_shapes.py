"""The shapes in the core's signatures are true: jaxtyping and beartype check its examples.

In a process of its own, since the checks are installed at import. They are not on in the other
tests, which also hand over NumPy arrays, whole numbers and wrong shapes, on purpose.
"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import doctest, importlib, pkgutil
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook(["hopfax.fixed_point", "hopfax.hopfield"], "beartype.beartype"):
    from hopfax import hopfield
import jax.numpy as jnp
for info in pkgutil.iter_modules(hopfield.__path__, "hopfax.hopfield."):
    module = importlib.import_module(info.name)
    assert not doctest.testmod(module, globs={}, optionflags=doctest.ELLIPSIS).failed
keys, mask = jnp.ones((6, 4)), jnp.arange(6) < 5
for options in ({}, {"mask": mask}):
    hopfield.esr_penalty(keys, **options)
    for gradient in ("implicit", "unrolled"):
        hopfield.retrieve(keys[0], keys, beta=1.0, gradient=gradient, **options)
try:
    hopfield.snr_db(keys, keys[:, 1:])
except TypeCheckError:
    print("refused")
"""


def test_every_shape_is_as_annotated_and_every_other_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr + done.stdout
