"""Variables of the environment for what a job writes: run folder, timeline, metrics, alerts, messages."""

from __future__ import annotations

from ringtune.variable import Variable

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
DETAILS = ("normal", "full")
_S = 1_000_000_000

OUTPUT_VARIABLES: tuple[Variable, ...] = (
    Variable("RUN_DIR", "run_dir", "path", None, "folder", "Run folder that receives everything the job writes."),
    Variable(
        "SAMPLE_SECONDS",
        "sample_ns",
        "float",
        _S,
        "s",
        "Period of samples of CPU, memory, network and GPU while there is a run folder; 0 = never.",
        None,
        0,
        _S,
    ),
    Variable(
        "METRICS_PORT",
        "metrics_port",
        "int",
        None,
        "",
        "Rank 0 serves metrics of all ranks for Prometheus on this port; 0 = any that is free.",
        None,
        0,
    ),
    Variable(
        "ALERT_LATE_PERCENT",
        "alert_late_ppm",
        "float",
        0,
        "%",
        "Alert when a rank computes longer than the others (median) by this much; 0 = never.",
        None,
        0,
        10_000,
    ),
    Variable(
        "ALERT_SLOWER_PERCENT",
        "alert_slower_ppm",
        "float",
        0,
        "%",
        "Alert when steps take longer than in the last run of the same name by this much; 0 = never.",
        None,
        0,
        10_000,
    ),
    Variable("ALERT_WEBHOOK", "alert_webhook", "str", "", "URL", "Alerts, stalls too, go there as JSON by POST."),
    Variable("METRICS_HOST", "metrics_host", "str", "127.0.0.1", "address", "Where rank 0 serves them."),
    Variable("TIMELINE", "timeline", "path", None, "file", "Record all ranks and merge into this file.", "TIMELINE"),
    Variable(
        "TIMELINE_MARK_CYCLES",
        "timeline_mark_cycles",
        "bool",
        False,
        "",
        "Mark the runtime's cycles in the timeline.",
        "TIMELINE_MARK_CYCLES",
    ),
    Variable(
        "TIMELINE_STEPS",
        "timeline_steps",
        "steps",
        (),
        "FIRST:END,...",
        "Record only these steps: the first, and the first that is not.",
    ),
    Variable(
        "TIMELINE_DETAIL",
        "timeline_detail",
        "choice",
        DETAILS[0],
        "",
        "Full: also the pieces of every batch, and whose data they waited for.",
        choices=DETAILS,
    ),
    Variable("TIMELINE_GZIP", "timeline_gzip", "bool", False, "", "Pack the parts of the timeline while recording."),
    Variable(
        "TIMELINE_ROTATE_BYTES",
        "timeline_rotate_bytes",
        "int",
        0,
        "bytes",
        "A part that has become so large (before packing) is followed by another file; 0 = never.",
        None,
        0,
    ),
    Variable(
        "LOG_LEVEL", "log_level", "choice", "warning", "", "Least severity printed.", "LOG_LEVEL", None, 1, LOG_LEVELS
    ),
    Variable("CHECK", "check", "bool", False, "", "Compare all gradients bit by bit over the ranks, every step."),
    Variable("TRACEBACK", "traceback", "bool", False, "", "The command line shows where an error was raised."),
)
