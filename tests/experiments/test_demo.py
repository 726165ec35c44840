"""The demo at tiny sizes: its estimate, results and page."""

from dataclasses import replace

from experiments import tidy
from experiments.robertha.demo import Demo
from experiments.settings import Data, Training


def test_the_demo_scores_noise_without_and_with_memory(tmp_path, monkeypatch):
    default = Demo(runs=str(tmp_path))
    sizes = Data(task=("sentiment",), train_size=64, test_size=24, vocab_size=200)
    training = Training(seeds=(1, 2, 3), epochs=1, width=8, num_layers=1, learning_rate=1e-3)
    noise = replace(default.noise, levels=(0.5, 4.0))
    demo = replace(default, data=sizes, training=training, noise=noise)
    folder = demo.run()
    scores = tidy.scores(tidy.read(folder))
    cells = {(row.denoiser, round(row.snr_db)) for row in scores[scores.level > 0].itertuples()}
    assert cells == {(name, snr_db) for name in ("none", "memory") for snr_db in (6, -12)}
    assert {path.name for path in folder.iterdir()} >= {"results.csv", "demo.png", "report.html"}
    assert [row[0] for row in demo.page(folder).tables[0].rows] == ["+6 dB", "−12 dB"]
