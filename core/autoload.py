"""What torch loads at the end of ``import torch`` (entry-point group ``torch.backends``): it starts the recorder.

It does so in the jobs of ``ringtune record`` alone; in any other process it looks at one variable of the environment.
"""

from __future__ import annotations

import os
import sys

RECORD = "_RINGTUNE_RECORD"
"""Set in the jobs of ``ringtune record``. It does not begin with ``RINGTUNE_``, since it is no setting."""


def start() -> None:
    """Start the recorder where it is asked for; a failure is reported and costs the script nothing."""
    if not os.environ.get(RECORD):
        return
    try:
        from ringtune.torch import recorder

        recorder.start()
    except Exception as error:
        print(f"ringtune warning: this process is not recorded: {error}", file=sys.stderr, flush=True)
