"""What changes would give a traced job, for `ringtune timeline doctor`: a few of the model's usual questions."""

from __future__ import annotations

from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.doctor.outlook import Outlook, Prospect
from ringtune.timeline.runs.records import Estimate
from ringtune.timeline.spans import Trace
from ringtune.tuner.model.adopt import World, adopt, foreign
from ringtune.tuner.model.assumed import assumptions, believed
from ringtune.tuner.model.calibrate import calibrate
from ringtune.tuner.model.questions import Change, ask


def foresee(trace: Trace, name: str) -> Outlook:
    """Predict a step of the job as it is, on a faster network, without late ranks, and on twice the ranks.

    Raises:
        RingtuneError: The trace has nothing to fit the model to, or the model does not give back the job itself.
    """
    try:
        ours = adopt(trace, World()) if foreign(trace) else trace
    except UsageError as error:
        raise RingtuneError(f"{error} (ringtune predict)") from None
    model = believed(calibrate(ours, name or "the job"))
    ranks = model.cluster.ranks
    changes = (
        Change("as it is", ranks=ranks),
        Change("network twice as fast", ranks=ranks, network=2.0),
        Change("no rank later than the average", ranks=ranks, even=True),
        Change(f"{2 * ranks} ranks", ranks=2 * ranks),
    )
    answers = [ask(model, change) for change in changes]
    prospects = [
        Prospect(answer.change.label, Estimate(answer.step_ns.value, answer.step_ns.low, answer.step_ns.high))
        for answer in answers
    ]
    assumed = assumptions(model, across=any(answer.hosts > 1 for answer in answers))
    return Outlook(tuple(prospects), (assumed,) if assumed else ())
