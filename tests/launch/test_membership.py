"""Who belongs to an elastic job: exact actions for exact events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.elastic.results import HostUpdateResult
from ringtune.launch.actions import Dismiss, GiveUp, Kill, Notify, Publish, Say, Start
from ringtune.launch.hosts import Host
from ringtune.launch.membership import Limits, Membership

HERE = [Host("a", 2)]


def started(limits: Limits, hosts: list[Host]) -> Membership:
    """A job whose first generation runs with every slot filled."""
    membership = Membership(limits)
    membership.discovered(hosts, 0.0)
    starts = [action for action in membership.take_actions() if isinstance(action, Start)]
    for action in starts:
        membership.ready(action.worker, 1.0)
    [publish] = membership.take_actions()
    assert publish == Publish(1, tuple(range(len(starts))))
    return membership


def test_all_slots_are_filled_and_ranks_follow_hosts() -> None:
    membership = Membership(Limits(2, 1))
    membership.discovered([Host("a", 2), Host("b", 1)], 0.0)
    assert membership.take_actions() == [Start(0, "a"), Start(1, "a"), Start(2, "b")]
    membership.ready(2, 1.0)
    membership.ready(1, 1.0)
    assert membership.take_actions() == []
    membership.ready(0, 1.0)
    assert membership.take_actions() == [Publish(1, (0, 1, 2))]


def test_no_more_than_the_most() -> None:
    membership = Membership(Limits(1, 1, max_np=2))
    membership.discovered([Host("a", 4)], 0.0)
    assert membership.take_actions() == [Start(0, "a"), Start(1, "a")]


def test_a_failed_worker_is_replaced_and_survivors_come_first() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 137, 5.0)
    assert membership.take_actions() == [Start(2, "a")]
    membership.ready(2, 6.0)
    assert membership.take_actions() == []
    membership.ready(1, 6.0)
    assert membership.take_actions() == [Publish(2, (1, 2))]


def test_who_is_awaited_is_live_and_not_ready_while_others_are() -> None:
    membership = started(Limits(2, 1), [Host("a", 3)])
    assert membership.awaited() == set(), "nobody waits"
    membership.ended(0, 137, 5.0)
    assert membership.take_actions() == [Start(3, "a")] and membership.awaited() == set()
    membership.ready(1, 6.0)
    assert membership.awaited() == {2, 3}
    membership.ended(2, 137, 7.0)
    membership.ready(3, 8.0)
    assert membership.awaited() == {4}
    membership.ready(4, 9.0)
    assert membership.awaited() == set(), "the generation has begun"


def test_goes_on_with_fewer_when_no_slot_is_left() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 1, 5.0)
    assert membership.take_actions() == [Say("no new ranks on b: too many of them failed there")]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Publish(2, (0,))]


def test_a_host_cools_down() -> None:
    membership = started(Limits(2, 2, cooldown_s=(10.0, 15.0)), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 1, 5.0)
    membership.ready(0, 6.0)
    membership.take_actions()
    membership.tick(14.9)
    assert membership.take_actions() == []
    membership.tick(15.0)
    assert membership.take_actions() == [Start(2, "b")]
    membership.ended(2, 1, 16.0)
    membership.take_actions()
    membership.tick(30.9)  # twice as long, but at most 15 s
    assert membership.take_actions() == []
    membership.tick(31.0)
    assert membership.take_actions() == [Start(3, "b")]


def test_gives_up_below_the_least() -> None:
    membership = started(Limits(2, 2, fixed_hosts=True), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 9, 5.0)
    membership.ready(0, 6.0)
    actions = membership.take_actions()
    assert actions[-1] == GiveUp("1 ranks are left, at least 2 are needed, and no host takes new ones", 9)
    assert membership.over


def test_waits_for_hosts_until_the_timeout() -> None:
    membership = started(Limits(2, 2, timeout_s=60.0), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 9, 5.0)
    membership.ready(0, 6.0)
    waiting = Say("1 ranks are there and at least 2 are needed: waiting for hosts, for 59 s at most")
    assert membership.take_actions()[-1] == waiting
    membership.tick(64.9)
    assert membership.take_actions() == []
    membership.tick(65.0)
    assert membership.take_actions() == [GiveUp("only 1 ranks after 60 s, at least 2 are needed", 9)]


def test_the_state_must_survive() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 1, 5.0)
    membership.ended(1, 1, 5.0)
    assert membership.take_actions()[-1] == GiveUp("no rank is left that holds the state of training", 1)


def test_failing_at_the_start_ends_the_job() -> None:
    membership = Membership(Limits(2, 1, fixed_hosts=True))
    membership.discovered(HERE, 1000.0)
    membership.take_actions()
    membership.ended(0, 1, 1000.1)
    assert membership.take_actions() == [Start(2, "a")]
    membership.ended(1, 1, 1000.2)
    assert membership.take_actions() == [Say("no new ranks on a: too many of them failed there")]
    membership.ended(2, 1, 1000.3)
    assert isinstance(membership.take_actions()[-1], GiveUp)


def test_new_slots_are_published_and_taken_at_the_next_generation() -> None:
    membership = started(Limits(1, 1), [Host("a", 1)])
    membership.discovered([Host("a", 1), Host("b", 2)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.added)]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Start(1, "b"), Start(2, "b")]
    membership.ready(2, 7.0)
    membership.ready(1, 7.0)
    assert membership.take_actions() == [Publish(2, (0, 1, 2))]


def test_ranks_of_a_host_that_is_taken_away_are_dismissed() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.discovered([Host("a", 1)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)]
    membership.ready(1, 6.0)
    assert membership.take_actions() == [Dismiss(1, "host b has been taken from the job")]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Publish(2, (0,))]
    membership.ended(1, 0, 7.0)
    assert not membership.over
    assert membership.take_actions() == []


def test_one_host_goes_another_comes() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.discovered([Host("a", 1), Host("c", 1)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.mixed)]


def test_reset_limit() -> None:
    membership = started(Limits(2, 1, reset_limit=1), HERE)
    membership.ended(0, 1, 5.0)
    membership.ready(1, 5.0)
    membership.ready(2, 5.0)
    assert membership.take_actions()[-1] == Publish(2, (1, 2))
    membership.ready(1, 6.0)
    membership.ready(2, 6.0)
    assert membership.take_actions() == [GiveUp("the ranks have changed 1 times, which is the limit", 1)]


def test_a_worker_that_does_not_come_is_ended() -> None:
    membership = started(Limits(2, 1, timeout_s=60.0), HERE)
    membership.ready(0, 5.0)
    membership.take_actions()
    membership.tick(65.0)
    assert membership.take_actions() == [Kill(1, "does not come")]
    membership.ended(1, 137, 65.1)
    assert membership.take_actions() == [Start(2, "a")]


def test_a_host_that_cannot_be_reached_is_not_waited_for() -> None:
    membership = started(Limits(2, 1, cooldown_s=(10.0, 100.0)), [Host("a", 1), Host("b", 2)])
    membership.ready(0, 40.0)
    membership.lost(1, 41.0)
    assert membership.take_actions() == [
        Kill(1, "on b cannot be reached"),
        Say("no new ranks on b: too many of them failed there"),
    ]
    assert membership.awaited() == {2}
    membership.lost(2, 41.0)
    assert membership.take_actions() == [Kill(2, "on b cannot be reached"), Publish(2, (0,))]
    membership.lost(2, 42.0)
    membership.ended(2, 137, 44.0)
    membership.tick(50.9)
    assert membership.take_actions() == []
    membership.tick(51.0)  # the host counts as having failed once
    assert membership.take_actions() == [Notify(HostUpdateResult.added)]
    membership.ready(0, 52.0)
    assert membership.take_actions() == [Start(3, "b")], "the other one's process has not ended yet"


def test_who_should_leave_is_not_waited_for_long() -> None:
    membership = started(Limits(2, 1), [Host("a", 2), Host("b", 1)])
    membership.discovered([Host("a", 2)], 5.0)
    membership.ready(0, 6.0)
    membership.take_actions()
    membership.tick(20.0)
    assert membership.take_actions() == [], "worker 1 stays in the job and is waited for"
    membership.ready(1, 20.0)
    membership.tick(24.9)
    assert membership.take_actions() == []
    membership.tick(25.0)
    assert membership.take_actions() == [
        Kill(2, "does not leave b, which was taken from the job"),
        Publish(2, (0, 1)),
    ]
    membership.ended(2, 137, 25.1)
    assert membership.take_actions() == []


def test_the_end() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 0, 5.0)
    assert not membership.over
    membership.ready(1, 5.0)
    assert membership.take_actions() == [Dismiss(1, "the job is ending: another rank has finished")]
    membership.ended(1, 0, 5.1)
    assert membership.over and not membership.failed_at_the_end


def test_a_failure_after_the_end_counts() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 0, 5.0)
    membership.ended(1, 3, 5.1)
    assert membership.over and membership.failed_at_the_end
    assert membership.take_actions() == []


@pytest.mark.parametrize("late", [29.0, 31.0])
def test_a_long_generation_clears_strikes(late: float) -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 1, 2.0)
    membership.ready(1, 3.0)
    membership.ready(2, 3.0)
    membership.take_actions()
    membership.ended(2, 1, 3.0 + late)
    blocked = any(isinstance(action, Say) for action in membership.take_actions())
    assert blocked == (late < 30.0)


def test_a_host_with_fewer_slots_gives_up_its_newest_workers() -> None:
    membership = started(Limits(3, 1), [Host("a", 3)])
    membership.discovered([Host("a", 2)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)]
    for worker in (0, 1, 2):
        membership.ready(worker, 6.0)
    assert membership.take_actions() == [Dismiss(2, "host a has fewer slots now"), Publish(2, (0, 1))]


def test_a_host_that_has_cooled_down_is_announced_to_a_running_job() -> None:
    membership = started(Limits(2, 1, cooldown_s=(10.0, 15.0)), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 1, 5.0)
    membership.ready(0, 6.0)
    assert Publish(2, (0,)) in membership.take_actions()
    membership.tick(14.9)
    assert membership.take_actions() == []
    membership.tick(15.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.added)]
    membership.tick(16.0)
    assert membership.take_actions() == []
    membership.ready(0, 17.0)
    assert membership.take_actions() == [Start(2, "b")]


def test_when_all_hosts_are_replaced_one_worker_stays_to_hand_over_the_state() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.discovered([Host("c", 2)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.mixed)]
    membership.ready(1, 6.0)
    assert membership.take_actions() == [Start(2, "c"), Start(3, "c")]
    membership.ready(0, 6.5)
    assert membership.take_actions() == []
    membership.ready(2, 7.0)
    membership.ready(3, 7.0)
    dismissed = Dismiss(1, "host b has been taken from the job")
    assert membership.take_actions() == [dismissed, Publish(2, (0, 2, 3))], "rank 0 holds the state"
    membership.tick(9.9)
    assert membership.take_actions() == []
    membership.tick(10.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)]
    membership.tick(15.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)], "said again until they come"
    for worker in (2, 3, 0):
        membership.ready(worker, 16.0)
    assert membership.take_actions() == [Dismiss(0, "host a has been taken from the job"), Publish(3, (2, 3))]
    membership.tick(30.0)
    assert membership.take_actions() == []


def test_without_new_hosts_the_state_waits_for_some() -> None:
    membership = started(Limits(1, 1, timeout_s=60.0), [Host("a", 1)])
    membership.discovered([], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)]
    membership.ready(0, 6.0)
    assert membership.take_actions() == []
    membership.discovered([Host("b", 1)], 8.0)
    assert membership.take_actions() == [Start(1, "b")]
    membership.ready(1, 9.0)
    assert membership.take_actions() == [Publish(2, (0, 1))]


def test_all_hosts_are_replaced_in_a_job_that_has_as_many_ranks_as_it_may() -> None:
    membership = started(Limits(1, 1, max_np=1), [Host("a", 1)])
    membership.discovered([Host("b", 1)], 5.0)
    membership.ready(0, 6.0)
    membership.ready(1, 7.0)
    assert membership.take_actions()[-1] == Publish(2, (0, 1)), "one more for the generation in which it hands over"
    membership.ready(1, 8.0)
    membership.ready(0, 8.0)
    assert membership.take_actions() == [Dismiss(0, "host a has been taken from the job"), Publish(3, (1,))]


HOSTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3)


@given(st.lists(st.one_of(HOSTS, st.integers(0, 9)), max_size=30), st.sampled_from([None, 1, 2, 4]))
def test_in_any_order_of_events_the_state_is_handed_on(events: list[dict[str, int] | int], most: int | None) -> None:
    """Hosts change, workers fail; those that are asked to become ready do so: no generation lacks the state."""
    membership = Membership(Limits(1, 1, max_np=most, cooldown_s=(1.0, 2.0), timeout_s=1e9))
    slots = {"a": 2}
    holders: set[int] = set()
    alive: dict[int, str] = {}
    now = 0.0

    def play() -> None:
        nonlocal holders
        while actions := membership.take_actions():
            for action in actions:
                if isinstance(action, Start):
                    assert sum(host == action.host for host in alive.values()) < slots.get(action.host, 0)
                    alive[action.worker] = action.host
                elif isinstance(action, Dismiss):
                    del alive[action.worker]
                    membership.ended(action.worker, 0, now)
                elif isinstance(action, Publish):
                    assert {*action.workers} == {*alive}
                    assert not holders or action.workers[0] in holders, "rank 0 holds the state"
                    holders = {*action.workers}
                elif isinstance(action, GiveUp):
                    assert not holders, "it is lost only with all who held it"

    def settle() -> None:
        """Let workers become ready, as they do at a notice or a failure, until the hosts are followed."""
        nonlocal now
        for _ in range(4):
            for worker in list(alive):
                if worker in alive and not membership.over:
                    membership.ready(worker, now)
                    play()
            now += 10.0
            membership.tick(now)
            play()

    membership.discovered([Host(*one) for one in slots.items()], now)
    play()
    settle()
    for event in events:
        if membership.over:
            return
        if isinstance(event, dict):
            slots = event
            membership.discovered([Host(*one) for one in slots.items()], now)
        elif alive:
            failed = sorted(alive)[event % len(alive)]
            del alive[failed]
            holders.discard(failed)
            membership.ended(failed, 1, now)
        play()
        settle()
    if not membership.over and sum(slots.values()):
        crews = {host: sum(one == host for one in alive.values()) for host in {*alive.values()}}
        assert all(count <= slots.get(host, 0) for host, count in crews.items()), (crews, slots)
