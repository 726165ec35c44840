"""All local devices share the rows of a batch, with the results of one device."""

import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from nn.checkpoints import save_random
from test_classifier import SIZES, TEXTS, VOCABULARY, classifier
from train import tiny

from hopfax import checks, nn, stability, text_model


def calls(folder):
    """Returns calls by name: those that devices share, and others."""
    own = classifier(nn.tinybert(VOCABULARY.size, 3, num_layers=1, **SIZES))
    released = nn.robertha(VOCABULARY.size, 3, num_layers=1, preset="released", **SIZES)
    own.save(folder / "own")
    causal, key = nn.load_pretrained(save_random(folder, "llama")), jax.random.key(0)
    noisy = jax.random.normal(key, (8, 3, 8))
    table, third = noisy[:, 0] + 1, jax.device_put(noisy[0, 0], jax.devices()[2])
    pinned = jax.jit(jnp.tanh, in_shardings=jax.NamedSharding(jax.make_mesh((1,), "x"), jax.P()))
    back = partial(jax.pure_callback, np.tanh, noisy[0, 0], vmap_method="expand_dims")
    options = {"shape": (8,), "rho": 0.5, "num_samples": 30, "batch_size": 20}
    measure = lambda fn: lambda: stability.noise_stability(fn, key, **options).mean  # noqa: E731
    return {
        "predict": lambda: own.predict(TEXTS * 3).probabilities,
        "outputs": partial(text_model.load_text_model(folder / "own").outputs, TEXTS * 3, "memory"),
        "recall": lambda: nn.recall(noisy, table, sigma=jnp.ones((8, 3))),
        "recall_text": lambda: nn.recall_text(causal, noisy, start=0, beam=2, num_candidates=5)[2],
        "noise_stability": measure(lambda x: jnp.tanh(table @ x)),
    }, {
        "predict released": lambda: classifier(released).predict(TEXTS * 3).probabilities,
        "recall of 7 texts": lambda: nn.recall(noisy[:7], table),
        **{str(fn): measure(fn) for fn in (lambda x: third * x, pinned, back)},
    }  # fmt: skip


def main(folder):
    """Checks the results of each call, and what its second call splits, copies and compiles."""
    placed, seen, put = [], [], jax.device_put
    jax.device_put = lambda *args: placed.append(put(*args)) or placed[-1]
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.append(event))
    for splits, part in zip((True, False), calls(Path(folder)), strict=True):
        for name, call in part.items():
            with jax.default_device(jax.devices()[0]):
                expected = np.asarray(call())
            call()
            copies, placed[:], seen[:] = {*checks._COPIES}, [], []
            np.testing.assert_allclose(call(), expected, rtol=1e-6, atol=1e-6, err_msg=name)
            shards = (x.sharding.shard_shape(x.shape) != x.shape for x in jax.tree.leaves(placed))
            compiled = any("jaxpr_to_mlir" in event for event in seen)
            assert (any(shards), copies, compiled) == (splits, {*checks._COPIES}, False), name


def test_four_devices_share_the_rows_and_keep_the_results_of_one(tmp_path):
    paths, four = map(str, Path(__file__).parents[:2]), "--xla_force_host_platform_device_count=4"
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {four}", "PYTHONPATH": os.pathsep.join(paths)}
    program = "import sys, test_devices; test_devices.main(sys.argv[1])"
    process = tiny.start(program, tmp_path, PJRT_NPROC="8", **flags)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def test_one_device_copies_nothing():
    rows, table = jnp.ones((4, 2)), jnp.ones(3)
    assert checks.share(rows, table)[0] is rows and checks.share(rows, table)[1] is table
