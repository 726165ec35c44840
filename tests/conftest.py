"""Settings every test shares."""

import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests compile far longer than they compute, and this takes a third of the time. Set XLA_FLAGS to
# the empty string to test the code that users run.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0"
if version("jax").startswith("0.10."):
    # Halves it again; later versions no longer know the flag, and XLA ends at a flag it does not.
    QUICK_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)

# Many tests build the same program: what one has compiled, the others load, and so does the next
# run of the tests. `--cache-clear` empties it, with pytest's own.
COMPILED = Path(__file__).resolve().parents[1] / ".pytest_cache" / "d" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# On some AMD machines XLA says of every program it loads, at great length, that it was tuned for
# this very machine. What goes wrong still raises.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# What `pytest -m fast` runs: some files of every part, a minute together on two cores.
FAST = (
    "data",
    "text",
    "experiments/test_command_line.py",
    "experiments/test_outcomes.py",
    "experiments/test_paper.py",
    "experiments/test_rundir.py",
    "experiments/test_tidy.py",
    "hopfield/test_arguments.py",
    "hopfield/test_corruption.py",
    "hopfield/test_retrieval.py",
    "nn/test_models.py",
    "stability/test_influence.py",
    "test_fixed_point.py",
    "test_layering.py",
    "train/test_metrics.py",
    "train/test_schedule.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `FAST`."""
    folder = Path(__file__).resolve().parent
    for item in items:
        path = item.path.relative_to(folder)
        if path.as_posix() in FAST or path.parts[0] in FAST:
            item.add_marker("fast")


@pytest.fixture
def x64():
    """Double precision for one test."""
    import jax  # after the environment above is set

    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real encoder, all-MiniLM-L6-v2."""
    folder = Path(os.environ.get("HOPFAX_MINILM", ""))
    if not (folder / "config.json").is_file():
        pytest.skip("set HOPFAX_MINILM to a folder of all-MiniLM-L6-v2")
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and reference outputs beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference material at {folder}")
    return folder


@pytest.fixture(autouse=True)
def strict(request):
    """No implicit promotion of types or ranks in the tests of the cores."""
    import jax  # after the environment above is set

    path = request.path.relative_to(Path(__file__).resolve().parent)
    if path.parts[0] not in ("hopfield", "stability", "test_fixed_point.py"):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
