"""The suites of models: which models are trained, and what they are tested under.

A suite is the dataclass of its flags: its defaults are the models and conditions, its docstring is
the help. `python -m experiments NAME` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from experiments.models import SIZES
from experiments.robertha.contrasts import CHANGES, Contrast, by_size
from experiments.settings import (
    Corruption,
    Data,
    DenoiserName,
    Flags,
    Noise,
    Training,
    by_budget,
    optional,
    resolved,
)

if TYPE_CHECKING:
    from experiments.cells import Cell
    from experiments.conditions import Condition
    from experiments.report import Page

PARTS = (
    "pretrained", "pretrained-esr", "pretrained-hopfield-1", "pretrained-hopfield-1-esr",
)  # fmt: skip
# From +6 to -14 dB, and from +6 to -20 dB.
FINE_TUNED = Noise(
    levels=(0.5, 1.0, 2.0, 3.0, 5.0),
    sites=("token",),
    protocols=("matched", "per-token"),
    noise_draws=1,
)
EVERY_2_DB = replace(
    FINE_TUNED, levels=tuple(float(f"{10 ** (-db / 20):.4g}") for db in range(6, -21, -2))
)
TYPOS = {
    "laptop": {"rates": (0.1, 0.2, 0.3), "texts": 200},
    "smoke": {"rates": (0.1,), "texts": 4},
    "paper": {"rates": (0.1, 0.2, 0.3), "texts": None},
}
SWEEP = (
    *(f"robertha-esr-target-{value:g}" for value in (0.1, 0.2, 0.5, 0.7, 5, 50)),
    *(f"robertha-esr-weight-{value:g}" for value in (0, 0.01, 0.1, 0.2, 1)),
    *(f"robertha-beta-{value}" for value in (1, 5, 10, 20, 30, 50, 100)),
)


@dataclass(frozen=True, kw_only=True)
class Suite(Flags):
    """Models, trained on every task, and tested under every condition with every denoiser."""

    NAME: ClassVar[str]
    REPRODUCES: ClassVar[str]
    SMOKE: ClassVar[tuple[str, ...]] = ()  # models of a smoke run, in place of the default
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # for each budget, by flag
    CONTRASTS: ClassVar[Sequence[Contrast]] = ()  # shown in place of differences from one model

    model: tuple[str, ...] = ("tinybert", "robertha")
    """Models. From scratch: tinybert, tinybert-mean, tinybert-unit-scale, tinybert-mean-prenorm,
    tinybert-mean-prenorm-dropout, freelb, pgd, data-augment, noise-trained, noise-through-memory,
    universal, universal-halting, robertha, robertha-paper, robertha-algorithm, robertha-released,
    robertha-renyi2, robertha-no-esr, robertha-no-esr-dropout, robertha-no-esr-weight-decay,
    robertha-no-iteration-no-esr, robertha-no-output-projection, robertha-freelb. Of a folder:
    pretrained, pretrained-loud, pretrained-esr, pretrained-noise-trained,
    pretrained-noise-through-memory, pretrained-freelb, and with queries updated once
    (pretrained-hopfield-1), to convergence (pretrained-hopfield) or not at all
    (pretrained-hopfield-0), with ESR too (pretrained-hopfield-1-esr, pretrained-hopfield-esr). A
    suffix changes one thing: the size (-tiny, -mini, -small, -medium, -base), -beta-5,
    -esr-target-0.5, -esr-weight-1 or the learning rate, -rate-1e-4."""
    denoiser: tuple[DenoiserName, ...] = ("none",)
    """What replaces the noisy token embeddings in the test: nothing (none), the posterior mean over
    the vocabulary (memory), its nearest embedding (nearest) or a Wiener filter (linear)."""

    def names(self) -> Sequence[str]:
        """Models to train."""
        few = self.SMOKE if self.budget == "smoke" else ()
        return few if few and self.model == type(self).model else self.model

    def conditions(self, task: str) -> Sequence[Condition]:
        """What to test under."""
        raise NotImplementedError

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Returns the rows of results.csv of a trained model under a condition."""
        from experiments import conditions

        return conditions.rows(cell, condition, model=model)

    def page(self, folder: Path) -> Page:
        """Returns the page of a run."""
        from experiments import gaussian
        from experiments.robertha import contrasts

        return contrasts.page(folder, self.CONTRASTS) if self.CONTRASTS else gaussian.page(folder)

    def run(self) -> Path:
        """Trains and tests what is missing, then writes the page; returns the run's folder."""
        from experiments import runner

        config = resolved(self, self.DEFAULTS)
        models = config.encoder.models(config.names())
        trials = [
            runner.Trial(task, name, model, config.conditions(task), config.denoiser)
            for task in config.data.task
            for name, model in models.items()
        ]
        jobs = runner.jobs(config, trials, partial(runner.measure, rows=config.rows))
        return runner.fill(self.NAME, config, jobs, self.page, plan={"models": [*models]})


@dataclass(frozen=True, kw_only=True)
class Noisy(Suite):
    """Models tested under Gaussian noise on their embeddings."""

    noise: Noise = Noise()

    def conditions(self, task: str) -> Sequence[Condition]:
        """Clean inputs, then noise at every site and level, by every protocol."""
        from experiments.conditions import gaussian_grid

        return gaussian_grid(**asdict(self.noise))


@dataclass(frozen=True, kw_only=True)
class Robustness(Noisy):
    """Does Robertha withstand noise that breaks TinyBERT, at the same site and the same SNR?

    Paper: Podasca and Das (2026), Tables 2, 3, 6 to 10 and 13. Claim: under Gaussian noise on the
    embeddings a two-layer Robertha loses a few points where a TinyBERT falls to chance (GLUE
    average at σ = 0.5: 62 against 50); so does a Universal Transformer (Table 13).

    Command: `python -m experiments robustness` (a synthetic task, five minutes on two cores), or
    `python -m experiments robustness --task sst2 --data-dir DIR --vocab DIR/vocab.txt`.

    Expected: with noise at the same site and SNR there is no gap of the paper's size.
    """

    NAME = "robustness"
    REPRODUCES = "Robertha, Tables 2, 3, 6-10, 13: scores under Gaussian embedding noise"

    denoiser: tuple[DenoiserName, ...] = ("none", "memory")


@dataclass(frozen=True, kw_only=True)
class Attribution(Noisy):
    """Which change from TinyBERT to Robertha adds how many points under noise?

    Paper: Podasca and Das (2026), Tables 2 and 3. Claim: iteration and ESR make the difference of
    some 11 points between TinyBERT and Robertha at σ = 0.5 (GLUE average).

    Command: `python -m experiments attribution --task cola --data-dir DIR --vocab DIR/vocab.txt`,
    or without flags on the embedded tasks. Models that `robustness` has trained with the same flags
    are not trained again.

    Expected: at the same σ the site of the noise makes most of the difference, and at the same SNR
    no step has a detectable effect.

    Each step changes one thing, except the Hopfield step: it also leaves out TinyBERT's dropout of
    attention weights and raises the LayerNorm's ε from 1e-12 to 1e-5.
    """

    NAME = "attribution"
    REPRODUCES = "Robertha, Tables 2 and 3: the steps from TinyBERT to Robertha, one at a time"
    SMOKE = ("tinybert", "tinybert-mean")
    CONTRASTS = CHANGES

    model: tuple[str, ...] = tuple(
        dict.fromkeys(name for each in CHANGES for name in (each.before, each.model))
    )


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(Noisy):
    """Does Robertha's score under noise depend on ESR's target and weight, and on β?

    Paper: Podasca and Das (2026), Tables 21 to 26, Figures 9 and 10. Claim: the score hardly
    depends on the target α, the weight λ and the inverse temperature β within wide ranges around
    0.35, 0.05 and 15; without ESR, or with a large weight, strong noise costs MRPC about 5 points
    more.

    Command: `python -m experiments hyperparameters` (19 Robertha models on a synthetic task), or
    the paper's tasks: `--task mrpc boolq --data-dir DIR --vocab DIR/vocab.txt`. On an encoder that
    learns them: `--pretrained FOLDER --model pretrained-esr pretrained-esr-esr-target-5 ...`.

    Expected: no more intervals that exclude zero than chance predicts.

    One parameter changes at a time. At targets above 1, ESR only raises the entropy. With models
    that change both, such as robertha-esr-weight-1-esr-target-5, the page plots scores by both.
    """

    NAME = "hyperparameters"
    REPRODUCES = "Robertha, Tables 21-26, Figures 9, 10: ESR's target and weight, and β"
    SMOKE = ("robertha", "robertha-esr-target-0.1")

    model: tuple[str, ...] = ("robertha", *SWEEP)

    def page(self, folder: Path) -> Page:
        """Adds scores by ESR's weight and target."""
        from experiments.robertha import contrasts

        return contrasts.sweep(folder, self.encoder.models(self.names()))


@dataclass(frozen=True, kw_only=True)
class Scaling(Noisy):
    """Does Robertha's lead under noise persist at larger sizes, up to BERT-base?

    Paper: Podasca and Das (2026), Table 5. Claim: at σ = 2 Robertha-large, of BERT-base's 110
    million parameters, is 4 to 46 points above BERT-base on CoLA, MRPC, WNLI and BoolQ.

    Command: `python -m experiments scaling` (two small sizes on an embedded task), or Table 5 on a
    GPU: `python -m experiments scaling --budget paper --model tinybert-base robertha-base --task
    cola mrpc wnli boolq --data-dir DIR --vocab DIR/vocab.txt`.

    Expected: no gap at small sizes with noise at the same site; the large ones have not been
    measured.

    Sizes are those of Google's BERT miniatures (Turc et al. 2019): tiny has 2 layers of width 128,
    mini 4 of 256, small 4 of 512, medium 8 of 512, base 12 of 768.
    """

    NAME = "scaling"
    REPRODUCES = "Robertha, Table 5: BERT-base against Robertha-large at σ = 2, and smaller sizes"
    SMOKE = ("tinybert-smallest", "robertha-smallest")
    CONTRASTS = by_size(SIZES)

    model: tuple[str, ...] = ("tinybert-tiny", "robertha-tiny", "tinybert-mini", "robertha-mini")
    noise: Noise = Noise(levels=(2.0,))


@dataclass(frozen=True, kw_only=True)
class FineTuning(Noisy):
    """Do iterative Hopfield attention and ESR make a pretrained encoder robust?

    Paper: Podasca and Das (2026), Tables 2 and 3. Claim: with iteration and ESR an encoder keeps
    its score under Gaussian noise on its embeddings. There all models are trained from scratch, and
    most tasks stay close to the majority baseline; a pretrained encoder learns them.

    Command: `python -m experiments fine-tuning --pretrained FOLDER --task cola --data-dir DIR`.

    Expected: iterating the loaded attention to convergence lowers the clean score, by 35 points on
    STS-B and 22 on SST-2, and gains nothing under noise. One update costs up to three points; ESR
    has no detectable effect.

    All models start from the folder's weights with mean pooling. Hopfield attention replaces each
    query by T updates over the layer's own keys, at the inverse temperature of the loaded
    attention, before it reads the values. It has no dropout of attention weights;
    pretrained-hopfield-0 leaves only that out. Learning rates are each model's best on validation
    rows of MRPC; set --learning-rate to compare all models at one.
    """

    NAME = "fine-tuning"
    REPRODUCES = "Robertha, Tables 2 and 3, on a pretrained encoder, with its own tokenizer"

    model: tuple[str, ...] = PARTS
    training: Training = Training(epochs=3, patience=3)
    noise: Noise = FINE_TUNED


@dataclass(frozen=True, kw_only=True)
class MemoryTrained(Noisy):
    """Does retrieval from the vocabulary beat training with noise, and Robertha, at equal noise?

    Claim of Podasca and Das (2026): iterative Hopfield attention and ESR remove noise from
    embeddings. Memory replaces noisy token embeddings by their posterior means, given the
    vocabulary (`hopfax.nn.with_memory`). Models noise-trained are trained with noise, at
    signal-to-noise ratios drawn uniformly from -16 to 0 dB for each text.

    Commands: `python -m experiments memory-trained --task sst2 --data-dir DIR --epochs 1` (from
    scratch), and for a pretrained encoder `--pretrained FOLDER --model pretrained
    pretrained-noise-trained --train-size 12000 --epochs 3 --learning-rate 1e-4`.
    noise-through-memory and pretrained-noise-through-memory are trained with the same noise, which
    memory removes before the encoder reads it.

    Expected: memory keeps the clean score of MiniLM down to −8 or −10 dB, 4 to 6 dB above the
    Shannon limit. With memory, training with noise adds little to small models, and costs a
    pretrained encoder points above −14 dB.

    No model knows the noise level. The prior of a token is its frequency in the training texts.
    """

    NAME = "memory-trained"
    REPRODUCES = "Robertha's claim of denoising, with the vocabulary as memory, on trained models"

    model: tuple[str, ...] = ("tinybert", "noise-trained", "robertha")
    denoiser: tuple[DenoiserName, ...] = ("none", "memory")
    noise: Noise = EVERY_2_DB


@dataclass(frozen=True, kw_only=True)
class Typos(Suite):
    """How much do typos and character-level attacks cost encoders trained on clean text?

    Paper: Podasca and Das (2026), Table 12. Claim: Robertha withstands misspellings, swapped
    letters, TextBugger and HotFlip in 10, 20 and 30 % of the words; in the table it is below FreeLB
    on GLUE throughout (average with 10 % misspelled: 58.4 against 62.8).

    Command: `python -m experiments typos --task sst2 --data-dir DIR`, with the flags of the
    `robustness` run whose models to test; they are not trained again.

    Expected: random typos cost little, attacks cost much, and differences between models are
    smaller than those between seeds.

    Random typos are the same for all models and seeds. An attack uses the losses (TextBugger) or
    the gradients (HotFlip) of each seed's model and is scored on that model. Every text has at
    least one word to change, so short texts exceed the requested rate.
    """

    NAME = "typos"
    REPRODUCES = "Robertha, Table 12: scores under misspelling, char swap, TextBugger and HotFlip"
    SMOKE = ("tinybert",)
    DEFAULTS = TYPOS

    corruption: tuple[Corruption, ...] = get_args(Corruption)
    """Corruptions of the test texts."""
    rates: Annotated[tuple[float, ...] | None, by_budget("rates", "FLOAT ...", TYPOS)] = None
    """Shares of words to change, in (0, 1]; clean texts are always tested."""
    texts: Annotated[int | None, by_budget("texts", "INT", TYPOS)] = None
    """Texts drawn from each test split."""
    form: Literal["characters", "tokens"] = "characters"
    """Units that HotFlip replaces."""

    def conditions(self, task: str) -> Sequence[Condition]:
        """Clean texts, then every corruption at every rate."""
        from experiments import conditions

        beam = {"smoke": 1, "laptop": 2, "paper": 3}[self.budget]
        options: Any = {"num_texts": self.texts, "beam": beam, "form": self.form}
        typos = partial(conditions.Typos, data_dir=self.data.data_dir, **options)
        pairs = product(self.corruption, self.rates or ())
        return [typos(), *(typos(corruption=kind, rate=rate) for kind, rate in pairs)]


@dataclass(frozen=True, kw_only=True)
class Adversarial(Suite):
    """Is Robertha more accurate on adversarial test sets: AdvGLUE, PAWS and PAWS-X?

    Paper: Podasca and Das (2026), Table 11. Claim: without adversarial training, Robertha leads
    DataAugment and FreeLB on eight of nine sets; in the table on seven (AdvSST-2 48.4 against 39.6
    and 39.7).

    Command: `python -m experiments adversarial --task sst2 --data-dir DIR`, with the flags of the
    `robustness` run whose models to test (sst2, rte, mrpc, qqp, qnli or mnli); they are not trained
    again.

    Expected: accuracies at or below the majority baseline; on sets of 78 to 162 rows only
    differences above eight points are detectable.

    Each set tests models of the task it was derived from; PAWS and PAWS-X, models of QQP or MRPC.
    The paper trains on these and reports F1. No set is used for model selection.
    """

    NAME = "adversarial"
    REPRODUCES = "Robertha, Table 11: accuracy on AdvGLUE; on PAWS and PAWS-X, of models of QQP"

    data: Data = Data(task=("sst2",))
    sets: Annotated[
        tuple[str, ...] | None, optional("STR ...", "all in --data-dir for the task")
    ] = None
    """Evaluation sets: adv-sst2, adv-qqp, adv-mnli, adv-mnli-mm, adv-qnli, adv-rte, paws, paws-x-de
    and so on."""

    def conditions(self, task: str) -> Sequence[Condition]:
        """The task's own test rows, then the sets."""
        from experiments.conditions import evaluation_sets

        size = self.data.test_size
        return evaluation_sets(task, names=self.sets, data_dir=self.data.data_dir, num_rows=size)


def written(rate: float) -> str:
    """Returns a rate in scientific notation, such as 5e-5."""
    short = f"{rate:.0e}".replace("e-0", "e-")
    return short if float(short) == rate else repr(rate)


@dataclass(frozen=True, kw_only=True)
class LearningRates(Suite):
    """Which learning rate suits each fine-tuned encoder?

    Paper: Podasca and Das (2026), Table 15, one rate for all models. A comparison at a rate that
    suits only one of its models is unfair, so each model gets the same search.

    Command: `python -m experiments learning-rates --pretrained FOLDER --task mrpc --data-dir DIR`.

    Every model is trained at every rate and scored on the validation rows; test rows are not read.
    The best rates on MRPC are the defaults of pretrained models.
    """

    NAME = "learning-rates"
    REPRODUCES = "Robertha, Table 15: learning rates of pretrained encoders"

    model: tuple[str, ...] = (
        *PARTS, "pretrained-hopfield", "pretrained-hopfield-esr", "pretrained-noise-trained",
        "pretrained-freelb",
    )  # fmt: skip
    training: Training = Training(epochs=3, patience=3)
    learning_rates: tuple[float, ...] = (2e-5, 5e-5, 1e-4, 3e-4)
    """Peak learning rates, which replace --learning-rate."""

    def names(self) -> Sequence[str]:
        """Every model at every rate."""
        names = product(super().names(), self.learning_rates)
        return [f"{name}-rate-{written(rate)}" for name, rate in names]

    def conditions(self, task: str) -> Sequence[Condition]:
        """The validation rows."""
        from experiments.conditions import Validation

        return [Validation()]


SUITES = {
    each.NAME: each
    for each in (
        Robustness, Attribution, Hyperparameters, Scaling, Typos, Adversarial, FineTuning,
        LearningRates, MemoryTrained,
    )
}  # fmt: skip
