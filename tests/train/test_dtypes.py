"""Parameters decide the dtype: with x64 enabled, float32 models stay in float32."""

from functools import partial

import jax
import numpy as np
import pytest
import tiny

from hopfax.nn.models import universal_bert
from hopfax.train.adversarial import Ball, augmented, freelb, pgd
from hopfax.train.evaluate import Noise, make_predictor, predict
from hopfax.train.objectives import classification

SIZES = {name: size for name, size in tiny.SIZES.items() if name != "num_layers"}
UNIVERSAL = universal_bert(tiny.VOCAB, 2, halting=True, num_steps=2, **SIZES)
CASES = {
    "robertha": (tiny.hopfield(), lambda objective: objective),
    "universal": (UNIVERSAL, lambda objective: objective),
    "freelb": (tiny.bag(), partial(freelb, ball=Ball())),
    "pgd": (tiny.bag(), partial(pgd, ball=Ball())),
    "augmented": (tiny.bag(), partial(augmented, sigma=0.1)),
}


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("noise", [None, Noise("token", "matched", 0.5)])
def test_predictions(noise):
    model = CASES["robertha"][0]
    params = jax.tree.map(lambda leaf: leaf[None], tiny.lively(model))
    predicted = predict(make_predictor(model), params, tiny.buckets(3), noise=noise)
    assert predicted.logits.dtype == np.float32 and np.isfinite(predicted.logits).all()


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    model, method = CASES[case]
    objective = method(classification(model, esr_weight=0.05 * (case == "robertha")))
    step = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, _), gradient = step(tiny.lively(model), tiny.batch(2), jax.random.key(0))
    assert {leaf.dtype for leaf in (loss, *jax.tree.leaves(gradient))} == {np.dtype("float32")}
