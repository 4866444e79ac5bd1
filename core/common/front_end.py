"""The names of Horovod that do not depend on a framework, for front ends to have all of them: ``import *``."""

from __future__ import annotations

from ringtune.common.job import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ringtune.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ringtune.common.rank_info import (
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    size,
    start_timeline,
    stop_timeline,
)
from ringtune.common.reductions import Adasum, Average, Max, Min, Product, Sum
from ringtune.errors import HorovodInternalError
from ringtune.session import is_initialized

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "size",
    "start_timeline",
    "stop_timeline",
]
