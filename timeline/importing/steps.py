"""Steps of profiles that mark none: PyTorch's profiler records every call of an optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringtune.timeline.reading.foreign import with_steps
from ringtune.timeline.spans import Trace, concatenate
from ringtune.timeline.vocabulary import STEP_NAME, Stage

_OPTIMIZER = "Optimizer.step#"


def with_optimizer_steps(trace: Trace) -> Trace:
    """Return a trace with a step from each end of an optimizer's call to the next, if it has no steps.

    Of several optimizers the first one recorded counts. Steps are numbered from 0, the trace's begin.
    """
    spans = trace.spans
    code = next((code for code, name in enumerate(spans.names) if name.startswith(_OPTIMIZER)), None)
    if code is None or spans.in_stage(Stage.STEP).any():
        return trace
    calls = spans.take(spans.name == code)
    calls = calls.take(np.argsort(calls.end_ns, kind="stable"))
    steps = replace(
        calls,
        begin_ns=np.append(spans.begin_ns.min(), calls.end_ns[:-1]),
        end_ns=calls.end_ns,
        stage=np.full_like(calls.stage, Stage.STEP),
        step=np.arange(len(calls), dtype=np.int64),
        name=np.zeros_like(calls.name),
        names=(STEP_NAME,),
    )
    return replace(trace, spans=with_steps(concatenate([spans, steps])))
