"""Realistic made-up results.csv rows, for the tests of tables, pictures and reports."""

import itertools
import json

import numpy as np

from experiments import rundir

TASKS = ("sst2", "cola")
MODELS = ("tinybert", "robertha", "robertha-no-esr", "robertha-no-iteration-no-esr")
SEEDS = (23, 42, 77, 112, 135)
SITES = ("token", "embedding")
PROTOCOLS = ("sigma", "matched")
LEVELS = (0.5, 1.0, 2.0, 5.0)


def fake_rows(
    tasks=TASKS,
    models=MODELS,
    seeds=SEEDS,
    sites=SITES,
    protocols=PROTOCOLS,
    levels=LEVELS,
    draws=3,
    spread=0.6,
):
    """Scores that fall with the realised SNR from `clean` to chance, with seed and draw noise."""
    random = np.random.default_rng(0)
    rows = []
    noises = [("none", "clean", 0.0, 0)]
    noises += list(itertools.product(sites, protocols, levels, range(draws)))
    for task, model, seed in itertools.product(tasks, models, seeds):
        place = (MODELS if model in MODELS else models).index(model)
        clean = 82.0 - 5 * tasks.index(task) - 0.4 * place + random.normal(0, spread)
        for site, protocol, level, draw in noises:
            snr, score = None, clean
            if level:
                # token embeddings are small, and each model's have a size of their own
                small = protocol == "sigma" and site == "token"
                rms = 0.02 * (1 + 0.3 * place) if small else 1.0
                snr = float(20 * np.log10(rms / level) + random.normal(0, 0.05))
                kept = 1 / (1 + np.exp(-(snr + 6 + 0.5 * place) / 5))
                score = 50 + (clean - 50) * kept + random.normal(0, 0.3)
            row = {
                "task": task,
                "model": model,
                "corruption": "gaussian" if level else "none",
                "level": level,
                "site": site,
                "seed": seed,
                "num_examples": 872,
                "snr_db": snr,
                "protocol": protocol,
                "draw": draw,
                "num_train": 66349,
                "steps_mean": None if model == "tinybert" else 7.5,
            }
            rows.append(row | {"metric": "score", "score": float(score)})
            rows.append(row | {"metric": "accuracy", "score": float(score) / 100})
    return rows


def write_fake_run(folder, rows, plan=None):
    """A run folder with these rows, and a config.json as `open_run` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "experiment": "robustness",
        "config": {"budget": "laptop"},
        "plan": plan or {},
        "provenance": [
            {
                "command": "python -m experiments robustness --task sst2 cola",
                "date": "2026-01-02T03:04:05+00:00",
                "commit": "0123456789abcdef0123456789abcdef01234567",
                "dirty": False,
                "cpu": "A <fast> processor",
                "cores": 2,
                "device": "cpu",
                "python": "3.11.9",
                "jax": "0.10.1",
                "flax": "0.12.8",
            }
        ],
    }
    (folder / "config.json").write_text(json.dumps(document))
    rundir.add_results(folder, rows)
    return folder
