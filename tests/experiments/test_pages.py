import importlib
import re
import shlex

import pandas as pd
import pytest
import tyro

from experiments import tidy
from experiments.__main__ import EXPERIMENTS
from experiments.pages import __main__ as pages
from experiments.pages import values
from experiments.paper import paper_score

TEXTS = {name: (pages.RESULTS / f"{name}.md").read_text() for name in pages.pages()}
COMMANDS = sorted(
    line
    for text in TEXTS.values()
    for line in re.findall(r"(?:`|^)(python -m experiments [^`\n#]+)", text, re.MULTILINE)
)


@pytest.mark.parametrize("page", TEXTS)
def test_the_page_is_what_its_template_and_the_data_give(page):
    assert pages.render(page) == TEXTS[page]


@pytest.mark.parametrize("page", TEXTS)
def test_links_resolve(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXTS[page])
    local = [each for each in targets if not each.startswith("http")]
    assert not [each for each in local if not (pages.RESULTS / each).exists()]


def test_the_first_page_quotes_the_results():
    first = (pages.RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    _, _, found = first.partition("## What we found")
    found = re.sub(r"https?://\S+", "", found.partition("## ")[0])
    quoted = re.findall(r"[+−][\d.]+ \[[^\]]+\]|\d+\.\d+", found)
    assert len(quoted) >= 4
    assert all(any(each in text for text in TEXTS.values()) for each in quoted)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_parses(line):
    _, _, _, name, *flags = shlex.split(line)
    module, _, suite = EXPERIMENTS[name].partition(":")
    kind = getattr(importlib.import_module(module), suite or "Config")
    tyro.cli(kind, args=flags, config=(tyro.conf.OmitArgPrefixes,))


def paper_lead(title, ours, theirs, sigma):
    return round(paper_score(title, ours, sigma) - paper_score(title, theirs, sigma), 1)


def test_claims_have_the_papers_differences():
    table = values.claims()
    leads = tidy.select(table, claim="lead").set_index("subject").paper
    assert leads.to_dict() == {task: paper_lead(task, "robertha", "tinybert", 0.5)
                               for task in leads.index}  # fmt: skip
    pairs = {
        "iteration": ("robertha-no-esr", "robertha-no-iteration-no-esr"),
        "iteration + ESR": ("robertha", "robertha-no-iteration-no-esr"),
        "ESR": ("robertha", "robertha-no-esr"),
    }
    for claim, pair in pairs.items():
        for snr_db, sigma in ((6, 0.5), (0, 1.0), (-6, 2.0)):
            found = tidy.select(table, group="part", claim=claim, snr_db=snr_db).paper
            assert {*found} == {paper_lead("glue", *pair, sigma)}


def test_a_lead_has_the_verdict_of_its_interval_and_none_where_nothing_was_learned():
    lead = values.lead("robustness", "sst2", "robertha", "tinybert", snr_db=6, paper=24.9)
    assert lead.verdict == "not found" and lead.low < 0 < lead.high
    lead = values.lead("robustness", "qnli", "robertha", "tinybert", snr_db=6, paper=8.7)
    assert lead.verdict == "not learned" and not lead.bold


def test_a_claim_without_a_run_or_a_model_is_untested():
    for run, model in (("table5", "robertha-base"), ("sst2", "robertha-base")):
        lead = values.lead("robustness", run, model, "tinybert-tiny", paper=4.3, sigma=2.0)
        assert lead.verdict == "untested" and not lead.bold and tidy.clear(lead.to_frame().T) == 0


def test_an_average_is_the_mean_over_the_tasks_of_glue():
    table = pd.read_csv(pages.RESULTS / "data" / "robustness.csv")
    table = table[(table.metric == "score") & (table.model == "robertha")]
    clean = table[table.corruption == "none"]
    pairs = zip(clean.task, clean.run, strict=True)
    clean = clean[[values.GLUE.get(task) == run for task, run in pairs]]
    means = clean.groupby("task").score.mean()
    assert values.glue("robertha") == pytest.approx(means.mean()) and len(means) == 9


def test_the_kept_snr_is_the_lowest_before_the_first_loss():
    kept = values.kept("memory-trained", "minilm_sst2_full", "pretrained")
    assert kept == pytest.approx(2, abs=0.01)
    assert values.snr(values.kept("memory-trained", "minilm_cola", "pretrained")) == "–"
