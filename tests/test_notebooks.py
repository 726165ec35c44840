"""Every notebook runs from top to bottom in a fresh kernel, and what is stored in it is its own."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
assert NOTEBOOKS, "there are no notebooks to run"


def short(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=short)
# Jupyter's own: sockets and event loops that its client leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # Figures are to be shown in the notebook, not drawn into the void as in the other tests.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    # A deprecated call in a notebook is an error here, as it is in the other tests.
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:__main__")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)
