"""The custom call of the native runtime, registered with XLA; and what stands for it where XLA does not take it."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
from jax._src import effects

from ringtune import native

TARGET = "ringtune_collective"


class CollectiveEffect(effects.Effect):  # type: ignore[misc]
    """That a program communicates; ordered, so that JAX chains such operations by tokens."""

    def __str__(self) -> str:
        return "Collective"

    def __repr__(self) -> str:  # JAX shows it where it refuses such an effect: in programs of several devices
        return (
            "a collective of ringtune.jax, whose programs have one device: call it outside of jit, which takes sharded "
            "arrays, or give each device a rank of its own"
        )


EFFECT = CollectiveEffect()
for _allowed in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(CollectiveEffect)

_CHAINED_SINCE = (0, 5)
"""Versions of jaxlib before end the process when they meet a token among a custom call's operands."""


@functools.cache
def in_use() -> bool:
    """Return whether programs reach the runtime by the custom call; asked for the first time, register it.

    Else they call back into Python, which is slower: where jaxlib refuses the handler, and on a GPU.
    """
    if jax.default_backend() != "cpu":
        warnings.warn(
            f"ringtune.jax: inside jit, collectives on {jax.default_backend()} go through Python and the host's memory",
            stacklevel=2,
        )
        return False
    if tuple(int(part) for part in jax.lib.__version__.split(".")[:2]) < _CHAINED_SINCE:
        warnings.warn(
            f"ringtune.jax: jaxlib {jax.lib.__version__} cannot put custom calls in order: inside jit, collectives go "
            "through Python; with jaxlib 0.5 they do not",
            stacklevel=2,
        )
        return False
    try:
        _register(native.load().jax_handler())
    except Exception as error:  # whatever an unknown jaxlib says: the way through Python is left
        warnings.warn(
            f"ringtune.jax: jaxlib {jax.lib.__version__} does not take ringtune's handler ({error}): inside jit, "
            "collectives go through Python",
            stacklevel=2,
        )
        return False
    native.load().on_jax_failure(_forget_tokens)
    return True


def _register(handler: Any) -> None:
    try:
        from jax.ffi import register_ffi_target
    except ImportError:  # jax before 0.5
        from jax.extend.ffi import register_ffi_target
    register_ffi_target(TARGET, handler, platform="cpu")


_tokens: list[dict[str, Any]] = []
"""What JAX keeps for each thread that dispatches programs: among it the tokens that put them in order."""


def watch_tokens() -> None:
    """Take note of the tokens of the calling thread, which compiles a program."""
    from jax._src import dispatch

    mine = dispatch.runtime_tokens.__dict__
    if not any(known is mine for known in _tokens):
        _tokens.append(mine)


def _forget_tokens() -> None:
    """Let later programs run after one has failed: its token has failed too, and they would wait for it."""
    for tokens in _tokens:
        tokens.get("current_tokens", {}).pop(EFFECT, None)
