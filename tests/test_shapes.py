"""The shapes in the core's signatures are true: jaxtyping and beartype check them as it runs.

In a process of its own, since the checks are installed at import. They are not on in the other
tests, which also hand over NumPy arrays, whole numbers and wrong shapes, on purpose.
"""

import subprocess
import sys
from pathlib import Path

PREAMBLE = """
from jaxtyping import TypeCheckError, install_import_hook
CORE = ["hopfax.fixed_point", "hopfax.hopfield"]
with install_import_hook(CORE, "beartype.beartype"):
    from hopfax import hopfield
import jax, jax.numpy as jnp
draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
query, patterns, mask = draw(0, 4), draw(1, 6, 4), jnp.arange(6) < 5
"""
RIGHT = """
def right():  # traced: shapes are checked all the same
    for width in (4, 9):  # through the covariance and through the Gram matrix
        keys = draw(2, 6, width)
        for name in ("key_spectrum", "effective_rank", "participation_ratio", "gini"):
            getattr(hopfield, name)(keys)
            getattr(hopfield, name)(keys, mask=mask)
        for entropy in ("shannon", "renyi2"):
            jax.grad(hopfield.esr_penalty)(keys, mask=mask, entropy=entropy)
    for options in ({}, {"mask": mask}):
        hopfield.energy(query, patterns, beta=1.0, **options)
        hopfield.update(query, patterns, beta=jnp.float32(1), **options)
        hopfield.trajectory(query, patterns, beta=1.0, num_steps=3, **options)
        hopfield.attend(patterns, patterns, patterns, beta=1.0, **options)
        noise = hopfield.gaussian_noise(jax.random.key(0), patterns, sigma=0.5, **options)
        hopfield.snr_db(patterns, noise, **options)
        hopfield.matched_sigma(patterns, snr_db=3.0, **options)
        for gradient in ("implicit", "unrolled"):
            def value(p, q):
                found = hopfield.retrieve(q, p, beta=1.0, gradient=gradient, **options)
                return found.value.sum()
            jax.vmap(jax.grad(value), in_axes=(None, 0))(patterns, draw(3, 2, 4))
jax.eval_shape(right)
print("right")
"""
WRONG = """
for call in (
    lambda: hopfield.eigen_entropy(draw(0, 2, 6, 4)),
    lambda: hopfield.snr_db(patterns, draw(0, 6, 5)),
):
    try:
        call()
    except TypeCheckError:
        print("refused")
"""


def test_every_shape_is_as_annotated_and_every_other_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + RIGHT + WRONG],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["right", "refused", "refused"]
