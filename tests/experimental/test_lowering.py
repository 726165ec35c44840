"""The kernels compile to Triton's IR, for which no GPU is needed."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from hopfax import experimental, nn

# Of jax 0.12: "will be removed in a future version".
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(experimental.retrieval, "_on_gpu", lambda: True)


@pytest.fixture
def lowered():
    """`lowered(fn, *shapes)` is the program that `fn` becomes for CUDA."""
    device = jax.sharding.AbstractDevice(
        device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu"
    )

    def lowered(fn, *shapes):
        axes = {"axis_names": ("devices",), "axis_types": (AxisType.Auto,)}
        mesh = AbstractMesh((1,), **axes, abstract_device=device)
        # Newer versions of jax require the device; older ones guess.
        with jax.sharding.use_abstract_mesh(mesh):
            traced = jax.jit(fn).trace(*shapes)
            try:
                return traced.lower(lowering_platforms=("cuda",)).as_text()
            except (ImportError, AttributeError, RuntimeError) as error:
                pytest.skip(f"this jaxlib cannot lower for CUDA without a GPU: {error}")

    return lowered


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("count", "width"), [(1, 1), (33, 5), (130, 64), (512, 128)])
def test_forward_and_backward_under_vmap(lowered, dtype, count, width):
    x = jax.ShapeDtypeStruct((3, 2, count, width), dtype)
    mask = jax.ShapeDtypeStruct((3, count), bool)

    def total(query, keys, values, mask):
        def one(query, keys, values, mask):
            return experimental.retrieve_head(query, keys, values, beta=0.3, mask=mask).values

        heads = jax.vmap(one, in_axes=(0, 0, 0, None))
        return jnp.sum(jax.vmap(heads)(query, keys, values, mask).astype(jnp.float32) ** 2)

    text = lowered(jax.grad(total, argnums=(0, 1, 2)), x, x, x, mask)
    assert text.count("triton") == 2, "one call for the search, one for the adjoint"
    assert "stablehlo.while" not in text, "no loop is left to XLA"


def test_products_keep_the_precision_of_float32():
    def kernel(dtype):
        x = jax.ShapeDtypeStruct((16, 16), dtype)
        return str(jax.make_jaxpr(partial(experimental.retrieve_head, beta=0.3))(x, x, x))

    # Scores and mean, in a step and in the read-out; in bfloat16 each is a sum of three.
    assert kernel(jnp.float32).count("TF32_TF32_F32_X3") == 4
    assert kernel(jnp.bfloat16).count("dot_general") == 12


def test_training_steps_of_several_seeds_take_the_kernel(lowered):
    sizes = {"width": 16, "num_layers": 2, "ff_width": 16, "max_length": 16}
    model = nn.robertha(50, 2, implementation="pallas", **sizes)
    keys = jax.eval_shape(jax.random.split, jax.random.key(0))
    params = jax.eval_shape(jax.vmap(model.init), keys)
    ids = jax.ShapeDtypeStruct((2, 4, 12), jnp.int32)

    def loss(params, ids, key):
        return jnp.sum(model.apply(params, ids, ids > 0, key=key).logits ** 2)

    text = lowered(jax.vmap(jax.grad(loss)), params, ids, keys)
    assert text.count("triton") == 2, "search and adjoint, which both layers call"
    assert "stablehlo.while" not in text
    assert "tensor<2x4x2x16x" in text, "seeds, texts, heads, tokens"
