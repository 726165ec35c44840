import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fake():
    """Made-up results, from the file beside this one: importlib mode puts no folder on the path."""
    path = Path(__file__).with_name("fake_results.py")
    spec = importlib.util.spec_from_file_location("fake_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def untrained_run():
    """Makes a `robustness` run of one model, whose checkpoints hold what nobody has trained."""
    import jax
    import optax

    from experiments.robertha import robustness
    from experiments.robertha.measurements import Grid
    from experiments.rundir import RESULT_COLUMNS, add_results, open_run
    from hopfax.data import task
    from hopfax.train.checkpoint import Checkpoints
    from hopfax.train.state import init_states

    def make(root, tasks, model="tinybert"):
        settings = robustness.Config(
            task=tasks,
            model=(model,),
            budget="smoke",
            levels=(0.0,),
            width=16,
            vocab_size=100,
            train_size=32,
        )
        grid = Grid(tasks, (model,), (23, 42), (), ("embedding",), ("matched",))
        folder = open_run("robustness", settings, plan=grid._asdict(), root=root)
        blank = dict.fromkeys(RESULT_COLUMNS) | {"metric": "score", "num_examples": 500}
        blank |= {"level": 0.0, "model": model, "corruption": "none"}
        for name in tasks:
            rows = [{"task": name, "seed": seed, "score": 50.0 + seed} for seed in grid.seeds]
            add_results(folder, [blank | row for row in rows])
            sizes = robustness.sized(settings, True)
            data = robustness.load_rows(settings, sizes, task(name))
            built = robustness.build(settings, sizes, model, task(name), vocab_size=data.vocab_size)
            params = init_states(built.model, optax.identity(), (1, 2)).params
            config = {"vocabulary": data.vocab_size, "rows": 32, "data": data.source}
            with Checkpoints(folder / "cells" / f"{name}-{model}", config=config) as checkpoints:
                checkpoints.save_best(1, jax.tree.map(lambda leaf: 5 * leaf, params), {})
        return folder

    return make
