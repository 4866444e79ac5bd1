"""The primitive behind all collectives inside ``jit``, ``grad`` and ``vmap``: one call on the leaves of a tree.

It has an ordered effect, so JAX chains all collectives of a program, and of the programs that a thread starts, whatever
functions, loops and branches they stand in: all ranks run them in one order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax._src.callback import _OrderedIOEffect
from jax._src.interpreters import batching, mlir
from jax._src.lib.mlir.dialects import hlo
from jax.extend.core import Primitive
from jax.interpreters import ad

from ringtune.common.call_plan import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from ringtune.common.reductions import Average, Sum
from ringtune.errors import InvalidArgument, NotSupported, RingtuneError
from ringtune.jax import eager, handler
from ringtune.jax.call import KINDS, Call, gradient_factor

collective_p = Primitive("ringtune_collective")
collective_p.multiple_results = True


def _impl(*leaves: Any, call: Call) -> list[Any]:
    return eager.run(call, leaves, fixed=True)


def _abstract(*leaves: Any, call: Call) -> tuple[list[Any], set[Any]]:
    results = [
        jax.core.ShapedArray(call.result_shape(leaf.shape, index), leaf.dtype) for index, leaf in enumerate(leaves)
    ]
    return results, {handler.EFFECT if handler.in_use() else _OrderedIOEffect}


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    if not handler.in_use():
        # JAX lets ordered callbacks into programs of several devices; XLA of jaxlib 0.4 ends the process there.
        if (devices := _devices_of(ctx.module_context.axis_context)) > 1:
            raise InvalidArgument(f"a program of {devices} devices has {handler.EFFECT!r}")
        through_python = mlir.lower_fun(_callback, multiple_results=True)
        return through_python(ctx, *operands, call=call)
    handler.watch_tokens()
    token = ctx.tokens_in.get(handler.EFFECT)

    def layouts(avals: Any) -> list[tuple[int, ...]]:
        return [(), *(tuple(reversed(range(len(aval.shape)))) for aval in avals)]

    places = range(1, 1 + len(operands))  # behind the token
    made = mlir.custom_call(
        handler.TARGET,
        result_types=[hlo.TokenType.get(), *(_type_of(aval) for aval in ctx.avals_out)],
        operands=[token, *operands],
        backend_config={"call": mlir.ir.StringAttr.get(call.text())},
        has_side_effect=True,
        api_version=4,
        operand_layouts=layouts(ctx.avals_in),
        result_layouts=layouts(ctx.avals_out),
        # A gradient that nothing else needs is replaced by its sum: no memory besides. XLA copies what is still needed.
        operand_output_aliases=dict(zip(places, places, strict=True)) if call.kind in (ALLREDUCE, BROADCAST) else {},
    )
    after, *results = made.results
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({handler.EFFECT: after})))
    return results


def _devices_of(axes: Any) -> int:
    """Return the number of devices of the program that is being made, by ``jit`` or by ``pmap``."""
    return int(axes.num_devices if hasattr(axes, "num_devices") else axes.axis_env.nreps)


def _type_of(aval: Any) -> Any:
    return mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(np.dtype(aval.dtype)))


def _callback(*leaves: Any, call: Call) -> Any:
    """Do the same through Python."""
    from jax.experimental import io_callback

    results = [
        jax.ShapeDtypeStruct(call.result_shape(leaf.shape, index), leaf.dtype) for index, leaf in enumerate(leaves)
    ]

    def ask(*arrays: Any) -> Any:
        try:
            return eager.exchange(call, arrays, fixed=True)
        except RingtuneError as error:  # in the handler's words: XLA passes on nothing but text
            raise RuntimeError(f"ringtune.{type(error).__name__}: {error}") from None

    return io_callback(ask, results, *leaves, ordered=True)


def _jvp(primals: Any, tangents: Any, *, call: Call) -> tuple[list[Any], list[Any]]:
    results = collective_p.bind(*primals, call=call)
    moving = [index for index, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    _check_differentiable(call)
    moved = collective_p.bind(*(tangents[index] for index in moving), call=call.of(moving, ".tangent"))
    after: list[Any] = [ad.Zero(_tangent_of(result)) for result in results]
    for index, one in zip(moving, moved, strict=True):
        after[index] = one
    return results, after


def _tangent_of(result: Any) -> Any:
    return result.aval.to_tangent_aval()


def _check_differentiable(call: Call) -> None:
    reduces = call.kind in (ALLREDUCE, REDUCESCATTER)
    if reduces and call.op not in (Sum, Average):
        raise NotSupported(
            f"{KINDS[call.kind]}: only Sum and Average have a gradient: stop it (jax.lax.stop_gradient) before Min, "
            "Max, Product and Adasum"
        )


def _transpose(cotangents: Any, *leaves: Any, call: Call) -> list[Any]:
    """Return what the leaves contribute to the sum of all ranks' results, as ``jax.lax``'s collectives do."""
    shapes = [leaf.aval.shape for leaf in leaves]
    given = [index for index, one in enumerate(cotangents) if type(one) is not ad.Zero]
    back = call.of(given, ".gradient")
    parts = [cotangents[index] for index in given]
    if call.kind == BROADCAST:
        back = replace(back, kind=ALLREDUCE, op=Sum, root=0)
    elif call.kind == ALLGATHER:
        if call.rows:
            raise NotSupported("the gradient of a reducescatter's gradient needs rows that the ranks divide")
        back = replace(back, kind=REDUCESCATTER, op=Sum)
    elif call.kind == REDUCESCATTER:
        factor = gradient_factor(call)
        parts = [part if factor == 1 else part * np.asarray(factor, part.dtype) for part in parts]
        rows = tuple(shapes[index][0] for index in given)
        even = all(row % call.members[0] == 0 for row in rows)
        back = replace(back, kind=ALLGATHER, op=Sum, factors=(1.0, 1.0), rows=() if even else rows)
    reduced = collective_p.bind(*parts, call=back) if given else []
    if call.kind == BROADCAST and call.rank != call.root:
        reduced = [jax.numpy.zeros_like(one) for one in reduced]
    found: list[Any] = [ad.Zero(leaf.aval) for leaf in leaves]
    for index, one in zip(given, reduced, strict=True):
        found[index] = one
    return found


def _batch(leaves: Any, dims: Any, *, call: Call) -> tuple[list[Any], list[Any]]:
    """Take a batch of trees in one call: its dimension goes along, behind the rows where these are exchanged."""
    by_rows = call.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER)
    moved = [by_rows and isinstance(dim, int) for dim in dims]  # not those that are no batch
    placed = [
        jax.numpy.moveaxis(leaf, dim, 1) if moves else leaf
        for leaf, dim, moves in zip(leaves, dims, moved, strict=True)
    ]
    after = [1 if moves else dim for dim, moves in zip(dims, moved, strict=True)]
    return collective_p.bind(*placed, call=call), after


collective_p.def_impl(_impl)
collective_p.def_effectful_abstract_eval(_abstract)
mlir.register_lowering(collective_p, _lower)
ad.primitive_jvps[collective_p] = _jvp
ad.primitive_transposes[collective_p] = _transpose
batching.primitive_batchers[collective_p] = _batch


def bind(call: Call, leaves: Any) -> list[Any]:
    """Return the results of the leaves, of which at least one is traced.

    Raises:
        InvalidArgument: A leaf has no rows where rows are exchanged.
    """
    if call.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER):
        for leaf, name in zip(leaves, call.names, strict=True):
            if len(leaf.shape) == 0:
                raise InvalidArgument(f"'{name}' of a scalar: it needs at least one dimension to split or join along")
            if call.kind == ALLTOALL and leaf.shape[0] % call.members[0]:
                raise InvalidArgument(
                    f"'{name}' of {leaf.shape[0]} rows: inside jit, {call.members[0]} ranks must divide them"
                )
    results: list[Any] = collective_p.bind(*leaves, call=call)
    return results
