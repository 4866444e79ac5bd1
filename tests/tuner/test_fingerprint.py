"""Under which name results of a job are kept, and where."""

from __future__ import annotations

import pytest

from ringtune.tuner.advice import Workload
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.study import default_storage


def test_the_memory_of_all_jobs_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_storage() == "/cache/ringtune/studies.db"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_storage() == "/home/me/.cache/ringtune/studies.db"


def test_the_fingerprint_knows_the_job() -> None:
    job, same = (JobDescription(world=2, versions=(("python", "3"),), searched=("fusion_bytes",)) for _ in range(2))
    work = Workload(collectives=10, bytes=1000)
    assert same.fingerprint(work) == job.fingerprint(work)
    for other in (JobDescription(world=3), JobDescription(world=2, hosts=2), JobDescription(world=2, cpu="other")):
        assert other.fingerprint(work) != job.fingerprint(work)
    assert job.fingerprint(Workload(10, 1001)) != job.fingerprint(work)
