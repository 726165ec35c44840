import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hopfax.train import checkpoint
from hopfax.train.checkpoint import CheckpointError, Checkpoints, CheckpointWarning

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"seed": 23, "optimizer": {"rate": 2e-5, "clip": 1.0}}


class Slots(NamedTuple):
    count: jax.Array
    empty: tuple


def small(step):
    """A tree whose every leaf tells which step it is of."""
    return {"a": jnp.full((3, 50), step, jnp.float32), "b": Slots(jnp.int32(step), ())}


def open_in(folder, **changes):
    return Checkpoints(folder, config=CONFIG | changes)


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def saved(folder, *steps, kind="last"):
    with open_in(folder) as checkpoints:
        for step in steps:
            getattr(checkpoints, f"save_{kind}")(step, small(step), {"step": step})
            checkpoints.wait()
    return folder / kind


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def data_file(path):
    """The largest file: the one with the numbers."""
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_every_dtype_and_optimizer_state_comes_back_bit_for_bit(tmp_path):
    keys = iter(jax.random.split(jax.random.key(0), 9))
    params = {
        "embed": {"table": jax.random.normal(next(keys), (5, 7, 3))},
        "half": jax.random.normal(next(keys), (5, 3), jnp.bfloat16),
        "float16": jax.random.normal(next(keys), (2,), jnp.float16),
        "odd": jnp.array([jnp.nan, -jnp.nan, -0.0, jnp.inf, 1e-42], jnp.float32),
        "layers": [jnp.ones((2, 2)), (jnp.zeros((0, 4)), None, {})],
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lambda step: 0.1 * step))
    tree = {
        "params": params,
        "optimizer": optimizer.update(params, optimizer.init(params), params)[1],
        "step": jnp.int32(7),
        "flags": jnp.array([True, False, True]),
        "bytes": jnp.arange(250, 256, dtype=jnp.uint8),
        "key": jax.random.key_data(jax.random.key(3)),
        "host": np.array([[1.5, -0.0]], np.float64),
    }
    with open_in(tmp_path) as checkpoints:
        assert checkpoints.restore_last(tree) is None
        assert checkpoints.restore_best(tree) is None
        checkpoints.save_last(7, tree, {"best": -float("inf"), "epochs": [1, 2], "name": "σ"})
        got = checkpoints.restore_last(
            jax.tree.map(jnp.zeros_like, tree | {"host": 0.0}) | {"host": tree["host"] * 0}
        )
    assert got.step == 7
    assert got.extra == {"best": -float("inf"), "epochs": [1, 2], "name": "σ"}
    assert_same_bits(got.tree, tree)
    assert isinstance(got.tree["host"], np.ndarray)
    assert isinstance(got.tree["params"]["half"], jax.Array)
    assert not any(path.suffix in (".pkl", ".pickle") for path in tmp_path.rglob("*"))


def test_abstract_target_is_enough(tmp_path):
    saved(tmp_path, 3)
    with open_in(tmp_path) as checkpoints:
        got = checkpoints.restore_last(jax.eval_shape(lambda: small(0)))
    assert_same_bits(got.tree, small(3))
    assert not got.tree["a"].committed  # free to mix with arrays on any device


def test_buffers_may_be_donated_or_overwritten_straight_after(tmp_path):
    tree = {"x": jnp.arange(200_000, dtype=jnp.float32), "host": np.arange(5)}
    extra = {"history": [1]}
    want = jax.tree.map(np.array, tree)
    clobber = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with open_in(tmp_path) as checkpoints:
        checkpoints.save_last(1, tree, extra)
        gone = tree["x"]
        tree["x"] = clobber(gone)
        assert gone.is_deleted()
        tree["host"][:] = -1
        extra["history"].append(2)
        got = checkpoints.restore_last(tree)
    assert_same_bits(got.tree, want)
    assert got.extra == {"history": [1]}


def test_restored_arrays_can_be_donated(tmp_path):
    saved(tmp_path, 4)
    with open_in(tmp_path) as checkpoints:
        got = checkpoints.restore_last(small(0)).tree
        jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(got)
        assert_same_bits(checkpoints.restore_last(small(0)).tree, small(4))


def test_save_returns_before_the_write_ends(tmp_path, monkeypatch):
    release = threading.Event()
    write = checkpoint.write_arrays

    def slow(folder, arrays):
        assert release.wait(20)
        write(folder, arrays)

    monkeypatch.setattr(checkpoint, "write_arrays", slow)
    with open_in(tmp_path) as checkpoints:
        checkpoints.save_last(1, small(1), {})
        checkpoints.save_best(1, small(1), {})
        assert not any((tmp_path / "last").glob("[0-9]"))
        release.set()
        checkpoints.wait()
        assert names(tmp_path / "last") == names(tmp_path / "best") == ["1"]


def test_keeps_two_of_each_kind_and_separates_them(tmp_path):
    with open_in(tmp_path) as checkpoints:
        for step in (2, 10, 9, 30, 100):  # 10 > 9: steps are numbers, not names
            checkpoints.save_last(step, small(step), {})
            if step in (9, 30):
                checkpoints.save_best(step, small(step), {"score": step})
        checkpoints.wait()
        assert names(tmp_path / "last") == ["100", "30"]
        assert checkpoints.restore_last(small(0)).step == 100
        best = checkpoints.restore_best(small(0))
    assert (best.step, best.extra) == (30, {"score": 30})
    assert names(tmp_path) == ["best", "config.json", "last"]
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG


def test_run_that_went_back_supersedes_its_old_future(tmp_path):
    folder = saved(tmp_path, 100, 200)
    saved(tmp_path, 150)
    assert names(folder) == ["100", "150"]


def test_saving_a_step_again_never_overwrites(tmp_path):
    folder = saved(tmp_path, 1, 2)
    with open_in(tmp_path) as checkpoints:
        checkpoints.save_last(2, small(-2), {})
        got = checkpoints.restore_last(small(0))
        assert got.step == 2
        assert_same_bits(got.tree, small(-2))
    assert names(folder) == ["2", "2.1"]


def test_other_config_is_refused_key_by_key(tmp_path):
    open_in(tmp_path)
    open_in(tmp_path)  # the same one is welcome
    changes = {
        "optimizer": {"rate": 1e-4, "clip": 1.0, "decay": 0.01},
        "seed": True,
        "tags": ("a",),
    }
    with pytest.raises(ValueError, match="choose another folder") as error:
        open_in(tmp_path, **changes)
    lines = str(error.value).splitlines()[1:-1]
    assert lines == [
        "  optimizer.decay: absent → 0.01",
        "  optimizer.rate: 2e-05 → 0.0001",
        "  seed: 23 → true",
        '  tags: absent → ["a"]',
    ]
    with pytest.raises(ValueError, match="seed: 23 → absent"):
        Checkpoints(tmp_path, config={"optimizer": CONFIG["optimizer"]})


def test_config_that_is_lost_or_broken(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        open_in(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        open_in(tmp_path)


def flip(path):
    file = data_file(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(path):
    os.truncate(data_file(path), data_file(path).stat().st_size // 2)


def lose_arrays(path):
    shutil.rmtree(path / "arrays")


def lose_manifest(path):
    (path / "manifest.json").unlink()


def empty_everything(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


def edit_extra(path):
    text = (path / "manifest.json").read_text()
    changed = text.replace('"step": 2', '"step": 7')
    assert changed != text
    (path / "manifest.json").write_text(changed)


def swap_arrays(path):
    """Sound for Orbax, but not what was saved: only the digests can tell."""
    shutil.rmtree(path / "arrays")
    shutil.copytree(path.parent / "1" / "arrays", path / "arrays")


DAMAGES = [flip, truncate, lose_arrays, lose_manifest, empty_everything, edit_extra, swap_arrays]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_falls_back_and_says_so(tmp_path, damage):
    folder = saved(tmp_path, 1, 2)
    damage(folder / "2")
    with open_in(tmp_path) as checkpoints:
        with pytest.warns(CheckpointWarning) as caught:
            got = checkpoints.restore_last(small(0))
        (warning,) = caught
        assert str(folder / "2") + ":" in str(warning.message)
        assert f"Using the one before: {folder / '1'}" in str(warning.message)
        assert warning.filename == __file__
        assert_same_bits(got.tree, small(1))
        # The run goes on from there, and the damaged one is never met again.
        checkpoints.save_last(2, small(2), {})
        assert checkpoints.restore_last(small(0)).step == 2
    assert names(folder) == ["2", "2.1"]


def test_nothing_readable_is_an_error_that_lists_all(tmp_path):
    folder = saved(tmp_path, 1, 2, kind="best")
    flip(folder / "1")
    lose_manifest(folder / "2")
    with open_in(tmp_path) as checkpoints, pytest.raises(CheckpointError) as error:
        checkpoints.restore_best(small(0))
    assert str(folder / "1") in str(error.value)
    assert str(folder / "2") in str(error.value)
    assert "start from step 0" in str(error.value)


def test_target_that_does_not_fit_is_refused(tmp_path):
    saved(tmp_path, 1, 2)
    like = {"a": jnp.zeros((3, 50), jnp.bfloat16), "b": Slots(jnp.zeros((2,), jnp.int32), ())}
    with open_in(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="does not fit") as error:
            checkpoints.restore_last(like | {"c": jnp.ones(1)})
        assert str(error.value).splitlines()[1:-1] == [
            '  a: "float32[3, 50]" → "bfloat16[3, 50]"',
            '  b/count: "int32[]" → "int32[2]"',
            '  c: absent → "float32[1]"',
        ]
        with pytest.raises(ValueError, match=r"b/count: .* → absent"):
            checkpoints.restore_last({"a": small(0)["a"]})


@pytest.mark.parametrize(
    ("step", "tree", "extra", "error", "words"),
    [
        (-1, small(0), {}, ValueError, "at least 0"),
        (1.0, small(0), {}, TypeError, "float"),
        (1, {"x": 3.0}, {}, TypeError, "x is a float.*extra"),
        (1, {"k": jax.random.key(0)}, {}, TypeError, "k is a typed random key"),
        (1, {"o": np.array([None])}, {}, TypeError, "o holds Python objects"),
        (1, {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, {}, ValueError, "both called 'a/b'"),
        (1, {}, {}, ValueError, "no arrays"),
        (1, small(0), {"score": np.float32(3)}, TypeError, "extra must be made of JSON"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(tmp_path, step, tree, extra, error, words):
    with open_in(tmp_path) as checkpoints, pytest.raises(error, match=words):
        checkpoints.save_last(step, tree, extra)
    assert names(tmp_path) == ["config.json"]


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, not 0"):
        Checkpoints(tmp_path, config={}, keep=0)
    with pytest.raises(TypeError, match="config must be made of JSON"):
        Checkpoints(tmp_path, config={"folder": tmp_path})


def test_disk_without_room_is_refused_before_a_byte_is_written(tmp_path, monkeypatch):
    folder = saved(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    with monkeypatch.context() as patch, open_in(tmp_path) as checkpoints:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        checkpoints.save_last(2, small(2), {})
        with pytest.raises(CheckpointError, match="No space left") as error:
            checkpoints.wait()
        assert "last checkpoint of step 2" in str(error.value)
        assert f"step 1 in {folder / '1'}" in str(error.value)
        checkpoints.save_last(3, small(3), {})
        while not checkpoints._pending[0].done():
            time.sleep(0.01)
        with pytest.raises(CheckpointError, match="step 3"):  # the next save tells as well
            checkpoints.save_last(4, small(4), {})
        patch.undo()
        checkpoints.save_last(5, small(5), {})  # room was made
    assert names(folder) == ["1", "5"]


def test_failed_save_does_not_hide_what_stopped_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(RuntimeError, match="loss is not finite") as error, open_in(tmp_path) as c:
        c.save_last(1, small(1), {})
        raise RuntimeError("loss is not finite")
    assert "step 1 could not be written" in error.value.__notes__[0]
    with pytest.raises(CheckpointError, match="none yet"), open_in(tmp_path / "b") as c:
        c.save_last(1, small(1), {})


class Killed(BaseException):
    """Stands for a kill: no handler of the module may clean up after it."""


@pytest.mark.parametrize("repeated", [False, True])
def test_stopping_between_any_two_file_operations_loses_nothing(tmp_path, monkeypatch, repeated):
    start = tmp_path / "start"
    saved(start, 1, 2)
    new = 2 if repeated else 3
    stops = 0
    while True:
        folder = tmp_path / f"stop{stops}"
        shutil.copytree(start, folder)
        left = stops

        def interruptible(function):
            def call(*args, **kwargs):
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return function(*args, **kwargs)

            return call

        checkpoints = open_in(folder)
        with monkeypatch.context() as patch:
            for module, name in [(os, "rename"), (os, "replace"), (os, "fsync"), (os, "unlink")]:
                patch.setattr(module, name, interruptible(getattr(module, name)))
            for name in ("write_arrays", "write_manifest"):
                patch.setattr(checkpoint, name, interruptible(getattr(checkpoint, name)))
            patch.setattr(shutil, "rmtree", interruptible(shutil.rmtree))
            # In this thread, so that the patches meet no other work.
            arrays = {k: np.array(v) for k, v in checkpoint.named_leaves(small(-new)).items()}
            try:
                checkpoints._write("last", new, arrays, {})
                finished = True
            except Killed:
                finished = False
        for path in (folder / "last").glob("*[0-9]"):  # what can be seen is whole
            assert {"manifest.json", "arrays"} <= set(names(path))
            assert "manifest.ocdbt" in names(path / "arrays")
        with open_in(folder) as later:
            got = later.restore_last(small(0))  # a warning would be an error here
            assert_same_bits(got.tree, small(int(got.tree["b"].count)))
            assert int(got.tree["b"].count) in ((-new,) if finished else (2, -new))
            later.save_last(9, small(9), {})
            later.wait()
            assert all(name.partition(".")[0].isdigit() for name in names(folder / "last"))
            assert not any(name.endswith(checkpoint._RUBBISH) for name in names(folder / "last"))
        if finished:
            break
        stops += 1
    assert stops > 10


SAVER = """
import sys
import jax.numpy as jnp
from hopfax.train.checkpoint import Checkpoints

with Checkpoints(sys.argv[1], config={"a": 1}) as checkpoints:
    like = {"x": jnp.zeros((40, 1000)), "y": [jnp.zeros(3, jnp.int32)] * 20}
    restored = checkpoints.restore_last(like)
    step = restored.step if restored else 0
    print(step, flush=True)
    while True:
        step += 1
        tree = {"x": jnp.full((40, 1000), step, jnp.float32), "y": [jnp.full(3, step)] * 20}
        checkpoints.save_last(step, tree, {"step": step})
        checkpoints.save_best(step, tree, {"step": step})
"""


def run(program, *args, **kwargs):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


def test_real_kills_at_arbitrary_moments(tmp_path):
    begun = -1
    for pause in (0.71, 0.93, 1.27):
        process = run(SAVER, tmp_path)
        started = process.stdout.readline()
        assert started, process.stderr.read()
        assert int(started) > begun
        begun = int(started)
        deadline = time.monotonic() + 60
        while not (tmp_path / "best").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate()
        assert process.returncode == -signal.SIGKILL, stderr
    like = {"x": jnp.zeros((40, 1000)), "y": [jnp.zeros(3, jnp.int32)] * 20}
    with Checkpoints(tmp_path, config={"a": 1}) as checkpoints:
        for got in (checkpoints.restore_last(like), checkpoints.restore_best(like)):
            assert got.extra == {"step": got.step}
            assert all((np.asarray(leaf) == got.step).all() for leaf in jax.tree.leaves(got.tree))


FULL_DISK = """
import resource, signal, sys
import numpy as np
from hopfax.train.checkpoint import CheckpointError, Checkpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tree = {"x": np.random.default_rng(0).normal(size=30_000), "y": np.arange(3)}
with Checkpoints(sys.argv[1], config={"a": 1}) as checkpoints:
    checkpoints.save_last(1, tree, {})
    checkpoints.wait()
    for limit in (0, 1000, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        checkpoints.save_last(2, {"x": tree["x"] + 1, "y": tree["y"]}, {})
        try:
            checkpoints.wait()
        except CheckpointError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            print(error)
        restored = checkpoints.restore_last(tree)
        assert restored.step == 1 and (restored.tree["x"] == tree["x"]).all()
    checkpoints.save_last(3, tree, {})
"""


def test_writes_that_really_fail_leave_the_last_good_one(tmp_path):
    process = run(FULL_DISK, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("the last checkpoint of step 2 could not be written") == 3
    assert out.count(f"Last good one: step 1 in {tmp_path / 'last' / '1'}") == 3
    assert "File too large" in out
    assert names(tmp_path / "last") == ["1", "3"]


def test_restoring_says_nothing_when_all_is_well(tmp_path, capfd):
    saved(tmp_path, 1)
    with warnings.catch_warnings(), open_in(tmp_path) as checkpoints:
        warnings.simplefilter("error")
        checkpoints.restore_last(small(0))
    assert capfd.readouterr() == ("", "")
