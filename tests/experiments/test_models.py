"""Every model that an experiment can name: it can be built, and trained at all."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import pytest
from nn import checkpoints

from experiments.models import VARIANTS, build, variant, with_flags
from experiments.robertha.suites import Robustness
from experiments.runner import load
from experiments.settings import Data, Encoders
from hopfax.data import task
from hopfax.train.objectives import Batch

SIZES = {"width": 8, "ff_width": 16, "max_length": 8}
BATCH = Batch(
    jnp.array([[[2, 3, 4, 5]], [[2, 6, 0, 0]]]),
    jnp.array([[4], [2]]),
    jnp.array([0, 1]),
    jnp.ones(2),
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny random BERT with its vocabulary."""
    path = tmp_path_factory.mktemp("bert")
    checkpoints.save_random(path, "bert")
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnop")
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    return str(path)


def built(name, **flags):
    return build(variant(name, **flags), task("sst2"), vocab_size=9, **SIZES)


@pytest.mark.parametrize("name", [name for name, each in VARIANTS.items() if not each.loud])
def test_every_model_has_a_loss_and_gradients(name, folder):
    found = built(name, folder=folder)
    params = jax.eval_shape(found.model.init, jax.random.key(0))
    (loss, parts), _ = jax.eval_shape(
        jax.value_and_grad(found.objective, has_aux=True), params, BATCH, jax.random.key(0)
    )
    assert loss.shape == parts.task.shape == ()
    iterates = "robertha" in name and "no-iteration" not in name
    iterates = iterates or ("hopfield" in name and "hopfield-0" not in name)
    assert found.iterates == (iterates or name == "universal-halting")


def test_variants_have_their_penalties():
    assert built("robertha-no-esr-weight-decay").weight_decay == 0.1
    assert built("robertha").weight_decay == 0.01
    for name, has_esr in {"robertha": True, "robertha-no-esr": False}.items():
        model, objective, *_ = built(name)
        params = model.init(jax.random.key(0))
        loss, parts = jax.jit(objective)(params, BATCH, jax.random.key(0))
        assert (loss > parts.task) == has_esr


def test_adversarial_training_meets_a_larger_loss_than_clean_training():
    models = [("tinybert", {}), ("freelb", {}), ("pgd", {}), ("pgd", {"radius": 0.0125})]
    trained = [built(name, dropout=0.0, **flags) for name, flags in models]
    params = trained[0].model.init(jax.random.key(1))
    losses = [
        float(jax.jit(each.objective)(params, BATCH, jax.random.key(3))[0]) for each in trained
    ]
    assert losses == sorted(losses) and len(set(losses)) == 4


def test_noise_training_through_memory_sees_what_the_prior_leaves():
    def loss(name, batch, **options):
        sizes = {"vocab_size": 9, "dropout": 0.0, **SIZES, **options}
        return float(build(variant(name), task("sst2"), **sizes).objective(params, batch, key)[0])

    key, only = jax.random.key(3), jnp.where(jnp.arange(9) == 7, 0.0, -jnp.inf)
    params = built("tinybert").model.init(jax.random.key(1))
    sevens = BATCH._replace(ids=jnp.where(BATCH.ids > 0, 7, 0))
    remembered = loss("noise-through-memory", BATCH, log_prior=only)
    assert remembered == pytest.approx(loss("tinybert", sevens), rel=1e-5)
    assert remembered != pytest.approx(loss("noise-through-memory", BATCH), rel=1e-3)


def test_settings_name_what_trains_and_nothing_else():
    plain, renamed = variant("tinybert"), variant("tinybert", title="another")
    assert plain.settings() == renamed.settings()
    # Flags of Robertha and of adversarial training leave TinyBERT alone.
    flags = {"beta": 1.0, "max_steps": 3, "tol": 1e-2, "esr_weight": 1.0, "radius": 1.0}
    assert with_flags(plain, **flags, preset="paper").settings() == plain.settings()
    for name, value in flags.items():
        changed = variant("robertha-freelb", **{name: value})
        assert changed.settings() != variant("robertha-freelb").settings(), name
    # A flag does not change what a variant is.
    without = variant("robertha-no-iteration-no-esr", max_steps=9)
    assert without.options["max_steps"] == 0


def test_a_pretrained_encoder_is_its_weights_wherever_they_are(folder, tmp_path, monkeypatch):
    def settings(path):
        return variant("pretrained-hopfield", folder=str(path)).settings()

    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(folder, tmp_path / "copy")
    assert settings(folder) == settings(tmp_path / "copy") == settings("~/copy")
    assert folder not in str(settings(folder))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    assert settings(tmp_path / "other") != settings(folder)
    with pytest.raises(ValueError, match="set --pretrained"):
        variant("pretrained")


def test_a_run_with_a_pretrained_encoder_uses_its_tokenizer(folder):
    config = Robustness(encoder=Encoders(pretrained=folder), data=Data(task=("entailment",)))
    data = load(config, "entailment")
    assert data.vocabulary.size == 20
    both = dataclasses.replace(config, data=Data(vocab="vocab.txt"))
    with pytest.raises(ValueError, match="--vocab must be left out with --pretrained"):
        load(both, "entailment")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("robertha-beta-5", "options", {"beta": 5.0}),
        ("robertha-esr-target-0.5", "esr_target", 0.5),
        ("robertha-esr-weight-0", "esr_weight", 0.0),
        ("freelb-rate-1e-4", "fixed_rate", 1e-4),
    ],
)
def test_a_suffix_changes_one_thing_that_flags_leave_alone(name, field, value):
    flags = {"beta": 1.0, "esr_target": 0.1, "esr_weight": 0.9} if "robertha" in name else {}
    changed = variant(name, **flags)
    assert getattr(changed, field) == value and changed.paper is None
