"""One model trained by several processes, which run the same program, with `jax.distributed`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

from experiments.rundir import plain
from experiments.settings import Hosts
from hopfax.train import interrupt

SECONDS = 120  # until all processes must have joined


@contextlib.contextmanager
def join(name: str, config: Any) -> Iterator[None]:
    """With `--distributed`, joins the processes of an experiment; only the first one prints."""
    flags = getattr(config, "hosts", Hosts())
    place: Any = flags.coordinator, flags.num_processes, flags.process_index
    address, count, index = place
    fits = None not in place and re.fullmatch(r"\S+:\d+", address) and 0 <= index < count
    if place != (None, None, None) and not (flags.distributed and fits):
        raise ValueError(
            "--coordinator HOST:PORT, --num-processes N and --process-index in [0, N) must be set "
            f"together and with --distributed, got {address}, {count} and {index}"
        )
    if not flags.distributed:
        yield
        return
    if config.cluster.launcher != "none":
        raise ValueError("--distributed cannot be combined with --launcher")
    import jax

    from hopfax.nn.functional import flatten
    from hopfax.train.sharding import any_process, check_devices, first, is_first

    def expire() -> None:  # jax would abort with a stack trace
        where = address or "the coordinator"
        print(f"error: not all processes joined {where} in {SECONDS} seconds", file=sys.stderr)
        os._exit(1)

    jax.config.update("jax_enable_preemption_service", False)  # `interrupt` handles SIGTERM
    (watchdog := threading.Timer(SECONDS, expire)).start()
    try:
        jax.distributed.initialize(*place, initialization_timeout=2 * SECONDS)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--distributed requires Slurm or --coordinator: {error}") from None
    finally:
        watchdog.cancel()
    check_devices()
    if not is_first():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    ours = flatten(plain(config) | {"experiment": name, "hosts": None}, "/")
    theirs = first(lambda: ours)
    wrong = [each for each in ours | theirs if ours.get(each) != theirs.get(each)]
    if any_process(bool(wrong)):
        raise ValueError(f"flags differ between processes: {', '.join(wrong) or 'in another one'}")
    with interrupt.hold():  # processes stop together, see `conditions.predictions`
        yield
