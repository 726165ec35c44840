"""A language model as prior: a small model's run, from texts to the page."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from nn.checkpoints import VOCAB, save_random

from experiments.memory import language
from experiments.report import write_results
from hopfax.nn import load_pretrained

IDS = np.array([[4, 7, 2, 9], [3, 3, 8, 5], [6, 1, 1, 12]])
START, SNR_DB = 5, 30.0


def test_methods_recover_texts_and_the_model_reads_them(tmp_path):
    model = load_pretrained(save_random(tmp_path, "llama"))
    budget = language.Budget(num_texts=3, num_draws=2, snr_db=(SNR_DB,), beam=3)
    training, protocols = [[*range(VOCAB)], [4, 7, 2]], ["clean", "matched", "per-token"]
    inputs = model, START, training, IDS, language.METHODS, budget, lambda share: None
    parts = [language.measure("mrpc", each, *inputs)["results"] for each in protocols]
    table = pd.concat(parts)
    recovered = table[table.metric == "recovered"]
    assert len(recovered) == len(language.METHODS) * 2 * budget.num_draws
    assert (recovered[["score", "low", "high"]] == 100).all(axis=None)

    whole = jnp.concatenate([jnp.full((3, 1), START), IDS[:, :-1]], axis=1)
    logits = model.forward(model.embed(whole), jnp.ones((3, 4), bool)).output
    own = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), IDS[..., None], 2)[..., 0]
    perplexity = table[table.metric == "perplexity"].set_index("model").score
    assert perplexity["clean"] == pytest.approx(np.exp(-own.mean()), rel=1e-4)
    assert perplexity["beam"].to_numpy() == pytest.approx(perplexity["clean"], rel=1e-4)
    frequencies = np.exp(language.pipeline.prior([*map(np.array, training)], VOCAB))
    mixed = np.log2((1 - language.MIXTURE) * np.exp(own) + language.MIXTURE * frequencies[IDS])
    bits = table[table.metric == "bits"].set_index("model").score
    assert bits["beam"] == pytest.approx(-mixed.mean(), rel=1e-4)

    write_results(tmp_path, table)
    page = language.page(tmp_path)
    assert len(page.tables[0].rows) == len(language.METHODS) * 2


def test_texts_that_were_seen_in_training_are_not_reported(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    for name, text in (
        ("train", "one\ntwo\n"),
        ("valid", "three\n"),
        ("test", "two\nfour\nfour\n"),
    ):
        (tmp_path / "wikitext-2" / f"wiki.{name}.tokens").write_text(text)
    assert language.texts_of("wikitext2", str(tmp_path)) == (["one", "two"], ["four"])


@pytest.mark.parametrize(
    ("family", "flags", "message"),
    [
        ("bert", {}, "must be a causal model"),
        ("llama", {"beam": 1}, "--beam must be at least 2"),
        ("llama", {"data_dir": None}, "are required"),
    ],
)
def test_bad_flags_are_errors(tmp_path, family, flags, message):
    folder = str(save_random(tmp_path, family))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(VOCAB - 4))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    flags = {"pretrained": folder, "data_dir": folder, "budget": "smoke", **flags}
    with pytest.raises(ValueError, match=message):
        language.run(language.Config(**flags))
