import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from hopfax.train.checkpoint import CheckpointError, Checkpoints, CheckpointWarning

CONFIG = {"seed": 23, "optimizer": {"rate": 2e-5, "clip": 1.0}}
FULL_DISK = """
import resource, signal, sys
import numpy as np
from hopfax.train.checkpoint import Checkpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tree = {"x": np.random.default_rng(0).normal(size=30_000), "y": np.arange(3)}
try:
    with Checkpoints(sys.argv[1], config={}) as checkpoints:
        checkpoints.save(1, tree)
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        checkpoints.save(2, {"x": tree["x"] + 1, "y": tree["y"]})
        raise RuntimeError("loss is not finite")
except RuntimeError as error:  # not hidden by the save that failed
    print(error, *error.__notes__)
"""


def small(step):
    """A tree whose leaves all depend on the step."""
    return {"a": jnp.full((3, 50), step, jnp.float32), "b": [jnp.int32(step), ()]}


def open_in(folder, **changes):
    return Checkpoints(folder, config=CONFIG | changes)


def save_steps(folder, *steps):
    with open_in(folder) as checkpoints:
        for step in steps:
            checkpoints.save(step, small(step))
    return folder / "checkpoints"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_dtype_and_optimizer_state_comes_back_bit_for_bit(tmp_path, capfd):
    params = {
        "half": jnp.arange(15, dtype=jnp.bfloat16),
        "odd": jnp.array([jnp.nan, -jnp.nan, -0.0, jnp.inf, 1e-42], jnp.float32),
        "layers": [jnp.ones((2, 2)), (jnp.zeros((1, 4), jnp.float16), None)],
    }
    tree = {
        "params": params,
        "optimizer": optax.adamw(lambda step: 0.1 * step).init(params),
        "step": jnp.int32(7),
        "flags": jnp.array([True, False, True]),
        "host": np.array([[1.5, -0.0]], np.float64),
    }
    with open_in(tmp_path) as checkpoints:
        assert checkpoints.restore(tree) is None
        checkpoints.save(7, tree)
        step, restored = checkpoints.restore(tree)
        assert step == 7 and tiny.same_bits(restored, tree)
        assert jax.tree.structure(restored) == jax.tree.structure(tree)
        assert isinstance(restored["host"], np.ndarray)
        # An abstract target is enough, and restored arrays are free to be moved and donated.
        like = tree | {"params": jax.eval_shape(lambda: params)}
        half = checkpoints.restore(like).tree["params"]["half"]
        assert isinstance(half, jax.Array) and not half.committed
        jax.jit(lambda x: x + 1, donate_argnums=0)(half)
        assert tiny.same_bits(checkpoints.restore(tree).tree, tree)
    assert capfd.readouterr() == ("", "")


def test_buffers_may_be_donated_or_overwritten_straight_after(tmp_path):
    tree = {"x": jnp.arange(200_000, dtype=jnp.float32), "host": np.arange(5)}
    saved = jax.tree.map(np.array, tree)
    with open_in(tmp_path) as checkpoints:
        checkpoints.save(1, tree)
        donated = tree["x"]
        tree["x"] = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(donated)
        assert donated.is_deleted()
        tree["host"][:] = -1
        assert tiny.same_bits(checkpoints.restore(tree).tree, saved)


def test_keeps_the_two_newest_steps(tmp_path):
    folder = save_steps(tmp_path, 2, 9, 10, 100)  # 10 > 9: steps are numbers, not names
    assert names(folder) == ["10", "100"]
    with open_in(tmp_path) as checkpoints:
        assert checkpoints.newest() == f"step 100 in {folder / '100'}"
        checkpoints.save(100, small(-1))  # replaces the step
        assert tiny.same_bits(checkpoints.restore(small(0)).tree, small(-1))


def test_another_config_is_an_error_that_names_each_difference(tmp_path):
    open_in(tmp_path)
    changes = {"optimizer": {"rate": 1e-4, "clip": 1.0, "decay": 0.01}, "tags": ("a",)}
    with pytest.raises(ValueError, match="choose another folder") as error:
        open_in(tmp_path, **changes)
    assert str(error.value).splitlines()[1:-1] == [
        "  optimizer/decay: absent → 0.01",
        "  optimizer/rate: 2e-05 → 0.0001",
        "  tags/0: absent → a",
    ]
    save_steps(tmp_path, 1)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is missing or not JSON"):
        open_in(tmp_path)


def flip(path):
    """Changes one bit of the largest file: the one with the numbers."""
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def lose_arrays(path):
    shutil.rmtree(path / "arrays")


def swap_arrays(path):
    """Valid for Orbax, but not what was saved: only the checksum can detect it."""
    shutil.rmtree(path / "arrays")
    shutil.copytree(path.parent / "1" / "arrays", path / "arrays")


@pytest.mark.parametrize("damage", [flip, lose_arrays, swap_arrays])
def test_a_damaged_newest_falls_back_with_a_warning(tmp_path, damage):
    folder = save_steps(tmp_path, 1, 3)
    damage(folder / "3")
    with open_in(tmp_path) as checkpoints:
        with pytest.warns(CheckpointWarning, match="Using step 1$") as warned:
            restored = checkpoints.restore(small(0))
        assert f"{folder / '3'}: " in str(warned[0].message)
        assert warned[0].filename == __file__
        assert tiny.same_bits(restored.tree, small(1))
        checkpoints.save(2, small(2))  # the run continues from step 1
        assert checkpoints.restore(small(0)).step == 2
    assert names(folder) == ["1", "2"]


def test_no_readable_checkpoint_is_an_error_that_lists_all(tmp_path):
    folder = save_steps(tmp_path, 1, 2)
    flip(folder / "1")
    lose_arrays(folder / "2")
    with open_in(tmp_path) as checkpoints, pytest.raises(CheckpointError) as error:
        checkpoints.restore(small(0))
    for part in (str(folder / "1"), str(folder / "2"), "start from step 0"):
        assert part in str(error.value)


def test_a_target_that_does_not_fit_is_an_error(tmp_path):
    save_steps(tmp_path, 1, 2)
    like = {"b": [jnp.zeros(2, jnp.int32)], "c": jnp.zeros((3, 50), jnp.bfloat16)}
    with open_in(tmp_path) as run, pytest.raises(ValueError, match="does not fit") as error:
        run.restore(like)
    assert str(error.value).splitlines()[1:-1] == [
        "  a: float32[3, 50] → absent",
        "  b/0: int32[] → int32[2]",
        "  c: absent → bfloat16[3, 50]",
    ]


def test_failed_writes_leave_the_last_complete_checkpoint(tmp_path):
    process = tiny.start(FULL_DISK, tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert out.startswith("loss is not finite a checkpoint could not be written")
    assert "File too large" in out
    assert f"Last complete one: step 1 in {tmp_path / 'checkpoints' / '1'}" in out
    tree = {"x": np.random.default_rng(0).normal(size=30_000), "y": np.arange(3)}
    with Checkpoints(tmp_path, config={}) as checkpoints:
        restored = checkpoints.restore(tree)
    assert restored.step == 1 and tiny.same_bits(restored.tree, tree)
