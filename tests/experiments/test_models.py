"""Every model that an experiment can name: it can be built, and trained at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.robertha.models import (
    AUGMENTED_SIGMA,
    MODELS,
    SCRATCH_BALL,
    VARIANTS,
    ball_of,
    perturbations,
    trainable,
    with_entropy,
)
from experiments.robertha.paper import PAPER_MODELS, paper_average
from hopfax.data import task
from hopfax.nn.encoder import Perturbation
from hopfax.train.objectives import Batch, texts_of

SIZES = {"width": 8, "ff_width": 16, "max_length": 8}
BATCH = Batch(
    jnp.array([[[2, 3, 4, 5]], [[2, 6, 0, 0]]]),
    jnp.array([[4], [2]]),
    jnp.array([0, 1]),
    jnp.ones(2),
)


def built(name, **options):
    return trainable(name, task("sst2"), vocab_size=9, **SIZES | options)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_loss_with_a_gradient_for_each_parameter(name):
    found = built(name)
    params = jax.eval_shape(found.model.init, jax.random.key(0))
    (loss, parts), gradient = jax.eval_shape(
        jax.value_and_grad(found.objective, has_aux=True), params, BATCH, jax.random.key(0)
    )
    assert loss.shape == parts.task.shape == ()
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)
    iterates = "robertha" in name and "no-iteration" not in name
    assert found.iterates == (iterates or name == "universal-halting")


def test_what_sets_a_variant_apart_is_there():
    assert built("robertha-no-esr-weight-decay").weight_decay == 0.1
    assert built("robertha").weight_decay == 0.01
    assert with_entropy("robertha", "renyi2") == "robertha-renyi2"
    assert with_entropy("tinybert", "renyi2") == "tinybert"
    assert {each.paper for each in VARIANTS.values()} >= {"FreeLB", "DataAugment"}
    # What the paper lists under a name it lists under ours.
    for name in PAPER_MODELS:
        assert paper_average("glue", [""] * 9, name, 0.5) is not None, name


def test_unit_scale_is_the_same_function_and_sees_less_of_token_noise():
    plain, scaled = built("tinybert"), built("tinybert-unit-scale")
    params = plain.model.init(jax.random.key(1))
    ids, mask = texts_of(BATCH)

    @jax.jit
    def logits(added):
        noise = Perturbation(token=added)
        found = [each.model.bind(params)(ids, mask, added=noise) for each in (plain, scaled)]
        return [each.logits for each in found]

    clean = logits(jnp.zeros((2, 4, 8)))
    # A variance of 0.02^2 is not quite out of LayerNorm's epsilon's reach.
    np.testing.assert_allclose(*clean, atol=5e-3)
    noisy = logits(0.1 * jax.random.normal(jax.random.key(2), (2, 4, 8)))
    moved = [np.abs(a - b).max() for a, b in zip(noisy, clean, strict=True)]
    assert moved[1] < 0.2 * moved[0]


def test_adversarial_training_meets_a_larger_loss_than_clean_training():
    plain, freelb, pgd = (built(name, dropout=0.0) for name in ("tinybert", "freelb", "pgd"))
    params = plain.model.init(jax.random.key(1))
    losses = [
        float(jax.jit(each.objective)(params, BATCH, jax.random.key(3))[0])
        for each in (plain, freelb, pgd)
    ]
    assert SCRATCH_BALL.initial_norm < SCRATCH_BALL.max_norm
    assert losses[0] < losses[1] < losses[2]


def test_a_larger_ball_is_a_larger_loss_and_another_run():
    wide = ball_of(4 * SCRATCH_BALL.max_norm)
    assert wide == SCRATCH_BALL._replace(max_norm=0.0125, step_size=0.005, initial_norm=0.0075)
    assert ball_of(SCRATCH_BALL.max_norm) == SCRATCH_BALL
    near, far = (built("freelb", dropout=0.0, ball=each) for each in (SCRATCH_BALL, wide))
    params = near.model.init(jax.random.key(1))
    key = jax.random.key(3)
    losses = [float(jax.jit(each.objective)(params, BATCH, key)[0]) for each in (near, far)]
    assert losses[0] < losses[1]


def test_what_training_meets_is_part_of_a_runs_id():
    assert perturbations(["tinybert", "robertha"], VARIANTS) == {}
    assert perturbations(["tinybert", "robertha-freelb"], VARIANTS) == {"ball": SCRATCH_BALL}
    wide = ball_of(4 * SCRATCH_BALL.max_norm)
    assert perturbations(["freelb"], VARIANTS, wide) == {"ball": wide}
    assert perturbations(["data-augment"], VARIANTS) == {"augmented_sigma": AUGMENTED_SIGMA}
