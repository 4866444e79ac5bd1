"""Several ranks under a notebook: engines of ipyparallel that stay in a job between cells.

`%load_ext ringtune` brings the command `%ringtune` (`ringtune.interactive.magics`); `Ranks` is the same from Python.
"""

from ringtune.interactive.session import Ranks

__all__ = ["Ranks"]
