"""What Spark, Ray, Dask and interactive sessions share: their workers as ranks of a job.

An engine starts processes, tells where they are, carries values between them and starts again what dies. So ringtune
brings no service and searches no addresses there: the worker of rank 0 serves the store where the ranks meet, and
everything else is a rank's environment (`ringtune.engines.ranks`). What a function gave or how it failed comes back as
the engine's own result (`ringtune.engines.calls`).
"""
