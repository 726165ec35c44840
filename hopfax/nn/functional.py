"""Flax modules as pure functions of nested dicts of parameters."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from hopfax.cpu import fast_key

Module = TypeVar("Module", bound=nnx.Module)
Params = dict[str, Any]


class _Signature:
    """The signature of a constructor; instances have that of their `__call__`."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return inspect.signature(partial(owner.__init__, None))


class Layer(nnx.Module):
    """An `nnx.Module` that shows its constructor's arguments, which flax's metaclass hides."""

    __signature__ = _Signature()


class Functional(NamedTuple, Generic[Module]):
    """A module as two pure functions.

    Attributes:
        init: `init(key) -> params`; `vmap` it over keys for several seeds at once.
        apply: `apply(params, *inputs, method="__call__", **options)` calls the method of this name
            with these parameters. It is compiled once for every shape of the arrays and every value
            of boolean, integer and string options.
        build: `build(rngs=rngs)` returns the module.
        config: The module's `config`, if it has one, such as an `EncoderConfig`.
    """

    init: Callable[[PRNGKeyArray], Params]
    apply: Callable[..., Any]
    build: Callable[..., Module] | None = None
    config: Any = None


def functional(build: Callable[..., Module]) -> Functional[Module]:
    """Returns a module as pure functions, which can be pickled if `build` can.

    Args:
        build: `build(rngs=rngs)` returns the module, whose only state is parameters drawn from the
            rngs; a class with its other arguments as `functools.partial`, or a function.

    Example:
        >>> from functools import partial
        >>> import jax
        >>> from flax import nnx
        >>> from hopfax.nn import functional
        >>> model = functional(partial(nnx.Linear, 3, 2))
        >>> params = model.init(jax.random.key(0))
        >>> sorted(params), model.apply(params, jax.numpy.ones(3)).shape
        (['bias', 'kernel'], (2,))
    """
    network = _Network(build)
    return Functional(network.init, network.apply, build, network.config)


class _Keys:
    """The keys of `nnx.Rngs(key)`, of any stream; tracing these takes a fifth of the time."""

    def __init__(self, key: PRNGKeyArray):
        self._key, self._count = key, 0

    def __getattr__(self, stream: str) -> Callable[[], PRNGKeyArray]:
        if stream.startswith("__"):
            raise AttributeError(stream)
        if hasattr(nnx.RngStream, stream):  # a method that draws, such as `normal`
            return partial(getattr(jax.random, stream), self())
        return self

    def __call__(self) -> PRNGKeyArray:
        self._count += 1
        return jax.random.fold_in(self._key, self._count - 1)


class _Network(Generic[Module]):
    """Pickled as `build`: flax's modules hold functions that cannot be pickled."""

    def __init__(self, build: Callable[..., Module]):
        module = nnx.eval_shape(lambda: build(rngs=_Keys(jax.random.key(0))))
        self.build, self.config = build, getattr(module, "config", None)
        self.graphdef, params = nnx.split(module, nnx.Param)
        self.names = {*flatten(nnx.to_pure_dict(params))}
        # Of this object, so that compiled programs are freed with the model.
        self.call = jax.jit(self._call, static_argnums=(0, 1))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.build,)

    def init(self, key: PRNGKeyArray) -> Params:
        return nnx.to_pure_dict(nnx.split(self.build(rngs=_Keys(fast_key(key))), nnx.Param)[1])

    def apply(self, params: Params, *inputs: Any, method: str = "__call__", **options: Any) -> Any:
        fixed = {n: options.pop(n) for n in [*options] if isinstance(options[n], bool | int | str)}
        return self.call(method, (*fixed.items(),), params, inputs, options)

    def _call(
        self, method: str, fixed: Any, params: Params, inputs: Any, options: dict[str, Any]
    ) -> Any:
        if wrong := sorted({*flatten(params)} ^ self.names):
            kind = "no" if wrong[0] in self.names else "unknown"
            raise ValueError(f"params must have the model's names, got {kind} {wrong[0]}")
        module = nnx.merge(self.graphdef, params)
        return getattr(type(module), method)(module, *inputs, **dict(fixed), **options)


class Compiled:
    """`call` is a function under `jax.jit`; unlike jitted functions, this can be pickled."""

    def __init__(self, fn: Callable[..., Any], static: tuple[int, ...] = ()):
        self._arguments, self.call = (fn, static), jax.jit(fn, static_argnums=static)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


def scan_modules(
    fn: Callable[[Module, Any, Array], tuple[Any, Any]], modules: Sequence[Module], carry: Any
) -> tuple[Any, Any]:
    """Calls modules of one kind in sequence, with rematerialization in the backward pass.

    The memory is that of the carries and of one call.

    Args:
        fn: `fn(module, carry, number) -> (carry, output)`.
        modules: At least one, all with parameters of the same shapes.
        carry: Input of the first module.

    Returns:
        The last carry, and the outputs stacked.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from hopfax.nn.functional import scan_modules
        >>> layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(seed)) for seed in range(3)]
        >>> x, sums = scan_modules(lambda layer, x, _: (layer(x), x.sum()), layers, jnp.ones(2))
        >>> x.shape, sums.shape
        ((2,), (3,))
    """
    graphdef, _ = nnx.split(modules[0], nnx.Param)
    params = [nnx.to_pure_dict(nnx.split(module, nnx.Param)[1]) for module in modules]

    @jax.checkpoint
    def body(carry: Any, layer: tuple[Array, Params]) -> tuple[Any, Any]:
        number, params = layer
        return fn(nnx.merge(graphdef, params), carry, number)

    # XLA's compiler for CPUs undoes `jax.checkpoint` without a loop.
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return jax.lax.scan(body, carry, (jnp.arange(len(modules)), stacked))


def flatten(params: Params, separator: str = ".") -> dict[str, Any]:
    """Returns the leaves by their paths, in the order of `jax.tree.leaves`.

    Example:
        >>> from hopfax.nn.functional import flatten
        >>> flatten({"norm": {"scale": 1.0}, "blocks": {0: {"bias": 0.0}}})
        {'blocks.0.bias': 0.0, 'norm.scale': 1.0}
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(p, simple=True, separator=separator): leaf for p, leaf in leaves}
