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
MODELS = {
    "robertha": tiny.hopfield(),
    "universal": universal_bert(tiny.VOCAB, 2, halting=True, num_steps=2, **SIZES),
}
METHODS = {
    "plain": lambda objective: objective,
    "freelb": partial(freelb, ball=Ball()),
    "pgd": partial(pgd, ball=Ball()),
    "augmented": partial(augmented, sigma=0.1),
}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("noise", [None, Noise("token", "matched", 0.5)])
def test_predictions(name, noise):
    model = MODELS[name]
    params = jax.tree.map(lambda leaf: leaf[None], tiny.lively(model))
    found = predict(make_predictor(model), params, tiny.buckets(3), noise=noise)
    assert found.logits.dtype == np.float32
    assert np.isfinite(found.logits).all()


@pytest.mark.parametrize(
    ("name", "method"), [("universal", "plain"), *(("robertha", method) for method in METHODS)]
)
def test_gradients(name, method):
    model = MODELS[name]
    objective = METHODS[method](classification(model, esr_weight=0.05))
    step = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, _), gradient = step(tiny.lively(model), tiny.batch(2), jax.random.key(0))
    assert {leaf.dtype for leaf in (loss, *jax.tree.leaves(gradient))} == {np.dtype("float32")}
