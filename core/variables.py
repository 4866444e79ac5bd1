"""The table of environment variables: every name ringtune reads, with type, default, unit and meaning.

`ringtune.config` parses it; the README's table is held against it by a test.
"""

from __future__ import annotations

from ringtune.knobs import TABLE
from ringtune.output_variables import OUTPUT_VARIABLES
from ringtune.variable import Variable

TRANSPORTS = ("auto", "shm", "tcp", "mpi")
OVERLAPS = ("auto", "always", "never")
GPU_DATA_PATHS = ("auto", "nccl", "ring", "staged", "nccl-host")
CASTS = ("none", "fp16", "bf16")


_S = 1_000_000_000

VARIABLES: tuple[Variable, ...] = (
    # Rank and rendezvous of this process; set by a launcher.
    Variable("RANK", "rank", "int", None, "", "Rank of this process.", "RANK", 0),
    Variable("SIZE", "size", "int", None, "", "Number of ranks of the job.", "SIZE", 1),
    Variable("LOCAL_RANK", "local_rank", "int", None, "", "Rank among those of this host.", "LOCAL_RANK", 0),
    Variable("LOCAL_SIZE", "local_size", "int", None, "", "Number of ranks on this host.", "LOCAL_SIZE", 1),
    Variable("HOSTNAME", "hostname", "str", None, "", "Name of this host; ranks of one name share memory.", "HOSTNAME"),
    Variable("STORE", "store", "address", None, "host:port", "Rendezvous store through which the ranks meet."),
    Variable("JOB", "job", "str", None, "", "Name of the job, the same on all its ranks."),
    Variable(
        "SECRET",
        "secret",
        "secret",
        None,
        "",
        "What the processes of a job know and nobody else does; `ringtune run` makes one for each job.",
    ),
    Variable("SECRET_FILE", "secret_file", "path", None, "file", "File of mode 0600 that holds the secret."),
    Variable(
        "TLS_CERT",
        "tls_cert",
        "path",
        None,
        "file",
        "Certificate (PEM) of this process: TLS for the store and control.",
    ),
    Variable("TLS_KEY", "tls_key", "path", None, "file", "Private key (PEM) of that certificate."),
    Variable("TLS_CA", "tls_ca", "path", None, "file", "Certificates (PEM) of who has signed those of the job."),
    Variable("WORKER", "worker", "int", None, "", "Number of this process in an elastic job.", None, 0),
    Variable(
        "RESTART", "restart", "int", 0, "", "How often `ringtune run --restarts` has started the job again.", None, 0
    ),
    Variable("LAUNCHER", "launcher", "bool", False, "", "Set by `ringtune run`, which then serves the store."),
    *OUTPUT_VARIABLES,
    # Knobs.
    *(row.as_variable for row in TABLE),
    Variable(
        "ALGORITHM_TABLE",
        "algorithm_table",
        "path",
        None,
        "file",
        "Table that `ringtune bench allreduce --learn` wrote; rank 0's counts.",
    ),
    Variable(
        "OVERLAP",
        "overlap",
        "choice",
        "auto",
        "",
        "Repeated steps communicate in shared memory while they compute; auto: unless all cores of the host compute.",
        choices=OVERLAPS,
    ),
    # Settings that need no change of the script; `ringtune tune --restarts` tries them.
    Variable(
        "COMPRESSION",
        "compression",
        "choice",
        CASTS[0],
        "",
        "Dtype of gradients between hosts, where the script asks for no compression.",
        choices=CASTS,
    ),
    Variable("BUCKET_CAP_MB", "bucket_cap_mb", "int", None, "MiB", "DDP's bucket size, over the script's.", None, 1),
    Variable(
        "DDP_FIRST_BUCKET_MB", "first_bucket_mb", "float", None, "MiB", "Size of DDP's first bucket alone.", None, 0.001
    ),
    Variable("DDP_BUCKET_VIEW", "gradient_as_bucket_view", "bool", None, "", "DDP's gradients are views of buckets."),
    Variable(
        "DDP_STATIC_GRAPH",
        "static_graph",
        "bool",
        None,
        "",
        "DDP's `static_graph`, over the script's: a promise that each step uses the same parameters.",
    ),
    Variable(
        "FSDP_RESHARD",
        "reshard_after_forward",
        "bool",
        None,
        "",
        "FSDP2 frees parameters after each forward pass.",
    ),
    Variable("FSDP_PREFETCH", "prefetch", "int", None, "", "Modules whose parameters FSDP2 fetches ahead.", None, 0),
    Variable("LOADER_WORKERS", "num_workers", "int", None, "", "Workers of data loaders, over the script's.", None, 0),
    # Links.
    Variable("TRANSPORT", "transport", "choice", "auto", "", "Kind of links.", None, None, 1, TRANSPORTS),
    Variable("SOCKETS_PER_PEER", "sockets_per_peer", "int", 1, "", "TCP connections of a link between hosts.", None, 1),
    Variable(
        "TCP_CONGESTION", "tcp_congestion", "str", "auto", "", "Congestion control; auto: reno where the peer is near."
    ),
    Variable(
        "INTERFACE",
        "interface",
        "str",
        None,
        "names",
        "Network interface of links between hosts; of several, separated by commas, the first that is there.",
        "GLOO_IFACE",
    ),
    Variable(
        "INTERFACE_ADDRESS", "interface_address", "str", None, "address", "Local address that links between hosts use."
    ),
    Variable(
        "START_TIMEOUT",
        "start_timeout_ns",
        "float",
        120 * _S,
        "s",
        "How long `init` waits for the other ranks.",
        "START_TIMEOUT",
        0.001,
        _S,
    ),
    Variable(
        "ELASTIC_STATE",
        "elastic_state",
        "path",
        None,
        "folder",
        "Folder on each host's own disk, or in /dev/shm, that keeps an elastic state at its commits: a restart of all "
        "ranks goes on from there.",
    ),
    Variable(
        "ELASTIC_TIMEOUT",
        "elastic_timeout_ns",
        "float",
        600 * _S,
        "s",
        "How long an elastic job waits for enough ranks.",
        "ELASTIC_TIMEOUT",
        0.001,
        _S,
    ),
    Variable(
        "LIVENESS_TIMEOUT",
        "liveness_timeout_ns",
        "float",
        60 * _S,
        "s",
        "A rank that gives no sign of life for so long (its process is stopped, its host hangs) is lost; 0 = never.",
        None,
        0,
        _S,
    ),
    Variable(
        "IDLE_TIMEOUT",
        "idle_timeout_ns",
        "float",
        0,
        "s",
        "How long a running collective may stand still before it fails; 0 = for ever.",
        None,
        0,
        _S,
    ),
    Variable(
        "THREAD_AFFINITY",
        "thread_affinity",
        "cores",
        (),
        "core numbers",
        "Core of the runtime's thread, one per local rank, separated by commas.",
        "THREAD_AFFINITY",
    ),
    Variable(
        "DYNAMIC_PROCESS_SETS",
        "dynamic_process_sets",
        "bool",
        False,
        "",
        "Process sets may be added and removed after `init`.",
        "DYNAMIC_PROCESS_SETS",
    ),
    Variable("CUDA_DRIVER", "cuda_driver", "str", "", "library", "GPU driver to use instead of libcuda.so.1."),
    Variable("NCCL_LIBRARY", "nccl_library", "str", "", "library", "NCCL to use instead of the installed one."),
    Variable("GPU_PART_BYTES", "gpu_part_bytes", "int", 8 << 20, "bytes", "Size of host-staged parts.", None, 1),
    Variable("GPU_DATA_PATH", "gpu_data_path", "choice", "auto", "", "Data path for GPUs.", choices=GPU_DATA_PATHS),
    # Stall check.
    Variable(
        "STALL_CHECK_DISABLE",
        "stall_check_disable",
        "bool",
        False,
        "",
        "No warning about operations that some ranks do not submit.",
        "STALL_CHECK_DISABLE",
    ),
    Variable(
        "STALL_CHECK_TIME_SECONDS",
        "stall_warning_ns",
        "float",
        60 * _S,
        "s",
        "Age of an operation at which the warning is printed.",
        "STALL_CHECK_TIME_SECONDS",
        0.001,
        _S,
    ),
    Variable(
        "STALL_SHUTDOWN_TIME_SECONDS",
        "stall_shutdown_ns",
        "float",
        0,
        "s",
        "Age of an operation at which the job is ended; 0 = never.",
        "STALL_SHUTDOWN_TIME_SECONDS",
        0,
        _S,
    ),
    # Tuner.
    Variable("AUTOTUNE", "autotune", "bool", False, "", "Tune the knobs while training runs.", "AUTOTUNE"),
    Variable("AUTOTUNE_LOG", "autotune_log", "path", None, "file", "Table of all trials as CSV.", "AUTOTUNE_LOG"),
    Variable("AUTOTUNE_STUDY", "autotune_study", "str", None, "storage URL", "Optuna storage that keeps the study."),
    Variable(
        "AUTOTUNE_MAX_TRIALS",
        "autotune_max_trials",
        "int",
        None,
        "trials",
        "Most settings that are tried.",
        "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        1,
    ),
    Variable(
        "AUTOTUNE_STEPS_PER_TRIAL",
        "autotune_steps_per_trial",
        "int",
        None,
        "steps",
        "Steps measured in one trial.",
        "AUTOTUNE_STEPS_PER_SAMPLE",
        1,
    ),
    Variable(
        "AUTOTUNE_WARMUP_STEPS", "autotune_warmup_steps", "int", None, "steps", "Steps before the first trial.", None, 0
    ),
    Variable(
        "AUTOTUNE_BUDGET",
        "autotune_budget_ppm",
        "float",
        None,
        "% of the training time",
        "Most that the search may lose at any time; 0 = no bound [2].",
        None,
        0,
        10_000,
    ),
    Variable(
        "AUTOTUNE_HORIZON",
        "autotune_horizon",
        "int",
        None,
        "steps",
        "Steps over which a gain must pay for further trials [10000].",
        None,
        1,
    ),
    Variable("AUTOTUNE_SEED", "autotune_seed", "int", None, "", "Seed of the tuner's suggestions.", None, 0),
)
