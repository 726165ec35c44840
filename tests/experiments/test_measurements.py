import pytest

from experiments import rundir
from experiments.robertha.measurements import Cell, load, measurements, missing
from experiments.robertha.subjects import featured, finished_tasks, snr_range, with_averages


def as_read(rows):
    return [{name: rundir.as_text(value) for name, value in row.items()} for row in rows]


def test_draws_are_averaged_within_their_seed(fake):
    rows = fake.fake_rows(tasks=("sst2",), models=("tinybert",), seeds=(23,), levels=(0.5,))
    found = measurements(as_read(rows))
    cell = Cell("sst2", "tinybert", "token", "sigma", 0.5)
    wanted = [
        row["score"]
        for row in rows
        if (row["site"], row["protocol"], row["metric"]) == ("token", "sigma", "score")
    ]
    assert len(wanted) == 3 and found.num_draws == 3
    assert found.scores[cell] == {23: pytest.approx(sum(wanted) / 3)}
    assert found.snr_db[cell] == pytest.approx(-28, abs=0.2)


def test_the_clean_score_answers_for_every_site(fake):
    found = measurements(as_read(fake.fake_rows(tasks=("sst2",), seeds=(23, 42))))
    clean = found.at("sst2", "robertha", "token", "sigma", 0)
    assert set(clean) == {23, 42}
    assert clean == found.at("sst2", "robertha", "embedding", "matched", 0.0)
    assert found.at("sst2", "robertha", "token", "sigma", 0.25) == {}


def test_the_grid_is_read_off_the_rows_in_a_fixed_order(fake):
    rows = as_read(fake.fake_rows(tasks=("sst2", "cola")))
    grid = measurements(rows[::-1]).grid
    assert grid.tasks == ("cola", "sst2")
    assert grid.models == fake.MODELS and grid.seeds == fake.SEEDS and grid.levels == fake.LEVELS
    assert grid.groups[0] == ("token", "sigma") and grid.groups[1] == ("embedding", "sigma")


def test_an_empty_file_is_an_empty_grid():
    found = measurements([])
    assert found.scores == {} and found.grid.tasks == () and missing(found) == []


def test_a_score_that_is_no_number_is_named(fake):
    rows = as_read(fake.fake_rows(tasks=("sst2",), models=("tinybert",), seeds=(23,)))
    rows[0]["score"] = "nan"
    with pytest.raises(ValueError, match="score is 'nan', not a number, for sst2, tinybert"):
        measurements(rows)


def test_what_is_missing_is_told_by_task_model_and_seed(fake):
    plan = {"tasks": ["sst2", "cola"], "seeds": [23, 42], "levels": [0, 0.5, 1.0]}
    rows = fake.fake_rows(
        tasks=("sst2",), models=("tinybert", "robertha"), seeds=(23, 42), levels=(0.5, 1.0)
    )
    cut = [row for row in rows if (row["model"], row["seed"]) != ("robertha", 42)]
    assert missing(measurements(as_read(rows), plan)) == [
        "CoLA: TinyBERT (seed 23, 42), Robertha (seed 23, 42)"
    ]
    assert missing(measurements(as_read(cut), plan))[0] == "SST-2: Robertha (seed 42)"
    one_cell = [row for row in rows if (row["level"], row["site"]) != (1.0, "token")]
    assert "SST-2" in missing(measurements(as_read(one_cell), plan))[0]


def test_averages_cover_the_tasks_every_model_finished(fake):
    rows = fake.fake_rows(tasks=("cola", "sst2", "rte"))
    cut = [row for row in rows if (row["task"], row["model"]) != ("rte", "robertha")]
    found, subjects = with_averages(measurements(as_read(cut)))
    assert finished_tasks(found) == ["cola", "sst2"]
    average = subjects[0]
    assert average.title == "GLUE, mean of 2 of 9 tasks" and average.tasks == ("cola", "sst2")
    both = [found.at(task, "robertha", "token", "matched", 2.0)[77] for task in average.tasks]
    ours = found.at(average.name, "robertha", "token", "matched", 2.0)
    assert ours[77] == pytest.approx(sum(both) / 2)
    assert [each.name for each in featured(subjects)] == ["average-glue", "rte"]


def test_a_part_of_a_set_is_named_so_and_in_no_average(fake, monkeypatch):
    monkeypatch.setattr(fake, "TASKS", ("cola", "sst2", "qnli", "rte"))
    rows = fake.fake_rows(tasks=("cola", "sst2", "qnli", "rte"))
    rows = [row | {"num_train": 4017} if row["task"] == "qnli" else row for row in rows]
    found, subjects = with_averages(measurements(as_read(rows)))
    assert subjects[0].title == "GLUE, mean of 3 of 9 tasks"
    assert subjects[0].tasks == ("cola", "sst2", "rte")
    (part,) = featured(subjects)[1:]
    assert part.title == "QNLI (partial, 4,017 training rows)"
    # The paper's figures are still found by the task's own name.
    assert part.paper("tinybert", 0) is not None
    parts = [found.at(name, "robertha", "token", "sigma", 1.0)[23] for name in subjects[0].tasks]
    ours = found.at("average-glue", "robertha", "token", "sigma", 1.0)[23]
    assert ours == pytest.approx(sum(parts) / 3)


def test_rows_that_are_not_known_or_made_up_are_no_part(fake):
    rows = [row | {"num_train": None} for row in fake.fake_rows(tasks=("sst2",))]
    assert measurements(as_read(rows)).title("sst2") == "SST-2"
    few = [row | {"task": "sentiment", "num_train": 8} for row in rows]
    assert measurements(as_read(few)).title("sentiment") == "Sentiment"


def test_the_papers_figures_follow_the_subject(fake):
    _, subjects = with_averages(measurements(as_read(fake.fake_rows())))
    average, cola = subjects[0], subjects[1]
    assert cola.paper("tinybert", 0).mean == 55.3
    assert average.paper("tinybert", 0).mean == pytest.approx((55.3 + 80.3) / 2)
    assert average.paper("robertha-no-esr", 0) is None


def test_the_models_snr_is_a_range(fake):
    found, subjects = with_averages(measurements(as_read(fake.fake_rows(tasks=("sst2",)))))
    low, high = snr_range(found, subjects[0], "token", "sigma", 0.5)
    assert low == pytest.approx(-28, abs=0.2) and high > low + 4
    low, high = snr_range(found, subjects[0], "token", "matched", 0.5)
    assert high - low < 0.2
    assert snr_range(found, subjects[0], "token", "matched", 9.0) is None


def test_load_reads_a_run_folder(fake, tmp_path):
    plan = {"tasks": ["sst2", "cola"], "seeds": list(fake.SEEDS)}
    fake.write_fake_run(tmp_path, fake.fake_rows(tasks=("sst2",)), plan)
    found = load(tmp_path)
    assert found.grid.tasks == ("sst2", "cola") and found.sizes["sst2"].train == (66349, 66349)
