"""List the experiments, or run one by name.

python -m experiments NAME [flags]     (NAME --help lists the flags)
python -m experiments runs [FOLDER]    (earlier runs, their progress and pages)
python -m experiments predict --run FOLDER TEXT ...    (labels of texts)
python -m experiments.benchmarks       (speed and memory)
python -m experiments --version
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.rundir import read_config
from hopfax import __version__
from hopfax.train import interrupt

# Name on the command line -> module with `Config`, `REPRODUCES` and `run(config) -> Path`, or
# module:class, which is itself the configuration.
EXPERIMENTS = {
    "demo": "experiments.robertha.demo:Demo",
    "robustness": "experiments.robertha.suites:Robustness",
    "attribution": "experiments.robertha.suites:Attribution",
    "hyperparameters": "experiments.robertha.suites:Hyperparameters",
    "scaling": "experiments.robertha.suites:Scaling",
    "typos": "experiments.robertha.suites:Typos",
    "adversarial": "experiments.robertha.suites:Adversarial",
    "fine-tuning": "experiments.robertha.suites:FineTuning",
    "learning-rates": "experiments.robertha.suites:LearningRates",
    "attractors": "experiments.robertha.attractors",
    "norms": "experiments.robertha.norms",
    "spectra": "experiments.robertha.spectra:Spectra",
    "convergence": "experiments.robertha.convergence:Convergence",
    "steps": "experiments.robertha.convergence:Steps",
    "memory": "experiments.memory.similarity",
    "memory-recovery": "experiments.memory.recovery",
    "memory-certificates": "experiments.memory.certificates",
    "memory-smoothing": "experiments.memory.smoothing",
    "memory-language": "experiments.memory.language",
    "memory-trained": "experiments.robertha.suites:MemoryTrained",
    "theory": "experiments.noise_stability.theory",
    "grokking": "experiments.noise_stability.grokking",
    "encoder-stability": "experiments.noise_stability.encoder",
    "influence": "experiments.noise_stability.influence",
    "tail-mass": "experiments.noise_stability.tail_mass",
    "language-model": "experiments.noise_stability.language_model",
}

COMMANDS = {"predict": "experiments.predict"}  # not listed as experiments

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # 130 is the shell's 128 + SIGINT


def main(arguments: Sequence[str], experiments: Mapping[str, str] = EXPERIMENTS) -> int:
    """Runs one command line and returns its exit status.

    The status is 0 for success, 1 for an error, 2 for an invalid command line, and 130 after Ctrl-C
    or SIGTERM. A second Ctrl-C ends the process at once, also with status 130.
    """
    if not arguments or arguments[0] in ("-h", "--help", "list"):
        print(listing(experiments))
        return OK
    if arguments[0] == "--version":
        print(f"hopfax {__version__}")
        return OK
    if arguments[0] == "runs":
        print(earlier(Path(arguments[1] if len(arguments) > 1 else "runs")))
        return OK
    name, modules = arguments[0], {**experiments, **COMMANDS}
    try:
        from hopfax.data.tasks import look_up

        module = look_up("experiment", name, modules)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    try:
        # Covers the imports too: jax's may swallow a KeyboardInterrupt.
        with interrupt.listen(exits=True):
            return launch(name, module, arguments[1:])
    except KeyboardInterrupt:
        line = shlex.join(["python", "-m", "experiments", *arguments])
        print(f"\nstopped; trained models are kept. To go on, run:\n  {line}", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "hopfax").partition(".")[0] in ("experiments", "hopfax"):
            raise
        print(f'error: {error.name} is missing: pip install -e ".[experiments]"', file=sys.stderr)
        return FAILED
    except Exception as error:
        if os.environ.get("HOPFAX_DEBUG") == "1" or not is_expected(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        print("(HOPFAX_DEBUG=1 shows the traceback)", file=sys.stderr)
        return FAILED


def launch(name: str, module_path: str, flags: Sequence[str]) -> int:
    """Parses the flags into the module's `Config`, runs it and prints the path of a page."""
    import tyro

    path, _, suite = module_path.partition(":")
    module = importlib.import_module(path)
    kind = getattr(module, suite) if suite else module.Config
    text = inspect.getdoc(kind if suite else module) or ""
    try:
        config = tyro.cli(
            kind,
            args=list(flags),
            prog=f"python -m experiments {name}",
            # Without the line breaks within paragraphs: tyro keeps those before digits and quotes.
            description=re.sub(r"(?<=\S)\n(?=\S)", " ", text),
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except SystemExit as stop:  # tyro has printed the help, or the flag and the nearest ones
        return stop.code if isinstance(stop.code, int) else USAGE
    if getattr(config, "budget", None) == "smoke":
        quick_to_compile()
    if getattr(getattr(config, "cluster", None), "launcher", "none") != "none":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share its GPU
    interrupt.check()
    with importlib.import_module("experiments.hosts").join(name, config):
        importlib.import_module("hopfax.train.sharding").check_devices()
        if folder := config.run() if suite else module.run(config):
            page = folder / "report.html"
            print(f"page: {page if page.exists() else folder}")
    return OK


def quick_to_compile() -> None:
    """Reduces XLA's optimizations, which makes runs of seconds faster."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    if jax.__version__.startswith("0.10."):  # later versions end the process at this flag
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"


def listing(experiments: Mapping[str, str]) -> str:
    """Returns one entry per experiment: name, what it reproduces, first line of its docstring.

    Modules are parsed, not imported, so that listing does not load jax.
    """
    lines = [str(__doc__)]
    width = max(map(len, experiments), default=0)
    for name, module_path in experiments.items():
        reproduces, claim = introduction(module_path)
        lines += [f"  {name:<{width}}  {reproduces}", f"  {'':<{width}}  {claim}", ""]
    return "\n".join(lines).rstrip()


def earlier(root: Path) -> str:
    """Returns two lines per run in a folder: date and command, then finished cells and the page."""
    lines = []
    for folder in {path.parent for path in root.glob("*/*/config.json")} - {*root.glob("cells/*")}:
        try:
            document = read_config(folder)
            date, command = (document["provenance"][-1][each] for each in ("date", "command"))
        except (ValueError, LookupError, TypeError):
            lines.append(f"{'':18}damaged: {folder / 'config.json'}")
            continue
        cells = document.get("plan", {}).get("cells", [])
        done = sum((root / "cells" / each).exists() for each in cells)
        far = f"{done} of {len(cells)} models trained, " if cells else ""
        page = folder / "report.html"
        state = f"page: {page}" if page.exists() else f"not finished: {folder}"
        lines.append(f"{date[:16].replace('T', ' ')}  {command}\n{'':18}{far}{state}")
    return "\n".join(sorted(lines, reverse=True)) or f"no runs in {root}"


def introduction(module_path: str) -> tuple[str, str]:
    """`REPRODUCES` and the first docstring line of a module or class, read from its source."""
    path, _, suite = module_path.partition(":")
    spec = importlib.util.find_spec(path)
    assert spec and spec.origin, path
    tree: Any = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    if suite:
        (tree,) = (each for each in tree.body if getattr(each, "name", "") == suite)
    reproduces = [
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "REPRODUCES"
    ]
    return "".join(reproduces), (ast.get_docstring(tree) or "").partition("\n")[0]


def is_expected(error: Exception) -> bool:
    """Whether an error's message suffices without a traceback, as for bad input or a full disk."""
    ours = type(error).__module__.partition(".")[0] in ("hopfax", "experiments")
    expected = ours or isinstance(error, (ValueError, OSError, FloatingPointError))
    return expected and not isinstance(error, BrokenPipeError)


def quiet(unraisable: Any) -> None:
    """Drops what threads say about the write of a checkpoint that failed, which Orbax raises."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    sys.unraisablehook = quiet
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # σ and ± must not end a run on an ASCII terminal
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the error again when it flushes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing left to save on Ctrl-C
    sys.exit(status)
