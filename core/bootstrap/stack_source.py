"""Lets the runtime read where this process stands in Python, for its report of a stall."""

from __future__ import annotations

import faulthandler
import signal
from contextlib import suppress
from pathlib import Path

from ringtune import native

_CANDIDATES = 8
_offered: set[int] = set()
"""The signal, once one was found."""


def offer() -> None:
    """Have `faulthandler` write the main thread's stack on a real-time signal that nobody uses; once in a process.

    The runtime sends it to its own process only, when a rank asks what holds this one up. `faulthandler` needs neither
    the interpreter's lock nor its attention, so a main thread in native code answers too. Without a free signal or
    descriptor there is no source, and a report says that it does not know where this rank stands.
    """
    if _offered:
        return
    module = native.load()
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMAX - 1 - _CANDIDATES, -1):
        try:
            descriptor = module.open_stack_source(number)
        except native.error_class():  # somebody handles this signal
            continue
        with suppress(ValueError, OSError, RuntimeError):
            faulthandler.register(number, file=descriptor, all_threads=False, chain=True)
            module.arm_stack_source(str(Path(__file__).parent.parent))
        _offered.add(number)
        return
