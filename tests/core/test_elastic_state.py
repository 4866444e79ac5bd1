"""Elastic state, sampler and loop in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.common.elastic import HostUpdateResult, ObjectState, notification_manager, run_fn
from ringtune.common.exceptions import HostsUpdatedInterrupt
from ringtune.errors import HorovodInternalError, PeerLost
from ringtune.torch.elastic import ElasticSampler, TorchState


@pytest.fixture(autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def plain(**values: Any) -> ObjectState:
    return ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, **values)


def test_restore_returns_to_the_last_commit() -> None:
    state = plain(batch=0, seen=[1])
    state.batch = 3
    state.seen.append(2)
    state.commit()
    state.batch = 4
    state.seen.append(3)
    state.restore()
    assert (state.batch, state.seen) == (3, [1, 2])


def test_restore_before_a_commit_returns_to_the_first_values() -> None:
    state = plain(batch=7)
    state.batch = 9
    state.restore()
    assert state.batch == 7


def test_sync_takes_what_rank_0_has() -> None:
    state = ObjectState(bcast_object=lambda value: {"batch": 5}, get_rank=lambda: 1, batch=1)
    state.sync()
    assert state.batch == 5
    state.batch = 6
    state.restore()
    assert state.batch == 5


@pytest.mark.parametrize(
    ("results", "skips"),
    [
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),
    ],
)
def test_news_of_hosts_interrupt_at_the_commit(results: list[HostUpdateResult], skips: bool) -> None:
    state = plain(batch=1)
    state.batch = 2
    for number, result in enumerate(results, 1):
        state.on_hosts_updated(number, result)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is skips
    state.restore()
    assert state.batch == 2
    state.check_host_updates()  # each news interrupts once


def test_a_fixed_job_asks_nobody_at_a_commit() -> None:
    def broadcast(value: object) -> object:
        raise AssertionError("no communication was expected")

    state = ObjectState(bcast_object=broadcast, get_rank=lambda: 0, batch=1)
    state.commit()


def test_reset_forgets_old_news_and_calls_back() -> None:
    state = plain(batch=1)
    called: list[str] = []
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_reset()
    state.commit()
    assert called == ["a", "b"]


def test_model_and_optimizer_return_to_the_commit() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = TorchState(model=model, optimizer=optimizer, batch=0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.batch += 1

    step()
    state.commit()
    weight = model.weight.detach().clone()
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    step()
    assert not torch.equal(model.weight, weight)
    state.restore()
    assert torch.equal(model.weight, weight)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
    step()
    state.restore()  # the copy is still as it was saved
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moments)
    assert state.batch == 1


def test_a_new_model_is_kept_from_the_moment_it_is_set() -> None:
    state = TorchState(model=torch.nn.Linear(2, 1))
    state.model = torch.nn.Linear(3, 1)
    weight = state.model.weight.detach().clone()
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    assert torch.equal(state.model.weight, weight)


def test_sampler_goes_on_in_the_middle_of_an_epoch() -> None:
    sampler = ElasticSampler(range(10), shuffle=False)
    assert list(sampler) == list(range(10)) and len(sampler) == 10
    sampler.record_batch(0, 4)
    saved = sampler.state_dict()
    assert saved == {"epoch": 0, "processed_num": 4}
    other = ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(saved)
    assert list(other) == [4, 5, 6, 7, 8, 9]
    other.set_epoch(1)
    assert other.processed_num == 0 and list(other) == list(range(10))


def test_sampler_shuffles_each_epoch_in_its_own_order() -> None:
    sampler = ElasticSampler(range(50), seed=3)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(first) == list(range(50))
    assert list(sampler) != first
    assert list(ElasticSampler(range(50), seed=3)) == first


@pytest.mark.parametrize(("length", "ranks"), [(10, 3), (1, 4), (7, 7), (0, 2), (2, 5)])
def test_sampler_covers_everything_and_gives_all_ranks_equally_many(
    monkeypatch: pytest.MonkeyPatch, length: int, ranks: int
) -> None:
    parts = []
    for rank in range(ranks):
        sampler = ElasticSampler(range(length), shuffle=False)
        sampler.num_replicas, sampler.rank = ranks, rank
        sampler.num_samples = -(-length // ranks)
        sampler.total_size = sampler.num_samples * ranks
        parts.append(list(sampler))
    assert {len(part) for part in parts} == {-(-length // ranks)}
    assert {index for part in parts for index in part} == set(range(length))


def test_state_with_a_sampler_follows_a_reset() -> None:
    sampler = ElasticSampler(range(10), shuffle=False)
    state = TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert list(sampler) == [4, 5, 6, 7, 8, 9]


def looped(failures: list[BaseException], state: ObjectState, *, commits: bool = True) -> tuple[Any, list[str]]:
    """Run a function that raises these failures in turn; return its result and what the loop did."""
    log: list[str] = []

    def train(state: ObjectState, word: str) -> str:
        log.append("train")
        if commits:
            state.commit()
        if failures:
            raise failures.pop(0)
        return word

    return run_fn(train, lambda: log.append("reset"))(state, "result"), log


@pytest.mark.parametrize("failure", [HorovodInternalError("x"), HostsUpdatedInterrupt(True), HostsUpdatedInterrupt()])
def test_the_loop_tries_again(failure: BaseException) -> None:
    result, log = looped([failure], plain(batch=0))
    assert result == "result"
    assert log == ["train", "reset", "train"]
    assert notification_manager._listeners == []


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError):
        looped([KeyError("x")], plain(batch=0))


def test_a_lost_rank_of_a_fixed_job_is_not_waited_for() -> None:
    with pytest.raises(PeerLost):
        looped([PeerLost("rank 1 died")], plain(batch=0))


def test_the_same_failure_without_progress_ends() -> None:
    with pytest.raises(HorovodInternalError):
        looped([HorovodInternalError("x")] * 3, plain(batch=0), commits=False)
    result, _ = looped([HorovodInternalError("x")] * 7, plain(batch=0))
    assert result == "result"


@pytest.mark.parametrize(("failures", "syncs"), [(0, 1), (1, 2), (10, 1)])
def test_ranks_that_lose_one_while_they_meet_meet_again(
    failures: int, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is taken over anew then, since the one that is missing was replaced."""
    monkeypatch.setattr(type(notification_manager), "active", property(lambda _: True))
    monkeypatch.setattr(notification_manager, "poll", lambda: None)
    state, log = plain(batch=0), list[str]()
    monkeypatch.setattr(state, "sync", lambda: log.append("sync"))
    left, interrupts = [PeerLost("rank 1 on a ended")] * failures, [HostsUpdatedInterrupt(True)]

    def train(state: ObjectState) -> None:
        if interrupts:
            raise interrupts.pop()

    def reset() -> None:
        if left:
            raise left.pop()

    if failures == 10:
        with pytest.raises(PeerLost):
            run_fn(train, reset)(state)
    else:
        run_fn(train, reset)(state)
    assert log == ["sync"] * syncs
