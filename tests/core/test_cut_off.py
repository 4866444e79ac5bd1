"""A worker of an elastic job that has lost its launcher says so in a sentence and ends."""

from __future__ import annotations

import pytest

from ringtune import native
from ringtune.bootstrap.interfaces import loopback
from ringtune.elastic import keys
from ringtune.elastic.membership import Membership
from tests.conftest import needs

needs("ringtune._native")
SECRET = "a secret of the job"


def test_a_cut_off_worker_says_it_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    server = native.load().StoreServer(loopback(), 0, SECRET)
    store = native.load().StoreClient(loopback(), server.port, SECRET, 10_000_000_000)
    store.set(keys.assignment("job", 3, 1), b'{"leave": "its host has been taken from the job"}')
    member = Membership("job", 3, store)
    with pytest.raises(SystemExit) as left:
        member.next_assignment(1)
    assert left.value.code == 0
    server.close()
    with pytest.raises(SystemExit) as left:
        member.next_assignment(1)
    assert left.value.code == 1
    asked, lost = capsys.readouterr().err.splitlines()
    assert asked == "ringtune: worker 3 leaves the job: its host has been taken from the job"
    assert lost.startswith("ringtune: worker 3 leaves the job: it is cut off from the launcher (lost the store at ")
