"""How the jobs of `ringtune bench train` are started."""

from __future__ import annotations

import json
import os
import sys
import zlib
from dataclasses import asdict, replace

from ringtune.benchmarks.harness.environments import SUBJECT, Contenders, Setting
from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.peers import ALONE, Selection
from ringtune.benchmarks.harness.racejob import JobPlan
from ringtune.benchmarks.netlab.network import on_host
from ringtune.benchmarks.training.config import TrainRank

ONE = "one"
_SEED = 42
# In the namespaces of one network no other process takes ports.
_STORE_PORT = 29450
_STORE_PORTS = 1000
# ringtune as an optimizer and as DDP's backend, each a job of its own.
_SUBJECTS = (SUBJECT, "ringtune-ddp")


def training_plans(selection: Selection, setting: Setting) -> list[JobPlan]:
    """Returns the jobs of a race of trainings, ringtune's first."""
    ways = [*_SUBJECTS, *(way for spec in selection.peers for way in spec.contenders["train"].values())]
    plans = [start_training(way, setting, {way: way}) for way in ways]
    return [*plans, start_one(setting)] if ALONE in selection.contenders else plans


def start_training(way: str, setting: Setting, contenders: Contenders) -> JobPlan:
    """Returns how to start the ranks that train in one way; on this host ringtune's own through `ringtune run`."""
    store = setting.link / f"store-{way}"
    rank = TrainRank(way, setting.threads, _SEED, str(store), size=setting.ranks, device=setting.device)

    def commands(join: str) -> list[list[str]]:
        ranks = [replace(rank, rank=number) for number in range(setting.ranks)]
        worker = [sys.executable, "-m", "ringtune.benchmarks.training.train_worker", join]
        if setting.network is not None:
            port = _STORE_PORT + zlib.crc32(way.encode()) % _STORE_PORTS
            alone = [[*worker, json.dumps(asdict(one))] for one in ranks]
            return [on_host(setting.network, one, len(alone), port, words) for one, words in enumerate(alone)]
        if not way.startswith(SUBJECT):
            return [[*worker, json.dumps(asdict(one))] for one in ranks]
        run = [sys.executable, "-m", "ringtune.cli", "run", "-np", str(setting.ranks), "--no-run-dir"]
        return [[*run, *worker, json.dumps(asdict(rank))]]

    environ = {**os.environ, **thread_variables(setting.threads)}
    host = "127.0.0.1" if setting.network is None else setting.network.driver
    return JobPlan(way, contenders, setting.ranks, commands, environ, host)


def start_one(setting: Setting) -> JobPlan:
    """Returns how to start a single process that trains while all others sleep: what efficiency refers to."""
    return replace(start_training("alone", replace(setting, ranks=1), {ONE: "alone"}), name=ONE)
