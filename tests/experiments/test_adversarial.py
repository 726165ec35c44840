"""Evaluation sets: which fit a run, what is scored, and what is written."""

import base64
import json
import re

import pytest

from experiments.__main__ import main
from experiments.robertha import adversarial, adversarial_page
from experiments.robertha.paper import evaluation_score
from experiments.rundir import add_results, open_run, read_csv, read_results
from hopfax.data import Example, training_rows


@pytest.fixture(scope="module")
def trained(untrained_run, tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("robustness"), ("sentiment", "paraphrase"))


@pytest.fixture
def sets(tmp_path):
    """PAWS in its layout: four rows, three of them paraphrases; and AdvGLUE with two rows."""
    folder = tmp_path / "data" / "paws" / "labeled_final"
    folder.mkdir(parents=True)
    lines = [f"{n}\tone {n} two\ttwo {n} one\t{int(n > 0)}\n" for n in range(4)]
    (folder / "test.tsv").write_text("id\tsentence1\tsentence2\tlabel\n" + "".join(lines))
    rows = [{"idx": n, "sentence": f"a film {n}", "label": n} for n in range(2)]
    (tmp_path / "data" / "dev.json").write_text(json.dumps({"sst2": rows}))
    return tmp_path / "data"


def command(trained, root, data, *flags):
    line = ["adversarial", "--run", str(trained), "--runs", str(root), "--data-dir", str(data)]
    return main([*line, "--budget", "smoke", *flags])


def test_a_run_is_tested_on_the_sets_that_fit_its_tasks(trained, sets, tmp_path, capsys):
    assert command(trained, tmp_path / "runs", sets) == 0
    (folder,) = (tmp_path / "runs" / "adversarial").iterdir()
    assert "PAWS, trained on Paraphrase" in capsys.readouterr().out
    rows = read_csv(folder / "adversarial.csv", adversarial_page.COLUMNS)
    assert [(row["set"], row["trained_on"]) for row in rows] == [
        ("paraphrase", "paraphrase"),
        ("paws", "paraphrase"),
    ]
    assert rows[1]["rows"] == "4" and rows[1]["larger_class"] == "75.0"
    assert rows[1]["known_texts"] == "0" != rows[0]["known_texts"]
    scores = [row for row in read_results(folder) if row["metric"] == "score"]
    assert {(row["task"], row["seed"]) for row in scores} == {
        (name, seed) for name in ("paraphrase", "paws:paraphrase") for seed in ("23", "42")
    }
    assert all(float(row["score"]) in (0, 25, 50, 75, 100) for row in scores if ":" in row["task"])
    html = (folder / "report.html").read_text()
    image = base64.b64decode(re.findall(r"base64,([^\"]+)", html)[0])
    assert image == (folder / "adversarial.png").read_bytes()


def test_other_rows_under_the_same_parameters_are_tested(trained, sets, tmp_path, monkeypatch):
    assert command(trained, tmp_path, sets) == 0
    asked = []
    whole = adversarial.tested
    monkeypatch.setattr(adversarial, "tested", lambda *a: asked.append(a[3].name) or whole(*a))
    assert command(trained, tmp_path, sets) == 0 and not asked
    path = sets / "paws" / "labeled_final" / "test.tsv"
    path.write_text(path.read_text().replace("one 2 two", "one 2 and two"))
    assert command(trained, tmp_path, sets) == 0 and asked == ["paraphrase", "paws:paraphrase"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--sets", "adv-rte"), "test a model of rte"),
        (("--sets", "paws-x-de"), "no test file of PAWS-X-de"),
        (("--sets", "pawz"), "did you mean paws"),
        (("--sets", "paws", "paws"), "--sets wants one or more different"),
        (("--task", "sentiment"), "no evaluation set fits the tasks sentiment"),
        (("--model", "robertha"), "--model tinybert"),
    ],
)
def test_a_wrong_flag_is_one_clear_error(trained, sets, tmp_path, capsys, flags, told):
    assert command(trained, tmp_path / "runs", sets, *flags) == 1
    assert told in capsys.readouterr().err


def test_without_a_folder_no_set_is_looked_for(trained, sets, tmp_path, monkeypatch, capsys):
    """Not in the folder that the command is given in, be there what may."""
    monkeypatch.chdir(sets)
    line = ["adversarial", "--run", str(trained), "--runs", str(tmp_path), "--budget", "smoke"]
    assert main(line) == 1
    assert "--data-dir, which is not given" in capsys.readouterr().err
    assert main([*line, "--sets", "paws"]) == 1
    assert "say in which folder by --data-dir" in capsys.readouterr().err


def test_the_larger_class_is_a_share_of_the_rows():
    rows = [Example((("a",),), label, n) for n, label in enumerate((0, 2, 2, 1, 2))]
    assert adversarial.larger_class(rows) == pytest.approx(60)


def test_rows_with_a_text_of_the_training_file_are_counted():
    trained_on = training_rows("paraphrase")
    assert len(trained_on) == 2000 + 400, "with those held out for validation"
    known, other = trained_on[-1].texts[0]
    new = [(("something new", known),), ((other, "something new"),), (("a", "b"),)]
    rows = [Example(texts, 0, number) for number, texts in enumerate(new)]
    trials = {"paraphrase": [adversarial.Trial("new", rows), adversarial.Trial("last", rows[2:])]}
    assert adversarial.known_texts(trials, None) == {"new": 2, "last": 0}


def write_run(fake, root):
    models, trials = ("tinybert", "robertha"), ("sst2", "adv-sst2:sst2")
    plan = {"tasks": trials, "models": models, "seeds": (23, 42)}
    plan |= {"classes": dict.fromkeys(trials, 51.0), "rows": dict.fromkeys(trials, 148)}
    folder = open_run("adversarial", {}, plan=plan, root=root)
    add_results(folder, fake.fake_rows(trials, models, (23, 42), levels=()))
    return folder


def test_the_table_stands_beside_the_papers(fake, tmp_path):
    folder = write_run(fake, tmp_path)
    lines = adversarial_page.write_page(folder)
    assert [line[0] for line in lines] == ["set", "SST-2, its test split", "AdvSST-2"]
    paper = evaluation_score("AdvSST-2", "robertha")
    assert paper is not None and (paper.mean, paper.std) == (48.4, 2.2)
    assert "paper 48.4" in lines[2][-1] and "paper" not in lines[1][-1] + lines[2][-2]
    assert len(read_csv(folder / "adversarial.csv")) == 4


def test_a_part_of_a_set_is_named_so(fake, tmp_path):
    folder = write_run(fake, tmp_path)
    add_results(folder, [row | {"num_train": "1000"} for row in read_results(folder)])
    assert [line[0] for line in adversarial_page.write_page(folder)[1:]] == [
        "SST-2 (partial, 1,000 training rows), its test split",
        "AdvSST-2, trained on SST-2 (partial, 1,000 training rows)",
    ]


def test_paws_of_another_task_than_the_papers_has_no_figure_of_it(fake, tmp_path):
    plan = {"tasks": ("paws:mrpc", "paws:qqp"), "models": ("robertha",), "seeds": (23, 42)}
    plan |= {name: dict.fromkeys(plan["tasks"], 51) for name in ("classes", "rows")}
    folder = open_run("adversarial", {}, plan=plan, root=tmp_path)
    add_results(folder, fake.fake_rows(plan["tasks"], ("robertha",), (23, 42), levels=()))
    adversarial_page.write_page(folder)
    papers = {row["trained_on"]: row["paper"] for row in read_csv(folder / "adversarial.csv")}
    assert papers == {"mrpc": "", "qqp": "49.3"}


def test_real_sets_have_their_rows(trained, shared):
    source = adversarial.read_run(str(trained), data_dir=str(shared / "data"))
    found = adversarial.trials_of(source, "paraphrase", None, None)
    assert [(trial.name, len(trial.rows)) for trial in found[:2]] == [
        ("paraphrase", 500),
        ("paws:paraphrase", 8000),
    ]
