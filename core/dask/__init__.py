"""Training on a Dask cluster: one rank in each worker process. distributed is imported by whoever has a client."""

from ringtune.dask.jobs import run

__all__ = ["run"]
