"""Horovod's variables that ringtune has no twin of: accepted in silence, or with a sentence."""

from __future__ import annotations

HOROVOD_QUIET = frozenset(
    # Slots and addresses that Horovod's own launchers set for every worker: harmless here.
    {
        "CROSS_RANK", "CROSS_SIZE", "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "LOG_HIDE_TIME", "ELASTIC",
    }
)  # fmt: skip
"""Horovod's variables that are accepted in silence."""

HOROVOD_SENSELESS = {
    "CONTROLLER": "ringtune negotiates with its own controller",
    "CPU_OPERATIONS": "ringtune has one data plane of its own",
    "HIERARCHICAL_ALLGATHER": "the algorithm is chosen by the runtime",
    "TORUS_ALLREDUCE": "the algorithm is chosen by the runtime",
    "DISABLE_GROUP_FUSION": "groups are planned together with all other operations",
    "AUTOTUNE_WARMUP_SAMPLES": "set RINGTUNE_AUTOTUNE_WARMUP_STEPS, which counts steps",
    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the tuner learns the noise from its measurements",
    "BATCH_D2D_MEMCOPIES": "copies are always batched",
    "ENABLE_ASYNC_COMPLETION": "completion is always asynchronous",
    "ENABLE_XLA_OPS": "TensorFlow is not supported",
    "DISABLE_NVTX_RANGES": "no NVTX ranges are written",
    "ADASUM_MPI_CHUNK_SIZE": "MPI is not used",
    "MPI_THREADS_DISABLE": "MPI is not used",
    "CCL_CACHE": "oneCCL is not used",
    "GLOO_TIMEOUT_SECONDS": "set RINGTUNE_START_TIMEOUT or RINGTUNE_IDLE_TIMEOUT",
}
"""Horovod's variables that make no sense here: a warning says so once."""
