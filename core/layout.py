"""Names inside a run folder: the one module that knows which file lies where.

A job writes everything it leaves behind into one folder, ``runs/<name>-<YYYYmmdd-HHMMSS>/``. Writers (launcher,
ranks, tuner, benchmarks) and readers (timeline, dashboard) meet only through these names. Pure: nothing here
touches the disk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
"""Version of the folder's layout, written as ``format`` into every JSON document."""

OLD_KEYS = {"epoch": "knobs_version", "plan": "step_schedule"}
"""Keys of traces, step logs, journals and knobs in files of earlier versions, and the keys that stand for them."""

RUNS_FOLDER = "runs"
RUN_FILE = "run.json"
MACHINE_FOLDER = "machine"
TIMELINE_FOLDER = "timeline"
TIMELINE_FILE = "timeline.json"
PART_SUFFIX = ".spans"
"""How the name of a rank's part of the timeline ends; ``.gz`` follows where it is packed."""
PART_SUFFIXES = (PART_SUFFIX, f"{PART_SUFFIX}.gz", ".json", ".json.gz")
"""Those of all parts: versions before 2 wrote JSON."""
SHOWN_FILE = "shown.json"
"""Beside the parts: rank 0's spans as a Chrome trace, for who looks while the job runs."""
STEPS_FOLDER = "steps"
SAMPLES_FOLDER = "samples"
TUNING_FOLDER = "tuning"
JOURNAL_FILE = "journal.jsonl"
STUDY_FILE = "study.db"
TORCH_FILE = "torch.json"
SCALING_FOLDER = "scaling"
LOGS_FOLDER = "logs"
STACKS_FOLDER = "stacks"

RANK_FOLDERS = (MACHINE_FOLDER, TIMELINE_FOLDER, STEPS_FOLDER, SAMPLES_FOLDER, LOGS_FOLDER, STACKS_FOLDER)
"""Folders that hold one file a rank."""
RANK_FILES = "rank-*"
"""Pattern of those files."""

_RANK_IN_NAME = re.compile(r"^rank-(\d{5,})\.")


def rank_stem(rank: int) -> str:
    """Return the stem shared by all per-rank files, for example ``rank-00003``."""
    return f"rank-{rank:05d}"


def rank_of(path: Path) -> int:
    """Return the rank named by a per-rank file.

    Raises:
        ValueError: The file's name is not ``rank-NNNNN.<suffix>``.
    """
    match = _RANK_IN_NAME.match(path.name)
    if match is None:
        raise ValueError(f"{path}: not a per-rank file (expected rank-NNNNN.<suffix>)")
    return int(match.group(1))


def run_file(run: Path) -> Path:
    """Description of the run: command, times, status, configuration."""
    return run / RUN_FILE


def torch_file(run: Path) -> Path:
    """What a job that ringtune does not carry is: its backend of torch.distributed, and what DDP was made with."""
    return run / TORCH_FILE


def machine_file(run: Path, rank: int) -> Path:
    """Description of a rank's machine."""
    return run / MACHINE_FOLDER / f"{rank_stem(rank)}.json"


def timeline_part(run: Path, rank: int) -> Path:
    """The rank's own part of the timeline (records, times on that host's monotonic clock)."""
    return run / TIMELINE_FOLDER / f"{rank_stem(rank)}{PART_SUFFIX}"


def timeline_parts(run: Path) -> Path:
    """Folder that holds the parts of all ranks."""
    return run / TIMELINE_FOLDER


def shown_file(run: Path) -> Path:
    """Rank 0's spans as a Chrome trace while the job runs (`ringtune.live_timeline`)."""
    return run / TIMELINE_FOLDER / SHOWN_FILE


def timeline_file(run: Path) -> Path:
    """The merged timeline of all ranks (unless the user named another file)."""
    return run / TIMELINE_FILE


def step_log(run: Path, rank: int) -> Path:
    """Step statistics of a rank, one JSON object a line."""
    return run / STEPS_FOLDER / f"{rank_stem(rank)}.jsonl"


def step_logs(run: Path) -> Path:
    """Folder that holds the step statistics of all ranks."""
    return run / STEPS_FOLDER


def sample_log(run: Path, rank: int) -> Path:
    """What a rank's process and machine used, one JSON object a sample and line; never larger than a few MiB."""
    return run / SAMPLES_FOLDER / f"{rank_stem(rank)}.jsonl"


def sample_logs(run: Path) -> Path:
    """Folder that holds the samples of all ranks."""
    return run / SAMPLES_FOLDER


def tuning_journal(run: Path) -> Path:
    """The tuner's events, one JSON object a line."""
    return run / TUNING_FOLDER / JOURNAL_FILE


def tuning_study(run: Path) -> Path:
    """Optuna's SQLite study, when the user names no other storage."""
    return run / TUNING_FOLDER / STUDY_FILE


def scaling_folder(run: Path) -> Path:
    """Folder of the scaling records."""
    return run / SCALING_FOLDER


def scaling_file(run: Path, name: str) -> Path:
    """A scaling record of a benchmark."""
    return run / SCALING_FOLDER / f"{slug(name)}.json"


def log_file(run: Path, rank: int) -> Path:
    """What a rank printed, when the launcher was asked to keep it."""
    return run / LOGS_FOLDER / f"{rank_stem(rank)}.log"


def stack_file(run: Path, rank: int) -> Path:
    """Where a rank stands in Python that does not get on, or stood when it ended too early."""
    return run / STACKS_FOLDER / f"{rank_stem(rank)}.txt"


def stall_file(run: Path, rank: int) -> Path:
    """What waits for which ranks, on a rank that reported a stall which is not over."""
    return run / STACKS_FOLDER / f"{rank_stem(rank)}.json"


def slug(name: str) -> str:
    """Return name with everything but letters, digits, ``._-`` replaced by a dash; never empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def run_name(name: str, at_unix_ns: int) -> str:
    """Return the folder's name ``<name>-<YYYYmmdd-HHMMSS>`` (local time) for a run created at that moment."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(at_unix_ns / 1e9))
    return f"{slug(name)}-{stamp}"


def current_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a file without the keys of `OLD_KEYS`; where both are given, the new key's value counts."""
    names = {key: OLD_KEYS.get(key, key) for key in record}
    return {name: record[key] for key, name in names.items() if name == key or name not in record}


def is_run(folder: Path) -> bool:
    """Whether the folder looks like a run."""
    return (folder / RUN_FILE).is_file()
