"""The house rules that a program can check: imports, names, shapes in signatures.

The syntax trees are read; what is imported is imported by processes of its own.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hopfax

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*ROOT.glob("hopfax/**/*.py"), *ROOT.glob("experiments/**/*.py")])
LIBRARY = [path for path in FILES if path.is_relative_to(ROOT / "hopfax")]
assert LIBRARY, "the walk found nothing to check"

# What each layer may import of this project, itself aside. `data` and `text` are leaves.
ALLOWED = {
    "hopfax": "classifier hopfield nn stability",  # at first use
    "hopfax.checks": "",
    "hopfax.fixed_point": "checks",
    "hopfax.cpu": "",
    "hopfax.hub": "",
    "hopfax.page": "hub",
    "hopfax.hopfield": "checks fixed_point cpu",
    "hopfax.stability": "checks",
    "hopfax.data": "hub",
    "hopfax.text": "",
    "hopfax.nn": "checks hub fixed_point cpu hopfield",
    "hopfax.train": "checks cpu hopfield nn data text",
    "hopfax.classifier": "checks nn train data hub",
    "hopfax.text_model": "checks hopfield stability nn train data hub classifier",
    "hopfax.torch_model": "text_model data hub",
    "hopfax.measure": "train data text text_model",
    "hopfax.report": "hub measure page text text_model train",
    "hopfax.command": "hopfax data hub measure report",
}
CORE = ("hopfax.checks", "hopfax.fixed_point", "hopfax.cpu", "hopfax.hopfield", "hopfax.stability")
# nnx transformations and state: their interface is moving, and plain dicts dispatch faster.
MOVING = {
    "jit", "grad", "value_and_grad", "vmap", "scan", "Optimizer", "MultiMetric", "sow", "capture",
    "perturb", "pmap", "remat", "cond", "while_loop",
}  # fmt: skip
PACKAGES = {"robertha", "memory", "noise_stability", "benchmarks"}
FOREIGN = {"tensorflow", "torch", "transformers", "clu", "seaborn", "pickle", "cloudpickle", "dill"}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in FILES}


def layer(name: str) -> str:
    return ".".join(name.split(".")[:2]) if name.startswith("hopfax") else name.split(".")[0]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, whether at its top or inside a function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"line {node.lineno}: a relative import"
            for alias in node.names:
                # `from hopfax import nn` imports a module, `from hopfax.nn import X` a name.
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def names_of_nnx(path: Path) -> set[str]:
    """Names taken from `nnx`, and the methods that every module has from it."""
    return set(re.findall(r"(?:\bnnx|(?=\.sow|\.perturb))\.(\w+)", path.read_text("utf-8")))


@pytest.mark.parametrize("path", LIBRARY, ids=short)
def test_imports_run_one_way(path):
    here = layer(module(path))
    assert here in ALLOWED, f"{here} has no place yet in the order of layers"
    if here in CORE:
        assert not {name.split(".")[0] for name in imports(path)} & {"flax", "optax", "orbax"}
    for name in imports(path):
        assert not name.startswith("experiments"), f"the library imports {name}"
        if name.split(".")[0] == "hopfax" and layer(name) != here:
            allowed = ALLOWED[here].split()
            assert layer(name).split(".")[-1] in allowed, f"{here} must not import {name}"


@pytest.mark.parametrize("path", [path for path in FILES if PACKAGES & {*path.parts}], ids=short)
def test_packages_of_claims_do_not_import_each_other(path):
    (here,) = PACKAGES & {*path.parts}
    for name in imports(path):
        package = name.split(".")[1] if name.startswith("experiments.") else ""
        assert package not in PACKAGES - {here}, f"{here} must not import {name}"


def test_packages_have_no_import_cycles():
    graph = {
        module(path): {name for name in imports(path) if name in MODULES and name != module(path)}
        for path in FILES
    }
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the cycle


def test_only_settled_parts_of_nnx_are_used_and_one_file_takes_modules_apart():
    used = {short(path): names_of_nnx(path) for path in FILES}
    assert not {path: names & MOVING for path, names in used.items() if names & MOVING}
    assert not [path for path in FILES if "flax.nnx" in imports(path)], "import nnx from flax"
    taking = [path for path, names in used.items() if names & {"split", "merge"}]
    assert len(taking) <= 1, taking


@pytest.mark.parametrize("path", FILES, ids=short)
def test_heavy_and_unsafe_packages_are_never_imported(path):
    known = {name.split(".")[0] for name in imports(path)}
    allowed = (
        {"torch", "transformers"}
        if path.is_relative_to(ROOT / "experiments" / "benchmarks")
        else set()
    )
    assert not known & (FOREIGN - allowed)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), f"line {node.value.lineno}"
            assert node.value.value is False, f"line {node.value.lineno}"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_files_are_named_after_what_they_hold(path):
    assert path.stem not in {"utils", "util", "common", "helpers", "helper", "base", "misc"}


def run_python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_packages_are_imported_at_first_use_and_the_core_is_cheap():
    run_python("""
import sys, hopfax
assert not {"jax", "flax"} & set(sys.modules)
hopfax.stability.relu_stability, hopfax.hopfield.retrieve
assert not {"hopfax.nn", "flax", "optax", "orbax", "rich"} & set(sys.modules)
assert {"hopfield", "nn", "stability"} <= set(dir(hopfax))
from hopfax.train.progress import Progress
with Progress(1) as progress:
    progress.update(1)
assert "rich" not in sys.modules  # only a bar on a terminal needs it
hopfax.nn.robertha
""")
    with pytest.raises(AttributeError, match="no attribute 'hopfeild'"):
        _ = hopfax.hopfeild


def test_lists_and_helps_do_not_import_jax():
    run_python("""
import sys
from hopfax import command
for line in ("--version", "--help", "robustness --help", "influence --help", "stability --help"):
    try:
        command.main(line.split())
    except SystemExit as stop:
        assert not stop.code
from experiments.__main__ import main
assert main([]) == 0 and not {"jax", "flax", "numpy", "matplotlib"} & set(sys.modules)
for name in ("robustness", "attribution", "demo", "predict"):
    assert main([name, "--help"]) == 0
assert not {"jax", "flax", "pandas", "matplotlib", "tensorflow"} & set(sys.modules)
""")


def test_shapes_are_as_annotated_and_every_other_is_refused():
    """The checks are installed at import, and would refuse what other tests pass on purpose."""
    printed = run_python("""
import doctest, importlib, pkgutil
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook(["hopfax.fixed_point", "hopfax.hopfield"], "beartype.beartype"):
    from hopfax import hopfield
import jax.numpy as jnp
for info in pkgutil.iter_modules(hopfield.__path__, "hopfax.hopfield."):
    module = importlib.import_module(info.name)
    assert not doctest.testmod(module, globs={}, optionflags=doctest.ELLIPSIS).failed
keys, mask = jnp.ones((6, 4)), jnp.arange(6) < 5
for options in ({}, {"mask": mask}):
    hopfield.esr_penalty(keys, **options)
    for gradient in ("implicit", "unrolled"):
        hopfield.retrieve(keys[0], keys, beta=1.0, gradient=gradient, **options)
try:
    hopfield.snr_db(keys, keys[:, 1:])
except TypeCheckError:
    print("refused")
""")
    assert printed == "refused\n"


def test_only_the_functions_that_need_an_extra_ask_for_it():
    extras = ["array_record", "jinja2", "matplotlib", "pandas", "tensorflow_datasets", "tokenizers"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({extras}))  # importing one raises ModuleNotFoundError
import hopfax.data, hopfax.hopfield, hopfax.nn, hopfax.stability, hopfax.text, hopfax.train.loop
assert len(hopfax.data.synthetic_split("entailment", "train", size=3, seed=0)) == 3
for run in (
    lambda: hopfax.data.train_vocabulary(["a film"]),
    lambda: __import__("hopfax.data.builders"),
):
    try:
        run()
    except ModuleNotFoundError as error:
        print(error)
"""
    tokenizers, tfds = run_python(program).splitlines()
    assert tokenizers == 'tokenizers is not installed: pip install "hopfax[pretrained]"'
    assert tfds.startswith("tensorflow_datasets is not installed: pip install")
