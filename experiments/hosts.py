"""One model trained by several processes, on one host or several, with `jax.distributed`.

All processes run the same program. Process 0 alone reads and writes the run's folder and prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.rundir import plain
from experiments.settings import Hosts
from hopfax.train import interrupt

SECONDS = 60  # until all processes must have joined


@contextlib.contextmanager
def joined(name: str, config: Any) -> Iterator[None]:
    """Joins the processes of an experiment with `--distributed`; others run as they are.

    Raises:
        ValueError: A flag is wrong, no processes are detected, or their flags or devices differ.
    """
    flags = getattr(config, "hosts", Hosts())
    flags.check()
    if not flags.distributed:
        yield
        return
    import jax

    from hopfax.nn.functional import flatten
    from hopfax.train.sharding import any_process, first, is_first

    def expire() -> None:  # jax would abort with a stack trace
        where = f"{flags.coordinator or 'the coordinator'} within {SECONDS} seconds"
        print(f"error: not all processes have joined at {where}", file=sys.stderr, flush=True)
        os._exit(1)

    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from `interrupt`
    (watchdog := threading.Timer(SECONDS, expire)).start()
    try:
        jax.distributed.initialize(
            flags.coordinator, flags.num_processes, flags.process_index,
            initialization_timeout=2 * SECONDS, shutdown_timeout_seconds=SECONDS,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "--distributed requires a job of Slurm or Open MPI, or --coordinator, --num-processes "
            f"and --process-index: {error}"
        ) from None
    finally:
        watchdog.cancel()
    if any_process(jax.device_count() != jax.process_count() * jax.local_device_count()):
        raise ValueError(
            f"all processes must have the same number of devices, got {jax.local_device_count()} "
            f"of {jax.device_count()} in one of {jax.process_count()}"
        )
    ours = flatten(plain({"experiment": name, "": replace(config, hosts=Hosts())}), "/")
    theirs = first(lambda: ours)
    wrong = [key.split("/")[-1] for key, value in ours.items() if value != theirs.get(key, value)]
    if any_process(bool(wrong) or ours.keys() != theirs.keys()):
        names = ", ".join(wrong) or "none here"
        raise ValueError(f"all processes must have the same flags as process 0; differing: {names}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupt.hold())  # processes stop together, see `conditions`
        if not is_first():
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield
